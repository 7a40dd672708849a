/* SPDX-License-Identifier: Apache-2.0 */
/*
 * e4m3 (fn): sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinities, NaN is 0x7F and 0xFF, the largest value
 * is 448 and the smallest 2^-9. Integer operations only, so the results depend neither on the rounding mode nor on FTZ
 * and DAZ, and are the same on host and device.
 */
#ifndef AFDEP_NUMERICS_E4M3_H
#define AFDEP_NUMERICS_E4M3_H

#include "numerics/bits.h"

#define AFDEP_E4M3_NAN 0x7Fu
#define AFDEP_E4M3_MAX 0x7Eu /* 448 */

/* Exact; both NaN codes become the FP32 NaN 0x7FFFFFFF. */
AFDEP_HD float afdep_e4m3_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t magnitude = code & 0x7Fu;

    if (magnitude == AFDEP_E4M3_NAN) {
        return afdep_f32_of_bits(0x7FFFFFFFu);
    }
    if (magnitude < 8u) {
        /* Denormal: at most 7 units of 2^-9. The product is exact, and normal as an FP32; zero keeps its sign. */
        return afdep_f32_of_bits(sign | afdep_f32_bits((float)magnitude * 0.001953125f));
    }
    return afdep_f32_of_bits(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

/* Rounds to nearest even; beyond 448, infinities included, saturates to 448 with the sign; NaN becomes 0x7F. */
AFDEP_HD uint8_t afdep_e4m3_from_f32(float value)
{
    uint32_t bits = afdep_f32_bits(value);
    uint32_t sign = (bits >> 24) & 0x80u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    uint32_t exponent = magnitude >> 23;

    if (magnitude > 0x7F800000u) {
        return AFDEP_E4M3_NAN;
    }
    if (magnitude >= 0x43E00000u) { /* 448: also keeps the rounding below away from the NaN code */
        return (uint8_t)(sign | AFDEP_E4M3_MAX);
    }
    if (exponent >= 121u) { /* 2^-6, the smallest normal: drop 20 mantissa bits, rebias */
        magnitude += 0x7FFFFu + ((magnitude >> 20) & 1u);
        return (uint8_t)(sign | ((magnitude >> 20) - ((127u - 7u) << 3)));
    }
    if (exponent < 117u) { /* less than half of 2^-9 */
        return (uint8_t)sign;
    }
    /* Denormal: the significand counts 2^(exponent - 150); drop what is below 2^-9. Rounding up to 8 units gives the
       code of 2^-6, which is the next value. */
    {
        uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
        uint32_t drop = 141u - exponent; /* 21 .. 24 */
        uint32_t half_less_one = (1u << (drop - 1u)) - 1u;

        return (uint8_t)(sign | ((significand + half_less_one + ((significand >> drop) & 1u)) >> drop));
    }
}

#endif
