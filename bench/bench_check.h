/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checked exchanges: outputs poisoned, replies that depend on what was received, every value compared with the oracle.
 */
#ifndef AFDEP_BENCH_CHECK_H
#define AFDEP_BENCH_CHECK_H

#include "bench/bench_rank.h"

/*
 * Collective. Runs `exchanges` checked exchanges of `tokens`, numbered from `first`; those with an odd number mix
 * choices of -1 in, some tokens with nothing else, and read the host counts. With `view`, collect is asked for views.
 * With `dump`, the first exchange is written there. Returns this rank's number of wrong values, the first of them
 * described on standard error.
 */
int64_t afdep_bench_check(afdep_bench_rank_t *rank, int tokens, int first, int exchanges, int view, const char *dump);

/* The number of checked exchanges before and after the timed ones: fewer where each one takes long. */
int afdep_bench_check_exchanges(const afdep_bench_plan_t *plan, int tokens);

#endif
