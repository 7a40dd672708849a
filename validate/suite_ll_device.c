/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph and faults of the low-latency API on the CUDA backend. graph: recorded halves are replayed with other contents.
 * faults: both halves of every exchange are split (hooks), and the ranks meet in between: then rank 0 changes its own
 * segment, which to its receiving kernel is a store that was lost, late, doubled or garbled on the way. Absorbed with
 * exact results, or a named error at every rank within the deadline.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/ll_device.h"
#include "protocol/word.h"
#include "validate/device_tap.h"
#include "validate/gpu.h"
#include "validate/ll_rig.h"
#include "validate/staged.h"
#include "validate/verdict.h"

#define EXCHANGES 6
#define FAULTY 3 /* the exchange that the fault is in, counted from 0 */
#define TOKENS 4
#define SHORT_MS 1000
#define LATE_MS 100
#define REPLAYS 20 /* of a recording */

/* What rank 0 finds changed, between the sending and the receiving half. */
typedef enum place {
    HEADER,
    ROUTE,
    ROWS,
    COMBINE_WORD,
    COMBINE_ROWS
} place_t;

typedef enum deed {
    OLD,     /* it is what it was an exchange of the plane ago */
    LATE,    /* the same, for a while (words) */
    SAME,    /* it is written once more (words) */
    FLIPPED, /* a bit of it is another (words) */
    STOPPED, /* no place: rank 0 sends nothing of this exchange before the others have given up */
    OTHER    /* no place: the last rank dispatches with another hidden */
} deed_t;

typedef struct ll_fault {
    place_t place;
    deed_t deed;
    int bit;
    afdep_status_t status; /* that a rank must end with, all others with some fatal one; OK: absorbed by all */
    const char *says;      /* in that rank's sentence */
} ll_fault_t;

typedef struct run {
    const afdep_validation_t *v;
    const ll_fault_t *f;
    afdep_ll_rig_t rig;
    afdep_tap_t tap;
    afdep_ll_device_layout_t layout;
    afdep_status_t status;
    char why[512];
    int64_t last_call_ms;
} run_t;

/* ---- Deeds ------------------------------------------------------------------------------------------------------- */

/* Where the place of exchange `n` (counted from 0) begins, of what the last rank sends to rank 0, and its bytes. */
static uint64_t place_of(const run_t *r, int n, uint64_t *bytes)
{
    const afdep_ll_device_layout_t *l = &r->layout;
    const afdep_ll_config_t *c = &r->rig.config;
    uint64_t plane = l->control_bytes + (uint64_t)(n % AFDEP_LL_PLANES) * l->plane_bytes,
             last = (uint64_t)r->rig.ranks - 1;
    uint64_t slot = last * (uint64_t)c->num_max_dispatch_tokens_per_rank;
    *bytes = sizeof(uint64_t);
    switch (r->f->place) {
    case HEADER: /* the number, and below it the format */
        return plane + l->headers + last * 16 * AFDEP_LL_HEADER_WORDS + 24;
    case ROUTE:
        return plane + l->routes + (slot + 1) * (uint64_t)c->num_topk * 8; /* of token 1, slot 0 */
    case ROWS:
        *bytes = (uint64_t)l->line_room * AFDEP_LINE_BYTES;
        return plane + l->lines + last * *bytes;
    case COMBINE_WORD:
        return plane + l->combine_words + last * 8;
    default:
        *bytes = (uint64_t)l->combine_room * AFDEP_LINE_BYTES;
        return plane + l->combine_lines;
    }
}

/* Nonzero: it could not be done. */
static int act(run_t *r, int n, afdep_tap_later_t **later)
{
    uint64_t bytes, at = place_of(r, n, &bytes), word = 0;
    if (r->f->deed == OLD)
        return afdep_tap_put_back_range(&r->tap, at, bytes);
    if (afdep_tap_read(&r->tap, at, &word) != 0)
        return -1;
    if (r->f->deed == FLIPPED)
        return afdep_tap_write(&r->tap, at, word ^ (uint64_t)1 << r->f->bit);
    if (r->f->deed == LATE && afdep_tap_put_back_range(&r->tap, at, bytes) != 0)
        return -1;
    *later = afdep_tap_write_later(&r->tap, at, word, LATE_MS);
    return *later ? 0 : -1;
}

/* ---- Exchanges in step ------------------------------------------------------------------------------------------- */

/* A wrong value is PROTOCOL from the checker, with nothing wrong at the buffer: told apart here. */
static void judge_call(run_t *r, afdep_status_t status, int64_t start)
{
    r->last_call_ms = afdep_verdict_now_ms() - start;
    r->status = status;
    if (status == AFDEP_OK)
        return;
    memcpy(r->why, r->rig.x[0].why, sizeof(r->why));
    if (afdep_ll_buffer_error(r->rig.buffer) == AFDEP_OK)
        r->status = AFDEP_ERR_ARGUMENT;
}

/* This rank's kernels are over. */
static int settle(void)
{
    cudaStream_t stream;
    if (afdep_gpu_take_stream(&stream) != 0)
        return -1;
    int failed = afdep_gpu_finish(stream);
    afdep_gpu_give_stream();
    return failed;
}

static int dispatches(const run_t *r)
{
    return r->f->place == HEADER || r->f->place == ROUTE || r->f->place == ROWS;
}

/* One half: it is sent, all meet, it is received. */
static void run_half(run_t *r, afdep_ll_plan_t *plan, int first, int n)
{
    afdep_ll_exchanger_t *x = &r->rig.x[0];
    int place = r->f->deed < STOPPED, faulty = n == FAULTY && place && r->v->world->rank == 0 && first == dispatches(r);
    int late = n == FAULTY && r->f->deed == STOPPED && r->v->world->rank == 0;
    afdep_tap_later_t *later = NULL;
    int64_t start = afdep_verdict_now_ms();
    if (r->status == AFDEP_OK && !late)
        judge_call(r,
                   first ? afdep_ll_begin_first(x, plan, r->rig.buffer) : afdep_ll_begin_second(x, plan, r->rig.buffer),
                   start);
    if (r->status == AFDEP_OK && settle() != 0)
        r->status = AFDEP_ERR_SYSTEM;
    afdep_world_barrier(r->v->world);
    if (faulty && r->status == AFDEP_OK && act(r, n, &later) != 0)
        r->status = AFDEP_ERR_SYSTEM;
    afdep_world_barrier(r->v->world);
    start = afdep_verdict_now_ms();
    if (r->status == AFDEP_OK && !late)
        judge_call(
            r, first ? afdep_ll_finish_first(x, plan, r->rig.buffer) : afdep_ll_finish_second(x, plan, r->rig.buffer),
            start);
    if (later && afdep_tap_wait(later) != 0 && r->status == AFDEP_OK)
        r->status = AFDEP_ERR_SYSTEM;
    afdep_world_barrier(r->v->world);
    start = afdep_verdict_now_ms();
    if (late && r->status == AFDEP_OK) /* it hears that the others gave up */
        judge_call(r, afdep_ll_begin_first(x, plan, r->rig.buffer), start);
    if (late && r->status == AFDEP_OK)
        judge_call(r, afdep_ll_finish_first(x, plan, r->rig.buffer), start);
}

static void exchange(run_t *r, int n)
{
    static const afdep_ll_format_t formats[] = { AFDEP_LL_BF16, AFDEP_LL_MXFP8, AFDEP_LL_INT8 };
    afdep_ll_rig_tokens(&r->rig, TOKENS);
    afdep_ll_plan_t plan = afdep_ll_rig_plain(&r->rig, formats[n % 3]);
    plan.dispatch = plan.combine = AFDEP_LL_BY_HOOK;
    if (n == FAULTY && r->f->deed == OTHER && r->v->world->rank == r->rig.ranks - 1)
        plan.hidden = r->rig.config.hidden / 2;
    /* What is taken here is what the plane's exchange before left. */
    if (n == FAULTY && r->status == AFDEP_OK && afdep_tap_take(&r->tap) != 0)
        r->status = AFDEP_ERR_SYSTEM;
    afdep_world_barrier(r->v->world);
    run_half(r, &plan, 1, n);
    run_half(r, &plan, 0, n);
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

typedef struct ended {
    afdep_status_t status;
    int says; /* the status that the case wants, with its words */
} ended_t;

static void judge(const run_t *r, afdep_outcome_t *outcome)
{
    const ll_fault_t *f = r->f;
    ended_t all[AFDEP_RIG_SOURCES],
        mine = { r->status, r->status == f->status && (!f->says || strstr(r->why, f->says)) };
    int size = r->v->world->size, fatal = 0, says = 0;
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
    else if (f->status != AFDEP_OK && !says)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no rank says %s with \"%s\"; this one says %s: %s",
                          afdep_status_string(f->status), f->says, afdep_status_string(r->status), r->why);
    else if (f->status != AFDEP_OK && r->last_call_ms > SHORT_MS + 1000)
        afdep_outcome_set(outcome, AFDEP_FAILED, "the failing call took %lld ms, with a deadline of %d",
                          (long long)r->last_call_ms, SHORT_MS);
}

/* A buffer that has failed says so at every call. */
static void judge_poisoned(run_t *r, afdep_outcome_t *outcome)
{
    afdep_status_t status = afdep_ll_buffer_error(r->rig.buffer);
    if (status != r->status)
        afdep_outcome_set(outcome, AFDEP_FAILED, "afterwards afdep_ll_buffer_error says %s, not %s",
                          afdep_status_string(status), afdep_status_string(r->status));
    afdep_ll_plan_t plan = afdep_ll_rig_plain(&r->rig, AFDEP_LL_BF16);
    status = afdep_ll_begin_first(&r->rig.x[0], &plan, r->rig.buffer);
    if (status != AFDEP_ERR_POISONED)
        afdep_outcome_set(outcome, AFDEP_FAILED, "the next call says %s: %s", afdep_status_string(status),
                          r->rig.x[0].why);
}

/* In the same processes, after whatever happened. */
static void exchange_afresh(const afdep_validation_t *v, afdep_outcome_t *outcome)
{
    afdep_ll_rig_plan_t plan = { .max_tokens = 8 };
    afdep_ll_rig_t rig;
    if (afdep_ll_rig_open(v, &plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 3; n++) {
        afdep_ll_rig_tokens(&rig, n + 1);
        afdep_ll_plan_t exchange_plan = afdep_ll_rig_plain(&rig, AFDEP_LL_FP8_TOKEN);
        if (afdep_ll_rig_exchange(&rig, &exchange_plan, outcome) != 0)
            break;
    }
    afdep_ll_rig_close(&rig, outcome);
}

/* ---- Cases with a tap -------------------------------------------------------------------------------------------- */

static void run_exchanges(run_t *r, afdep_outcome_t *outcome)
{
    const afdep_ll_config_t *c = &r->rig.config;
    afdep_ll_shape_t shape = { r->rig.ranks, c->num_max_dispatch_tokens_per_rank, c->hidden, c->num_topk,
                               c->num_experts };
    if (afdep_ll_device_layout_init(&r->layout, &shape) != 0 ||
        afdep_tap_connect_segment(&r->tap, r->layout.bytes) != 0) {
        r->status = AFDEP_ERR_SYSTEM;
        strcpy(r->why, "no memory for the tap");
    }
    for (int n = 0; n < EXCHANGES; n++) {
        exchange(r, n);
        outcome->exchanges += r->status == AFDEP_OK;
    }
    judge(r, outcome);
    if (afdep_status_is_fatal(r->status) && outcome->verdict == AFDEP_PASSED)
        judge_poisoned(r, outcome);
    afdep_tap_disconnect(&r->tap);
}

static void run_fault(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    run_t *r = calloc(1, sizeof(*r));
    afdep_validation_t faulty = *v;
    afdep_world_t world = *v->world;
    afdep_ll_rig_plan_t plan = { .max_tokens = 8 };
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
    if (outcome->verdict == AFDEP_PASSED && afdep_ll_rig_open(&faulty, &plan, &r->rig, outcome) == 0) {
        run_exchanges(r, outcome);
        afdep_outcome_t closing = { 0 };
        afdep_world_barrier(v->world); /* kernels are over everywhere */
        afdep_ll_rig_close(&r->rig, r->status == AFDEP_OK ? outcome : &closing);
    }
    afdep_group_destroy(&world.group);
    free(r);
    exchange_afresh(v, outcome);
}

/* ---- Routes ------------------------------------------------------------------------------------------------------ */

/* Turns the first choice of -1 into one that is taken as -1: outside the experts, or `repeated` of the same token. */
static int spoil_choice(afdep_ll_exchanger_t *x, int repeated, int *token, int *slot)
{
    int k = x->now.top_k;
    for (int i = 0; i < x->sent.tokens * k; i++) {
        int64_t *ids = x->ids + i / k * k;
        if (ids[i % k] != -1 || (repeated && (i % k == 0 || ids[i % k - 1] < 0)))
            continue;
        ids[i % k] = repeated ? ids[i % k - 1] : x->now.num_experts + (i % 2 ? 5 : INT64_C(1) << 40);
        *token = i / k;
        *slot = i % k;
        return 0;
    }
    return -1;
}

/* A call that must say ROUTE in one exchange and OK in all others. */
static void expect(afdep_status_t status, int route, const char *call, int n, afdep_outcome_t *outcome)
{
    if (status != (route ? AFDEP_ERR_ROUTE : AFDEP_OK))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s %d says %s: %s", call, n, afdep_status_string(status),
                          afdep_staged_why());
}

/* The query says it, the next dispatch says it once and goes on, and every value is as if the choice were -1. */
static void check_route(afdep_ll_rig_t *rig, int repeated, int n, afdep_outcome_t *outcome)
{
    afdep_ll_exchanger_t *x = &rig->x[0];
    afdep_ll_plan_t plan = afdep_ll_rig_plain(rig, AFDEP_LL_BF16);
    int bad = n == 1, token = -1, slot = -1;
    char place[64];
    plan.inactive_percent = 40;
    afdep_ll_prepare_dispatch(x, &plan);
    if (bad && spoil_choice(x, repeated, &token, &slot) != 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no choice to spoil");
    expect(afdep_ll_staged_dispatch(x->staged, rig->buffer, &x->dispatch), n == 2, "dispatch", n, outcome);
    expect(afdep_ll_staged_received(x->staged, rig->buffer, &x->dispatch), bad, "after dispatch", n, outcome);
    snprintf(place, sizeof(place), "token %d, slot %d", token, slot);
    if (bad && (!strstr(afdep_last_error(), place) || !strstr(afdep_last_error(), repeated ? "repeated" : "outside")))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s is not in: %s", place, afdep_last_error());
    afdep_status_t status = afdep_ll_judge_dispatch(x, &plan);
    afdep_ll_prepare_combine(x, &plan, rig->buffer);
    expect(afdep_ll_staged_combine(x->staged, rig->buffer, &x->combine), 0, "combine", n, outcome);
    expect(afdep_ll_staged_summed(x->staged, rig->buffer, &x->combine, x->out), bad, "after combine", n, outcome);
    if (status != AFDEP_OK || afdep_ll_judge_combine(x, &plan) != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "exchange %d: %s", n, x->why);
}

static void run_route(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_ll_rig_plan_t rig_plan = { 0 };
    afdep_ll_rig_t rig;
    if (afdep_ll_rig_open(v, &rig_plan, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 4; n++) {
        afdep_ll_rig_tokens(&rig, 12);
        check_route(&rig, *(const int *)c->argument, n, outcome);
    }
    outcome->exchanges = 4;
    afdep_ll_rig_close(&rig, outcome);
}

/* ---- Recorded exchanges ------------------------------------------------------------------------------------------ */

typedef struct replayed {
    afdep_ll_rig_plan_t rig;
    afdep_ll_format_t format;
    int tokens;
} replayed_t;

/* One exchange of the recordings, with payload, choices and weights that they have not seen. */
static int replay(afdep_ll_rig_t *rig, afdep_ll_format_t format, int n, afdep_outcome_t *outcome)
{
    afdep_ll_exchanger_t *x = &rig->x[0];
    afdep_ll_plan_t plan = afdep_ll_rig_plain(rig, format);
    plan.inactive_percent = n % 3 * 30;
    afdep_ll_prepare_dispatch(x, &plan);
    x->dispatch.resolved = format;
    afdep_status_t status = afdep_ll_staged_redispatch(x->staged, &x->dispatch);
    if (status == AFDEP_OK)
        status = afdep_ll_staged_received(x->staged, rig->buffer, &x->dispatch);
    if (status == AFDEP_OK && (status = afdep_ll_judge_dispatch(x, &plan)) == AFDEP_OK) {
        afdep_ll_prepare_combine(x, &plan, rig->buffer);
        status = afdep_ll_staged_recombine(x->staged, &x->combine);
        if (status == AFDEP_OK)
            status = afdep_ll_staged_summed(x->staged, rig->buffer, &x->combine, x->out);
        if (status == AFDEP_OK)
            status = afdep_ll_judge_combine(x, &plan);
    }
    if (status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "replay %d: %s: %s, or %s", n, afdep_status_string(status), x->why,
                          afdep_staged_why());
    outcome->graph_exchanges += status == AFDEP_OK;
    return status != AFDEP_OK;
}

static void run_recorded(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const replayed_t *p = c->argument;
    afdep_ll_rig_t rig;
    if (afdep_ll_rig_open(v, &p->rig, &rig, outcome) != 0)
        return;
    afdep_ll_rig_tokens(&rig, p->tokens);
    afdep_ll_plan_t plan = afdep_ll_rig_plain(&rig, p->format);
    int failed = afdep_ll_rig_exchange(&rig, &plan, outcome);
    if (!failed && afdep_ll_staged_record_halves(rig.x[0].staged, rig.buffer) != AFDEP_OK) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "recording: %s", afdep_staged_why());
        failed = 1;
    }
    for (int n = 0; n < REPLAYS && !failed; n++)
        failed = replay(&rig, p->format, n, outcome);
    afdep_ll_rig_close(&rig, outcome);
}

#define RECORDED(...) AFDEP_SUITE_GRAPH, run_recorded, &(const replayed_t){ __VA_ARGS__ }, 0, NULL
#define MANY .rig = { .max_tokens = 128, .hidden = 7168, .top_k = 8 }, .tokens = 128

const afdep_case_t afdep_cases_ll_device_graph[] = {
    { "recorded_bf16", RECORDED(.format = AFDEP_LL_BF16, .tokens = 5) },
    { "recorded_int8", RECORDED(.format = AFDEP_LL_INT8, .tokens = 5) },
    { "recorded_mxfp8", RECORDED(.format = AFDEP_LL_MXFP8, .tokens = 5) },
    { "recorded_one_token", RECORDED(.rig = { .max_tokens = 1 }, .format = AFDEP_LL_FP8_TOKEN, .tokens = 1) },
    { "recorded_no_token", RECORDED(.format = AFDEP_LL_BF16, .tokens = 0) },
    { "recorded_many_bf16", RECORDED(MANY, .format = AFDEP_LL_BF16) },
    { "recorded_many_fp8_token", RECORDED(MANY, .format = AFDEP_LL_FP8_TOKEN) },
    { NULL, AFDEP_SUITE_GRAPH, NULL, NULL, 0, NULL },
};

#define FAULT(...) AFDEP_SUITE_FAULTS, run_fault, &(const ll_fault_t){ __VA_ARGS__ }, 0
#define MISSED(words) .status = AFDEP_ERR_TIMEOUT, .says = words
#define WRONG(words) .status = AFDEP_ERR_PROTOCOL, .says = words
static const int outside = 0, repeated = 1;

const afdep_case_t afdep_cases_ll_device_faults[] = {
    { "route_outside", AFDEP_SUITE_FAULTS, run_route, &outside, 0, "a choice outside the experts" },
    { "route_repeated", AFDEP_SUITE_FAULTS, run_route, &repeated, 0, "a choice that the token has already" },
    { "delayed_header", FAULT(.place = HEADER, .deed = LATE), "delay: a header, 100 ms" },
    { "delayed_route_word", FAULT(.place = ROUTE, .deed = LATE), "delay: a route word, 100 ms" },
    { "delayed_combine_word", FAULT(.place = COMBINE_WORD, .deed = LATE), "delay: a combine word, 100 ms" },
    { "duplicated_route_word", FAULT(.place = ROUTE, .deed = SAME), "duplicate: a route word" },
    { "duplicated_combine_word", FAULT(.place = COMBINE_WORD, .deed = SAME), "duplicate: a combine word" },
    { "stopped_rank", FAULT(.place = HEADER, .deed = STOPPED, MISSED("waited for the header of rank 0")),
      "stall: a rank, exchange 4" },
    { "dropped_header", FAULT(.place = HEADER, .deed = OLD, MISSED("waited for the header of rank")),
      "drop: a header, exchange 4" },
    { "dropped_route_word",
      FAULT(.place = ROUTE, .deed = OLD, MISSED("token 1, slot 0 waited for the route word of rank")),
      "drop: a route word, exchange 4" },
    { "dropped_rows", FAULT(.place = ROWS, .deed = OLD, MISSED("in ll_dispatch of exchange 4")),
      "drop: all rows of a rank, exchange 4" },
    { "dropped_combine_rows", FAULT(.place = COMBINE_ROWS, .deed = OLD, MISSED("in ll_combine of exchange 4")),
      "drop: all combine rows, exchange 4" },
    { "dropped_combine_word", FAULT(.place = COMBINE_WORD, .deed = OLD, MISSED("waited for the answer")),
      "drop: a combine word, exchange 4" },
    { "corrupted_header", FAULT(.place = HEADER, .deed = FLIPPED, .bit = 1, WRONG("dispatched with format")),
      "corrupt: bit 1 of a header's format" },
    { "corrupted_route_word",
      FAULT(.place = ROUTE, .deed = FLIPPED, .bit = 40, MISSED("token 1, slot 0 waited for the route word")),
      "corrupt: bit 40 of a route word, exchange 4" },
    { "another_hidden", FAULT(.place = HEADER, .deed = OTHER, WRONG("dispatched with hidden")),
      "a rank dispatches another hidden size" },
    { NULL, AFDEP_SUITE_FAULTS, NULL, NULL, 0, NULL },
};
