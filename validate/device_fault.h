/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One fault on the CUDA backend: what is done to a rank's segment or calls, and what must come of it: absorbed with
 * exact results, or a named error at every rank within the deadline; then a buffer that refuses, and a process that
 * goes on with a fresh one.
 */
#ifndef AFDEP_VALIDATE_DEVICE_FAULT_H
#define AFDEP_VALIDATE_DEVICE_FAULT_H

#include "validate/device_tap.h"

/* Which rank acts, just before which of its calls: the first source or the first worker. */
typedef enum afdep_moment { BEFORE_DISPATCH, BEFORE_RECEIVE, BEFORE_REPLY, BEFORE_COLLECT } afdep_moment_t;

typedef enum afdep_deed {
    LATE_CALL,    /* it comes late */
    SLOW_STREAM,  /* its stream is busy when the call's kernel is launched */
    STOPPED,      /* it does not come before all others are through with the exchange */
    OTHER_BUCKET, /* with another bucket than the others */
    CACHED,       /* it says that the last ids are used again, and the others do not */
    OLD_WORD,     /* a word is what it was an exchange ago */
    LATE_WORD,    /* the same, for a while */
    SAME_WORD,    /* a word is written once more */
    FLIPPED_WORD, /* a bit of it is another */
    OLD_ROWS      /* the rows that the word publishes are what they were an exchange ago */
} afdep_deed_t;

/* How rows travel: that follows from the bucket. */
typedef enum afdep_amount {
    FEW_TOKENS,
    MANY_TOKENS, /* the bucket is too large for lines */
    MIXED_TOKENS /* of few and of many by turns; the faulty one is of few */
} afdep_amount_t;

typedef struct afdep_device_fault {
    afdep_moment_t moment;
    afdep_deed_t deed;
    afdep_tap_word_t word; /* and where it says NONE, none is meant */
    int bit;
    afdep_status_t status;   /* that a rank must end with, all others with some fatal one; OK: absorbed by all */
    const char *says;        /* in that rank's sentence */
    const char *says_across; /* the same across domains, where it is another */
    afdep_amount_t amount;
    int recorded;            /* calls are replayed recordings */
    int dense;               /* every toggle off */
} afdep_device_fault_t;

/* A case whose argument is an afdep_device_fault_t. */
void afdep_run_device_fault(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome);

/* Exchanges across the rounds in which lines are renewed. */
typedef struct afdep_renewal {
    int in_flight;
    int many; /* in which of the two rounds that are due the bucket is too large for lines: 1 the last, 2 the one before */
} afdep_renewal_t;

/* A case whose argument is an afdep_renewal_t. */
void afdep_run_renewal(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome);

#endif
