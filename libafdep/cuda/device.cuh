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

#include <afdep/status.h>

#include "cuda/ptx.cuh"
#include "cuda/state.h"
#ifdef AFDEP_RAIL_GIN
#include "cuda/gin.cuh"
#endif
#include "protocol/layout.h"
#include "protocol/word.h"

#define AFDEP_FULL 0xFFFFFFFFu
#define AFDEP_WARP 32
#ifndef AFDEP_SPINS_BEFORE_LOOK
#define AFDEP_SPINS_BEFORE_LOOK 256
#endif

__device__ __forceinline__ uint32_t afdep_lane()
{
    return threadIdx.x % AFDEP_WARP;
}

/* ---- Failures ------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ bool afdep_poisoned(const afdep_cuda_rank_t &r)
{
    return *(volatile const uint32_t *)&r.state->poisoned != 0;
}

/* Writes a failure to all peers that this rank reaches; those tell theirs. */
static __device__ void afdep_tell_failure(const afdep_cuda_rank_t &r, uint64_t told)
{
    uint64_t place = afdep_failure_word(r.rank);
#ifdef AFDEP_RAIL_GIN
    const afdep_gin_t &gin = *(const afdep_gin_t *)r.gin;
    *(volatile uint64_t *)(r.base + place) = told; /* what is put from: nobody looks for a failure of its own */
    for (int other = r.rank % gin.ranks_per_domain; other < r.shape.ranks; other += gin.ranks_per_domain)
        if (other != r.rank)
            afdep_gin_put_word(gin, other, place, ncclGin_None{});
#endif
    for (int other = 0; other < r.shape.ranks; other++)
        if (other != r.rank && r.segments[other])
            afdep_signal64((uint64_t *)(r.segments[other] + place), told);
}

/* The first failure of the rank writes the record and tells all peers; the others only leave. */
static __device__ __noinline__ void afdep_fail_device(const afdep_cuda_rank_t &r, afdep_status_t status, int call,
                                                      int word, uint64_t exchange, int peer, int token, int piece,
                                                      uint64_t expected, uint64_t seen)
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
    /* What was heard is passed on as it was said: that a peer gave up does not make it dead. */
    afdep_tell_failure(r, word == AFDEP_CUDA_WORD_FAILURE ? seen : afdep_word((uint32_t)-status, (uint32_t)(peer + 1)));
    if (r.trap)
        __trap();
}

/* Leaves with the failure of `other`, where it has told of one. */
static __device__ __forceinline__ bool afdep_heard(const afdep_cuda_rank_t &r, int call, uint64_t exchange, int other)
{
    uint64_t failure =
        other == r.rank ? 0 : afdep_load_acquire64((const uint64_t *)(r.base + afdep_failure_word(other)));
    if (failure != 0)
        afdep_fail_device(r, AFDEP_ERR_PEER, call, AFDEP_CUDA_WORD_FAILURE, exchange, other, -1, -1, 0, failure);
    return failure != 0;
}

/* How long a lane waits for a rank at most. Across domains the ranks of a domain wait for others before they pass on what
   came, and warps of this rank for all of them: those are to name what is missing, and so to give up first. */
static __device__ __forceinline__ uint64_t afdep_patience_ns(const afdep_cuda_rank_t &r, int peer)
{
    const afdep_shape_t &s = r.shape;
    if (peer == r.rank)
        return 2 * r.timeout_ns;
    bool passes_on = s.protocol != AFDEP_PROTOCOL_DIRECT && peer / s.ranks_per_domain == r.rank / s.ranks_per_domain;
    return passes_on ? r.timeout_ns + r.timeout_ns / 2 : r.timeout_ns;
}

/* What a waiting lane does from time to time: gives back since when it waits, or 0 when that is over. */
static __device__ __noinline__ uint64_t afdep_look_since(const afdep_cuda_rank_t &r, uint32_t spins, uint64_t since,
                                                         int call, int word, uint64_t exchange, int peer, int token,
                                                         int piece, uint64_t expected, uint64_t seen)
{
    if (afdep_poisoned(r))
        return 0;
    uint64_t now = afdep_now_ns();
    if (since == 0)
        since = now;
    if (afdep_heard(r, call, exchange, (int)(spins / AFDEP_SPINS_BEFORE_LOOK % (uint32_t)r.shape.ranks)))
        return 0;
    if (now - since < afdep_patience_ns(r, peer))
        return since;
    for (int other = 0; other < r.shape.ranks; other++) /* one that gave up a moment ago knows better */
        if (afdep_heard(r, call, exchange, other))
            return 0;
    afdep_fail_device(r, AFDEP_ERR_TIMEOUT, call, word, exchange, peer, token, piece, expected, seen);
    return 0;
}

typedef struct afdep_patience {
    uint32_t spins;
    uint64_t since;
} afdep_patience_t;

/* The same with a waiting lane's own count, which so stays in registers. */
__device__ __forceinline__ bool afdep_look(const afdep_cuda_rank_t &r, afdep_patience_t &p, int call, int word,
                                           uint64_t exchange, int peer, int token, int piece, uint64_t expected,
                                           uint64_t seen)
{
    p.since = afdep_look_since(r, p.spins, p.since, call, word, exchange, peer, token, piece, expected, seen);
    return p.since == 0;
}

/* Waits until a piece's word holds this exchange's number. */
__device__ __forceinline__ bool afdep_wait_piece(const afdep_cuda_rank_t &r, const uint32_t *at, uint64_t exchange,
                                                 int call, int word, int peer, int token, int piece)
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

/* The plane of an exchange: afdep_plane_index() without a division of 64 bits, which alone is a kilobyte of code. */
__device__ __forceinline__ uint32_t afdep_plane(const afdep_shape_t &s, uint64_t exchange)
{
    uint32_t last = (uint32_t)(exchange - 1) & 3u; /* in_flight is 1 to 4 */
    return s.in_flight == 3 ? (uint32_t)((exchange - 1) % 3u) : last & ((uint32_t)s.in_flight - 1u);
}

/* Exchanges of a plane, this one included. */
__device__ __forceinline__ uint64_t afdep_round(const afdep_shape_t &s, uint64_t exchange)
{
    return s.in_flight == 1 ? exchange : (exchange - 1) / (uint64_t)s.in_flight;
}

__device__ __forceinline__ uint64_t afdep_plane_at(const afdep_device_layout_t &l, const afdep_shape_t &s,
                                                   uint64_t exchange)
{
    uint32_t plane = afdep_plane(s, exchange);
    if (l.planes != s.in_flight) /* twice as many: those of odd and of even rounds */
        plane += (uint32_t)s.in_flight * ((uint32_t)afdep_round(s, exchange) & 1u);
    return l.control_bytes + (uint64_t)plane * l.plane_bytes;
}

/*
 * Words hold 32 bits of the number of the last exchange that wrote them. One that was left alone for 2^32 exchanges and is
 * awaited then would pass for what it is not. So every 2^24th exchange of a plane its senders also write the words that it
 * does not use, as if it did: they are theirs to write, and nobody looks at them in this exchange.
 */
__device__ __forceinline__ bool afdep_renewal_due(const afdep_shape_t &s, uint64_t exchange)
{
    return (afdep_round(s, exchange) & 0xFFFFFFu) == 0xFFFFFFu;
}

/* Entry of [n][capacity] arrays. */
__device__ __forceinline__ uint64_t afdep_slot(const afdep_shape_t &s, int n, int token)
{
    return (uint64_t)n * (uint32_t)s.capacity + (uint32_t)token;
}

/* ---- Calls --------------------------------------------------------------------------------------------------- */

/*
 * The number of the exchange that this call is for, the same in all CTAs. Whether the buffer is poisoned is asked where a
 * kernel waits, so that nothing stands before the first loads.
 *
 * With one exchange in flight in one domain, dispatch and reply alone count: the last of their CTAs moves the number on.
 * A collect is of the exchange that was dispatched last, a receive of the one after that which was replied to last; they
 * end without meeting, since the next kernel of the stream waits for their end. And dispatch and reply may look before
 * the wait for the kernel before them: the number was written by the last kernel but one, and the last has begun behind
 * its own wait for that one's end, or this one could not run yet.
 *
 * With several in flight calls of one kind follow each other, and each counts for itself, behind the wait; so do the calls
 * of many tokens across domains (of few: rail_few.cuh).
 */
__device__ __forceinline__ bool afdep_one_counts(const afdep_shape_t &s)
{
    return s.in_flight == 1 && s.protocol == AFDEP_PROTOCOL_DIRECT;
}

template <typename Early>
__device__ __forceinline__ uint64_t afdep_enter(const afdep_cuda_rank_t &r, int call, Early early_work)
{
    bool alone = afdep_one_counts(r.shape), early = alone && (call == AFDEP_CUDA_DISPATCH || call == AFDEP_CUDA_REPLY);
    int counted = alone && call == AFDEP_CUDA_COLLECT ? AFDEP_CUDA_DISPATCH : call;
    counted = alone && call == AFDEP_CUDA_RECEIVE ? AFDEP_CUDA_REPLY : counted;
    const volatile uint64_t *at = &r.state->count[counted];
    uint64_t before = 0;
    if (early) {
        before = *at;
        early_work(before + 1);
    }
    afdep_await_previous();
    if (r.shape.protocol == AFDEP_PROTOCOL_DIRECT) /* across domains: rail_few.cuh */
        afdep_let_next_start();
    if (!early)
        before = *at;
    return before + (alone && call == AFDEP_CUDA_COLLECT ? 0 : 1);
}

__device__ __forceinline__ uint64_t afdep_enter(const afdep_cuda_rank_t &r, int call)
{
    return afdep_enter(r, call, [](uint64_t) {});
}

/* The same for a kernel that may follow one of its own kind: the last one may count. */
__device__ __forceinline__ uint64_t afdep_enter_late(const afdep_cuda_rank_t &r, int call)
{
    afdep_await_previous();
    afdep_let_next_start();
    return *(const volatile uint64_t *)&r.state->count[call] + 1;
}

/* Called once per CTA, by one thread, behind a barrier of the CTA. True in the last one: the count releases what is before
   it and acquires what the others released, so everything that the CTAs wrote or read before is behind it. */
__device__ __forceinline__ bool afdep_last_of_grid(const afdep_cuda_rank_t &r, int call)
{
    if (gridDim.x == 1)
        return true;
    uint32_t before = afdep_add_acquire_release(&r.state->done[call]);
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

/* By the last thread of a dispatch: the first invalid choice of the exchange, if there was one, for the host. */
static __device__ void afdep_publish_bad_route(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    uint64_t found = *(volatile uint64_t *)&r.state->bad_route;
    if (found == AFDEP_CUDA_NO_ROUTE)
        return;
    r.state->bad_route = AFDEP_CUDA_NO_ROUTE;
    *(volatile uint64_t *)&r.record->route = found;
    __threadfence_system(); /* the choice before the word that says there is one */
    *(volatile uint64_t *)&r.record->route_exchange = exchange;
}

/* The end of a collect. */
__device__ __forceinline__ void afdep_leave_collect(const afdep_cuda_rank_t &r, uint64_t exchange)
{
    if (afdep_one_counts(r.shape)) { /* the number is for the host alone */
        if (blockIdx.x == 0 && threadIdx.x == 0)
            afdep_finish(r, AFDEP_CUDA_COLLECT, exchange);
        return;
    }
    if (afdep_leave(r, AFDEP_CUDA_COLLECT) && !afdep_poisoned(r))
        afdep_finish(r, AFDEP_CUDA_COLLECT, exchange);
}

/* ---- Send-only dispatches -------------------------------------------------------------------------------------- */

/* By a lane: whether exchange `exchange` is sent at once. The first to ask decides, for all CTAs. */
__device__ __forceinline__ bool afdep_decide(const afdep_cuda_rank_t &r, uint64_t exchange, bool verdict)
{
    unsigned long long mine = (unsigned long long)exchange << 1 | verdict;
    unsigned long long seen = *(volatile const uint64_t *)&r.state->decided;
    if (seen >> 1 != exchange) {
        seen = atomicCAS((unsigned long long *)&r.state->decided, seen, mine);
        seen = seen >> 1 == exchange ? seen : mine;
    }
    return seen & 1;
}

/*
 * The beginning of a dispatch in two kernels, by all threads of a CTA: whether this one sends, the same in all CTAs.
 * look() says whether nothing has to be waited for, wait() waits; both by a whole warp.
 */
template <typename Look, typename Wait>
static __device__ bool afdep_sends(const afdep_cuda_rank_t &r, int stage, uint64_t exchange, Look look, Wait wait)
{
    bool sends = true;
    if (threadIdx.x < AFDEP_WARP) {
        if (stage == AFDEP_CUDA_SEND_NOW) {
            bool nothing = look(), now = afdep_lane() == 0 && afdep_decide(r, exchange, nothing);
            sends = __shfl_sync(AFDEP_FULL, now, 0);
        } else if (stage == AFDEP_CUDA_SEND_LATE) {
            sends = *(volatile const uint64_t *)&r.state->decided != ((exchange - 1) << 1 | 1); /* that is this one's */
        }
        sends = sends && wait(); /* also where another CTA has looked: this one has acquired nothing yet */
    }
    return __syncthreads_and(sends);
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
