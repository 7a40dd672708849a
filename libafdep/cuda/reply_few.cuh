/* SPDX-License-Identifier: Apache-2.0 */
/* Summing a token's rows on this rank, vector by vector: what both replies of few tokens do. */
#ifndef AFDEP_CUDA_REPLY_FEW_CUH
#define AFDEP_CUDA_REPLY_FEW_CUH

#include "cuda/sum.cuh"

/* The token's rows on this rank: each lane has that of its slot, and its weight; a bit for every lane that has one. */
typedef struct few_terms {
    uint32_t chosen;
    int row;
    float weight;
} few_terms_t;

static __device__ __forceinline__ few_terms_t take_few_terms(const afdep_cuda_rank_t &r, uint64_t exchange, int a,
                                                             int token)
{
    const afdep_shape_t &s = r.shape;
    int lane = (int)afdep_lane();
    uint64_t plane = (uint64_t)afdep_plane(s, exchange) * (uint32_t)s.attention_ranks * (uint32_t)s.capacity,
             position = 0;
    uint64_t slot = afdep_slot(s, a, token);
    if (lane < s.top_k)
        position = r.positions[(plane + slot) * (uint32_t)s.top_k + (uint32_t)lane];
    /* On its way beside the position. A rank that failed has no such exchange, and sends nothing. */
    bool poisoned = afdep_poisoned(r);
    /* A slot that no token used holds an earlier exchange's number. */
    bool mine =
        lane < s.top_k && afdep_word_high(position) == (uint32_t)exchange && afdep_word_low(position) != 0 && !poisoned;
    few_terms_t t = { __ballot_sync(AFDEP_FULL, mine), (int)afdep_word_low(position) - 1, 1.0f };
    if (s.apply_weights && mine)
        t.weight = ((const float *)(r.base + afdep_plane_at(r.own, s, exchange) + r.own.rows + slot * r.own.row_stride +
                                    r.own.weight_offset))[lane];
    return t;
}

/* Vector `v` of the sum of the token's rows, for lanes that want it. */
template <bool WEIGHTED>
static __device__ __forceinline__ uint4 sum_vector(const void *rows, int vectors, const few_terms_t &t, int v,
                                                   bool wanted)
{
    const uint4 *at = (const uint4 *)rows + v;
    afdep_sum_t sum;
    uint4 row[AFDEP_TERMS_AT_ONCE];
    uint32_t left = t.chosen;
    bool first = true;
    if (!WEIGHTED && (left & (left - 1)) == 0) { /* one is copied bit for bit */
        int to = __shfl_sync(AFDEP_FULL, t.row, __ffs((int)left) - 1);
        return wanted ? afdep_load16(at + (int64_t)to * vectors) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (int k = 0; left; k += AFDEP_TERMS_AT_ONCE, left >>= AFDEP_TERMS_AT_ONCE) {
        int to[AFDEP_TERMS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++)
            to[j] = __shfl_sync(AFDEP_FULL, t.row, k + j);
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++)
            if (wanted && (left >> j & 1))
                row[j] = afdep_load16(at + (int64_t)to[j] * vectors);
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++) {
            float weight = WEIGHTED ? __shfl_sync(AFDEP_FULL, t.weight, k + j) : 1.0f;
            if (!(left >> j & 1))
                continue;
            if (first)
                afdep_sum_first<WEIGHTED>(sum, row[j], weight);
            else
                afdep_sum_add<WEIGHTED>(sum, row[j], weight);
            first = false;
        }
    }
    return afdep_sum_round(sum);
}

#endif
