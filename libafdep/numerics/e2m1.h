/* SPDX-License-Identifier: Apache-2.0 */
/*
 * e2m1: sign, 2 exponent bits with bias 1, 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; neither
 * infinity nor NaN. Two codes to a byte, the element of the lower index in the lower half.
 */
#ifndef AFDEP_NUMERICS_E2M1_H
#define AFDEP_NUMERICS_E2M1_H

#include "numerics/bits.h"

#define AFDEP_E2M1_MAX 0x7u /* 6 */

/* Exact, of the four low bits. */
AFDEP_HD float afdep_e2m1_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 8u) << 28;
    uint32_t magnitude = code & 7u;

    if (magnitude < 2u) /* the one denormal is 0.5, and zero keeps its sign */
        return afdep_f32_of_bits(sign | (magnitude ? 0x3F000000u : 0u));
    return afdep_f32_of_bits(sign | ((magnitude << 22) + (126u << 23)));
}

/* Rounds to nearest even; beyond 6, infinities included, saturates to 6 with the sign; NaN becomes +0 (whoever encodes
   a block says so in its scale). */
AFDEP_HD uint8_t afdep_e2m1_from_f32(float value)
{
    uint32_t bits = afdep_f32_bits(value);
    uint32_t sign = (bits >> 28) & 8u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;

    if (magnitude > 0x7F800000u)
        return 0;
    if (magnitude >= 0x40C00000u) /* 6 */
        return (uint8_t)(sign | AFDEP_E2M1_MAX);
    if (magnitude >= 0x3F800000u) { /* 1, the smallest normal: drop 22 mantissa bits, rebias */
        magnitude += 0x1FFFFFu + ((magnitude >> 22) & 1u);
        return (uint8_t)(sign | ((magnitude >> 22) - (126u << 1)));
    }
    /* Between 0, 0.5 and 1: the ties at 0.25 and 0.75 go to the even codes 0 and 2. */
    return (uint8_t)(sign | ((magnitude > 0x3E800000u) + (uint32_t)(magnitude >= 0x3F400000u)));
}

#endif
