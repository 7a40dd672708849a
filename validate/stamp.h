/* SPDX-License-Identifier: Apache-2.0 */
/* Time as the GPU tells it between kernels of a stream, also inside a recording. */
#ifndef AFDEP_VALIDATE_STAMP_H
#define AFDEP_VALIDATE_STAMP_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts a kernel onto the stream that writes the GPU's global timer, in ns, to `at` (device memory) once the kernel before
   it has ended. Between two of these stands what is between them, and the edges of kernels on both sides. */
cudaError_t afdep_stamp(uint64_t *at, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
