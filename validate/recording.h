/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded exchanges: a list of role calls with fixed arguments (shapes, buckets, tensors), replayed with payloads and
 * choices changed in place. The host backend's stand-in for a captured graph: whatever a call keeps from its first run
 * must not matter in the next.
 */
#ifndef AFDEP_VALIDATE_RECORDING_H
#define AFDEP_VALIDATE_RECORDING_H

#include "validate/cases.h"

typedef struct afdep_replays {
    int replays;
    int pairs;    /* exchanges in the recording, with a cycle of buckets */
    int capacity; /* of the buffer, which the first exchange fills from one source; default: 8 */
    int num_sms;  /* default: 1 */
    int dtype;    /* afdep_dtype_t + 1; 0: the scenario's */
    int dense;    /* 1: every toggle off */
    int delay_replies, delay_dispatches;
    int alternate; /* every other exchange is made of calls, not replayed */
    int whole;     /* a source's two calls are one recording, where the backend records them */
    int slow_forward; /* across domains on GPUs: some forward warps wait 200 us first; elsewhere there are none */
} afdep_replays_t;

#define AFDEP_SLOW_FORWARD 1
#define AFDEP_SLOW_FORWARD_ONLY 2 /* elsewhere the case is skipped */

/* A case whose argument is an afdep_replays_t. */
void afdep_run_replays(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome);

#endif
