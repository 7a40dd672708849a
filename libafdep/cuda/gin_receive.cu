/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of rail_receive.cu over the GIN rail. */
#define AFDEP_RAIL_GIN 1
#define AFDEP_AT_ONCE 3 /* calls of GIN take registers too, and a network is not waited for by the word */
#include "cuda/rail_receive.cu"
