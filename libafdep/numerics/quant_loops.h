/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The encoders' loops, written once and free of branches, over blocks of 32 so that compilers vectorize them. The file
 * that includes this one defines QUANT_TARGET (the processor that its functions are compiled for), QUANT_NAME and
 * QUANT_OPS. All versions do the same operations on the same values, so their results are the same bits.
 */
#include "numerics/bits.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/quant.h"

#ifdef __FAST_MATH__
#error "the encoders are exact: build without -ffast-math"
#endif

#define LOOP QUANT_TARGET static inline __attribute__((always_inline))

enum { STEP = 32 };

/* What a block's largest finite magnitude is, as BF16 bits, and whether it holds a NaN. */
typedef struct peak {
    uint16_t amax, nan;
} peak_t;

/* Rows without infinities and NaN need the first loop alone. */
LOOP peak_t peak_of(const uint16_t *restrict x, size_t n)
{
    uint16_t most = 0;
    peak_t peak = { 0, 0 };

    for (size_t at = 0; at < n; at += STEP)
        for (int i = 0; i < STEP; i++) {
            uint16_t magnitude = x[at + (size_t)i] & 0x7FFFu;

            most = most > magnitude ? most : magnitude;
        }
    peak.amax = most;
    if (most < 0x7F80u)
        return peak;
    peak.amax = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = x[i] & 0x7FFFu;

        peak.nan |= magnitude > 0x7F80u;
        peak.amax = magnitude < 0x7F80u && magnitude > peak.amax ? magnitude : peak.amax;
    }
    return peak;
}

/* The last step of a block, apart: in one loop with what comes before it, compilers make vectors of as many bytes as a
   block has elements, half of a wide register. */
LOOP void narrow(uint8_t *restrict codes, const uint32_t *restrict wide)
{
    for (int i = 0; i < STEP; i++)
        codes[i] = (uint8_t)wide[i];
}

LOOP float widened(uint16_t bf16)
{
    return afdep_f32_of_bits((uint32_t)bf16 << 16);
}

/* Up to a power of two, at least 2^-127, the least that e8m0 has. */
LOOP float to_power(float scale)
{
    uint32_t bits = afdep_f32_bits(scale);

    if (bits <= 0x00400000u)
        return afdep_f32_of_bits(0x00400000u);
    return afdep_f32_of_bits((bits + 0x7FFFFFu) & 0x7F800000u);
}

LOOP float scale_of(uint16_t amax, float largest, int power)
{
    float scale = amax ? widened(amax) / largest : 1.0f;

    return power ? to_power(scale) : scale;
}

/* The bits of a magnitude, beyond `most` those of `most`; a NaN counts as beyond (see lost_nans()). */
LOOP uint32_t saturated(uint32_t bits, uint32_t most)
{
    uint32_t magnitude = bits & 0x7FFFFFFFu;

    return magnitude < most ? magnitude : most;
}

/* The bits of magnitude + unit * 2^23 less those of unit * 2^23: magnitude in units, rounded to nearest even by the
   sum. */
LOOP uint32_t in_units(uint32_t magnitude, float big)
{
    return afdep_f32_bits(afdep_f32_of_bits(magnitude) + big) - afdep_f32_bits(big);
}

/* `a` where the magnitude is below `limit`, else `b`: in masks, since compilers keep a conditional expression of floats
   as a branch. */
LOOP uint32_t below(uint32_t magnitude, uint32_t limit, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)(magnitude < limit);

    return (a & mask) | (b & ~mask);
}

/* afdep_e4m3_from_f32() but for NaN. Below the smallest normal, 2^-6, codes count units of 2^-9. */
LOOP uint32_t e4m3_of(float value)
{
    uint32_t bits = afdep_f32_bits(value), magnitude = saturated(bits, 0x43E00000u);
    uint32_t normal = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - ((127u - 7u) << 3);

    return below(magnitude, 0x3C800000u, in_units(magnitude, 0x1p14f), normal) | ((bits >> 24) & 0x80u);
}

/* afdep_e2m1_from_f32() but for NaN. Below the smallest normal, 1, codes count units of 0.5. */
LOOP uint32_t e2m1_of(float value)
{
    uint32_t bits = afdep_f32_bits(value), magnitude = saturated(bits, 0x40C00000u);
    uint32_t normal = ((magnitude + 0x1FFFFFu + ((magnitude >> 22) & 1u)) >> 22) - (126u << 1);

    return below(magnitude, 0x3F800000u, in_units(magnitude, 0x1p22f), normal) | ((bits >> 28) & 8u);
}

/* afdep_int8_from_f32() but for NaN. */
LOOP uint32_t int8_of(float value)
{
    uint32_t bits = afdep_f32_bits(value), sign = 0u - (bits >> 31);

    return (in_units(saturated(bits, 0x42FE0000u), 0x1p23f) ^ sign) - sign;
}

/* Rows with a NaN are rare: its elements get their code afterwards. */
static __attribute__((noinline, cold)) void lost_nans(uint8_t *codes, const uint16_t *x, size_t n, uint8_t code)
{
    for (size_t i = 0; i < n; i++)
        if ((x[i] & 0x7FFFu) > 0x7F80u)
            codes[i] = code;
}

QUANT_TARGET static void encode_int8(int8_t *restrict codes, float *restrict scale, const uint16_t *restrict x,
                                     size_t n, int power)
{
    peak_t peak = peak_of(x, n);
    float divisor = scale_of(peak.amax, 127.0f, power);

    for (size_t at = 0; at < n; at += STEP) {
        uint32_t wide[STEP];

        for (int i = 0; i < STEP; i++)
            wide[i] = int8_of(widened(x[at + (size_t)i]) / divisor);
        narrow((uint8_t *)codes + at, wide);
    }
    if (peak.nan)
        lost_nans((uint8_t *)codes, x, n, 0);
    *scale = peak.nan ? afdep_f32_of_bits(0x7FFFFFFFu) : divisor;
}

QUANT_TARGET static void encode_e4m3(uint8_t *restrict codes, float *restrict scales, const uint16_t *restrict x,
                                     size_t n, size_t block, int power)
{
    for (size_t b = 0; b * block < n; b++) {
        const uint16_t *restrict from = x + b * block;
        uint8_t *restrict to = codes + b * block;
        peak_t peak = peak_of(from, block);
        float scale = scale_of(peak.amax, 448.0f, power);

        for (size_t at = 0; at < block; at += STEP) {
            uint32_t wide[STEP];

            for (int i = 0; i < STEP; i++)
                wide[i] = e4m3_of(widened(from[at + (size_t)i]) / scale);
            narrow(to + at, wide);
        }
        if (peak.nan)
            lost_nans(to, from, block, AFDEP_E4M3_NAN);
        scales[b] = scale;
    }
}

/* One over an e8m0 scale, a normal number: codes of blocks end at 254 - 2. */
LOOP float inverse(uint8_t code)
{
    return afdep_f32_of_bits((254u - (uint32_t)code) << 23);
}

QUANT_TARGET static void encode_mxfp8(uint8_t *restrict codes, uint8_t *restrict scales, const uint16_t *restrict x,
                                      size_t n)
{
    for (size_t at = 0; at < n; at += STEP) {
        peak_t peak = peak_of(x + at, STEP);
        uint8_t scale = afdep_e8m0_of_block(peak.amax, 8);
        float factor = inverse(scale);

        uint32_t wide[STEP];

        for (int i = 0; i < STEP; i++)
            wide[i] = e4m3_of(widened(x[at + (size_t)i]) * factor);
        narrow(codes + at, wide);
        if (peak.nan)
            lost_nans(codes + at, x + at, STEP, AFDEP_E4M3_NAN);
        scales[at / STEP] = scale;
    }
}

QUANT_TARGET static void encode_mxfp4(uint8_t *restrict codes, uint8_t *restrict scales, const uint16_t *restrict x,
                                      size_t n)
{
    for (size_t at = 0; at < n; at += STEP) {
        peak_t peak = peak_of(x + at, STEP);
        uint8_t scale = afdep_e8m0_of_block(peak.amax, 2);
        float factor = inverse(scale);
        uint32_t wide[STEP];
        uint8_t halves[STEP];

        for (int i = 0; i < STEP; i++)
            wide[i] = e2m1_of(widened(x[at + (size_t)i]) * factor);
        narrow(halves, wide);
        if (peak.nan)
            lost_nans(halves, x + at, STEP, 0);
        for (int i = 0; i < STEP / 2; i++)
            codes[at / 2 + (size_t)i] = (uint8_t)(halves[2 * i] | halves[2 * i + 1] << 4);
        scales[at / STEP] = peak.nan ? AFDEP_E8M0_NAN : scale;
    }
}

const afdep_quant_ops_t QUANT_OPS = { QUANT_NAME, encode_int8, encode_e4m3, encode_mxfp8, encode_mxfp4 };
