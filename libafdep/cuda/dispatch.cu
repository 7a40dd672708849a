/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_dispatch. First the choices of all tokens, checked, as words to every FFN rank; then, in rounds, the rows: a unit
 * of work is a piece of a token's row, to every FFN rank that owns one of its experts.
 *
 * Reuse: nothing is stored before every FFN rank has answered exchange n - G, also those that got no row: the answer
 * says that words, routes and rows of that exchange were read there.
 */
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/rounds.cuh"

#define THREADS 1024
#define WARPS (THREADS / AFDEP_WARP)

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

/* Once per warp. */
static __device__ __forceinline__ bool pass_gate(const afdep_cuda_rank_t &r, uint64_t exchange, bool *gate)
{
    if (!*gate)
        *gate = wait_answers(r, exchange);
    return *gate;
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

/* All choices of the bucket to every FFN rank: the data warps of the grid share them. Nothing orders these words, and
   nothing needs to: each is whole and says itself which exchange it is of. */
static __device__ void put_routes(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange, int warp,
                                  int warps)
{
    const afdep_shape_t &s = r.shape;
    int k = s.top_k;
    uint64_t plane = afdep_plane_at(r.peer, s, exchange) + r.peer.route_words;
    uint64_t at = afdep_slot(s, r.role_index, 0) * (uint32_t)k;
    int32_t *live = r.live_ids + (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity * (uint32_t)k;
    for (int i = warp * AFDEP_WARP + (int)afdep_lane(); i < d.bucket * k; i += warps * AFDEP_WARP) {
        int token = i / k;
        int id = token < d.tokens ? take_choice(r, d.ids + (int64_t)token * k, token, i - token * k) : -1;
        uint64_t word = afdep_word((uint32_t)exchange, afdep_route_low(d.bucket, id));
        live[i] = id;
        for (int f = 0; f < s.ffn_ranks; f++)
            afdep_signal64((uint64_t *)(afdep_segment(r, f) + plane) + at + (uint32_t)i, word);
    }
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

/* Stores a piece to every FFN rank that gets the token; notes the words that publish it and returns how many. */
template <int VECTORS, int AT_ONCE> /* 16-byte words of a piece per lane, and of those in registers at once */
static __device__ int put_piece(const afdep_cuda_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange, int token,
                                int piece, int elements, bool *gate, uint32_t **words)
{
    const afdep_shape_t &s = r.shape;
    uint32_t lane = afdep_lane(), width = s.fp8 ? 1 : 2;
    uint32_t row_bytes = (uint32_t)s.hidden * width, first = (uint32_t)(piece * elements) * width;
    uint32_t bytes = min((uint32_t)elements * width, row_bytes - first);
    const unsigned char *from = (const unsigned char *)d.x + (uint64_t)token * row_bytes + first;
    int target;
    uint32_t leaders = choose_targets(r, d, token, &target);
    uint64_t inbox = afdep_plane_at(r.peer, s, exchange), slot = afdep_slot(s, r.role_index, token);
#pragma unroll
    for (int part = 0; part < VECTORS; part += AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if ((uint32_t)(part + i) * 512u + lane * 16u < bytes)
                v[i] = __ldg((const uint4 *)(from + (part + i) * 512 + lane * 16));
        if (VECTORS <= 2 && !pass_gate(r, exchange, gate)) /* with a warp's first loads on their way */
            return -1;
        for (uint32_t left = leaders; left; left &= left - 1) {
            int f = __shfl_sync(AFDEP_FULL, target, __ffs((int)left) - 1);
            unsigned char *row = afdep_segment(r, f) + inbox + r.peer.rows + slot * r.peer.row_stride + first;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if ((uint32_t)(part + i) * 512u + lane * 16u < bytes)
                    afdep_store16(row + (part + i) * 512 + lane * 16, v[i]);
        }
    }
    int blocks = s.fp8 ? (int)bytes / AFDEP_SCALE_BLOCK : 0, first_block = piece * elements / AFDEP_SCALE_BLOCK;
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
static __global__ void __launch_bounds__(THREADS, 1)
    dispatch_kernel(const __grid_constant__ afdep_cuda_rank_t r, const __grid_constant__ afdep_cuda_dispatch_t d)
{
    __shared__ afdep_rounds<WARPS> rounds;
    uint64_t exchange = afdep_enter(r, AFDEP_CUDA_DISPATCH);
    int elements = afdep_piece_elements(&r.shape, d.bucket), pieces = afdep_pieces(&r.shape, elements);
    int warp = (int)threadIdx.x / AFDEP_WARP, grid = (int)gridDim.x, block = (int)blockIdx.x;
    bool gate = false;
    /* Few choices are the last warps' business, beside the rows; many are everybody's, before them. */
    bool few = d.bucket * r.shape.top_k <= 2 * AFDEP_WARP * grid;
    if (few ? warp == WARPS - 1 : warp < WARPS - 1) {
        if (pass_gate(r, exchange, &gate))
            put_routes(r, d, exchange, few ? block : warp * grid + block, few ? grid : (WARPS - 1) * grid);
    }
    bool over = VECTORS > 2 && warp < WARPS - 1 && !pass_gate(r, exchange, &gate);
    if (VECTORS > 2 && __syncthreads_or(over))
        return;
    afdep_run_rounds<WARPS>(rounds, d.tokens * pieces, 0, grid, exchange, [&](int unit, uint32_t **words) {
        int token = unit / pieces;
        return put_piece<VECTORS, (VECTORS < 4 ? VECTORS : 4)>(r, d, exchange, token, unit - token * pieces, elements, &gate, words);
    });
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
    bool small = afdep_piece_elements(&r->shape, d->bucket) == AFDEP_PIECE_SMALL;
    if (small)
        return r->shape.fp8 ? afdep_launch(dispatch_kernel<1>, grid, THREADS, 0, stream, *r, *d)
                            : afdep_launch(dispatch_kernel<2>, grid, THREADS, 0, stream, *r, *d);
    return r->shape.fp8 ? afdep_launch(dispatch_kernel<4>, grid, THREADS, 0, stream, *r, *d)
                        : afdep_launch(dispatch_kernel<8>, grid, THREADS, 0, stream, *r, *d);
}

cudaError_t afdep_cuda_prepare_dispatch(const afdep_shape_t *shape, int *threads)
{
    *threads = THREADS;
    cudaError_t error = shape->fp8 ? afdep_load(dispatch_kernel<1>, 0) : afdep_load(dispatch_kernel<2>, 0);
    if (error == cudaSuccess)
        error = shape->fp8 ? afdep_load(dispatch_kernel<4>, 0) : afdep_load(dispatch_kernel<8>, 0);
    return error;
}
