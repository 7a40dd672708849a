/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One exchange as NumPy files, DIR/T<tokens>/rank<rank>/NAME.npy, for anyone who wants to recompute it. What cannot be
 * written ends the job.
 */
#ifndef AFDEP_BENCH_DUMP_H
#define AFDEP_BENCH_DUMP_H

#include "bench/bench_rank.h"

/* x, x_scale, ids, weights, out. */
void afdep_bench_dump_source(afdep_bench_rank_t *rank, const char *folder, int tokens,
                             const afdep_source_tokens_t *sent, const afdep_collect_t *collect);

/* ends, rows, row_scale, row_weight, row_source, reply. */
void afdep_bench_dump_worker(afdep_bench_rank_t *rank, const char *folder, int tokens, int64_t rows);

#endif
