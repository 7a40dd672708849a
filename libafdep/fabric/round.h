/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening in rounds: every rank contributes one record to an allgather, with the status it has come to so far, so that
 * a rank that cannot go on takes the others along and all of them return the same error, naming it.
 */
#ifndef AFDEP_FABRIC_ROUND_H
#define AFDEP_FABRIC_ROUND_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/group.h>

/* The first member of every round's record. */
typedef struct afdep_round {
    int32_t status; /* what this rank has come to */
    char why[508];  /* its sentence, when that is an error */
} afdep_round_t;

/*
 * Collective: one allgather. Enters `status` (with afdep_last_error() as its sentence) into `mine`, which holds
 * `bytes` bytes and begins with an afdep_round_t, and gathers all ranks' records into `all`, [size][bytes].
 * `all` may be NULL where it could not be allocated, `status` then being an error: the rank still takes part, as long
 * as the records fit a small buffer on the stack.
 * Returns OK when every rank came with OK, else the error of the lowest rank that did not.
 * Exported for libafdep-mpi only.
 */
AFDEP_EXPORT afdep_status_t afdep_round_gather(const afdep_group_t *group, afdep_status_t status, void *mine,
                                               void *all, size_t bytes);

#endif
