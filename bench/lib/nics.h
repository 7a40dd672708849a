/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA devices of this machine. */
#ifndef AFDEP_BENCH_NICS_H
#define AFDEP_BENCH_NICS_H

#include <cjson/cJSON.h>

/* [{"name", "firmware", "atomics": "none|hca|global", "ports": [{"port", "state", "link", "rate_gbits_per_s"}]}], or
   null in a build without rdma-core. The caller owns it. */
cJSON *afdep_nics(void);

#endif
