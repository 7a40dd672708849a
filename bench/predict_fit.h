/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration: the parameters that a cost file marks "fitted" are moved until the predictions of some screens are as
 * near as they get (the downhill simplex of Nelder and Mead, deterministic; the sum of squared relative errors).
 */
#ifndef AFDEP_BENCH_PREDICT_FIT_H
#define AFDEP_BENCH_PREDICT_FIT_H

#include "bench/predict_published.h"

typedef struct afdep_fit {
    afdep_published_t *published; /* its screens marked `fitted` are fitted on */
    afdep_cost_t *cost;           /* where the fit starts, and the fitted model after it */
    afdep_predict_how_t how;      /* its cost is not used */
    int evaluations;              /* at most so many */
    void (*tick)(void *context, int evaluation,
                 double error); /* the best error so far, as a root mean square; or NULL */
    void *context;
} afdep_fit_t;

/* 0, or -1 with one line. */
int afdep_fit_run(afdep_fit_t *fit, char *why, size_t why_size);

#endif
