/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a screen says on standard error while it runs: on a terminal one line that is updated, in a log one line for
 * each run, and one a minute while a run lasts.
 */
#ifndef AFDEP_BENCH_SCREEN_PROGRESS_H
#define AFDEP_BENCH_SCREEN_PROGRESS_H

#include "bench/screen_file.h"

typedef struct afdep_progress {
    const afdep_screen_t *screen;
    int terminal;
    int arm, repeat, done;               /* the run under way; the number of runs that ended */
    double started;                      /* seconds on the monotonic clock */
    double minutes_said;                 /* of the run under way, in a log */
    double spent[AFDEP_SCREEN_ARMS_MAX]; /* seconds of each arm's finished runs */
    int runs[AFDEP_SCREEN_ARMS_MAX];
} afdep_progress_t;

void afdep_progress_begin(afdep_progress_t *progress, const afdep_screen_t *screen);
void afdep_progress_start(afdep_progress_t *progress, int arm, int repeat);
/* A tick of the runner: `context` is the progress. */
void afdep_progress_tick(void *context, double seconds);
/* The run ended well after `seconds`. */
void afdep_progress_end(afdep_progress_t *progress, double seconds);
/* Clears the line on a terminal, before anything else is written there. */
void afdep_progress_clear(const afdep_progress_t *progress);

#endif
