/* SPDX-License-Identifier: Apache-2.0 */
/* The versions of the row loops, for rows.c: which of them this build has, and what they share. */
#ifndef AFDEP_NUMERICS_ROWS_H
#define AFDEP_NUMERICS_ROWS_H

#include "numerics/numerics.h"

/* The vector versions are compiled for their processors function by function, so the build needs no flags and the
   rest of the library runs anywhere. */
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define AFDEP_ROWS_X86 1
#else
#define AFDEP_ROWS_X86 0
#endif

extern const afdep_row_ops_t afdep_row_ops_scalar;
#if AFDEP_ROWS_X86
extern const afdep_row_ops_t afdep_row_ops_avx2;   /* needs AVX2 and FMA */
extern const afdep_row_ops_t afdep_row_ops_avx512; /* needs AVX-512F */

/* Packed rows: one version for both, since the codes are bytes and AVX-512F has no operations on them. */
void afdep_pack_avx2(uint8_t *codes, uint8_t *scales, const uint16_t *row, size_t n);
void afdep_packed_sum_avx2(uint16_t *dst, const afdep_packed_term_t *terms, int count, size_t n);
#endif

#endif
