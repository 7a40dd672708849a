/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_reply. A token's rows on this rank are summed in slot order by a warp, part by part or (few tokens) line by line.
 * With very few tokens the line goes straight into the source's combine inbox. Otherwise reading all rows is what takes
 * time: every SM sums into local memory, and `senders` CTAs, which alone communicate, send what is there: lines as they
 * are, parts with a word behind each piece.
 *
 * Reuse: a combine inbox of exchange n - G has been read: its source collected before it dispatched n, and a view of it is
 * valid until that dispatch only. The weights are read from the inbox, although the answer is out: this rank has rows of
 * the token, so the source waits for its word before it dispatches again. What stands in local memory was sent by an
 * earlier kernel of this stream.
 */
#include "cuda/launch.cuh"
#include "cuda/lines.cuh"
#include "cuda/reply_few.cuh"
#include "cuda/rounds.cuh"

#define THREADS 736
#define WARPS (THREADS / AFDEP_WARP)
#define FEW_THREADS 384 /* two CTAs fit an SM, and nothing spills */
#define LINES_SENT_AT_ONCE 4

/* A token's rows on this rank, in slot order; one of these per warp. */
typedef struct terms {
    const unsigned char *row[AFDEP_WARP];
    float weight[AFDEP_WARP];
} terms_t;

/* Gathers the token's terms; returns how many. */
static __device__ int take_terms(const afdep_cuda_rank_t &r, const void *rows, uint64_t exchange, int a, int token,
                                 terms_t *terms)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane();
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    uint64_t slot = afdep_slot(s, a, token), at = slot * (uint32_t)s.top_k + lane;
    uint64_t position = 0;
    if ((int)lane < s.top_k)
        position = r.positions[plane * (uint32_t)s.top_k + at];
    /* A slot that no token used holds an earlier exchange's number. */
    bool mine = (int)lane < s.top_k && afdep_word_high(position) == (uint32_t)exchange && afdep_word_low(position) != 0;
    uint32_t chosen = __ballot_sync(AFDEP_FULL, mine);
    __syncwarp(); /* the terms of the unit before are read */
    if (mine) {
        int n = __popc(chosen & ((1u << lane) - 1u));
        terms->row[n] =
            (const unsigned char *)rows + (uint64_t)(afdep_word_low(position) - 1u) * 2u * (uint32_t)s.hidden;
        if (s.apply_weights)
            terms->weight[n] = ((const float *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.rows +
                                                slot * r.own.row_stride + r.own.weight_offset))[lane];
    }
    __syncwarp();
    return __popc(chosen);
}

/* The sum of one part (AFDEP_PART elements) of a token's rows, to `out`. */
template <bool WEIGHTED>
static __device__ __forceinline__ void sum_part(const afdep_cuda_rank_t &r, int part, int count, const terms_t *terms,
                                                unsigned char *out)
{
    uint32_t row_bytes = 2u * (uint32_t)r.shape.hidden, first = (uint32_t)part * 2u * AFDEP_PART;
    uint32_t bytes = min(2u * (uint32_t)AFDEP_PART, row_bytes - first);
#pragma unroll 1 /* more warps rather than more registers */
    for (uint32_t i = 0; i < 2 * AFDEP_PART; i += 512u) {
        uint32_t column = i + afdep_lane() * 16u;
        if (column >= bytes)
            break;
        uint4 sum = afdep_sum_column<WEIGHTED>(
            count, [&](int j) { return terms->row[j] + first + column; }, [&](int j) { return terms->weight[j]; });
        afdep_store16(out + column, sum);
    }
}

/* Where a source's combine inbox begins, and the word of a piece of a token there. */
static __device__ __forceinline__ unsigned char *combine_inbox(const afdep_cuda_rank_t &r, uint64_t exchange, int a)
{
    return afdep_segment(r, r.shape.ffn_ranks + a) + afdep_plane_at(r.peer, r.shape, exchange);
}

/* The word of a piece, noted for the end of the round. */
static __device__ __forceinline__ int note_piece(const afdep_cuda_rank_t &r, unsigned char *inbox, int a, int token,
                                                 int piece, uint32_t **words)
{
    if (afdep_lane() == 0) {
        words[0] =
            (uint32_t *)(inbox + r.peer.combine_words) + afdep_slot(r.shape, r.rank, token) * r.peer.pieces + piece;
        if (piece == 0)
            atomicAdd(&r.counters[r.shape.ffn_ranks + a].rows, 1ull);
    }
    return 1;
}

typedef struct unit {
    int a, token, part;
} unit_t;

/* Tokens run fastest over sources, so that all sources are served from the start. */
static __device__ __forceinline__ unit_t unit_at(const afdep_shape_t &s, int unit, int parts)
{
    unit_t u;
    int index = unit / parts;
    u.part = unit - index * parts;
    u.token = index / s.attention_ranks;
    u.a = index - u.token * s.attention_ranks;
    return u;
}

/* ---- Many tokens: all SMs sum into local memory, a few send --------------------------------------------------------- */

template <bool WEIGHTED>
static __device__ void sum_locally(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange,
                                   terms_t *terms)
{
    const afdep_shape_t &s = r.shape;
    int parts = afdep_pieces(&s, AFDEP_PART), units = s.attention_ranks * call.bucket * parts;
    int ctas = (int)gridDim.x - call.senders, cta = (int)blockIdx.x - call.senders;
    for (int i = (int)threadIdx.x / AFDEP_WARP * ctas + cta; i < units; i += WARPS * ctas) {
        unit_t u = unit_at(s, i, parts);
        int count = take_terms(r, call.rows, exchange, u.a, u.token, terms);
        if (count == 0)
            continue;
        uint64_t slot = afdep_slot(s, u.a, u.token);
        sum_part<WEIGHTED>(r, u.part, count, terms,
                           r.partials + slot * 2u * (uint32_t)s.hidden + (uint32_t)u.part * 2u * AFDEP_PART);
        __syncwarp(); /* all lanes' stores before the fence */
        if (afdep_lane() == 0) {
            __threadfence(); /* the senders are on this device */
            *(volatile uint32_t *)&r.partial_words[slot * (uint32_t)parts + (uint32_t)u.part] = (uint32_t)exchange;
        }
    }
}

/* Waits for the parts of a piece. */
static __device__ bool wait_partial(const afdep_cuda_rank_t &r, uint64_t exchange, const unit_t &u, int parts,
                                    int in_piece)
{
    int part = u.part * in_piece + (int)afdep_lane();
    bool fine = true;
    if ((int)afdep_lane() < in_piece && part < parts) {
        const uint32_t *word = &r.partial_words[afdep_slot(r.shape, u.a, u.token) * (uint32_t)parts + (uint32_t)part];
        afdep_patience_t patience = { 0, 0 };
        uint32_t seen;
        while ((seen = afdep_load_acquire_gpu32(word)) != (uint32_t)exchange)
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r, patience, AFDEP_CUDA_REPLY, AFDEP_CUDA_WORD_POSITION, exchange, r.rank, u.token, part,
                           (uint32_t)exchange, seen)) {
                fine = false;
                break;
            }
    }
    return __all_sync(AFDEP_FULL, fine);
}

static __device__ __forceinline__ int send_partial(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call,
                                                   uint64_t exchange, const unit_t &u, terms_t *terms, uint32_t **words)
{
    const afdep_shape_t &s = r.shape;
    const int at_once = 4, in_piece = AFDEP_PIECE / AFDEP_PART;
    if (take_terms(r, call.rows, exchange, u.a, u.token, terms) == 0)
        return 0;
    if (!wait_partial(r, exchange, u, afdep_pieces(&s, AFDEP_PART), in_piece))
        return -1;
    uint32_t row_bytes = 2u * (uint32_t)s.hidden, first = (uint32_t)u.part * 2u * AFDEP_PIECE;
    uint32_t bytes = min(2u * (uint32_t)AFDEP_PIECE, row_bytes - first), at = afdep_lane() * 16u;
    const unsigned char *from = r.partials + afdep_slot(s, u.a, u.token) * row_bytes + first;
    unsigned char *inbox = combine_inbox(r, exchange, u.a);
    unsigned char *out = inbox + r.peer.combine_rows + afdep_slot(s, r.rank, u.token) * row_bytes + first;
#pragma unroll 1
    for (uint32_t base = at; base < bytes; base += 512u * at_once) {
        uint4 v[at_once];
#pragma unroll
        for (int n = 0; n < at_once; n++)
            if (base + (uint32_t)n * 512u < bytes)
                v[n] = afdep_load16(from + base + n * 512);
#pragma unroll
        for (int n = 0; n < at_once; n++)
            if (base + (uint32_t)n * 512u < bytes)
                afdep_store16(out + base + n * 512, v[n]);
    }
    return note_piece(r, inbox, u.a, u.token, u.part, words);
}

/* ---- Answers ------------------------------------------------------------------------------------------------------- */

/* To the sources that got none from receive: those with rows here. They may as well hear of it now, since nothing that
   this rank would have to have read for them is open before its reply; and the stream's order has put all of receive
   behind us. */
static __device__ __noinline__ void answer_served(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    uint64_t at = afdep_plane_at(r.peer, s, exchange) + r.peer.answers + 8u * (uint32_t)r.rank;
    for (int a = (int)afdep_lane(); a < s.attention_ranks; a += AFDEP_WARP)
        if (r.served[afdep_plane(s, exchange) * (uint32_t)s.attention_ranks + (uint32_t)a]) {
            afdep_signal64((uint64_t *)(afdep_segment(r, s.ffn_ranks + a) + at), afdep_word((uint32_t)exchange, 0));
            r.counters[s.ffn_ranks + a].signals++;
        }
}

/* ---- Few tokens ---------------------------------------------------------------------------------------------------- */

/* Where a token's reply has its lines: in the source's inbox, and before that perhaps here. */
static __device__ __forceinline__ uint64_t reply_line(const afdep_cuda_rank_t &r, int n, int token, int line)
{
    return (uint64_t)(uint32_t)((n * r.peer.few_tokens + token) * r.peer.reply_line_count + line) * AFDEP_LINE_BYTES +
           afdep_lane() * 16;
}

static __device__ __forceinline__ unsigned char *combine_line(const afdep_cuda_rank_t &r, uint64_t exchange,
                                                              const unit_t &u)
{
    if (u.part == 0 && afdep_lane() == 0)
        atomicAdd(&r.counters[r.shape.ffn_ranks + u.a].rows, 1ull);
    return combine_inbox(r, exchange, u.a) + r.peer.combine_lines + reply_line(r, r.rank, u.token, u.part);
}

/* The last warp of the grid's first CTA answers, the others begin. */
static __device__ __forceinline__ uint64_t enter_few(const afdep_cuda_rank_t &r)
{
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_REPLY);
    if (blockIdx.x == 0 && threadIdx.x / AFDEP_WARP == FEW_THREADS / AFDEP_WARP - 1 && !afdep_poisoned(r))
        answer_served(r, exchange);
    return exchange;
}

/* Sums lines; returns the exchange, as send_lines() does. */
template <bool WEIGHTED, bool SENDERS>
static __device__ __forceinline__ uint64_t sum_lines(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call)
{
    const afdep_shape_t &s = r.shape;
    int senders = SENDERS ? call.senders : 0, cta = (int)blockIdx.x - senders, ctas = (int)gridDim.x - senders;
    int vectors = afdep_reply_vectors(&s), lines = r.peer.reply_line_count,
        units = s.attention_ranks * call.bucket * lines;
    int i = (int)threadIdx.x / AFDEP_WARP * ctas + cta;
    unit_t u = unit_at(s, i, lines); /* worked out while the kernel before ends */
    uint64_t exchange = enter_few(r);
    for (; i < units; i += FEW_THREADS / AFDEP_WARP * ctas, u = unit_at(s, i, lines)) {
        few_terms_t terms = take_few_terms(r, exchange, u.a, u.token);
        if (terms.chosen == 0)
            continue;
        int lane = (int)afdep_lane(), v = u.part * AFDEP_LINE_VECTORS + lane;
        uint4 sum = sum_vector<WEIGHTED>(call.rows, vectors, terms, v, lane < AFDEP_LINE_VECTORS && v < vectors);
        uint4 word = afdep_pack_word(sum, exchange);
        unsigned char *to =
            SENDERS ? r.partial_lines + reply_line(r, u.a, u.token, u.part) : combine_line(r, exchange, u);
        if (afdep_line_uses(lane, vectors - u.part * AFDEP_LINE_VECTORS))
            afdep_store_word(to, word);
    }
    return exchange;
}

/* Sends lines as they stand: they say themselves when they do, here as there. */
static __device__ __forceinline__ uint64_t send_lines(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call)
{
    const afdep_shape_t &s = r.shape;
    int vectors = afdep_reply_vectors(&s), lane = (int)afdep_lane();
    int groups = (r.peer.reply_line_count + LINES_SENT_AT_ONCE - 1) / LINES_SENT_AT_ONCE;
    int units = s.attention_ranks * call.bucket * groups;
    uint64_t exchange = enter_few(r);
    for (int i = (int)threadIdx.x / AFDEP_WARP * call.senders + (int)blockIdx.x; i < units;
         i += FEW_THREADS / AFDEP_WARP * call.senders) {
        unit_t u = unit_at(s, i, groups);
        u.part *= LINES_SENT_AT_ONCE;
        uint32_t needed = 0;
#pragma unroll
        for (int n = 0; n < LINES_SENT_AT_ONCE; n++)
            needed |= (uint32_t)afdep_line_uses(lane, vectors - (u.part + n) * AFDEP_LINE_VECTORS) << n;
        afdep_look_for_t look = { r.partial_lines + reply_line(r, u.a, u.token, u.part),
                                  needed,
                                  AFDEP_CUDA_REPLY,
                                  AFDEP_CUDA_WORD_POSITION,
                                  r.rank,
                                  u.token,
                                  u.part };
        uint4 words[LINES_SENT_AT_ONCE];
        afdep_load_lines<LINES_SENT_AT_ONCE>(look, words); /* a first look, beside the one for the token's rows */
        if (take_few_terms(r, exchange, u.a, u.token).chosen == 0)
            continue;
        if (!afdep_await_lines<LINES_SENT_AT_ONCE>(r, look, exchange, words))
            break;
        unsigned char *to = combine_line(r, exchange, u);
#pragma unroll
        for (int n = 0; n < LINES_SENT_AT_ONCE; n++)
            if (needed >> n & 1)
                afdep_store_word(to + n * AFDEP_LINE_BYTES, words[n]);
    }
    return exchange;
}

/* ---- Renewal ------------------------------------------------------------------------------------------------------- */

/* See afdep_renewal_due(). A unit of work is a slot of a source; what this exchange uses of it is left alone. */
static __device__ __noinline__ void renew(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    int lane = (int)afdep_lane(), few = r.peer.few_tokens, lines = r.peer.reply_line_count;
    int parts = afdep_pieces(&s, AFDEP_PART), in_lines = call.bucket <= few;
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity;
    for (int i = afdep_warp_index(); i < s.attention_ranks * s.capacity; i += afdep_warp_count()) {
        int a = i / s.capacity, token = i - a * s.capacity;
        uint64_t slot = afdep_slot(s, a, token), sent_slot = afdep_slot(s, r.rank, token);
        bool inside = token < call.bucket, sent = inside && take_few_terms(r, exchange, a, token).chosen != 0;
        unsigned char *inbox = combine_inbox(r, exchange, a);
        if (!inside && lane < s.top_k)
            r.positions[(plane + slot) * (uint32_t)s.top_k + (uint32_t)lane] = afdep_word((uint32_t)exchange, 0);
        for (int p = lane; (in_lines || !sent) && p < parts; p += AFDEP_WARP) {
            r.partial_words[slot * (uint32_t)parts + (uint32_t)p] = (uint32_t)exchange;
            if (p < (int)r.peer.pieces)
                afdep_signal32((uint32_t *)(inbox + r.peer.combine_words) + sent_slot * r.peer.pieces + p,
                               (uint32_t)exchange);
        }
        if (token >= few)
            continue;
        if (!in_lines || !sent || call.senders == 0)
            afdep_renew_lines(r.partial_lines +
                                  ((uint64_t)a * (uint32_t)few + (uint32_t)token) * (uint32_t)lines * AFDEP_LINE_BYTES,
                              lines, exchange);
        if (!in_lines || !sent)
            afdep_renew_lines(inbox + r.peer.combine_lines +
                                  ((uint64_t)r.rank * (uint32_t)few + (uint32_t)token) * (uint32_t)lines *
                                      AFDEP_LINE_BYTES,
                              lines, exchange);
    }
}

static __device__ __forceinline__ void finish_reply(const afdep_cuda_rank_t &r, const afdep_cuda_reply_t &call,
                                                    uint64_t exchange)
{
    if (afdep_renewal_due(r.shape, exchange) && !afdep_poisoned(r))
        renew(r, call, exchange);
    if (afdep_leave(r, AFDEP_CUDA_REPLY) && !afdep_poisoned(r))
        afdep_finish(r, AFDEP_CUDA_REPLY, exchange);
}

/* ---- The kernels --------------------------------------------------------------------------------------------------- */

/* SENDERS: some CTAs send what the others sum. */
template <bool WEIGHTED, bool SENDERS>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    reply_few_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_reply_t call)
{
    afdep_prefetch(call.rows);
    uint64_t exchange =
        SENDERS && (int)blockIdx.x < call.senders ? send_lines(r, call) : sum_lines<WEIGHTED, SENDERS>(r, call);
    finish_reply(r, call, exchange);
}

template <bool WEIGHTED>
static __global__ void __launch_bounds__(THREADS, 1)
    reply_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_reply_t call)
{
    __shared__ terms_t all_terms[WARPS];
    __shared__ afdep_rounds<WARPS> rounds;
    terms_t *terms = &all_terms[threadIdx.x / AFDEP_WARP];
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_REPLY);
    const afdep_shape_t &s = r.shape;
    if (__syncthreads_or(afdep_poisoned(r)))
        return;
    if (blockIdx.x == 0 && threadIdx.x / AFDEP_WARP == WARPS - 1)
        answer_served(r, exchange);
    if ((int)blockIdx.x < call.senders) {
        int pieces = afdep_pieces(&s, AFDEP_PIECE), units = s.attention_ranks * call.bucket * pieces;
        afdep_run_rounds<WARPS>(rounds, units, 0, call.senders, exchange, [&](int unit, uint32_t **words) {
            return send_partial(r, call, exchange, unit_at(s, unit, pieces), terms, words);
        });
    } else {
        sum_locally<WEIGHTED>(r, call, exchange, terms);
    }
    finish_reply(r, call, exchange);
}

typedef void (*few_kernel_t)(const afdep_cuda_rank_t, const afdep_cuda_reply_t);

static few_kernel_t few_kernel_of(const afdep_shape_t &s, bool senders)
{
    if (s.apply_weights)
        return senders ? reply_few_kernel<true, true> : reply_few_kernel<true, false>;
    return senders ? reply_few_kernel<false, true> : reply_few_kernel<false, false>;
}

cudaError_t afdep_cuda_launch_reply(const afdep_cuda_rank_t *r, const afdep_cuda_reply_t *call, int grid,
                                    cudaStream_t stream)
{
    if (afdep_in_lines(&r->shape, call->bucket))
        return afdep_launch(few_kernel_of(r->shape, call->senders > 0), grid, FEW_THREADS, 0, stream, *r, *call);
    return r->shape.apply_weights ? afdep_launch(reply_kernel<true>, grid, THREADS, 0, stream, *r, *call)
                                  : afdep_launch(reply_kernel<false>, grid, THREADS, 0, stream, *r, *call);
}

cudaError_t afdep_cuda_prepare_reply(const afdep_shape_t *shape, int *threads)
{
    *threads = THREADS;
    cudaError_t error = shape->apply_weights ? afdep_load(reply_kernel<true>, 0) : afdep_load(reply_kernel<false>, 0);
    if (error == cudaSuccess)
        error = afdep_load(few_kernel_of(*shape, false), 0);
    return error == cudaSuccess ? afdep_load(few_kernel_of(*shape, true), 0) : error;
}
