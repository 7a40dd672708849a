/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that takes a stated time, in the place of experts. */
#ifndef AFDEP_BENCH_LIB_SPIN_H
#define AFDEP_BENCH_LIB_SPIN_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts it onto the stream: one warp on one SM, by the GPU's clock. */
cudaError_t afdep_spin(int us, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
