/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_receive. Every CTA joins the route words of all sources, counts all choices, and gives the tokens of its own
 * range their rows: inside an expert by source rank, then token. A position carries the exchange number, so that the
 * warps that place rows wait for nothing else. Units of placing, one warp each: a piece of a token's row, taken as soon
 * as its word says that it is there, to all of the token's experts at once.
 *
 * The counts come before the rows and the counting runs while rows are still arriving. This kernel writes local memory
 * only, but for the answers: the last CTA sends them, when everything of this exchange has been read from the inbox.
 */
#include "cuda/device.cuh"

#define THREADS 512
#define WARPS (THREADS / AFDEP_WARP)

/* ---- Counts -------------------------------------------------------------------------------------------------- */

/* Waits for the route words of all batches of all sources. Every thread of the CTA gets the answer. */
static __device__ bool join_routes(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket)
{
    const afdep_shape_t &s = r.shape;
    const uint64_t *words = (const uint64_t *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.route_words);
    int batches = afdep_route_batches(bucket);
    bool fine = true;
    for (int i = (int)threadIdx.x; fine && i < s.attention_ranks * batches; i += THREADS) {
        int a = i / batches, batch = i - a * batches;
        afdep_patience_t patience = { 0, 0 };
        for (;;) {
            uint64_t seen = afdep_load_acquire64(&words[(uint64_t)a * r.own.batches + (uint32_t)batch]);
            int32_t ahead = (int32_t)(afdep_word_high(seen) - (uint32_t)exchange);
            if (ahead > 0 || (ahead == 0 && afdep_word_low(seen) > (uint32_t)bucket)) {
                afdep_fail_device(r, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange,
                                  s.ffn_ranks + a, -1, batch, (uint64_t)bucket, seen);
                fine = false;
            }
            if (ahead >= 0)
                break;
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange, s.ffn_ranks + a, -1, batch,
                           afdep_word((uint32_t)exchange, 0), seen)) {
                fine = false;
                break;
            }
        }
    }
    return __syncthreads_and(fine); /* the acquire of one thread is the CTA's */
}

/* T of a source, once its route words are joined. */
static __device__ __forceinline__ int tokens_of(const afdep_cuda_rank_t &r, uint64_t exchange, int a)
{
    const uint64_t *words = (const uint64_t *)(r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.route_words);
    return (int)(uint32_t)words[(uint64_t)a * r.own.batches];
}

/* The shared arrays of a CTA that counts: by expert of this rank, in dynamic shared memory. */
typedef struct counting {
    int32_t *all;    /* choices of all tokens; then the expert's first row */
    int32_t *before; /* choices of the tokens before the next chunk */
    uint32_t *chosen; /* by which tokens of the chunk, one bit each */
} counting_t;

static __device__ counting_t counting_arrays(int experts)
{
    extern __shared__ int32_t shared[];
    return { shared, shared + experts, (uint32_t *)shared + 2 * experts };
}

/* Expert of this rank that a choice means, or -1. */
static __device__ __forceinline__ int local_expert(const afdep_shape_t &s, int rank, int id)
{
    int local = id - rank * s.experts_per_rank;
    return id >= 0 && local >= 0 && local < s.experts_per_rank ? local : -1;
}

/* Counts the choices of all tokens, and of those before token index `first` (indices run over [A][bucket]). */
static __device__ void count_choices(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first, const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    const int32_t *ids = (const int32_t *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.ids);
    for (int a = 0; a < s.attention_ranks; a++) {
        int choices = tokens_of(r, exchange, a) * k, own_first = (first - a * bucket) * k;
        const int32_t *of = ids + afdep_slot(s, a, 0) * (uint32_t)k;
        for (int i = (int)threadIdx.x; i < choices; i += THREADS) {
            int local = local_expert(s, r.rank, of[i]);
            if (local < 0)
                continue;
            atomicAdd(&c.all[local], 1);
            if (i < own_first)
                atomicAdd(&c.before[local], 1);
        }
    }
}

/* An expert's padding rows, and its end, in the caller's tensors. */
static __device__ void write_end(const afdep_cuda_receive_t &call, int e, int end, int aligned_end)
{
    if (call.ends)
        call.ends[e] = end;
    for (int row = end; call.row_weight && row < aligned_end; row++) {
        call.row_weight[row] = 0;
        if (call.row_source)
            ((int2 *)call.row_source)[row] = make_int2(-1, -1);
    }
}

/* Placing after a kernel of its own that counted: the ends are known, the caller's tensors are new. */
static __device__ void write_ends(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    const int32_t *ends = r.ends + (uint64_t)afdep_plane_index(&s, exchange) * (uint32_t)s.experts_per_rank;
    int align = s.expert_alignment;
    for (int e = (int)threadIdx.x; blockIdx.x == 0 && e < s.experts_per_rank; e += THREADS)
        write_end(call, e, ends[e], (ends[e] + align - 1) / align * align);
}

/* Turns the counts into first rows (exclusive sums of aligned counts); CTA 0 writes the ends and marks the padding. */
static __device__ void sum_counts(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                  const counting_t &c)
{
    __shared__ int32_t warp_sums[WARPS];
    const afdep_shape_t &s = r.shape;
    int experts = s.experts_per_rank, align = s.expert_alignment, carried = 0;
    int32_t *ends = r.ends + (uint64_t)afdep_plane_index(&s, exchange) * (uint32_t)experts;
    for (int base = 0; base < experts; base += THREADS) {
        int e = base + (int)threadIdx.x, count = e < experts ? c.all[e] : 0;
        int aligned = (count + align - 1) / align * align, sum = aligned, total = 0;
        for (int step = 1; step < AFDEP_WARP; step *= 2) {
            int other = __shfl_up_sync(AFDEP_FULL, sum, step);
            sum += (int)afdep_lane() >= step ? other : 0;
        }
        if (afdep_lane() == AFDEP_WARP - 1)
            warp_sums[threadIdx.x / AFDEP_WARP] = sum;
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            sum += w < (int)(threadIdx.x / AFDEP_WARP) ? warp_sums[w] : 0;
            total += warp_sums[w];
        }
        __syncthreads();
        if (e < experts) {
            int start = carried + sum - aligned;
            c.all[e] = start;
            if (blockIdx.x == 0) {
                ends[e] = start + count;
                write_end(call, e, start + count, start + aligned);
            }
        }
        carried += total;
    }
    __syncthreads();
}

/* Gives the choices of one chunk of token indices their rows. */
static __device__ void position_chunk(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first, int tokens,
                                      const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k, plane = afdep_plane_index(&s, exchange);
    const int32_t *ids = (const int32_t *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.ids);
    uint64_t *positions = r.positions + (uint64_t)plane * (uint32_t)s.attention_ranks * (uint32_t)s.capacity * (uint32_t)k;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = (int)threadIdx.x; i < tokens * k; i += THREADS) {
            int in_chunk = i / k, index = first + in_chunk, a = index / bucket, token = index - a * bucket;
            if (token >= tokens_of(r, exchange, a))
                continue;
            uint64_t at = afdep_slot(s, a, token) * (uint32_t)k + (uint32_t)(i - in_chunk * k);
            int local = local_expert(s, r.rank, ids[at]);
            uint32_t bit = 1u << in_chunk, row = 0;
            if (local >= 0 && pass == 0)
                atomicOr(&c.chosen[local], bit);
            if (local >= 0 && pass == 1)
                row = (uint32_t)(c.all[local] + c.before[local] + __popc(c.chosen[local] & (bit - 1u))) + 1u;
            if (pass == 1)
                afdep_store_relaxed64(&positions[at], afdep_word((uint32_t)exchange, row));
        }
        __syncthreads();
    }
    for (int e = (int)threadIdx.x; e < s.experts_per_rank; e += THREADS) {
        c.before[e] += __popc(c.chosen[e]);
        c.chosen[e] = 0;
    }
    __syncthreads();
}

static __device__ void count_and_position(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    counting_t c = counting_arrays(s.experts_per_rank);
    int indices = s.attention_ranks * call.bucket, each = (indices + (int)gridDim.x - 1) / (int)gridDim.x;
    int first = min(each * (int)blockIdx.x, indices), last = min(first + each, indices);
    count_choices(r, exchange, call.bucket, first, c);
    __syncthreads();
    sum_counts(r, call, exchange, c);
    for (int at = first; at < last; at += AFDEP_WARP)
        position_chunk(r, exchange, call.bucket, at, min(AFDEP_WARP, last - at), c);
}

static __device__ void clear_counts(int experts)
{
    counting_t c = counting_arrays(experts);
    for (int i = (int)threadIdx.x; i < 3 * experts; i += THREADS)
        c.all[i] = 0;
}

/* ---- Placing ------------------------------------------------------------------------------------------------- */

/* A lane's choice of the token: its row, or -1. Waits for the CTA that positions it. */
static __device__ bool take_position(const afdep_cuda_rank_t &r, uint64_t exchange, int a, int token, int *row)
{
    const afdep_shape_t &s = r.shape;
    uint64_t plane = (uint64_t)afdep_plane_index(&s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    const uint64_t *at = r.positions + (plane + afdep_slot(s, a, token)) * (uint32_t)s.top_k + afdep_lane();
    bool fine = true;
    *row = -1;
    if ((int)afdep_lane() < s.top_k) {
        afdep_patience_t patience = { 0, 0 };
        uint64_t seen;
        while (afdep_word_high(seen = afdep_load_relaxed64(at)) != (uint32_t)exchange)
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_POSITION, exchange, s.ffn_ranks + a, token, -1,
                           exchange, seen)) {
                fine = false;
                break;
            }
        *row = fine ? (int)afdep_word_low(seen) - 1 : -1;
    }
    return __all_sync(AFDEP_FULL, fine);
}

template <int VECTORS>
static __device__ bool place_piece(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange, int a,
                                   int token, int piece, int elements)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    int row;
    if (!take_position(r, exchange, a, token, &row))
        return false;
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (experts == 0)
        return true;
    uint64_t plane = afdep_plane_at(r.own, s, exchange), slot = afdep_slot(s, a, token);
    const uint32_t *word = (const uint32_t *)(r.base + plane + r.own.row_words) + slot * r.own.pieces + piece;
    bool fine = afdep_wait_piece(r, word, exchange, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROW, s.ffn_ranks + a, token, piece);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    uint32_t row_bytes = (uint32_t)s.hidden * width, first = (uint32_t)(piece * elements) * width;
    uint32_t bytes = min((uint32_t)elements * width, row_bytes - first);
    const unsigned char *from = r.base + plane + r.own.rows + slot * r.own.row_stride;
    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((uint32_t)i * 512u + lane * 16u < bytes)
            v[i] = afdep_load16(from + first + i * 512 + lane * 16);
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = piece * elements / AFDEP_SCALE_BLOCK;
    float scale = (int)lane < blocks ? ((const float *)(from + r.own.scale_offset))[first_block + (int)lane] : 0;
    for (uint32_t left = experts; left; left &= left - 1) {
        int to = __shfl_sync(AFDEP_FULL, row, __ffs((int)left) - 1);
        unsigned char *out = (unsigned char *)call.rows + (uint64_t)to * row_bytes + first;
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((uint32_t)i * 512u + lane * 16u < bytes)
                *(uint4 *)(out + i * 512 + lane * 16) = v[i];
        if ((int)lane < blocks)
            call.row_scale[(uint64_t)to * (uint32_t)(s.hidden / AFDEP_SCALE_BLOCK) + (uint32_t)first_block + lane] = scale;
    }
    if (piece == 0 && row >= 0) {
        const float *weights = (const float *)(r.base + plane + r.own.weights);
        call.row_weight[row] = weights[slot * (uint32_t)s.top_k + lane];
        if (call.row_source)
            ((int2 *)call.row_source)[row] = make_int2(s.ffn_ranks + a, token);
    }
    return true;
}

template <int VECTORS>
static __device__ void place(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    int elements = afdep_piece_elements(call.bucket), pieces = afdep_pieces(&s, elements);
    int units = s.attention_ranks * call.bucket * pieces;
    for (int unit = afdep_warp_index(); unit < units; unit += afdep_warp_count()) {
        int index = unit / pieces, token = index / s.attention_ranks, a = index - token * s.attention_ranks;
        if (token < tokens_of(r, exchange, a) &&
            !place_piece<VECTORS>(r, call, exchange, a, token, unit - index * pieces, elements))
            break;
    }
}

/* ---- The kernel ---------------------------------------------------------------------------------------------- */

/* The next dispatch may overwrite words, routes and rows: they have been read. */
static __device__ void send_answers(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    uint64_t at = afdep_plane_at(r.peer, s, exchange) + r.peer.answers + 8u * (uint32_t)r.rank;
    __threadfence_system(); /* all CTAs' reads, gathered by afdep_leave(), before the answers */
    for (int a = 0; a < s.attention_ranks; a++) {
        afdep_signal64((uint64_t *)(r.segments[s.ffn_ranks + a] + at), afdep_word((uint32_t)exchange, 0));
        r.counters[s.ffn_ranks + a].signals++;
    }
}

template <int VECTORS>
static __global__ void __launch_bounds__(THREADS)
    receive_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    clear_counts(r.shape.experts_per_rank);
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_RECEIVE);
    if (exchange == 0 || !join_routes(r, exchange, call.bucket))
        return;
    if (call.parts & AFDEP_CUDA_RECEIVE_COUNT)
        count_and_position(r, call, exchange);
    else
        write_ends(r, call, exchange);
    if (!(call.parts & AFDEP_CUDA_RECEIVE_PLACE))
        return;
    place<VECTORS>(r, call, exchange);
    if (!afdep_leave(r, AFDEP_CUDA_RECEIVE) || afdep_poisoned(r))
        return;
    send_answers(r, exchange);
    afdep_finish(r, AFDEP_CUDA_RECEIVE, exchange);
}

cudaError_t afdep_cuda_launch_receive(const afdep_cuda_rank_t *r, const afdep_cuda_receive_t *call, int grid,
                                      cudaStream_t stream)
{
    size_t shared = 3 * sizeof(int32_t) * (size_t)r->shape.experts_per_rank;
    bool small = afdep_piece_elements(call->bucket) == AFDEP_PIECE_SMALL;
    if (small && r->shape.fp8)
        receive_kernel<1><<<grid, THREADS, shared, stream>>>(*r, *call);
    else if (small)
        receive_kernel<2><<<grid, THREADS, shared, stream>>>(*r, *call);
    else if (r->shape.fp8)
        receive_kernel<4><<<grid, THREADS, shared, stream>>>(*r, *call);
    else
        receive_kernel<8><<<grid, THREADS, shared, stream>>>(*r, *call);
    return cudaGetLastError();
}

cudaError_t afdep_cuda_prepare_receive(const afdep_shape_t *shape, int *ctas_per_sm)
{
    size_t shared = 3 * sizeof(int32_t) * (size_t)shape->experts_per_rank;
    int other;
    cudaError_t error =
        shape->fp8 ? cudaOccupancyMaxActiveBlocksPerMultiprocessor(&other, receive_kernel<1>, THREADS, shared)
                   : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&other, receive_kernel<2>, THREADS, shared);
    if (error != cudaSuccess)
        return error;
    error = shape->fp8 ? cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_sm, receive_kernel<4>, THREADS, shared)
                       : cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_sm, receive_kernel<8>, THREADS, shared);
    if (other < *ctas_per_sm)
        *ctas_per_sm = other;
    return error;
}
