/* SPDX-License-Identifier: Apache-2.0 */
/*
 * e8m0: a scale that is a power of two. Code c is 2^(c - 127), 0 .. 254; 0xFF is NaN. No sign, no zero. Integer
 * operations only.
 */
#ifndef AFDEP_NUMERICS_E8M0_H
#define AFDEP_NUMERICS_E8M0_H

#include "numerics/bits.h"

#define AFDEP_E8M0_NAN 0xFFu
#define AFDEP_E8M0_ONE 127u

/* Exact: code 0 is the FP32 denormal 2^-127; NaN becomes 0x7FFFFFFF. */
AFDEP_HD float afdep_e8m0_to_f32(uint8_t code)
{
    if (code == AFDEP_E8M0_NAN)
        return afdep_f32_of_bits(0x7FFFFFFFu);
    return afdep_f32_of_bits(code == 0 ? 0x00400000u : (uint32_t)code << 23);
}

/* Of a positive power of two from 2^-127 on; exact. */
AFDEP_HD uint8_t afdep_e8m0_of_power(float power)
{
    return (uint8_t)(afdep_f32_bits(power) >> 23);
}

/*
 * The shared scale of a block of MX elements whose largest power of two is 2^largest: 2^(floor(log2(amax)) - largest),
 * at least 2^-127. `amax` holds the bits of the largest finite BF16 magnitude of the block; a block of zeros has scale
 * 1. The exponent field of a denormal is 0, and its floor(log2) lies below -126: the clamp covers both alike.
 */
AFDEP_HD uint8_t afdep_e8m0_of_block(uint16_t amax, uint32_t largest)
{
    uint32_t exponent = (uint32_t)amax >> 7;

    if (amax == 0)
        return AFDEP_E8M0_ONE;
    return (uint8_t)(exponent > largest ? exponent - largest : 0);
}

#endif
