/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a screen has so far: every record as its program wrote it, the pairs computed from them, and what failed. Saved
 * whole after every run.
 */
#ifndef AFDEP_BENCH_SCREEN_RESULTS_H
#define AFDEP_BENCH_SCREEN_RESULTS_H

#include <cjson/cJSON.h>

#include "bench/screen_file.h"

typedef struct afdep_screen_results {
    const afdep_screen_t *screen;
    cJSON *json;    /* afdep-benchmarks/1; owned */
    cJSON *records; /* inside it */
} afdep_screen_results_t;

/* One run of an arm. */
typedef struct afdep_screen_run {
    int arm, repeat;  /* from 0 */
    const char *line; /* the command line */
    double seconds;
} afdep_screen_run_t;

/* -1 without memory. */
int afdep_screen_results_begin(const afdep_screen_t *screen, afdep_screen_results_t *results);
void afdep_screen_results_free(afdep_screen_results_t *results);

/*
 * Adds the record of a run, with a "run" that says which, or refuses it: a token count without a median, another native
 * tree than the arm demands or has had so far, a dirty build on a clean screen, a scenario or machine other than that
 * of the first record. -1 with one line; `record` is owned by the results in both cases (a refused one stands with the
 * failures).
 */
int afdep_screen_results_add(afdep_screen_results_t *results, const afdep_screen_run_t *run, cJSON *record, char *why,
                             size_t why_size);

/* Notes a run that failed: why, the end of what it said, and the record that it left (owned from here on), or NULL. */
void afdep_screen_results_fail(afdep_screen_results_t *results, const afdep_screen_run_t *run, const char *reason,
                               const char *said, cJSON *record);

/* Computes the pairs, and writes the file whole or not at all. 0, or -1 with one line. */
int afdep_screen_results_save(afdep_screen_results_t *results, const char *file, char *why, size_t why_size);

/* Prints each token count's medians and paired changes. Nothing when nothing was measured. */
void afdep_screen_results_print(const afdep_screen_results_t *results);

/*
 * The arm `candidate`, or without one every arm but the baseline, against the baseline: 0 when none of them is slower
 * by more than `percent` at any token count; else -1, with one line for each on standard error.
 */
int afdep_screen_results_gate(const afdep_screen_results_t *results, double percent);

#endif
