/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the load statistics that kernels keep, while they go on. The entry of the last exchange that is over stands until
 * the exchange that is AFDEP_CUDA_LOADS - 1 after it clears its place: if fewer have begun by the end of the copy, it is
 * whole. Every copy is behind the one before it, on a stream of its own, and behind no kernel.
 */
#include <sched.h>
#include <stdlib.h>

#include "core/error.h"
#include "cuda/cuda.h"

typedef struct entry {
    uint64_t exchange;
    uint64_t *before; /* [experts + sources] */
    uint32_t *more;
} entry_t;

static cudaError_t fetch(const afdep_cuda_t *c, void *to, const void *from, size_t bytes)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->fabric->stream);
    return error == cudaSuccess ? cudaStreamSynchronize(c->fabric->stream) : error;
}

static cudaError_t fetch_entry(const afdep_cuda_t *c, entry_t *e)
{
    const afdep_cuda_load_t *l = &c->params.load;
    const uint64_t *finished = &c->params.state->count[c->ffn ? AFDEP_CUDA_RECEIVE : AFDEP_CUDA_DISPATCH];
    size_t count = (size_t)(l->experts + l->sources);
    for (uint64_t now = 0;; sched_yield()) {
        cudaError_t error = fetch(c, &e->exchange, finished, sizeof(e->exchange));
        size_t at = (size_t)(e->exchange % AFDEP_CUDA_LOADS) * count;
        if (error == cudaSuccess)
            error = fetch(c, e->before, l->before + at, count * sizeof(*e->before));
        if (error == cudaSuccess)
            error = fetch(c, e->more, l->more + at, count * sizeof(*e->more));
        if (error == cudaSuccess)
            error = fetch(c, &now, finished, sizeof(now));
        if (error != cudaSuccess || now - e->exchange < AFDEP_CUDA_LOADS - 2)
            return error;
    }
}

static void give(uint64_t *to, const entry_t *e, int from, int count, int at, int room)
{
    for (int i = 0; to && i < room; i++)
        to[i] = i >= at && i < at + count ? e->before[from + i - at] + e->more[from + i - at] : 0;
}

afdep_status_t afdep_cuda_read_load(const void *state, afdep_load_t *out)
{
    const afdep_cuda_t *c = state;
    const afdep_cuda_load_t *l = &c->params.load;
    const afdep_shape_t *s = c->shape;
    size_t count = (size_t)(l->experts + l->sources);
    entry_t e = { 0, calloc(count, sizeof(*e.before)), calloc(count, sizeof(*e.more)) };
    afdep_status_t status = AFDEP_OK;
    if (!e.before || !e.more)
        status = afdep_fail(AFDEP_ERR_MEMORY, "buffer_load: no memory for %zu counts", count);
    else
        status = afdep_cuda_check(fetch_entry(c, &e), AFDEP_ERR_TRANSPORT, "buffer_load: reading the counts");
    if (status == AFDEP_OK) {
        out->exchanges = e.exchange - c->opened_at;
        give(out->expert_tokens, &e, 0, l->experts, c->ffn ? c->rank * s->experts_per_rank : 0, s->num_experts);
        give(out->source_tokens, &e, l->experts, l->sources, c->ffn ? 0 : c->rank - s->ffn_ranks, s->attention_ranks);
    }
    free(e.more);
    free(e.before);
    return status;
}
