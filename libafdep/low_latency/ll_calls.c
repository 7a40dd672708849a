/* SPDX-License-Identifier: Apache-2.0 */
/* The calls: who may make them when, the caller's structs as this version knows them, completing now or later. */
#include <errno.h>
#include <string.h>

#include "core/error.h"
#include "low_latency/ll.h"

#define MAGIC 0x6c6f776c6174u /* "lowlat" */

/* What hooks and events name: a phase of an exchange of a buffer. */
typedef enum phase { DISPATCH = 1, COMBINE = 2 } phase_t;

static uint64_t seal(const afdep_ll_buffer_t *b, phase_t phase)
{
    return ((uint64_t)(uintptr_t)b ^ MAGIC << 8) + (uint64_t)phase;
}

/* ---- Running ------------------------------------------------------------------------------------------------- */

static afdep_status_t run(afdep_ll_buffer_t *b)
{
    afdep_fp_state_t fp = afdep_fp_enter();
    afdep_status_t status = afdep_host_run(&b->host);
    afdep_fp_leave(fp);
    return status;
}

/* Steps the call under way as far as it goes without waiting; DONE with its status in *result, or AGAIN. */
static afdep_status_t try(afdep_ll_buffer_t *b, afdep_status_t *result)
{
    afdep_status_t status = b->host.fabric->ops->progress(b->host.fabric);
    if (status != AFDEP_OK) {
        *result = afdep_host_poison(&b->host, status, -1);
        return AFDEP_DONE;
    }
    afdep_fp_state_t fp = afdep_fp_enter();
    do
        status = afdep_host_step(&b->host, 0, result);
    while (status == AFDEP_OK);
    afdep_fp_leave(fp);
    if (status == AFDEP_AGAIN && (*result = afdep_host_look(&b->host)) != AFDEP_OK)
        return AFDEP_DONE;
    return status;
}

static void begin(afdep_ll_buffer_t *b, afdep_ll_plane_t *p, phase_t phase)
{
    if (phase == DISPATCH)
        afdep_ll_begin_receive(b, p);
    else
        afdep_ll_begin_reduce(b, p);
}

static void end(afdep_ll_plane_t *p, phase_t phase)
{
    if (phase == DISPATCH)
        afdep_ll_end_receive(p);
    else
        afdep_ll_end_reduce(p);
}

static afdep_status_t complete(afdep_ll_buffer_t *b, afdep_ll_plane_t *p, phase_t phase)
{
    begin(b, p, phase);
    afdep_status_t status = run(b);
    if (status == AFDEP_OK)
        end(p, phase);
    return status;
}

/* What is sent is completed now, or by the hook or event that the caller is given. */
static afdep_status_t complete_or_defer(afdep_ll_buffer_t *b, afdep_ll_plane_t *p, phase_t phase, int async, int hook,
                                        afdep_ll_event_t *event_out, afdep_ll_hook_t *hook_out)
{
    uint64_t opaque[2] = { seal(b, phase), p->exchange };
    if (async)
        memcpy(event_out->opaque, opaque, sizeof(opaque));
    if (hook)
        memcpy(hook_out->opaque, opaque, sizeof(opaque));
    return async || hook ? AFDEP_OK : complete(b, p, phase);
}

/* ---- Dispatch ------------------------------------------------------------------------------------------------ */

afdep_status_t afdep_ll_start_dispatch(afdep_ll_buffer_t *b, afdep_ll_dispatch_t *d)
{
    memset(&d->handle, 0, sizeof(d->handle));
    memset(&d->event, 0, sizeof(d->event));
    memset(&d->hook, 0, sizeof(d->hook));
    afdep_status_t status = afdep_host_check(&b->host);
    return status == AFDEP_OK ? afdep_ll_begin_dispatch(b, d) : status;
}

void afdep_ll_end_dispatch(afdep_ll_buffer_t *b, afdep_ll_dispatch_t *d)
{
    b->plane->stage = AFDEP_LL_SENT;
    d->resolved = b->plane->format;
    d->handle.opaque[0] = seal(b, DISPATCH);
    d->handle.opaque[1] = b->plane->exchange;
}

static afdep_status_t dispatch(afdep_ll_buffer_t *b, afdep_ll_dispatch_t *d)
{
    afdep_status_t status = afdep_ll_start_dispatch(b, d);
    if (status == AFDEP_OK)
        status = run(b);
    if (status != AFDEP_OK)
        return status;
    afdep_ll_end_dispatch(b, d);
    status = complete_or_defer(b, b->plane, DISPATCH, d->async_finish, d->return_recv_hook, &d->event, &d->hook);
    return status == AFDEP_OK ? afdep_ll_route_status(b) : status;
}

afdep_status_t afdep_ll_dispatch(afdep_ll_buffer_t *b, afdep_ll_dispatch_t *d)
{
    afdep_ll_dispatch_t known;
    if (!b || !d)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_dispatch: %s is NULL", b ? "the argument struct" : "buffer");
    int saved = errno;
    afdep_status_t status = afdep_struct_copy(&known, sizeof(known), d, d->struct_size, sizeof(known),
                                              "afdep_ll_dispatch_t");
    if (status == AFDEP_OK)
        status = dispatch(b, &known);
    if (status == AFDEP_OK || status == AFDEP_ERR_ROUTE) {
        d->resolved = known.resolved;
        d->handle = known.handle;
        d->event = known.event;
        d->hook = known.hook;
    }
    errno = saved;
    return status;
}

/* ---- Combine ------------------------------------------------------------------------------------------------- */

/* The plane of a handle whose exchange awaits its combine. */
static afdep_status_t find_handle(afdep_ll_buffer_t *b, const afdep_ll_handle_t *handle, const char *call,
                                  afdep_ll_plane_t **plane)
{
    uint64_t exchange = handle->opaque[1];
    afdep_ll_plane_t *p = afdep_ll_plane_of(b, exchange);
    if (handle->opaque[0] != seal(b, DISPATCH) || handle->opaque[2] || handle->opaque[3])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: the handle is not one of this buffer's dispatches", call);
    if (p->exchange != exchange || (p->stage != AFDEP_LL_SENT && p->stage != AFDEP_LL_RECEIVED))
        return afdep_fail(AFDEP_ERR_ORDER, "%s: exchange %llu was combined before", call, (unsigned long long)exchange);
    *plane = p;
    return AFDEP_OK;
}

static afdep_status_t find_combine(afdep_ll_buffer_t *b, const afdep_ll_combine_t *c)
{
    afdep_ll_plane_t *p = NULL;
    afdep_status_t status = find_handle(b, &c->handle, "ll_combine", &p);
    if (status != AFDEP_OK)
        return status;
    if (p->stage == AFDEP_LL_SENT)
        return afdep_fail(AFDEP_ERR_ORDER, "ll_combine: exchange %llu has not received: its hook or event comes first",
                          (unsigned long long)p->exchange);
    if (p->exchange != b->combined + 1)
        return afdep_fail(AFDEP_ERR_ORDER, "ll_combine: exchange %llu comes before exchange %llu",
                          (unsigned long long)b->combined + 1, (unsigned long long)p->exchange);
    b->plane = p;
    return AFDEP_OK;
}

afdep_status_t afdep_ll_start_combine(afdep_ll_buffer_t *b, afdep_ll_combine_t *c)
{
    memset(&c->event, 0, sizeof(c->event));
    memset(&c->hook, 0, sizeof(c->hook));
    afdep_status_t status = afdep_host_check(&b->host);
    if (status == AFDEP_OK)
        status = find_combine(b, c);
    return status == AFDEP_OK ? afdep_ll_begin_combine(b, c) : status;
}

void afdep_ll_end_combine(afdep_ll_buffer_t *b, afdep_ll_combine_t *c)
{
    b->plane->stage = AFDEP_LL_RETURNED;
    b->combined = b->plane->exchange;
    c->combined_x = b->plane->combine.combined_x;
}

static afdep_status_t combine(afdep_ll_buffer_t *b, afdep_ll_combine_t *c)
{
    afdep_status_t status = afdep_ll_start_combine(b, c);
    if (status == AFDEP_OK)
        status = run(b);
    if (status != AFDEP_OK)
        return status;
    afdep_ll_end_combine(b, c);
    return complete_or_defer(b, b->plane, COMBINE, c->async_finish, c->return_recv_hook, &c->event, &c->hook);
}

afdep_status_t afdep_ll_combine(afdep_ll_buffer_t *b, afdep_ll_combine_t *c)
{
    afdep_ll_combine_t known;
    if (!b || !c)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_combine: %s is NULL", b ? "the argument struct" : "buffer");
    int saved = errno;
    afdep_status_t status = afdep_struct_copy(&known, sizeof(known), c, c->struct_size, sizeof(known),
                                              "afdep_ll_combine_t");
    if (status == AFDEP_OK)
        status = combine(b, &known);
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
    afdep_ll_plane_t *p = NULL;
    if (!b || !handle || !x)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_next_combine_buffer: %s is NULL",
                          !b   ? "buffer"
                          : !x ? "x"
                               : "handle");
    afdep_status_t status = find_handle(b, handle, "ll_next_combine_buffer", &p);
    if (status == AFDEP_OK)
        *x = p->combine_buffer;
    return status;
}

/* ---- Hooks and events ---------------------------------------------------------------------------------------- */

/* The plane and phase behind what a call gave, and whether that has completed. */
static afdep_status_t find_phase(afdep_ll_buffer_t *b, const uint64_t opaque[2], const char *call,
                                 afdep_ll_plane_t **plane, phase_t *phase, int *done)
{
    uint64_t exchange = opaque[1];
    *phase = opaque[0] == seal(b, DISPATCH) ? DISPATCH : COMBINE;
    if (opaque[0] != seal(b, *phase) || exchange <= b->host.opened_at || exchange > b->host.started)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: not one that this buffer gave", call);
    *plane = afdep_ll_plane_of(b, exchange);
    *done = (*plane)->exchange != exchange ||
            (*plane)->stage != (*phase == DISPATCH ? AFDEP_LL_SENT : AFDEP_LL_RETURNED);
    return afdep_host_check(&b->host);
}

afdep_status_t afdep_ll_hook_call(afdep_ll_buffer_t *b, const afdep_ll_hook_t *hook)
{
    afdep_ll_plane_t *p;
    phase_t phase;
    int done;
    if (!b || !hook)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_hook_call: %s is NULL", b ? "hook" : "buffer");
    int saved = errno;
    afdep_status_t status = find_phase(b, hook->opaque, "ll_hook_call", &p, &phase, &done);
    if (status == AFDEP_OK)
        status = done ? afdep_fail(AFDEP_ERR_ORDER, "ll_hook_call: the hook of exchange %llu was called before",
                                   (unsigned long long)hook->opaque[1])
                      : complete(b, p, phase);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_event_wait(afdep_ll_buffer_t *b, const afdep_ll_event_t *event)
{
    afdep_ll_plane_t *p;
    phase_t phase;
    int done;
    if (!b || !event)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_event_wait: %s is NULL", b ? "event" : "buffer");
    int saved = errno;
    afdep_status_t status = find_phase(b, event->opaque, "ll_event_wait", &p, &phase, &done);
    if (status == AFDEP_OK && !done)
        status = complete(b, p, phase);
    errno = saved;
    return status;
}

afdep_status_t afdep_ll_event_query(afdep_ll_buffer_t *b, const afdep_ll_event_t *event, int *done)
{
    afdep_ll_plane_t *p;
    phase_t phase;
    int finished;
    if (!b || !event || !done)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_event_query: %s is NULL", !b ? "buffer" : !done ? "done" : "event");
    int saved = errno;
    afdep_status_t result = AFDEP_OK, status = find_phase(b, event->opaque, "ll_event_query", &p, &phase, &finished);
    if (status == AFDEP_OK && !finished) {
        begin(b, p, phase);
        finished = try(b, &result) == AFDEP_DONE;
        status = result;
        if (finished && status == AFDEP_OK)
            end(p, phase);
    }
    if (status == AFDEP_OK)
        *done = finished;
    errno = saved;
    return status;
}
