/* SPDX-License-Identifier: Apache-2.0 */
/* The host side of the directional protocol on GPUs: what backend.c opens and closes where ranks are of several domains. */
#ifndef AFDEP_CUDA_RAIL_OPEN_H
#define AFDEP_CUDA_RAIL_OPEN_H

#include "core/config.h"
#include "cuda/driver.h"
#include "cuda/fabric.h"
#include "cuda/rail.h"

#define AFDEP_RAIL_MOST_CTAS 160 /* of a kernel: no GPU that this runs on has more SMs to give */

typedef struct afdep_rail_launchers {
    cudaError_t (*dispatch)(const afdep_rail_rank_t *rank, const afdep_cuda_dispatch_t *call, int grid, cudaStream_t stream);
    cudaError_t (*receive)(const afdep_rail_rank_t *rank, const afdep_cuda_receive_t *call, int grid, cudaStream_t stream);
    cudaError_t (*reply)(const afdep_rail_rank_t *rank, const afdep_cuda_reply_t *call, int grid, cudaStream_t stream);
    cudaError_t (*collect)(const afdep_rail_rank_t *rank, const afdep_cuda_collect_t *call, int grid, cudaStream_t stream);
    cudaError_t (*prepare_dispatch)(const afdep_shape_t *shape), (*prepare_receive)(const afdep_shape_t *shape);
    cudaError_t (*prepare_reply)(const afdep_shape_t *shape), (*prepare_collect)(const afdep_shape_t *shape);
} afdep_rail_launchers_t;

typedef struct afdep_rail {
    afdep_rail_rank_t params;
    const afdep_rail_launchers_t *launch; /* of the fabric's rail */
    unsigned char *arena; /* device memory */
} afdep_rail_t;

/* UNSUPPORTED where the kernels' limits are exceeded. */
afdep_status_t afdep_rail_check(const afdep_settings_t *settings);

/* Device memory of one rank beside its segment and what the other protocol needs too. */
uint64_t afdep_rail_private_bytes(const afdep_settings_t *settings, int ffn);

/* Signals of a rank where the rail is GIN: as many on all ranks. */
int afdep_rail_signals(const afdep_settings_t *settings);

/* Bytes of a rank's segment. */
uint64_t afdep_rail_segment_bytes(const afdep_settings_t *settings, int ffn);

/* Local. */
afdep_status_t afdep_rail_open_arena(afdep_rail_t *rail, const afdep_settings_t *settings, int ffn);
afdep_status_t afdep_rail_prepare_segment(const afdep_settings_t *settings, int ffn, void *base, cudaStream_t stream);
void afdep_rail_close(afdep_rail_t *rail);

/* Local. Loads the kernels, and computes how many CTAs the kernels of this rank may have so that those of all ranks on its
   GPU are resident at once; refuses, with the numbers, where they cannot be. */
afdep_status_t afdep_rail_share(const afdep_settings_t *settings, const afdep_device_fabric_t *fabric, int device,
                                afdep_cuda_grids_t *grids);

/* Fills in what the fabric found, once everything else of `common` is there. */
void afdep_rail_connect(afdep_rail_t *rail, const afdep_settings_t *settings, const afdep_cuda_rank_t *common,
                        const afdep_device_fabric_t *fabric, const afdep_cuda_grids_t *grids);

/* As the kernels that are over have counted; `to` is [ranks]. */
void afdep_rail_read_counters(const afdep_rail_t *rail, cudaStream_t stream, afdep_peer_counters_t *to);

#endif
