/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of 128 BF16 values as e4m3 codes with one power-of-two scale, the format of packed replies. Integer operations
 * but for one exact multiplication, so the results are the same on host and device.
 *
 * A scale is a byte: 2^(scale - 127). The largest finite magnitude of a group, A, chooses the smallest scale with
 * A <= 448 * 2^(scale - 127), so that
 *
 * - an element's error is at most 2^-4 of A (nearest code, ties to even; 3 mantissa bits);
 * - what is at most 2^-10 of the scale becomes zero, with its sign;
 * - a NaN stays where it is, as the code 0x7F, and does not enter A;
 * - with an infinity in the group the scale is the largest, 2^127: infinities are the code 448, which decodes to
 *   infinity, and finite elements up to 2^117 become zero;
 * - a finite element never decodes to infinity: next to the range limit it takes the largest code that does not.
 *
 * Every decoded value is a BF16 value.
 */
#ifndef AFDEP_NUMERICS_GROUP_H
#define AFDEP_NUMERICS_GROUP_H

#include "numerics/bf16.h"
#include "numerics/e4m3.h"

#define AFDEP_GROUP 128
#define AFDEP_GROUP_SCALE_INFINITE 254u

/* The scale of a group whose largest magnitude that is not NaN is `largest` (BF16 bits without the sign). */
AFDEP_HD uint32_t afdep_group_scale(uint32_t largest)
{
    uint32_t exponent = largest >> 7, up = (largest & 0x7Fu) > 0x60u; /* beyond 1.75: 448 is 1.75 * 2^8 */

    if (exponent == 255u) {
        return AFDEP_GROUP_SCALE_INFINITE;
    }
    return exponent + up > 8u ? exponent + up - 8u : 0u;
}

/* The largest code, without sign, that decodes to a finite value under a scale: 2^(E - 7) * 2^(scale - 127) < 2^128. */
AFDEP_HD uint32_t afdep_group_limit(uint32_t scale)
{
    return scale <= 246u ? AFDEP_E4M3_MAX : ((261u - scale) << 3) + 7u;
}

/* 2^exponent as FP32, exponent from -127 (a denormal) to 127. */
AFDEP_HD float afdep_group_power(int exponent)
{
    return afdep_f32_of_bits(exponent == -127 ? 0x00400000u : (uint32_t)(exponent + 127) << 23);
}

AFDEP_HD uint8_t afdep_group_code(uint16_t bf16, uint32_t scale)
{
    uint32_t magnitude = bf16 & 0x7FFFu, sign = (uint32_t)(bf16 & 0x8000u) >> 8, limit = afdep_group_limit(scale), code;

    if (magnitude > 0x7F80u) {
        return AFDEP_E4M3_NAN;
    }
    if (magnitude == 0x7F80u) {
        return (uint8_t)(sign | AFDEP_E4M3_MAX);
    }
    /* Exact, or so small that it becomes zero either way. */
    code = afdep_e4m3_from_f32(afdep_bf16_to_f32((uint16_t)magnitude) * afdep_group_power(127 - (int)scale));
    return (uint8_t)(sign | (code < limit ? code : limit));
}

/* Exact, or the infinity. */
AFDEP_HD float afdep_group_value(uint8_t code, uint32_t scale)
{
    return afdep_e4m3_to_f32(code) * afdep_group_power((int)scale - 127);
}

#endif
