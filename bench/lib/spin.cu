/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/lib/spin.h"

#include <stdint.h>

static __device__ uint64_t now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __global__ void spin_kernel(uint64_t ns)
{
    uint64_t since = now_ns();
    while (now_ns() - since < ns)
        __nanosleep(100); /* the warp leaves the SM to others */
}

cudaError_t afdep_spin(int us, cudaStream_t stream)
{
    spin_kernel<<<1, 32, 0, stream>>>((uint64_t)us * 1000u);
    return cudaGetLastError();
}
