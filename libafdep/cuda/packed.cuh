/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed replies (FP8 combine) in registers, by the rules of numerics/group.h: a lane has eight neighbouring elements of a
 * row, sixteen lanes a group with its scale. The conversion instruction rounds as afdep_e4m3_from_f32() does.
 */
#ifndef AFDEP_CUDA_PACKED_CUH
#define AFDEP_CUDA_PACKED_CUH

#include "cuda/sum.cuh"
#include "numerics/group.h"

#define AFDEP_GROUP_LANES (AFDEP_GROUP / 8)

/* The code of a BF16, from what the conversion gave for its magnitude. */
__device__ __forceinline__ uint32_t afdep_group_pick(uint32_t bf16, uint32_t converted, uint32_t limit)
{
    uint32_t magnitude = bf16 & 0x7FFFu, code = magnitude < 0x7F80u ? min(converted, limit) : converted;
    return magnitude > 0x7F80u ? AFDEP_E4M3_NAN : code | (bf16 & 0x8000u) >> 8;
}

/* Packs the lane's elements, from `element` on, to a row whose scales stand at an offset. The warp is whole. */
__device__ __forceinline__ void afdep_pack_column(unsigned char *row, uint32_t scale_offset, uint32_t element, const uint4 &v)
{
    const uint32_t pairs[4] = { v.x, v.y, v.z, v.w };
    uint32_t largest = 0, codes[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = pairs[i] & 0x7FFFu, high = pairs[i] >> 16 & 0x7FFFu;
        largest = max(largest, max(low <= 0x7F80u ? low : 0, high <= 0x7F80u ? high : 0));
    }
#pragma unroll
    for (int step = AFDEP_GROUP_LANES / 2; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(AFDEP_FULL, largest, step));
    uint32_t scale = afdep_group_scale(largest), limit = afdep_group_limit(scale);
    float power = afdep_group_power(127 - (int)scale);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t both = afdep_e4m3_pair(__fmul_rn(afdep_low(pairs[i] & 0x7FFFu), power),
                                        __fmul_rn(afdep_high(pairs[i] & 0x7FFF0000u), power));
        uint32_t low = afdep_group_pick(pairs[i] & 0xFFFFu, both & 0xFFu, limit);
        uint32_t high = afdep_group_pick(pairs[i] >> 16, both >> 8, limit);
        codes[i / 2] |= (low | high << 8) << i % 2 * 16;
    }
    *(uint2 *)(row + element) = make_uint2(codes[0], codes[1]);
    if (afdep_lane() % AFDEP_GROUP_LANES == 0)
        row[scale_offset + element / AFDEP_GROUP] = (unsigned char)scale;
}

/* The sum of the lane's elements of `count` packed rows (count > 0), as afdep_sum_column(). */
__device__ __forceinline__ uint4 afdep_sum_packed(int count, const unsigned char *const *rows, uint32_t scale_offset,
                                                  uint32_t element)
{
    afdep_sum_t sum;
    uint2 codes[AFDEP_TERMS_AT_ONCE];
    uint32_t scales[AFDEP_TERMS_AT_ONCE];
    for (int base = 0; base < count; base += AFDEP_TERMS_AT_ONCE) {
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++)
            if (base + j < count) {
                const volatile uint32_t *at = (const volatile uint32_t *)(rows[base + j] + element);
                codes[j] = make_uint2(at[0], at[1]);
                scales[j] = *(const volatile uint8_t *)(rows[base + j] + scale_offset + element / AFDEP_GROUP);
            }
#pragma unroll
        for (int j = 0; j < AFDEP_TERMS_AT_ONCE; j++)
            if (base + j < count)
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    uint8_t code = (uint8_t)((i < 4 ? codes[j].x : codes[j].y) >> i % 4 * 8);
                    float value = afdep_group_value(code, scales[j]);
                    sum.of[i] = base + j == 0 ? value : __fadd_rn(sum.of[i], value);
                }
    }
    return afdep_sum_round(sum);
}

#endif
