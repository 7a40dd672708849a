/* SPDX-License-Identifier: Apache-2.0 */
/* A backend runs the calls of a low-latency buffer. Backends are const ops tables in one array (ll_api.c). */
#ifndef AFDEP_LOW_LATENCY_LL_BACKEND_H
#define AFDEP_LOW_LATENCY_LL_BACKEND_H

#include <afdep/low_latency.h>

#include "core/config.h"
#include "fabric/fabric.h"
#include "low_latency/ll_ledger.h"
#include "low_latency/ll_mode.h"

typedef struct afdep_ll_backend afdep_ll_backend_t;

/* A configuration, resolved. */
typedef struct afdep_ll_settings {
    afdep_ll_shape_t shape;
    afdep_ll_layout_t layout; /* of the host backend */
    afdep_ll_profile_t profile;
    const afdep_ll_backend_t *backend;
    int ranks_per_domain, hosts;
    int timeout_ms;
    int int8_fallback; /* what the environment says of a request without flags */
    uint64_t required, configured;
    uint64_t first_exchange;
    char fabric[16], row_ops[16];
} afdep_ll_settings_t;

/*
 * The argument structs are this library's copies of the caller's, whole, with the outputs zero; what a call fills in is
 * copied back where it returns OK or ROUTE. Errors as the public calls' (afdep/low_latency.h).
 */
struct afdep_ll_backend {
    const char *name;
    /* Collective, once all ranks have agreed. Makes the rank's state; copies the settings. */
    afdep_status_t (*open)(const afdep_ll_settings_t *settings, const afdep_group_t *group,
                           const afdep_fabric_provider_t *fabric, void **rank);
    afdep_status_t (*close)(void *rank); /* always frees */
    afdep_status_t (*error)(void *rank);
    afdep_status_t (*counters)(void *rank, int peer, afdep_counters_t *counters); /* peer is legal */
    afdep_status_t (*dispatch)(void *rank, afdep_ll_dispatch_t *dispatch);
    afdep_status_t (*combine)(void *rank, afdep_ll_combine_t *combine);
    afdep_status_t (*next_combine_buffer)(void *rank, const afdep_ll_handle_t *handle, void **x);
    afdep_status_t (*hook_call)(void *rank, const afdep_ll_hook_t *hook);
    afdep_status_t (*event_wait)(void *rank, const afdep_ll_event_t *event);
    afdep_status_t (*event_query)(void *rank, const afdep_ll_event_t *event, int *done);
    /* Bytes of a segment, and what a rank allocates besides; UINT64_MAX: more than 62 bits. */
    uint64_t (*segment_bytes)(const afdep_ll_settings_t *settings);
    uint64_t (*private_bytes)(const afdep_ll_settings_t *settings);
};

extern const afdep_ll_backend_t afdep_ll_backend_host;
extern const afdep_ll_backend_t afdep_ll_backend_cuda; /* where AFDEP_HAVE_CUDA says that it is built */

/* ll_api.c. CONFIG, UNSUPPORTED (of another build). NULL and "": host. */
afdep_status_t afdep_ll_find_backend(const char *name, const afdep_ll_backend_t **backend);

/* ll_api.c: what the backend made of a buffer; for tests. */
void *afdep_ll_rank_of(const afdep_ll_buffer_t *buffer);

/* ll_config.c: the variables that only this API reads; ended by a NULL name. */
extern const afdep_setting_t afdep_ll_settings_table[];

/* Limits are checked, sizes only computed (afdep_ll_check_bytes() is the caller's). */
afdep_status_t afdep_ll_settings_resolve(const afdep_ll_config_t *config, int ranks, afdep_ll_settings_t *settings);

/* ---- ll_check.c: what every backend checks of a call's arguments; nothing that they point to is read ------------- */

/* The shape and the format of the exchange that a dispatch asks for. */
afdep_status_t afdep_ll_check_dispatch(const afdep_ll_settings_t *settings, const afdep_ll_dispatch_t *dispatch,
                                       afdep_ll_shape_t *shape, afdep_ll_format_t *format);

/* `tokens` and `shape` as dispatched; `buffer` is the next combine buffer; `rows`: whether x holds any. */
afdep_status_t afdep_ll_check_combine(const afdep_ll_combine_t *combine, int32_t tokens, const afdep_ll_shape_t *shape,
                                      const void *buffer, int rows);

#endif
