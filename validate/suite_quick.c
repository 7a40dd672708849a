/* SPDX-License-Identifier: Apache-2.0 */
/* quick: eager exchanges of every shape that has gone wrong somewhere, checked value by value. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "validate/engine.h"
#include "validate/recording.h"
#include "validate/rig.h"

/* One eager case: a plan for the buffer, and what its exchanges vary. */
typedef struct eager {
    afdep_rig_plan_t rig;
    int exchanges; /* default 3 */
    int tokens;    /* of every source; -1: the case sets them */
    int inactive_percent, read_host_counts, view, strided_scales, null_row_source;
    /* Sets tokens for exchange n; NULL: `tokens` everywhere. */
    void (*shape)(afdep_rig_t *rig, int n);
    int whole_bucket; /* bucket is the capacity, whatever the tokens */
    int repeat;       /* every exchange but each `repeat`-th has the ids of the one before, cached; 0: none */
} eager_t;

static void run_eager(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const eager_t *e = c->argument;
    afdep_rig_t rig;
    if (afdep_rig_open(v, &e->rig, &rig, outcome) != 0)
        return;
    int exchanges = e->exchanges ? e->exchanges : 3;
    for (int n = 0; n < exchanges; n++) {
        afdep_rig_tokens(&rig, e->tokens);
        int on_plane = n / rig.in_flight;
        int again = e->repeat ? on_plane % e->repeat : 0; /* how often the ids were used */
        if (e->shape)
            e->shape(&rig, n - again * rig.in_flight);
        afdep_exchange_plan_t plan = afdep_rig_plain(&rig);
        plan.cached = again != 0;
        plan.routing = plan.number - (uint64_t)(again * rig.in_flight);
        if (e->whole_bucket)
            plan.bucket = rig.scenario.capacity;
        plan.inactive_percent = e->inactive_percent;
        plan.read_host_counts = e->read_host_counts;
        plan.view = e->view;
        plan.strided_scales = e->strided_scales;
        plan.null_row_source = e->null_row_source;
        if (afdep_rig_exchange(&rig, &plan, outcome) != 0)
            break;
    }
    afdep_rig_close(&rig, outcome);
}

/* ---- Shapes -------------------------------------------------------------------------------------------------- */

static void some_empty(afdep_rig_t *rig, int n)
{
    for (int a = 0; a < rig->scenario.attention_ranks; a++)
        rig->tokens[a] = (a + n) % 2 ? 0 : 3;
}

static void one_source(afdep_rig_t *rig, int n)
{
    afdep_rig_tokens(rig, 0);
    rig->tokens[n * 5 % rig->scenario.attention_ranks] = 7;
}

static void uneven(afdep_rig_t *rig, int n)
{
    for (int a = 0; a < rig->scenario.attention_ranks; a++)
        rig->tokens[a] = (a * 7 + n * 3) % 20;
}

/* Layouts with equal sums: what one exchange sends from the left, the next sends from the right. */
static void equal_sums(afdep_rig_t *rig, int n)
{
    int sources = rig->scenario.attention_ranks;
    for (int a = 0; a < sources; a++)
        rig->tokens[a] = (n % 2 ? a : sources - 1 - a) % 6;
}

static void channel_edges(afdep_rig_t *rig, int n)
{
    int channels = 8 * rig->scenario.num_sms;
    const int edges[] = { 1, channels - 1, channels, channels + 1, 2 * channels, 2 * channels + 1, 0 };
    afdep_rig_tokens(rig, edges[n % 7]);
}

static void bucket_cycle(afdep_rig_t *rig, int n)
{
    static const int cycle[] = { 64, 1, 16, 3, 64, 8, 1 };
    afdep_rig_tokens(rig, cycle[n % 7]);
}

/* ---- Cases that are not one buffer with plain exchanges ------------------------------------------------------ */

/* Two and three buffers on one group, their exchanges interleaved differently every time. */
static void run_buffers(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_rig_t rigs[3];
    int opened = 0;
    (void)c;
    for (; opened < 3; opened++) {
        afdep_rig_plan_t plan = { .capacity = 16 << opened, .num_sms = 1 + opened % 2 };
        if (afdep_rig_open(v, &plan, &rigs[opened], outcome) != 0)
            break;
    }
    for (int n = 0; opened == 3 && n < 12; n++) {
        /* First halves in one order, second halves in another. */
        afdep_exchange_plan_t plans[3];
        int failed = 0;
        for (int i = 0; i < 3 && !failed; i++) {
            afdep_rig_t *rig = &rigs[(i + n) % 3];
            afdep_rig_tokens(rig, 1 + (n + i) % 5);
            plans[(i + n) % 3] = afdep_rig_plain(rig);
            failed = afdep_exchanger_first(&rig->x[0], &plans[(i + n) % 3]) != AFDEP_OK;
            if (failed)
                afdep_outcome_set(outcome, AFDEP_FAILED, "round %d: %s", n, rig->x[0].why);
        }
        for (int i = 0; i < 3 && !failed; i++) {
            afdep_rig_t *rig = &rigs[(2 * i + n) % 3];
            failed = afdep_exchanger_second(&rig->x[0], &plans[(2 * i + n) % 3]) != AFDEP_OK;
            if (failed)
                afdep_outcome_set(outcome, AFDEP_FAILED, "round %d: %s", n, rig->x[0].why);
        }
        if (failed)
            break;
        outcome->exchanges += 3;
    }
    while (opened-- > 0)
        afdep_rig_close(&rigs[opened], outcome);
}

/* Dispatches outstanding up to the setting, each in a plane of its own. */
static void run_in_flight(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    int depth = *(const int *)c->argument, rounds = 10;
    afdep_rig_plan_t rig_plan = { .capacity = 16, .in_flight = depth };
    afdep_exchange_plan_t plans[4];
    afdep_rig_t rig;
    if (afdep_rig_open(v, &rig_plan, &rig, outcome) != 0)
        return;
    int sources = rig.scenario.attention_ranks;
    for (int n = 0; n < rounds + depth - 1; n++) {
        afdep_exchanger_t *x = &rig.x[n % depth];
        int second = n - depth + 1, failed = 0;
        if (n < rounds) {
            int *tokens = rig.tokens + (n % depth) * sources;
            for (int a = 0; a < sources; a++)
                tokens[a] = (a + n) % 6;
            plans[n % depth] = (afdep_exchange_plan_t){ .number = (uint64_t)n, .bucket = 6, .tokens = tokens };
            failed = afdep_exchanger_first(x, &plans[n % depth]) != AFDEP_OK;
        }
        if (!failed && second >= 0) {
            x = &rig.x[second % depth];
            failed = afdep_exchanger_second(x, &plans[second % depth]) != AFDEP_OK;
            outcome->exchanges += !failed;
        }
        if (failed) {
            afdep_outcome_set(outcome, AFDEP_FAILED, "exchange %d: %s", n, x->why);
            break;
        }
    }
    afdep_rig_close(&rig, outcome);
}

/* Ranks that start far apart, in either direction. */
static void run_skew(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_rig_plan_t rig_plan = { .capacity = 16 };
    afdep_rig_t rig;
    (void)c;
    if (afdep_rig_open(v, &rig_plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 8; n++) {
        struct timespec late = { 0, 1000000L * ((v->world->rank * 7 + n * 3) % 8) };
        nanosleep(&late, NULL);
        afdep_rig_tokens(&rig, n % 3);
        afdep_exchange_plan_t plan = afdep_rig_plain(&rig);
        if (afdep_rig_exchange(&rig, &plan, outcome) != 0)
            break;
    }
    afdep_rig_close(&rig, outcome);
}

/* Many buffers in a process's life. */
static void run_cycles(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    (void)c;
    for (int n = 0; n < 12 && outcome->verdict == AFDEP_PASSED; n++) {
        afdep_rig_plan_t rig_plan = { .capacity = 4 + n, .num_sms = 1 + n % 2 };
        afdep_rig_t rig;
        if (afdep_rig_open(v, &rig_plan, &rig, outcome) != 0)
            return;
        if (n % 3) { /* some are closed unused */
            afdep_rig_tokens(&rig, 1 + n % 4);
            afdep_exchange_plan_t plan = afdep_rig_plain(&rig);
            (void)afdep_rig_exchange(&rig, &plan, outcome);
        }
        afdep_rig_close(&rig, outcome);
    }
}

/* Words across 2^32. The setting is an environment variable so that the library needs no switch for it; all ranks set
   it between two collective calls. */
static void run_wrap(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_rig_plan_t rig_plan = { .capacity = 32, .in_flight = *(const int *)c->argument };
    afdep_rig_t rig;
    if (v->world->rank == 0 || !v->world->threads)
        setenv("AFDEP_TEST_FIRST_EXCHANGE", "4294967288", 1);
    afdep_world_barrier(v->world);
    int opened = afdep_rig_open(v, &rig_plan, &rig, outcome) == 0;
    afdep_world_barrier(v->world);
    if (v->world->rank == 0 || !v->world->threads)
        unsetenv("AFDEP_TEST_FIRST_EXCHANGE");
    afdep_world_barrier(v->world);
    for (int n = 0; opened && n < 16; n++) {
        uneven(&rig, n);
        afdep_exchange_plan_t plan = afdep_rig_plain(&rig);
        if (afdep_rig_exchange(&rig, &plan, outcome) != 0)
            break;
    }
    if (opened)
        afdep_rig_close(&rig, outcome);
}

/* A control set on one role only is refused on every rank, naming it. */
static void run_one_role(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    static const char *const names[] = { "stagger", "sparse_dispatch", "sparse_combine", "apply_weights",
                                         "union_buffers", "in_flight", "num_sms", "capacity", "expert_alignment",
                                         "fp8_combine" };
    const afdep_scenario_t *s = v->scenario;
    int one_domain = s->ranks_per_domain == afdep_scenario_ranks(s);
    int no_packing = one_domain || afdep_scenario_shares_domains(s) || s->ffn_ranks == 0; /* FP8 combine is off there */
    (void)c;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) - (size_t)no_packing; i++) {
        afdep_rig_plan_t rig_plan = { 0 };
        afdep_rig_t rig;
        afdep_rig_shape(v, &rig_plan, &rig);
        if (rig.apart) {
            afdep_config_t *config = &rig.config;
            if (i < 3)
                *(i == 0 ? &config->stagger : i == 1 ? &config->sparse_dispatch : &config->sparse_combine) = AFDEP_OFF;
            else if (i < 5)
                config->flags |= i == 3 ? AFDEP_FLAG_APPLY_WEIGHTS : AFDEP_FLAG_UNION_BUFFERS;
            else if (i == 9)
                config->fp8_combine = AFDEP_ON;
            else
                *(i == 5 ? &config->in_flight : i == 6 ? &config->num_sms : i == 7 ? &config->capacity
                                                                                  : &config->expert_alignment) += 1;
        }
        afdep_status_t status = afdep_buffer_open(&v->world->group, &rig.config, &rig.buffer);
        if (status == AFDEP_OK)
            (void)afdep_buffer_close(rig.buffer);
        if (status != AFDEP_ERR_AGREEMENT || !strstr(afdep_last_error(), names[i]))
            afdep_outcome_set(outcome, AFDEP_FAILED, "%s set on FFN ranks only: %s: %s", names[i],
                              afdep_status_string(status), afdep_last_error());
    }
}

/* Symmetric only: witnesses give way to a barrier, with the toggles as they are and all off (the M2N baseline). */
static void run_entry_barrier(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    static const eager_t arms[] = { { .rig = { .entry_barrier = 1 }, .shape = uneven, .exchanges = 5 },
                                    { .rig = { .entry_barrier = 1, .stagger = AFDEP_OFF, .sparse_dispatch = AFDEP_OFF,
                                               .sparse_combine = AFDEP_OFF, .in_flight = 2 },
                                      .shape = some_empty, .exchanges = 5 } };
    if (v->scenario->ffn_ranks > 0) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "ranks have roles: only symmetric buffers have an entry barrier");
        return;
    }
    for (int i = 0; i < 2 && outcome->verdict == AFDEP_PASSED; i++) {
        afdep_case_t arm = *c;
        arm.argument = &arms[i];
        run_eager(v, &arm, outcome);
    }
}

/* ---- The table ----------------------------------------------------------------------------------------------- */

#define EAGER(...) run_eager, &(const eager_t){ __VA_ARGS__ }, 0, NULL
static const int one = 1, two = 2, three = 3, four = 4;

const afdep_case_t afdep_cases_quick[] = {
    { "few_tokens", AFDEP_SUITE_QUICK, EAGER(.tokens = 3, .exchanges = 6) },
    { "all_channels", AFDEP_SUITE_QUICK, EAGER(.rig = { .num_sms = 24, .hidden = 256 }, .tokens = 4) },
    { "scenario_hidden", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .hidden = 2048, .capacity = 8 }, .tokens = 8, .exchanges = 2) },
    { "other_dtype", AFDEP_SUITE_QUICK, EAGER(.rig = { .other_dtype = 1 }, .tokens = 5) },
    { "empty_sources", AFDEP_SUITE_QUICK, EAGER(.shape = some_empty, .exchanges = 6) },
    { "all_sources_empty", AFDEP_SUITE_QUICK, EAGER(.tokens = 0, .exchanges = 5) },
    { "one_source_only", AFDEP_SUITE_QUICK, EAGER(.shape = one_source, .exchanges = 6) },
    { "uneven_sources", AFDEP_SUITE_QUICK, EAGER(.shape = uneven, .exchanges = 6) },
    { "equal_sums", AFDEP_SUITE_QUICK, EAGER(.shape = equal_sums, .exchanges = 6) },
    { "inactive_choices", AFDEP_SUITE_QUICK, EAGER(.tokens = 9, .inactive_percent = 40) },
    { "all_skipped", AFDEP_SUITE_QUICK, EAGER(.tokens = 9, .inactive_percent = 100) },
    { "one_expert", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .routing = AFDEP_ROUTING_HOT, .top_k = 1, .capacity = 32 }, .tokens = 32) },
    { "skewed_routes", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .routing = AFDEP_ROUTING_ZIPF, .zipf_s = 1.5 }, .tokens = 16) },
    { "alignment_8", AFDEP_SUITE_QUICK, EAGER(.rig = { .alignment = 8 }, .tokens = 5) },
    { "alignment_128", AFDEP_SUITE_QUICK, EAGER(.rig = { .alignment = 128, .hidden = 256 }, .tokens = 5) },
    { "top_1", AFDEP_SUITE_QUICK, EAGER(.rig = { .top_k = 1 }, .tokens = 6) },
    { "top_32", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .top_k = 32, .num_experts_per_rank = 32, .hidden = 256, .capacity = 8 }, .tokens = 4,
            .exchanges = 2) },
    { "channel_edges", AFDEP_SUITE_QUICK, EAGER(.rig = { .hidden = 256 }, .shape = channel_edges, .exchanges = 7) },
    { "capacity", AFDEP_SUITE_QUICK, EAGER(.rig = { .hidden = 256 }, .tokens = 64, .exchanges = 2) },
    { "changing_buckets", AFDEP_SUITE_QUICK, EAGER(.rig = { .hidden = 256 }, .shape = bucket_cycle, .exchanges = 7) },
    { "bucket_of_capacity", AFDEP_SUITE_QUICK, EAGER(.rig = { .hidden = 256 }, .tokens = 2, .whole_bucket = 1) },
    { "strided_scales", AFDEP_SUITE_QUICK, EAGER(.tokens = 6, .strided_scales = 1) },
    { "read_host_counts", AFDEP_SUITE_QUICK, EAGER(.rig = { .alignment = 4 }, .tokens = 6, .read_host_counts = 1) },
    { "without_row_source", AFDEP_SUITE_QUICK, EAGER(.tokens = 6, .null_row_source = 1) },
    { "view", AFDEP_SUITE_QUICK, EAGER(.tokens = 6, .view = 1, .inactive_percent = 20, .exchanges = 4) },
    { "union_buffers", AFDEP_SUITE_QUICK, EAGER(.rig = { .union_buffers = 1 }, .tokens = 4) },
    { "weights_applied", AFDEP_SUITE_QUICK, EAGER(.rig = { .apply_weights = 1 }, .tokens = 6) },
    { "dense", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .stagger = AFDEP_OFF, .sparse_dispatch = AFDEP_OFF, .sparse_combine = AFDEP_OFF }, .shape = uneven,
            .exchanges = 4) },
    { "stagger_only", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .sparse_dispatch = AFDEP_OFF, .sparse_combine = AFDEP_OFF }, .shape = uneven, .exchanges = 4) },
    { "sparse_dispatch_only", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .stagger = AFDEP_OFF, .sparse_combine = AFDEP_OFF }, .shape = uneven, .exchanges = 4) },
    { "sparse_combine_only", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .stagger = AFDEP_OFF, .sparse_dispatch = AFDEP_OFF }, .shape = uneven, .exchanges = 4) },
    { "fp8_combine", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .fp8_combine = AFDEP_ON, .apply_weights = 1 }, .shape = uneven, .exchanges = 6) },
    { "fp8_combine_from_bucket_4", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .fp8_combine = AFDEP_ON, .fp8_combine_min_bucket = 4, .hidden = 256, .sparse_combine = AFDEP_OFF },
            .shape = bucket_cycle, .exchanges = 7) },
    { "cached_routing", AFDEP_SUITE_QUICK,
      EAGER(.shape = uneven, .repeat = 3, .exchanges = 9, .inactive_percent = 20) },
    { "cached_routing_alignment", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .alignment = 8, .apply_weights = 1, .sparse_dispatch = AFDEP_OFF }, .shape = equal_sums,
            .repeat = 4, .exchanges = 8, .read_host_counts = 1) },
    { "cached_routing_many_experts", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .num_experts_per_rank = 520, .hidden = 256, .in_flight = 2 }, .shape = uneven, .repeat = 3,
            .exchanges = 12) },
    { "load_statistics", AFDEP_SUITE_QUICK, afdep_run_load,
      &(const afdep_rig_plan_t){ .capacity = 32, .hidden = 256, .alignment = 4 }, 0, NULL },
    { "load_statistics_many_experts", AFDEP_SUITE_QUICK, afdep_run_load,
      &(const afdep_rig_plan_t){ .capacity = 32, .hidden = 256, .num_experts_per_rank = 520 }, 0, NULL },
    { "send_only", AFDEP_SUITE_QUICK, afdep_run_send_only, &(const afdep_rig_plan_t){ .capacity = 32 }, 0, NULL },
    { "send_only_many_experts", AFDEP_SUITE_QUICK, afdep_run_send_only,
      &(const afdep_rig_plan_t){ .capacity = 32, .hidden = 256, .num_experts_per_rank = 520 }, 0, NULL },
    { "mixed_hybrid", AFDEP_SUITE_QUICK, EAGER(.rig = { .mixed_hybrid = 1 }, .shape = uneven, .exchanges = 6) },
    { "mixed_hybrid_dense", AFDEP_SUITE_QUICK,
      EAGER(.rig = { .mixed_hybrid = 1, .stagger = AFDEP_OFF, .sparse_dispatch = AFDEP_OFF,
                     .sparse_combine = AFDEP_OFF },
            .shape = some_empty, .exchanges = 4) },
    { "entry_barrier", AFDEP_SUITE_QUICK, run_entry_barrier, NULL, 0, NULL },
    { "several_buffers", AFDEP_SUITE_QUICK, run_buffers, NULL, 0, NULL },
    { "two_in_flight", AFDEP_SUITE_QUICK, run_in_flight, &two, 0, NULL },
    { "four_in_flight", AFDEP_SUITE_QUICK, run_in_flight, &four, 0, NULL },
    { "skewed_starts", AFDEP_SUITE_QUICK, run_skew, NULL, 0, NULL },
    { "open_and_close", AFDEP_SUITE_QUICK, run_cycles, NULL, 0, NULL },
    { "across_the_wrap", AFDEP_SUITE_QUICK, run_wrap, &one, 0, NULL },
    { "across_the_wrap_three_planes", AFDEP_SUITE_QUICK, run_wrap, &three, 0, NULL },
    { "control_on_one_role", AFDEP_SUITE_QUICK, run_one_role, NULL, 0, NULL },
    { "recorded_replays", AFDEP_SUITE_QUICK, afdep_run_replays, &(const afdep_replays_t){ .replays = 28, .pairs = 26 },
      0, NULL },
    { "recorded_replays_of_whole_exchanges", AFDEP_SUITE_QUICK, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 4, .pairs = 6, .whole = 1 }, 0, NULL },
    { "recorded_and_eager_alternating", AFDEP_SUITE_QUICK, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 6, .pairs = 7, .alternate = 1, .whole = 1 }, 0, NULL },
    { "recorded_replays_delayed_replies", AFDEP_SUITE_QUICK, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 4, .pairs = 8, .delay_replies = 1 }, 0, NULL },
    { "recorded_replays_delayed_dispatches", AFDEP_SUITE_QUICK, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 4, .pairs = 8, .delay_dispatches = 1 }, 0, NULL },
    { "recorded_replays_slow_forward", AFDEP_SUITE_QUICK, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 4, .pairs = 8, .delay_replies = 1, .delay_dispatches = 1,
                                .slow_forward = AFDEP_SLOW_FORWARD_ONLY },
      0, "slow forward warps" },
    { NULL, AFDEP_SUITE_QUICK, NULL, NULL, 0, NULL },
};
