/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ll_combine on GPUs, as one kernel or (with a hook) as two: its sending half, and its receiving half.
 *
 * Sending: each row of an expert goes to the place of its token and slot at the token's rank, in the order of tokens,
 * so that whole tokens come early; of sources with few tokens in lines, of others in parts, in rounds
 * (cuda/rounds.cuh): a warp takes a part of all rows of a token that are here, which one word publishes, that of the
 * first of their slots. Rows of this rank's own tokens are not sent. Every rank gets a word that says that this one has
 * received its dispatch.
 *
 * Receiving: a warp sums a part of a token in slot order, rows of other ranks as they come to the inbox, those of its
 * own rank's experts straight from x.
 */
#include "cuda/launch.cuh"
#include "cuda/ll_device.cuh"
#include "cuda/rounds.cuh"
#include "cuda/sum.cuh"

#define THREADS AFDEP_LL_COMBINE_THREADS
#define WARPS (THREADS / AFDEP_WARP)
#define CALL AFDEP_CUDA_LL_COMBINE
#define EACH (AFDEP_LL_SUM_VECTORS / AFDEP_WARP) /* vectors of a row to a lane */
#define ROWS_AT_ONCE 8

typedef afdep_ll_combine_call_t call_t;

/* In shared memory: units of sending to each source before it, of those with few tokens and of the others. */
typedef struct arrays {
    int32_t *few, *many; /* [R + 1] */
} arrays_t;

static __host__ __device__ __forceinline__ uint32_t shared_bytes(int ranks)
{
    return 4u * 2u * ((uint32_t)ranks + 1u);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* The row of x that a choice of a source's token became here, or NULL; the same in all lanes. */
static __device__ __forceinline__ const uint4 *row_of(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange,
                                                      int source, int token, int slot)
{
    uint32_t row = r.positions[ll_choice(r, exchange, r.ranks, source, token) + (uint32_t)slot];
    return row == 0 ? NULL : (const uint4 *)c.x + (uint64_t)(row - 1) * (uint32_t)c.s.combine_vectors;
}

/* Of a token that comes in parts. */
static __device__ __forceinline__ int parts_of(const call_t &c)
{
    return (c.s.combine_vectors + AFDEP_LL_SUM_VECTORS - 1) / AFDEP_LL_SUM_VECTORS;
}

/* Units of every source but this rank itself. */
static __device__ void plan_sending(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange, const arrays_t &a)
{
    int parts = parts_of(c);
    for (int source = (int)threadIdx.x; source < r.ranks; source += THREADS) {
        int tokens = r.tokens[ll_plane(exchange) * (uint32_t)r.ranks + (uint32_t)source];
        bool few = tokens <= c.s.combine_few;
        tokens = source == r.c.rank ? 0 : tokens;
        a.few[source] = few ? tokens * c.s.top_k * c.s.combine_lines : 0;
        a.many[source] = few ? 0 : tokens * parts;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        ll_sum_before(a.few, r.ranks);
    if (threadIdx.x == THREADS - AFDEP_WARP)
        ll_sum_before(a.many, r.ranks);
    __syncthreads();
}

/* A line of a row to its source. */
static __device__ __forceinline__ void put_line(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange,
                                                const arrays_t &a, int unit)
{
    int at, lane = (int)afdep_lane(), source = ll_source_of(a.few, unit, &at);
    int choice = at / c.s.combine_lines, line = at - choice * c.s.combine_lines, token = choice / c.s.top_k;
    const uint4 *row = row_of(r, c, exchange, source, token, choice - token * c.s.top_k);
    int left = c.s.combine_vectors - line * AFDEP_LINE_VECTORS;
    if (!row)
        return;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (lane < min(AFDEP_LINE_VECTORS, left))
        v = afdep_load16(row + line * AFDEP_LINE_VECTORS + lane);
    v = afdep_pack_word(v, exchange);
    if (afdep_line_uses(lane, left))
        afdep_store_word(ll_inbox(r, exchange, source) + r.l.combine_lines + (uint64_t)(uint32_t)at * AFDEP_LINE_BYTES +
                             lane * 16,
                         v);
    if (line == 0 && lane == 0)
        ll_count_put(r, source, 2u * (uint32_t)c.s.hidden);
}

/* The first row's part and of up to seven more, of those that `slots` has bits for; gives back the others. */
static __device__ __forceinline__ uint32_t put_rows(const call_t &c, uint32_t row, uint32_t slots, int first,
                                                    unsigned char *to, uint64_t stride)
{
    uint4 v[ROWS_AT_ONCE][EACH];
    uint32_t left = slots;
#pragma unroll
    for (int j = 0; j < ROWS_AT_ONCE; j++, left &= left - 1) {
        uint32_t at = __shfl_sync(AFDEP_FULL, row, (__ffs((int)left) - 1) & (AFDEP_WARP - 1));
        const uint4 *from = (const uint4 *)c.x + (uint64_t)(at - 1) * (uint32_t)c.s.combine_vectors;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (left && first + i * AFDEP_WARP < c.s.combine_vectors)
                v[j][i] = afdep_load16(from + first + i * AFDEP_WARP);
    }
    left = slots;
#pragma unroll
    for (int j = 0; j < ROWS_AT_ONCE; j++, left &= left - 1) {
        unsigned char *at = to + (uint32_t)(__ffs((int)left) - 1) * stride;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (left && first + i * AFDEP_WARP < c.s.combine_vectors)
                afdep_store16(at + (uint32_t)(first + i * AFDEP_WARP) * 16u, v[j][i]);
    }
    return left;
}

/* A part of a token's rows; notes the word that publishes it. */
static __device__ __forceinline__ int put_part(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange,
                                               const arrays_t &a, int unit, uint32_t **words)
{
    int at, lane = (int)afdep_lane(), parts = parts_of(c), source = ll_source_of(a.many, unit, &at);
    int token = at / parts, part = at - token * parts, first = part * AFDEP_LL_SUM_VECTORS + lane;
    uint32_t row = 0;
    if (lane < c.s.top_k)
        row = r.positions[ll_choice(r, exchange, r.ranks, source, token) + (uint32_t)lane];
    uint32_t slots = __ballot_sync(AFDEP_FULL, row != 0);
    if (slots == 0)
        return 0;
    uint64_t place = (uint64_t)(uint32_t)token * (uint32_t)r.top_k;
    unsigned char *inbox = ll_inbox(r, exchange, source), *to = inbox + r.l.combine_rows + place * r.l.combine_stride;
    for (uint32_t left = slots; left;)
        left = put_rows(c, row, left, first, to, r.l.combine_stride);
    if (lane == 0) {
        place += (uint32_t)__ffs((int)slots) - 1u;
        words[0] = (uint32_t *)(inbox + r.l.piece_words) + place * (uint32_t)r.l.pieces + (uint32_t)part;
    }
    if (part == 0 && row != 0)
        ll_count_put(r, source, 2u * (uint32_t)c.s.hidden);
    return 1;
}

/* By one warp: everything that this rank read of the exchange's dispatch was read by an earlier kernel. */
static __device__ void put_words(const afdep_ll_device_t &r, uint64_t exchange)
{
    afdep_fence_system();
    for (int to = (int)afdep_lane(); to < r.ranks; to += AFDEP_WARP) {
        afdep_signal64((uint64_t *)(ll_inbox(r, exchange, to) + r.l.combine_words) + r.c.rank,
                       afdep_word((uint32_t)exchange, 0));
        atomicAdd(&r.counters[to].combines, 1ull);
    }
}

static __device__ void send(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange, const arrays_t &a,
                            afdep_rounds<WARPS> &rounds)
{
    plan_sending(r, c, exchange, a);
    for (int unit = afdep_warp_index(); unit < a.few[r.ranks]; unit += afdep_warp_count())
        put_line(r, c, exchange, a, unit);
    if (afdep_warp_index() == afdep_warp_count() - 1)
        put_words(r, exchange);
    if ((int)blockIdx.x < c.senders)
        afdep_run_rounds<WARPS>(rounds, a.many[r.ranks], 0, c.senders, exchange,
                                [&](int unit, uint32_t **words) { return put_part(r, c, exchange, a, unit, words); });
}

/* ---- Summing ----------------------------------------------------------------------------------------------------- */

/* A lane's slot of a token: chosen or not, its weight, and its row in x where this rank owns the expert. */
typedef struct slot {
    bool chosen;
    float weight;
    const uint4 *own; /* NULL: the row comes from another rank */
    int id;
} slot_t;

static __device__ __forceinline__ slot_t slot_of_lane(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange,
                                                      int token)
{
    int lane = (int)afdep_lane();
    slot_t s = { false, 0, NULL, -1 };
    if (lane < c.s.top_k) {
        s.id = r.live_ids[ll_choice(r, exchange, 1, 0, token) + (uint32_t)lane];
        s.weight = c.weights[(int64_t)token * c.s.top_k + lane];
        s.own = row_of(r, c, exchange, r.c.rank, token, lane);
    }
    s.chosen = s.id >= 0;
    return s;
}

/* Whether the lane's slot has the words of its owner's rows: the first of those that another rank sends. */
static __device__ __forceinline__ bool has_words(const call_t &c, const slot_t &s)
{
    int lane = (int)afdep_lane();
    bool comes = s.chosen && !s.own;
    uint32_t same = __match_any_sync(AFDEP_FULL, comes ? s.id / c.s.local : -1 - lane);
    return comes && (same & ((1u << lane) - 1u)) == 0;
}

/* Waits, for each of up to eight rows that come in lines, for the lane's word of one line. `needed` has a bit for
   each. */
static __device__ __forceinline__ bool await_words(const afdep_ll_device_t &r, uint64_t exchange,
                                                   const unsigned char *at, uint64_t stride,
                                                   const int (&slots)[ROWS_AT_ONCE], uint32_t needed, int token,
                                                   int line, const call_t &c, int owner_id,
                                                   uint4 (&words)[ROWS_AT_ONCE])
{
    afdep_patience_t patience = { 0, 0 };
    for (;;) {
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            if (needed >> j & 1)
                words[j] = afdep_load_word(at + (uint32_t)slots[j] * stride);
        uint32_t seen = 0;
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            if (needed >> j & 1) {
                if (words[j].w == (uint32_t)exchange)
                    needed &= ~(1u << j);
                else
                    seen = words[j].w;
            }
        if (!__any_sync(AFDEP_FULL, needed != 0))
            return true;
        bool look = ++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0, over = false;
        if (look) { /* whose it is: the first that is missing */
            uint32_t missing = __ballot_sync(AFDEP_FULL, needed != 0);
            int which = __shfl_sync(AFDEP_FULL, (int)needed, __ffs((int)missing) - 1), slot = 0;
#pragma unroll
            for (int j = ROWS_AT_ONCE - 1; j >= 0; j--)
                slot = which >> j & 1 ? slots[j] : slot;
            int id = __shfl_sync(AFDEP_FULL, owner_id, slot);
            over = needed != 0 && afdep_look(r.c, patience, CALL, AFDEP_CUDA_WORD_COMBINE, exchange,
                                             max(id, 0) / c.s.local, token, line, (uint32_t)exchange, seen);
        }
        if (__any_sync(AFDEP_FULL, over))
            return false;
    }
}

/* A line of a token. */
static __device__ __forceinline__ bool sum_line(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange,
                                                int token, int line)
{
    int lane = (int)afdep_lane(), left = c.s.combine_vectors - line * AFDEP_LINE_VECTORS;
    bool has = lane < min(AFDEP_LINE_VECTORS, left), uses = afdep_line_uses(lane, left);
    uint64_t stride = (uint64_t)(uint32_t)c.s.combine_lines * AFDEP_LINE_BYTES;
    const unsigned char *at = ll_inbox(r, exchange, r.c.rank) + r.l.combine_lines +
                              (uint64_t)(uint32_t)(token * c.s.top_k) * stride + (uint32_t)line * AFDEP_LINE_BYTES +
                              lane * 16;
    slot_t s = slot_of_lane(r, c, exchange, token);
    uint32_t chosen = __ballot_sync(AFDEP_FULL, s.chosen), own = __ballot_sync(AFDEP_FULL, s.own != NULL);
    afdep_sum_t sum = {};
    bool first = true;
    while (chosen) {
        uint4 words[ROWS_AT_ONCE];
        int slots[ROWS_AT_ONCE];
        uint32_t needed = 0, present = 0;
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++) {
            slots[j] = chosen ? __ffs((int)chosen) - 1 : 0;
            present |= (uint32_t)(chosen != 0) << j;
            chosen &= chosen - 1;
            const uint4 *row = (const uint4 *)__shfl_sync(AFDEP_FULL, (uint64_t)(uintptr_t)s.own, slots[j]);
            bool mine = own >> slots[j] & 1;
            if ((present >> j & 1) && !mine)
                needed |= (uint32_t)uses << j;
            if ((present >> j & 1) && mine && has)
                words[j] = afdep_load16(row + line * AFDEP_LINE_VECTORS + lane);
        }
        if (!await_words(r, exchange, at, stride, slots, needed, token, line, c, s.id, words))
            return false;
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            if (present >> j & 1) {
                float weight = __shfl_sync(AFDEP_FULL, s.weight, slots[j]);
                uint4 v = own >> slots[j] & 1 ? words[j] : afdep_unpack_word(words[j]);
                if (first)
                    afdep_sum_first<true>(sum, v, weight);
                else
                    afdep_sum_add<true>(sum, v, weight);
                first = false;
            }
    }
    if (has)
        ((uint4 *)c.out)[(int64_t)token * c.s.combine_vectors + line * AFDEP_LINE_VECTORS + lane] =
            first ? make_uint4(0, 0, 0, 0) : afdep_sum_round(sum);
    return true;
}

/* The rows of one token, in slot order; one of these per warp. */
typedef struct terms {
    const uint4 *row[AFDEP_WARP];
    float weight[AFDEP_WARP];
} terms_t;

/* A part of the sum of a token's rows. */
static __device__ __forceinline__ void sum_rows(const call_t &c, const terms_t *terms, int count, int first, uint4 *out)
{
    int end = min(first + AFDEP_LL_SUM_VECTORS, c.s.combine_vectors);
#pragma unroll 1
    for (int i = first; i < end; i += AFDEP_WARP) {
        uint4 sum = make_uint4(0, 0, 0, 0);
        if (count > 0)
            sum = afdep_sum_column<true>(
                count, [&](int j) { return terms->row[j] + i; }, [&](int j) { return terms->weight[j]; });
        out[i] = sum;
    }
}

/* A part of a token whose rows come in parts. */
static __device__ __forceinline__ bool sum_part(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange,
                                                int token, int part, terms_t *terms)
{
    int lane = (int)afdep_lane();
    unsigned char *inbox = ll_inbox(r, exchange, r.c.rank);
    slot_t s = slot_of_lane(r, c, exchange, token);
    uint32_t chosen = __ballot_sync(AFDEP_FULL, s.chosen);
    uint64_t place = (uint64_t)(uint32_t)token * (uint32_t)r.top_k + (uint32_t)lane;
    bool fine = true, waits = has_words(c, s);
    __syncwarp(); /* the terms of the unit before are read */
    if (s.chosen) {
        int n = __popc(chosen & ((1u << lane) - 1u));
        terms->row[n] = s.own ? s.own : (const uint4 *)(inbox + r.l.combine_rows + place * r.l.combine_stride);
        terms->weight[n] = s.weight;
    }
    if (waits)
        fine = afdep_wait_piece(r.c,
                                (const uint32_t *)(inbox + r.l.piece_words) + place * (uint32_t)r.l.pieces + part,
                                exchange, CALL, AFDEP_CUDA_WORD_COMBINE, s.id / c.s.local, token, part);
    if (!__all_sync(AFDEP_FULL, fine))
        return false;
    __syncwarp(); /* the terms, and the acquires of the lanes that waited, before the others' reads */
    sum_rows(c, terms, __popc(chosen), part * AFDEP_LL_SUM_VECTORS + lane,
             (uint4 *)c.out + (int64_t)token * c.s.combine_vectors);
    return true;
}

/* By one warp: all ranks' words, whether or not they had rows for this one. */
static __device__ bool take_words(const afdep_ll_device_t &r, uint64_t exchange)
{
    const uint64_t *words = (const uint64_t *)(ll_inbox(r, exchange, r.c.rank) + r.l.combine_words);
    for (int from = (int)afdep_lane(); from < r.ranks; from += AFDEP_WARP) {
        afdep_patience_t patience = { 0, 0 };
        uint64_t seen;
        while (afdep_word_high(seen = afdep_load_acquire64(words + from)) != (uint32_t)exchange)
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r.c, patience, CALL, AFDEP_CUDA_WORD_ANSWER, exchange, from, -1, -1,
                           afdep_word((uint32_t)exchange, 0), seen))
                return false;
    }
    return true;
}

/* See ll_renewal_due(): words and lines of rows that do not come. */
static __device__ __noinline__ void renew(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange)
{
    unsigned char *inbox = ll_inbox(r, exchange, r.c.rank);
    int lane = (int)afdep_lane(), lines = c.s.combine_lines, parts = parts_of(c);
    bool few = c.tokens <= c.s.combine_few;
    for (int token = afdep_warp_index(); token < r.max_tokens; token += afdep_warp_count()) {
        slot_t s = { false, 0, NULL, -1 };
        if (token < c.tokens)
            s = slot_of_lane(r, c, exchange, token);
        bool used = has_words(c, s);
        uint64_t place = (uint64_t)(uint32_t)token * (uint32_t)r.top_k + (uint32_t)lane;
        uint32_t *words = (uint32_t *)(inbox + r.l.piece_words) + place * (uint32_t)r.l.pieces;
        for (int i = 0; lane < r.top_k && i < r.l.pieces; i++)
            if (few || !used || i >= parts)
                afdep_signal32(words + i, (uint32_t)exchange);
        uint32_t idle = __ballot_sync(AFDEP_FULL, lane < c.s.top_k && (!s.chosen || s.own));
        for (; few && token < c.tokens && idle; idle &= idle - 1) {
            uint64_t line = (uint64_t)(uint32_t)(token * c.s.top_k + __ffs((int)idle) - 1) * (uint32_t)lines;
            afdep_renew_lines(inbox + r.l.combine_lines + line * AFDEP_LINE_BYTES, lines, exchange);
        }
    }
    int used = few ? c.tokens * c.s.top_k * lines : 0;
    for (int line = used + afdep_warp_index(); line < r.l.combine_room; line += afdep_warp_count())
        afdep_renew_lines(inbox + r.l.combine_lines + (uint64_t)(uint32_t)line * AFDEP_LINE_BYTES, 1, exchange);
}

static __device__ void receive(const afdep_ll_device_t &r, const call_t &c, uint64_t exchange, terms_t *terms)
{
    bool few = c.tokens <= c.s.combine_few;
    int parts = few ? c.s.combine_lines : parts_of(c);
    /* Of many tokens those who send do not sum, where there is somebody else. */
    int idle = !few && (c.parts & AFDEP_LL_SEND) && c.senders < (int)gridDim.x ? c.senders : 0;
    int ctas = (int)gridDim.x - idle, cta = (int)blockIdx.x - idle, warp = (int)threadIdx.x / AFDEP_WARP;
    bool fine = true;
    for (int n = warp * ctas + cta; fine && cta >= 0 && n < c.tokens * parts; n += WARPS * ctas) {
        int token = n / parts, part = n - token * parts;
        fine = few ? sum_line(r, c, exchange, token, part) : sum_part(r, c, exchange, token, part, terms);
    }
    if (!fine)
        return;
    if (blockIdx.x == gridDim.x - 1 && warp == WARPS - 1)
        (void)take_words(r, exchange);
    if (ll_renewal_due(exchange))
        renew(r, c, exchange);
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS, 1)
    ll_combine_kernel(const __grid_constant__ afdep_ll_device_t r, const __grid_constant__ call_t c)
{
    extern __shared__ uint4 shared[];
    __shared__ afdep_rounds<WARPS> rounds;
    __shared__ terms_t terms[WARPS];
    arrays_t a = { (int32_t *)shared, (int32_t *)shared + r.ranks + 1 };
    bool sends = c.parts & AFDEP_LL_SEND;
    afdep_await_previous();
    afdep_let_next_start();
    uint64_t exchange =
        ll_number(sends ? &r.numbers->dispatched : &r.numbers->combined) + (uint64_t)(int64_t)c.distance;
    if (__syncthreads_or(afdep_poisoned(r.c)))
        return;
    if (sends) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            r.numbers->combined = exchange;
        send(r, c, exchange, a, rounds);
    }
    if (c.parts & AFDEP_LL_RECEIVE)
        receive(r, c, exchange, &terms[threadIdx.x / AFDEP_WARP]);
}

cudaError_t afdep_ll_launch_combine(const afdep_ll_device_t *r, const afdep_ll_combine_call_t *c, int grid,
                                    cudaStream_t stream)
{
    return afdep_launch(ll_combine_kernel, grid, THREADS, shared_bytes(r->ranks), stream, *r, *c);
}

cudaError_t afdep_ll_prepare_combine_kernel(void)
{
    return afdep_load(ll_combine_kernel, 0);
}
