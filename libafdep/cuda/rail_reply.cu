/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_reply across domains, in two duties.
 *
 * reply: all CTAs sum this rank's rows per token, part by part, one warp each, and store the sums where the token's rail
 * rank looks for them: for the own rail in memory of this rank's own, for others in their partial inboxes. The last CTA says
 * so to every rail that sent rows (reply word), and to this rank itself.
 *
 * reply_forward: the warps that serve channels wait for the partials of all rails that they forwarded rows to, replay the
 * record of their channel, sum the partials in rail order and send one row per token to the source, the last of a source
 * with the channel's combine signal. Without sparse combine a source is signalled also where it sent nothing.
 *
 * Reuse. A place in the partial inbox of exchange n + G is written only for rows that its owner forwarded in n + G, which is
 * after the owner replied n. A reply word cannot pass the value that its reader waits for: its writer would have to receive
 * n + G, and that joins the reader's forward word of n + G. The own partials serve one reply after the other, as the
 * stream orders them. Combine inboxes of n - G were read: their sources collected before they dispatched n.
 */
#include "cuda/launch.cuh"
#include "cuda/packed.cuh"
#include "cuda/rail_forward.cuh"
#include "cuda/sum.cuh"

#define THREADS AFDEP_RAIL_THREADS
#define WARPS AFDEP_RAIL_WARPS

/*
 * COLUMNS 16-byte columns a lane, 512 bytes apart, of the sum of `count` rows (count > 0), as afdep_sum_column(). Few terms
 * do not keep enough loads on their way by themselves: then those of all columns are. `bytes` are left of the row.
 * put(at, sum) takes what the lane has at an offset, with the warp whole.
 */
template <bool WEIGHTED, int COLUMNS, typename Row, typename Weight, typename Put>
static __device__ __forceinline__ void sum_columns(int count, uint32_t bytes, Row row, Weight weight, Put put)
{
    const int few = 8 / COLUMNS;
    uint32_t lane = afdep_lane() * 16u;
    if (count > few) {
#pragma unroll 1
        for (uint32_t at = lane; at < bytes && at < 512u * COLUMNS; at += 512u)
            put(at, afdep_sum_column<WEIGHTED>(count, [&](int j) { return row(j) + at; }, weight));
        return;
    }
    uint4 v[few][COLUMNS];
#pragma unroll
    for (int j = 0; j < few; j++)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (j < count && lane + (uint32_t)i * 512u < bytes)
                v[j][i] = afdep_load16(row(j) + lane + i * 512);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        if (lane + (uint32_t)i * 512u >= bytes)
            break;
        afdep_sum_t sum;
        afdep_sum_first<WEIGHTED>(sum, v[0][i], weight(0));
#pragma unroll
        for (int j = 1; j < few; j++)
            if (j < count)
                afdep_sum_add<WEIGHTED>(sum, v[j][i], weight(j));
        /* One unweighted row passes bit for bit. */
        put(lane + (uint32_t)i * 512u, WEIGHTED || count > 1 ? afdep_sum_round(sum) : v[0][i]);
    }
}

/* ---- reply: this rank's rows per token --------------------------------------------------------------------------- */

/* A token's rows on this rank, in slot order; one of these per warp. */
typedef struct terms {
    const unsigned char *row[AFDEP_WARP];
    float weight[AFDEP_WARP];
} terms_t;

/* A token of a source. */
typedef struct unit {
    int a, rail, source, token;
} unit_t;

/* Tokens run slowest, so that all sources are served from the start. */
static __device__ __forceinline__ unit_t unit_at(const afdep_shape_t &s, int index)
{
    unit_t u;
    u.token = index / s.attention_ranks;
    u.a = index - u.token * s.attention_ranks;
    u.source = u.a / s.ranks_per_domain;
    u.rail = u.a - u.source * s.ranks_per_domain;
    return u;
}

/* The choices' weights as they came. */
static __device__ __forceinline__ const float *weights_of(const afdep_rail_rank_t &r, uint64_t exchange, const unit_t &u)
{
    return (const float *)(afdep_arrived_row(r, exchange, u.rail, u.source, u.token) + r.layout.row.weights_offset);
}

/* Gathers the token's terms; returns how many. */
static __device__ int take_terms(const afdep_rail_rank_t &r, const void *rows, uint64_t exchange, const unit_t &u,
                                 terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    uint32_t lane = afdep_lane();
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    uint64_t position = 0;
    if ((int)lane < s.top_k)
        position = r.c.positions[(plane + afdep_slot(s, u.a, u.token)) * (uint32_t)s.top_k + lane];
    bool mine = (int)lane < s.top_k && afdep_word_high(position) == (uint32_t)exchange && afdep_word_low(position) != 0;
    uint32_t chosen = __ballot_sync(AFDEP_FULL, mine);
    __syncwarp(); /* the terms of the unit before are read */
    if (mine) {
        int n = __popc(chosen & ((1u << lane) - 1u));
        terms->row[n] = (const unsigned char *)rows +
                        (uint64_t)(afdep_word_low(position) - 1u) * 2u * (uint32_t)s.hidden;
        if (s.apply_weights)
            terms->weight[n] = weights_of(r, exchange, u)[lane];
    }
    __syncwarp();
    return __popc(chosen);
}

static __device__ __forceinline__ unsigned char *own_partial(const afdep_rail_rank_t &r, int source, uint32_t token)
{
    const afdep_shape_t &s = r.c.shape;
    return r.own_partials + ((uint64_t)token * (uint32_t)s.attention_domains + (uint32_t)source) * 2u * (uint32_t)s.hidden;
}

/* Where this rank's partial of a token goes. */
static __device__ __forceinline__ unsigned char *partial_place(const afdep_rail_rank_t &r, uint64_t exchange, const unit_t &u)
{
    if (u.rail == r.rail)
        return own_partial(r, u.source, (uint32_t)u.token);
    return afdep_domain_segment(r, u.rail) + afdep_ffn_plane(r, exchange) +
           afdep_at_partial(&r.layout.ffn, &r.layout, &r.c.shape, r.rail, u.source, u.token);
}

/* The sum of a token's rows in parts from `part` to `end`. */
template <bool WEIGHTED>
static __device__ void sum_parts(const afdep_rail_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange,
                                 const unit_t &u, int part, int end, terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    int count = take_terms(r, call.rows, exchange, u, terms);
    if (count == 0)
        return;
    unsigned char *place = partial_place(r, exchange, u);
    const int columns = 2 * AFDEP_PART / 512;
    uint32_t row_bytes = 2u * (uint32_t)s.hidden;
#pragma unroll 1
    for (int p = part; p < end; p++) {
        uint32_t first = (uint32_t)p * 2u * AFDEP_PART;
        sum_columns<WEIGHTED, columns>(
            count, row_bytes - first, [&](int j) { return terms->row[j] + first; }, [&](int j) { return terms->weight[j]; },
            [&](uint32_t at, const uint4 &sum) { afdep_store16(place + first + at, sum); });
    }
    if (part == 0 && afdep_lane() == 0 && u.rail != r.rail)
        *(uint4 *)(place + r.layout.row.reply_tag_offset) =
            make_uint4((uint32_t)exchange, (uint32_t)u.token, (uint32_t)r.c.rank, 0);
}

template <bool WEIGHTED>
static __device__ void sum_rows(const afdep_rail_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange, terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    int parts = afdep_pieces(&s, AFDEP_PART), tokens = s.attention_ranks * call.bucket;
    /* A unit of work: a part of a token, or with many tokens all of it, as its terms are looked up once. */
    int shares = tokens < afdep_warp_count() ? parts : 1, each = parts / shares;
    for (int unit = afdep_warp_index(); unit < tokens * shares; unit += afdep_warp_count()) {
        int token = unit / shares, part = (unit - token * shares) * each;
        sum_parts<WEIGHTED>(r, call, exchange, unit_at(s, token), part, part + each, terms);
    }
}

/* Tells the rails that sent rows, a lane each, and this rank itself: all sums of all CTAs are behind this warp. `rows`: that
   came over the lane's rail. */
static __device__ void tell_rails(const afdep_rail_rank_t &r, uint64_t exchange, uint32_t rows)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane();
    afdep_fence_system(); /* one for the words and for `summed` */
    if (q == r.rail)
        afdep_signal64(r.summed, exchange);
    else if (rows > 0) { /* a rail that forwarded no row awaits no reply */
        afdep_signal64((uint64_t *)(afdep_domain_segment(r, q) + afdep_ffn_plane(r, exchange) +
                                    afdep_at_reply_word(&r.layout.ffn, r.rail)),
                       afdep_word((uint32_t)exchange, rows));
        r.counters[afdep_ffn_rank(&s, r.domain, q)].signals[AFDEP_RAIL_DOMAIN_WORD]++;
    }
}

/* ---- reply_forward ----------------------------------------------------------------------------------------------- */

/* join: waits for the partials of every rail that this rank forwarded rows to, a lane each. */
static __device__ bool wait_partials(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane();
    bool fine = !afdep_poisoned(r.c);
    if (fine && q < s.ranks_per_domain) {
        uint32_t rows = r.forwarded[afdep_plane(s, exchange) * (uint32_t)s.ranks_per_domain + (uint32_t)q];
        afdep_rail_wait_t wait = { AFDEP_CUDA_REPLY, AFDEP_CUDA_WORD_REPLY, afdep_ffn_rank(&s, r.domain, q), -1, exchange,
                                   afdep_word((uint32_t)exchange, rows) };
        uint64_t seen;
        const uint64_t *word = (const uint64_t *)(r.c.base + afdep_ffn_plane(r, exchange) +
                                                  afdep_at_reply_word(&r.layout.ffn, q));
        if (q == r.rail)
            fine = afdep_rail_await(
                r, wait, &seen, [&]() { return afdep_load_acquire_gpu64(r.summed); },
                [&](uint64_t value) { return value == exchange ? AFDEP_WORD_READY : AFDEP_WORD_WAIT; });
        else if (rows > 0)
            fine = afdep_rail_await(
                r, wait, &seen, [&]() { return afdep_load_acquire64(word); },
                [&](uint64_t value) { /* reply words skip exchanges without rows */
                    if (afdep_word_high(value) != (uint32_t)exchange)
                        return AFDEP_WORD_WAIT;
                    return afdep_word_low(value) == rows ? AFDEP_WORD_READY : AFDEP_WORD_BROKEN;
                });
    }
    return __all_sync(AFDEP_FULL, fine);
}

static __device__ __forceinline__ const unsigned char *partial_of(const afdep_rail_rank_t &r, uint64_t exchange, int rail,
                                                                  int source, uint32_t token)
{
    if (rail == r.rail)
        return own_partial(r, source, token);
    return r.c.base + afdep_ffn_plane(r, exchange) +
           afdep_at_partial(&r.layout.ffn, &r.layout, &r.c.shape, rail, source, (int)token);
}

/* The partials of a recorded row, in rail order, to `terms`. 0: one of them is not there. */
static __device__ int gather_partials(const afdep_rail_rank_t &r, uint64_t exchange, int channel, int source,
                                      const afdep_rail_record_t &record, terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    uint32_t lane = afdep_lane();
    bool mine = record.rails >> lane & 1, fine = true;
    __syncwarp(); /* the terms of the row before are read */
    if (mine) {
        const unsigned char *row = partial_of(r, exchange, (int)lane, source, record.token);
        terms->row[__popc(record.rails & ((1u << lane) - 1u))] = row;
        if ((int)lane != r.rail) {
            uint4 tag = afdep_load16(row + r.layout.row.reply_tag_offset);
            int rank = afdep_ffn_rank(&s, r.domain, (int)lane);
            if (!afdep_rail_tagged(tag, exchange, (int)record.token, rank))
                fine = afdep_rail_lost(r, AFDEP_CUDA_REPLY, exchange, rank, (int)record.token, channel, tag);
        }
    }
    __syncwarp();
    return __all_sync(AFDEP_FULL, fine) ? __popc(record.rails) : 0;
}

/* The sum of `count` rows, as BF16 or packed. */
static __device__ void sum_partials(const afdep_rail_rank_t &r, int count, const terms_t *terms, bool packs,
                                    unsigned char *place)
{
    const uint32_t columns = 4, bytes = 2u * (uint32_t)r.c.shape.hidden;
    for (uint32_t base = 0; base < bytes; base += 512u * columns)
        sum_columns<false, columns>(
            count, bytes - base, [&](int j) { return terms->row[j] + base; }, [&](int) { return 1.0f; },
            [&](uint32_t at, const uint4 &sum) {
                if (packs)
                    afdep_pack_column(place, r.layout.row.packed_scale_offset, (base + at) / 2, sum);
                else
                    afdep_store16(place + base + at, sum);
            });
}

/* A source on a channel, as a warp serves it. */
typedef struct back {
    int channel, source;
    bool packs; /* rows leave packed */
    uint32_t rows;
    uint64_t tail, next;
} back_t;

/* Sends the row at `position` of a channel back, the last one with the channel's combine signal. */
static __device__ __noinline__ bool send_back(const afdep_rail_rank_t &r, uint64_t exchange, const back_t &b, uint32_t position,
                                 const afdep_rail_record_t &record, terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_row_format_t &f = r.layout.row;
    const afdep_peer_rail rail = { r };
    uint32_t bytes = b.packs ? f.packed_bytes : f.reply_bytes;
    uint64_t plane = afdep_attention_plane(r, exchange);
    uint64_t offset = plane + afdep_at_combine_row(&r.layout.attention, &r.layout, &s, r.domain, (int)record.token);
    unsigned char *place = rail.window(b.source, offset);
    if (!place)
        place = r.reply_staging +
                ((uint64_t)b.source * (uint32_t)s.capacity + record.token) * r.layout.row.reply_stride;
    int count = gather_partials(r, exchange, b.channel, b.source, record, terms);
    if (count == 0)
        return false;
    sum_partials(r, count, terms, b.packs, place);
    if (afdep_lane() == 0)
        *(uint4 *)(place + bytes - sizeof(afdep_row_tag_t)) = make_uint4((uint32_t)exchange, record.token, (uint32_t)r.c.rank, 0);
    if (position + 1 == b.rows)
        rail.put_signal(AFDEP_RAIL_COMBINE, b.channel, b.source, offset, place, bytes,
                        plane + afdep_at_combine_tail(&r.layout.attention, &s, r.domain, b.channel), b.tail, b.next);
    else
        rail.put(b.channel, b.source, offset, place, bytes);
    return true;
}

/* What a lane holds of its source on a channel, of 32 sources from `first` on. */
typedef struct lane_source {
    int channel, first;
    bool mine;
    uint32_t rows;
    uint64_t tail;
    afdep_rail_record_t record; /* of the first row */
} lane_source_t;

static __device__ lane_source_t take_sources(const afdep_rail_rank_t &r, uint64_t exchange, int channel, int first)
{
    const afdep_shape_t &s = r.c.shape;
    int source = first + (int)afdep_lane();
    lane_source_t l = { channel, first, source < s.attention_domains, 0, 0, { 0, 0 } };
    uint64_t at = afdep_at_source(r, exchange, channel, l.mine ? source : 0);
    if (l.mine) {
        l.rows = r.taken[at];
        l.tail = r.sent_tails[at];
    }
    if (l.rows > 0)
        l.record = *afdep_rail_record(r, exchange, afdep_rail_slot(r, source, channel, 0));
    return l;
}

/* Serves them, one after the other. */
static __device__ bool send_back_sources(const afdep_rail_rank_t &r, uint64_t exchange, const lane_source_t &l, bool packs,
                                         terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_peer_rail rail = { r };
    int channel = l.channel, first = l.first;
    uint64_t next = afdep_tail_advance(l.tail, 1, l.rows);
    bool told = l.mine && (l.rows > 0 || !s.sparse_combine);
    for (uint32_t left = __ballot_sync(AFDEP_FULL, told); left; left &= left - 1) {
        int lane = __ffs((int)left) - 1;
        back_t b = { channel, first + lane, packs, __shfl_sync(AFDEP_FULL, l.rows, lane),
                     __shfl_sync(AFDEP_FULL, (unsigned long long)l.tail, lane),
                     __shfl_sync(AFDEP_FULL, (unsigned long long)next, lane) };
        afdep_rail_record_t sent = { __shfl_sync(AFDEP_FULL, l.record.token, lane),
                                     __shfl_sync(AFDEP_FULL, l.record.rails, lane) };
        if (b.rows == 0)
            rail.signal(AFDEP_RAIL_COMBINE, channel, b.source,
                        afdep_attention_plane(r, exchange) +
                            afdep_at_combine_tail(&r.layout.attention, &s, r.domain, channel),
                        b.tail, b.next);
        for (uint32_t position = 0; position < b.rows; position++) {
            if (position > 0)
                sent = *afdep_rail_record(r, exchange, afdep_rail_slot(r, b.source, channel, position));
            if (!send_back(r, exchange, b, position, sent, terms))
                return false;
        }
    }
    if (told)
        r.sent_tails[afdep_at_source(r, exchange, channel, first + (int)afdep_lane())] = next;
    return true;
}

/* The duty of a warp that serves channels. */
static __device__ void reply_forward(const afdep_rail_rank_t &r, uint64_t exchange, bool packs, terms_t *terms)
{
    const afdep_shape_t &s = r.c.shape;
    int start = afdep_channel_warp(r);
    if (start >= s.channels)
        return;
    lane_source_t l = take_sources(r, exchange, start, 0); /* of the first channel before the wait */
    if (!wait_partials(r, exchange))
        return;
    for (int channel = start; channel < s.channels; channel += afdep_channel_warp_count(r))
        for (int first = 0; first < s.attention_domains; first += AFDEP_WARP) {
            if (channel != start || first != 0)
                l = take_sources(r, exchange, channel, first);
            if (!send_back_sources(r, exchange, l, packs, terms))
                return;
        }
}

/* ---- The kernel ---------------------------------------------------------------------------------------------------- */

template <bool WEIGHTED>
static __global__ void __launch_bounds__(THREADS, 1)
    rail_reply_kernel(const __grid_constant__ afdep_rail_rank_t r, const __grid_constant__ afdep_cuda_reply_t call)
{
    __shared__ terms_t all_terms[WARPS];
    terms_t *terms = &all_terms[threadIdx.x / AFDEP_WARP];
    uint64_t exchange = afdep_enter(r.c, AFDEP_CUDA_REPLY);
    if (__syncthreads_or(afdep_poisoned(r.c)))
        return;
    sum_rows<WEIGHTED>(r, call, exchange, terms);
    __syncthreads();
    if (threadIdx.x < AFDEP_WARP) {
        uint32_t rows = 0;
        if ((int)threadIdx.x < r.c.shape.ranks_per_domain)
            rows = r.arrived[afdep_plane(r.c.shape, exchange) * (uint32_t)r.c.shape.ranks_per_domain + threadIdx.x];
        bool last = threadIdx.x == 0 && afdep_rail_last(r, AFDEP_RAIL_SUMMED, gridDim.x);
        __syncwarp();
        if (__shfl_sync(AFDEP_FULL, last, 0))
            tell_rails(r, exchange, rows);
    }
    if (afdep_channel_warp(r) >= 0)
        reply_forward(r, exchange, afdep_packs_replies(&r.c.shape, call.bucket), terms);
    if (afdep_rail_leave(r, AFDEP_CUDA_REPLY) && !afdep_poisoned(r.c))
        afdep_finish(r.c, AFDEP_CUDA_REPLY, exchange);
}

cudaError_t afdep_rail_launch_reply(const afdep_rail_rank_t *r, const afdep_cuda_reply_t *call, int grid, cudaStream_t stream)
{
    return r->c.shape.apply_weights
               ? afdep_launch_apart(rail_reply_kernel<true>, grid, THREADS, 0, stream, *r, *call)
               : afdep_launch_apart(rail_reply_kernel<false>, grid, THREADS, 0, stream, *r, *call);
}

cudaError_t afdep_rail_prepare_reply(const afdep_shape_t *shape)
{
    return shape->apply_weights ? afdep_load(rail_reply_kernel<true>, 0) : afdep_load(rail_reply_kernel<false>, 0);
}
