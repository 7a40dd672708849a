/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the low-latency API have in common: numbers, places, and sources' units of work. */
#ifndef AFDEP_CUDA_LL_DEVICE_CUH
#define AFDEP_CUDA_LL_DEVICE_CUH

#include "cuda/lines.cuh"
#include "cuda/ll_device.h"

/* ---- Numbers and places ------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ uint64_t ll_number(const uint64_t *at)
{
    return *(const volatile uint64_t *)at;
}

static __device__ __forceinline__ uint32_t ll_plane(uint64_t exchange)
{
    return (uint32_t)(exchange - 1) & 1u;
}

static __device__ __forceinline__ unsigned char *ll_inbox(const afdep_ll_device_t &r, uint64_t exchange, int rank)
{
    return afdep_segment(r.c, rank) + r.l.control_bytes + ll_plane(exchange) * r.l.plane_bytes;
}

/* Entry of [2][R][M][K] and, with R of 1, of [2][M][K] arrays. */
static __device__ __forceinline__ uint64_t ll_choice(const afdep_ll_device_t &r, uint64_t exchange, int ranks,
                                                     int source, int token)
{
    return ((uint64_t)(ll_plane(exchange) * (uint32_t)ranks + (uint32_t)source) * (uint32_t)r.max_tokens +
            (uint32_t)token) *
           (uint32_t)r.top_k;
}

static __device__ __forceinline__ uint64_t ll_slot(const afdep_ll_device_t &r, int source, int token)
{
    return (uint64_t)(uint32_t)source * (uint32_t)r.max_tokens + (uint32_t)token;
}

/* Every 2^24th exchange of a plane; see afdep_renewal_due(). The words are those of this rank's own inbox: between
   the end of this half and the next but one exchange nobody stores there, so whoever reads them can write the
   unused ones. */
static __device__ __forceinline__ bool ll_renewal_due(uint64_t exchange)
{
    return ((exchange - 1) / 2 & 0xFFFFFFu) == 0xFFFFFFu;
}

/* ---- Units of work of several sources ---------------------------------------------------------------------------- */

/* In shared memory: sources' tokens, and the units of work before each; one entry more than there are sources. */
typedef struct ll_sources {
    int32_t *tokens, *units;
} ll_sources_t;

/* The source of unit `n`, and what is left of n. */
static __device__ __forceinline__ int ll_source_of(const int32_t *before, int n, int *left)
{
    int source = 0;
    while (n >= before[source + 1])
        source++;
    *left = n - before[source];
    return source;
}

/* Sums in place, by one thread: before[i] becomes what stands before i. */
static __device__ __forceinline__ void ll_sum_before(int32_t *before, int count)
{
    int sum = 0;
    for (int i = 0; i <= count; i++) {
        int own = i < count ? before[i] : 0;
        before[i] = sum;
        sum += own;
    }
}

static __device__ __forceinline__ void ll_count_put(const afdep_ll_device_t &r, int peer, uint32_t bytes)
{
    atomicAdd(&r.counters[peer].puts, 1ull);
    atomicAdd(&r.counters[peer].put_bytes, (unsigned long long)bytes);
}

#endif
