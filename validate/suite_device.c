/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults on the CUDA backend: faults of segments and calls (device_fault.h), invalid choices, calls that cannot be
 * captured, and ranks that die.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "validate/child.h"
#include "validate/device_fault.h"
#include "validate/gpu.h"
#include "validate/rig.h"

#define TOKENS 4

/* ---- Routes -------------------------------------------------------------------------------------------------- */

/* Turns the first choice of -1 into one that is taken as -1: outside the experts, or `repeated` of the same token. */
static int spoil_choice(afdep_exchanger_t *x, int repeated, int *token, int *slot)
{
    int k = x->scenario->top_k;
    for (int i = 0; i < x->own.tokens * k; i++) {
        int32_t *ids = x->own.ids + i / k * k;
        if (ids[i % k] != -1 || (repeated && (i % k == 0 || ids[i % k - 1] < 0)))
            continue;
        ids[i % k] = repeated ? ids[i % k - 1] : x->scenario->num_experts + 5;
        *token = i / k;
        *slot = i % k;
        return 0;
    }
    return -1;
}

/* The query says it, the next dispatch says it once and goes on, and every value is as if the choice were -1. */
static void check_route(afdep_rig_t *rig, afdep_exchange_plan_t *plan, int repeated, int n, afdep_outcome_t *outcome)
{
    afdep_exchanger_t *x = &rig->x[0];
    int bad = n == 1, told = n == 2, token = -1, slot = -1;
    afdep_exchanger_prepare_first(x, plan);
    if (bad && spoil_choice(x, repeated, &token, &slot) != 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no choice to spoil");
    afdep_status_t status = afdep_exchanger_judge_first(x, plan, afdep_exchanger_call_first(x));
    if (status != (told ? AFDEP_ERR_ROUTE : AFDEP_OK))
        afdep_outcome_set(outcome, AFDEP_FAILED, "dispatch %d says %s: %s", n, afdep_status_string(status), x->why);
    status = afdep_exchanger_second(x, plan);
    if (status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "collect %d: %s", n, x->why);
    status = afdep_buffer_error(rig->buffer);
    char place[64];
    snprintf(place, sizeof(place), "token %d, slot %d", token, slot);
    if (status != (bad ? AFDEP_ERR_ROUTE : AFDEP_OK))
        afdep_outcome_set(outcome, AFDEP_FAILED, "after exchange %d afdep_buffer_error says %s", n,
                          afdep_status_string(status));
    else if (bad &&
             (!strstr(afdep_last_error(), place) || !strstr(afdep_last_error(), repeated ? "repeated" : "outside")))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s is not in: %s", place, afdep_last_error());
}

static void run_route(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    int repeated = *(const int *)c->argument;
    afdep_rig_plan_t plan = { .capacity = 16 };
    afdep_rig_t rig;
    if (afdep_rig_open(v, &plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 4; n++) {
        afdep_rig_tokens(&rig, 12);
        afdep_exchange_plan_t exchange_plan = afdep_rig_plain(&rig);
        exchange_plan.inactive_percent = 40;
        if (v->world->rank < rig.scenario.ffn_ranks)
            (void)afdep_rig_exchange(&rig, &exchange_plan, outcome);
        else
            check_route(&rig, &exchange_plan, repeated, n, outcome);
    }
    outcome->exchanges = 4;
    afdep_rig_close(&rig, outcome);
}

/* ---- Captures ------------------------------------------------------------------------------------------------ */

/* What cannot be captured is refused, and neither the capture nor the buffer is the worse for it. */
static void run_capture_misuse(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_rig_plan_t plan = { .capacity = 8 };
    afdep_rig_t rig;
    (void)c;
    if (afdep_rig_open(v, &plan, &rig, outcome) != 0)
        return;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    if (v->world->rank < rig.scenario.ffn_ranks && afdep_gpu_take_stream(&stream) == 0) {
        afdep_receive_t receive = AFDEP_RECEIVE_INIT;
        receive.bucket = TOKENS;
        receive.read_host_counts = 1;
        int failed = afdep_gpu_failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
        afdep_status_t status = afdep_worker_receive(rig.buffer, &receive, stream);
        if (status != AFDEP_ERR_ARGUMENT || !strstr(afdep_last_error(), "read_host_counts"))
            afdep_outcome_set(outcome, AFDEP_FAILED, "read_host_counts in a capture: %s: %s",
                              afdep_status_string(status), afdep_last_error());
        receive.read_host_counts = 0; /* and no tensors */
        status = afdep_worker_receive(rig.buffer, &receive, stream);
        if (status != AFDEP_ERR_ARGUMENT)
            afdep_outcome_set(outcome, AFDEP_FAILED, "no tensors, in a capture: %s", afdep_status_string(status));
        failed |= afdep_gpu_failed(cudaStreamEndCapture(stream, &graph), "ending the capture");
        if (failed)
            afdep_outcome_set(outcome, AFDEP_FAILED, "%s", afdep_gpu_why());
        if (graph)
            (void)cudaGraphDestroy(graph);
        afdep_gpu_give_stream();
    }
    for (int n = 0; n < 3; n++) {
        afdep_rig_tokens(&rig, TOKENS);
        afdep_exchange_plan_t exchange_plan = afdep_rig_plain(&rig);
        exchange_plan.read_host_counts = n == 1;
        if (afdep_rig_exchange(&rig, &exchange_plan, outcome) != 0)
            break;
    }
    afdep_rig_close(&rig, outcome);
}

/* ---- The tables ---------------------------------------------------------------------------------------------- */

#define FAULT(m, d, ...)                                                                                              \
    AFDEP_SUITE_FAULTS, afdep_run_device_fault, &(const afdep_device_fault_t){ .moment = m, .deed = d, __VA_ARGS__ }, 0
#define WORD(m, d, w, ...) FAULT(m, d, .word = AFDEP_TAP_##w, __VA_ARGS__)
#define LATE(words) .status = AFDEP_ERR_TIMEOUT, .says = words
#define WRONG(words) .status = AFDEP_ERR_PROTOCOL, .says = words
#define KILL(...) AFDEP_SUITE_FAULTS, afdep_run_kills, &(const afdep_kill_t){ __VA_ARGS__ }, 1, "kill"
static const int outside = 0, repeated = 1;

const afdep_case_t afdep_cases_device_faults[] = {
    { "route_outside", AFDEP_SUITE_FAULTS, run_route, &outside, 0, "a choice outside the experts" },
    { "route_repeated", AFDEP_SUITE_FAULTS, run_route, &repeated, 0, "a choice that the token has already" },
    { "capture_misuse", AFDEP_SUITE_FAULTS, run_capture_misuse, NULL, 0, "calls that cannot be captured" },
    { "late_source", FAULT(BEFORE_DISPATCH, LATE_CALL), "delay: a dispatch, 100 ms" },
    { "late_receive", FAULT(BEFORE_RECEIVE, LATE_CALL), "delay: a receive, 100 ms" },
    { "slow_dispatch", FAULT(BEFORE_DISPATCH, SLOW_STREAM), "slow-actor: dispatch, 100 ms" },
    { "slow_receive", FAULT(BEFORE_RECEIVE, SLOW_STREAM), "slow-actor: receive, 100 ms" },
    { "slow_reply", FAULT(BEFORE_REPLY, SLOW_STREAM), "slow-actor: reply, 100 ms" },
    { "slow_collect", FAULT(BEFORE_COLLECT, SLOW_STREAM), "slow-actor: collect, 100 ms" },
    { "stopped_source",
      FAULT(BEFORE_DISPATCH, STOPPED, LATE("waited for the route word of rank"), .says_across = "waited for the"),
      "stall: a source, exchange 4" },
    { "stopped_worker", FAULT(BEFORE_RECEIVE, STOPPED, LATE("of rank 0, which holds")), "stall: a worker, exchange 4" },
    { "stopped_source_replayed",
      FAULT(BEFORE_DISPATCH, STOPPED, LATE("waited for the route word of rank"), .says_across = "waited for the",
            .recorded = 1),
      "stall: a source, exchange 4, all calls replayed" },
    { "other_bucket", FAULT(BEFORE_RECEIVE, OTHER_BUCKET, WRONG("bucket")), "a worker's bucket is smaller" },
    { "cached_receive_only", FAULT(BEFORE_RECEIVE, CACHED, WRONG("were said to be used again")),
      "a worker is told that ids are used again, which they are not" },
    { "cached_dispatch_only", FAULT(BEFORE_DISPATCH, CACHED, WRONG("were said to be used again")),
      "a source uses its ids again, and no worker is told" },
    /* One domain */
    { "delayed_route_word", WORD(BEFORE_RECEIVE, LATE_WORD, ROUTE), "delay: a route word, 100 ms" },
    { "delayed_answer", WORD(BEFORE_DISPATCH, LATE_WORD, ANSWER), "delay: an answer, 100 ms" },
    { "duplicated_route_word", WORD(BEFORE_RECEIVE, SAME_WORD, ROUTE), "duplicate: a route word" },
    { "dropped_route_word",
      WORD(BEFORE_RECEIVE, OLD_WORD, ROUTE, LATE("token 1, slot 0 waited for the route word of rank")),
      "drop: a route word, exchange 4" },
    { "dropped_rows", WORD(BEFORE_RECEIVE, OLD_ROWS, ROUTE, LATE("in worker_receive of exchange 4")),
      "drop: all rows to a worker, exchange 4" },
    { "dropped_replies", WORD(BEFORE_COLLECT, OLD_ROWS, ANSWER, LATE("in source_collect of exchange 4")),
      "drop: all replies to a source, exchange 4" },
    { "dropped_answer",
      WORD(BEFORE_DISPATCH, OLD_WORD, ANSWER, LATE("waited for the answer to an earlier exchange of rank 0")),
      "drop: an answer, exchange 3" },
    { "corrupted_route_word",
      WORD(BEFORE_RECEIVE, FLIPPED_WORD, ROUTE, .bit = 40, WRONG("token 1, slot 0: the route word of rank")),
      "corrupt: bit 40 of a route word, exchange 4" },
    { "corrupted_bucket", WORD(BEFORE_RECEIVE, FLIPPED_WORD, ROUTE, .bit = 25, WRONG("bucket")),
      "corrupt: bit 25 of a route word, exchange 4" },
    /* Across domains */
    { "delayed_count_word", WORD(BEFORE_RECEIVE, LATE_WORD, COUNT), "delay: a count_word, 100 ms" },
    { "delayed_finish_tail", WORD(BEFORE_RECEIVE, LATE_WORD, FINISH), "delay: a finish_tail, 100 ms" },
    { "delayed_forward_word", WORD(BEFORE_RECEIVE, LATE_WORD, FORWARD), "delay: a domain_word (forward), 100 ms" },
    { "delayed_reply_word", WORD(BEFORE_REPLY, LATE_WORD, REPLY), "delay: a domain_word (reply), 100 ms" },
    { "delayed_witness", WORD(BEFORE_DISPATCH, LATE_WORD, WITNESS), "delay: a witness, 100 ms" },
    { "delayed_combine", WORD(BEFORE_COLLECT, LATE_WORD, COMBINE), "delay: a combine signal, 100 ms" },
    { "duplicated_count_word", WORD(BEFORE_RECEIVE, SAME_WORD, COUNT), "duplicate: a count_word" },
    { "duplicated_finish_tail", WORD(BEFORE_RECEIVE, SAME_WORD, FINISH), "duplicate: a finish_tail" },
    { "duplicated_combine", WORD(BEFORE_COLLECT, SAME_WORD, COMBINE), "duplicate: a combine signal" },
    { "dropped_count_word", WORD(BEFORE_RECEIVE, OLD_WORD, COUNT, LATE("waited for the count word of rank")),
      "drop: a count_word, exchange 4" },
    { "dropped_finish_tail", WORD(BEFORE_RECEIVE, OLD_WORD, FINISH, LATE("waited for the finish tail of rank")),
      "drop: a finish_tail, exchange 4" },
    { "dropped_finish_tail_dense",
      WORD(BEFORE_RECEIVE, OLD_WORD, FINISH, LATE("waited for the finish tail of rank"), .dense = 1),
      "drop: a finish_tail, exchange 4, every toggle off" },
    { "dropped_finish_tail_replayed",
      WORD(BEFORE_RECEIVE, OLD_WORD, FINISH, LATE("waited for the finish tail of rank"), .recorded = 1),
      "drop: a finish_tail, exchange 4, all calls replayed" },
    { "dropped_forward_word", WORD(BEFORE_RECEIVE, OLD_WORD, FORWARD, LATE("waited for the forward word of rank 1")),
      "drop: a domain_word (forward), exchange 4" },
    { "dropped_reply_word", WORD(BEFORE_REPLY, OLD_WORD, REPLY, LATE("waited for the reply word of rank 1")),
      "drop: a domain_word (reply), exchange 4" },
    { "dropped_witness",
      WORD(BEFORE_DISPATCH, OLD_WORD, WITNESS, LATE("waited for the done witness of an earlier exchange of rank 0")),
      "drop: a witness, exchange 3" },
    { "dropped_combine", WORD(BEFORE_COLLECT, OLD_WORD, COMBINE, LATE("waited for the combine tail of rank 0")),
      "drop: a combine signal, exchange 4" },
    { "dropped_combine_dense",
      WORD(BEFORE_COLLECT, OLD_WORD, COMBINE, LATE("waited for the combine tail of rank 0"), .dense = 1),
      "drop: a combine signal, exchange 4, every toggle off" },
    { "dropped_rail_rows", WORD(BEFORE_RECEIVE, OLD_ROWS, FINISH, WRONG("is not there: its place holds")),
      "drop: all rows to a worker over its rail, exchange 4" },
    { "dropped_domain_rows", WORD(BEFORE_RECEIVE, OLD_ROWS, FORWARD, WRONG("rows, 0 are there")),
      "drop: all rows to a worker inside its domain, exchange 4" },
    { "dropped_partials", WORD(BEFORE_REPLY, OLD_ROWS, REPLY, WRONG("is not there: its place holds")),
      "drop: all partials to a worker, exchange 4" },
    { "dropped_reply_rows", WORD(BEFORE_COLLECT, OLD_ROWS, COMBINE, WRONG("is not there: its place holds")),
      "drop: all replies to a source, exchange 4" },
    { "corrupted_count_word", WORD(BEFORE_RECEIVE, FLIPPED_WORD, COUNT, .bit = 40, WRONG("the count word of rank")),
      "corrupt: bit 40 of a count_word, exchange 4" },
    { "corrupted_count", WORD(BEFORE_RECEIVE, FLIPPED_WORD, COUNT, .bit = 5, WRONG("more than the bucket here")),
      "corrupt: bit 5 of a count_word, exchange 4" },
    { "corrupted_finish_tail", WORD(BEFORE_RECEIVE, FLIPPED_WORD, FINISH, .bit = 40, WRONG("the finish tail of rank")),
      "corrupt: bit 40 of a finish_tail, exchange 4" },
    { "corrupted_row_tag",
      WORD(BEFORE_RECEIVE, FLIPPED_WORD, ROW_TAG, .bit = 0, WRONG("is not there: its place holds")),
      "corrupt: a dispatched row's exchange number, exchange 4" },
    { "corrupted_forward_word",
      WORD(BEFORE_RECEIVE, FLIPPED_WORD, FORWARD, .bit = 40, WRONG("the forward word of rank 1")),
      "corrupt: bit 40 of a domain_word (forward), exchange 4" },
    { "corrupted_forward_rows", WORD(BEFORE_RECEIVE, FLIPPED_WORD, FORWARD, .bit = 10, WRONG("rows, ")),
      "corrupt: bit 10 of a domain_word (forward), exchange 4" },
    { "corrupted_reply_word", WORD(BEFORE_REPLY, FLIPPED_WORD, REPLY, .bit = 0, WRONG("the reply word of rank 1")),
      "corrupt: bit 0 of a domain_word (reply), exchange 4" },
    { "corrupted_witness",
      WORD(BEFORE_DISPATCH, FLIPPED_WORD, WITNESS, .bit = 40, WRONG("the done witness of an earlier")),
      "corrupt: bit 40 of a witness, exchange 3" },
    { "corrupted_combine", WORD(BEFORE_COLLECT, FLIPPED_WORD, COMBINE, .bit = 40, WRONG("the combine tail of rank 0")),
      "corrupt: bit 40 of a combine signal, exchange 4" },
    { "corrupted_reply_tag",
      WORD(BEFORE_COLLECT, FLIPPED_WORD, REPLY_TAG, .bit = 0, WRONG("is not there: its place holds")),
      "corrupt: a reply row's exchange number, exchange 4" },
    /* Processes of their own, one per GPU: a death must not be of a process that shares one */
    { "killed_attention_rank", KILL(1, 1, 2, 1, 1, AFDEP_KILL_EXCHANGING) },
    { "killed_ffn_rank", KILL(1, 1, 2, 1, 0, AFDEP_KILL_EXCHANGING) },
    { "killed_attention_rank_across_domains", KILL(1, 1, 1, 1, 1, AFDEP_KILL_EXCHANGING) },
    { "killed_ffn_rank_across_domains", KILL(1, 1, 1, 1, 0, AFDEP_KILL_EXCHANGING) },
    { NULL, AFDEP_SUITE_FAULTS, NULL, NULL, 0, NULL },
};
