/* SPDX-License-Identifier: Apache-2.0 */
/* What afdep-sim was asked to do. */
#ifndef AFDEP_BENCH_PREDICT_PLAN_H
#define AFDEP_BENCH_PREDICT_PLAN_H

#include "bench/lib/options.h"
#include "bench/lib/record.h"
#include "bench/predict_published.h"

typedef enum afdep_predict_mode {
    AFDEP_PREDICT_CELLS,   /* a scenario's token counts */
    AFDEP_PREDICT_COMPARE, /* published or measured times */
    AFDEP_PREDICT_SWEEP,
    AFDEP_PREDICT_FIT,
    AFDEP_PREDICT_PLAN
} afdep_predict_mode_t;

typedef struct afdep_predict_plan {
    int argc; /* as the program got them, for the record */
    char **argv;
    afdep_common_t common;
    afdep_predict_mode_t mode;
    afdep_scenario_t scenario; /* with every override applied; of cells and sweeps */
    afdep_trace_t *trace;
    afdep_cost_t cost;
    int protocol; /* 0 sparse, 1 dense, 2 m2n */
    int stagger, sparse_dispatch, sparse_combine;
    int witness; /* afdep_witness_t */
    int free_running;
    int iterations, warmup, evaluations;
    const char *compare, *sweep, *fit, *hold_out, *cost_out, *plan, *out, *trace_out;
} afdep_predict_plan_t;

/* As afdep_bench_plan_parse(): 0, 1 (help or version was printed) or -1 with a line; freed in every case. */
int afdep_predict_plan_parse(afdep_predict_plan_t *plan, int argc, char **argv, char *why, size_t why_size);
void afdep_predict_plan_free(afdep_predict_plan_t *plan);

/* The cell of `tokens` as a case. */
afdep_predict_case_t afdep_predict_case_of(const afdep_predict_plan_t *plan, int tokens);

/* The arm of the plan's toggles; `name` is storage for its name. */
#define AFDEP_PREDICT_ARM_NAME_MAX 64
void afdep_predict_arm(const afdep_predict_plan_t *plan, afdep_arm_t *arm, char name[AFDEP_PREDICT_ARM_NAME_MAX]);

/* A record's beginning: the common head, the cost model and the witness; `list` is the array that rows are added to.
   NULL without memory. */
cJSON *afdep_predict_record(const afdep_predict_plan_t *plan, const char *schema, const char *list);

/* The resource whose busiest one is busiest of all. */
afdep_resource_t afdep_predict_busiest(const afdep_prediction_t *prediction);

/* The modes. Each prints, writes its record where one is asked for, and returns the exit status; not 0: one line in
   `why`. A fit moves the plan's cost model, a deployment sets its scenario. */
int afdep_predict_cells(const afdep_predict_plan_t *plan, char *why, size_t why_size);
int afdep_predict_compare(const afdep_predict_plan_t *plan, char *why, size_t why_size);
int afdep_predict_sweep(const afdep_predict_plan_t *plan, char *why, size_t why_size);
int afdep_predict_fit(afdep_predict_plan_t *plan, char *why, size_t why_size);
int afdep_predict_planning(afdep_predict_plan_t *plan, char *why, size_t why_size);

#endif
