/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening in rounds: the allgather that carries every rank's record and status, and the verdict all ranks draw from it.
 */
#include "fabric/round.h"

#include <string.h>

#include "core/error.h"
#include "core/group.h"

/* Enough for a few hundred ranks; only a rank that is out of memory needs it. */
#define EMERGENCY_BYTES ((size_t)128 * 1024)

static afdep_status_t judge(const unsigned char *all, size_t bytes, int size, int rank)
{
    for (int r = 0; r < size; r++) {
        afdep_round_t round;

        memcpy(&round, all + (size_t)r * bytes, sizeof(round));
        if (round.status == AFDEP_OK)
            continue;
        round.why[sizeof(round.why) - 1] = '\0';
        if (r == rank)
            return afdep_fail((afdep_status_t)round.status, "%s", round.why);
        return afdep_fail((afdep_status_t)round.status, "rank %d: %s", r, round.why);
    }
    return AFDEP_OK;
}

/* Apart, so that the stack of the ordinary path stays small. */
static __attribute__((noinline)) afdep_status_t gather_without_memory(const afdep_group_t *group,
                                                                      afdep_status_t status, const void *mine,
                                                                      size_t bytes)
{
    unsigned char all[EMERGENCY_BYTES];
    afdep_status_t gathered;

    if (bytes > sizeof(all) / (size_t)group->size)
        return status;
    gathered = afdep_group_allgather(group, mine, all, bytes);
    return gathered != AFDEP_OK ? gathered : judge(all, bytes, group->size, group->rank);
}

afdep_status_t afdep_round_gather(const afdep_group_t *group, afdep_status_t status, void *mine, void *all,
                                  size_t bytes)
{
    afdep_round_t *round = mine;
    afdep_status_t gathered;

    memset(round, 0, sizeof(*round));
    round->status = status;
    if (status != AFDEP_OK)
        strncpy(round->why, afdep_last_error(), sizeof(round->why) - 1);
    if (!all)
        return gather_without_memory(group, status, mine, bytes);
    gathered = afdep_group_allgather(group, mine, all, bytes);
    return gathered != AFDEP_OK ? gathered : judge(all, bytes, group->size, group->rank);
}
