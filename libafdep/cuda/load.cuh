/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load statistics as kernels keep them. Exchange n adds its tokens to entry n mod AFDEP_CUDA_LOADS, in any order and
 * with nothing ordered against it but what ends the kernel anyway: readers look at entries of exchanges that the
 * kernel's last act has counted. Entry n also gets the sums of the exchanges before, and entry n + 1 its zeros, while
 * other warps wait; the kernels between two exchanges put one's entries behind the other's.
 */
#ifndef AFDEP_CUDA_LOAD_CUH
#define AFDEP_CUDA_LOAD_CUH

#include "cuda/device.cuh"

__device__ __forceinline__ uint32_t afdep_load_entry(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    return (uint32_t)exchange % AFDEP_CUDA_LOADS * (uint32_t)(r.load.experts + r.load.sources);
}

/* The tokens of an expert (of those of afdep_cuda_load_t), and of a source, in an exchange. */
__device__ __forceinline__ uint32_t *afdep_load_expert(const afdep_cuda_rank_t &r, uint64_t exchange, int expert)
{
    return r.load.more + afdep_load_entry(r, exchange) + expert;
}

__device__ __forceinline__ uint32_t *afdep_load_source(const afdep_cuda_rank_t &r, uint64_t exchange, int source)
{
    return afdep_load_expert(r, exchange, r.load.experts + source);
}

/* By all threads of one CTA, the last ones first, since the first warps have other work. */
__device__ __forceinline__ void afdep_carry_load(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_cuda_load_t &l = r.load;
    uint32_t last = afdep_load_entry(r, exchange - 1), own = afdep_load_entry(r, exchange);
    uint32_t next = afdep_load_entry(r, exchange + 1);
#pragma unroll 1
    for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < l.experts + l.sources; i += (int)blockDim.x) {
        l.before[own + i] = l.before[last + i] + l.more[last + i];
        l.more[next + i] = 0;
    }
}

/* The same, and the exchange's own tokens, of experts and (at FFN ranks) sources, where they are those of the exchange before
   on its plane; that one's entry still stands, as there are more entries than planes. */
__device__ __forceinline__ void afdep_repeat_load(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    const afdep_cuda_load_t &l = r.load;
    uint32_t old = afdep_load_entry(r, exchange - (uint64_t)r.shape.in_flight), own = afdep_load_entry(r, exchange);
    afdep_carry_load(r, exchange);
#pragma unroll 1
    for (int i = (int)(blockDim.x - 1 - threadIdx.x); i < l.experts + l.sources; i += (int)blockDim.x)
        l.more[own + i] = l.more[old + i];
}

#endif
