/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines: rows of few tokens, whose words prove by themselves that they have come (protocol/device.h).
 *
 * A word is stored and loaded as one scalar of 128 bits, relaxed at system scope. Such an access is single-copy atomic in
 * the memory model, which a vector of four 32-bit elements is not: who sees the exchange's number in a word has the other
 * twelve bytes of the same store. So nothing has to be ordered against anything: no fence stands behind a row and no load
 * behind a flag. (Whole lines are not assumed to arrive at once: every word is looked at.)
 *
 * Nothing is cleared. A word holds what the last exchange that used it left, or the number of the exchange before the
 * first, from opening; it is overwritten under the same rule as everything else in its inbox, when its reader is known to
 * be through with exchange n - G. A number comes round after 2^32 exchanges: a word would be taken for what it is not if it
 * was left alone all that time and awaited exactly then. The senders (across domains the owner, rail_few.cuh) see to it that
 * none is left alone that long, see afdep_renewal_due().
 */
#ifndef AFDEP_CUDA_LINES_CUH
#define AFDEP_CUDA_LINES_CUH

#include "cuda/device.cuh"

/* This lane's word of a line whose vectors are with lanes 0 to 23; the warp must be whole. */
__device__ __forceinline__ uint4 afdep_pack_word(const uint4 &v, uint64_t exchange)
{
    int lane = (int)afdep_lane(), first = lane < AFDEP_LINE_VECTORS ? 0 : 3 * (lane - AFDEP_LINE_VECTORS);
    uint32_t a = __shfl_sync(AFDEP_FULL, v.w, first);
    uint32_t b = __shfl_sync(AFDEP_FULL, v.w, first + 1);
    uint32_t c = __shfl_sync(AFDEP_FULL, v.w, first + 2);
    return lane < AFDEP_LINE_VECTORS ? make_uint4(v.x, v.y, v.z, (uint32_t)exchange)
                                     : make_uint4(a, b, c, (uint32_t)exchange);
}

/* The other way: the vectors, with lanes 0 to 23. */
__device__ __forceinline__ uint4 afdep_unpack_word(const uint4 &word)
{
    int lane = (int)afdep_lane(), from = (AFDEP_LINE_VECTORS + lane / 3) % AFDEP_WARP, which = lane % 3;
    uint32_t a = __shfl_sync(AFDEP_FULL, word.x, from);
    uint32_t b = __shfl_sync(AFDEP_FULL, word.y, from);
    uint32_t c = __shfl_sync(AFDEP_FULL, word.z, from);
    return make_uint4(word.x, word.y, word.z, which == 0 ? a : which == 1 ? b : c);
}

/* Writes words of lines that carry nothing, so that they hold a young number. */
__device__ __forceinline__ void afdep_renew_lines(unsigned char *line, int lines, uint64_t exchange)
{
    for (int i = 0; i < lines; i++)
        afdep_store_word(line + i * AFDEP_LINE_BYTES + afdep_lane() * 16, make_uint4(0, 0, 0, (uint32_t)exchange));
}

/* What a warp looks for: `count` lines from `at` on, of which the lane needs the words that `needed` has bits for. */
typedef struct afdep_look_for {
    const unsigned char *at; /* of this lane's word in the first line */
    uint32_t needed;
    int call, word, peer, token, line;
} afdep_look_for_t;

template <int LINES> __device__ __forceinline__ void afdep_load_lines(const afdep_look_for_t &l, uint4 (&words)[LINES])
{
#pragma unroll
    for (int i = 0; i < LINES; i++)
        if (l.needed >> i & 1)
            words[i] = afdep_load_word(l.at + i * AFDEP_LINE_BYTES);
}

/* Goes on looking, behind afdep_load_lines(), until all words are this exchange's. */
template <int LINES>
__device__ __forceinline__ bool afdep_await_lines(const afdep_cuda_rank_t &r, afdep_look_for_t &l, uint64_t exchange,
                                                  uint4 (&words)[LINES])
{
    afdep_patience_t patience = { 0, 0 };
    for (;;) {
        uint32_t seen = (uint32_t)exchange;
#pragma unroll
        for (int i = 0; i < LINES; i++)
            if (l.needed >> i & 1) {
                if (words[i].w == (uint32_t)exchange)
                    l.needed &= ~(1u << i);
                else
                    seen = words[i].w;
            }
        if (!__any_sync(AFDEP_FULL, l.needed != 0))
            return true;
        bool over =
            ++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 && l.needed != 0 &&
            afdep_look(r, patience, l.call, l.word, exchange, l.peer, l.token, l.line, (uint32_t)exchange, seen);
        if (__any_sync(AFDEP_FULL, over))
            return false;
        afdep_load_lines<LINES>(l, words);
    }
}

#endif
