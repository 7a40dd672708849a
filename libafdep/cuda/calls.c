/* SPDX-License-Identifier: Apache-2.0 */
/* The four role calls: what the caller handed in is checked, and the call's kernel goes onto the caller's stream. */
#include <string.h>

#include "core/error.h"
#include "cuda/cuda.h"

/* Lines that a CTA of a reply sums and sends by itself at most; beyond, other SMs sum for it. */
#define AFDEP_CUDA_LINES_SUMMED_TO_SEND 12

static afdep_status_t check_bucket(const afdep_cuda_t *c, int32_t bucket, const char *call)
{
    if (bucket < 1 || bucket > c->shape->capacity)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: bucket is %d: 1 to capacity, %d, is wanted", call, bucket,
                          c->shape->capacity);
    return AFDEP_OK;
}

static afdep_status_t check_aligned(const void *at, const char *name, const char *call)
{
    if ((uintptr_t)at % 16 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s is %p: a multiple of 16 is wanted", call, name, at);
    return AFDEP_OK;
}

/* A launch that failed left an exchange that the peers wait for. */
static afdep_status_t launched(afdep_cuda_t *c, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return AFDEP_OK;
    return afdep_cuda_poison(c, afdep_fail(AFDEP_ERR_TRANSPORT, "%s: the kernel could not be launched: %s", call,
                                           cudaGetErrorString(error)));
}

/* ---- Launching: the kernels of one domain, or those across domains ------------------------------------------------ */

/* Whether rows travel in lines: of few tokens. */
static int in_lines(const afdep_cuda_t *c, int32_t bucket)
{
    return afdep_cuda_across(c->shape) ? bucket <= c->rail.params.few_tokens : afdep_in_lines(c->shape, bucket);
}

static cudaError_t launch_dispatch(const afdep_cuda_t *c, const afdep_cuda_dispatch_t *call, int grid, cudaStream_t stream)
{
    if (!afdep_cuda_across(c->shape))
        return afdep_cuda_launch_dispatch(&c->params, call, grid, stream);
    return in_lines(c, call->bucket) ? afdep_rail_launch_dispatch_few(&c->rail.params, call, grid, stream)
                                     : c->rail.launch->dispatch(&c->rail.params, call, grid, stream);
}

static cudaError_t launch_receive(const afdep_cuda_t *c, const afdep_cuda_receive_t *call, int grid, cudaStream_t stream)
{
    if (!afdep_cuda_across(c->shape))
        return afdep_cuda_launch_receive(&c->params, call, grid, stream);
    return in_lines(c, call->bucket) ? afdep_rail_launch_receive_few(&c->rail.params, call, grid, stream)
                                     : c->rail.launch->receive(&c->rail.params, call, grid, stream);
}

static cudaError_t launch_reply(const afdep_cuda_t *c, const afdep_cuda_reply_t *call, int grid, cudaStream_t stream)
{
    if (!afdep_cuda_across(c->shape))
        return afdep_cuda_launch_reply(&c->params, call, grid, stream);
    return in_lines(c, call->bucket) ? afdep_rail_launch_reply_few(&c->rail.params, call, grid, stream)
                                     : c->rail.launch->reply(&c->rail.params, call, grid, stream);
}

static cudaError_t launch_collect(const afdep_cuda_t *c, const afdep_cuda_collect_t *call, int grid, cudaStream_t stream)
{
    if (!afdep_cuda_across(c->shape))
        return afdep_cuda_launch_collect(&c->params, call, grid, stream);
    return in_lines(c, call->bucket) ? afdep_rail_launch_collect_few(&c->rail.params, call, grid, stream)
                                     : c->rail.launch->collect(&c->rail.params, call, grid, stream);
}

/* ---- How many CTAs ---------------------------------------------------------------------------------------------- */

static int least(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* CTAs for `units` warps of work. */
static int grid_for(int64_t units, int warps, int most)
{
    int64_t wanted = (units + warps - 1) / warps;
    return wanted < 1 ? 1 : least(wanted, most);
}

/* Units of work of `tokens` tokens: lines, or else pieces or parts. */
static int64_t units_of(const afdep_cuda_t *c, int64_t tokens, int32_t bucket, int lines, int piece)
{
    return tokens * (in_lines(c, bucket) ? lines : afdep_pieces(c->shape, piece));
}

/* The same of few tokens across domains: at most half of this rank's share where a warp each is enough, so that kernels may
   overlap (rail_few.cuh). */
static int few_grid(const afdep_cuda_t *c, int64_t units, int most)
{
    const int warps = 24;
    int half = least(c->rail.params.few_ctas, most);
    return half > 0 && units <= (int64_t)half * warps ? grid_for(units, 4, half) : grid_for(units, warps / 2, most);
}

/* ---- Attention ----------------------------------------------------------------------------------------------- */

/* Between a send-only dispatch and its completion no other call is taken. */
static afdep_status_t check_complete(const afdep_cuda_t *c, const char *call)
{
    if (!c->incomplete)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_ORDER, "%s: the send-only dispatch of exchange %llu is not completed yet", call,
                      (unsigned long long)c->started);
}

/* Before a call on the plane of the next exchange that uses the ids of the last one there again. */
static afdep_status_t check_cached(const afdep_cuda_t *c, int32_t bucket, const char *call)
{
    int32_t last = c->buckets[afdep_cuda_plane(c, c->started + 1)];
    if (last == 0)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: cached is set and exchange %llu is the first that uses its plane", call,
                          (unsigned long long)c->started + 1);
    if (bucket != last)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: bucket is %d: cached is set, and it was %d with these ids", call,
                          bucket, last);
    return AFDEP_OK;
}

static afdep_status_t check_dispatch(const afdep_cuda_t *c, const afdep_dispatch_t *d)
{
    const afdep_shape_t *s = c->shape;
    const char *missing = NULL;
    afdep_status_t status = check_complete(c, "source_dispatch");
    if (status == AFDEP_OK)
        status = check_bucket(c, d->bucket, "source_dispatch");
    if (status == AFDEP_OK && d->cached)
        status = check_cached(c, d->bucket, "source_dispatch");
    if (status != AFDEP_OK)
        return status;
    if (d->tokens < 0 || d->tokens > d->bucket)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "source_dispatch: tokens is %d: 0 to bucket, %d, is wanted", d->tokens,
                          d->bucket);
    if (d->tokens > 0)
        missing = !d->x                       ? "x"
                  : !d->ids && !d->cached     ? "ids"
                  : !d->weights               ? "weights"
                  : s->fp8 && !d->x_scale     ? "x_scale"
                                              : NULL;
    if (missing)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "source_dispatch: %s is NULL with %d tokens", missing, d->tokens);
    if (d->cached && d->tokens != c->tokens[afdep_cuda_plane(c, c->started + 1)])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "source_dispatch: tokens is %d: cached is set, and it was %d with these ids",
                          d->tokens, c->tokens[afdep_cuda_plane(c, c->started + 1)]);
    if (c->started - c->finished >= (uint64_t)s->in_flight)
        return afdep_fail(AFDEP_ERR_ORDER, "source_dispatch: exchange %llu is not collected yet, and in_flight is %d",
                          (unsigned long long)c->finished + 1, s->in_flight);
    return check_aligned(d->x, "x", "source_dispatch");
}

static int dispatch_grid(const afdep_cuda_t *c, const afdep_dispatch_t *d)
{
    const afdep_shape_t *s = c->shape;
    int across = afdep_cuda_across(s);
    if (across && !in_lines(c, d->bucket)) /* a warp for each channel that is served, and one for the counts */
        return grid_for(s->sparse_dispatch ? least(d->tokens, s->channels) + 1 : s->channels, 2, c->grids.communicating);
    if (across) /* tail lines of the bucket, groups of lines, words of channels */
        return few_grid(c, 2 * (int64_t)d->bucket + (int64_t)d->tokens * afdep_row_lines(s) / 2 + 1, c->grids.communicating);
    int64_t routes = ((int64_t)d->bucket * s->top_k + 31) / 32;
    return grid_for(units_of(c, d->tokens, d->bucket, afdep_row_lines(s), AFDEP_PIECE) + routes, 4, c->grids.communicating);
}

/* An invalid choice of an earlier exchange, once: this one is under way in any case. */
static afdep_status_t tell_route(afdep_cuda_t *c)
{
    afdep_status_t status = afdep_cuda_look_route(c);
    if (status == AFDEP_ERR_ROUTE)
        c->told_route = c->record->route_exchange;
    return status;
}

afdep_status_t afdep_cuda_dispatch(void *state, const afdep_dispatch_t *d, afdep_stream_t stream)
{
    afdep_cuda_t *c = state;
    afdep_status_t status = afdep_cuda_check_call(c);
    if (status == AFDEP_OK)
        status = check_dispatch(c, d);
    if (status != AFDEP_OK)
        return status;
    int plane = afdep_cuda_plane(c, ++c->started), grid = dispatch_grid(c, d);
    c->tokens[plane] = d->tokens;
    c->buckets[plane] = d->bucket;
    afdep_cuda_dispatch_t call = {
        .x = d->x,
        .x_scale = d->x_scale,
        .scale_token_stride = d->x_scale_token_stride ? d->x_scale_token_stride : c->shape->hidden / AFDEP_SCALE_BLOCK,
        .scale_block_stride = d->x_scale_block_stride ? d->x_scale_block_stride : 1,
        .ids = d->ids,
        .weights = d->weights,
        .tokens = d->tokens,
        .bucket = d->bucket,
        .cached = d->cached != 0,
        .stage = d->send_only ? AFDEP_CUDA_SEND_NOW : AFDEP_CUDA_SEND,
    };
    status = launched(c, launch_dispatch(c, &call, grid, (cudaStream_t)stream), "source_dispatch");
    if (status != AFDEP_OK || !d->send_only)
        return status == AFDEP_OK ? tell_route(c) : status;
    c->incomplete = 1;
    c->dispatch = call;
    c->dispatch.stage = AFDEP_CUDA_SEND_LATE;
    c->dispatch_grid = grid;
    c->dispatch_stream = (cudaStream_t)stream;
    return AFDEP_OK;
}

afdep_status_t afdep_cuda_complete(void *state)
{
    afdep_cuda_t *c = state;
    afdep_status_t status = afdep_cuda_check_call(c);
    if (status != AFDEP_OK || !c->incomplete)
        return status;
    c->incomplete = 0;
    status = launched(c, launch_dispatch(c, &c->dispatch, c->dispatch_grid, c->dispatch_stream), "source_dispatch_complete");
    return status == AFDEP_OK ? tell_route(c) : status;
}

static int may_view(const afdep_cuda_t *c, const afdep_collect_t *collect)
{
    return collect->view && c->shape->ffn_ranks == 1 && c->shape->in_flight == 1 && !afdep_cuda_across(c->shape);
}

static afdep_status_t check_collect(const afdep_cuda_t *c, const afdep_collect_t *collect)
{
    afdep_status_t status = check_complete(c, "source_collect");
    if (status != AFDEP_OK)
        return status;
    if (c->finished == c->started)
        return afdep_fail(AFDEP_ERR_ORDER, "source_collect: no dispatch is uncollected; exchange %llu was the last",
                          (unsigned long long)c->finished);
    int tokens = c->tokens[afdep_cuda_plane(c, c->finished + 1)];
    int view = may_view(c, collect);
    if (!collect->out && !view && tokens > 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "source_collect: out is NULL with %d tokens%s", tokens,
                          collect->view ? ", and this layout has no view" : "");
    return check_aligned(collect->out, "out", "source_collect");
}

static int collect_grid(const afdep_cuda_t *c, const afdep_cuda_collect_t *call)
{
    int lines = afdep_lines(afdep_reply_vectors(c->shape));
    if (afdep_cuda_across(c->shape) && in_lines(c, call->bucket))
        return few_grid(c, (int64_t)call->tokens * lines, c->grids.local);
    if (!call->out && !in_lines(c, call->bucket)) /* a view only waits, a thread a piece */
        return grid_for(units_of(c, call->tokens, call->bucket, lines, AFDEP_PIECE), 512, c->grids.local);
    return grid_for(units_of(c, call->tokens, call->bucket, lines, AFDEP_PART), in_lines(c, call->bucket) ? 14 : 8, c->grids.local);
}

afdep_status_t afdep_cuda_collect(void *state, afdep_collect_t *collect, afdep_stream_t stream)
{
    afdep_cuda_t *c = state;
    const afdep_shape_t *s = c->shape;
    afdep_status_t status = afdep_cuda_check_call(c);
    if (status == AFDEP_OK)
        status = check_collect(c, collect);
    if (status != AFDEP_OK)
        return status;
    int plane = afdep_cuda_plane(c, ++c->finished), view = may_view(c, collect);
    afdep_cuda_collect_t call = { view ? NULL : collect->out, c->tokens[plane], c->buckets[plane] };
    status = launched(c, launch_collect(c, &call, collect_grid(c, &call), (cudaStream_t)stream), "source_collect");
    if (status != AFDEP_OK)
        return status;
    collect->tokens = call.tokens;
    collect->result = collect->out;
    collect->result_stride = s->hidden;
    if (view) /* one plane: it starts behind the control area */
        collect->result = c->params.base + c->params.own.control_bytes + c->params.own.combine_rows;
    return AFDEP_OK;
}

/* ---- FFN ----------------------------------------------------------------------------------------------------- */

static afdep_status_t check_receive(const afdep_cuda_t *c, const afdep_receive_t *r)
{
    const afdep_shape_t *s = c->shape;
    afdep_status_t status = check_bucket(c, r->bucket, "worker_receive");
    if (status == AFDEP_OK && r->cached && !c->counting)
        status = check_cached(c, r->bucket, "worker_receive");
    if (status != AFDEP_OK)
        return status;
    if (c->counting && r->bucket != c->buckets[afdep_cuda_plane(c, c->started)])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_receive: bucket is %d, and it was %d when this receive began",
                          r->bucket, c->buckets[afdep_cuda_plane(c, c->started)]);
    if (!c->counting && c->started - c->finished >= (uint64_t)s->in_flight)
        return afdep_fail(AFDEP_ERR_ORDER, "worker_receive: exchange %llu is not replied to yet, and in_flight is %d",
                          (unsigned long long)c->finished + 1, s->in_flight);
    if (r->read_host_counts)
        return check_aligned(r->rows, "rows", "worker_receive");
    const char *missing = !r->rows ? "rows" : !r->row_weight ? "row_weight" : !r->ends ? "ends" : NULL;
    if (s->fp8 && !missing && !r->row_scale)
        missing = "row_scale";
    if (missing)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_receive: %s is NULL", missing);
    if (r->rows_capacity < afdep_receive_rows(s, r->bucket))
        return afdep_fail(AFDEP_ERR_ARGUMENT,
                          "worker_receive: rows_capacity is %lld: bucket %d needs %lld without read_host_counts",
                          (long long)r->rows_capacity, r->bucket, (long long)afdep_receive_rows(s, r->bucket));
    return check_aligned(r->rows, "rows", "worker_receive");
}

static afdep_cuda_receive_t receive_call(const afdep_receive_t *r, int parts)
{
    return (afdep_cuda_receive_t){ .rows = r->rows,
                                   .row_scale = r->row_scale,
                                   .row_weight = r->row_weight,
                                   .row_source = r->row_source,
                                   .ends = r->ends,
                                   .bucket = r->bucket,
                                   .parts = parts,
                                   .cached = r->cached != 0 };
}

/* Across domains: units that a receive or reply serves (rail.cuh). */
static int64_t served_units(const afdep_shape_t *s, int32_t bucket)
{
    int sparse = s->sparse_dispatch && s->sparse_combine;
    return (int64_t)s->attention_domains * (sparse ? least(bucket, s->channels) : s->channels);
}

static int receive_grid(const afdep_cuda_t *c, int32_t bucket)
{
    int64_t tokens = (int64_t)c->shape->attention_ranks * bucket;
    if (afdep_cuda_across(c->shape) && in_lines(c, bucket))
        return few_grid(c, tokens * afdep_row_lines(c->shape), c->grids.local);
    int64_t units =
        units_of(c, tokens, bucket, afdep_row_lines(c->shape), AFDEP_PART);
    if (afdep_cuda_across(c->shape) && units < served_units(c->shape, bucket))
        units = served_units(c->shape, bucket);
    return grid_for(units, 4, c->grids.local);
}

/* The kernel that only counts, and the host's wait for it. */
static afdep_status_t read_counts(afdep_cuda_t *c, const afdep_receive_t *r, cudaStream_t stream)
{
    const afdep_shape_t *s = c->shape;
    afdep_cuda_receive_t call = { .bucket = r->bucket, .parts = AFDEP_CUDA_RECEIVE_COUNT, .cached = r->cached != 0 };
    afdep_status_t status = launched(c, launch_receive(c, &call, receive_grid(c, r->bucket), stream), "worker_receive");
    if (status != AFDEP_OK)
        return status;
    size_t bytes = (size_t)s->experts_per_rank * sizeof(int32_t);
    /* Which plane it is only the kernels know (a graph may have run between): the current exchange's, here read back. */
    uint64_t received = 0;
    cudaError_t error = cudaMemcpyAsync(&received, &c->params.state->count[AFDEP_CUDA_RECEIVE], sizeof(received),
                                        cudaMemcpyDefault, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    const int32_t *ends = c->params.ends + (size_t)afdep_cuda_plane(c, received + 1) * (size_t)s->experts_per_rank;
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(c->host_ends, ends, bytes, cudaMemcpyDefault, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess)
        return launched(c, error, "worker_receive");
    return afdep_cuda_look(c);
}

static int64_t align_up(int64_t value, int64_t to)
{
    return (value + to - 1) / to * to;
}

/* Gives the caller its counts, asks it for tensors where it wants to be asked, and checks them. */
static afdep_status_t settle_tensors(afdep_cuda_t *c, afdep_receive_t *r)
{
    const afdep_shape_t *s = c->shape;
    int64_t end = 0, rows = 0;
    for (int e = 0; e < s->experts_per_rank; e++, end = rows) {
        rows = align_up(c->host_ends[e], s->expert_alignment);
        if (r->host_counts)
            r->host_counts[e] = (int32_t)(rows - end);
    }
    if (r->allocate) {
        afdep_status_t status = r->allocate(r->allocate_context, rows, r);
        if (status != AFDEP_OK)
            return status;
    }
    r->row_count = rows; /* also where they find no room */
    const char *missing = !r->ends ? "ends" : NULL;
    if (rows > 0 && !missing)
        missing = !r->rows ? "rows" : !r->row_weight ? "row_weight" : s->fp8 && !r->row_scale ? "row_scale" : NULL;
    if (missing)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_receive: %s is NULL", missing);
    if (r->rows_capacity < rows)
        return afdep_fail(AFDEP_ERR_CAPACITY, "worker_receive: rows_capacity is %lld: %lld rows have come",
                          (long long)r->rows_capacity, (long long)rows);
    return check_aligned(r->rows, "rows", "worker_receive");
}

static afdep_status_t receive_counted(afdep_cuda_t *c, afdep_receive_t *r, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream, &capturing);
    if (capturing != cudaStreamCaptureStatusNone)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_receive: read_host_counts waits for the GPU and cannot be captured");
    if (!c->counting) {
        c->buckets[afdep_cuda_plane(c, ++c->started)] = r->bucket;
        c->counting = 1;
        c->cached = r->cached != 0;
        afdep_status_t status = read_counts(c, r, stream);
        if (status != AFDEP_OK)
            return status;
    }
    afdep_status_t status = settle_tensors(c, r);
    if (status != AFDEP_OK)
        return status;
    afdep_cuda_receive_t call = receive_call(r, AFDEP_CUDA_RECEIVE_PLACE);
    call.cached = c->cached; /* as it began, whatever the caller comes back with */
    return launched(c, launch_receive(c, &call, receive_grid(c, r->bucket), stream), "worker_receive");
}

static afdep_status_t receive_bounded(afdep_cuda_t *c, afdep_receive_t *r, cudaStream_t stream)
{
    c->buckets[afdep_cuda_plane(c, ++c->started)] = r->bucket;
    afdep_cuda_receive_t call = receive_call(r, AFDEP_CUDA_RECEIVE_COUNT | AFDEP_CUDA_RECEIVE_PLACE);
    r->row_count = afdep_receive_rows(c->shape, r->bucket); /* the bound: ends say how many live */
    return launched(c, launch_receive(c, &call, receive_grid(c, r->bucket), stream), "worker_receive");
}

afdep_status_t afdep_cuda_receive(void *state, afdep_receive_t *r, afdep_stream_t stream)
{
    afdep_cuda_t *c = state;
    afdep_status_t status = afdep_cuda_check_call(c);
    if (status == AFDEP_OK)
        status = check_receive(c, r);
    if (status == AFDEP_OK)
        status = r->read_host_counts || c->counting ? receive_counted(c, r, (cudaStream_t)stream)
                                                    : receive_bounded(c, r, (cudaStream_t)stream);
    if (status != AFDEP_OK)
        return status;
    c->counting = 0;
    c->row_count[afdep_cuda_plane(c, c->started)] = r->row_count;
    r->receipt = (afdep_receipt_t){ { AFDEP_CUDA_RECEIPT_MAGIC, (uint64_t)(uintptr_t)c, c->started,
                                      (uint64_t)r->row_count } };
    return AFDEP_OK;
}

static afdep_status_t check_reply(const afdep_cuda_t *c, const afdep_reply_t *r)
{
    const uint64_t *o = r->receipt.opaque;
    if (c->counting)
        return afdep_fail(AFDEP_ERR_ORDER, "worker_reply: the receive of exchange %llu has not returned its rows yet",
                          (unsigned long long)c->started);
    if (c->finished == c->started)
        return afdep_fail(AFDEP_ERR_ORDER, "worker_reply: no receive is unanswered; exchange %llu was the last",
                          (unsigned long long)c->finished);
    if (o[0] != AFDEP_CUDA_RECEIPT_MAGIC || o[1] != (uint64_t)(uintptr_t)c)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_reply: the receipt is not one of this buffer's");
    if (o[2] != c->finished + 1)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_reply: the receipt is of exchange %llu: %llu is answered next",
                          (unsigned long long)o[2], (unsigned long long)c->finished + 1);
    if (o[3] != (uint64_t)c->row_count[afdep_cuda_plane(c, o[2])])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_reply: the receipt was altered since its receive");
    if (o[3] > 0 && !r->rows)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "worker_reply: rows is NULL with %llu rows received",
                          (unsigned long long)o[3]);
    return check_aligned(r->rows, "rows", "worker_reply");
}

afdep_status_t afdep_cuda_reply(void *state, const afdep_reply_t *r, afdep_stream_t stream)
{
    afdep_cuda_t *c = state;
    afdep_status_t status = afdep_cuda_check_call(c);
    if (status == AFDEP_OK)
        status = check_reply(c, r);
    if (status != AFDEP_OK)
        return status;
    int32_t bucket = c->buckets[afdep_cuda_plane(c, ++c->finished)];
    int64_t units = units_of(c, (int64_t)c->shape->attention_ranks * bucket, bucket,
                             afdep_lines(afdep_reply_vectors(c->shape)), AFDEP_PART);
    afdep_cuda_reply_t call = { r->rows, bucket, 0 };
    int grid = grid_for(units, 4, c->grids.communicating);
    if (afdep_cuda_across(c->shape)) {
        grid = in_lines(c, bucket) ? few_grid(c, units, c->grids.local) : receive_grid(c, bucket);
    } else if (!in_lines(c, bucket) || units > AFDEP_CUDA_LINES_SUMMED_TO_SEND * (int64_t)c->grids.communicating) {
        call.senders = least(c->grids.communicating, c->grids.local - 1);
        grid = c->grids.local;
    }
    return launched(c, launch_reply(c, &call, grid, (cudaStream_t)stream), "worker_reply");
}
