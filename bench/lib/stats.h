/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of paired repeats. A change is the geometric mean of the repeats' ratios; how sure it is, the 95% interval
 * of Student's t on their logarithms. A bootstrap over as few repeats would cover far less than it says (72% for 3).
 */
#ifndef AFDEP_BENCH_LIB_STATS_H
#define AFDEP_BENCH_LIB_STATS_H

/* Of `count` values, which it sorts; NaN where there are none. Of an even number, the mean of the two in the middle. */
double afdep_median(double *values, int count);

/* Probability that Student's t with `freedom` >= 1 degrees of freedom lies within -t .. t. */
double afdep_student_within(double t, int freedom);

/* The t within which (both sides together) it lies with `probability`, 0 < probability < 1. */
double afdep_student_quantile(double probability, int freedom);

typedef struct afdep_paired {
    int repeats;                            /* 0: nothing to pair, and all else NaN */
    double change_pct;                      /* of the candidate against the baseline; negative is faster */
    double change_low_pct, change_high_pct; /* 95% interval; NaN with one repeat */
} afdep_paired_t;

/* Pairs baseline[i] with candidate[i]; both are above 0. */
afdep_paired_t afdep_pair(const double *baseline, const double *candidate, int count);

/* "faster" or "slower" where the interval excludes zero, "no difference seen" where it does not, "one repeat", or "not
   measured". */
const char *afdep_paired_verdict(const afdep_paired_t *paired);

#endif
