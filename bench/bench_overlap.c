/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches over one buffer and over two. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_overlap.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "bench/bench_stats.h"

#define SAMPLES 20
#define PAYLOAD 1001 /* the exchange whose payload is sent: none of the others' */

typedef enum way { COMMUNICATION, SERIAL, PING_PONG, WAYS } way_t;

typedef struct batches {
    afdep_bench_rank_t *rank;
    afdep_bench_path_t *path[2];
    int count;
    int64_t expert_ns; /* of this sample */
    int64_t free_ns;   /* when the experts are done with what they were given */
    afdep_dispatch_t dispatch;
    afdep_collect_t collect;
    afdep_receive_t receive;
    afdep_reply_t reply[2];
    int64_t done_ns[2]; /* when the experts are done with a buffer's micro-batch */
} batches_t;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- FFN ranks --------------------------------------------------------------------------------------------------- */

static void receive(batches_t *b, int buffer)
{
    afdep_bench_must(b->rank, b->rank->ops->receive(b->path[buffer], &b->receive), "receive");
    b->reply[buffer].receipt = b->receive.receipt;
    int64_t now = now_ns();
    b->free_ns = (b->free_ns > now ? b->free_ns : now) + b->expert_ns;
    b->done_ns[buffer] = b->free_ns;
}

static void reply(batches_t *b, int buffer)
{
    while (now_ns() < b->done_ns[buffer])
        sched_yield(); /* a rank may have to share its processor */
    afdep_bench_must(b->rank, b->rank->ops->reply(b->path[buffer], &b->reply[buffer]), "reply");
}

static void work(batches_t *b, int ping_pong)
{
    if (ping_pong)
        receive(b, 0);
    for (int i = 0; i < b->count; i++) {
        if (!ping_pong)
            receive(b, 0);
        else if (i + 1 < b->count)
            receive(b, (i + 1) % 2); /* while the experts have micro-batch i */
        reply(b, ping_pong ? i % 2 : 0);
    }
}

/* ---- Attention ranks --------------------------------------------------------------------------------------------- */

static void dispatch(batches_t *b, int buffer)
{
    afdep_bench_must(b->rank, b->rank->ops->dispatch(b->path[buffer], &b->dispatch), "dispatch");
}

static void collect(batches_t *b, int buffer)
{
    afdep_bench_must(b->rank, b->rank->ops->collect(b->path[buffer], &b->collect), "collect");
}

static void attend(batches_t *b, int ping_pong)
{
    int ahead = ping_pong ? 2 : 1;
    for (int i = 0; i < ahead; i++)
        dispatch(b, i);
    for (int i = 0; i < b->count; i++) {
        collect(b, ping_pong ? i % 2 : 0);
        if (i + ahead < b->count)
            dispatch(b, ping_pong ? i % 2 : 0);
    }
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* Nanoseconds that all of them take here, by this processor's clock or by the GPU's. */
static int64_t run(batches_t *b, way_t way)
{
    afdep_bench_rank_t *rank = b->rank;
    int64_t start = now_ns();
    if (rank->ops->replay_batches) {
        double us = 0;
        afdep_bench_must(rank, rank->ops->replay_batches(rank->second, (int)way, &us), "micro-batches");
        return (int64_t)(us * b->count * 1000);
    }
    if (rank->source < 0)
        work(b, way == PING_PONG);
    else
        attend(b, way == PING_PONG);
    return now_ns() - start;
}

/* Microseconds per micro-batch: the longest of any Attention rank. */
static double sample(batches_t *b, way_t way, int64_t *all)
{
    afdep_bench_rank_t *rank = b->rank;
    b->expert_ns = way == COMMUNICATION ? 0 : (int64_t)rank->plan->expert_us * 1000;
    b->free_ns = 0;
    afdep_bench_align(rank, 1);
    int64_t took = run(b, way), longest = 0;
    afdep_world_allgather(rank->world, &took, all, sizeof(took));
    for (int r = rank->plan->scenario.ffn_ranks; r < rank->world->size; r++)
        longest = all[r] > longest ? all[r] : longest;
    return (double)longest / 1000 / b->count;
}

static void prepare(batches_t *b, afdep_bench_rank_t *rank, int tokens)
{
    const afdep_bench_plan_t *plan = rank->plan;
    int bucket = afdep_bench_bucket(tokens);
    *b = (batches_t){ .rank = rank, .path = { rank->path, rank->second }, .count = plan->microbatches };
    if (rank->source >= 0) {
        afdep_workload_source(&rank->sent[0], &plan->scenario, plan->trace, plan->scenario.seed, PAYLOAD, rank->source,
                              afdep_bench_tokens_of(plan, tokens, rank->source));
        b->dispatch = afdep_bench_dispatch_of(rank, &rank->sent[0], bucket);
        b->collect = (afdep_collect_t){ .struct_size = sizeof(afdep_collect_t), .out = rank->out[0] };
        return;
    }
    b->receive = afdep_bench_receive_of(rank, bucket);
    for (int i = 0; i < 2; i++)
        b->reply[i] = (afdep_reply_t){ .struct_size = sizeof(afdep_reply_t), .rows = rank->reply };
}

/* On a device: an exchange on both paths, whose tensors then stand there, and a recording of each way. */
static void record(batches_t *b)
{
    afdep_bench_rank_t *rank = b->rank;
    for (int i = 0; i < 2; i++) {
        if (rank->source < 0) {
            receive(b, i);
            reply(b, i);
        } else {
            dispatch(b, i);
            collect(b, i);
        }
    }
    afdep_bench_align(rank, AFDEP_BENCH_CHECK_PATIENCE);
    for (way_t way = COMMUNICATION; way < WAYS; way++) {
        afdep_bench_batches_t batches = { .source = rank->source >= 0,
                                          .count = b->count,
                                          .ping_pong = way == PING_PONG,
                                          .expert_us = way == COMMUNICATION ? 0 : rank->plan->expert_us };
        afdep_bench_must(rank, rank->ops->record_batches(rank->second, rank->path, (int)way, &batches),
                         "micro-batches");
    }
}

/* The ways take turns, so that what else the machine does meets all of them. */
void afdep_bench_overlap(afdep_bench_rank_t *rank, int tokens, afdep_bench_overlap_t *overlap)
{
    batches_t b;
    double us[WAYS][SAMPLES];
    int64_t *all = malloc((size_t)rank->world->size * sizeof(*all));
    if (!all)
        afdep_bench_fatal(rank, "micro-batches", "no memory to gather their times");
    prepare(&b, rank, tokens);
    if (rank->ops->record_batches)
        record(&b);
    for (int i = -2; i < SAMPLES; i++) /* the first ones warm up */
        for (way_t way = COMMUNICATION; way < WAYS; way++)
            us[way][i < 0 ? 0 : i] = sample(&b, way, all);
    free(all);
    overlap->communication_us = afdep_summarize(us[COMMUNICATION], SAMPLES).median;
    overlap->serial_us = afdep_summarize(us[SERIAL], SAMPLES).median;
    overlap->ping_pong_us = afdep_summarize(us[PING_PONG], SAMPLES).median;
    double expert = rank->plan->expert_us, shorter = overlap->communication_us;
    shorter = shorter < expert ? shorter : expert;
    overlap->hidden_pct = 100 * (overlap->communication_us + expert - overlap->ping_pong_us) / shorter;
}
