/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of CUDA's header, where kernels are compiled for the processor (see simt.cc): every CUDA thread is a fiber,
 * a CTA is a thread of the system, and what threads of a warp or CTA do together waits until all have come. Types and
 * the C API are CUDA's own.
 */
#ifndef AFDEP_SIMT_CUDA_RUNTIME_H
#define AFDEP_SIMT_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include <emmintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <functional>

#include "numerics/e4m3.h" /* a conversion is an instruction there */

#undef __device__
#undef __global__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __host__
#define __global__
#define __shared__ thread_local /* of a CTA, which is a thread */
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__

#define AFDEP_SIMT_FULL 0xFFFFFFFFu

extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;
alignas(16) extern thread_local unsigned char afdep_simt_shared[262144]; /* dynamic shared memory */

/* simt.cc. Another fiber's turn. */
void afdep_simt_yield();

/* The values of all lanes, when all lanes of the warp have come; until the next one but one. */
const uint64_t *afdep_simt_warp(uint64_t value, uint32_t mask);

typedef enum afdep_simt_how { AFDEP_SIMT_MEET, AFDEP_SIMT_AND, AFDEP_SIMT_OR } afdep_simt_how_t;
int afdep_simt_block(int value, afdep_simt_how_t how);

/* Runs a kernel, or keeps it for the graph that is being captured. */
cudaError_t afdep_simt_launch(dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> body);

/* ---- What kernels call ------------------------------------------------------------------------------------------ */

static inline void __syncthreads()
{
    (void)afdep_simt_block(0, AFDEP_SIMT_MEET);
}

static inline int __syncthreads_and(int value)
{
    return afdep_simt_block(value != 0, AFDEP_SIMT_AND);
}

static inline int __syncthreads_or(int value)
{
    return afdep_simt_block(value != 0, AFDEP_SIMT_OR);
}

static inline void __syncwarp(uint32_t mask = AFDEP_SIMT_FULL)
{
    (void)afdep_simt_warp(0, mask);
}

template <typename Value> static inline const uint64_t *afdep_simt_values(uint32_t mask, Value value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(value));
    return afdep_simt_warp(bits, mask);
}

template <typename Value> static inline Value afdep_simt_value(uint64_t bits)
{
    Value value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <typename Value> static inline Value __shfl_sync(uint32_t mask, Value value, int lane)
{
    return afdep_simt_value<Value>(afdep_simt_values(mask, value)[lane % 32]);
}

template <typename Value> static inline Value __shfl_up_sync(uint32_t mask, Value value, int step)
{
    int lane = (int)(threadIdx.x % 32);
    return afdep_simt_value<Value>(afdep_simt_values(mask, value)[lane >= step ? lane - step : lane]);
}

template <typename Value> static inline Value __shfl_xor_sync(uint32_t mask, Value value, int bits)
{
    return afdep_simt_value<Value>(afdep_simt_values(mask, value)[(int)(threadIdx.x % 32) ^ bits]);
}

static inline uint32_t __ballot_sync(uint32_t mask, int value)
{
    const uint64_t *all = afdep_simt_warp(value != 0, mask);
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; lane++)
        bits |= (uint32_t)(all[lane] != 0) << lane;
    return bits;
}

static inline int __all_sync(uint32_t mask, int value)
{
    return __ballot_sync(mask, value) == AFDEP_SIMT_FULL;
}

static inline int __any_sync(uint32_t mask, int value)
{
    return __ballot_sync(mask, value) != 0;
}

static inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t value)
{
    const uint64_t *all = afdep_simt_warp(value, mask);
    uint32_t bits = 0;
    for (int lane = 0; lane < 32; lane++)
        bits |= (uint32_t)all[lane];
    return bits;
}

static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value)
{
    const uint64_t *all = afdep_simt_warp(value, mask);
    uint32_t most = 0;
    for (int lane = 0; lane < 32; lane++)
        most = all[lane] > most ? (uint32_t)all[lane] : most;
    return most;
}

template <typename Value> static inline uint32_t __match_any_sync(uint32_t mask, Value value)
{
    const uint64_t *all = afdep_simt_values(mask, value);
    uint64_t own = all[threadIdx.x % 32];
    uint32_t same = 0;
    for (int lane = 0; lane < 32; lane++)
        same |= (uint32_t)(all[lane] == own) << lane;
    return same;
}

static inline int __popc(uint32_t bits)
{
    return __builtin_popcount(bits);
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

template <typename Value> static inline Value __ldg(const Value *at)
{
    return *at;
}

template <typename Value> static inline Value atomicAdd(Value *at, Value value)
{
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static inline uint32_t atomicOr(uint32_t *at, uint32_t value)
{
    return __atomic_fetch_or(at, value, __ATOMIC_RELAXED);
}

static inline uint32_t atomicCAS(uint32_t *at, uint32_t old, uint32_t value)
{
    __atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}

static inline unsigned long long atomicCAS(unsigned long long *at, unsigned long long old, unsigned long long value)
{
    __atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return old;
}

static inline unsigned long long atomicMin(unsigned long long *at, unsigned long long value)
{
    unsigned long long old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return old;
}

static inline unsigned long long atomicMax(unsigned long long *at, unsigned long long value)
{
    unsigned long long old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (value > old && !__atomic_compare_exchange_n(at, &old, value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
    return old;
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline float __uint_as_float(uint32_t bits)
{
    return afdep_simt_value<float>(bits);
}

static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

static inline int min(int a, int b)
{
    return a < b ? a : b;
}

static inline uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
}

static inline uint32_t max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline void __trap()
{
    abort();
}

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    uint4 v;
    v.x = x, v.y = y, v.z = z, v.w = w;
    return v;
}

static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    uint2 v;
    v.x = x, v.y = y;
    return v;
}

static inline int2 make_int2(int x, int y)
{
    int2 v;
    v.x = x, v.y = y;
    return v;
}

/* ---- What translate.py puts in place of instructions ------------------------------------------------------------- */

/* A load that somebody may be waiting with: others get their turn. */
template <typename Value> static inline Value afdep_simt_load(const Value *at, int order)
{
    afdep_simt_yield();
    return __atomic_load_n(at, order);
}

/* Sixteen bytes at once, which the processors that this runs on load and store whole. Said as instructions: of an intrinsic a
   compiler may make two loads of half as much. */
static inline void afdep_simt_load16(const void *at, uint64_t *low, uint64_t *high)
{
    __m128i word;
    afdep_simt_yield();
    asm volatile("movdqa %1, %0" : "=x"(word) : "m"(*(const __m128i *)at) : "memory");
    *low = (uint64_t)_mm_cvtsi128_si64(word);
    *high = (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(word, word));
}

static inline void afdep_simt_store16(void *at, uint64_t low, uint64_t high)
{
    __m128i word = _mm_set_epi64x((long long)high, (long long)low);
    asm volatile("movdqa %1, %0" : "=m"(*(__m128i *)at) : "x"(word) : "memory");
}

static inline uint64_t afdep_simt_now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint32_t afdep_simt_max_pairs(uint32_t a, uint32_t b)
{
    uint32_t high = (a >> 16) > (b >> 16) ? a : b, low = (a & 0xFFFFu) > (b & 0xFFFFu) ? a : b;
    return (high & 0xFFFF0000u) | (low & 0xFFFFu);
}

static inline uint32_t afdep_simt_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return value != value ? 0x7FFFu : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                                             Arguments &&...arguments)
{
    return afdep_simt_launch(config->gridDim, config->blockDim, config->stream,
                             [kernel, arguments...]() { kernel(arguments...); });
}

#endif
