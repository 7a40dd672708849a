/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward, and the joining of the rails: the first part of worker_receive across domains.
 *
 * A warp serves some units (a channel of a source, rail.cuh), a lane each. In sparse dispatch a lane looks at its
 * source's count word and finish tail at once; from T it knows whether the channel carries tokens, and retires it
 * without a signal where it does not; units beyond the bucket need no look. The warp takes whichever unit has finished,
 * so none waits for another. Rows for other ranks of the domain go into their domain inboxes, rows for this rank into
 * memory of its own: when forwarding is over, nothing reads the rail inbox.
 *
 * The last CTA tells each other rank of the domain how many rows came over this rail, zero included. That word has two
 * entries, by exchange parity: a rank that got no rows owes this rail no reply, so the rail may be one exchange ahead
 * of it; not two, since every receive joins the words of all rails.
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

/* A source (or the rails of this domain) and this rank disagree on whether ids are used again. */
static __device__ __noinline__ bool afdep_rail_uncached(const afdep_rail_rank_t &r, uint64_t exchange, int peer, int token,
                                                        int channel, uint32_t expected, uint32_t seen)
{
    afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_CACHED, exchange, peer, token, channel,
                      expected, seen);
    return false;
}

/* What a lane knows of its unit. */
typedef struct afdep_lane_unit {
    afdep_rail_unit_t unit;
    int tokens; /* T, -1 before its count word */
    bool open, ready;
    uint64_t shadow, tail;
    uint32_t rows;
} afdep_lane_unit_t;

/* A row on its way through a warp: where it came from, and a lane's part of it. */
typedef struct afdep_passing_row {
    const unsigned char *row;
    uint64_t record; /* its place */
    int source, channel;
    uint4 tag, head[AFDEP_AT_ONCE];
    int id;
} afdep_passing_row_t;

/* Rows of a warp's finished units, one after the other. */
typedef struct afdep_row_walk {
    uint32_t left;           /* lanes whose units are not taken yet */
    uint32_t position, rows; /* of the unit that is being taken */
    int source, channel;
} afdep_row_walk_t;

/* Asks for the next row; false: there is none. */
static __device__ __forceinline__ bool afdep_next_row(const afdep_rail_rank_t &r, uint64_t exchange,
                                                      const afdep_lane_unit_t &l, afdep_row_walk_t &walk,
                                                      afdep_passing_row_t &next)
{
    const afdep_row_format_t &f = r.layout.row;
    while (walk.position == walk.rows) {
        if (walk.left == 0)
            return false;
        int lane = __ffs((int)walk.left) - 1;
        walk.left &= walk.left - 1;
        walk.position = 0;
        walk.rows = __shfl_sync(AFDEP_FULL, l.rows, lane);
        walk.source = __shfl_sync(AFDEP_FULL, l.unit.source, lane);
        walk.channel = __shfl_sync(AFDEP_FULL, l.unit.channel, lane);
    }
    next.source = walk.source;
    next.channel = walk.channel;
    next.record = afdep_rail_slot(r, walk.source, walk.channel, walk.position);
    next.row = r.c.base + afdep_ffn_plane(r, exchange) +
               afdep_at_rail_row(&r.layout.ffn, &r.layout, &r.c.shape, walk.source, walk.channel, (int)walk.position);
    walk.position++;
    next.tag = afdep_load16(next.row + f.tag_offset);
    next.id =
        (int)afdep_lane() < r.c.shape.top_k ? ((volatile const int32_t *)(next.row + f.ids_offset))[afdep_lane()] : -1;
    afdep_warp_load(next.head, next.row, 0, f.bytes); /* with the tag, not after it */
    return true;
}

/* Forwards a row; `rows`: a lane's count of rows for its rail. */
static __device__ __forceinline__ bool afdep_forward_row(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                                         uint64_t exchange, afdep_passing_row_t &p, uint32_t *rows)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_row_format_t &f = r.layout.row;
    int rank = afdep_source_rank(&s, p.source, r.rail), token = (int)p.tag.y;
    int first = afdep_channel_first(&s, p.source, p.channel);
    if (p.tag.y >= (uint32_t)call.bucket || !afdep_rail_tagged(p.tag, exchange, token, rank) || token < first ||
        (uint32_t)(token - first) % (uint32_t)s.channels != 0)
        return afdep_rail_lost(r, AFDEP_CUDA_RECEIVE, exchange, rank, -1, p.channel, p.tag);
    if (p.tag.w != (uint32_t)call.cached)
        return afdep_rail_uncached(r, exchange, rank, token, p.channel, (uint32_t)call.cached, p.tag.w);
    uint32_t rails = afdep_rails_of(r, p.id);
    if (rails == 0)
        return afdep_rail_lost(r, AFDEP_CUDA_RECEIVE, exchange, rank, token, p.channel, p.tag);
    uint64_t offset =
        afdep_ffn_plane(r, exchange) + afdep_at_domain_row(&r.layout.ffn, &r.layout, &s, r.rail, p.source, token);
    unsigned char *own = afdep_own_row(r, exchange, p.source, token);
    for (uint32_t base = 0; base < f.bytes; base += 512u * AFDEP_AT_ONCE) {
        if (base > 0)
            afdep_warp_load(p.head, p.row, base, f.bytes);
        for (uint32_t left = rails; left; left &= left - 1) {
            int q = __ffs((int)left) - 1;
            afdep_warp_store(q == r.rail ? own : afdep_domain_segment(r, q) + offset, p.head, base, f.bytes);
        }
    }
    if (afdep_lane() == 0) {
        afdep_rail_record_t record = { (uint32_t)token, rails };
        *afdep_rail_record(r, exchange, p.record) = record;
    }
    *rows += rails >> afdep_lane() & 1;
    return true;
}

/* Forwards all rows of the units of the lanes in `ready`: the next row is on its way while one is stored. */
static __device__ bool afdep_forward_rows(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                          uint64_t exchange, const afdep_lane_unit_t &l, uint32_t ready, uint32_t *rows)
{
    afdep_row_walk_t walk = { ready, 0, 0, 0, 0 };
    afdep_passing_row_t row, next;
    __syncwarp(); /* the lanes' acquires before the other lanes' reads */
    bool more = afdep_next_row(r, exchange, l, walk, row);
    while (more) {
        more = afdep_next_row(r, exchange, l, walk, next);
        if (!afdep_forward_row(r, call, exchange, row, rows))
            return false;
        row = next;
    }
    return true;
}

/* One look at the words of the lane's unit. False: a word that no correct peer writes. */
static __device__ bool afdep_look_at_unit(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                          uint64_t exchange, afdep_lane_unit_t &l, afdep_rail_wait_t &wait)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    uint64_t plane = afdep_ffn_plane(r, exchange), count = 0;
    int source = l.unit.source, channel = l.unit.channel;
    bool wants_count = s.sparse_dispatch && l.tokens < 0;
    if (wants_count)
        count = rail.read(AFDEP_RAIL_CONTROL, plane + afdep_at_count_word(&r.layout.ffn, source));
    l.tail = rail.read(channel, plane + afdep_at_finish_tail(&r.layout.ffn, &s, source, channel));
    if (wants_count) {
        afdep_word_state_t state = afdep_rail_tag_state(count, exchange);
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
        l.open = afdep_channel_tokens(&s, source, l.tokens, channel) > 0;
        if (!l.open)
            return true;
    }
    wait.word = AFDEP_CUDA_WORD_FINISH;
    uint32_t finishes = afdep_tail_finishes(l.shadow, l.tail), rows = afdep_tail_tokens(l.shadow, l.tail);
    uint32_t most = (uint32_t)afdep_channel_tokens(&s, source, s.sparse_dispatch ? l.tokens : call.bucket, channel);
    if (finishes <= 1 && !s.sparse_dispatch && rows > most && rows <= r.layout.slots)
        wait.word = AFDEP_CUDA_WORD_BUCKET;
    if ((int32_t)finishes < 0) /* as above */
        return true;
    if (finishes > 1 || rows > most)
        return afdep_rail_broken(r, wait, l.tail);
    l.ready = finishes == 1;
    l.rows = rows;
    return true;
}

static __device__ __noinline__ void afdep_be_slow(uint32_t ns)
{
    uint64_t since = afdep_now_ns();
    while (afdep_now_ns() - since < ns)
        continue;
    __syncwarp();
}

/* A unit for each lane, `step` apart from `first` on. */
static __device__ bool afdep_forward_units(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                           uint64_t exchange, int first, int step, int units, uint32_t *rows)
{
    const afdep_shape_t &s = r.c.shape;
    int index = first + (int)afdep_lane() * step;
    bool mine = index < units;
    afdep_lane_unit_t l = { afdep_rail_unit_at(s, mine ? index : 0), -1, mine, false, 0, 0, 0 };
    afdep_patience_t patience = { 0, 0 };
    uint64_t at = afdep_at_source(r, exchange, l.unit.channel, l.unit.source);
    afdep_rail_wait_t wait = { AFDEP_CUDA_RECEIVE,
                               AFDEP_CUDA_WORD_FINISH,
                               afdep_source_rank(&s, l.unit.source, r.rail),
                               l.unit.channel,
                               exchange,
                               afdep_word((uint32_t)exchange, 0) };
    if (mine)
        l.shadow = r.finish_shadow[at];
    if (__any_sync(AFDEP_FULL, mine && r.slow_forward_ns && l.unit.channel % 8 == 5))
        afdep_be_slow(r.slow_forward_ns);
    while (__any_sync(AFDEP_FULL, l.open)) {
        bool fine = !l.open || afdep_look_at_unit(r, call, exchange, l, wait);
        if (fine && l.open && !l.ready)
            fine = !afdep_rail_look(r, patience, wait, l.tail);
        if (!__all_sync(AFDEP_FULL, fine))
            return false;
        uint32_t ready = __ballot_sync(AFDEP_FULL, l.open && l.ready);
        if (ready && !afdep_forward_rows(r, call, exchange, l, ready, rows))
            return false;
        if (l.open && l.ready) {
            r.finish_shadow[at] = l.tail;
            l.open = false;
        }
    }
    if (mine)
        r.taken[at] = l.ready ? l.rows : 0;
    return true;
}

/* The duty of every warp; `cta_rows` counts the CTA's rows to each rail. */
static __device__ void afdep_forward(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                     uint32_t *cta_rows)
{
    int units = afdep_rail_units(r.c.shape, call.bucket, !r.c.shape.sparse_dispatch), step = afdep_warp_count();
    uint32_t rows = 0;
    for (int first = afdep_warp_index(); first < units; first += step * AFDEP_WARP)
        if (!afdep_forward_units(r, call, exchange, first, step, units, &rows))
            return; /* the rank is poisoned: whoever waits for the end of forwarding finds out */
    if (rows > 0)
        atomicAdd(&cta_rows[afdep_lane()], rows);
}

/*
 * Behind a barrier of the CTA, by its first warp, a lane for each rail of the domain: adds this CTA and its rows to
 * what has been forwarded to that rail. The lane that completes the CTAs tells it, and this rank itself. All rows of
 * all CTAs are behind that lane, by what it added to; the fence makes that so for ranks on other GPUs too.
 */
static __device__ void afdep_end_forward(const afdep_rail_rank_t &r, uint64_t exchange, const uint32_t *cta_rows)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane();
    if (q >= s.ranks_per_domain)
        return;
    uint64_t before = afdep_add_acquire_release64(&r.forwarding[q], afdep_word(1, cta_rows[q]));
    if (afdep_word_high(before) + 1 != gridDim.x)
        return;
    uint32_t rows = afdep_word_low(before) + cta_rows[q];
    uint64_t word = afdep_word((uint32_t)exchange, rows);
    r.forwarding[q] = 0;
    r.forwarded[afdep_plane(s, exchange) * (uint32_t)s.ranks_per_domain + (uint32_t)q] = rows;
    afdep_fence_system();
    if (q == r.rail) {
        afdep_signal64(r.joined, word);
        return;
    }
    afdep_signal64((uint64_t *)(afdep_domain_segment(r, q) + afdep_ffn_plane(r, exchange) +
                                afdep_at_forward_word(&r.layout.ffn, r.rail, afdep_plane_parity(&s, exchange))),
                   word);
    r.counters[afdep_ffn_rank(&s, r.domain, q)].signals[AFDEP_RAIL_DOMAIN_WORD]++;
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
        uint32_t plane = afdep_plane(s, exchange);
        if (q == r.rail) {
            fine = afdep_rail_await(
                r, wait, &seen, [&]() { return afdep_load_acquire_gpu64(r.joined); },
                [&](uint64_t value) {
                    return afdep_word_high(value) == (uint32_t)exchange ? AFDEP_WORD_READY : AFDEP_WORD_WAIT;
                });
        } else {
            const uint64_t *word = (const uint64_t *)(r.c.base + afdep_ffn_plane(r, exchange) +
                                                      afdep_at_forward_word(&r.layout.ffn, q, afdep_plane_parity(&s, exchange)));
            fine = afdep_rail_await(
                r, wait, &seen, [&]() { return afdep_load_acquire64(word); },
                [&](uint64_t value) { return afdep_rail_tag_state(value, exchange); });
        }
        arrived[q] = afdep_word_low(seen);
        uint32_t *kept = &r.arrived[plane * (uint32_t)s.ranks_per_domain + (uint32_t)q];
        if (fine && blockIdx.x == 0 && call.cached && *kept != arrived[q])
            fine = afdep_rail_uncached(r, exchange, wait.peer, -1, -1, *kept, arrived[q]);
        if (fine && blockIdx.x == 0)
            *kept = arrived[q];
    }
    return __all_sync(AFDEP_FULL, fine);
}

#endif
