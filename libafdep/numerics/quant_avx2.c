/* SPDX-License-Identifier: Apache-2.0 */
/* The encoders, compiled for AVX2. */
#include "numerics/rows.h"

#if AFDEP_ROWS_X86

#define QUANT_TARGET __attribute__((target("avx2")))
#define QUANT_NAME "avx2"
#define QUANT_OPS afdep_quant_ops_avx2
#include "numerics/quant_loops.h"

#endif
