/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange itself, over thread ranks on shm: every value against the oracle and every signal against the contract's
 * table, on layouts and shapes that a careless index, a stale word or a missing wait would get wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "validate/exchanger.h"
#include "validate/unit/crowd.h"
#include "validate/unit/rig.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

typedef struct exchange_case {
    const char *name;
    int ffn, attention, per_domain, experts, top_k, hidden, capacity, num_sms, alignment, fp8;
    int stagger, sparse_dispatch, sparse_combine, apply_weights, union_buffers, in_flight;
    int exchanges;
    uint64_t first_exchange;
} exchange_case_t;

static afdep_scenario_t scenario_of(const exchange_case_t *c)
{
    afdep_scenario_t s = { 0 };
    s.ffn_ranks = c->ffn;
    s.attention_ranks = c->attention;
    s.ranks_per_domain = c->per_domain;
    s.num_experts = c->experts;
    s.top_k = c->top_k;
    s.hidden = c->hidden;
    s.dtype = c->fp8 ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16;
    s.capacity = c->capacity;
    s.num_sms = c->num_sms;
    s.expert_alignment = c->alignment ? c->alignment : 1;
    s.seed = 7;
    return s;
}

static afdep_toggle_t toggle(int on)
{
    return on ? AFDEP_ON : AFDEP_OFF;
}

/* A different shape for every exchange, the same on all ranks: token counts around the channels' edges, empty sources,
   skipped choices, buckets that change. */
static void plan_exchange(const exchange_case_t *c, int n, int *tokens, afdep_exchange_plan_t *plan)
{
    int channels = 8 * c->num_sms;
    const int edges[] = { 0, 1, channels - 1, channels, channels + 1, c->capacity, 3 };
    memset(plan, 0, sizeof(*plan));
    for (int a = 0; a < c->attention; a++) {
        int t = edges[(n + a * (n % 3)) % 7];
        tokens[a] = n % 5 == 4 ? 0 : t > c->capacity ? c->capacity : t;
    }
    if (n % 5 == 4)
        tokens[n % c->attention] = 1; /* one source only */
    int most = 1;
    for (int a = 0; a < c->attention; a++)
        most = tokens[a] > most ? tokens[a] : most;
    plan->number = (uint64_t)n;
    plan->bucket = n % 2 ? most : c->capacity;
    plan->tokens = tokens;
    plan->inactive_percent = n % 7 == 6 ? 100 : n % 3 == 1 ? 40 : 0;
    plan->read_host_counts = n % 4 == 3;
    plan->view = n % 2;
    plan->strided_scales = n % 3 == 2;
    plan->null_row_source = n % 4 == 1;
}

static const char *exchange_rank(const afdep_group_t *group, void *context)
{
    const exchange_case_t *c = context;
    afdep_scenario_t scenario = scenario_of(c);
    afdep_config_t config = afdep_exchanger_config(&scenario);
    afdep_exchanger_t x[4];
    afdep_buffer_t *buffer = NULL;
    int in_flight = c->in_flight ? c->in_flight : 1, tokens[4][32];
    afdep_exchange_plan_t plans[4];
    const char *failed = NULL;
    config.stagger = toggle(c->stagger);
    config.sparse_dispatch = toggle(c->sparse_dispatch);
    config.sparse_combine = toggle(c->sparse_combine);
    config.in_flight = in_flight;
    config.timeout_ms = 20000;
    config.flags = (c->apply_weights ? AFDEP_FLAG_APPLY_WEIGHTS : 0) |
                   (c->union_buffers ? AFDEP_FLAG_UNION_BUFFERS : 0);
    if (afdep_buffer_open(group, &config, &buffer) != AFDEP_OK)
        return crowd_say("open: %s", afdep_last_error());
    for (int g = 0; g < in_flight; g++)
        if (afdep_exchanger_init(&x[g], &scenario, buffer, scenario.seed) != 0)
            return crowd_say("no memory for tensors");
    for (int n = 0; n < c->exchanges + in_flight - 1 && !failed; n++) {
        int first = n % in_flight, second = n - in_flight + 1;
        if (n < c->exchanges) {
            plan_exchange(c, n, tokens[first], &plans[first]);
            if (afdep_exchanger_first(&x[first], &plans[first]) != AFDEP_OK)
                failed = crowd_say("%s, exchange %d: %s", c->name, n, x[first].why);
        }
        if (second >= 0 && !failed &&
            afdep_exchanger_second(&x[second % in_flight], &plans[second % in_flight]) != AFDEP_OK)
            failed = crowd_say("%s, exchange %d: %s", c->name, second, x[second % in_flight].why);
    }
    afdep_buffer_info_t info = { .struct_size = sizeof(info) };
    if (!failed && (afdep_buffer_info(buffer, &info) != AFDEP_OK || info.exchanges != (uint64_t)c->exchanges))
        failed = crowd_say("%s: %llu exchanges are counted", c->name, (unsigned long long)info.exchanges);
    for (int g = 0; g < in_flight; g++)
        afdep_exchanger_free(&x[g]);
    if (afdep_buffer_close(buffer) != AFDEP_OK && !failed)
        failed = crowd_say("close: %s", afdep_last_error());
    return failed;
}

static void run_case(const exchange_case_t *c)
{
    char first[32];
    snprintf(first, sizeof(first), "%llu", (unsigned long long)c->first_exchange);
    if (c->first_exchange)
        setenv("AFDEP_TEST_FIRST_EXCHANGE", first, 1);
    const char *failed = crowd_run(c->ffn + c->attention, exchange_rank, (void *)c);
    unsetenv("AFDEP_TEST_FIRST_EXCHANGE");
    if (failed)
        fail_msg("%s", failed);
}

#define SPARSE .stagger = 1, .sparse_dispatch = 1, .sparse_combine = 1
#define SMALL .experts = 8, .top_k = 2, .hidden = 256, .capacity = 20, .num_sms = 1

static void test_layouts(void **state)
{
    (void)state;
    /* 1A:1F, 1A:2F, 2A:1F, 3A:2F, 5A:2F, 3A:1F in one domain, and as domains of one rank. */
    static const int layouts[][2] = { { 1, 1 }, { 2, 1 }, { 1, 2 }, { 2, 3 }, { 2, 5 }, { 1, 3 } };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        for (int one_domain = 0; one_domain < 2; one_domain++) {
            int f = layouts[i][0], a = layouts[i][1];
            exchange_case_t c = { .name = "layout", .ffn = f, .attention = a, .per_domain = one_domain ? f + a : 1,
                                  SMALL, SPARSE, .fp8 = (int)i % 2, .alignment = one_domain ? 8 : 1, .exchanges = 15 };
            run_case(&c);
        }
}

static void test_domains(void **state)
{
    (void)state;
    /* Domains of 2, 3 and 4; two FFN domains; BF16 and FP8. */
    static const int topologies[][3] = { { 2, 4, 2 }, { 4, 4, 2 }, { 3, 6, 3 }, { 4, 8, 4 }, { 8, 4, 4 } };
    for (size_t i = 0; i < sizeof(topologies) / sizeof(topologies[0]); i++)
        for (int fp8 = 0; fp8 < 2; fp8++) {
            exchange_case_t c = { .name = "domains", .ffn = topologies[i][0], .attention = topologies[i][1],
                                  .per_domain = topologies[i][2], .experts = 24, .top_k = 5, .hidden = 512,
                                  .capacity = 30, .num_sms = 1, SPARSE, .fp8 = fp8, .exchanges = 12 };
            run_case(&c);
        }
}

static void test_toggles(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++)
        for (int m = 1; m <= 2; m++) {
            exchange_case_t c = { .name = "toggles", .ffn = 2 * m, .attention = 4, .per_domain = 2, SMALL,
                                  .stagger = bits & 1, .sparse_dispatch = bits >> 1 & 1,
                                  .sparse_combine = bits >> 2 & 1, .fp8 = 1, .exchanges = 15 };
            run_case(&c);
        }
}

static void test_numerics_flags(void **state)
{
    (void)state;
    for (int direct = 0; direct < 2; direct++) {
        exchange_case_t c = { .name = "weights applied", .ffn = 2, .attention = 4, .per_domain = direct ? 6 : 2, SMALL,
                              SPARSE, .apply_weights = 1, .union_buffers = 1, .alignment = 128, .exchanges = 15 };
        run_case(&c);
        exchange_case_t wide = { .name = "top 32", .ffn = 2, .attention = 2, .per_domain = direct ? 4 : 2,
                                 .experts = 32, .top_k = 32, .hidden = 256, .capacity = 9, .num_sms = 1, SPARSE,
                                 .exchanges = 9 };
        run_case(&wide);
        exchange_case_t single = { .name = "top 1", .ffn = 2, .attention = 2, .per_domain = direct ? 4 : 2,
                                   .experts = 2, .top_k = 1, .hidden = 256, .capacity = 9, .num_sms = 2, SPARSE,
                                   .exchanges = 9 };
        run_case(&single);
    }
}

static void test_in_flight(void **state)
{
    (void)state;
    for (int g = 2; g <= 4; g++)
        for (int per_domain = 2; per_domain <= 6; per_domain += 4) {
            exchange_case_t c = { .name = "in flight", .ffn = 2, .attention = 4, .per_domain = per_domain, SMALL,
                                  SPARSE, .in_flight = g, .exchanges = 30 };
            run_case(&c);
            c.sparse_combine = 0;
            run_case(&c);
        }
}

static void test_wrap(void **state)
{
    (void)state;
    for (int g = 1; g <= 3; g++)
        for (int per_domain = 2; per_domain <= 6; per_domain += 4)
            for (int dense = 0; dense < 2; dense++) {
                exchange_case_t c = { .name = "across 2^32", .ffn = 2, .attention = 4, .per_domain = per_domain, SMALL,
                                      .stagger = !dense, .sparse_dispatch = !dense, .sparse_combine = !dense,
                                      .in_flight = g, .exchanges = 20, .first_exchange = 0xFFFFFFFFu - 7 };
                run_case(&c);
            }
}

/* More rows on a channel, and at a rank, than any actor takes in one step. */
static void test_more_rows_than_a_step(void **state)
{
    (void)state;
    for (int per_domain = 2; per_domain <= 6; per_domain += 4)
        for (int dense = 0; dense < 2; dense++) {
            exchange_case_t c = { .name = "many rows", .ffn = 2, .attention = 4, .per_domain = per_domain,
                                  .experts = 8, .top_k = 2, .hidden = 256, .capacity = 600, .num_sms = 1,
                                  .stagger = !dense, .sparse_dispatch = !dense, .sparse_combine = !dense,
                                  .fp8 = dense, .exchanges = 6 };
            run_case(&c);
        }
}

static void test_more_targets_than_channels(void **state)
{
    (void)state;
    for (int per_domain = 1; per_domain <= 16; per_domain += 15) {
        exchange_case_t c = { .name = "many targets", .ffn = 14, .attention = 2, .per_domain = per_domain,
                              .experts = 28, .top_k = 16, .hidden = 256, .capacity = 9, .num_sms = 1, SPARSE,
                              .exchanges = 6 };
        run_case(&c);
    }
}

#ifdef __SSE__
#define HOSTILE_MXCSR (0x1F80u | 0x8040u | 0x2000u) /* flush to zero, denormals are zero, round down */

/* Denormal rows sum to what they should whatever the caller's floating-point environment is, and it stays his. */
static const char *flushing_rank(const afdep_group_t *group, void *context)
{
    const int *per_domain = context;
    afdep_config_t config = rig_config(2, *per_domain, 20000);
    afdep_status_t status;
    rig_t *rig = rig_open(group, &config, &status);
    const char *failed = NULL;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    for (int t = 0; t < RIG_CAPACITY; t++)
        for (int i = 0; i < RIG_HIDDEN; i++)
            rig->x[t][i] = 1; /* the smallest there is */
    _mm_setcsr(HOSTILE_MXCSR);
    status = rig_first(rig, RIG_CAPACITY, RIG_CAPACITY);
    status = status == AFDEP_OK ? rig_second(rig) : status;
    unsigned after = _mm_getcsr() & ~0x3Fu;
    _mm_setcsr(0x1F80);
    if (status != AFDEP_OK)
        failed = crowd_say("%s", afdep_last_error());
    else if (after != HOSTILE_MXCSR)
        failed = crowd_say("MXCSR is 0x%x after the calls", after);
    for (int t = 0; t < RIG_CAPACITY && !rig->ffn && !failed; t++)
        if (rig->out[t][0] != RIG_TOP_K || rig->out[t][RIG_HIDDEN - 1] != RIG_TOP_K)
            failed = crowd_say("token %d is 0x%04x", t, rig->out[t][0]);
    (void)rig_close(rig);
    return failed;
}
#endif

static void test_callers_floating_point_environment(void **state)
{
    (void)state;
#ifdef __SSE__
    for (int per_domain = 0; per_domain <= 2; per_domain += 2) {
        const char *failed = crowd_run(6, flushing_rank, &per_domain);
        if (failed)
            fail_msg("%s", failed);
    }
#else
    print_message("skipped: no way to flush denormals is known for this processor\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts),  cmocka_unit_test(test_domains),   cmocka_unit_test(test_toggles),
        cmocka_unit_test(test_numerics_flags), cmocka_unit_test(test_in_flight), cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_more_rows_than_a_step), cmocka_unit_test(test_more_targets_than_channels),
        cmocka_unit_test(test_callers_floating_point_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
