/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of afdep-validate: one table per suite, one driver for all of them. A case runs on every rank of the world at
 * once (or on rank 0 alone), says what went wrong at this rank, and leaves the adding up to the driver.
 */
#ifndef AFDEP_VALIDATE_CASES_H
#define AFDEP_VALIDATE_CASES_H

#include <stdint.h>

#include "bench/lib/gin_note.h"
#include "bench/lib/scenario.h"
#include "bench/lib/world.h"

typedef enum afdep_suite {
    AFDEP_SUITE_QUICK,
    AFDEP_SUITE_FULL,
    AFDEP_SUITE_FAULTS,
    AFDEP_SUITE_NEGATIVE,
    AFDEP_SUITE_EXPLORE,
    AFDEP_SUITE_GRAPH,
    AFDEP_SUITES
} afdep_suite_t;

/* What cases are given. */
typedef struct afdep_validation {
    afdep_world_t *world;
    const afdep_scenario_t *scenario;
    const char *program; /* argv[0], for cases that start child programs */
    const char *fabric;  /* as --fabric; NULL: the group's own */
    const char *backend; /* as --backend */
    uint64_t seed;
    int timeout_ms;
    int schedules;
    afdep_gin_note_t *gin; /* filled in by the first buffer that is opened */
} afdep_validation_t;

typedef enum afdep_verdict { AFDEP_PASSED, AFDEP_FAILED, AFDEP_SKIPPED } afdep_verdict_t;

/* How a case ended at one rank. Plain data: it is gathered from all ranks. */
typedef struct afdep_outcome {
    afdep_verdict_t verdict;
    char why[480]; /* of a failure or a skip; of a pass: what is worth saying, or "" */
    int64_t exchanges, graph_exchanges;
} afdep_outcome_t;

typedef struct afdep_case {
    const char *name;
    afdep_suite_t suite;
    void (*run)(const afdep_validation_t *v, const struct afdep_case *c, afdep_outcome_t *outcome);
    const void *argument;
    int alone;         /* 1: rank 0 only */
    const char *fault; /* what the case injects, for the record; NULL: nothing */
} afdep_case_t;

/* The tables, each ended by a NULL name. */
extern const afdep_case_t afdep_cases_quick[];
extern const afdep_case_t afdep_cases_full[];
extern const afdep_case_t afdep_cases_faults[];
extern const afdep_case_t afdep_cases_negative[];
extern const afdep_case_t afdep_cases_explore[];
extern const afdep_case_t afdep_cases_graph[];
extern const afdep_case_t afdep_cases_ll_quick[];
extern const afdep_case_t afdep_cases_ll_full[];
extern const afdep_case_t afdep_cases_ll_faults[];
extern const afdep_case_t afdep_cases_ll_negative[];
extern const afdep_case_t afdep_cases_ll_explore[];

/* Those of the CUDA backend, where it is built: what its kernels can meet, and how long. */
extern const afdep_case_t afdep_cases_device_faults[];
extern const afdep_case_t afdep_cases_device_full[];
extern const afdep_case_t afdep_cases_ll_device_faults[];
extern const afdep_case_t afdep_cases_ll_device_graph[];

/* Fails or skips a case; the first failure stays. */
__attribute__((format(printf, 3, 4))) void afdep_outcome_set(afdep_outcome_t *outcome, afdep_verdict_t verdict,
                                                             const char *format, ...);

#endif
