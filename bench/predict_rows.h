/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predictions of many shapes of one deployment, as a table, a record and pictures: what sweeps and plans are made of.
 */
#ifndef AFDEP_BENCH_PREDICT_ROWS_H
#define AFDEP_BENCH_PREDICT_ROWS_H

#include "bench/predict_plan.h"

typedef struct afdep_predict_row {
    int domains, ffn_domains, ranks_per_domain, channels, tokens;
    double nics_per_rank;
    double us, budget_us;  /* budget_us: NaN where there is none */
    double signals, bytes; /* of an exchange at the busiest FFN rank */
    afdep_predict_load_t load[AFDEP_RESOURCES];
    afdep_resource_t busiest;
} afdep_predict_row_t;

typedef struct afdep_predict_rows {
    afdep_predict_row_t *rows;
    int count, limit;
} afdep_predict_rows_t;

/* Predicts the plan's arm on `scenario` (its first token count) with `cost`, and adds a row. 0, or -1 with a line. */
int afdep_predict_rows_add(afdep_predict_rows_t *rows, const afdep_predict_plan_t *plan,
                           const afdep_scenario_t *scenario, const afdep_cost_t *cost, double budget_us, char *why,
                           size_t why_size);
void afdep_predict_rows_free(afdep_predict_rows_t *rows);

void afdep_predict_rows_head(const afdep_predict_plan_t *plan, const char *what);
void afdep_predict_rows_print(const afdep_predict_row_t *row);

/* As --json asks. 0, or -1 with a line. */
int afdep_predict_rows_record(const afdep_predict_rows_t *rows, const afdep_predict_plan_t *plan, char *why,
                              size_t why_size);

/* Makes the folder of --out, where one is given, before anything is predicted for it. 0, or -1 with a line. */
int afdep_predict_rows_folder(const afdep_predict_plan_t *plan, char *why, size_t why_size);

/* A page with the table and pictures in the folder of --out; `said` [count] are paragraphs above the table. 0, or -1
   with a line. */
int afdep_predict_rows_page(const afdep_predict_rows_t *rows, const afdep_predict_plan_t *plan, const char *title,
                            const char *const *said, int count, char *why, size_t why_size);

#endif
