/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_collect across domains. A unit of work, one warp, is a part of a token: it waits for the combine tails of the
 * token's channel from the FFN domains that the token went to, and sums their rows in domain order.
 *
 * Sparse combine: a tail is expected exactly where a row went. Otherwise all channels of all rail peers are awaited, as the
 * dense protocol signals them all, and as the next dispatch relies on. Dispatch has worked out every tail as it will be.
 */
#include "cuda/launch.cuh"
#include "cuda/packed.cuh"
#include "cuda/rail_source.cuh"
#include "cuda/sum.cuh"

#define THREADS AFDEP_RAIL_THREADS
#define WARPS AFDEP_RAIL_WARPS

template <bool PACKED>
static __device__ bool collect_part(const afdep_rail_rank_t &r, const afdep_cuda_collect_t &call, uint64_t exchange, int token,
                                    int part, const unsigned char **rows)
{
    const afdep_shape_t &s = r.c.shape;
    uint32_t lane = afdep_lane();
    uint32_t domains = r.targets[(uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token];
    int channel = afdep_channel_of(&s, r.source_domain, token), count = __popc(domains);
    bool mine = domains >> lane & 1, fine = true;
    uint32_t tag_offset = PACKED ? r.layout.row.packed_tag_offset : r.layout.row.reply_tag_offset;
    uint4 tag = make_uint4(0, 0, 0, 0);
    __syncwarp(); /* the rows of the unit before are read */
    if (mine) {
        const unsigned char *row = r.c.base + afdep_attention_plane(r, exchange) +
                                   afdep_at_combine_row(&r.layout.attention, &r.layout, &s, (int)lane, token);
        rows[__popc(domains & ((1u << lane) - 1u))] = row;
        fine = wait_tail(r, exchange, (int)lane, channel);
        if (fine)
            tag = afdep_load16(row + tag_offset); /* looked at behind the sum, so that they come together */
    }
    __syncwarp(); /* the lanes' acquires before the others' reads */
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    uint32_t row_bytes = 2u * (uint32_t)s.hidden, first = (uint32_t)part * 2u * AFDEP_PART;
    uint32_t bytes = min(2u * (uint32_t)AFDEP_PART, row_bytes - first);
    unsigned char *out = (unsigned char *)call.out + (uint64_t)token * row_bytes + first;
#pragma unroll
    for (uint32_t i = 0; i < 2 * AFDEP_PART; i += 512u) {
        uint32_t column = i + lane * 16u;
        if (column >= bytes)
            break;
        uint4 sum = make_uint4(0, 0, 0, 0);
        if (count > 0 && PACKED)
            sum = afdep_sum_packed(count, rows, r.layout.row.packed_scale_offset, (first + column) / 2);
        else if (count > 0)
            sum = afdep_sum_column<false>(
                count, [&](int j) { return rows[j] + first + column; }, [&](int) { return 1.0f; });
        *(uint4 *)(out + column) = sum;
    }
    int rank = afdep_link_rank(r, mine ? (int)lane : 0);
    if (mine && !afdep_rail_tagged(tag, exchange, token, rank))
        fine = afdep_rail_lost(r, AFDEP_CUDA_COLLECT, exchange, rank, token, channel, tag);
    return __all_sync(AFDEP_FULL, fine);
}

/* Every tail of every channel, a thread each. */
static __device__ void wait_all(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < s.ffn_domains * s.channels; i += (int)gridDim.x * THREADS)
        if (!wait_tail(r, exchange, i / s.channels, i % s.channels))
            return;
}

template <bool PACKED>
static __global__ void __launch_bounds__(THREADS, 1)
    rail_collect_kernel(const __grid_constant__ afdep_rail_kernel_rank_t r, const __grid_constant__ afdep_cuda_collect_t call)
{
    __shared__ const unsigned char *rows[WARPS][AFDEP_WARP];
    uint64_t exchange = afdep_enter(r.c, AFDEP_CUDA_COLLECT);
    int parts = afdep_pieces(&r.c.shape, AFDEP_PART);
    for (int unit = afdep_warp_index(); unit < call.tokens * parts; unit += afdep_warp_count())
        if (!collect_part<PACKED>(r, call, exchange, unit / parts, unit % parts, rows[threadIdx.x / AFDEP_WARP]))
            break;
    if (!r.c.shape.sparse_combine)
        wait_all(r, exchange);
    if (afdep_rail_leave(r, AFDEP_CUDA_COLLECT) && !afdep_poisoned(r.c))
        afdep_finish(r.c, AFDEP_CUDA_COLLECT, exchange);
}

cudaError_t AFDEP_RAIL_NAME(launch_collect)(const afdep_rail_rank_t *r, const afdep_cuda_collect_t *call, int grid,
                                      cudaStream_t stream)
{
    return afdep_packs_replies(&r->c.shape, call->bucket)
               ? afdep_launch_apart(rail_collect_kernel<true>, grid, THREADS, 0, stream, afdep_rail_kernel_rank(*r), *call)
               : afdep_launch_apart(rail_collect_kernel<false>, grid, THREADS, 0, stream, afdep_rail_kernel_rank(*r), *call);
}

cudaError_t AFDEP_RAIL_NAME(prepare_collect)(const afdep_shape_t *)
{
    cudaError_t error = afdep_load(rail_collect_kernel<true>, 0);
    return error == cudaSuccess ? afdep_load(rail_collect_kernel<false>, 0) : error;
}
