/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What overlap gives: micro-batches one after another over one buffer, against ping-pong over two, with experts that
 * take a stated time. The experts of a rank are an executor of their own, as an accelerator is: it has one micro-batch
 * at a time, in order, and the rank's thread communicates meanwhile.
 */
#ifndef AFDEP_BENCH_OVERLAP_H
#define AFDEP_BENCH_OVERLAP_H

#include "bench/bench_rank.h"

/* Microseconds per micro-batch, medians over samples of all of them. */
typedef struct afdep_bench_overlap {
    double communication_us; /* one after another, experts that take no time */
    double serial_us;        /* one after another */
    double ping_pong_us;
    double hidden_pct;       /* what ping-pong takes less than communication and experts together, of the shorter */
} afdep_bench_overlap_t;

/* Collective, for ranks opened with a plan that has micro-batches. The same on every rank. */
void afdep_bench_overlap(afdep_bench_rank_t *rank, int tokens, afdep_bench_overlap_t *overlap);

#endif
