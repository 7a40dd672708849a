/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Negative controls: the library's sources compiled with AFDEP_PLANT, a known wrong variant switched on, and schedules
 * explored until it is caught. Never installed; afdep-validate --suite negative runs it.
 *
 * afdep-validate-planted VARIANT SCHEDULES SEED prints what caught the variant and after how many schedules, exit 0;
 * exit 1 when none did; exit 3 for a variant it does not know. VARIANT@shm runs thread ranks over real shared memory
 * instead, with faults that widen the window; SCHEDULES is then the number of exchanges.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/fault.h"
#include "protocol/planted.h"
#include "validate/exchanger.h"
#include "validate/explorer.h"
#include "validate/ll_explorer.h"
#include "validate/unit/crowd.h"

afdep_plant_t afdep_planted = AFDEP_PLANT_NOTHING;

typedef struct control {
    const char *name;
    afdep_plant_t plant;
    int ffn, attention, per_domain, in_flight, exchanges, unordered, one_sided_stagger;
    int tokens; /* at most, per source */
    uint64_t first_exchange;
    int mixed, barrier;
} control_t;

static const control_t controls[] = {
    { "nothing", AFDEP_PLANT_NOTHING, 2, 4, 2, 1, 3, 0, 0, 4, 0, 0, 0 },
    { "no_witness", AFDEP_PLANT_NO_WITNESS, 2, 4, 2, 1, 3, 0, 0, 4, 0, 0, 0 },
    { "witness_at_channel_0", AFDEP_PLANT_WITNESS_CHANNEL_0, 2, 4, 2, 1, 3, 0, 0, 16, 0, 0, 0 },
    { "witness_to_the_served_only", AFDEP_PLANT_WITNESS_SERVED, 2, 4, 2, 1, 4, 0, 0, 4, 0, 0, 0 },
    { "collect_channel_0_only", AFDEP_PLANT_COLLECT_CHANNEL_0, 2, 4, 2, 1, 2, 0, 0, 4, 0, 0, 0 },
    { "one_forward_word", AFDEP_PLANT_ONE_FORWARD_WORD, 2, 4, 2, 1, 4, 0, 0, 4, 0, 0, 0 },
    { "untagged_count_words", AFDEP_PLANT_UNTAGGED_COUNT, 2, 4, 2, 1, 3, 0, 0, 4, 0, 0, 0 },
    { "count_word_of_the_exchange_before", AFDEP_PLANT_EARLIER_COUNT, 2, 4, 2, 1, 3, 0, 0, 4, 0, 0, 0 },
    { "silent_ranks_not_awaited", AFDEP_PLANT_SILENT_NOT_AWAITED, 2, 4, 6, 1, 4, 0, 0, 4, 0, 0, 0 },
    { "tail_carries", AFDEP_PLANT_TAIL_CARRIES, 2, 4, 2, 1, 4, 0, 0, 4, 0xFFFFFFFEu, 0, 0 },
    { "two_in_flight_on_one_plane", AFDEP_PLANT_ONE_PLANE, 2, 4, 2, 2, 4, 0, 0, 4, 0, 0, 0 },
    { "nothing_union", AFDEP_PLANT_NOTHING, 2, 4, 3, 1, 4, 0, 0, 4, 0, 0, 0 },
    { "union_no_witness", AFDEP_PLANT_NO_WITNESS, 2, 4, 3, 1, 3, 0, 0, 4, 0, 0, 0 },
    { "union_witness_at_channel_0", AFDEP_PLANT_WITNESS_CHANNEL_0, 2, 4, 3, 1, 3, 0, 0, 16, 0, 0, 0 },
    { "union_rail_answers_not_awaited", AFDEP_PLANT_NO_RAIL_ANSWER, 2, 4, 3, 1, 4, 0, 0, 4, 0, 0, 0 },
    { "nothing_mixed", AFDEP_PLANT_NOTHING, 2, 4, 3, 1, 4, 0, 0, 4, 0, 1, 0 },
    { "mixed_no_witness", AFDEP_PLANT_NO_WITNESS, 2, 4, 3, 1, 3, 0, 0, 4, 0, 1, 0 },
    { "mixed_rail_answers_not_awaited", AFDEP_PLANT_NO_RAIL_ANSWER, 2, 4, 3, 1, 4, 0, 0, 4, 0, 1, 0 },
    { "mixed_forward_word_before_answer", AFDEP_PLANT_WORD_BEFORE_ANSWER, 2, 4, 3, 1, 4, 0, 0, 4, 0, 1, 0 },
    { "nothing_symmetric", AFDEP_PLANT_NOTHING, 0, 4, 2, 1, 3, 0, 0, 4, 0, 0, 1 },
    { "symmetric_no_barrier", AFDEP_PLANT_NO_BARRIER_WAIT, 0, 4, 4, 1, 3, 0, 0, 4, 0, 0, 1 },
    { "symmetric_barrier_in_domain_only", AFDEP_PLANT_BARRIER_IN_DOMAIN, 0, 4, 2, 1, 4, 0, 0, 4, 0, 0, 1 },
    { "word_before_its_rows", AFDEP_PLANT_NOTHING, 2, 4, 2, 1, 2, 1, 0, 4, 0, 0, 0 },
    { "stagger_on_one_side", AFDEP_PLANT_NOTHING, 2, 4, 2, 1, 2, 0, 1, 4, 0, 0, 0 },
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
                                     .mixed_hybrid = c->mixed,
                                     .entry_barrier = c->barrier,
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

/* ---- The low-latency API ---------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    afdep_plant_t plant;
    afdep_ll_explore_case_t explore;
} ll_controls[] = {
    { "ll_nothing", AFDEP_PLANT_NOTHING, { .ranks = 3, .exchanges = 5, .overlap = 1 } },
    /* Only overlapping exchanges need it: in turn, the next dispatch joins the silent rank before it uses its plane. */
    { "ll_silent_ranks_not_awaited", AFDEP_PLANT_SILENT_NOT_AWAITED, { .ranks = 3, .exchanges = 6, .overlap = 1 } },
    { "ll_two_in_flight_on_one_plane", AFDEP_PLANT_ONE_PLANE, { .ranks = 3, .exchanges = 4, .overlap = 1 } },
    { "ll_word_before_its_header", AFDEP_PLANT_NOTHING, { .ranks = 3, .exchanges = 3, .unordered = 1 } },
};

static int run_ll(size_t i, long schedules, uint64_t seed)
{
    char why[512];
    afdep_ll_explorer_t *explorer = afdep_ll_explorer_create(&ll_controls[i].explore, seed, why, sizeof(why));
    if (!explorer) {
        fprintf(stderr, "afdep-validate-planted: %s\n", why);
        return 2;
    }
    afdep_planted = ll_controls[i].plant;
    int caught = 0;
    for (long n = 1; n <= schedules && !caught; n++) {
        caught = afdep_ll_explorer_run(explorer, seed + (uint64_t)n, why, sizeof(why)) != AFDEP_OK;
        if (caught)
            printf("caught in schedule %ld: %s\n", n, why);
    }
    if (!caught)
        printf("not caught in %ld schedules\n", schedules);
    afdep_ll_explorer_destroy(explorer);
    return caught ? 0 : 1;
}

/* ---- On real shared memory ------------------------------------------------------------------------------------- */

#define SHM_TIMEOUT_MS 2000
#define SLEEP_US 20000

typedef struct shm_run {
    afdep_scenario_t scenario;
    long exchanges;
    uint64_t seed;
    afdep_faults_t faults;
} shm_run_t;

/* Free-running exchanges, most of them without rows for some rank, until something is wrong. */
static const char *shm_rank(const afdep_group_t *group, void *context)
{
    const shm_run_t *run = context;
    const afdep_scenario_t *s = &run->scenario;
    afdep_config_t config = afdep_exchanger_config(s);
    afdep_group_t faulty = *group;
    afdep_fault_provider_t provider;
    afdep_buffer_t *buffer = NULL;
    afdep_exchanger_t x;
    const char *caught = NULL;
    afdep_fault_provider_init(&provider, &afdep_fabric_shm, &run->faults);
    faulty.fabrics = &provider.super;
    config.timeout_ms = SHM_TIMEOUT_MS;
    if (afdep_buffer_open(&faulty, &config, &buffer) != AFDEP_OK ||
        afdep_exchanger_init(&x, s, buffer, run->seed) != 0)
        abort(); /* not the defect's doing */
    for (long n = 0; n < run->exchanges && !caught; n++) {
        int tokens[16];
        for (int a = 0; a < s->attention_ranks; a++)
            tokens[a] = (int)((n * 7 + a * 3) % 10);
        afdep_exchange_plan_t plan = { .number = (uint64_t)n, .bucket = 10, .tokens = tokens,
                                       .inactive_percent = n % 3 ? 80 : 100 };
        if (afdep_exchanger_first(&x, &plan) != AFDEP_OK || afdep_exchanger_second(&x, &plan) != AFDEP_OK)
            caught = crowd_say("exchange %ld: %s", n + 1, x.why);
    }
    afdep_exchanger_free(&x);
    (void)afdep_buffer_close(buffer);
    return caught;
}

static int run_on_shm(const control_t *c, long exchanges, uint64_t seed)
{
    /* Every other of channel 5's tails is held over a round of FFN rank 0, which then sleeps, before it looks at that
       channel again, long enough for every source to be given a processor and to go as far as the protocol lets it,
       however busy the machine is. Who may overwrite too early does; no luck with the scheduler is needed. */
    afdep_fault_t rules[] = { AFDEP_FAULT_INIT(AFDEP_FAULT_SLOW_ACTOR), AFDEP_FAULT_INIT(AFDEP_FAULT_DELAY) };
    shm_run_t run = { .scenario = scenario_of(c), .exchanges = exchanges, .seed = seed, .faults = { rules, 2, seed } };
    rules[0].rank = 0;
    rules[0].duty = "receive";
    rules[0].amount_us = SLEEP_US;
    rules[1].what = AFDEP_SIGNAL_FINISH_TAIL;
    rules[1].lane = 5;
    rules[1].amount_us = SLEEP_US * 5 / 4;
    rules[1].probability = 0.5;
    afdep_planted = c->plant;
    const char *caught = crowd_run(c->ffn + c->attention, shm_rank, &run);
    if (caught)
        printf("caught on shm: %s\n", caught);
    else
        printf("not caught in %ld exchanges on shm\n", exchanges);
    return caught ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: afdep-validate-planted VARIANT SCHEDULES SEED\n");
        return 3;
    }
    long count = strtol(argv[2], NULL, 10);
    uint64_t seed = strtoull(argv[3], NULL, 10);
    char *at = strchr(argv[1], '@');
    if (at)
        *at++ = '\0';
    for (size_t i = 0; i < sizeof(controls) / sizeof(controls[0]); i++)
        if (strcmp(argv[1], controls[i].name) == 0 && (!at || strcmp(at, "shm") == 0))
            return at ? run_on_shm(&controls[i], count, seed) : run(&controls[i], count, seed);
    for (size_t i = 0; !at && i < sizeof(ll_controls) / sizeof(ll_controls[0]); i++)
        if (strcmp(argv[1], ll_controls[i].name) == 0)
            return run_ll(i, count, seed);
    fprintf(stderr, "afdep-validate-planted: no variant is called %s\n", argv[1]);
    return 3;
}
