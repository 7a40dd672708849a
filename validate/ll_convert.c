/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/ll_convert.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "validate/convert.h"

/* ---- Codes ------------------------------------------------------------------------------------------------------- */

/* Sign, exponent and mantissa as any small format has them: denormals at exponent 0. */
static double value_of(unsigned code, int exponent_bits, int mantissa_bits, int bias)
{
    unsigned mantissa = code & ((1u << mantissa_bits) - 1),
             exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    double sign = code >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;
    double significand = (double)mantissa + (exponent ? (double)(1u << mantissa_bits) : 0);
    return sign * ldexp(significand, (int)(exponent ? exponent : 1) - bias - mantissa_bits);
}

double afdep_ll_convert_e4m3(uint8_t code)
{
    return (code & 0x7F) == 0x7F ? (double)NAN : value_of(code, 4, 3, 7);
}

double afdep_ll_convert_e2m1(uint8_t code)
{
    return value_of(code & 0xF, 2, 1, 1);
}

double afdep_ll_convert_e8m0(uint8_t code)
{
    return code == 0xFF ? (double)NAN : ldexp(1.0, code - 127);
}

/* Magnitudes grow with their codes, so they are tables to search. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static double e4m3[0x7F], e2m1[8];

static void fill_tables(void)
{
    for (int code = 0; code < 0x7F; code++)
        e4m3[code] = afdep_ll_convert_e4m3((uint8_t)code);
    for (int code = 0; code < 8; code++)
        e2m1[code] = afdep_ll_convert_e2m1((uint8_t)code);
}

/* The code at or below, or its successor. */
static unsigned nearest(double magnitude, unsigned last, const double *values)
{
    unsigned low = 0, high = last;
    pthread_once(&once, fill_tables);
    if (magnitude >= values[last])
        return last;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (values[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - values[low], above = values[high] - magnitude;
    if (below != above)
        return below < above ? low : high;
    return low % 2 == 0 ? low : high;
}

uint8_t afdep_ll_convert_to_e4m3(double value)
{
    if (isnan(value))
        return 0x7F;
    return (uint8_t)(nearest(fabs(value), 0x7E, e4m3) | (signbit(value) ? 0x80u : 0));
}

uint8_t afdep_ll_convert_to_e2m1(double value)
{
    if (isnan(value))
        return 0;
    return (uint8_t)(nearest(fabs(value), 7, e2m1) | (signbit(value) ? 8u : 0));
}

int8_t afdep_ll_convert_to_int8(double value)
{
    if (isnan(value))
        return 0;
    if (fabs(value) >= 127)
        return value < 0 ? -127 : 127;
    double below = floor(value), rest = value - below;
    if (rest > 0.5 || (rest == 0.5 && fmod(below, 2) != 0))
        below += 1;
    return (int8_t)below;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Elements under one scale; 0: there is none. */
static size_t block_of(afdep_ll_format_t format, size_t n)
{
    switch (format) {
    case AFDEP_LL_INT8:
    case AFDEP_LL_FP8_TOKEN:
        return n;
    case AFDEP_LL_MXFP8:
    case AFDEP_LL_MXFP4:
        return 32;
    case AFDEP_LL_FP8_BLOCK:
    case AFDEP_LL_FP8_BLOCK_UE8M0:
        return 128;
    default:
        return 0;
    }
}

static int has_e8m0(afdep_ll_format_t format)
{
    return format == AFDEP_LL_MXFP8 || format == AFDEP_LL_MXFP4 || format == AFDEP_LL_FP8_BLOCK_UE8M0;
}

size_t afdep_ll_convert_code_bytes(afdep_ll_format_t format, size_t n)
{
    return format == AFDEP_LL_BF16 ? 2 * n : format == AFDEP_LL_MXFP4 ? n / 2 : n;
}

size_t afdep_ll_convert_scale_bytes(afdep_ll_format_t format, size_t n)
{
    size_t block = block_of(format, n);
    return block ? n / block * (has_e8m0(format) ? 1 : sizeof(float)) : 0;
}

static double largest(const uint16_t *x, size_t n, int *nan)
{
    double most = 0;
    *nan = 0;
    for (size_t i = 0; i < n; i++) {
        double magnitude = fabs((double)afdep_convert_from_bf16(x[i]));
        *nan |= isnan(magnitude) != 0;
        if (isfinite(magnitude) && magnitude > most)
            most = magnitude;
    }
    return most;
}

/* The least power of two from 2^-127 on that is no less. */
static double power_above(double value)
{
    double power = ldexp(1.0, -127);
    while (power < value)
        power *= 2;
    return power;
}

/* A block's scale, before what a NaN makes of it. */
static double scale_of(afdep_ll_format_t format, double amax, int round_scale)
{
    if (amax == 0)
        return 1;
    if (format == AFDEP_LL_MXFP8 || format == AFDEP_LL_MXFP4)
        return fmax(ldexp(1.0, ilogb(amax) - (format == AFDEP_LL_MXFP8 ? 8 : 2)), ldexp(1.0, -127));
    /* Of two FP32 values, rounded to double and then to FP32: the same as once, with so many bits between. */
    float scale = (float)(amax / (format == AFDEP_LL_INT8 ? 127.0 : 448.0));
    return round_scale || format == AFDEP_LL_FP8_BLOCK_UE8M0 ? power_above((double)scale) : (double)scale;
}

static void put_code(afdep_ll_format_t format, unsigned char *codes, size_t i, double value)
{
    if (format == AFDEP_LL_INT8)
        codes[i] = (unsigned char)afdep_ll_convert_to_int8(value);
    else if (format != AFDEP_LL_MXFP4)
        codes[i] = afdep_ll_convert_to_e4m3(value);
    else if (i % 2 == 0)
        codes[i / 2] = afdep_ll_convert_to_e2m1(value);
    else
        codes[i / 2] = (unsigned char)(codes[i / 2] | afdep_ll_convert_to_e2m1(value) << 4);
}

static void put_scale(afdep_ll_format_t format, void *scales, size_t b, double scale, int nan)
{
    if (nan && format != AFDEP_LL_INT8 && format != AFDEP_LL_MXFP4)
        nan = 0; /* e4m3 says it in the element */
    if (has_e8m0(format)) {
        ((uint8_t *)scales)[b] = nan ? 0xFF : (uint8_t)(ilogb(scale) + 127);
        return;
    }
    uint32_t bits = nan ? 0x7FFFFFFFu : afdep_convert_bits((float)scale);
    memcpy((unsigned char *)scales + 4 * b, &bits, sizeof(bits));
}

void afdep_ll_convert_encode(afdep_ll_format_t format, const uint16_t *x, size_t n, int round_scale, void *codes,
                             void *scales)
{
    size_t block = block_of(format, n);
    if (!block) {
        memcpy(codes, x, 2 * n);
        return;
    }
    for (size_t b = 0; b * block < n; b++) {
        int nan;
        double scale = scale_of(format, largest(x + b * block, block, &nan), round_scale);
        for (size_t i = b * block; i < (b + 1) * block; i++) {
            float quotient = (float)((double)afdep_convert_from_bf16(x[i]) / scale);
            put_code(format, codes, i, (double)quotient);
        }
        put_scale(format, scales, b, scale, nan);
    }
}

static double get_code(afdep_ll_format_t format, const unsigned char *codes, size_t i)
{
    if (format == AFDEP_LL_INT8)
        return (double)(int8_t)codes[i];
    if (format == AFDEP_LL_MXFP4)
        return afdep_ll_convert_e2m1((uint8_t)(codes[i / 2] >> (i % 2 ? 4 : 0)));
    return afdep_ll_convert_e4m3(codes[i]);
}

void afdep_ll_convert_decode(afdep_ll_format_t format, float *x, size_t n, const void *codes, const void *scales)
{
    size_t block = block_of(format, n);
    for (size_t i = 0; i < n; i++) {
        if (!block) {
            x[i] = afdep_convert_from_bf16(((const uint16_t *)codes)[i]);
            continue;
        }
        double scale;
        if (has_e8m0(format)) {
            scale = afdep_ll_convert_e8m0(((const uint8_t *)scales)[i / block]);
        } else {
            float f;
            memcpy(&f, (const unsigned char *)scales + 4 * (i / block), sizeof(f));
            scale = (double)f;
        }
        x[i] = (float)(get_code(format, codes, i) * scale);
    }
}
