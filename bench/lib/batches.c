/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches on a GPU. */
#include "bench/lib/batches.h"

#include <stdlib.h>

#include "bench/lib/spin.h"
#include "validate/gpu.h"

struct afdep_batches {
    afdep_batches_plan_t plan;
    cudaStream_t stream, experts;
    cudaEvent_t received[2], done[2]; /* of either buffer's micro-batch */
    cudaGraphExec_t recorded;
};

/* ---- FFN ranks --------------------------------------------------------------------------------------------------- */

/* Receives, and lets the experts have it: they begin when it is there and they are through with what came before. */
static afdep_status_t receive(afdep_batches_t *b, int i)
{
    const afdep_batches_plan_t *p = &b->plan;
    afdep_status_t status = afdep_staged_enqueue_first(p->staged[i], p->buffer[i]);
    if (status != AFDEP_OK || p->expert_us == 0)
        return status;
    if (afdep_gpu_failed(cudaEventRecord(b->received[i], b->stream), "an event") ||
        afdep_gpu_failed(cudaStreamWaitEvent(b->experts, b->received[i], 0), "waiting for an event") ||
        afdep_gpu_failed(afdep_spin(p->expert_us, b->experts), "the experts' kernel") ||
        afdep_gpu_failed(cudaEventRecord(b->done[i], b->experts), "an event"))
        return AFDEP_ERR_SYSTEM;
    return AFDEP_OK;
}

static afdep_status_t reply(afdep_batches_t *b, int i)
{
    const afdep_batches_plan_t *p = &b->plan;
    if (p->expert_us > 0 && afdep_gpu_failed(cudaStreamWaitEvent(b->stream, b->done[i], 0), "waiting for an event"))
        return AFDEP_ERR_SYSTEM;
    return afdep_staged_enqueue_second(p->staged[i], p->buffer[i]);
}

static afdep_status_t work(afdep_batches_t *b)
{
    int count = b->plan.count, two = b->plan.ping_pong;
    afdep_status_t status = two ? receive(b, 0) : AFDEP_OK;
    for (int i = 0; status == AFDEP_OK && i < count; i++) {
        if (!two)
            status = receive(b, 0);
        else if (i + 1 < count)
            status = receive(b, (i + 1) % 2); /* while the experts have micro-batch i */
        if (status == AFDEP_OK)
            status = reply(b, two ? i % 2 : 0);
    }
    return status;
}

/* ---- Attention ranks --------------------------------------------------------------------------------------------- */

static afdep_status_t attend(afdep_batches_t *b)
{
    const afdep_batches_plan_t *p = &b->plan;
    int ahead = p->ping_pong ? 2 : 1;
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; status == AFDEP_OK && i < ahead; i++)
        status = afdep_staged_enqueue_first(p->staged[i], p->buffer[i]);
    for (int i = 0; status == AFDEP_OK && i < p->count; i++) {
        int which = p->ping_pong ? i % 2 : 0;
        status = afdep_staged_enqueue_second(p->staged[which], p->buffer[which]);
        if (status == AFDEP_OK && i + ahead < p->count)
            status = afdep_staged_enqueue_first(p->staged[which], p->buffer[which]);
    }
    return status;
}

static afdep_status_t enqueue(void *context)
{
    afdep_batches_t *b = context;
    return b->plan.source ? attend(b) : work(b);
}

/* ---- Making and running ------------------------------------------------------------------------------------------ */

static int make(afdep_batches_t *b)
{
    if (afdep_gpu_failed(cudaStreamCreateWithFlags(&b->experts, cudaStreamNonBlocking), "a stream"))
        return -1;
    for (int i = 0; i < 2; i++)
        if (afdep_gpu_failed(cudaEventCreateWithFlags(&b->received[i], cudaEventDisableTiming), "an event") ||
            afdep_gpu_failed(cudaEventCreateWithFlags(&b->done[i], cudaEventDisableTiming), "an event"))
            return -1;
    return afdep_gpu_failed(afdep_spin(1, b->experts), "the experts' kernel") || afdep_gpu_finish(b->experts) ? -1 : 0;
}

afdep_status_t afdep_batches_create(const afdep_batches_plan_t *plan, afdep_batches_t **out)
{
    afdep_gpu_begin_call();
    afdep_batches_t *b = calloc(1, sizeof(*b));
    if (!b || afdep_gpu_take_stream(&b->stream) != 0) {
        free(b);
        return AFDEP_ERR_MEMORY;
    }
    b->plan = *plan;
    afdep_status_t status = make(b) == 0 ? AFDEP_OK : AFDEP_ERR_SYSTEM;
    if (status == AFDEP_OK && plan->graph)
        status = afdep_gpu_record(b->stream, enqueue, b, &b->recorded);
    if (status == AFDEP_OK)
        *out = b;
    else
        afdep_batches_destroy(b);
    return status;
}

void afdep_batches_destroy(afdep_batches_t *b)
{
    if (!b)
        return;
    if (b->recorded)
        (void)cudaGraphExecDestroy(b->recorded);
    for (int i = 0; i < 2; i++) {
        if (b->received[i])
            (void)cudaEventDestroy(b->received[i]);
        if (b->done[i])
            (void)cudaEventDestroy(b->done[i]);
    }
    if (b->experts)
        (void)cudaStreamDestroy(b->experts);
    afdep_gpu_give_stream();
    free(b);
}

afdep_status_t afdep_batches_run(afdep_batches_t *b, double *us)
{
    double all = 0;
    afdep_gpu_begin_call();
    afdep_status_t status = afdep_gpu_time(b->stream, b->recorded, enqueue, b, 1, &all);
    *us = all / b->plan.count;
    for (int i = 0; status == AFDEP_OK && i < 2; i++)
        status = afdep_buffer_error(b->plan.buffer[i]);
    return status;
}
