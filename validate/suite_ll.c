/* SPDX-License-Identifier: Apache-2.0 */
/* quick and full of the low-latency API: every format under every shape that has gone wrong somewhere. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "validate/ll_rig.h"

#define BIT(format) (1u << (format))
#define ALL_FORMATS 0xFEu
#define ANY_HIDDEN (ALL_FORMATS & ~(BIT(AFDEP_LL_FP8_BLOCK) | BIT(AFDEP_LL_FP8_BLOCK_UE8M0)))

typedef struct plain {
    afdep_ll_rig_plan_t rig;
    unsigned formats; /* bits; default: all */
    int rounds;       /* exchanges of each format; default 2 */
    int tokens;       /* at every rank */
    int inactive_percent, round_scale, zero_copy, own_out, plain;
    afdep_ll_completion_t dispatch, combine;
    void (*shape)(afdep_ll_rig_t *rig, afdep_ll_plan_t *plan, int n);
} plain_t;

static void run_plain(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const plain_t *p = c->argument;
    unsigned formats = p->formats ? p->formats : ALL_FORMATS;
    afdep_ll_rig_t rig;
    if (afdep_ll_rig_open(v, &p->rig, &rig, outcome) != 0)
        return;
    int failed = 0, n = 0;
    for (int round = 0; round < (p->rounds ? p->rounds : 2) && !failed; round++)
        for (int f = AFDEP_LL_BF16; f <= AFDEP_LL_FP8_BLOCK_UE8M0 && !failed; f++) {
            if (!(formats & BIT(f)))
                continue;
            afdep_ll_rig_tokens(&rig, p->tokens);
            afdep_ll_plan_t plan = afdep_ll_rig_plain(&rig, (afdep_ll_format_t)f);
            plan.inactive_percent = p->inactive_percent;
            plan.round_scale = p->round_scale;
            plan.zero_copy = p->zero_copy;
            plan.own_out = p->own_out;
            plan.plain = p->plain;
            plan.dispatch = p->dispatch;
            plan.combine = p->combine;
            if (p->shape)
                p->shape(&rig, &plan, n);
            failed = afdep_ll_rig_exchange(&rig, &plan, outcome);
            n++;
        }
    afdep_ll_rig_close(&rig, outcome);
}

/* ---- Shapes -------------------------------------------------------------------------------------------------- */

static void uneven(afdep_ll_rig_t *rig, afdep_ll_plan_t *plan, int n)
{
    (void)plan;
    for (int r = 0; r < rig->ranks; r++)
        rig->tokens[r] = (r * 7 + n * 3) % (rig->x[0].max_tokens + 1);
}

static void some_empty(afdep_ll_rig_t *rig, afdep_ll_plan_t *plan, int n)
{
    (void)plan;
    for (int r = 0; r < rig->ranks; r++)
        rig->tokens[r] = (r + n) % 2 ? 0 : 5;
}

static void one_source(afdep_ll_rig_t *rig, afdep_ll_plan_t *plan, int n)
{
    (void)plan;
    afdep_ll_rig_tokens(rig, 0);
    rig->tokens[n * 5 % rig->ranks] = 9;
}

/* Every exchange another shape in the same buffer. */
static void changing(afdep_ll_rig_t *rig, afdep_ll_plan_t *plan, int n)
{
    static const int hidden[] = { 512, 128, 384, 256 };
    plan->hidden = hidden[n % 4];
    plan->top_k = 1 + n % 4;
    plan->max_tokens = 4 + n % 13;
    plan->experts = rig->ranks * (1 + n % 4);
    if (plan->top_k > plan->experts)
        plan->top_k = plan->experts;
    for (int r = 0; r < rig->ranks; r++)
        rig->tokens[r] = (r + n) % (plan->max_tokens + 1);
}

static void modes(afdep_ll_rig_t *rig, afdep_ll_plan_t *plan, int n)
{
    uneven(rig, plan, n);
    plan->dispatch = (afdep_ll_completion_t)(n % 4);
    plan->combine = (afdep_ll_completion_t)(n / 4 % 4);
    plan->zero_copy = n % 3 == 0;
    plan->own_out = n % 5 == 0;
}

/* ---- Cases that are not one buffer with one exchange after the other ----------------------------------------- */

/* Two exchanges under way: the second is dispatched before the first is combined, and completes before or after it. */
static void run_overlapped(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_ll_rig_plan_t rig_plan = { .tensors = 2, .max_tokens = 8 };
    afdep_ll_plan_t plans[2];
    afdep_ll_rig_t rig;
    (void)c;
    if (afdep_ll_rig_open(v, &rig_plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n <= 14 && outcome->verdict == AFDEP_PASSED; n++) {
        int now = n % 2, before = !now;
        afdep_ll_plan_t *plan = &plans[now];
        afdep_status_t status = AFDEP_OK;
        if (n < 14) {
            int *tokens = rig.tokens + now * rig.ranks;
            for (int r = 0; r < rig.ranks; r++)
                tokens[r] = (r + n) % 9;
            *plan = (afdep_ll_plan_t){ .number = (uint64_t)n, .tokens = tokens, .zero_copy = n % 3 == 0,
                                       .format = (afdep_ll_format_t)(1 + n % 7), .dispatch = AFDEP_LL_BY_HOOK,
                                       .combine = n % 4 < 2 ? AFDEP_LL_BY_EVENT : AFDEP_LL_NOW };
            status = afdep_ll_begin_first(&rig.x[now], plan, rig.buffer);
            if (status == AFDEP_OK && n % 3 == 1) /* out of the order of their sending */
                status = afdep_ll_finish_first(&rig.x[now], plan, rig.buffer);
        }
        if (status == AFDEP_OK && n > 0 && (n - 1) % 3 != 1)
            status = afdep_ll_finish_first(&rig.x[before], &plans[before], rig.buffer);
        if (status == AFDEP_OK && n > 0)
            status = afdep_ll_begin_second(&rig.x[before], &plans[before], rig.buffer);
        if (status == AFDEP_OK && n > 0)
            status = afdep_ll_finish_second(&rig.x[before], &plans[before], rig.buffer);
        if (status != AFDEP_OK)
            afdep_outcome_set(outcome, AFDEP_FAILED, "round %d: %s%s", n, rig.x[now].why, rig.x[before].why);
        outcome->exchanges += n > 0;
    }
    afdep_ll_rig_close(&rig, outcome);
}

static void run_buffers(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_ll_rig_t rigs[3];
    int opened = 0;
    (void)c;
    for (; opened < 3; opened++) {
        afdep_ll_rig_plan_t plan = { .max_tokens = 4 << opened, .hidden = 128 << opened };
        if (afdep_ll_rig_open(v, &plan, &rigs[opened], outcome) != 0)
            break;
    }
    for (int n = 0; opened == 3 && n < 15 && outcome->verdict == AFDEP_PASSED; n++) {
        afdep_ll_rig_t *rig = &rigs[n * 2 % 3];
        afdep_ll_rig_tokens(rig, 1 + n % 4);
        afdep_ll_plan_t plan = afdep_ll_rig_plain(rig, (afdep_ll_format_t)(1 + n % 7));
        (void)afdep_ll_rig_exchange(rig, &plan, outcome);
    }
    while (opened-- > 0)
        afdep_ll_rig_close(&rigs[opened], outcome);
}

static void run_skew(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_ll_rig_plan_t rig_plan = { 0 };
    afdep_ll_rig_t rig;
    (void)c;
    if (afdep_ll_rig_open(v, &rig_plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 8; n++) {
        struct timespec late = { 0, 1000000L * ((v->world->rank * 7 + n * 3) % 8) };
        nanosleep(&late, NULL);
        afdep_ll_rig_tokens(&rig, n % 3);
        afdep_ll_plan_t plan = afdep_ll_rig_plain(&rig, (afdep_ll_format_t)(1 + n % 7));
        if (afdep_ll_rig_exchange(&rig, &plan, outcome) != 0)
            break;
    }
    afdep_ll_rig_close(&rig, outcome);
}

/* Words across 2^32; as run_wrap() of the role API's suite. */
static void run_wrap(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_ll_rig_plan_t rig_plan = { .max_tokens = 8 };
    afdep_ll_rig_t rig;
    (void)c;
    if (v->world->rank == 0 || !v->world->threads)
        setenv("AFDEP_TEST_FIRST_EXCHANGE", "4294967288", 1);
    afdep_world_barrier(v->world);
    int opened = afdep_ll_rig_open(v, &rig_plan, &rig, outcome) == 0;
    afdep_world_barrier(v->world);
    if (v->world->rank == 0 || !v->world->threads)
        unsetenv("AFDEP_TEST_FIRST_EXCHANGE");
    afdep_world_barrier(v->world);
    for (int n = 0; opened && n < 16; n++) {
        afdep_ll_plan_t plan = afdep_ll_rig_plain(&rig, (afdep_ll_format_t)(1 + n % 7));
        uneven(&rig, &plan, n);
        if (afdep_ll_rig_exchange(&rig, &plan, outcome) != 0)
            break;
    }
    if (opened)
        afdep_ll_rig_close(&rig, outcome);
}

static void run_cycles(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    (void)c;
    for (int n = 0; n < 10 && outcome->verdict == AFDEP_PASSED; n++) {
        afdep_ll_rig_plan_t rig_plan = { .max_tokens = 4 + n, .hidden = 32 * (1 + n) };
        afdep_ll_rig_t rig;
        if (afdep_ll_rig_open(v, &rig_plan, &rig, outcome) != 0)
            return;
        if (n % 3) { /* some are closed unused */
            afdep_ll_rig_tokens(&rig, 1 + n % 4);
            afdep_ll_plan_t plan = afdep_ll_rig_plain(&rig, AFDEP_LL_MXFP4);
            (void)afdep_ll_rig_exchange(&rig, &plan, outcome);
        }
        afdep_ll_rig_close(&rig, outcome);
    }
}

/* What one rank says differently is refused on every rank, naming it. */
static void run_one_rank(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    static const char *const names[] = {
        "num_max_dispatch_tokens_per_rank", "hidden", "num_topk", "num_experts", "profile", "buffer_bytes"
    };
    (void)c;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        afdep_ll_config_t config = AFDEP_LL_CONFIG_INIT;
        afdep_ll_buffer_t *buffer = NULL;
        int odd = v->world->rank == v->world->size - 1;
        config.num_max_dispatch_tokens_per_rank = 8 + (odd && i == 0);
        config.hidden = 64 + (odd && i == 1 ? 32 : 0);
        config.num_topk = 1 + (odd && i == 2);
        config.num_experts = v->world->size * (2 + (odd && i == 3));
        config.profile = odd && i == 4 ? AFDEP_LL_A3 : AFDEP_LL_NATIVE;
        config.buffer_bytes = ((uint64_t)64 << 20) + (odd && i == 5);
        config.timeout_ms = v->timeout_ms;
        config.fabric = v->fabric;
        config.backend = v->backend;
        afdep_status_t status = afdep_ll_buffer_open(&v->world->group, &config, &buffer);
        if (status == AFDEP_OK)
            (void)afdep_ll_buffer_close(buffer);
        if (status != AFDEP_ERR_AGREEMENT || !strstr(afdep_last_error(), names[i]))
            afdep_outcome_set(outcome, AFDEP_FAILED, "%s set on one rank only: %s: %s", names[i],
                              afdep_status_string(status), afdep_last_error());
    }
}

/* ---- The long runs ------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* How many of the formats, in their order, a profile has. */
static int formats_of(afdep_ll_profile_t profile)
{
    return profile == AFDEP_LL_NATIVE ? 7 : profile == AFDEP_LL_A5 ? 5 : 2;
}

static void random_exchange(afdep_ll_rig_t *rig, uint64_t *state, afdep_ll_plan_t *plan)
{
    uint64_t r = next_random(state);
    int most = rig->x[0].max_tokens - (rig->config.profile != AFDEP_LL_NATIVE);
    *plan = afdep_ll_rig_plain(rig, (afdep_ll_format_t)(1 + (int)(r & 0xFF) % formats_of(rig->config.profile)));
    plan->hidden = 128 * (1 + (int)(r >> 8) % 2);
    plan->top_k = 1 + (int)(r >> 12 & 0xFFF) % rig->config.num_topk;
    plan->round_scale = r >> 24 & 1;
    plan->inactive_percent = (r >> 25) % 8 == 0 ? 100 : (r >> 25) % 8 < 3 ? 30 : 0;
    plan->dispatch = (afdep_ll_completion_t)(r >> 28 & 3);
    plan->combine = (afdep_ll_completion_t)(r >> 30 & 3);
    plan->zero_copy = r >> 32 & 1;
    plan->own_out = r >> 33 & 1;
    plan->plain = r >> 34 & 1;
    for (int i = 0; i < rig->ranks; i++) {
        uint64_t t = next_random(state);
        rig->tokens[i] = t % 4 == 0 ? 0 : (int)(t >> 8 & 0xFFFF) % (most + 1);
    }
}

/* Buffers of random settings, exchanges of random shapes; the same on all ranks, since the seed is. */
static void run_soak(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const int *counts = c->argument; /* buffers, exchanges of each */
    uint64_t state = v->seed;
    for (int b = 0; b < counts[0] && outcome->verdict == AFDEP_PASSED; b++) {
        afdep_ll_rig_plan_t plan = { .max_tokens = 1 + (int)(next_random(&state) % 12),
                                     .hidden = 256,
                                     .top_k = 1 + (int)(next_random(&state) % 8),
                                     .experts_per_rank = 1 + (int)(next_random(&state) % 5),
                                     .profile = (afdep_ll_profile_t)(b % 4) };
        plan.routing.kind = next_random(&state) % 3 == 0 ? AFDEP_ROUTING_HOT : AFDEP_ROUTING_UNIFORM;
        afdep_ll_rig_t rig;
        if (afdep_ll_rig_open(v, &plan, &rig, outcome) != 0)
            return;
        for (int n = 0; n < counts[1]; n++) {
            afdep_ll_plan_t exchange;
            random_exchange(&rig, &state, &exchange);
            if (afdep_ll_rig_exchange(&rig, &exchange, outcome) != 0)
                break;
        }
        afdep_ll_rig_close(&rig, outcome);
    }
}

/* ---- The tables ---------------------------------------------------------------------------------------------- */

#define PLAIN(...) run_plain, &(const plain_t){ __VA_ARGS__ }, 0, NULL
#define A_PROFILE(name) .rig = { .max_tokens = 9, .profile = name }, .tokens = 8
#define OTHER(function) function, NULL, 0, NULL

const afdep_case_t afdep_cases_ll_quick[] = {
    { "formats", AFDEP_SUITE_QUICK, PLAIN(.tokens = 7) },
    { "rounded_scales", AFDEP_SUITE_QUICK, PLAIN(.tokens = 7, .round_scale = 1) },
    { "profile_a2", AFDEP_SUITE_QUICK,
      PLAIN(A_PROFILE(AFDEP_LL_A2), .formats = BIT(AFDEP_LL_BF16) | BIT(AFDEP_LL_INT8)) },
    { "profile_a3", AFDEP_SUITE_QUICK,
      PLAIN(A_PROFILE(AFDEP_LL_A3), .formats = BIT(AFDEP_LL_BF16) | BIT(AFDEP_LL_INT8)) },
    { "profile_a5", AFDEP_SUITE_QUICK, PLAIN(A_PROFILE(AFDEP_LL_A5), .formats = ANY_HIDDEN) },
    { "hidden_32", AFDEP_SUITE_QUICK, PLAIN(.rig = { .hidden = 32 }, .tokens = 16, .formats = ANY_HIDDEN) },
    { "hidden_96", AFDEP_SUITE_QUICK, PLAIN(.rig = { .hidden = 96 }, .tokens = 16, .formats = ANY_HIDDEN) },
    { "hidden_7168", AFDEP_SUITE_QUICK, PLAIN(.rig = { .hidden = 7168, .max_tokens = 4 }, .tokens = 2, .rounds = 1) },
    { "one_token", AFDEP_SUITE_QUICK, PLAIN(.rig = { .max_tokens = 1 }, .tokens = 1) },
    { "all_ranks_empty", AFDEP_SUITE_QUICK, PLAIN(.tokens = 0) },
    { "empty_ranks", AFDEP_SUITE_QUICK, PLAIN(.shape = some_empty) },
    { "one_source_only", AFDEP_SUITE_QUICK, PLAIN(.shape = one_source) },
    { "uneven_sources", AFDEP_SUITE_QUICK, PLAIN(.shape = uneven) },
    { "full", AFDEP_SUITE_QUICK, PLAIN(.tokens = 16) },
    { "masked_choices", AFDEP_SUITE_QUICK, PLAIN(.tokens = 12, .inactive_percent = 40) },
    { "all_masked", AFDEP_SUITE_QUICK, PLAIN(.tokens = 12, .inactive_percent = 100) },
    { "all_to_one_rank", AFDEP_SUITE_QUICK,
      PLAIN(.rig = { .top_k = 1, .routing = { .kind = AFDEP_ROUTING_HOT } }, .tokens = 16) },
    { "one_hot_expert", AFDEP_SUITE_QUICK,
      PLAIN(.rig = { .routing = { .kind = AFDEP_ROUTING_HOT, .hot_expert = 1 } }, .tokens = 16) },
    { "skewed_routes", AFDEP_SUITE_QUICK,
      PLAIN(.rig = { .routing = { .kind = AFDEP_ROUTING_ZIPF, .zipf_s = 1.5 } }, .tokens = 16) },
    { "top_1", AFDEP_SUITE_QUICK, PLAIN(.rig = { .top_k = 1 }, .tokens = 8) },
    { "top_all", AFDEP_SUITE_QUICK, PLAIN(.rig = { .top_k = 16, .experts_per_rank = 16, .hidden = 128 }, .tokens = 4) },
    { "one_expert_per_rank", AFDEP_SUITE_QUICK, PLAIN(.rig = { .experts_per_rank = 1 }, .tokens = 8) },
    { "experts_512", AFDEP_SUITE_QUICK,
      PLAIN(.rig = { .experts = 512, .hidden = 128, .top_k = 8, .max_tokens = 4 }, .tokens = 4, .rounds = 1) },
    { "hooks", AFDEP_SUITE_QUICK, PLAIN(.dispatch = AFDEP_LL_BY_HOOK, .combine = AFDEP_LL_BY_HOOK, .shape = uneven) },
    { "events", AFDEP_SUITE_QUICK,
      PLAIN(.dispatch = AFDEP_LL_BY_EVENT, .combine = AFDEP_LL_BY_EVENT, .shape = uneven) },
    { "queries", AFDEP_SUITE_QUICK,
      PLAIN(.dispatch = AFDEP_LL_BY_QUERY, .combine = AFDEP_LL_BY_QUERY, .shape = uneven) },
    { "zero_copy", AFDEP_SUITE_QUICK, PLAIN(.zero_copy = 1, .tokens = 8) },
    { "librarys_output", AFDEP_SUITE_QUICK, PLAIN(.own_out = 1, .tokens = 8) },
    { "librarys_output_hidden_96", AFDEP_SUITE_QUICK,
      PLAIN(.rig = { .hidden = 96 }, .own_out = 1, .tokens = 8, .formats = ANY_HIDDEN) },
    { "nothing_optional", AFDEP_SUITE_QUICK, PLAIN(.plain = 1, .tokens = 8) },
    { "every_completion", AFDEP_SUITE_QUICK,
      PLAIN(.rig = { .max_tokens = 6, .hidden = 128 }, .rounds = 5, .shape = modes) },
    { "changing_shapes", AFDEP_SUITE_QUICK, PLAIN(.rig = { .hidden = 512 }, .rounds = 4, .shape = changing) },
    { "overlapped", AFDEP_SUITE_QUICK, OTHER(run_overlapped) },
    { "several_buffers", AFDEP_SUITE_QUICK, OTHER(run_buffers) },
    { "skewed_starts", AFDEP_SUITE_QUICK, OTHER(run_skew) },
    { "across_the_wrap", AFDEP_SUITE_QUICK, OTHER(run_wrap) },
    { "open_and_close", AFDEP_SUITE_QUICK, OTHER(run_cycles) },
    { "control_on_one_rank", AFDEP_SUITE_QUICK, OTHER(run_one_rank) },
    { NULL, AFDEP_SUITE_QUICK, NULL, NULL, 0, NULL },
};

const afdep_case_t afdep_cases_ll_full[] = {
    { "tokens_512", AFDEP_SUITE_FULL, PLAIN(.rig = { .max_tokens = 512, .hidden = 128 }, .tokens = 512, .rounds = 1) },
    { "tokens_512_uneven", AFDEP_SUITE_FULL,
      PLAIN(.rig = { .max_tokens = 512, .hidden = 128 }, .shape = uneven, .rounds = 2) },
    { "tokens_511_profile_a5", AFDEP_SUITE_FULL,
      PLAIN(.rig = { .max_tokens = 512, .hidden = 128, .profile = AFDEP_LL_A5, .buffer_bytes = (uint64_t)4 << 30 },
            .formats = ANY_HIDDEN, .tokens = 511, .rounds = 1) },
    { "hidden_7168_tokens_64", AFDEP_SUITE_FULL,
      PLAIN(.rig = { .max_tokens = 64, .hidden = 7168 }, .tokens = 64, .rounds = 1) },
    /* More bytes than go in lines on a GPU, in the smallest format too. */
    { "hidden_7168_tokens_160", AFDEP_SUITE_FULL,
      PLAIN(.rig = { .max_tokens = 160, .hidden = 7168 }, .tokens = 160, .rounds = 1) },
    { "experts_512_top_16", AFDEP_SUITE_FULL,
      PLAIN(.rig = { .max_tokens = 32, .hidden = 128, .experts = 512, .top_k = 16 }, .tokens = 32, .rounds = 2) },
    { "soak", AFDEP_SUITE_FULL, run_soak, (const int[]){ 50, 200 }, 0, NULL },
    { NULL, AFDEP_SUITE_FULL, NULL, NULL, 0, NULL },
};
