/* SPDX-License-Identifier: Apache-2.0 */
/* A scenario's token counts, in the bench's format. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_stats.h"
#include "bench/lib/why.h"
#include "bench/predict_plan.h"
#include "bench/predict_trace.h"

static void print_header(const afdep_predict_plan_t *plan)
{
    const afdep_scenario_t *s = &plan->scenario;
    char name[AFDEP_PREDICT_ARM_NAME_MAX];
    afdep_arm_t arm;
    int ranks = afdep_scenario_ranks(s);
    afdep_predict_arm(plan, &arm, name);
    printf("# afdep-sim %s, library %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
           afdep_native_tree_dirty() ? " (modified)" : "");
    printf("# emulated: virtual time, cost model %s; the witness is awaited %s\n", plan->cost.name,
           plan->witness == AFDEP_WITNESS_COLLECT ? "in collect, as published" : "by the next dispatch");
    printf("# scenario %s: %d FFN and %d Attention ranks, %d domain%s of %d\n", s->name, s->ffn_ranks,
           s->attention_ranks, ranks / s->ranks_per_domain, ranks == s->ranks_per_domain ? "" : "s",
           s->ranks_per_domain);
    printf("# model: %d experts, top-%d, hidden %d, %s; %d channels, seed %llu\n", s->num_experts, s->top_k, s->hidden,
           arm.dtype, 8 * s->num_sms, (unsigned long long)s->seed);
    printf("# arm %s: stagger %s, sparse dispatch %s, sparse combine %s, graph %s\n", arm.name,
           arm.stagger ? "on" : "off", arm.sparse_dispatch ? "on" : "off", arm.sparse_combine ? "on" : "off",
           arm.graph ? "on" : "off");
    printf(
        "# sample: the longest dispatch to collect of any Attention rank; busiest: of all resources, and how long it "
        "served\n");
    printf("#%7s%10s%10s%10s%10s%10s%12s%8s%8s  %s\n", "tokens", "min", "median", "mean", "p99", "skew", "bytes",
           "signals", "GB/s", "busiest");
    printf("#%7s%10s%10s%10s%10s%10s%12s%8s%8s\n", "", "us", "us", "us", "us", "us", "B/exch", "/exch", "");
}

static double signals_of(const afdep_prediction_t *p)
{
    return p->counts.finish_tail + p->counts.count_word + p->counts.combine + p->counts.witness;
}

static void print_cell(int tokens, const afdep_summary_t *us, const afdep_prediction_t *p)
{
    afdep_resource_t busiest = afdep_predict_busiest(p);
    printf("%8d %9.2f %9.2f %9.2f %9.2f %9.2f %11.0f %7.0f %7.3f  %s of rank %d, %.0f%%\n", tokens, us->min, us->median,
           us->mean, us->p99, p->skew_us, p->counts.bytes, signals_of(p),
           us->median > 0 ? p->counts.bytes / us->median / 1e3 : 0.0, afdep_resource_name(busiest),
           p->load[busiest].rank, 100 * p->load[busiest].share);
    fflush(stdout);
}

/* ---- The record ---------------------------------------------------------------------------------------------- */

static int add(cJSON *object, const char *key, double value)
{
    return cJSON_AddItemToObject(object, key, afdep_record_number(value));
}

static int add_counts(cJSON *cell, const afdep_prediction_t *p, int ranks)
{
    cJSON *signals = cJSON_AddObjectToObject(cell, "signals_per_exchange");
    cJSON *by_rank = cJSON_AddArrayToObject(cell, "signals_by_rank");
    int done = signals && by_rank && add(signals, "finish_tail", p->counts.finish_tail) &&
               add(signals, "count_word", p->counts.count_word) && add(signals, "progress_tail", 0) &&
               add(signals, "combine", p->counts.combine) && add(signals, "witness", p->counts.witness) &&
               add(signals, "total", signals_of(p)) && add(cell, "bytes_per_exchange", p->counts.bytes) &&
               add(cell, "puts_per_exchange", p->counts.puts);
    for (int r = 0; done && r < ranks; r++) {
        cJSON *one = cJSON_CreateObject();
        done = add(one, "rank", r) && add(one, "in", p->in[r]) && add(one, "out", p->out[r]) &&
               cJSON_AddItemToArray(by_rank, one);
    }
    return done;
}

static int add_busy(cJSON *cell, const afdep_prediction_t *p)
{
    cJSON *list = cJSON_AddArrayToObject(cell, "busy");
    int done = list != NULL;
    for (int i = 0; done && i < AFDEP_RESOURCES; i++) {
        cJSON *one = cJSON_CreateObject();
        done = cJSON_AddStringToObject(one, "resource", afdep_resource_name((afdep_resource_t)i)) &&
               add(one, "rank", p->load[i].rank) && add(one, "share", p->load[i].share) &&
               cJSON_AddItemToArray(list, one);
    }
    return done;
}

static int add_cell(cJSON *record, const afdep_predict_plan_t *plan, int tokens, const afdep_summary_t *us,
                    const afdep_prediction_t *p)
{
    cJSON *cell = cJSON_CreateObject();
    int done = cell && add(cell, "tokens", tokens) && add(cell, "iterations", plan->iterations) &&
               add(cell, "min_us", us->min) && add(cell, "median_us", us->median) && add(cell, "mean_us", us->mean) &&
               add(cell, "p99_us", us->p99) && add(cell, "skew_us", p->skew_us) &&
               add_counts(cell, p, afdep_scenario_ranks(&plan->scenario)) && add_busy(cell, p) &&
               cJSON_AddNullToObject(cell, "mismatches");
    cJSON *samples = done ? cJSON_AddArrayToObject(cell, "samples_us") : NULL;
    for (int i = 0; samples && i < p->samples && i < 1000; i++)
        done &= cJSON_AddItemToArray(samples, afdep_record_number(p->samples_us[i]));
    if (done && samples && cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(record, "cells"), cell))
        return 0;
    cJSON_Delete(cell);
    return -1;
}

/* ---- Cells --------------------------------------------------------------------------------------------------- */

static int run_cell(const afdep_predict_plan_t *plan, cJSON *record, afdep_chrome_t *chrome, int tokens, char *why,
                    size_t why_size)
{
    afdep_prediction_t p;
    afdep_predict_case_t predict = afdep_predict_case_of(plan, tokens);
    predict.watch = chrome ? afdep_chrome_watch(chrome) : NULL;
    if (afdep_predict(&predict, &p, why, why_size) != 0)
        return 2;
    double *samples = malloc((size_t)p.samples * sizeof(*samples));
    int status = samples ? 0 : 1;
    if (samples) {
        memcpy(samples, p.samples_us, (size_t)p.samples * sizeof(*samples));
        afdep_summary_t us = afdep_summarize(samples, p.samples);
        print_cell(tokens, &us, &p);
        status = record && add_cell(record, plan, tokens, &us, &p) != 0;
    }
    if (status == 1)
        afdep_why(why, why_size, "no memory for a cell");
    free(samples);
    afdep_prediction_free(&p);
    return status;
}

int afdep_predict_cells(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    cJSON *record = plan->common.json ? afdep_predict_record(plan, "afdep-benchmark/1", "cells") : NULL;
    if (plan->common.json && !record) {
        afdep_why(why, why_size, "no memory for the record");
        return 1;
    }
    int status = 0;
    afdep_chrome_t *chrome = NULL;
    if (plan->trace_out) {
        chrome = afdep_chrome_begin(plan->trace_out, &plan->scenario, (uint64_t)(plan->warmup + plan->iterations), why,
                                    why_size);
        status = chrome ? 0 : 2;
    }
    if (status == 0)
        print_header(plan);
    for (int i = 0; status == 0 && i < plan->scenario.token_counts; i++)
        status = run_cell(plan, record, i == 0 ? chrome : NULL, plan->scenario.tokens[i], why, why_size);
    if (chrome && afdep_chrome_end(chrome, why, why_size) != 0 && status == 0)
        status = 1;
    if (status == 0 && record && afdep_record_write(plan->common.json, record, why, why_size) != 0)
        status = 1;
    cJSON_Delete(record);
    return status;
}
