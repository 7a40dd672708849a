/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dispatch. Units of work, one warp each: a batch of tokens' routes (checked, to every FFN rank), or a piece of a
 * token's row (to every FFN rank that owns one of its experts).
 *
 * Reuse: nothing is stored before every FFN rank has answered exchange n - G, also those that got no row: the answer
 * says that words, routes and rows of that exchange were read there.
 */
#include "cuda/device.cuh"
#include "cuda/launch.cuh"

/* Threads of a CTA: small pieces need few registers, and many warps. */
#define THREADS(vectors) ((vectors) <= 2 ? 768 : 512)

/* A lane of the warp waits for the answers of FFN ranks lane, lane + 32, ... */
static __device__ bool wait_answers(const afdep_cuda_rank_t &r, uint64_t exchange)
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

/* ---- Routes -------------------------------------------------------------------------------------------------- */

/* A choice as the exchange takes it. */
static __device__ int take_choice(const afdep_cuda_rank_t &r, const int32_t *token_ids, int token, int slot)
{
    int id = token_ids[slot], repeated = 0;
    if (id == -1)
        return -1;
    bool outside = id < 0 || id >= r.shape.num_experts;
    for (int j = 0; !outside && j < slot; j++)
        repeated |= token_ids[j] == id;
    if (!outside && !repeated)
        return id;
    uint64_t found = (uint64_t)(uint32_t)token << 39 | (uint64_t)slot << 33 | (uint64_t)repeated << 32 | (uint32_t)id;
    atomicMin((unsigned long long *)&r.state->bad_route, (unsigned long long)found);
    return -1;
}

static __device__ void put_routes(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange, int batch)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k, first = batch * AFDEP_ROUTE_BATCH;
    int last = min(first + AFDEP_ROUTE_BATCH, d.tokens);
    uint64_t plane = afdep_plane_at(r.peer, s, exchange);
    int32_t *live = r.live_ids + (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity * (uint32_t)k;
    for (int i = first * k + (int)afdep_lane(); i < last * k; i += AFDEP_WARP) {
        int token = i / k;
        int id = take_choice(r, d.ids + (int64_t)token * k, token, i - token * k);
        float weight = d.weights[i];
        live[i] = id;
        uint64_t at = afdep_slot(s, r.role_index, 0) * (uint32_t)k + (uint32_t)i;
        for (int f = 0; f < s.ffn_ranks; f++) {
            ((int32_t *)(r.segments[f] + plane + r.peer.ids))[at] = id;
            ((float *)(r.segments[f] + plane + r.peer.weights))[at] = weight;
        }
    }
    __syncwarp(); /* all lanes' stores before any lane's fence */
    afdep_fence_system();
    uint64_t word = afdep_word((uint32_t)exchange, (uint32_t)d.tokens);
    uint64_t at = (uint64_t)r.role_index * r.peer.batches + (uint32_t)batch;
    for (int f = (int)afdep_lane(); f < s.ffn_ranks; f += AFDEP_WARP)
        afdep_signal64((uint64_t *)(r.segments[f] + plane + r.peer.route_words) + at, word);
}

/* ---- Rows ---------------------------------------------------------------------------------------------------- */

/* Lanes that are the first with their target: one for each FFN rank that gets the token. */
static __device__ uint32_t choose_targets(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, int token, int *target)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), lower = (1u << lane) - 1u;
    int id = (int)lane < s.top_k ? d.ids[(int64_t)token * s.top_k + lane] : -1;
    bool valid = id >= 0 && id < s.num_experts;
    uint32_t same = __match_any_sync(AFDEP_FULL, valid ? id : -1 - (int)lane);
    valid = valid && (same & lower) == 0;
    *target = valid ? afdep_expert_owner(&s, id) : -1 - (int)lane;
    same = __match_any_sync(AFDEP_FULL, *target);
    return __ballot_sync(AFDEP_FULL, valid && (same & lower) == 0);
}

template <int VECTORS> /* 16-byte words of a piece per lane */
static __device__ bool put_piece(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange, int token,
                                 int piece, int elements, bool *gate)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    uint32_t row_bytes = (uint32_t)s.hidden * width, first = (uint32_t)(piece * elements) * width;
    uint32_t bytes = min((uint32_t)elements * width, row_bytes - first);
    const unsigned char *from = (const unsigned char *)d.x + (uint64_t)token * row_bytes + first;
    uint4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if ((uint32_t)i * 512u + lane * 16u < bytes)
            v[i] = __ldg((const uint4 *)(from + i * 512 + lane * 16));
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = piece * elements / AFDEP_SCALE_BLOCK;
    float scale = 0;
    if ((int)lane < blocks)
        scale = d.x_scale[token * d.scale_token_stride + (first_block + (int)lane) * d.scale_block_stride];
    int target;
    uint32_t leaders = choose_targets(r, d, token, &target);
    if (!*gate) { /* once per warp, with the first row already on its way into registers */
        *gate = true;
        if (!wait_answers(r, exchange))
            return false;
    }
    uint64_t plane = afdep_plane_at(r.peer, s, exchange), slot = afdep_slot(s, r.role_index, token);
    for (uint32_t left = leaders; left; left &= left - 1) {
        int f = __shfl_sync(AFDEP_FULL, target, __ffs((int)left) - 1);
        unsigned char *row = r.segments[f] + plane + r.peer.rows + slot * r.peer.row_stride;
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((uint32_t)i * 512u + lane * 16u < bytes)
                afdep_store16(row + first + i * 512 + lane * 16, v[i]);
        if ((int)lane < blocks)
            ((float *)(row + r.peer.scale_offset))[first_block + (int)lane] = scale;
    }
    __syncwarp(); /* all lanes' stores before any lane's fence */
    afdep_fence_system();
    if (leaders >> lane & 1) {
        afdep_signal32((uint32_t *)(r.segments[target] + plane + r.peer.row_words) + slot * r.peer.pieces + piece,
                       (uint32_t)exchange);
        if (piece == 0)
            atomicAdd(&r.counters[target].rows, 1ull);
    }
    return true;
}

/* ---- The kernel ---------------------------------------------------------------------------------------------- */

static __device__ void publish_bad_route(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    uint64_t found = *(volatile uint64_t *)&r.state->bad_route;
    if (found == AFDEP_CUDA_NO_ROUTE)
        return;
    r.state->bad_route = AFDEP_CUDA_NO_ROUTE;
    *(volatile uint64_t *)&r.record->route = found;
    __threadfence_system(); /* the choice before the word that says there is one */
    *(volatile uint64_t *)&r.record->route_exchange = exchange;
}

template <int VECTORS>
static __global__ void __launch_bounds__(THREADS(VECTORS), 1)
    dispatch_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_dispatch_t d)
{
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_DISPATCH);
    int elements = afdep_piece_elements(d.bucket), pieces = afdep_pieces(&r.shape, elements);
    int batches = afdep_route_batches(d.bucket), units = batches + d.tokens * pieces;
    bool gate = false;
    for (int unit = afdep_warp_index(); unit < units; unit += afdep_warp_count()) {
        if (unit >= batches) {
            int row = unit - batches;
            if (!put_piece<VECTORS>(r, d, exchange, row / pieces, row % pieces, elements, &gate))
                break;
            continue;
        }
        if (!gate && !wait_answers(r, exchange))
            break;
        gate = true;
        put_routes(r, d, exchange, unit);
    }
    if (!afdep_leave(r, AFDEP_CUDA_DISPATCH) || afdep_poisoned(r))
        return;
    for (int f = 0; f < r.shape.ffn_ranks; f++)
        r.counters[f].signals++;
    publish_bad_route(r, exchange);
    afdep_finish(r, AFDEP_CUDA_DISPATCH, exchange);
}

/* 16-byte words per lane: a small piece, and a large one, of either element. */
cudaError_t afdep_cuda_launch_dispatch(const afdep_cuda_rank_t *r, const afdep_cuda_dispatch_t *d, int grid, cudaStream_t stream)
{
    bool small = afdep_piece_elements(d->bucket) == AFDEP_PIECE_SMALL;
    if (small && r->shape.fp8)
        return afdep_launch(dispatch_kernel<1>, grid, THREADS(1), 0, stream, *r, *d);
    if (small)
        return afdep_launch(dispatch_kernel<2>, grid, THREADS(2), 0, stream, *r, *d);
    if (r->shape.fp8)
        return afdep_launch(dispatch_kernel<4>, grid, THREADS(4), 0, stream, *r, *d);
    return afdep_launch(dispatch_kernel<8>, grid, THREADS(8), 0, stream, *r, *d);
}

cudaError_t afdep_cuda_prepare_dispatch(const afdep_shape_t *shape, int *threads)
{
    *threads = 1024;
    cudaError_t error = shape->fp8 ? afdep_load(dispatch_kernel<1>, 0) : afdep_load(dispatch_kernel<2>, 0);
    if (error == cudaSuccess)
        error = shape->fp8 ? afdep_load(dispatch_kernel<4>, 0) : afdep_load(dispatch_kernel<8>, 0);
    return error;
}
