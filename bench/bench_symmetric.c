/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measured path over symmetric buffers, whose ranks exchange in two calls that every one of them makes: a scenario
 * without FFN ranks as it is, and the M2N baseline of one with roles. There every rank runs the whole exchange, an
 * Attention rank receiving nothing and an FFN rank sending nothing.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_path.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct symmetric {
    afdep_bench_path_t *library; /* the buffer */
    int source, worker;          /* what the scenario has this rank do */
    afdep_dispatch_t dispatch;   /* of the call to come; of a rank that is no source: no tokens */
    afdep_receive_t receive;     /* of a rank that is no worker: no room, and none needed */
    afdep_reply_t reply;
    afdep_collect_t collect;
    int32_t ends[]; /* [experts of a rank] */
} symmetric_t;

static symmetric_t *path_of(afdep_bench_path_t *path)
{
    return (symmetric_t *)(void *)path;
}

static afdep_buffer_t *buffer_of(afdep_bench_path_t *path)
{
    return (afdep_buffer_t *)(void *)path_of(path)->library;
}

static afdep_status_t symmetric_open(afdep_world_t *world, const afdep_bench_plan_t *plan, const char *fabric,
                                     int bucket, afdep_bench_path_t **path)
{
    const afdep_scenario_t *s = &plan->scenario;
    size_t experts = (size_t)afdep_scenario_experts(s);
    symmetric_t *p = calloc(1, sizeof(*p) + experts * sizeof(p->ends[0]));
    if (!p) {
        fprintf(stderr, "afdep-bench: rank %d: open: no memory for the symmetric path\n", world->rank);
        afdep_world_abort(world, 1);
        return AFDEP_ERR_MEMORY;
    }
    p->source = afdep_scenario_is_source(s, world->rank);
    p->worker = afdep_scenario_is_worker(s, world->rank);
    p->dispatch = (afdep_dispatch_t)AFDEP_DISPATCH_INIT;
    p->receive = (afdep_receive_t)AFDEP_RECEIVE_INIT;
    p->receive.read_host_counts = 1; /* so that no room is wanted before it is known that no row comes */
    p->receive.ends = p->ends;
    p->reply = (afdep_reply_t)AFDEP_REPLY_INIT;
    p->collect = (afdep_collect_t)AFDEP_COLLECT_INIT;
    afdep_status_t status = afdep_bench_library.open(world, plan, fabric, bucket, &p->library);
    if (status != AFDEP_OK) {
        free(p);
        return status;
    }
    *path = (afdep_bench_path_t *)(void *)p;
    return AFDEP_OK;
}

static void symmetric_info(afdep_bench_path_t *path, afdep_bench_path_info_t *info)
{
    afdep_bench_library.info(path_of(path)->library, info);
}

/* The first half at a rank that is a source only, or the first part of it at one that is both. */
static afdep_status_t symmetric_dispatch(afdep_bench_path_t *path, const afdep_dispatch_t *dispatch)
{
    symmetric_t *p = path_of(path);
    p->dispatch = *dispatch;
    if (p->worker)
        return AFDEP_OK; /* the call is made with the receive that follows */
    p->receive.bucket = dispatch->bucket;
    return afdep_elastic_dispatch(buffer_of(path), &p->dispatch, &p->receive, NULL);
}

static afdep_status_t symmetric_receive(afdep_bench_path_t *path, afdep_receive_t *receive)
{
    symmetric_t *p = path_of(path);
    if (!p->source)
        p->dispatch.bucket = receive->bucket;
    return afdep_elastic_dispatch(buffer_of(path), &p->dispatch, receive, NULL);
}

static afdep_status_t symmetric_reply(afdep_bench_path_t *path, const afdep_reply_t *reply)
{
    symmetric_t *p = path_of(path);
    p->reply = *reply;
    if (p->source)
        return AFDEP_OK; /* the call is made with the collect that follows */
    return afdep_elastic_combine(buffer_of(path), &p->reply, &p->collect, NULL);
}

static afdep_status_t symmetric_collect(afdep_bench_path_t *path, afdep_collect_t *collect)
{
    symmetric_t *p = path_of(path);
    if (!p->worker)
        p->reply.receipt = p->receive.receipt;
    return afdep_elastic_combine(buffer_of(path), &p->reply, collect, NULL);
}

static afdep_status_t symmetric_memory(const afdep_bench_plan_t *plan, int bucket, afdep_memory_t *memory)
{
    return afdep_bench_library.memory(plan, bucket, memory);
}

static afdep_status_t symmetric_counters(afdep_bench_path_t *path, int peer, afdep_counters_t *counters)
{
    return afdep_bench_library.counters(path_of(path)->library, peer, counters);
}

static afdep_status_t symmetric_error(afdep_bench_path_t *path)
{
    return afdep_bench_library.error(path_of(path)->library);
}

static afdep_status_t symmetric_close(afdep_bench_path_t *path)
{
    afdep_status_t status = afdep_bench_library.close(path_of(path)->library);
    free(path_of(path));
    return status;
}

const afdep_bench_path_ops_t afdep_bench_symmetric = {
    .name = "library",
    .memory = symmetric_memory,
    .open = symmetric_open,
    .info = symmetric_info,
    .dispatch = symmetric_dispatch,
    .receive = symmetric_receive,
    .reply = symmetric_reply,
    .collect = symmetric_collect,
    .counters = symmetric_counters,
    .error = symmetric_error,
    .close = symmetric_close,
    .why = afdep_last_error,
};
