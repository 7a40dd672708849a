/* SPDX-License-Identifier: Apache-2.0 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/ll_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench_measure.h"
#include "bench/bench_print.h"
#include "bench/ll_bench_output.h"
#include "low_latency/ll_mode.h"
#include "validate/ll_exchanger.h"
#include "validate/staged.h"

#define REPLAYS 20         /* CUDA: of a recording, to a sample of the pair */
#define CHECKED 2          /* exchanges before the timed ones, and after them */
#define TIMED_EXCHANGE 1000 /* payloads of the timed exchanges; the checked ones use others */

typedef struct ll_rank {
    afdep_bench_rank_t base; /* whose path is the buffer */
    afdep_ll_buffer_t *buffer;
    afdep_ll_exchanger_t x;
    int *tokens; /* [R] */
    double memcpy_gbs;
    cJSON *record; /* rank 0, with --json */
} ll_rank_t;

/* ---- The path, as far as alignment and errors want one ----------------------------------------------------------- */

static afdep_status_t ll_counters(afdep_bench_path_t *path, int peer, afdep_counters_t *counters)
{
    return afdep_ll_buffer_counters((const afdep_ll_buffer_t *)(const void *)path, peer, counters);
}

static afdep_status_t ll_error(afdep_bench_path_t *path)
{
    return path ? afdep_ll_buffer_error((afdep_ll_buffer_t *)(void *)path) : AFDEP_OK;
}

#define LL_OPS(sentence) { .name = "low-latency buffer", .counters = ll_counters, .error = ll_error, .why = sentence }
static const afdep_bench_path_ops_t ll_ops = LL_OPS(afdep_last_error), ll_gpu_ops = LL_OPS(afdep_staged_why);

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* The per-rank maximum: profiles other than native take fewer tokens than that. */
static int max_tokens(const afdep_bench_plan_t *plan)
{
    int most = afdep_bench_largest_bucket(plan);
    return plan->ll_profile == AFDEP_LL_NATIVE ? most : most + 1;
}

static afdep_ll_config_t config_of(const afdep_bench_plan_t *plan)
{
    const afdep_scenario_t *s = &plan->scenario;
    afdep_ll_config_t c = AFDEP_LL_CONFIG_INIT;
    c.num_max_dispatch_tokens_per_rank = max_tokens(plan);
    c.hidden = s->hidden;
    c.num_topk = s->top_k;
    c.num_experts = s->num_experts;
    c.profile = (afdep_ll_profile_t)plan->ll_profile;
    c.ranks_per_domain = s->ranks_per_domain;
    c.timeout_ms = plan->common.timeout_ms;
    c.fabric = plan->common.fabric;
    c.backend = plan->common.backend ? "cuda" : "host";
    return c;
}

int afdep_bench_ll_check(const afdep_bench_plan_t *plan, char *why, size_t why_size)
{
    const afdep_ll_request_t request = { .format = (afdep_ll_format_t)plan->ll_format };
    afdep_ll_config_t config = config_of(plan);
    afdep_ll_memory_t memory = { .struct_size = sizeof(memory) };
    afdep_ll_format_t format;
    afdep_status_t status = afdep_ll_buffer_bytes(&config, plan->ranks, &memory);
    if (status == AFDEP_OK)
        status = afdep_ll_resolve_format(config.profile, &request, &format);
    /* A profile takes fewer tokens than its buffers may be sized for, which opening one does not say. */
    for (int i = 0; status == AFDEP_OK && i < plan->scenario.token_counts; i++)
        status =
            afdep_ll_check_tokens(config.profile, plan->scenario.tokens[i], config.num_max_dispatch_tokens_per_rank);
    if (status == AFDEP_OK && memory.required <= memory.available)
        return 0;
    if (status == AFDEP_OK)
        snprintf(why, why_size,
                 "HCCL_BUFFSIZE: %llu bytes are configured, of which %llu count, and profile %s requires %llu",
                 (unsigned long long)memory.configured, (unsigned long long)memory.available,
                 afdep_ll_profile_name(config.profile), (unsigned long long)memory.required);
    else
        snprintf(why, why_size, "%s", afdep_last_error());
    return -1;
}

/* As the help says: shared memory where all ranks share a host, MPI across hosts. */
static const char *fabric_of(const ll_rank_t *r)
{
    const char *environment = getenv("AFDEP_FABRIC");
    if (r->base.plan->common.fabric)
        return r->base.plan->common.fabric;
    if (environment && environment[0])
        return environment;
    if (r->base.plan->common.backend)
        return "peer";
    return afdep_align_one_host(r->base.align) ? "shm" : "mpi";
}

static int open_rank(ll_rank_t *r, const afdep_bench_plan_t *plan, afdep_world_t *world)
{
    const afdep_scenario_t *s = &plan->scenario;
    char why[256];
    memset(r, 0, sizeof(*r));
    r->base.plan = plan;
    r->base.world = world;
    r->base.ops = plan->common.backend ? &ll_gpu_ops : &ll_ops;
    r->base.align = afdep_align_open(world, plan->align, why, sizeof(why));
    if (!r->base.align)
        afdep_bench_fatal(&r->base, "open", why);
    r->tokens = calloc((size_t)plan->ranks, sizeof(*r->tokens));
    if (!r->tokens || afdep_ll_exchanger_init(&r->x, plan->ranks, world->rank, max_tokens(plan), s->hidden, s->top_k,
                                              s->num_experts, s->seed) != 0 ||
        afdep_ll_exchanger_routing(&r->x, &s->routing) != 0)
        afdep_bench_fatal(&r->base, "open", "no memory for the tensors of the largest token count");
    if (plan->common.backend && afdep_ll_exchanger_stage(&r->x) != 0)
        afdep_bench_fatal(&r->base, "open", afdep_staged_why());
    afdep_ll_config_t config = config_of(plan);
    config.fabric = fabric_of(r);
    if (afdep_ll_buffer_open(&world->group, &config, &r->buffer) == AFDEP_OK) {
        r->base.path = (afdep_bench_path_t *)(void *)r->buffer;
        return 0;
    }
    if (world->rank == 0)
        fprintf(stderr, "afdep-bench: opening the %s: %s\n", ll_ops.name, afdep_last_error());
    return 2;
}

static void close_rank(ll_rank_t *r)
{
    if (r->buffer) {
        afdep_bench_align(&r->base, AFDEP_BENCH_CHECK_PATIENCE);
        afdep_bench_must(&r->base, afdep_ll_buffer_close(r->buffer), "close");
    }
    afdep_align_close(r->base.align);
    afdep_ll_exchanger_free(&r->x);
    free(r->tokens);
}

/* ---- Checking ---------------------------------------------------------------------------------------------------- */

static afdep_ll_plan_t exchange_of(const ll_rank_t *r, uint64_t number)
{
    return (afdep_ll_plan_t){ .number = number, .tokens = r->tokens, .plain = 1,
                              .format = (afdep_ll_format_t)r->base.plan->ll_format,
                              .zero_copy = r->base.plan->ll_zero_copy };
}

/* 1 where an exchange was wrong at this rank, after saying what. */
static int64_t check(ll_rank_t *r, uint64_t first)
{
    int64_t wrong = 0;
    for (uint64_t n = 0; n < CHECKED && !wrong; n++) {
        afdep_ll_plan_t plan = exchange_of(r, first + n);
        afdep_bench_align(&r->base, AFDEP_BENCH_CHECK_PATIENCE);
        wrong = afdep_ll_exchange(&r->x, &plan, r->buffer) != AFDEP_OK;
        if (wrong && ll_error(r->base.path) != AFDEP_OK)
            afdep_bench_fatal(&r->base, "exchange", r->x.why);
        if (wrong)
            fprintf(stderr, "afdep-bench: rank %d: %s\n", r->base.world->rank, r->x.why);
    }
    return wrong;
}

/* ---- Timing ------------------------------------------------------------------------------------------------------ */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef struct timed {
    afdep_reservoir_t dispatch, combine, pair;
    afdep_reservoir_t dispatch_kernel, combine_kernel; /* CUDA */
} timed_t;

static void dispatch(ll_rank_t *r)
{
    afdep_bench_must(&r->base, afdep_ll_dispatch(r->buffer, &r->x.dispatch), "dispatch");
    r->x.combine.handle = r->x.dispatch.handle;
}

static void combine(ll_rank_t *r)
{
    if (r->base.plan->ll_zero_copy) /* whichever of the two buffers is next holds rows: see warm_up() */
        r->x.combine.x = NULL;
    afdep_bench_must(&r->base, afdep_ll_combine(r->buffer, &r->x.combine), "combine");
}

/* Both halves apart, then both as one. */
static void iterate(ll_rank_t *r, timed_t *t)
{
    afdep_bench_align(&r->base, 1);
    int64_t start = now_ns();
    dispatch(r);
    int64_t took = now_ns() - start;
    if (t)
        afdep_reservoir_add(&t->dispatch, start, took);
    afdep_bench_align(&r->base, 1);
    start = now_ns();
    combine(r);
    took = now_ns() - start;
    if (t)
        afdep_reservoir_add(&t->combine, start, took);
    afdep_bench_align(&r->base, 1);
    start = now_ns();
    dispatch(r);
    combine(r);
    took = now_ns() - start;
    if (t)
        afdep_reservoir_add(&t->pair, start, took);
}

/* CUDA: recordings of ten exchanges. A sample of a half is that of one exchange, between events before and behind its call,
   and in another recording between kernels that read the GPU's clock; the first of a recording, in which ranks still wait
   for each other's start, is left out. A sample of the pair is the mean of replays with nothing in between. */
static void replay(ll_rank_t *r, timed_t *t)
{
    double halves[4][AFDEP_LL_STAGED_PAIRS];
    afdep_ll_staged_times_t times = { .dispatch = halves[0], .combine = halves[1],
                                      .dispatch_kernel = halves[2], .combine_kernel = halves[3] };
    afdep_bench_align(&r->base, 1);
    int64_t start = now_ns();
    afdep_bench_must(&r->base, afdep_ll_staged_replay(r->x.staged, r->buffer, REPLAYS, &times), "replay");
    if (!t)
        return;
    afdep_reservoir_t *kept[] = { &t->dispatch, &t->combine, &t->dispatch_kernel, &t->combine_kernel };
    for (int i = 1; i < times.pairs; i++)
        for (int k = 0; k < 4; k++)
            afdep_reservoir_add(kept[k], start, (int64_t)(halves[k][i] * 1000));
    afdep_reservoir_add(&t->pair, start, (int64_t)(times.pair * 1000));
}

/* One exchange fills the twins; then it is recorded. */
static void warm_up_gpu(ll_rank_t *r)
{
    afdep_ll_plan_t plan = exchange_of(r, TIMED_EXCHANGE);
    afdep_bench_align(&r->base, AFDEP_BENCH_CHECK_PATIENCE);
    if (afdep_ll_exchange(&r->x, &plan, r->buffer) != AFDEP_OK)
        afdep_bench_fatal(&r->base, "exchange", r->x.why);
    afdep_bench_align(&r->base, AFDEP_BENCH_CHECK_PATIENCE);
    afdep_bench_must(&r->base, afdep_ll_staged_record(r->x.staged, r->buffer, AFDEP_LL_STAGED_PAIRS), "recording");
    for (int i = 0; i < 3; i++)
        replay(r, NULL);
}

/* The experts' rows are written once, into both of the buffers that zero copy alternates between. */
static void warm_up(ll_rank_t *r)
{
    afdep_ll_plan_t plan = exchange_of(r, TIMED_EXCHANGE);
    for (int i = 0; i < 2; i++) {
        afdep_bench_align(&r->base, AFDEP_BENCH_CHECK_PATIENCE);
        afdep_bench_must(&r->base, afdep_ll_begin_first(&r->x, &plan, r->buffer), "dispatch");
        afdep_ll_prepare_combine(&r->x, &plan, r->buffer);
        afdep_bench_must(&r->base, afdep_ll_combine(r->buffer, &r->x.combine), "combine");
    }
    for (int i = 0; i < r->base.plan->warmup; i++)
        iterate(r, NULL);
}

static void summarize(ll_rank_t *r, const afdep_reservoir_t *reservoir, afdep_ll_timing_t *t, double *skew_us)
{
    size_t kept = (size_t)reservoir->kept;
    double *sorted = malloc(kept * sizeof(double)), *spread = malloc(kept * sizeof(double));
    t->samples = reservoir->kept;
    t->samples_us = malloc(kept * sizeof(double));
    if (!sorted || !spread || !t->samples_us)
        afdep_bench_fatal(&r->base, "samples", "no memory to sort them");
    afdep_bench_reduce(&r->base, reservoir, 0, t->samples_us, spread);
    memcpy(sorted, t->samples_us, kept * sizeof(double));
    t->us = afdep_summarize(sorted, reservoir->kept);
    *skew_us = afdep_align_one_host(r->base.align) ? afdep_summarize(spread, reservoir->kept).median : NAN;
    free(spread);
    free(sorted);
}

/* What this rank sent, over all peers. */
typedef struct sent {
    double puts, bytes, count_words, combines;
} sent_t;

static sent_t count(ll_rank_t *r)
{
    sent_t sum = { 0, 0, 0, 0 };
    for (int peer = 0; peer < r->base.world->size; peer++) {
        afdep_counters_t c = { .struct_size = sizeof(c) };
        afdep_bench_must(&r->base, ll_counters(r->base.path, peer, &c), "counters");
        sum.puts += (double)c.puts;
        sum.bytes += (double)c.put_bytes;
        sum.count_words += (double)c.count_words;
        sum.combines += (double)c.combines;
    }
    return sum;
}

/* Gathers one struct of every rank; freed by the caller. */
static void *gather(ll_rank_t *r, const void *mine, size_t bytes)
{
    void *all = malloc((size_t)r->base.world->size * bytes);
    if (!all)
        afdep_bench_fatal(&r->base, "results", "no memory to gather them");
    afdep_world_allgather(r->base.world, mine, all, bytes);
    return all;
}

static void set_counts(ll_rank_t *r, const sent_t *before, const sent_t *after, double exchanges, afdep_ll_cell_t *cell)
{
    sent_t mine = { (after->puts - before->puts) / exchanges, (after->bytes - before->bytes) / exchanges,
                    (after->count_words - before->count_words) / exchanges,
                    (after->combines - before->combines) / exchanges };
    sent_t *all = gather(r, &mine, sizeof(mine));
    int most = 0;
    for (int i = 1; i < r->base.world->size; i++)
        most = all[i].bytes > all[most].bytes ? i : most;
    cell->puts = all[most].puts;
    cell->put_bytes = all[most].bytes;
    cell->count_words = all[most].count_words;
    cell->combines = all[most].combines;
    free(all);
}

/* Logical bytes: every choice is a row, whatever the wire saved. */
static void set_bytes(ll_rank_t *r, afdep_ll_cell_t *cell)
{
    size_t codes, scales;
    double choices = 0, total = 0;
    afdep_bench_must(
        &r->base, afdep_ll_format_bytes((afdep_ll_format_t)r->base.plan->ll_format, r->x.now.hidden, &codes, &scales),
        "format");
    for (int i = 0; i < r->x.sent.tokens * r->x.now.top_k; i++)
        choices += r->x.sent.ids[i] >= 0;
    double *all = gather(r, &choices, sizeof(choices));
    for (int i = 0; i < r->base.world->size; i++)
        total += all[i];
    free(all);
    cell->dispatch.bytes = total / r->base.world->size * (double)(codes + scales);
    cell->combine.bytes = total / r->base.world->size * 2 * r->x.now.hidden;
    cell->pair.bytes = cell->dispatch.bytes + cell->combine.bytes;
}

static void measure(ll_rank_t *r, timed_t *t, afdep_ll_cell_t *cell)
{
    uint64_t seed = r->base.plan->scenario.seed;
    double unused;
    void (*run)(ll_rank_t *, timed_t *) = r->x.staged ? replay : iterate;
    if (r->x.staged)
        warm_up_gpu(r);
    else
        warm_up(r);
    afdep_reservoir_init(&t->dispatch, seed);
    afdep_reservoir_init(&t->combine, seed);
    afdep_reservoir_init(&t->pair, seed);
    afdep_reservoir_init(&t->dispatch_kernel, seed);
    afdep_reservoir_init(&t->combine_kernel, seed);
    sent_t before = count(r);
    int64_t begin = now_ns(), next;
    while ((next = afdep_bench_next_round(&r->base, cell->iterations, now_ns() - begin)) > 0) {
        for (int64_t i = 0; i < next; i++)
            run(r, t);
        cell->iterations += next;
    }
    sent_t after = count(r);
    double each = r->x.staged ? (2 + REPLAYS) * AFDEP_LL_STAGED_PAIRS : 2; /* exchanges of an iteration */
    set_counts(r, &before, &after, each * (double)cell->iterations, cell);
    set_bytes(r, cell);
    summarize(r, &t->dispatch, &cell->dispatch, &unused);
    summarize(r, &t->combine, &cell->combine, &unused);
    summarize(r, &t->pair, &cell->pair, &cell->skew_us);
    if (r->x.staged) {
        summarize(r, &t->dispatch_kernel, &cell->dispatch_kernel, &unused);
        summarize(r, &t->combine_kernel, &cell->combine_kernel, &unused);
    }
}

/* ---- The run ----------------------------------------------------------------------------------------------------- */

static int64_t total_of(ll_rank_t *r, int64_t value)
{
    int64_t *all = gather(r, &value, sizeof(value)), total = 0;
    for (int i = 0; i < r->base.world->size; i++)
        total += all[i];
    free(all);
    return total;
}

static void save(ll_rank_t *r, const afdep_ll_cell_t *cell)
{
    char why[512] = "no memory";
    if (r->base.world->rank != 0)
        return;
    afdep_ll_bench_print_cell(cell, r->base.world->size, r->memcpy_gbs);
    if (r->record && (afdep_ll_bench_record_add(r->record, cell) != 0 ||
                      afdep_record_write(r->base.plan->common.json, r->record, why, sizeof(why)) != 0))
        afdep_bench_fatal(&r->base, "record", why);
}

static int64_t run_cell(ll_rank_t *r, timed_t *t, int tokens)
{
    afdep_ll_cell_t cell = { .tokens = tokens, .checked = r->base.plan->check };
    int64_t wrong = 0;
    for (int i = 0; i < r->base.world->size; i++)
        r->tokens[i] = tokens;
    if (cell.checked)
        wrong = check(r, 0);
    measure(r, t, &cell);
    if (cell.checked)
        wrong += check(r, CHECKED);
    cell.mismatches = total_of(r, wrong);
    save(r, &cell);
    free(cell.dispatch.samples_us);
    free(cell.combine.samples_us);
    free(cell.pair.samples_us);
    free(cell.dispatch_kernel.samples_us);
    free(cell.combine_kernel.samples_us);
    return cell.mismatches;
}

/* Rank 0 looks at the machine while the others wait. */
static int begin_output(ll_rank_t *r)
{
    const char *json = r->base.plan->common.json;
    char why[512];
    int64_t refused = 0;
    if (r->base.world->rank == 0) {
        refused = json && afdep_record_probe(json, why, sizeof(why)) != 0;
        if (refused)
            fprintf(stderr, "afdep-bench: --json: %s\n", why);
        r->memcpy_gbs = refused || r->x.staged ? 0 : afdep_bench_memcpy_rate();
        if (!refused)
            afdep_ll_bench_print_header(&r->base, fabric_of(r), r->memcpy_gbs);
        if (json && !refused && !(r->record = afdep_ll_bench_record_begin(&r->base, fabric_of(r))))
            afdep_bench_fatal(&r->base, "record", "no memory");
    }
    afdep_bench_align(&r->base, AFDEP_BENCH_CHECK_PATIENCE);
    return total_of(r, refused) != 0;
}

int afdep_bench_ll_rank(afdep_world_t *world, void *argument)
{
    const afdep_bench_plan_t *plan = argument;
    ll_rank_t r;
    if (plan->pin)
        afdep_world_pin(world); /* first, since a fabric looks at the processors it may use */
    int status = open_rank(&r, plan, world);
    timed_t *timed = malloc(sizeof(*timed));
    if (!timed)
        afdep_bench_fatal(&r.base, "open", "no memory for the samples");
    if (status == 0 && begin_output(&r))
        status = 2;
    int64_t wrong = 0;
    for (int i = 0; status == 0 && i < plan->scenario.token_counts; i++)
        wrong += run_cell(&r, timed, plan->scenario.tokens[i]);
    close_rank(&r);
    cJSON_Delete(r.record);
    free(timed);
    return status ? status : wrong ? 1 : 0;
}
