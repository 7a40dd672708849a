/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL has no place where kernels run on the processor: whoever asks for a team of it is refused. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#ifdef AFDEP_HAVE_NCCL

#include "cuda/nccl_team.h"

ncclResult_t afdep_nccl_team_create(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t **team)
{
    (void)nccl, (void)comm, (void)team;
    return ncclInvalidUsage;
}

void afdep_nccl_team_destroy(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t *team)
{
    (void)nccl, (void)comm, (void)team;
}

void afdep_nccl_team_place(const afdep_nccl_team_t *team, int *rank, int *ranks)
{
    (void)team;
    *rank = *ranks = 0;
}

cudaError_t afdep_nccl_team_addresses(ncclWindow_t window, int ranks, void **addresses, cudaStream_t stream)
{
    (void)window, (void)ranks, (void)addresses, (void)stream;
    return cudaErrorNotSupported;
}

#endif
