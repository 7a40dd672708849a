/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of an Attention rank across domains share: gates, routes, tails. */
#ifndef AFDEP_CUDA_RAIL_SOURCE_CUH
#define AFDEP_CUDA_RAIL_SOURCE_CUH

#include "cuda/load.cuh"
#include "cuda/rail.cuh"

/* ---- The gate ------------------------------------------------------------------------------------------------ */

/* Waits for the done witnesses, a lane for each FFN domain. */
static __device__ bool wait_witnesses(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    bool fine = !afdep_poisoned(r.c);
    int m = (int)afdep_lane();
    if (fine && s.sparse_combine && m < s.ffn_domains) {
        uint64_t word = afdep_attention_plane(r, exchange) + afdep_at_witness(&r.layout.attention, m), seen;
        uint32_t step = (uint32_t)s.in_flight, want = (uint32_t)exchange - step;
        afdep_rail_wait_t wait = { AFDEP_CUDA_DISPATCH, AFDEP_CUDA_WORD_WITNESS, afdep_link_rank(r, m), -1, exchange,
                                   afdep_word(want, 0) };
        fine = afdep_rail_await(
            r, wait, &seen, [&]() { return rail.read(AFDEP_RAIL_CONTROL, word); },
            [&](uint64_t value) { return afdep_tag_state(value, want, step); });
    }
    return __all_sync(AFDEP_FULL, fine);
}

/* One look at them, by a warp. */
static __device__ bool witnesses_are_here(const afdep_rail_rank_t &r, uint64_t exchange)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    uint32_t step = (uint32_t)s.in_flight;
    int m = (int)afdep_lane();
    bool here = !s.sparse_combine || m >= s.ffn_domains;
    if (!here)
        here = afdep_tag_state(rail.read(AFDEP_RAIL_CONTROL,
                                         afdep_attention_plane(r, exchange) + afdep_at_witness(&r.layout.attention, m)),
                               (uint32_t)exchange - step, step) == AFDEP_WORD_READY;
    return __all_sync(AFDEP_FULL, here);
}

/* Of a dispatch in two kernels: whether this one sends. */
static __device__ __forceinline__ bool sends(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, uint64_t exchange)
{
    return afdep_sends(
        r.c, d.stage, exchange, [&]() { return witnesses_are_here(r, exchange); },
        [&]() { return wait_witnesses(r, exchange); });
}

/* ---- Routes -------------------------------------------------------------------------------------------------- */

/* A token's choice as the exchange takes it (the lane's slot, -1 where invalid), and the FFN domains that it goes to. The
   warp stays together. */
static __device__ uint32_t take_token(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d, int token, int *choice)
{
    const afdep_shape_t &s = r.c.shape;
    uint32_t lane = afdep_lane();
    int id = (int)lane < s.top_k ? d.ids[(int64_t)token * s.top_k + lane] : -1;
    bool inside = id >= 0 && id < s.num_experts;
    uint32_t same = __match_any_sync(AFDEP_FULL, inside ? id : -1 - (int)lane);
    bool repeated = inside && (same & ((1u << lane) - 1u)) != 0;
    if (id != -1 && (!inside || repeated)) {
        uint64_t found = (uint64_t)(uint32_t)token << 39 | (uint64_t)lane << 33 | (uint64_t)repeated << 32 | (uint32_t)id;
        atomicMin((unsigned long long *)&r.c.state->bad_route, (unsigned long long)found);
        id = -1;
    }
    *choice = id;
    return __reduce_or_sync(AFDEP_FULL, id >= 0 ? 1u << afdep_expert_target(&s, id) : 0u);
}

/* A token's choices as they were taken, for an exchange that uses them again. */
static __device__ __forceinline__ int32_t *taken_ids(const afdep_rail_rank_t &r, uint64_t exchange, int token)
{
    const afdep_shape_t &s = r.c.shape;
    return r.c.live_ids +
           ((uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token) * (uint32_t)s.top_k;
}

/* Once per token, behind take_token(): what collect, the load statistics and an exchange that uses the choices again ask
   for. */
static __device__ __forceinline__ void note_token(const afdep_rail_rank_t &r, const afdep_cuda_dispatch_t &d,
                                                  uint64_t exchange, int token, int choice, uint32_t domains)
{
    const afdep_shape_t &s = r.c.shape;
    int lane = (int)afdep_lane();
    if (lane < s.top_k && !d.cached)
        taken_ids(r, exchange, token)[lane] = choice;
    if (choice >= 0)
        atomicAdd(afdep_load_expert(r.c, exchange, choice), 1u);
    if (lane == 0)
        r.targets[(uint64_t)afdep_plane(s, exchange) * (uint32_t)s.capacity + (uint32_t)token] = domains;
}

/* ---- Tails --------------------------------------------------------------------------------------------------- */

/* Waits, a lane for itself, for the combine tail of a channel from an FFN domain. */
static __device__ bool wait_tail(const afdep_rail_rank_t &r, uint64_t exchange, int target, int channel)
{
    const afdep_shape_t &s = r.c.shape;
    const afdep_this_rail rail = { r };
    uint64_t want = r.combine_tails[afdep_at_target(r, exchange, target, channel)], seen;
    uint64_t word = afdep_attention_plane(r, exchange) + afdep_at_combine_tail(&r.layout.attention, &s, target, channel);
    afdep_rail_wait_t wait = { AFDEP_CUDA_COLLECT, AFDEP_CUDA_WORD_TAIL, afdep_link_rank(r, target), channel, exchange, want };
    return afdep_rail_await(
        r, wait, &seen, [&]() { return rail.read(channel, word); },
        [&](uint64_t value) {
            if (value == want)
                return AFDEP_WORD_READY;
            /* Finishes are missing, this exchange's or (of few tokens) also earlier ones: more no correct peer writes. */
            return (int32_t)(afdep_word_high(want) - afdep_word_high(value)) > 0 ? AFDEP_WORD_WAIT : AFDEP_WORD_BROKEN;
        });
}

#endif
