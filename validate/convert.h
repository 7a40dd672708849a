/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number conversions of the workload and the oracle: BF16 and e4m3 to FP32 and FP32 to BF16, written from the numeric
 * rules alone. Deliberately not libafdep/numerics: a mistake there must not hide in what the results are compared with.
 * All are free of branches, so that compilers vectorize loops over them.
 */
#ifndef AFDEP_VALIDATE_CONVERT_H
#define AFDEP_VALIDATE_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float afdep_convert_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t afdep_convert_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float afdep_convert_from_bf16(uint16_t bits)
{
    return afdep_convert_float((uint32_t)bits << 16);
}

/* To nearest, ties to even; past the largest finite value to infinity; any NaN to 0x7FFF. */
static inline uint16_t afdep_convert_to_bf16(float value)
{
    uint32_t bits = afdep_convert_bits(value);
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;

    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : rounded);
}

/*
 * Exact. The seven bits below the sign are placed as an FP32 number of the same exponent steps. Code 0mmm of exponent
 * zero is m/8 * 2^-6, which is (1 + m/8) * 2^-6 less 2^-6: subtracting spares a multiplication of FP32 denormals,
 * which processors do slowly.
 */
static inline float afdep_convert_from_e4m3(uint8_t code)
{
    uint32_t magnitude = code & 0x7Fu;
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t denormal = afdep_convert_bits(afdep_convert_float((magnitude << 20) + (121u << 23)) - 0x1p-6f);
    uint32_t small = 0u - (uint32_t)(magnitude < 8u);
    uint32_t nan = 0u - (uint32_t)(magnitude == 0x7Fu);

    return afdep_convert_float(sign | (denormal & small) | (normal & ~small) | (0x7FC00000u & nan));
}

#endif
