/* SPDX-License-Identifier: Apache-2.0 */
/* The encoders, compiled for AVX-512. */
#include "numerics/rows.h"

#if AFDEP_ROWS_X86

#define QUANT_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define QUANT_NAME "avx512"
#define QUANT_OPS afdep_quant_ops_avx512
#include "numerics/quant_loops.h"

#endif
