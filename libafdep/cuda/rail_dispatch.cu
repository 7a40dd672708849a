/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dispatch across domains. A channel's warp sends the tokens of its channel, one row for each FFN domain that
 * owns one of a token's experts, and the finish tail with the last of them; a round (rail_words.cuh) is a channel of
 * every warp. One more warp sends the token counts, before the rows as far as it is up to this rank: they are what lets
 * the receiver retire channels without tokens.
 *
 * Reuse. With sparse combine nothing is stored before every FFN rail peer's done witness of exchange n - G has come,
 * also from those that got no row: inbox and words of that exchange have been read there. Without it, the collect of n
 * - G has seen a combine signal on all C channels of all of them, each sent after that channel's rows and words were
 * read. Rows that were staged here, on a rail without windows, are free by the same words: they have arrived.
 */
#include "cuda/launch.cuh"
#include "cuda/rail_few.cuh"
#include "cuda/rail_source.cuh"

#define THREADS AFDEP_RAIL_THREADS

/* ---- Rows ---------------------------------------------------------------------------------------------------- */

#define HEAD 4 /* 16-byte words of a row that a lane has on their way at once */

/* A lane's part of the first HEAD * 512 bytes of a token's row, its weight and its scale: what can be asked for
   before it is known where it goes, and whether it may. */
typedef struct head {
    uint4 v[HEAD];
    float weight, scale;
} head_t;

static __device__ __forceinline__ void load_words(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, int token,
                                                  uint32_t base, uint4 *v)
{
    const unsigned char *from = (const unsigned char *)d.x + (uint64_t)token * r.layout.row.payload_bytes;
    uint32_t at = base + afdep_lane() * 16u;
#pragma unroll
    for (int i = 0; i < HEAD; i++)
        if (at + (uint32_t)i * 512u < r.layout.row.payload_bytes)
            v[i] = __ldg((const uint4 *)(from + at + i * 512));
}

static __device__ __forceinline__ head_t load_head(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, int token)
{
    head_t head;
    int lane = (int)afdep_lane(), k = r.c.shape.top_k, blocks = (int)r.layout.row.scale_bytes / 4;
    load_words(r, d, token, 0, head.v);
    head.weight = lane < k ? d.weights[(int64_t)token * k + lane] : 0;
    head.scale = lane < blocks ? d.x_scale[token * d.scale_token_stride + lane * d.scale_block_stride] : 0;
    return head;
}

/* Builds a token's row at the places of the lanes in `domains` (a lane is an FFN domain). */
static __device__ void build_row(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange, int token,
                                 int choice, uint32_t domains, unsigned char *place, const head_t &head)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_row_format_t &f = r.layout.row;
    uint32_t lane = afdep_lane();
    int blocks = (int)f.scale_bytes / 4;
    uint4 v[HEAD];
#pragma unroll
    for (int i = 0; i < HEAD; i++)
        v[i] = head.v[i];
    for (uint32_t base = 0; base < f.payload_bytes; base += 512u * HEAD) {
        uint32_t at = base + lane * 16u;
        if (base > 0)
            load_words(r, d, token, base, v);
        for (uint32_t left = domains; left; left &= left - 1) {
            unsigned char *to = (unsigned char *)__shfl_sync(AFDEP_FULL, (unsigned long long)place, __ffs((int)left) - 1);
#pragma unroll
            for (int i = 0; i < HEAD; i++)
                if (at + (uint32_t)i * 512u < f.payload_bytes)
                    afdep_store16(to + at + i * 512, v[i]);
        }
    }
    for (uint32_t left = domains; left; left &= left - 1) {
        unsigned char *to = (unsigned char *)__shfl_sync(AFDEP_FULL, (unsigned long long)place, __ffs((int)left) - 1);
        if ((int)lane < blocks)
            ((float *)(to + f.scale_offset))[lane] = head.scale;
        for (int b = (int)lane + AFDEP_WARP; b < blocks; b += AFDEP_WARP)
            ((float *)(to + f.scale_offset))[b] = d.x_scale[token * d.scale_token_stride + b * d.scale_block_stride];
        if (lane == 0)
            *(uint4 *)(to + f.tag_offset) = make_uint4((uint32_t)exchange, (uint32_t)token, (uint32_t)r.c.rank, (uint32_t)d.cached);
        if ((int)lane < s.top_k) {
            ((int32_t *)(to + f.ids_offset))[lane] = choice;
            ((float *)(to + f.weights_offset))[lane] = head.weight;
        }
    }
}

/* A channel under way; a lane holds what belongs to its FFN domain. */
typedef struct lane_state {
    uint64_t tail, next; /* finish tail as last written, and as it will be */
    uint32_t sent, placed;
} lane_state_t;

/* Sends one token's row to the FFN domains in `domains`. */
static __device__ void put_token(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange,
                                 int channel, int token, int choice, uint32_t domains, const head_t &head,
                                 lane_state_t &l, const afdep_rail_round_t &round)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    uint64_t plane = afdep_ffn_plane(r, exchange);
    int m = (int)afdep_lane();
    bool mine = domains >> m & 1;
    uint64_t offset = plane + afdep_at_rail_row(&r.layout.ffn, &r.layout, &s, r.source_domain, channel, (int)l.placed);
    unsigned char *place = mine ? rail.window(m, offset) : NULL;
    uint32_t staged = __ballot_sync(AFDEP_FULL, mine && !place);
    if (mine && !place)
        place = r.staging + ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token) * r.layout.row.stride;
    build_row(r, d, exchange, token, choice, (domains & ~staged) | (staged & (0u - staged)), place, head); /* staged once for all */
    uint64_t word = plane + afdep_at_finish_tail(&r.layout.ffn, &s, r.source_domain, channel);
    for (uint32_t left = domains; left; left &= left - 1) {
        int to = __ffs((int)left) - 1;
        const unsigned char *row = (const unsigned char *)__shfl_sync(AFDEP_FULL, (unsigned long long)place, to);
        uint64_t at = __shfl_sync(AFDEP_FULL, (unsigned long long)offset, to);
        uint64_t tail = __shfl_sync(AFDEP_FULL, (unsigned long long)l.tail, to);
        uint64_t next = __shfl_sync(AFDEP_FULL, (unsigned long long)l.next, to);
        if (__shfl_sync(AFDEP_FULL, l.placed + 1 == l.sent, to))
            rail.put_signal(AFDEP_RAIL_FINISH_TAIL, channel, to, at, row, r.layout.row.bytes, word, tail, next, round);
        else
            rail.put(channel, to, at, row, r.layout.row.bytes);
    }
    l.placed += mine;
}

/* source_dispatch: all tokens of one channel, and its finish tails. */
static __device__ bool send_channel(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange,
                                    int channel, bool *gate, const afdep_rail_round_t &round)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    int first = afdep_channel_first(&s, r.source_domain, channel), m = (int)afdep_lane(), choice;
    bool mine = m < s.ffn_domains;
    uint64_t at = afdep_at_target(r, exchange, mine ? m : 0, channel);
    lane_state_t l = { 0, 0, 0, 0 };
    uint64_t awaited = 0;
    head_t head = {};
    if (first < d.tokens)
        head = load_head(r, d, first);
    if (mine) {
        l.tail = r.finish_tails[at];
        awaited = r.combine_tails[at];
    }
    uint32_t domains = 0;
    for (int token = first; token < d.tokens; token += s.channels) {
        domains = take_token(r, d, token, &choice);
        l.sent += domains >> m & 1;
        note_token(r, d, exchange, token, choice, domains);
    }
    l.next = afdep_tail_advance(l.tail, 1, l.sent);
    if (!*gate && !(*gate = wait_witnesses(r, exchange)))
        return false;
    for (int token = first; token < d.tokens; token += s.channels) {
        if (first + s.channels < d.tokens) { /* one of several: the last of them is what is at hand */
            domains = take_token(r, d, token, &choice);
            head = load_head(r, d, token);
        }
        put_token(r, d, exchange, channel, token, choice, domains, head, l, round);
    }
    /* A channel that carries no row to a domain still finishes there: in the dense protocol always, in the sparse
       one when it was assigned a token, as the receiver knows from T. */
    for (uint32_t left = __ballot_sync(AFDEP_FULL, mine && l.sent == 0); left; left &= left - 1) {
        int to = __ffs((int)left) - 1;
        rail.signal(AFDEP_RAIL_FINISH_TAIL, channel, to,
                    afdep_ffn_plane(r, exchange) + afdep_at_finish_tail(&r.layout.ffn, &s, r.source_domain, channel),
                    __shfl_sync(AFDEP_FULL, (unsigned long long)l.tail, to),
                    __shfl_sync(AFDEP_FULL, (unsigned long long)l.next, to));
    }
    if (mine) {
        r.finish_tails[at] = l.next;
        if (l.sent > 0 || !s.sparse_combine)
            r.combine_tails[at] = afdep_tail_advance(awaited, 1, l.sent);
    }
    return true;
}

/* count: this source's token count to every FFN rail peer, a lane each. */
static __device__ void send_counts(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange, bool *gate)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    if (!*gate && !(*gate = wait_witnesses(r, exchange)))
        return;
    int m = (int)afdep_lane();
    if (m >= s.ffn_domains)
        return;
    uint64_t *last = &r.count_words[afdep_plane(s, exchange) * (uint32_t)s.ffn_domains + (uint32_t)m];
    uint64_t value = afdep_word((uint32_t)exchange, (uint32_t)d.tokens);
    rail.say(AFDEP_RAIL_COUNT_WORD, m, afdep_ffn_plane(r, exchange) + afdep_at_count_word(&r.layout.ffn, r.source_domain),
             *last, value);
    *last = value;
}

/* Sparse dispatch without sparse combine: channels without tokens are not served here, and signal all the same. */
static __device__ void await_unserved(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    for (int i = (int)(blockIdx.x * THREADS + threadIdx.x); i < s.ffn_domains * s.channels; i += (int)gridDim.x * THREADS) {
        int target = i / s.channels, channel = i - target * s.channels;
        if (afdep_channel_tokens(&s, r.source_domain, d.tokens, channel) > 0)
            continue;
        uint64_t *awaited = &r.combine_tails[afdep_at_target(r, exchange, target, channel)];
        *awaited = afdep_tail_advance(*awaited, 1, 0);
    }
}

/* ---- The kernel ---------------------------------------------------------------------------------------------- */

/* PLAIN: neither cached nor in two kernels. */
template <bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 1)
    rail_dispatch_kernel(const __grid_constant__ afdep_rail_kernel_rank_t r, const __grid_constant__ afdep_cuda_dispatch_t given)
{
    __shared__ afdep_rail_words_t words;
    afdep_rail_round_t round = afdep_rail_first_round(&words);
    uint64_t exchange = afdep_enter(r.c, AFDEP_CUDA_DISPATCH);
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    afdep_cuda_dispatch_t own = given;
    const afdep_cuda_dispatch_t &d = PLAIN ? given : own;
    int channels = s.sparse_dispatch ? min(d.tokens, s.channels) : s.channels, warps = afdep_warp_count();
    int base = afdep_channel_base(&s, r.source_domain), warp = afdep_warp_index();
    bool gate = false;
    if (!PLAIN) {
        if (!(gate = sends(r, d, exchange)))
            return;
        own.ids = d.cached ? taken_ids(r, exchange, 0) : d.ids;
    }
    __syncthreads(); /* there are rounds to send in */
    if (s.sparse_dispatch && warp == warps - 1)
        send_counts(r, d, exchange, &gate);
    /* Channels in the order of their first tokens, so that what comes first goes first; a round for each that a warp
       has. */
    for (int i = 0; i < channels; i += warps) {
        if (i + warp < channels && !send_channel(r, d, exchange, (base + i + warp) % s.channels, &gate, round))
            break;
        if (!rail.publish(round))
            break;
    }
    if (s.sparse_dispatch && !s.sparse_combine)
        await_unserved(r, d, exchange);
    afdep_few_renew_combine(r, exchange);
    if (blockIdx.x == gridDim.x - 1)
        afdep_carry_load(r.c, exchange);
    if (!afdep_leave(r.c, AFDEP_CUDA_DISPATCH) || afdep_poisoned(r.c))
        return;
    *afdep_load_source(r.c, exchange, 0) = (uint32_t)d.tokens;
    afdep_publish_bad_route(r.c, exchange);
    afdep_finish(r.c, AFDEP_CUDA_DISPATCH, exchange);
}

cudaError_t AFDEP_RAIL_NAME(launch_dispatch)(const afdep_rail_rank_t *r, const afdep_cuda_dispatch_t *d, int grid,
                                       cudaStream_t stream)
{
    return d->stage == AFDEP_CUDA_SEND && !d->cached
               ? afdep_launch_apart(rail_dispatch_kernel<true>, grid, THREADS, 0, stream, afdep_rail_kernel_rank(*r), *d)
               : afdep_launch_apart(rail_dispatch_kernel<false>, grid, THREADS, 0, stream, afdep_rail_kernel_rank(*r), *d);
}

cudaError_t AFDEP_RAIL_NAME(prepare_dispatch)(const afdep_shape_t *)
{
    cudaError_t error = afdep_load(rail_dispatch_kernel<true>, 0);
    return error == cudaSuccess ? afdep_load(rail_dispatch_kernel<false>, 0) : error;
}
