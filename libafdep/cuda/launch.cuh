/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels are loaded and launched: each may begin before the stream's last one has ended, see device.cuh. */
#ifndef AFDEP_CUDA_LAUNCH_CUH
#define AFDEP_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

template <typename... Arguments>
static inline cudaError_t afdep_launch_as(bool overlapping, void (*kernel)(Arguments...), int grid, int threads, size_t shared,
                                          cudaStream_t stream, const Arguments &...arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = overlapping;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <typename... Arguments>
static inline cudaError_t afdep_launch(void (*kernel)(Arguments...), int grid, int threads, size_t shared, cudaStream_t stream,
                                       const Arguments &...arguments)
{
    return afdep_launch_as(true, kernel, grid, threads, shared, stream, arguments...);
}

/* A kernel that begins when the stream's last one is over: where many ranks share a GPU, the SMs that the next kernel would
   wait on are better used by this one. */
template <typename... Arguments>
static inline cudaError_t afdep_launch_apart(void (*kernel)(Arguments...), int grid, int threads, size_t shared,
                                             cudaStream_t stream, const Arguments &...arguments)
{
    return afdep_launch_as(false, kernel, grid, threads, shared, stream, arguments...);
}

/* Loads a kernel and lets it have that much dynamic shared memory. */
template <typename Kernel> static inline cudaError_t afdep_load(Kernel *kernel, size_t shared)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)kernel);
    if (error == cudaSuccess && shared > 48 * 1024)
        error = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    return error;
}

#endif
