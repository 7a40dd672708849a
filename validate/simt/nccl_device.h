/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of NCCL's device header, where kernels are compiled for the processor: the part of it that this project uses,
 * over a network of threads (nccl.cc) that promises no more than GIN does. A put arrives at any time, and its source is read
 * then; a signal arrives after what was put before it on its context and for its peer, and before or after anything else.
 */
#ifndef AFDEP_SIMT_NCCL_DEVICE_H
#define AFDEP_SIMT_NCCL_DEVICE_H

#include <cuda_runtime.h>
#include <nccl.h>

/* A window, behind NCCL's own opaque type: every rank's memory. */
struct afdep_simt_window {
    unsigned char **at; /* [ranks] */
    size_t bytes;
    int rank, ranks_per_domain;
};

struct afdep_simt_world;

typedef uint32_t ncclGinSignal_t, ncclGinCounter_t;

struct ncclTeam {
    int nRanks, rank, stride;
};

struct ncclDevComm {
    int rank, nRanks, lsaRank, lsaSize;
    uint8_t ginContextCount, ginTypes[4];
    int ginSignalCount;
    afdep_simt_world *world;
};

struct ncclDevCommRequirements {
    int lsaBarrierCount;
    bool ginForceEnable;
    int ginContextCount, ginSignalCount, ginCounterCount;
};

extern "C" {
ncclResult_t ncclDevCommCreate(ncclComm_t, ncclDevCommRequirements const *, ncclDevComm *);
ncclResult_t ncclDevCommDestroy(ncclComm_t, ncclDevComm const *);
}

static inline ncclTeam ncclTeamRail(const ncclDevComm &comm)
{
    return { comm.nRanks / comm.lsaSize, comm.rank / comm.lsaSize, comm.lsaSize };
}

static inline void *ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer)
{
    const afdep_simt_window *w = (const afdep_simt_window *)window;
    return w->at[w->rank / w->ranks_per_domain * w->ranks_per_domain + peer] + offset;
}

struct ncclGin_None {};
struct ncclGin_SignalAdd {
    ncclGinSignal_t signal;
    uint64_t value;
};
struct ncclGin_CounterInc {
    ncclGinCounter_t counter;
};

/* What goes from one rank to another on a context. Signal or counter -1: none. */
struct afdep_simt_put {
    const unsigned char *from;
    unsigned char *to;
    size_t bytes;
    int64_t signal, counter;
    uint64_t value;
};

/* nccl.cc */
void afdep_simt_post(const ncclDevComm &comm, int context, int peer, const afdep_simt_put &put);
uint64_t *afdep_simt_signal(const ncclDevComm &comm, int context, int64_t signal);
uint64_t *afdep_simt_counter(const ncclDevComm &comm, int context, int64_t counter);

struct ncclGin {
    const ncclDevComm &comm;
    int context;

    ncclGin(const ncclDevComm &comm, int index) : comm(comm), context(index % comm.ginContextCount)
    {
    }

    static void act(afdep_simt_put *, ncclGin_None)
    {
    }

    static void act(afdep_simt_put *put, ncclGin_SignalAdd add)
    {
        put->signal = add.signal;
        put->value = add.value;
    }

    static void act(afdep_simt_put *put, ncclGin_CounterInc counted)
    {
        put->counter = counted.counter;
    }

    template <typename Remote = ncclGin_None, typename Local = ncclGin_None>
    void put(ncclTeam team, int peer, ncclWindow_t to, size_t to_offset, ncclWindow_t from, size_t from_offset, size_t bytes,
             Remote remote = {}, Local local = {}) const
    {
        const afdep_simt_window *t = (const afdep_simt_window *)to, *f = (const afdep_simt_window *)from;
        int rank = comm.rank + (peer - team.rank) * team.stride;
        if (to_offset > t->bytes || bytes > t->bytes - to_offset || from_offset > f->bytes || bytes > f->bytes - from_offset)
            abort(); /* what a NIC refuses */
        afdep_simt_put p = { f->at[comm.rank] + from_offset, t->at[rank] + to_offset, bytes, -1, -1, 0 };
        act(&p, remote);
        act(&p, local);
        afdep_simt_post(comm, context, rank, p);
    }

    template <typename Remote> void signal(ncclTeam team, int peer, Remote remote) const
    {
        afdep_simt_put p = { NULL, NULL, 0, -1, -1, 0 };
        act(&p, remote);
        afdep_simt_post(comm, context, comm.rank + (peer - team.rank) * team.stride, p);
    }

    uint64_t readSignal(ncclGinSignal_t signal) const
    {
        return afdep_simt_load(afdep_simt_signal(comm, context, signal), __ATOMIC_ACQUIRE);
    }

    uint64_t readCounter(ncclGinCounter_t counter) const
    {
        return afdep_simt_load(afdep_simt_counter(comm, context, counter), __ATOMIC_ACQUIRE);
    }
};

#endif
