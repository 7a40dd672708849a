/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory: every copy is done as soon as it is asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric/gin-loopback/memory.h"

typedef struct host_memory {
    afdep_gin_memory_t base;
    uint64_t marks;
} host_memory_t;

static void *host_make_staging(afdep_gin_memory_t *memory, size_t bytes)
{
    void *staging = malloc(bytes);

    (void)memory;
    if (!staging)
        afdep_fail(AFDEP_ERR_MEMORY, "no memory for %zu bytes of staging", bytes);
    return staging;
}

static void host_free_staging(afdep_gin_memory_t *memory, void *staging)
{
    (void)memory;
    free(staging);
}

static afdep_status_t host_enter(afdep_gin_memory_t *memory)
{
    (void)memory;
    return AFDEP_OK;
}

static void host_leave(afdep_gin_memory_t *memory)
{
    (void)memory;
}

static afdep_status_t host_read(afdep_gin_memory_t *memory, void *staging, const void *from, size_t bytes)
{
    (void)memory;
    memcpy(staging, from, bytes);
    return AFDEP_OK;
}

static afdep_status_t host_write(afdep_gin_memory_t *memory, void *to, const void *staging, size_t bytes)
{
    (void)memory;
    memcpy(to, staging, bytes);
    return AFDEP_OK;
}

static afdep_status_t host_mark(afdep_gin_memory_t *memory)
{
    ((host_memory_t *)memory)->marks++;
    return AFDEP_OK;
}

static afdep_status_t host_passed(afdep_gin_memory_t *memory, uint64_t *count)
{
    *count = ((host_memory_t *)memory)->marks;
    return AFDEP_OK;
}

static afdep_status_t host_drain(afdep_gin_memory_t *memory)
{
    (void)memory;
    return AFDEP_OK;
}

static void host_close(afdep_gin_memory_t *memory)
{
    free(memory);
}

afdep_status_t afdep_gin_memory_open_host(afdep_gin_memory_t **memory)
{
    host_memory_t *m = calloc(1, sizeof(*m));

    if (!m)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a stream of copies");
    m->base = (afdep_gin_memory_t){ host_make_staging, host_free_staging, host_enter, host_leave, host_read,
                                    host_write, host_mark, host_passed, host_drain, host_close, 0 };
    *memory = &m->base;
    return AFDEP_OK;
}

afdep_status_t afdep_gin_memory_open(afdep_gin_memory_t **memory)
{
    afdep_status_t status;

    *memory = NULL;
    status = afdep_gin_memory_open_cuda(memory);
    if (status != AFDEP_OK || *memory)
        return status;
    return afdep_gin_memory_open_host(memory);
}
