/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host side of the CUDA backend: checks a call, launches its kernel on the caller's stream, and turns what kernels
 * recorded into statuses. The duties inside the kernels carry the host backend's names.
 *
 * The host counts calls, for the order of calls; kernels count exchanges, in device memory, for everything else. Under a
 * captured graph the first stand still while the second go on.
 */
#ifndef AFDEP_CUDA_CUDA_H
#define AFDEP_CUDA_CUDA_H

#include "core/backend.h"
#include "core/config.h"
#include "cuda/driver.h"
#include "cuda/fabric.h"
#include "cuda/rail_open.h"
#include "cuda/state.h"

#define AFDEP_CUDA_RECEIPT_MAGIC 0x7265636569707463u
#define AFDEP_CUDA_PLANES 4

typedef struct afdep_cuda {
    const afdep_settings_t *settings;
    const afdep_shape_t *shape;
    afdep_device_fabric_t *fabric;
    int rank, ffn, device;
    int low_latency; /* a rank of that API, see ll_rank.h */
    afdep_cuda_rank_t params;
    afdep_rail_t rail; /* across domains only */
    afdep_cuda_grids_t grids;
    unsigned char *arena; /* device memory besides the segment */
    afdep_cuda_record_t *record; /* host memory that kernels write */
    afdep_peer_counters_t *counters; /* [ranks]: as last read */

    /* Calls made: first halves (dispatch, receive) and second halves (collect, reply). */
    uint64_t opened_at, started, finished;
    int counting; /* a receive with read_host_counts has its counts and wants its tensors */
    int32_t tokens[AFDEP_CUDA_PLANES], buckets[AFDEP_CUDA_PLANES]; /* of the calls under way, or the plane's last */
    int cached; /* the receive that is counting is */
    int64_t row_count[AFDEP_CUDA_PLANES];
    int32_t *host_ends; /* [E/F], page-locked */

    /* A send-only dispatch that is not completed yet. */
    int incomplete, dispatch_grid;
    afdep_cuda_dispatch_t dispatch;
    cudaStream_t dispatch_stream;

    uint64_t told_route; /* exchange whose invalid choice a call has returned */
    afdep_status_t poison;
    char poison_why[512];
} afdep_cuda_t;

/* calls.c */
afdep_status_t afdep_cuda_dispatch(void *state, const afdep_dispatch_t *dispatch, afdep_stream_t stream);
afdep_status_t afdep_cuda_complete(void *state);
afdep_status_t afdep_cuda_receive(void *state, afdep_receive_t *receive, afdep_stream_t stream);
afdep_status_t afdep_cuda_reply(void *state, const afdep_reply_t *reply, afdep_stream_t stream);
afdep_status_t afdep_cuda_collect(void *state, afdep_collect_t *collect, afdep_stream_t stream);

/* load.c. As afdep_buffer_load(). */
afdep_status_t afdep_cuda_read_load(const void *state, afdep_load_t *load);
/* backend.c. A rank whose kernels are over says farewell and waits for the others'; and tells all peers what it found out on
   the host side: `status`, whose sentence stands, about `culprit`. */
afdep_status_t afdep_cuda_part(afdep_cuda_t *c);
afdep_status_t afdep_cuda_give_up(afdep_cuda_t *c, afdep_status_t status, int culprit);

/* errors.c. What kernels recorded: OK, or the fatal status that poisoned the buffer. */
afdep_status_t afdep_cuda_look(afdep_cuda_t *c);

/* The same as a call meets it: POISONED with the first error's sentence. */
afdep_status_t afdep_cuda_check_call(afdep_cuda_t *c);

/* ROUTE with token and slot when a dispatch met an invalid choice that no call has returned yet. */
afdep_status_t afdep_cuda_look_route(afdep_cuda_t *c);

/* Poisons the host side with `status` and the thread's last error. */
afdep_status_t afdep_cuda_poison(afdep_cuda_t *c, afdep_status_t status);

/* Whether the ranks are of several domains: then kernels and bookkeeping are those of rail_*.cu. */
static inline int afdep_cuda_across(const afdep_shape_t *s)
{
    return s->protocol == AFDEP_PROTOCOL_DIRECTIONAL;
}

static inline int afdep_cuda_plane(const afdep_cuda_t *c, uint64_t call)
{
    return (int)((call - 1) % (uint64_t)c->shape->in_flight);
}

#endif
