/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: opening after all ranks agree, the caller's structs as this version knows them, handing on. */
#ifdef HAVE_CONFIG_H
#include <config.h> /* of the build, not the one beside this file */
#endif

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/agreement.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/group.h"
#include "low_latency/ll_backend.h"

static const afdep_ll_backend_t *const backends[] = {
    &afdep_ll_backend_host,
#ifdef AFDEP_HAVE_CUDA
    &afdep_ll_backend_cuda,
#endif
};

struct afdep_ll_buffer {
    const afdep_ll_backend_t *backend;
    void *rank;
    int ranks;
};

afdep_status_t afdep_ll_find_backend(const char *name, const afdep_ll_backend_t **backend)
{
    const char *wanted = name && *name ? name : afdep_ll_backend_host.name;
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++)
        if (strcmp(backends[i]->name, wanted) == 0) {
            *backend = backends[i];
            return AFDEP_OK;
        }
    if (strcmp(wanted, "cuda") == 0)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "backend is \"cuda\": this build has no CUDA backend");
    return afdep_fail(AFDEP_ERR_CONFIG, "backend is \"%.60s\": host or cuda is wanted", wanted);
}

void *afdep_ll_rank_of(const afdep_ll_buffer_t *buffer)
{
    return buffer->rank;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* What all ranks must say alike. */
static void claim(const afdep_ll_settings_t *s, const char *fabric, char *lines, size_t size)
{
    snprintf(
        lines, size,
        "api=low-latency\nnum_max_dispatch_tokens_per_rank=%d\nhidden=%d\nnum_topk=%d\nnum_experts=%d\nprofile=%s\n"
        "ranks_per_domain=%d\nbuffer_bytes=%llu\ntimeout_ms=%d\nint8_fallback=%d\nfirst_exchange=%llu\nbackend=%s\n"
        "fabric=%s\nnative_tree=%s%s\n",
        s->shape.max_tokens, s->shape.hidden, s->shape.top_k, s->shape.experts, afdep_ll_profile_name(s->profile),
        s->ranks_per_domain, (unsigned long long)s->configured, s->timeout_ms, s->int8_fallback,
        (unsigned long long)s->first_exchange, s->backend->name, fabric, afdep_native_tree(),
        afdep_native_tree_dirty() ? " (dirty)" : "");
}

static afdep_status_t resolve(const afdep_group_t *group, const afdep_ll_config_t *config, afdep_ll_settings_t *s,
                              const afdep_fabric_provider_t **fabric)
{
    afdep_status_t status = afdep_ll_settings_resolve(config, group->size, s);
    if (status == AFDEP_OK)
        status = afdep_ll_check_bytes(s->profile, &s->shape, s->hosts, s->required, s->configured);
    return status == AFDEP_OK ? afdep_find_fabric_for(s->backend->name, group, s->fabric, fabric) : status;
}

static afdep_status_t open_buffer(const afdep_group_t *group, const afdep_ll_config_t *config, afdep_ll_buffer_t **out)
{
    const afdep_fabric_provider_t *fabric = NULL;
    afdep_ll_settings_t settings;
    char lines[1024] = "";
    afdep_ll_buffer_t *b = calloc(1, sizeof(*b));
    /* A rank that cannot go on still agrees: the others must not wait for it. */
    afdep_status_t status =
        !out ? afdep_fail(AFDEP_ERR_ARGUMENT, "buffer is NULL")
        : b  ? resolve(group, config, &settings, &fabric)
             : afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for a low-latency buffer", group->rank);
    if (status == AFDEP_OK)
        claim(&settings, fabric->name, lines, sizeof(lines));
    status = afdep_agree_lines(group, status, lines);
    if (status == AFDEP_OK) {
        b->backend = settings.backend;
        b->ranks = group->size;
        status = b->backend->open(&settings, group, fabric, &b->rank);
    }
    if (status != AFDEP_OK) {
        free(b);
        return status;
    }
    *out = b;
    return AFDEP_OK;
}

afdep_status_t afdep_ll_buffer_open(const afdep_group_t *group, const afdep_ll_config_t *config,
                                    afdep_ll_buffer_t **out)
{
    int saved = errno;
    afdep_status_t status = afdep_group_check(group);
    if (status == AFDEP_OK)
        status = open_buffer(group, config, out);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_buffer_close(afdep_ll_buffer_t *b)
{
    if (!b)
        return AFDEP_OK;
    int saved = errno;
    afdep_status_t status = b->backend->close(b->rank);
    free(b);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_buffer_error(afdep_ll_buffer_t *b)
{
    if (!b)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "buffer is NULL");
    int saved = errno;
    afdep_status_t status = b->backend->error(b->rank);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_buffer_counters(const afdep_ll_buffer_t *b, int peer, afdep_counters_t *counters)
{
    if (!b || !counters)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is NULL", b ? "counters" : "buffer");
    if (peer < 0 || peer >= b->ranks)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "peer is %d: 0 to %d is wanted", peer, b->ranks - 1);
    int saved = errno;
    afdep_status_t status = b->backend->counters(b->rank, peer, counters);
    errno = saved;
    return status;
}

/* ---- Dispatch and combine ---------------------------------------------------------------------------------------- */

afdep_status_t afdep_ll_dispatch(afdep_ll_buffer_t *b, afdep_ll_dispatch_t *d)
{
    afdep_ll_dispatch_t known;
    if (!b || !d)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_dispatch: %s is NULL", b ? "the argument struct" : "buffer");
    int saved = errno;
    afdep_status_t status = afdep_struct_copy(&known, sizeof(known), d, d->struct_size,
                                              offsetof(afdep_ll_dispatch_t, stream), "afdep_ll_dispatch_t");
    memset(&known.handle, 0, sizeof(known.handle));
    memset(&known.event, 0, sizeof(known.event));
    memset(&known.hook, 0, sizeof(known.hook));
    if (status == AFDEP_OK)
        status = b->backend->dispatch(b->rank, &known);
    if (status == AFDEP_OK || status == AFDEP_ERR_ROUTE) {
        d->resolved = known.resolved;
        d->handle = known.handle;
        d->event = known.event;
        d->hook = known.hook;
    }
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_combine(afdep_ll_buffer_t *b, afdep_ll_combine_t *c)
{
    afdep_ll_combine_t known;
    if (!b || !c)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_combine: %s is NULL", b ? "the argument struct" : "buffer");
    int saved = errno;
    afdep_status_t status = afdep_struct_copy(&known, sizeof(known), c, c->struct_size,
                                              offsetof(afdep_ll_combine_t, stream), "afdep_ll_combine_t");
    memset(&known.event, 0, sizeof(known.event));
    memset(&known.hook, 0, sizeof(known.hook));
    if (status == AFDEP_OK)
        status = b->backend->combine(b->rank, &known);
    if (status == AFDEP_OK) {
        c->combined_x = known.combined_x;
        c->event = known.event;
        c->hook = known.hook;
    }
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_next_combine_buffer(afdep_ll_buffer_t *b, const afdep_ll_handle_t *handle, void **x)
{
    if (!b || !handle || !x)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_next_combine_buffer: %s is NULL",
                          !b   ? "buffer"
                          : !x ? "x"
                               : "handle");
    return b->backend->next_combine_buffer(b->rank, handle, x);
}

/* ---- Hooks and events -------------------------------------------------------------------------------------------- */

afdep_status_t afdep_ll_hook_call(afdep_ll_buffer_t *b, const afdep_ll_hook_t *hook)
{
    if (!b || !hook)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_hook_call: %s is NULL", b ? "hook" : "buffer");
    int saved = errno;
    afdep_status_t status = b->backend->hook_call(b->rank, hook);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_event_wait(afdep_ll_buffer_t *b, const afdep_ll_event_t *event)
{
    if (!b || !event)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_event_wait: %s is NULL", b ? "event" : "buffer");
    int saved = errno;
    afdep_status_t status = b->backend->event_wait(b->rank, event);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_event_query(afdep_ll_buffer_t *b, const afdep_ll_event_t *event, int *done)
{
    if (!b || !event || !done)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_event_query: %s is NULL", !b ? "buffer" : !done ? "done" : "event");
    int saved = errno, finished = 0;
    afdep_status_t status = b->backend->event_query(b->rank, event, &finished);
    if (status == AFDEP_OK)
        *done = finished;
    errno = saved;
    return status;
}
