/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a report is made of: sets of records that may stand in one table. A screen's results are one set; single records
 * join the set that they agree with, so that measured and emulated ones, or two machines, never share a table.
 */
#ifndef AFDEP_BENCH_REPORT_SET_H
#define AFDEP_BENCH_REPORT_SET_H

#include <cjson/cJSON.h>

#include "bench/lib/comparison.h"

#define AFDEP_REPORT_SETS_MAX 64

typedef struct afdep_report_set {
    cJSON *json;          /* the file (afdep-benchmarks/1), or an object made around single records; owned */
    const cJSON *records; /* inside it */
    const cJSON *screen;  /* object, or NULL */
    const char *title;
    char prefix[160];              /* of the names of its pictures; "" when it is the only set */
    afdep_comparison_t comparison; /* owned */
} afdep_report_set_t;

typedef struct afdep_report {
    afdep_report_set_t sets[AFDEP_REPORT_SETS_MAX];
    int count;
} afdep_report_t;

/* Reads the files. 0, or -1 with one line naming file, field and value; freed by afdep_report_free() in both cases. */
int afdep_report_load(afdep_report_t *report, const char *const *files, int count, char *why, size_t why_size);
void afdep_report_free(afdep_report_t *report);

#endif
