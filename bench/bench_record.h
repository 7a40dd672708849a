/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a run (afdep-benchmark/1), saved after every token count, so that what is finished survives whatever
 * ends the run.
 */
#ifndef AFDEP_BENCH_RECORD_CELLS_H
#define AFDEP_BENCH_RECORD_CELLS_H

#include "bench/bench_measure.h"
#include "bench/lib/record.h"

/* The record without a cell; NULL without memory. Freed by cJSON_Delete(). */
cJSON *afdep_bench_record_begin(const afdep_bench_rank_t *rank, const afdep_arm_t *arm);

/* Adds a cell. 0, or -1 without memory. */
int afdep_bench_record_add(cJSON *record, const afdep_bench_rank_t *rank, const afdep_bench_cell_t *cell);

#endif
