/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine has, beyond afdep_record_machine(): the parts that read other programs' text, so that they can be
 * tested on machines that lack the hardware.
 */
#ifndef AFDEP_BENCH_MACHINE_H
#define AFDEP_BENCH_MACHINE_H

#include <cjson/cJSON.h>

/* What nvidia-smi is asked for; the columns afdep_machine_parse_gpus() expects. */
#define AFDEP_GPU_QUERY "name,memory.total,compute_cap,pci.bus_id,mig.mode.current,driver_version"

/* Lines of `nvidia-smi --query-gpu=AFDEP_GPU_QUERY --format=csv,noheader,nounits` as a list of GPUs ({"name",
   "memory_bytes", "compute", "pci", "mig", "nvlinks", "nvlink_gbytes_per_s"}); `driver` ([size]) gets the driver's
   version, or "". Lines that do not fit are left out. */
cJSON *afdep_machine_parse_gpus(const char *text, char *driver, size_t size);

/* Adds what `nvidia-smi nvlink --status` prints ("GPU 0: ...", " Link 0: 26.562 GB/s") to those GPUs. */
void afdep_machine_parse_nvlinks(const char *text, cJSON *gpus);

/* The driver's version from the text of /proc/driver/nvidia/version, or "". */
void afdep_machine_parse_driver(const char *text, char *driver, size_t size);

/* Number of GPUs in a machine object, 0 when it lists none. */
int afdep_machine_gpus(const cJSON *machine);

/* Fabrics and backends: [{"name", "built": true|false, "why"}]; "why": not built, or built and not to be had on this
   machine; else null. */
cJSON *afdep_machine_backends(void);
cJSON *afdep_machine_fabrics(void);

#endif
