/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed loop. Every iteration starts aligned; the alignment lies outside the timed part. A rank keeps its own
 * starts and durations; a sample is the longest duration of any Attention rank.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_measure.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#define FEWEST_ITERATIONS 20
#define REDUCE_AT_ONCE 256
#define TIMED_EXCHANGE 1000 /* payloads of the timed exchanges; the checked ones use others */

/* A rank's timed exchanges, prepared once. */
typedef struct timed {
    afdep_bench_rank_t *rank;
    int in_flight;
    afdep_dispatch_t dispatch;
    afdep_collect_t collect[AFDEP_BENCH_IN_FLIGHT_MAX];
    afdep_receive_t receive;
    int64_t start_ns, took_ns; /* of the last iteration */
} timed_t;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void source_exchanges(timed_t *t)
{
    afdep_bench_rank_t *rank = t->rank;
    for (int i = 0; i < t->in_flight; i++)
        afdep_bench_must(rank, rank->ops->dispatch(rank->path, &t->dispatch), "dispatch");
    for (int i = 0; i < t->in_flight; i++)
        afdep_bench_must(rank, rank->ops->collect(rank->path, &t->collect[i]), "collect");
}

static void worker_exchanges(timed_t *t)
{
    afdep_bench_rank_t *rank = t->rank;
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    reply.rows = rank->reply;
    for (int i = 0; i < t->in_flight; i++) {
        afdep_bench_must(rank, rank->ops->receive(rank->path, &t->receive), "receive");
        reply.receipt = t->receive.receipt;
        afdep_bench_must(rank, rank->ops->reply(rank->path, &reply), "reply");
    }
}

/* A symmetric rank's: one at a time. */
static void symmetric_exchange(timed_t *t)
{
    afdep_bench_rank_t *rank = t->rank;
    afdep_bench_must(rank, rank->ops->dispatch(rank->path, &t->dispatch), "dispatch");
    worker_exchanges(t);
    afdep_bench_must(rank, rank->ops->collect(rank->path, &t->collect[0]), "collect");
}

static void exchanges(timed_t *t)
{
    if (t->rank->source < 0)
        worker_exchanges(t);
    else if (t->rank->worker)
        symmetric_exchange(t);
    else
        source_exchanges(t);
}

/* The fixed reply rows: finite, never zero, of both signs. */
static void fill_reply(afdep_bench_rank_t *rank, int64_t rows)
{
    size_t hidden = (size_t)rank->plan->scenario.hidden;
    for (int64_t r = 0; r < rows; r++) {
        uint16_t *row = rank->reply + (size_t)r * hidden;
        for (size_t h = 0; h < hidden; h++)
            row[h] = (uint16_t)(0x3F00u + ((size_t)r * 31u + h * 7u) % 128u + (h & 1u) * 0x8000u);
    }
}

static void iterate(timed_t *t)
{
    afdep_bench_align(t->rank, 1);
    t->start_ns = now_ns();
    exchanges(t);
    t->took_ns = now_ns() - t->start_ns;
}

static void prepare_source(timed_t *t, int tokens, int bucket)
{
    afdep_bench_rank_t *rank = t->rank;
    const afdep_bench_plan_t *plan = rank->plan;
    afdep_workload_source(&rank->sent[0], &plan->scenario, plan->trace, plan->scenario.seed, TIMED_EXCHANGE,
                          rank->source, afdep_bench_tokens_of(plan, tokens, rank->source));
    t->dispatch = afdep_bench_dispatch_of(rank, &rank->sent[0], bucket);
    for (int i = 0; i < t->in_flight; i++)
        t->collect[i] = (afdep_collect_t){ .struct_size = sizeof(afdep_collect_t), .out = rank->out[i] };
}

/* Generates the payload, and runs one round that fills the reply tensor once the number of rows is known. */
static void prepare(timed_t *t, afdep_bench_rank_t *rank, int tokens)
{
    int bucket = afdep_bench_bucket(tokens);
    *t = (timed_t){ .rank = rank, .in_flight = rank->plan->in_flight };
    if (rank->source >= 0)
        prepare_source(t, tokens, bucket);
    if (rank->worker)
        t->receive = afdep_bench_receive_of(rank, bucket);
    afdep_bench_align(rank, AFDEP_BENCH_CHECK_PATIENCE);
    if (!rank->worker) {
        source_exchanges(t);
        return;
    }
    for (int i = 0; i < t->in_flight; i++) {
        if (rank->source >= 0)
            afdep_bench_must(rank, rank->ops->dispatch(rank->path, &t->dispatch), "dispatch");
        afdep_bench_must(rank, rank->ops->receive(rank->path, &t->receive), "receive");
        if (i == 0)
            fill_reply(rank, t->receive.row_count);
        afdep_reply_t reply = { sizeof(reply), rank->reply, t->receive.receipt };
        afdep_bench_must(rank, rank->ops->reply(rank->path, &reply), "reply");
        if (rank->source >= 0)
            afdep_bench_must(rank, rank->ops->collect(rank->path, &t->collect[i]), "collect");
    }
}

/* Rank 0's word for how many iterations come next; 0 ends the loop. */
static int64_t agree(afdep_bench_rank_t *rank, int64_t next)
{
    int64_t *all = malloc((size_t)rank->world->size * sizeof(*all));
    if (!all)
        afdep_bench_fatal(rank, "iterations", "no memory to agree on their number");
    afdep_world_allgather(rank->world, &next, all, sizeof(next));
    next = all[0];
    free(all);
    return next;
}

/* As many as fill what is left of the budget at the pace so far, never more than doubling it. */
static int64_t next_round(int64_t budget_ns, int64_t done, int64_t elapsed_ns)
{
    int64_t left = budget_ns - elapsed_ns;
    if (done == 0)
        return FEWEST_ITERATIONS;
    if (left <= elapsed_ns / done)
        return 0;
    int64_t fit = (int64_t)((double)left / ((double)elapsed_ns / (double)done));
    return fit < 1 ? 1 : fit < 2 * done ? fit : 2 * done;
}

int64_t afdep_bench_next_round(afdep_bench_rank_t *rank, int64_t done, int64_t elapsed_ns)
{
    int64_t asked = rank->plan->iterations;
    return asked ? asked - done : agree(rank, next_round((int64_t)rank->plan->budget_ms * 1000000, done, elapsed_ns));
}

static int64_t timed_loop(timed_t *t, afdep_reservoir_t *reservoir)
{
    int64_t done = 0, begin = now_ns();
    for (;;) {
        int64_t next = afdep_bench_next_round(t->rank, done, now_ns() - begin);
        if (next == 0)
            return done;
        for (int64_t i = 0; i < next; i++) {
            iterate(t);
            afdep_reservoir_add(reservoir, t->start_ns, t->took_ns / t->in_flight);
        }
        done += next;
    }
}

/* Timed on the device, many exchanges to a sample: the clock stands around a run of replays. */
#define REPLAYS 20
#define DEVICE_SAMPLES 20

static int64_t replayed_loop(timed_t *t, afdep_reservoir_t *reservoir)
{
    afdep_bench_rank_t *rank = t->rank;
    afdep_status_t status = AFDEP_OK;
    int pairs = rank->ops->record(rank->path, rank->plan->view && rank->info.source_view, &status);
    afdep_bench_must(rank, status, "record");
    int64_t asked = rank->plan->iterations, samples = asked ? (asked - 1) / (pairs * REPLAYS) + 1 : DEVICE_SAMPLES;
    for (int64_t i = -1; i < samples; i++) { /* the first one warms up */
        double us = 0;
        afdep_bench_align(rank, 1);
        int64_t start = now_ns();
        afdep_bench_must(rank, rank->ops->replay(rank->path, REPLAYS, &us), "replay");
        if (i >= 0)
            afdep_reservoir_add(reservoir, start, (int64_t)(us * 1000 + 0.5));
    }
    return samples * pairs * REPLAYS;
}

/* ---- Over the ranks ---------------------------------------------------------------------------------------------- */

typedef struct stamp {
    int64_t start_ns, took_ns;
} stamp_t;

/* Sample i of all ranks: the longest of any rank from `first_rank` on, and how far the starts lay apart. */
static void reduce_sample(const stamp_t *stamps, int ranks, int stride, int first_rank, double *took_us,
                          double *spread_us)
{
    int64_t longest = 0, first = INT64_MAX, last = INT64_MIN;
    for (int r = 0; r < ranks; r++) {
        const stamp_t *stamp = stamps + (size_t)r * (size_t)stride;
        if (r >= first_rank && stamp->took_ns > longest)
            longest = stamp->took_ns;
        first = stamp->start_ns < first ? stamp->start_ns : first;
        last = stamp->start_ns > last ? stamp->start_ns : last;
    }
    *took_us = (double)longest / 1000;
    *spread_us = (double)(last - first) / 1000;
}

/* Gathers all ranks' reservoirs a part at a time, so that memory does not grow with ranks times samples. */
void afdep_bench_reduce(afdep_bench_rank_t *rank, const afdep_reservoir_t *reservoir, int first_rank, double *took_us,
                        double *spread_us)
{
    int size = rank->world->size;
    stamp_t *own = calloc(REDUCE_AT_ONCE, sizeof(*own));
    stamp_t *all = malloc((size_t)size * REDUCE_AT_ONCE * sizeof(*all));
    if (!own || !all)
        afdep_bench_fatal(rank, "samples", "no memory to gather them");
    for (int at = 0; at < reservoir->kept; at += REDUCE_AT_ONCE) {
        int part = reservoir->kept - at < REDUCE_AT_ONCE ? reservoir->kept - at : REDUCE_AT_ONCE;
        for (int i = 0; i < part; i++)
            own[i] = (stamp_t){ reservoir->start_ns[at + i], reservoir->took_ns[at + i] };
        afdep_world_allgather(rank->world, own, all, REDUCE_AT_ONCE * sizeof(*own));
        for (int i = 0; i < part; i++)
            reduce_sample(all + i, size, REDUCE_AT_ONCE, first_rank, &took_us[at + i], &spread_us[at + i]);
    }
    free(all);
    free(own);
}

static void summarize(afdep_bench_rank_t *rank, const afdep_reservoir_t *reservoir, afdep_bench_cell_t *cell)
{
    size_t kept = (size_t)reservoir->kept;
    double *sorted = malloc(kept * sizeof(double)), *spread = malloc(kept * sizeof(double));
    cell->samples = reservoir->kept;
    cell->samples_us = malloc(kept * sizeof(double));
    if (!sorted || !spread || !cell->samples_us)
        afdep_bench_fatal(rank, "samples", "no memory to sort them");
    afdep_bench_reduce(rank, reservoir, rank->plan->scenario.ffn_ranks, cell->samples_us, spread);
    for (size_t i = 0; i < kept; i++)
        sorted[i] = cell->samples_us[i];
    cell->us = afdep_summarize(sorted, reservoir->kept);
    cell->skew_us = afdep_align_one_host(rank->align) ? afdep_summarize(spread, reservoir->kept).median : NAN;
    free(spread);
    free(sorted);
}

static double memory_of(afdep_bench_rank_t *rank, int tokens)
{
    afdep_memory_t memory = { .struct_size = sizeof(memory) };
    afdep_bench_must(rank, rank->ops->memory(rank->plan, afdep_bench_bucket(tokens), &memory), "memory");
    return (double)(memory.ffn_segment + memory.ffn_private + memory.receive_bytes + memory.reply_bytes);
}

void afdep_bench_measure(afdep_bench_rank_t *rank, afdep_bench_cell_t *cell, afdep_reservoir_t *reservoir)
{
    int size = rank->world->size;
    afdep_counters_t *before = calloc((size_t)size, sizeof(*before)), *after = calloc((size_t)size, sizeof(*after));
    timed_t timed;
    if (!before || !after)
        afdep_bench_fatal(rank, "counters", "no memory for them");
    prepare(&timed, rank, cell->tokens);
    for (int i = 0; !rank->ops->replay && i < rank->plan->warmup; i++)
        iterate(&timed);
    afdep_reservoir_init(reservoir, rank->plan->scenario.seed);
    afdep_bench_count(rank, before);
    int64_t warm = 0;
    if (rank->ops->replay) {
        cell->iterations = replayed_loop(&timed, reservoir);
        warm = REPLAYS * 10;
    } else {
        cell->iterations = timed_loop(&timed, reservoir);
    }
    afdep_bench_count(rank, after);
    summarize(rank, reservoir, cell);
    afdep_bench_counts(rank, before, after, (cell->iterations + warm) * timed.in_flight, &cell->counts);
    cell->memory_bytes = memory_of(rank, cell->tokens);
    free(after);
    free(before);
}
