/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_reply across domains, in two duties.
 *
 * reply: all warps sum this rank's rows per token, by token or by part of one, and store the sums where the token's
 * rail rank looks for them: for others in their partial inboxes, then for the own rail in memory of this rank's own.
 * The last warp to finish with the others says so to every rail that sent rows (reply word), the last one of all to
 * this rank itself.
 *
 * reply_forward: all warps wait for the partials of all rails that this rank forwarded rows to, replay the record of
 * their units, sum the partials in rail order and send one row per token to the source, the last of a channel with its
 * combine signal, in rounds of one unit (rail_words.cuh). Without sparse combine a source is signalled also where it
 * sent nothing.
 *
 * Reuse. A place in the partial inbox of exchange n + G is written only for rows that its owner forwarded in n + G,
 * which is after the owner replied n. A reply word cannot pass the value that its reader waits for: its writer would
 * have to receive n + G, and that joins the reader's forward word of n + G. The own partials serve one reply after the
 * other, as the stream orders them. Combine inboxes of n - G were read: their sources collected before they dispatched
 * n. So had arrived what was staged here for those sources, on a rail without windows.
 */
#include "cuda/launch.cuh"
#include "cuda/packed.cuh"
#include "cuda/rail_few.cuh"
#include "cuda/rail_forward.cuh"
#include "cuda/sum.cuh"

#define THREADS AFDEP_RAIL_THREADS
#define WARPS AFDEP_RAIL_WARPS

/* ---- reply: this rank's rows per token --------------------------------------------------------------------------- */

/* A token of a source, or a part of it: where its terms are found, and where their sum goes. */
typedef struct job {
    unsigned char *place;
    const uint64_t *positions; /* [K] */
    const float *weights;      /* [K], as they came; NULL where the caller has applied them */
    uint32_t token, first;     /* the part's first byte */
} job_t;

/* A channel of a source that is sent back. */
typedef struct back {
    afdep_rail_unit_t unit;
    uint32_t rows, told;        /* told: is sent a combine signal */
    uint64_t tail;              /* the combine tail as last written */
    afdep_rail_record_t record; /* of the first row */
} back_t;

/* What a warp works through, each entry prepared by a lane, and the rows of a sum; in shared memory, as registers
   are for what is being summed. */
typedef struct room {
    union {
        job_t jobs[AFDEP_WARP];
        back_t backs[AFDEP_WARP];
    };
    const unsigned char *row[AFDEP_WARP];
    float weight[AFDEP_WARP];
} room_t;

static __device__ __forceinline__ unsigned char *own_partial(const afdep_rail_rank_t &r, int source, uint32_t token)
{
    const afdep_shape_t &s = r.c.shape;
    return r.own_partials +
           ((uint64_t)token * (uint32_t)s.attention_domains + (uint32_t)source) * 2u * (uint32_t)s.hidden;
}

/* Of the tokens of this rank's own rail, or of those of the others. Tokens run slowest, so that all sources are
   served from the start. */
static __device__ job_t job_at(const afdep_rail_rank_t &r, uint64_t exchange, bool own, int index)
{
    const afdep_shape_t &s = r.c.shape;
    int rails = own ? 1 : s.ranks_per_domain - 1, sources = s.attention_domains * rails;
    int token = index / sources, source = (index - token * sources) / rails,
        rail = index - token * sources - source * rails;
    rail = own ? r.rail : rail + (rail >= r.rail);
    int a = source * s.ranks_per_domain + rail;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    job_t job;
    job.positions = r.c.positions + (plane + afdep_slot(s, a, token)) * (uint32_t)s.top_k;
    job.weights = NULL;
    if (s.apply_weights)
        job.weights =
            (const float *)(afdep_arrived_row(r, exchange, rail, source, token) + r.layout.row.weights_offset);
    job.place = own ? own_partial(r, source, (uint32_t)token)
                    : afdep_domain_segment(r, rail) + afdep_ffn_plane(r, exchange) +
                          afdep_at_partial(&r.layout.ffn, &r.layout, &s, r.rail, source, token);
    job.token = (uint32_t)token;
    return job;
}

/* Where the lane's slot of a job's token stands among this rank's rows. */
static __device__ __forceinline__ uint64_t load_position(const afdep_rail_rank_t &r, const job_t &job)
{
    return (int)afdep_lane() < r.c.shape.top_k ? job.positions[afdep_lane()] : 0;
}

/* Gathers a job's terms in slot order; returns how many. */
template <bool WEIGHTED>
static __device__ int take_terms(const afdep_rail_rank_t &r, const void *rows, uint64_t exchange, const job_t &job,
                                 uint64_t position, room_t *room)
{
    uint32_t lane = afdep_lane();
    bool mine =
        afdep_word_high(position) == (uint32_t)exchange && afdep_word_low(position) != 0 && (int)lane < r.c.shape.top_k;
    uint32_t chosen = __ballot_sync(AFDEP_FULL, mine);
    __syncwarp(); /* the terms of the job before are read */
    if (mine) {
        int n = __popc(chosen & ((1u << lane) - 1u));
        room->row[n] =
            (const unsigned char *)rows + (uint64_t)(afdep_word_low(position) - 1u) * 2u * (uint32_t)r.c.shape.hidden;
        if (WEIGHTED)
            room->weight[n] = job.weights[lane];
    }
    __syncwarp();
    return __popc(chosen);
}

/* `bytes` of the sum of a job. */
template <bool WEIGHTED>
static __device__ __forceinline__ void sum_job(const afdep_rail_rank_t &r, const void *rows, uint64_t exchange,
                                               const job_t &job, uint64_t position, uint32_t bytes, bool own,
                                               room_t *room)
{
    int count = take_terms<WEIGHTED>(r, rows, exchange, job, position, room);
    if (count == 0)
        return;
    uint32_t first = job.first;
    afdep_sum_row<WEIGHTED>(
        count, min(bytes, 2u * (uint32_t)r.c.shape.hidden - first), [&](int j) { return room->row[j] + first; },
        [&](int j) { return room->weight[j]; },
        [&](uint32_t at, const uint4 &sum) { afdep_store16(job.place + first + at, sum); });
    if (first == 0 && afdep_lane() == 0 && !own)
        *(uint4 *)(job.place + r.layout.row.reply_tag_offset) =
            make_uint4((uint32_t)exchange, job.token, (uint32_t)r.c.rank, 0);
}

/* This rank's rows of all tokens of its own rail, or of the others. A job is a token, as its terms are looked up
   once, or with few tokens as large a part of one as keeps all warps busy. */
template <bool WEIGHTED>
static __device__ void sum_rows(const afdep_rail_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange, bool own,
                                room_t *room)
{
    const afdep_shape_t &s = r.c.shape;
    int parts = afdep_pieces(&s, AFDEP_PART), warps = afdep_warp_count();
    int tokens = call.bucket * s.attention_domains * (own ? 1 : s.ranks_per_domain - 1);
    int each = max(1, min(parts, (int)((int64_t)parts * tokens / warps))), shares = (parts + each - 1) / each;
    /* With few tokens other warps than those that sum for the other rails. */
    int at = own ? warps - 1 - afdep_warp_index() : afdep_warp_index();
    for (; at < tokens * shares; at += warps * AFDEP_WARP) {
        int mine = at + (int)afdep_lane() * warps, token = mine / shares;
        if (mine < tokens * shares) {
            room->jobs[afdep_lane()] = job_at(r, exchange, own, token);
            room->jobs[afdep_lane()].first = (uint32_t)((mine - token * shares) * each) * 2u * AFDEP_PART;
        }
        __syncwarp();
        int jobs = min(AFDEP_WARP, (tokens * shares - at + warps - 1) / warps);
        uint64_t next = load_position(r, room->jobs[0]);
        for (int i = 0; i < jobs; i++) {
            uint64_t position = next;
            if (i + 1 < jobs)
                next = load_position(r, room->jobs[i + 1]);
            sum_job<WEIGHTED>(r, call.rows, exchange, room->jobs[i], position, (uint32_t)each * 2u * AFDEP_PART, own,
                              room);
        }
        __syncwarp(); /* the jobs are done */
    }
}

/* Tells the other rails that sent rows, a lane each: all sums of all CTAs for them are behind this warp. */
static __device__ void tell_rails(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane();
    uint32_t rows = 0;
    if (q < s.ranks_per_domain && q != r.rail)
        rows = r.arrived[afdep_plane(s, exchange) * (uint32_t)s.ranks_per_domain + (uint32_t)q];
    afdep_fence_system();
    if (rows > 0) { /* a rail that forwarded no row awaits no reply */
        afdep_signal64((uint64_t *)(afdep_domain_segment(r, q) + afdep_ffn_plane(r, exchange) +
                                    afdep_at_reply_word(&r.layout.ffn, r.rail)),
                       afdep_word((uint32_t)exchange, rows));
        r.counters[afdep_ffn_rank(&s, r.domain, q)].signals[AFDEP_RAIL_DOMAIN_WORD]++;
    }
}

/* reply: the sums for other rails first, whose words so travel while the own ones are made. No warp waits for
   another here. */
template <bool WEIGHTED>
static __device__ void reply(const afdep_rail_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange,
                             uint32_t *come, room_t *room)
{
    for (int own = 0; own < 2; own++) {
        sum_rows<WEIGHTED>(r, call, exchange, own, room);
        if (!afdep_last_warp(&come[own]))
            continue;
        bool last = false;
        if (afdep_lane() == 0)
            last = afdep_rail_last(r, own ? AFDEP_RAIL_SUMMED_OWN : AFDEP_RAIL_SUMMED_OTHERS, gridDim.x);
        last = __shfl_sync(AFDEP_FULL, last, 0);
        __syncwarp();
        if (last && own && afdep_lane() == 0) {
            __threadfence();
            afdep_store_relaxed64(r.summed, exchange);
        }
        if (last && !own)
            tell_rails(r, exchange);
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

/* The sum of a recorded row's partials, in rail order, to `place`, as BF16 or packed. False: one of them is not there.
   Tags are looked at behind the sum, so that they come together; what was stored then is never published. */
template <bool PACKED>
static __device__ __forceinline__ bool sum_partials(const afdep_rail_rank_t &r, uint64_t exchange, const back_t &b,
                                                    const afdep_rail_record_t &record, room_t *room,
                                                    unsigned char *place)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane();
    bool mine = record.rails >> lane & 1, tagged = mine && lane != r.rail, fine = true;
    uint4 tag = make_uint4(0, 0, 0, 0);
    __syncwarp(); /* the terms of the row before are read */
    if (mine) {
        const unsigned char *row = partial_of(r, exchange, lane, b.unit.source, record.token);
        room->row[__popc(record.rails & ((1u << lane) - 1u))] = row;
        if (tagged)
            tag = afdep_load16(row + r.layout.row.reply_tag_offset);
    }
    __syncwarp();
    afdep_sum_row<false>(
        __popc(record.rails), 2u * (uint32_t)s.hidden, [&](int j) { return room->row[j]; }, [&](int) { return 1.0f; },
        [&](uint32_t at, const uint4 &sum) {
            if (PACKED)
                afdep_pack_column(place, r.layout.row.packed_scale_offset, at / 2, sum);
            else
                afdep_store16(place + at, sum);
        });
    int rank = afdep_ffn_rank(&s, r.domain, lane);
    if (tagged && !afdep_rail_tagged(tag, exchange, (int)record.token, rank))
        fine = afdep_rail_lost(r, AFDEP_CUDA_REPLY, exchange, rank, (int)record.token, b.unit.channel, tag);
    return __all_sync(AFDEP_FULL, fine);
}

/* Sends a row back, the last one of a channel with its combine signal. */
template <bool PACKED>
static __device__ __forceinline__ bool send_back(const afdep_rail_rank_t &r, uint64_t exchange, const back_t &b,
                                                 bool last, const afdep_rail_record_t &record, room_t *room,
                                                 const afdep_rail_round_t &round)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_row_format_t &f = r.layout.row;
    const afdep_this_rail rail = { r };
    uint32_t bytes = PACKED ? f.packed_bytes : f.reply_bytes, tag = PACKED ? f.packed_tag_offset : f.reply_tag_offset;
    int source = b.unit.source, channel = b.unit.channel;
    uint64_t plane = afdep_attention_plane(r, exchange);
    uint64_t offset = plane + afdep_at_combine_row(&r.layout.attention, &r.layout, &s, r.domain, (int)record.token);
    unsigned char *place = rail.window(source, offset);
    if (!place)
        place = r.reply_staging + (((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_domains + (uint32_t)source) *
                                       (uint32_t)s.capacity + record.token) * f.reply_stride;
    if (!sum_partials<PACKED>(r, exchange, b, record, room, place))
        return false;
    if (afdep_lane() == 0)
        *(uint4 *)(place + tag) = make_uint4((uint32_t)exchange, record.token, (uint32_t)r.c.rank, 0);
    if (last)
        rail.put_signal(AFDEP_RAIL_COMBINE, channel, source, offset, place, bytes,
                        plane + afdep_at_combine_tail(&r.layout.attention, &s, r.domain, channel), b.tail,
                        afdep_tail_advance(b.tail, 1, b.rows), round);
    else
        rail.put(channel, source, offset, place, bytes);
    return true;
}

/* What a lane can know of unit `index` before the partials are there. */
static __device__ back_t back_at(const afdep_rail_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange,
                                 int index, int units)
{
    const afdep_shape_t &s = r.c.shape;
    bool mine = index < units;
    back_t b = { afdep_rail_unit_at(s, mine ? index : 0), 0, 0, 0, { 0, 0 } };
    uint64_t at = afdep_at_source(r, exchange, b.unit.channel, b.unit.source);
    /* Channels beyond the bucket were not served in this exchange. */
    if (mine && index < afdep_rail_units(s, call.bucket, !s.sparse_dispatch))
        b.rows = r.taken[at];
    if (mine)
        b.tail = r.sent_tails[at];
    if (b.rows > 0)
        b.record = *afdep_rail_record(r, exchange, afdep_rail_slot(r, b.unit.source, b.unit.channel, 0));
    b.told = mine && (b.rows > 0 || !s.sparse_combine);
    if (b.told)
        r.sent_tails[at] = afdep_tail_advance(b.tail, 1, b.rows);
    return b;
}

/* Sends back a unit's rows, and its combine signal. */
template <bool PACKED>
static __device__ __forceinline__ bool serve(const afdep_rail_rank_t &r, uint64_t exchange, const back_t &b,
                                             room_t *room, const afdep_rail_round_t &round)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    if (b.told && b.rows == 0)
        rail.signal(AFDEP_RAIL_COMBINE, b.unit.channel, b.unit.source,
                    afdep_attention_plane(r, exchange) +
                        afdep_at_combine_tail(&r.layout.attention, &s, r.domain, b.unit.channel),
                    b.tail, afdep_tail_advance(b.tail, 1, 0));
    afdep_rail_record_t record = b.record;
    for (uint32_t position = 0; position < b.rows; position++) {
        afdep_rail_record_t sent = record;
        if (position + 1 < b.rows) /* comes beside this row's partials */
            record = *afdep_rail_record(r, exchange, afdep_rail_slot(r, b.unit.source, b.unit.channel, position + 1));
        if (!send_back<PACKED>(r, exchange, b, position + 1 == b.rows, sent, room, round))
            return false;
    }
    return true;
}

/* The duty of every warp; a round is a unit of every warp. */
template <bool PACKED>
static __device__ void reply_forward(const afdep_rail_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange,
                                     room_t *room, afdep_rail_round_t &round)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    int units = afdep_rail_units(s, call.bucket, !s.sparse_dispatch || !s.sparse_combine), step = afdep_warp_count();
    int rounds = (units + step - 1) / step; /* as many for every warp */
    for (int done = 0; done < rounds; done++) {
        if (done % AFDEP_WARP == 0) {
            int first = afdep_warp_index() + (done + (int)afdep_lane()) * step;
            __syncwarp(); /* those before are served */
            room->backs[afdep_lane()] = back_at(r, call, exchange, first, units);
            if (done == 0 && !wait_partials(r, exchange))
                return;
            __syncwarp();
        }
        if (!serve<PACKED>(r, exchange, room->backs[done % AFDEP_WARP], room, round) || !rail.publish(round))
            return;
    }
}

/* ---- The kernel ---------------------------------------------------------------------------------------------------- */

template <bool WEIGHTED, bool PACKED>
static __global__ void __launch_bounds__(THREADS, 1)
    rail_reply_kernel(const __grid_constant__ afdep_rail_kernel_rank_t r, const __grid_constant__ afdep_cuda_reply_t call)
{
    __shared__ room_t rooms[WARPS];
    __shared__ afdep_rail_words_t words;
    __shared__ uint32_t come[2];
    room_t *room = &rooms[threadIdx.x / AFDEP_WARP];
    afdep_rail_round_t round = afdep_rail_first_round(&words);
    if (threadIdx.x < 2)
        come[threadIdx.x] = 0;
    uint64_t exchange = afdep_enter(r.c, AFDEP_CUDA_REPLY);
    if (__syncthreads_or(afdep_poisoned(r.c)))
        return;
    reply<WEIGHTED>(r, call, exchange, come, room);
    reply_forward<PACKED>(r, call, exchange, room, round);
    afdep_few_renew_rows(r, exchange);
    if (afdep_rail_leave(r, AFDEP_CUDA_REPLY) && !afdep_poisoned(r.c))
        afdep_finish(r.c, AFDEP_CUDA_REPLY, exchange);
}

typedef void (*kernel_t)(const afdep_rail_kernel_rank_t, const afdep_cuda_reply_t);

static kernel_t kernel_of(const afdep_shape_t &s, bool packed)
{
    if (s.apply_weights)
        return packed ? rail_reply_kernel<true, true> : rail_reply_kernel<true, false>;
    return packed ? rail_reply_kernel<false, true> : rail_reply_kernel<false, false>;
}

cudaError_t AFDEP_RAIL_NAME(launch_reply)(const afdep_rail_rank_t *r, const afdep_cuda_reply_t *call, int grid, cudaStream_t stream)
{
    bool packed = afdep_packs_replies(&r->c.shape, call->bucket);
    return afdep_launch_apart(kernel_of(r->c.shape, packed), grid, THREADS, 0, stream, afdep_rail_kernel_rank(*r), *call);
}

cudaError_t AFDEP_RAIL_NAME(prepare_reply)(const afdep_shape_t *shape)
{
    cudaError_t error = afdep_load(kernel_of(*shape, false), 0);
    return error == cudaSuccess ? afdep_load(kernel_of(*shape, true), 0) : error;
}
