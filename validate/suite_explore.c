/* SPDX-License-Identifier: Apache-2.0 */
/* explore: schedules of small scenarios, all toggles and topologies, every exchange compared, every step checked. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "validate/cases.h"
#include "validate/explorer.h"

typedef struct explore {
    int ffn, attention, per_domain; /* attention 0: the scenario's topology; ffn 0: symmetric */
    int toggles; /* bits: stagger, sparse dispatch, sparse combine, mixed, entry barrier, FP8 combine */
    int in_flight, exchanges, most_tokens, apply_weights;
    uint64_t first_exchange;
    int share; /* of the schedules asked for, in percent */
} explore_t;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The scenario as explored: its topology or the case's, always small. */
static afdep_scenario_t shrink(const afdep_scenario_t *base, const explore_t *e)
{
    afdep_scenario_t s = *base;
    s.hidden = 256;
    s.num_sms = 1;
    s.capacity = s.capacity < 16 ? s.capacity : 16;
    s.routing = (afdep_routing_t){ .kind = AFDEP_ROUTING_UNIFORM };
    if (e->attention) {
        s.ffn_ranks = e->ffn;
        s.attention_ranks = e->attention;
        s.ranks_per_domain = e->per_domain;
        s.num_experts = 4 * afdep_scenario_workers(&s);
        s.top_k = 2;
    }
    return s;
}

static void run_explore(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const explore_t *e = c->argument;
    afdep_scenario_t scenario = shrink(v->scenario, e);
    afdep_explore_case_t explore = { .scenario = &scenario,
                                     .stagger = e->toggles & 1,
                                     .sparse_dispatch = e->toggles >> 1 & 1,
                                     .sparse_combine = e->toggles >> 2 & 1,
                                     .mixed_hybrid = e->toggles >> 3 & 1,
                                     .entry_barrier = e->toggles >> 4 & 1,
                                     .apply_weights = e->apply_weights,
                                     .in_flight = e->in_flight,
                                     .fp8_combine = e->toggles >> 5 & 1,
                                     .exchanges = e->exchanges,
                                     .most_tokens = e->most_tokens,
                                     .first_exchange = e->first_exchange };
    char why[480];
    afdep_explorer_t *explorer = afdep_explorer_create(&explore, why, sizeof(why));
    if (!explorer) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s", why);
        return;
    }
    int schedules = (int)((int64_t)v->schedules * e->share / 100), n = 0;
    double start = seconds();
    for (; n < (schedules ? schedules : 1) && outcome->verdict == AFDEP_PASSED; n++) {
        if (afdep_explorer_run(explorer, v->seed + (uint64_t)n, why, sizeof(why)) != AFDEP_OK)
            afdep_outcome_set(outcome, AFDEP_FAILED, "%s; replay: --only %s --schedules 1 --seed %llu", why, c->name,
                              (unsigned long long)(v->seed + (uint64_t)n));
        outcome->exchanges += e->exchanges;
    }
    if (outcome->verdict == AFDEP_PASSED)
        snprintf(outcome->why, sizeof(outcome->why), "%d schedules, %.0f per second", n, n / (seconds() - start));
    afdep_explorer_destroy(explorer);
}

/* ---- The table: shares add up to 100 --------------------------------------------------------------------------- */

#define EXPLORE(...) AFDEP_SUITE_EXPLORE, run_explore, &(const explore_t){ __VA_ARGS__ }, 1, NULL

#define MIXED 8
#define BARRIER 16
#define FP8_COMBINE 32

const afdep_case_t afdep_cases_explore[] = {
    { "sparse", EXPLORE(0, 0, 0, 7, 1, 1, 4, 0, 0, 16) },
    { "sparse_three_exchanges", EXPLORE(0, 0, 0, 7, 1, 3, 2, 0, 0, 12) },
    { "dense", EXPLORE(0, 0, 0, 0, 1, 2, 2, 0, 0, 5) },
    { "stagger", EXPLORE(0, 0, 0, 1, 1, 2, 2, 0, 0, 2) },
    { "sparse_dispatch", EXPLORE(0, 0, 0, 2, 1, 2, 2, 0, 0, 2) },
    { "stagger_sparse_dispatch", EXPLORE(0, 0, 0, 3, 1, 2, 2, 0, 0, 2) },
    { "sparse_combine", EXPLORE(0, 0, 0, 4, 1, 2, 2, 0, 0, 2) },
    { "stagger_sparse_combine", EXPLORE(0, 0, 0, 5, 1, 2, 2, 0, 0, 2) },
    { "both_sparse", EXPLORE(0, 0, 0, 6, 1, 2, 2, 0, 0, 2) },
    { "two_in_flight", EXPLORE(0, 0, 0, 7, 2, 4, 2, 0, 0, 6) },
    { "four_in_flight", EXPLORE(0, 0, 0, 7, 4, 6, 1, 1, 0, 3) },
    { "across_the_wrap", EXPLORE(0, 0, 0, 7, 1, 3, 2, 0, 0xFFFFFFFEu, 3) },
    { "fp8_combine", EXPLORE(4, 4, 2, 7 | FP8_COMBINE, 1, 2, 3, 0, 0, 2) },
    { "two_ffn_domains", EXPLORE(4, 4, 2, 7, 1, 2, 3, 1, 0, 3) },
    { "domains_of_one", EXPLORE(2, 3, 1, 7, 1, 3, 3, 0, 0, 3) },
    { "domains_of_three", EXPLORE(3, 3, 3, 7, 1, 3, 2, 0, 0, 3) },
    { "one_domain", EXPLORE(2, 4, 6, 7, 1, 3, 4, 0, 0, 3) },
    { "one_domain_one_ffn_rank", EXPLORE(1, 3, 4, 7, 2, 4, 4, 0, 0, 3) },
    { "union", EXPLORE(2, 4, 3, 7, 1, 3, 2, 0, 0, 3) },
    { "union_dense", EXPLORE(2, 4, 3, 0, 1, 3, 2, 0, 0, 2) },
    { "union_two_in_flight", EXPLORE(2, 2, 2, 7, 2, 4, 2, 1, 0, 2) },
    { "mixed", EXPLORE(2, 4, 3, 7 | MIXED, 1, 3, 2, 0, 0, 3) },
    { "mixed_dense", EXPLORE(2, 4, 3, MIXED, 1, 3, 2, 0, 0, 2) },
    { "mixed_two_in_flight", EXPLORE(2, 2, 2, 7 | MIXED, 2, 4, 2, 1, 0, 2) },
    { "mixed_two_ffn_ranks", EXPLORE(4, 2, 3, 7 | MIXED, 1, 3, 2, 0, 0xFFFFFFFEu, 2) },
    { "symmetric", EXPLORE(0, 4, 4, 7, 1, 3, 3, 0, 0, 2) },
    { "symmetric_barrier", EXPLORE(0, 4, 4, 0 | BARRIER, 1, 3, 3, 0, 0, 2) },
    { "symmetric_hybrid", EXPLORE(0, 4, 2, 7, 1, 3, 2, 0, 0, 2) },
    { "symmetric_hybrid_dense", EXPLORE(0, 4, 2, 0, 1, 3, 2, 0, 0, 1) },
    { "symmetric_hybrid_barrier", EXPLORE(0, 4, 2, 0 | BARRIER, 1, 3, 2, 0, 0xFFFFFFFEu, 2) },
    { "symmetric_hybrid_in_flight", EXPLORE(0, 4, 2, 7 | BARRIER, 2, 4, 2, 1, 0, 1) },
    { NULL, AFDEP_SUITE_EXPLORE, NULL, NULL, 1, NULL },
};
