/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_receive of few tokens. Every CTA looks for all choices of all sources and notes, for each expert, which tokens
 * chose it, one bit each. Behind that one barrier every warp knows by itself where each expert begins (a sum over the
 * experts' counts) and which row of it a token gets: inside an expert by source rank, then token, that is as many as bits
 * stand before its own. Units of placing, one warp each: a few lines of a token's row, taken as they come, to all of the
 * token's experts at once.
 *
 * What is known before the choices come is worked out before: behind them, a warp is alone with its instructions, and each
 * costs several cycles.
 *
 * Nothing is written but local memory, so every SM may take part; except answers, to sources that sent no row.
 */
#include "cuda/launch.cuh"
#include "cuda/receive_few.cuh"

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

/* Takes all choices as they come. Every thread of the CTA learns whether all did. */
static __device__ __forceinline__ bool take_choices(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket,
                                                    const few_t &f)
{
    const afdep_shape_t &s = r.shape;
    int each = bucket * s.top_k, all = s.attention_ranks * each;
    bool fine = !afdep_poisoned(r);
#pragma unroll 1
    for (int i = (int)threadIdx.x; fine && i < all; i += FEW_THREADS) {
        int a = i / each, index = i / s.top_k;
        const uint64_t *at = routes_of(r, exchange, a) + (i - a * each);
        uint32_t *chosen = chosen_words(f, index / 32), bit = 1u << index % 32, *served = &f.served[a];
        uint16_t *choice = &f.choice[i];
        uint64_t word;
        afdep_patience_t patience = { 0, 0 };
        while (!route_is_here(word = afdep_load_relaxed_system64(at), exchange, bucket))
            if (route_is_over(r, exchange, bucket, a, i - a * each, word, patience)) {
                fine = false;
                break;
            }
        int local = fine ? local_expert(s, r.rank, afdep_route_id(afdep_word_low(word))) : -1;
        *choice = (uint16_t)(local + 1);
        if (local < 0)
            continue;
        atomicOr(chosen + local, bit);
        *served = 1;
    }
    return __syncthreads_and(fine);
}

/* Cached: no choices come, and the sources that have rows here are those of the last time. */
static __device__ __forceinline__ bool recall_choices(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket,
                                                      const few_t &f)
{
    uint32_t sources = (uint32_t)r.shape.attention_ranks;
    for (int a = (int)threadIdx.x; a < r.shape.attention_ranks; a += FEW_THREADS)
        f.served[a] = r.served[afdep_plane(r.shape, exchange) * sources + (uint32_t)a];
    return __syncthreads_and(!afdep_poisoned(r) && await_cached(r, exchange, bucket, (int)threadIdx.x, FEW_THREADS));
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

/* Which sources sent rows, for the reply; by all threads of one CTA. */
static __device__ __forceinline__ void tell_served(const afdep_cuda_rank_t &r, uint64_t exchange, const few_t &f)
{
    uint32_t *served = r.served + afdep_plane(r.shape, exchange) * (uint32_t)r.shape.attention_ranks;
    for (int a = (int)threadIdx.x; a < r.shape.attention_ranks; a += FEW_THREADS)
        served[a] = f.served[a];
}

/* Answers sources that sent no row. Where there are none the CTAs do not meet: the kernel's end says that all route words
   have been read. */
static __device__ __forceinline__ void answer(const afdep_cuda_rank_t &r, uint64_t exchange, const few_t &f)
{
    bool meet = r.shape.in_flight > 1, last = blockIdx.x == gridDim.x - 1;
    for (int a = (int)threadIdx.x; a < r.shape.attention_ranks; a += FEW_THREADS)
        meet |= !f.served[a];
    if (!__syncthreads_or(meet)) {
        if (last && threadIdx.x == 0)
            afdep_finish(r, AFDEP_CUDA_RECEIVE, exchange); /* the host's number */
    } else if (threadIdx.x == 0) {                         /* what this CTA told is behind the barrier */
        arrive(r, exchange);
    }
}

/* CACHED: rows go where they went the last time, and nothing is counted. */
template <int LINES, bool CACHED>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    receive_few_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    const afdep_shape_t &s = r.shape;
    few_t f = few_arrays(s, call.bucket);
    int groups = (afdep_lines(afdep_row_vectors(&s)) + LINES - 1) / LINES, parts = groups + afdep_tail_lines(&s);
    int units = f.indices * parts, n = afdep_warp_index();
    bool place = call.parts & AFDEP_CUDA_RECEIVE_PLACE;
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_RECEIVE);
    unit_t u = unit_at<LINES>(r, exchange, call.bucket, n, groups, parts);
    __syncthreads(); /* the arrays are clear */
    bool counts = blockIdx.x == gridDim.x - 1 && (call.parts & AFDEP_CUDA_RECEIVE_COUNT);
    if (counts && CACHED)
        afdep_repeat_load(r, exchange);
    else if (counts) /* while the choices are on their way */
        afdep_carry_load(r, exchange);
    if (!(CACHED ? recall_choices(r, exchange, call.bucket, f) : take_choices(r, exchange, call.bucket, f)))
        return;
    starts_t starts = {};
    if (!CACHED)
        starts = find_starts(s, f);
    for (bool fine = true; fine && n < units; u = unit_at<LINES>(r, exchange, call.bucket, n, groups, parts)) {
        if (u.tail >= 0)
            fine = place_tail<CACHED>(r, call, exchange, f, starts, u);
        else if (place)
            fine = place_lines<LINES, CACHED>(r, call, exchange, f, starts, u);
        n += afdep_warp_count();
    }
    if (blockIdx.x == gridDim.x - 1 && CACHED) {
        write_known_ends(r, call, exchange);
    } else if (blockIdx.x == gridDim.x - 1) {
        tell_ends(r, call, exchange, f, starts);
        tell_served(r, exchange, f);
    }
    if (counts && !CACHED)
        tell_load(r, exchange, call.bucket, f);
    if (place)
        answer(r, exchange, f);
}

typedef void (*kernel_t)(const afdep_cuda_rank_t, const afdep_cuda_receive_t);

static kernel_t kernel_of(bool spread, bool cached)
{
    if (cached)
        return spread ? receive_few_kernel<1, true> : receive_few_kernel<2, true>;
    return spread ? receive_few_kernel<1, false> : receive_few_kernel<2, false>;
}

cudaError_t afdep_cuda_launch_receive_few(const afdep_cuda_rank_t *r, const afdep_cuda_receive_t *call, int grid,
                                          cudaStream_t stream)
{
    return afdep_launch(kernel_of(afdep_few_spread(&r->shape, call->bucket, grid), call->cached), grid, FEW_THREADS,
                        shared_bytes(r->shape, call->bucket), stream, *r, *call);
}

cudaError_t afdep_cuda_prepare_receive_few(const afdep_shape_t *shape)
{
    cudaError_t error = cudaSuccess;
    for (int i = 0; error == cudaSuccess && i < 4; i++)
        error = afdep_load(kernel_of(i & 1, i >> 1), shared_bytes(*shape, afdep_few_tokens(shape)));
    return error;
}
