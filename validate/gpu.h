/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs do with a GPU themselves, where CUDA is built: a rank's stream, recordings, the clock around them, and
 * the sentence of the thread's last failure.
 */
#ifndef AFDEP_VALIDATE_GPU_H
#define AFDEP_VALIDATE_GPU_H

#include <cuda_runtime_api.h>

#include <afdep/status.h>

/* Forgets the last failure; at the beginning of whatever may leave one. */
void afdep_gpu_begin_call(void);

/* The last failure's sentence, or "". */
const char *afdep_gpu_why(void);
void afdep_gpu_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Nonzero, with a sentence, when it failed. */
int afdep_gpu_failed(cudaError_t error, const char *what);

/* One stream for all of a rank's tensors: streams beyond the number of hardware queues share one, and a copy behind
   another stream's waiting kernel would wait too. Made when first taken, gone when given back as often. 0, or -1. */
int afdep_gpu_take_stream(cudaStream_t *stream);
void afdep_gpu_give_stream(void);

/* Waits for the stream. */
int afdep_gpu_finish(cudaStream_t stream);

/* Records what `enqueue` puts onto the stream. Its own status, or SYSTEM. */
afdep_status_t afdep_gpu_record(cudaStream_t stream, afdep_status_t (*enqueue)(void *context), void *context,
                                cudaGraphExec_t *recorded);

/* Runs a recording, or without one `enqueue`, `times` times, and waits; *us: the time of all, by the stream's clock. */
afdep_status_t afdep_gpu_time(cudaStream_t stream, cudaGraphExec_t recorded, afdep_status_t (*enqueue)(void *context),
                              void *context, int times, double *us);

#endif
