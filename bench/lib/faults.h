/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault files (afdep-fault/1): what goes wrong, where and when. Loaded strictly: an unknown or missing field, a wrong
 * type, an impossible value or a field that its kind of fault does not have is refused in one line naming file, field
 * and value.
 */
#ifndef AFDEP_BENCH_FAULTS_H
#define AFDEP_BENCH_FAULTS_H

#include <cjson/cJSON.h>
#include <stddef.h>

#include "fabric/fault.h"

#define AFDEP_FAULTS_MAX 64
#define AFDEP_FAULT_REORDER_US 1000 /* how long a lane waits for others where the file does not say */

typedef struct afdep_fault_file {
    char *file;            /* what to blame in messages; owned */
    cJSON *json;           /* the document as read, for records; owned */
    afdep_fault_t rules[AFDEP_FAULTS_MAX];
    afdep_faults_t faults; /* the rules above: the struct must stay where it is while fabrics use them */
} afdep_fault_file_t;

/* Reads and checks `file`. On failure writes one line to `why` and returns -1; `faults` then holds nothing. */
int afdep_fault_file_load(const char *file, afdep_fault_file_t *faults, char *why, size_t why_size);

/* Whether every rank and channel that a rule names exists. 0, or -1 with one line. */
int afdep_fault_file_check(const afdep_fault_file_t *faults, int ranks, int channels, char *why, size_t why_size);

void afdep_fault_file_free(afdep_fault_file_t *faults);

#endif
