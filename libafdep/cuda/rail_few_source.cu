/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dispatch and source_collect of few tokens across domains, see rail_few.cuh.
 *
 * Dispatch: a unit of work, one warp, is the tail lines of a token of the bucket, some lines of a token's payload, or the
 * words of a channel, in that order. Collect: a unit is a line of a token, summed over FFN domains in order.
 */
#include "cuda/rail_few.cuh"
#include "cuda/rail_source.cuh"
#include "cuda/sum.cuh"

#define THREADS AFDEP_RAIL_FEW_SOURCE_THREADS

/* ---- dispatch: rows ------------------------------------------------------------------------------------------------ */

/* Stores words of a token's lines, from `line` on, to the rail peers of `domains`; the lane's, that `used` has bits for. */
template <int LINES>
static __device__ __forceinline__ void put_words(const afdep_rail_rank_t &r, uint64_t exchange, int token, int line,
                                                 uint32_t domains, uint32_t used, const uint4 (&words)[LINES])
{
    const afdep_peer_rail rail = { r };
    uint64_t offset = afdep_few_row(r.c.peer, r.c.shape, exchange, r.c.role_index, token, line);
    for (uint32_t left = domains; left; left &= left - 1) {
        unsigned char *to = rail.window(__ffs((int)left) - 1, offset);
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (used >> i & 1)
                afdep_store_word(to + i * AFDEP_LINE_BYTES, words[i]);
    }
}

/* Lines of a token's payload from `first` on. */
static __device__ __forceinline__ bool put_lines(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange,
                                                 int token, int first, bool *gate)
{
    int lane = (int)afdep_lane(), vectors = afdep_row_vectors(&r.c.shape), choice;
    const uint4 *x = (const uint4 *)d.x + (uint64_t)token * (uint32_t)vectors + first * AFDEP_LINE_VECTORS + lane;
    int left = lane < AFDEP_LINE_VECTORS ? vectors - first * AFDEP_LINE_VECTORS - lane : 0;
    uint4 words[FEW_AT_ONCE];
    uint32_t used = 0;
#pragma unroll
    for (int i = 0; i < FEW_AT_ONCE; i++) {
        if (left > i * AFDEP_LINE_VECTORS)
            words[i] = __ldg(x + i * AFDEP_LINE_VECTORS);
        used |= (uint32_t)afdep_line_uses(lane, vectors - (first + i) * AFDEP_LINE_VECTORS) << i;
    }
    uint32_t domains = take_token(r, d, token, &choice);
    if (!*gate && !(*gate = wait_witnesses(r, exchange)))
        return false;
#pragma unroll
    for (int i = 0; i < FEW_AT_ONCE; i++)
        words[i] = afdep_pack_word(words[i], exchange);
    put_words(r, exchange, token, first, domains, used, words);
    return true;
}

/* A tail line: scales, and with the first the weights and, to every FFN domain, the choices: also of tokens that there are
   not. */
static __device__ __forceinline__ bool put_tail(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange,
                                                int token, int tail, bool *gate)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane(), i = tail * AFDEP_WARP + lane, choice = -1;
    int line = afdep_lines(afdep_row_vectors(&s)) + tail;
    uint32_t domains = 0, everywhere = tail > 0 ? 0 : 0xFFFFFFFFu >> (32 - s.ffn_domains);
    float scale = 0, weight = 0;
    if (token < d.tokens) {
        scale = i < afdep_scales(&s) ? d.x_scale[token * d.scale_token_stride + i * d.scale_block_stride] : 0;
        weight = i < s.top_k ? d.weights[(int64_t)token * s.top_k + i] : 0;
        domains = take_token(r, d, token, &choice);
    }
    if (!*gate && !(*gate = wait_witnesses(r, exchange)))
        return false;
    uint32_t id = 0;
    if (tail == 0 && lane < s.top_k)
        id = afdep_rail_route_low(d.bucket, token < d.tokens ? choice : AFDEP_ROUTE_ABSENT, d.cached);
    uint4 words[1] = { make_uint4(__float_as_uint(scale), __float_as_uint(weight), id, (uint32_t)exchange) };
    put_words(r, exchange, token, line, domains, i < afdep_tail_words(&s), words);
    put_words(r, exchange, token, line, everywhere & ~domains, lane < s.top_k, words);
    if (tail == 0 && (domains >> lane & 1)) {
        const afdep_peer_rail rail = { r };
        rail.count_put(lane, r.layout.row.bytes);
    }
    return true;
}

/* ---- dispatch: words ----------------------------------------------------------------------------------------------- */

/* The finish tails of a channel, a lane for each FFN domain; notes where its tokens go. */
static __device__ __forceinline__ bool put_channel(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                   uint64_t exchange, int channel, bool *gate)
{
    const afdep_shape_t &s = r.c.shape;
    int m = (int)afdep_lane(), choice;
    bool mine = m < s.ffn_domains;
    uint64_t at = afdep_at_target(r, exchange, mine ? m : 0, channel);
    uint32_t sent = 0;
    for (int token = afdep_channel_first(&s, r.source_domain, channel); token < d.tokens; token += s.channels) {
        uint32_t domains = take_token(r, d, token, &choice);
        sent += domains >> m & 1;
        note_token(r, d, exchange, token, choice, domains);
    }
    if (!*gate && !(*gate = wait_witnesses(r, exchange)))
        return false;
    if (mine) {
        uint64_t next = r.finish_tails[at] = afdep_tail_advance(r.finish_tails[at], 1, sent);
        if (sent > 0)
            r.combine_tails[at] = afdep_tail_advance(r.combine_tails[at], 1, sent);
        afdep_few_say(r, AFDEP_RAIL_FINISH_TAIL, m,
                      afdep_ffn_plane(r, exchange) + afdep_at_finish_tail(&r.layout.ffn, &s, r.source_domain, channel), next);
    }
    return true;
}

static __device__ __forceinline__ bool put_counts(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange,
                                                  bool *gate)
{
    const afdep_shape_t &s = r.c.shape;
    int m = (int)afdep_lane();
    if (!*gate && !(*gate = wait_witnesses(r, exchange)))
        return false;
    if (m < s.ffn_domains) {
        uint64_t value = afdep_word((uint32_t)exchange, (uint32_t)d.tokens);
        r.count_words[afdep_plane(s, exchange) * (uint32_t)s.ffn_domains + (uint32_t)m] = value;
        afdep_few_say(r, AFDEP_RAIL_COUNT_WORD, m,
                      afdep_ffn_plane(r, exchange) + afdep_at_count_word(&r.layout.ffn, r.source_domain), value);
    }
    return true;
}

/* A warp's work of a dispatch, in the order in which it is done. */
typedef struct piece {
    enum { TAIL, LINES, CHANNEL, COUNTS, NONE } kind;
    int token, part; /* of a channel: part, which of those with tokens */
} piece_t;

static __device__ __forceinline__ piece_t piece_at(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, int n)
{
    const afdep_shape_t &s = r.c.shape;
    int tail_lines = afdep_tail_lines(&s), groups = (afdep_lines(afdep_row_vectors(&s)) + FEW_AT_ONCE - 1) / FEW_AT_ONCE;
    int tails = d.bucket * tail_lines, rows = tails + d.tokens * groups, words = rows + min(d.tokens, s.channels);
    if (n >= rows)
        return { n < words ? piece_t::CHANNEL : n == words ? piece_t::COUNTS : piece_t::NONE, 0, n - rows };
    int of = n < tails ? n : n - tails, each = n < tails ? tail_lines : groups, token = each == 1 ? of : of / each;
    return { n < tails ? piece_t::TAIL : piece_t::LINES, token, of - token * each };
}

/* PLAIN: neither cached nor in two kernels. */
template <bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 1)
    rail_dispatch_few_kernel(const __grid_constant__ afdep_rail_rank_t r, const __grid_constant__ afdep_cuda_dispatch_t given)
{
    const afdep_shape_t &s = r.c.shape;
    afdep_cuda_dispatch_t own = given;
    const afdep_cuda_dispatch_t &d = PLAIN ? given : own;
    int n = afdep_warp_index(), base = afdep_channel_base(&s, r.source_domain);
    bool gate = false, fine = true;
    uint64_t exchange;
    piece_t p = piece_at(r, d, n); /* worked out, and asked for, while the kernel before ends */
    if (PLAIN) {
        if (p.token < d.tokens && p.kind <= piece_t::LINES) {
            afdep_prefetch(d.ids + (int64_t)p.token * s.top_k);
            afdep_prefetch((const unsigned char *)d.x + (uint64_t)p.token * r.layout.row.payload_bytes);
        }
        exchange = afdep_few_enter(r, AFDEP_CUDA_DISPATCH,
                                   [&](uint64_t e) { gate = p.kind != piece_t::NONE && wait_witnesses(r, e); });
    } else {
        exchange = afdep_few_enter_late(r, AFDEP_CUDA_DISPATCH);
        if (!(gate = sends(r, d, exchange)))
            return;
        own.ids = d.cached ? taken_ids(r, exchange, 0) : d.ids;
    }
    for (; fine && p.kind != piece_t::NONE; n += afdep_warp_count(), p = piece_at(r, d, n)) {
        if (p.kind == piece_t::TAIL)
            fine = put_tail(r, d, exchange, p.token, p.part, &gate);
        else if (p.kind == piece_t::LINES)
            fine = put_lines(r, d, exchange, p.token, p.part * FEW_AT_ONCE, &gate);
        else if (p.kind == piece_t::CHANNEL)
            fine = put_channel(r, d, exchange, (base + p.part) % s.channels, &gate);
        else
            fine = put_counts(r, d, exchange, &gate);
    }
    afdep_few_renew_combine(r, exchange);
    if (blockIdx.x == gridDim.x - 1)
        afdep_carry_load(r.c, exchange);
    if (!afdep_leave(r.c, AFDEP_CUDA_DISPATCH) || afdep_poisoned(r.c))
        return;
    *afdep_load_source(r.c, exchange, 0) = (uint32_t)d.tokens;
    afdep_publish_bad_route(r.c, exchange);
    afdep_finish(r.c, AFDEP_CUDA_DISPATCH, exchange);
}

/* ---- collect ------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ bool collect_line(const afdep_rail_rank_t &r, const afdep_cuda_collect_t &call,
                                                    uint64_t exchange, int token, int line, uint32_t domains)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane(), vectors = afdep_reply_vectors(&s), v = line * AFDEP_LINE_VECTORS + lane;
    uint32_t needed = (uint32_t)afdep_line_uses(lane, vectors - line * AFDEP_LINE_VECTORS);
    uint4 words[1] = {};
    afdep_sum_t sum;
    for (uint32_t left = domains; left; left &= left - 1) {
        int m = __ffs((int)left) - 1;
        afdep_look_for_t look = { r.c.base + afdep_few_combine(r.c.own, s, exchange, m, token, line), needed,
                                  AFDEP_CUDA_COLLECT, AFDEP_CUDA_WORD_COMBINE, afdep_link_rank(r, m), token, line };
        afdep_load_lines<1>(look, words);
        if (!afdep_await_lines<1>(r.c, look, exchange, words))
            return false;
        words[0] = afdep_unpack_word(words[0]);
        if (left == domains)
            afdep_sum_first<false>(sum, words[0], 1.0f);
        else
            afdep_sum_add<false>(sum, words[0], 1.0f);
    }
    if ((domains & (domains - 1)) != 0) /* one is copied bit for bit, and none is +0 */
        words[0] = afdep_sum_round(sum);
    if (lane < AFDEP_LINE_VECTORS && v < vectors)
        ((uint4 *)call.out)[(uint64_t)token * (uint32_t)vectors + (uint32_t)v] = words[0];
    return true;
}

static __global__ void __launch_bounds__(THREADS, 1)
    rail_collect_few_kernel(const __grid_constant__ afdep_rail_rank_t r, const __grid_constant__ afdep_cuda_collect_t call)
{
    const afdep_shape_t &s = r.c.shape;
    int lines = r.c.own.reply_line_count, units = call.tokens * lines;
    uint64_t exchange = afdep_few_enter(r, AFDEP_CUDA_COLLECT, [](uint64_t) {});
    const uint32_t *targets = r.targets + (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity;
    bool fine = !afdep_poisoned(r.c);
    for (int unit = afdep_warp_index(); fine && unit < units; unit += afdep_warp_count()) {
        int token = unit / lines;
        fine = collect_line(r, call, exchange, token, unit - token * lines, targets[token]);
    }
    afdep_few_leave(r, AFDEP_CUDA_COLLECT, exchange);
}

/* ---- Launching ----------------------------------------------------------------------------------------------------- */

cudaError_t afdep_rail_launch_dispatch_few(const afdep_rail_rank_t *r, const afdep_cuda_dispatch_t *d, int grid,
                                           cudaStream_t stream)
{
    return d->stage == AFDEP_CUDA_SEND && !d->cached
               ? afdep_few_launch(rail_dispatch_few_kernel<true>, grid, THREADS, 0, stream, *r, *d)
               : afdep_few_launch(rail_dispatch_few_kernel<false>, grid, THREADS, 0, stream, *r, *d);
}

cudaError_t afdep_rail_launch_collect_few(const afdep_rail_rank_t *r, const afdep_cuda_collect_t *call, int grid,
                                          cudaStream_t stream)
{
    return afdep_few_launch(rail_collect_few_kernel, grid, THREADS, 0, stream, *r, *call);
}

cudaError_t afdep_rail_prepare_few_source(const afdep_shape_t *)
{
    cudaError_t error = afdep_load(rail_dispatch_few_kernel<true>, 0);
    if (error == cudaSuccess)
        error = afdep_load(rail_dispatch_few_kernel<false>, 0);
    return error == cudaSuccess ? afdep_load(rail_collect_few_kernel, 0) : error;
}
