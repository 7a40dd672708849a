/* SPDX-License-Identifier: Apache-2.0 */
/* The table and the record of sweeps and plans. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/stats.h"
#include "bench/lib/why.h"

int afdep_predict_rows_add(afdep_predict_rows_t *rows, const afdep_predict_plan_t *plan,
                           const afdep_scenario_t *scenario, const afdep_cost_t *cost, double budget_us, char *why,
                           size_t why_size)
{
    if (rows->count == rows->limit) {
        int limit = rows->limit ? 2 * rows->limit : 64;
        afdep_predict_row_t *more = realloc(rows->rows, (size_t)limit * sizeof(*more));
        if (!more)
            return afdep_why(why, why_size, "no memory for a table");
        rows->rows = more;
        rows->limit = limit;
    }
    afdep_prediction_t p;
    afdep_predict_case_t predict = afdep_predict_case_of(plan, scenario->tokens[0]);
    predict.scenario = scenario;
    predict.cost = cost;
    predict.seed = scenario->seed;
    if (afdep_predict(&predict, &p, why, why_size) != 0)
        return -1;
    afdep_predict_row_t *row = &rows->rows[rows->count++];
    *row = (afdep_predict_row_t){ .domains = scenario->attention_ranks / scenario->ranks_per_domain,
                                  .ffn_domains = scenario->ffn_ranks / scenario->ranks_per_domain,
                                  .ranks_per_domain = scenario->ranks_per_domain,
                                  .channels = 8 * scenario->num_sms,
                                  .tokens = scenario->tokens[0],
                                  .nics_per_rank = cost->value[AFDEP_COST_NICS_PER_RANK],
                                  .us = afdep_median(p.samples_us, p.samples),
                                  .budget_us = budget_us,
                                  .signals =
                                      p.counts.finish_tail + p.counts.count_word + p.counts.combine + p.counts.witness,
                                  .bytes = p.counts.bytes,
                                  .busiest = afdep_predict_busiest(&p) };
    memcpy(row->load, p.load, sizeof(row->load));
    afdep_prediction_free(&p);
    afdep_predict_rows_print(row);
    return 0;
}

void afdep_predict_rows_free(afdep_predict_rows_t *rows)
{
    free(rows->rows);
    memset(rows, 0, sizeof(*rows));
}

void afdep_predict_rows_head(const afdep_predict_plan_t *plan, const char *what)
{
    char name[AFDEP_PREDICT_ARM_NAME_MAX];
    afdep_arm_t arm;
    afdep_predict_arm(plan, &arm, name);
    printf("# afdep-sim %s, library %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
           afdep_native_tree_dirty() ? " (modified)" : "");
    printf("# emulated: virtual time, cost model %s, arm %s; %s\n", plan->cost.name, arm.name, what);
    printf("#%7s%5s%6s%9s%8s%8s%12s%12s%10s%12s  %s\n", "domains", "FFN", "ranks", "channels", "tokens", "NICs",
           "median", "budget", "signals", "bytes", "busiest");
    printf("#%7s%5s%6s%9s%8s%8s%12s%12s%10s%12s\n", "", "dom.", "/dom.", "", "", "/rank", "us", "us", "/exch",
           "B/exch");
}

void afdep_predict_rows_print(const afdep_predict_row_t *row)
{
    char budget[32] = "-";
    if (!isnan(row->budget_us))
        snprintf(budget, sizeof(budget), "%.1f", row->budget_us);
    printf("%8d %4d %5d %8d %7d %7g %11.1f %11s %9.0f %11.0f  %s, %.0f%%%s\n", row->domains, row->ffn_domains,
           row->ranks_per_domain, row->channels, row->tokens, row->nics_per_rank, row->us, budget, row->signals,
           row->bytes, afdep_resource_name(row->busiest), 100 * row->load[row->busiest].share,
           row->us > row->budget_us ? ", saturated" : "");
    fflush(stdout);
}

static int add(cJSON *object, const char *key, double value)
{
    return cJSON_AddItemToObject(object, key, afdep_record_number(value));
}

static int add_row(cJSON *list, const afdep_predict_row_t *row)
{
    cJSON *one = cJSON_CreateObject(), *busy = NULL;
    int done = one && add(one, "attention_domains", row->domains) && add(one, "ffn_domains", row->ffn_domains) &&
               add(one, "ranks_per_domain", row->ranks_per_domain) && add(one, "channels", row->channels) &&
               add(one, "tokens", row->tokens) && add(one, "nics_per_rank", row->nics_per_rank) &&
               add(one, "median_us", row->us) && add(one, "budget_us", row->budget_us) &&
               add(one, "signals_per_exchange", row->signals) && add(one, "bytes_per_exchange", row->bytes) &&
               cJSON_AddStringToObject(one, "busiest", afdep_resource_name(row->busiest)) &&
               (busy = cJSON_AddObjectToObject(one, "busy")) != NULL;
    for (int i = 0; done && i < AFDEP_RESOURCES; i++)
        done = add(busy, afdep_resource_name((afdep_resource_t)i), row->load[i].share);
    if (done && cJSON_AddItemToArray(list, one))
        return 0;
    cJSON_Delete(one);
    return -1;
}

int afdep_predict_rows_record(const afdep_predict_rows_t *rows, const afdep_predict_plan_t *plan, char *why,
                              size_t why_size)
{
    if (!plan->common.json)
        return 0;
    cJSON *record = afdep_predict_record(plan, "afdep-prediction/1", "rows");
    int status = record ? 0 : -1;
    for (int i = 0; status == 0 && i < rows->count; i++)
        status = add_row(cJSON_GetObjectItemCaseSensitive(record, "rows"), &rows->rows[i]);
    status = status == 0 ? afdep_record_write(plan->common.json, record, why, why_size)
                         : afdep_why(why, why_size, "no memory for the record");
    cJSON_Delete(record);
    return status;
}
