/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The predictor against closed forms: with one cost alone, a round trip is a product that can be written down. And the
 * protocol's table of counts, and that a seed means the same picoseconds everywhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/predict.h"
#include "bench/predict_internal.h"

#define NS 1000.0
/* Of test_same_everywhere(): another number means another model, or another machine arithmetic. */
#define GOLDEN_PS 161663257

/* Costs nothing: what remains of a byte's time is far below a nanosecond for any row. */
static afdep_cost_t free_cost(void)
{
    afdep_cost_t cost = { 0 };
    static const int rates[] = { AFDEP_COST_NIC_BANDWIDTH, AFDEP_COST_NVLINK_BANDWIDTH, AFDEP_COST_SM_LOAD,
                                 AFDEP_COST_SM_STORE, AFDEP_COST_MEMORY_BANDWIDTH };
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        cost.value[rates[i]] = 1e6;
    cost.value[AFDEP_COST_NICS_PER_RANK] = 1;
    return cost;
}

/* Every token chooses one expert on every FFN rank, as there are as many choices as ranks. */
static afdep_scenario_t shape(int ffn, int attention, int domain)
{
    afdep_scenario_t s;
    afdep_scenario_default(&s);
    s.ffn_ranks = ffn;
    s.attention_ranks = attention;
    s.ranks_per_domain = domain;
    s.num_experts = ffn;
    s.top_k = ffn;
    s.hidden = 256;
    s.num_sms = 2; /* 16 channels */
    s.capacity = 64;
    s.graph = 1;
    return s;
}

static afdep_prediction_t predict(const afdep_scenario_t *s, const afdep_cost_t *cost, int sparse, int stagger,
                                  int tokens)
{
    char why[512] = "";
    afdep_prediction_t p;
    afdep_predict_case_t c = { .scenario = s,
                               .cost = cost,
                               .stagger = stagger,
                               .sparse_dispatch = sparse,
                               .sparse_combine = sparse,
                               .tokens = tokens,
                               .iterations = 2,
                               .seed = 7 };
    if (afdep_predict(&c, &p, why, sizeof(why)) != 0)
        fail_msg("%s", why);
    return p;
}

static void expect(const afdep_scenario_t *s, const afdep_cost_t *cost, int sparse, int stagger, int tokens, double ns)
{
    afdep_prediction_t p = predict(s, cost, sparse, stagger, tokens);
    for (int i = 0; i < p.samples; i++)
        if (p.samples_us[i] * NS < ns - 1 || p.samples_us[i] * NS > ns + 1)
            fail_msg("sparse %d, stagger %d, %d tokens: %.3f ns, not %.3f", sparse, stagger, tokens,
                     p.samples_us[i] * NS, ns);
    afdep_prediction_free(&p);
}

/* ---- Events -------------------------------------------------------------------------------------------------- */

static void test_queue(void **state)
{
    (void)state;
    afdep_queue_t queue = { 0 };
    uint64_t random = 12345;
    enum {
        EVENTS = 5000
    };
    for (uint32_t i = 0; i < EVENTS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        afdep_event_t e = { .at = (int64_t)(random >> 60), .value = i }; /* many ties */
        afdep_queue_add(&queue, &e);
    }
    afdep_event_t last = { .at = -1 }, e;
    int taken = 0;
    for (; afdep_queue_take(&queue, &e); taken++) {
        assert_true(e.at > last.at || (e.at == last.at && e.value > last.value));
        last = e;
    }
    assert_int_equal(taken, EVENTS);
    assert_false(queue.failed);
    free(queue.heap);
}

/* ---- Queueing ------------------------------------------------------------------------------------------------ */

enum {
    S = 5,
    C = 16
};

static void test_gaps(void **state)
{
    (void)state;
    afdep_scenario_t across = shape(1, S, 1), inside = shape(1, S, S + 1);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_KERNEL_GRAPH_GAP] = 700;
    cost.value[AFDEP_COST_KERNEL_PROLOGUE] = 300;
    /* Dispatch and reply stand one behind the other; receive and collect begin beside them. */
    expect(&across, &cost, 1, 1, 1, 2000);
    expect(&across, &cost, 0, 0, 1, 2000);
    expect(&inside, &cost, 1, 1, 1, 2000);
    inside.graph = 0;
    cost.value[AFDEP_COST_KERNEL_LAUNCH] = 1700;
    expect(&inside, &cost, 1, 1, 1, 4000);
    afdep_scenario_free(&across);
    afdep_scenario_free(&inside);
}

static void test_signals_received(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(1, S, 1);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_NIC_SIGNAL_RECEIVE] = 10;
    expect(&s, &cost, 0, 0, 1, 10 * (S * C + C)); /* S*C tails at the FFN's NIC, then C signals at each source's */
    expect(&s, &cost, 1, 1, 1, 10 * (2 * S + 2)); /* S counts and S tails; then a witness and a signal */
    expect(&s, &cost, 1, 1, 4, 10 * (S + 4 * S + 1 + 4));
    expect(&s, &cost, 1, 0, 4, 10 * (S + 4 * S + 1 + 4));
    afdep_scenario_free(&s);
}

static void test_signals_sent(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(1, S, 1);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_NIC_SIGNAL_SEND] = 10;
    expect(&s, &cost, 0, 0, 1, 10 * (C + S * C));
    expect(&s, &cost, 1, 1, 3, 10 * (1 + 3 + S + 3 * S)); /* count and tails; witnesses are ahead of the signals */
    afdep_scenario_free(&s);
}

static void test_puts_and_latency(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(1, S, 1);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_NIC_PUT] = 20;
    cost.value[AFDEP_COST_NIC_LATENCY] = 5000;
    /* Sources send side by side; rows queue where they meet. */
    expect(&s, &cost, 1, 1, 1, 2 * 5000 + 20 * (S + S));
    expect(&s, &cost, 1, 1, 8, 2 * 5000 + 20 * (8 * S + 8 * S));
    cost.value[AFDEP_COST_NICS_PER_RANK] = 2; /* channels are dealt to the NICs in turn */
    expect(&s, &cost, 1, 0, 8, 2 * 5000 + 20 * (4 * S + 4 * S));
    afdep_scenario_free(&s);
}

static void test_shared_nic(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(2, 2 * S, 2);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_NIC_PUT] = 20;
    expect(&s, &cost, 1, 1, 1, 20 * (S + S));
    cost.value[AFDEP_COST_NICS_PER_RANK] = 0.5;
    expect(&s, &cost, 1, 1, 1, 20 * (2 * S + 2 * S));
    afdep_scenario_free(&s);
}

static void test_warps(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(2, 2 * S, 2);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_WARP_FORWARD_ROW] = 100;
    expect(&s, &cost, 1, 0, 1, S * 100); /* all sources' first tokens meet one warp */
    expect(&s, &cost, 1, 1, 1, 100);     /* unless they are staggered */
    cost = free_cost();
    cost.value[AFDEP_COST_WARP_BACK_ROW] = 100;
    expect(&s, &cost, 1, 0, 1, S * 100);
    expect(&s, &cost, 1, 1, 1, 100);
    cost = free_cost();
    cost.value[AFDEP_COST_WARP_ISSUE] = 100;
    expect(&s, &cost, 0, 0, 1, 100 + S * 100); /* idle channels: one tail at a source, S signals of a warp */
    expect(&s, &cost, 1, 1, 1, 0);
    cost = free_cost();
    cost.value[AFDEP_COST_WARP_POLL] = 100;
    expect(&s, &cost, 1, 1, 1, 200); /* a forward warp, and the gate of the way back */
    afdep_scenario_free(&s);
}

static void test_sms(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(1, S, 1);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_SM_ROW] = 100;
    /* Eight channels of an SM: eight rows of each source follow each other there, behind the first one's own sending.
     */
    expect(&s, &cost, 1, 0, 8, 100 + 8 * S * 100);
    expect(&s, &cost, 1, 0, 16, 100 + 8 * S * 100); /* the second SM serves beside the first */
    afdep_scenario_free(&s);
}

static void test_nvlink(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(1, S, S + 1);
    afdep_cost_t cost = free_cost();
    afdep_shape_t elements = { .hidden = 256, .top_k = 1 };
    afdep_row_format_t row = afdep_row_format(&elements);
    cost.value[AFDEP_COST_NVLINK_BANDWIDTH] = 1; /* a nanosecond for each byte */
    /* Rows of all sources queue at the FFN rank's port, and their replies at its other direction; a count word, an
       answer and a combine word of each source pass there too. */
    double rows = 4 * S * ((double)row.bytes + row.reply_bytes);
    afdep_prediction_t p = predict(&s, &cost, 1, 1, 4);
    assert_true(p.samples_us[0] * NS >= rows && p.samples_us[0] * NS <= rows + 8 * (3 * S + 3));
    afdep_prediction_free(&p);
    afdep_scenario_free(&s);
    /* Across domains the rails wait for each other twice: for forwarded rows, and for partials. */
    afdep_scenario_t across = shape(2, 2 * S, 2);
    cost = free_cost();
    cost.value[AFDEP_COST_NVLINK_LATENCY] = 400;
    expect(&across, &cost, 1, 1, 1, 800);
    expect(&across, &cost, 0, 0, 1, 800);
    afdep_scenario_free(&across);
}

static void test_memory(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(1, S, 1);
    afdep_cost_t cost = free_cost();
    cost.value[AFDEP_COST_MEMORY_BANDWIDTH] = 1;
    expect(&s, &cost, 1, 1, 4, 2.0 * 4 * S * 512); /* each row read and written once */
    afdep_scenario_free(&s);
}

/* Spans of a link never overlap, and none begins before it was asked for. */
typedef struct spans {
    int64_t idle_at[64];
    int count;
} spans_t;

static void served(void *context, afdep_resource_t resource, int rank, int index, int64_t from, int64_t to,
                   const char *what)
{
    spans_t *spans = context;
    (void)rank, (void)what;
    if (resource != AFDEP_RESOURCE_NIC_RECEIVE)
        return;
    assert_true(from >= spans->idle_at[index]);
    assert_true(to >= from);
    spans->idle_at[index] = to;
    spans->count++;
}

static void test_spans(void **state)
{
    (void)state;
    char why[512];
    afdep_scenario_t s = shape(2, 2 * S, 2);
    afdep_cost_t cost;
    spans_t spans = { 0 };
    afdep_predict_watch_t watch = { .context = &spans, .served = served };
    assert_int_equal(afdep_cost_builtin(&cost, why, sizeof(why)), 0);
    afdep_predict_case_t c = {
        .scenario = &s, .cost = &cost, .tokens = 9, .iterations = 1, .seed = 7, .watch = &watch
    };
    afdep_prediction_t p;
    assert_int_equal(afdep_predict(&c, &p, why, sizeof(why)), 0);
    assert_int_equal(spans.count, 2 * (2 * S * 9 + 2 * S * C)); /* rows and signals there, and back */
    afdep_prediction_free(&p);
    afdep_cost_free(&cost);
    afdep_scenario_free(&s);
}

/* ---- Counts -------------------------------------------------------------------------------------------------- */

static void expect_counts(const afdep_scenario_t *s, int sparse, int tokens, double finish, double count,
                          double combine, double witness)
{
    afdep_cost_t cost = free_cost();
    afdep_prediction_t p = predict(s, &cost, sparse, sparse, tokens);
    assert_true(p.counts.finish_tail == finish);
    assert_true(p.counts.count_word == count);
    assert_true(p.counts.combine == combine);
    assert_true(p.counts.witness == witness);
    afdep_prediction_free(&p);
}

static void test_counts(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(2, 2 * S, 2), inside = shape(2, S, S + 2);
    static const int tokens[] = { 1, 5, C - 1, C, C + 1, 3 * C };
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        int used = tokens[i] < C ? tokens[i] : C;
        expect_counts(&s, 0, tokens[i], S * C, 0, S * C, 0);
        expect_counts(&s, 1, tokens[i], S * used, S, S * used, S);
        expect_counts(&inside, 1, tokens[i], 0, S, S, S);
    }
    expect_counts(&s, 1, 0, 0, S, 0, S);
    expect_counts(&inside, 1, 0, 0, S, 0, S);
    afdep_scenario_free(&s);
    afdep_scenario_free(&inside);
}

/* ---- One seed, one time -------------------------------------------------------------------------------------- */

static void test_same_everywhere(void **state)
{
    (void)state;
    afdep_scenario_t s = shape(2, 2 * S, 2);
    s.num_experts = 16;
    s.top_k = 3;
    s.hidden = 2048;
    afdep_cost_t cost = free_cost();
    for (int id = 0; id < AFDEP_COSTS; id++)
        if (cost.value[id] == 0)
            cost.value[id] = 31.25 * (id + 1);
    cost.value[AFDEP_COST_NIC_BANDWIDTH] = 48.5;
    cost.value[AFDEP_COST_SM_LOAD] = 77;
    afdep_prediction_t a = predict(&s, &cost, 1, 1, 40), b = predict(&s, &cost, 1, 1, 40);
    assert_true(a.samples_us[0] == b.samples_us[0] && a.samples_us[1] == b.samples_us[1]);
    /* Routes differ from exchange to exchange. */
    assert_true(a.samples_us[0] != a.samples_us[1]);
    if ((int64_t)(a.samples_us[0] * 1e6 + 0.5) != GOLDEN_PS)
        fail_msg("%.6f us, which is not what this seed has elsewhere", a.samples_us[0]);
    afdep_prediction_free(&a);
    afdep_prediction_free(&b);
    afdep_scenario_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_signals_received),
        cmocka_unit_test(test_signals_sent),
        cmocka_unit_test(test_puts_and_latency),
        cmocka_unit_test(test_shared_nic),
        cmocka_unit_test(test_warps),
        cmocka_unit_test(test_sms),
        cmocka_unit_test(test_nvlink),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
