/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What afdep-bench prints on standard output: comment lines, two header rows, one line per token count.
 */
#ifndef AFDEP_BENCH_PRINT_H
#define AFDEP_BENCH_PRINT_H

#include "bench/bench_measure.h"
#include "bench/lib/record.h"

/* The arm as records name it; `name` holds what arm->name points to. */
#define AFDEP_BENCH_ARM_NAME_MAX 64
void afdep_bench_arm(const afdep_bench_rank_t *rank, afdep_arm_t *arm, char name[AFDEP_BENCH_ARM_NAME_MAX]);

/* This machine's memcpy rate of one thread, bytes copied per second, in GB/s; 0 when it could not be measured. */
double afdep_bench_memcpy_rate(void);

void afdep_bench_print_header(const afdep_bench_rank_t *rank, const afdep_arm_t *arm, double memcpy_gbs);
void afdep_bench_print_cell(const afdep_bench_cell_t *cell, double memcpy_gbs);
void afdep_bench_print_overlap(const afdep_bench_plan_t *plan, const afdep_bench_cell_t *cell);

#endif
