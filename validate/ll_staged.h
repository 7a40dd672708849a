/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency calls on a CUDA buffer by callers whose tensors are in host memory: device twins of the tensors, copied
 * before and after, so that checks are written once for both backends; as validate/staged.h for the role API. Also
 * records exchanges of the tensors as they stand, and replays them against clocks on the GPU.
 */
#ifndef AFDEP_VALIDATE_LL_STAGED_H
#define AFDEP_VALIDATE_LL_STAGED_H

#include <afdep/low_latency.h>

typedef struct afdep_ll_staged afdep_ll_staged_t;

/* The twins of a rank's tensors, for exchanges of at most this size. NULL with the sentence of afdep_staged_why().
   Making and destroying may wait for everything on the device: not while another thread's kernels wait for this
   rank's. */
afdep_ll_staged_t *afdep_ll_staged_create(int ranks, int rank, int max_tokens, int hidden, int top_k, int experts);
void afdep_ll_staged_destroy(afdep_ll_staged_t *staged);

/* afdep_ll_dispatch() with the twins: hidden, num_topk, num_experts and the maximum are given, `format` by name.
   The call's outputs hold nothing before afdep_ll_staged_received(), which waits for the GPU, as far as hook or
   event have been used, and copies back: of recv_x and its companions the valid rows of each expert and the one
   behind them. */
afdep_status_t afdep_ll_staged_dispatch(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer,
                                        afdep_ll_dispatch_t *dispatch);
afdep_status_t afdep_ll_staged_received(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer,
                                        const afdep_ll_dispatch_t *dispatch);

/* The same of a combine whose dispatch was received so; x holds the experts' rows in host memory, with zero_copy
   too (they are copied into the next combine buffer). `result` is host memory for the sums, whatever `out` is;
   combined_x becomes `result`, or NULL where the library did not write to the twin of an `out` that was given. */
afdep_status_t afdep_ll_staged_combine(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer,
                                       afdep_ll_combine_t *combine);
afdep_status_t afdep_ll_staged_summed(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer, afdep_ll_combine_t *combine,
                                      void *result);

/* Records each half of the last exchange, which used neither hook, event nor zero_copy. Then, in place of a dispatch
   and a combine of the same shape: the tensors get other contents and the recording is replayed. Staged_received and
   staged_summed follow as ever. Recording is local; replaying is not. */
afdep_status_t afdep_ll_staged_record_halves(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer);
afdep_status_t afdep_ll_staged_redispatch(afdep_ll_staged_t *staged, const afdep_ll_dispatch_t *dispatch);
afdep_status_t afdep_ll_staged_recombine(afdep_ll_staged_t *staged, const afdep_ll_combine_t *combine);

/* Times of exchanges of the last calls' tensors on this rank's stream, in us. */
typedef struct afdep_ll_staged_times {
    int pairs;                  /* exchanges of a recording, at most AFDEP_LL_STAGED_PAIRS */
    double *dispatch, *combine; /* [pairs] each call between two events, in a recording of its own */
    double *dispatch_kernel, *combine_kernel; /* [pairs] the same between two stamps, see stamp.h */
    double pair;                              /* of one exchange, of a recording without marks in between */
} afdep_ll_staged_times_t;

#define AFDEP_LL_STAGED_PAIRS 10

/* Local. Records all three; the tensors' contents may change between replays. */
afdep_status_t afdep_ll_staged_record(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer, int pairs);

/* Replays the recordings with marks once and the other one `times` times. Collective in effect: ranks wait for
   each other. */
afdep_status_t afdep_ll_staged_replay(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer, int times,
                                      afdep_ll_staged_times_t *result);

#endif
