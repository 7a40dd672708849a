/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA devices of this machine. */
#ifndef AFDEP_BENCH_NICS_H
#define AFDEP_BENCH_NICS_H

#include <cjson/cJSON.h>

/* [{"name", "pci", "firmware", "atomics": "none|hca|global", "ports": [{"port", "state", "link", "mtu",
   "rate_gbits_per_s"}]}], or null in a build without rdma-core. `root` is where /sys is found, "" but in tests. The
   caller owns it. */
cJSON *afdep_nics(const char *root);

#endif
