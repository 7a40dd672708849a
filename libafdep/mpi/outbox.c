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

/* One accumulate for words that lie side by side: each costs Open MPI's osc/rdma a remote lock. */
static afdep_status_t send_run(afdep_outbox_t *box, const uint64_t *values, int count, uint64_t offset)
{
    return afdep_mpi_check(MPI_Accumulate(values, count, MPI_UINT64_T, box->peer, (MPI_Aint)offset, count, MPI_UINT64_T,
                                          MPI_REPLACE, box->window), "MPI_Accumulate");
}

/* By offset, the earlier of two values of one word first. Channels finish nearly in order, so most words stay. */
static void sort_words(afdep_outbox_word_t *words, int count)
{
    for (int i = 1; i < count; i++) {
        afdep_outbox_word_t word = words[i];
        int at = i;

        for (; at > 0 && words[at - 1].offset > word.offset; at--)
            words[at] = words[at - 1];
        words[at] = word;
    }
}

/* Words from .. to - 1, which nothing orders among themselves. Of one word's values only the last is sent. */
static afdep_status_t send_wave(afdep_outbox_t *box, int from, int to)
{
    int start = from, fill = from; /* values[start .. fill - 1] is the run being gathered */

    sort_words(&box->words[from], to - from);
    for (int i = from; i < to; i++) {
        uint64_t offset = box->words[i].offset;
        int ends;

        if (i + 1 < to && box->words[i + 1].offset == offset)
            continue;
        box->values[fill++] = box->words[i].value;
        ends = i + 1 == to || box->words[i + 1].offset != offset + sizeof(uint64_t);
        if (ends) {
            int count = fill - start;
            afdep_status_t status = send_run(box, &box->values[start], count,
                                             offset - (uint64_t)(count - 1) * sizeof(uint64_t));

            if (status != AFDEP_OK)
                return status;
            start = fill;
        }
    }
    return AFDEP_OK;
}

afdep_status_t afdep_outbox_start_words(afdep_outbox_t *box)
{
    int from = 0;

    for (int i = 0; i < box->count; i++) {
        afdep_outbox_word_t *word = &box->words[i];
        afdep_outbox_lane_t *lane = &box->sent[word->lane];

        if (lane->completion == box->completions + 1 && lane->offset != word->offset) {
            afdep_status_t status = send_wave(box, from, i);

            if (status == AFDEP_OK)
                status = complete(box);
            if (status != AFDEP_OK)
                return status;
            from = i;
        }
        lane->completion = box->completions + 1;
        lane->offset = word->offset;
    }
    return send_wave(box, from, box->count);
}

/* Complete here is enough: the values may be overwritten, and MPI carries them on by itself. */
afdep_status_t afdep_outbox_complete_words(afdep_outbox_t *box)
{
    if (box->count == 0)
        return AFDEP_OK;
    box->count = 0;
    return afdep_mpi_check(MPI_Win_flush_local(box->peer, box->window), "MPI_Win_flush_local");
}
