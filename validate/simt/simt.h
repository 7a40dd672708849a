/* SPDX-License-Identifier: Apache-2.0 */
/* What runs kernels, for the runtime's calls. */
#ifndef AFDEP_SIMT_SIMT_H
#define AFDEP_SIMT_SIMT_H

#include <cuda_runtime.h>

/* Runs all CTAs of a kernel and returns when they are over. */
void afdep_simt_run(dim3 grid, dim3 block, const std::function<void()> &body);

#endif
