/* SPDX-License-Identifier: Apache-2.0 */
/* The printed table. Times are in microseconds; bytes and rates are decimal (1 GB = 10^9 bytes). */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *on_off(int value)
{
    return value ? "on" : "off";
}

/* ---- The arm ----------------------------------------------------------------------------------------------------- */

/* The name says which toggles are on: all is sparse, none is dense. */
static void name_toggles(const afdep_bench_path_info_t *info, char *name)
{
    const char *const names[] = { "stagger", "sparse-dispatch", "sparse-combine" };
    const int toggles[] = { info->stagger, info->sparse_dispatch, info->sparse_combine };
    int on = toggles[0] + toggles[1] + toggles[2];
    name[0] = '\0';
    if (on == 0 || on == 3) {
        snprintf(name, AFDEP_BENCH_ARM_NAME_MAX, "%s", on ? "sparse" : "dense");
        return;
    }
    for (int i = 0; i < 3; i++) {
        size_t used = strlen(name);
        if (toggles[i])
            snprintf(name + used, AFDEP_BENCH_ARM_NAME_MAX - used, "%s%s", used ? "+" : "", names[i]);
    }
}

void afdep_bench_arm(const afdep_bench_rank_t *rank, afdep_arm_t *arm, char name[AFDEP_BENCH_ARM_NAME_MAX])
{
    const afdep_bench_path_info_t *info = &rank->info;
    const char *baseline = rank->plan->protocol == AFDEP_BENCH_ALLTOALLV || rank->plan->protocol == AFDEP_BENCH_NCCL_P2P
                               ? info->protocol
                           : rank->plan->protocol == AFDEP_BENCH_M2N ? "m2n"
                                                                     : NULL;
    if (baseline)
        snprintf(name, AFDEP_BENCH_ARM_NAME_MAX, "%s", baseline);
    else
        name_toggles(info, name);
    if (info->fp8_combine)
        strncat(name, "+fp8-combine", AFDEP_BENCH_ARM_NAME_MAX - 1 - strlen(name));
    arm->name = name;
    arm->library_protocol = info->protocol;
    arm->protocol = baseline                                                           ? baseline
                    : info->stagger || info->sparse_dispatch || info->sparse_combine ? "sparse"
                                                                                       : "dense";
    arm->stagger = info->stagger;
    arm->sparse_dispatch = info->sparse_dispatch;
    arm->sparse_combine = info->sparse_combine;
    arm->fp8_combine = info->fp8_combine;
    arm->dtype = rank->fp8 ? "fp8" : "bf16";
    arm->backend = info->backend;
    arm->fabric = info->fabric;
    arm->emulated = rank->plan->nic != NULL;
    arm->nic = rank->plan->nic;
    arm->graph = info->graph; /* the host backend records no exchanges: it runs eager whatever the scenario asks for */
    arm->pinned = rank->plan->pin;
    arm->domains = "declared";
    arm->gin = &info->gin;
    arm->fault = rank->plan->faults.json;
}

/* ---- The header -------------------------------------------------------------------------------------------------- */

double afdep_bench_memcpy_rate(void)
{
    const size_t bytes = (size_t)64 << 20;
    unsigned char *from = malloc(bytes), *to = malloc(bytes);
    double best = 0;
    if (from && to) {
        memset(from, 1, bytes);
        memset(to, 2, bytes);
        for (int i = 0; i < 4; i++) {
            struct timespec a, b;
            clock_gettime(CLOCK_MONOTONIC, &a);
            memcpy(to, from, bytes);
            clock_gettime(CLOCK_MONOTONIC, &b);
            *(volatile unsigned char *)(to + bytes - 1); /* the copy is wanted */
            double ns = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
            best = ns > 0 && (double)bytes / ns > best ? (double)bytes / ns : best;
        }
    }
    free(to);
    free(from);
    return best;
}

static void print_routing(const afdep_routing_t *routing)
{
    if (routing->kind == AFDEP_ROUTING_ZIPF)
        printf("zipf:%g", routing->zipf_s);
    else if (routing->kind == AFDEP_ROUTING_HOT)
        printf("hot:%d", routing->hot_expert);
    else if (routing->kind == AFDEP_ROUTING_TRACE)
        printf("trace:%s", routing->trace_file);
    else
        printf("uniform");
}

static void print_memory(const afdep_bench_rank_t *rank)
{
    afdep_memory_t memory = { .struct_size = sizeof(memory) };
    if (rank->ops->memory(rank->plan, afdep_bench_largest_bucket(rank->plan), &memory) != AFDEP_OK)
        return;
    printf("# memory: FFN rank %.2f MB registered, %.2f MB bookkeeping; Attention rank %.2f MB, %.2f MB\n",
           (double)memory.ffn_segment / 1e6, (double)memory.ffn_private / 1e6, (double)memory.attention_segment / 1e6,
           (double)memory.attention_private / 1e6);
}

static void print_topology(const afdep_bench_rank_t *rank)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    int local = afdep_align_host_ranks(rank->align);
    printf("# scenario %s: ", s->name);
    if (s->ffn_ranks)
        printf("%d FFN and %d Attention ranks", s->ffn_ranks, s->attention_ranks);
    else
        printf("%d symmetric ranks", s->attention_ranks);
    printf(", %d domain%s of %d; ", rank->plan->ranks / s->ranks_per_domain,
           rank->plan->ranks == s->ranks_per_domain ? "" : "s", s->ranks_per_domain);
    if (rank->world->threads)
        printf("ranks are threads of one process\n");
    else
        printf("ranks are processes, %d on this host\n", local);
    printf("# model: %d experts, top-%d, hidden %d, %s, expert alignment %d; capacity %d; routing ", s->num_experts,
           s->top_k, s->hidden, rank->fp8 ? "fp8" : "bf16", s->expert_alignment, s->capacity);
    print_routing(&s->routing);
    printf(", seed %llu\n", (unsigned long long)s->seed);
}

static void print_columns(void)
{
    static const char *const names[] = { "tokens", "min", "median", "mean", "p99", "skew",
                                         "bytes",  "signals", "GB/s", "copy", "memory", "check" };
    static const char *const units[] = { "", "us", "us", "us", "us", "us", "B/exch", "/exch", "", "%memcpy", "MB", "" };
    static const int widths[] = { 8, 10, 10, 10, 10, 10, 12, 8, 8, 8, 10, 8 };
    printf("#");
    for (int i = 0; i < 12; i++)
        printf("%*s", widths[i] - (i == 0), names[i]);
    printf("\n#");
    for (int i = 0; i < 12; i++)
        printf("%*s", widths[i] - (i == 0), units[i]);
    printf("\n");
}

void afdep_bench_print_header(const afdep_bench_rank_t *rank, const afdep_arm_t *arm, double memcpy_gbs)
{
    const afdep_bench_plan_t *plan = rank->plan;
    printf("# afdep-bench %s, library %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
           afdep_native_tree_dirty() ? " (modified)" : "");
    print_topology(rank);
    printf("# arm %s: %s, backend %s, fabric %s, %d channels, stagger %s, sparse dispatch %s, sparse combine %s, "
           "graph %s, %d in flight\n",
           arm->name, rank->info.protocol, arm->backend, arm->fabric, rank->info.channels, on_off(arm->stagger),
           on_off(arm->sparse_dispatch), on_off(arm->sparse_combine), on_off(arm->graph),
           plan->in_flight);
    if (arm->fp8_combine)
        printf("# FP8 combine: replies leave FFN domains as e4m3, for buckets of %d tokens and more\n",
               rank->info.fp8_combine_min_bucket > 1 ? rank->info.fp8_combine_min_bucket : 1);
    afdep_gin_note_print(&rank->info.gin);
    if (plan->nic)
        printf("# emulated: a NIC is modelled for what crosses domains\n");
    if (plan->faults.faults.count)
        printf("# faults: %s, %d rule%s\n", plan->faults.file, plan->faults.faults.count,
               plan->faults.faults.count == 1 ? "" : "s");
    if (plan->scenario.graph && !arm->graph)
        printf("# graph: the scenario asks for it; the host backend runs eager\n");
    if (plan->tokens_per_source) {
        printf("# tokens per source:");
        for (int a = 0; a < plan->scenario.attention_ranks; a++)
            printf(" %d", plan->tokens_per_source[a]);
        printf("\n");
    }
    print_memory(rank);
    printf("# memcpy: %.1f GB/s copied by one thread\n", memcpy_gbs);
    printf("# sample: the longest dispatch to collect of any Attention rank; skew: median spread of all ranks' starts\n"
           "# bytes, signals: of the busiest %s, in at dispatch and out at combine; GB/s: bytes / median\n"
           "# copy: bytes put by all ranks / median, as a share of memcpy; "
           "memory: of an FFN rank at this token count\n",
           afdep_bench_counts_all_ranks(plan) ? "rank, its own messages to itself left out" : "FFN rank");
    print_columns();
    fflush(stdout);
}

/* ---- A line ------------------------------------------------------------------------------------------------------ */

/* As a whole number where it is one. */
static void print_count(int width, double value)
{
    if (value == floor(value))
        printf("%*.0f", width, value);
    else
        printf("%*.2f", width, value);
}

static void print_time(double us)
{
    if (isnan(us))
        printf("%10s", "-");
    else
        printf("%10.2f", us);
}

void afdep_bench_print_cell(const afdep_bench_cell_t *cell, double memcpy_gbs)
{
    double us = cell->us.median;
    printf("%8d", cell->tokens);
    print_time(cell->us.min);
    print_time(us);
    print_time(cell->us.mean);
    print_time(cell->us.p99);
    print_time(cell->skew_us);
    print_count(12, cell->counts.bytes);
    print_count(8, cell->counts.total);
    printf("%8.3f", us > 0 ? cell->counts.bytes / us / 1e3 : 0.0);
    printf("%8.1f", us > 0 && memcpy_gbs > 0 ? 100 * cell->counts.all_bytes / us / 1e3 / memcpy_gbs : 0.0);
    printf("%10.2f", cell->memory_bytes / 1e6);
    if (!cell->checked)
        printf("%8s\n", "-");
    else if (cell->mismatches == 0)
        printf("%8s\n", "ok");
    else
        printf("%8lld\n", (long long)cell->mismatches);
    fflush(stdout);
}

void afdep_bench_print_overlap(const afdep_bench_plan_t *plan, const afdep_bench_cell_t *cell)
{
    const afdep_bench_overlap_t *o = &cell->overlap;
    printf("# %d tokens, us per micro-batch of %d: communication %.2f, experts %d, one after another %.2f, ping-pong "
           "over two buffers %.2f, which hides %.0f%% of the shorter\n",
           cell->tokens, plan->microbatches, o->communication_us, plan->expert_us, o->serial_us, o->ping_pong_us,
           o->hidden_pct);
    fflush(stdout);
}
