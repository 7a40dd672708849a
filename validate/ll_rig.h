/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency buffer of a case and this rank's tensors for it, opened, run and closed in one way. */
#ifndef AFDEP_VALIDATE_LL_RIG_H
#define AFDEP_VALIDATE_LL_RIG_H

#include "validate/cases.h"
#include "validate/ll_exchanger.h"

/* The largest exchange of a case; 0: the default. */
typedef struct afdep_ll_rig_plan {
    int max_tokens;       /* 16 */
    int hidden;           /* 256 */
    int top_k;            /* 4, or E where that is less */
    int experts_per_rank; /* 4 */
    int experts;          /* in its place: the largest multiple of R up to this */
    int tensors;          /* sets of tensors, for exchanges that overlap: 1 */
    afdep_ll_profile_t profile;
    uint64_t buffer_bytes; /* profiles other than native: as large as required */
    afdep_routing_t routing;
} afdep_ll_rig_plan_t;

typedef struct afdep_ll_rig {
    const afdep_validation_t *v;
    afdep_ll_config_t config;
    afdep_ll_buffer_t *buffer;
    afdep_ll_exchanger_t x[2];
    int tensors, ranks;
    int *tokens; /* [2][R] */
    uint64_t number; /* of the next exchange */
} afdep_ll_rig_t;

/* Collective. 0, or the outcome says why not. */
int afdep_ll_rig_open(const afdep_validation_t *v, const afdep_ll_rig_plan_t *plan, afdep_ll_rig_t *rig,
                      afdep_outcome_t *outcome);
void afdep_ll_rig_close(afdep_ll_rig_t *rig, afdep_outcome_t *outcome);

/* All ranks send `tokens`. */
void afdep_ll_rig_tokens(afdep_ll_rig_t *rig, int tokens);

/* A plan of the rig's next exchange for the tokens as set. */
afdep_ll_plan_t afdep_ll_rig_plain(afdep_ll_rig_t *rig, afdep_ll_format_t format);

/* One whole exchange. 0, or -1 with the outcome failed. */
int afdep_ll_rig_exchange(afdep_ll_rig_t *rig, const afdep_ll_plan_t *plan, afdep_outcome_t *outcome);

#endif
