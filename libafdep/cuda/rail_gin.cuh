/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GIN rail: links are ranks of other hosts, reached by NCCL's GPU-initiated networking on the rail team. Included by
 * rail.cuh, for its interface.
 *
 * No link is mapped, so rows are built in this rank's staging, which is part of its window, and put from there.
 *
 * Words are GIN signals: counters at their reader, by context and id, which start at zero and are only added to. A word is
 * what the segment holds at its place since opening, which nobody writes, plus its signal; a sender adds the difference of
 * the word's new and old values, as 64-bit numbers. So the sum is the sender's value exactly, whatever wraps in its halves.
 *
 * A signal is visible only after what was put before it on its context and for its peer, and after nothing else. So all of
 * a channel's puts and signals are on one context, which both ends work out from the channel. A lane, a channel and a link, is
 * one warp's: its puts and its signal come to that context in the order that the warp makes them, whatever other warps send
 * on it in between. Words that publish no row are on the control context. A signal is read on the context that it was sent on.
 */
#ifndef AFDEP_CUDA_RAIL_GIN_CUH
#define AFDEP_CUDA_RAIL_GIN_CUH

#include "cuda/gin.cuh"

/* What kernels are given: the rank, and the device communicator beside it, among a kernel's arguments, where no load is
   needed for it. */
struct afdep_rail_kernel_rank_t : afdep_rail_rank_t {
    afdep_gin_t gin;
};

static inline afdep_rail_kernel_rank_t afdep_rail_kernel_rank(const afdep_rail_rank_t &r)
{
    afdep_rail_kernel_rank_t given;
    (afdep_rail_rank_t &)given = r;
    given.gin = *(const afdep_gin_t *)r.gin;
    return given;
}

/* ---- What becomes of it at NCCL ---------------------------------------------------------------------------------- */

__device__ __forceinline__ int afdep_gin_context(const afdep_gin_t &gin, int channel)
{
    return channel == AFDEP_RAIL_CONTROL ? AFDEP_GIN_CONTROL : channel % gin.contexts;
}

/* The signal of a word of an FFN rank's or an Attention rank's segment: words of a plane lie side by side. */
__device__ __forceinline__ ncclGinSignal_t afdep_gin_signal(const afdep_rail_rank_t &r, bool ffn, uint64_t word)
{
    const afdep_plane_layout_t &l = ffn ? r.layout.ffn : r.layout.attention;
    uint64_t in = word - r.layout.control_bytes, plane = r.c.shape.in_flight == 1 ? 0 : in / l.bytes;
    return (ncclGinSignal_t)(plane * r.plane_signals +
                             (in - plane * l.bytes - (ffn ? l.count_words : l.witness_words)) / sizeof(uint64_t));
}

/*
 * What follows is out of line, with all that it works out: NCCL's code, and what a compiler would keep at hand for it, would
 * take the registers that kernels have rows in.
 */

/* By one thread: puts `bytes`, if any, at `from` of this rank's segment to `offset` of the link's, and adds to the signal of
   `word`, if `kind` is one, behind it. */
static __device__ __noinline__ void afdep_gin_send(const afdep_rail_kernel_rank_t &r, int kind, int channel, int link,
                                                   uint64_t offset, uint64_t from, uint32_t bytes, uint64_t word,
                                                   uint64_t difference)
{
    const afdep_gin_t &gin = r.gin;
    int rank = afdep_link_rank(r, link), place = rank / gin.ranks_per_domain; /* its place in the rail team is its domain */
    ncclGin net(gin.comm, afdep_gin_context(gin, channel));
    afdep_gin_add_t add = { kind == AFDEP_RAIL_SIGNALS ? 0 : afdep_gin_signal(r, !afdep_is_ffn(&r.c.shape, r.c.rank), word),
                            difference };
    if (bytes == 0)
        net.signal(ncclTeamRail(gin.comm), place, add);
    else if (kind == AFDEP_RAIL_SIGNALS)
        net.put(ncclTeamRail(gin.comm), place, gin.window, offset, gin.window, from, bytes, ncclGin_None{});
    else
        net.put(ncclTeamRail(gin.comm), place, gin.window, offset, gin.window, from, bytes, add);
    afdep_rail_counter_t *counter = &r.counters[rank];
    if (bytes > 0) {
        atomicAdd(&counter->puts, 1ull);
        atomicAdd(&counter->put_bytes, (unsigned long long)bytes);
    }
    if (kind != AFDEP_RAIL_SIGNALS)
        atomicAdd(&counter->signals[kind], 1ull);
}

/* A word of this rank's own, with acquire. */
static __device__ __noinline__ uint64_t afdep_gin_read(const afdep_rail_kernel_rank_t &r, int channel, uint64_t word)
{
    ncclGin net(r.gin.comm, afdep_gin_context(r.gin, channel));
    return *(const uint64_t *)(r.c.base + word) +
           net.readSignal(afdep_gin_signal(r, afdep_is_ffn(&r.c.shape, r.c.rank), word));
}

/* ---- The rail ---------------------------------------------------------------------------------------------------- */

struct afdep_gin_rail {
    const afdep_rail_rank_t &r; /* of an afdep_rail_kernel_rank_t, as every rank in these kernels is */

    __device__ __forceinline__ const afdep_rail_kernel_rank_t &given() const
    {
        return static_cast<const afdep_rail_kernel_rank_t &>(r);
    }

    __device__ __forceinline__ unsigned char *window(int, uint64_t) const
    {
        return NULL;
    }

    /* The warp meets, so that lane 0's release, which a put begins with, is cumulative over what all lanes have stored. */
    __device__ __forceinline__ void put(int channel, int link, uint64_t offset, const unsigned char *row, uint32_t bytes) const
    {
        __syncwarp();
        if (afdep_lane() == 0)
            afdep_gin_send(given(), AFDEP_RAIL_SIGNALS, channel, link, offset, (uint64_t)(row - r.c.base), bytes, 0, 0);
        __syncwarp();
    }

    __device__ __forceinline__ void put_signal(afdep_rail_signal_t kind, int channel, int link, uint64_t offset,
                                               const unsigned char *row, uint32_t bytes, uint64_t word, uint64_t old,
                                               uint64_t value, const afdep_rail_round_t &) const
    {
        __syncwarp();
        if (afdep_lane() == 0)
            afdep_gin_send(given(), kind, channel, link, offset, (uint64_t)(row - r.c.base), bytes, word, value - old);
        __syncwarp();
    }

    __device__ __forceinline__ void signal(afdep_rail_signal_t kind, int channel, int link, uint64_t word, uint64_t old,
                                           uint64_t value) const
    {
        __syncwarp();
        if (afdep_lane() == 0)
            afdep_gin_send(given(), kind, channel, link, 0, 0, 0, word, value - old);
        __syncwarp();
    }

    /* No word waits for a fence here: each went with its row. */
    __device__ __forceinline__ bool publish(afdep_rail_round_t &) const
    {
        return __all_sync(AFDEP_FULL, !afdep_poisoned(r.c));
    }

    __device__ __forceinline__ void say(afdep_rail_signal_t kind, int link, uint64_t word, uint64_t old, uint64_t value) const
    {
        afdep_gin_send(given(), kind, AFDEP_RAIL_CONTROL, link, 0, 0, 0, word, value - old);
    }

    __device__ __forceinline__ uint64_t read(int channel, uint64_t word) const
    {
        return afdep_gin_read(given(), channel, word);
    }
};

#endif
