/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's part of checked low-latency exchanges: poisoned outputs, experts that depend on what was received, every
 * value compared with an oracle that shares nothing with the library. What a case varies stands in afdep_ll_plan_t.
 */
#ifndef AFDEP_VALIDATE_LL_EXCHANGER_H
#define AFDEP_VALIDATE_LL_EXCHANGER_H

#include <afdep/low_latency.h>

#include "validate/ll_staged.h"
#include "validate/workload.h"

/* How a half completes. */
typedef enum afdep_ll_completion {
    AFDEP_LL_NOW,
    AFDEP_LL_BY_HOOK,
    AFDEP_LL_BY_EVENT, /* waited for */
    AFDEP_LL_BY_QUERY  /* asked until done */
} afdep_ll_completion_t;

/* One exchange, the same on all ranks. */
typedef struct afdep_ll_plan {
    uint64_t number;     /* seeds payloads and routes */
    const int *tokens;   /* [R] */
    afdep_ll_format_t format;
    int max_tokens, hidden, top_k, experts; /* 0: as the exchanger was made */
    int round_scale;
    int inactive_percent;
    afdep_ll_completion_t dispatch, combine;
    int zero_copy, own_out; /* own_out: the library's memory holds the result */
    int plain;              /* 1: none of the optional outputs */
} afdep_ll_plan_t;

typedef struct afdep_ll_exchanger {
    afdep_scenario_t most, now; /* the largest exchange, and the one under way; attention_ranks is R */
    int rank, max_tokens;       /* max_tokens: of the exchange under way */
    uint64_t seed;
    afdep_source_tokens_t sent, *routes; /* routes: [R] */
    int64_t *ids;
    unsigned char *recv_x, *recv_scales;
    float *recv_weights;
    int32_t *recv_source, *statistics, *statistics_before;
    int64_t *recv_count;
    uint16_t *experts_out, *out;
    uint32_t *expected, *cursor;
    unsigned char *codes, *scales; /* of one row */
    float *values, *sum;
    uint16_t *row;
    afdep_ll_dispatch_t dispatch;
    afdep_ll_combine_t combine;
    afdep_ll_staged_t *staged; /* on the CUDA backend: the tensors' twins; NULL on the host backend */
    char why[512];
} afdep_ll_exchanger_t;

/* The largest exchange of `ranks` ranks; -1 without memory. With afdep_ll_exchanger_stage() the exchanges are
   those of a CUDA buffer; -1 with the sentence of afdep_staged_why(). */
int afdep_ll_exchanger_init(afdep_ll_exchanger_t *x, int ranks, int rank, int max_tokens, int hidden, int top_k,
                            int experts, uint64_t seed);
int afdep_ll_exchanger_stage(afdep_ll_exchanger_t *x);
void afdep_ll_exchanger_free(afdep_ll_exchanger_t *x);

/* Which experts later plans' tokens choose (default: uniformly). Before any exchange. -1 without memory. */
int afdep_ll_exchanger_routing(afdep_ll_exchanger_t *x, const afdep_routing_t *routing);

/* The argument structs of a plan's halves; and, once those have completed, whether they gave what the oracle says.
   PROTOCOL with a line in x->why where they did not. */
void afdep_ll_prepare_dispatch(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan);
afdep_status_t afdep_ll_judge_dispatch(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan);
void afdep_ll_prepare_combine(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer);
afdep_status_t afdep_ll_judge_combine(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan);

/* The calls: begin sends, and finish completes and judges; with AFDEP_LL_NOW the call of begin has completed too. */
afdep_status_t afdep_ll_begin_first(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer);
afdep_status_t afdep_ll_finish_first(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer);
afdep_status_t afdep_ll_begin_second(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer);
afdep_status_t afdep_ll_finish_second(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer);

/* All four. */
afdep_status_t afdep_ll_exchange(afdep_ll_exchanger_t *x, const afdep_ll_plan_t *plan, afdep_ll_buffer_t *buffer);

/* The configuration of a buffer that takes the largest exchange. */
afdep_ll_config_t afdep_ll_exchanger_config(const afdep_ll_exchanger_t *x);

#endif
