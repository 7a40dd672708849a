/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits to be sent to one rank through an MPI window.
 */
#include "mpi/outbox.h"

#include <limits.h>
#include <stdlib.h>

#include "core/error.h"
#include "mpi/group_mpi.h"

afdep_outbox_t *afdep_outbox_new(MPI_Win window, int peer, int lanes)
{
    afdep_outbox_t *box = calloc(1, sizeof(*box) + (size_t)lanes * sizeof(box->sent[0]));

    if (!box)
        return NULL;
    box->window = window;
    box->peer = peer;
    return box;
}

static afdep_status_t complete(afdep_outbox_t *box)
{
    box->completions++;
    box->puts = 0;
    return afdep_mpi_check(MPI_Win_flush(box->peer, box->window), "MPI_Win_flush");
}

afdep_status_t afdep_outbox_put(afdep_outbox_t *box, uint64_t offset, const void *src, size_t bytes)
{
    if (bytes > INT_MAX)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "a put of %zu bytes for rank %d, %d at most", bytes, box->peer, INT_MAX);
    box->puts = 1;
    return afdep_mpi_check(MPI_Put(src, (int)bytes, MPI_BYTE, box->peer, (MPI_Aint)offset, (int)bytes, MPI_BYTE,
                                   box->window), "MPI_Put");
}

afdep_status_t afdep_outbox_signal(afdep_outbox_t *box, int lane, uint64_t offset, uint64_t value)
{
    if (box->count == AFDEP_OUTBOX_WORDS) {
        afdep_status_t status = afdep_outbox_complete_rows(box);

        if (status == AFDEP_OK)
            status = afdep_outbox_start_words(box);
        if (status == AFDEP_OK)
            status = afdep_outbox_complete_words(box);
        if (status != AFDEP_OK)
            return status;
    }
    box->words[box->count++] = (afdep_outbox_word_t){ offset, value, lane };
    return AFDEP_OK;
}

afdep_status_t afdep_outbox_complete_rows(afdep_outbox_t *box)
{
    return box->puts ? complete(box) : AFDEP_OK;
}

afdep_status_t afdep_outbox_start_words(afdep_outbox_t *box)
{
    for (int i = 0; i < box->count; i++) {
        afdep_outbox_word_t *word = &box->words[i];
        afdep_outbox_lane_t *lane = &box->sent[word->lane];
        afdep_status_t status = AFDEP_OK;

        if (lane->completion == box->completions + 1 && lane->offset != word->offset)
            status = complete(box);
        lane->completion = box->completions + 1;
        lane->offset = word->offset;
        if (status == AFDEP_OK)
            status = afdep_mpi_check(MPI_Accumulate(&word->value, 1, MPI_UINT64_T, box->peer, (MPI_Aint)word->offset, 1,
                                                    MPI_UINT64_T, MPI_REPLACE, box->window), "MPI_Accumulate");
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_OK;
}

/* Complete here is enough: the values may be overwritten, and MPI carries them on by itself. */
afdep_status_t afdep_outbox_complete_words(afdep_outbox_t *box)
{
    if (box->count == 0)
        return AFDEP_OK;
    box->count = 0;
    return afdep_mpi_check(MPI_Win_flush_local(box->peer, box->window), "MPI_Win_flush_local");
}
