/* SPDX-License-Identifier: Apache-2.0 */
/* The measured path that is libafdep itself: one call each. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_path.h"

#include <stdlib.h>
#include <string.h>

static afdep_buffer_t *buffer_of(afdep_bench_path_t *path)
{
    return (afdep_buffer_t *)path;
}

static afdep_status_t library_memory(const afdep_bench_plan_t *plan, int bucket, afdep_memory_t *memory)
{
    memory->struct_size = sizeof(*memory);
    return afdep_buffer_bytes(&plan->config, plan->ranks, bucket, memory);
}

/* The fabric that the library would take, to put the faults around; NULL where it will refuse the name. */
static const afdep_fabric_provider_t *inner_fabric(const afdep_group_t *group, const char *name)
{
    const char *environment = getenv("AFDEP_FABRIC");
    if (!name)
        name = environment && environment[0] ? environment : group->fabrics ? group->fabrics->name : "shm";
    if (group->fabrics && strcmp(name, group->fabrics->name) == 0)
        return group->fabrics;
    return strcmp(name, afdep_fabric_shm.name) == 0 ? &afdep_fabric_shm : NULL;
}

static afdep_status_t library_open(afdep_world_t *world, const afdep_bench_plan_t *plan, const char *fabric,
                                   int bucket, afdep_bench_path_t **path)
{
    (void)bucket;
    afdep_config_t config = plan->config;
    config.fabric = fabric;
    afdep_buffer_t *buffer = NULL;
    afdep_group_t group = world->group;
    afdep_fault_provider_t faulty;
    const afdep_fabric_provider_t *inner = inner_fabric(&group, fabric);
    if (plan->faults.faults.count && inner) {
        afdep_fault_provider_init(&faulty, inner, &plan->faults.faults);
        group.fabrics = &faulty.super;
    }
    afdep_status_t status = afdep_buffer_open(&group, &config, &buffer);
    *path = (afdep_bench_path_t *)buffer;
    return status;
}

static void library_info(afdep_bench_path_t *path, afdep_bench_path_info_t *info)
{
    afdep_buffer_info_t buffer = { .struct_size = sizeof(buffer) };
    afdep_buffer_info(buffer_of(path), &buffer);
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
}

static afdep_status_t library_dispatch(afdep_bench_path_t *path, const afdep_dispatch_t *dispatch)
{
    return afdep_source_dispatch(buffer_of(path), dispatch, NULL);
}

static afdep_status_t library_receive(afdep_bench_path_t *path, afdep_receive_t *receive)
{
    return afdep_worker_receive(buffer_of(path), receive, NULL);
}

static afdep_status_t library_reply(afdep_bench_path_t *path, const afdep_reply_t *reply)
{
    return afdep_worker_reply(buffer_of(path), reply, NULL);
}

static afdep_status_t library_collect(afdep_bench_path_t *path, afdep_collect_t *collect)
{
    return afdep_source_collect(buffer_of(path), collect, NULL);
}

static afdep_status_t library_counters(afdep_bench_path_t *path, int peer, afdep_counters_t *counters)
{
    return afdep_buffer_counters(buffer_of(path), peer, counters);
}

static afdep_status_t library_error(afdep_bench_path_t *path)
{
    return afdep_buffer_error(buffer_of(path));
}

static afdep_status_t library_close(afdep_bench_path_t *path)
{
    return afdep_buffer_close(buffer_of(path));
}

const afdep_bench_path_ops_t afdep_bench_library = {
    .name = "library",
    .memory = library_memory,
    .open = library_open,
    .info = library_info,
    .dispatch = library_dispatch,
    .receive = library_receive,
    .reply = library_reply,
    .collect = library_collect,
    .counters = library_counters,
    .error = library_error,
    .close = library_close,
    .why = afdep_last_error,
};

const afdep_bench_path_ops_t *afdep_bench_path_ops(const afdep_bench_plan_t *plan)
{
#ifdef AFDEP_HAVE_MPI
    if (plan->protocol == AFDEP_BENCH_ALLTOALLV)
        return &afdep_bench_alltoallv;
#endif
#ifdef AFDEP_HAVE_NCCL
    if (plan->protocol == AFDEP_BENCH_NCCL_P2P)
        return &afdep_bench_nccl_p2p;
#endif
    if (plan->protocol == AFDEP_BENCH_ALLTOALLV || plan->protocol == AFDEP_BENCH_NCCL_P2P)
        return NULL;
    if (plan->config.ffn_ranks == 0)
        return &afdep_bench_symmetric;
    return plan->common.backend ? &afdep_bench_cuda : &afdep_bench_library;
}
