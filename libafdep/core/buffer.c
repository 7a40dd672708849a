/* SPDX-License-Identifier: Apache-2.0 */
/* The public buffer: opens backend and fabric after all ranks agree, checks arguments, hands calls on. */
#ifdef HAVE_CONFIG_H
#include <config.h> /* of the build, not the one beside this file */
#endif

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/agreement.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/group.h"
#include "numerics/numerics.h"
#ifdef AFDEP_HAVE_CUDA
#include "cuda/fabric.h"
#endif

static const afdep_backend_t *const backends[] = {
    &afdep_backend_host,
#ifdef AFDEP_HAVE_CUDA
    &afdep_backend_cuda,
#endif
};

struct afdep_buffer {
    const afdep_backend_t *backend;
    void *state;
    afdep_settings_t settings;
    char fabric[16];
    int rank;
};

static const afdep_backend_t *find_backend(const char *name)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}

#ifdef AFDEP_HAVE_CUDA
/* The CUDA backend's fabrics keep segments in device memory; no other fabric does. The first is the default. */
static const afdep_device_provider_t *const device_fabrics[] = {
    &afdep_device_peer,
#ifdef AFDEP_HAVE_NCCL
    &afdep_device_nccl,
#endif
};

/* As afdep_find_fabric(): the group's own of a device fabric's name may be it with something around it. */
static afdep_status_t find_device_fabric(const afdep_group_t *group, const char *name,
                                         const afdep_fabric_provider_t **fabric)
{
    const char *wanted = *name ? name : afdep_device_peer.super.name;
    *fabric = NULL;
    for (size_t i = 0; i < sizeof(device_fabrics) / sizeof(device_fabrics[0]); i++)
        if (strcmp(wanted, device_fabrics[i]->super.name) == 0)
            *fabric = group->fabrics && strcmp(wanted, group->fabrics->name) == 0 ? group->fabrics
                                                                                  : &device_fabrics[i]->super;
    if (*fabric)
        return AFDEP_OK;
    if (strcmp(wanted, "nccl") == 0)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"nccl\": this build has no NCCL");
    return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"%s\": backend \"cuda\" has peer and nccl", name);
}
#endif

/* The fabric that was asked for, or the group's own, or shm. A forced fabric never touches another. The group's own
   goes before shm of that name: it may be shm with something around it. */
afdep_status_t afdep_find_fabric(const afdep_group_t *group, const char *name, const afdep_fabric_provider_t **fabric)
{
    static const char *const not_built[] = { "peer", "nccl" };
    *fabric = NULL;
    if (!*name) {
        *fabric = group->fabrics ? group->fabrics : &afdep_fabric_shm;
        return AFDEP_OK;
    }
    if (group->fabrics && strcmp(name, group->fabrics->name) == 0)
        *fabric = group->fabrics;
    else if (strcmp(name, afdep_fabric_shm.name) == 0)
        *fabric = &afdep_fabric_shm;
    if (*fabric)
        return AFDEP_OK;
    if (strcmp(name, "mpi") == 0)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"mpi\": it needs a group made by afdep_group_mpi_create");
#ifdef AFDEP_HAVE_CUDA
    for (size_t i = 0; i < sizeof(device_fabrics) / sizeof(device_fabrics[0]); i++)
        if (strcmp(name, device_fabrics[i]->super.name) == 0)
            return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"%s\": backend \"cuda\" is wanted with it", name);
#endif
    for (size_t i = 0; i < sizeof(not_built) / sizeof(not_built[0]); i++)
        if (strcmp(name, not_built[i]) == 0)
            return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"%s\": this build does not have it", name);
    if (strcmp(name, "sim") == 0)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"sim\": it runs all ranks in one thread, under a "
                          "scheduler of its own (afdep-validate --suite explore)");
    return afdep_fail(AFDEP_ERR_CONFIG, "fabric is \"%s\": shm or mpi is wanted", name);
}

afdep_status_t afdep_find_fabric_for(const char *backend, const afdep_group_t *group, const char *name,
                                     const afdep_fabric_provider_t **fabric)
{
#ifdef AFDEP_HAVE_CUDA
    if (strcmp(backend, afdep_backend_cuda.name) == 0)
        return find_device_fabric(group, name, fabric);
#endif
    (void)backend;
    return afdep_find_fabric(group, name, fabric);
}

static afdep_status_t resolve(const afdep_group_t *group, const afdep_config_t *config, afdep_settings_t *settings,
                              const afdep_fabric_provider_t **fabric)
{
    afdep_status_t status = afdep_settings_resolve(config, group->size, settings);
    if (status != AFDEP_OK)
        return status;
    if (!afdep_row_ops(*settings->row_ops ? settings->row_ops : NULL))
        return afdep_fail(AFDEP_ERR_CONFIG, "AFDEP_ROW_OPS is \"%s\": this machine has no such row loops",
                          settings->row_ops);
    int across = settings->shape.protocol == AFDEP_PROTOCOL_DIRECTIONAL && strcmp(settings->backend, "cuda") == 0;
    if (afdep_nic_modelled(&settings->nic) && (!across || settings->shape.union_buffers))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "AFDEP_NIC_...: a NIC is modelled by the CUDA backend across domains "
                          "only, and without united buffers");
    status = afdep_find_fabric_for(settings->backend, group, settings->fabric, fabric);
    if (status == AFDEP_OK && settings->shape.survive_sources && strcmp((*fabric)->name, "mpi") == 0)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "survive_sources is 1: a death under MPI ends the whole job");
    return status;
}

afdep_status_t afdep_buffer_open(const afdep_group_t *group, const afdep_config_t *config, afdep_buffer_t **out)
{
    int saved = errno;
    afdep_status_t status = afdep_group_check(group);
    if (status != AFDEP_OK)
        return status;
    afdep_buffer_t *buffer = calloc(1, sizeof(*buffer));
    const afdep_fabric_provider_t *fabric = NULL;
    /* A rank that cannot go on still agrees: the others must not wait for it. */
    if (!out)
        status = afdep_fail(AFDEP_ERR_ARGUMENT, "buffer is NULL");
    else
        status = buffer ? resolve(group, config, &buffer->settings, &fabric)
                        : afdep_fail(AFDEP_ERR_MEMORY, "no memory for a buffer");
    status = afdep_agree(group, status, buffer ? &buffer->settings : NULL, fabric ? fabric->name : "");
    if (status != AFDEP_OK)
        goto free_buffer;
    buffer->rank = group->rank;
    buffer->backend = find_backend(buffer->settings.backend);
    strncpy(buffer->fabric, fabric->name, sizeof(buffer->fabric) - 1);
    status = buffer->backend->open(&buffer->settings, group, fabric, &buffer->state);
    if (status != AFDEP_OK)
        goto free_buffer;
    *out = buffer;
    errno = saved;
    return AFDEP_OK;

free_buffer:
    free(buffer);
    errno = saved;
    return status;
}

afdep_status_t afdep_buffer_close(afdep_buffer_t *buffer)
{
    if (!buffer)
        return AFDEP_OK;
    int saved = errno;
    afdep_status_t status = buffer->backend->close(buffer->state);
    free(buffer);
    errno = saved;
    return status;
}

afdep_status_t afdep_buffer_lost(afdep_buffer_t *buffer, int32_t *ranks, int32_t room, int32_t *count)
{
    if (!buffer || !count || room < 0 || (!ranks && room > 0))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "buffer_lost: %s", !buffer ? "buffer is NULL" : !count ? "count is NULL"
                          : room < 0 ? "room is negative" : "ranks is NULL and room is not 0");
    int saved = errno;
    *count = buffer->backend->lost ? buffer->backend->lost(buffer->state, ranks, room) : 0;
    errno = saved;
    return AFDEP_OK;
}

/* What keeps this rank from being opened anew; the others must not wait for it. */
static afdep_status_t check_readmit(afdep_buffer_t *buffer, const afdep_group_t *group,
                                    const afdep_fabric_provider_t **fabric)
{
    const afdep_shape_t *s = &buffer->settings.shape;
    if (!s->survive_sources)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "buffer_readmit: the buffer was opened without survive_sources");
    if (group->size != s->ranks || group->rank != buffer->rank)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "buffer_readmit: the group has rank %d of %d: rank %d of %d is wanted",
                          group->rank, group->size, buffer->rank, s->ranks);
    afdep_status_t status = buffer->backend->quiet(buffer->state);
    return status == AFDEP_OK ? afdep_find_fabric(group, buffer->settings.fabric, fabric) : status;
}

afdep_status_t afdep_buffer_readmit(afdep_buffer_t *buffer, const afdep_group_t *group)
{
    if (!buffer)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "buffer is NULL");
    int saved = errno;
    const afdep_fabric_provider_t *fabric = NULL;
    void *state = NULL;
    afdep_status_t status = afdep_group_check(group);
    if (status != AFDEP_OK)
        return status;
    status = check_readmit(buffer, group, &fabric);
    status = afdep_agree(group, status, &buffer->settings, fabric ? fabric->name : "");
    if (status == AFDEP_OK)
        status = buffer->backend->open(&buffer->settings, group, fabric, &state);
    if (status == AFDEP_OK) { /* all ranks are here, so nobody uses the old one any more */
        buffer->backend->abandon(buffer->state);
        buffer->state = state;
    }
    errno = saved;
    return status;
}

afdep_status_t afdep_buffer_error(afdep_buffer_t *buffer)
{
    if (!buffer)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "buffer is NULL");
    int saved = errno;
    afdep_status_t status = buffer->backend->error(buffer->state);
    errno = saved;
    return status;
}

static void fill_memory(afdep_memory_t *m, const afdep_settings_t *settings, int32_t bucket)
{
    const afdep_shape_t *s = &settings->shape;
    const afdep_row_format_t *row = &settings->layout.row;
    const afdep_backend_t *backend = find_backend(settings->backend);
    m->ffn_segment = backend->segment_bytes(settings, 1);
    m->attention_segment = backend->segment_bytes(settings, 0);
    m->ffn_private = backend->private_bytes(settings, 1);
    m->attention_private = backend->private_bytes(settings, 0);
    m->receive_rows = afdep_receive_rows(s, bucket);
    m->receive_bytes = (uint64_t)m->receive_rows * (row->payload_bytes + row->scale_bytes + 4u + 8u);
    m->reply_bytes = (uint64_t)m->receive_rows * row->reply_payload_bytes;
}

afdep_status_t afdep_buffer_bytes(const afdep_config_t *config, int size, int32_t bucket, afdep_memory_t *memory)
{
    afdep_settings_t settings;
    if (!memory)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "memory is NULL");
    afdep_status_t status = afdep_settings_resolve(config, size, &settings);
    if (status != AFDEP_OK)
        return status;
    if (bucket < 0 || bucket > settings.shape.capacity)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "bucket is %d: 0 to capacity, %d, is wanted", bucket,
                          settings.shape.capacity);
    afdep_memory_t m = { .struct_size = sizeof(m) };
    fill_memory(&m, &settings, bucket ? bucket : settings.shape.capacity);
    return afdep_struct_give(memory, memory->struct_size, offsetof(afdep_memory_t, receive_rows), &m, sizeof(m),
                             "afdep_memory_t");
}

afdep_status_t afdep_buffer_info(const afdep_buffer_t *buffer, afdep_buffer_info_t *info)
{
    if (!buffer || !info)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is NULL", buffer ? "info" : "buffer");
    const afdep_settings_t *settings = &buffer->settings;
    const afdep_shape_t *s = &settings->shape;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    afdep_buffer_info_t i = {
        .struct_size = sizeof(i),
        .rank = buffer->rank,
        .size = s->ranks,
        .ffn_ranks = s->ffn_ranks,
        .attention_ranks = s->attention_ranks,
        .ranks_per_domain = s->ranks_per_domain,
        .ffn_domains = s->ffn_domains,
        .attention_domains = s->attention_domains,
        .channels = s->channels,
        .num_sms = s->num_sms,
        .capacity = s->capacity,
        .in_flight = s->in_flight,
        .timeout_ms = settings->timeout_ms,
        .expert_alignment = s->expert_alignment,
        .stagger = s->stagger,
        .sparse_dispatch = s->sparse_dispatch,
        .sparse_combine = s->sparse_combine,
        /* Kernels choose the plane, so that where a view stands is known beforehand with one plane only. */
        .source_view = direct && s->ffn_ranks == 1 && (s->in_flight == 1 || buffer->backend == &afdep_backend_host),
        .flags = settings->flags,
        .dtype = s->fp8 ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16,
        .protocol = afdep_protocol_name(s),
        .backend = buffer->backend->name,
        .fabric = buffer->fabric,
        .segment_bytes = buffer->backend->segment_bytes(settings, afdep_is_ffn(s, buffer->rank)),
        .private_bytes = buffer->backend->private_bytes(settings, afdep_is_ffn(s, buffer->rank)),
        .exchanges = buffer->backend->exchanges(buffer->state),
        .fp8_combine = s->fp8_combine,
        .fp8_combine_min_bucket = s->fp8_combine_min_bucket,
    };
    if (buffer->backend->gin)
        buffer->backend->gin(buffer->state, &i);
    return afdep_struct_give(info, info->struct_size, offsetof(afdep_buffer_info_t, channels), &i, sizeof(i),
                             "afdep_buffer_info_t");
}

afdep_status_t afdep_counters_give(const afdep_peer_counters_t *p, afdep_counters_t *counters)
{
    afdep_counters_t c = {
        .struct_size = sizeof(c),
        .puts = p->puts,
        .put_bytes = p->put_bytes,
        .finish_tails = p->signals[AFDEP_SIGNAL_FINISH_TAIL],
        .count_words = p->signals[AFDEP_SIGNAL_COUNT_WORD],
        .progress_tails = p->signals[AFDEP_SIGNAL_PROGRESS_TAIL],
        .combines = p->signals[AFDEP_SIGNAL_COMBINE],
        .witnesses = p->signals[AFDEP_SIGNAL_WITNESS],
        .domain_words = p->signals[AFDEP_SIGNAL_DOMAIN_WORD],
        .control_words = p->signals[AFDEP_SIGNAL_CONTROL],
    };
    return afdep_struct_give(counters, counters->struct_size, offsetof(afdep_counters_t, finish_tails), &c, sizeof(c),
                "afdep_counters_t");
}

afdep_status_t afdep_buffer_counters(const afdep_buffer_t *buffer, int peer, afdep_counters_t *counters)
{
    if (!buffer || !counters)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is NULL", buffer ? "counters" : "buffer");
    if (peer < 0 || peer >= buffer->settings.shape.ranks)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "peer is %d: 0 to %d is wanted", peer, buffer->settings.shape.ranks - 1);
    return afdep_counters_give(&buffer->backend->counters(buffer->state)[peer], counters);
}

afdep_status_t afdep_buffer_load(const afdep_buffer_t *buffer, afdep_load_t *load)
{
    if (!buffer || !load)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is NULL", buffer ? "load" : "buffer");
    afdep_load_t known;
    afdep_status_t status = afdep_struct_copy(&known, sizeof(known), load, load->struct_size, sizeof(known),
                                              "afdep_load_t");
    if (status == AFDEP_OK)
        status = buffer->backend->load(buffer->state, &known);
    if (status == AFDEP_OK)
        load->exchanges = known.exchanges;
    return status;
}

/* ---- Role calls: who may make them, and the caller's struct as this version knows it ------------------------- */

/* Sizes of the first version's structs, which callers built then go on passing: never changed when fields are added. */
#define UP_TO(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))
#define FIRST_DISPATCH UP_TO(afdep_dispatch_t, weights)
#define FIRST_COLLECT UP_TO(afdep_collect_t, tokens)
#define FIRST_RECEIVE UP_TO(afdep_receive_t, receipt)
#define FIRST_REPLY UP_TO(afdep_reply_t, receipt)

static afdep_status_t check_call(const afdep_buffer_t *buffer, const void *argument, int ffn, const char *call)
{
    if (!buffer || !argument)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s is NULL", call, buffer ? "the argument struct" : "buffer");
    if (afdep_is_symmetric(&buffer->settings.shape))
        return afdep_fail(AFDEP_ERR_ROLE, "%s: rank %d is a symmetric rank: elastic_dispatch and elastic_combine are "
                          "its calls", call, buffer->rank);
    if (afdep_is_ffn(&buffer->settings.shape, buffer->rank) != ffn)
        return afdep_fail(AFDEP_ERR_ROLE, "%s: rank %d is %s rank", call, buffer->rank,
                          ffn ? "an Attention" : "an FFN");
    return AFDEP_OK;
}

afdep_status_t afdep_source_dispatch(afdep_buffer_t *buffer, const afdep_dispatch_t *dispatch, afdep_stream_t stream)
{
    int saved = errno;
    afdep_dispatch_t known;
    afdep_status_t status = check_call(buffer, dispatch, 0, "source_dispatch");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&known, sizeof(known), dispatch, dispatch->struct_size, FIRST_DISPATCH,
                                   "afdep_dispatch_t");
    if (status == AFDEP_OK)
        status = buffer->backend->dispatch(buffer->state, &known, stream);
    errno = saved;
    return status;
}

afdep_status_t afdep_source_dispatch_complete(afdep_buffer_t *buffer)
{
    int saved = errno;
    afdep_status_t status = check_call(buffer, buffer, 0, "source_dispatch_complete");
    if (status == AFDEP_OK)
        status = buffer->backend->complete(buffer->state);
    errno = saved;
    return status;
}

afdep_status_t afdep_source_collect(afdep_buffer_t *buffer, afdep_collect_t *collect, afdep_stream_t stream)
{
    int saved = errno;
    afdep_collect_t known;
    afdep_status_t status = check_call(buffer, collect, 0, "source_collect");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&known, sizeof(known), collect, collect->struct_size, FIRST_COLLECT,
                                   "afdep_collect_t");
    if (status == AFDEP_OK)
        status = buffer->backend->collect(buffer->state, &known, stream);
    if (status == AFDEP_OK)
        status =
            afdep_struct_give(collect, collect->struct_size, FIRST_COLLECT, &known, sizeof(known), "afdep_collect_t");
    errno = saved;
    return status;
}

afdep_status_t afdep_worker_receive(afdep_buffer_t *buffer, afdep_receive_t *receive, afdep_stream_t stream)
{
    int saved = errno;
    afdep_receive_t known;
    afdep_status_t status = check_call(buffer, receive, 1, "worker_receive");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&known, sizeof(known), receive, receive->struct_size, FIRST_RECEIVE,
                                   "afdep_receive_t");
    afdep_status_t copied = status;
    if (status == AFDEP_OK)
        status = buffer->backend->receive(buffer->state, &known, stream);
    if (copied == AFDEP_OK) /* also after an error: how much room to come back with, and what `allocate` has set */
        (void)afdep_struct_give(receive, receive->struct_size, FIRST_RECEIVE, &known, sizeof(known), "afdep_receive_t");
    errno = saved;
    return status;
}

afdep_status_t afdep_worker_reply(afdep_buffer_t *buffer, const afdep_reply_t *reply, afdep_stream_t stream)
{
    int saved = errno;
    afdep_reply_t known;
    afdep_status_t status = check_call(buffer, reply, 1, "worker_reply");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&known, sizeof(known), reply, reply->struct_size, FIRST_REPLY, "afdep_reply_t");
    if (status == AFDEP_OK)
        status = buffer->backend->reply(buffer->state, &known, stream);
    errno = saved;
    return status;
}

/* ---- Elastic calls: a symmetric rank's, two role calls in one ------------------------------------------------- */

static afdep_status_t check_elastic(const afdep_buffer_t *buffer, const void *first, const void *second,
                                    const char *call)
{
    if (!buffer || !first || !second)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s is NULL", call, buffer ? "an argument struct" : "buffer");
    if (!afdep_is_symmetric(&buffer->settings.shape))
        return afdep_fail(AFDEP_ERR_ROLE, "%s: rank %d is %s rank: only a symmetric buffer, ffn_ranks 0, has this call",
                          call, buffer->rank,
                          afdep_is_ffn(&buffer->settings.shape, buffer->rank) ? "an FFN" : "an Attention");
    return AFDEP_OK;
}

afdep_status_t afdep_elastic_dispatch(afdep_buffer_t *buffer, const afdep_dispatch_t *dispatch,
                                      afdep_receive_t *receive, afdep_stream_t stream)
{
    int saved = errno;
    afdep_dispatch_t sent;
    afdep_receive_t known;
    afdep_status_t status = check_elastic(buffer, dispatch, receive, "elastic_dispatch");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&sent, sizeof(sent), dispatch, dispatch->struct_size, FIRST_DISPATCH,
                                   "afdep_dispatch_t");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&known, sizeof(known), receive, receive->struct_size, FIRST_RECEIVE,
                                   "afdep_receive_t");
    if (status == AFDEP_OK && sent.send_only)
        status =
            afdep_fail(AFDEP_ERR_UNSUPPORTED, "elastic_dispatch: send_only is set: this dispatch is a receive too");
    afdep_status_t copied = status;
    if (status == AFDEP_OK)
        status = buffer->backend->elastic_dispatch(buffer->state, &sent, &known, stream);
    if (copied == AFDEP_OK)
        (void)afdep_struct_give(receive, receive->struct_size, FIRST_RECEIVE, &known, sizeof(known), "afdep_receive_t");
    errno = saved;
    return status;
}

afdep_status_t afdep_elastic_combine(afdep_buffer_t *buffer, const afdep_reply_t *reply, afdep_collect_t *collect,
                                     afdep_stream_t stream)
{
    int saved = errno;
    afdep_reply_t sent;
    afdep_collect_t known;
    afdep_status_t status = check_elastic(buffer, reply, collect, "elastic_combine");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&sent, sizeof(sent), reply, reply->struct_size, FIRST_REPLY, "afdep_reply_t");
    if (status == AFDEP_OK)
        status = afdep_struct_copy(&known, sizeof(known), collect, collect->struct_size, FIRST_COLLECT,
                                   "afdep_collect_t");
    if (status == AFDEP_OK)
        status = buffer->backend->elastic_combine(buffer->state, &sent, &known, stream);
    if (status == AFDEP_OK)
        status =
            afdep_struct_give(collect, collect->struct_size, FIRST_COLLECT, &known, sizeof(known), "afdep_collect_t");
    errno = saved;
    return status;
}
