/* SPDX-License-Identifier: Apache-2.0 */
/* The measured path that is libafdep on GPUs: checked exchanges staged through the host, timed ones on the device. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/batches.h"
#include "validate/staged.h"

#define PAIRS 10 /* exchanges of one recording */
#define WAYS 3   /* of running micro-batches */

typedef struct cuda_path {
    afdep_buffer_t *buffer;
    afdep_staged_t *staged;
    afdep_batches_t *batches[WAYS];
    int graph;
    char why[256];
} cuda_path_t;

static cuda_path_t *of(afdep_bench_path_t *path)
{
    return (cuda_path_t *)path;
}

static _Thread_local char open_why[256];

static const char *cuda_why(void)
{
    return open_why[0] ? open_why : afdep_staged_why();
}

static afdep_status_t cuda_memory(const afdep_bench_plan_t *plan, int bucket, afdep_memory_t *memory)
{
    memory->struct_size = sizeof(*memory);
    return afdep_buffer_bytes(&plan->config, plan->ranks, bucket, memory);
}

static afdep_status_t cuda_open(afdep_world_t *world, const afdep_bench_plan_t *plan, const char *fabric, int bucket,
                                afdep_bench_path_t **path)
{
    cuda_path_t *p = calloc(1, sizeof(*p));
    afdep_config_t config = plan->config;
    afdep_status_t status = AFDEP_ERR_MEMORY;
    config.fabric = fabric;
    open_why[0] = '\0';
    if (!p)
        return status;
    afdep_staged_use_device(world->rank);
    status = afdep_buffer_open(&world->group, &config, &p->buffer);
    if (status != AFDEP_OK) {
        free(p);
        return status;
    }
    p->graph = plan->scenario.graph;
    p->staged = afdep_staged_create(&plan->scenario, world->rank, bucket, open_why, sizeof(open_why));
    int lost = !p->staged, *all = calloc((size_t)world->size, sizeof(int));
    if (!all) { /* the others wait for this rank's word */
        fprintf(stderr, "afdep-bench: no memory to open the CUDA path\n");
        afdep_world_abort(world, 1);
    }
    afdep_world_allgather(world, &lost, all, sizeof(lost));
    for (int r = 0; r < world->size; r++)
        lost |= all[r];
    free(all);
    *path = (afdep_bench_path_t *)p;
    if (!lost)
        return AFDEP_OK;
    if (!open_why[0])
        strcpy(open_why, "another rank has no memory for its tensors");
    afdep_staged_destroy(p->staged);
    (void)afdep_buffer_close(p->buffer);
    free(p);
    return AFDEP_ERR_MEMORY;
}

static void cuda_info(afdep_bench_path_t *path, afdep_bench_path_info_t *info)
{
    afdep_buffer_info_t buffer = { .struct_size = sizeof(buffer) };
    afdep_buffer_info(of(path)->buffer, &buffer);
    info->protocol = buffer.protocol;
    info->backend = buffer.backend;
    info->fabric = buffer.fabric;
    info->stagger = buffer.stagger;
    info->sparse_dispatch = buffer.sparse_dispatch;
    info->sparse_combine = buffer.sparse_combine;
    info->fp8_combine = buffer.fp8_combine;
    info->fp8_combine_min_bucket = buffer.fp8_combine_min_bucket;
    info->channels = buffer.channels;
    info->source_view = buffer.source_view;
    info->graph = of(path)->graph;
    afdep_gin_note_take(&info->gin, of(path)->buffer);
}

static afdep_status_t cuda_dispatch(afdep_bench_path_t *path, const afdep_dispatch_t *dispatch)
{
    return afdep_staged_dispatch(of(path)->staged, of(path)->buffer, dispatch);
}

static afdep_status_t cuda_receive(afdep_bench_path_t *path, afdep_receive_t *receive)
{
    return afdep_staged_receive(of(path)->staged, of(path)->buffer, receive);
}

static afdep_status_t cuda_reply(afdep_bench_path_t *path, const afdep_reply_t *reply)
{
    return afdep_staged_reply(of(path)->staged, of(path)->buffer, reply);
}

static afdep_status_t cuda_collect(afdep_bench_path_t *path, afdep_collect_t *collect)
{
    return afdep_staged_collect(of(path)->staged, of(path)->buffer, collect);
}

static afdep_status_t cuda_counters(afdep_bench_path_t *path, int peer, afdep_counters_t *counters)
{
    return afdep_buffer_counters(of(path)->buffer, peer, counters);
}

static afdep_status_t cuda_error(afdep_bench_path_t *path)
{
    return afdep_buffer_error(of(path)->buffer);
}

static int cuda_record(afdep_bench_path_t *path, int view, afdep_status_t *status)
{
    afdep_staged_run_t run = { of(path)->graph, PAIRS, view };
    *status = afdep_staged_record(of(path)->staged, of(path)->buffer, &run);
    return PAIRS;
}

static afdep_status_t cuda_replay(afdep_bench_path_t *path, int times, double *us)
{
    return afdep_staged_replay(of(path)->staged, of(path)->buffer, times, us);
}

static afdep_status_t cuda_record_batches(afdep_bench_path_t *second, afdep_bench_path_t *first, int way,
                                          const afdep_bench_batches_t *batches)
{
    cuda_path_t *p = of(second);
    afdep_batches_plan_t plan = { .buffer = { of(first)->buffer, p->buffer },
                                  .staged = { of(first)->staged, p->staged },
                                  .source = batches->source,
                                  .count = batches->count,
                                  .ping_pong = batches->ping_pong,
                                  .expert_us = batches->expert_us,
                                  .graph = p->graph };
    afdep_batches_destroy(p->batches[way]);
    p->batches[way] = NULL;
    return afdep_batches_create(&plan, &p->batches[way]);
}

static afdep_status_t cuda_replay_batches(afdep_bench_path_t *second, int way, double *us)
{
    return afdep_batches_run(of(second)->batches[way], us);
}

static afdep_status_t cuda_close(afdep_bench_path_t *path)
{
    cuda_path_t *p = of(path);
    for (int way = 0; way < WAYS; way++)
        afdep_batches_destroy(p->batches[way]);
    afdep_staged_destroy(p->staged); /* recordings go before the buffer */
    afdep_status_t status = afdep_buffer_close(p->buffer);
    free(p);
    return status;
}

const afdep_bench_path_ops_t afdep_bench_cuda = {
    .name = "library",
    .memory = cuda_memory,
    .open = cuda_open,
    .info = cuda_info,
    .dispatch = cuda_dispatch,
    .receive = cuda_receive,
    .reply = cuda_reply,
    .collect = cuda_collect,
    .record = cuda_record,
    .replay = cuda_replay,
    .record_batches = cuda_record_batches,
    .replay_batches = cuda_replay_batches,
    .counters = cuda_counters,
    .error = cuda_error,
    .close = cuda_close,
    .why = cuda_why,
};
