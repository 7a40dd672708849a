/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of BF16 to the quantized formats of the low-latency API, and back. Exact: every code and every scale is fixed
 * bit for bit by these rules, in every vector version.
 *
 * amax   The largest finite magnitude of the block (of the row, where the scale is per token). Infinities do not count,
 *        and saturate to the largest code with their sign.
 * Scales A block whose amax is 0 has scale 1. FP32 scales: amax / 127 (INT8) or amax / 448 (e4m3), one FP32 division,
 *        denormals kept; with `power` rounded up to a power of two, at least 2^-127. e8m0 scales of MX blocks:
 *        2^(floor(log2(amax)) - 8) (e4m3) or - 2 (e2m1), at least 2^-127; so amax may exceed the largest code, which
 *        saturates.
 * Codes  element / scale as one FP32 division (with e8m0: an exact multiplication), then to the code by round to
 *        nearest even, saturating. A zero keeps its sign where the code has one.
 * NaN    is never lost: an e4m3 element becomes 0x7F and leaves its block alone; where elements have no NaN (INT8,
 *        e2m1) the block's scale becomes NaN (FP32: 0x7FFFFFFF, e8m0: 0xFF), and the element's code is 0.
 */
#ifndef AFDEP_NUMERICS_QUANT_H
#define AFDEP_NUMERICS_QUANT_H

#include "numerics/numerics.h"

#define AFDEP_MX_BLOCK 32
#define AFDEP_FP8_BLOCK 128

/* Encoders of one row x[n] of BF16; n is a multiple of 32. Outputs do not overlap x. */
typedef struct afdep_quant_ops {
    const char *name; /* as the row loops': "scalar", "avx2", "avx512" */
    /* One scale for the row. */
    void (*int8)(int8_t *codes, float *scale, const uint16_t *x, size_t n, int power);
    /* One scale per `block` elements, a multiple of 32 that divides n. */
    void (*e4m3)(uint8_t *codes, float *scales, const uint16_t *x, size_t n, size_t block, int power);
    /* One e8m0 scale per 32 elements. */
    void (*mxfp8)(uint8_t *codes, uint8_t *scales, const uint16_t *x, size_t n);
    void (*mxfp4)(uint8_t *codes, uint8_t *scales, const uint16_t *x, size_t n); /* codes [n/2] */
} afdep_quant_ops_t;

/* The version that goes with the row loops of that name (afdep_row_ops()). */
const afdep_quant_ops_t *afdep_quant_ops(const afdep_row_ops_t *rows);

/* Decoders: codes times scale, one FP32 multiplication each; NaN as 0x7FFFFFFF. */
void afdep_dequant_int8(float *x, const int8_t *codes, float scale, size_t n);
void afdep_dequant_e4m3(float *x, const uint8_t *codes, const float *scales, size_t n, size_t block);
void afdep_dequant_mxfp8(float *x, const uint8_t *codes, const uint8_t *scales, size_t n, size_t block);
void afdep_dequant_mxfp4(float *x, const uint8_t *codes, const uint8_t *scales, size_t n);

/* The versions of this build, for quant.c and tests. */
extern const afdep_quant_ops_t afdep_quant_ops_scalar, afdep_quant_ops_avx2, afdep_quant_ops_avx512;

#endif
