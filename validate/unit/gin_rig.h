/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of the loopback for tests: any number of ranks in one thread, so that a test decides who makes progress when,
 * and a memory whose copies happen late, one by one, as a GPU's may.
 */
#ifndef AFDEP_VALIDATE_UNIT_GIN_RIG_H
#define AFDEP_VALIDATE_UNIT_GIN_RIG_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

#include "core/error.h"
#include "fabric/gin-loopback/link_state.h"

#define GIN_RANKS_MOST 24
#define GIN_CONNECT_MS 20000

/* ---- Memory whose copies are late ------------------------------------------------------------------------------- */

typedef struct gin_late_op {
    void *to; /* NULL: a mark */
    const void *from;
    size_t bytes;
} gin_late_op_t;

typedef struct gin_late {
    afdep_gin_memory_t base;
    gin_late_op_t *ops;
    size_t first, count, room;
    uint64_t passed;
} gin_late_t;

static int gin_late_pace = 1;    /* copies and marks that happen at each turn of the device */
static int gin_late_fail_in = 0; /* counts copies down to one that fails; 0: none */

static inline void gin_late_run(gin_late_t *m, size_t ops)
{
    for (; ops > 0 && m->first < m->count; ops--, m->first++) {
        gin_late_op_t *op = &m->ops[m->first];
        if (op->to)
            memcpy(op->to, op->from, op->bytes);
        else
            m->passed++;
    }
}

static inline afdep_status_t gin_late_add(afdep_gin_memory_t *memory, void *to, const void *from, size_t bytes)
{
    gin_late_t *m = (gin_late_t *)memory;
    if (to && gin_late_fail_in > 0 && --gin_late_fail_in == 0)
        return afdep_fail(AFDEP_ERR_TRANSPORT, "a copy failed");
    if (m->count == m->room) {
        m->room = m->room ? 2 * m->room : 64;
        m->ops = realloc(m->ops, m->room * sizeof(*m->ops));
        if (!m->ops)
            abort();
    }
    m->ops[m->count++] = (gin_late_op_t){ to, from, bytes };
    return AFDEP_OK;
}

static inline void *gin_late_make_staging(afdep_gin_memory_t *memory, size_t bytes)
{
    void *staging = malloc(bytes);
    (void)memory;
    if (staging)
        memset(staging, 0xEE, bytes); /* what a copy that came too late would have brought */
    return staging;
}

static inline void gin_late_free_staging(afdep_gin_memory_t *memory, void *staging)
{
    (void)memory;
    free(staging);
}

static inline afdep_status_t gin_late_enter(afdep_gin_memory_t *memory)
{
    (void)memory;
    return AFDEP_OK;
}

static inline void gin_late_leave(afdep_gin_memory_t *memory)
{
    (void)memory;
}

static inline afdep_status_t gin_late_read(afdep_gin_memory_t *memory, void *staging, const void *from, size_t bytes)
{
    return gin_late_add(memory, staging, from, bytes);
}

static inline afdep_status_t gin_late_write(afdep_gin_memory_t *memory, void *to, const void *staging, size_t bytes)
{
    return gin_late_add(memory, to, staging, bytes);
}

static inline afdep_status_t gin_late_mark(afdep_gin_memory_t *memory)
{
    return gin_late_add(memory, NULL, NULL, 0);
}

static inline afdep_status_t gin_late_passed(afdep_gin_memory_t *memory, uint64_t *count)
{
    *count = ((gin_late_t *)memory)->passed;
    return AFDEP_OK;
}

static inline afdep_status_t gin_late_drain(afdep_gin_memory_t *memory)
{
    gin_late_run((gin_late_t *)memory, SIZE_MAX);
    return AFDEP_OK;
}

static inline void gin_late_close(afdep_gin_memory_t *memory)
{
    free(((gin_late_t *)memory)->ops);
    free(memory);
}

static inline afdep_status_t gin_late_open(afdep_gin_memory_t **memory)
{
    gin_late_t *m = calloc(1, sizeof(*m));
    if (!m)
        return AFDEP_ERR_MEMORY;
    m->base = (afdep_gin_memory_t){ gin_late_make_staging, gin_late_free_staging, gin_late_enter, gin_late_leave,
                                    gin_late_read, gin_late_write, gin_late_mark, gin_late_passed, gin_late_drain,
                                    gin_late_close, 1 };
    *memory = &m->base;
    return AFDEP_OK;
}

/* A turn of the device: some of what it was given happens, in both directions. Nothing happens otherwise. */
static inline void gin_device(afdep_gin_link_t *link)
{
    gin_late_run((gin_late_t *)link->out.memory, (size_t)gin_late_pace);
    gin_late_run((gin_late_t *)link->in.memory, (size_t)gin_late_pace);
}

/* A turn of the proxy, then one of the device. */
static inline afdep_status_t gin_step(afdep_gin_link_t *link)
{
    afdep_status_t status = afdep_gin_progress(link);
    gin_device(link);
    return status;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------ */

typedef struct gin_rank {
    afdep_gin_listener_t *listener;
    afdep_gin_link_t *link;
    afdep_status_t status;
    char why[256];
    int rank;
    struct gin_world *world;
} gin_rank_t;

typedef struct gin_world {
    int size;
    afdep_gin_memory_open_t memory;
    afdep_gin_handle_t handles[GIN_RANKS_MOST];
    const afdep_gin_handle_t *pointers[GIN_RANKS_MOST];
    gin_rank_t ranks[GIN_RANKS_MOST];
} gin_world_t;

static inline void *gin_connect_main(void *argument)
{
    gin_rank_t *r = argument;
    gin_world_t *w = r->world;
    r->status = afdep_gin_connect(r->listener, w->pointers, w->size, r->rank, GIN_CONNECT_MS, w->memory, &r->link);
    if (r->status != AFDEP_OK)
        snprintf(r->why, sizeof(r->why), "%s", afdep_last_error());
    return NULL;
}

/* Connects `size` ranks. Each rank's status and sentence are in it; NULL link where it failed. */
static inline void gin_world_open(gin_world_t *w, int size, afdep_gin_memory_open_t memory)
{
    pthread_t threads[GIN_RANKS_MOST];
    memset(w, 0, sizeof(*w));
    w->size = size;
    w->memory = memory;
    for (int r = 0; r < size; r++) {
        w->ranks[r].rank = r;
        w->ranks[r].world = w;
        w->pointers[r] = &w->handles[r];
        if (afdep_gin_listen(&w->ranks[r].listener, &w->handles[r]) != AFDEP_OK)
            abort();
    }
    for (int r = 0; r < size; r++)
        if (pthread_create(&threads[r], NULL, gin_connect_main, &w->ranks[r]) != 0)
            abort();
    for (int r = 0; r < size; r++) {
        pthread_join(threads[r], NULL);
        afdep_gin_stop_listening(w->ranks[r].listener);
    }
}

static inline void gin_world_close(gin_world_t *w)
{
    for (int r = 0; r < w->size; r++)
        afdep_gin_close(w->ranks[r].link);
}

/* A small generator, so that what happens does not depend on anything but the seed. */
static inline uint32_t gin_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

#endif
