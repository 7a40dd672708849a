/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels need that C++ has no word for: loads and stores with their ordering, and the instructions of the chip. */
#ifndef AFDEP_CUDA_PTX_CUH
#define AFDEP_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* ---- Words ----------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t afdep_load_acquire32(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t afdep_load_acquire64(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint32_t afdep_load_acquire_gpu32(const uint32_t *word)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ uint64_t afdep_load_relaxed_system64(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* Inside one GPU, of words that carry their value with their tag and cover nothing else. */
__device__ __forceinline__ uint64_t afdep_load_relaxed64(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

__device__ __forceinline__ void afdep_store_relaxed64(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Inside one CTA, of counts in shared memory. */
__device__ __forceinline__ uint32_t afdep_load_acquire_cta32(const uint32_t *count)
{
    uint32_t value;
    asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
    return value;
}

__device__ __forceinline__ void afdep_store_release_cta32(uint32_t *count, uint32_t value)
{
    asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(count), "r"(value) : "memory");
}

__device__ __forceinline__ uint32_t afdep_add_acquire_release_cta(uint32_t *count)
{
    uint32_t before;
    asm volatile("atom.acq_rel.cta.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}

/* After afdep_fence_system(). */
__device__ __forceinline__ void afdep_signal32(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void afdep_signal64(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Adds one, releases what is before it and acquires what others released so, inside one GPU; the value before. */
__device__ __forceinline__ uint32_t afdep_add_acquire_release(uint32_t *count)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    return before;
}

/* The same of 64 bits, adding `value`. */
__device__ __forceinline__ uint64_t afdep_add_acquire_release64(uint64_t *at, uint64_t value)
{
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(value) : "memory");
    return before;
}

__device__ __forceinline__ void afdep_fence_system()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* 16 bytes as one scalar, relaxed at system scope: single-copy atomic, see lines.cuh. */
__device__ __forceinline__ uint4 afdep_load_word(const void *at)
{
    uint64_t low, high;
    asm volatile("{\n\t.reg .b128 word;\n\tld.relaxed.sys.global.b128 word, [%2];\n\tmov.b128 {%0, %1}, word;\n\t}"
                 : "=l"(low), "=l"(high)
                 : "l"(at)
                 : "memory");
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

__device__ __forceinline__ void afdep_store_word(void *at, const uint4 &v)
{
    asm volatile(
        "{\n\t.reg .b128 word;\n\tmov.b128 word, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], word;\n\t}" ::"l"(at),
        "l"((uint64_t)v.y << 32 | v.x), "l"((uint64_t)v.w << 32 | v.z)
        : "memory");
}

/* ---- Rows ------------------------------------------------------------------------------------------------------ */

/* 16 bytes of an inbox or a caller's row that nobody reads again here. */
__device__ __forceinline__ uint4 afdep_load16(const void *at)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

__device__ __forceinline__ void afdep_store16(void *at, uint4 v)
{
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

/* Asks for the line of L2 that holds `at`, and with it for the way there. What stands there may still change. */
__device__ __forceinline__ void afdep_prefetch(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Two sums as a pair of BF16, to nearest even, a NaN as 0x7FFF. */
__device__ __forceinline__ uint32_t afdep_pack(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* The larger of each half, as unsigned numbers. */
__device__ __forceinline__ uint32_t afdep_max_pairs(uint32_t a, uint32_t b)
{
    uint32_t larger;
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

/* Two values as e4m3 codes, to nearest even; beyond 448 it is 448, a NaN is 0x7F. */
__device__ __forceinline__ uint32_t afdep_e4m3_pair(float low, float high)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}

/* ---- Kernels and time ------------------------------------------------------------------------------------------ */

/* Kernels of a stream overlap at their edges: the next one's CTAs may start when all of this one's have come here, ... */
__device__ __forceinline__ void afdep_let_next_start()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* ... and see what this one wrote only behind their own wait for its end. */
__device__ __forceinline__ void afdep_await_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ uint64_t afdep_now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#endif
