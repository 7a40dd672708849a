/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times to be set beside predictions: a file of published tables ({"model", "capacity", "num_sms", "screens": [{"id",
 * "topology", "dtype", "hidden", "tokens", "arms": {NAME: [us]}}]}), or records of the bench and of screens. Each
 * screen is predicted as a scenario of its own.
 */
#ifndef AFDEP_BENCH_PREDICT_PUBLISHED_H
#define AFDEP_BENCH_PREDICT_PUBLISHED_H

#include "bench/predict.h"

#define AFDEP_PUBLISHED_ARMS_MAX 64

typedef struct afdep_published_arm {
    char name[96];
    const char *not_modelled; /* why, or NULL */
    int stagger, sparse_dispatch, sparse_combine;
    double us[AFDEP_SCENARIO_TOKENS_MAX];        /* by token count of the screen; NaN: none */
    double predicted[AFDEP_SCENARIO_TOKENS_MAX]; /* by afdep_published_predict() */
} afdep_published_arm_t;

typedef struct afdep_published_screen {
    char id[128];
    afdep_scenario_t scenario;
    afdep_trace_t *trace;
    int arms;
    afdep_published_arm_t arm[AFDEP_PUBLISHED_ARMS_MAX];
    int fitted; /* the model was fitted on it: no prediction */
} afdep_published_screen_t;

typedef struct afdep_published {
    afdep_published_screen_t *screens;
    int count;
} afdep_published_t;

/* 0, or -1 with one line naming file, field and value; freed by afdep_published_free() in both cases. */
int afdep_published_load(const char *file, afdep_published_t *published, char *why, size_t why_size);
void afdep_published_free(afdep_published_t *published);

/* The screen of an id, or NULL. */
afdep_published_screen_t *afdep_published_find(afdep_published_t *published, const char *id, size_t length);

/* How a cell is predicted. */
typedef struct afdep_predict_how {
    const afdep_cost_t *cost;
    afdep_witness_t witness;
    int free_running, warmup, iterations;
} afdep_predict_how_t;

/* Fills `predicted` of every modelled arm of a screen. 0, or -1 with one line. */
int afdep_published_predict(afdep_published_screen_t *screen, const afdep_predict_how_t *how, char *why,
                            size_t why_size);

/* What the errors of the predicted cells come to; cells of fitted screens, or of the others. */
typedef struct afdep_published_error {
    int cells;
    double median, largest; /* of |predicted / published - 1| */
    int gains,
        gains_wrong; /* differences of arms at one token count that exceed 3%, and those predicted the other way */
    char worst[192]; /* the cell of the largest error */
} afdep_published_error_t;

/* `fitted`: of the fitted screens, else of the others. -1 without memory. */
int afdep_published_judge(const afdep_published_t *published, int fitted, afdep_published_error_t *error);

/* Whether two arms' published times at a token count differ by more than 3%, and if so whether the prediction has them
   in the other order. */
int afdep_published_differ(const afdep_published_arm_t *a, const afdep_published_arm_t *b, int token, int *wrong);

#endif
