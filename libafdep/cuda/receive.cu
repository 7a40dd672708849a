/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_receive of many tokens. Every CTA joins the route words of all sources, counts all choices, and gives a range of
 * tokens their rows: inside an expert by source rank, then token. A position carries the exchange number, so that the
 * warps that place rows wait for nothing else. Units of placing, one warp each: a part of a token's row, taken as soon as
 * its piece's word says that it is there, to all of the token's experts at once.
 *
 * The counts come before the rows and the counting runs while rows are still arriving. This kernel writes local memory
 * only, but for the answers: the last CTA sends them, when everything of this exchange has been read from the inbox.
 */
#include "cuda/launch.cuh"
#include "cuda/receive.cuh"

#define THREADS 896 /* the most with which nothing spills */
#define WARPS (THREADS / AFDEP_WARP)
#define CHUNK_WORDS 4 /* of the bits of the tokens that get their rows at once */
#define CHUNK (CHUNK_WORDS * 32)

/* ---- The shared arrays of a CTA ---------------------------------------------------------------------------------- */

typedef struct counting {
    int32_t *all;     /* [E/F] choices of all tokens; then the expert's first row */
    int32_t *before;  /* [E/F] choices of the tokens before the chunk */
    uint32_t *chosen; /* [E/F][CHUNK_WORDS] by which tokens of the chunk, one bit each */
    int32_t *served;  /* [A] nonzero: the source chose one of this rank's experts */
    int32_t *rows;    /* [CHUNK][K] of the chunk's choices: expert of this rank + 1; 0: not this rank's */
} counting_t;

static __host__ __device__ __forceinline__ size_t shared_bytes(const afdep_shape_t &s)
{
    return sizeof(int32_t) * ((size_t)s.experts_per_rank * (2 + CHUNK_WORDS) + (size_t)s.attention_ranks +
                              (size_t)CHUNK * (size_t)s.top_k);
}

static __device__ __forceinline__ counting_t counting_arrays(const afdep_shape_t &s)
{
    extern __shared__ int32_t shared[];
    counting_t c;
    c.all = shared;
    c.before = c.all + s.experts_per_rank;
    c.chosen = (uint32_t *)(c.before + s.experts_per_rank);
    c.served = (int32_t *)(c.chosen + s.experts_per_rank * CHUNK_WORDS);
    c.rows = c.served + s.attention_ranks;
    return c;
}

static __device__ __forceinline__ void clear_counts(const afdep_shape_t &s, const counting_t &c)
{
    for (int i = (int)threadIdx.x; i < s.experts_per_rank * (2 + CHUNK_WORDS) + s.attention_ranks; i += THREADS)
        c.all[i] = 0;
}

/* With many words, few threads wait for the last ones before all look for theirs. */
static __device__ bool await_routes(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket)
{
    int last = bucket * r.shape.top_k - 1;
    bool fine = true;
    for (int a = (int)threadIdx.x; fine && a < r.shape.attention_ranks; a += THREADS)
        fine = await_route(r, exchange, bucket, a, last);
    return __syncthreads_and(fine);
}

/*
 * Takes all choices as they come: counts them, counts those before token index `first`, and notes those of the chunk
 * that begins there (indices run over [A][bucket]). Every thread of the CTA learns whether all came.
 */
static __device__ bool count_choices(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                     const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    bool fine = !afdep_poisoned(r);
    for (int a = 0; a < s.attention_ranks; a++) {
        const uint64_t *routes = routes_of(r, exchange, a);
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < bucket * k; i += THREADS) {
            uint64_t word = afdep_load_relaxed_system64(routes + i);
            if (!route_is_here(word, exchange, bucket)) {
                fine = await_route(r, exchange, bucket, a, i);
                if (!fine)
                    break;
                word = afdep_load_relaxed_system64(routes + i);
            }
            int local = local_expert(s, r.rank, afdep_route_id(afdep_word_low(word)));
            int place = a * bucket + i / k - first;
            if (place >= 0 && place < in_chunk)
                c.rows[place * k + i % k] = local + 1;
            if (local < 0)
                continue;
            c.served[a] = 1;
            atomicAdd(&c.all[local], 1);
            if (place < 0)
                atomicAdd(&c.before[local], 1);
            else if (place < in_chunk)
                atomicOr(&c.chosen[local * CHUNK_WORDS + place / 32], 1u << place % 32);
        }
    }
    return __syncthreads_and(fine);
}

/* Turns the counts into first rows (exclusive sums of aligned counts); CTA 0 writes the ends and marks the padding. */
static __device__ void sum_counts(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                  const counting_t &c)
{
    __shared__ int32_t warp_sums[WARPS];
    const afdep_shape_t &s = r.shape;
    int experts = s.experts_per_rank, align = s.expert_alignment, carried = 0;
    int32_t *ends = r.ends + (uint64_t)afdep_plane(s, exchange) * (uint32_t)experts;
    for (int base = 0; base < experts; base += THREADS) {
        int e = base + (int)threadIdx.x, count = e < experts ? c.all[e] : 0, warp = (int)threadIdx.x / AFDEP_WARP;
        int aligned = (count + align - 1) / align * align, sum = aligned, total = 0;
        int warps = min(WARPS, (experts - base + AFDEP_WARP - 1) / AFDEP_WARP);
        for (int step = 1; step < AFDEP_WARP; step *= 2) {
            int other = __shfl_up_sync(AFDEP_FULL, sum, step);
            sum += (int)afdep_lane() >= step ? other : 0;
        }
        if (afdep_lane() == AFDEP_WARP - 1)
            warp_sums[warp] = sum;
        __syncthreads();
        for (int w = 0; w < warps; w++) {
            sum += w < warp ? warp_sums[w] : 0;
            total += warp_sums[w];
        }
        if (e < experts) {
            int start = carried + sum - aligned;
            c.all[e] = start;
            if (blockIdx.x == 0) {
                ends[e] = start + count;
                *afdep_load_expert(r, exchange, e) = (uint32_t)count;
                write_end(call, e, start + count, start + aligned);
            }
        }
        carried += total;
        __syncthreads();
    }
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

/* Gives the choices of the chunk their rows, where other CTAs and the reply look. */
static __device__ void position_chunk(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first,
                                      int in_chunk, const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    for (int i = (int)threadIdx.x; i < in_chunk * k; i += THREADS) {
        int place = i / k, index = first + place, a = index / bucket, token = index - a * bucket;
        int local = c.rows[i] - 1;
        uint32_t row = 0;
        bool first_choice = local >= 0; /* the token's here: it counts once for its source */
        for (int other = place * k; first_choice && other < i; other++)
            first_choice = c.rows[other] == 0;
        if (first_choice)
            atomicAdd(afdep_load_source(r, exchange, a), 1u);
        if (local >= 0) {
            const uint32_t *chosen = c.chosen + local * CHUNK_WORDS;
            int rank = c.all[local] + c.before[local] + __popc(chosen[place / 32] & ((1u << place % 32) - 1u));
            for (int w = 0; w < place / 32; w++)
                rank += __popc(chosen[w]);
            row = (uint32_t)rank + 1u;
        }
        afdep_store_relaxed64(&r.positions[(plane + afdep_slot(s, a, token)) * (uint32_t)k + (uint32_t)(i - place * k)],
                              afdep_word((uint32_t)exchange, row));
    }
    __syncthreads();
}

/* Moves on to the chunk that begins at `first`: the tokens of the last one are before it. All words have come. */
static __device__ void next_chunk(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                  const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    for (int e = (int)threadIdx.x; e < s.experts_per_rank; e += THREADS)
        for (int w = 0; w < CHUNK_WORDS; w++) {
            c.before[e] += __popc(c.chosen[e * CHUNK_WORDS + w]);
            c.chosen[e * CHUNK_WORDS + w] = 0;
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < in_chunk * k; i += THREADS) {
        int place = i / k, index = first + place, a = index / bucket, token = index - a * bucket;
        uint64_t word = afdep_load_relaxed_system64(routes_of(r, exchange, a) + token * k + i - place * k);
        int local = local_expert(s, r.rank, afdep_route_id(afdep_word_low(word)));
        c.rows[i] = local + 1;
        if (local >= 0)
            atomicOr(&c.chosen[local * CHUNK_WORDS + place / 32], 1u << place % 32);
    }
    __syncthreads();
}

/* A CTA's own range of token indices. */
static __device__ __forceinline__ void own_range(const afdep_cuda_rank_t &r, int bucket, int *first, int *last)
{
    int indices = r.shape.attention_ranks * bucket, each = (indices + (int)gridDim.x - 1) / (int)gridDim.x;
    *first = min(each * (int)blockIdx.x, indices);
    *last = min(*first + each, indices);
}

static __device__ bool count(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                             const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int first, last;
    own_range(r, call.bucket, &first, &last);
    if (!await_routes(r, exchange, call.bucket) ||
        !count_choices(r, exchange, call.bucket, first, min(CHUNK, last - first), c))
        return false;
    for (int a = (int)threadIdx.x; blockIdx.x == 0 && a < s.attention_ranks; a += THREADS)
        r.served[afdep_plane(s, exchange) * (uint32_t)s.attention_ranks + (uint32_t)a] = (uint32_t)c.served[a];
    sum_counts(r, call, exchange, c);
    return true;
}

static __device__ void position(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                const counting_t &c)
{
    int first, last;
    own_range(r, call.bucket, &first, &last);
    for (int at = first; at < last; at += CHUNK) {
        if (at > first)
            next_chunk(r, exchange, call.bucket, at, min(CHUNK, last - at), c);
        position_chunk(r, exchange, call.bucket, at, min(CHUNK, last - at), c);
    }
}

/* ---- Placing ------------------------------------------------------------------------------------------------- */

/* A lane's choice of the token: its row, or -1. Waits for the CTA that positions it. */
static __device__ bool take_position(const afdep_cuda_rank_t &r, uint64_t exchange, int a, int token, int *row)
{
    const afdep_shape_t &s = r.shape;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    const uint64_t *at = r.positions + (plane + afdep_slot(s, a, token)) * (uint32_t)s.top_k + afdep_lane();
    bool fine = true;
    *row = -1;
    if ((int)afdep_lane() < s.top_k) {
        afdep_patience_t patience = { 0, 0 };
        uint64_t seen;
        while (afdep_word_high(seen = afdep_load_relaxed64(at)) != (uint32_t)exchange)
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_POSITION, exchange, s.ffn_ranks + a, token,
                           -1, exchange, seen)) {
                fine = false;
                break;
            }
        *row = fine ? (int)afdep_word_low(seen) - 1 : -1;
    }
    return __all_sync(AFDEP_FULL, fine);
}

/* Part `part` (AFDEP_PART elements) of a token's row. */
template <int VECTORS, bool CACHED>
static __device__ bool place_part(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                  int a, int token, int part, int piece)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    int row = -1;
    if (CACHED) {
        row = recall_row(r, exchange, a, token);
        if (part == 0)
            tell_row(r, exchange, a, token, row);
    } else if (!take_position(r, exchange, a, token, &row)) {
        return false;
    }
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (experts == 0)
        return true;
    uint64_t plane = afdep_plane_at(r.own, s, exchange), slot = afdep_slot(s, a, token);
    const uint32_t *word = (const uint32_t *)(r.base + plane + r.own.row_words) + slot * r.own.pieces + piece;
    bool fine =
        afdep_wait_piece(r, word, exchange, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROW, s.ffn_ranks + a, token, piece);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    uint32_t row_bytes = (uint32_t)s.hidden * width, first = (uint32_t)(part * AFDEP_PART) * width;
    uint32_t bytes = min((uint32_t)AFDEP_PART * width, row_bytes - first);
    const unsigned char *from = r.base + plane + r.own.rows + slot * r.own.row_stride;
    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((uint32_t)i * 512u + lane * 16u < bytes)
            v[i] = afdep_load16(from + first + i * 512 + lane * 16);
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = part * AFDEP_PART / AFDEP_SCALE_BLOCK;
    float scale = (int)lane < blocks ? ((const float *)(from + r.own.scale_offset))[first_block + (int)lane] : 0;
    float weight = part == 0 && row >= 0 ? ((const float *)(from + r.own.weight_offset))[lane] : 0;
    for (uint32_t left = experts; left; left &= left - 1) {
        int to = __shfl_sync(AFDEP_FULL, row, __ffs((int)left) - 1);
        unsigned char *out = (unsigned char *)call.rows + (uint64_t)to * row_bytes + first;
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((uint32_t)i * 512u + lane * 16u < bytes)
                *(uint4 *)(out + i * 512 + lane * 16) = v[i];
        if ((int)lane < blocks)
            call.row_scale[(uint64_t)to * (uint32_t)(s.hidden / AFDEP_SCALE_BLOCK) + (uint32_t)first_block + lane] =
                scale;
    }
    if (part == 0 && row >= 0) {
        call.row_weight[row] = weight;
        if (call.row_source)
            ((int2 *)call.row_source)[row] = make_int2(s.ffn_ranks + a, token);
    }
    return true;
}

template <int VECTORS, bool CACHED>
static __device__ void place(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    int parts = afdep_pieces(&s, AFDEP_PART), in_piece = AFDEP_PIECE / AFDEP_PART;
    int units = s.attention_ranks * call.bucket * parts;
    for (int unit = afdep_warp_index(); unit < units; unit += afdep_warp_count()) {
        int index = unit / parts, part = unit - index * parts, token = index / s.attention_ranks;
        int a = index - token * s.attention_ranks;
        if (!place_part<VECTORS, CACHED>(r, call, exchange, a, token, part, part / in_piece))
            break;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

template <int VECTORS>
static __global__ void __launch_bounds__(THREADS, 1)
    receive_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    counting_t c = counting_arrays(r.shape);
    clear_counts(r.shape, c);
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_RECEIVE);
    if (!__syncthreads_and(exchange != 0)) /* every thread has its number before one may move it on */
        return;
    if (call.parts & AFDEP_CUDA_RECEIVE_COUNT) {
        if (blockIdx.x == gridDim.x - 1)
            afdep_carry_load(r, exchange);
        if (!count(r, call, exchange, c))
            return;
        position(r, call, exchange, c);
    } else {
        if (blockIdx.x == 0)
            write_known_ends(r, call, exchange);
    }
    if (!(call.parts & AFDEP_CUDA_RECEIVE_PLACE))
        return;
    if (threadIdx.x == THREADS - AFDEP_WARP)
        arrive(r, exchange);
    place<VECTORS, false>(r, call, exchange);
}

/* Cached: nothing is counted, and rows go where they went the last time. */
template <int VECTORS>
static __global__ void __launch_bounds__(THREADS, 1)
    receive_cached_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_RECEIVE);
    if (!__syncthreads_and(!afdep_poisoned(r) && await_cached(r, exchange, call.bucket, (int)threadIdx.x, THREADS)))
        return;
    if (blockIdx.x == gridDim.x - 1 && (call.parts & AFDEP_CUDA_RECEIVE_COUNT))
        afdep_repeat_load(r, exchange);
    if (!(call.parts & AFDEP_CUDA_RECEIVE_PLACE))
        return;
    if (blockIdx.x == 0)
        write_known_ends(r, call, exchange);
    __syncthreads();
    if (threadIdx.x == THREADS - AFDEP_WARP)
        arrive(r, exchange);
    place<VECTORS, true>(r, call, exchange);
}

typedef void (*kernel_t)(const afdep_cuda_rank_t, const afdep_cuda_receive_t);

static kernel_t kernel_of(const afdep_shape_t &s, bool cached)
{
    if (cached)
        return s.fp8 ? receive_cached_kernel<1> : receive_cached_kernel<2>;
    return s.fp8 ? receive_kernel<1> : receive_kernel<2>;
}

cudaError_t afdep_cuda_launch_receive(const afdep_cuda_rank_t *r, const afdep_cuda_receive_t *call, int grid,
                                      cudaStream_t stream)
{
    if (afdep_in_lines(&r->shape, call->bucket))
        return afdep_cuda_launch_receive_few(r, call, grid, stream);
    return afdep_launch(kernel_of(r->shape, call->cached), grid, THREADS, shared_bytes(r->shape), stream, *r, *call);
}

cudaError_t afdep_cuda_prepare_receive(const afdep_shape_t *shape, int *threads)
{
    *threads = THREADS;
    cudaError_t error = afdep_load(kernel_of(*shape, false), shared_bytes(*shape));
    if (error == cudaSuccess)
        error = afdep_load(kernel_of(*shape, true), shared_bytes(*shape));
    return error == cudaSuccess ? afdep_cuda_prepare_receive_few(shape) : error;
}
