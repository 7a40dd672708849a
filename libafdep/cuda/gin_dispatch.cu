/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of rail_dispatch.cu over the GIN rail. */
#define AFDEP_RAIL_GIN 1
#include "cuda/rail_dispatch.cu"
