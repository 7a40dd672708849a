/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all kernels use: words with their ordering, waits with deadlines, failures, and where things stand.
 *
 * Ordering. A warp stores a piece, then __syncwarp() and a system fence in every lane, then relaxed stores of the words:
 * the fence of the storing lane is cumulative over what the other lanes wrote before the warp met. Waiting lanes load with
 * acquire at system scope (also between processes of one GPU), and read what the word covers with ordinary loads, never
 * through the non-coherent path. Inboxes are written by generic stores only, so no proxy fence is needed.
 */
#ifndef AFDEP_CUDA_DEVICE_CUH
#define AFDEP_CUDA_DEVICE_CUH

#include <cuda_runtime.h>

#include <afdep/status.h>

#include "cuda/state.h"
#include "protocol/layout.h"
#include "protocol/word.h"

#define AFDEP_FULL 0xFFFFFFFFu
#define AFDEP_WARP 32
#define AFDEP_SPINS_BEFORE_LOOK 256

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

/* After afdep_fence_system(). */
__device__ __forceinline__ void afdep_signal32(uint32_t *word, uint32_t value)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ __forceinline__ void afdep_signal64(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ __forceinline__ void afdep_fence_system()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ uint64_t afdep_now_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

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

__device__ __forceinline__ uint32_t afdep_lane()
{
    return threadIdx.x % AFDEP_WARP;
}

/* ---- Failures ------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ bool afdep_poisoned(const afdep_cuda_rank_t &r)
{
    return *(volatile const uint32_t *)&r.state->poisoned != 0;
}

/* The first failure of the rank writes the record and tells all peers; the others only leave. */
static __device__ __noinline__ void afdep_fail_device(const afdep_cuda_rank_t &r, afdep_status_t status, int call, int word,
                                                      uint64_t exchange, int peer, int token, int piece, uint64_t expected,
                                                      uint64_t seen)
{
    if (atomicCAS(&r.state->poisoned, 0u, 1u) != 0)
        return;
    afdep_cuda_record_t *record = r.record;
    record->status = (uint32_t)-status;
    record->call = (uint32_t)call;
    record->word = (uint32_t)word;
    record->exchange = exchange;
    record->peer = peer;
    record->token = token;
    record->piece = piece;
    record->expected = expected;
    record->seen = seen;
    __threadfence_system(); /* the record before its flag, and before any peer hears of it */
    *(volatile uint32_t *)&record->ready = 1;
    uint64_t told = afdep_word((uint32_t)-status, (uint32_t)(peer + 1));
    for (int other = 0; other < r.shape.ranks; other++)
        if (other != r.rank)
            afdep_signal64((uint64_t *)(r.segments[other] + afdep_failure_word(r.rank)), told);
    if (r.trap)
        __trap();
}

/* What a waiting lane does from time to time. Nonzero: it is over. */
typedef struct afdep_patience {
    uint32_t spins;
    uint64_t since;
} afdep_patience_t;

static __device__ __noinline__ bool afdep_look(const afdep_cuda_rank_t &r, afdep_patience_t &p, int call, int word,
                                               uint64_t exchange, int peer, int token, int piece, uint64_t expected,
                                               uint64_t seen)
{
    if (afdep_poisoned(r))
        return true;
    uint64_t now = afdep_now_ns();
    if (p.since == 0)
        p.since = now;
    int other = (int)(p.spins / AFDEP_SPINS_BEFORE_LOOK % (uint32_t)r.shape.ranks);
    uint64_t failure = other == r.rank ? 0 : afdep_load_acquire64((const uint64_t *)(r.base + afdep_failure_word(other)));
    if (failure != 0) {
        afdep_fail_device(r, AFDEP_ERR_PEER, call, AFDEP_CUDA_WORD_FAILURE, exchange, other, -1, -1, 0, failure);
        return true;
    }
    if (now - p.since < r.timeout_ns)
        return false;
    afdep_fail_device(r, AFDEP_ERR_TIMEOUT, call, word, exchange, peer, token, piece, expected, seen);
    return true;
}

/* Waits until a piece's word holds this exchange's number. */
__device__ __forceinline__ bool afdep_wait_piece(const afdep_cuda_rank_t &r, const uint32_t *at, uint64_t exchange, int call,
                                                 int word, int peer, int token, int piece)
{
    afdep_patience_t patience = { 0, 0 };
    uint32_t seen;
    while ((seen = afdep_load_acquire32(at)) != (uint32_t)exchange)
        if (++patience.spins % AFDEP_SPINS_BEFORE_LOOK == 0 &&
            afdep_look(r, patience, call, word, exchange, peer, token, piece, (uint32_t)exchange, seen))
            return false;
    return true;
}

/* A rank's segment. */
__device__ __forceinline__ unsigned char *afdep_segment(const afdep_cuda_rank_t &r, int rank)
{
    return rank < AFDEP_CUDA_NEAR ? r.near[rank] : r.segments[rank];
}

/* ---- Places -------------------------------------------------------------------------------------------------- */

/* The plane of an exchange; the usual case without a division of 64 bits. */
__device__ __forceinline__ uint32_t afdep_plane(const afdep_shape_t &s, uint64_t exchange)
{
    return s.in_flight == 1 ? 0 : (uint32_t)afdep_plane_index(&s, exchange);
}

__device__ __forceinline__ uint64_t afdep_plane_at(const afdep_device_layout_t &l, const afdep_shape_t &s, uint64_t exchange)
{
    return l.control_bytes + (uint64_t)afdep_plane(s, exchange) * l.plane_bytes;
}

/* Entry of [n][capacity] arrays. */
__device__ __forceinline__ uint64_t afdep_slot(const afdep_shape_t &s, int n, int token)
{
    return (uint64_t)n * (uint32_t)s.capacity + (uint32_t)token;
}

/* ---- Calls --------------------------------------------------------------------------------------------------- */

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

/* The number of the exchange that this call is for, the same in all CTAs: it takes all of them to move it on. Whether the
   buffer is poisoned is asked where a kernel waits, so that nothing stands before the first loads. */
__device__ __forceinline__ uint64_t afdep_enter(const afdep_cuda_rank_t &r, int call)
{
    afdep_await_previous();
    afdep_let_next_start();
    return *(volatile const uint64_t *)&r.state->count[call] + 1;
}

/* Called once per CTA, by one thread, behind a barrier of the CTA. True in the last one: the count releases what is before
   it and acquires what the others released, so everything that the CTAs wrote or read before is behind it. */
__device__ __forceinline__ bool afdep_last_of_grid(const afdep_cuda_rank_t &r, int call)
{
    if (gridDim.x == 1)
        return true;
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(&r.state->done[call]) : "memory");
    if (before != gridDim.x - 1)
        return false;
    r.state->done[call] = 0;
    return true;
}

/* The same for all threads, at the end of a kernel. */
__device__ __forceinline__ bool afdep_leave(const afdep_cuda_rank_t &r, int call)
{
    __syncthreads();
    return threadIdx.x == 0 && afdep_last_of_grid(r, call);
}

/* The last CTA's last act: the next kernel of the stream sees it at the kernel boundary. */
__device__ __forceinline__ void afdep_finish(const afdep_cuda_rank_t &r, int call, uint64_t exchange)
{
    r.state->count[call] = exchange;
}

__device__ __forceinline__ int afdep_warp_index()
{
    return (int)(threadIdx.x / AFDEP_WARP * gridDim.x + blockIdx.x); /* few units spread over many SMs */
}

__device__ __forceinline__ int afdep_warp_count()
{
    return (int)(blockDim.x / AFDEP_WARP * gridDim.x);
}

#endif
