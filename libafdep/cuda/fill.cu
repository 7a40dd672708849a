/* SPDX-License-Identifier: Apache-2.0 */
/* Words to their starting values, when a buffer opens. */
#include "cuda/state.h"

template <typename Word> static __global__ void fill_kernel(Word *words, uint64_t count, Word value)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        words[i] = value;
}

cudaError_t afdep_cuda_fill32(uint32_t *words, uint64_t count, uint32_t value, cudaStream_t stream)
{
    fill_kernel<uint32_t><<<16, 256, 0, stream>>>(words, count, value);
    return cudaGetLastError();
}

cudaError_t afdep_cuda_fill64(uint64_t *words, uint64_t count, uint64_t value, cudaStream_t stream)
{
    fill_kernel<uint64_t><<<16, 256, 0, stream>>>(words, count, value);
    return cudaGetLastError();
}
