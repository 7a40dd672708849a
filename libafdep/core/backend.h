/* SPDX-License-Identifier: Apache-2.0 */
/* A backend runs the calls of a buffer. Backends are const ops tables in one array (core/buffer.c). */
#ifndef AFDEP_CORE_BACKEND_H
#define AFDEP_CORE_BACKEND_H

#include "core/config.h"
#include "fabric/fabric.h"

typedef struct afdep_backend {
    const char *name;
    /* Collective. Makes the rank's state over the settings (which outlive it). */
    afdep_status_t (*open)(const afdep_settings_t *settings, const afdep_group_t *group,
                           const afdep_fabric_provider_t *fabric, void **state);
    /* Collective on a healthy buffer, local after a fatal error. Always frees. */
    afdep_status_t (*close)(void *state);
    afdep_status_t (*dispatch)(void *state, const afdep_dispatch_t *dispatch, afdep_stream_t stream);
    afdep_status_t (*receive)(void *state, afdep_receive_t *receive, afdep_stream_t stream);
    afdep_status_t (*reply)(void *state, const afdep_reply_t *reply, afdep_stream_t stream);
    afdep_status_t (*collect)(void *state, afdep_collect_t *collect, afdep_stream_t stream);
    /* The two calls of a symmetric buffer; NULL where the backend has no symmetric buffers. */
    afdep_status_t (*elastic_dispatch)(void *state, const afdep_dispatch_t *dispatch, afdep_receive_t *receive,
                                       afdep_stream_t stream);
    afdep_status_t (*elastic_combine)(void *state, const afdep_reply_t *reply, afdep_collect_t *collect,
                                      afdep_stream_t stream);
    /* Completes a send-only dispatch. */
    afdep_status_t (*complete)(void *state);
    /* Reads the load statistics, from any thread. */
    afdep_status_t (*load)(const void *state, afdep_load_t *load);
    /* Surviving lost sources; all NULL where the backend does not. Fills `ranks` with the masked ranks, as far as there
       is room, and returns their number. OK where no exchange is unfinished, or the rank failed. Frees the state of a
       rank that does not part. */
    int32_t (*lost)(void *state, int32_t *ranks, int32_t room);
    afdep_status_t (*quiet)(void *state);
    void (*abandon)(void *state);
    afdep_status_t (*error)(void *state);
    uint64_t (*exchanges)(const void *state);
    const afdep_peer_counters_t *(*counters)(const void *state); /* [size] */
    /* Fills in what is said of GIN; NULL where the backend never has it. */
    void (*gin)(const void *state, afdep_buffer_info_t *info);
    /* Bytes of a segment of this role, and what a rank of it allocates besides. */
    uint64_t (*segment_bytes)(const afdep_settings_t *settings, int ffn);
    uint64_t (*private_bytes)(const afdep_settings_t *settings, int ffn);
} afdep_backend_t;

/* core/buffer.c: the fabric of that name; "": the group's own, else shm. */
afdep_status_t afdep_find_fabric(const afdep_group_t *group, const char *name,
                                 const afdep_fabric_provider_t **fabric);

/* core/buffer.c: the same for the backend of that name: host, or cuda, whose fabrics keep segments in device memory. */
afdep_status_t afdep_find_fabric_for(const char *backend, const afdep_group_t *group, const char *name,
                                     const afdep_fabric_provider_t **fabric);

/* core/buffer.c: one peer's counters to a caller's struct. */
afdep_status_t afdep_counters_give(const afdep_peer_counters_t *peer, afdep_counters_t *counters);

extern const afdep_backend_t afdep_backend_host;
extern const afdep_backend_t afdep_backend_cuda; /* where AFDEP_HAVE_CUDA says that it is built */

#endif
