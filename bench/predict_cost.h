/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cost models: what a message, a row, a kernel boundary take. One table names every parameter, its unit and its
 * meaning; files (afdep-cost/1) give each a value and say where it comes from.
 */
#ifndef AFDEP_BENCH_PREDICT_COST_H
#define AFDEP_BENCH_PREDICT_COST_H

#include <cjson/cJSON.h>
#include <stddef.h>

typedef enum afdep_cost_id {
    AFDEP_COST_NIC_BANDWIDTH,
    AFDEP_COST_NIC_PUT,
    AFDEP_COST_NIC_SIGNAL_SEND,
    AFDEP_COST_NIC_SIGNAL_RECEIVE,
    AFDEP_COST_NIC_LATENCY,
    AFDEP_COST_NICS_PER_RANK,
    AFDEP_COST_NVLINK_BANDWIDTH,
    AFDEP_COST_NVLINK_LATENCY,
    AFDEP_COST_WARP_SEND_ROW,
    AFDEP_COST_WARP_ISSUE,
    AFDEP_COST_WARP_POLL,
    AFDEP_COST_WARP_FORWARD_ROW,
    AFDEP_COST_WARP_SUM_ROW,
    AFDEP_COST_WARP_BACK_ROW,
    AFDEP_COST_WARP_COLLECT_ROW,
    AFDEP_COST_SM_ROW,
    AFDEP_COST_SM_LOAD,
    AFDEP_COST_SM_STORE,
    AFDEP_COST_MEMORY_BANDWIDTH,
    AFDEP_COST_KERNEL_LAUNCH,
    AFDEP_COST_KERNEL_GRAPH_GAP,
    AFDEP_COST_KERNEL_PROLOGUE,
    AFDEP_COST_KERNEL_LAYOUT,
    AFDEP_COST_KERNEL_BOOKKEEPING,
    AFDEP_COSTS
} afdep_cost_id_t;

typedef enum afdep_cost_origin {
    AFDEP_COST_FITTED,
    AFDEP_COST_MEASURED,
    AFDEP_COST_SPECIFIED,
    AFDEP_COST_ASSUMED
} afdep_cost_origin_t;

typedef struct afdep_cost_info {
    const char *name, *unit;
    double low, high;
    const char *meaning;
} afdep_cost_info_t;

extern const afdep_cost_info_t afdep_cost_table[AFDEP_COSTS];

#define AFDEP_COST_SCREENS_MAX 32

typedef struct afdep_cost {
    char *name; /* owned */
    char *note; /* owned */
    double value[AFDEP_COSTS];
    afdep_cost_origin_t origin[AFDEP_COSTS];
    char *from[AFDEP_COSTS];                 /* where the value comes from; owned */
    char *fitted_on[AFDEP_COST_SCREENS_MAX]; /* screens that the fitted ones were fitted on; owned */
    int fitted_on_count;
} afdep_cost_t;

/* Reads and checks `file`. 0, or -1 with one line naming file, field and value; `cost` then holds nothing. */
int afdep_cost_load(const char *file, afdep_cost_t *cost, char *why, size_t why_size);

/* The model that this program was built with. */
int afdep_cost_builtin(afdep_cost_t *cost, char *why, size_t why_size);

/* Whether it was fitted on a screen; and replaces the list of those. -1 without memory. */
int afdep_cost_fitted_on(const afdep_cost_t *cost, const char *screen);
int afdep_cost_set_fitted_on(afdep_cost_t *cost, const char *const *screens, int count);

/* The model as its file has it; NULL without memory. The caller owns it. */
cJSON *afdep_cost_json(const afdep_cost_t *cost);
void afdep_cost_free(afdep_cost_t *cost);

/* The parameter of a name, or -1. */
int afdep_cost_find(const char *name);

#endif
