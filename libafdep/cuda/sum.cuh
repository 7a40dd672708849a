/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Row sums in registers, eight BF16 at a time, by the rules of numerics/: FP32 from the first row on, in order, rounded
 * once to nearest even, a NaN to 0x7FFF (which is what the conversion instruction gives). The intrinsics are never
 * contracted and never flush denormals, whatever the flags.
 */
#ifndef AFDEP_CUDA_SUM_CUH
#define AFDEP_CUDA_SUM_CUH

#include <cuda_bf16.h>

#include "cuda/device.cuh"

typedef struct afdep_sum {
    float of[8];
} afdep_sum_t;

__device__ __forceinline__ float afdep_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float afdep_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xFFFF0000u);
}

__device__ __forceinline__ void afdep_unpack(float out[8], const uint4 &v)
{
    out[0] = afdep_low(v.x), out[1] = afdep_high(v.x);
    out[2] = afdep_low(v.y), out[3] = afdep_high(v.y);
    out[4] = afdep_low(v.z), out[5] = afdep_high(v.z);
    out[6] = afdep_low(v.w), out[7] = afdep_high(v.w);
}

template <bool WEIGHTED> __device__ __forceinline__ void afdep_sum_first(afdep_sum_t &sum, const uint4 &v, float weight)
{
    afdep_unpack(sum.of, v);
#pragma unroll
    for (int i = 0; WEIGHTED && i < 8; i++)
        sum.of[i] = __fmul_rn(weight, sum.of[i]);
}

template <bool WEIGHTED> __device__ __forceinline__ void afdep_sum_add(afdep_sum_t &sum, const uint4 &v, float weight)
{
    float row[8];
    afdep_unpack(row, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum.of[i] = WEIGHTED ? __fmaf_rn(weight, row[i], sum.of[i]) : __fadd_rn(sum.of[i], row[i]);
}

__device__ __forceinline__ uint4 afdep_sum_round(const afdep_sum_t &sum)
{
    return make_uint4(afdep_pack(sum.of[0], sum.of[1]), afdep_pack(sum.of[2], sum.of[3]), afdep_pack(sum.of[4], sum.of[5]),
                      afdep_pack(sum.of[6], sum.of[7]));
}

/* The rows of one token: byte offsets of the piece in each, in the order in which they are summed. */
#define AFDEP_TERMS_AT_ONCE 8
#ifndef AFDEP_SUM_COLUMNS
#define AFDEP_SUM_COLUMNS 8 /* of one or two terms that a lane has on their way at once; of four, half as many */
#endif

/*
 * One 16-byte column of the sum of `count` rows (count > 0). row(j) gives the address of the column in row j, weight(j)
 * its weight. Eight rows are on their way before the first is used. One unweighted row is copied bit for bit.
 */
template <bool WEIGHTED, typename Row, typename Weight>
__device__ __forceinline__ uint4 afdep_sum_column(int count, Row row, Weight weight)
{
    afdep_sum_t sum;
    uint4 v[AFDEP_TERMS_AT_ONCE];
    for (int base = 0; base < count; base += AFDEP_TERMS_AT_ONCE) {
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++)
            /* A value in any case: one that may be left over from before would have to be kept. */
            v[j] = base + j < count ? afdep_load16(row(base + j)) : make_uint4(0, 0, 0, 0);
        if (!WEIGHTED && count == 1)
            return v[0];
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++)
            if (base + j < count) {
                if (base + j == 0)
                    afdep_sum_first<WEIGHTED>(sum, v[j], weight(base + j));
                else
                    afdep_sum_add<WEIGHTED>(sum, v[j], weight(base + j));
            }
    }
    return afdep_sum_round(sum);
}

/* COLUMNS such columns a lane, 512 bytes apart, of the sum of `count` (1 to TERMS) rows, with the loads of all of
   them on their way at once. put(at, sum) takes what the lane has at an offset, with the warp whole. */
template <bool WEIGHTED, int COLUMNS, int TERMS, typename Row, typename Weight, typename Put>
__device__ __forceinline__ void afdep_sum_columns(int count, Row row, Weight weight, Put put)
{
    uint4 v[TERMS][COLUMNS];
#pragma unroll
    for (int j = 0; j < TERMS; j++) {
        const unsigned char *at = j < count ? row(j) + afdep_lane() * 16u : NULL;
#pragma unroll
        for (int i = 0; i < COLUMNS; i++) /* a value in any case, as above */
            v[j][i] = j < count ? afdep_load16(at + i * 512) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        afdep_sum_t sum;
        afdep_sum_first<WEIGHTED>(sum, v[0][i], weight(0));
#pragma unroll
        for (int j = 1; j < TERMS; j++)
            if (j < count)
                afdep_sum_add<WEIGHTED>(sum, v[j][i], weight(j));
        /* One unweighted row passes bit for bit. */
        put(afdep_lane() * 16u + (uint32_t)i * 512u, WEIGHTED || count > 1 ? afdep_sum_round(sum) : v[0][i]);
    }
}

/* The first `bytes` (a multiple of 512) of the sum of `count` (> 0) rows, by a warp, to put() as above. Few terms do not
   keep enough loads on their way by themselves: then those of several columns are. */
template <bool WEIGHTED, typename Row, typename Weight, typename Put>
__device__ __forceinline__ void afdep_sum_row(int count, uint32_t bytes, Row row, Weight weight, Put put)
{
    const uint32_t two = AFDEP_SUM_COLUMNS, four = AFDEP_SUM_COLUMNS / 2; /* columns of so many terms */
    uint32_t at = 0;
#pragma unroll 1
    for (; count <= 2 && at + 512u * two <= bytes; at += 512u * two)
        afdep_sum_columns<WEIGHTED, two, 2>(
            count, [&](int j) { return row(j) + at; }, weight,
            [&](uint32_t in, const uint4 &sum) { put(at + in, sum); });
#pragma unroll 1
    for (; count <= 4 && at + 512u * four <= bytes; at += 512u * four)
        afdep_sum_columns<WEIGHTED, four, 4>(
            count, [&](int j) { return row(j) + at; }, weight,
            [&](uint32_t in, const uint4 &sum) { put(at + in, sum); });
#pragma unroll 1
    for (at += afdep_lane() * 16u; at < bytes; at += 512u)
        put(at, afdep_sum_column<WEIGHTED>(count, [&](int j) { return row(j) + at; }, weight));
}

#endif
