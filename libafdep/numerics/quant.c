/* SPDX-License-Identifier: Apache-2.0 */
/* The encoders in plain C, which of their versions runs, and the decoders. */
#include "numerics/quant.h"

#include "numerics/e2m1.h"
#include "numerics/rows.h"

#define QUANT_TARGET
#define QUANT_NAME "scalar"
#define QUANT_OPS afdep_quant_ops_scalar
#include "numerics/quant_loops.h"

const afdep_quant_ops_t *afdep_quant_ops(const afdep_row_ops_t *rows)
{
#if AFDEP_ROWS_X86
    /* Narrow integers in full registers want more of AVX-512 than the row loops do. */
    if (rows == &afdep_row_ops_avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &afdep_quant_ops_avx512;
    if (rows != &afdep_row_ops_scalar && __builtin_cpu_supports("avx2"))
        return &afdep_quant_ops_avx2;
#else
    (void)rows;
#endif
    return &afdep_quant_ops_scalar;
}

/* A product, or the one NaN. */
static float product(float a, float b)
{
    float value = a * b;

    return value == value ? value : afdep_f32_of_bits(0x7FFFFFFFu);
}

void afdep_dequant_int8(float *x, const int8_t *codes, float scale, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = product((float)codes[i], scale);
}

void afdep_dequant_e4m3(float *x, const uint8_t *codes, const float *scales, size_t n, size_t block)
{
    for (size_t i = 0; i < n; i++)
        x[i] = product(afdep_e4m3_to_f32(codes[i]), scales[i / block]);
}

void afdep_dequant_mxfp8(float *x, const uint8_t *codes, const uint8_t *scales, size_t n, size_t block)
{
    for (size_t i = 0; i < n; i++)
        x[i] = product(afdep_e4m3_to_f32(codes[i]), afdep_e8m0_to_f32(scales[i / block]));
}

void afdep_dequant_mxfp4(float *x, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = product(afdep_e2m1_to_f32((uint8_t)(codes[i / 2] >> (i % 2 * 4) & 0xF)),
                       afdep_e8m0_to_f32(scales[i / AFDEP_MX_BLOCK]));
}
