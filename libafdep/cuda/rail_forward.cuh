/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward, and the joining of the rails: the first part of worker_receive across domains.
 *
 * A channel's warp has a lane for each source. In sparse dispatch a lane looks at its source's count word and finish tail
 * at once; from T it knows whether the channel carries tokens, and retires the source without a signal where it does not.
 * The warp takes whichever source has finished, so no source waits for another. Rows for other ranks of the domain go into
 * their domain inboxes, rows for this rank into memory of its own: when forwarding is over, nothing reads the rail inbox.
 *
 * The last CTA that serves channels tells each other rank of the domain how many rows came over this rail, zero included.
 * That word has two entries, by exchange parity: a rank that got no rows owes this rail no reply, so the rail may be one exchange
 * ahead of it; not two, since every receive joins the words of all rails.
 */
#ifndef AFDEP_CUDA_RAIL_FORWARD_CUH
#define AFDEP_CUDA_RAIL_FORWARD_CUH

#include "cuda/rail.cuh"

/* A row of this rank's own rail that it is to lay out. */
__device__ __forceinline__ unsigned char *afdep_own_row(const afdep_rail_rank_t &r, uint64_t exchange, int source, int token)
{
    const afdep_shape_t &s = r.c.shape;
    uint64_t at = ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token) *
                      (uint32_t)s.attention_domains + (uint32_t)source;
    return r.own_rows + at * r.layout.row.stride;
}

/* The row of a token as receive and reply look for it, over whichever rail it came. */
__device__ __forceinline__ const unsigned char *afdep_arrived_row(const afdep_rail_rank_t &r, uint64_t exchange, int rail,
                                                                  int source, int token)
{
    if (rail == r.rail)
        return afdep_own_row(r, exchange, source, token);
    return r.c.base + afdep_ffn_plane(r, exchange) +
           afdep_at_domain_row(&r.layout.ffn, &r.layout, &r.c.shape, rail, source, token);
}

/* The place of a row's record: sources, then channels, then positions. */
__device__ __forceinline__ uint64_t afdep_rail_slot(const afdep_rail_rank_t &r, int source, int channel, uint32_t position)
{
    return ((uint64_t)source * (uint32_t)r.c.shape.channels + (uint32_t)channel) * r.layout.slots + position;
}

__device__ __forceinline__ afdep_rail_record_t *afdep_rail_record(const afdep_rail_rank_t &r, uint64_t exchange, uint64_t slot)
{
    const afdep_shape_t &s = r.c.shape;
    uint64_t slots = (uint64_t)s.attention_domains * (uint32_t)s.channels * r.layout.slots;
    return &r.records[(uint64_t)afdep_plane(s, exchange) * slots + slot];
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

/* The rails of this domain that own experts of a row, from the lane's choice. 0: an id that no source may send. */
static __device__ uint32_t afdep_rails_of(const afdep_rail_rank_t &r, int id)
{
    const afdep_shape_t &s = r.c.shape;
    bool valid = id >= -1 && id < s.num_experts;
    int owner = id >= 0 && valid ? afdep_expert_owner(&s, id) : -1;
    bool here = owner >= 0 && afdep_domain_of(&s, owner) == r.domain;
    uint32_t rails = __reduce_or_sync(AFDEP_FULL, here ? 1u << afdep_rail_of(&s, owner) : 0u);
    return __all_sync(AFDEP_FULL, valid) ? rails : 0;
}

/* Forwards the row at a place of a channel; `rows`: a lane's count of rows for its rail. */
static __device__ bool afdep_forward_row(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                         int channel, int source, uint32_t position, uint32_t *rows)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_row_format_t &f = r.layout.row;
    uint32_t lane = afdep_lane();
    int rank = afdep_source_rank(&s, source, r.rail);
    const unsigned char *row = r.c.base + afdep_ffn_plane(r, exchange) +
                               afdep_at_rail_row(&r.layout.ffn, &r.layout, &s, source, channel, (int)position);
    uint4 tag = afdep_load16(row + f.tag_offset);
    int id = (int)lane < s.top_k ? ((volatile const int32_t *)(row + f.ids_offset))[lane] : -1;
    uint4 head[AFDEP_AT_ONCE];
    afdep_warp_load(head, row, 0, f.bytes); /* with the tag, not after it */
    int token = (int)tag.y;
    if (tag.y >= (uint32_t)call.bucket || !afdep_rail_tagged(tag, exchange, token, rank) ||
        afdep_channel_of(&s, source, token) != channel)
        return afdep_rail_lost(r, AFDEP_CUDA_RECEIVE, exchange, rank, -1, channel, tag);
    if (tag.w != (uint32_t)call.cached) {
        afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_CACHED, exchange, rank, token, channel,
                          (uint64_t)call.cached, tag.w);
        return false;
    }
    uint32_t rails = afdep_rails_of(r, id);
    if (rails == 0)
        return afdep_rail_lost(r, AFDEP_CUDA_RECEIVE, exchange, rank, token, channel, tag);
    uint64_t offset = afdep_ffn_plane(r, exchange) + afdep_at_domain_row(&r.layout.ffn, &r.layout, &s, r.rail, source, token);
    unsigned char *own = afdep_own_row(r, exchange, source, token);
    for (uint32_t base = 0; base < f.bytes; base += 512u * AFDEP_AT_ONCE) {
        if (base > 0)
            afdep_warp_load(head, row, base, f.bytes);
        for (uint32_t left = rails; left; left &= left - 1) {
            int q = __ffs((int)left) - 1;
            afdep_warp_store(q == r.rail ? own : afdep_domain_segment(r, q) + offset, head, base, f.bytes);
        }
    }
    if (lane == 0) {
        afdep_rail_record_t record = { (uint32_t)token, rails };
        *afdep_rail_record(r, exchange, afdep_rail_slot(r, source, channel, position)) = record;
    }
    *rows += rails >> lane & 1;
    return true;
}

/* What a lane knows of its source on a channel. */
typedef struct afdep_lane_source {
    int source, tokens; /* tokens: T, -1 before its count word */
    bool open, ready;
    uint64_t shadow, tail;
    uint32_t rows;
} afdep_lane_source_t;

/* One look at the words of the lane's source. False: a word that no correct peer writes. */
static __device__ bool afdep_look_at_source(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                            int channel, afdep_lane_source_t &l, afdep_rail_wait_t &wait)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_peer_rail rail = { r };
    uint64_t plane = afdep_ffn_plane(r, exchange), count = 0;
    bool wants_count = s.sparse_dispatch && l.tokens < 0;
    if (wants_count)
        count = rail.read(plane + afdep_at_count_word(&r.layout.ffn, l.source));
    l.tail = rail.read(plane + afdep_at_finish_tail(&r.layout.ffn, &s, l.source, channel));
    if (wants_count) {
        afdep_word_state_t state = afdep_tag_state(count, (uint32_t)exchange, (uint32_t)s.in_flight);
        wait.word = AFDEP_CUDA_WORD_COUNT;
        if (state == AFDEP_WORD_BROKEN)
            return afdep_rail_broken(r, wait, count);
        if (state == AFDEP_WORD_WAIT)
            return true;
        if (afdep_word_low(count) > (uint32_t)call.bucket) {
            wait.word = AFDEP_CUDA_WORD_BUCKET;
            return afdep_rail_broken(r, wait, count);
        }
        l.tokens = (int)afdep_word_low(count);
        l.open = afdep_channel_tokens(&s, l.source, l.tokens, channel) > 0;
        if (!l.open)
            return true;
    }
    wait.word = AFDEP_CUDA_WORD_FINISH;
    uint32_t finishes = afdep_tail_finishes(l.shadow, l.tail), rows = afdep_tail_tokens(l.shadow, l.tail);
    uint32_t most = (uint32_t)afdep_channel_tokens(&s, l.source, s.sparse_dispatch ? l.tokens : call.bucket, channel);
    if (finishes <= 1 && !s.sparse_dispatch && rows > most && rows <= r.layout.slots)
        wait.word = AFDEP_CUDA_WORD_BUCKET;
    if (finishes > 1 || rows > most)
        return afdep_rail_broken(r, wait, l.tail);
    l.ready = finishes == 1;
    l.rows = rows;
    return true;
}

/* One channel of 32 sources, from `first` on. */
static __device__ bool afdep_forward_sources(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                             int channel, int first, uint32_t *rows)
{
    const afdep_shape_t &s = r.c.shape;
    afdep_lane_source_t l = { first + (int)afdep_lane(), -1, false, false, 0, 0, 0 };
    afdep_patience_t patience = { 0, 0 };
    bool mine = l.open = l.source < s.attention_domains;
    uint64_t at = afdep_at_source(r, exchange, channel, mine ? l.source : 0);
    afdep_rail_wait_t wait = { AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_FINISH,
                               afdep_source_rank(&s, mine ? l.source : 0, r.rail), channel, exchange,
                               afdep_word((uint32_t)exchange, 0) };
    if (mine)
        l.shadow = r.finish_shadow[at];
    while (__any_sync(AFDEP_FULL, l.open)) {
        bool fine = !l.open || afdep_look_at_source(r, call, exchange, channel, l, wait);
        if (fine && l.open && !l.ready)
            fine = !afdep_rail_look(r, patience, wait, l.tail);
        if (!__all_sync(AFDEP_FULL, fine))
            return false;
        for (uint32_t left = __ballot_sync(AFDEP_FULL, l.open && l.ready); left; left &= left - 1) {
            int lane = __ffs((int)left) - 1;
            uint32_t come = __shfl_sync(AFDEP_FULL, l.rows, lane);
            __syncwarp(); /* the lane's acquire before the other lanes' reads */
            for (uint32_t position = 0; position < come; position++)
                if (!afdep_forward_row(r, call, exchange, channel, first + lane, position, rows))
                    return false;
        }
        if (l.open && l.ready) {
            r.finish_shadow[at] = l.tail;
            l.open = false;
        }
    }
    if (mine)
        r.taken[at] = l.ready ? l.rows : 0;
    return true;
}

/* Tells the ranks of the domain what came over this rail, a lane each; and this rank itself. All rows of all channels are
   behind this warp, by the count of arrivals; the fence makes that so for ranks on other GPUs too. */
static __device__ void afdep_tell_rails(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane();
    bool mine = q < s.ranks_per_domain;
    uint32_t rows = mine ? *(volatile uint32_t *)&r.forwarding[q] : 0;
    if (mine) {
        r.forwarding[q] = 0;
        r.forwarded[afdep_plane(s, exchange) * (uint32_t)s.ranks_per_domain + (uint32_t)q] = rows;
    }
    __syncwarp();
    afdep_fence_system(); /* one for the words and for `joined` */
    if (mine && q == r.rail)
        afdep_signal64(r.joined, exchange);
    if (mine && q != r.rail) {
        afdep_signal64((uint64_t *)(afdep_domain_segment(r, q) + afdep_ffn_plane(r, exchange) +
                                    afdep_at_forward_word(&r.layout.ffn, r.rail, afdep_plane_parity(&s, exchange))),
                       afdep_word((uint32_t)exchange, rows));
        r.counters[afdep_ffn_rank(&s, r.domain, q)].signals[AFDEP_RAIL_DOMAIN_WORD]++;
    }
}

static __device__ __noinline__ void afdep_be_slow(uint32_t ns)
{
    uint64_t since = afdep_now_ns();
    while (afdep_now_ns() - since < ns)
        continue;
    __syncwarp();
}

/* The duty of a warp that serves channels. */
static __device__ void afdep_forward(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    uint32_t rows = 0;
    for (int channel = afdep_channel_warp(r); channel < s.channels; channel += afdep_channel_warp_count(r)) {
        if (r.slow_forward_ns && channel % 8 == 5)
            afdep_be_slow(r.slow_forward_ns);
        for (int first = 0; first < s.attention_domains; first += AFDEP_WARP)
            if (!afdep_forward_sources(r, call, exchange, channel, first, &rows))
                return; /* the rank is poisoned: whoever waits for the end of forwarding finds out */
    }
    if (rows > 0)
        atomicAdd(&r.forwarding[afdep_lane()], rows);
}

/* Behind a barrier of the CTA, by its first warp: one arrival, and so one fence, for all channels that the CTA serves. */
static __device__ void afdep_end_forward(const afdep_rail_rank_t &r, uint64_t exchange)
{
    bool last = false;
    if (afdep_lane() == 0)
        last = afdep_rail_last(r, AFDEP_RAIL_FORWARDED, (uint32_t)r.communicating);
    __syncwarp();
    if (__shfl_sync(AFDEP_FULL, last, 0))
        afdep_tell_rails(r, exchange);
}

/* ---- join ---------------------------------------------------------------------------------------------------- */

/* The duty of one warp of every CTA: the rows that came over each rail, a lane each, to `arrived`. */
static __device__ bool afdep_join(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                  uint32_t *arrived)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane();
    bool fine = !afdep_poisoned(r.c);
    if (fine && q < s.ranks_per_domain) {
        afdep_rail_wait_t wait = { AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_FORWARD, afdep_ffn_rank(&s, r.domain, q), -1, exchange,
                                   afdep_word((uint32_t)exchange, 0) };
        uint64_t seen;
        uint32_t plane = afdep_plane(s, exchange), step = 2u * (uint32_t)s.in_flight;
        if (q == r.rail) {
            fine = afdep_rail_await(
                r, wait, &seen, [&]() { return afdep_load_acquire_gpu64(r.joined); },
                [&](uint64_t value) { return value == exchange ? AFDEP_WORD_READY : AFDEP_WORD_WAIT; });
            arrived[q] = fine ? *(volatile uint32_t *)&r.forwarded[plane * (uint32_t)s.ranks_per_domain + (uint32_t)q] : 0;
        } else {
            const uint64_t *word = (const uint64_t *)(r.c.base + afdep_ffn_plane(r, exchange) +
                                                      afdep_at_forward_word(&r.layout.ffn, q, afdep_plane_parity(&s, exchange)));
            fine = afdep_rail_await(
                r, wait, &seen, [&]() { return afdep_load_acquire64(word); },
                [&](uint64_t value) { return afdep_tag_state(value, (uint32_t)exchange, step); });
            arrived[q] = afdep_word_low(seen);
        }
        uint32_t *kept = &r.arrived[plane * (uint32_t)s.ranks_per_domain + (uint32_t)q];
        if (fine && blockIdx.x == 0 && call.cached && *kept != arrived[q]) {
            afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_CACHED, exchange, wait.peer, -1, -1,
                              *kept, arrived[q]);
            fine = false;
        }
        if (fine && blockIdx.x == 0)
            *kept = arrived[q];
    }
    return __all_sync(AFDEP_FULL, fine);
}

#endif
