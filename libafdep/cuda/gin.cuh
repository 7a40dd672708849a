/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's GIN as this rank's kernels use it: included by the files that are compiled for it, see rail.cuh. */
#ifndef AFDEP_CUDA_GIN_CUH
#define AFDEP_CUDA_GIN_CUH

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* in NCCL's headers, which nvcc does not take for system headers */
#include <nccl.h>
#include <nccl_device.h>
#pragma GCC diagnostic pop

#include <cuda_runtime.h>
#include <stdint.h>

/* Signals cover what was put before them on their context and for their peer: from 2.30.5 on only where they say so. */
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 5)
typedef ncclGin_StrongSignalAdd afdep_gin_add_t;
typedef ncclGin_WeakCounterInc afdep_gin_counted_t;
#else
typedef ncclGin_SignalAdd afdep_gin_add_t;
typedef ncclGin_CounterInc afdep_gin_counted_t;
#endif

/* The same for all kernels of a rank; contexts are the same on all ranks. */
typedef struct afdep_gin {
    ncclDevComm comm;
    ncclWindow_t window; /* every rank's segment */
    int32_t contexts, ranks_per_domain;
} afdep_gin_t;

#define AFDEP_GIN_CONTROL 0 /* the context of words that publish no row */

/* Puts the word at `offset` of this rank's segment to the same place of a peer's; one thread. */
template <typename Local>
static __device__ void afdep_gin_put_word(const afdep_gin_t &g, int rank, uint64_t offset, Local local)
{
    ncclGin gin(g.comm, AFDEP_GIN_CONTROL);
    gin.put(ncclTeamRail(g.comm), rank / g.ranks_per_domain, g.window, offset, g.window, offset, sizeof(uint64_t),
            ncclGin_None{}, local);
}

#endif
