/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device communicator, whose structs are C++ in some versions of NCCL, and the addresses of a window, which only device
 * code may ask for in all of them.
 */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* in NCCL's headers, which nvcc does not take for system headers */
#include <nccl.h>
#include <nccl_device.h>
#pragma GCC diagnostic pop

#include <stdlib.h>

#include "cuda/nccl_team.h"

struct afdep_nccl_team {
    ncclDevComm comm;
};

ncclResult_t afdep_nccl_team_create(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t **team)
{
    /* From 2.29 on the struct carries its version, which this initializer sets. */
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements wanted = {};
#endif
    wanted.lsaBarrierCount = 1;
    afdep_nccl_team_t *made = (afdep_nccl_team_t *)calloc(1, sizeof(*made));
    if (!made)
        return ncclSystemError;
    ncclResult_t result = ((decltype(&ncclDevCommCreate))nccl->dev_comm_create)(comm, &wanted, &made->comm);
    if (result == ncclSuccess)
        *team = made;
    else
        free(made);
    return result;
}

void afdep_nccl_team_destroy(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t *team)
{
    (void)((decltype(&ncclDevCommDestroy))nccl->dev_comm_destroy)(comm, &team->comm);
    free(team);
}

void afdep_nccl_team_place(const afdep_nccl_team_t *team, int *rank, int *ranks)
{
    *rank = team->comm.lsaRank;
    *ranks = team->comm.lsaSize;
}

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
    addresses_kernel<<<1, 64, 0, stream>>>(window, ranks, found);
    error = cudaGetLastError();
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(addresses, found, bytes, cudaMemcpyDefault, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    (void)cudaFree(found);
    return error;
}
