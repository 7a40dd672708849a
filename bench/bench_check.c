/* SPDX-License-Identifier: Apache-2.0 */
/* What is run and compared around the timed exchanges. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_dump.h"

/* Poison: no right value is made of these bytes. All ones are NaN in BF16, e4m3 and FP32; integers get their own. */
#define POISON 0xFF
#define POISON_INT 0xA5
#define GUARD_ROWS 4 /* rows behind the last one that must stay untouched */

typedef struct checked {
    afdep_bench_rank_t *rank;
    int tokens, bucket;
    int64_t wrong;
    const char *dump;
} checked_t;

int afdep_bench_check_exchanges(const afdep_bench_plan_t *plan, int tokens)
{
    const afdep_scenario_t *s = &plan->scenario;
    double values = (double)s->attention_ranks * tokens * s->top_k * s->hidden;
    return values > (double)(1 << 27) ? plan->in_flight : 2 * plan->in_flight;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Choices of -1, the same on every rank that knows the source's tokens. */
static void punch_holes(const afdep_source_tokens_t *sent, int top_k, int exchange)
{
    for (int t = 0; t < sent->tokens; t++) {
        int none = (t + sent->source) % 8 == 5;
        for (int k = 0; k < top_k; k++) {
            uint64_t key =
                ((uint64_t)exchange << 48) ^ ((uint64_t)sent->source << 32) ^ ((uint64_t)t << 8) ^ (uint64_t)k;
            if (none || mix(key + 0x9E3779B97F4A7C15u) % 4 == 0)
                sent->ids[(size_t)t * (size_t)top_k + (size_t)k] = -1;
        }
    }
}

static int has_holes(int exchange)
{
    return exchange % 2;
}

static void report(checked_t *c, int exchange, int64_t wrong, const char *why)
{
    if (wrong > 0 && c->wrong == 0)
        fprintf(stderr, "afdep-bench: rank %d: %d tokens, checked exchange %d: %s\n", c->rank->world->rank, c->tokens,
                exchange, why);
    c->wrong += wrong;
}

/* ---- Sources ----------------------------------------------------------------------------------------------------- */

static int64_t wrong_elements(const uint16_t *got, const uint16_t *want, int hidden, int *first)
{
    int64_t wrong = 0;
    if (memcmp(got, want, (size_t)hidden * sizeof(*got)) == 0)
        return 0;
    for (int h = 0; h < hidden; h++)
        if (got[h] != want[h] && wrong++ == 0)
            *first = h;
    return wrong;
}

static unsigned oracle_rules(const checked_t *c)
{
    const afdep_bench_path_info_t *info = &c->rank->info;
    return info->fp8_combine && c->bucket >= info->fp8_combine_min_bucket ? AFDEP_ORACLE_FP8_COMBINE : 0;
}

static void check_collected(checked_t *c, int exchange, const afdep_source_tokens_t *sent,
                            const afdep_collect_t *collect)
{
    const afdep_scenario_t *s = &c->rank->plan->scenario;
    const uint16_t *result = collect->result;
    char why[256] = "";
    int64_t wrong = 0;
    if (collect->tokens != sent->tokens) {
        snprintf(why, sizeof(why), "collect says %d tokens, %d were sent", collect->tokens, sent->tokens);
        wrong = 1;
    }
    for (int t = 0; t < sent->tokens; t++) {
        const uint16_t *got = result + (size_t)t * (size_t)collect->result_stride;
        int h = 0;
        afdep_oracle_token(c->rank->want, s, sent, t, oracle_rules(c), c->rank->scratch);
        int64_t elements = wrong_elements(got, c->rank->want, s->hidden, &h);
        if (elements && wrong == 0)
            snprintf(why, sizeof(why), "collected token %d, element %d: got 0x%04x, should be 0x%04x", t, h, got[h],
                     c->rank->want[h]);
        wrong += elements;
    }
    report(c, exchange, wrong, why);
}

/* Payload, routes and poisoned outputs of one exchange. */
static void prepare_source(checked_t *c, int exchange, int slot)
{
    afdep_bench_rank_t *rank = c->rank;
    const afdep_bench_plan_t *plan = rank->plan;
    const afdep_scenario_t *s = &plan->scenario;
    int count = afdep_bench_tokens_of(plan, c->tokens, rank->source);
    afdep_workload_source(&rank->sent[slot], s, plan->trace, s->seed, (uint64_t)exchange, rank->source, count);
    if (has_holes(exchange))
        punch_holes(&rank->sent[slot], s->top_k, exchange);
    memset(rank->out[slot], POISON, (size_t)count * (size_t)s->hidden * sizeof(uint16_t));
}

static void dispatch(checked_t *c, int slot)
{
    afdep_bench_rank_t *rank = c->rank;
    afdep_dispatch_t dispatch = afdep_bench_dispatch_of(rank, &rank->sent[slot], c->bucket);
    afdep_bench_must(rank, rank->ops->dispatch(rank->path, &dispatch), "dispatch");
}

static void collect(checked_t *c, int exchange, int slot, int view)
{
    afdep_bench_rank_t *rank = c->rank;
    afdep_collect_t collect = { .struct_size = sizeof(collect), .out = rank->out[slot], .view = view };
    afdep_bench_must(rank, rank->ops->collect(rank->path, &collect), "collect");
    check_collected(c, exchange, &rank->sent[slot], &collect);
    if (c->dump && slot == 0)
        afdep_bench_dump_source(rank, c->dump, c->tokens, &rank->sent[slot], &collect);
}

static void source_batch(checked_t *c, int first, int view)
{
    int in_flight = c->rank->plan->in_flight;
    for (int i = 0; i < in_flight; i++)
        prepare_source(c, first + i, i);
    afdep_bench_align(c->rank, AFDEP_BENCH_CHECK_PATIENCE);
    for (int i = 0; i < in_flight; i++)
        dispatch(c, i);
    for (int i = 0; i < in_flight; i++)
        collect(c, first + i, i, view);
}

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

static int64_t align_up(int64_t value, int64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

/* Poisons what receive may write and what reply may read, a few rows more than there should be. */
static int64_t poison_rows(afdep_bench_rank_t *rank, int64_t live)
{
    size_t hidden = (size_t)rank->plan->scenario.hidden;
    size_t rows = (size_t)(live + GUARD_ROWS < rank->rows_capacity ? live + GUARD_ROWS : rank->rows_capacity);
    memset(rank->rows, POISON, rows * hidden * (rank->fp8 ? 1 : 2));
    if (rank->row_scale)
        memset(rank->row_scale, POISON, rows * (hidden / 128) * sizeof(float));
    memset(rank->row_weight, POISON, rows * sizeof(float));
    memset(rank->row_source, POISON_INT, rows * 2 * sizeof(int32_t));
    memset(rank->reply, POISON, rows * hidden * sizeof(uint16_t));
    memset(rank->ends, POISON_INT, (size_t)rank->experts * sizeof(int32_t));
    memset(rank->host_counts, POISON_INT, (size_t)rank->experts * sizeof(int32_t));
    return (int64_t)rows;
}

static int poisoned(const void *at, unsigned char byte, size_t bytes)
{
    const unsigned char *p = at;
    for (size_t i = 0; i < bytes; i++)
        if (p[i] != byte)
            return 0;
    return 1;
}

/* The rows behind the last one are the caller's and stay as they were. */
static void check_guard(checked_t *c, int exchange, int64_t live, int64_t poisoned_rows)
{
    afdep_bench_rank_t *rank = c->rank;
    size_t row = (size_t)rank->plan->scenario.hidden * (rank->fp8 ? 1 : 2), at = (size_t)live;
    size_t rows = (size_t)(poisoned_rows - live);
    if (poisoned((const unsigned char *)rank->rows + at * row, POISON, rows * row) &&
        poisoned(rank->row_weight + at, POISON, rows * sizeof(float)) &&
        poisoned(rank->row_source + at * 2, POISON_INT, rows * 2 * sizeof(int32_t)))
        return;
    char why[128];
    snprintf(why, sizeof(why), "receive wrote behind its %lld rows", (long long)live);
    report(c, exchange, 1, why);
}

/* Replies to every row in an expert's range with the stand-in expert; all other rows stay poisoned. */
static void run_experts(afdep_bench_rank_t *rank)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    size_t hidden = (size_t)s->hidden, size = rank->fp8 ? 1 : 2;
    int64_t end = 0;
    for (int e = 0; e < rank->experts; e++) {
        int64_t row = align_up(end, s->expert_alignment);
        end = rank->ends[e];
        for (; row >= 0 && row < end && row < rank->rows_capacity; row++) {
            const unsigned char *x = (const unsigned char *)rank->rows + (size_t)row * hidden * size;
            const float *scale = rank->row_scale ? rank->row_scale + (size_t)row * (hidden / 128) : NULL;
            afdep_workload_expert(rank->reply + (size_t)row * hidden, x, scale, rank->row_weight[row],
                                  rank->world->rank * rank->experts + e, s, 0);
        }
    }
}

/* `aligned`: it follows another one without a barrier. A symmetric rank dispatches and collects in one exchange. */
static void worker_exchange(checked_t *c, int exchange, int aligned, int view)
{
    afdep_bench_rank_t *rank = c->rank;
    const afdep_bench_plan_t *plan = rank->plan;
    const afdep_scenario_t *s = &plan->scenario;
    for (int a = 0; a < s->attention_ranks; a++) {
        afdep_workload_routes(&rank->routes[a], s, plan->trace, s->seed, (uint64_t)exchange, a,
                              afdep_bench_tokens_of(plan, c->tokens, a));
        if (has_holes(exchange))
            punch_holes(&rank->routes[a], s->top_k, exchange);
    }
    afdep_oracle_received_t want;
    if (afdep_oracle_received(&want, s, rank->routes, rank->world->rank) != 0)
        afdep_bench_fatal(rank, "check", "no memory for the oracle");
    int64_t poisoned_rows = poison_rows(rank, want.rows);
    if (rank->source >= 0)
        prepare_source(c, exchange, 0);
    if (!aligned)
        afdep_bench_align(rank, AFDEP_BENCH_CHECK_PATIENCE);
    if (rank->source >= 0)
        dispatch(c, 0);
    afdep_receive_t receive = afdep_bench_receive_of(rank, c->bucket);
    receive.read_host_counts = has_holes(exchange);
    receive.host_counts = has_holes(exchange) ? rank->host_counts : NULL;
    afdep_bench_must(rank, rank->ops->receive(rank->path, &receive), "receive");
    run_experts(rank);
    afdep_reply_t reply = { sizeof(reply), rank->reply, receive.receipt };
    afdep_bench_must(rank, rank->ops->reply(rank->path, &reply), "reply");
    if (rank->source >= 0)
        collect(c, exchange, 0, view);
    char why[256] = "";
    int64_t wrong = afdep_oracle_check_received(&want, s, s->seed, (uint64_t)exchange, rank->world->rank, rank->rows,
                                                rank->row_scale, rank->row_weight, rank->row_source, rank->ends,
                                                receive.host_counts, receive.row_count, why, sizeof(why));
    report(c, exchange, wrong, why);
    if (receive.row_count == want.rows)
        check_guard(c, exchange, want.rows, poisoned_rows);
    if (c->dump && !aligned)
        afdep_bench_dump_worker(rank, c->dump, c->tokens, receive.row_count);
    afdep_oracle_received_free(&want);
}

int64_t afdep_bench_check(afdep_bench_rank_t *rank, int tokens, int first, int exchanges, int view, const char *dump)
{
    checked_t checked = { rank, tokens, afdep_bench_bucket(tokens), 0, dump };
    for (int done = 0; done < exchanges; done += rank->plan->in_flight) {
        if (!rank->worker)
            source_batch(&checked, first + done, view);
        for (int i = 0; rank->worker && i < rank->plan->in_flight; i++)
            worker_exchange(&checked, first + done + i, i > 0, view);
        checked.dump = NULL;
    }
    return checked.wrong;
}
