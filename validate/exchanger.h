/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's part of checked exchanges: poisoned outputs, replies that depend on what was received, every value
 * compared with the oracle. What a case varies stands in afdep_exchange_plan_t.
 */
#ifndef AFDEP_VALIDATE_EXCHANGER_H
#define AFDEP_VALIDATE_EXCHANGER_H

#include <afdep/afdep.h>

#include "validate/oracle.h"
#include "validate/staged.h"
#include "validate/workload.h"

/* One exchange. The same on all ranks. */
typedef struct afdep_exchange_plan {
    uint64_t number;         /* seeds payloads and routes */
    int bucket;
    const int *tokens;       /* [A] */
    int inactive_percent;    /* choices turned into -1; 100: every token is skipped */
    int read_host_counts;    /* and exact tensors through `allocate` */
    int view;                /* collect asks for views */
    int strided_scales;      /* FP8: scales stand transposed, [H/128, T] */
    int null_row_source;     /* receive without row_source */
    int cached;              /* the ids of exchange `routing` again, said to be so, with other weights */
    uint64_t routing;
} afdep_exchange_plan_t;

typedef struct afdep_exchanger {
    const afdep_scenario_t *scenario;
    afdep_buffer_t *buffer;
    afdep_staged_t *staged; /* of a buffer of the CUDA backend, else NULL */
    uint64_t seed;
    int rank, apply_weights;
    int unchecked; /* FFN: the next receive is not compared */
    int fp8_combine, fp8_combine_min_bucket; /* as the buffer resolved them */
    /* Everything below is sized for the scenario's capacity and reused. */
    afdep_source_tokens_t own;      /* sources: this one's tokens */
    afdep_source_tokens_t *sources; /* workers: the routes of all */
    float *transposed;
    uint16_t *out, *want;
    void *scratch;
    void *rows;
    float *row_scale, *row_weight;
    int32_t *row_source, *ends, *host_counts;
    uint16_t *reply;
    int64_t rows_capacity;
    afdep_dispatch_t dispatch; /* the arguments of the call under way */
    afdep_receive_t receive;
    afdep_reply_t reply_arguments;
    afdep_collect_t collect;
    char why[512]; /* the first wrong value, or the failed call's sentence */
} afdep_exchanger_t;

/* Local. Makes a rank's tensors for a buffer that is open. 0, or -1 without memory. */
int afdep_exchanger_init(afdep_exchanger_t *x, const afdep_scenario_t *scenario, afdep_buffer_t *buffer, uint64_t seed);

/* The same without a buffer, for a driver that has its own. */
int afdep_exchanger_init_rank(afdep_exchanger_t *x, const afdep_scenario_t *scenario, int rank, int apply_weights,
                              uint64_t seed);
void afdep_exchanger_free(afdep_exchanger_t *x);

/*
 * The halves of an exchange at this rank, so that several may be in flight: dispatch or receive, then collect or reply;
 * of a symmetric rank both at once.
 * Each returns the library's status, or AFDEP_ERR_PROTOCOL with `why` set when a value is wrong. Both halves take the
 * same plan; between them the plan's `number` and `tokens` must not change.
 */
afdep_status_t afdep_exchanger_first(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan);
afdep_status_t afdep_exchanger_second(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan);

/* The calls alone, with the arguments as prepared. */
afdep_status_t afdep_exchanger_call_first(afdep_exchanger_t *x);
afdep_status_t afdep_exchanger_call_second(afdep_exchanger_t *x);

/* Completes a send-only dispatch. */
afdep_status_t afdep_exchanger_complete(afdep_exchanger_t *x);

/* The parts of a half, for drivers that make the call by themselves: fill the arguments in the struct; then judge what
   the call gave (`status` is the call's). */
void afdep_exchanger_prepare_first(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan);
afdep_status_t afdep_exchanger_judge_first(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan,
                                           afdep_status_t status);
void afdep_exchanger_prepare_second(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan);
afdep_status_t afdep_exchanger_judge_second(afdep_exchanger_t *x, const afdep_exchange_plan_t *plan,
                                            afdep_status_t status);

/* A configuration for a scenario. */
afdep_config_t afdep_exchanger_config(const afdep_scenario_t *scenario);

#endif
