/* SPDX-License-Identifier: Apache-2.0 */
/* Device twins of host tensors. */
#include "validate/staged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "validate/gpu.h"

#define POISON 0xFF
#define POISON_INT 0xA5
#define GUARD_ROWS 4 /* rows behind the last one that come back too */

struct afdep_staged {
    const afdep_scenario_t *scenario;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    cudaGraphExec_t calls[2]; /* the recorded halves of an exchange, where they were recorded */
    afdep_staged_run_t run;
    int source; /* an Attention rank */
    size_t width, experts;
    int64_t rows_capacity, live;
    int eager; /* calls are made though they were recorded */
    int whole; /* a source's first recording holds both halves */
    /* Attention */
    void *x;
    float *x_scale;
    int32_t *ids;
    float *weights;
    uint16_t *out;
    /* FFN */
    void *rows;
    float *row_scale, *row_weight;
    int32_t *row_source, *ends;
    uint16_t *reply;
    /* The last calls, with the twins in them. */
    afdep_dispatch_t last_dispatch;
    afdep_receive_t last_receive;
    afdep_reply_t last_reply;
    afdep_collect_t last_collect;
    afdep_receive_t *caller; /* receive under way: the caller's struct */
};

const char *afdep_staged_why(void)
{
    return afdep_gpu_why()[0] ? afdep_gpu_why() : afdep_last_error();
}

/* Both ways; on the rank's own stream, so that nothing waits for another rank's kernels. */
static int copy(afdep_staged_t *s, void *to, const void *from, size_t bytes)
{
    return bytes &&
           afdep_gpu_failed(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->stream), "copying a tensor");
}

static int set(afdep_staged_t *s, void *at, int byte, size_t bytes)
{
    return bytes && afdep_gpu_failed(cudaMemsetAsync(at, byte, bytes, s->stream), "poisoning a tensor");
}

static int finish(afdep_staged_t *s)
{
    return afdep_gpu_failed(cudaStreamSynchronize(s->stream), "waiting for the GPU");
}

/* ---- Making -------------------------------------------------------------------------------------------------- */

static int make(void *slot, int64_t count, size_t size)
{
    size_t bytes = (size_t)(count > 0 ? count : 1) * size;
    return afdep_gpu_failed(cudaMalloc((void **)slot, bytes), "no device memory for a tensor");
}

static int make_source(afdep_staged_t *s, int64_t tokens)
{
    const afdep_scenario_t *c = s->scenario;
    return make(&s->x, tokens * c->hidden, s->width) || make(&s->x_scale, tokens * c->hidden / 128, sizeof(float)) ||
           make(&s->ids, tokens * c->top_k, sizeof(int32_t)) || make(&s->weights, tokens * c->top_k, sizeof(float)) ||
           make(&s->out, tokens * c->hidden, sizeof(uint16_t));
}

static int make_worker(afdep_staged_t *s, int64_t rows)
{
    const afdep_scenario_t *c = s->scenario;
    return make(&s->rows, rows * c->hidden, s->width) || make(&s->row_scale, rows * c->hidden / 128, sizeof(float)) ||
           make(&s->row_weight, rows, sizeof(float)) || make(&s->row_source, 2 * rows, sizeof(int32_t)) ||
           make(&s->ends, (int64_t)s->experts, sizeof(int32_t)) || make(&s->reply, rows * c->hidden, sizeof(uint16_t));
}

static int64_t rows_for(const afdep_scenario_t *c, int64_t bucket)
{
    int64_t experts = c->num_experts / c->ffn_ranks, k = c->top_k < experts ? c->top_k : experts;
    return c->attention_ranks * bucket * k + experts * (c->expert_alignment - 1);
}

afdep_staged_t *afdep_staged_create(const afdep_scenario_t *c, int rank, int bucket, char *why, size_t why_size)
{
    afdep_staged_t *s = calloc(1, sizeof(*s));
    afdep_gpu_begin_call();
    if (!s) {
        snprintf(why, why_size, "no memory for staged tensors");
        return NULL;
    }
    s->scenario = c;
    s->source = rank >= c->ffn_ranks;
    s->width = c->dtype == AFDEP_DTYPE_FP8 ? 1 : 2;
    s->experts = (size_t)(c->num_experts / c->ffn_ranks);
    s->rows_capacity = rows_for(c, bucket);
    afdep_staged_use_device(rank);
    if (afdep_gpu_take_stream(&s->stream) != 0) {
        snprintf(why, why_size, "%s", afdep_gpu_why());
        free(s);
        return NULL;
    }
    if (!(s->source ? make_source(s, bucket) : make_worker(s, s->rows_capacity)))
        return s;
    snprintf(why, why_size, "%s", afdep_gpu_why());
    afdep_staged_destroy(s);
    return NULL;
}

void afdep_staged_destroy(afdep_staged_t *s)
{
    if (!s)
        return;
    void *all[] = { s->x, s->x_scale, s->ids, s->weights, s->out, s->rows, s->row_scale, s->row_weight, s->row_source,
                    s->ends, s->reply };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        (void)cudaFree(all[i]);
    cudaGraphExec_t graphs[] = { s->graph, s->calls[0], s->calls[1] };
    for (size_t i = 0; i < 3; i++)
        if (graphs[i])
            (void)cudaGraphExecDestroy(graphs[i]);
    afdep_gpu_give_stream();
    free(s);
}

/* ---- Calls, made or replayed ---------------------------------------------------------------------------------- */

static afdep_status_t call_dispatch(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    return afdep_source_dispatch(buffer, &s->last_dispatch, s->stream);
}

static afdep_status_t call_collect(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    return afdep_source_collect(buffer, &s->last_collect, s->stream);
}

static afdep_status_t call_receive(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    return afdep_worker_receive(buffer, &s->last_receive, s->stream);
}

static afdep_status_t call_reply(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    return afdep_worker_reply(buffer, &s->last_reply, s->stream);
}

typedef afdep_status_t (*call_fn)(afdep_staged_t *s, afdep_buffer_t *buffer);

/* A call on a buffer, for a recording. */
typedef struct recorded_call {
    afdep_staged_t *staged;
    afdep_buffer_t *buffer;
    call_fn call;
} recorded_call_t;

static afdep_status_t make_call(void *context)
{
    recorded_call_t *r = context;
    return r->call(r->staged, r->buffer);
}

static afdep_status_t record(afdep_staged_t *s, afdep_buffer_t *buffer, call_fn call, cudaGraphExec_t *recorded)
{
    recorded_call_t r = { s, buffer, call };
    return afdep_gpu_record(s->stream, make_call, &r, recorded);
}

static int replays(const afdep_staged_t *s)
{
    return s->calls[0] && !s->eager;
}

/* A half of an exchange: the call itself, or its recording. */
static afdep_status_t run_call(afdep_staged_t *s, afdep_buffer_t *buffer, int half, call_fn call)
{
    if (!replays(s))
        return call(s, buffer);
    return afdep_gpu_failed(cudaGraphLaunch(s->calls[half], s->stream), "replaying a call") ? AFDEP_ERR_SYSTEM
                                                                                            : AFDEP_OK;
}

static void use_twins(afdep_staged_t *s, afdep_receive_t *twin, const afdep_receive_t *r);
static void use_source_twins(afdep_staged_t *s, const afdep_dispatch_t *d, const afdep_collect_t *c);

static afdep_status_t call_both(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    afdep_status_t status = call_dispatch(s, buffer);
    return status == AFDEP_OK ? call_collect(s, buffer) : status;
}

afdep_status_t afdep_staged_record_calls(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_staged_calls_t *calls)
{
    afdep_gpu_begin_call();
    if (s->source) {
        use_source_twins(s, calls->dispatch, calls->collect);
    } else {
        s->last_receive = *calls->receive;
        use_twins(s, &s->last_receive, calls->receive);
    }
    s->whole = s->source && calls->whole;
    if (s->whole)
        return record(s, buffer, call_both, &s->calls[0]);
    afdep_status_t status = record(s, buffer, s->source ? call_dispatch : call_receive, &s->calls[0]);
    s->last_reply = (afdep_reply_t){ sizeof(s->last_reply), s->reply, s->last_receive.receipt };
    return status == AFDEP_OK ? record(s, buffer, s->source ? call_collect : call_reply, &s->calls[1]) : status;
}

void afdep_staged_run_eager(afdep_staged_t *s, int eager)
{
    s->eager = eager;
}

/* ---- Attention ----------------------------------------------------------------------------------------------- */

static void use_source_twins(afdep_staged_t *s, const afdep_dispatch_t *d, const afdep_collect_t *c)
{
    if (d) {
        s->last_dispatch = *d;
        s->last_dispatch.x = s->x;
        s->last_dispatch.ids = d->ids ? s->ids : NULL; /* cached: none are read */
        s->last_dispatch.weights = s->weights;
        s->last_dispatch.x_scale = d->x_scale ? s->x_scale : NULL;
    }
    if (c) {
        s->last_collect = *c;
        s->last_collect.out = s->out;
    }
}

/* Scales keep their strides: what lies between the first and the last of them is copied as it is. */
static size_t scale_span(const afdep_staged_t *s, const afdep_dispatch_t *d)
{
    int64_t blocks = s->scenario->hidden / 128;
    int64_t token = d->x_scale_token_stride ? d->x_scale_token_stride : blocks;
    int64_t block = d->x_scale_block_stride ? d->x_scale_block_stride : 1;
    return d->tokens ? (size_t)((d->tokens - 1) * token + (blocks - 1) * block + 1) * sizeof(float) : 0;
}

afdep_status_t afdep_staged_dispatch(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_dispatch_t *d)
{
    size_t tokens = (size_t)d->tokens, k = (size_t)s->scenario->top_k;
    afdep_gpu_begin_call();
    use_source_twins(s, d, NULL);
    if (copy(s, s->x, d->x, tokens * (size_t)s->scenario->hidden * s->width) ||
        (d->ids && copy(s, s->ids, d->ids, tokens * k * sizeof(int32_t))) ||
        copy(s, s->weights, d->weights, tokens * k * sizeof(float)) ||
        (d->x_scale && copy(s, s->x_scale, d->x_scale, scale_span(s, d))) ||
        set(s, s->out, POISON, tokens * (size_t)s->scenario->hidden * 2) ||
        (s->whole && finish(s))) /* what follows is waited for by collect, and the inputs are the caller's before */
        return AFDEP_ERR_SYSTEM;
    afdep_status_t status = run_call(s, buffer, 0, call_dispatch);
    if (status != AFDEP_OK && status != AFDEP_ERR_ROUTE)
        return status;
    if (s->whole && replays(s)) /* it ends with the exchange: collect waits */
        return status;
    if (finish(s))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t found = afdep_buffer_error(buffer);
    return found != AFDEP_OK && found != AFDEP_ERR_ROUTE ? found : status;
}

afdep_status_t afdep_staged_complete(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    afdep_gpu_begin_call();
    afdep_status_t status = afdep_source_dispatch_complete(buffer);
    if (status != AFDEP_OK && status != AFDEP_ERR_ROUTE)
        return status;
    if (finish(s))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t found = afdep_buffer_error(buffer);
    return found != AFDEP_OK && found != AFDEP_ERR_ROUTE ? found : status;
}

afdep_status_t afdep_staged_collect(afdep_staged_t *s, afdep_buffer_t *buffer, afdep_collect_t *c)
{
    size_t hidden = (size_t)s->scenario->hidden;
    afdep_gpu_begin_call();
    afdep_collect_t *twin = &s->last_collect;
    if (!s->calls[0])
        use_source_twins(s, NULL, c);
    afdep_status_t status = s->whole && replays(s) ? AFDEP_OK : run_call(s, buffer, 1, call_collect);
    if (status != AFDEP_OK)
        return status;
    c->tokens = twin->tokens;
    c->result = c->out;
    c->result_stride = (int64_t)hidden;
    if (finish(s) ||
        (twin->tokens &&
         afdep_gpu_failed(cudaMemcpy2DAsync(c->out, 2 * hidden, twin->result, (size_t)twin->result_stride * 2,
                                            2 * hidden, (size_t)twin->tokens, cudaMemcpyDefault, s->stream),
                          "copying what was collected")) ||
        finish(s))
        return AFDEP_ERR_SYSTEM;
    return afdep_buffer_error(buffer) == AFDEP_ERR_ROUTE ? AFDEP_OK : afdep_buffer_error(buffer);
}

/* ---- FFN ----------------------------------------------------------------------------------------------------- */

static void use_twins(afdep_staged_t *s, afdep_receive_t *twin, const afdep_receive_t *r)
{
    twin->rows = r->rows ? s->rows : NULL;
    twin->row_scale = r->row_scale ? s->row_scale : NULL;
    twin->row_weight = r->row_weight ? s->row_weight : NULL;
    twin->row_source = r->row_source ? s->row_source : NULL;
    twin->ends = r->ends ? s->ends : NULL;
    twin->rows_capacity = r->rows_capacity;
}

static afdep_status_t allocate_twins(void *context, int64_t rows, afdep_receive_t *twin)
{
    afdep_staged_t *s = context;
    afdep_status_t status = s->caller->allocate(s->caller->allocate_context, rows, s->caller);
    if (status == AFDEP_OK)
        use_twins(s, twin, s->caller);
    return status;
}

static int poison_twins(afdep_staged_t *s)
{
    size_t rows = (size_t)s->rows_capacity, hidden = (size_t)s->scenario->hidden;
    return set(s, s->rows, POISON, rows * hidden * s->width) ||
           set(s, s->row_scale, POISON, rows * hidden / 128 * sizeof(float)) ||
           set(s, s->row_weight, POISON, rows * sizeof(float)) ||
           set(s, s->row_source, POISON_INT, rows * 2 * sizeof(int32_t)) ||
           set(s, s->ends, POISON_INT, s->experts * sizeof(int32_t));
}

static int fetch_rows(afdep_staged_t *s, afdep_receive_t *r)
{
    int64_t align = s->scenario->expert_alignment;
    if (copy(s, r->ends, s->ends, s->experts * sizeof(int32_t)) || finish(s))
        return 1;
    s->live = (r->ends[s->experts - 1] + align - 1) / align * align;
    if (s->live < 0 || s->live > s->rows_capacity) {
        afdep_gpu_say("receive says %lld rows have come", (long long)s->live);
        return 1;
    }
    int64_t most = s->live + GUARD_ROWS < r->rows_capacity ? s->live + GUARD_ROWS : r->rows_capacity;
    size_t rows = (size_t)(most < s->rows_capacity ? most : s->rows_capacity), hidden = (size_t)s->scenario->hidden;
    return copy(s, r->rows, s->rows, rows * hidden * s->width) ||
           (r->row_scale && copy(s, r->row_scale, s->row_scale, rows * hidden / 128 * sizeof(float))) ||
           copy(s, r->row_weight, s->row_weight, rows * sizeof(float)) ||
           (r->row_source && copy(s, r->row_source, s->row_source, rows * 2 * sizeof(int32_t))) || finish(s);
}

afdep_status_t afdep_staged_receive(afdep_staged_t *s, afdep_buffer_t *buffer, afdep_receive_t *r)
{
    afdep_gpu_begin_call();
    afdep_receive_t *twin = &s->last_receive;
    s->caller = r;
    if (!s->calls[0]) {
        *twin = *r;
        use_twins(s, twin, r);
    }
    if (r->allocate) {
        twin->allocate = allocate_twins;
        twin->allocate_context = s;
    }
    if (poison_twins(s))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t status = run_call(s, buffer, 0, call_receive);
    r->row_count = twin->row_count;
    if (status != AFDEP_OK)
        return status;
    r->receipt = twin->receipt;
    if (finish(s))
        return AFDEP_ERR_SYSTEM;
    status = afdep_buffer_error(buffer); /* what kernels found counts before what they left */
    if (status != AFDEP_OK)
        return status;
    if (fetch_rows(s, r))
        return AFDEP_ERR_SYSTEM;
    r->row_count = s->live;
    return AFDEP_OK;
}

afdep_status_t afdep_staged_reply(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_reply_t *reply)
{
    afdep_gpu_begin_call();
    s->last_reply = *reply;
    s->last_reply.rows = s->reply;
    if (reply->rows && copy(s, s->reply, reply->rows, (size_t)s->live * (size_t)s->scenario->hidden * 2))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t status = run_call(s, buffer, 1, call_reply);
    if (status != AFDEP_OK)
        return status;
    return finish(s) ? AFDEP_ERR_SYSTEM : afdep_buffer_error(buffer);
}

/* ---- Against the clock --------------------------------------------------------------------------------------- */

afdep_status_t afdep_staged_enqueue_first(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    if (s->source)
        return afdep_source_dispatch(buffer, &s->last_dispatch, s->stream);
    afdep_receive_t receive = s->last_receive;
    receive.read_host_counts = 0;
    receive.allocate = NULL;
    receive.host_counts = NULL;
    afdep_status_t status = afdep_worker_receive(buffer, &receive, s->stream);
    s->last_receive.receipt = receive.receipt;
    return status;
}

afdep_status_t afdep_staged_enqueue_second(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    if (s->source) {
        afdep_collect_t collect = AFDEP_COLLECT_INIT;
        collect.out = s->out;
        collect.view = s->run.view;
        return afdep_source_collect(buffer, &collect, s->stream);
    }
    afdep_reply_t reply = { sizeof(reply), s->reply, s->last_receive.receipt };
    return afdep_worker_reply(buffer, &reply, s->stream);
}

static afdep_status_t enqueue_pair(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    afdep_status_t status = afdep_staged_enqueue_first(s, buffer);
    return status == AFDEP_OK ? afdep_staged_enqueue_second(s, buffer) : status;
}

static afdep_status_t enqueue(afdep_staged_t *s, afdep_buffer_t *buffer)
{
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; status == AFDEP_OK && i < s->run.pairs; i++)
        status = enqueue_pair(s, buffer);
    return status;
}

afdep_status_t afdep_staged_record(afdep_staged_t *s, afdep_buffer_t *buffer, const afdep_staged_run_t *run)
{
    afdep_gpu_begin_call();
    s->run = *run;
    if (s->graph)
        (void)cudaGraphExecDestroy(s->graph);
    s->graph = NULL;
    return run->graph ? record(s, buffer, enqueue, &s->graph) : AFDEP_OK;
}

afdep_status_t afdep_staged_replay(afdep_staged_t *s, afdep_buffer_t *buffer, int times, double *us)
{
    recorded_call_t r = { s, buffer, enqueue };
    double all = 0;
    afdep_gpu_begin_call();
    afdep_status_t status = afdep_gpu_time(s->stream, s->graph, make_call, &r, times, &all);
    if (status != AFDEP_OK)
        return status;
    *us = all / ((double)times * s->run.pairs);
    return afdep_buffer_error(buffer);
}
