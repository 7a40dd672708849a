/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults on the CUDA backend: what is done to a rank's segment or calls, and what must come of it: absorbed with exact
 * results, or a named error at every rank within the deadline; then a buffer that refuses, and a process that goes on with
 * a fresh one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "protocol/word.h"
#include "validate/child.h"
#include "validate/device_tap.h"
#include "validate/gpu.h"
#include "validate/rig.h"

#define EXCHANGES 6
#define FAULTY 3 /* the exchange that the fault is in, counted from 0 */
#define TOKENS 4
#define SHORT_MS 1000
#define LATE_MS 100
#define TOKEN 1 /* whose word it is, of the first source, where one word is meant */

/* Which rank acts, just before which of its calls: the first source or the first worker. */
typedef enum moment { BEFORE_DISPATCH, BEFORE_RECEIVE, BEFORE_REPLY, BEFORE_COLLECT } moment_t;

typedef enum deed {
    LATE_CALL,     /* it comes late */
    SLOW_STREAM,   /* its stream is busy when the call's kernel is launched */
    STOPPED,       /* it does not come before all others are through with the exchange */
    OTHER_BUCKET,  /* with another bucket than the others */
    OLD_WORD,      /* a word is what it was an exchange ago */
    LATE_WORD,     /* the same, for a while */
    SAME_WORD,     /* a word is written once more */
    FLIPPED_WORD,  /* a bit of it is another */
    OLD_ROWS       /* everything but the words is what it was an exchange ago */
} deed_t;

typedef struct device_fault {
    moment_t moment;
    deed_t deed;
    int bit;
    afdep_status_t status; /* that a rank must end with, all others with some fatal one; OK: absorbed by all */
    const char *says;      /* in that rank's sentence */
    int recorded;          /* calls are replayed recordings */
} device_fault_t;

typedef struct run {
    const afdep_validation_t *v;
    const device_fault_t *f;
    afdep_rig_t rig;
    afdep_tap_t tap;
    int acts; /* this rank is the one that does it */
    afdep_status_t status;
    char why[512];
    int64_t last_call_ms;
} run_t;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void pause_ms(int ms)
{
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

/* ---- Deeds ------------------------------------------------------------------------------------------------------ */

static void CUDART_CB keep_busy(void *argument)
{
    (void)argument;
    pause_ms(LATE_MS);
}

static int occupy_stream(void)
{
    cudaStream_t stream;
    if (afdep_gpu_take_stream(&stream) != 0)
        return -1;
    int failed = afdep_gpu_failed(cudaLaunchHostFunc(stream, keep_busy, NULL), "occupying the stream");
    afdep_gpu_give_stream();
    return failed;
}

/* The word that is meant, and what it was an exchange ago. */
static uint64_t word_place(const run_t *r)
{
    return r->f->moment == BEFORE_RECEIVE ? afdep_tap_route(&r->tap, 0, TOKEN, 0) : afdep_tap_answer(&r->tap, 0);
}

static uint64_t old_word(const run_t *r)
{
    /* Before dispatch n+1 the answer to n stands there; what was taken is one exchange older, as routes are. */
    return r->f->moment == BEFORE_RECEIVE ? afdep_tap_taken(&r->tap, word_place(r)) : afdep_word(FAULTY - 1, 0);
}

/* Changes the segment as the fault says; *later: what changes it back. Nonzero: it could not. */
static int act(run_t *r, afdep_tap_later_t **later)
{
    uint64_t at = word_place(r), word = 0;
    switch (r->f->deed) {
    case LATE_CALL:
        pause_ms(LATE_MS);
        return 0;
    case SLOW_STREAM:
        return occupy_stream();
    case OLD_ROWS:
        return afdep_tap_put_back(&r->tap);
    case STOPPED:
    case OTHER_BUCKET:
        return 0; /* not the segment's */
    default:
        break;
    }
    if (afdep_tap_read(&r->tap, at, &word) != 0)
        return -1;
    if (r->f->deed == FLIPPED_WORD)
        return afdep_tap_write(&r->tap, at, word ^ (uint64_t)1 << r->f->bit);
    if (r->f->deed != SAME_WORD && afdep_tap_write(&r->tap, at, old_word(r)) != 0)
        return -1;
    if (r->f->deed == OLD_WORD)
        return 0;
    *later = afdep_tap_write_later(&r->tap, at, word, LATE_MS);
    return *later ? 0 : -1;
}

/* ---- Exchanges in step ---------------------------------------------------------------------------------------- */

/* One call of this rank: its deed where it is the one, then the call. */
static void call(run_t *r, afdep_exchange_plan_t *plan, moment_t moment, int n)
{
    int faulty = n == FAULTY && r->acts && r->f->moment == moment, first = moment <= BEFORE_RECEIVE;
    afdep_tap_later_t *later = NULL;
    if (r->status != AFDEP_OK)
        return;
    if (faulty && act(r, &later) != 0) {
        r->status = AFDEP_ERR_SYSTEM;
        snprintf(r->why, sizeof(r->why), "the fault could not be made: %s", afdep_gpu_why());
        return;
    }
    if (faulty && r->f->deed == OTHER_BUCKET)
        plan->bucket--;
    int64_t start = now_ms();
    r->status = first ? afdep_exchanger_first(&r->rig.x[0], plan) : afdep_exchanger_second(&r->rig.x[0], plan);
    r->last_call_ms = now_ms() - start;
    if (later && afdep_tap_wait(later) != 0 && r->status == AFDEP_OK)
        r->status = AFDEP_ERR_SYSTEM;
    if (r->status == AFDEP_OK)
        return;
    snprintf(r->why, sizeof(r->why), "exchange %d: %s", n, r->rig.x[0].why);
    if (afdep_buffer_error(r->rig.buffer) == AFDEP_OK)
        r->status = AFDEP_ERR_ARGUMENT; /* the library is content, the oracle is not */
}

/* Where ranks go in step they meet between calls, so that which wait is the first to end is no matter of luck. */
static void meet(const run_t *r)
{
    if (r->f->deed > SLOW_STREAM)
        afdep_world_barrier(r->v->world);
}

static void exchange(run_t *r, int n)
{
    afdep_rig_tokens(&r->rig, TOKENS);
    afdep_exchange_plan_t plan = afdep_rig_plain(&r->rig);
    int late = n == FAULTY && r->acts && r->f->deed == STOPPED, ffn = r->rig.v->world->rank < r->rig.scenario.ffn_ranks;
    moment_t first = ffn ? BEFORE_RECEIVE : BEFORE_DISPATCH, second = ffn ? BEFORE_REPLY : BEFORE_COLLECT;
    meet(r); /* nobody stores from here on, ... */
    if (n == FAULTY && r->f->deed > SLOW_STREAM && afdep_tap_take(&r->tap) != 0 && r->status == AFDEP_OK)
        r->status = AFDEP_ERR_SYSTEM;
    meet(r); /* ... to here */
    if (!ffn && !late)
        call(r, &plan, first, n);
    meet(r); /* what was dispatched is there */
    if (ffn && !late) {
        call(r, &plan, first, n);
        call(r, &plan, second, n);
    }
    meet(r); /* what was replied is there */
    if (!ffn && !late)
        call(r, &plan, second, n);
    meet(r);
    if (late) {
        call(r, &plan, first, n);
        call(r, &plan, second, n);
    }
}

/* ---- Judging ------------------------------------------------------------------------------------------------------ */

/* How a rank's exchanges ended. Gathered from all. */
typedef struct ended {
    afdep_status_t status;
    int says; /* the status that the case wants, with its words */
} ended_t;

static void judge(const run_t *r, afdep_outcome_t *outcome)
{
    const device_fault_t *f = r->f;
    ended_t all[AFDEP_RIG_SOURCES], mine = { r->status, 0 };
    int size = r->v->world->size, fatal = 0, says = 0;
    /* The rank that met the fault says what it was (or, where one stopped, any that waited for it); the others, in step
       behind it, have only heard. */
    mine.says = r->status == f->status && (!f->says || strstr(r->why, f->says));
    afdep_world_allgather(r->v->world, &mine, all, sizeof(mine));
    for (int rank = 0; rank < size; rank++) {
        fatal += afdep_status_is_fatal(all[rank].status);
        says += all[rank].says;
    }
    if (r->status != AFDEP_OK && (!afdep_status_is_fatal(r->status) || r->status == AFDEP_ERR_SYSTEM))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s: %s", afdep_status_string(r->status), r->why);
    else if (f->status == AFDEP_OK && r->status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "was not absorbed: %s: %s", afdep_status_string(r->status), r->why);
    else if (f->status != AFDEP_OK && fatal < size)
        afdep_outcome_set(outcome, AFDEP_FAILED, "only %d of %d ranks were told", fatal, size);
    else if (f->status != AFDEP_OK && r->status != AFDEP_ERR_PEER && (f->deed == STOPPED ? r->acts : !r->acts))
        afdep_outcome_set(outcome, AFDEP_FAILED, "a rank that only heard of it says %s: %s", afdep_status_string(r->status),
                          r->why);
    else if (f->status != AFDEP_OK && !says)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no rank says %s with \"%s\"; this one says %s: %s",
                          afdep_status_string(f->status), f->says, afdep_status_string(r->status), r->why);
    else if (f->status != AFDEP_OK && r->last_call_ms > r->rig.config.timeout_ms + 1000)
        afdep_outcome_set(outcome, AFDEP_FAILED, "the failing call took %lld ms, with a deadline of %d",
                          (long long)r->last_call_ms, r->rig.config.timeout_ms);
}

/* A buffer that has failed says so at every call, and its recordings leave at once. */
static void judge_poisoned(run_t *r, afdep_outcome_t *outcome)
{
    char first[512];
    afdep_status_t status = afdep_buffer_error(r->rig.buffer);
    snprintf(first, sizeof(first), "%s", afdep_last_error());
    if (status != r->status)
        afdep_outcome_set(outcome, AFDEP_FAILED, "afterwards afdep_buffer_error says %s, not %s",
                          afdep_status_string(status), afdep_status_string(r->status));
    afdep_exchange_plan_t plan = afdep_rig_plain(&r->rig);
    int64_t start = now_ms();
    status = afdep_exchanger_first(&r->rig.x[0], &plan);
    /* A replayed recording makes no call that could refuse: the query says what happened. */
    afdep_status_t wanted = r->f->recorded ? r->status : AFDEP_ERR_POISONED;
    if (status != wanted || !strstr(r->rig.x[0].why, first))
        afdep_outcome_set(outcome, AFDEP_FAILED, "the next call says %s: %s", afdep_status_string(status), r->rig.x[0].why);
    else if (now_ms() - start > r->rig.config.timeout_ms / 2)
        afdep_outcome_set(outcome, AFDEP_FAILED, "the next call took %lld ms", (long long)(now_ms() - start));
    if (afdep_gpu_failed(cudaDeviceSynchronize(), "CUDA does not go on"))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s", afdep_gpu_why());
}

/* In the same processes, after whatever happened. */
static void exchange_afresh(const afdep_validation_t *v, afdep_outcome_t *outcome)
{
    afdep_rig_plan_t plan = { .capacity = 8 };
    afdep_rig_t rig;
    if (afdep_rig_open(v, &plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 3; n++) {
        afdep_rig_tokens(&rig, n + 1);
        afdep_exchange_plan_t exchange_plan = afdep_rig_plain(&rig);
        if (afdep_rig_exchange(&rig, &exchange_plan, outcome) != 0)
            break;
    }
    afdep_rig_close(&rig, outcome);
}

/* ---- Cases with a tap --------------------------------------------------------------------------------------------- */

static int record_calls(run_t *r)
{
    afdep_rig_tokens(&r->rig, TOKENS);
    afdep_exchange_plan_t plan = { .bucket = TOKENS, .tokens = r->rig.tokens };
    afdep_exchanger_t *x = &r->rig.x[0];
    afdep_exchanger_prepare_first(x, &plan);
    afdep_exchanger_prepare_second(x, &plan);
    afdep_staged_calls_t calls = { &x->dispatch, &x->collect, &x->receive, 0 };
    return afdep_staged_record_calls(x->staged, r->rig.buffer, &calls) == AFDEP_OK ? 0 : -1;
}

static void run_exchanges(run_t *r, afdep_outcome_t *outcome)
{
    const afdep_scenario_t *s = &r->rig.scenario;
    r->acts = r->v->world->rank ==
              (r->f->moment == BEFORE_RECEIVE || r->f->moment == BEFORE_REPLY ? 0 : s->ffn_ranks);
    if (afdep_tap_connect(&r->tap, &r->rig) != 0 || (r->f->recorded && record_calls(r) != 0)) {
        r->status = AFDEP_ERR_SYSTEM;
        snprintf(r->why, sizeof(r->why), "no memory for the tap or the recordings");
    }
    afdep_rig_settle(&r->rig);
    for (int n = 0; n < EXCHANGES; n++) {
        exchange(r, n);
        outcome->exchanges += r->status == AFDEP_OK;
        outcome->graph_exchanges += r->status == AFDEP_OK && r->f->recorded;
    }
    judge(r, outcome);
    afdep_rig_settle(&r->rig);
    if (afdep_status_is_fatal(r->status) && outcome->verdict == AFDEP_PASSED)
        judge_poisoned(r, outcome);
    afdep_tap_disconnect(&r->tap);
}

static void run_device_fault(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    run_t *r = calloc(1, sizeof(*r));
    afdep_validation_t faulty = *v;
    afdep_world_t world = *v->world;
    afdep_rig_plan_t plan = { .capacity = 8 };
    if (v->scenario->ranks_per_domain != afdep_scenario_ranks(v->scenario)) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "across domains the words stand elsewhere");
        free(r);
        return;
    }
    if (!r || afdep_world_group(v->world, &world.group) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "no memory, or no group: %s", afdep_last_error());
        free(r);
        return;
    }
    r->v = &faulty;
    r->f = c->argument;
    faulty.world = &world;
    faulty.timeout_ms = r->f->status == AFDEP_OK ? v->timeout_ms : SHORT_MS;
    if (afdep_tap_init(&r->tap, v->fabric) != 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "there is no device fabric \"%s\"", v->fabric);
    world.group.fabrics = &r->tap.provider.super;
    if (outcome->verdict == AFDEP_PASSED && afdep_rig_open(&faulty, &plan, &r->rig, outcome) == 0) {
        run_exchanges(r, outcome);
        afdep_outcome_t closing = { 0 };
        afdep_rig_close(&r->rig, r->status == AFDEP_OK ? outcome : &closing);
    }
    afdep_group_destroy(&world.group);
    free(r);
    exchange_afresh(v, outcome);
}

/* ---- Routes ------------------------------------------------------------------------------------------------------- */

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
static void check_route(run_t *r, afdep_exchange_plan_t *plan, int repeated, int n, afdep_outcome_t *outcome)
{
    afdep_exchanger_t *x = &r->rig.x[0];
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
    status = afdep_buffer_error(r->rig.buffer);
    char place[64];
    snprintf(place, sizeof(place), "token %d, slot %d", token, slot);
    if (status != (bad ? AFDEP_ERR_ROUTE : AFDEP_OK))
        afdep_outcome_set(outcome, AFDEP_FAILED, "after exchange %d afdep_buffer_error says %s", n,
                          afdep_status_string(status));
    else if (bad && (!strstr(afdep_last_error(), place) || !strstr(afdep_last_error(), repeated ? "repeated" : "outside")))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s is not in: %s", place, afdep_last_error());
}

static void run_route(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    int repeated = *(const int *)c->argument;
    afdep_rig_plan_t plan = { .capacity = 16 };
    run_t *r = calloc(1, sizeof(*r));
    if (!r || afdep_rig_open(v, &plan, &r->rig, outcome) != 0) {
        free(r);
        return;
    }
    for (int n = 0; n < 4; n++) {
        afdep_rig_tokens(&r->rig, 12);
        afdep_exchange_plan_t exchange_plan = afdep_rig_plain(&r->rig);
        exchange_plan.inactive_percent = 40;
        if (r->rig.v->world->rank < r->rig.scenario.ffn_ranks)
            (void)afdep_rig_exchange(&r->rig, &exchange_plan, outcome);
        else
            check_route(r, &exchange_plan, repeated, n, outcome);
    }
    outcome->exchanges = 4;
    afdep_rig_close(&r->rig, outcome);
    free(r);
}

/* ---- Captures ------------------------------------------------------------------------------------------------------ */

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
            afdep_outcome_set(outcome, AFDEP_FAILED, "read_host_counts in a capture: %s: %s", afdep_status_string(status),
                              afdep_last_error());
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

/* ---- The tables ---------------------------------------------------------------------------------------------------- */

#define FAULT(m, d, ...)                                                                                              \
    AFDEP_SUITE_FAULTS, run_device_fault, &(const device_fault_t){ .moment = m, .deed = d, __VA_ARGS__ }, 0
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
    { "delayed_route_word", FAULT(BEFORE_RECEIVE, LATE_WORD), "delay: a route word, 100 ms" },
    { "delayed_answer", FAULT(BEFORE_DISPATCH, LATE_WORD), "delay: an answer, 100 ms" },
    { "duplicated_route_word", FAULT(BEFORE_RECEIVE, SAME_WORD), "duplicate: a route word" },
    { "stopped_source", FAULT(BEFORE_DISPATCH, STOPPED, LATE("waited for the route word of rank")),
      "stall: a source, exchange 4" },
    { "stopped_worker", FAULT(BEFORE_RECEIVE, STOPPED, LATE("of rank 0, which holds")),
      "stall: a worker, exchange 4" },
    { "stopped_source_replayed",
      FAULT(BEFORE_DISPATCH, STOPPED, LATE("waited for the route word of rank"), .recorded = 1),
      "stall: a source, exchange 4, all calls replayed" },
    { "dropped_route_word",
      FAULT(BEFORE_RECEIVE, OLD_WORD, LATE("token 1, slot 0 waited for the route word of rank")),
      "drop: a route word, exchange 4" },
    { "dropped_rows", FAULT(BEFORE_RECEIVE, OLD_ROWS, LATE("in worker_receive of exchange 4")),
      "drop: all rows to a worker, exchange 4" },
    { "dropped_replies", FAULT(BEFORE_COLLECT, OLD_ROWS, LATE("in source_collect of exchange 4")),
      "drop: all replies to a source, exchange 4" },
    { "dropped_answer",
      FAULT(BEFORE_DISPATCH, OLD_WORD, LATE("waited for the answer to an earlier exchange of rank 0")),
      "drop: an answer, exchange 3" },
    { "corrupted_route_word",
      FAULT(BEFORE_RECEIVE, FLIPPED_WORD, .bit = 40, WRONG("token 1, slot 0: the route word of rank")),
      "corrupt: bit 40 of a route word, exchange 4" },
    { "corrupted_bucket", FAULT(BEFORE_RECEIVE, FLIPPED_WORD, .bit = 25, WRONG("bucket")),
      "corrupt: bit 25 of a route word, exchange 4" },
    { "other_bucket", FAULT(BEFORE_RECEIVE, OTHER_BUCKET, WRONG("bucket")),
      "a worker's bucket is smaller" },
    { "killed_attention_rank", KILL(1, 1, 2, 1, 1, AFDEP_KILL_EXCHANGING) },
    { "killed_ffn_rank", KILL(1, 1, 2, 1, 0, AFDEP_KILL_EXCHANGING) },
    { NULL, AFDEP_SUITE_FAULTS, NULL, NULL, 0, NULL },
};
