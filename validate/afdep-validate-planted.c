/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Negative controls: the library's sources compiled with AFDEP_PLANT, a known wrong variant switched on, and schedules
 * explored until it is caught. Never installed; afdep-validate --suite negative runs it.
 *
 * afdep-validate-planted VARIANT SCHEDULES SEED prints what caught the variant and after how many schedules, exit 0; exit 1
 * when none did; exit 3 for a variant it does not know.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/planted.h"
#include "validate/explorer.h"

afdep_plant_t afdep_planted = AFDEP_PLANT_NOTHING;

typedef struct control {
    const char *name;
    afdep_plant_t plant;
    int ffn, attention, per_domain, in_flight, exchanges, unordered, one_sided_stagger;
    int tokens; /* at most, per source */
    uint64_t first_exchange;
} control_t;

static const control_t controls[] = {
    { "nothing", AFDEP_PLANT_NOTHING, 2, 4, 2, 1, 3, 0, 0, 4, 0 },
    { "no_witness", AFDEP_PLANT_NO_WITNESS, 2, 4, 2, 1, 3, 0, 0, 4, 0 },
    { "witness_at_channel_0", AFDEP_PLANT_WITNESS_CHANNEL_0, 2, 4, 2, 1, 3, 0, 0, 16, 0 },
    { "witness_to_the_served_only", AFDEP_PLANT_WITNESS_SERVED, 2, 4, 2, 1, 4, 0, 0, 4, 0 },
    { "collect_channel_0_only", AFDEP_PLANT_COLLECT_CHANNEL_0, 2, 4, 2, 1, 2, 0, 0, 4, 0 },
    { "one_forward_word", AFDEP_PLANT_ONE_FORWARD_WORD, 2, 4, 2, 1, 4, 0, 0, 4, 0 },
    { "untagged_count_words", AFDEP_PLANT_UNTAGGED_COUNT, 2, 4, 2, 1, 3, 0, 0, 4, 0 },
    { "count_word_of_the_exchange_before", AFDEP_PLANT_EARLIER_COUNT, 2, 4, 2, 1, 3, 0, 0, 4, 0 },
    { "silent_ranks_not_awaited", AFDEP_PLANT_SILENT_NOT_AWAITED, 2, 4, 6, 1, 4, 0, 0, 4, 0 },
    { "tail_carries", AFDEP_PLANT_TAIL_CARRIES, 2, 4, 2, 1, 4, 0, 0, 4, 0xFFFFFFFEu },
    { "two_in_flight_on_one_plane", AFDEP_PLANT_ONE_PLANE, 2, 4, 2, 2, 4, 0, 0, 4, 0 },
    { "word_before_its_rows", AFDEP_PLANT_NOTHING, 2, 4, 2, 1, 2, 1, 0, 4, 0 },
    { "stagger_on_one_side", AFDEP_PLANT_NOTHING, 2, 4, 2, 1, 2, 0, 1, 4, 0 },
};

static afdep_scenario_t scenario_of(const control_t *c)
{
    afdep_scenario_t s;
    memset(&s, 0, sizeof(s));
    s.ffn_ranks = c->ffn;
    s.attention_ranks = c->attention;
    s.ranks_per_domain = c->per_domain;
    s.num_experts = 8;
    s.top_k = 2;
    s.hidden = 256;
    s.dtype = AFDEP_DTYPE_FP8;
    s.capacity = 16;
    s.num_sms = 1;
    s.expert_alignment = 1;
    s.seed = 1;
    return s;
}

static int run(const control_t *c, long schedules, uint64_t seed)
{
    afdep_scenario_t scenario = scenario_of(c);
    afdep_explore_case_t explore = { .scenario = &scenario,
                                     .stagger = 1,
                                     .sparse_dispatch = 1,
                                     .sparse_combine = 1,
                                     .in_flight = c->in_flight,
                                     .exchanges = c->exchanges,
                                     .most_tokens = c->tokens,
                                     .first_exchange = c->first_exchange,
                                     .unordered = c->unordered,
                                     .one_sided_stagger = c->one_sided_stagger };
    char why[512];
    afdep_explorer_t *explorer = afdep_explorer_create(&explore, why, sizeof(why));
    if (!explorer) {
        fprintf(stderr, "afdep-validate-planted: %s\n", why);
        return 2;
    }
    afdep_planted = c->plant;
    int caught = 0;
    for (long n = 1; n <= schedules && !caught; n++) {
        caught = afdep_explorer_run(explorer, seed + (uint64_t)n, why, sizeof(why)) != AFDEP_OK;
        if (caught)
            printf("caught in schedule %ld: %s\n", n, why);
    }
    if (!caught)
        printf("not caught in %ld schedules\n", schedules);
    afdep_explorer_destroy(explorer);
    return caught ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: afdep-validate-planted VARIANT SCHEDULES SEED\n");
        return 3;
    }
    for (size_t i = 0; i < sizeof(controls) / sizeof(controls[0]); i++)
        if (strcmp(argv[1], controls[i].name) == 0)
            return run(&controls[i], strtol(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    fprintf(stderr, "afdep-validate-planted: no variant is called %s\n", argv[1]);
    return 3;
}
