/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/stamp.h"

#include "cuda/launch.cuh"
#include "cuda/ptx.cuh"

static __global__ void stamp_kernel(uint64_t *at)
{
    *at = afdep_now_ns();
}

cudaError_t afdep_stamp(uint64_t *at, cudaStream_t stream)
{
    return afdep_launch_apart(stamp_kernel, 1, 1, 0, stream, at);
}
