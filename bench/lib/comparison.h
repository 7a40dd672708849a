/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmark records side by side: which of them may be, and what the arms of several came to, token count by token
 * count. What a screen pairs and what a report shows are computed here, from the records alone.
 */
#ifndef AFDEP_BENCH_COMPARISON_H
#define AFDEP_BENCH_COMPARISON_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "bench/lib/stats.h"

#define AFDEP_COMPARISON_ARMS_MAX 64
#define AFDEP_COMPARISON_TOKENS_MAX 256

/* 0 when `record` is an afdep-benchmark/1 that can be read blindly from here on; else -1 with one line naming the field
   and its value, beginning with `name`. */
int afdep_benchmark_check(const cJSON *record, const char *name, char *why, size_t why_size);

/*
 * 0 when both records (checked) are of one scenario on one kind of machine, with as many ranks on each host, and both
 * measured or both emulated. `may_differ` (a list of names, or NULL) holds the scenario's fields that need not agree.
 * Versions of software that a program was built with belong to the build and may always differ. -1 with one line naming
 * the field and both values.
 */
int afdep_benchmarks_agree(const cJSON *record, const cJSON *other, const cJSON *may_differ, char *why,
                           size_t why_size);

/* The arm that a record belongs to: what its screen called it (in "run"), else its own name. */
const char *afdep_benchmark_arm(const cJSON *record);

/* The cell of `tokens`, or NULL. */
const cJSON *afdep_benchmark_cell(const cJSON *record, int tokens);

/* A number inside a cell, by up to two keys ("median_us", NULL); NaN where there is none. */
double afdep_cell_number(const cJSON *cell, const char *key, const char *inner);

/* With more arms than these beside the baseline a table gets a line for each, in place of columns. */
#define AFDEP_COMPARISON_ABREAST 3

typedef struct afdep_comparison {
    int arms, token_counts, repeats;               /* repeats: the most that any arm has */
    const char *names[AFDEP_COMPARISON_ARMS_MAX];  /* in the order of their first records; they belong to the records */
    const cJSON *first[AFDEP_COMPARISON_ARMS_MAX]; /* each arm's first record */
    int runs[AFDEP_COMPARISON_ARMS_MAX];           /* each arm's number of records */
    int tokens[AFDEP_COMPARISON_TOKENS_MAX];       /* ascending */
    int baseline;                                  /* an arm, or -1 */
    double *median_us;                             /* [arms][token_counts][repeats], NaN where not measured; owned */
} afdep_comparison_t;

/*
 * Gathers `records` (a list of checked ones, which must outlive the comparison). A record is the repeat that its "run"
 * says, else the next of its arm. `baseline` may be NULL. 0, or -1 with one line.
 */
int afdep_comparison_make(const cJSON *records, const char *baseline, afdep_comparison_t *comparison, char *why,
                          size_t why_size);
void afdep_comparison_free(afdep_comparison_t *comparison);

/* The median of one repeat's cell, in microseconds; NaN when not measured. */
double afdep_comparison_at(const afdep_comparison_t *comparison, int arm, int token, int repeat);

/* The median over the repeats of one cell, in microseconds; NaN when not measured. */
double afdep_comparison_median(const afdep_comparison_t *comparison, int arm, int token);

/* The change of `arm` against the baseline over the repeats that have both. */
afdep_paired_t afdep_comparison_pair(const afdep_comparison_t *comparison, int arm, int token);

/* "-45.2 (-50.1 .. -40.0)", with "no difference seen" where that is so; "-" when not measured. Returns `text`. */
const char *afdep_paired_words(const afdep_paired_t *paired, char *text, size_t size);

#endif
