/* SPDX-License-Identifier: Apache-2.0 */
/* Checked exchanges at one rank. */
#include "validate/exchanger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xA5

static void *take(size_t bytes)
{
    bytes = (bytes + 63) / 64 * 64;
    return aligned_alloc(64, bytes ? bytes : 64);
}

afdep_config_t afdep_exchanger_config(const afdep_scenario_t *s)
{
    afdep_config_t c = AFDEP_CONFIG_INIT;
    c.ffn_ranks = s->ffn_ranks;
    c.ranks_per_domain = s->ranks_per_domain;
    c.num_experts = s->num_experts;
    c.top_k = s->top_k;
    c.hidden = s->hidden;
    c.dtype = s->dtype;
    c.capacity = s->capacity;
    c.num_sms = s->num_sms;
    c.expert_alignment = s->expert_alignment;
    return c;
}

/* The sentence of the call that failed. */
static const char *call_why(const afdep_exchanger_t *x)
{
    return x->staged ? afdep_staged_why() : afdep_last_error();
}

static int init_source(afdep_exchanger_t *x)
{
    const afdep_scenario_t *s = x->scenario;
    size_t capacity = (size_t)s->capacity, hidden = (size_t)s->hidden;
    x->out = take(capacity * hidden * 2);
    x->want = take(hidden * 2);
    x->scratch = take(afdep_oracle_scratch(s));
    x->transposed = take(capacity * hidden / 128 * sizeof(float));
    int made = afdep_workload_alloc(&x->own, s, s->capacity) == 0;
    return made && x->out && x->want && x->scratch && x->transposed ? 0 : -1;
}

static int init_worker(afdep_exchanger_t *x, int64_t rows)
{
    const afdep_scenario_t *s = x->scenario;
    size_t r = (size_t)rows, hidden = (size_t)s->hidden, experts = (size_t)afdep_scenario_experts(s);
    x->rows_capacity = rows;
    x->rows = take(r * hidden * (s->dtype == AFDEP_DTYPE_FP8 ? 1 : 2));
    x->row_scale = take(r * hidden / 128 * sizeof(float));
    x->row_weight = take(r * sizeof(float));
    x->row_source = take(r * 2 * sizeof(int32_t));
    x->ends = take(experts * sizeof(int32_t));
    x->host_counts = take(experts * sizeof(int32_t));
    x->reply = take(r * hidden * 2);
    x->sources = calloc((size_t)s->attention_ranks, sizeof(*x->sources));
    if (!x->rows || !x->row_scale || !x->row_weight || !x->row_source || !x->ends || !x->host_counts || !x->reply ||
        !x->sources)
        return -1;
    for (int a = 0; a < s->attention_ranks; a++)
        if (afdep_workload_alloc_routes(&x->sources[a], s, s->capacity) != 0)
            return -1;
    return 0;
}

int afdep_exchanger_init_rank(afdep_exchanger_t *x, const afdep_scenario_t *scenario, int rank, int apply_weights,
                              uint64_t seed)
{
    afdep_memory_t memory = { .struct_size = sizeof(memory) };
    afdep_config_t config = afdep_exchanger_config(scenario);
    memset(x, 0, sizeof(*x));
    if (afdep_buffer_bytes(&config, afdep_scenario_ranks(scenario), scenario->capacity, &memory) != AFDEP_OK)
        return -1;
    x->scenario = scenario;
    x->seed = seed;
    x->rank = rank;
    x->apply_weights = apply_weights;
    if (afdep_scenario_is_source(scenario, rank) && init_source(x) != 0)
        return -1;
    return afdep_scenario_is_worker(scenario, rank) ? init_worker(x, memory.receive_rows) : 0;
}

int afdep_exchanger_init(afdep_exchanger_t *x, const afdep_scenario_t *scenario, afdep_buffer_t *buffer, uint64_t seed)
{
    afdep_buffer_info_t info = { .struct_size = sizeof(info) };
    if (afdep_buffer_info(buffer, &info) != AFDEP_OK)
        return -1;
    int status = afdep_exchanger_init_rank(x, scenario, info.rank, (info.flags & AFDEP_FLAG_APPLY_WEIGHTS) != 0, seed);
    x->buffer = buffer;
    x->fp8_combine = info.fp8_combine;
    x->fp8_combine_min_bucket = info.fp8_combine_min_bucket;
    if (status == 0 && strcmp(info.backend, "cuda") == 0) {
        x->staged = afdep_staged_create(scenario, info.rank, scenario->capacity, x->why, sizeof(x->why));
        status = x->staged ? 0 : -1;
    }
    return status;
}

void afdep_exchanger_free(afdep_exchanger_t *x)
{
    if (x->sources)
        for (int a = 0; a < x->scenario->attention_ranks; a++)
            afdep_workload_free(&x->sources[a]);
    if (x->out)
        afdep_workload_free(&x->own);
    afdep_staged_destroy(x->staged);
    void *all[] = { x->sources,    x->out,        x->want, x->scratch,     x->transposed, x->rows, x->row_scale,
                    x->row_weight, x->row_source, x->ends, x->host_counts, x->reply };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
    memset(x, 0, sizeof(*x));
}

/* Turns a share of the choices into -1, the same ones on every rank. */
static void skip_choices(const afdep_exchanger_t *x, const afdep_exchange_plan_t *plan, afdep_source_tokens_t *source)
{
    uint64_t number = plan->cached ? plan->routing : plan->number;
    uint64_t state = x->seed ^ number * 0x9E3779B97F4A7C15u ^ (uint64_t)source->source << 32;
    for (int i = 0; plan->inactive_percent > 0 && i < source->tokens * x->scenario->top_k; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        if ((int)(state >> 33) % 100 < plan->inactive_percent)
            source->ids[i] = -1;
    }
}

/* The routes of a source in an exchange; where they are another one's, with weights of its own. */
static void make_routes(const afdep_exchanger_t *x, const afdep_exchange_plan_t *plan, afdep_source_tokens_t *source,
                        int a)
{
    const afdep_scenario_t *s = x->scenario;
    afdep_workload_routes(source, s, NULL, x->seed, plan->cached ? plan->routing : plan->number, a, plan->tokens[a]);
    for (int i = 0; plan->cached && i < source->tokens * s->top_k; i++)
        source->weights[i] *= 1 + (float)(plan->number % 5 + 1) / 8;
    skip_choices(x, plan, source);
}

/* ---- Sources ----------------------------------------------------------------------------------------------- */

static void make_tokens(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    int source = x->rank - x->scenario->ffn_ranks;
    afdep_workload_source(&x->own, x->scenario, NULL, x->seed, plan->number, source, plan->tokens[source]);
    make_routes(x, plan, &x->own, source);
}

static void prepare_dispatch(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    make_tokens(x, plan);
    afdep_dispatch_t d = AFDEP_DISPATCH_INIT;
    int blocks = x->scenario->hidden / 128;
    d.tokens = x->own.tokens;
    d.bucket = plan->bucket;
    d.x = x->own.x;
    d.ids = plan->cached ? NULL : x->own.ids;
    d.cached = plan->cached;
    d.weights = x->own.weights;
    d.x_scale = x->own.x_scale;
    if (d.x_scale && plan->strided_scales) {
        for (int t = 0; t < d.tokens; t++)
            for (int b = 0; b < blocks; b++)
                x->transposed[(size_t)b * (size_t)d.tokens + (size_t)t] = x->own.x_scale[t * blocks + b];
        d.x_scale = x->transposed;
        d.x_scale_token_stride = 1;
        d.x_scale_block_stride = d.tokens;
    }
    x->dispatch = d;
}

static afdep_status_t judge_dispatch(afdep_exchanger_t *x, afdep_status_t status)
{
    size_t tokens = (size_t)x->own.tokens, hidden = (size_t)x->scenario->hidden;
    if (status != AFDEP_OK)
        snprintf(x->why, sizeof(x->why), "source_dispatch: %s", call_why(x));
    /* The call has returned: its inputs are the caller's again. */
    memset(x->transposed, POISON, tokens * hidden / 128 * sizeof(float));
    memset(x->own.x, POISON, tokens * hidden);
    return status;
}

static unsigned oracle_rules(const afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    int packed = x->fp8_combine && plan->bucket >= x->fp8_combine_min_bucket;
    return (x->apply_weights ? AFDEP_ORACLE_APPLY_WEIGHTS : 0) | (packed ? AFDEP_ORACLE_FP8_COMBINE : 0);
}

static afdep_status_t check_collected(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan, const afdep_collect_t *c)
{
    size_t hidden = (size_t)x->scenario->hidden;
    if (c->tokens != x->own.tokens) {
        snprintf(x->why, sizeof(x->why), "collect says %d tokens, %d were sent", c->tokens, x->own.tokens);
        return AFDEP_ERR_PROTOCOL;
    }
    for (int t = 0; t < x->own.tokens; t++) {
        const uint16_t *got = (const uint16_t *)c->result + (int64_t)t * c->result_stride;
        afdep_oracle_token(x->want, x->scenario, &x->own, t, oracle_rules(x, plan), x->scratch);
        for (size_t i = 0; i < hidden; i++)
            if (got[i] != x->want[i]) {
                snprintf(x->why, sizeof(x->why), "rank %d, token %d, element %zu: 0x%04x, wanted 0x%04x", x->rank, t, i,
                         got[i], x->want[i]);
                return AFDEP_ERR_PROTOCOL;
            }
    }
    return AFDEP_OK;
}

static void prepare_collect(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    x->collect = (afdep_collect_t)AFDEP_COLLECT_INIT;
    x->collect.out = x->out;
    x->collect.view = plan->view;
    memset(x->out, POISON, (size_t)x->scenario->capacity * (size_t)x->scenario->hidden * 2);
}

static afdep_status_t judge_collect(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan, afdep_status_t status)
{
    if (status != AFDEP_OK) {
        snprintf(x->why, sizeof(x->why), "source_collect: %s", call_why(x));
        return status;
    }
    make_tokens(x, plan); /* again: other exchanges may have been dispatched since */
    return check_collected(x, plan, &x->collect);
}

/* ---- Workers ----------------------------------------------------------------------------------------------------- */

static afdep_status_t offer_tensors(void *context, int64_t rows, struct afdep_receive *r)
{
    afdep_exchanger_t *x = context;
    r->rows = x->rows;
    r->row_scale = x->row_scale;
    r->row_weight = x->row_weight;
    r->row_source = x->row_source;
    r->ends = x->ends;
    r->rows_capacity = rows; /* exactly what was asked for */
    return AFDEP_OK;
}

static void poison_tensors(afdep_exchanger_t *x)
{
    size_t rows = (size_t)x->rows_capacity, hidden = (size_t)x->scenario->hidden;
    memset(x->rows, POISON, rows * hidden * (x->scenario->dtype == AFDEP_DTYPE_FP8 ? 1 : 2));
    memset(x->row_scale, POISON, rows * hidden / 128 * sizeof(float));
    memset(x->row_weight, POISON, rows * sizeof(float));
    memset(x->row_source, POISON, rows * 2 * sizeof(int32_t));
    memset(x->ends, POISON, (size_t)afdep_scenario_experts(x->scenario) * sizeof(int32_t));
}

static afdep_status_t check_received(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan, const afdep_receive_t *r)
{
    afdep_oracle_received_t want;
    for (int a = 0; a < x->scenario->attention_ranks; a++)
        make_routes(x, plan, &x->sources[a], a);
    if (afdep_oracle_received(&want, x->scenario, x->sources, x->rank) != 0)
        return AFDEP_ERR_MEMORY;
    int64_t wrong = afdep_oracle_check_received(&want, x->scenario, x->seed, plan->number, x->rank, r->rows,
                                                r->row_scale, r->row_weight, r->row_source, r->ends, r->host_counts,
                                                r->row_count, x->why, sizeof(x->why));
    afdep_oracle_received_free(&want);
    return wrong ? AFDEP_ERR_PROTOCOL : AFDEP_OK;
}

static void prepare_receive(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    afdep_receive_t *r = &x->receive;
    *r = (afdep_receive_t)AFDEP_RECEIVE_INIT;
    poison_tensors(x);
    r->bucket = plan->bucket;
    r->cached = plan->cached;
    r->read_host_counts = plan->read_host_counts;
    if (plan->read_host_counts) {
        r->allocate = offer_tensors;
        r->allocate_context = x;
        r->host_counts = x->host_counts;
        return;
    }
    (void)offer_tensors(x, x->rows_capacity, r);
    if (plan->null_row_source)
        r->row_source = NULL;
    if (x->scenario->dtype != AFDEP_DTYPE_FP8)
        r->row_scale = NULL;
}

/* The reply is made at once, while the rows stand: a second exchange in flight would overwrite them. */
static void make_reply(afdep_exchanger_t *x)
{
    const afdep_scenario_t *s = x->scenario;
    const afdep_receive_t *r = &x->receive;
    int experts = afdep_scenario_experts(s), align = s->expert_alignment;
    size_t hidden = (size_t)s->hidden, width = s->dtype == AFDEP_DTYPE_FP8 ? 1 : 2;
    memset(x->reply, POISON, (size_t)x->rows_capacity * hidden * 2);
    for (int e = 0, row = 0; e < experts; e++) {
        for (; row < r->ends[e]; row++)
            afdep_workload_expert(x->reply + (size_t)row * hidden, (const char *)r->rows + (size_t)row * hidden * width,
                                  r->row_scale ? r->row_scale + (size_t)row * hidden / 128 : NULL, r->row_weight[row],
                                  x->rank * experts + e, s, x->apply_weights);
        row = (r->ends[e] + align - 1) / align * align;
    }
}

static afdep_status_t judge_receive(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan, afdep_status_t status)
{
    if (status != AFDEP_OK) {
        snprintf(x->why, sizeof(x->why), "worker_receive: %s", call_why(x));
        return status;
    }
    status = x->unchecked ? AFDEP_OK : check_received(x, plan, &x->receive);
    if (status == AFDEP_OK)
        make_reply(x);
    return status;
}

static void prepare_reply(afdep_exchanger_t *x)
{
    x->reply_arguments = (afdep_reply_t)AFDEP_REPLY_INIT;
    x->reply_arguments.rows = x->receive.row_count ? x->reply : NULL;
    x->reply_arguments.receipt = x->receive.receipt;
}

static afdep_status_t judge_reply(afdep_exchanger_t *x, afdep_status_t status)
{
    if (status != AFDEP_OK)
        snprintf(x->why, sizeof(x->why), "worker_reply: %s", call_why(x));
    memset(x->reply, POISON, (size_t)x->receive.row_count * (size_t)x->scenario->hidden * 2);
    return status;
}

/* ---- Whichever a rank is: a symmetric one is both, and its two calls are elastic ones -------------------------- */

static int is_worker(const afdep_exchanger_t *x)
{
    return afdep_scenario_is_worker(x->scenario, x->rank);
}

static int is_source(const afdep_exchanger_t *x)
{
    return afdep_scenario_is_source(x->scenario, x->rank);
}

void afdep_exchanger_prepare_first(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    if (is_worker(x))
        prepare_receive(x, plan);
    if (is_source(x))
        prepare_dispatch(x, plan);
}

afdep_status_t afdep_exchanger_judge_first(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan,
                                           afdep_status_t status)
{
    if (is_source(x))
        status = judge_dispatch(x, status);
    return is_worker(x) ? judge_receive(x, plan, status) : status;
}

void afdep_exchanger_prepare_second(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    if (is_worker(x))
        prepare_reply(x);
    if (is_source(x))
        prepare_collect(x, plan);
}

afdep_status_t afdep_exchanger_judge_second(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan,
                                            afdep_status_t status)
{
    if (is_worker(x))
        status = judge_reply(x, status);
    return is_source(x) ? judge_collect(x, plan, status) : status;
}

afdep_status_t afdep_exchanger_call_first(afdep_exchanger_t *x)
{
    if (is_worker(x) && is_source(x))
        return afdep_elastic_dispatch(x->buffer, &x->dispatch, &x->receive, NULL);
    if (!x->staged)
        return is_worker(x) ? afdep_worker_receive(x->buffer, &x->receive, NULL)
                            : afdep_source_dispatch(x->buffer, &x->dispatch, NULL);
    return is_worker(x) ? afdep_staged_receive(x->staged, x->buffer, &x->receive)
                        : afdep_staged_dispatch(x->staged, x->buffer, &x->dispatch);
}

afdep_status_t afdep_exchanger_complete(afdep_exchanger_t *x)
{
    return x->staged ? afdep_staged_complete(x->staged, x->buffer) : afdep_source_dispatch_complete(x->buffer);
}

afdep_status_t afdep_exchanger_call_second(afdep_exchanger_t *x)
{
    if (is_worker(x) && is_source(x))
        return afdep_elastic_combine(x->buffer, &x->reply_arguments, &x->collect, NULL);
    if (!x->staged)
        return is_worker(x) ? afdep_worker_reply(x->buffer, &x->reply_arguments, NULL)
                            : afdep_source_collect(x->buffer, &x->collect, NULL);
    return is_worker(x) ? afdep_staged_reply(x->staged, x->buffer, &x->reply_arguments)
                        : afdep_staged_collect(x->staged, x->buffer, &x->collect);
}

afdep_status_t afdep_exchanger_first(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    afdep_exchanger_prepare_first(x, plan);
    return afdep_exchanger_judge_first(x, plan, afdep_exchanger_call_first(x));
}

afdep_status_t afdep_exchanger_second(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan)
{
    afdep_exchanger_prepare_second(x, plan);
    return afdep_exchanger_judge_second(x, plan, afdep_exchanger_call_second(x));
}
