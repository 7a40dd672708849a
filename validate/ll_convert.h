/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency formats once more, slowly and from their rules alone: every code is found by search among all values
 * of the format, in arithmetic wide enough to be exact. Shares nothing with libafdep/numerics.
 */
#ifndef AFDEP_VALIDATE_LL_CONVERT_H
#define AFDEP_VALIDATE_LL_CONVERT_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/low_latency.h>

/* The value of a code; e4m3's NaN is a NaN. */
double afdep_ll_convert_e4m3(uint8_t code);
double afdep_ll_convert_e2m1(uint8_t code);
double afdep_ll_convert_e8m0(uint8_t code);

/* The nearest code of a value, ties to the even one, saturating. NaN: 0x7F, 0, 0. */
uint8_t afdep_ll_convert_to_e4m3(double value);
uint8_t afdep_ll_convert_to_e2m1(double value);
int8_t afdep_ll_convert_to_int8(double value);

/* Bytes of a row of `n` elements. */
size_t afdep_ll_convert_code_bytes(afdep_ll_format_t format, size_t n);
size_t afdep_ll_convert_scale_bytes(afdep_ll_format_t format, size_t n);

/* A row of BF16 in any format, and the FP32 values that its codes and scales stand for (NaN: some NaN). */
void afdep_ll_convert_encode(afdep_ll_format_t format, const uint16_t *x, size_t n, int round_scale, void *codes,
                             void *scales);
void afdep_ll_convert_decode(afdep_ll_format_t format, float *x, size_t n, const void *codes, const void *scales);

#endif
