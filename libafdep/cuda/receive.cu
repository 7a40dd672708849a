/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_receive. Every CTA joins the route words of all sources, counts all choices, and gives tokens their rows: inside
 * an expert by source rank, then token. With few tokens every CTA does so for all of them; with many, each for a range of
 * its own, and a position carries the exchange number, so that the warps that place rows wait for nothing else. Units of
 * placing, one warp each: a part of a token's row, taken as soon as its piece's word says that it is there, to all of the
 * token's experts at once.
 *
 * The counts come before the rows and the counting runs while rows are still arriving. This kernel writes local memory
 * only, but for the answers: the last CTA sends them, when everything of this exchange has been read from the inbox.
 */
#include "cuda/device.cuh"
#include "cuda/launch.cuh"

#define THREADS 1024
#define WARPS (THREADS / AFDEP_WARP)
#define CHUNK_WORDS 4 /* of the bits of the tokens that get their rows at once */
#define CHUNK (CHUNK_WORDS * 32)

/* ---- The shared arrays of a CTA ---------------------------------------------------------------------------------- */

typedef struct counting {
    int32_t *all;     /* [E/F] choices of all tokens; then the expert's first row */
    int32_t *before;  /* [E/F] choices of the tokens before the chunk */
    uint32_t *chosen; /* [E/F][CHUNK_WORDS] by which tokens of the chunk, one bit each */
    int32_t *tokens;  /* [A] T of each source */
    int32_t *rows;    /* [CHUNK][K] row + 1 of the chunk's choices, 0: not this rank's */
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
    c.tokens = (int32_t *)(c.chosen + s.experts_per_rank * CHUNK_WORDS);
    c.rows = c.tokens + s.attention_ranks;
    return c;
}

static __device__ __forceinline__ void clear_counts(const afdep_shape_t &s, const counting_t &c)
{
    for (int i = (int)threadIdx.x; i < s.experts_per_rank * (2 + CHUNK_WORDS); i += THREADS)
        c.all[i] = 0;
}

/* ---- Counts ------------------------------------------------------------------------------------------------------ */

/* Waits for the route words of all batches of all sources. Every thread of the CTA gets the answer. */
static __device__ bool join_routes(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    const uint64_t *words = (const uint64_t *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.route_words);
    int batches = afdep_route_batches(bucket);
    bool fine = true, poisoned = afdep_poisoned(r);
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
            if (ahead >= 0) {
                c.tokens[a] = (int32_t)afdep_word_low(seen); /* all batches of a source say the same */
                break;
            }
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange, s.ffn_ranks + a, -1, batch,
                           afdep_word((uint32_t)exchange, 0), seen)) {
                fine = false;
                break;
            }
        }
    }
    return __syncthreads_and(fine && !poisoned); /* the acquire of one thread is the CTA's */
}

/* Expert of this rank that a choice means, or -1. */
static __device__ __forceinline__ int local_expert(const afdep_shape_t &s, int rank, int id)
{
    int local = id - rank * s.experts_per_rank;
    return id >= 0 && local >= 0 && local < s.experts_per_rank ? local : -1;
}

static __device__ __forceinline__ const int32_t *choices_at(const afdep_cuda_rank_t &r, uint64_t exchange, int a)
{
    return (const int32_t *)(r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.ids) +
           afdep_slot(r.shape, a, 0) * (uint32_t)r.shape.top_k;
}

/* Counts the choices of all tokens and of those before index `first`, and notes those of the chunk that begins there
   (indices run over [A][bucket]). */
static __device__ void count_choices(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                     const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    for (int a = 0; a < s.attention_ranks; a++) {
        const int32_t *ids = choices_at(r, exchange, a);
        int choices = c.tokens[a] * k;
        for (int i = (int)threadIdx.x; i < choices; i += THREADS) {
            int local = local_expert(s, r.rank, ids[i]);
            if (local < 0)
                continue;
            int place = a * bucket + i / k - first;
            atomicAdd(&c.all[local], 1);
            if (place < 0)
                atomicAdd(&c.before[local], 1);
            else if (place < in_chunk)
                atomicOr(&c.chosen[local * CHUNK_WORDS + place / 32], 1u << place % 32);
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
    const int32_t *ends = r.ends + (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.experts_per_rank;
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
                write_end(call, e, start + count, start + aligned);
            }
        }
        carried += total;
        __syncthreads();
    }
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

/* Gives the choices of the chunk their rows: in shared memory, and (`publish`) where other CTAs and the reply look. */
static __device__ void position_chunk(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                      bool publish, const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    for (int i = (int)threadIdx.x; i < in_chunk * k; i += THREADS) {
        int place = i / k, index = first + place, a = index / bucket, token = index - a * bucket;
        if (token >= c.tokens[a])
            continue;
        int local = local_expert(s, r.rank, choices_at(r, exchange, a)[token * k + i - place * k]);
        uint32_t row = 0;
        if (local >= 0) {
            const uint32_t *chosen = c.chosen + local * CHUNK_WORDS;
            int rank = c.all[local] + c.before[local] + __popc(chosen[place / 32] & ((1u << place % 32) - 1u));
            for (int w = 0; w < place / 32; w++)
                rank += __popc(chosen[w]);
            row = (uint32_t)rank + 1u;
        }
        c.rows[i] = (int32_t)row;
        if (publish)
            afdep_store_relaxed64(&r.positions[(plane + afdep_slot(s, a, token)) * (uint32_t)k + (uint32_t)(i - place * k)],
                                  afdep_word((uint32_t)exchange, row));
    }
    __syncthreads();
}

/* Moves on to the chunk that begins at `first`: the tokens of the last one are before it. */
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
        int local = token < c.tokens[a] ? local_expert(s, r.rank, choices_at(r, exchange, a)[token * k + i - place * k]) : -1;
        if (local >= 0)
            atomicOr(&c.chosen[local * CHUNK_WORDS + place / 32], 1u << place % 32);
    }
    __syncthreads();
}

/* Few tokens: every CTA knows all positions by itself. */
static __device__ __forceinline__ bool knows_all(const afdep_cuda_rank_t &r, int bucket)
{
    return r.shape.attention_ranks * bucket <= CHUNK;
}

static __device__ void count_and_position(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                          const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int indices = s.attention_ranks * call.bucket, first = 0, last = indices;
    if (!knows_all(r, call.bucket)) {
        int each = (indices + (int)gridDim.x - 1) / (int)gridDim.x;
        first = min(each * (int)blockIdx.x, indices);
        last = min(first + each, indices);
    }
    count_choices(r, exchange, call.bucket, first, min(CHUNK, last - first), c);
    __syncthreads();
    sum_counts(r, call, exchange, c);
    bool publish = !knows_all(r, call.bucket) || blockIdx.x == 0;
    for (int at = first; at < last; at += CHUNK) {
        if (at > first)
            next_chunk(r, exchange, call.bucket, at, min(CHUNK, last - at), c);
        position_chunk(r, exchange, call.bucket, at, min(CHUNK, last - at), publish, c);
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
                afdep_look(r, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_POSITION, exchange, s.ffn_ranks + a, token, -1,
                           exchange, seen)) {
                fine = false;
                break;
            }
        *row = fine ? (int)afdep_word_low(seen) - 1 : -1;
    }
    return __all_sync(AFDEP_FULL, fine);
}

/* Part `part` (AFDEP_PIECE_SMALL elements) of a token's row; `known`: the lane's row of it, where this CTA knows. */
template <int VECTORS>
static __device__ bool place_part(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange, int a,
                                  int token, int part, int piece, const int32_t *known)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    int row = -1;
    if (!known) {
        if (!take_position(r, exchange, a, token, &row))
            return false;
    } else if ((int)lane < s.top_k) {
        row = known[lane] - 1;
    }
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (experts == 0)
        return true;
    uint64_t plane = afdep_plane_at(r.own, s, exchange), slot = afdep_slot(s, a, token);
    const uint32_t *word = (const uint32_t *)(r.base + plane + r.own.row_words) + slot * r.own.pieces + piece;
    float weight = part == 0 && row >= 0
                       ? ((const float *)(r.base + plane + r.own.weights))[slot * (uint32_t)s.top_k + lane]
                       : 0;
    bool fine = afdep_wait_piece(r, word, exchange, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROW, s.ffn_ranks + a, token, piece);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    uint32_t row_bytes = (uint32_t)s.hidden * width, first = (uint32_t)(part * AFDEP_PIECE_SMALL) * width;
    uint32_t bytes = min((uint32_t)AFDEP_PIECE_SMALL * width, row_bytes - first);
    const unsigned char *from = r.base + plane + r.own.rows + slot * r.own.row_stride;
    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((uint32_t)i * 512u + lane * 16u < bytes)
            v[i] = afdep_load16(from + first + i * 512 + lane * 16);
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = part * AFDEP_PIECE_SMALL / AFDEP_SCALE_BLOCK;
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
    if (part == 0 && row >= 0) {
        call.row_weight[row] = weight;
        if (call.row_source)
            ((int2 *)call.row_source)[row] = make_int2(s.ffn_ranks + a, token);
    }
    return true;
}

template <int VECTORS>
static __device__ void place(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                             const counting_t &c)
{
    const afdep_shape_t &s = r.shape;
    int parts = afdep_pieces(&s, AFDEP_PIECE_SMALL), in_piece = afdep_piece_elements(call.bucket) / AFDEP_PIECE_SMALL;
    int units = s.attention_ranks * call.bucket * parts;
    bool known = knows_all(r, call.bucket) && (call.parts & AFDEP_CUDA_RECEIVE_COUNT);
    for (int unit = afdep_warp_index(); unit < units; unit += afdep_warp_count()) {
        int index = unit / parts, part = unit - index * parts, token = index / s.attention_ranks;
        int a = index - token * s.attention_ranks;
        if (token < c.tokens[a] &&
            !place_part<VECTORS>(r, call, exchange, a, token, part, part / in_piece,
                                 known ? c.rows + (a * call.bucket + token) * s.top_k : NULL))
            break;
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* The next dispatch may overwrite words, routes and rows: they have been read. */
static __device__ void send_answers(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    uint64_t at = afdep_plane_at(r.peer, s, exchange) + r.peer.answers + 8u * (uint32_t)r.rank;
    afdep_fence_system(); /* all CTAs' reads, gathered by afdep_leave(), before the answers */
    for (int a = 0; a < s.attention_ranks; a++) {
        afdep_signal64((uint64_t *)(r.segments[s.ffn_ranks + a] + at), afdep_word((uint32_t)exchange, 0));
        r.counters[s.ffn_ranks + a].signals++;
    }
}

template <int VECTORS>
static __global__ void __launch_bounds__(THREADS, 1)
    receive_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    counting_t c = counting_arrays(r.shape);
    clear_counts(r.shape, c);
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_RECEIVE);
    if (!join_routes(r, exchange, call.bucket, c))
        return;
    if (call.parts & AFDEP_CUDA_RECEIVE_COUNT)
        count_and_position(r, call, exchange, c);
    else
        write_ends(r, call, exchange);
    if (!(call.parts & AFDEP_CUDA_RECEIVE_PLACE))
        return;
    place<VECTORS>(r, call, exchange, c);
    if (!afdep_leave(r, AFDEP_CUDA_RECEIVE) || afdep_poisoned(r))
        return;
    send_answers(r, exchange);
    afdep_finish(r, AFDEP_CUDA_RECEIVE, exchange);
}

cudaError_t afdep_cuda_launch_receive(const afdep_cuda_rank_t *r, const afdep_cuda_receive_t *call, int grid,
                                      cudaStream_t stream)
{
    size_t shared = shared_bytes(r->shape);
    return r->shape.fp8 ? afdep_launch(receive_kernel<1>, grid, THREADS, shared, stream, *r, *call)
                        : afdep_launch(receive_kernel<2>, grid, THREADS, shared, stream, *r, *call);
}

cudaError_t afdep_cuda_prepare_receive(const afdep_shape_t *shape, int *threads)
{
    *threads = THREADS;
    return shape->fp8 ? afdep_load(receive_kernel<1>, shared_bytes(*shape))
                      : afdep_load(receive_kernel<2>, shared_bytes(*shape));
}
