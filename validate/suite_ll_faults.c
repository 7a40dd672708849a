/* SPDX-License-Identifier: Apache-2.0 */
/* faults of the low-latency API: absorbed with exact results, or a named error at every rank within the deadline. */
#include <stdio.h>
#include <string.h>

#include "fabric/fault.h"
#include "validate/ll_rig.h"
#include "validate/verdict.h"

typedef struct fault_case {
    afdep_fault_t rule;
    int from_rank_0;
    afdep_expect_t expect;
    afdep_status_t status;
    int timeout_ms; /* 0: the suite's */
} fault_case_t;

#define EXCHANGES 20
#define SHORT_MS 2000

/* A wrong value is AFDEP_ERR_PROTOCOL from the checker, with nothing wrong at the buffer: told apart here. */
static afdep_status_t exchange(afdep_ll_rig_t *rig, int n, int64_t *call_ms)
{
    afdep_ll_exchanger_t *x = &rig->x[0];
    for (int r = 0; r < rig->ranks; r++)
        rig->tokens[r] = 2 + (r + n) % 4;
    afdep_ll_plan_t plan = afdep_ll_rig_plain(rig, (afdep_ll_format_t)(1 + n % 7));
    int64_t start = afdep_verdict_now_ms();
    afdep_status_t status = afdep_ll_begin_first(x, &plan, rig->buffer);
    if (status == AFDEP_OK)
        status = afdep_ll_finish_first(x, &plan, rig->buffer);
    if (status == AFDEP_OK) {
        start = afdep_verdict_now_ms();
        status = afdep_ll_begin_second(x, &plan, rig->buffer);
    }
    if (status == AFDEP_OK)
        status = afdep_ll_finish_second(x, &plan, rig->buffer);
    *call_ms = afdep_verdict_now_ms() - start;
    if (status != AFDEP_OK && afdep_ll_buffer_error(rig->buffer) == AFDEP_OK)
        return AFDEP_ERR_ARGUMENT; /* the library is content, the oracle is not */
    return status;
}

static void run_exchanges(const afdep_validation_t *v, const fault_case_t *f, afdep_ll_rig_t *rig,
                          afdep_outcome_t *outcome)
{
    afdep_ended_t mine = { AFDEP_OK, 0 };
    for (int n = 0; n < EXCHANGES && mine.status == AFDEP_OK; n++) {
        mine.status = exchange(rig, n, &mine.last_call_ms);
        outcome->exchanges += mine.status == AFDEP_OK;
    }
    afdep_verdict(v, f->expect, f->status, f->timeout_ms, &mine, rig->x[0].why, outcome);
    afdep_outcome_t closing = { 0 };
    afdep_ll_rig_close(rig, mine.status == AFDEP_OK ? outcome : &closing);
}

static void run_fault(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const fault_case_t *f = c->argument;
    afdep_ll_rig_plan_t rig_plan = { .max_tokens = 8 };
    afdep_ll_rig_t rig;
    afdep_validation_t faulty = *v;
    afdep_world_t world = *v->world;
    afdep_fault_t rule = f->rule;
    if (f->from_rank_0)
        rule.rank = 0;
    afdep_faults_t faults = { &rule, 1, v->seed };
    afdep_fault_provider_t provider;
    afdep_fault_provider_init(&provider, afdep_verdict_inner_fabric(v), &faults);
    if (afdep_world_group(v->world, &world.group) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "no group: %s", afdep_last_error());
        return;
    }
    world.group.fabrics = &provider.super;
    faulty.world = &world;
    if (f->timeout_ms)
        faulty.timeout_ms = f->timeout_ms;
    if (afdep_ll_rig_open(&faulty, &rig_plan, &rig, outcome) == 0)
        run_exchanges(v, f, &rig, outcome);
    afdep_group_destroy(&world.group);
}

#define RULE(k, w, p, ...)                                                                                            \
    .rule = { .kind = k, .rank = AFDEP_FAULT_ANY, .peer = AFDEP_FAULT_ANY, .lane = AFDEP_FAULT_ANY, .what = w,         \
              .probability = p, .overtake = 4, __VA_ARGS__ }
#define FAULT(...) AFDEP_SUITE_FAULTS, run_fault, &(const fault_case_t){ __VA_ARGS__ }, 0
#define ONCE(n) .exchange = n, .count = 1
#define NAMED(s) .from_rank_0 = 1, .expect = AFDEP_EXPECT_NAMED, .status = s, .timeout_ms = SHORT_MS
#define EITHER .from_rank_0 = 1, .expect = AFDEP_EXPECT_EITHER, .timeout_ms = SHORT_MS

const afdep_case_t afdep_cases_ll_faults[] = {
    { "slow_receive",
      FAULT(RULE(AFDEP_FAULT_SLOW_ACTOR, AFDEP_FAULT_ANY, 1, .duty = "ll_receive", .amount_us = 200, .count = 200)),
      "slow-actor: ll_receive, 200 us" },
    { "slow_combine",
      FAULT(RULE(AFDEP_FAULT_SLOW_ACTOR, AFDEP_FAULT_ANY, 1, .duty = "ll_combine", .amount_us = 200, .count = 200)),
      "slow-actor: ll_combine, 200 us" },
    { "delayed_rows", FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_FAULT_PUT, 0.1, .amount_us = 500)),
      "delay: puts, 500 us, one in ten" },
    { "delayed_dispatch_words", FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_SIGNAL_COUNT_WORD, 0.3, .amount_us = 2000)),
      "delay: count_word, 2000 us, three in ten" },
    { "delayed_combine_words", FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_SIGNAL_COMBINE, 0.3, .amount_us = 2000)),
      "delay: combine, 2000 us, three in ten" },
    { "reordered_lanes", FAULT(RULE(AFDEP_FAULT_REORDER, AFDEP_FAULT_ANY, 0.2, .amount_us = 1000)),
      "reorder: any lane, one message in five" },
    { "stopped_rank", FAULT(RULE(AFDEP_FAULT_STALL, AFDEP_FAULT_ANY, 1, .exchange = 3), NAMED(AFDEP_ERR_TIMEOUT)),
      "stall: all of a rank's lanes, from exchange 3" },
    { "dropped_row", FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_FAULT_PUT, 1, ONCE(4)), NAMED(AFDEP_ERR_PROTOCOL)),
      "drop: a rank's first put, exchange 4" },
    { "dropped_dispatch_word",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_SIGNAL_COUNT_WORD, 1, ONCE(3)), NAMED(AFDEP_ERR_TIMEOUT)),
      "drop: a count_word, exchange 3" },
    { "dropped_combine_word", FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_SIGNAL_COMBINE, 1, ONCE(3)), NAMED(AFDEP_ERR_TIMEOUT)),
      "drop: a combine signal, exchange 3" },
    { "corrupted_dispatch_word",
      FAULT(RULE(AFDEP_FAULT_CORRUPT, AFDEP_SIGNAL_COUNT_WORD, 1, ONCE(3), .bit = 40), NAMED(AFDEP_ERR_PROTOCOL)),
      "corrupt: bit 40 of a count_word, exchange 3" },
    { "corrupted_combine_word",
      FAULT(RULE(AFDEP_FAULT_CORRUPT, AFDEP_SIGNAL_COMBINE, 1, ONCE(3), .bit = 2), NAMED(AFDEP_ERR_PROTOCOL)),
      "corrupt: bit 2 of a combine signal, exchange 3" },
    { "corrupted_row_tag",
      FAULT(RULE(AFDEP_FAULT_CORRUPT, AFDEP_FAULT_PUT, 1, ONCE(3), .bit = 0), NAMED(AFDEP_ERR_PROTOCOL)),
      "corrupt: a dispatched row's exchange number, exchange 3" },
    { "duplicated_dispatch_word", FAULT(RULE(AFDEP_FAULT_DUPLICATE, AFDEP_SIGNAL_COUNT_WORD, 1, ONCE(3)), EITHER),
      "duplicate: a count_word, exchange 3" },
    { "duplicated_combine_word", FAULT(RULE(AFDEP_FAULT_DUPLICATE, AFDEP_SIGNAL_COMBINE, 1, ONCE(3)), EITHER),
      "duplicate: a combine signal, exchange 3" },
    { NULL, AFDEP_SUITE_FAULTS, NULL, NULL, 0, NULL },
};
