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
#endif

#endif
