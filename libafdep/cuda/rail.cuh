/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rail as kernels see it, and what they need beside it. A rail joins the ranks of one rail number across domains:
 * sources to the FFN domains' rail peers ("links", by domain), and back. Kernels are written over an interface that every
 * rail has, and assume of no link that it is mapped:
 *
 *   window(link, offset)             where a row bound for a link may be built so that its put moves nothing, or NULL; then
 *                                    the row is built in this rank's own staging, which stays as it is until the next
 *                                    exchange on the plane
 *   put(channel, link, offset, row, bytes)          by a warp: a row on a channel
 *   signal(kind, channel, link, word, old, value)   by a warp: a word, visible after every put and signal of the warp
 *                                                   before it. Rails that store write `value`, rails that add add the
 *                                                   difference of `old` and `value`, half by half
 *   put_signal(..., round)          both: the word after the row. Rails with windows may only note the word
 *   publish(round)                  by a warp, when its puts of a round are made: the words of all warps of the CTA go out
 *                                   when the last warp has come (rail_words.cuh). False: the rank is poisoned. All warps of
 *                                   a CTA publish equally often. Where put_signal() sends the word itself there is nothing
 *                                   to send
 *   say(kind, link, word, old, value)               by a lane, for itself: a word that publishes no row, on the control lane
 *   read(channel, word)                             by a lane: a word of this rank's own, with acquire; of a word that
 *                                                   say() sends, the channel is AFDEP_RAIL_CONTROL
 *
 * The puts and signals of a channel and link are one warp's in an exchange, in the order that it makes them: that is the
 * lane of fabric/fabric.h. A word that publish() sends is the last of its lane.
 *
 * Which rail it is, is settled when a file is compiled: files that define AFDEP_RAIL_GIN get the GIN rail (rail_gin.cuh), all
 * others the peer rail. Each of the kernels' files is compiled for both, and names of launchers differ, see
 * AFDEP_RAIL_NAME.
 */
#ifndef AFDEP_CUDA_RAIL_CUH
#define AFDEP_CUDA_RAIL_CUH

#include "cuda/device.cuh"
#include "cuda/rail.h"
#include "cuda/rail_words.cuh"

#define AFDEP_RAIL_CONTROL (-1) /* in place of a channel */

__device__ __forceinline__ uint64_t afdep_load_acquire_gpu64(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* ---- Who is who ---------------------------------------------------------------------------------------------- */

/* The rank of a link. */
__device__ __forceinline__ int afdep_link_rank(const afdep_rail_rank_t &r, int link)
{
    const afdep_shape_t &s = r.c.shape;
    return afdep_is_ffn(&s, r.c.rank) ? afdep_source_rank(&s, link, r.rail) : afdep_ffn_rank(&s, link, r.rail);
}

/* The segment of a rank of this rank's own domain, which load and store reach. */
__device__ __forceinline__ unsigned char *afdep_domain_segment(const afdep_rail_rank_t &r, int rail)
{
    return rail < AFDEP_RAIL_NEAR ? r.domain_near[rail]
                                  : r.c.segments[r.domain * r.c.shape.ranks_per_domain + rail];
}

/* Offsets of the plane of an exchange in an FFN rank's and in an Attention rank's segment. */
__device__ __forceinline__ uint64_t afdep_ffn_plane(const afdep_rail_rank_t &r, uint64_t exchange)
{
    return afdep_plane_start(&r.layout, &r.layout.ffn, (int)afdep_plane(r.c.shape, exchange));
}

__device__ __forceinline__ uint64_t afdep_attention_plane(const afdep_rail_rank_t &r, uint64_t exchange)
{
    return afdep_plane_start(&r.layout, &r.layout.attention, (int)afdep_plane(r.c.shape, exchange));
}

/* Rows of [G][M][C] and [G][C][S] arrays. */
__device__ __forceinline__ uint64_t afdep_at_target(const afdep_rail_rank_t &r, uint64_t exchange, int target, int channel)
{
    const afdep_shape_t &s = r.c.shape;
    return ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.ffn_domains + (uint32_t)target) * (uint32_t)s.channels +
           (uint32_t)channel;
}

__device__ __forceinline__ uint64_t afdep_at_source(const afdep_rail_rank_t &r, uint64_t exchange, int channel, int source)
{
    const afdep_shape_t &s = r.c.shape;
    return ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.channels + (uint32_t)channel) * (uint32_t)s.attention_domains +
           (uint32_t)source;
}

/* ---- The peer rail: links are memory of other GPUs of this host ---------------------------------------------------- */

struct afdep_peer_rail {
    const afdep_rail_rank_t &r;

    /* When a put (`puts`, of that many bytes) or a signal that leaves now has arrived, by the clocks of both NICs: each is
       busy from when it is free and the message is there. Two atomics a clock, without retries: what the second one returns
       is at least what the first one set. */
    __device__ __noinline__ uint64_t charge(int link, int puts, int signals, uint32_t bytes) const
    {
        const afdep_rail_nic_t &n = r.nic;
        uint64_t ps = (uint64_t)signals * n.signal_ps + (uint64_t)bytes * n.byte_ps;
        uint64_t send = (ps + (uint64_t)puts * n.send_ps + 500u) / 1000u, receive = (ps + (uint64_t)puts * n.receive_ps + 500u) / 1000u;
        unsigned long long *here = (unsigned long long *)(r.c.base + n.clock), *there = (unsigned long long *)window(link, n.peer_clock);
        atomicMax(here, (unsigned long long)afdep_now_ns());
        uint64_t sent = atomicAdd(here, (unsigned long long)send) + send + n.latency_ns;
        atomicMax(there, (unsigned long long)sent);
        return atomicAdd(there, (unsigned long long)receive) + receive;
    }

    /* Where the pair of a signal word stands, behind the planes. */
    __device__ __forceinline__ static uint64_t arrival(const afdep_rail_rank_t &r, uint64_t word, uint64_t plane_bytes,
                                                       uint64_t words, uint64_t area)
    {
        uint64_t in = word - r.layout.control_bytes, plane = r.c.shape.in_flight == 1 ? 0 : in / plane_bytes;
        return area + 2u * (plane * words + in - plane * plane_bytes);
    }

    __device__ __forceinline__ uint64_t plane_bytes(bool ffn) const
    {
        return ffn ? r.layout.ffn.bytes : r.layout.attention.bytes;
    }

    __device__ __forceinline__ unsigned char *window(int link, uint64_t offset) const
    {
        unsigned char *segment = link < AFDEP_RAIL_NEAR ? r.links[link] : r.c.segments[afdep_link_rank(r, link)];
        return segment + offset;
    }

    __device__ __forceinline__ void count_put(int link, uint32_t bytes) const
    {
        afdep_rail_counter_t *counter = &r.counters[afdep_link_rank(r, link)];
        atomicAdd(&counter->puts, 1ull);
        atomicAdd(&counter->put_bytes, (unsigned long long)bytes);
    }

    /* Before the fence of a signal word that follows a put of `puts` rows of that many bytes. */
    __device__ __forceinline__ void charge_word(int link, uint64_t word, uint64_t old, int puts, uint32_t bytes) const
    {
        if (!r.nic.modelled)
            return;
        bool to_ffn = !afdep_is_ffn(&r.c.shape, r.c.rank);
        uint64_t *pair =
            (uint64_t *)window(link, arrival(r, word, plane_bytes(to_ffn), r.nic.peer_words, r.nic.peer_arrivals));
        afdep_signal64(pair, charge(link, puts, 1, bytes));
        afdep_signal64(pair + 1, old);
    }

    /* Behind the fence. Counting comes last: the fence would wait for it too. */
    __device__ __forceinline__ void write_word(afdep_rail_signal_t kind, int link, uint64_t *word, uint64_t value,
                                               int puts, uint32_t bytes) const
    {
        afdep_signal64(word, value);
        atomicAdd(&r.counters[afdep_link_rank(r, link)].signals[kind], 1ull);
        if (puts)
            count_put(link, bytes);
    }

    /* A signal word, by a lane. */
    __device__ __forceinline__ void send_word(afdep_rail_signal_t kind, int link, uint64_t word, uint64_t old,
                                              uint64_t value) const
    {
        charge_word(link, word, old, 0, 0);
        afdep_fence_system();
        write_word(kind, link, (uint64_t *)window(link, word), value, 0, 0);
    }

    /* Rows are built in their window: there is nothing to move, only to count. */
    __device__ __forceinline__ void put(int, int link, uint64_t, const unsigned char *, uint32_t bytes) const
    {
        if (afdep_lane() != 0)
            return;
        count_put(link, bytes);
        if (r.nic.modelled)
            (void)charge(link, 1, 0, bytes);
    }

    /* The warp meets, so lane 0's fence is cumulative over what all lanes have stored; the word follows the fence. */
    __device__ __forceinline__ void signal(afdep_rail_signal_t kind, int, int link, uint64_t word, uint64_t old,
                                           uint64_t value) const
    {
        __syncwarp();
        if (afdep_lane() == 0)
            send_word(kind, link, word, old, value);
        __syncwarp();
    }

    /* The row is where it belongs; its word waits for the round's fence. */
    __device__ __forceinline__ void put_signal(afdep_rail_signal_t kind, int, int link, uint64_t, const unsigned char *,
                                               uint32_t bytes, uint64_t word, uint64_t old, uint64_t value,
                                               const afdep_rail_round_t &round) const
    {
        __syncwarp();
        if (afdep_lane() == 0) {
            charge_word(link, word, old, 1, bytes);
            uint64_t *at = (uint64_t *)window(link, word);
            afdep_rail_note_t *note = afdep_rail_note(round),
                              sent = { at, value, (uint32_t)kind, (uint32_t)link, bytes };
            if (note) {
                *note = sent;
            } else {
                afdep_fence_system();
                write_word(kind, link, at, value, 1, bytes);
            }
        }
        __syncwarp();
    }

    __device__ __forceinline__ bool publish(afdep_rail_round_t &round) const
    {
        if (afdep_last_warp(&round.words->come[round.number % AFDEP_RAIL_AHEAD]))
            afdep_rail_write_out(round, [&](const afdep_rail_note_t &n) {
                write_word((afdep_rail_signal_t)n.kind, (int)n.link, n.word, n.value, 1, n.bytes);
            });
        return afdep_rail_next_round(r, round);
    }

    __device__ __forceinline__ void say(afdep_rail_signal_t kind, int link, uint64_t word, uint64_t old, uint64_t value) const
    {
        send_word(kind, link, word, old, value);
    }

    __device__ __forceinline__ uint64_t read(int, uint64_t word) const
    {
        uint64_t value = afdep_load_acquire64((const uint64_t *)(r.c.base + word));
        if (r.nic.modelled) {
            const uint64_t *pair = (const uint64_t *)(r.c.base + arrival(r, word, plane_bytes(afdep_is_ffn(&r.c.shape, r.c.rank)),
                                                                         r.nic.words, r.nic.arrivals));
            if (afdep_now_ns() < afdep_load_relaxed_system64(pair))
                return afdep_load_relaxed_system64(pair + 1);
        }
        return value;
    }
};

/* ---- The rail of this file's kernels --------------------------------------------------------------------------------- */

#ifdef AFDEP_RAIL_GIN
#include "cuda/rail_gin.cuh"
#define AFDEP_RAIL_NAME(name) afdep_rail_gin_##name
typedef afdep_gin_rail afdep_this_rail;
#else
#define AFDEP_RAIL_NAME(name) afdep_rail_##name
typedef afdep_peer_rail afdep_this_rail;
typedef afdep_rail_rank_t afdep_rail_kernel_rank_t; /* what kernels are given */

static inline const afdep_rail_kernel_rank_t &afdep_rail_kernel_rank(const afdep_rail_rank_t &r)
{
    return r;
}
#endif

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* Who waits, and for what, for the sentence that a deadline ends in. */
typedef struct afdep_rail_wait {
    int call, word, peer, channel;
    uint64_t exchange, expected;
} afdep_rail_wait_t;

/* One look of a waiting lane. Nonzero: it is over. */
__device__ __forceinline__ bool afdep_rail_look(const afdep_rail_rank_t &r, afdep_patience_t &patience,
                                                const afdep_rail_wait_t &wait, uint64_t seen)
{
    return ++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
           afdep_look(r.c, patience, wait.call, wait.word, wait.exchange, wait.peer, -1, wait.channel, wait.expected, seen);
}

__device__ __forceinline__ bool afdep_rail_broken(const afdep_rail_rank_t &r, const afdep_rail_wait_t &wait, uint64_t seen)
{
    afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, wait.call, wait.word, wait.exchange, wait.peer, -1, wait.channel,
                      wait.expected, seen);
    return false;
}

/* Waits, a lane for itself, until judge(load()) is READY; false when it is over. `*seen` is the word. */
template <typename Load, typename Judge>
__device__ __forceinline__ bool afdep_rail_await(const afdep_rail_rank_t &r, const afdep_rail_wait_t &wait, uint64_t *seen,
                                                 Load load, Judge judge)
{
    afdep_patience_t patience = { 0, 0 };
    for (;;) {
        *seen = load();
        afdep_word_state_t state = judge(*seen);
        if (state == AFDEP_WORD_READY)
            return true;
        if (state == AFDEP_WORD_BROKEN)
            return afdep_rail_broken(r, wait, *seen);
        if (afdep_rail_look(r, patience, wait, *seen))
            return false;
    }
}

/* A row that its word says is there is not: names it by what its tag holds. */
__device__ __forceinline__ bool afdep_rail_lost(const afdep_rail_rank_t &r, int call, uint64_t exchange, int peer, int token,
                                                int channel, const uint4 &tag)
{
    afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, call, AFDEP_CUDA_WORD_TAG, exchange, peer, token, channel,
                      afdep_word((uint32_t)exchange, (uint32_t)token), afdep_word(tag.x, tag.y));
    return false;
}

__device__ __forceinline__ bool afdep_rail_tagged(const uint4 &tag, uint64_t exchange, int token, int source)
{
    return tag.x == (uint32_t)exchange && tag.y == (uint32_t)token && tag.z == (uint32_t)source;
}

/* A tagged word that exchange `exchange` awaits. Exchanges of few tokens write all words and read none (rail_few.cuh), so an
   earlier one is on its way still, however old. */
__device__ __forceinline__ afdep_word_state_t afdep_rail_tag_state(uint64_t word, uint64_t exchange)
{
    int32_t ahead = (int32_t)(afdep_word_high(word) - (uint32_t)exchange);
    return ahead == 0 ? AFDEP_WORD_READY : ahead < 0 ? AFDEP_WORD_WAIT : AFDEP_WORD_BROKEN;
}

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

/* Called by one lane for a warp or CTA that has met: true in the last of `parts`, behind which lies all that the others did
   before. The count starts again at zero, for the next kernel. */
__device__ __forceinline__ bool afdep_rail_last(const afdep_rail_rank_t &r, afdep_rail_meeting_t meeting, uint32_t parts)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(&r.met[meeting]) : "memory");
    if (before + 1 != parts)
        return false;
    r.met[meeting] = 0;
    return true;
}

/* The end of a kernel whose CTAs leave nothing to each other: true in one thread, when all have come. What they stored is
   there for the stream's next kernel in any case, so nothing has to be ordered, and no fence is waited for. */
__device__ __forceinline__ bool afdep_rail_leave(const afdep_rail_rank_t &r, int call)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return false;
    if (gridDim.x == 1)
        return true;
    if (atomicAdd(&r.c.state->done[call], 1u) != gridDim.x - 1)
        return false;
    r.c.state->done[call] = 0;
    return true;
}

/* ---- Units: a channel of a source, as warps of an FFN rank serve them -------------------------------------------- */

/* Units in the order of tokens: unit u is the channel of token u / S of source domain u mod S, so that the first ones
   carry what there is. Warp w of W takes units w, w + W, and so on; neighbours are on different CTAs. */
typedef struct afdep_rail_unit {
    int source, channel;
} afdep_rail_unit_t;

/* `all`: of all channels; otherwise of those that a bucket can use. */
__device__ __forceinline__ int afdep_rail_units(const afdep_shape_t &s, int bucket, bool all)
{
    return s.attention_domains * (all ? s.channels : min(bucket, s.channels));
}

__device__ __forceinline__ afdep_rail_unit_t afdep_rail_unit_at(const afdep_shape_t &s, int index)
{
    afdep_rail_unit_t u;
    int token = index / s.attention_domains;
    u.source = index - token * s.attention_domains;
    u.channel = token + afdep_channel_base(&s, u.source);
    if (u.channel >= s.channels)
        u.channel -= s.channels;
    return u;
}

#ifndef AFDEP_AT_ONCE
#define AFDEP_AT_ONCE 5 /* 16-byte words of a lane on their way at once: an FP8 row of 2048 with its scales, ids and weights */
#endif

/* A warp's loads and stores of AFDEP_AT_ONCE * 512 bytes of a row, from `base` on; `bytes`, of the row, are a multiple of
   16. */
__device__ __forceinline__ void afdep_warp_load(uint4 *v, const unsigned char *from, uint32_t base, uint32_t bytes)
{
    uint32_t at = base + afdep_lane() * 16u;
#pragma unroll
    for (int i = 0; i < AFDEP_AT_ONCE; i++)
        if (at + (uint32_t)i * 512u < bytes)
            v[i] = afdep_load16(from + at + i * 512);
}

__device__ __forceinline__ void afdep_warp_store(unsigned char *to, const uint4 *v, uint32_t base, uint32_t bytes)
{
    uint32_t at = base + afdep_lane() * 16u;
#pragma unroll
    for (int i = 0; i < AFDEP_AT_ONCE; i++)
        if (at + (uint32_t)i * 512u < bytes)
            afdep_store16(to + at + i * 512, v[i]);
}

#endif
