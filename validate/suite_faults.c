/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults: what is injected, and what must come of it: absorbed with exact results, or a named error at every surviving
 * rank within the deadline. Never a wrong value, never a hang.
 */
#include <stdio.h>
#include <string.h>

#include "fabric/fault.h"
#include "core/config.h"
#include "validate/child.h"
#include "validate/rig.h"
#include "validate/verdict.h"

/* Who acts; ranks depend on the scenario. */
typedef enum actor { ANYBODY, FIRST_SOURCE, FIRST_WORKER, FIRST_WITNESS /* the first rank that sends any */ } actor_t;

/* Which bit a corruption flips. */
typedef enum spot { BIT_AS_GIVEN, BIT_OF_ROW_TAG } spot_t;

typedef struct fault_case {
    afdep_fault_t rule;
    actor_t who;
    afdep_expect_t expect;
    afdep_status_t status;
    spot_t spot;
    int across_domains; /* 1: needs words that one domain does not have */
    int timeout_ms;     /* 0: the suite's */
    int to_first_source;
} fault_case_t;

#define EXCHANGES 24
#define SHORT_MS 2000

/* ---- Injection ----------------------------------------------------------------------------------------------- */

/* The row tag's exchange number, bit 0: in a reply row it stands in the last 16 bytes, in a dispatched row before the
   choices. */
static int tag_bit(const fault_case_t *f, const afdep_rig_t *rig)
{
    afdep_settings_t settings;
    if (f->who == FIRST_WORKER || afdep_settings_resolve(&rig->config, afdep_scenario_ranks(&rig->scenario),
                                                         &settings) != AFDEP_OK)
        return -128;
    return (int)(settings.layout.row.tag_offset * 8);
}

static afdep_fault_t rule_for(const fault_case_t *f, const afdep_validation_t *v, const afdep_rig_t *rig)
{
    afdep_fault_t rule = f->rule;
    int source = v->scenario->ffn_ranks;
    if (f->who == FIRST_WITNESS)
        rule.rank = afdep_scenario_shares_domains(v->scenario) ? source : 0;
    else if (f->who != ANYBODY)
        rule.rank = f->who == FIRST_WORKER ? 0 : source;
    if (f->to_first_source)
        rule.peer = source;
    if (f->spot == BIT_OF_ROW_TAG)
        rule.bit = tag_bit(f, rig);
    return rule;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

/* A wrong value is AFDEP_ERR_PROTOCOL from the checker, with nothing wrong at the buffer: told apart here. */
static afdep_status_t exchange(afdep_rig_t *rig, int n, int64_t *call_ms)
{
    for (int a = 0; a < rig->scenario.attention_ranks; a++)
        rig->tokens[a] = 1 + (a + n) % 4;
    afdep_exchange_plan_t plan = afdep_rig_plain(rig);
    int64_t start = afdep_verdict_now_ms();
    afdep_status_t status = afdep_exchanger_first(&rig->x[0], &plan);
    if (status == AFDEP_OK) {
        start = afdep_verdict_now_ms();
        status = afdep_exchanger_second(&rig->x[0], &plan);
    }
    *call_ms = afdep_verdict_now_ms() - start;
    if (status != AFDEP_OK && afdep_buffer_error(rig->buffer) == AFDEP_OK)
        return AFDEP_ERR_ARGUMENT; /* the library is content, the oracle is not */
    return status;
}

static void run_fault(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const fault_case_t *f = c->argument;
    int direct = v->scenario->ranks_per_domain == afdep_scenario_ranks(v->scenario);
    if (f->across_domains && direct) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "one domain has no such words");
        return;
    }
    afdep_rig_plan_t rig_plan = { .capacity = 8 };
    afdep_rig_t rig;
    afdep_validation_t faulty_validation = *v;
    afdep_world_t world = *v->world;
    faulty_validation.world = &world;
    if (f->timeout_ms)
        faulty_validation.timeout_ms = f->timeout_ms;
    afdep_rig_shape(&faulty_validation, &rig_plan, &rig);
    afdep_fault_t rule = rule_for(f, v, &rig);
    afdep_faults_t faults = { &rule, 1, v->seed };
    afdep_fault_provider_t provider;
    afdep_fault_provider_init(&provider, afdep_verdict_inner_fabric(v), &faults);
    if (afdep_world_group(v->world, &world.group) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "no group: %s", afdep_last_error());
        return;
    }
    world.group.fabrics = &provider.super;
    if (afdep_rig_open(&faulty_validation, &rig_plan, &rig, outcome) != 0) {
        afdep_group_destroy(&world.group);
        return;
    }
    afdep_ended_t mine = { AFDEP_OK, 0 };
    for (int n = 0; n < EXCHANGES && mine.status == AFDEP_OK; n++) {
        mine.status = exchange(&rig, n, &mine.last_call_ms);
        outcome->exchanges += mine.status == AFDEP_OK;
    }
    char why[sizeof(rig.x[0].why)];
    memcpy(why, rig.x[0].why, sizeof(why));
    afdep_verdict(v, f->expect, f->status, f->timeout_ms, &mine, why, outcome);
    afdep_outcome_t closing = { 0 };
    afdep_rig_close(&rig, mine.status == AFDEP_OK ? outcome : &closing);
    afdep_group_destroy(&world.group);
}

/* ---- The table ----------------------------------------------------------------------------------------------- */

#define RULE(k, w, p, ...)                                                                                            \
    .rule = { .kind = k, .rank = AFDEP_FAULT_ANY, .peer = AFDEP_FAULT_ANY, .lane = AFDEP_FAULT_ANY, .what = w,         \
              .probability = p, .overtake = 4, __VA_ARGS__ }
#define FAULT(...) AFDEP_SUITE_FAULTS, run_fault, &(const fault_case_t){ __VA_ARGS__ }, 0
#define KILL(...) AFDEP_SUITE_FAULTS, afdep_run_kills, &(const afdep_kill_t){ __VA_ARGS__ }, 1, "kill"

const afdep_case_t afdep_cases_faults[] = {
    { "slow_forward",
      FAULT(RULE(AFDEP_FAULT_SLOW_ACTOR, AFDEP_FAULT_ANY, 1, .duty = "forward", .amount_us = 200, .count = 400)),
      "slow-actor: forward, 200 us" },
    { "slow_receive",
      FAULT(RULE(AFDEP_FAULT_SLOW_ACTOR, AFDEP_FAULT_ANY, 1, .duty = "receive", .amount_us = 200, .count = 400)),
      "slow-actor: receive, 200 us" },
    { "delayed_replies", FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_SIGNAL_COMBINE, 0.2, .amount_us = 1000)),
      "delay: combine, 1000 us, one in five" },
    { "delayed_dispatches",
      FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_FAULT_PUT, 0.2, .amount_us = 1000), .who = FIRST_SOURCE),
      "delay: puts of a source, 1000 us, one in five" },
    { "delayed_count_words", FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_SIGNAL_COUNT_WORD, 0.3, .amount_us = 2000)),
      "delay: count_word, 2000 us, three in ten" },
    { "delayed_witnesses", FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_SIGNAL_WITNESS, 0.3, .amount_us = 2000)),
      "delay: witness, 2000 us, three in ten" },
    { "delayed_domain_words",
      FAULT(RULE(AFDEP_FAULT_DELAY, AFDEP_SIGNAL_DOMAIN_WORD, 1, .amount_us = 1000), .across_domains = 1),
      "delay: domain_word, 1000 us" },
    { "reordered_lanes", FAULT(RULE(AFDEP_FAULT_REORDER, AFDEP_FAULT_ANY, 0.2, .amount_us = 1000)),
      "reorder: any lane, one message in five" },
    { "stopped_source",
      FAULT(RULE(AFDEP_FAULT_STALL, AFDEP_FAULT_ANY, 1, .exchange = 3), .who = FIRST_SOURCE,
            .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_TIMEOUT, .timeout_ms = SHORT_MS),
      "stall: all of a source's lanes, from exchange 3" },
    { "dropped_row",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_FAULT_PUT, 1, .exchange = 4, .count = 1), .who = FIRST_SOURCE,
            .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_PROTOCOL, .timeout_ms = SHORT_MS),
      "drop: a put of a source, exchange 4" },
    { "dropped_reply",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_FAULT_PUT, 1, .exchange = 4, .count = 1), .who = FIRST_WORKER,
            .to_first_source = 1, .expect = AFDEP_EXPECT_EITHER, .status = AFDEP_ERR_PROTOCOL, .timeout_ms = SHORT_MS),
      "drop: a put to a source, exchange 4" },
    { "dropped_finish_tail",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_SIGNAL_FINISH_TAIL, 1, .exchange = 3, .count = 1), .who = FIRST_SOURCE,
            .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_TIMEOUT, .timeout_ms = SHORT_MS, .across_domains = 1),
      "drop: a finish_tail, exchange 3" },
    { "dropped_count_word",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_SIGNAL_COUNT_WORD, 1, .exchange = 3, .count = 1), .who = FIRST_SOURCE,
            .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_TIMEOUT, .timeout_ms = SHORT_MS),
      "drop: a count_word, exchange 3" },
    { "dropped_witness",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_SIGNAL_WITNESS, 1, .exchange = 3, .count = 1), .who = FIRST_WITNESS,
            .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_TIMEOUT, .timeout_ms = SHORT_MS),
      "drop: a witness, exchange 3" },
    { "dropped_domain_word",
      FAULT(RULE(AFDEP_FAULT_DROP, AFDEP_SIGNAL_DOMAIN_WORD, 1, .exchange = 3, .count = 1), .who = FIRST_WORKER,
            .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_TIMEOUT, .timeout_ms = SHORT_MS, .across_domains = 1),
      "drop: a domain_word (in shared domains a rail answer), exchange 3" },
    { "corrupted_count_word",
      FAULT(RULE(AFDEP_FAULT_CORRUPT, AFDEP_SIGNAL_COUNT_WORD, 1, .exchange = 3, .count = 1, .bit = 40),
            .who = FIRST_SOURCE, .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_PROTOCOL, .timeout_ms = SHORT_MS),
      "corrupt: bit 40 of a count_word, exchange 3" },
    { "corrupted_row_tag",
      FAULT(RULE(AFDEP_FAULT_CORRUPT, AFDEP_FAULT_PUT, 1, .exchange = 3, .count = 1), .who = FIRST_SOURCE,
            .spot = BIT_OF_ROW_TAG, .expect = AFDEP_EXPECT_NAMED, .status = AFDEP_ERR_PROTOCOL, .timeout_ms = SHORT_MS),
      "corrupt: a dispatched row's exchange number, exchange 3" },
    { "corrupted_reply_tag",
      FAULT(RULE(AFDEP_FAULT_CORRUPT, AFDEP_FAULT_PUT, 1, .exchange = 3, .count = 1), .who = FIRST_WORKER,
            .to_first_source = 1, .spot = BIT_OF_ROW_TAG, .expect = AFDEP_EXPECT_EITHER, .status = AFDEP_ERR_PROTOCOL,
            .timeout_ms = SHORT_MS),
      "corrupt: a reply row's exchange number, exchange 3" },
    { "duplicated_count_word",
      FAULT(RULE(AFDEP_FAULT_DUPLICATE, AFDEP_SIGNAL_COUNT_WORD, 1, .exchange = 3, .count = 1), .who = FIRST_SOURCE,
            .expect = AFDEP_EXPECT_EITHER, .timeout_ms = SHORT_MS),
      "duplicate: a count_word, exchange 3" },
    { "duplicated_combine",
      FAULT(RULE(AFDEP_FAULT_DUPLICATE, AFDEP_SIGNAL_COMBINE, 1, .exchange = 3, .count = 1), .who = FIRST_WORKER,
            .expect = AFDEP_EXPECT_EITHER, .timeout_ms = SHORT_MS),
      "duplicate: a combine signal, exchange 3" },
    { "killed_attention_rank", KILL(2, 4, 2, 3, 5, AFDEP_KILL_EXCHANGING) },
    { "killed_ffn_rank", KILL(2, 4, 2, 3, 1, AFDEP_KILL_EXCHANGING) },
    { "killed_in_one_domain", KILL(1, 3, 4, 3, -1, AFDEP_KILL_EXCHANGING) },
    { "killed_in_shared_domains", KILL(2, 4, 3, 3, -1, AFDEP_KILL_EXCHANGING) },
    { "killed_symmetric_rank", KILL(0, 4, 2, 2, -1, AFDEP_KILL_EXCHANGING) },
    { "survived_source", KILL(2, 4, 2, 3, -1, AFDEP_KILL_SURVIVED) },
    { "survived_source_in_one_domain", KILL(2, 3, 5, 2, -1, AFDEP_KILL_SURVIVED) },
    { "survival_without_ffn_rank", KILL(2, 4, 2, 2, 1, AFDEP_KILL_SURVIVED) },
    { "survival_without_ffn_rank_in_one_domain", KILL(2, 3, 5, 2, 1, AFDEP_KILL_SURVIVED) },
    { "killed_while_opening", KILL(2, 2, 2, 2, -1, AFDEP_KILL_OPENING) },
    { NULL, AFDEP_SUITE_FAULTS, NULL, NULL, 0, NULL },
};
