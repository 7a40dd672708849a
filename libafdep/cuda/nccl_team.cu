/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device communicator, whose structs are C++ in some versions of NCCL; the addresses of a window, which only device
 * code may ask for in all of them; and the words that the host side sends over GIN.
 */
#include <stdlib.h>

#include "cuda/launch.cuh"
#include "cuda/nccl_team.h"
#include "cuda/ptx.cuh"
#if AFDEP_NCCL_HAS_GIN
#include "cuda/gin.cuh"
#else
#include <nccl_device.h>
#endif

struct afdep_nccl_team {
    ncclDevComm comm;
#if AFDEP_NCCL_HAS_GIN
    afdep_gin_t gin;
#endif
    void *gin_device;    /* the same, in device memory */
    int *told;           /* device memory: whether the last word has left in time */
    uint64_t told_words; /* words that have been sent so, each counted by NCCL when it is through */
};

#if AFDEP_NCCL_HAS_GIN
static void ask_for_gin(ncclDevCommRequirements *r, const afdep_nccl_wanted_t *wanted)
{
    r->ginForceEnable = true;
    r->ginContextCount = wanted->contexts;
    r->ginSignalCount = wanted->signals;
    r->ginCounterCount = 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 2) /* before, all ranks are connected */
    r->ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 3) /* before, there is none to be had; fabric_nccl.c has refused it */
    if (wanted->traffic_class >= 0)
        r->ginTrafficClass = wanted->traffic_class;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 5)
    r->ginVaSignalsRequired = false;
#endif
}
#else
static void ask_for_gin(ncclDevCommRequirements *, const afdep_nccl_wanted_t *) /* fabric_nccl.c has refused it */
{
}
#endif

ncclResult_t afdep_nccl_team_create(const afdep_nccl_t *nccl, ncclComm_t comm, const afdep_nccl_wanted_t *wanted,
                                    afdep_nccl_team_t **team)
{
    /* From 2.29 on the struct carries its version, which this initializer sets. */
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements r = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements r = {};
#endif
    r.lsaBarrierCount = 1;
    if (wanted->gin)
        ask_for_gin(&r, wanted);
    afdep_nccl_team_t *made = (afdep_nccl_team_t *)calloc(1, sizeof(*made));
    if (!made)
        return ncclSystemError;
    ncclResult_t result = ((decltype(&ncclDevCommCreate))nccl->dev_comm_create)(comm, &r, &made->comm);
    if (result == ncclSuccess)
        *team = made;
    else
        free(made);
    return result;
}

void afdep_nccl_team_destroy(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t *team)
{
    (void)((decltype(&ncclDevCommDestroy))nccl->dev_comm_destroy)(comm, &team->comm);
    (void)cudaFree(team->gin_device);
    (void)cudaFree(team->told);
    free(team);
}

void afdep_nccl_team_find(const afdep_nccl_team_t *team, afdep_nccl_found_t *found)
{
    found->lsa_rank = team->comm.lsaRank;
    found->lsa_ranks = team->comm.lsaSize;
    found->contexts = found->gin_type = 0;
#if AFDEP_NCCL_HAS_GIN
    found->contexts = (int)team->comm.ginContextCount;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 2)
    found->gin_type = found->contexts ? team->comm.ginNetDeviceTypes[0] : 0;
#elif AFDEP_NCCL_HAS_GIN
    found->gin_type = found->contexts ? team->comm.ginTypes[0] : 0;
#endif
}

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static __global__ void addresses_kernel(ncclWindow_t window, int ranks, void **addresses)
{
    for (int rank = (int)threadIdx.x; rank < ranks; rank += (int)blockDim.x)
        addresses[rank] = ncclGetLsaPointer(window, 0, rank);
}

cudaError_t afdep_nccl_team_addresses(ncclWindow_t window, int ranks, void **addresses, cudaStream_t stream)
{
    void **found = nullptr;
    size_t bytes = (size_t)ranks * sizeof(*found);
    cudaError_t error = cudaMalloc((void **)&found, bytes);
    if (error != cudaSuccess)
        return error;
    error = afdep_launch_apart(addresses_kernel, 1, 32, 0, stream, window, ranks, found);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(addresses, found, bytes, cudaMemcpyDefault, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    (void)cudaFree(found);
    return error;
}

/* ---- GIN --------------------------------------------------------------------------------------------------------- */

#if AFDEP_NCCL_HAS_GIN
#define TOLD_COUNTER 0 /* the only one */

cudaError_t afdep_nccl_team_gin(afdep_nccl_team_t *team, ncclWindow_t window, int contexts, int ranks_per_domain,
                                const void **host, const void **device)
{
    team->gin.comm = team->comm;
    team->gin.window = window;
    team->gin.contexts = contexts;
    team->gin.ranks_per_domain = ranks_per_domain;
    cudaError_t error = cudaMalloc((void **)&team->told, sizeof(*team->told));
    if (error == cudaSuccess)
        error = cudaMalloc(&team->gin_device, sizeof(team->gin));
    if (error == cudaSuccess)
        error = cudaMemcpy(team->gin_device, &team->gin, sizeof(team->gin), cudaMemcpyHostToDevice);
    *host = &team->gin;
    *device = team->gin_device;
    return error;
}

typedef struct telling {
    unsigned char *base;
    uint64_t offset, value, counted, timeout_ns;
} telling_t;

/* One thread. A counter is what says that a put is through without a wait that never ends where it never is. */
static __global__ void tell_kernel(const __grid_constant__ afdep_gin_t gin, const __grid_constant__ telling_t t, int *told)
{
    int peers = ncclTeamRail(gin.comm).nRanks, own = ncclTeamRail(gin.comm).rank;
    uint64_t since = afdep_now_ns();
    ncclGin net(gin.comm, AFDEP_GIN_CONTROL);
    *(volatile uint64_t *)(t.base + t.offset) = t.value;
    for (int peer = 0; peer < peers; peer++)
        if (peer != own)
            afdep_gin_put_word(gin, peer * gin.ranks_per_domain, t.offset, afdep_gin_counted_t{ TOLD_COUNTER });
    *told = 0;
    do
        *told = net.readCounter(TOLD_COUNTER) == t.counted;
    while (!*told && afdep_now_ns() - since < t.timeout_ns);
}

cudaError_t afdep_nccl_team_tell(afdep_nccl_team_t *team, unsigned char *base, uint64_t offset, uint64_t value, int timeout_ms,
                                 cudaStream_t stream)
{
    int told = 0, peers = team->comm.nRanks / team->comm.lsaSize - 1;
    team->told_words += (uint64_t)peers;
    telling_t t = { base, offset, value, team->told_words, (uint64_t)timeout_ms * 1000000u };
    cudaError_t error = afdep_launch_apart(tell_kernel, 1, 1, 0, stream, team->gin, t, team->told);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&told, team->told, sizeof(told), cudaMemcpyDefault, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    return error == cudaSuccess && !told ? cudaErrorTimeout : error;
}
#else
cudaError_t afdep_nccl_team_gin(afdep_nccl_team_t *, ncclWindow_t, int, int, const void **, const void **)
{
    return cudaErrorNotSupported;
}

cudaError_t afdep_nccl_team_tell(afdep_nccl_team_t *, unsigned char *, uint64_t, uint64_t, int, cudaStream_t)
{
    return cudaErrorNotSupported;
}
#endif
