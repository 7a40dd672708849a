/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-batches on a GPU: a rank's calls of many exchanges over one buffer, or over two in turn, with experts between
 * receive and reply that keep one SM busy for a stated time, on a stream of their own. Recorded where exchanges are.
 */
#ifndef AFDEP_BENCH_LIB_BATCHES_H
#define AFDEP_BENCH_LIB_BATCHES_H

#include <afdep/afdep.h>

#include "validate/staged.h"

typedef struct afdep_batches afdep_batches_t;

typedef struct afdep_batches_plan {
    afdep_buffer_t *buffer[2];
    afdep_staged_t *staged[2]; /* of each buffer: its last exchange's tensors are used */
    int source;                /* an Attention rank */
    int count;                 /* micro-batches */
    int ping_pong;             /* over both buffers in turn, else over the first */
    int expert_us;             /* 0: no experts */
    int graph;
} afdep_batches_plan_t;

/* Local. Makes them, and records them where plan->graph. Not while kernels of other ranks on the device wait. */
afdep_status_t afdep_batches_create(const afdep_batches_plan_t *plan, afdep_batches_t **batches);
void afdep_batches_destroy(afdep_batches_t *batches); /* before the buffers; NULL is allowed */

/* All of them once, which all ranks do at the same time; *us: the time of one on this rank's stream. */
afdep_status_t afdep_batches_run(afdep_batches_t *batches, double *us);

#endif
