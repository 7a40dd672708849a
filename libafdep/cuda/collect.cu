/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_collect. Few tokens come in lines: a warp takes a line of a token from each FFN rank that it went to, and sums
 * them in rank order; with a view the sum goes to the inbox's rows, where no peer writes in such an exchange. Many come
 * as rows. As a view collect then only waits: every token that was sent must have its reply, piece by piece, and a token
 * that was not gets its +0 in the inbox. Otherwise a unit of work, one warp, is a part of a token.
 */
#include "cuda/launch.cuh"
#include "cuda/lines.cuh"
#include "cuda/sum.cuh"

#define THREADS 512
#define WARPS (THREADS / AFDEP_WARP)
#define FEW_THREADS 448 /* two CTAs fit an SM, and nothing spills */

/* Where the replies of FFN rank `f` to a token stand, and the words of its pieces. */
static __device__ __forceinline__ unsigned char *combine_row(const afdep_cuda_rank_t &r, uint64_t exchange, int f,
                                                             int token)
{
    return r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.combine_rows +
           afdep_slot(r.shape, f, token) * 2u * (uint32_t)r.shape.hidden;
}

static __device__ __forceinline__ const uint32_t *combine_word(const afdep_cuda_rank_t &r, uint64_t exchange, int f,
                                                               int token, int piece)
{
    return (const uint32_t *)(r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.combine_words) +
           afdep_slot(r.shape, f, token) * r.own.pieces + piece;
}

static __device__ __forceinline__ const int32_t *choices_of(const afdep_cuda_rank_t &r, uint64_t exchange, int token)
{
    const afdep_shape_t &s = r.shape;
    return r.live_ids +
           ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token) * (uint32_t)s.top_k;
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
    int pieces = afdep_pieces(&s, AFDEP_PIECE);
    if (afdep_poisoned(r)) /* then there was no such exchange */
        return;
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < call.tokens * pieces; i += (int)gridDim.x * THREADS) {
        int token = i / pieces, piece = i - token * pieces;
        const int32_t *ids = choices_of(r, exchange, token);
        bool sent = false;
        for (int k = 0; k < s.top_k && !sent; k++)
            sent = ids[k] >= 0;
        uint32_t first = (uint32_t)piece * 2u * AFDEP_PIECE;
        if (!sent)
            zero_piece(combine_row(r, exchange, 0, token), first,
                       min(2u * (uint32_t)AFDEP_PIECE, 2u * (uint32_t)s.hidden - first));
        else if (!afdep_wait_piece(r, combine_word(r, exchange, 0, token, piece), exchange, AFDEP_CUDA_COLLECT,
                                   AFDEP_CUDA_WORD_COMBINE, 0, token, piece))
            break;
    }
    afdep_leave_collect(r, exchange);
}

/* ---- A sum --------------------------------------------------------------------------------------------------- */

/* The FFN ranks that a token went to, ascending. */
static __device__ int take_ranks(const afdep_cuda_rank_t &r, const int32_t *choices, int32_t *ranks)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane();
    int id = (int)lane < s.top_k ? choices[lane] : -1;
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

static __device__ bool collect_part(const afdep_cuda_rank_t &r, const afdep_cuda_collect_t &call, uint64_t exchange,
                                    int token, int part, int32_t *ranks)
{
    const afdep_shape_t &s = r.shape;
    int count = take_ranks(r, choices_of(r, exchange, token), ranks), piece = part / (AFDEP_PIECE / AFDEP_PART);
    uint32_t row_bytes = 2u * (uint32_t)s.hidden, first = (uint32_t)part * 2u * AFDEP_PART;
    uint32_t bytes = min(2u * (uint32_t)AFDEP_PART, row_bytes - first);
    bool fine = true;
    for (int j = 0; fine && j < count; j++)
        fine = afdep_wait_piece(r, combine_word(r, exchange, ranks[j], token, piece), exchange, AFDEP_CUDA_COLLECT,
                                AFDEP_CUDA_WORD_COMBINE, ranks[j], token, piece);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    unsigned char *out = (unsigned char *)call.out + (uint64_t)token * row_bytes + first;
#pragma unroll
    for (uint32_t i = 0; i < 2 * AFDEP_PART; i += 512u) {
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
    int parts = afdep_pieces(&r.shape, AFDEP_PART);
    if (afdep_poisoned(r))
        return;
    for (int unit = afdep_warp_index(); unit < call.tokens * parts; unit += afdep_warp_count())
        if (!collect_part(r, call, exchange, unit / parts, unit % parts, ranks[threadIdx.x / AFDEP_WARP]))
            break;
    afdep_leave_collect(r, exchange);
}

/* ---- Few tokens ---------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ bool collect_line(const afdep_cuda_rank_t &r, const afdep_cuda_collect_t &call,
                                                    uint64_t exchange, int token, int line, int32_t *ranks)
{
    const afdep_shape_t &s = r.shape;
    int lane = (int)afdep_lane(), vectors = afdep_reply_vectors(&s), v = line * AFDEP_LINE_VECTORS + lane;
    int count = take_ranks(r, choices_of(r, exchange, token), ranks);
    const unsigned char *inbox = r.base + afdep_plane_at(r.own, s, exchange) + r.own.combine_lines;
    uint32_t needed = (uint32_t)afdep_line_uses(lane, vectors - line * AFDEP_LINE_VECTORS);
    uint4 words[1] = {};
    afdep_sum_t sum;
    for (int j = 0; j < count; j++) {
        uint32_t at = (uint32_t)((ranks[j] * r.own.few_tokens + token) * r.own.reply_line_count + line);
        afdep_look_for_t look = { inbox + (uint64_t)at * AFDEP_LINE_BYTES + lane * 16,
                                  needed,
                                  AFDEP_CUDA_COLLECT,
                                  AFDEP_CUDA_WORD_COMBINE,
                                  ranks[j],
                                  token,
                                  line };
        afdep_load_lines<1>(look, words);
        if (!afdep_await_lines<1>(r, look, exchange, words))
            return false;
        words[0] = afdep_unpack_word(words[0]);
        if (j == 0)
            afdep_sum_first<false>(sum, words[0], 1.0f);
        else
            afdep_sum_add<false>(sum, words[0], 1.0f);
    }
    if (count > 1) /* one is copied bit for bit, and none is +0 */
        words[0] = afdep_sum_round(sum);
    unsigned char *out = call.out ? (unsigned char *)call.out + (uint64_t)token * 2u * (uint32_t)s.hidden
                                  : combine_row(r, exchange, 0, token);
    if (lane < AFDEP_LINE_VECTORS && v < vectors)
        *(uint4 *)(out + (uint64_t)v * 16u) = words[0];
    return true;
}

static __global__ void __launch_bounds__(FEW_THREADS, 2)
    collect_few_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_collect_t call)
{
    __shared__ int32_t ranks[WARPS][AFDEP_WARP];
    int lines = r.own.reply_line_count;
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_COLLECT);
    if (afdep_poisoned(r))
        return;
    for (int unit = afdep_warp_index(); unit < call.tokens * lines; unit += afdep_warp_count()) {
        int token = unit / lines;
        if (!collect_line(r, call, exchange, token, unit - token * lines, ranks[threadIdx.x / AFDEP_WARP]))
            break;
    }
    afdep_leave_collect(r, exchange);
}

cudaError_t afdep_cuda_launch_collect(const afdep_cuda_rank_t *r, const afdep_cuda_collect_t *call, int grid,
                                      cudaStream_t stream)
{
    if (afdep_in_lines(&r->shape, call->bucket))
        return afdep_launch(collect_few_kernel, grid, FEW_THREADS, 0, stream, *r, *call);
    return call->out ? afdep_launch(collect_kernel, grid, THREADS, 0, stream, *r, *call)
                     : afdep_launch(view_kernel, grid, THREADS, 0, stream, *r, *call);
}

cudaError_t afdep_cuda_prepare_collect(const afdep_shape_t *, int *threads)
{
    *threads = THREADS;
    cudaError_t error = afdep_load(view_kernel, 0);
    if (error == cudaSuccess)
        error = afdep_load(collect_kernel, 0);
    return error == cudaSuccess ? afdep_load(collect_few_kernel, 0) : error;
}
