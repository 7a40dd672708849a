/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The predictor against the host backend's own actors, run over the sim fabric on the same routes: every lane across
 * domains carries the same messages in the same order, every lane inside a domain the same ones. What the predictor
 * times is what the library sends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/predict.h"
#include "fabric/sim.h"
#include "host/host.h"
#include "validate/exchanger.h"

#define EXCHANGES 3
#define RANKS_MAX 24
#define LOG_MAX 200000

/* A message as both sides see it. */
typedef struct entry {
    int exchange, sender, target, lane;
    uint32_t bytes; /* 0: a signal */
} entry_t;

typedef struct message_log {
    entry_t entries[LOG_MAX];
    int count, lanes;
} message_log_t;

static message_log_t actual, predicted;

static void note(message_log_t *log, int exchange, int sender, int target, int lane, uint32_t bytes)
{
    assert_true(log->count < LOG_MAX);
    log->entries[log->count++] = (entry_t){ exchange, sender, target, lane, bytes };
}

/* ---- The actors ---------------------------------------------------------------------------------------------- */

typedef struct world {
    afdep_settings_t settings;
    afdep_sim_t *sim;
    afdep_host_t *hosts[RANKS_MAX];
    afdep_exchanger_t exchangers[RANKS_MAX];
    int ranks, exchange;
} world_t;

static void open_world(world_t *w, const afdep_scenario_t *s, const int *toggles)
{
    uint64_t bytes[RANKS_MAX];
    afdep_config_t c = afdep_exchanger_config(s);
    memset(w, 0, sizeof(*w));
    w->ranks = afdep_scenario_ranks(s);
    c.stagger = toggles[0] ? AFDEP_ON : AFDEP_OFF;
    c.sparse_dispatch = toggles[1] ? AFDEP_ON : AFDEP_OFF;
    c.sparse_combine = toggles[2] ? AFDEP_ON : AFDEP_OFF;
    assert_int_equal(afdep_settings_resolve(&c, w->ranks, &w->settings), AFDEP_OK);
    for (int r = 0; r < w->ranks; r++)
        bytes[r] = afdep_segment_bytes(&w->settings.layout, &w->settings.shape, r);
    assert_int_equal(afdep_sim_create(w->ranks, AFDEP_LANE_COUNT(w->settings.shape.channels), bytes, &w->sim),
                     AFDEP_OK);
    for (int r = 0; r < w->ranks; r++) {
        assert_int_equal(afdep_host_create(&w->settings, r, &w->hosts[r]), AFDEP_OK);
        w->hosts[r]->fabric = afdep_sim_fabric(w->sim, r);
        afdep_host_prepare_segment(w->hosts[r], w->hosts[r]->fabric->base);
        assert_int_equal(afdep_exchanger_init_rank(&w->exchangers[r], s, r, 0, s->seed), 0);
    }
}

static void close_world(world_t *w)
{
    for (int r = 0; r < w->ranks; r++) {
        afdep_exchanger_free(&w->exchangers[r]);
        afdep_host_destroy(w->hosts[r]);
    }
    afdep_sim_destroy(w->sim);
}

static void land_all(world_t *w)
{
    while (afdep_sim_pending(w->sim) > 0) {
        afdep_sim_message_t m;
        afdep_sim_land(w->sim, 0, &m);
        note(&actual, w->exchange, m.sender, m.target, m.lane, m.is_signal ? 0 : m.bytes);
    }
}

static void begin_call(world_t *w, int rank, int half, const afdep_exchange_plan_t *plan)
{
    afdep_host_t *h = w->hosts[rank];
    afdep_exchanger_t *x = &w->exchangers[rank];
    int ffn = rank < w->settings.shape.ffn_ranks;
    afdep_status_t status;
    if (half == 0) {
        afdep_exchanger_prepare_first(x, plan);
        status =
            ffn ? afdep_host_begin_receive(h, &x->receive, NULL) : afdep_host_begin_dispatch(h, &x->dispatch, NULL);
    } else {
        afdep_exchanger_prepare_second(x, plan);
        status =
            ffn ? afdep_host_begin_reply(h, &x->reply_arguments, NULL) : afdep_host_begin_collect(h, &x->collect, NULL);
    }
    assert_int_equal(status, AFDEP_OK);
}

static void end_call(world_t *w, int rank, int half, const afdep_exchange_plan_t *plan, afdep_status_t result)
{
    afdep_exchanger_t *x = &w->exchangers[rank];
    afdep_status_t status =
        half == 0 ? afdep_exchanger_judge_first(x, plan, result) : afdep_exchanger_judge_second(x, plan, result);
    if (status != AFDEP_OK)
        fail_msg("%s", x->why);
}

/* All ranks' halves of one exchange, side by side, round robin. */
static void run_exchange(world_t *w, const afdep_exchange_plan_t *plan)
{
    int half[RANKS_MAX] = { 0 }, done = 0;
    afdep_fp_state_t fp = afdep_fp_enter();
    for (int r = 0; r < w->ranks; r++)
        begin_call(w, r, 0, plan);
    while (done < w->ranks) {
        for (int r = 0; r < w->ranks; r++) {
            afdep_status_t result = AFDEP_OK, status = AFDEP_AGAIN;
            for (int i = 0; half[r] < 2 && i < w->hosts[r]->actor_count && status != AFDEP_DONE; i++)
                status = afdep_host_step(w->hosts[r], i, &result);
            if (half[r] < 2 && w->hosts[r]->actor_count == 0 && status != AFDEP_DONE)
                status = afdep_host_step(w->hosts[r], 0, &result);
            if (status != AFDEP_DONE)
                continue;
            end_call(w, r, half[r]++, plan, result);
            if (half[r] == 2)
                done++;
            else
                begin_call(w, r, 1, plan);
        }
        land_all(w);
    }
    afdep_fp_leave(fp);
}

/* ---- The predictor ------------------------------------------------------------------------------------------- */

static void issued(void *context, uint64_t exchange, const afdep_predict_message_t *m)
{
    (void)context;
    note(&predicted, (int)exchange, m->sender, m->target, m->lane, m->bytes);
}

static void predict(const afdep_scenario_t *s, const int *toggles, int tokens)
{
    char why[512] = "";
    afdep_cost_t cost;
    afdep_prediction_t prediction;
    afdep_predict_watch_t watch = { .issued = issued };
    assert_int_equal(afdep_cost_builtin(&cost, why, sizeof(why)), 0);
    afdep_predict_case_t c = { .scenario = s,
                               .cost = &cost,
                               .stagger = toggles[0],
                               .sparse_dispatch = toggles[1],
                               .sparse_combine = toggles[2],
                               .tokens = tokens,
                               .iterations = EXCHANGES,
                               .seed = s->seed,
                               .watch = &watch };
    if (afdep_predict(&c, &prediction, why, sizeof(why)) != 0)
        fail_msg("%s", why);
    afdep_prediction_free(&prediction);
    afdep_cost_free(&cost);
}

/* ---- Comparing ----------------------------------------------------------------------------------------------- */

static int order_lanes; /* the lane inside domains: rows of several channels share it, in any order */

/* By lane; within one as they were, but where a lane has no order. */
static int by_lane(const entry_t *x, const entry_t *y)
{
    const int keys[][2] = {
        { x->exchange, y->exchange }, { x->sender, y->sender }, { x->target, y->target }, { x->lane, y->lane }
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i][0] != keys[i][1])
            return keys[i][0] < keys[i][1] ? -1 : 1;
    if (x->lane == order_lanes && x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return 0;
}

/* By merging, which keeps the order of equal ones; qsort need not. */
static void sort_log(message_log_t *log)
{
    entry_t *from = malloc(((size_t)log->count + 1) * sizeof(*from));
    assert_non_null(from);
    for (int width = 1; width < log->count; width *= 2) {
        int out = 0;
        memcpy(from, log->entries, (size_t)log->count * sizeof(*from));
        for (int start = 0; start < log->count; start += 2 * width) {
            int a = start, middle = start + width < log->count ? start + width : log->count, b = middle;
            int end = start + 2 * width < log->count ? start + 2 * width : log->count;
            while (a < middle || b < end) {
                int first = b >= end || (a < middle && by_lane(&from[a], &from[b]) <= 0);
                log->entries[out++] = first ? from[a++] : from[b++];
            }
        }
    }
    free(from);
}

static void compare_logs(const char *what)
{
    sort_log(&actual);
    sort_log(&predicted);
    for (int i = 0; i < actual.count && i < predicted.count; i++) {
        const entry_t *a = &actual.entries[i], *p = &predicted.entries[i];
        if (memcmp(a, p, sizeof(*a)) != 0)
            fail_msg("%s: message %d: the actors have exchange %d, rank %d to %d, lane %d, %u bytes; the predictor %d, "
                     "%d to "
                     "%d, lane %d, %u bytes",
                     what, i, a->exchange, a->sender, a->target, a->lane, a->bytes, p->exchange, p->sender, p->target,
                     p->lane, p->bytes);
    }
    if (actual.count != predicted.count)
        fail_msg("%s: the actors sent %d messages, the predictor %d", what, actual.count, predicted.count);
}

static void check(const afdep_scenario_t *s, const int *toggles, int tokens)
{
    world_t *w = malloc(sizeof(*w));
    int each[RANKS_MAX];
    char what[128];
    assert_non_null(w);
    actual.count = predicted.count = 0;
    open_world(w, s, toggles);
    order_lanes = AFDEP_LANE_DOMAIN(w->settings.shape.channels);
    for (int a = 0; a < s->attention_ranks; a++)
        each[a] = tokens;
    for (w->exchange = 1; w->exchange <= EXCHANGES; w->exchange++) {
        afdep_exchange_plan_t plan = { .number = (uint64_t)w->exchange,
                                       .tokens = each,
                                       .bucket = tokens > 0 ? tokens : 1 };
        run_exchange(w, &plan);
    }
    close_world(w);
    free(w);
    predict(s, toggles, tokens);
    snprintf(what, sizeof(what), "%d of %d ranks in a domain, %d%d%d, %d tokens", s->ranks_per_domain,
             afdep_scenario_ranks(s), toggles[0], toggles[1], toggles[2], tokens);
    compare_logs(what);
}

static afdep_scenario_t shape(int ffn, int attention, int domain, int experts)
{
    afdep_scenario_t s;
    afdep_scenario_default(&s);
    s.ffn_ranks = ffn;
    s.attention_ranks = attention;
    s.ranks_per_domain = domain;
    s.num_experts = experts;
    s.top_k = 2;
    s.hidden = 256;
    s.dtype = AFDEP_DTYPE_FP8;
    s.num_sms = 1;
    s.capacity = 20;
    return s;
}

static void test_directional(void **state)
{
    (void)state;
    static const int arms[][3] = { { 0, 0, 0 }, { 1, 1, 1 }, { 1, 0, 0 }, { 0, 1, 0 }, { 0, 0, 1 }, { 1, 1, 0 } };
    /* Fewer tokens than channels, as many, more; none. */
    static const int tokens[] = { 0, 1, 3, 8, 20 };
    afdep_scenario_t shapes[] = { shape(2, 4, 2, 8), shape(4, 4, 2, 8), shape(3, 6, 3, 6), shape(2, 3, 1, 8) };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (size_t a = 0; a < sizeof(arms) / sizeof(arms[0]); a++)
            for (size_t t = 0; t < sizeof(tokens) / sizeof(tokens[0]); t++)
                check(&shapes[i], arms[a], tokens[t]);
        afdep_scenario_free(&shapes[i]);
    }
}

static void test_direct(void **state)
{
    (void)state;
    static const int sparse[] = { 1, 1, 1 };
    afdep_scenario_t shapes[] = { shape(1, 3, 4, 8), shape(2, 3, 5, 8), shape(4, 2, 6, 8) };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (int tokens = 0; tokens <= 20; tokens += 4)
            check(&shapes[i], sparse, tokens);
        afdep_scenario_free(&shapes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_directional), cmocka_unit_test(test_direct) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
