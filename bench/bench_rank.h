/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of afdep-bench: its tensors, its path, and what all parts of the program do with them.
 */
#ifndef AFDEP_BENCH_RANK_H
#define AFDEP_BENCH_RANK_H

#include "bench/bench_path.h"
#include "validate/oracle.h"

/* Waits of phases in which ranks generate and check payloads may take this much longer than a wait of an exchange. */
#define AFDEP_BENCH_CHECK_PATIENCE 20

typedef struct afdep_bench_rank {
    const afdep_bench_plan_t *plan;
    afdep_world_t *world;
    const afdep_bench_path_ops_t *ops;
    afdep_bench_path_t *path;
    afdep_bench_path_t *second; /* for micro-batches, else NULL */
    afdep_bench_path_info_t info;
    afdep_align_t *align;
    int source;  /* Attention index (symmetric: the rank), or -1 at FFN ranks */
    int worker;  /* owns experts */
    int experts; /* per worker */
    int fp8;

    /* Sources: one set for each exchange in flight. */
    afdep_source_tokens_t sent[AFDEP_BENCH_IN_FLIGHT_MAX];
    uint16_t *out[AFDEP_BENCH_IN_FLIGHT_MAX];
    uint16_t *want;      /* one token, when checking */
    void *scratch;       /* the oracle's */

    /* Workers. */
    int64_t rows_capacity;
    void *rows;
    float *row_scale, *row_weight;
    int32_t *row_source, *ends, *host_counts;
    uint16_t *reply;
    afdep_source_tokens_t *routes; /* [A], ids and weights only, when checking */
} afdep_bench_rank_t;

/* The largest bucket of the plan's cells. */
int afdep_bench_largest_bucket(const afdep_bench_plan_t *plan);

/*
 * Opens the path and allocates the tensors. 0; or the exit status, after rank 0 has printed why (all ranks return).
 */
int afdep_bench_rank_open(afdep_bench_rank_t *rank, const afdep_bench_plan_t *plan, afdep_world_t *world);
void afdep_bench_rank_close(afdep_bench_rank_t *rank);

/* Prints "afdep-bench: rank R: CALL: WHY" and ends the whole job with exit status 1. Does not return. */
void afdep_bench_fatal(afdep_bench_rank_t *rank, const char *call, const char *why) __attribute__((noreturn));

/* Ends the job when `status` is an error of the path's call `call`. */
static inline void afdep_bench_must(afdep_bench_rank_t *rank, afdep_status_t status, const char *call)
{
    if (status != AFDEP_OK)
        afdep_bench_fatal(rank, call, rank->ops->why());
}

/* Waits for all ranks, `patience` times as long as an exchange may wait. Ends the job when one is missing. */
void afdep_bench_align(afdep_bench_rank_t *rank, int patience);

/* Prepared structs of one exchange. */
afdep_dispatch_t afdep_bench_dispatch_of(const afdep_bench_rank_t *rank, const afdep_source_tokens_t *tokens,
                                         int bucket);
afdep_receive_t afdep_bench_receive_of(const afdep_bench_rank_t *rank, int bucket);

#endif
