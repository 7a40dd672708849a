/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending in rounds. In every round each warp of a CTA but the last stores at most one piece to other ranks and notes the
 * words that publish it; then the CTA meets, and the last warp publishes the round with one fence while the others are on
 * their way with the next. A fence per warp would be correct too; an SM takes them one after the other, though.
 *
 * The meeting orders every warp's stores before the last warp's fence, which is cumulative, and so before the words. It
 * also keeps the senders at most one round ahead, which is what the two halves of the list are for.
 */
#ifndef AFDEP_CUDA_ROUNDS_CUH
#define AFDEP_CUDA_ROUNDS_CUH

#include "cuda/device.cuh"

#define AFDEP_WORDS_A_PIECE 32

template <int WARPS> struct afdep_rounds {
    uint32_t *words[2][WARPS - 1][AFDEP_WORDS_A_PIECE];
    int count[2][WARPS - 1];
};

/* Runs body(unit, words) -> number of words for every unit, in warps, and publishes them with the exchange's number.
   body returns -1 when a wait is over; the CTA then leaves as a whole. `first` and `ctas` say which CTAs share the units. */
template <int WARPS, typename Body>
__device__ __forceinline__ void afdep_run_rounds(afdep_rounds<WARPS> &rounds, int units, int first, int ctas,
                                                 uint64_t exchange, Body body)
{
    int warp = (int)threadIdx.x / AFDEP_WARP, cta = (int)blockIdx.x - first, each = (WARPS - 1) * ctas;
    int total = (units + each - 1) / each;
    for (int round = 0; round < total; round++) {
        int half = round & 1, unit = round * each + warp * ctas + cta, count = 0;
        if (warp < WARPS - 1) {
            if (unit < units)
                count = body(unit, rounds.words[half][warp]);
            if (afdep_lane() == 0)
                rounds.count[half][warp] = count < 0 ? 0 : count;
        }
        if (__syncthreads_or(count < 0))
            return;
        if (warp == WARPS - 1) {
            afdep_fence_system();
            for (int w = (int)afdep_lane(); w < WARPS - 1; w += AFDEP_WARP)
                for (int i = 0; i < rounds.count[half][w]; i++)
                    afdep_signal32(rounds.words[half][w][i], (uint32_t)exchange);
        }
    }
}

#endif
