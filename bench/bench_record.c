/* SPDX-License-Identifier: Apache-2.0 */
/* Cells as JSON. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_record.h"

#define SAMPLES_RECORDED 1000

cJSON *afdep_bench_record_begin(const afdep_bench_rank_t *rank, const afdep_arm_t *arm)
{
    const afdep_bench_plan_t *plan = rank->plan;
    cJSON *record = afdep_record_begin("afdep-benchmark/1", plan->argc, plan->argv, &plan->scenario, arm, plan->ranks,
                                       afdep_align_host_ranks(rank->align));
    if (record && !cJSON_AddArrayToObject(record, "cells")) {
        cJSON_Delete(record);
        record = NULL;
    }
    return record;
}

static int add(cJSON *object, const char *key, double value)
{
    return cJSON_AddItemToObject(object, key, afdep_record_number(value));
}

/* At most SAMPLES_RECORDED of them, evenly spread. */
static int add_samples(cJSON *object, const afdep_bench_cell_t *cell)
{
    cJSON *samples = cJSON_AddArrayToObject(object, "samples_us");
    int count = cell->samples < SAMPLES_RECORDED ? cell->samples : SAMPLES_RECORDED;
    int done = samples != NULL;
    for (int i = 0; i < count; i++) {
        int at = (int)((int64_t)i * cell->samples / count);
        done &= cJSON_AddItemToArray(samples, afdep_record_number(cell->samples_us[at]));
    }
    return done;
}

static int add_signals(cJSON *object, const afdep_bench_counts_t *counts)
{
    cJSON *signals = cJSON_AddObjectToObject(object, "signals_per_exchange");
    return signals && add(signals, "finish_tail", counts->finish_tail) &&
           add(signals, "count_word", counts->count_word) && add(signals, "progress_tail", counts->progress_tail) &&
           add(signals, "combine", counts->combine) && add(signals, "witness", counts->witness) &&
           add(signals, "total", counts->total);
}

static int add_signals_by_rank(cJSON *object, const afdep_bench_counts_t *counts, int ranks)
{
    cJSON *list = cJSON_AddArrayToObject(object, "signals_by_rank");
    int done = list != NULL;
    for (int r = 0; done && r < ranks; r++) {
        cJSON *one = cJSON_CreateObject();
        done = add(one, "rank", r) && add(one, "in", counts->in[r]) && add(one, "out", counts->out[r]) &&
               cJSON_AddItemToArray(list, one);
        if (!done)
            cJSON_Delete(one);
    }
    return done;
}

static int add_overlap(cJSON *object, const afdep_bench_plan_t *plan, const afdep_bench_overlap_t *overlap)
{
    cJSON *o = cJSON_AddObjectToObject(object, "overlap");
    return o && add(o, "microbatches", plan->microbatches) && add(o, "expert_us", plan->expert_us) &&
           add(o, "communication_us", overlap->communication_us) && add(o, "serial_us", overlap->serial_us) &&
           add(o, "ping_pong_us", overlap->ping_pong_us) && add(o, "hidden_pct", overlap->hidden_pct);
}

int afdep_bench_record_add(cJSON *record, const afdep_bench_rank_t *rank, const afdep_bench_cell_t *cell)
{
    cJSON *object = cJSON_CreateObject();
    int done = object && add(object, "tokens", cell->tokens) && add(object, "iterations", (double)cell->iterations) &&
               add(object, "min_us", cell->us.min) && add(object, "median_us", cell->us.median) &&
               add(object, "mean_us", cell->us.mean) && add(object, "p99_us", cell->us.p99) &&
               add(object, "skew_us", cell->skew_us) && add_samples(object, cell) &&
               add(object, "bytes_per_exchange", cell->counts.bytes) && add_signals(object, &cell->counts) &&
               add_signals_by_rank(object, &cell->counts, rank->plan->ranks) &&
               add(object, "puts_per_exchange", cell->counts.puts);
    /* Unchecked is not the same as right. */
    if (done)
        done = cell->checked ? add(object, "mismatches", (double)cell->mismatches)
                             : cJSON_AddNullToObject(object, "mismatches") != NULL;
    if (done && rank->plan->tokens_per_source) {
        cJSON *each = cJSON_CreateIntArray(rank->plan->tokens_per_source, rank->plan->scenario.attention_ranks);
        done = cJSON_AddItemToObject(object, "tokens_per_source", each);
    }
    if (done && rank->plan->in_flight > 1)
        done = add(object, "in_flight", rank->plan->in_flight);
    if (done && rank->plan->microbatches > 0)
        done = add_overlap(object, rank->plan, &cell->overlap);
    if (done && cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(record, "cells"), object))
        return 0;
    cJSON_Delete(object);
    return -1;
}
