/* SPDX-License-Identifier: Apache-2.0 */
/* Records the calls of several exchanges at this rank, then replays them. */
#include "validate/recording.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "validate/rig.h"

#define CAPACITY 8
#define BUCKET 64 /* at most, but in the first exchange of a recording */

/* One recorded exchange: its own tensors and the arguments fixed when it was recorded. */
typedef struct pair {
    /* capacity: the pair's bucket, so that its tensors are exactly as large as they must be */
    afdep_scenario_t scenario;
    afdep_exchanger_t x;
    afdep_exchange_plan_t plan;
    int *tokens;
    afdep_dispatch_t dispatch; /* as recorded */
    afdep_receive_t receive;
    afdep_collect_t collect;
} pair_t;

static int bucket_of(int capacity, int pair)
{
    int most = pair == 0 || capacity < BUCKET ? capacity : BUCKET;
    const int cycle[] = { most, 1, most / 2, 2, most, 3 };
    return cycle[pair % 6];
}

/* Shapes specialize the recording. A bucket that is larger than the others is one source's, checked in good time. */
static int tokens_of(int bucket, int pair, int a, int sources)
{
    if (bucket > BUCKET)
        return a == sources - 1 ? bucket : a % 4 == 3 ? 0 : BUCKET - a % BUCKET;
    return (a + pair) % 4 == 3 ? 0 : bucket;
}

static int make_pair(afdep_rig_t *rig, const afdep_replays_t *r, pair_t *p, int index)
{
    int sources = rig->scenario.attention_ranks;
    p->scenario = rig->scenario;
    p->scenario.capacity = bucket_of(rig->scenario.capacity, index);
    p->tokens = calloc((size_t)sources, sizeof(*p->tokens));
    if (!p->tokens || afdep_exchanger_init(&p->x, &p->scenario, rig->buffer, rig->v->seed) != 0)
        return -1;
    for (int a = 0; a < sources; a++)
        p->tokens[a] = tokens_of(p->scenario.capacity, index, a, sources);
    p->plan = (afdep_exchange_plan_t){ .bucket = p->scenario.capacity, .tokens = p->tokens, .view = index % 2 };
    afdep_exchanger_prepare_first(&p->x, &p->plan);
    afdep_exchanger_prepare_second(&p->x, &p->plan);
    p->dispatch = p->x.dispatch;
    p->receive = p->x.receive;
    p->collect = p->x.collect;
    afdep_staged_calls_t calls = { &p->dispatch, &p->collect, &p->receive, r->whole };
    return p->x.staged && afdep_staged_record_calls(p->x.staged, rig->buffer, &calls) != AFDEP_OK ? -1 : 0;
}

static void free_pair(pair_t *p)
{
    if (p->x.scenario)
        afdep_exchanger_free(&p->x);
    free(p->tokens);
}

static void delay(int wanted, int rank, int n)
{
    struct timespec t = { 0, 200000L * ((rank + n) % 3) };
    if (wanted && (rank + n) % 3)
        nanosleep(&t, NULL);
}

/* Every other exchange of the two kinds, whatever the recording: n counts replays and exchanges together. */
static int is_eager(const afdep_replays_t *r, int n)
{
    return r->alternate && n % 2;
}

/* Replays one recorded exchange: new payloads and choices in the old tensors, then the calls as they were recorded. */
static afdep_status_t replay(afdep_rig_t *rig, pair_t *p, const afdep_replays_t *r, int n)
{
    if (p->x.staged)
        afdep_staged_run_eager(p->x.staged, is_eager(r, n));
    p->plan.number = rig->number++;
    p->plan.inactive_percent = n % 4 == 1 ? 100 : n % 4 == 2 ? 30 : 0;
    afdep_exchanger_prepare_first(&p->x, &p->plan); /* fills the tensors; its argument structs are replaced */
    p->x.dispatch = p->dispatch;
    p->x.receive = p->receive;
    delay(r->delay_dispatches && !rig->apart, rig->v->world->rank, n);
    afdep_status_t status = afdep_exchanger_judge_first(&p->x, &p->plan, afdep_exchanger_call_first(&p->x));
    if (status != AFDEP_OK)
        return status;
    afdep_exchanger_prepare_second(&p->x, &p->plan);
    p->x.collect = p->collect;
    delay(r->delay_replies && rig->apart, rig->v->world->rank, n);
    return afdep_exchanger_judge_second(&p->x, &p->plan, afdep_exchanger_call_second(&p->x));
}

/* Whether the buffers of this case have forward warps that can be slowed down. */
static int has_forward_warps(const afdep_validation_t *v)
{
    const afdep_scenario_t *s = v->scenario;
    return v->backend && strcmp(v->backend, "cuda") == 0 && s->ranks_per_domain < s->ffn_ranks + s->attention_ranks;
}

/* The setting is an environment variable; all ranks set it, and take it away, between two collective calls. */
static void set_slow_forward(const afdep_validation_t *v, int on)
{
    afdep_world_barrier(v->world);
    if ((v->world->rank == 0 || !v->world->threads) && on)
        setenv("AFDEP_TEST_SLOW_FORWARD_US", "200", 1);
    else if (v->world->rank == 0 || !v->world->threads)
        unsetenv("AFDEP_TEST_SLOW_FORWARD_US");
    afdep_world_barrier(v->world);
}

void afdep_run_replays(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const afdep_replays_t *r = c->argument;
    afdep_toggle_t toggle = r->dense ? AFDEP_OFF : 0;
    afdep_rig_plan_t rig_plan = { .capacity = r->capacity ? r->capacity : CAPACITY,
                                  .num_sms = r->num_sms,
                                  .hidden = 256,
                                  .other_dtype = r->dtype && (int)v->scenario->dtype != r->dtype - 1,
                                  .stagger = toggle,
                                  .sparse_dispatch = toggle,
                                  .sparse_combine = toggle };
    int slow_forward = r->slow_forward && has_forward_warps(v);
    if (r->slow_forward == AFDEP_SLOW_FORWARD_ONLY && !slow_forward) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED,
                          "only kernels across domains have forward warps; slow actors are in faults");
        return;
    }
    pair_t *pairs = calloc((size_t)r->pairs, sizeof(*pairs));
    afdep_rig_t rig;
    if (slow_forward)
        set_slow_forward(v, 1);
    int opened = pairs && afdep_rig_open(v, &rig_plan, &rig, outcome) == 0;
    if (slow_forward)
        set_slow_forward(v, 0);
    if (!opened) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "no memory for a recording");
        free(pairs);
        return;
    }
    int ready = 1;
    for (int i = 0; i < r->pairs && ready; i++)
        ready = make_pair(&rig, r, &pairs[i], i) == 0;
    if (!ready)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no memory for the tensors of a recording");
    afdep_rig_settle(&rig);
    for (int n = 0; n < r->replays && ready && outcome->verdict == AFDEP_PASSED; n++)
        for (int i = 0; i < r->pairs; i++) {
            if (replay(&rig, &pairs[i], r, n + i) != AFDEP_OK) {
                afdep_outcome_set(outcome, AFDEP_FAILED, "replay %d, exchange %d: %s", n, i, pairs[i].x.why);
                break;
            }
            outcome->exchanges++;
            outcome->graph_exchanges += !is_eager(r, n + i);
        }
    afdep_rig_settle(&rig);
    for (int i = 0; i < r->pairs; i++)
        free_pair(&pairs[i]);
    free(pairs);
    afdep_rig_close(&rig, outcome);
}
