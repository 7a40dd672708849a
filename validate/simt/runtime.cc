/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of CUDA's runtime and driver that this project makes, with the processor's memory and fibers (simt.cc)
 * behind them. Streams do everything at once, so a call returns when its work is done; captures keep it for the graph.
 * Devices are as many as SIMT_GPUS says (2), each with SIMT_SMS multiprocessors (8). Ranks have to be threads of one
 * process.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <sys/mman.h>

#include <map>
#include <string>
#include <vector>

#include "simt.h"

typedef std::vector<std::function<void()>> graph_t;

struct stream_t {
    graph_t *capture;
};

static thread_local int device;

static int setting(const char *name, int fallback)
{
    const char *value = getenv(name);
    return value && atoi(value) > 0 ? atoi(value) : fallback;
}

/* Does it, or keeps it for the graph. */
static cudaError_t enqueue(cudaStream_t stream, std::function<void()> work)
{
    stream_t *s = (stream_t *)stream;
    if (s && s->capture)
        s->capture->push_back(work);
    else
        work();
    return cudaSuccess;
}

cudaError_t afdep_simt_launch(dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> body)
{
    return enqueue(stream, [=]() { afdep_simt_run(grid, block, body); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    return enqueue(stream, [=]() { function(argument); });
}

/* Words that peers write and the host side reads are copied whole. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes == sizeof(uint64_t) && ((uintptr_t)to | (uintptr_t)from) % sizeof(uint64_t) == 0)
        __atomic_store_n((uint64_t *)to, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    else
        memcpy(to, from, bytes);
}

static void *allocate(size_t bytes)
{
    return aligned_alloc(512, (bytes + 512) / 512 * 512);
}

/* ---- The driver's, by name --------------------------------------------------------------------------------------- */

static CUresult do_nothing()
{
    return CUDA_SUCCESS;
}

static CUresult name_error(CUresult, const char **name)
{
    *name = "an error of the stand-in for CUDA";
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t, const CUmemAllocationProp *, unsigned long long)
{
    *handle = 1;
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *at, size_t bytes, size_t, CUdeviceptr, unsigned long long)
{
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *at = (CUdeviceptr)(uintptr_t)found;
    return found == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr at, size_t bytes)
{
    munmap((void *)(uintptr_t)at, bytes);
    return CUDA_SUCCESS;
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)
{
    *bytes = 1 << 16;
    return CUDA_SUCCESS;
}

static CUresult export_nothing(void *fd, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long)
{
    *(int *)fd = -1;
    return CUDA_SUCCESS;
}

/* ---- The runtime's ------------------------------------------------------------------------------------------- */

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result)
{
    static const std::map<std::string, void *> entries = {
        { "cuGetErrorName", (void *)name_error },      { "cuMemCreate", (void *)create },
        { "cuMemAddressReserve", (void *)reserve },    { "cuMemAddressFree", (void *)release },
        { "cuMemGetAllocationGranularity", (void *)granularity },
        { "cuMemExportToShareableHandle", (void *)export_nothing },
    };
    auto found = entries.find(name);
    *entry = found == entries.end() ? (void *)do_nothing : found->second;
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = setting("SIMT_GPUS", 2);
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *out)
{
    *out = device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int which)
{
    device = which;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr, int)
{
    *value = setting("SIMT_SMS", 8); /* nothing else is asked for */
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int which)
{
    memset(properties, 0, sizeof(*properties));
    properties->uuid.bytes[0] = (char)(which + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int, int)
{
    *can = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
    return "an error of the stand-in for CUDA";
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *, const void *)
{
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    *at = allocate(bytes);
    return *at ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *at)
{
    free(at);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned)
{
    return cudaMalloc(at, bytes);
}

cudaError_t cudaHostGetDevicePointer(void **at, void *host, unsigned)
{
    *at = host;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
    return cudaFree(at);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind)
{
    copy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind, cudaStream_t stream)
{
    return enqueue(stream, [=]() { copy(to, from, bytes); });
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind, cudaStream_t stream)
{
    return enqueue(stream, [=]() {
        for (size_t row = 0; row < height; row++)
            memcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    });
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    memset(at, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    return enqueue(stream, [=]() { memset(at, value, bytes); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = (cudaStream_t) new stream_t{};
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete (stream_t *)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    bool capturing = stream && ((stream_t *)stream)->capture;
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    ((stream_t *)stream)->capture = new graph_t;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = (cudaGraph_t)((stream_t *)stream)->capture;
    ((stream_t *)stream)->capture = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = (cudaGraphExec_t) new graph_t(*(graph_t *)graph);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (const std::function<void()> &work : *(graph_t *)exec)
        work();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete (graph_t *)exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete (graph_t *)graph;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = (cudaEvent_t) new uint64_t{};
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    return cudaEventCreate(event);
}

/* Whatever was put onto a stream is over. */
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{
    return enqueue(stream, [=]() { *(uint64_t *)event = afdep_simt_now_ns(); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete (uint64_t *)event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    *(uint64_t *)event = afdep_simt_now_ns();
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = (float)(*(uint64_t *)end - *(uint64_t *)begin) * 1e-6f;
    return cudaSuccess;
}
}
