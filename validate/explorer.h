/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedule exploration: all ranks of a scenario in one thread over the sim fabric. The seed of a schedule decides which
 * actor steps next and which message lands next; the same seed replays the same schedule, step by step.
 *
 * Every exchange is compared with the oracle, and at every step: no slot is written while its reader may still read it,
 * no word goes backwards, and at the end no signal is beyond the counts of the protocol.
 */
#ifndef AFDEP_VALIDATE_EXPLORER_H
#define AFDEP_VALIDATE_EXPLORER_H

#include <afdep/afdep.h>

#include "bench/lib/scenario.h"

typedef enum afdep_strategy {
    AFDEP_STRATEGY_UNIFORM,  /* any runnable actor, any lane */
    AFDEP_STRATEGY_PRIORITY, /* random priorities with a few change points */
    AFDEP_STRATEGY_DELAY,    /* in order, but for a few lanes held back for a while */
    AFDEP_STRATEGY_STARVE,   /* one actor, rank or lane moves only when nothing else can */
    AFDEP_STRATEGY_COUNT
} afdep_strategy_t;

const char *afdep_strategy_name(afdep_strategy_t strategy);

typedef struct afdep_explore_case {
    const afdep_scenario_t *scenario;
    int stagger, sparse_dispatch, sparse_combine, apply_weights, in_flight;
    int mixed_hybrid, entry_barrier;
    int fp8_combine;
    int exchanges;           /* of one schedule, with no barrier between */
    int most_tokens;         /* 0: up to the capacity, edges of the channels included; else at most so many */
    uint64_t first_exchange; /* exchanges that count as done at open */
    /* Negative controls. */
    int unordered;        /* words land before the rows that they publish */
    int one_sided_stagger; /* FFN ranks resolve another stagger than the sources, unagreed */
} afdep_explore_case_t;

typedef struct afdep_explorer afdep_explorer_t;

/* NULL with a line in `why` where the case cannot be. */
afdep_explorer_t *afdep_explorer_create(const afdep_explore_case_t *explore, char *why, size_t why_size);
void afdep_explorer_destroy(afdep_explorer_t *explorer);

/* Runs one schedule. AFDEP_OK, or the first thing wrong, as a status and a line in `why` that names the step. */
afdep_status_t afdep_explorer_run(afdep_explorer_t *explorer, uint64_t seed, char *why, size_t why_size);

/* The strategy that a seed chooses. */
afdep_strategy_t afdep_explorer_strategy(uint64_t seed);

/* Steps taken by the last schedule: actor steps and landings. */
uint64_t afdep_explorer_steps(const afdep_explorer_t *explorer);

#endif
