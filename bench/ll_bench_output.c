/* SPDX-License-Identifier: Apache-2.0 */
/* Times are in microseconds; bytes and rates are decimal (1 GB = 10^9 bytes). */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/ll_bench_output.h"

#include <math.h>
#include <stdio.h>

#include <afdep/low_latency.h>

#define SAMPLES_RECORDED 1000

/* ---- The table --------------------------------------------------------------------------------------------------- */

static const char *backend_of(const afdep_bench_plan_t *plan)
{
    return plan->common.backend ? "cuda" : "host";
}

void afdep_ll_bench_print_header(const afdep_bench_rank_t *rank, const char *fabric, double memcpy_gbs)
{
    const afdep_bench_plan_t *plan = rank->plan;
    const afdep_scenario_t *s = &plan->scenario;
    printf("# afdep-bench %s, library %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
           afdep_native_tree_dirty() ? " (modified)" : "");
    printf("# low-latency API: %d ranks as %s, %d experts, top-%d, hidden %d, seed %llu\n", plan->ranks,
           rank->world->threads ? "threads of one process" : "processes", s->num_experts, s->top_k, s->hidden,
           (unsigned long long)s->seed);
    printf("# format %s, profile %s, zero copy %s, backend %s, fabric %s\n",
           afdep_ll_format_name((afdep_ll_format_t)plan->ll_format),
           afdep_ll_profile_name((afdep_ll_profile_t)plan->ll_profile), plan->ll_zero_copy ? "on" : "off",
           backend_of(plan), fabric);
    if (memcpy_gbs > 0)
        printf("# memcpy: %.1f GB/s copied by one thread\n", memcpy_gbs);
    printf("# sample: the longest of any rank; %s\n", plan->common.backend
               ? "recorded: dispatch and combine between events around each (kernel: between two\n#   kernels that read "
                 "the GPU's clock), the pair a mean of many with nothing in between"
               : "dispatch and combine start aligned, the pair is one after the other");
    printf("# MB: logical, of one rank: its tokens' choices times a row's codes and scales, or its BF16 elements\n"
           "# GB/s: MB / median; all ranks: the pair's MB of all ranks / its median, and that as a share of memcpy\n");
    printf("#%7s %10s %10s %8s %9s %9s %10s %10s %8s %9s %9s %10s %10s %9s %8s %8s\n", "tokens", "dispatch", "p99",
           "kernel", "logical", "rate", "combine", "p99", "kernel", "logical", "rate", "pair", "p99", "all ranks", "copy",
           "check");
    printf("#%7s %10s %10s %8s %9s %9s %10s %10s %8s %9s %9s %10s %10s %9s %8s %8s\n", "", "median us", "us", "us", "MB",
           "GB/s", "median us", "us", "us", "MB", "GB/s", "median us", "us", "GB/s", "%memcpy", "");
    fflush(stdout);
}

static double rate(double bytes, double us)
{
    return us > 0 ? bytes / us / 1e3 : 0;
}

static void print_timing(const afdep_ll_timing_t *t, const afdep_ll_timing_t *kernel)
{
    printf(" %10.2f %10.2f", t->us.median, t->us.p99);
    if (kernel->samples > 0)
        printf(" %8.2f", kernel->us.median);
    else
        printf(" %8s", "-");
    printf(" %9.3f %9.3f", t->bytes / 1e6, rate(t->bytes, t->us.median));
}

void afdep_ll_bench_print_cell(const afdep_ll_cell_t *cell, int ranks, double memcpy_gbs)
{
    double all = rate(cell->pair.bytes * ranks, cell->pair.us.median);
    printf("%8d", cell->tokens);
    print_timing(&cell->dispatch, &cell->dispatch_kernel);
    print_timing(&cell->combine, &cell->combine_kernel);
    printf(" %10.2f %10.2f %9.3f", cell->pair.us.median, cell->pair.us.p99, all);
    if (memcpy_gbs > 0)
        printf(" %8.1f", 100 * all / memcpy_gbs);
    else
        printf(" %8s", "-");
    if (!cell->checked)
        printf(" %8s\n", "-");
    else if (cell->mismatches == 0)
        printf(" %8s\n", "ok");
    else
        printf(" %8lld\n", (long long)cell->mismatches);
    fflush(stdout);
}

/* ---- The record -------------------------------------------------------------------------------------------------- */

cJSON *afdep_ll_bench_record_begin(const afdep_bench_rank_t *rank, const char *fabric)
{
    const afdep_bench_plan_t *plan = rank->plan;
    const afdep_arm_t arm = { .name = afdep_ll_format_name((afdep_ll_format_t)plan->ll_format),
                              .protocol = "low-latency",
                              .dtype = "bf16",
                              .backend = backend_of(plan),
                              .fabric = fabric,
                              .graph = plan->common.backend != 0,
                              .pinned = plan->pin,
                              .domains = "declared" };
    cJSON *record = afdep_record_begin("afdep-benchmark/1", plan->argc, plan->argv, &plan->scenario, &arm, plan->ranks,
                                       afdep_align_host_ranks(rank->align));
    cJSON *ll = record ? cJSON_AddObjectToObject(record, "low_latency") : NULL;
    if (ll && cJSON_AddStringToObject(ll, "format", arm.name) &&
        cJSON_AddStringToObject(ll, "profile", afdep_ll_profile_name((afdep_ll_profile_t)plan->ll_profile)) &&
        cJSON_AddBoolToObject(ll, "zero_copy", plan->ll_zero_copy) && cJSON_AddArrayToObject(record, "cells"))
        return record;
    cJSON_Delete(record);
    return NULL;
}

static int add(cJSON *object, const char *key, double value)
{
    return cJSON_AddItemToObject(object, key, afdep_record_number(value));
}

static int add_summary(cJSON *object, const afdep_ll_timing_t *t)
{
    return object && add(object, "min_us", t->us.min) && add(object, "median_us", t->us.median) &&
           add(object, "mean_us", t->us.mean) && add(object, "p99_us", t->us.p99);
}

static int add_samples(cJSON *object, const afdep_ll_timing_t *t)
{
    cJSON *samples = cJSON_AddArrayToObject(object, "samples_us");
    int count = t->samples < SAMPLES_RECORDED ? t->samples : SAMPLES_RECORDED;
    int done = samples != NULL;
    for (int i = 0; done && i < count; i++)
        done = cJSON_AddItemToArray(samples, afdep_record_number(t->samples_us[(int64_t)i * t->samples / count]));
    return done;
}

/* A half: its times, its logical bytes and their rate. */
static int add_half(cJSON *cell, const char *name, const afdep_ll_timing_t *t, const afdep_ll_timing_t *kernel)
{
    cJSON *half = cJSON_AddObjectToObject(cell, name);
    if (half && kernel->samples > 0 &&
        !(add(half, "kernel_min_us", kernel->us.min) && add(half, "kernel_median_us", kernel->us.median) &&
          add(half, "kernel_mean_us", kernel->us.mean) && add(half, "kernel_p99_us", kernel->us.p99)))
        return 0;
    return add_summary(half, t) && add(half, "logical_bytes", t->bytes) &&
           add(half, "gb_per_s", rate(t->bytes, t->us.median)) && add_samples(half, t);
}

static int add_signals(cJSON *object, const afdep_ll_cell_t *cell)
{
    cJSON *signals = cJSON_AddObjectToObject(object, "signals_per_exchange");
    return signals && add(signals, "finish_tail", 0) && add(signals, "count_word", cell->count_words) &&
           add(signals, "progress_tail", 0) && add(signals, "combine", cell->combines) && add(signals, "witness", 0) &&
           add(signals, "total", cell->count_words + cell->combines);
}

int afdep_ll_bench_record_add(cJSON *record, const afdep_ll_cell_t *cell)
{
    cJSON *object = cJSON_CreateObject();
    int done = object && add(object, "tokens", cell->tokens) && add(object, "iterations", (double)cell->iterations) &&
               add_summary(object, &cell->pair) && add(object, "skew_us", cell->skew_us) &&
               add_samples(object, &cell->pair) && add_half(object, "dispatch", &cell->dispatch, &cell->dispatch_kernel) &&
               add_half(object, "combine", &cell->combine, &cell->combine_kernel) && add(object, "bytes_per_exchange", cell->put_bytes) &&
               add_signals(object, cell) && add(object, "puts_per_exchange", cell->puts);
    if (done) /* unchecked is not the same as right */
        done = cell->checked ? add(object, "mismatches", (double)cell->mismatches)
                             : cJSON_AddNullToObject(object, "mismatches") != NULL;
    if (done && cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(record, "cells"), object))
        return 0;
    cJSON_Delete(object);
    return -1;
}
