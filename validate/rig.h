/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer of a case and this rank's tensors for it, opened, run and closed in one way. */
#ifndef AFDEP_VALIDATE_RIG_H
#define AFDEP_VALIDATE_RIG_H

#include "validate/cases.h"
#include "validate/exchanger.h"

#define AFDEP_RIG_SOURCES 4096

/* What a case changes about the scenario; 0 leaves a field alone. */
typedef struct afdep_rig_plan {
    int capacity; /* default: 64 */
    int num_sms;  /* default: 1 */
    int hidden;   /* default: at most 512 */
    int top_k, num_experts_per_rank, alignment;
    int other_dtype, apply_weights, union_buffers, mixed_hybrid, entry_barrier, in_flight;
    afdep_routing_kind_t routing;
    double zipf_s;
    afdep_toggle_t stagger, sparse_dispatch, sparse_combine, fp8_combine;
    int fp8_combine_min_bucket;
} afdep_rig_plan_t;

typedef struct afdep_rig {
    const afdep_validation_t *v;
    afdep_scenario_t scenario; /* as changed; its strings are the base scenario's */
    afdep_config_t config;
    afdep_buffer_t *buffer;
    afdep_exchanger_t x[4]; /* one set of tensors per exchange in flight */
    int in_flight;
    int apart; /* 1 at the ranks that cases set apart: FFN ranks; in a symmetric world rank 0 */
    int *tokens; /* [4][A] */
    uint64_t number; /* of the next exchange */
} afdep_rig_t;

/* Collective. The scenario and configuration of a plan, without opening. */
void afdep_rig_shape(const afdep_validation_t *v, const afdep_rig_plan_t *plan, afdep_rig_t *rig);

/* Collective. OK, or the outcome says why not. */
int afdep_rig_open(const afdep_validation_t *v, const afdep_rig_plan_t *plan, afdep_rig_t *rig,
                   afdep_outcome_t *outcome);

/* Collective on the CUDA backend, else nothing: no rank makes or frees device memory while another's kernels wait. */
void afdep_rig_settle(afdep_rig_t *rig);

/* Collective. */
void afdep_rig_close(afdep_rig_t *rig, afdep_outcome_t *outcome);

/* One whole exchange: plan->tokens NULL means rig->tokens[0..A) as set. 0, or -1 with the outcome failed. */
int afdep_rig_exchange(afdep_rig_t *rig, afdep_exchange_plan_t *plan, afdep_outcome_t *outcome);

/* All sources send `tokens`. */
void afdep_rig_tokens(afdep_rig_t *rig, int tokens);

/* A plan for the tokens as set: bucket their largest, everything else plain. */
afdep_exchange_plan_t afdep_rig_plain(afdep_rig_t *rig);

#endif
