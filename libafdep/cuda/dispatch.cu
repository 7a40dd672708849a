/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dispatch. The choices of all tokens, checked, go as words to every FFN rank; the rows go to every FFN rank that
 * owns one of their experts. Few tokens: a warp takes a few lines of a row, which say themselves that they are there. Many:
 * in rounds, a unit of work is a piece of a row, and a word says that it is there.
 *
 * Reuse: nothing is stored before every FFN rank has answered exchange n - G, also those that got no row: the answer
 * says that words, routes and rows of that exchange were read there.
 */
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/lines.cuh"
#include "cuda/load.cuh"
#include "cuda/rounds.cuh"

#define THREADS 1024
#define WARPS (THREADS / AFDEP_WARP)
#define FEW_THREADS 768
#define LINES_AT_ONCE 4 /* a warp takes of a row: on their way together */

/* A lane of the warp waits for the answers of FFN ranks lane, lane + 32, ... */
static __device__ __noinline__ bool wait_answers(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    const uint64_t *answers = (const uint64_t *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.answers);
    uint32_t want = (uint32_t)(exchange - (uint64_t)s.in_flight);
    bool fine = true, poisoned = afdep_poisoned(r);
    for (int f = (int)afdep_lane(); fine && f < s.ffn_ranks; f += AFDEP_WARP) {
        afdep_patience_t patience = { 0, 0 };
        for (;;) {
            uint32_t seen = afdep_word_high(afdep_load_acquire64(&answers[f]));
            if ((int32_t)(seen - want) >= 0)
                break;
            if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
                afdep_look(r, patience, AFDEP_CUDA_DISPATCH, AFDEP_CUDA_WORD_ANSWER, exchange, f, -1, -1, want, seen)) {
                fine = false;
                break;
            }
        }
    }
    return __all_sync(AFDEP_FULL, fine && !poisoned);
}

/* One look at the answers, by a warp. */
static __device__ bool answers_are_here(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const uint64_t *answers = (const uint64_t *)(r.base + afdep_plane_at(r.own, r.shape, exchange) + r.own.answers);
    uint32_t want = (uint32_t)(exchange - (uint64_t)r.shape.in_flight);
    bool here = true;
    for (int f = (int)afdep_lane(); here && f < r.shape.ffn_ranks; f += AFDEP_WARP)
        here = (int32_t)(afdep_word_high(afdep_load_acquire64(&answers[f])) - want) >= 0;
    return __all_sync(AFDEP_FULL, here);
}

static __device__ bool sends(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange)
{
    return afdep_sends(
        r, d.stage, exchange, [&]() { return answers_are_here(r, exchange); }, [&]() { return wait_answers(r, exchange); });
}

/* Once per warp. */
static __device__ __forceinline__ bool pass_gate(const afdep_cuda_rank_t &r, uint64_t exchange, bool *gate)
{
    if (!*gate)
        *gate = wait_answers(r, exchange);
    return *gate;
}

/* ---- Routes -------------------------------------------------------------------------------------------------- */

/* Warps of work that the choices are: each takes as many whole tokens as it has lanes for. */
static __host__ __device__ __forceinline__ int route_units(const afdep_shape_t &s, int bucket)
{
    int each = AFDEP_WARP / s.top_k;
    return (bucket + each - 1) / each;
}

/* The lane's choice as the exchange takes it. All choices of a token are with one warp. */
static __device__ __forceinline__ int take_choice(const afdep_cuda_rank_t &r, int id, int token, int slot)
{
    uint32_t same = __match_any_sync(AFDEP_FULL, (uint64_t)(uint32_t)token << 32 | (uint32_t)id);
    bool outside = id < 0 || id >= r.shape.num_experts, repeated = (same & ((1u << afdep_lane()) - 1u)) != 0;
    if (id == -1 || (!outside && !repeated))
        return id;
    uint64_t found = (uint64_t)(uint32_t)token << 39 | (uint64_t)slot << 33 | (uint64_t)!outside << 32 | (uint32_t)id;
    atomicMin((unsigned long long *)&r.state->bad_route, (unsigned long long)found);
    return -1;
}

/* Choices of the bucket to every FFN rank. Nothing orders these words, and nothing needs to: each is whole and says itself
   which exchange it is of. */
static __device__ __forceinline__ void put_routes(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                  uint64_t exchange, int unit)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k, each = AFDEP_WARP / k, lane = (int)afdep_lane(), token = unit * each + lane / k, slot = lane % k;
    bool idle = lane >= each * k || token >= d.bucket;
    int id = !idle && token < d.tokens ? d.ids[(int64_t)token * k + slot] : -1;
    id = take_choice(r, id, token, slot);
    if (idle)
        return;
    uint64_t plane = afdep_plane_at(r.peer, s, exchange) + r.peer.route_words;
    uint64_t at = afdep_slot(s, r.role_index, token) * (uint32_t)k + (uint32_t)slot;
    uint64_t word = afdep_word((uint32_t)exchange, afdep_route_low(d.bucket, id));
    r.live_ids[((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token) * (uint32_t)k +
               (uint32_t)slot] = id;
    if (id >= 0)
        atomicAdd(afdep_load_expert(r, exchange, id), 1u);
#pragma unroll 1
    for (int f = 0; f < s.ffn_ranks; f++)
        afdep_signal64((uint64_t *)(afdep_segment(r, f) + plane) + at, word);
}

/* In place of the choices, where they are the last ones again: one word to every FFN rank, a lane each. */
static __device__ void put_cached(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange)
{
    uint64_t at = afdep_plane_at(r.peer, r.shape, exchange) + r.peer.route_words +
                  8u * afdep_slot(r.shape, r.role_index, 0) * (uint32_t)r.shape.top_k;
    for (int f = (int)afdep_lane(); f < r.shape.ffn_ranks; f += AFDEP_WARP)
        afdep_signal64((uint64_t *)(afdep_segment(r, f) + at), afdep_word((uint32_t)exchange, afdep_route_cached(d.bucket)));
}

/* The choices as the exchange before on the plane took them. */
static __device__ const int32_t *last_ids(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    return r.live_ids + (uint64_t)afdep_plane(r.shape, exchange) * (uint32_t)r.shape.capacity * (uint32_t)r.shape.top_k;
}

/* ---- Rows ---------------------------------------------------------------------------------------------------- */

/* The lane's choice of a token. */
static __device__ __forceinline__ int choice_of_lane(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                     int token)
{
    return (int)afdep_lane() < r.shape.top_k ? d.ids[(int64_t)token * r.shape.top_k + afdep_lane()] : -1;
}

/* Lanes that are the first with their target: one for each FFN rank that gets the token. */
static __device__ __forceinline__ uint32_t choose_targets(const afdep_cuda_rank_t &r, int id, int *target)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), lower = (1u << lane) - 1u;
    bool valid = id >= 0 && id < s.num_experts;
    if (s.ffn_ranks == 1) { /* whoever repeats a choice has made it once */
        *target = 0;
        return __any_sync(AFDEP_FULL, valid);
    }
    uint32_t same = __match_any_sync(AFDEP_FULL, valid ? id : -1 - (int)lane);
    valid = valid && (same & lower) == 0;
    *target = valid ? afdep_expert_owner(&s, id) : -1 - (int)lane;
    same = __match_any_sync(AFDEP_FULL, *target);
    return __ballot_sync(AFDEP_FULL, valid && (same & lower) == 0);
}

/* ---- Renewal ------------------------------------------------------------------------------------------------- */

/* See afdep_renewal_due(). A unit of work is a slot, that is a token that there is or might be. */
static __device__ __noinline__ void renew(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange)
{
    const afdep_shape_t &s = r.shape;
    int lane = (int)afdep_lane(), few = r.peer.few_tokens, lines = r.peer.row_line_count, in_lines = d.bucket <= few;
    for (int token = afdep_warp_index(); token < s.capacity; token += afdep_warp_count()) {
        int target = -1;
        uint32_t leaders = token < d.tokens ? choose_targets(r, choice_of_lane(r, d, token), &target) : 0;
        for (int f = 0; f < s.ffn_ranks; f++) {
            bool sent = __any_sync(AFDEP_FULL, (leaders >> lane & 1) != 0 && target == f);
            unsigned char *inbox = afdep_segment(r, f) + afdep_plane_at(r.peer, s, exchange);
            uint64_t slot = afdep_slot(s, r.role_index, token);
            for (int i = lane; (in_lines || !sent) && i < (int)r.peer.pieces; i += AFDEP_WARP)
                afdep_signal32((uint32_t *)(inbox + r.peer.row_words) + slot * r.peer.pieces + i, (uint32_t)exchange);
            for (int i = lane; (d.cached || token >= d.bucket) && i < s.top_k; i += AFDEP_WARP)
                if (!d.cached || token > 0 || i > 0)
                    afdep_signal64((uint64_t *)(inbox + r.peer.route_words) + slot * (uint32_t)s.top_k + i,
                                   afdep_word((uint32_t)exchange, 0));
            if (token < few && (!in_lines || !sent))
                afdep_renew_lines(inbox + r.peer.row_lines +
                                      ((uint64_t)r.role_index * (uint32_t)few + (uint32_t)token) * (uint32_t)lines *
                                          AFDEP_LINE_BYTES,
                                  lines, exchange);
        }
    }
}

/* ---- The end -------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void finish_dispatch(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                       uint64_t exchange)
{
    if (afdep_renewal_due(r.shape, exchange) && !afdep_poisoned(r))
        renew(r, d, exchange);
    if (blockIdx.x == gridDim.x - 1 && d.cached)
        afdep_repeat_load(r, exchange);
    else if (blockIdx.x == gridDim.x - 1)
        afdep_carry_load(r, exchange);
    if (!afdep_leave(r, AFDEP_CUDA_DISPATCH) || afdep_poisoned(r))
        return;
#pragma unroll 1
    for (int f = 0; f < r.shape.ffn_ranks; f++)
        r.counters[f].signals++;
    *afdep_load_source(r, exchange, 0) = (uint32_t)d.tokens;
    afdep_publish_bad_route(r, exchange);
    afdep_finish(r, AFDEP_CUDA_DISPATCH, exchange);
}

/* ---- Few tokens ---------------------------------------------------------------------------------------------- */

/* Stores words of a token's lines, from `line` on, to every FFN rank that gets it; the lane's, that `used` has bits for. */
template <int LINES>
static __device__ __forceinline__ void put_words(const afdep_cuda_rank_t &r, int id, uint64_t exchange, int token,
                                                 int line, uint32_t used, const uint4 (&words)[LINES], bool counted)
{
    int target;
    uint64_t inbox = afdep_plane_at(r.peer, r.shape, exchange) + r.peer.row_lines +
                     (uint64_t)(uint32_t)((r.role_index * r.peer.few_tokens + token) * r.peer.row_line_count + line) *
                         AFDEP_LINE_BYTES +
                     afdep_lane() * 16;
    uint32_t leaders = choose_targets(r, id, &target);
    for (uint32_t left = leaders; left; left &= left - 1) {
        int f = __shfl_sync(AFDEP_FULL, target, __ffs((int)left) - 1);
        unsigned char *to = afdep_segment(r, f) + inbox;
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (used >> i & 1)
                afdep_store_word(to + i * AFDEP_LINE_BYTES, words[i]);
        if (counted && afdep_lane() == 0)
            atomicAdd(&r.counters[f].rows, 1ull);
    }
}

/* Lines of a token's payload from `first` on. */
static __device__ __forceinline__ void put_lines(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                 uint64_t exchange, int token, int first)
{
    int lane = (int)afdep_lane(), vectors = afdep_row_vectors(&r.shape), id = choice_of_lane(r, d, token);
    const uint4 *x = (const uint4 *)d.x + (uint64_t)token * (uint32_t)vectors + first * AFDEP_LINE_VECTORS + lane;
    int left = lane < AFDEP_LINE_VECTORS ? vectors - first * AFDEP_LINE_VECTORS - lane : 0;
    uint4 words[LINES_AT_ONCE];
    uint32_t used = 0;
#pragma unroll
    for (int i = 0; i < LINES_AT_ONCE; i++) {
        if (left > i * AFDEP_LINE_VECTORS)
            words[i] = __ldg(x + i * AFDEP_LINE_VECTORS);
        used |= (uint32_t)afdep_line_uses(lane, vectors - (first + i) * AFDEP_LINE_VECTORS) << i;
    }
#pragma unroll
    for (int i = 0; i < LINES_AT_ONCE; i++)
        words[i] = afdep_pack_word(words[i], exchange);
    put_words(r, id, exchange, token, first, used, words, false);
}

/* A tail line: scales, and with the first the weights. */
static __device__ __forceinline__ void put_tail(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                uint64_t exchange, int token, int tail)
{
    const afdep_shape_t &s = r.shape;
    int i = tail * AFDEP_WARP + (int)afdep_lane(), id = choice_of_lane(r, d, token);
    float scale = i < afdep_scales(&s) ? d.x_scale[token * d.scale_token_stride + i * d.scale_block_stride] : 0;
    float weight = i < s.top_k ? d.weights[(int64_t)token * s.top_k + i] : 0;
    uint4 words[1] = { make_uint4(__float_as_uint(scale), __float_as_uint(weight), 0, (uint32_t)exchange) };
    put_words(r, id, exchange, token, afdep_lines(afdep_row_vectors(&s)) + tail, i < afdep_tail_words(&s), words,
              tail == 0);
}

/* PLAIN: neither cached nor in two kernels. */
template <bool PLAIN>
static __global__ void __launch_bounds__(FEW_THREADS, 1)
    dispatch_few_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_dispatch_t given)
{
    const afdep_shape_t &s = r.shape;
    afdep_cuda_dispatch_t own = given;
    const afdep_cuda_dispatch_t &d = PLAIN ? given : own;
    int groups = (afdep_lines(afdep_row_vectors(&s)) + LINES_AT_ONCE - 1) / LINES_AT_ONCE,
        parts = groups + afdep_tail_lines(&s);
    int routes = !PLAIN && d.cached ? 1 : route_units(s, d.bucket), units = routes + d.tokens * parts, unit = afdep_warp_index();
    int token = max(unit - routes, 0) / parts;
    if (PLAIN && unit < units && d.tokens > 0) { /* on its way while the kernel before ends */
        afdep_prefetch(d.ids + (int64_t)token * s.top_k);
        afdep_prefetch((const uint4 *)d.x + (uint64_t)token * (uint32_t)afdep_row_vectors(&s));
    }
    bool gate = false;
    uint64_t exchange;
    if (PLAIN) {
        exchange = afdep_enter(r, AFDEP_CUDA_DISPATCH, [&](uint64_t n) { gate = unit < units && wait_answers(r, n); });
    } else {
        exchange = afdep_enter_late(r, AFDEP_CUDA_DISPATCH);
        if (!(gate = sends(r, d, exchange)))
            return;
        own.ids = d.cached ? last_ids(r, exchange) : d.ids;
    }
    for (; unit < units; unit += afdep_warp_count(), token = (unit - routes) / parts) {
        if (!pass_gate(r, exchange, &gate))
            break;
        int part = (unit - routes) - token * parts;
        if (!PLAIN && d.cached && unit < routes)
            put_cached(r, d, exchange);
        else if (unit < routes)
            put_routes(r, d, exchange, unit);
        else if (part < groups)
            put_lines(r, d, exchange, token, part * LINES_AT_ONCE);
        else
            put_tail(r, d, exchange, token, part - groups);
    }
    finish_dispatch(r, d, exchange);
}

/* ---- Many tokens --------------------------------------------------------------------------------------------- */

/* Stores a piece to every FFN rank that gets the token; notes the words that publish it and returns how many. */
template <int VECTORS> /* 16-byte words of a piece per lane */
static __device__ int put_piece(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange,
                                int token, int piece, uint32_t **words)
{
    const int at_once = 4;
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    uint32_t row_bytes = (uint32_t)s.hidden * width, first = (uint32_t)piece * AFDEP_PIECE * width;
    uint32_t bytes = min(AFDEP_PIECE * width, row_bytes - first);
    const unsigned char *from = (const unsigned char *)d.x + (uint64_t)token * row_bytes + first;
    int target;
    uint32_t leaders = choose_targets(r, choice_of_lane(r, d, token), &target);
    uint64_t inbox = afdep_plane_at(r.peer, s, exchange), slot = afdep_slot(s, r.role_index, token);
#pragma unroll
    for (int part = 0; part < VECTORS; part += at_once) {
        uint4 v[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++)
            if ((uint32_t)(part + i) * 512u + lane * 16u < bytes)
                v[i] = __ldg((const uint4 *)(from + (part + i) * 512 + lane * 16));
        for (uint32_t left = leaders; left; left &= left - 1) {
            int f = __shfl_sync(AFDEP_FULL, target, __ffs((int)left) - 1);
            unsigned char *row = afdep_segment(r, f) + inbox + r.peer.rows + slot * r.peer.row_stride + first;
#pragma unroll
            for (int i = 0; i < at_once; i++)
                if ((uint32_t)(part + i) * 512u + lane * 16u < bytes)
                    afdep_store16(row + (part + i) * 512 + lane * 16, v[i]);
        }
    }
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = piece * AFDEP_PIECE / AFDEP_SCALE_BLOCK;
    float scale = 0, weight = 0;
    if ((int)lane < blocks)
        scale = d.x_scale[token * d.scale_token_stride + (first_block + (int)lane) * d.scale_block_stride];
    if (piece == 0 && (int)lane < s.top_k)
        weight = d.weights[(int64_t)token * s.top_k + lane];
    for (uint32_t left = leaders; left; left &= left - 1) {
        int f = __shfl_sync(AFDEP_FULL, target, __ffs((int)left) - 1);
        unsigned char *row = afdep_segment(r, f) + inbox + r.peer.rows + slot * r.peer.row_stride;
        if ((int)lane < blocks)
            ((float *)(row + r.peer.scale_offset))[first_block + (int)lane] = scale;
        if (piece == 0 && (int)lane < s.top_k)
            ((float *)(row + r.peer.weight_offset))[lane] = weight;
    }
    if (leaders >> lane & 1) {
        words[__popc(leaders & ((1u << lane) - 1u))] =
            (uint32_t *)(afdep_segment(r, target) + inbox + r.peer.row_words) + slot * r.peer.pieces + piece;
        if (piece == 0)
            atomicAdd(&r.counters[target].rows, 1ull);
    }
    return __popc(leaders);
}

template <int VECTORS, bool PLAIN>
static __global__ void __launch_bounds__(THREADS, 1)
    dispatch_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_dispatch_t given)
{
    __shared__ afdep_rounds<WARPS> rounds;
    afdep_cuda_dispatch_t own = given;
    const afdep_cuda_dispatch_t &d = PLAIN ? given : own;
    bool gate = false;
    uint64_t exchange = PLAIN ? afdep_enter(r, AFDEP_CUDA_DISPATCH, [&](uint64_t n) { gate = wait_answers(r, n); })
                              : afdep_enter_late(r, AFDEP_CUDA_DISPATCH);
    int pieces = afdep_pieces(&r.shape, AFDEP_PIECE), routes = route_units(r.shape, d.bucket);
    if (PLAIN ? __syncthreads_or(!pass_gate(r, exchange, &gate)) : !sends(r, d, exchange))
        return;
    if (!PLAIN && d.cached) {
        own.ids = last_ids(r, exchange);
        routes = 0;
        if (afdep_warp_index() == 0)
            put_cached(r, d, exchange);
    }
    for (int unit = afdep_warp_index(); unit < routes; unit += afdep_warp_count())
        put_routes(r, d, exchange, unit);
    afdep_run_rounds<WARPS>(rounds, d.tokens * pieces, 0, (int)gridDim.x, exchange, [&](int unit, uint32_t **words) {
        int token = unit / pieces;
        return put_piece<VECTORS>(r, d, exchange, token, unit - token * pieces, words);
    });
    finish_dispatch(r, d, exchange);
}

typedef void (*kernel_t)(const afdep_cuda_rank_t, const afdep_cuda_dispatch_t);

static kernel_t kernel_of(const afdep_shape_t &s, bool plain)
{
    const int bf16 = 2 * AFDEP_PIECE / 512, fp8 = AFDEP_PIECE / 512;
    if (s.fp8)
        return plain ? dispatch_kernel<fp8, true> : dispatch_kernel<fp8, false>;
    return plain ? dispatch_kernel<bf16, true> : dispatch_kernel<bf16, false>;
}

static kernel_t few_kernel_of(bool plain)
{
    return plain ? dispatch_few_kernel<true> : dispatch_few_kernel<false>;
}

cudaError_t afdep_cuda_launch_dispatch(const afdep_cuda_rank_t *r, const afdep_cuda_dispatch_t *d, int grid,
                                       cudaStream_t stream)
{
    bool plain = d->stage == AFDEP_CUDA_SEND && !d->cached;
    if (afdep_in_lines(&r->shape, d->bucket))
        return afdep_launch(few_kernel_of(plain), grid, FEW_THREADS, 0, stream, *r, *d);
    return afdep_launch(kernel_of(r->shape, plain), grid, THREADS, 0, stream, *r, *d);
}

cudaError_t afdep_cuda_prepare_dispatch(const afdep_shape_t *shape, int *threads)
{
    *threads = THREADS;
    cudaError_t error = cudaSuccess;
    for (int plain = 0; error == cudaSuccess && plain < 2; plain++) {
        error = afdep_load(kernel_of(*shape, plain), 0);
        if (error == cudaSuccess)
            error = afdep_load(few_kernel_of(plain), 0);
    }
    return error;
}
