/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed exchanges of one token count, and what they came to.
 */
#ifndef AFDEP_BENCH_MEASURE_H
#define AFDEP_BENCH_MEASURE_H

#include "bench/bench_overlap.h"
#include "bench/bench_stats.h"

/* Per exchange, at the busiest FFN rank (or rank: see below): received in dispatch and sent in combine. */
typedef struct afdep_bench_counts {
    double finish_tail, count_word, progress_tail, combine, witness, total;
    double puts, bytes;
    double all_bytes; /* of all ranks' puts, those inside a domain included */
    double *in, *out; /* [ranks]: the signals that each rank received and sent; owned by the cell */
} afdep_bench_counts_t;

typedef struct afdep_bench_cell {
    int tokens;
    int64_t iterations;
    afdep_summary_t us;
    double skew_us; /* median spread of the starts of all ranks; NaN across hosts, whose clocks differ */
    double *samples_us; /* [samples], in the order they were kept; owned */
    int samples;
    afdep_bench_counts_t counts;
    double memory_bytes; /* of an FFN rank: segment, bookkeeping, receive and reply tensors of this bucket */
    afdep_bench_overlap_t overlap; /* where the plan has micro-batches */
    int64_t mismatches;
    int checked; /* 0: --check off */
} afdep_bench_cell_t;

/* Collective: times the exchanges of `cell->tokens` and fills all but the checking fields, the same on every rank. */
void afdep_bench_measure(afdep_bench_rank_t *rank, afdep_bench_cell_t *cell, afdep_reservoir_t *reservoir);

/* Whether every rank is counted, as with symmetric ranks and in shared domains, where Attention ranks forward; else FFN
   ranks are. */
int afdep_bench_counts_all_ranks(const afdep_bench_plan_t *plan);

/* Snapshots of this rank's counters, [size]; and collective: the counts of `exchanges` exchanges between the two. */
void afdep_bench_count(afdep_bench_rank_t *rank, afdep_counters_t *counters);
void afdep_bench_counts(afdep_bench_rank_t *rank, const afdep_counters_t *before, const afdep_counters_t *after,
                        int64_t exchanges, afdep_bench_counts_t *counts);

/* Collective: how many iterations come next, after `done` of them in `elapsed_ns`; 0 ends the loop. */
int64_t afdep_bench_next_round(afdep_bench_rank_t *rank, int64_t done, int64_t elapsed_ns);

/* Collective: for each sample kept, the longest of the ranks from `first_rank` on and how far all starts lay apart. */
void afdep_bench_reduce(afdep_bench_rank_t *rank, const afdep_reservoir_t *reservoir, int first_rank, double *took_us,
                        double *spread_us);

#endif
