/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Role calls on a CUDA buffer by callers whose tensors are in host memory: device twins of the tensors, copied before
 * and after, so that checks are written once for both backends. A staged call returns when its part is done, as the
 * host backend's do; what receive and collect do not write comes back as poison. Also records exchanges of the tensors
 * as they stand, and replays them against a clock on the GPU.
 */
#ifndef AFDEP_VALIDATE_STAGED_H
#define AFDEP_VALIDATE_STAGED_H

#include <afdep/afdep.h>

#include "bench/lib/scenario.h"

typedef struct afdep_staged afdep_staged_t;

/* Before threads and before anything else of CUDA: settings that ranks need which are threads of one process. */
void afdep_staged_begin(int threads);

/* Makes this thread's device that of a rank: rank modulo the number of devices. Nothing where there is none. */
void afdep_staged_use_device(int rank);

/* The device twins of a rank's tensors, for `bucket` tokens at most. NULL with a line. Making and destroying may wait
   for everything on the device: with ranks that are threads, not while a rank's kernels wait for this one's. */
afdep_staged_t *afdep_staged_create(const afdep_scenario_t *scenario, int rank, int bucket, char *why, size_t why_size);
void afdep_staged_destroy(afdep_staged_t *staged);

/* As the calls of <afdep/afdep.h>, with tensors in host memory. receive's row_count is the number of rows that came,
   with padding; collect's result is always `out`. CUDA's own errors are AFDEP_ERR_SYSTEM. */
afdep_status_t afdep_staged_dispatch(afdep_staged_t *staged, afdep_buffer_t *buffer, const afdep_dispatch_t *dispatch);
afdep_status_t afdep_staged_complete(afdep_staged_t *staged, afdep_buffer_t *buffer);
afdep_status_t afdep_staged_receive(afdep_staged_t *staged, afdep_buffer_t *buffer, afdep_receive_t *receive);
afdep_status_t afdep_staged_reply(afdep_staged_t *staged, afdep_buffer_t *buffer, const afdep_reply_t *reply);
afdep_status_t afdep_staged_collect(afdep_staged_t *staged, afdep_buffer_t *buffer, afdep_collect_t *collect);

/* What a rank of either role has in an exchange that is recorded. */
typedef struct afdep_staged_calls {
    const afdep_dispatch_t *dispatch; /* Attention, and */
    const afdep_collect_t *collect;
    const afdep_receive_t *receive; /* FFN */
    int whole; /* a source's two calls make one recording, which its dispatch replays and its collect waits for */
} afdep_staged_calls_t;

/* Local. Records an exchange with these arguments; the staged calls replay it from then on. The tensors' contents may
   change between replays, the shapes must not. */
afdep_status_t afdep_staged_record_calls(afdep_staged_t *staged, afdep_buffer_t *buffer,
                                         const afdep_staged_calls_t *calls);

/* 1: recorded calls are made again from here on; 0: replayed again. */
void afdep_staged_run_eager(afdep_staged_t *staged, int eager);

/* The sentence of the last error of a staged call on this thread. */
const char *afdep_staged_why(void);

/* Local. Puts one half of an exchange of the last calls' tensors onto the rank's stream, without waiting and without
   the host: dispatch or receive, collect or reply. */
afdep_status_t afdep_staged_enqueue_first(afdep_staged_t *staged, afdep_buffer_t *buffer);
afdep_status_t afdep_staged_enqueue_second(afdep_staged_t *staged, afdep_buffer_t *buffer);

/* How exchanges are run against the clock: `pairs` exchanges of the last calls' tensors at once, recorded or eager. */
typedef struct afdep_staged_run {
    int graph, pairs, view;
} afdep_staged_run_t;

/* Local. Records them where run->graph; another recording replaces this one. */
afdep_status_t afdep_staged_record(afdep_staged_t *staged, afdep_buffer_t *buffer, const afdep_staged_run_t *run);

/* Runs them `times` times and waits; `*us`: the time of one exchange on this rank's stream. */
afdep_status_t afdep_staged_replay(afdep_staged_t *staged, afdep_buffer_t *buffer, int times, double *us);

#endif
