/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of the low-latency API on a GPU: what the caller handed in is checked, and the call's kernel launched. */
#include <string.h>

#include "core/error.h"
#include "cuda/ll_rank.h"

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static afdep_status_t failed(afdep_ll_cuda_t *b, cudaError_t error, const char *call)
{
    return afdep_cuda_poison(&b->c, afdep_fail(AFDEP_ERR_TRANSPORT, "%s: the kernel could not be launched: %s", call,
                                               cudaGetErrorString(error)));
}

static int is_capturing(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream, &status);
    return status != cudaStreamCaptureStatusNone;
}

static cudaError_t follow(afdep_ll_cuda_t *b, cudaStream_t stream, cudaStream_t before)
{
    cudaError_t error = cudaEventRecord(b->order, before);
    return error == cudaSuccess ? cudaStreamWaitEvent(stream, b->order, 0) : error;
}

/* Whatever stream the last kernel was put on, the next one comes after it. What was recorded into a graph and what
   was not have no order that an event could give them: there it is the caller's, as with any graph. */
static cudaError_t keep_order(afdep_ll_cuda_t *b, cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    if (b->launched && b->last_stream != stream && is_capturing(b->last_stream) == is_capturing(stream))
        error = follow(b, stream, b->last_stream);
    b->launched = 1;
    b->last_stream = stream;
    return error;
}

/* The stream of a call that may finish later: one of the buffer's own, behind what the caller's holds now. */
static cudaError_t choose_stream(afdep_ll_cuda_t *b, cudaStream_t given, int async, cudaStream_t *stream)
{
    *stream = async ? b->own_stream : given;
    cudaError_t error = async ? follow(b, b->own_stream, given) : cudaSuccess;
    return error == cudaSuccess ? keep_order(b, *stream) : error;
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

static int least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

static afdep_ll_exchange_shape_t exchange_shape(const afdep_ll_shape_t *s, afdep_ll_format_t format)
{
    afdep_ll_exchange_shape_t e = { .max_tokens = s->max_tokens,
                                    .hidden = s->hidden,
                                    .top_k = s->top_k,
                                    .experts = s->experts,
                                    .local = s->experts / s->ranks,
                                    .format = (int32_t)format,
                                    .code_bytes = (int32_t)afdep_ll_code_bytes(format, s->hidden),
                                    .scale_bytes = (int32_t)afdep_ll_scale_bytes(format, s->hidden) };
    e.code_vectors = e.code_bytes / 16;
    e.vectors = e.code_vectors + (e.scale_bytes + 15) / 16;
    e.lines = afdep_lines(e.vectors);
    e.few = least(s->max_tokens, AFDEP_LL_FEW_BYTES / (16 * e.vectors));
    e.combine_vectors = s->hidden / 8;
    e.combine_lines = afdep_lines(e.combine_vectors);
    e.combine_few = least(s->max_tokens, AFDEP_LL_FEW_COMBINE_BYTES / ((int64_t)s->top_k * 2 * s->hidden));
    return e;
}

/* CTAs for so many warps of work; at least a quarter of what there is, for ranks that have more tokens than this. */
static int grid_for(const afdep_ll_cuda_t *b, int64_t units)
{
    int64_t wanted = (units + 7) / 8, floor = (b->grid + 3) / 4;
    return least(wanted > floor ? wanted : floor, b->grid);
}

static afdep_status_t launch_dispatch(afdep_ll_cuda_t *b, afdep_ll_cuda_plane_t *p, int parts, int64_t distance,
                                      cudaStream_t stream)
{
    afdep_ll_dispatch_call_t *d = &p->dispatch;
    d->parts = parts;
    d->distance = (int32_t)distance;
    int64_t lines = (int64_t)b->params.ranks * d->tokens * d->s.lines;
    cudaError_t error = afdep_ll_launch_dispatch(&b->params, d, grid_for(b, lines), stream);
    return error == cudaSuccess ? AFDEP_OK : failed(b, error, "ll_dispatch");
}

static afdep_status_t launch_combine(afdep_ll_cuda_t *b, afdep_ll_cuda_plane_t *p, int parts, int64_t distance,
                                     cudaStream_t stream)
{
    afdep_ll_combine_call_t *c = &p->combine;
    c->parts = parts;
    c->distance = (int32_t)distance;
    int grid = grid_for(b, (int64_t)c->tokens * c->s.top_k * c->s.combine_lines);
    c->senders = least(b->senders, (grid + 1) / 2);
    cudaError_t error = afdep_ll_launch_combine(&b->params, c, grid, stream);
    return error == cudaSuccess ? AFDEP_OK : failed(b, error, "ll_combine");
}

/* The half of a call that a hook still has to launch. */
static afdep_status_t launch_rest(afdep_ll_cuda_t *b, uint64_t exchange, afdep_ll_half_t half)
{
    afdep_ll_cuda_plane_t *p = &b->planes[afdep_ll_plane_index(exchange)];
    cudaStream_t stream = p->stream[half == AFDEP_LL_COMBINE];
    cudaError_t error = keep_order(b, stream);
    if (error != cudaSuccess)
        return failed(b, error, "ll_hook_call");
    if (half == AFDEP_LL_DISPATCH)
        return launch_dispatch(b, p, AFDEP_LL_RECEIVE, (int64_t)(exchange - b->ledger.started), stream);
    return launch_combine(b, p, AFDEP_LL_RECEIVE, (int64_t)(exchange - b->ledger.combined), stream);
}

static void set_done(afdep_ll_cuda_t *b, uint64_t exchange, afdep_ll_half_t half)
{
    afdep_ll_set_stage(&b->ledger, exchange, half == AFDEP_LL_DISPATCH ? AFDEP_LL_RECEIVED : AFDEP_LL_FREE);
}

/* What the caller is given for later, or that nothing is left to do. */
static afdep_status_t give_later(afdep_ll_cuda_t *b, uint64_t exchange, afdep_ll_half_t half, int async, int hook,
                                 afdep_ll_event_t *event_out, afdep_ll_hook_t *hook_out)
{
    afdep_ll_cuda_plane_t *p = &b->planes[afdep_ll_plane_index(exchange)];
    if (hook)
        afdep_ll_name_half(&b->ledger, exchange, half, hook_out->opaque);
    if (async)
        afdep_ll_name_half(&b->ledger, exchange, half, event_out->opaque);
    if (!async && !hook)
        set_done(b, exchange, half);
    cudaError_t error = async ? cudaEventRecord(p->event[half == AFDEP_LL_COMBINE], b->own_stream) : cudaSuccess;
    return error == cudaSuccess ? AFDEP_OK : failed(b, error, half == AFDEP_LL_DISPATCH ? "ll_dispatch" : "ll_combine");
}

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

static void set_dispatch(afdep_ll_cuda_plane_t *p, const afdep_ll_dispatch_t *d, const afdep_ll_shape_t *shape,
                         afdep_ll_format_t format)
{
    p->shape = *shape;
    p->tokens = d->tokens;
    p->stream[0] = (cudaStream_t)d->stream;
    p->dispatch = (afdep_ll_dispatch_call_t){ .s = exchange_shape(shape, format),
                                              .x = d->x,
                                              .ids = d->topk_idx,
                                              .weights = d->topk_weights,
                                              .tokens = d->tokens,
                                              .round_scale = d->round_scale,
                                              .recv_x = d->recv_x,
                                              .recv_scales = d->recv_x_scales,
                                              .recv_weights = d->recv_topk_weights,
                                              .recv_source = d->recv_source,
                                              .recv_count = d->recv_count,
                                              .statistics = d->cumulative_local_expert_recv_stats };
}

static afdep_status_t check_outputs(const afdep_ll_dispatch_t *d)
{
    if ((uintptr_t)d->recv_x % 16 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_dispatch: recv_x is not 16-byte aligned");
    if ((uintptr_t)d->recv_x_scales % 4 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_dispatch: recv_x_scales is not 4-byte aligned");
    if ((uintptr_t)d->recv_source % 8 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ll_dispatch: recv_source is not 8-byte aligned");
    return AFDEP_OK;
}

afdep_status_t afdep_ll_cuda_dispatch(void *rank, afdep_ll_dispatch_t *d)
{
    afdep_ll_cuda_t *b = rank;
    afdep_ll_shape_t shape;
    afdep_ll_format_t format;
    cudaStream_t stream;
    afdep_status_t status = afdep_cuda_check_call(&b->c);
    if (status == AFDEP_OK)
        status = afdep_ll_check_dispatch(&b->settings, d, &shape, &format);
    if (status == AFDEP_OK)
        status = check_outputs(d);
    if (status == AFDEP_OK)
        status = afdep_ll_may_dispatch(&b->ledger);
    if (status != AFDEP_OK)
        return status;
    afdep_status_t route = afdep_cuda_look_route(&b->c); /* of an earlier exchange: this one is under way in any case */
    if (route == AFDEP_ERR_ROUTE)
        b->c.told_route = b->c.record->route_exchange;
    uint64_t exchange = afdep_ll_start_exchange(&b->ledger);
    afdep_ll_cuda_plane_t *p = &b->planes[afdep_ll_plane_index(exchange)];
    set_dispatch(p, d, &shape, format);
    afdep_ll_set_stage(&b->ledger, exchange, AFDEP_LL_SENT);
    cudaError_t error = choose_stream(b, (cudaStream_t)d->stream, d->async_finish, &stream);
    if (error != cudaSuccess)
        return failed(b, error, "ll_dispatch");
    int parts = d->return_recv_hook ? AFDEP_LL_SEND : AFDEP_LL_SEND | AFDEP_LL_RECEIVE;
    status = launch_dispatch(b, p, parts, (int64_t)(exchange - b->ledger.combined), stream);
    if (status != AFDEP_OK)
        return status;
    d->resolved = format;
    d->handle = afdep_ll_handle_of(&b->ledger, exchange);
    status = give_later(b, exchange, AFDEP_LL_DISPATCH, d->async_finish, d->return_recv_hook, &d->event, &d->hook);
    return status == AFDEP_OK ? route : status;
}

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

afdep_status_t afdep_ll_cuda_combine(void *rank, afdep_ll_combine_t *c)
{
    afdep_ll_cuda_t *b = rank;
    uint64_t exchange = 0;
    cudaStream_t stream;
    afdep_status_t status = afdep_cuda_check_call(&b->c);
    if (status == AFDEP_OK)
        status = afdep_ll_find_combine(&b->ledger, &c->handle, &exchange);
    if (status != AFDEP_OK)
        return status;
    afdep_ll_cuda_plane_t *p = &b->planes[afdep_ll_plane_index(exchange)];
    status = afdep_ll_check_combine(c, p->tokens, &p->shape, p->combine_buffer, 1);
    if (status == AFDEP_OK && (uintptr_t)c->x % 16 != 0)
        status = afdep_fail(AFDEP_ERR_ARGUMENT, "ll_combine: x is not 16-byte aligned");
    if (status != AFDEP_OK)
        return status;
    p->stream[1] = (cudaStream_t)c->stream;
    p->combine = (afdep_ll_combine_call_t){ .s = p->dispatch.s,
                                            .x = c->zero_copy ? p->combine_buffer : c->x,
                                            .weights = c->topk_weights,
                                            .out = c->out ? c->out : p->result,
                                            .tokens = p->tokens };
    cudaError_t error = choose_stream(b, (cudaStream_t)c->stream, c->async_finish, &stream);
    if (error != cudaSuccess)
        return failed(b, error, "ll_combine");
    int parts = c->return_recv_hook ? AFDEP_LL_SEND : AFDEP_LL_SEND | AFDEP_LL_RECEIVE;
    status = launch_combine(b, p, parts, (int64_t)(exchange - b->ledger.started), stream);
    if (status != AFDEP_OK)
        return status;
    b->ledger.combined = exchange;
    afdep_ll_set_stage(&b->ledger, exchange, AFDEP_LL_RETURNED);
    c->combined_x = p->combine.out;
    return give_later(b, exchange, AFDEP_LL_COMBINE, c->async_finish, c->return_recv_hook, &c->event, &c->hook);
}

afdep_status_t afdep_ll_cuda_combine_buffer(void *rank, const afdep_ll_handle_t *handle, void **x)
{
    afdep_ll_cuda_t *b = rank;
    uint64_t exchange = 0;
    afdep_status_t status = afdep_ll_find_handle(&b->ledger, handle, "ll_next_combine_buffer", &exchange);
    if (status == AFDEP_OK)
        *x = b->planes[afdep_ll_plane_index(exchange)].combine_buffer;
    return status;
}

/* ---- Hooks and events -------------------------------------------------------------------------------------------- */

static afdep_status_t find(afdep_ll_cuda_t *b, const uint64_t opaque[2], const char *call, uint64_t *exchange,
                           afdep_ll_half_t *half, int *done)
{
    afdep_status_t status = afdep_ll_find_half(&b->ledger, opaque, call, exchange, half, done);
    return status == AFDEP_OK ? afdep_cuda_check_call(&b->c) : status;
}

afdep_status_t afdep_ll_cuda_call_hook(void *rank, const afdep_ll_hook_t *hook)
{
    afdep_ll_cuda_t *b = rank;
    uint64_t exchange = 0;
    afdep_ll_half_t half;
    int done;
    afdep_status_t status = find(b, hook->opaque, "ll_hook_call", &exchange, &half, &done);
    if (status == AFDEP_OK && done)
        status = afdep_fail(AFDEP_ERR_ORDER, "ll_hook_call: the hook of exchange %llu was called before",
                            (unsigned long long)exchange);
    if (status == AFDEP_OK)
        status = launch_rest(b, exchange, half);
    if (status == AFDEP_OK)
        set_done(b, exchange, half);
    return status;
}

afdep_status_t afdep_ll_cuda_wait_event(void *rank, const afdep_ll_event_t *event)
{
    afdep_ll_cuda_t *b = rank;
    uint64_t exchange = 0;
    afdep_ll_half_t half;
    int done;
    afdep_status_t status = find(b, event->opaque, "ll_event_wait", &exchange, &half, &done);
    if (status != AFDEP_OK || done)
        return status;
    afdep_ll_cuda_plane_t *p = &b->planes[afdep_ll_plane_index(exchange)];
    cudaError_t error = cudaStreamWaitEvent(p->stream[half == AFDEP_LL_COMBINE], p->event[half == AFDEP_LL_COMBINE], 0);
    if (error != cudaSuccess)
        return failed(b, error, "ll_event_wait");
    set_done(b, exchange, half);
    return AFDEP_OK;
}

afdep_status_t afdep_ll_cuda_query_event(void *rank, const afdep_ll_event_t *event, int *done)
{
    afdep_ll_cuda_t *b = rank;
    uint64_t exchange = 0;
    afdep_ll_half_t half;
    afdep_status_t status = find(b, event->opaque, "ll_event_query", &exchange, &half, done);
    if (status != AFDEP_OK || *done)
        return status;
    cudaError_t error = cudaEventQuery(b->planes[afdep_ll_plane_index(exchange)].event[half == AFDEP_LL_COMBINE]);
    if (error == cudaErrorNotReady)
        return AFDEP_OK;
    if (error != cudaSuccess)
        return failed(b, error, "ll_event_query");
    *done = 1;
    set_done(b, exchange, half);
    return afdep_cuda_look(&b->c); /* the kernel may have ended with an error */
}
