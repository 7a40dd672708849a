/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples: kept in a reservoir that every rank fills at the same places, and what is said of them.
 */
#ifndef AFDEP_BENCH_STATS_H
#define AFDEP_BENCH_STATS_H

#include <stdint.h>

#define AFDEP_BENCH_SAMPLES_MAX 10000

/*
 * A reservoir of iterations (algorithm R). Which places are kept depends on the seed and the number of iterations
 * alone, so that ranks with the same of both keep the same iterations without a word between them.
 */
typedef struct afdep_reservoir {
    uint64_t seen, state;
    int kept;
    int64_t start_ns[AFDEP_BENCH_SAMPLES_MAX], took_ns[AFDEP_BENCH_SAMPLES_MAX];
} afdep_reservoir_t;

void afdep_reservoir_init(afdep_reservoir_t *reservoir, uint64_t seed);
void afdep_reservoir_add(afdep_reservoir_t *reservoir, int64_t start_ns, int64_t took_ns);

/* Of `count` values; NaN where there is none. The median of an even number is the mean of the two in the middle; p99 is
   the smallest value that at least 99% of the values do not exceed. Sorts `values`. */
typedef struct afdep_summary {
    double min, median, mean, p99;
} afdep_summary_t;
afdep_summary_t afdep_summarize(double *values, int count);

#endif
