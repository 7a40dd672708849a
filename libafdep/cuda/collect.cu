/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_collect. As a view it only waits: every token that was sent must have its reply, piece by piece, and a token that
 * was not gets its +0 in the inbox, where no peer writes. Otherwise a unit of work, one warp, is a piece of a token: it
 * waits for the words of the FFN ranks that the token went to, and sums their rows in rank order.
 */
#include "cuda/sum.cuh"

#define THREADS 512
#define WARPS (THREADS / AFDEP_WARP)

/* Where the replies of FFN rank `f` to a token stand, and the words of its pieces. */
static __device__ __forceinline__ unsigned char *combine_row(const afdep_cuda_rank_t &r, uint64_t exchange, int f, int token)
{
    return r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.combine_rows +
           afdep_slot(r.shape, f, token) * 2u * (uint32_t)r.shape.hidden;
}

static __device__ __forceinline__ const uint32_t *combine_word(const afdep_cuda_rank_t &r, uint64_t exchange, int f, int token,
                                                               int piece)
{
    return (const uint32_t *)(r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.combine_words) +
           afdep_slot(r.shape, f, token) * r.own.pieces + piece;
}

static __device__ __forceinline__ const int32_t *choices_of(const afdep_cuda_rank_t &r, uint64_t exchange, int token)
{
    const afdep_shape_t &s = r.shape;
    return r.live_ids + ((uint64_t)afdep_plane_index(&s, exchange) * (uint32_t)s.capacity + (uint32_t)token) * (uint32_t)s.top_k;
}

/* ---- A view -------------------------------------------------------------------------------------------------- */

static __device__ void zero_piece(unsigned char *row, uint32_t first, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += 16)
        *(uint4 *)(row + first + at) = make_uint4(0, 0, 0, 0);
}

static __global__ void __launch_bounds__(THREADS, 1)
    view_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_collect_t call)
{
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_COLLECT);
    if (exchange == 0)
        return;
    const afdep_shape_t &s = r.shape;
    int elements = afdep_piece_elements(call.bucket), pieces = afdep_pieces(&s, elements);
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < call.tokens * pieces; i += (int)gridDim.x * THREADS) {
        int token = i / pieces, piece = i - token * pieces;
        const int32_t *ids = choices_of(r, exchange, token);
        bool sent = false;
        for (int k = 0; k < s.top_k && !sent; k++)
            sent = ids[k] >= 0;
        uint32_t first = (uint32_t)(piece * elements) * 2u;
        if (!sent)
            zero_piece(combine_row(r, exchange, 0, token), first,
                       min((uint32_t)elements * 2u, 2u * (uint32_t)s.hidden - first));
        else if (!afdep_wait_piece(r, combine_word(r, exchange, 0, token, piece), exchange, AFDEP_CUDA_COLLECT,
                                   AFDEP_CUDA_WORD_COMBINE, 0, token, piece))
            break;
    }
    if (afdep_leave(r, AFDEP_CUDA_COLLECT) && !afdep_poisoned(r))
        afdep_finish(r, AFDEP_CUDA_COLLECT, exchange);
}

/* ---- A sum --------------------------------------------------------------------------------------------------- */

/* The FFN ranks that a token went to, ascending. */
static __device__ int take_ranks(const afdep_cuda_rank_t &r, uint64_t exchange, int token, int32_t *ranks)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane();
    int id = (int)lane < s.top_k ? choices_of(r, exchange, token)[lane] : -1;
    int owner = id >= 0 ? afdep_expert_owner(&s, id) : -1 - (int)lane;
    uint32_t same = __match_any_sync(AFDEP_FULL, owner);
    bool first = id >= 0 && (same & ((1u << lane) - 1u)) == 0;
    uint32_t chosen = __ballot_sync(AFDEP_FULL, first);
    int place = 0;
    for (uint32_t left = chosen; left; left &= left - 1)
        place += __shfl_sync(AFDEP_FULL, owner, __ffs((int)left) - 1) < owner;
    __syncwarp(); /* the ranks of the unit before are read */
    if (first)
        ranks[place] = owner;
    __syncwarp();
    return __popc(chosen);
}

static __device__ bool collect_piece(const afdep_cuda_rank_t &r, const afdep_cuda_collect_t &call, uint64_t exchange, int token,
                                     int piece, int elements, int32_t *ranks)
{
    const afdep_shape_t &s = r.shape;
    int count = take_ranks(r, exchange, token, ranks);
    uint32_t row_bytes = 2u * (uint32_t)s.hidden, first = (uint32_t)(piece * elements) * 2u;
    uint32_t bytes = min((uint32_t)elements * 2u, row_bytes - first);
    bool fine = true;
    for (int j = 0; fine && j < count; j++)
        fine = afdep_wait_piece(r, combine_word(r, exchange, ranks[j], token, piece), exchange, AFDEP_CUDA_COLLECT,
                                AFDEP_CUDA_WORD_COMBINE, ranks[j], token, piece);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    unsigned char *out = (unsigned char *)call.out + (uint64_t)token * row_bytes + first;
#pragma unroll 2
    for (uint32_t column = afdep_lane() * 16u; column < bytes; column += 512u) {
        uint4 sum = make_uint4(0, 0, 0, 0);
        if (count > 0)
            sum = afdep_sum_column<false>(
                count, [&](int j) { return combine_row(r, exchange, ranks[j], token) + first + column; },
                [&](int) { return 1.0f; });
        *(uint4 *)(out + column) = sum;
    }
    return true;
}

static __global__ void __launch_bounds__(THREADS, 1)
    collect_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_collect_t call)
{
    __shared__ int32_t ranks[WARPS][AFDEP_WARP];
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_COLLECT);
    if (exchange == 0)
        return;
    int elements = afdep_piece_elements(call.bucket), pieces = afdep_pieces(&r.shape, elements);
    for (int unit = afdep_warp_index(); unit < call.tokens * pieces; unit += afdep_warp_count())
        if (!collect_piece(r, call, exchange, unit / pieces, unit % pieces, elements, ranks[threadIdx.x / AFDEP_WARP]))
            break;
    if (afdep_leave(r, AFDEP_CUDA_COLLECT) && !afdep_poisoned(r))
        afdep_finish(r, AFDEP_CUDA_COLLECT, exchange);
}

cudaError_t afdep_cuda_launch_collect(const afdep_cuda_rank_t *r, const afdep_cuda_collect_t *call, int grid,
                                      cudaStream_t stream)
{
    if (call->out)
        collect_kernel<<<grid, THREADS, 0, stream>>>(*r, *call);
    else
        view_kernel<<<grid, THREADS, 0, stream>>>(*r, *call);
    return cudaGetLastError();
}

cudaError_t afdep_cuda_prepare_collect(const afdep_shape_t *, int *ctas_per_sm)
{
    int other;
    cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&other, view_kernel, THREADS, 0);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_sm, collect_kernel, THREADS, 0);
    if (error == cudaSuccess && other < *ctas_per_sm)
        *ctas_per_sm = other;
    return error;
}
