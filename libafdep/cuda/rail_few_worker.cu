/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_receive and worker_reply of few tokens across domains, see rail_few.cuh.
 *
 * Receive: warps first relay what came over this rank's rail, unit by unit (the tail lines of a token, or some lines of its
 * payload), then take all choices and place rows as in one domain (receive_few.cuh). Where there are several CTAs the last one
 * does not place, but tells.
 *
 * Reply: units, one warp each, are a line of a token of another rail, which is summed and sent to that rail's rank; then a line
 * of a token of this rank's own rail, whose partials are awaited and summed with this rank's own in rail order and sent to the
 * source; then the combine signals of a channel. What others wait for comes first, so that waiting blocks nobody.
 */
#include "cuda/rail.h"

#define FEW_THREADS AFDEP_RAIL_FEW_RECEIVE_THREADS
#define REPLY_THREADS AFDEP_RAIL_THREADS

#include "cuda/rail_few.cuh"
#include "cuda/rail_forward.cuh"
#include "cuda/receive_few.cuh"
#include "cuda/reply_few.cuh"

/* What is known of a token of a source of this rank's own rail, see rail.h. */
static __device__ __forceinline__ uint64_t *rails_word(const afdep_rail_rank_t &r, uint64_t exchange, int source, int token)
{
    const afdep_shape_t &s = r.c.shape;
    uint32_t plane = afdep_plane(s, exchange) + (uint32_t)s.in_flight * ((uint32_t)afdep_round(s, exchange) & 1u);
    return r.few_rails + ((uint64_t)plane * (uint32_t)s.attention_domains + (uint32_t)source) * (uint32_t)r.few_tokens +
           (uint32_t)token;
}

static __device__ __forceinline__ uint32_t known_of_token(const afdep_rail_rank_t &r, uint64_t exchange, int source, int token)
{
    uint64_t word = *rails_word(r, exchange, source, token);
    return afdep_word_high(word) == (uint32_t)exchange ? afdep_word_low(word) : 0;
}

static __device__ __forceinline__ uint32_t rails_of_token(const afdep_rail_rank_t &r, uint64_t exchange, int source, int token)
{
    return known_of_token(r, exchange, source, token) & ~AFDEP_RAIL_PRESENT;
}

/* A choice word of a token of Attention rank `a`, as an offset in the segment of any rank of the domain. */
static __device__ __forceinline__ uint64_t choice_word(const afdep_rail_rank_t &r, uint64_t exchange, int a, int token, int word)
{
    const afdep_shape_t &s = r.c.shape;
    return afdep_plane_at(r.c.own, s, exchange) + r.c.own.choice_words +
           16u * (uint32_t)((a * r.few_tokens + token) * afdep_choice_words(&s) + word);
}

/* ---- receive: relaying --------------------------------------------------------------------------------------------- */

/* A warp's work: a token of a source of this rank's own rail, and lines of its row. */
typedef struct relay {
    int a, source, token, line, tail; /* tail: -1 for payload */
} relay_t;

static __device__ __forceinline__ relay_t relay_at(const afdep_rail_rank_t &r, int n, int groups, int parts)
{
    const afdep_shape_t &s = r.c.shape;
    relay_t u;
    int at = n / parts, part = n - at * parts;
    u.token = at / s.attention_domains;
    u.source = at - u.token * s.attention_domains;
    u.a = u.source * s.ranks_per_domain + r.rail;
    u.tail = part < groups ? -1 : part - groups;
    u.line = part < groups ? part * FEW_AT_ONCE : afdep_lines(afdep_row_vectors(&s)) + u.tail;
    return u;
}

static __device__ __forceinline__ afdep_look_for_t look_for(const afdep_rail_rank_t &r, uint64_t exchange, const relay_t &u,
                                                            int line, uint32_t needed)
{
    return { r.c.base + afdep_few_row(r.c.own, r.c.shape, exchange, u.a, u.token, line),
             needed,
             AFDEP_CUDA_RECEIVE,
             AFDEP_CUDA_WORD_ROW,
             r.c.shape.ffn_ranks + u.a,
             u.token,
             line };
}

/* A lane's choice is none that a correct source sends. */
static __device__ __noinline__ bool wrong_id(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call, uint64_t exchange,
                                             int a, int token, uint64_t seen)
{
    bool cached = afdep_rail_route_fits(call.bucket, afdep_word_low(seen), !call.cached);
    afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, cached ? AFDEP_CUDA_WORD_CACHED : AFDEP_CUDA_WORD_ROUTE,
                      exchange, r.c.shape.ffn_ranks + a, token, (int)afdep_lane(), (uint64_t)call.bucket, seen);
    return false;
}

/* The choices of a token, a lane each, and the rails of this domain that they mean. False: it is over, or no correct source
   sends that. */
static __device__ __forceinline__ bool take_ids(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                                uint64_t exchange, const relay_t &u,
                                                uint4 (&words)[1], afdep_look_for_t &look, int *id, uint32_t *rails)
{
    const afdep_shape_t &s = r.c.shape;
    if (!afdep_await_lines<1>(r.c, look, exchange, words))
        return false;
    bool chooses = (int)afdep_lane() < s.top_k;
    *id = chooses ? afdep_route_id(words[0].z) : -1;
    bool absent = *id == AFDEP_ROUTE_ABSENT;
    bool fine = !chooses || (afdep_rail_route_fits(call.bucket, words[0].z, call.cached) && (absent || *id < s.num_experts));
    if (!fine)
        fine = wrong_id(r, call, exchange, u.a, u.token, afdep_word(words[0].w, words[0].z));
    if (absent)
        *id = -1;
    *rails = afdep_rails_of(r, *id) | (__any_sync(AFDEP_FULL, absent) ? 0 : AFDEP_RAIL_PRESENT);
    return __all_sync(AFDEP_FULL, fine);
}

/* Stores words of lines, the lane's that `used` has bits for, to the ranks of this domain on `rails`. */
template <int LINES>
static __device__ __forceinline__ void pass_words(const afdep_rail_rank_t &r, uint64_t exchange, const relay_t &u,
                                                  uint32_t rails, uint32_t used, const uint4 (&words)[LINES])
{
    uint64_t offset = afdep_few_row(r.c.own, r.c.shape, exchange, u.a, u.token, u.line);
    for (uint32_t left = rails; left; left &= left - 1) {
        unsigned char *to = afdep_domain_segment(r, __ffs((int)left) - 1) + offset;
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (used >> i & 1)
                afdep_store_word(to + i * AFDEP_LINE_BYTES, words[i]);
    }
}

/* The choices to every rank of the domain, packed for each (protocol/device.h), a lane for each rank. */
static __device__ __forceinline__ void pass_choices(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, const relay_t &u,
                                                    int id, uint32_t known)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane(), slot = lane % AFDEP_CHOICES_A_WORD;
    for (int word = 0; word < afdep_choice_words(&s); word++) {
        uint64_t offset = choice_word(r, exchange, u.a, u.token, word);
        uint4 packed = make_uint4(0, 0, 0, 0);
        for (int q = 0; q < s.ranks_per_domain; q++) {
            int local = local_expert(s, afdep_ffn_rank(&s, r.domain, q), id);
            uint32_t bits = lane / AFDEP_CHOICES_A_WORD == word ? (uint32_t)(local + 1) << 10 * (slot % 3) : 0;
            uint32_t x = __reduce_or_sync(AFDEP_FULL, slot < 3 ? bits : 0), y = __reduce_or_sync(AFDEP_FULL, slot / 3 == 1 ? bits : 0);
            uint32_t z = __reduce_or_sync(AFDEP_FULL, slot >= 6 ? bits : 0) | afdep_bucket_mark(bucket);
            if (lane == q)
                packed = make_uint4(x, y, z, (uint32_t)exchange);
        }
        if (lane < s.ranks_per_domain)
            afdep_store_word(afdep_domain_segment(r, lane) + offset, packed);
    }
    if (lane == 0)
        *rails_word(r, exchange, u.source, u.token) = afdep_word((uint32_t)exchange, known);
}

static __device__ __forceinline__ bool relay_tail(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                                  uint64_t exchange, const relay_t &u)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane(), id;
    uint32_t used = u.tail * AFDEP_WARP + lane < afdep_tail_words(&s), rails;
    uint4 ids[1], words[1];
    afdep_look_for_t look = look_for(r, exchange, u, u.line - u.tail, lane < s.top_k), tail = look_for(r, exchange, u, u.line, used);
    afdep_load_lines<1>(tail, words); /* a first look; the first tail line is where the choices are */
    if (u.tail == 0)
        ids[0] = words[0];
    else
        afdep_load_lines<1>(look, ids);
    if (!take_ids(r, call, exchange, u, ids, look, &id, &rails))
        return false;
    if (u.tail == 0)
        pass_choices(r, exchange, call.bucket, u, id, rails);
    uint32_t others = rails & ~(AFDEP_RAIL_PRESENT | 1u << r.rail);
    if (!others)
        return true;
    if (u.tail == 0 && lane < s.top_k)
        words[0] = ids[0];
    if (!afdep_await_lines<1>(r.c, tail, exchange, words))
        return false;
    pass_words(r, exchange, u, others, used, words);
    return true;
}

static __device__ __forceinline__ bool relay_payload(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                                     uint64_t exchange, const relay_t &u)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane(), vectors = afdep_row_vectors(&s);
    uint32_t used = 0, rails;
    int id;
#pragma unroll
    for (int i = 0; i < FEW_AT_ONCE; i++)
        used |= (uint32_t)afdep_line_uses(lane, vectors - (u.line + i) * AFDEP_LINE_VECTORS) << i;
    uint4 ids[1], words[FEW_AT_ONCE];
    afdep_look_for_t look = look_for(r, exchange, u, afdep_lines(vectors), lane < s.top_k),
                     payload = look_for(r, exchange, u, u.line, used);
    afdep_load_lines<1>(look, ids);
    afdep_load_lines<FEW_AT_ONCE>(payload, words); /* a first look, beside the one for the choices */
    if (!take_ids(r, call, exchange, u, ids, look, &id, &rails))
        return false;
    uint32_t others = rails & ~(AFDEP_RAIL_PRESENT | 1u << r.rail);
    if (!others)
        return true;
    if (!afdep_await_lines<FEW_AT_ONCE>(r.c, payload, exchange, words))
        return false;
    pass_words(r, exchange, u, others, used, words);
    return true;
}

static __device__ __forceinline__ bool relay_all(const afdep_rail_rank_t &r, const afdep_cuda_receive_t &call,
                                                 uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    int groups = (afdep_lines(afdep_row_vectors(&s)) + FEW_AT_ONCE - 1) / FEW_AT_ONCE;
    int parts = s.ranks_per_domain > 1 ? groups + afdep_tail_lines(&s) : 1;
    bool fine = !afdep_poisoned(r.c);
    if (s.ranks_per_domain == 1)
        groups = 0; /* choices alone: nobody else wants lines */
    for (int n = afdep_warp_index(); fine && n < s.attention_domains * call.bucket * parts; n += afdep_warp_count()) {
        relay_t u = relay_at(r, n, groups, parts);
        if (r.slow_forward_ns && afdep_channel_of(&s, u.source, u.token) % 8 == 5)
            afdep_be_slow(r.slow_forward_ns);
        fine = u.tail >= 0 ? relay_tail(r, call, exchange, u) : relay_payload(r, call, exchange, u);
    }
    return fine;
}

/* ---- receive: choices ---------------------------------------------------------------------------------------------- */

/* Waits for a choice word, from its rail's rank in this domain. False: it is over. */
static __device__ __forceinline__ bool await_choices(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, int a, int token,
                                                     int word, uint4 *seen)
{
    const afdep_shape_t &s = r.c.shape;
    const unsigned char *at = r.c.base + choice_word(r, exchange, a, token, word);
    int peer = afdep_ffn_rank(&s, r.domain, a % s.ranks_per_domain);
    afdep_patience_t patience = { 0, 0 };
    while ((*seen = afdep_load_word(at)).w != (uint32_t)exchange)
        if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
            afdep_look(r.c, patience, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange, peer, token, word, (uint32_t)exchange,
                       seen->w))
            return false;
    if ((seen->z & 0xFFF00000u) == afdep_bucket_mark(bucket))
        return true;
    afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, AFDEP_CUDA_RECEIVE, AFDEP_CUDA_WORD_ROUTE, exchange, peer, token, word,
                      (uint64_t)bucket, afdep_word(seen->w, seen->z));
    return false;
}

/* Takes all choices as they come, a thread a word. Every thread of the CTA learns whether all did. */
static __device__ __forceinline__ bool take_choices(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, const few_t &f)
{
    const afdep_shape_t &s = r.c.shape;
    int each = afdep_choice_words(&s);
    bool fine = !afdep_poisoned(r.c);
#pragma unroll 1
    for (int i = (int)threadIdx.x; fine && i < f.indices * each; i += FEW_THREADS) {
        int index = i / each, word = i - index * each, a = index / bucket;
        uint4 seen;
        fine = await_choices(r, exchange, bucket, a, index - a * bucket, word, &seen);
        uint32_t *chosen = chosen_words(f, index / 32), bit = 1u << index % 32;
#pragma unroll
        for (int j = 0; fine && j < AFDEP_CHOICES_A_WORD; j++) {
            uint32_t part = j < 3 ? seen.x : j < 6 ? seen.y : seen.z, of = part >> 10 * (j % 3) & 0x3FFu;
            int slot = word * AFDEP_CHOICES_A_WORD + j;
            if (slot < s.top_k)
                f.choice[index * s.top_k + slot] = (uint16_t)of;
            if (of > 0)
                atomicOr(chosen + of - 1, bit);
        }
    }
    return __syncthreads_and(fine);
}

/* Tokens of each rail that have rows here, by one CTA. */
static __device__ __forceinline__ void tell_arrived(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, const few_t &f)
{
    __shared__ uint32_t rows[AFDEP_RAIL_RAILS];
    const afdep_shape_t &s = r.c.shape;
    if (threadIdx.x < AFDEP_RAIL_RAILS)
        rows[threadIdx.x] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < f.indices; i += FEW_THREADS) {
        uint32_t any = 0;
        for (int k = 0; k < s.top_k; k++)
            any |= f.choice[i * s.top_k + k];
        if (any)
            atomicAdd(&rows[i / bucket % s.ranks_per_domain], 1u);
    }
    __syncthreads();
    if ((int)threadIdx.x < s.ranks_per_domain)
        r.arrived[afdep_plane(s, exchange) * (uint32_t)s.ranks_per_domain + threadIdx.x] = rows[threadIdx.x];
}

template <int LINES>
static __global__ void __launch_bounds__(FEW_THREADS, 1)
    rail_receive_few_kernel(const __grid_constant__ afdep_rail_rank_t r, const __grid_constant__ afdep_cuda_receive_t call)
{
    const afdep_shape_t &s = r.c.shape;
    few_t f = few_arrays(s, call.bucket);
    int groups = (afdep_lines(afdep_row_vectors(&s)) + LINES - 1) / LINES, parts = groups + afdep_tail_lines(&s);
    int warp = (int)threadIdx.x / AFDEP_WARP, placing = max((int)gridDim.x - 1, 1), cta = (int)blockIdx.x;
    bool count = call.parts & AFDEP_CUDA_RECEIVE_COUNT, place = call.parts & AFDEP_CUDA_RECEIVE_PLACE, fine = true;
    __syncthreads(); /* the arrays are clear */
    uint64_t exchange = afdep_few_enter(r, AFDEP_CUDA_RECEIVE, [](uint64_t) {});
    if (count)
        fine = relay_all(r, call, exchange); /* whoever fails has poisoned the rank */
    if (count && cta == (int)gridDim.x - 1)
        afdep_carry_load(r.c, exchange);
    if (!take_choices(r, exchange, call.bucket, f))
        return;
    starts_t starts = find_starts(s, f);
    for (int n = warp * placing + cta; fine && cta < placing && n < f.indices * parts; n += FEW_WARPS * placing) {
        unit_t u = unit_at<LINES>(r.c, exchange, call.bucket, n, groups, parts);
        int rail = u.a % s.ranks_per_domain;
        if (rail != r.rail) /* whose rank passes it on */
            u.look.peer = afdep_ffn_rank(&s, r.domain, rail);
        if (u.tail >= 0)
            fine = place_tail<false>(r.c, call, exchange, f, starts, u);
        else if (place)
            fine = place_lines<LINES, false>(r.c, call, exchange, f, starts, u);
    }
    if (cta == (int)gridDim.x - 1) {
        tell_ends(r.c, call, exchange, f, starts);
        tell_arrived(r, exchange, call.bucket, f);
        if (count)
            tell_load(r.c, exchange, call.bucket, f);
    }
    if (count)
        afdep_few_renew_partials(r, exchange);
    if (place)
        afdep_few_leave(r, AFDEP_CUDA_RECEIVE, exchange);
}

/* ---- reply --------------------------------------------------------------------------------------------------------- */

/* A line of a token of another rail: this rank's partial, to that rail's rank. */
template <bool WEIGHTED>
static __device__ __forceinline__ void send_partial(const afdep_rail_rank_t &r, const void *rows, uint64_t exchange, int rail,
                                                    int source, int token, int line)
{
    const afdep_shape_t &s = r.c.shape;
    int vectors = afdep_reply_vectors(&s), lane = (int)afdep_lane(), v = line * AFDEP_LINE_VECTORS + lane;
    few_terms_t terms = take_few_terms(r.c, exchange, source * s.ranks_per_domain + rail, token);
    if (terms.chosen == 0)
        return;
    uint4 word = afdep_pack_word(
        sum_vector<WEIGHTED>(rows, vectors, terms, v, lane < AFDEP_LINE_VECTORS && v < vectors), exchange);
    unsigned char *to = afdep_domain_segment(r, rail) + afdep_few_partial(r.c.own, s, exchange, r.rail, source, token, line);
    if (afdep_line_uses(lane, vectors - line * AFDEP_LINE_VECTORS))
        afdep_store_word(to, word);
}

/* A line of a token of this rail: the partials of all rails that have rows of it, in rail order, to the source. */
template <bool WEIGHTED>
static __device__ __forceinline__ bool send_sum(const afdep_rail_rank_t &r, const void *rows, uint64_t exchange, int source,
                                                int token, int line)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_peer_rail rail = { r };
    int vectors = afdep_reply_vectors(&s), lane = (int)afdep_lane(), v = line * AFDEP_LINE_VECTORS + lane;
    uint32_t needed = (uint32_t)afdep_line_uses(lane, vectors - line * AFDEP_LINE_VECTORS);
    uint32_t rails = rails_of_token(r, exchange, source, token); /* on its way beside the positions */
    few_terms_t terms = take_few_terms(r.c, exchange, source * s.ranks_per_domain + r.rail, token);
    if (rails == 0)
        return true;
    uint4 own = {}, words[1] = {};
    if (terms.chosen)
        own = sum_vector<WEIGHTED>(rows, vectors, terms, v, lane < AFDEP_LINE_VECTORS && v < vectors);
    afdep_sum_t sum;
    for (uint32_t left = rails; left; left &= left - 1) {
        int q = __ffs((int)left) - 1;
        words[0] = own;
        if (q != r.rail) {
            afdep_look_for_t look = { r.c.base + afdep_few_partial(r.c.own, s, exchange, q, source, token, line), needed,
                                      AFDEP_CUDA_REPLY, AFDEP_CUDA_WORD_REPLY, afdep_ffn_rank(&s, r.domain, q), token, line };
            afdep_load_lines<1>(look, words);
            if (!afdep_await_lines<1>(r.c, look, exchange, words))
                return false;
            words[0] = afdep_unpack_word(words[0]);
        }
        if (left == rails)
            afdep_sum_first<false>(sum, words[0], 1.0f);
        else
            afdep_sum_add<false>(sum, words[0], 1.0f);
    }
    if ((rails & (rails - 1)) != 0) /* one partial passes bit for bit */
        words[0] = afdep_sum_round(sum);
    words[0] = afdep_pack_word(words[0], exchange);
    if (needed)
        afdep_store_word(rail.window(source, afdep_few_combine(r.c.peer, s, exchange, r.domain, token, line)), words[0]);
    if (line == 0 && lane == 0)
        rail.count_put(source, r.layout.row.reply_bytes);
    return true;
}

/* The combine signals of a channel, a lane for each source; and the finish tails as they are, or will be when they come. */
static __device__ __forceinline__ void send_signals(const afdep_rail_rank_t &r, uint64_t exchange, int bucket, int channel)
{
    const afdep_shape_t &s = r.c.shape;
    for (int source = (int)afdep_lane(); source < s.attention_domains; source += AFDEP_WARP) {
        uint32_t rows = 0, present = 0;
        for (int token = afdep_channel_first(&s, source, channel); token < bucket; token += s.channels) {
            uint32_t known = known_of_token(r, exchange, source, token);
            present |= known & AFDEP_RAIL_PRESENT;
            rows += (known & ~AFDEP_RAIL_PRESENT) != 0;
        }
        uint64_t at = afdep_at_source(r, exchange, channel, source);
        if (present)
            r.finish_shadow[at] = afdep_tail_advance(r.finish_shadow[at], 1, rows);
        if (rows == 0)
            continue;
        uint64_t next = r.sent_tails[at] = afdep_tail_advance(r.sent_tails[at], 1, rows);
        afdep_few_say(r, AFDEP_RAIL_COMBINE, source,
                      afdep_attention_plane(r, exchange) +
                          afdep_at_combine_tail(&r.layout.attention, &s, r.domain, channel),
                      next);
    }
}

/* The done witnesses, a lane for each source: the stream has put all of receive behind this kernel. */
static __device__ __forceinline__ void send_witnesses(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    uint64_t word = afdep_attention_plane(r, exchange) + afdep_at_witness(&r.layout.attention, r.domain);
    for (int source = (int)afdep_lane(); source < s.attention_domains; source += AFDEP_WARP)
        afdep_few_say(r, AFDEP_RAIL_WITNESS, source, word, afdep_word((uint32_t)exchange, 0));
}

/* Forward and reply words to the other ranks of the domain, a lane each: rows that went there, and rows that came. */
static __device__ __noinline__ void send_domain_words(const afdep_rail_rank_t &r, uint64_t exchange, int bucket)
{
    const afdep_shape_t &s = r.c.shape;
    int q = (int)afdep_lane(), tokens = s.attention_domains * bucket;
    uint32_t rows = 0;
    for (int first = 0; first < tokens; first += AFDEP_WARP) {
        int i = first + q, source = i / bucket;
        uint32_t rails = i < tokens ? rails_of_token(r, exchange, source, i - source * bucket) : 0;
        for (int to = 0; to < s.ranks_per_domain; to++) {
            uint32_t of_rail = __ballot_sync(AFDEP_FULL, rails >> to & 1);
            rows += q == to ? (uint32_t)__popc(of_rail) : 0;
        }
    }
    if (q >= s.ranks_per_domain || q == r.rail)
        return;
    unsigned char *plane = afdep_domain_segment(r, q) + afdep_ffn_plane(r, exchange);
    uint32_t came = r.arrived[afdep_plane(s, exchange) * (uint32_t)s.ranks_per_domain + (uint32_t)q];
    afdep_signal64((uint64_t *)(plane + afdep_at_forward_word(&r.layout.ffn, r.rail, afdep_plane_parity(&s, exchange))),
                   afdep_word((uint32_t)exchange, rows));
    if (came > 0)
        afdep_signal64((uint64_t *)(plane + afdep_at_reply_word(&r.layout.ffn, r.rail)), afdep_word((uint32_t)exchange, came));
    r.counters[afdep_ffn_rank(&s, r.domain, q)].signals[AFDEP_RAIL_DOMAIN_WORD] += 1u + (came > 0);
}

/* A warp's work of a reply, in the order in which it is done. */
typedef struct piece {
    int rail, source, token, line; /* rail -1: the signals of channel `line` */
} piece_t;

static __device__ __forceinline__ piece_t piece_at(const afdep_rail_rank_t &r, int n, int bucket)
{
    const afdep_shape_t &s = r.c.shape;
    int lines = r.c.own.reply_line_count, sources = s.attention_domains, own = sources * bucket * lines;
    int others = own * (s.ranks_per_domain - 1), of = n < others ? n : n - others, ranks = n < others ? s.ranks_per_domain - 1 : 1;
    if (of >= own && n >= others)
        return { -1, 0, 0, of - own };
    int at = of / lines, source_token = ranks == 1 ? at : at / ranks, rail = at - source_token * ranks;
    int token = sources == 1 ? source_token : source_token / sources;
    return { n < others ? rail + (rail >= r.rail) : r.rail, source_token - token * sources, token, of - at * lines };
}

template <bool WEIGHTED>
static __global__ void __launch_bounds__(REPLY_THREADS, 1)
    rail_reply_few_kernel(const __grid_constant__ afdep_rail_rank_t r, const __grid_constant__ afdep_cuda_reply_t call)
{
    const afdep_shape_t &s = r.c.shape;
    int pieces = s.attention_ranks * call.bucket * r.c.own.reply_line_count + s.channels, n = afdep_warp_index();
    bool last = blockIdx.x == gridDim.x - 1 && threadIdx.x / AFDEP_WARP == REPLY_THREADS / AFDEP_WARP - 1, fine = true;
    piece_t p = piece_at(r, n, call.bucket); /* worked out while the kernel before ends */
    uint64_t exchange = afdep_few_enter(r, AFDEP_CUDA_REPLY, [](uint64_t) {});
    if (last && !afdep_poisoned(r.c))
        send_witnesses(r, exchange);
    for (; fine && n < pieces; n += afdep_warp_count(), p = piece_at(r, n, call.bucket)) {
        if (p.rail == r.rail)
            fine = send_sum<WEIGHTED>(r, call.rows, exchange, p.source, p.token, p.line);
        else if (p.rail >= 0)
            send_partial<WEIGHTED>(r, call.rows, exchange, p.rail, p.source, p.token, p.line);
        else
            send_signals(r, exchange, call.bucket, p.line);
    }
    if (last && !afdep_poisoned(r.c))
        send_domain_words(r, exchange, call.bucket);
    afdep_few_renew_rows(r, exchange);
    if (afdep_rail_leave(r, AFDEP_CUDA_REPLY) && !afdep_poisoned(r.c))
        afdep_finish(r.c, AFDEP_CUDA_REPLY, exchange);
}

/* ---- Launching ----------------------------------------------------------------------------------------------------- */

cudaError_t afdep_rail_launch_receive_few(const afdep_rail_rank_t *r, const afdep_cuda_receive_t *call, int grid,
                                          cudaStream_t stream)
{
    size_t shared = shared_bytes(r->c.shape, call->bucket);
    return afdep_few_spread(&r->c.shape, call->bucket, grid)
               ? afdep_few_launch(rail_receive_few_kernel<1>, grid, FEW_THREADS, shared, stream, *r, *call)
               : afdep_few_launch(rail_receive_few_kernel<2>, grid, FEW_THREADS, shared, stream, *r, *call);
}

cudaError_t afdep_rail_launch_reply_few(const afdep_rail_rank_t *r, const afdep_cuda_reply_t *call, int grid,
                                        cudaStream_t stream)
{
    return r->c.shape.apply_weights
               ? afdep_few_launch(rail_reply_few_kernel<true>, grid, REPLY_THREADS, 0, stream, *r, *call)
               : afdep_few_launch(rail_reply_few_kernel<false>, grid, REPLY_THREADS, 0, stream, *r, *call);
}

cudaError_t afdep_rail_prepare_few_worker(const afdep_shape_t *shape)
{
    size_t shared = shared_bytes(*shape, afdep_few_tokens(shape));
    cudaError_t error = afdep_load(rail_receive_few_kernel<1>, shared);
    if (error == cudaSuccess)
        error = afdep_load(rail_receive_few_kernel<2>, shared);
    if (error != cudaSuccess)
        return error;
    return shape->apply_weights ? afdep_load(rail_reply_few_kernel<true>, 0) : afdep_load(rail_reply_few_kernel<false>, 0);
}
