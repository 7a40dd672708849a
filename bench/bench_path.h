/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is measured: the library, or a baseline that does the same exchange. One ops table each, with the library's own
 * structs and statuses, so that measuring and checking are written once.
 */
#ifndef AFDEP_BENCH_PATH_H
#define AFDEP_BENCH_PATH_H

#include "bench/bench_plan.h"
#include "bench/lib/gin_note.h"

typedef struct afdep_bench_path afdep_bench_path_t;

/* What a path resolved to. */
typedef struct afdep_bench_path_info {
    const char *protocol; /* as the path names it: as in afdep_buffer_info_t, or "alltoallv" */
    const char *backend, *fabric;
    int stagger, sparse_dispatch, sparse_combine;
    int fp8_combine, fp8_combine_min_bucket;
    int channels;
    int source_view;
    int graph; /* timed exchanges are recorded and replayed */
    afdep_gin_note_t gin;
} afdep_bench_path_info_t;

typedef struct afdep_bench_batches {
    int source; /* an Attention rank */
    int count;
    int ping_pong; /* over both paths in turn, else over the first */
    int expert_us; /* 0: no experts */
} afdep_bench_batches_t;

typedef struct afdep_bench_path_ops {
    const char *name;
    /* Memory for exchanges of `bucket` tokens. Local. */
    afdep_status_t (*memory)(const afdep_bench_plan_t *plan, int bucket, afdep_memory_t *memory);
    /* Collective; as afdep_buffer_open() with `fabric` (NULL: its default). `bucket` is the largest to be used. */
    afdep_status_t (*open)(afdep_world_t *world, const afdep_bench_plan_t *plan, const char *fabric, int bucket,
                           afdep_bench_path_t **path);
    void (*info)(afdep_bench_path_t *path, afdep_bench_path_info_t *info);
    afdep_status_t (*dispatch)(afdep_bench_path_t *path, const afdep_dispatch_t *dispatch);
    afdep_status_t (*receive)(afdep_bench_path_t *path, afdep_receive_t *receive);
    afdep_status_t (*reply)(afdep_bench_path_t *path, const afdep_reply_t *reply);
    afdep_status_t (*collect)(afdep_bench_path_t *path, afdep_collect_t *collect);
    /* Paths whose timed exchanges run on a device: prepare to run the last exchange's tensors again (a recording where
       the path makes one; returns the exchanges of one run), and run them `times` times: microseconds per exchange.
       NULL: the calls above are timed one by one. */
    int (*record)(afdep_bench_path_t *path, int view, afdep_status_t *status);
    afdep_status_t (*replay)(afdep_bench_path_t *path, int times, double *us);
    /* Micro-batches on a device: the second of two paths prepares way `way` (0 to 2) of running them, of the last
       exchanges' tensors on both, and keeps it; runs them all: microseconds each. NULL where `replay` is. */
    afdep_status_t (*record_batches)(afdep_bench_path_t *second, afdep_bench_path_t *first, int way,
                                     const afdep_bench_batches_t *batches);
    afdep_status_t (*replay_batches)(afdep_bench_path_t *second, int way, double *us);
    afdep_status_t (*counters)(afdep_bench_path_t *path, int peer, afdep_counters_t *counters);
    /* The status that poisoned the path, or OK. Never waits. */
    afdep_status_t (*error)(afdep_bench_path_t *path);
    afdep_status_t (*close)(afdep_bench_path_t *path);
    /* The sentence of the calling thread's last error. */
    const char *(*why)(void);
} afdep_bench_path_ops_t;

extern const afdep_bench_path_ops_t afdep_bench_library;
extern const afdep_bench_path_ops_t afdep_bench_symmetric;
extern const afdep_bench_path_ops_t afdep_bench_cuda;
#ifdef AFDEP_HAVE_MPI
extern const afdep_bench_path_ops_t afdep_bench_alltoallv;
#endif
#ifdef AFDEP_HAVE_NCCL
extern const afdep_bench_path_ops_t afdep_bench_nccl_p2p;
#endif

/* The ops of the plan's protocol, or NULL when this build lacks it. */
const afdep_bench_path_ops_t *afdep_bench_path_ops(const afdep_bench_plan_t *plan);

#endif
