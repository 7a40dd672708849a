/* SPDX-License-Identifier: Apache-2.0 */
/* explore of the low-latency API: schedules of few ranks, every exchange compared. */
#include <stdio.h>
#include <time.h>

#include "validate/cases.h"
#include "validate/ll_explorer.h"

typedef struct explore {
    afdep_ll_explore_case_t explore;
    int share; /* of the schedules asked for, in percent */
} explore_t;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_explore(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const explore_t *e = c->argument;
    char why[480];
    afdep_ll_explorer_t *explorer = afdep_ll_explorer_create(&e->explore, v->seed, why, sizeof(why));
    if (!explorer) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s", why);
        return;
    }
    int schedules = (int)((int64_t)v->schedules * e->share / 100), n = 0;
    double start = seconds();
    for (; n < (schedules ? schedules : 1) && outcome->verdict == AFDEP_PASSED; n++) {
        if (afdep_ll_explorer_run(explorer, v->seed + (uint64_t)n, why, sizeof(why)) != AFDEP_OK)
            afdep_outcome_set(outcome, AFDEP_FAILED, "%s; replay: --only %s --schedules 1 --seed %llu", why, c->name,
                              (unsigned long long)(v->seed + (uint64_t)n));
        outcome->exchanges += e->explore.exchanges;
    }
    if (outcome->verdict == AFDEP_PASSED)
        snprintf(outcome->why, sizeof(outcome->why), "%d schedules, %.0f per second", n, n / (seconds() - start));
    afdep_ll_explorer_destroy(explorer);
}

/* Shares add up to 100. */
#define EXPLORE(percent, ...) AFDEP_SUITE_EXPLORE, run_explore, \
                              &(const explore_t){ { __VA_ARGS__ }, percent }, 1, NULL

const afdep_case_t afdep_cases_ll_explore[] = {
    { "in_turn", EXPLORE(30, .ranks = 3, .exchanges = 6) },
    { "overlapped", EXPLORE(40, .ranks = 3, .exchanges = 6, .overlap = 1) },
    { "two_ranks", EXPLORE(10, .ranks = 2, .exchanges = 8, .overlap = 1) },
    { "five_ranks", EXPLORE(10, .ranks = 5, .exchanges = 4, .overlap = 1) },
    { "across_the_wrap", EXPLORE(10, .ranks = 3, .exchanges = 6, .overlap = 1, .first_exchange = 0xFFFFFFFCu) },
    { NULL, AFDEP_SUITE_EXPLORE, NULL, NULL, 0, NULL },
};
