/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's device and stream, recordings and the clock. */
#include "validate/gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "validate/staged.h"

static _Thread_local char last[256];
static _Thread_local cudaStream_t rank_stream;
static _Thread_local int rank_stream_users;

void afdep_gpu_begin_call(void)
{
    last[0] = '\0';
}

const char *afdep_gpu_why(void)
{
    return last;
}

void afdep_gpu_say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last, sizeof(last), format, arguments);
    va_end(arguments);
}

int afdep_gpu_failed(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        afdep_gpu_say("%s: %s", what, cudaGetErrorString(error));
    return error != cudaSuccess;
}

void afdep_staged_begin(int threads)
{
    /* Streams of ranks that are threads must not share a queue. A GPU has few of them for all its processes, though:
       six processes that ask for 32 each do not get them under MPS. */
    if (threads)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

void afdep_staged_use_device(int rank)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0)
        (void)cudaSetDevice(rank % devices);
}

int afdep_gpu_take_stream(cudaStream_t *stream)
{
    if (!rank_stream_users &&
        afdep_gpu_failed(cudaStreamCreateWithFlags(&rank_stream, cudaStreamNonBlocking), "a stream"))
        return -1;
    rank_stream_users++;
    *stream = rank_stream;
    return 0;
}

void afdep_gpu_give_stream(void)
{
    if (--rank_stream_users == 0)
        (void)cudaStreamDestroy(rank_stream);
}

int afdep_gpu_finish(cudaStream_t stream)
{
    return afdep_gpu_failed(cudaStreamSynchronize(stream), "waiting for the GPU");
}

afdep_status_t afdep_gpu_record(cudaStream_t stream, afdep_status_t (*enqueue)(void *context), void *context,
                                cudaGraphExec_t *recorded)
{
    cudaGraph_t graph = NULL;
    if (afdep_gpu_failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning to record"))
        return AFDEP_ERR_SYSTEM;
    afdep_status_t status = enqueue(context);
    int broken = afdep_gpu_failed(cudaStreamEndCapture(stream, &graph), "recording");
    if (status == AFDEP_OK && !broken)
        broken = afdep_gpu_failed(cudaGraphInstantiate(recorded, graph, 0), "instantiating a recording") ||
                 afdep_gpu_failed(cudaGraphUpload(*recorded, stream), "uploading a recording") ||
                 afdep_gpu_finish(stream);
    if (graph)
        (void)cudaGraphDestroy(graph);
    return status == AFDEP_OK && broken ? AFDEP_ERR_SYSTEM : status;
}

static afdep_status_t run(cudaStream_t stream, cudaGraphExec_t recorded, afdep_status_t (*enqueue)(void *context),
                          void *context, int times)
{
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; status == AFDEP_OK && i < times; i++) {
        if (!recorded)
            status = enqueue(context);
        else if (afdep_gpu_failed(cudaGraphLaunch(recorded, stream), "replaying"))
            status = AFDEP_ERR_SYSTEM;
    }
    return status;
}

afdep_status_t afdep_gpu_time(cudaStream_t stream, cudaGraphExec_t recorded, afdep_status_t (*enqueue)(void *context),
                              void *context, int times, double *us)
{
    cudaEvent_t begin = NULL, end = NULL;
    float ms = 0;
    afdep_status_t status = AFDEP_ERR_SYSTEM;
    if (afdep_gpu_failed(cudaEventCreate(&begin), "an event") || afdep_gpu_failed(cudaEventCreate(&end), "an event") ||
        afdep_gpu_failed(cudaEventRecord(begin, stream), "an event"))
        goto destroy;
    status = run(stream, recorded, enqueue, context, times);
    if (status == AFDEP_OK && (afdep_gpu_failed(cudaEventRecord(end, stream), "an event") || afdep_gpu_finish(stream) ||
                               afdep_gpu_failed(cudaEventElapsedTime(&ms, begin, end), "an event")))
        status = AFDEP_ERR_SYSTEM;
    *us = (double)ms * 1000;
destroy:
    if (end)
        (void)cudaEventDestroy(end);
    if (begin)
        (void)cudaEventDestroy(begin);
    return status;
}
