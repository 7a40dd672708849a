/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What afdep-bench was asked to do: the resolved scenario and the options, read-only once the ranks run, and shared by
 * ranks that are threads.
 */
#ifndef AFDEP_BENCH_PLAN_H
#define AFDEP_BENCH_PLAN_H

#include "bench/bench_align.h"
#include "bench/lib/faults.h"
#include "bench/lib/options.h"
#include "bench/lib/scenario.h"
#include "validate/workload.h"

#define AFDEP_BENCH_IN_FLIGHT_MAX 4

typedef enum afdep_bench_protocol {
    AFDEP_BENCH_SPARSE,
    AFDEP_BENCH_DENSE,
    AFDEP_BENCH_M2N,
    AFDEP_BENCH_ALLTOALLV,
    AFDEP_BENCH_NCCL_P2P
} afdep_bench_protocol_t;

#define AFDEP_BENCH_PROTOCOLS "sparse|dense|m2n|alltoallv|nccl-p2p"

typedef struct afdep_bench_plan {
    int argc; /* as the program got them, for the record */
    char **argv;
    afdep_common_t common;
    afdep_scenario_t scenario;   /* with every override applied */
    afdep_config_t config;       /* what the buffer is opened with */
    int ranks;
    int api;                     /* 0: role, 1: low-latency, whose ranks are all the scenario's */
    int ll_format, ll_profile;   /* low-latency: afdep_ll_format_t, afdep_ll_profile_t */
    int ll_zero_copy;
    int protocol;                /* afdep_bench_protocol_t */
    int check;
    int view;                    /* timed exchanges on a device collect views */
    int pin;                     /* bind ranks to processors where there are too few */
    int iterations;              /* timed iterations of each token count; 0: as many as fit the budget */
    int budget_ms;
    int warmup;
    int in_flight;
    int microbatches, expert_us;  /* of the overlap measurement; 0 micro-batches: none is made */
    const int *tokens_per_source; /* [A], or NULL: every source has the cell's token count */
    const char *dump;             /* folder, or NULL */
    afdep_trace_t *trace;         /* of trace routing, else NULL */
    afdep_fault_file_t faults;    /* of --fault; no rules without it */
    cJSON *nic;                   /* of --emulate-nic: the model as its file has it, else NULL */
    afdep_align_area_t *align;    /* where ranks that are threads meet */
    /* Storage of the fields above. */
    afdep_ints_t tokens_per_source_option;
} afdep_bench_plan_t;

/*
 * Fills `plan` from the command line. 0: go on; 1: help or version was asked for and printed where `print` says so;
 * -1: refused, one line in `why`. What was allocated is freed by afdep_bench_plan_free() in every case.
 */
int afdep_bench_plan_parse(afdep_bench_plan_t *plan, int argc, char **argv, int print, char *why, size_t why_size);
void afdep_bench_plan_free(afdep_bench_plan_t *plan);

/* The number of tokens of source `source` in the cell of `tokens`. */
static inline int afdep_bench_tokens_of(const afdep_bench_plan_t *plan, int tokens, int source)
{
    return plan->tokens_per_source ? plan->tokens_per_source[source] : tokens;
}

/* The bucket of the cell of `tokens`. */
static inline int afdep_bench_bucket(int tokens)
{
    return tokens > 0 ? tokens : 1;
}

#endif
