/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency API, measured: dispatch and combine apart, each with aligned starts, and both together as an engine
 * calls them; and checked before and after.
 */
#ifndef AFDEP_BENCH_LL_BENCH_H
#define AFDEP_BENCH_LL_BENCH_H

#include "bench/bench_rank.h"

/* What only the whole plan decides: limits and sizes. 0, or -1 with a line. */
int afdep_bench_ll_check(const afdep_bench_plan_t *plan, char *why, size_t why_size);

/* One rank; the program's exit status. `argument` is the plan. */
int afdep_bench_ll_rank(afdep_world_t *world, void *argument);

#endif
