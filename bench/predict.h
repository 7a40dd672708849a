/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges in virtual time. Which row and word goes where, and when a reader may go on, is decided by the library's
 * protocol code (protocol/channel.h, protocol/route.h), on the routes that the bench would send; only time comes from a
 * cost model. Payloads are not held: a row is its source and token.
 *
 * All times are integers of picoseconds, so that a seed gives the same microseconds on every machine.
 */
#ifndef AFDEP_BENCH_PREDICT_H
#define AFDEP_BENCH_PREDICT_H

#include "bench/lib/scenario.h"
#include "bench/predict_cost.h"
#include "fabric/fabric.h"
#include "protocol/route.h"
#include "protocol/row.h"
#include "validate/workload.h"

/* Which exchange's end waits for the done witness, or rather what does. */
typedef enum afdep_witness {
    AFDEP_WITNESS_DISPATCH, /* the next dispatch; sent when an FFN rank has laid its rows out: the library's */
    AFDEP_WITNESS_COLLECT   /* collect itself; sent on channel 0 behind the replies: the published protocol's */
} afdep_witness_t;

/* Things that serve one after the other. */
typedef enum afdep_resource {
    AFDEP_RESOURCE_NIC_SEND,
    AFDEP_RESOURCE_NIC_RECEIVE,
    AFDEP_RESOURCE_NVLINK_OUT,
    AFDEP_RESOURCE_NVLINK_IN,
    AFDEP_RESOURCE_SM,
    AFDEP_RESOURCE_MEMORY,
    AFDEP_RESOURCE_WARP, /* of an FFN rank: rows of one channel in order */
    AFDEP_RESOURCES
} afdep_resource_t;

const char *afdep_resource_name(afdep_resource_t resource);

/* A message as it is issued, for whoever watches. `bytes` 0: a signal. */
typedef struct afdep_predict_message {
    int sender, target, lane; /* lanes are the fabric's: channels, AFDEP_LANE_CONTROL, AFDEP_LANE_DOMAIN */
    uint32_t bytes;
    afdep_signal_kind_t kind; /* of a signal */
} afdep_predict_message_t;

/* Who watches; every function may be NULL. Spans arrive in the order of their ends' computation, not of time. */
typedef struct afdep_predict_watch {
    void *context;
    void (*issued)(void *context, uint64_t exchange, const afdep_predict_message_t *message);
    void (*served)(void *context, afdep_resource_t resource, int rank, int index, int64_t from_ps, int64_t to_ps,
                   const char *what);
    void (*called)(void *context, int rank, uint64_t exchange, const char *call, int64_t from_ps, int64_t to_ps);
} afdep_predict_watch_t;

typedef struct afdep_predict_case {
    const afdep_scenario_t *scenario;
    const afdep_cost_t *cost;
    const afdep_trace_t *trace; /* of trace routing, else NULL */
    int stagger, sparse_dispatch, sparse_combine;
    afdep_witness_t witness;
    int tokens;
    int free_running; /* each rank begins when it is done with the last exchange; else all together, as in the bench */
    int warmup, iterations;
    uint64_t seed;
    const afdep_predict_watch_t *watch; /* or NULL */
} afdep_predict_case_t;

/* What the busiest FFN rank received in dispatch and sent in combine, per exchange. */
typedef struct afdep_predict_counts {
    double finish_tail, count_word, combine, witness, puts, bytes;
} afdep_predict_counts_t;

typedef struct afdep_predict_load {
    double share; /* of the time that the busiest one was serving, 0 .. 1 */
    int rank;
} afdep_predict_load_t;

typedef struct afdep_prediction {
    double *samples_us; /* [iterations]: the longest dispatch to collect of any Attention rank; owned */
    int samples;
    double skew_us; /* median spread of the ranks' starts */
    afdep_predict_counts_t counts;
    double *in, *out; /* [ranks]: signals of an exchange; owned */
    afdep_predict_load_t load[AFDEP_RESOURCES];
    uint64_t events;
} afdep_prediction_t;

/* 0, or -1 with one line where the case cannot be. */
int afdep_predict(const afdep_predict_case_t *predict, afdep_prediction_t *prediction, char *why, size_t why_size);
void afdep_prediction_free(afdep_prediction_t *prediction);

#endif
