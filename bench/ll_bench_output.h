/* SPDX-License-Identifier: Apache-2.0 */
/* What comes of measuring the low-latency API: the printed table, and cells of an afdep-benchmark/1 record. */
#ifndef AFDEP_BENCH_LL_BENCH_OUTPUT_H
#define AFDEP_BENCH_LL_BENCH_OUTPUT_H

#include "bench/bench_rank.h"
#include "bench/bench_stats.h"
#include "bench/lib/record.h"

/* A half of the exchange, or both. */
typedef struct afdep_ll_timing {
    afdep_summary_t us;
    double *samples_us; /* [samples], owned */
    int samples;
    double bytes; /* logical, of a rank on average: choices times the bytes of a row */
} afdep_ll_timing_t;

typedef struct afdep_ll_cell {
    int tokens;
    int64_t iterations;
    afdep_ll_timing_t dispatch, combine, pair;
    afdep_ll_timing_t dispatch_kernel, combine_kernel; /* of a GPU's own clock: no samples on the host backend */
    double skew_us;
    double puts, put_bytes, count_words, combines; /* sent per exchange by the rank that sent most bytes */
    int64_t mismatches;
    int checked;
} afdep_ll_cell_t;

void afdep_ll_bench_print_header(const afdep_bench_rank_t *rank, const char *fabric, double memcpy_gbs);
void afdep_ll_bench_print_cell(const afdep_ll_cell_t *cell, int ranks, double memcpy_gbs);

/* NULL, -1: no memory. */
cJSON *afdep_ll_bench_record_begin(const afdep_bench_rank_t *rank, const char *fabric);
int afdep_ll_bench_record_add(cJSON *record, const afdep_ll_cell_t *cell);

#endif
