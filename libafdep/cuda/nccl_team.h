/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of an NCCL communicator that reach each other by load and store: what only C++ can ask NCCL for. */
#ifndef AFDEP_CUDA_NCCL_TEAM_H
#define AFDEP_CUDA_NCCL_TEAM_H

#include <cuda_runtime_api.h>

#include "cuda/nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct afdep_nccl_team afdep_nccl_team_t;

/* Collective over `comm`: a device communicator with a load/store team. */
ncclResult_t afdep_nccl_team_create(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t **team);
void afdep_nccl_team_destroy(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t *team);

/* This rank's place in the team, and its ranks. */
void afdep_nccl_team_place(const afdep_nccl_team_t *team, int *rank, int *ranks);

/* Local. The first byte of `window` at ranks 0 to `ranks` - 1 of the team, as this rank's device addresses it. */
cudaError_t afdep_nccl_team_addresses(ncclWindow_t window, int ranks, void **addresses, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
