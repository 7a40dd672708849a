/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device communicator: the ranks that reach each other by load and store, and GPU-initiated networking (GIN) to the
 * others. What only C++ can ask NCCL for, since its structs are C++ in some versions.
 */
#ifndef AFDEP_CUDA_NCCL_TEAM_H
#define AFDEP_CUDA_NCCL_TEAM_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cuda/nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct afdep_nccl_team afdep_nccl_team_t;

typedef struct afdep_nccl_wanted {
    int gin;           /* several domains */
    int contexts;      /* at most */
    int signals;       /* the same number on all ranks */
    int traffic_class; /* -1: NCCL's own */
} afdep_nccl_wanted_t;

typedef struct afdep_nccl_found {
    int lsa_rank, lsa_ranks; /* this rank's place in the load/store team, and its ranks */
    int gin_type;            /* NCCL's number: 2 the proxy, 3 GDAKI, ...; 0 without GIN */
    int contexts;
} afdep_nccl_found_t;

/* Collective over `comm`: a device communicator. */
ncclResult_t afdep_nccl_team_create(const afdep_nccl_t *nccl, ncclComm_t comm, const afdep_nccl_wanted_t *wanted,
                                    afdep_nccl_team_t **team);
void afdep_nccl_team_destroy(const afdep_nccl_t *nccl, ncclComm_t comm, afdep_nccl_team_t *team);
void afdep_nccl_team_find(const afdep_nccl_team_t *team, afdep_nccl_found_t *found);

/* Local. The first byte of `window` at ranks 0 to `ranks` - 1 of the load/store team, as this rank's device addresses it. */
cudaError_t afdep_nccl_team_addresses(ncclWindow_t window, int ranks, void **addresses, cudaStream_t stream);

/* Local. What kernels over the GIN rail are given: in host memory at `*host` and in device memory at `*device`, both the
   team's. `contexts` of those found are used, and `ranks_per_domain` is the load/store team's size. */
cudaError_t afdep_nccl_team_gin(afdep_nccl_team_t *team, ncclWindow_t window, int contexts, int ranks_per_domain,
                                const void **host, const void **device);

/* Local. Writes `value` to the word at `offset` of this rank's own segment and of all others of its rail, and waits up to
   `timeout_ms` until that has left this rank; cudaErrorTimeout then. */
cudaError_t afdep_nccl_team_tell(afdep_nccl_team_t *team, unsigned char *base, uint64_t offset, uint64_t value, int timeout_ms,
                                 cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
