/* SPDX-License-Identifier: Apache-2.0 */
/* What both kernels of a receive do: looking for route words, an expert's end, and the answers. */
#ifndef AFDEP_CUDA_RECEIVE_CUH
#define AFDEP_CUDA_RECEIVE_CUH

#include "cuda/load.cuh"

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

/* Expert of this rank that a choice means, or -1. */
static __device__ __forceinline__ int local_expert(const afdep_shape_t &s, int rank, int id)
{
    int local = id - rank * s.experts_per_rank;
    return id >= 0 && local >= 0 && local < s.experts_per_rank ? local : -1;
}

/* The route words of a source. */
static __device__ __forceinline__ const uint64_t *routes_of(const afdep_cuda_rank_t &r, uint64_t exchange, int a)
{
    return (const uint64_t *)(r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.route_words) +
           afdep_slot(r.shape, a, 0) * (uint32_t)r.shape.top_k;
}

/* Whether a route word is of this exchange and its bucket. */
static __device__ __forceinline__ bool route_is_here(uint64_t word, uint64_t exchange, int bucket)
{
    return afdep_word_high(word) == (uint32_t)exchange && afdep_route_fits(bucket, afdep_word_low(word));
}

/* What a thread does that has met another word than the one it waits for. True: the wait is over, and failed. */
static __device__ __forceinline__ bool route_is_over(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int a,
                                                     int i, uint64_t seen, afdep_patience_t &patience)
{
    bool ahead = (int32_t)(afdep_word_high(seen) - (uint32_t)exchange) >= 0;
    if (!ahead && ++patience.spins % AFDEP_SPINS_BEFORE_LOOK != 0)
        return false;
    int peer = r.shape.ffn_ranks + a, token = i / r.shape.top_k, slot = i - token * r.shape.top_k;
    if (ahead)
        afdep_fail_device(r, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange, peer, token, slot,
                          (uint64_t)bucket, seen);
    return ahead || afdep_look(r, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange, peer, token, slot,
                               afdep_word((uint32_t)exchange, 0), seen);
}

/* Waits for a route word of source `a`. A word is all that it covers, so relaxed loads do. */
static __device__ __noinline__ bool await_route(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int a, int i)
{
    afdep_patience_t patience = { 0, 0 };
    for (;;) {
        uint64_t seen = afdep_load_relaxed_system64(routes_of(r, exchange, a) + i);
        if (route_is_here(seen, exchange, bucket))
            return true;
        if (route_is_over(r, exchange, bucket, a, i, seen, patience))
            return false;
    }
}

/* Cached: waits, by threads `thread`, `thread` + `threads`, ..., for every source to say that its ids are the last ones. */
static __device__ bool await_cached(const afdep_cuda_rank_t &r, uint64_t exchange, int bucket, int thread, int threads)
{
    uint64_t want = afdep_word((uint32_t)exchange, afdep_route_cached(bucket));
    for (int a = thread; a < r.shape.attention_ranks; a += threads) {
        afdep_patience_t patience = { 0, 0 };
        uint64_t seen;
        while ((seen = afdep_load_relaxed_system64(routes_of(r, exchange, a))) != want) {
            if ((int32_t)(afdep_word_high(seen) - (uint32_t)exchange) >= 0) {
                afdep_fail_device(r, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_CACHED, exchange,
                                  r.shape.ffn_ranks + a, -1, -1, (uint64_t)bucket, seen);
                return false;
            }
            if (route_is_over(r, exchange, bucket, a, 0, seen, patience))
                return false;
        }
    }
    return true;
}

/* Cached: the row of this lane's choice of a token, or -1. The position is of the exchange before on the plane, or of this
   one, where another warp has been here. */
static __device__ __forceinline__ int recall_row(const afdep_cuda_rank_t &r, uint64_t exchange, int a, int token)
{
    const afdep_shape_t &s = r.shape;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity, position = 0;
    if ((int)afdep_lane() >= s.top_k)
        return -1;
    position = afdep_load_relaxed64(r.positions + (plane + afdep_slot(s, a, token)) * (uint32_t)s.top_k + afdep_lane());
    uint32_t age = (uint32_t)exchange - afdep_word_high(position);
    return age == 0 || age == (uint32_t)s.in_flight ? (int)afdep_word_low(position) - 1 : -1;
}

/* Says where the token's rows are, to the reply. */
static __device__ __forceinline__ void tell_row(const afdep_cuda_rank_t &r, uint64_t exchange, int a, int token, int row)
{
    const afdep_shape_t &s = r.shape;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    if ((int)afdep_lane() < s.top_k)
        afdep_store_relaxed64(r.positions + (plane + afdep_slot(s, a, token)) * (uint32_t)s.top_k + afdep_lane(),
                              afdep_word((uint32_t)exchange, (uint32_t)(row + 1)));
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

/* Where the ends are known, and the caller's tensors are new. */
static __device__ void write_known_ends(const afdep_cuda_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    const int32_t *ends = r.ends + (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.experts_per_rank;
    int align = s.expert_alignment;
    for (int e = (int)threadIdx.x; e < s.experts_per_rank; e += (int)blockDim.x)
        write_end(call, e, ends[e], (ends[e] + align - 1) / align * align);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

/*
 * What the last CTA does that has counted: by then all have read all route words, so this exchange is this rank's last,
 * and the sources that sent no row may overwrite theirs. The others are answered by the reply: before it they cannot
 * have collected, and without that they do not dispatch again.
 */
static __device__ void answer_silent(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    uint64_t at = afdep_plane_at(r.peer, s, exchange) + r.peer.answers + 8u * (uint32_t)r.rank;
    const uint32_t *served = r.served + afdep_plane(s, exchange) * (uint32_t)s.attention_ranks;
    bool fenced = false;
    for (int a = 0; a < s.attention_ranks; a++) {
        if (*(volatile const uint32_t *)&served[a])
            continue;
        if (!fenced)
            afdep_fence_system(); /* all CTAs' reads, gathered by the count of arrivals, before the answers */
        fenced = true;
        afdep_signal64((uint64_t *)(afdep_segment(r, s.ffn_ranks + a) + at), afdep_word((uint32_t)exchange, 0));
        r.counters[s.ffn_ranks + a].signals++;
    }
    afdep_finish(r, AFDEP_CUDA_RECEIVE, exchange);
}

/* By one thread of every CTA that has counted. */
static __device__ __forceinline__ void arrive(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    if (afdep_last_of_grid(r, AFDEP_CUDA_RECEIVE))
        answer_silent(r, exchange);
}

#endif
