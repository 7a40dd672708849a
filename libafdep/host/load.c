/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence lock without fences: counts are stored with release and loaded with acquire, so a reader that saw any
 * store of an update sees the odd sequence number before it, and reads again.
 */
#include "host/load.h"

#include <stdlib.h>

#include "fabric/pause.h"

#define SPINS 64 /* before a reader gives the processor to the writer, which may share it */

afdep_load_counts_t *afdep_load_create(const afdep_shape_t *s)
{
    size_t count = (size_t)s->num_experts + (size_t)s->attention_ranks;
    afdep_load_counts_t *load = calloc(1, sizeof(*load) + count * sizeof(load->tokens[0]));
    if (!load)
        return NULL;
    load->experts = s->num_experts;
    load->sources = s->attention_ranks;
    return load;
}

void afdep_load_restart(afdep_load_counts_t *load)
{
    atomic_store(&load->sequence, 0);
    atomic_store(&load->exchanges, 0);
    for (int i = 0; i < load->experts + load->sources; i++)
        atomic_store(&load->tokens[i], 0);
}

static void add(_Atomic uint64_t *count, uint64_t more)
{
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + more, memory_order_release);
}

void afdep_load_begin(afdep_load_counts_t *load)
{
    add(&load->sequence, 1);
    add(&load->exchanges, 1);
}

void afdep_load_expert(afdep_load_counts_t *load, int expert, uint64_t tokens)
{
    add(&load->tokens[expert], tokens);
}

void afdep_load_source(afdep_load_counts_t *load, int source, uint64_t tokens)
{
    add(&load->tokens[load->experts + source], tokens);
}

void afdep_load_end(afdep_load_counts_t *load)
{
    add(&load->sequence, 1);
}

static void copy(uint64_t *to, const _Atomic uint64_t *from, int count)
{
    for (int i = 0; to && i < count; i++)
        to[i] = atomic_load_explicit(&from[i], memory_order_acquire);
}

void afdep_load_read(const afdep_load_counts_t *load, afdep_load_t *out)
{
    for (int tries = 0;; tries++) {
        uint64_t before = atomic_load_explicit(&load->sequence, memory_order_acquire);
        if (before % 2 == 0) {
            out->exchanges = atomic_load_explicit(&load->exchanges, memory_order_acquire);
            copy(out->expert_tokens, load->tokens, load->experts);
            copy(out->source_tokens, load->tokens + load->experts, load->sources);
            if (atomic_load_explicit(&load->sequence, memory_order_acquire) == before)
                return;
        }
        if (tries < SPINS)
            afdep_cpu_pause();
        else
            sched_yield();
    }
}
