/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory, through the driver that the program has loaded already: this file needs no CUDA to be built, and a
 * machine without a GPU none to load the plugin. Copies go through pinned staging on a non-blocking stream, so that the
 * copy engines move them while kernels spin; a mark is an event, and asking for it never waits.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric/gin-loopback/memory.h"

/* The driver's interface, as far as it is used here (cuda.h). Its numbers have not changed since CUDA 4. */
typedef int cu_result_t;
typedef unsigned long long cu_pointer_t;
enum { CU_OK = 0, CU_NOT_INITIALIZED = 3, CU_DEINITIALIZED = 4, CU_NOT_READY = 600 };
#define CU_STREAM_NON_BLOCKING 1u
#define CU_EVENT_DISABLE_TIMING 2u
#define CU_HOST_PORTABLE 1u

typedef struct cu_driver {
    cu_result_t (*get_error_name)(cu_result_t error, const char **name);
    cu_result_t (*context_get)(void **context);
    cu_result_t (*context_push)(void *context);
    cu_result_t (*context_pop)(void **context);
    cu_result_t (*stream_create)(void **stream, unsigned flags);
    cu_result_t (*stream_synchronize)(void *stream);
    cu_result_t (*stream_destroy)(void *stream);
    cu_result_t (*event_create)(void **event, unsigned flags);
    cu_result_t (*event_record)(void *event, void *stream);
    cu_result_t (*event_query)(void *event);
    cu_result_t (*event_destroy)(void *event);
    cu_result_t (*host_alloc)(void **host, size_t bytes, unsigned flags);
    cu_result_t (*host_free)(void *host);
    cu_result_t (*device_alloc)(cu_pointer_t *device, size_t bytes);
    cu_result_t (*device_free)(cu_pointer_t device);
    cu_result_t (*to_host)(void *host, cu_pointer_t device, size_t bytes, void *stream);
    cu_result_t (*to_device)(cu_pointer_t device, const void *host, size_t bytes, void *stream);
} cu_driver_t;

typedef struct cuda_memory {
    afdep_gin_memory_t base;
    cu_driver_t cu;
    void *library, *context, *stream;
    void *events[AFDEP_GIN_MARKS];
    uint64_t marks, passed;
} cuda_memory_t;

static cuda_memory_t *of(afdep_gin_memory_t *memory)
{
    return (cuda_memory_t *)memory;
}

static afdep_status_t check(const cuda_memory_t *m, cu_result_t result, const char *what)
{
    const char *name = NULL;

    if (result == CU_OK)
        return AFDEP_OK;
    if (m->cu.get_error_name(result, &name) != CU_OK || !name)
        name = "unknown error";
    return afdep_fail(AFDEP_ERR_TRANSPORT, "%s: %s (%d)", what, name, result);
}

/* ---- The table -------------------------------------------------------------------------------------------------- */

static void *cuda_make_staging(afdep_gin_memory_t *memory, size_t bytes)
{
    void *staging = NULL;

    if (check(of(memory), of(memory)->cu.host_alloc(&staging, bytes, CU_HOST_PORTABLE), "pinned staging memory") !=
        AFDEP_OK)
        return NULL;
    return staging;
}

static void cuda_free_staging(afdep_gin_memory_t *memory, void *staging)
{
    if (staging)
        of(memory)->cu.host_free(staging);
}

static afdep_status_t cuda_enter(afdep_gin_memory_t *memory)
{
    return check(of(memory), of(memory)->cu.context_push(of(memory)->context), "making the CUDA context current");
}

static void cuda_leave(afdep_gin_memory_t *memory)
{
    void *context;
    of(memory)->cu.context_pop(&context);
}

static afdep_status_t cuda_read(afdep_gin_memory_t *memory, void *staging, const void *from, size_t bytes)
{
    cuda_memory_t *m = of(memory);
    return check(m, m->cu.to_host(staging, (cu_pointer_t)(uintptr_t)from, bytes, m->stream), "copying from the GPU");
}

static afdep_status_t cuda_write(afdep_gin_memory_t *memory, void *to, const void *staging, size_t bytes)
{
    cuda_memory_t *m = of(memory);
    return check(m, m->cu.to_device((cu_pointer_t)(uintptr_t)to, staging, bytes, m->stream), "copying to the GPU");
}

static afdep_status_t cuda_mark(afdep_gin_memory_t *memory)
{
    cuda_memory_t *m = of(memory);
    afdep_status_t status = check(m, m->cu.event_record(m->events[m->marks % AFDEP_GIN_MARKS], m->stream),
                                  "recording an event");
    if (status == AFDEP_OK)
        m->marks++;
    return status;
}

static afdep_status_t cuda_passed(afdep_gin_memory_t *memory, uint64_t *count)
{
    cuda_memory_t *m = of(memory);

    while (m->passed < m->marks) {
        cu_result_t result = m->cu.event_query(m->events[m->passed % AFDEP_GIN_MARKS]);
        if (result == CU_NOT_READY)
            break;
        if (result != CU_OK)
            return check(m, result, "asking for an event");
        m->passed++;
    }
    *count = m->passed;
    return AFDEP_OK;
}

static afdep_status_t cuda_drain(afdep_gin_memory_t *memory)
{
    return check(of(memory), of(memory)->cu.stream_synchronize(of(memory)->stream), "waiting for copies");
}

/* A context that the program has torn down already has taken these along; then the driver says so, to nobody. */
static void cuda_close(afdep_gin_memory_t *memory)
{
    cuda_memory_t *m = of(memory);
    void *context;

    if (m->context && m->cu.context_push(m->context) == CU_OK) {
        for (int i = 0; i < AFDEP_GIN_MARKS; i++) {
            if (m->events[i])
                m->cu.event_destroy(m->events[i]);
        }
        if (m->stream)
            m->cu.stream_destroy(m->stream);
        m->cu.context_pop(&context);
    }
    if (m->library)
        dlclose(m->library);
    free(m);
}

/* ---- Opening ---------------------------------------------------------------------------------------------------- */

static afdep_status_t look_up(cuda_memory_t *m)
{
    const struct {
        const char *name;
        void *slot;
    } entries[] = {
        { "cuGetErrorName", &m->cu.get_error_name },      { "cuCtxGetCurrent", &m->cu.context_get },
        { "cuCtxPushCurrent_v2", &m->cu.context_push },   { "cuCtxPopCurrent_v2", &m->cu.context_pop },
        { "cuStreamCreate", &m->cu.stream_create },       { "cuStreamSynchronize", &m->cu.stream_synchronize },
        { "cuStreamDestroy_v2", &m->cu.stream_destroy },  { "cuEventCreate", &m->cu.event_create },
        { "cuEventRecord", &m->cu.event_record },         { "cuEventQuery", &m->cu.event_query },
        { "cuEventDestroy_v2", &m->cu.event_destroy },    { "cuMemHostAlloc", &m->cu.host_alloc },
        { "cuMemFreeHost", &m->cu.host_free },            { "cuMemAlloc_v2", &m->cu.device_alloc },
        { "cuMemFree_v2", &m->cu.device_free },           { "cuMemcpyDtoHAsync_v2", &m->cu.to_host },
        { "cuMemcpyHtoDAsync_v2", &m->cu.to_device },
    };

    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        void *found = dlsym(m->library, entries[i].name);
        if (!found)
            return afdep_fail(AFDEP_ERR_UNSUPPORTED, "the CUDA driver has no %s", entries[i].name);
        memcpy(entries[i].slot, &found, sizeof(found));
    }
    return AFDEP_OK;
}

/* One copy each way: what a first copy sets up in the driver may wait for the device, so it comes before kernels do. */
static afdep_status_t warm_up(cuda_memory_t *m)
{
    cu_pointer_t device = 0;
    uint64_t *staging = cuda_make_staging(&m->base, sizeof(*staging));
    afdep_status_t status = staging ? check(m, m->cu.device_alloc(&device, sizeof(*staging)), "GPU memory")
                                    : AFDEP_ERR_TRANSPORT;
    uint64_t passed;

    if (status == AFDEP_OK) {
        *staging = 1;
        status = cuda_write(&m->base, (void *)(uintptr_t)device, staging, sizeof(*staging));
    }
    if (status == AFDEP_OK)
        status = cuda_read(&m->base, staging, (void *)(uintptr_t)device, sizeof(*staging));
    if (status == AFDEP_OK)
        status = cuda_mark(&m->base);
    if (status == AFDEP_OK)
        status = cuda_drain(&m->base);
    if (status == AFDEP_OK)
        status = cuda_passed(&m->base, &passed);
    m->marks = m->passed = 0; /* the first mark that counts is the caller's */
    if (device)
        m->cu.device_free(device);
    cuda_free_staging(&m->base, staging);
    return status;
}

static afdep_status_t set_up(cuda_memory_t *m)
{
    afdep_status_t status = check(m, m->cu.stream_create(&m->stream, CU_STREAM_NON_BLOCKING), "a stream for copies");

    for (int i = 0; status == AFDEP_OK && i < AFDEP_GIN_MARKS; i++)
        status = check(m, m->cu.event_create(&m->events[i], CU_EVENT_DISABLE_TIMING), "an event");
    return status == AFDEP_OK ? warm_up(m) : status;
}

afdep_status_t afdep_gin_memory_open_cuda(afdep_gin_memory_t **memory)
{
    cuda_memory_t *m = calloc(1, sizeof(*m));
    afdep_status_t status;
    cu_result_t result;

    if (!m)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a stream of copies");
    /* A program with a context has the driver loaded; where it is not, it is not loaded for this either. */
    m->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    status = m->library ? look_up(m) : AFDEP_OK;
    result = m->library && status == AFDEP_OK ? m->cu.context_get(&m->context) : CU_NOT_INITIALIZED;
    if (status == AFDEP_OK && result != CU_OK && result != CU_NOT_INITIALIZED && result != CU_DEINITIALIZED)
        status = check(m, result, "asking for the CUDA context");
    if (status != AFDEP_OK || !m->context) {
        m->context = NULL;
        cuda_close(&m->base);
        *memory = NULL;
        return status;
    }
    m->base = (afdep_gin_memory_t){ cuda_make_staging, cuda_free_staging, cuda_enter, cuda_leave, cuda_read,
                                    cuda_write, cuda_mark, cuda_passed, cuda_drain, cuda_close, 1 };
    status = set_up(m);
    if (status != AFDEP_OK) {
        cuda_close(&m->base);
        return status;
    }
    *memory = &m->base;
    return AFDEP_OK;
}
