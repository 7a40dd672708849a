/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of rail_reply.cu over the GIN rail. */
#define AFDEP_RAIL_GIN 1
#define AFDEP_SUM_COLUMNS 6 /* calls of GIN take registers too, and a network is not waited for by the word */
#include "cuda/rail_reply.cu"
