/*
 * Conversions and row loops. Exact: every function's result is fixed bit for bit by the rules below, on every machine
 * and in every vector version.
 *
 * - FP32 to BF16 rounds to nearest even; any NaN becomes 0x7FFF; overflow becomes infinity; denormals are kept.
 * - e4m3 (fn): sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities; 0x7F and 0xFF are NaN; largest 448.
 *   FP32 to e4m3 rounds to nearest even and saturates to +-448 (infinities too); NaN becomes 0x7F.
 * - Arithmetic is FP32 with explicit fused multiply-add where a rule says so, never contracted otherwise.
 *
 * Row loops assume the default rounding mode with denormals kept; entry points of the library bracket them with
 * afdep_fp_enter() and afdep_fp_leave().
 */
#ifndef AFDEP_NUMERICS_NUMERICS_H
#define AFDEP_NUMERICS_NUMERICS_H

#include <stddef.h>
#include <stdint.h>

#ifndef AFDEP_HD
#ifdef __CUDACC__
#define AFDEP_HD __host__ __device__ __forceinline__
#else
#define AFDEP_HD static inline
#endif
#endif

/* Scalars: numerics/bf16.h, numerics/e4m3.h and numerics/group.h (AFDEP_HD, also compiled by nvcc). */

/* One contributor of a row sum. */
typedef struct afdep_term {
    const uint16_t *row; /* [n] BF16 */
    float weight;        /* read by afdep_rows_weighted_sum only */
} afdep_term_t;

/*
 * dst[i] = the rows' sum, i < n (n a multiple of 128; rows and dst 16-byte aligned; dst overlaps no row): FP32,
 * starting from the first row, adding the others in order, rounded once to BF16. One row: copied bit for bit. No row:
 * +0.
 */
typedef void (*afdep_rows_sum_fn)(uint16_t *dst, const afdep_term_t *terms, int count, size_t n);

/*
 * The same with weights: acc = weight[0] * row[0] (one rounded FP32 multiply), then acc = fma(weight[k], row[k], acc)
 * in order, rounded once to BF16. Also for one row (which is then not a copy). No row: +0.
 */
typedef void (*afdep_rows_weighted_sum_fn)(uint16_t *dst, const afdep_term_t *terms, int count, size_t n);

/* Copies `bytes` (a multiple of 16; pointers 16-byte aligned) from src to each of `count` destinations, reading src
   once. */
typedef void (*afdep_row_fan_out_fn)(void *const *dst, int count, const void *src, size_t bytes);

/* Packs a row of n BF16 values into n codes and n/128 scales, group by group, by the rules of numerics/group.h. */
typedef void (*afdep_row_pack_fn)(uint8_t *codes, uint8_t *scales, const uint16_t *row, size_t n);

/* A packed contributor. */
typedef struct afdep_packed_term {
    const uint8_t *codes;  /* [n] */
    const uint8_t *scales; /* [n/128] */
} afdep_packed_term_t;

/* dst[i] = the decoded rows' sum in FP32, starting from the first, in order, rounded once to BF16 (which changes
   nothing of a single row but a NaN's bits). No row: +0. */
typedef void (*afdep_packed_sum_fn)(uint16_t *dst, const afdep_packed_term_t *terms, int count, size_t n);

typedef struct afdep_row_ops {
    const char *name; /* "scalar", "avx2", "avx512" */
    afdep_rows_sum_fn sum;
    afdep_rows_weighted_sum_fn weighted_sum;
    afdep_row_fan_out_fn fan_out;
    afdep_row_pack_fn pack;
    afdep_packed_sum_fn packed_sum;
} afdep_row_ops_t;

#ifdef __cplusplus
extern "C" {
#endif

/* The fastest version this processor runs; `name` from AFDEP_ROW_OPS (resolved by core/config) forces one: NULL or
   "auto" chooses. Returns NULL when the named one does not exist or cannot run here. */
const afdep_row_ops_t *afdep_row_ops(const char *name);

/* Every version this build has, NULL-terminated, whether or not this processor can run it; for tests. */
extern const afdep_row_ops_t *const afdep_row_ops_all[];

/* Nonzero when this processor can run `ops`. */
int afdep_row_ops_runs(const afdep_row_ops_t *ops);

/* Saves the thread's floating-point environment and sets round-to-nearest with denormals kept (no FTZ, no DAZ,
   exceptions masked); afdep_fp_leave() restores it, flags included. */
typedef struct afdep_fp_state {
    uint32_t control; /* MXCSR (x86), FPCR (aarch64) */
    uint32_t status;  /* FPSR (aarch64) */
} afdep_fp_state_t;
afdep_fp_state_t afdep_fp_enter(void);
void afdep_fp_leave(afdep_fp_state_t state);

#ifdef __cplusplus
}
#endif
#endif
