/* SPDX-License-Identifier: Apache-2.0 */
/* What must come of an injected fault, and whether it did at every rank. */
#ifndef AFDEP_VALIDATE_VERDICT_H
#define AFDEP_VALIDATE_VERDICT_H

#include "fabric/fabric.h"
#include "validate/cases.h"

typedef enum afdep_expect {
    AFDEP_EXPECT_ABSORBED, /* every exchange exact */
    AFDEP_EXPECT_NAMED,    /* every rank gets a fatal error; at least one of them the status that is named */
    AFDEP_EXPECT_EITHER    /* one of the two, at all ranks alike in the end */
} afdep_expect_t;

/* How the exchanges of one rank ended. */
typedef struct afdep_ended {
    afdep_status_t status;
    int64_t last_call_ms; /* how long the call took that failed */
} afdep_ended_t;

/* Collective. Fails the outcome where the ranks did not end as expected; `timeout_ms` 0: no matter when. */
void afdep_verdict(const afdep_validation_t *v, afdep_expect_t expect, afdep_status_t named, int timeout_ms,
                   const afdep_ended_t *mine, const char *why, afdep_outcome_t *outcome);

/* The fabric that faults are put around. */
const afdep_fabric_provider_t *afdep_verdict_inner_fabric(const afdep_validation_t *v);

int64_t afdep_verdict_now_ms(void);

#endif
