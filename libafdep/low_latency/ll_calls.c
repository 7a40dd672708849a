/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on the host backend: their actors run, now or later. */
#include <string.h>

#include "core/error.h"
#include "low_latency/ll.h"

/* ---- Running ------------------------------------------------------------------------------------------------- */

static afdep_status_t run(afdep_ll_rank_t *b)
{
    afdep_fp_state_t fp = afdep_fp_enter();
    afdep_status_t status = afdep_host_run(&b->host);
    afdep_fp_leave(fp);
    return status;
}

/* Steps the call under way as far as it goes without waiting; DONE with its status in *result, or AGAIN. */
static afdep_status_t try(afdep_ll_rank_t *b, afdep_status_t *result)
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

static void begin(afdep_ll_rank_t *b, afdep_ll_plane_t *p, afdep_ll_half_t half)
{
    if (half == AFDEP_LL_DISPATCH)
        afdep_ll_begin_receive(b, p);
    else
        afdep_ll_begin_reduce(b, p);
}

static void end(afdep_ll_rank_t *b, afdep_ll_plane_t *p, afdep_ll_half_t half)
{
    if (half == AFDEP_LL_DISPATCH)
        afdep_ll_end_receive(b, p);
    else
        afdep_ll_end_reduce(b, p);
}

static afdep_status_t complete(afdep_ll_rank_t *b, afdep_ll_plane_t *p, afdep_ll_half_t half)
{
    begin(b, p, half);
    afdep_status_t status = run(b);
    if (status == AFDEP_OK)
        end(b, p, half);
    return status;
}

/* What is sent is completed now, or by the hook or event that the caller is given. */
static afdep_status_t complete_or_defer(afdep_ll_rank_t *b, afdep_ll_plane_t *p, afdep_ll_half_t half, int async,
                                        int hook, afdep_ll_event_t *event_out, afdep_ll_hook_t *hook_out)
{
    if (async)
        afdep_ll_name_half(&b->ledger, p->exchange, half, event_out->opaque);
    if (hook)
        afdep_ll_name_half(&b->ledger, p->exchange, half, hook_out->opaque);
    return async || hook ? AFDEP_OK : complete(b, p, half);
}

/* ---- Dispatch ------------------------------------------------------------------------------------------------ */

afdep_status_t afdep_ll_start_dispatch(afdep_ll_rank_t *b, afdep_ll_dispatch_t *d)
{
    afdep_status_t status = afdep_host_check(&b->host);
    return status == AFDEP_OK ? afdep_ll_begin_dispatch(b, d) : status;
}

void afdep_ll_end_dispatch(afdep_ll_rank_t *b, afdep_ll_dispatch_t *d)
{
    afdep_ll_set_stage(&b->ledger, b->plane->exchange, AFDEP_LL_SENT);
    d->resolved = b->plane->format;
    d->handle = afdep_ll_handle_of(&b->ledger, b->plane->exchange);
}

afdep_status_t afdep_ll_dispatch_now(void *rank, afdep_ll_dispatch_t *d)
{
    afdep_ll_rank_t *b = rank;
    afdep_status_t status = afdep_ll_start_dispatch(b, d);
    if (status == AFDEP_OK)
        status = run(b);
    if (status != AFDEP_OK)
        return status;
    afdep_ll_end_dispatch(b, d);
    status =
        complete_or_defer(b, b->plane, AFDEP_LL_DISPATCH, d->async_finish, d->return_recv_hook, &d->event, &d->hook);
    return status == AFDEP_OK ? afdep_ll_route_status(b) : status;
}

/* ---- Combine ------------------------------------------------------------------------------------------------- */

afdep_status_t afdep_ll_start_combine(afdep_ll_rank_t *b, afdep_ll_combine_t *c)
{
    uint64_t exchange = 0;
    afdep_status_t status = afdep_host_check(&b->host);
    if (status == AFDEP_OK)
        status = afdep_ll_find_combine(&b->ledger, &c->handle, &exchange);
    if (status != AFDEP_OK)
        return status;
    b->plane = afdep_ll_plane_of(b, exchange);
    return afdep_ll_begin_combine(b, c);
}

void afdep_ll_end_combine(afdep_ll_rank_t *b, afdep_ll_combine_t *c)
{
    afdep_ll_set_stage(&b->ledger, b->plane->exchange, AFDEP_LL_RETURNED);
    b->ledger.combined = b->plane->exchange;
    c->combined_x = b->plane->combine.combined_x;
}

afdep_status_t afdep_ll_combine_now(void *rank, afdep_ll_combine_t *c)
{
    afdep_ll_rank_t *b = rank;
    afdep_status_t status = afdep_ll_start_combine(b, c);
    if (status == AFDEP_OK)
        status = run(b);
    if (status != AFDEP_OK)
        return status;
    afdep_ll_end_combine(b, c);
    return complete_or_defer(b, b->plane, AFDEP_LL_COMBINE, c->async_finish, c->return_recv_hook, &c->event, &c->hook);
}

afdep_status_t afdep_ll_combine_buffer(void *rank, const afdep_ll_handle_t *handle, void **x)
{
    afdep_ll_rank_t *b = rank;
    uint64_t exchange = 0;
    afdep_status_t status = afdep_ll_find_handle(&b->ledger, handle, "ll_next_combine_buffer", &exchange);
    if (status == AFDEP_OK)
        *x = afdep_ll_plane_of(b, exchange)->combine_buffer;
    return status;
}

/* ---- Hooks and events ---------------------------------------------------------------------------------------- */

/* The plane and half behind what a call gave, and whether that has completed. */
static afdep_status_t find(afdep_ll_rank_t *b, const uint64_t opaque[2], const char *call, afdep_ll_plane_t **plane,
                           afdep_ll_half_t *half, int *done)
{
    uint64_t exchange = 0;
    afdep_status_t status = afdep_ll_find_half(&b->ledger, opaque, call, &exchange, half, done);
    if (status != AFDEP_OK)
        return status;
    *plane = afdep_ll_plane_of(b, exchange);
    return afdep_host_check(&b->host);
}

afdep_status_t afdep_ll_call_hook(void *rank, const afdep_ll_hook_t *hook)
{
    afdep_ll_rank_t *b = rank;
    afdep_ll_plane_t *p;
    afdep_ll_half_t half;
    int done;
    afdep_status_t status = find(b, hook->opaque, "ll_hook_call", &p, &half, &done);
    if (status == AFDEP_OK && done)
        status = afdep_fail(AFDEP_ERR_ORDER, "ll_hook_call: the hook of exchange %llu was called before",
                            (unsigned long long)hook->opaque[1]);
    return status == AFDEP_OK ? complete(b, p, half) : status;
}

afdep_status_t afdep_ll_wait_event(void *rank, const afdep_ll_event_t *event)
{
    afdep_ll_rank_t *b = rank;
    afdep_ll_plane_t *p;
    afdep_ll_half_t half;
    int done;
    afdep_status_t status = find(b, event->opaque, "ll_event_wait", &p, &half, &done);
    return status == AFDEP_OK && !done ? complete(b, p, half) : status;
}

afdep_status_t afdep_ll_query_event(void *rank, const afdep_ll_event_t *event, int *done)
{
    afdep_ll_rank_t *b = rank;
    afdep_ll_plane_t *p;
    afdep_ll_half_t half;
    afdep_status_t result = AFDEP_OK, status = find(b, event->opaque, "ll_event_query", &p, &half, done);
    if (status != AFDEP_OK || *done)
        return status;
    begin(b, p, half);
    *done = try(b, &result) == AFDEP_DONE;
    if (*done && result == AFDEP_OK)
        end(b, p, half);
    return result;
}
