/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The barrier behind aligned starts. Arrivals are counted up and never reset: round n is over on a host when n times
 * its ranks have arrived, and is released by the host's first rank once all hosts are that far.
 */
#include "bench/bench_align.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifdef AFDEP_HAVE_MPI
#include <mpi.h>
#endif

#define SPINS_BEFORE_YIELD 64
#define LOOK_EVERY_NS 100000000

struct afdep_align {
    afdep_align_area_t *area;
    afdep_align_slot_t *slots; /* [host_ranks] */
    int host_rank, host_ranks;
    int one_host;
    int processes_tell;   /* a process that is gone can be told by its number */
    int64_t timeout_ns; /* of the wait in progress */
    uint64_t round;
#ifdef AFDEP_HAVE_MPI
    int processes;
    int *world_ranks; /* [host_ranks] */
    MPI_Comm host, firsts;
    MPI_Win window;
    MPI_Request meeting; /* of the hosts' first ranks */
#endif
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static size_t area_bytes(int ranks)
{
    return sizeof(afdep_align_area_t) + (size_t)ranks * sizeof(afdep_align_slot_t);
}

afdep_align_area_t *afdep_align_area_create(int ranks)
{
    afdep_align_area_t *area = aligned_alloc(64, area_bytes(ranks));
    if (area)
        memset(area, 0, area_bytes(ranks));
    return area;
}

static int world_rank_of(const afdep_align_t *align, int host_rank)
{
#ifdef AFDEP_HAVE_MPI
    if (align->world_ranks)
        return align->world_ranks[host_rank];
#else
    (void)align;
#endif
    return host_rank;
}

#ifdef AFDEP_HAVE_MPI
/* Every process of the host sees every other by its number, which containers of their own would prevent. */
static int all_processes_seen(const afdep_align_t *align)
{
    int seen = 1;
    for (int r = 0; r < align->host_ranks; r++)
        if (kill((pid_t)align->slots[r].process, 0) != 0 && errno == ESRCH)
            seen = 0;
    MPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_INT, MPI_MIN, align->host);
    return seen;
}

static int open_processes(afdep_align_t *align, afdep_world_t *world, char *why, size_t why_size)
{
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &align->host) !=
        MPI_SUCCESS) {
        snprintf(why, why_size, "MPI cannot tell which ranks share a host");
        return -1;
    }
    MPI_Comm_set_errhandler(align->host, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_rank(align->host, &align->host_rank);
    MPI_Comm_size(align->host, &align->host_ranks);
    align->one_host = align->host_ranks == world->size;
    MPI_Allreduce(MPI_IN_PLACE, &align->one_host, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Comm_split(MPI_COMM_WORLD, align->host_rank == 0 ? 0 : MPI_UNDEFINED, world->rank, &align->firsts);
    if (align->firsts != MPI_COMM_NULL)
        MPI_Comm_set_errhandler(align->firsts, MPI_ERRORS_ARE_FATAL);
    align->world_ranks = calloc((size_t)align->host_ranks, sizeof(int));
    size_t bytes = area_bytes(align->host_ranks) + 64;
    MPI_Aint size = align->host_rank == 0 ? (MPI_Aint)bytes : 0;
    void *base = NULL;
    if (!align->world_ranks ||
        MPI_Win_allocate_shared(size, 1, MPI_INFO_NULL, align->host, &base, &align->window) != MPI_SUCCESS) {
        snprintf(why, why_size, "no shared memory for aligning the starts of %d ranks", align->host_ranks);
        return -1;
    }
    int unit;
    MPI_Win_shared_query(align->window, 0, &size, &unit, &base);
    align->area = (afdep_align_area_t *)(((uintptr_t)base + 63) / 64 * 64);
    align->slots = (afdep_align_slot_t *)(align->area + 1);
    if (align->host_rank == 0) {
        atomic_init(&align->area->arrivals, 0);
        atomic_init(&align->area->released, 0);
    }
    atomic_init(&align->slots[align->host_rank].arrived, 0);
    align->slots[align->host_rank].process = getpid();
    MPI_Allgather(&world->rank, 1, MPI_INT, align->world_ranks, 1, MPI_INT, align->host);
    MPI_Barrier(align->host);
    align->processes_tell = all_processes_seen(align);
    return 0;
}
#endif

afdep_align_t *afdep_align_open(afdep_world_t *world, afdep_align_area_t *area, char *why, size_t why_size)
{
    afdep_align_t *align = calloc(1, sizeof(*align));
    if (!align) {
        snprintf(why, why_size, "no memory for aligning starts");
        return NULL;
    }
    if (world->threads) {
        align->area = area;
        align->slots = (afdep_align_slot_t *)(area + 1);
        align->host_rank = world->rank;
        align->host_ranks = world->size;
        align->one_host = 1;
        return align;
    }
#ifdef AFDEP_HAVE_MPI
    align->processes = 1;
    align->host = align->firsts = MPI_COMM_NULL;
    align->window = MPI_WIN_NULL;
    if (open_processes(align, world, why, why_size) == 0)
        return align;
    afdep_align_close(align);
#else
    snprintf(why, why_size, "ranks that are processes need a build with MPI");
    free(align);
#endif
    return NULL;
}

int afdep_align_host_ranks(const afdep_align_t *align)
{
    return align->host_ranks;
}

int afdep_align_one_host(const afdep_align_t *align)
{
    return align->one_host;
}

/* Names the ranks of this host that have not come, or that are gone (`gone`: those only). Returns how many. */
static int name_missing(const afdep_align_t *align, int gone, char *why, size_t why_size)
{
    int found = 0, written = 0;
    for (int r = 0; r < align->host_ranks; r++) {
        const afdep_align_slot_t *slot = &align->slots[r];
        if (atomic_load_explicit(&slot->arrived, memory_order_relaxed) >= align->round)
            continue;
        if (gone && !(kill((pid_t)slot->process, 0) != 0 && errno == ESRCH))
            continue;
        if (found++ < 8)
            written += snprintf(why + written, why_size - (size_t)written, "%s%d", found > 1 ? ", " : "",
                                world_rank_of(align, r));
    }
    if (found > 8)
        snprintf(why + written, why_size - (size_t)written, " and %d more", found - 8);
    return found;
}

static int give_up(const afdep_align_t *align, int gone, char *why, size_t why_size)
{
    char names[128] = "none of this host's";
    int missing = name_missing(align, gone, names, sizeof(names));
    if (gone && missing == 0)
        return 0;
    if (gone)
        snprintf(why, why_size, "rank %s: the process is gone", names);
    else
        snprintf(why, why_size, "waited %lld ms for the start of an exchange; missing ranks: %s",
                 (long long)(align->timeout_ns / 1000000), names);
    return -1;
}

/* Waits until `done(align)`; gives up at the deadline, when a process is gone, or when `look` says so. */
static int wait_until(afdep_align_t *align, int (*done)(afdep_align_t *align), int (*look)(void *context),
                      void *context, char *why, size_t why_size)
{
    int64_t deadline = 0, next_look = 0;
    for (unsigned spins = 0; !done(align); spins++) {
        if (spins < SPINS_BEFORE_YIELD)
            continue;
        sched_yield();
        if (spins % 16 != 0)
            continue;
        int64_t now = now_ns();
        if (deadline == 0) {
            deadline = now + align->timeout_ns;
            next_look = now + LOOK_EVERY_NS;
        }
        if (now < next_look)
            continue;
        next_look = now + LOOK_EVERY_NS;
        if (look && look(context)) {
            if (why_size)
                why[0] = '\0';
            return -1;
        }
        if (align->processes_tell && give_up(align, 1, why, why_size) != 0)
            return -1;
        if (now > deadline)
            return give_up(align, 0, why, why_size);
    }
    return 0;
}

static int host_arrived(afdep_align_t *align)
{
    return atomic_load_explicit(&align->area->arrivals, memory_order_acquire) >=
           align->round * (uint64_t)align->host_ranks;
}

static int host_released(afdep_align_t *align)
{
    return atomic_load_explicit(&align->area->released, memory_order_acquire) >= align->round;
}

#ifdef AFDEP_HAVE_MPI
static int hosts_met(afdep_align_t *align)
{
    int done = 0;
    MPI_Test(&align->meeting, &done, MPI_STATUS_IGNORE);
    return done;
}
#endif

int afdep_align_wait(afdep_align_t *align, int timeout_ms, int (*look)(void *context), void *context, char *why,
                     size_t why_size)
{
    align->timeout_ns = (int64_t)timeout_ms * 1000000;
    align->round++;
    atomic_store_explicit(&align->slots[align->host_rank].arrived, align->round, memory_order_relaxed);
    atomic_fetch_add_explicit(&align->area->arrivals, 1, memory_order_acq_rel);
    if (align->host_rank != 0)
        return wait_until(align, host_released, look, context, why, why_size);
    if (wait_until(align, host_arrived, look, context, why, why_size) != 0)
        return -1;
#ifdef AFDEP_HAVE_MPI
    if (!align->one_host) {
        MPI_Ibarrier(align->firsts, &align->meeting);
        if (wait_until(align, hosts_met, look, context, why, why_size) != 0)
            return -1;
    }
#endif
    atomic_store_explicit(&align->area->released, align->round, memory_order_release);
    return 0;
}

void afdep_align_close(afdep_align_t *align)
{
    if (!align)
        return;
#ifdef AFDEP_HAVE_MPI
    if (align->processes) {
        if (align->window != MPI_WIN_NULL)
            MPI_Win_free(&align->window);
        if (align->firsts != MPI_COMM_NULL)
            MPI_Comm_free(&align->firsts);
        if (align->host != MPI_COMM_NULL)
            MPI_Comm_free(&align->host);
        free(align->world_ranks);
    }
#endif
    free(align);
}
