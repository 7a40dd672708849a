/* SPDX-License-Identifier: Apache-2.0 */
/* Device twins of the host tensors of a low-latency exchange. */
#include "validate/ll_staged.h"

#include <stdlib.h>
#include <string.h>

#include "validate/gpu.h"
#include "validate/ll_convert.h"
#include "validate/staged.h"
#include "validate/stamp.h"

#define POISON 0xA5 /* as the exchanger's */
#define MARKS (2 * AFDEP_LL_STAGED_PAIRS + 1)

struct afdep_ll_staged {
    cudaStream_t stream;
    int ranks;
    /* Twins, as the argument structs name them. */
    void *x, *recv_x, *recv_scales, *experts_out, *out;
    int64_t *ids, *recv_count;
    float *weights, *recv_weights;
    int32_t *recv_source, *statistics;
    afdep_ll_dispatch_t dispatch; /* as last called, with the twins in it */
    afdep_ll_combine_t combine;
    int64_t *counts; /* [L] host: of the last dispatch that was received */
    /* Recordings. */
    cudaGraphExec_t timed, stamped, plain, halves[2];
    cudaEvent_t marks[MARKS];
    uint64_t *stamps; /* [MARKS] device */
    int pairs;
};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static int make(void *slot, size_t count, size_t size)
{
    return afdep_gpu_failed(cudaMalloc((void **)slot, (count ? count : 1) * size), "no device memory for a tensor");
}

static int make_all(afdep_ll_staged_t *s, size_t tokens, size_t hidden, size_t k, size_t local)
{
    size_t rows = local * (size_t)s->ranks * tokens;
    s->counts = calloc(local, sizeof(*s->counts));
    return !s->counts || make(&s->x, tokens * hidden, 2) || make(&s->ids, tokens * k, sizeof(*s->ids)) ||
           make(&s->weights, tokens * k, sizeof(*s->weights)) || make(&s->recv_x, rows * hidden, 2) ||
           make(&s->recv_scales, rows, hidden / 32 < 4 ? 4 : hidden / 32) ||
           make(&s->recv_weights, rows, sizeof(*s->recv_weights)) ||
           make(&s->recv_source, rows, 2 * sizeof(*s->recv_source)) ||
           make(&s->recv_count, local, sizeof(*s->recv_count)) || make(&s->statistics, local, sizeof(*s->statistics)) ||
           make(&s->experts_out, rows * hidden, 2) || make(&s->out, tokens * hidden, 2) ||
           make(&s->stamps, MARKS, sizeof(*s->stamps));
}

afdep_ll_staged_t *afdep_ll_staged_create(int ranks, int rank, int max_tokens, int hidden, int top_k, int experts)
{
    afdep_ll_staged_t *s = calloc(1, sizeof(*s));
    afdep_gpu_begin_call();
    if (!s) {
        afdep_gpu_say("no memory for staged tensors");
        return NULL;
    }
    s->ranks = ranks;
    afdep_staged_use_device(rank);
    if (afdep_gpu_take_stream(&s->stream) != 0) {
        free(s);
        return NULL;
    }
    if (!make_all(s, (size_t)max_tokens, (size_t)hidden, (size_t)top_k, (size_t)(experts / ranks)))
        return s;
    afdep_ll_staged_destroy(s);
    return NULL;
}

static void forget_recordings(afdep_ll_staged_t *s)
{
    cudaGraphExec_t all[] = { s->timed, s->stamped, s->plain, s->halves[0], s->halves[1] };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i])
            (void)cudaGraphExecDestroy(all[i]);
    s->timed = s->stamped = s->plain = s->halves[0] = s->halves[1] = NULL;
}

void afdep_ll_staged_destroy(afdep_ll_staged_t *s)
{
    if (!s)
        return;
    void *all[] = { s->x,          s->recv_x,  s->recv_scales,  s->experts_out, s->out,       s->ids,
                    s->recv_count, s->weights, s->recv_weights, s->recv_source, s->statistics,  s->stamps };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        (void)cudaFree(all[i]);
    forget_recordings(s);
    for (size_t i = 0; i < sizeof(s->marks) / sizeof(s->marks[0]); i++)
        if (s->marks[i])
            (void)cudaEventDestroy(s->marks[i]);
    free(s->counts);
    afdep_gpu_give_stream();
    free(s);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

static int copy(afdep_ll_staged_t *s, void *to, const void *from, size_t bytes)
{
    return bytes &&
           afdep_gpu_failed(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->stream), "copying a tensor");
}

static int set(afdep_ll_staged_t *s, void *at, size_t bytes)
{
    return bytes && afdep_gpu_failed(cudaMemsetAsync(at, POISON, bytes, s->stream), "poisoning a tensor");
}

static int local_of(const afdep_ll_staged_t *s, const afdep_ll_dispatch_t *d)
{
    return d->num_experts / s->ranks;
}

static size_t rows_of(const afdep_ll_staged_t *s, const afdep_ll_dispatch_t *d)
{
    return (size_t)s->ranks * (size_t)d->num_max_dispatch_tokens_per_rank;
}

/* What the kernels, which are over, have found out. With ROUTE everything is there. */
static afdep_status_t settle(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer)
{
    if (afdep_gpu_finish(s->stream))
        return AFDEP_ERR_SYSTEM;
    return afdep_ll_buffer_error(buffer);
}

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

/* The twins hold what the call is given, and poison where it gives. */
static int fill_dispatch(afdep_ll_staged_t *s, const afdep_ll_dispatch_t *d)
{
    size_t choices = (size_t)d->tokens * (size_t)d->num_topk, local = (size_t)local_of(s, d),
           rows = local * rows_of(s, d);
    size_t hidden = (size_t)d->hidden, codes = afdep_ll_convert_code_bytes(d->format, hidden);
    return copy(s, s->x, d->x, (size_t)d->tokens * hidden * 2) ||
        copy(s, s->ids, d->topk_idx, choices * sizeof(*s->ids)) ||
        (d->topk_weights && copy(s, s->weights, d->topk_weights, choices * sizeof(*s->weights))) ||
        set(s, s->recv_x, rows * codes) || set(s, s->recv_weights, rows * sizeof(*s->recv_weights)) ||
        set(s, s->recv_source, rows * 2 * sizeof(*s->recv_source)) ||
        set(s, s->recv_count, local * sizeof(*s->recv_count)) ||
        (d->cumulative_local_expert_recv_stats &&
         copy(s, s->statistics, d->cumulative_local_expert_recv_stats, local * sizeof(*s->statistics)));
}

afdep_status_t afdep_ll_staged_dispatch(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer, afdep_ll_dispatch_t *d)
{
    afdep_ll_dispatch_t *twin = &s->dispatch;
    afdep_gpu_begin_call();
    if (fill_dispatch(s, d))
        return AFDEP_ERR_SYSTEM;
    *twin = *d;
    twin->x = s->x;
    twin->topk_idx = s->ids;
    twin->topk_weights = d->topk_weights ? s->weights : NULL;
    twin->recv_x = s->recv_x;
    twin->recv_x_scales = d->recv_x_scales ? s->recv_scales : NULL;
    twin->recv_topk_weights = d->recv_topk_weights ? s->recv_weights : NULL;
    twin->recv_source = d->recv_source ? s->recv_source : NULL;
    twin->recv_count = s->recv_count;
    twin->cumulative_local_expert_recv_stats = d->cumulative_local_expert_recv_stats ? s->statistics : NULL;
    twin->stream = s->stream;
    afdep_status_t status = afdep_ll_dispatch(buffer, twin);
    d->resolved = twin->resolved;
    d->handle = twin->handle;
    d->event = twin->event;
    d->hook = twin->hook;
    return status;
}

static int copy_rows(afdep_ll_staged_t *s, const afdep_ll_dispatch_t *d)
{
    size_t rows = rows_of(s, d), hidden = (size_t)d->hidden, codes = afdep_ll_convert_code_bytes(d->format, hidden);
    size_t scales = afdep_ll_convert_scale_bytes(d->format, hidden);
    int failed = 0;
    for (int e = 0; !failed && e < local_of(s, d); e++) {
        size_t first = (size_t)e * rows, count = (size_t)s->counts[e];
        count += count < rows;
        failed = copy(s, (char *)d->recv_x + first * codes, (char *)s->recv_x + first * codes, count * codes) ||
                 (d->recv_x_scales && copy(s, (char *)d->recv_x_scales + first * scales,
                                           (char *)s->recv_scales + first * scales, count * scales)) ||
                 (d->recv_topk_weights &&
                  copy(s, d->recv_topk_weights + first, s->recv_weights + first, count * sizeof(float))) ||
                 (d->recv_source &&
                  copy(s, d->recv_source + 2 * first, s->recv_source + 2 * first, count * 2 * sizeof(int32_t)));
    }
    return failed;
}

afdep_status_t afdep_ll_staged_received(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer, const afdep_ll_dispatch_t *d)
{
    size_t local = (size_t)local_of(s, d), rows = rows_of(s, d);
    afdep_gpu_begin_call();
    afdep_status_t status = settle(s, buffer);
    if (status != AFDEP_OK && status != AFDEP_ERR_ROUTE)
        return status;
    if (copy(s, s->counts, s->recv_count, local * sizeof(*s->counts)) || afdep_gpu_finish(s->stream))
        return AFDEP_ERR_SYSTEM;
    for (size_t e = 0; e < local; e++)
        if (s->counts[e] < 0 || (uint64_t)s->counts[e] > rows) {
            afdep_gpu_say("local expert %zu: %lld rows, and there is room for %zu", e, (long long)s->counts[e], rows);
            return AFDEP_ERR_SYSTEM;
        }
    memcpy(d->recv_count, s->counts, local * sizeof(*s->counts));
    if (copy_rows(s, d) ||
        (d->cumulative_local_expert_recv_stats &&
         copy(s, d->cumulative_local_expert_recv_stats, s->statistics, local * sizeof(*s->statistics))) ||
        afdep_gpu_finish(s->stream))
        return AFDEP_ERR_SYSTEM;
    return status;
}

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

static int copy_expert_rows(afdep_ll_staged_t *s, void *to, const void *from)
{
    const afdep_ll_dispatch_t *d = &s->dispatch;
    size_t rows = rows_of(s, d), row = 2 * (size_t)d->hidden;
    int failed = 0;
    for (int e = 0; !failed && e < local_of(s, d); e++)
        failed = copy(s, (char *)to + (size_t)e * rows * row, (const char *)from + (size_t)e * rows * row,
                      (size_t)s->counts[e] * row);
    return failed;
}

static int fill_combine(afdep_ll_staged_t *s, void *x, const afdep_ll_combine_t *c)
{
    const afdep_ll_dispatch_t *d = &s->dispatch;
    size_t choices = (size_t)c->tokens * (size_t)d->num_topk;
    return copy_expert_rows(s, x, c->x) || copy(s, s->weights, c->topk_weights, choices * sizeof(*s->weights)) ||
           set(s, s->out, (size_t)c->tokens * (size_t)d->hidden * 2);
}

afdep_status_t afdep_ll_staged_combine(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer, afdep_ll_combine_t *c)
{
    afdep_ll_combine_t *twin = &s->combine;
    void *x = s->experts_out;
    afdep_gpu_begin_call();
    *twin = *c;
    afdep_status_t status = c->zero_copy ? afdep_ll_next_combine_buffer(buffer, &c->handle, &x) : AFDEP_OK;
    if (status != AFDEP_OK)
        return status;
    if (fill_combine(s, x, c))
        return AFDEP_ERR_SYSTEM;
    twin->x = x;
    twin->topk_idx = s->ids;
    twin->topk_weights = s->weights;
    twin->out = c->out ? s->out : NULL;
    twin->stream = s->stream;
    status = afdep_ll_combine(buffer, twin);
    c->event = twin->event;
    c->hook = twin->hook;
    return status;
}

afdep_status_t afdep_ll_staged_summed(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer, afdep_ll_combine_t *c,
                                      void *result)
{
    const afdep_ll_combine_t *twin = &s->combine;
    afdep_gpu_begin_call();
    afdep_status_t status = settle(s, buffer);
    if (status != AFDEP_OK && status != AFDEP_ERR_ROUTE)
        return status;
    if (copy(s, result, twin->combined_x, (size_t)c->tokens * (size_t)s->dispatch.hidden * 2) ||
        afdep_gpu_finish(s->stream))
        return AFDEP_ERR_SYSTEM;
    c->combined_x = twin->out && twin->combined_x != twin->out ? NULL : result;
    return status;
}

/* ---- Recorded halves, replayed with other contents -------------------------------------------------------------- */

typedef struct half {
    afdep_ll_staged_t *staged;
    afdep_ll_buffer_t *buffer;
} half_t;

static afdep_status_t enqueue_dispatch(void *context)
{
    const half_t *h = context;
    return afdep_ll_dispatch(h->buffer, &h->staged->dispatch);
}

static afdep_status_t enqueue_combine(void *context)
{
    const half_t *h = context;
    h->staged->combine.handle = h->staged->dispatch.handle;
    return afdep_ll_combine(h->buffer, &h->staged->combine);
}

afdep_status_t afdep_ll_staged_record_halves(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer)
{
    half_t half = { s, buffer };
    afdep_gpu_begin_call();
    forget_recordings(s);
    afdep_status_t status = afdep_gpu_record(s->stream, enqueue_dispatch, &half, &s->halves[0]);
    return status == AFDEP_OK ? afdep_gpu_record(s->stream, enqueue_combine, &half, &s->halves[1]) : status;
}

static afdep_status_t replay_half(afdep_ll_staged_t *s, int which)
{
    int failed = afdep_gpu_failed(cudaGraphLaunch(s->halves[which], s->stream), "replaying a half");
    return failed ? AFDEP_ERR_SYSTEM : AFDEP_OK;
}

afdep_status_t afdep_ll_staged_redispatch(afdep_ll_staged_t *s, const afdep_ll_dispatch_t *d)
{
    afdep_gpu_begin_call();
    return fill_dispatch(s, d) ? AFDEP_ERR_SYSTEM : replay_half(s, 0);
}

afdep_status_t afdep_ll_staged_recombine(afdep_ll_staged_t *s, const afdep_ll_combine_t *c)
{
    afdep_gpu_begin_call();
    return fill_combine(s, s->experts_out, c) ? AFDEP_ERR_SYSTEM : replay_half(s, 1);
}

/* ---- Against the clock ------------------------------------------------------------------------------------------- */

typedef enum mark { PLAIN, EVENTS, STAMPS } mark_t;

typedef struct recording {
    afdep_ll_staged_t *staged;
    afdep_ll_buffer_t *buffer;
    mark_t mark;
} recording_t;

static int mark(const recording_t *r, int i)
{
    afdep_ll_staged_t *s = r->staged;
    if (r->mark == EVENTS)
        return afdep_gpu_failed(cudaEventRecordWithFlags(s->marks[i], s->stream, cudaEventRecordExternal),
                                "an event in a recording");
    return r->mark == STAMPS && afdep_gpu_failed(afdep_stamp(s->stamps + i, s->stream), "a stamp in a recording");
}

/* The last calls' tensors, `pairs` times: whatever completes later there completes now here. */
static afdep_status_t make_pairs(void *context)
{
    const recording_t *r = context;
    afdep_ll_staged_t *s = r->staged;
    afdep_ll_dispatch_t d = s->dispatch;
    afdep_ll_combine_t c = s->combine;
    d.async_finish = d.return_recv_hook = c.async_finish = c.return_recv_hook = 0;
    c.out = s->out;
    if (c.zero_copy)
        c.x = NULL;
    if (mark(r, 0))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; status == AFDEP_OK && i < s->pairs; i++) {
        status = afdep_ll_dispatch(r->buffer, &d);
        if (status == AFDEP_OK && mark(r, 2 * i + 1))
            status = AFDEP_ERR_SYSTEM;
        c.handle = d.handle;
        if (status == AFDEP_OK)
            status = afdep_ll_combine(r->buffer, &c);
        if (status == AFDEP_OK && mark(r, 2 * i + 2))
            status = AFDEP_ERR_SYSTEM;
    }
    return status;
}

afdep_status_t afdep_ll_staged_record(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer, int pairs)
{
    recording_t timed = { s, buffer, EVENTS }, stamped = { s, buffer, STAMPS }, plain = { s, buffer, PLAIN };
    afdep_gpu_begin_call();
    forget_recordings(s);
    s->pairs = pairs;
    for (int i = 0; i <= 2 * pairs; i++)
        if (!s->marks[i] && afdep_gpu_failed(cudaEventCreate(&s->marks[i]), "an event"))
            return AFDEP_ERR_SYSTEM;
    afdep_status_t status = afdep_gpu_record(s->stream, make_pairs, &timed, &s->timed);
    if (status == AFDEP_OK)
        status = afdep_gpu_record(s->stream, make_pairs, &stamped, &s->stamped);
    return status == AFDEP_OK ? afdep_gpu_record(s->stream, make_pairs, &plain, &s->plain) : status;
}

static int read_events(afdep_ll_staged_t *s, double us[MARKS])
{
    float ms = 0;
    int failed = 0;
    us[0] = 0;
    for (int i = 0; !failed && i < 2 * s->pairs; i++) {
        failed = afdep_gpu_failed(cudaEventElapsedTime(&ms, s->marks[i], s->marks[i + 1]), "an event of a recording");
        us[i + 1] = us[i] + (double)ms * 1000;
    }
    return failed;
}

static int read_stamps(afdep_ll_staged_t *s, double us[MARKS])
{
    uint64_t ns[MARKS];
    if (copy(s, ns, s->stamps, sizeof(ns)) || afdep_gpu_finish(s->stream))
        return 1;
    for (int i = 0; i <= 2 * s->pairs; i++)
        us[i] = (double)(ns[i] - ns[0]) / 1000;
    return 0;
}

static void set_halves(const double us[MARKS], int pairs, double *dispatch, double *combine)
{
    for (int i = 0; i < pairs; i++) {
        dispatch[i] = us[2 * i + 1] - us[2 * i];
        combine[i] = us[2 * i + 2] - us[2 * i + 1];
    }
}

afdep_status_t afdep_ll_staged_replay(afdep_ll_staged_t *s, afdep_ll_buffer_t *buffer, int times,
                                      afdep_ll_staged_times_t *t)
{
    double us = 0, marks[MARKS];
    afdep_gpu_begin_call();
    afdep_status_t status = afdep_gpu_time(s->stream, s->timed, NULL, NULL, 1, &us);
    if (status == AFDEP_OK && read_events(s, marks))
        status = AFDEP_ERR_SYSTEM;
    if (status == AFDEP_OK)
        set_halves(marks, s->pairs, t->dispatch, t->combine);
    if (status == AFDEP_OK)
        status = afdep_gpu_time(s->stream, s->stamped, NULL, NULL, 1, &us);
    if (status == AFDEP_OK && read_stamps(s, marks))
        status = AFDEP_ERR_SYSTEM;
    if (status == AFDEP_OK)
        set_halves(marks, s->pairs, t->dispatch_kernel, t->combine_kernel);
    if (status == AFDEP_OK)
        status = afdep_gpu_time(s->stream, s->plain, NULL, NULL, times, &us);
    t->pairs = s->pairs;
    t->pair = us / times / s->pairs;
    return status == AFDEP_OK ? afdep_ll_buffer_error(buffer) : status;
}
