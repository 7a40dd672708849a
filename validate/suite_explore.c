/* SPDX-License-Identifier: Apache-2.0 */
/* explore: schedules of small scenarios over all toggles and topologies, every exchange compared, every step checked. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "validate/cases.h"
#include "validate/explorer.h"

typedef struct explore {
    int ffn, attention, per_domain; /* 0: the scenario's topology */
    int toggles;                    /* bits: stagger, sparse dispatch, sparse combine */
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
    if (e->ffn) {
        s.ffn_ranks = e->ffn;
        s.attention_ranks = e->attention;
        s.ranks_per_domain = e->per_domain;
        s.num_experts = 4 * e->ffn;
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
                                     .apply_weights = e->apply_weights,
                                     .in_flight = e->in_flight,
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

const afdep_case_t afdep_cases_explore[] = {
    { "sparse", EXPLORE(0, 0, 0, 7, 1, 1, 4, 0, 0, 24) },
    { "sparse_three_exchanges", EXPLORE(0, 0, 0, 7, 1, 3, 2, 0, 0, 16) },
    { "dense", EXPLORE(0, 0, 0, 0, 1, 2, 2, 0, 0, 6) },
    { "stagger", EXPLORE(0, 0, 0, 1, 1, 2, 2, 0, 0, 3) },
    { "sparse_dispatch", EXPLORE(0, 0, 0, 2, 1, 2, 2, 0, 0, 3) },
    { "stagger_sparse_dispatch", EXPLORE(0, 0, 0, 3, 1, 2, 2, 0, 0, 3) },
    { "sparse_combine", EXPLORE(0, 0, 0, 4, 1, 2, 2, 0, 0, 3) },
    { "stagger_sparse_combine", EXPLORE(0, 0, 0, 5, 1, 2, 2, 0, 0, 3) },
    { "both_sparse", EXPLORE(0, 0, 0, 6, 1, 2, 2, 0, 0, 3) },
    { "two_in_flight", EXPLORE(0, 0, 0, 7, 2, 4, 2, 0, 0, 8) },
    { "four_in_flight", EXPLORE(0, 0, 0, 7, 4, 6, 1, 1, 0, 4) },
    { "across_the_wrap", EXPLORE(0, 0, 0, 7, 1, 3, 2, 0, 0xFFFFFFFEu, 4) },
    { "two_ffn_domains", EXPLORE(4, 4, 2, 7, 1, 2, 3, 1, 0, 4) },
    { "domains_of_one", EXPLORE(2, 3, 1, 7, 1, 3, 3, 0, 0, 4) },
    { "domains_of_three", EXPLORE(3, 3, 3, 7, 1, 3, 2, 0, 0, 4) },
    { "one_domain", EXPLORE(2, 4, 6, 7, 1, 3, 4, 0, 0, 4) },
    { "one_domain_one_ffn_rank", EXPLORE(1, 3, 4, 7, 2, 4, 4, 0, 0, 4) },
    { NULL, AFDEP_SUITE_EXPLORE, NULL, NULL, 1, NULL },
};
