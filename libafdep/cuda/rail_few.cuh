/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few tokens across domains, in the sparse protocol, on a rail that carries 16-byte words whole: rows travel in lines
 * (lines.cuh) over every hop, and no hop waits for a fence, a tail or a meeting.
 *
 *   source -> rail rank    lines of the row; the tail line's words also carry the token's choices, and go to every FFN domain
 *                          for every token of the bucket, so that nobody waits for rows that were never sent
 *   rail rank -> domain    choices, packed, to all ranks of the domain; lines of the row, to those that own experts. This
 *                          rank itself reads the lines as they came
 *   domain -> rail rank    lines of partials
 *   rail rank -> source    lines of the domain's sum
 *
 * All words of the sparse protocol are written as ever, in the same number, so that exchanges of few and of many tokens may
 * follow each other in any order. Here they publish nothing: no fence stands before them, and only the witness is waited for.
 * What they would say is known from the lines. An exchange of many tokens may so find words of earlier ones still on their
 * way, see afdep_rail_tag_state().
 *
 * Reuse, beside what rail_dispatch.cu and rail_reply.cu say of theirs. The done witness leaves with the reply: by then, as the
 * stream orders it, all lines of the exchange have been read here. Choice words and lines of a domain peer may be one exchange
 * ahead of a rank that owes it no reply, and not two, as every receive takes the choices of all rails: for that the area has
 * twice the planes. Lines for another rank of the domain are written for rows that it owes a partial for.
 *
 * Kernels. A CTA is counted as a whole SM (rail_open.c). One that takes at most half of its rank's share lets the next begin
 * before it ends, and one of that size may so begin: then two of them are inside the share.
 */
#ifndef AFDEP_CUDA_RAIL_FEW_CUH
#define AFDEP_CUDA_RAIL_FEW_CUH

#include "cuda/launch.cuh"
#include "cuda/lines.cuh"
#include "cuda/rail.cuh"

#define FEW_AT_ONCE 4 /* lines that a warp carries at once */

/* ---- Kernels ------------------------------------------------------------------------------------------------------- */

/*
 * The number of the exchange, as afdep_enter() has it in one domain: with one in flight dispatch and reply alone count, may
 * look before the kernel before them has ended, and then tell `early`; receive and collect go by their numbers and end without
 * meeting. With several in flight each call counts for itself.
 */
template <typename Early> __device__ __forceinline__ uint64_t afdep_few_enter(const afdep_rail_rank_t &r, int call, Early early)
{
    bool alone = r.c.shape.in_flight == 1, counts = call == AFDEP_CUDA_DISPATCH || call == AFDEP_CUDA_REPLY;
    int counted = counts || !alone ? call : call == AFDEP_CUDA_COLLECT ? AFDEP_CUDA_DISPATCH : AFDEP_CUDA_REPLY;
    const volatile uint64_t *at = &r.c.state->count[counted];
    uint64_t before = 0;
    if (alone && counts) {
        before = *at;
        early(before + 1);
    }
    afdep_await_previous();
    if ((int)gridDim.x <= r.few_ctas)
        afdep_let_next_start();
    if (!alone || !counts)
        before = *at;
    return before + (alone && call == AFDEP_CUDA_COLLECT ? 0 : 1);
}

/* The end of a receive or collect: what their own numbers are is for kernels of many tokens, and for the host. With one in
   flight the last CTA says so, which also tells what the host reads with the number. */
__device__ __forceinline__ void afdep_few_leave(const afdep_rail_rank_t &r, int call, uint64_t exchange)
{
    bool last = false;
    if (r.c.shape.in_flight > 1) {
        last = afdep_rail_leave(r, call);
    } else if (blockIdx.x == gridDim.x - 1) {
        __syncthreads();
        last = threadIdx.x == 0;
    }
    if (last && !afdep_poisoned(r.c))
        afdep_finish(r.c, call, exchange);
}

/* The same for a kernel that may follow one of its own kind: the last one may count. */
__device__ __forceinline__ uint64_t afdep_few_enter_late(const afdep_rail_rank_t &r, int call)
{
    afdep_await_previous();
    if ((int)gridDim.x <= r.few_ctas)
        afdep_let_next_start();
    return *(const volatile uint64_t *)&r.c.state->count[call] + 1;
}

template <typename Argument>
static inline cudaError_t afdep_few_launch(void (*kernel)(afdep_rail_rank_t, Argument), int grid, int threads, size_t shared,
                                           cudaStream_t stream, const afdep_rail_rank_t &r, const Argument &call)
{
    return afdep_launch_as(grid <= r.few_ctas, kernel, grid, threads, shared, stream, r, call);
}

/* ---- Places: offsets in a segment, of this lane's word ------------------------------------------------------------- */

__device__ __forceinline__ uint64_t afdep_line_at(uint64_t area, uint32_t line)
{
    return area + (uint64_t)line * AFDEP_LINE_BYTES + afdep_lane() * 16;
}

/* Line `line` of the row of a token of Attention rank `a`. */
__device__ __forceinline__ uint64_t afdep_few_row(const afdep_device_layout_t &l, const afdep_shape_t &s, uint64_t exchange,
                                                  int a, int token, int line)
{
    return afdep_line_at(afdep_plane_at(l, s, exchange) + l.row_lines,
                         (uint32_t)((a * l.few_tokens + token) * l.row_line_count + line));
}

/* Of what the rank of `rail` sums for a token of the source of `source` on the owner's rail. */
__device__ __forceinline__ uint64_t afdep_few_partial(const afdep_device_layout_t &l, const afdep_shape_t &s,
                                                      uint64_t exchange, int rail, int source, int token, int line)
{
    return afdep_line_at(afdep_plane_at(l, s, exchange) + l.partial_lines,
                         (uint32_t)(((rail * s.attention_domains + source) * l.few_tokens + token) * l.reply_line_count + line));
}

/* Of the sum of FFN domain `target` for a token. */
__device__ __forceinline__ uint64_t afdep_few_combine(const afdep_device_layout_t &l, const afdep_shape_t &s,
                                                      uint64_t exchange, int target, int token, int line)
{
    return afdep_line_at(afdep_plane_at(l, s, exchange) + l.combine_lines,
                         (uint32_t)((target * l.few_tokens + token) * l.reply_line_count + line));
}

/* ---- Words that publish nothing here ------------------------------------------------------------------------------- */

__device__ __forceinline__ void afdep_few_say(const afdep_rail_rank_t &r, afdep_rail_signal_t kind, int link, uint64_t word,
                                              uint64_t value)
{
    const afdep_peer_rail rail = { r };
    afdep_signal64((uint64_t *)rail.window(link, word), value);
    atomicAdd(&r.counters[afdep_link_rank(r, link)].signals[kind], 1ull);
}

/* ---- Renewal ------------------------------------------------------------------------------------------------------- */

/*
 * See afdep_renewal_due(). Here the owner of lines renews them, in two rounds that follow each other, since a plane is used
 * in every other one: all lines of an area that it has read and that nobody writes yet.
 */
__device__ __forceinline__ bool afdep_few_renewal_due(const afdep_rail_rank_t &r, uint64_t exchange)
{
    return r.few_tokens > 0 && (afdep_round(r.c.shape, exchange) >> 1 & 0x7FFFFFu) == 0x7FFFFFu && !afdep_poisoned(r.c);
}

static __device__ __noinline__ void afdep_few_renew(const afdep_rail_rank_t &r, uint64_t area, uint64_t lines,
                                                    uint64_t exchange)
{
    unsigned char *at = r.c.base + afdep_plane_at(r.c.own, r.c.shape, exchange) + area;
    for (uint64_t i = (uint64_t)afdep_warp_index(); i < lines; i += (uint64_t)afdep_warp_count())
        afdep_renew_lines(at + i * AFDEP_LINE_BYTES, 1, exchange);
}

/* By a dispatch: replies of the exchange before on the other plane, which was collected. */
__device__ __forceinline__ void afdep_few_renew_combine(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_device_layout_t &l = r.c.own;
    if (afdep_few_renewal_due(r, exchange))
        afdep_few_renew(r, l.combine_lines, (uint64_t)r.c.shape.ffn_domains * l.few_tokens * l.reply_line_count,
                        exchange - (uint64_t)r.c.shape.in_flight);
}

/* By a receive: partials of the exchange before on the other plane, which was replied to. */
__device__ __forceinline__ void afdep_few_renew_partials(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_device_layout_t &l = r.c.own;
    if (afdep_few_renewal_due(r, exchange))
        afdep_few_renew(r, l.partial_lines,
                        (uint64_t)s.ranks_per_domain * s.attention_domains * l.few_tokens * l.reply_line_count,
                        exchange - (uint64_t)s.in_flight);
}

/* By a reply: rows and choices of its exchange, which was received. They are written again when this rank has told its own
   choices of the next exchange. */
__device__ __forceinline__ void afdep_few_renew_rows(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_device_layout_t &l = r.c.own;
    if (!afdep_few_renewal_due(r, exchange))
        return;
    uint64_t choice_bytes = (uint64_t)s.attention_ranks * l.few_tokens * afdep_choice_words(&s) * 16u;
    afdep_few_renew(r, l.row_lines, (uint64_t)s.attention_ranks * l.few_tokens * l.row_line_count, exchange);
    afdep_few_renew(r, l.choice_words, (choice_bytes + AFDEP_LINE_BYTES - 1) / AFDEP_LINE_BYTES, exchange); /* regions end so */
}

#endif
