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
#include "validate/unit/crowd.h"
#include "validate/unit/queue_fabric.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_depths), cmocka_unit_test(test_some_windows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
