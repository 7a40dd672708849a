/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_collect. As a view it only waits: every token that was sent must have its reply, piece by piece, and a token that
 * was not gets its +0 in the inbox, where no peer writes. Otherwise a unit of work, one warp, is a part of a token: it
 * waits for the words of the FFN ranks that the token went to, and sums their rows in rank order.
 */
#include "cuda/launch.cuh"
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
    return r.live_ids + ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token) * (uint32_t)s.top_k;
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
    const afdep_shape_t &s = r.shape;
    int elements = afdep_piece_elements(&r.shape, call.bucket), pieces = afdep_pieces(&s, elements);
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

static __device__ bool collect_part(const afdep_cuda_rank_t &r, const afdep_cuda_collect_t &call, uint64_t exchange, int token,
                                    int part, int in_piece, int32_t *ranks)
{
    const afdep_shape_t &s = r.shape;
    int count = take_ranks(r, exchange, token, ranks), piece = part / in_piece;
    uint32_t row_bytes = 2u * (uint32_t)s.hidden, first = (uint32_t)part * 2u * AFDEP_PIECE_SMALL;
    uint32_t bytes = min(2u * (uint32_t)AFDEP_PIECE_SMALL, row_bytes - first);
    bool fine = true;
    for (int j = 0; fine && j < count; j++)
        fine = afdep_wait_piece(r, combine_word(r, exchange, ranks[j], token, piece), exchange, AFDEP_CUDA_COLLECT,
                                AFDEP_CUDA_WORD_COMBINE, ranks[j], token, piece);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    unsigned char *out = (unsigned char *)call.out + (uint64_t)token * row_bytes + first;
#pragma unroll
    for (uint32_t i = 0; i < 2 * AFDEP_PIECE_SMALL; i += 512u) {
        uint32_t column = i + afdep_lane() * 16u;
        if (column >= bytes)
            break;
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
    int parts = afdep_pieces(&r.shape, AFDEP_PIECE_SMALL);
    int in_piece = afdep_piece_elements(&r.shape, call.bucket) / AFDEP_PIECE_SMALL;
    for (int unit = afdep_warp_index(); unit < call.tokens * parts; unit += afdep_warp_count())
        if (!collect_part(r, call, exchange, unit / parts, unit % parts, in_piece, ranks[threadIdx.x / AFDEP_WARP]))
            break;
    if (afdep_leave(r, AFDEP_CUDA_COLLECT) && !afdep_poisoned(r))
        afdep_finish(r, AFDEP_CUDA_COLLECT, exchange);
}

cudaError_t afdep_cuda_launch_collect(const afdep_cuda_rank_t *r, const afdep_cuda_collect_t *call, int grid,
                                      cudaStream_t stream)
{
    return call->out ? afdep_launch(collect_kernel, grid, THREADS, 0, stream, *r, *call)
                     : afdep_launch(view_kernel, grid, THREADS, 0, stream, *r, *call);
}

cudaError_t afdep_cuda_prepare_collect(const afdep_shape_t *, int *threads)
{
    *threads = THREADS;
    cudaError_t error = afdep_load(view_kernel, 0);
    return error == cudaSuccess ? afdep_load(collect_kernel, 0) : error;
}
