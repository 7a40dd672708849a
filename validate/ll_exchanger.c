/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/ll_exchanger.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "validate/convert.h"
#include "validate/ll_convert.h"
#include "validate/staged.h"

#define POISON 0xA5
#define STATISTICS 7 /* what the cumulative counts start from */

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static size_t rows_of(const afdep_ll_exchanger_t *x, int max_tokens)
{
    return (size_t)x->now.attention_ranks * (size_t)max_tokens;
}

static int local_of(const afdep_ll_exchanger_t *x)
{
    return x->now.num_experts / x->now.attention_ranks;
}

static void *memory(size_t count, size_t bytes)
{
    size_t size = (count ? count : 1) * bytes;
    return aligned_alloc(64, (size + 63) / 64 * 64);
}

static int allocate(afdep_ll_exchanger_t *x)
{
    size_t hidden = (size_t)x->most.hidden, tokens = (size_t)x->max_tokens, k = (size_t)x->most.top_k;
    size_t local = (size_t)local_of(x), rows = local * rows_of(x, x->max_tokens);
    x->ids = memory(tokens * k, sizeof(*x->ids));
    x->recv_x = memory(rows * hidden, 2);
    x->recv_scales = memory(rows, hidden / 32 < 4 ? 4 : hidden / 32);
    x->recv_weights = memory(rows, sizeof(float));
    x->recv_source = memory(rows, 2 * sizeof(int32_t));
    x->recv_count = memory(local, sizeof(int64_t));
    x->statistics = memory(local, sizeof(int32_t));
    x->statistics_before = memory(local, sizeof(int32_t));
    x->expected = memory(local, sizeof(uint32_t));
    x->cursor = memory(local, sizeof(uint32_t));
    x->experts_out = memory(rows * hidden, 2);
    x->out = memory(tokens * hidden, 2);
    x->codes = memory(hidden, 2);
    x->scales = memory(hidden, 4);
    x->values = memory(hidden, sizeof(float));
    x->sum = memory(hidden, sizeof(float));
    x->row = memory(hidden, 2);
    return x->ids && x->recv_x && x->recv_scales && x->recv_weights && x->recv_source && x->recv_count &&
                   x->statistics && x->statistics_before && x->expected && x->cursor && x->experts_out && x->out &&
                   x->codes && x->scales && x->values && x->sum && x->row
               ? 0
               : -1;
}

static void free_routes(afdep_ll_exchanger_t *x)
{
    afdep_workload_free(&x->sent);
    for (int r = 0; x->routes && r < x->most.attention_ranks; r++)
        afdep_workload_free(&x->routes[r]);
    free(x->routes);
    x->routes = NULL;
}

static int allocate_routes(afdep_ll_exchanger_t *x)
{
    x->routes = calloc((size_t)x->most.attention_ranks, sizeof(*x->routes));
    int failed = !x->routes || afdep_workload_alloc(&x->sent, &x->most, x->max_tokens) != 0;
    for (int r = 0; !failed && r < x->most.attention_ranks; r++)
        failed = afdep_workload_alloc_routes(&x->routes[r], &x->most, x->max_tokens) != 0;
    return failed ? -1 : 0;
}

int afdep_ll_exchanger_init(afdep_ll_exchanger_t *x, int ranks, int rank, int max_tokens, int hidden, int top_k,
                            int experts, uint64_t seed)
{
    memset(x, 0, sizeof(*x));
    x->most = (afdep_scenario_t){ .ffn_ranks = 1,
                                  .attention_ranks = ranks,
                                  .num_experts = experts,
                                  .top_k = top_k,
                                  .hidden = hidden,
                                  .dtype = AFDEP_DTYPE_BF16,
                                  .seed = seed };
    x->now = x->most;
    x->rank = rank;
    x->max_tokens = max_tokens;
    x->seed = seed;
    if (allocate(x) == 0 && allocate_routes(x) == 0)
        return 0;
    afdep_ll_exchanger_free(x);
    return -1;
}

int afdep_ll_exchanger_routing(afdep_ll_exchanger_t *x, const afdep_routing_t *routing)
{
    free_routes(x);
    x->most.routing = *routing;
    x->now.routing = *routing;
    return allocate_routes(x);
}

int afdep_ll_exchanger_stage(afdep_ll_exchanger_t *x)
{
    x->staged = afdep_ll_staged_create(x->most.attention_ranks, x->rank, x->max_tokens, x->most.hidden, x->most.top_k,
                                       x->most.num_experts);
    return x->staged ? 0 : -1;
}

void afdep_ll_exchanger_free(afdep_ll_exchanger_t *x)
{
    afdep_ll_staged_destroy(x->staged);
    free_routes(x);
    free(x->ids);
    free(x->recv_x);
    free(x->recv_scales);
    free(x->recv_weights);
    free(x->recv_source);
    free(x->recv_count);
    free(x->statistics);
    free(x->statistics_before);
    free(x->expected);
    free(x->cursor);
    free(x->experts_out);
    free(x->out);
    free(x->codes);
    free(x->scales);
    free(x->values);
    free(x->sum);
    free(x->row);
    memset(x, 0, sizeof(*x));
}

afdep_ll_config_t afdep_ll_exchanger_config(const afdep_ll_exchanger_t *x)
{
    afdep_ll_config_t c = AFDEP_LL_CONFIG_INIT;
    c.num_max_dispatch_tokens_per_rank = x->max_tokens;
    c.hidden = x->most.hidden;
    c.num_topk = x->most.top_k;
    c.num_experts = x->most.num_experts;
    return c;
}

/* ---- What is sent ------------------------------------------------------------------------------------------------ */

/* Three tokens of four have no very large element, under whose scale all others would vanish. */
static void temper(uint16_t *row, int hidden, int token)
{
    for (int h = 0; token % 4 != 0 && h < hidden; h++)
        if ((row[h] & 0x7FFFu) > 0x4000u)
            row[h] = (uint16_t)((row[h] & 0x8000u) | 0x3F80u);
}

static void temper_all(afdep_ll_exchanger_t *x)
{
    for (int t = 0; t < x->sent.tokens; t++)
        temper((uint16_t *)x->sent.x + (size_t)t * (size_t)x->now.hidden, x->now.hidden, t);
}

/* Choices turned into -1: a function of exchange, source, token and slot alone. */
static void deactivate(afdep_source_tokens_t *tokens, const afdep_ll_plan_t *plan, int top_k)
{
    for (int i = 0; i < tokens->tokens * top_k; i++) {
        uint64_t hash = (plan->number * 8191 + (uint64_t)tokens->source * 131 + (uint64_t)i) * 0x9E3779B97F4A7C15u;
        if ((int)(hash >> 40) % 100 < plan->inactive_percent)
            tokens->ids[i] = -1;
    }
}

/* The exchange that a plan asks for; the buffers are those of the largest. */
static void set_now(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    x->now = x->most;
    x->now.hidden = plan->hidden ? plan->hidden : x->most.hidden;
    x->now.top_k = plan->top_k ? plan->top_k : x->most.top_k;
    x->now.num_experts = plan->experts ? plan->experts : x->most.num_experts;
}

static int most_tokens(const afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    return plan->max_tokens ? plan->max_tokens : x->max_tokens;
}

/* What all ranks send where, and how many rows each local expert gets of it. */
static void expect_rows(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    int local = local_of(x), first = x->rank * local;
    memset(x->expected, 0, (size_t)local * sizeof(*x->expected));
    for (int r = 0; r < x->now.attention_ranks; r++) {
        afdep_workload_routes(&x->routes[r], &x->now, NULL, x->seed, plan->number, r, plan->tokens[r]);
        deactivate(&x->routes[r], plan, x->now.top_k);
        for (int i = 0; i < plan->tokens[r] * x->now.top_k; i++) {
            int e = x->routes[r].ids[i] - first;
            if (e >= 0 && e < local)
                x->expected[e]++;
        }
    }
}

/* The rows that will be written, and the one behind them: all others stay untouched memory. */
static void poison_rows(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    size_t rows = rows_of(x, most_tokens(x, plan)),
           codes = afdep_ll_convert_code_bytes(plan->format, (size_t)x->now.hidden);
    for (int e = 0; e < local_of(x); e++) {
        size_t from = (size_t)e * rows, count = x->expected[e] + (x->expected[e] < rows);
        memset(x->recv_x + from * codes, POISON, count * codes);
        memset(x->recv_weights + from, POISON, count * sizeof(float));
        memset(x->recv_source + 2 * from, POISON, 2 * count * sizeof(int32_t));
    }
}

void afdep_ll_prepare_dispatch(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    set_now(x, plan);
    size_t choices = (size_t)plan->tokens[x->rank] * (size_t)x->now.top_k, local = (size_t)local_of(x);
    afdep_workload_source(&x->sent, &x->now, NULL, x->seed, plan->number, x->rank, plan->tokens[x->rank]);
    temper_all(x);
    deactivate(&x->sent, plan, x->now.top_k);
    expect_rows(x, plan);
    for (size_t i = 0; i < choices; i++)
        x->ids[i] = x->sent.ids[i];
    poison_rows(x, plan);
    memset(x->recv_count, POISON, local * sizeof(int64_t));
    for (size_t e = 0; e < local; e++)
        x->statistics[e] = x->statistics_before[e] = STATISTICS + (int32_t)e;
    afdep_ll_dispatch_t d = AFDEP_LL_DISPATCH_INIT;
    d.x = x->sent.x;
    d.topk_idx = x->ids;
    d.topk_weights = plan->plain ? NULL : x->sent.weights;
    d.tokens = plan->tokens[x->rank];
    d.hidden = x->now.hidden;
    d.num_topk = x->now.top_k;
    d.num_max_dispatch_tokens_per_rank = most_tokens(x, plan);
    d.num_experts = x->now.num_experts;
    d.format = plan->format;
    d.round_scale = plan->round_scale;
    d.async_finish = plan->dispatch == AFDEP_LL_BY_EVENT || plan->dispatch == AFDEP_LL_BY_QUERY;
    d.return_recv_hook = plan->dispatch == AFDEP_LL_BY_HOOK;
    d.recv_x = x->recv_x;
    d.recv_x_scales = plan->format == AFDEP_LL_BF16 ? NULL : x->recv_scales;
    d.recv_count = x->recv_count;
    if (!plan->plain) {
        d.cumulative_local_expert_recv_stats = x->statistics;
        d.recv_topk_weights = x->recv_weights;
        d.recv_source = x->recv_source;
    }
    x->dispatch = d;
}

/* ---- Judging a dispatch ------------------------------------------------------------------------------------------ */

static afdep_status_t wrong(afdep_ll_exchanger_t *x, const char *format, ...) __attribute__((format(printf, 2, 3)));
static afdep_status_t wrong(afdep_ll_exchanger_t *x, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(x->why, sizeof(x->why), format, arguments);
    va_end(arguments);
    return AFDEP_ERR_PROTOCOL;
}

/* The row of a token of any source, as it goes over the wire. */
static void encode_row(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, int source, int token)
{
    afdep_workload_row(x->row, NULL, &x->now, x->seed, plan->number, source, token);
    temper(x->row, x->now.hidden, token);
    afdep_ll_convert_encode(plan->format, x->row, (size_t)x->now.hidden, plan->round_scale, x->codes, x->scales);
}

static afdep_status_t check_row(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, int source, int token, int e,
                                float weight)
{
    size_t hidden = (size_t)x->now.hidden, codes = afdep_ll_convert_code_bytes(plan->format, hidden);
    size_t scales = afdep_ll_convert_scale_bytes(plan->format, hidden);
    size_t at = (size_t)e * rows_of(x, most_tokens(x, plan)) + x->cursor[e];
    if (memcmp(x->recv_x + at * codes, x->codes, codes) != 0)
        return wrong(x, "local expert %d, row %u: codes of rank %d's token %d differ", e, x->cursor[e], source, token);
    if (scales && memcmp(x->recv_scales + at * scales, x->scales, scales) != 0)
        return wrong(x, "local expert %d, row %u: scales of rank %d's token %d differ", e, x->cursor[e], source, token);
    if (!plan->plain && (x->recv_source[2 * at] != source || x->recv_source[2 * at + 1] != token))
        return wrong(x, "local expert %d, row %u: source %d, token %d, not %d, %d", e, x->cursor[e],
                     x->recv_source[2 * at], x->recv_source[2 * at + 1], source, token);
    if (!plan->plain && afdep_convert_bits(x->recv_weights[at]) != afdep_convert_bits(weight))
        return wrong(x, "local expert %d, row %u: weight %g, not %g", e, x->cursor[e], (double)x->recv_weights[at],
                     (double)weight);
    x->cursor[e]++;
    return AFDEP_OK;
}

/* Counts, statistics, and that the rows behind the valid ones are as they were. */
static afdep_status_t check_counts(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    size_t rows = rows_of(x, most_tokens(x, plan)),
           codes = afdep_ll_convert_code_bytes(plan->format, (size_t)x->now.hidden);
    for (int e = 0; e < local_of(x); e++) {
        if (x->recv_count[e] != (int64_t)x->cursor[e] || x->cursor[e] != x->expected[e])
            return wrong(x, "local expert %d: %lld rows, not %u", e, (long long)x->recv_count[e], x->cursor[e]);
        int32_t more = plan->plain ? 0 : (int32_t)x->cursor[e];
        if (x->statistics[e] != x->statistics_before[e] + more)
            return wrong(x, "local expert %d: statistics %d, not %d", e, x->statistics[e],
                         x->statistics_before[e] + more);
        const unsigned char *behind = x->recv_x + ((size_t)e * rows + x->cursor[e]) * codes;
        for (size_t i = 0; x->cursor[e] < rows && i < codes; i++)
            if (behind[i] != POISON)
                return wrong(x, "local expert %d: the row behind the last was written", e);
    }
    return AFDEP_OK;
}

afdep_status_t afdep_ll_judge_dispatch(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    int local = local_of(x), first = x->rank * local, top_k = x->now.top_k;
    afdep_status_t status = AFDEP_OK;
    memset(x->cursor, 0, (size_t)local * sizeof(*x->cursor));
    if (x->dispatch.resolved != plan->format)
        return wrong(x, "resolved to %s", afdep_ll_format_name(x->dispatch.resolved));
    for (int r = 0; r < x->now.attention_ranks; r++) {
        const afdep_source_tokens_t *from = &x->routes[r];
        for (int t = 0; t < from->tokens; t++)
            for (int k = 0, encoded = 0; status == AFDEP_OK && k < top_k; k++) {
                int e = from->ids[t * top_k + k] - first;
                if (e < 0 || e >= local)
                    continue;
                if (!encoded++)
                    encode_row(x, plan, r, t);
                status = check_row(x, plan, r, t, e, from->weights[t * top_k + k]);
            }
    }
    return status == AFDEP_OK ? check_counts(x, plan) : status;
}

/* ---- The experts, and judging a combine -------------------------------------------------------------------------- */

/* What expert `expert` makes of a row. */
static void apply_expert(uint16_t *out, const float *values, size_t n, int expert)
{
    float factor = 0.5f + (float)((uint32_t)expert * 2654435761u >> 22) / 1024.0f,
          offset = expert % 4 ? 0.0f : 0.03125f;
    for (size_t i = 0; i < n; i++)
        out[i] = afdep_convert_to_bf16(values[i] * factor + offset);
}

void afdep_ll_prepare_combine(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer)
{
    size_t hidden = (size_t)x->now.hidden, codes = afdep_ll_convert_code_bytes(plan->format, hidden);
    size_t scales = afdep_ll_convert_scale_bytes(plan->format, hidden), rows = rows_of(x, most_tokens(x, plan));
    void *to = x->experts_out;
    afdep_ll_combine_t c = AFDEP_LL_COMBINE_INIT;
    if (plan->zero_copy && !x->staged && afdep_ll_next_combine_buffer(buffer, &x->dispatch.handle, &to) != AFDEP_OK)
        to = x->experts_out; /* the combine will say what is wrong */
    for (int e = 0; e < local_of(x); e++)
        for (int64_t i = 0; i < x->recv_count[e]; i++) {
            size_t at = (size_t)e * rows + (size_t)i;
            afdep_ll_convert_decode(plan->format, x->values, hidden, x->recv_x + at * codes,
                                    x->recv_scales + at * scales);
            apply_expert((uint16_t *)to + at * hidden, x->values, hidden, x->rank * local_of(x) + e);
        }
    memset(x->out, POISON, (size_t)plan->tokens[x->rank] * hidden * 2);
    c.x = to;
    c.topk_idx = x->ids;
    c.topk_weights = x->sent.weights;
    c.tokens = plan->tokens[x->rank];
    c.num_topk = x->now.top_k;
    c.handle = x->dispatch.handle;
    c.zero_copy = plan->zero_copy;
    c.async_finish = plan->combine == AFDEP_LL_BY_EVENT || plan->combine == AFDEP_LL_BY_QUERY;
    c.return_recv_hook = plan->combine == AFDEP_LL_BY_HOOK;
    c.out = plan->own_out ? NULL : x->out;
    x->combine = c;
}

/* One term of a sum: in order, the first one rounded, the others fused. */
static void add_term(float *sum, const uint16_t *row, size_t n, float weight, int first)
{
    for (size_t i = 0; i < n; i++) {
        float value = afdep_convert_from_bf16(row[i]);
        sum[i] = first ? weight * value : fmaf(weight, value, sum[i]);
    }
}

afdep_status_t afdep_ll_judge_combine(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan)
{
    size_t hidden = (size_t)x->now.hidden;
    const uint16_t *got = x->combine.combined_x;
    if (!plan->own_out && got != x->out)
        return wrong(x, "combined_x is not the tensor that was given");
    for (int t = 0; t < x->sent.tokens; t++) {
        int terms = 0;
        encode_row(x, plan, x->rank, t);
        afdep_ll_convert_decode(plan->format, x->values, hidden, x->codes, x->scales);
        for (int k = 0; k < x->now.top_k; k++) {
            int id = x->sent.ids[t * x->now.top_k + k];
            if (id < 0)
                continue;
            apply_expert(x->row, x->values, hidden, id);
            add_term(x->sum, x->row, hidden, x->sent.weights[t * x->now.top_k + k], terms++ == 0);
        }
        for (size_t i = 0; i < hidden; i++) {
            uint16_t want = terms ? afdep_convert_to_bf16(x->sum[i]) : 0;
            if (got[(size_t)t * hidden + i] != want)
                return wrong(x, "token %d, element %zu: 0x%04x, not 0x%04x", t, i, got[(size_t)t * hidden + i], want);
        }
    }
    return AFDEP_OK;
}

/* ---- The calls --------------------------------------------------------------------------------------------------- */

static afdep_status_t said(afdep_ll_exchanger_t *x, afdep_status_t status, const char *call)
{
    if (status != AFDEP_OK)
        snprintf(x->why, sizeof(x->why), "%s: %s: %s", call, afdep_status_string(status),
                 x->staged ? afdep_staged_why() : afdep_last_error());
    return status;
}

static afdep_status_t complete(afdep_ll_buffer_t *buffer, afdep_ll_completion_t how, const afdep_ll_hook_t *hook,
                               const afdep_ll_event_t *event)
{
    afdep_status_t status = AFDEP_OK;
    if (how == AFDEP_LL_BY_HOOK)
        return afdep_ll_hook_call(buffer, hook);
    if (how == AFDEP_LL_BY_EVENT)
        return afdep_ll_event_wait(buffer, event);
    for (int done = how == AFDEP_LL_NOW; status == AFDEP_OK && !done; ) {
        status = afdep_ll_event_query(buffer, event, &done);
        if (status == AFDEP_OK && !done)
            sched_yield();
    }
    return status;
}

afdep_status_t afdep_ll_begin_first(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer)
{
    afdep_ll_prepare_dispatch(x, plan);
    return said(x,
                x->staged ? afdep_ll_staged_dispatch(x->staged, buffer, &x->dispatch)
                          : afdep_ll_dispatch(buffer, &x->dispatch),
                "dispatch");
}

afdep_status_t afdep_ll_finish_first(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer)
{
    afdep_status_t status =
        said(x, complete(buffer, plan->dispatch, &x->dispatch.hook, &x->dispatch.event), "dispatch's receive");
    if (status == AFDEP_OK && x->staged)
        status = said(x, afdep_ll_staged_received(x->staged, buffer, &x->dispatch), "dispatch's receive");
    return status == AFDEP_OK ? afdep_ll_judge_dispatch(x, plan) : status;
}

afdep_status_t afdep_ll_begin_second(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer)
{
    afdep_ll_prepare_combine(x, plan, buffer);
    return said(x,
                x->staged ? afdep_ll_staged_combine(x->staged, buffer, &x->combine)
                          : afdep_ll_combine(buffer, &x->combine),
                "combine");
}

afdep_status_t afdep_ll_finish_second(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer)
{
    afdep_status_t status =
        said(x, complete(buffer, plan->combine, &x->combine.hook, &x->combine.event), "combine's receive");
    if (status == AFDEP_OK && x->staged)
        status = said(x, afdep_ll_staged_summed(x->staged, buffer, &x->combine, x->out), "combine's receive");
    return status == AFDEP_OK ? afdep_ll_judge_combine(x, plan) : status;
}

afdep_status_t afdep_ll_exchange(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer)
{
    afdep_status_t status = afdep_ll_begin_first(x, plan, buffer);
    if (status == AFDEP_OK)
        status = afdep_ll_finish_first(x, plan, buffer);
    if (status == AFDEP_OK)
        status = afdep_ll_begin_second(x, plan, buffer);
    return status == AFDEP_OK ? afdep_ll_finish_second(x, plan, buffer) : status;
}
