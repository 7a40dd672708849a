/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges over short queues: a step that issues something and then waits must still get it out, a full queue is tried
 * again where it stopped, and a row is staged for every peer that has no window, whichever comes first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "validate/exchanger.h"
#include "validate/ll_exchanger.h"
#include "validate/unit/crowd.h"
#include "validate/unit/queue_fabric.h"
#include "validate/unit/rig.h"

typedef struct queue_case {
    int ffn, attention, per_domain, sparse, in_flight;
} queue_case_t;

static const char *queue_rank(const afdep_group_t *group, void *context)
{
    const queue_case_t *c = context;
    afdep_scenario_t s = { .ffn_ranks = c->ffn, .attention_ranks = c->attention, .ranks_per_domain = c->per_domain,
                           .num_experts = 4 * c->ffn, .top_k = 3, .hidden = 256, .dtype = AFDEP_DTYPE_FP8,
                           .capacity = 20, .num_sms = 1, .expert_alignment = 1, .seed = 3 };
    afdep_config_t config = afdep_exchanger_config(&s);
    afdep_group_t queued = *group;
    afdep_buffer_t *buffer = NULL;
    afdep_exchanger_t x;
    const char *failed = NULL;
    int tokens[8];
    queued.fabrics = &queue_provider;
    config.stagger = config.sparse_dispatch = config.sparse_combine = c->sparse ? AFDEP_ON : AFDEP_OFF;
    config.in_flight = c->in_flight;
    config.timeout_ms = 10000;
    if (afdep_buffer_open(&queued, &config, &buffer) != AFDEP_OK)
        return crowd_say("open: %s", afdep_last_error());
    if (afdep_exchanger_init(&x, &s, buffer, s.seed) != 0)
        return crowd_say("no memory");
    for (int n = 0; n < 12 && !failed; n++) {
        for (int a = 0; a < c->attention; a++)
            tokens[a] = (n * 5 + a * 7) % 21;
        afdep_exchange_plan_t plan = { .number = (uint64_t)n, .bucket = 20, .tokens = tokens };
        if (afdep_exchanger_first(&x, &plan) != AFDEP_OK || afdep_exchanger_second(&x, &plan) != AFDEP_OK)
            failed = crowd_say("exchange %d: %s", n, x.why);
    }
    afdep_exchanger_free(&x);
    if (afdep_buffer_close(buffer) != AFDEP_OK && !failed)
        failed = crowd_say("close: %s", afdep_last_error());
    return failed;
}

static void run_all(int depth, int windows)
{
    static const queue_case_t cases[] = { { 2, 4, 2, 1, 1 }, { 2, 4, 2, 0, 1 }, { 4, 4, 2, 1, 1 }, { 3, 3, 3, 1, 1 },
                                          { 2, 3, 1, 1, 1 }, { 2, 3, 5, 1, 1 }, { 2, 4, 2, 1, 2 }, { 2, 3, 5, 1, 3 } };
    queue_depth = depth;
    queue_windows = windows;
    atomic_store(&queue_refusals, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *failed = crowd_run(cases[i].ffn + cases[i].attention, queue_rank, (void *)&cases[i]);
        if (failed)
            fail_msg("depth %d, case %zu: %s", depth, i, failed);
    }
    assert_true(atomic_load(&queue_refusals) > 0); /* else nothing was tested */
}

static void test_depths(void **state)
{
    (void)state;
    run_all(2, 0);
    run_all(3, 0);
    run_all(6, 0);
}

static void test_some_windows(void **state)
{
    (void)state;
    run_all(2, 1);
    run_all(5, 1);
}

/* The low-latency API: a row leaves as one put or two, and its memory stays until it has. */
static const char *ll_rank(const afdep_group_t *group, void *context)
{
    afdep_group_t queued = *group;
    afdep_ll_buffer_t *buffer = NULL;
    afdep_ll_exchanger_t x;
    const char *failed = NULL;
    int tokens[8];
    (void)context;
    queued.fabrics = &queue_provider;
    if (afdep_ll_exchanger_init(&x, group->size, group->rank, 9, 128, 3, 4 * group->size, 5) != 0)
        return crowd_say("no memory");
    afdep_ll_config_t config = afdep_ll_exchanger_config(&x);
    config.timeout_ms = 10000;
    if (afdep_ll_buffer_open(&queued, &config, &buffer) != AFDEP_OK)
        return crowd_say("open: %s", afdep_last_error());
    for (int n = 0; n < 14 && !failed; n++) {
        for (int r = 0; r < group->size; r++)
            tokens[r] = (n * 5 + r * 7) % 10;
        afdep_ll_plan_t plan = { .number = (uint64_t)n, .tokens = tokens, .format = (afdep_ll_format_t)(1 + n % 7),
                                 .dispatch = (afdep_ll_completion_t)(n % 4), .zero_copy = n % 2 };
        if (afdep_ll_exchange(&x, &plan, buffer) != AFDEP_OK)
            failed = crowd_say("exchange %d: %s", n, x.why);
    }
    if (afdep_ll_buffer_close(buffer) != AFDEP_OK && !failed)
        failed = crowd_say("close: %s", afdep_last_error());
    afdep_ll_exchanger_free(&x);
    return failed;
}

static void test_low_latency(void **state)
{
    (void)state;
    for (queue_windows = 0; queue_windows < 2; queue_windows++)
        for (queue_depth = 2; queue_depth <= 6; queue_depth += 2) {
            atomic_store(&queue_refusals, 0);
            const char *failed = crowd_run(4, ll_rank, NULL);
            if (failed)
                fail_msg("depth %d, windows %d: %s", queue_depth, queue_windows, failed);
            assert_true(atomic_load(&queue_refusals) > 0);
        }
}

/* Rank 0 was given another bucket and gives up: its word of that finds its way out of the queues to every peer. */
static const char *failing_rank(const afdep_group_t *group, void *context)
{
    (void)context;
    afdep_group_t queued = *group;
    afdep_config_t config = rig_config(2, 2, 3000);
    afdep_status_t status;
    queued.fabrics = &queue_provider;
    rig_t *rig = rig_open(&queued, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    status = rig_first(rig, rig->rank ? RIG_CAPACITY : 1, RIG_CAPACITY);
    status = status == AFDEP_OK ? rig_second(rig) : status;
    const char *failed = NULL;
    if (status != (rig->rank ? AFDEP_ERR_PEER : AFDEP_ERR_PROTOCOL))
        failed = crowd_say("%s: %s", afdep_status_string(status), afdep_last_error());
    (void)rig_close(rig);
    return failed;
}

static void test_failures_find_room(void **state)
{
    (void)state;
    queue_windows = 0;
    for (queue_depth = 2; queue_depth <= QUEUE_MOST; queue_depth += 3) {
        const char *failed = crowd_run(6, failing_rank, NULL);
        if (failed)
            fail_msg("depth %d: %s", queue_depth, failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_depths), cmocka_unit_test(test_some_windows),
                                        cmocka_unit_test(test_low_latency),
                                        cmocka_unit_test(test_failures_find_room) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
