/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the low-latency API on a GPU. Calls put kernels onto the caller's stream, or (async_finish) onto one of the
 * buffer's own; the kernels of a buffer run in the order of its calls, whatever streams they are on.
 */
#ifndef AFDEP_CUDA_LL_RANK_H
#define AFDEP_CUDA_LL_RANK_H

#include "cuda/cuda.h"
#include "cuda/ll_device.h"
#include "low_latency/ll_backend.h"

/* One plane: the exchange that the host last put there. */
typedef struct afdep_ll_cuda_plane {
    afdep_ll_shape_t shape;
    int32_t tokens;
    afdep_ll_dispatch_call_t dispatch; /* as launched; a hook launches what is left of it */
    afdep_ll_combine_call_t combine;
    cudaStream_t stream[2]; /* of the caller's, for dispatch and combine */
    cudaEvent_t event[2];   /* behind the half that was to finish later */
    void *combine_buffer;   /* [L, R * M, H] BF16, what zero copy takes */
    void *result;           /* [M, H] BF16, of callers that gave no memory */
} afdep_ll_cuda_plane_t;

typedef struct afdep_ll_cuda {
    afdep_cuda_t c; /* first: what failures and parting need; its settings are host_settings */
    afdep_settings_t host_settings;
    afdep_ll_settings_t settings;
    afdep_ll_ledger_t ledger;
    afdep_ll_device_t params;
    int grid, senders;
    afdep_ll_cuda_plane_t planes[AFDEP_LL_PLANES];
    cudaStream_t own_stream;  /* of calls that finish later */
    cudaStream_t last_stream; /* of the last kernel */
    cudaEvent_t order;        /* behind it, for the next one on another stream */
    int launched;             /* a kernel was */
} afdep_ll_cuda_t;

/* ll_run.c: the calls, as the table of backends has them. */
afdep_status_t afdep_ll_cuda_dispatch(void *rank, afdep_ll_dispatch_t *dispatch);
afdep_status_t afdep_ll_cuda_combine(void *rank, afdep_ll_combine_t *combine);
afdep_status_t afdep_ll_cuda_combine_buffer(void *rank, const afdep_ll_handle_t *handle, void **x);
afdep_status_t afdep_ll_cuda_call_hook(void *rank, const afdep_ll_hook_t *hook);
afdep_status_t afdep_ll_cuda_wait_event(void *rank, const afdep_ll_event_t *event);
afdep_status_t afdep_ll_cuda_query_event(void *rank, const afdep_ll_event_t *event, int *done);

#endif
