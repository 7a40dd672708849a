/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges with one fault in one of them, and the judgement. */
#include "validate/device_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "protocol/word.h"
#include "validate/gpu.h"

#define EXCHANGES 6
#define FAULTY 3 /* the exchange that the fault is in, counted from 0 */
#define TOKENS 4
#define SHORT_MS 1000
#define LATE_MS 100
#define AFTER_MS 300 /* by how much ranks that are to wait last come later */

typedef struct run {
    const afdep_validation_t *v;
    const afdep_device_fault_t *f;
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

static uint64_t word_place(const run_t *r)
{
    return afdep_tap_place(&r->tap, r->f->word, FAULTY + 1);
}

/* What the word that is meant was an exchange ago. */
static uint64_t old_word(const run_t *r)
{
    /* Before dispatch n+1 the answer to n stands there; what was taken is one exchange older, as all others are. */
    return r->f->moment == BEFORE_DISPATCH ? afdep_word(FAULTY - 1, 0) : afdep_tap_taken(&r->tap, word_place(r));
}

/* Until this exchange's word is there: words of the domain come while the others' calls run. */
static int await_word(run_t *r, uint64_t *word)
{
    for (int64_t start = now_ms(); now_ms() - start < SHORT_MS;) {
        if (afdep_tap_read(&r->tap, word_place(r), word) != 0)
            return -1;
        if (r->f->moment == BEFORE_DISPATCH || *word != afdep_tap_taken(&r->tap, word_place(r)))
            return 0;
    }
    afdep_gpu_say("the word that was to be changed did not come");
    return -1;
}

/* Changes the segment as the fault says; *later: what changes it back. Nonzero: it could not. */
static int act(run_t *r, afdep_tap_later_t **later)
{
    uint64_t word = 0;
    if (r->f->deed == LATE_CALL)
        pause_ms(LATE_MS);
    if (r->f->deed == SLOW_STREAM)
        return occupy_stream();
    if (r->f->word == AFDEP_TAP_NONE)
        return 0;
    if (await_word(r, &word) != 0)
        return -1;
    uint64_t at = word_place(r);
    if (r->f->deed == OLD_ROWS)
        return afdep_tap_put_back(&r->tap, r->f->word);
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

/* FFN ranks of a domain wait for each other. The one whose word is not what it should be must be the first to wait, and
   so the first to name it: the others come later to the call in which they wait for it. */
static int comes_after_the_one(const run_t *r, afdep_moment_t moment)
{
    int domain_word = r->f->word == AFDEP_TAP_FORWARD; /* another FFN rank's: it has to have come */
    return !r->acts && r->tap.shape.protocol != AFDEP_PROTOCOL_DIRECT && r->f->status != AFDEP_OK &&
           r->f->deed > STOPPED && r->f->moment == BEFORE_RECEIVE &&
           moment == (domain_word ? BEFORE_REPLY : BEFORE_RECEIVE);
}

/* One call of this rank: its deed where it is the one, then the call. */
static void call(run_t *r, afdep_exchange_plan_t *plan, afdep_moment_t moment, int n)
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
    if (faulty && r->f->deed == CACHED) {
        plan->cached = 1;
        plan->routing = plan->number - 1;
    }
    if (n == FAULTY && comes_after_the_one(r, moment))
        pause_ms(AFTER_MS);
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
    afdep_moment_t first = ffn ? BEFORE_RECEIVE : BEFORE_DISPATCH, second = ffn ? BEFORE_REPLY : BEFORE_COLLECT;
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

/* ---- Judging ------------------------------------------------------------------------------------------------- */

/* How a rank's exchanges ended. Gathered from all. */
typedef struct ended {
    afdep_status_t status;
    int says; /* the status that the case wants, with its words */
} ended_t;

/* Whether this rank cannot have found the fault by itself: some ranks' wrong words and calls only others find. */
static int only_heard(const run_t *r)
{
    if (r->f->deed == CACHED && r->f->moment == BEFORE_DISPATCH)
        return r->v->world->rank >= r->rig.scenario.ffn_ranks;
    return r->f->deed == STOPPED ? r->acts : !r->acts;
}

static void judge(const run_t *r, afdep_outcome_t *outcome)
{
    const afdep_device_fault_t *f = r->f;
    ended_t all[AFDEP_RIG_SOURCES], mine = { r->status, 0 };
    int size = r->v->world->size, fatal = 0, says = 0, untold = 0;
    const char *says_what = f->says_across && r->tap.shape.protocol != AFDEP_PROTOCOL_DIRECT ? f->says_across : f->says;
    /* The rank that met the fault says what it was (or, where one stopped, any that waited for it); the others, in step
       behind it, have only heard. */
    mine.says = r->status == f->status && (!says_what || strstr(r->why, says_what));
    afdep_world_allgather(r->v->world, &mine, all, sizeof(mine));
    for (int rank = 0; rank < size; rank++) {
        fatal += afdep_status_is_fatal(all[rank].status);
        untold = afdep_status_is_fatal(all[rank].status) ? untold : rank;
        says += all[rank].says;
    }
    if (r->status != AFDEP_OK && (!afdep_status_is_fatal(r->status) || r->status == AFDEP_ERR_SYSTEM))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s: %s", afdep_status_string(r->status), r->why);
    else if (f->status == AFDEP_OK && r->status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "was not absorbed: %s: %s", afdep_status_string(r->status), r->why);
    else if (f->status != AFDEP_OK && fatal < size)
        afdep_outcome_set(outcome, AFDEP_FAILED, "only %d of %d ranks were told: rank %d ended with %s", fatal, size,
                          untold, afdep_status_string(all[untold].status));
    else if (f->status != AFDEP_OK && r->status != AFDEP_ERR_PEER && only_heard(r))
        afdep_outcome_set(outcome, AFDEP_FAILED, "a rank that only heard of it says %s: %s",
                          afdep_status_string(r->status), r->why);
    else if (f->status != AFDEP_OK && !says)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no rank says %s with \"%s\"; this one says %s: %s",
                          afdep_status_string(f->status), says_what, afdep_status_string(r->status), r->why);
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
        afdep_outcome_set(outcome, AFDEP_FAILED, "the next call says %s: %s", afdep_status_string(status),
                          r->rig.x[0].why);
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

/* ---- Cases with a tap ---------------------------------------------------------------------------------------- */

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

/* Why a case is not of this scenario; NULL: it is. */
static const char *other_words(const afdep_device_fault_t *f, const afdep_scenario_t *s)
{
    int direct = s->ranks_per_domain == afdep_scenario_ranks(s);
    if (f->word == AFDEP_TAP_NONE)
        return NULL;
    if (direct != (f->word <= AFDEP_TAP_ANSWER))
        return direct ? "one domain has no such words" : "across domains there are no such words";
    if (s->ranks_per_domain == 1 && (f->word == AFDEP_TAP_FORWARD || f->word == AFDEP_TAP_REPLY))
        return "a domain of one rank has no such words";
    return NULL;
}

void afdep_run_device_fault(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const afdep_device_fault_t *f = c->argument;
    const char *skip = other_words(f, v->scenario);
    afdep_toggle_t toggle = f->dense ? AFDEP_OFF : 0;
    afdep_validation_t faulty = *v;
    afdep_world_t world = *v->world;
    afdep_rig_plan_t plan = { .capacity = 8, .stagger = toggle, .sparse_dispatch = toggle, .sparse_combine = toggle };
    if (skip) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "%s", skip);
        return;
    }
    run_t *r = calloc(1, sizeof(*r));
    if (!r || afdep_world_group(v->world, &world.group) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "no memory, or no group: %s", afdep_last_error());
        free(r);
        return;
    }
    r->v = &faulty;
    r->f = f;
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
