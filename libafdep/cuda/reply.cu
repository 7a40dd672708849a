/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_reply. Units of work, one warp each: a piece of a token's partial, summed over this rank's experts in slot order
 * and stored straight into the source's combine inbox, with the piece's word behind it.
 *
 * Reuse: a combine inbox of exchange n - G has been read: its source collected before it dispatched n, and a view of it is
 * valid until that dispatch only. The weights are read from the inbox, although the answer is out: this rank has rows of
 * the token, so the source waits for its word before it dispatches again.
 */
#include "cuda/sum.cuh"

#define THREADS 512
#define WARPS (THREADS / AFDEP_WARP)

/* A token's rows on this rank, in slot order; one of these per warp. */
typedef struct terms {
    int32_t row[AFDEP_WARP];
    float weight[AFDEP_WARP];
} terms_t;

/* Gathers the token's terms; returns how many. */
static __device__ int take_terms(const afdep_cuda_rank_t &r, uint64_t exchange, int a, int token, terms_t *terms)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane();
    uint64_t plane = (uint64_t)afdep_plane_index(&s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    uint64_t slot = afdep_slot(s, a, token), at = slot * (uint32_t)s.top_k + lane;
    uint64_t position = 0;
    if ((int)lane < s.top_k)
        position = r.positions[plane * (uint32_t)s.top_k + at];
    /* A slot that no token used holds an earlier exchange's number. */
    bool mine = (int)lane < s.top_k && afdep_word_high(position) == (uint32_t)exchange && afdep_word_low(position) != 0;
    uint32_t chosen = __ballot_sync(AFDEP_FULL, mine);
    __syncwarp(); /* the terms of the unit before are read */
    if (mine) {
        int n = __popc(chosen & ((1u << lane) - 1u));
        terms->row[n] = (int)afdep_word_low(position) - 1;
        if (s.apply_weights)
            terms->weight[n] = ((const float *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.weights))[at];
    }
    __syncwarp();
    return __popc(chosen);
}

template <bool WEIGHTED>
static __device__ void reply_piece(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange, int a,
                                   int token, int piece, int elements, terms_t *terms)
{
    const afdep_shape_t &s = r.shape;
    int count = take_terms(r, exchange, a, token, terms);
    if (count == 0)
        return;
    uint32_t row_bytes = 2u * (uint32_t)s.hidden, first = (uint32_t)(piece * elements) * 2u;
    uint32_t bytes = min((uint32_t)elements * 2u, row_bytes - first);
    uint64_t slot = afdep_slot(s, r.rank, token);
    unsigned char *segment = r.segments[s.ffn_ranks + a] + afdep_plane_at(r.peer, s, exchange);
    unsigned char *out = segment + r.peer.combine_rows + slot * row_bytes + first;
    const unsigned char *rows = (const unsigned char *)call.rows + first;
    for (uint32_t column = afdep_lane() * 16u; column < bytes; column += 512u) {
        uint4 sum = afdep_sum_column<WEIGHTED>(
            count, [&](int j) { return rows + (uint64_t)(uint32_t)terms->row[j] * row_bytes + column; },
            [&](int j) { return terms->weight[j]; });
        afdep_store16(out + column, sum);
    }
    __syncwarp(); /* all lanes' stores before the fence */
    if (afdep_lane() == 0) {
        afdep_fence_system();
        afdep_signal32((uint32_t *)(segment + r.peer.combine_words) + slot * r.peer.pieces + piece, (uint32_t)exchange);
        if (piece == 0)
            atomicAdd(&r.counters[s.ffn_ranks + a].rows, 1ull);
    }
}

template <bool WEIGHTED>
static __global__ void __launch_bounds__(THREADS, 1)
    reply_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_reply_t call)
{
    __shared__ terms_t terms[WARPS];
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_REPLY);
    if (exchange == 0)
        return;
    const afdep_shape_t &s = r.shape;
    int elements = afdep_piece_elements(call.bucket), pieces = afdep_pieces(&s, elements);
    int units = s.attention_ranks * call.bucket * pieces;
    for (int unit = afdep_warp_index(); unit < units; unit += afdep_warp_count()) {
        int index = unit / pieces, token = index / s.attention_ranks, a = index - token * s.attention_ranks;
        reply_piece<WEIGHTED>(r, call, exchange, a, token, unit - index * pieces, elements,
                              &terms[threadIdx.x / AFDEP_WARP]);
    }
    if (afdep_leave(r, AFDEP_CUDA_REPLY))
        afdep_finish(r, AFDEP_CUDA_REPLY, exchange);
}

cudaError_t afdep_cuda_launch_reply(const afdep_cuda_rank_t *r, const afdep_cuda_reply_t *call, int grid, cudaStream_t stream)
{
    if (r->shape.apply_weights)
        reply_kernel<true><<<grid, THREADS, 0, stream>>>(*r, *call);
    else
        reply_kernel<false><<<grid, THREADS, 0, stream>>>(*r, *call);
    return cudaGetLastError();
}

cudaError_t afdep_cuda_prepare_reply(const afdep_shape_t *shape, int *ctas_per_sm)
{
    return shape->apply_weights
               ? cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_sm, reply_kernel<true>, THREADS, 0)
               : cudaOccupancyMaxActiveBlocksPerMultiprocessor(ctas_per_sm, reply_kernel<false>, THREADS, 0);
}
