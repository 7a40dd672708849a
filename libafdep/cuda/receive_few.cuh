/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving few tokens, in one domain and across domains: choices to positions to rows, see receive_few.cu. Where words and
 * lines stand is the layout's (afdep_cuda_rank_t::own); how choices came there is the including kernel's.
 */
#ifndef AFDEP_CUDA_RECEIVE_FEW_CUH
#define AFDEP_CUDA_RECEIVE_FEW_CUH

#include "cuda/lines.cuh"
#include "cuda/receive.cuh"

#ifndef FEW_THREADS
#define FEW_THREADS 384 /* two CTAs fit an SM, and nothing spills */
#endif
#define FEW_WARPS (FEW_THREADS / AFDEP_WARP)

/* ---- The shared arrays of a CTA ---------------------------------------------------------------------------------- */

#define FEWEST_SHIFT 2 /* four experts a lane: their words are one load */

/* An index is a token of a source, [A][bucket]. Lane l of a warp sums the experts from l << shift on. */
typedef struct few {
    uint32_t *chosen; /* [words][32 << shift] by which indices, one bit each; experts beyond E/F have none */
    uint32_t *served; /* [A] nonzero: the source chose one of this rank's experts */
    uint16_t *choice; /* [indices][K] expert of this rank + 1; 0: not this rank's */
    int indices, words, shift;
} few_t;

static __host__ __device__ __forceinline__ few_t few_sizes(const afdep_shape_t &s, int bucket)
{
    few_t f = {};
    f.indices = s.attention_ranks * bucket;
    f.words = (f.indices + 31) / 32;
    f.shift = FEWEST_SHIFT;
    while (AFDEP_WARP << f.shift < s.experts_per_rank)
        f.shift++;
    return f;
}

static __host__ __device__ __forceinline__ size_t shared_bytes(const afdep_shape_t &s, int bucket)
{
    few_t f = few_sizes(s, bucket);
    return sizeof(uint32_t) * (((size_t)f.words * AFDEP_WARP << f.shift) + (size_t)s.attention_ranks) +
           sizeof(uint16_t) * (size_t)f.indices * (size_t)s.top_k;
}

static __device__ __forceinline__ few_t few_arrays(const afdep_shape_t &s, int bucket)
{
    extern __shared__ uint4 shared[];
    few_t f = few_sizes(s, bucket);
    int cleared = (f.words * AFDEP_WARP << f.shift) + s.attention_ranks;
    f.chosen = (uint32_t *)shared;
    f.served = f.chosen + cleared - s.attention_ranks;
    f.choice = (uint16_t *)(f.chosen + cleared);
    for (int i = (int)threadIdx.x; i < cleared; i += FEW_THREADS)
        f.chosen[i] = 0;
    return f;
}

/* The bits of indices 32 * word to 32 * word + 31. */
static __device__ __forceinline__ uint32_t *chosen_words(const few_t &f, int word)
{
    return f.chosen + ((word * AFDEP_WARP) << f.shift);
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ int align_count(const afdep_shape_t &s, int count)
{
    return s.expert_alignment == 1 ? count : (count + s.expert_alignment - 1) / s.expert_alignment * s.expert_alignment;
}

static __device__ __forceinline__ int count_of(const few_t &f, int expert)
{
    int count = 0;
#pragma unroll 1
    for (int w = 0; w < f.words; w++)
        count += __popc(chosen_words(f, w)[expert]);
    return count;
}

/* First rows of the lane's experts: of four, or (more experts a lane) of the first alone. */
typedef struct starts {
    int of[1 << FEWEST_SHIFT];
} starts_t;

static __device__ __forceinline__ starts_t find_starts(const afdep_shape_t &s, const few_t &f)
{
    int lane = (int)afdep_lane(), own;
    starts_t n = {};
    if (f.shift == FEWEST_SHIFT) {
#pragma unroll 1
        for (int w = 0; w < f.words; w++) {
            uint4 bits = ((const uint4 *)chosen_words(f, w))[lane];
            n.of[0] += __popc(bits.x), n.of[1] += __popc(bits.y), n.of[2] += __popc(bits.z), n.of[3] += __popc(bits.w);
        }
        int a = align_count(s, n.of[0]), b = align_count(s, n.of[1]), c = align_count(s, n.of[2]);
        own = a + b + c + align_count(s, n.of[3]);
        n.of[0] = 0, n.of[1] = a, n.of[2] = a + b, n.of[3] = a + b + c;
    } else {
        own = 0;
#pragma unroll 1
        for (int e = lane << f.shift; e < (lane + 1) << f.shift; e++)
            own += align_count(s, count_of(f, e));
    }
    int sum = own;
#pragma unroll
    for (int step = 1; step < AFDEP_WARP; step *= 2) {
        int other = __shfl_up_sync(AFDEP_FULL, sum, step);
        sum += lane >= step ? other : 0;
    }
#pragma unroll
    for (int i = 0; i < 1 << FEWEST_SHIFT; i++)
        n.of[i] += sum - own;
    return n;
}

/* The first row of an expert, which may be another one in each lane. */
static __device__ __forceinline__ int start_of(const afdep_shape_t &s, const few_t &f, const starts_t &n, int expert)
{
    int lane = expert >> f.shift, start = __shfl_sync(AFDEP_FULL, n.of[0], lane);
    if (f.shift == FEWEST_SHIFT) {
        int b = __shfl_sync(AFDEP_FULL, n.of[1], lane), c = __shfl_sync(AFDEP_FULL, n.of[2], lane);
        int d = __shfl_sync(AFDEP_FULL, n.of[3], lane);
        return expert & 2 ? (expert & 1 ? d : c) : expert & 1 ? b : start;
    }
#pragma unroll 1
    for (int e = lane << f.shift; e < expert; e++)
        start += align_count(s, count_of(f, e));
    return start;
}

/* The row of this lane's choice of the token at `index`, or -1. */
static __device__ __forceinline__ int row_of_choice(const afdep_shape_t &s, const few_t &f, const starts_t &n,
                                                    int index)
{
    int lane = (int)afdep_lane(), local = lane < s.top_k ? (int)f.choice[index * s.top_k + lane] - 1 : -1,
        at = max(local, 0);
    int row = start_of(s, f, n, at) + __popc(chosen_words(f, index / 32)[at] & ((1u << index % 32) - 1u));
#pragma unroll 1
    for (int w = 0; w < index / 32; w++)
        row += __popc(chosen_words(f, w)[at]);
    return local < 0 ? -1 : row;
}

/* What is told about the exchange as a whole, by all warps of one CTA, an expert a lane. */
static __device__ __forceinline__ void tell_ends(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call,
                                            uint64_t exchange, const few_t &f, const starts_t &n)
{
    const afdep_shape_t &s = r.shape;
    uint32_t plane = afdep_plane(s, exchange);
#pragma unroll 1
    for (int first = (int)(threadIdx.x & ~(AFDEP_WARP - 1u)); first < s.experts_per_rank; first += FEW_THREADS) {
        int e = first + (int)afdep_lane(), start = start_of(s, f, n, min(e, s.experts_per_rank - 1));
        if (e >= s.experts_per_rank)
            continue;
        int count = count_of(f, e);
        r.ends[plane * (uint32_t)s.experts_per_rank + (uint32_t)e] = start + count;
        write_end(call, e, start + count, start + align_count(s, count));
    }
}

/* The tokens that came, by the last warps of a CTA, an expert or source's token a lane. */
static __device__ __forceinline__ void tell_load(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket,
                                                 const few_t &f)
{
    const afdep_shape_t &s = r.shape;
    int thread = FEW_THREADS - 1 - (int)threadIdx.x;
#pragma unroll 1
    for (int e = thread; e < s.experts_per_rank; e += FEW_THREADS)
        *afdep_load_expert(r, exchange, e) = (uint32_t)count_of(f, e);
#pragma unroll 1
    for (int a = thread / AFDEP_WARP; a < s.attention_ranks; a += FEW_WARPS) {
        int tokens = 0;
#pragma unroll 1
        for (int first = 0; first < bucket; first += AFDEP_WARP) {
            int token = first + (int)afdep_lane(), chosen = 0;
            for (int k = 0; token < bucket && k < s.top_k; k++)
                chosen |= f.choice[(a * bucket + token) * s.top_k + k];
            tokens += __popc(__ballot_sync(AFDEP_FULL, chosen != 0));
        }
        if (afdep_lane() == 0)
            *afdep_load_source(r, exchange, a) = (uint32_t)tokens;
    }
}

/* ---- Placing ----------------------------------------------------------------------------------------------------- */

/* A warp's work: some lines of a token's payload, or a tail line. */
typedef struct unit {
    int a, token, index, line, tail; /* tail: -1 for payload */
    afdep_look_for_t look;
} unit_t;

template <int LINES>
static __device__ __forceinline__ unit_t unit_at(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int n,
                                                 int groups, int parts)
{
    const afdep_shape_t &s = r.shape;
    unit_t u;
    int at = n / parts, part = n - at * parts, lane = (int)afdep_lane(), vectors = afdep_row_vectors(&s);
    u.token = at / s.attention_ranks; /* all sources are served from the start */
    u.a = at - u.token * s.attention_ranks;
    u.index = u.a * bucket + u.token;
    u.tail = part < groups ? -1 : part - groups;
    u.line = part < groups ? part * LINES : afdep_lines(vectors) + u.tail;
    uint32_t needed = 0;
#pragma unroll
    for (int i = 0; i < LINES; i++)
        needed |= (uint32_t)afdep_line_uses(lane, vectors - (u.line + i) * AFDEP_LINE_VECTORS) << i;
    if (u.tail >= 0)
        needed = u.tail * AFDEP_WARP + lane < afdep_tail_words(&s);
    uint32_t line = (uint32_t)((u.a * r.own.few_tokens + u.token) * r.own.row_line_count + u.line);
    u.look = { r.base + afdep_plane_at(r.own, s, exchange) + r.own.row_lines + (uint64_t)line * AFDEP_LINE_BYTES +
                   lane * 16,
               needed,
               AFDEP_CUDA_RECEIVE,
               AFDEP_CUDA_WORD_ROW,
               s.ffn_ranks + u.a,
               u.token,
               u.line };
    return u;
}

#define ROWS_AT_ONCE 8

/* The row of this lane's choice; CACHED: where it was the last time. */
template <bool CACHED>
static __device__ __forceinline__ int row_of(const afdep_cuda_rank_t &r, uint64_t exchange, const few_t &f,
                                             const starts_t &n, const unit_t &u)
{
    return CACHED ? recall_row(r, exchange, u.a, u.token) : row_of_choice(r.shape, f, n, u.index);
}

template <int LINES, bool CACHED>
static __device__ __forceinline__ bool place_lines(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call,
                                                   uint64_t exchange, const few_t &f, const starts_t &n, unit_t &u)
{
    const afdep_shape_t &s = r.shape;
    uint4 words[LINES];
    afdep_load_lines<LINES>(u.look, words); /* a first look, while the rows are worked out */
    int row = row_of<CACHED>(r, exchange, f, n, u), lane = (int)afdep_lane(), vectors = afdep_row_vectors(&s);
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (experts == 0)
        return true;
    int first = u.line * AFDEP_LINE_VECTORS + lane, left = lane < AFDEP_LINE_VECTORS ? vectors - first : 0;
    uint4 *rows = (uint4 *)call.rows + first;
    if (!afdep_await_lines<LINES>(r, u.look, exchange, words))
        return false;
#pragma unroll
    for (int i = 0; i < LINES; i++)
        words[i] = afdep_unpack_word(words[i]);
#pragma unroll 1
    for (int k = 0; k < s.top_k; k += ROWS_AT_ONCE, experts >>= ROWS_AT_ONCE) {
        int to[ROWS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            to[j] = __shfl_sync(AFDEP_FULL, row, k + j);
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
#pragma unroll
            for (int i = 0; i < LINES; i++)
                if ((experts >> j & 1) && left > i * AFDEP_LINE_VECTORS)
                    rows[(int64_t)to[j] * vectors + i * AFDEP_LINE_VECTORS] = words[i];
    }
    return true;
}

/* Scales, and (with the first tail line) weights and sources. Also tells the reply where the rows are. */
template <bool CACHED>
static __device__ __forceinline__ bool place_tail(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call,
                                                  uint64_t exchange, const few_t &f, const starts_t &n, unit_t &u)
{
    const afdep_shape_t &s = r.shape;
    int lane = (int)afdep_lane(), i = u.tail * AFDEP_WARP + lane, scales = afdep_scales(&s);
    uint4 words[1];
    afdep_load_lines<1>(u.look, words);
    int row = row_of<CACHED>(r, exchange, f, n, u);
    uint64_t slot = afdep_slot(s, u.a, u.token);
    if (u.tail == 0)
        tell_row(r, exchange, u.a, u.token, row);
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (experts == 0 || !(call.parts & AFDEP_CUDA_RECEIVE_PLACE))
        return true;
    if (!afdep_await_lines<1>(r, u.look, exchange, words))
        return false;
    float scale = __uint_as_float(words[0].x), weight = __uint_as_float(words[0].y);
    for (int k = 0; scales && k < s.top_k; k++) {
        int to = __shfl_sync(AFDEP_FULL, row, k);
        if (to >= 0 && i < scales)
            call.row_scale[(int64_t)to * scales + i] = scale;
    }
    if (u.tail > 0 || row < 0)
        return true;
    call.row_weight[row] = weight;
    if (call.row_source)
        ((int2 *)call.row_source)[row] = make_int2(s.ffn_ranks + u.a, u.token);
    if (s.apply_weights) /* the reply looks for it where rows of many tokens have it; no peer writes there now */
        ((float *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.rows + slot * r.own.row_stride +
                   r.own.weight_offset))[lane] = weight;
    return true;
}

/* Lines that a warp takes at once: one where there are warps for all, else more, so that more is on its way. */
static inline bool afdep_few_spread(const afdep_shape_t *s, int bucket, int grid)
{
    return (int64_t)s->attention_ranks * bucket * afdep_row_lines(s) <= (int64_t)grid * FEW_WARPS;
}

#endif
