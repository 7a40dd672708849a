/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ll_dispatch on GPUs, as one kernel or (with a hook) as two: its sending half, and its receiving half.
 *
 * Sending: the choices of all tokens go as words to all ranks, and a header. Then a CTA takes a token: encodes it
 * into shared memory, and stores its row to every rank that owns one of its experts; of few tokens in lines, of many
 * as they are, with a fence and a word behind each.
 *
 * Receiving: every CTA takes the headers and choices of all sources and notes for each expert which tokens chose it,
 * one bit each. Which row of an expert a token gets is the number of bits before its own. Then a warp takes a part of
 * a row, as it comes, to all of the token's experts.
 */
#include "cuda/launch.cuh"
#include "cuda/ll_device.cuh"
#include "cuda/ll_encode.cuh"

#define THREADS AFDEP_LL_DISPATCH_THREADS
#define WARPS (THREADS / AFDEP_WARP)
#define CALL AFDEP_CUDA_LL_DISPATCH
#define CHOICES_AT_ONCE 4

typedef afdep_ll_dispatch_call_t call_t;

/* ---- The shared arrays of a CTA ---------------------------------------------------------------------------------- */

typedef struct arrays {
    int32_t *tokens;       /* [R] of each source */
    int32_t *before;       /* [R + 1] tokens of the sources before; an index is a token of all sources */
    int32_t *units;        /* [R + 1] the same of units of placing */
    uint32_t *warps;       /* [32] */
    uint32_t *chosen;      /* [words][L]: by which indices an expert was chosen, one bit each */
    unsigned char *staged; /* a row as it goes over the wire */
} arrays_t;

static __host__ __device__ __forceinline__ uint32_t small_bytes(int ranks)
{
    return (4u * (3u * (uint32_t)ranks + 2u + AFDEP_WARP) + 15u) / 16u * 16u;
}

static __host__ __device__ __forceinline__ uint32_t shared_bytes(int ranks, const afdep_ll_exchange_shape_t &s)
{
    uint32_t chosen = (uint32_t)afdep_ll_chosen_bytes(ranks, s.max_tokens, s.local);
    return small_bytes(ranks) + (chosen + 15u) / 16u * 16u + (uint32_t)afdep_ll_staged_bytes(s.hidden);
}

static __device__ __forceinline__ arrays_t arrays_of(const afdep_ll_device_t &r, const call_t &d)
{
    extern __shared__ uint4 shared[];
    unsigned char *at = (unsigned char *)shared;
    uint32_t chosen = (uint32_t)afdep_ll_chosen_bytes(r.ranks, d.s.max_tokens, d.s.local);
    arrays_t a;
    a.tokens = (int32_t *)at;
    a.before = a.tokens + r.ranks;
    a.units = a.before + r.ranks + 1;
    a.warps = (uint32_t *)(a.units + r.ranks + 1);
    a.chosen = (uint32_t *)(at + small_bytes(r.ranks));
    a.staged = at + small_bytes(r.ranks) + (chosen + 15u) / 16u * 16u;
    if (d.parts & AFDEP_LL_RECEIVE)
        for (uint32_t i = threadIdx.x; i < chosen / 4; i += THREADS)
            a.chosen[i] = 0;
    return a;
}

/* ---- Choices ----------------------------------------------------------------------------------------------------- */

/* The lane's choice of a token, or -1: as it is sent if it is the first of its kind. */
static __device__ __forceinline__ int choice_of_lane(const call_t &d, int token)
{
    int lane = (int)afdep_lane();
    int64_t id = lane < d.s.top_k ? d.ids[(int64_t)token * d.s.top_k + lane] : -1;
    return id >= 0 && id < d.s.experts ? (int)id : -1;
}

/* Warps of work that the choices are: each takes as many whole tokens as it has lanes for. */
static __device__ __forceinline__ int route_units(const call_t &d)
{
    int each = AFDEP_WARP / d.s.top_k;
    return (d.tokens + each - 1) / each;
}

/* Choices to all ranks. Nothing orders these words, and nothing needs to: each is whole and says itself which
   exchange it is of. */
static __device__ __forceinline__ void put_routes(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                                  int unit)
{
    int k = d.s.top_k, each = AFDEP_WARP / k, lane = (int)afdep_lane(), token = unit * each + lane / k, slot = lane % k;
    bool idle = lane >= each * k || token >= d.tokens;
    int64_t given = idle ? -1 : d.ids[(int64_t)token * k + slot];
    float weight = !idle && d.weights ? d.weights[(int64_t)token * k + slot] : 0;
    int id = given >= 0 && given < d.s.experts ? (int)given : -1;
    uint32_t same = __match_any_sync(AFDEP_FULL, (uint64_t)(uint32_t)token << 32 | (uint32_t)(id < 0 ? -1 - lane : id));
    if ((same & ((1u << lane) - 1u)) != 0) /* repeated */
        id = -1;
    if (idle)
        return;
    uint64_t at = ll_slot(r, r.c.rank, token) * (uint32_t)r.top_k + (uint32_t)slot;
    r.live_ids[ll_choice(r, exchange, 1, 0, token) + (uint32_t)slot] = id;
#pragma unroll 1
    for (int to = 0; to < r.ranks; to++) {
        unsigned char *inbox = ll_inbox(r, exchange, to);
        afdep_signal64((uint64_t *)(inbox + r.l.routes) + at, afdep_word((uint32_t)exchange, (uint32_t)(id + 1)));
        if (d.weights)
            afdep_signal64((uint64_t *)(inbox + r.l.weights) + at,
                           afdep_word((uint32_t)exchange, __float_as_uint(weight)));
    }
}

/* By one warp. The words that a receiver compares with its own: see check_header(). */
static __device__ void put_headers(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange)
{
    uint32_t tag = (uint32_t)exchange;
    for (int to = (int)afdep_lane(); to < r.ranks; to += AFDEP_WARP) {
        unsigned char *at = ll_inbox(r, exchange, to) + r.l.headers + (uint32_t)r.c.rank * 16u * AFDEP_LL_HEADER_WORDS;
        afdep_store_word(at, make_uint4((uint32_t)d.tokens, (uint32_t)d.s.max_tokens, (uint32_t)d.s.experts, tag));
        afdep_store_word(at + 16, make_uint4((uint32_t)d.s.hidden, (uint32_t)d.s.top_k | (d.weights ? 0x100u : 0u),
                                             (uint32_t)d.s.format, tag));
        atomicAdd(&r.counters[to].count_words, 1ull);
    }
}

/*
 * The first invalid choice, for the host: by one CTA, which looks through all of them once more while the others'
 * rows are on their way. Encoded as state.h says; ids beyond 32 bits as the nearest that fits.
 */
static __device__ void tell_bad_route(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange)
{
    bool found = false;
    for (int i = (int)threadIdx.x; i < d.tokens * d.s.top_k; i += THREADS) {
        int token = i / d.s.top_k, slot = i - token * d.s.top_k;
        const int64_t *ids = d.ids + (int64_t)token * d.s.top_k;
        int64_t id = ids[slot];
        bool known = id >= 0 && id < d.s.experts, repeated = false;
        for (int before = 0; known && before < slot; before++)
            repeated |= ids[before] == id;
        if (known ? !repeated : id == -1)
            continue;
        uint32_t bits = id > INT32_MAX ? INT32_MAX : id < INT32_MIN ? (uint32_t)INT32_MIN : (uint32_t)id;
        uint64_t word = (uint64_t)(uint32_t)token << 39 | (uint64_t)slot << 33 | (uint64_t)known << 32 | bits;
        atomicMin((unsigned long long *)&r.c.state->bad_route, (unsigned long long)word);
        found = true;
    }
    if (!__syncthreads_or(found) || threadIdx.x != 0)
        return;
    *(volatile uint64_t *)&r.c.record->route = *(volatile uint64_t *)&r.c.state->bad_route;
    r.c.state->bad_route = AFDEP_CUDA_NO_ROUTE;
    __threadfence_system(); /* the choice before the word that says there is one */
    *(volatile uint64_t *)&r.c.record->route_exchange = exchange;
}

/* ---- Sending rows ------------------------------------------------------------------------------------------------ */

/* Lanes that are the first with their target: one for each rank that gets the token. */
static __device__ __forceinline__ uint32_t choose_targets(const call_t &d, int id, int *target)
{
    uint32_t lane = afdep_lane();
    *target = id >= 0 ? id / d.s.local : -1 - (int)lane;
    uint32_t same = __match_any_sync(AFDEP_FULL, *target);
    return __ballot_sync(AFDEP_FULL, id >= 0 && (same & ((1u << lane) - 1u)) == 0);
}

static __device__ __forceinline__ void put_lines(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                                 int token, const uint4 *row, uint32_t leaders, int target)
{
    int lane = (int)afdep_lane(), warp = (int)threadIdx.x / AFDEP_WARP;
    uint64_t first = (uint64_t)(uint32_t)r.c.rank * (uint32_t)r.l.line_room + (uint32_t)token * (uint32_t)d.s.lines;
#pragma unroll 1
    for (int line = warp; line < d.s.lines; line += WARPS) {
        int i = line * AFDEP_LINE_VECTORS + lane, left = d.s.vectors - line * AFDEP_LINE_VECTORS;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (lane < min(AFDEP_LINE_VECTORS, left))
            v = row[i];
        v = afdep_pack_word(v, exchange);
        for (uint32_t to = leaders; to; to &= to - 1) {
            int rank = __shfl_sync(AFDEP_FULL, target, __ffs((int)to) - 1);
            if (afdep_line_uses(lane, left))
                afdep_store_word(ll_inbox(r, exchange, rank) + r.l.lines + (first + (uint32_t)line) * AFDEP_LINE_BYTES +
                                     lane * 16,
                                 v);
        }
    }
}

/* The row as it is; then, with one fence, its word at every rank that got it. */
static __device__ __forceinline__ void put_row(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                               int token, const uint4 *row, uint32_t leaders, int target)
{
    uint64_t slot = ll_slot(r, r.c.rank, token);
#pragma unroll 1
    for (int first = 0; first < d.s.vectors; first += THREADS) {
        int i = first + (int)threadIdx.x;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (i < d.s.vectors)
            v = row[i];
        for (uint32_t to = leaders; to; to &= to - 1) {
            int rank = __shfl_sync(AFDEP_FULL, target, __ffs((int)to) - 1);
            if (i < d.s.vectors)
                afdep_store16(ll_inbox(r, exchange, rank) + r.l.rows + slot * r.l.row_stride + (uint32_t)i * 16u, v);
        }
    }
    __syncthreads();
    if (threadIdx.x / AFDEP_WARP != WARPS - 1)
        return;
    afdep_fence_system();
    if (leaders >> afdep_lane() & 1)
        afdep_signal32((uint32_t *)(ll_inbox(r, exchange, target) + r.l.row_words) + slot, (uint32_t)exchange);
}

static __device__ void send(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, const arrays_t &a)
{
    int warp = afdep_warp_index(), routes = route_units(d);
    for (int unit = warp; unit < routes; unit += afdep_warp_count())
        put_routes(r, d, exchange, unit);
    if (warp == afdep_warp_count() - 1)
        put_headers(r, d, exchange);
    for (int token = (int)blockIdx.x; token < d.tokens; token += (int)gridDim.x) {
        int target;
        uint32_t leaders = choose_targets(d, choice_of_lane(d, token), &target);
        if (leaders == 0)
            continue;
        const uint4 *row = ll_encode(d, token, a.staged, a.warps);
        if (d.tokens <= d.s.few)
            put_lines(r, d, exchange, token, row, leaders, target);
        else
            put_row(r, d, exchange, token, row, leaders, target);
        if (threadIdx.x < AFDEP_WARP && (leaders >> afdep_lane() & 1))
            ll_count_put(r, target, (uint32_t)(d.s.code_bytes + d.s.scale_bytes));
    }
    if (blockIdx.x == gridDim.x - 1)
        tell_bad_route(r, d, exchange);
}

/* ---- Headers and choices of all sources -------------------------------------------------------------------------- */

/* Fields that all ranks of an exchange must be given alike, by the record's piece; see ll_errors.c. */
static __device__ bool check_header(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, int source,
                                    const uint4 &first, const uint4 &second)
{
    const uint32_t theirs[5] = { first.y, first.z, second.x, second.y & 0xFFu, second.z };
    const uint32_t mine[5] = { (uint32_t)d.s.max_tokens, (uint32_t)d.s.experts, (uint32_t)d.s.hidden,
                               (uint32_t)d.s.top_k, (uint32_t)d.s.format };
    int field = -1;
#pragma unroll
    for (int i = 4; i >= 0; i--)
        field = theirs[i] != mine[i] ? i : field;
    if (field < 0 && first.x > (uint32_t)d.s.max_tokens)
        field = 5;
    if (field < 0 && first.x > 0 && !(second.y & 0x100u) && d.recv_weights)
        field = 6;
    if (field < 0)
        return true;
    uint64_t wanted = 0, seen = first.x;
#pragma unroll
    for (int i = 0; i < 5; i++)
        if (field == i)
            wanted = mine[i], seen = theirs[i];
    afdep_fail_device(r.c, AFDEP_ERR_PROTOCOL, CALL, AFDEP_CUDA_WORD_HEADER, exchange, source, -1, field, wanted, seen);
    return false;
}

static __device__ bool take_header(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, int source,
                                   int32_t *tokens)
{
    const unsigned char *at =
        ll_inbox(r, exchange, r.c.rank) + r.l.headers + (uint32_t)source * 16u * AFDEP_LL_HEADER_WORDS;
    afdep_patience_t patience = { 0, 0 };
    for (;;) {
        uint4 first = afdep_load_word(at), second = afdep_load_word(at + 16);
        if (first.w == (uint32_t)exchange && second.w == (uint32_t)exchange) {
            *tokens = (int32_t)first.x;
            return check_header(r, d, exchange, source, first, second);
        }
        if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
            afdep_look(r.c, patience, CALL, AFDEP_CUDA_WORD_HEADER, exchange, source, -1, -1, exchange,
                       first.w == (uint32_t)exchange ? second.w : first.w))
            return false;
    }
}

/* Warps of work that placing a row is. */
static __device__ __forceinline__ int parts_of(const call_t &d, bool lines)
{
    int all = lines ? d.s.lines : d.s.vectors, each = lines ? 1 : AFDEP_LL_PART_VECTORS;
    return (all + each - 1) / each;
}

/* Tokens and units of every source. Every thread of the CTA learns whether all came. */
static __device__ bool take_headers(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, const arrays_t &a)
{
    bool fine = true;
    for (int source = (int)threadIdx.x; fine && source < r.ranks; source += THREADS) {
        int32_t tokens = 0;
        fine = take_header(r, d, exchange, source, &tokens);
        tokens = fine ? tokens : 0;
        a.tokens[source] = a.before[source] = tokens;
        a.units[source] = tokens * parts_of(d, tokens <= d.s.few);
    }
    if (!__syncthreads_and(fine))
        return false;
    if (threadIdx.x == 0)
        ll_sum_before(a.before, r.ranks);
    if (threadIdx.x == THREADS - AFDEP_WARP)
        ll_sum_before(a.units, r.ranks);
    __syncthreads();
    return true;
}

static __device__ __forceinline__ const uint64_t *routes_of(const afdep_ll_device_t &r, uint64_t exchange, int source,
                                                            int token)
{
    return (const uint64_t *)(ll_inbox(r, exchange, r.c.rank) + r.l.routes) +
           ll_slot(r, source, token) * (uint32_t)r.top_k;
}

/* The word at `at` once it is of this exchange, of which `seen` was seen last; its high half is another where that did
   not come to be. */
static __device__ __forceinline__ uint64_t await_word(const afdep_ll_device_t &r, uint64_t exchange, const uint64_t *at,
                                                      uint64_t seen, int word, int source, int token, int slot)
{
    afdep_patience_t patience = { 0, 0 };
    for (; afdep_word_high(seen) != (uint32_t)exchange; seen = afdep_load_relaxed_system64(at))
        if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
            afdep_look(r.c, patience, CALL, word, exchange, source, token, slot, afdep_word((uint32_t)exchange, 0),
                       seen))
            break;
    return seen;
}

/* Takes all choices as they come, several looks of a thread at once. Every thread of the CTA learns whether all did. */
static __device__ bool take_choices(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, const arrays_t &a)
{
    int all = a.before[r.ranks] * d.s.top_k, first = r.c.rank * d.s.local;
    bool fine = true;
#pragma unroll 1
    for (int base = (int)threadIdx.x; fine && base < all; base += CHOICES_AT_ONCE * THREADS) {
        uint64_t words[CHOICES_AT_ONCE];
        int choices[CHOICES_AT_ONCE];
#pragma unroll
        for (int j = 0; j < CHOICES_AT_ONCE; j++) {
            choices[j] = base + j * THREADS < all ? base + j * THREADS : -1;
            int index = choices[j] / d.s.top_k, token;
            if (choices[j] < 0)
                continue;
            int source = ll_source_of(a.before, index, &token);
            words[j] = afdep_load_relaxed_system64(routes_of(r, exchange, source, token) + choices[j] -
                                                   index * d.s.top_k);
        }
#pragma unroll
        for (int j = 0; j < CHOICES_AT_ONCE; j++) {
            if (!fine || choices[j] < 0)
                continue;
            int index = choices[j] / d.s.top_k, slot = choices[j] - index * d.s.top_k, token;
            if (afdep_word_high(words[j]) != (uint32_t)exchange) {
                int source = ll_source_of(a.before, index, &token);
                words[j] = await_word(r, exchange, routes_of(r, exchange, source, token) + slot, words[j],
                                      AFDEP_CUDA_WORD_ROUTE, source, token, slot);
                fine = afdep_word_high(words[j]) == (uint32_t)exchange;
            }
            int e = (int)afdep_word_low(words[j]) - 1 - first;
            if (fine && afdep_word_low(words[j]) != 0 && e >= 0 && e < d.s.local)
                atomicOr(&a.chosen[index / 32 * d.s.local + e], 1u << index % 32);
        }
    }
    return __syncthreads_and(fine);
}

/* ---- Placing ----------------------------------------------------------------------------------------------------- */

/* What a warp places: a part of a token's row. */
typedef struct unit {
    int source, token, part;
    bool lines;
} unit_t;

static __device__ __forceinline__ unit_t unit_at(const call_t &d, const arrays_t &a, int n)
{
    unit_t u;
    int left;
    u.source = ll_source_of(a.units, n, &left);
    u.lines = a.tokens[u.source] <= d.s.few;
    int parts = parts_of(d, u.lines);
    u.token = left / parts;
    u.part = left - u.token * parts;
    return u;
}

/* The lane's choice of the unit's token: its row of [L, R * M], or -1. */
static __device__ __forceinline__ int64_t row_of_lane(const afdep_ll_device_t &r, const call_t &d, const arrays_t &a,
                                                      const unit_t &u, uint64_t word)
{
    int e = (int)afdep_word_low(word) - 1 - r.c.rank * d.s.local, index = a.before[u.source] + u.token, row = 0;
    bool mine = (int)afdep_lane() < d.s.top_k && afdep_word_low(word) != 0 && e >= 0 && e < d.s.local;
    if (!mine)
        return -1;
#pragma unroll 1
    for (int w = 0; w < index / 32; w++)
        row += __popc(a.chosen[w * d.s.local + e]);
    row += __popc(a.chosen[index / 32 * d.s.local + e] & ((1u << index % 32) - 1u));
    return (int64_t)e * r.ranks * d.s.max_tokens + row;
}

/* Vector `i` of a wire row to a row of the caller's. */
static __device__ __forceinline__ void place_vector(const call_t &d, int64_t row, int i, const uint4 &v)
{
    if (i < d.s.code_vectors) {
        ((uint4 *)((unsigned char *)d.recv_x + row * d.s.code_bytes))[i] = v;
        return;
    }
    int first = (i - d.s.code_vectors) * 16, bytes = min(16, d.s.scale_bytes - first);
    unsigned char *to = (unsigned char *)d.recv_scales + row * d.s.scale_bytes + first;
    const uint32_t words[4] = { v.x, v.y, v.z, v.w };
    bool whole = d.s.scale_bytes % 4 == 0; /* and so the address, as the tensor's is */
#pragma unroll
    for (int w = 0; w < 4; w++) {
        if (whole && 4 * w < bytes)
            ((uint32_t *)to)[w] = words[w];
#pragma unroll
        for (int b = 0; b < 4; b++)
            if (!whole && 4 * w + b < bytes)
                to[4 * w + b] = (unsigned char)(words[w] >> 8 * b);
    }
}

/* What is told of a row beside its vectors, a choice a lane, with its first part. */
static __device__ bool place_rest(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, const unit_t &u,
                                  int64_t row)
{
    int lane = (int)afdep_lane();
    if (lane < d.s.top_k)
        r.positions[ll_choice(r, exchange, r.ranks, u.source, u.token) + (uint32_t)lane] = (uint32_t)(row + 1);
    if (row >= 0 && d.recv_source)
        ((int2 *)d.recv_source)[row] = make_int2(u.source, u.token);
    bool fine = true;
    if (row >= 0 && d.recv_weights) {
        const uint64_t *weights = (const uint64_t *)(ll_inbox(r, exchange, r.c.rank) + r.l.weights) +
                                  ll_slot(r, u.source, u.token) * (uint32_t)r.top_k;
        uint64_t word = await_word(r, exchange, weights + lane, afdep_load_relaxed_system64(weights + lane),
                                   AFDEP_CUDA_WORD_WEIGHT, u.source, u.token, lane);
        fine = afdep_word_high(word) == (uint32_t)exchange;
        d.recv_weights[row] = __uint_as_float(afdep_word_low(word));
    }
    return __all_sync(AFDEP_FULL, fine);
}

/* One line, as soon as it has come. */
static __device__ __forceinline__ bool place_line(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                                  const unit_t &u, int64_t row, uint32_t experts,
                                                  uint4 (&word)[1], afdep_look_for_t &look)
{
    int lane = (int)afdep_lane(), i = u.part * AFDEP_LINE_VECTORS + lane;
    if (!afdep_await_lines<1>(r.c, look, exchange, word))
        return false;
    uint4 v = afdep_unpack_word(word[0]);
    bool has = lane < AFDEP_LINE_VECTORS && i < d.s.vectors;
    for (; experts; experts &= experts - 1) {
        int64_t at = __shfl_sync(AFDEP_FULL, row, __ffs((int)experts) - 1);
        if (has)
            place_vector(d, at, i, v);
    }
    return true;
}

static __device__ __forceinline__ bool place_part(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                                  const unit_t &u, int64_t row, uint32_t experts)
{
    const int each = AFDEP_LL_PART_VECTORS / AFDEP_WARP;
    const unsigned char *inbox = ll_inbox(r, exchange, r.c.rank);
    uint64_t slot = ll_slot(r, u.source, u.token);
    bool fine = afdep_wait_piece(r.c, (const uint32_t *)(inbox + r.l.row_words) + slot, exchange, CALL,
                                 AFDEP_CUDA_WORD_ROW, u.source, u.token, 0);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    const unsigned char *from = inbox + r.l.rows + slot * r.l.row_stride;
    int first = u.part * AFDEP_LL_PART_VECTORS + (int)afdep_lane();
    uint4 v[each];
#pragma unroll
    for (int j = 0; j < each; j++)
        if (first + j * AFDEP_WARP < d.s.vectors)
            v[j] = afdep_load16(from + (uint32_t)(first + j * AFDEP_WARP) * 16u);
    for (; experts; experts &= experts - 1) {
        int64_t to = __shfl_sync(AFDEP_FULL, row, __ffs((int)experts) - 1);
#pragma unroll
        for (int j = 0; j < each; j++)
            if (first + j * AFDEP_WARP < d.s.vectors)
                place_vector(d, to, first + j * AFDEP_WARP, v[j]);
    }
    return true;
}

/* What the lane looks for of a unit's line. */
static __device__ __forceinline__ afdep_look_for_t line_of(const afdep_ll_device_t &r, const call_t &d,
                                                           uint64_t exchange, const unit_t &u)
{
    int lane = (int)afdep_lane();
    uint64_t at = (uint64_t)(uint32_t)u.source * (uint32_t)r.l.line_room + (uint32_t)(u.token * d.s.lines + u.part);
    afdep_look_for_t look = { ll_inbox(r, exchange, r.c.rank) + r.l.lines + at * AFDEP_LINE_BYTES + lane * 16,
                              0,
                              CALL,
                              AFDEP_CUDA_WORD_ROW,
                              u.source,
                              u.token,
                              u.part };
    look.needed = u.lines && afdep_line_uses(lane, d.s.vectors - u.part * AFDEP_LINE_VECTORS);
    return look;
}

static __device__ __forceinline__ bool place_unit(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                                  const arrays_t &a, const unit_t &u)
{
    int lane = (int)afdep_lane();
    uint4 line[1] = {};
    afdep_look_for_t look = line_of(r, d, exchange, u);
    uint64_t word = 0;
    if (lane < d.s.top_k) /* it has come: see take_choices() */
        word = afdep_load_relaxed_system64(routes_of(r, exchange, u.source, u.token) + lane);
    afdep_load_lines<1>(look, line); /* a first look, while the rows are worked out */
    int64_t row = row_of_lane(r, d, a, u, word);
    uint32_t experts = __ballot_sync(AFDEP_FULL, row >= 0);
    if (u.part == 0 && !place_rest(r, d, exchange, u, row))
        return false;
    if (experts == 0)
        return true;
    return u.lines ? place_line(r, d, exchange, u, row, experts, line, look)
                   : place_part(r, d, exchange, u, row, experts);
}

/* ---- What is told of the exchange as a whole --------------------------------------------------------------------- */

/* By one CTA. */
static __device__ void tell(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, const arrays_t &a)
{
    int words = (a.before[r.ranks] + 31) / 32;
    for (int e = (int)threadIdx.x; e < d.s.local; e += THREADS) {
        int count = 0;
        for (int w = 0; w < words; w++)
            count += __popc(a.chosen[w * d.s.local + e]);
        d.recv_count[e] = count;
        if (d.statistics)
            d.statistics[e] = (int32_t)((uint32_t)d.statistics[e] + (uint32_t)count);
    }
    for (int source = (int)threadIdx.x; source < r.ranks; source += THREADS)
        r.tokens[ll_plane(exchange) * (uint32_t)r.ranks + (uint32_t)source] = a.tokens[source];
}

/* See ll_renewal_due(): choices and weights of tokens that no source has, words and lines of rows that are not
   sent here. */
static __device__ __noinline__ void renew(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange,
                                          const int32_t *of_source)
{
    unsigned char *inbox = ll_inbox(r, exchange, r.c.rank);
    int lane = (int)afdep_lane(), all = r.ranks * r.max_tokens, first = r.c.rank * d.s.local;
    for (int n = afdep_warp_index(); n < all; n += afdep_warp_count()) {
        int source = n / r.max_tokens, token = n - source * r.max_tokens, tokens = of_source[source];
        uint64_t slot = ll_slot(r, source, token), at = slot * (uint32_t)r.top_k + (uint32_t)lane;
        int slots = token < tokens ? d.s.top_k : 0;
        uint32_t id = 0;
        if (lane < slots)
            id = afdep_word_low(afdep_load_relaxed_system64((const uint64_t *)(inbox + r.l.routes) + at));
        bool here = __any_sync(AFDEP_FULL, id != 0 && (int)id - 1 - first >= 0 && (int)id - 1 - first < d.s.local);
        bool lines = tokens <= d.s.few;
        if (lane >= slots && lane < r.top_k)
            afdep_signal64((uint64_t *)(inbox + r.l.routes) + at, afdep_word((uint32_t)exchange, 0));
        if ((lane >= slots || !d.recv_weights) && lane < r.top_k) /* nobody waits for weights that nobody wants */
            afdep_signal64((uint64_t *)(inbox + r.l.weights) + at, afdep_word((uint32_t)exchange, 0));
        if ((!here || lines) && lane == 0)
            afdep_signal32((uint32_t *)(inbox + r.l.row_words) + slot, (uint32_t)exchange);
        if (token == 0 && !lines)
            afdep_renew_lines(inbox + r.l.lines + (uint64_t)source * (uint32_t)r.l.line_room * AFDEP_LINE_BYTES,
                              r.l.line_room, exchange);
        if (lines && token < tokens && !here)
            afdep_renew_lines(inbox + r.l.lines +
                                  ((uint64_t)source * (uint32_t)r.l.line_room + (uint32_t)(token * d.s.lines)) *
                                      AFDEP_LINE_BYTES,
                              d.s.lines, exchange);
        if (lines && token == 0)
            afdep_renew_lines(inbox + r.l.lines +
                                  ((uint64_t)source * (uint32_t)r.l.line_room + (uint32_t)(tokens * d.s.lines)) *
                                      AFDEP_LINE_BYTES,
                              r.l.line_room - tokens * d.s.lines, exchange);
    }
}

static __device__ void receive(const afdep_ll_device_t &r, const call_t &d, uint64_t exchange, const arrays_t &a)
{
    if (!take_headers(r, d, exchange, a) || !take_choices(r, d, exchange, a))
        return;
    int units = a.units[r.ranks];
    for (int n = afdep_warp_index(); n < units; n += afdep_warp_count())
        if (!place_unit(r, d, exchange, a, unit_at(d, a, n)))
            return;
    if (blockIdx.x == gridDim.x - 1)
        tell(r, d, exchange, a);
    if (ll_renewal_due(exchange))
        renew(r, d, exchange, a.tokens);
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS, 1)
    ll_dispatch_kernel(const __grid_constant__ afdep_ll_device_t r, const __grid_constant__ call_t d)
{
    arrays_t a = arrays_of(r, d);
    bool sends = d.parts & AFDEP_LL_SEND;
    if (sends && (int)blockIdx.x < d.tokens) { /* on its way while the kernel before ends */
        afdep_prefetch(d.ids + (int64_t)blockIdx.x * d.s.top_k);
        if ((int)threadIdx.x < d.s.hidden / 64)
            afdep_prefetch((const unsigned char *)d.x + (int64_t)blockIdx.x * 2 * d.s.hidden + threadIdx.x * 128);
    }
    afdep_await_previous();
    afdep_let_next_start();
    uint64_t exchange =
        ll_number(sends ? &r.numbers->combined : &r.numbers->dispatched) + (uint64_t)(int64_t)d.distance;
    if (__syncthreads_or(afdep_poisoned(r.c))) /* and the arrays are clear */
        return;
    if (sends) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            r.numbers->dispatched = exchange;
        send(r, d, exchange, a);
    }
    if (d.parts & AFDEP_LL_RECEIVE)
        receive(r, d, exchange, a);
}

cudaError_t afdep_ll_launch_dispatch(const afdep_ll_device_t *r, const afdep_ll_dispatch_call_t *d, int grid,
                                     cudaStream_t stream)
{
    return afdep_launch(ll_dispatch_kernel, grid, THREADS, shared_bytes(r->ranks, d->s), stream, *r, *d);
}

cudaError_t afdep_ll_prepare_kernels(const afdep_ll_shape_t *shape)
{
    afdep_ll_exchange_shape_t s = {};
    s.max_tokens = shape->max_tokens;
    s.local = shape->experts / shape->ranks;
    s.hidden = shape->hidden;
    cudaError_t error = afdep_load(ll_dispatch_kernel, shared_bytes(shape->ranks, s));
    return error == cudaSuccess ? afdep_ll_prepare_combine_kernel() : error;
}
