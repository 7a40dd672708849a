/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_receive across domains: forward and join (rail_forward.cuh), then counting and placing. A CTA has a range of the
 * tokens of all sources (in the order of rows inside an expert: source rank, then token). It counts the choices of its
 * range and exchanges counts with the other CTAs in words that carry the exchange number; where there are few tokens it
 * counts them all by itself. From these it knows every row of its range, and places them.
 *
 * The done witness goes out of the forward phase: once a CTA has joined, all rows of this rank's rail have been read from the
 * rail inbox, and nothing reads it any more. It guards the next overwrite and no result, so it is sent beside the counting, by
 * the CTA that has the least of it.
 */
#include "cuda/launch.cuh"
#include "cuda/load.cuh"
#include "cuda/rail_few.cuh"
#include "cuda/rail_forward.cuh"

#define THREADS AFDEP_RAIL_THREADS
#define WARPS AFDEP_RAIL_WARPS
#define CHUNK_WORDS 4 /* bits of the tokens that get their rows at once */
#define CHUNK (CHUNK_WORDS * 32)
#define COUNT_ALONE (8 * THREADS) /* choices that a CTA counts by itself */

/* ---- The shared arrays of a CTA ---------------------------------------------------------------------------------- */

typedef struct counting {
    int32_t *all;      /* [E/F + D] choices of all tokens, then the expert's first row; behind them rows of each rail */
    int32_t *before;   /* [E/F] choices of the tokens before the chunk */
    uint32_t *chosen;  /* [E/F][CHUNK_WORDS] by which tokens of the chunk, one bit each */
    int32_t *rows;     /* [CHUNK][K] of the chunk's choices: expert of this rank + 1, then row + 1; 0: not this rank's */
    uint32_t *arrived; /* [D] */
} counting_t;

static __host__ __device__ __forceinline__ size_t shared_bytes(const afdep_shape_t &s)
{
    return sizeof(int32_t) * ((size_t)s.experts_per_rank * (2 + CHUNK_WORDS) + 2u * (size_t)s.ranks_per_domain +
                              (size_t)CHUNK * (size_t)s.top_k);
}

static __device__ __forceinline__ counting_t counting_arrays(const afdep_shape_t &s)
{
    extern __shared__ int32_t shared[];
    counting_t c;
    c.all = shared;
    c.before = c.all + s.experts_per_rank + s.ranks_per_domain;
    c.chosen = (uint32_t *)(c.before + s.experts_per_rank);
    c.rows = (int32_t *)(c.chosen + s.experts_per_rank * CHUNK_WORDS);
    c.arrived = (uint32_t *)(c.rows + CHUNK * s.top_k);
    return c;
}

static __device__ __forceinline__ void clear_counts(const afdep_shape_t &s, const counting_t &c)
{
    for (int i = (int)threadIdx.x; i < s.experts_per_rank * (2 + CHUNK_WORDS) + s.ranks_per_domain; i += THREADS)
        c.all[i] = 0;
}

/* ---- Arrivals ---------------------------------------------------------------------------------------------------- */

/* A token of a source, by its index: sources by rank, then tokens. */
typedef struct arrival {
    int a, rail, source, token;
} arrival_t;

static __device__ __forceinline__ arrival_t arrival_at(const afdep_shape_t &s, int bucket, int index)
{
    arrival_t t;
    t.a = index / bucket;
    t.token = index - t.a * bucket;
    t.source = t.a / s.ranks_per_domain;
    t.rail = t.a - t.source * s.ranks_per_domain;
    return t;
}

static __device__ __forceinline__ const unsigned char *row_of(const afdep_rail_rank_t &r, uint64_t exchange,
                                                              const arrival_t &t)
{
    return afdep_arrived_row(r, exchange, t.rail, t.source, t.token);
}

static __device__ __forceinline__ int local_expert(const afdep_rail_rank_t &r, int id)
{
    int local = id - r.c.rank * r.c.shape.experts_per_rank;
    return id >= 0 && local >= 0 && local < r.c.shape.experts_per_rank ? local : -1;
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

/*
 * Takes the choices of the tokens from index `from` to `to`. With `totals` it counts them, and those before `first`; it
 * always notes those of the chunk that begins at `first`. A row that holds another exchange's tag is of a token that did
 * not come. A rail that forwarded nothing may already be writing its next exchange's rows, so nothing of it is read.
 */
static __device__ void take_choices(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, int from, int to, int first,
                                    int in_chunk, bool totals, const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    int k = s.top_k;
#pragma unroll 2
    for (int i = from * k + (int)threadIdx.x; i < to * k; i += THREADS) {
        int index = i / k, slot = i - index * k, place = index - first;
        arrival_t t = arrival_at(s, bucket, index);
        int local = -1;
        bool noted = place >= 0 && place < in_chunk;
        if (c.arrived[t.rail] > 0) {
            const unsigned char *row = row_of(r, exchange, t);
            uint4 tag = *(const uint4 *)(row + r.layout.row.tag_offset);
            int id = ((const int32_t *)(row + r.layout.row.ids_offset))[slot];
            if (afdep_rail_tagged(tag, exchange, t.token, s.ffn_ranks + t.a)) {
                local = local_expert(r, id);
                if (slot == 0 && totals)
                    atomicAdd(&c.all[s.experts_per_rank + t.rail], 1);
                if (slot == 0 && noted)
                    atomicAdd(afdep_load_source(r.c, exchange, t.a), 1u);
            }
        }
        if (noted)
            c.rows[place * k + slot] = local + 1;
        if (local < 0)
            continue;
        if (totals) {
            atomicAdd(&c.all[local], 1);
            if (place < 0)
                atomicAdd(&c.before[local], 1);
        }
        if (noted)
            atomicOr(&c.chosen[local * CHUNK_WORDS + place / 32], 1u << place % 32);
    }
}

/* Exchanges counts with the other CTAs, when each has counted its own range. A word is all that it covers. */
static __device__ bool exchange_counts(const afdep_rail_rank_t &r, uint64_t exchange, const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    int entries = s.experts_per_rank + s.ranks_per_domain, grid = (int)gridDim.x;
    uint64_t *own = r.counts + (uint64_t)blockIdx.x * (uint32_t)entries;
    for (int e = (int)threadIdx.x; e < entries; e += THREADS)
        afdep_store_relaxed64(&own[e], afdep_word((uint32_t)exchange, (uint32_t)c.all[e]));
    __syncthreads(); /* all are sent, before they are added to */
    bool fine = true;
    for (int i = (int)threadIdx.x; fine && i < entries * grid; i += THREADS) {
        int cta = i / entries, e = i - cta * entries;
        if (cta == (int)blockIdx.x)
            continue;
        afdep_rail_wait_t wait = { AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_POSITION, r.c.rank, -1, exchange, exchange };
        uint64_t seen;
        fine = afdep_rail_await(
            r, wait, &seen, [&]() { return afdep_load_relaxed64(&r.counts[i]); },
            [&](uint64_t value) {
                return afdep_word_high(value) == (uint32_t)exchange ? AFDEP_WORD_READY : AFDEP_WORD_WAIT;
            });
        int count = fine ? (int)afdep_word_low(seen) : 0;
        if (count == 0)
            continue;
        atomicAdd(&c.all[e], count);
        if (cta < (int)blockIdx.x && e < s.experts_per_rank)
            atomicAdd(&c.before[e], count);
    }
    return __syncthreads_and(fine);
}

/* A CTA's own range of token indices. */
static __device__ __forceinline__ void own_range(const afdep_rail_rank_t &r, int bucket, int *first, int *last)
{
    int indices = r.c.shape.attention_ranks * bucket, each = (indices + (int)gridDim.x - 1) / (int)gridDim.x;
    *first = min(each * (int)blockIdx.x, indices);
    *last = min(*first + each, indices);
}

/* Rows that a rail said it forwarded, and those that are there. */
static __device__ bool check_arrived(const afdep_rail_rank_t &r, uint64_t exchange, const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)threadIdx.x;
    bool fine = true;
    if (q < s.ranks_per_domain && c.arrived[q] != (uint32_t)c.all[s.experts_per_rank + q]) {
        afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROWS, exchange,
                          afdep_ffn_rank(&s, r.domain, q), -1, -1, c.arrived[q],
                          (uint64_t)(uint32_t)c.all[s.experts_per_rank + q]);
        fine = false;
    }
    return __syncthreads_and(fine);
}

static __device__ bool count(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                             const counting_t &c)
{
    int first, last, indices = r.c.shape.attention_ranks * call.bucket;
    bool alone = gridDim.x == 1 || indices * r.c.shape.top_k <= COUNT_ALONE;
    own_range(r, call.bucket, &first, &last);
    take_choices(r, exchange, call.bucket, alone ? 0 : first, alone ? indices : last, first, min(CHUNK, last - first), true, c);
    __syncthreads();
    if (!alone && !exchange_counts(r, exchange, c))
        return false;
    return check_arrived(r, exchange, c);
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

/* One expert's end and the padding behind it. */
static __device__ __forceinline__ void write_end(const afdep_cuda_receive_t &call, int e, int end, int aligned_end)
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
static __device__ void write_ends(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    const int32_t *ends = r.c.ends + (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.experts_per_rank;
    int align = s.expert_alignment;
    for (int e = (int)threadIdx.x; blockIdx.x == 0 && e < s.experts_per_rank; e += THREADS)
        write_end(call, e, ends[e], (ends[e] + align - 1) / align * align);
}

/* Turns the counts into first rows (exclusive sums of aligned counts); CTA 0 writes the ends and marks the padding. */
static __device__ void sum_counts(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                  const counting_t &c)
{
    __shared__ int32_t warp_sums[WARPS];
    const afdep_shape_t &s = r.c.shape;
    int experts = s.experts_per_rank, align = s.expert_alignment, carried = 0;
    int32_t *ends = r.c.ends + (uint64_t)afdep_plane(s, exchange) * (uint32_t)experts;
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
                *afdep_load_expert(r.c, exchange, e) = (uint32_t)count;
                write_end(call, e, start + count, start + aligned);
            }
        }
        carried += total;
        __syncthreads();
    }
}

/* ---- Positions --------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint64_t *position_of(const afdep_rail_rank_t &r, uint64_t exchange, const arrival_t &t)
{
    const afdep_shape_t &s = r.c.shape;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    return r.c.positions + (plane + afdep_slot(s, t.a, t.token)) * (uint32_t)s.top_k;
}

/* Gives the choices of the chunk their rows, here and where the reply looks. */
static __device__ void position_chunk(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                      const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    int k = s.top_k;
    for (int i = (int)threadIdx.x; i < in_chunk * k; i += THREADS) {
        int place = i / k, local = c.rows[i] - 1;
        uint32_t row = 0;
        if (local >= 0) {
            const uint32_t *chosen = c.chosen + local * CHUNK_WORDS;
            int rank = c.all[local] + c.before[local] + __popc(chosen[place / 32] & ((1u << place % 32) - 1u));
            for (int w = 0; w < place / 32; w++)
                rank += __popc(chosen[w]);
            row = (uint32_t)rank + 1u;
        }
        c.rows[i] = (int32_t)row;
        position_of(r, exchange, arrival_at(s, bucket, first + place))[i - place * k] = afdep_word((uint32_t)exchange, row);
    }
    __syncthreads();
}

/* Moves on to the chunk that begins at `first`: the tokens of the last one are before it. */
static __device__ void next_chunk(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                  const counting_t &c)
{
    for (int e = (int)threadIdx.x; e < r.c.shape.experts_per_rank; e += THREADS)
        for (int w = 0; w < CHUNK_WORDS; w++) {
            c.before[e] += __popc(c.chosen[e * CHUNK_WORDS + w]);
            c.chosen[e * CHUNK_WORDS + w] = 0;
        }
    __syncthreads();
    take_choices(r, exchange, bucket, first, first + in_chunk, first, in_chunk, false, c);
    __syncthreads();
}

/* Placing in a kernel of its own, or cached: the positions of the chunk as the kernel or exchange before found them. They are
   told again, as the reply looks for this exchange's. */
static __device__ void recall_chunk(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, int first, int in_chunk,
                                    const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    int k = s.top_k;
    for (int i = (int)threadIdx.x; i < in_chunk * k; i += THREADS) {
        int place = i / k;
        uint64_t *position = position_of(r, exchange, arrival_at(s, bucket, first + place)) + (i - place * k);
        c.rows[i] = (int32_t)afdep_word_low(*position);
        *position = afdep_word((uint32_t)exchange, (uint32_t)c.rows[i]);
    }
    __syncthreads();
}

/* ---- Placing ------------------------------------------------------------------------------------------------- */

/* Piece `part` (VECTORS 16-byte words a lane) of the row of the token at `place` of the chunk, to all its experts. */
template <int VECTORS>
static __device__ void place_part(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                  const arrival_t &t, int place, int part, const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_row_format_t &f = r.layout.row;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    const uint32_t elements = VECTORS * 512u / width;
    int row = (int)lane < s.top_k ? c.rows[place * s.top_k + (int)lane] - 1 : -1;
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (experts == 0)
        return;
    const unsigned char *from = row_of(r, exchange, t);
    uint32_t first = (uint32_t)part * VECTORS * 512u, bytes = min(VECTORS * 512u, f.payload_bytes - first);
    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((uint32_t)i * 512u + lane * 16u < bytes)
            v[i] = afdep_load16(from + first + i * 512 + lane * 16);
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = part * (int)elements / AFDEP_SCALE_BLOCK;
    float scale = (int)lane < blocks ? ((const float *)(from + f.scale_offset))[first_block + (int)lane] : 0;
    float weight = part == 0 && row >= 0 ? ((const float *)(from + f.weights_offset))[lane] : 0;
    for (uint32_t left = experts; left; left &= left - 1) {
        int to = __shfl_sync(AFDEP_FULL, row, __ffs((int)left) - 1);
        unsigned char *out = (unsigned char *)call.rows + (uint64_t)to * f.payload_bytes + first;
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
            ((int2 *)call.row_source)[row] = make_int2(s.ffn_ranks + t.a, t.token);
    }
}

/* Positions and placing of the CTA's own range, chunk by chunk. */
template <int VECTORS>
static __device__ void lay_out(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                               const counting_t &c)
{
    const afdep_shape_t &s = r.c.shape;
    int first, last, parts = ((int)r.layout.row.payload_bytes + VECTORS * 512 - 1) / (VECTORS * 512);
    bool counted = (call.parts & AFDEP_CUDA_RECEIVE_COUNT) && !call.cached;
    own_range(r, call.bucket, &first, &last);
    for (int at = first; at < last; at += CHUNK) {
        int in_chunk = min(CHUNK, last - at);
        if (!counted) {
            recall_chunk(r, exchange, call.bucket, at, in_chunk, c);
        } else {
            if (at > first)
                next_chunk(r, exchange, call.bucket, at, in_chunk, c);
            position_chunk(r, exchange, call.bucket, at, in_chunk, c);
        }
        for (int unit = (int)threadIdx.x / AFDEP_WARP; (call.parts & AFDEP_CUDA_RECEIVE_PLACE) && unit < in_chunk * parts;
             unit += WARPS)
            place_part<VECTORS>(r, call, exchange, arrival_at(s, call.bucket, at + unit / parts), unit / parts, unit % parts, c);
        __syncthreads(); /* the chunk's arrays are read */
    }
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* A lane for each source. Behind the CTA's join: the reads of all warps that forwarded are over. */
static __device__ void send_witnesses(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    uint64_t word = afdep_attention_plane(r, exchange) + afdep_at_witness(&r.layout.attention, r.domain);
    for (int source = (int)afdep_lane(); s.sparse_combine && source < s.attention_domains; source += AFDEP_WARP)
        rail.say(AFDEP_RAIL_WITNESS, source, word, afdep_word((uint32_t)(exchange - (uint64_t)s.in_flight), 0),
                 afdep_word((uint32_t)exchange, 0));
}

template <int VECTORS>
static __global__ void __launch_bounds__(THREADS, 1)
    rail_receive_kernel(const __grid_constant__ afdep_rail_kernel_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    __shared__ uint32_t forwarded[AFDEP_RAIL_RAILS]; /* by this CTA, to each rail */
    counting_t c = counting_arrays(r.c.shape);
    clear_counts(r.c.shape, c);
    if (threadIdx.x < AFDEP_RAIL_RAILS)
        forwarded[threadIdx.x] = 0;
    uint64_t exchange = afdep_enter(r.c, AFDEP_CUDA_RECEIVE);
    int warp = (int)threadIdx.x / AFDEP_WARP;
    if (call.parts & AFDEP_CUDA_RECEIVE_COUNT) {
        if (blockIdx.x == gridDim.x - 1 && call.cached)
            afdep_repeat_load(r.c, exchange);
        else if (blockIdx.x == gridDim.x - 1)
            afdep_carry_load(r.c, exchange);
        __syncthreads(); /* the counts are clear */
        afdep_forward(r, call, exchange, forwarded);
        __syncthreads(); /* all that this CTA forwarded before its arrival */
        if (warp == 0 && !afdep_poisoned(r.c))
            afdep_end_forward(r, exchange, forwarded);
        __syncwarp();
        bool fine = warp != WARPS - 1 || afdep_join(r, call, exchange, c.arrived);
        if (!__syncthreads_and(fine))
            return;
        if (blockIdx.x == gridDim.x - 1 && warp == WARPS - 1)
            send_witnesses(r, exchange);
        if (call.cached) {
            write_ends(r, call, exchange);
        } else {
            if (!count(r, call, exchange, c))
                return;
            sum_counts(r, call, exchange, c);
        }
    } else {
        if (__syncthreads_or(afdep_poisoned(r.c)))
            return;
        write_ends(r, call, exchange);
    }
    lay_out<VECTORS>(r, call, exchange, c);
    if (call.parts & AFDEP_CUDA_RECEIVE_COUNT)
        afdep_few_renew_partials(r, exchange);
    /* Behind what every CTA counted: a reader of the load goes by the number. */
    if ((call.parts & AFDEP_CUDA_RECEIVE_PLACE) && afdep_leave(r.c, AFDEP_CUDA_RECEIVE))
        afdep_finish(r.c, AFDEP_CUDA_RECEIVE, exchange);
}

cudaError_t AFDEP_RAIL_NAME(launch_receive)(const afdep_rail_rank_t *r, const afdep_cuda_receive_t *call, int grid,
                                      cudaStream_t stream)
{
    size_t shared = shared_bytes(r->c.shape);
    /* Few tokens in small pieces keep many warps busy; many do so by themselves, and with more loads on their way. */
    bool many = (int64_t)r->c.shape.attention_ranks * call->bucket >= (int64_t)grid * WARPS;
    return many ? afdep_launch_apart(rail_receive_kernel<4>, grid, THREADS, shared, stream, afdep_rail_kernel_rank(*r), *call)
                : afdep_launch_apart(rail_receive_kernel<1>, grid, THREADS, shared, stream, afdep_rail_kernel_rank(*r), *call);
}

cudaError_t AFDEP_RAIL_NAME(prepare_receive)(const afdep_shape_t *shape)
{
    cudaError_t error = afdep_load(rail_receive_kernel<1>, shared_bytes(*shape));
    return error == cudaSuccess ? afdep_load(rail_receive_kernel<4>, shared_bytes(*shape)) : error;
}
