/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that go out together. A system fence takes 0.65 us where nothing is on its way and up to 1.3 behind remote
 * stores, and an SM takes its fences one after the other. So the warps of a CTA that send rows do so in rounds, with
 * one fence for all words of a round. Nobody waits at a round's end: a warp that has stored its rows and noted their
 * words comes, and goes on with the next round; the one that comes last fences and writes the words of all.
 *
 * Ordering. Coming is an atomic of the CTA that releases what its warp stored and acquires what those before it
 * released, so the last one has all rows of the round behind it. Its fence is cumulative over them, and the words
 * follow that fence.
 *
 * Warps may be AFDEP_RAIL_AHEAD rounds apart, for which there are as many lists; the one that is about to use a list
 * again waits until its words are out. That blocks nobody for long: no warp waits for what words of its own exchange
 * lead to.
 */
#ifndef AFDEP_CUDA_RAIL_WORDS_CUH
#define AFDEP_CUDA_RAIL_WORDS_CUH

#include "cuda/device.cuh"
#include "cuda/rail.h"

#define AFDEP_RAIL_AHEAD 2
#define AFDEP_RAIL_NOTES 64 /* words of a round; who finds no room sends its word by itself */

/* A word and the row that it publishes. */
typedef struct afdep_rail_note {
    uint64_t *word, value;
    uint32_t kind, link, bytes;
} afdep_rail_note_t;

/* Of a CTA, in shared memory. */
typedef struct afdep_rail_words {
    afdep_rail_note_t notes[AFDEP_RAIL_AHEAD][AFDEP_RAIL_NOTES];
    uint32_t noted[AFDEP_RAIL_AHEAD], come[AFDEP_RAIL_AHEAD];
    uint32_t out; /* rounds whose words are out */
} afdep_rail_words_t;

/* Where a warp is. All warps of a CTA end the same number of rounds. */
typedef struct afdep_rail_round {
    afdep_rail_words_t *words;
    uint32_t number;
} afdep_rail_round_t;

/* By all threads, before a barrier of the CTA. */
__device__ __forceinline__ afdep_rail_round_t afdep_rail_first_round(afdep_rail_words_t *words)
{
    if (threadIdx.x < AFDEP_RAIL_AHEAD)
        words->noted[threadIdx.x] = words->come[threadIdx.x] = 0;
    if (threadIdx.x == 0)
        words->out = 0;
    afdep_rail_round_t first = { words, 0 };
    return first;
}

/* By a lane: a place for a word of this round, or NULL. */
__device__ __forceinline__ afdep_rail_note_t *afdep_rail_note(const afdep_rail_round_t &round)
{
    uint32_t list = round.number % AFDEP_RAIL_AHEAD, at = atomicAdd(&round.words->noted[list], 1u);
    return at < AFDEP_RAIL_NOTES ? &round.words->notes[list][at] : NULL;
}

/* By a warp, for all warps of a CTA: true for the one that comes last, behind which lies what the others did before. */
__device__ __forceinline__ bool afdep_last_warp(uint32_t *come)
{
    bool last = false;
    __syncwarp();
    if (afdep_lane() == 0)
        last = afdep_add_acquire_release_cta(come) == AFDEP_RAIL_WARPS - 1;
    last = __shfl_sync(AFDEP_FULL, last, 0);
    __syncwarp();
    return last;
}

/* By the warp that came last: write(note), by a lane, for all words of the round, behind one fence. */
template <typename Write>
__device__ __forceinline__ void afdep_rail_write_out(const afdep_rail_round_t &round, Write write)
{
    afdep_rail_words_t *w = round.words;
    uint32_t list = round.number % AFDEP_RAIL_AHEAD, noted = min(w->noted[list], (uint32_t)AFDEP_RAIL_NOTES);
    if (noted > 0) {
        afdep_fence_system();
        for (uint32_t i = afdep_lane(); i < noted; i += AFDEP_WARP)
            write(w->notes[list][i]);
    }
    __syncwarp(); /* the list is read */
    if (afdep_lane() == 0) {
        w->noted[list] = w->come[list] = 0;
        afdep_store_release_cta32(&w->out, round.number + 1);
    }
}

/* Goes on to the next round, when its list is free; false when the rank is poisoned. */
__device__ __forceinline__ bool afdep_rail_next_round(const afdep_rail_rank_t &r, afdep_rail_round_t &round)
{
    uint32_t needed = ++round.number - AFDEP_RAIL_AHEAD + 1; /* rounds that are out, modulo 2^32 */
    bool fine = true;
    while (fine && (int32_t)(afdep_load_acquire_cta32(&round.words->out) - needed) < 0)
        fine = !afdep_poisoned(r.c); /* whoever failed does not come */
    return __all_sync(AFDEP_FULL, fine); /* a lane that leaves would be waited for by the others */
}

#endif
