/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a rank's payloads and signals live, and how they are copied from and to staging memory that the processor
 * reaches: GPU memory by asynchronous copies on a stream that waits for nobody, or host memory for programs and tests
 * without a GPU. One of these is one stream: what it is given is done in order, and a mark tells how far it is.
 *
 * Nothing here may wait for a device or make memory after opening: kernels that spin until a signal arrives hold the
 * device meanwhile, and would be waited for in vain.
 */
#ifndef AFDEP_GIN_LOOPBACK_MEMORY_H
#define AFDEP_GIN_LOOPBACK_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/status.h>

#define AFDEP_GIN_MARKS 64 /* how many may be under way */

typedef struct afdep_gin_memory afdep_gin_memory_t;

struct afdep_gin_memory {
    /* Staging memory, for the life of the stream. NULL with a sentence. */
    void *(*make_staging)(afdep_gin_memory_t *memory, size_t bytes);
    void (*free_staging)(afdep_gin_memory_t *memory, void *staging);
    /* Around every use of the calls below: the calling thread is NCCL's and has no context of its own. */
    afdep_status_t (*enter)(afdep_gin_memory_t *memory);
    void (*leave)(afdep_gin_memory_t *memory);
    /* Queue a copy from registered memory to staging memory, and the other way. */
    afdep_status_t (*read)(afdep_gin_memory_t *memory, void *staging, const void *from, size_t bytes);
    afdep_status_t (*write)(afdep_gin_memory_t *memory, void *to, const void *staging, size_t bytes);
    /* Queue the next mark. At most AFDEP_GIN_MARKS are under way. */
    afdep_status_t (*mark)(afdep_gin_memory_t *memory);
    /* How many marks, since opening, have been passed: everything queued before those is done. Does not wait. */
    afdep_status_t (*passed)(afdep_gin_memory_t *memory, uint64_t *count);
    /* Waits until everything queued is done. For closing and deregistering: only copies are waited for. */
    afdep_status_t (*drain)(afdep_gin_memory_t *memory);
    void (*close)(afdep_gin_memory_t *memory);
    int has_device; /* 0: memory of a GPU cannot be registered */
};

typedef afdep_status_t (*afdep_gin_memory_open_t)(afdep_gin_memory_t **memory);

/* A stream of the GPU whose context is current in the calling thread, or host memory where none is. */
afdep_status_t afdep_gin_memory_open(afdep_gin_memory_t **memory);

/* Of these two. */
afdep_status_t afdep_gin_memory_open_cuda(afdep_gin_memory_t **memory); /* `*memory` NULL: no context is current */
afdep_status_t afdep_gin_memory_open_host(afdep_gin_memory_t **memory);

#endif
