/* SPDX-License-Identifier: Apache-2.0 */
/* Load statistics and send-only dispatches, on either backend. */
#include "validate/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "validate/rig.h"

static void uneven(afdep_rig_t *rig, int n)
{
    for (int a = 0; a < rig->scenario.attention_ranks; a++)
        rig->tokens[a] = (a * 7 + n * 3) % 20;
}

/* ---- Load statistics ------------------------------------------------------------------------------------------- */

#define LOAD_EXCHANGES 24

typedef struct load_case {
    afdep_rig_t rig;
    int experts, sources;
    uint64_t *want; /* [LOAD_EXCHANGES + 1][experts + sources]: after so many exchanges */
    uint64_t *got;
    atomic_int stop;
    uint64_t last; /* exchanges that the last reading told of */
    int readings;
    char why[256]; /* what the reader found; "": nothing wrong */
} load_case_t;

/* What this rank counts of a source's tokens: its own as a source, those for its experts as a worker. */
static void add_source(load_case_t *l, const afdep_source_tokens_t *source, int a, uint64_t *row)
{
    const afdep_scenario_t *s = &l->rig.scenario;
    int rank = l->rig.v->world->rank, worker = afdep_scenario_is_worker(s, rank), each = afdep_scenario_experts(s);
    for (int t = 0; t < source->tokens; t++) {
        int counts = 0;
        for (int k = 0; k < s->top_k; k++) {
            int id = source->ids[t * s->top_k + k];
            int mine = id >= 0 && (worker ? id / each == rank : rank - s->ffn_ranks == a);
            if (mine)
                row[id]++;
            counts |= mine;
        }
        row[l->experts + a] += (uint64_t)counts;
    }
}

/* Afterwards row n is what `n` exchanges, from number `first` on, have added up to. 0, or -1 without memory. */
static int make_want(load_case_t *l, uint64_t first)
{
    const afdep_scenario_t *s = &l->rig.scenario;
    size_t width = (size_t)(l->experts + l->sources);
    afdep_source_tokens_t source;
    if (!l->want || !l->got || afdep_workload_alloc_routes(&source, s, s->capacity) != 0)
        return -1;
    for (int n = 0; n < LOAD_EXCHANGES; n++) {
        uint64_t *row = l->want + (size_t)(n + 1) * width;
        memcpy(row, row - width, width * sizeof(*row));
        uneven(&l->rig, n);
        for (int a = 0; a < l->sources; a++) {
            afdep_workload_routes(&source, s, NULL, l->rig.v->seed, first + (uint64_t)n, a, l->rig.tokens[a]);
            add_source(l, &source, a, row);
        }
    }
    afdep_workload_free(&source);
    return 0;
}

/* One reading, compared with what the exchanges that it tells of must have left. */
static void read_once(load_case_t *l)
{
    size_t width = (size_t)(l->experts + l->sources);
    afdep_load_t load = AFDEP_LOAD_INIT;
    load.expert_tokens = l->got;
    load.source_tokens = l->got + l->experts;
    memset(l->got, 0xA5, width * sizeof(*l->got));
    if (afdep_buffer_load(l->rig.buffer, &load) != AFDEP_OK) {
        snprintf(l->why, sizeof(l->why), "buffer_load: %s", afdep_last_error());
        return;
    }
    l->readings++;
    if (load.exchanges > LOAD_EXCHANGES || load.exchanges < l->last) {
        snprintf(l->why, sizeof(l->why), "%llu exchanges are counted, after %llu", (unsigned long long)load.exchanges,
                 (unsigned long long)l->last);
        return;
    }
    l->last = load.exchanges;
    const uint64_t *want = l->want + load.exchanges * width;
    for (size_t i = 0; i < width; i++)
        if (l->got[i] != want[i]) {
            int expert = i < (size_t)l->experts;
            snprintf(l->why, sizeof(l->why), "%s %d has %llu tokens after %llu exchanges, wanted %llu",
                     expert ? "expert" : "source", (int)i - (expert ? 0 : l->experts), (unsigned long long)l->got[i],
                     (unsigned long long)load.exchanges, (unsigned long long)want[i]);
            return;
        }
}

static void *read_all_along(void *context)
{
    load_case_t *l = context;
    while (!atomic_load(&l->stop) && !l->why[0]) {
        read_once(l);
        nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    }
    return NULL;
}

/* Exchanges with a reader beside them, then a last reading. */
static void exchange_and_read(load_case_t *l, uint64_t first, afdep_outcome_t *outcome)
{
    pthread_t reader;
    if (pthread_create(&reader, NULL, read_all_along, l) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "no thread to read with");
        return;
    }
    for (int n = 0; n < LOAD_EXCHANGES; n++) {
        uneven(&l->rig, n);
        afdep_exchange_plan_t plan = afdep_rig_plain(&l->rig);
        plan.number = first + (uint64_t)n;
        plan.read_host_counts = n % 3 == 2;
        if (afdep_rig_exchange(&l->rig, &plan, outcome) != 0)
            break;
    }
    atomic_store(&l->stop, 1);
    pthread_join(reader, NULL);
    if (!l->why[0])
        read_once(l);
    if (l->why[0])
        afdep_outcome_set(outcome, AFDEP_FAILED, "reading %d: %s", l->readings, l->why);
    else if (outcome->verdict == AFDEP_PASSED && l->last != LOAD_EXCHANGES)
        afdep_outcome_set(outcome, AFDEP_FAILED, "%llu of %d exchanges are counted", (unsigned long long)l->last,
                          LOAD_EXCHANGES);
}

void afdep_run_load(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    load_case_t *l = calloc(1, sizeof(*l));
    if (!l || afdep_rig_open(v, c->argument, &l->rig, outcome) != 0) {
        free(l);
        return;
    }
    l->experts = l->rig.scenario.num_experts;
    l->sources = l->rig.scenario.attention_ranks;
    size_t width = (size_t)(l->experts + l->sources);
    l->want = calloc((LOAD_EXCHANGES + 1) * width, sizeof(*l->want));
    l->got = calloc(width, sizeof(*l->got));
    uint64_t first = l->rig.number;
    if (make_want(l, first) != 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no memory for the counts");
    else
        exchange_and_read(l, first, outcome);
    afdep_rig_close(&l->rig, outcome);
    free(l->got);
    free(l->want);
    free(l);
}

/* ---- Send-only dispatches -------------------------------------------------------------------------------------- */

/* Whether it failed at any rank: rounds have barriers. */
static int any_rank(afdep_world_t *world, int failed)
{
    int *all = calloc((size_t)world->size, sizeof(*all));
    if (!all)
        return 1;
    afdep_world_allgather(world, &failed, all, sizeof(failed));
    for (int r = 0; r < world->size; r++)
        failed |= all[r];
    free(all);
    return failed;
}

/* Sends without waiting, and is refused whatever it tries before the completion. */
static int send_only(afdep_rig_t *rig, const afdep_exchange_plan_t *plan, afdep_outcome_t *outcome)
{
    afdep_exchanger_t *x = &rig->x[0];
    afdep_exchanger_prepare_first(x, plan);
    x->dispatch.send_only = 1;
    afdep_status_t status = afdep_exchanger_call_first(x);
    if (status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "send-only: %s", afdep_status_string(status));
    else if (afdep_exchanger_call_first(x) != AFDEP_ERR_ORDER)
        afdep_outcome_set(outcome, AFDEP_FAILED, "a second dispatch is not refused");
    else if (afdep_exchanger_call_second(x) != AFDEP_ERR_ORDER)
        afdep_outcome_set(outcome, AFDEP_FAILED, "a collect before the completion is not refused");
    return outcome->verdict == AFDEP_FAILED ? -1 : 0;
}

static int complete(afdep_rig_t *rig, const afdep_exchange_plan_t *plan, afdep_outcome_t *outcome)
{
    afdep_exchanger_t *x = &rig->x[0];
    afdep_status_t status = afdep_exchanger_judge_first(x, plan, afdep_exchanger_complete(x));
    if (status == AFDEP_OK && afdep_exchanger_complete(x) != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "a completion with nothing to complete is refused");
    if (status == AFDEP_OK)
        status = afdep_exchanger_second(x, plan);
    if (status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "completed: %s: %s", afdep_status_string(status), x->why);
    outcome->exchanges += status == AFDEP_OK;
    return status == AFDEP_OK ? 0 : -1;
}

/*
 * An exchange without tokens, which is over for its sources at once, then one that they send without waiting. `early`:
 * the workers do not begin the first before the send-only dispatch has returned, which otherwise would wait for them.
 */
static int send_only_round(afdep_rig_t *rig, int early, afdep_exchange_plan_t *plan, afdep_outcome_t *outcome)
{
    afdep_world_t *world = rig->v->world;
    int *none = rig->tokens + rig->scenario.attention_ranks, worker = rig->apart, failed = 0;
    memset(none, 0, (size_t)rig->scenario.attention_ranks * sizeof(*none));
    afdep_exchange_plan_t empty = { .number = rig->number++, .bucket = plan->bucket, .tokens = none };
    if (!worker || !early)
        failed = afdep_rig_exchange(rig, &empty, outcome);
    afdep_world_barrier(world);
    if (!worker && !failed)
        failed = send_only(rig, plan, outcome);
    afdep_world_barrier(world);
    if (worker && early)
        failed = afdep_rig_exchange(rig, &empty, outcome);
    if (!failed)
        failed = worker ? afdep_rig_exchange(rig, plan, outcome) : complete(rig, plan, outcome);
    return failed;
}

void afdep_run_send_only(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_rig_t rig;
    int failed = 0;
    if (v->scenario->ffn_ranks == 0 || afdep_scenario_shares_domains(v->scenario)) {
        afdep_outcome_set(outcome, AFDEP_SKIPPED, "sources have part in the exchanges of others, and cannot go ahead");
        return;
    }
    if (afdep_rig_open(v, c->argument, &rig, outcome) != 0)
        return;
    for (int n = 0; n < 8 && !failed; n++) {
        uneven(&rig, n);
        afdep_exchange_plan_t plan = afdep_rig_plain(&rig);
        failed = send_only_round(&rig, n % 4 != 3, &plan, outcome);
        failed = any_rank(v->world, failed);
    }
    afdep_rig_close(&rig, outcome);
}
