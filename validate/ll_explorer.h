/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedule exploration of the low-latency API: all ranks in one thread over the sim fabric. The seed of a schedule
 * decides how the calls of two overlapping exchanges are ordered, which rank steps next and which message lands next;
 * every exchange is compared with the oracle. The same seed replays the same schedule.
 */
#ifndef AFDEP_VALIDATE_LL_EXPLORER_H
#define AFDEP_VALIDATE_LL_EXPLORER_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/status.h>

typedef struct afdep_ll_explore_case {
    int ranks;     /* at most 8 */
    int exchanges; /* of one schedule, at most 16 */
    int overlap;   /* 1: the calls of neighbouring exchanges mix */
    uint64_t first_exchange;
    int unordered; /* negative control: words land before the header they come with */
} afdep_ll_explore_case_t;

typedef struct afdep_ll_explorer afdep_ll_explorer_t;

/* NULL with a line in `why`. */
afdep_ll_explorer_t *afdep_ll_explorer_create(const afdep_ll_explore_case_t *explore, uint64_t seed, char *why,
                                              size_t why_size);
void afdep_ll_explorer_destroy(afdep_ll_explorer_t *explorer);

/* Runs one schedule. AFDEP_OK, or the first thing wrong, as a status and a line in `why` that names seed and step. */
afdep_status_t afdep_ll_explorer_run(afdep_ll_explorer_t *explorer, uint64_t seed, char *why, size_t why_size);

#endif
