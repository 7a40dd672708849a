/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether this host, in this job, can do its part of a cluster run: every requirement at once, each fatal or optional,
 * with what was found. What is found and what follows from it are apart, so that machines nobody has at hand can be
 * judged from what they would say.
 */
#ifndef AFDEP_BENCH_PREFLIGHT_H
#define AFDEP_BENCH_PREFLIGHT_H

#include <cjson/cJSON.h>

#include "bench/lib/scenario.h"

#define AFDEP_PREFLIGHT_TEXT 128

typedef struct afdep_preflight_facts {
    cJSON *machine;          /* afdep_record_machine(), the NICs' part taken from `root`; owned */
    const char *root;        /* where /sys and /proc are found, "" but in tests */
    int launched;            /* tasks of the job; 0: no launcher's variables */
    int local;               /* of them on this host; 0: the launcher does not say */
    const char *launcher;    /* whose variable said so */
    int peermem;             /* 1: the kernel module that lets NICs reach GPU memory is loaded */
    int dmabuf;              /* 1: the driver exports GPU memory as DMA-BUF; 0: not; -1: no driver to ask */
    int built_nccl;          /* 1: configured with NCCL */
    char header[32];         /* NCCL's version as compiled against; "" without NCCL */
    char runtime[32];        /* as loaded now; "" where it cannot be */
    char runtime_why[AFDEP_PREFLIGHT_TEXT]; /* why it cannot be loaded */
    /* NCCL's variables; "" unset */
    char gin_type[32], gin_enable[32], net_plugin[AFDEP_PREFLIGHT_TEXT], ib_disable[32];
    double memlock_bytes;    /* what may be locked; -1: any amount */
    int mpi;                 /* 1: built with MPI */
} afdep_preflight_facts_t;

/* What this host and this process's environment say. Starts no GPU work. */
void afdep_preflight_gather(const char *root, afdep_preflight_facts_t *facts);
void afdep_preflight_free(afdep_preflight_facts_t *facts);

/*
 * The requirements of `scenario`, or of a run across domains of two where it is NULL:
 * {"schema": "afdep-preflight/1", "scenario", "requirements": [{"name", "fatal", "met", "needed", "found"}],
 *  "unmet_fatal", "unmet_optional"}. `met` is null where it does not apply. The caller owns it.
 */
cJSON *afdep_preflight_judge(const afdep_preflight_facts_t *facts, const afdep_scenario_t *scenario);

/* The tasks of a launched job, from the variables of Slurm and of MPI launchers; `look_up` is getenv but in tests. */
void afdep_preflight_launched(const char *(*look_up)(const char *name), afdep_preflight_facts_t *facts);

/* How near two PCI devices are in the tree below `root`: 2 below one switch, 1 below one root complex, 0 otherwise or
   where it cannot be told. Addresses as nvidia-smi or the kernel write them. */
int afdep_preflight_near(const char *root, const char *a, const char *b);

#endif
