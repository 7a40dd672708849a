/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency API on the host backend: the executor, the failures and the parting are the host's (host/run.c), of
 * which this is a rank with actors of its own:
 *
 *   ll_dispatch  sends this rank's tokens and words      ll_receive  joins all ranks' words, lays rows out by expert
 *   ll_combine   sends the experts' rows and words       ll_reduce   joins all ranks' words, sums this rank's tokens
 *
 * ll_receive and ll_reduce keep their place in the plane, not in the actor: a hook or an event may come back to them.
 */
#ifndef AFDEP_LOW_LATENCY_LL_H
#define AFDEP_LOW_LATENCY_LL_H

#include <afdep/low_latency.h>

#include "core/arena.h"
#include "host/host.h"
#include "low_latency/ll_backend.h"
#include "numerics/quant.h"

/* One plane: the exchange it holds and this rank's bookkeeping of it. Sizes are the configuration's. */
typedef struct afdep_ll_plane {
    uint64_t base; /* in every rank's segment */
    uint64_t exchange;
    afdep_ll_shape_t shape; /* of the exchange */
    int32_t local;          /* L */
    int32_t tokens;
    afdep_ll_format_t format;
    size_t code_bytes, scale_bytes;
    afdep_ll_dispatch_t dispatch; /* the caller's, until it has received */
    afdep_ll_combine_t combine;
    afdep_ll_header_t *header;    /* one, from which it is put */

    /* As a source. */
    int32_t *ids;             /* [M][K]: as sent, invalid ones -1 */
    float *weights;           /* [M][K]: of the combine */
    uint32_t *sent;           /* [R]: rows to each rank */
    uint32_t *chosen;         /* [R]: choices at each rank, so combine rows to come */
    uint64_t *dispatch_words; /* [R]: as last written at each rank */
    unsigned char *staging;   /* [M] rows; where all peers are mapped only the first is used */
    uint16_t *result;         /* [M][H]: combined rows of callers that gave no memory */

    /* As an owner of experts. */
    int next_source;          /* receive: the rank whose word is awaited */
    uint32_t *counts;         /* [L] */
    afdep_row_tag_t *places;  /* [L][R * M]: of each received row; `source` is its rank and its age (row.h) its slot */
    uint32_t *owed;           /* [R]: combine rows to each rank */
    uint64_t *combine_words;  /* [R]: as last written at each rank */
    uint16_t *combine_buffer; /* [L][R * M][H]: what zero copy takes */
    int next_owner;           /* reduce: the rank whose word is awaited */
} afdep_ll_plane_t;

typedef struct afdep_ll_rank {
    afdep_host_t host; /* first: an actor's step is handed this */
    afdep_settings_t host_settings;
    afdep_ll_settings_t settings;
    const afdep_quant_ops_t *quant;
    afdep_ll_plane_t planes[AFDEP_LL_PLANES];
    afdep_ll_plane_t *plane; /* of the call under way */
    afdep_ll_ledger_t ledger;
    int mapped;              /* every peer's segment can be built in */

    /* Of the token that ll_dispatch sends: the ranks that get it. */
    uint64_t *mark; /* [R] */
    uint64_t stamp;
    int targets, target[AFDEP_LL_TOPK_MOST];
    uint64_t target_offset[AFDEP_LL_TOPK_MOST];
    uint16_t *sum; /* [H], padded: where row lengths are no multiple of what the sums take */
} afdep_ll_rank_t;

static inline afdep_ll_rank_t *afdep_ll_of(afdep_host_t *h)
{
    return (afdep_ll_rank_t *)(void *)h;
}

static inline afdep_ll_plane_t *afdep_ll_plane_of(afdep_ll_rank_t *b, uint64_t exchange)
{
    return &b->planes[afdep_ll_plane_index(exchange)];
}

/* ---- ll_buffer.c --------------------------------------------------------------------------------------------- */

/* Local. A rank without a fabric yet, back to its start, and its end; as the host's. */
afdep_status_t afdep_ll_create(const afdep_ll_settings_t *settings, int rank, afdep_ll_rank_t **buffer);
void afdep_ll_restart(afdep_ll_rank_t *buffer);
void afdep_ll_destroy(afdep_ll_rank_t *buffer);
void afdep_ll_prepare_segment(void *buffer, void *base);
uint64_t afdep_ll_private_bytes(const afdep_ll_settings_t *settings);

/* Local. Looks at the fabric once it is open. */
void afdep_ll_attach(afdep_ll_rank_t *buffer);

/* ---- The calls' parts: check and set up an actor. An error changed nothing. ---------------------------------- */

afdep_status_t afdep_ll_begin_dispatch(afdep_ll_rank_t *b, const afdep_ll_dispatch_t *dispatch); /* ll_dispatch.c */
void afdep_ll_begin_receive(afdep_ll_rank_t *b, afdep_ll_plane_t *p);                            /* ll_receive.c */
void afdep_ll_end_receive(afdep_ll_rank_t *b, afdep_ll_plane_t *p);   /* counts and statistics to the caller */
afdep_status_t afdep_ll_begin_combine(afdep_ll_rank_t *b, const afdep_ll_combine_t *combine);    /* ll_combine.c */
void afdep_ll_begin_reduce(afdep_ll_rank_t *b, afdep_ll_plane_t *p);                             /* ll_reduce.c */
void afdep_ll_end_reduce(afdep_ll_rank_t *b, afdep_ll_plane_t *p);

/* ll_calls.c: the sending halves as the calls begin and end them, for whoever schedules actors by itself. */
afdep_status_t afdep_ll_start_dispatch(afdep_ll_rank_t *b, afdep_ll_dispatch_t *dispatch);
void afdep_ll_end_dispatch(afdep_ll_rank_t *b, afdep_ll_dispatch_t *dispatch);
afdep_status_t afdep_ll_start_combine(afdep_ll_rank_t *b, afdep_ll_combine_t *combine);
void afdep_ll_end_combine(afdep_ll_rank_t *b, afdep_ll_combine_t *combine);

/* ll_calls.c: the calls, as the table of backends has them. */
afdep_status_t afdep_ll_dispatch_now(void *rank, afdep_ll_dispatch_t *dispatch);
afdep_status_t afdep_ll_combine_now(void *rank, afdep_ll_combine_t *combine);
afdep_status_t afdep_ll_combine_buffer(void *rank, const afdep_ll_handle_t *handle, void **x);
afdep_status_t afdep_ll_call_hook(void *rank, const afdep_ll_hook_t *hook);
afdep_status_t afdep_ll_wait_event(void *rank, const afdep_ll_event_t *event);
afdep_status_t afdep_ll_query_event(void *rank, const afdep_ll_event_t *event, int *done);

/* The route that was repaired in the dispatch just begun: OK, or ROUTE with its sentence. */
afdep_status_t afdep_ll_route_status(const afdep_ll_rank_t *b);

static inline size_t afdep_ll_row_bytes(const afdep_ll_rank_t *b, const afdep_ll_plane_t *p)
{
    return b->settings.layout.meta_bytes + afdep_align_up32((uint32_t)(p->code_bytes + p->scale_bytes), 16);
}

/* Index of row `i` of local expert `e`, of [L, R * M]. */
static inline size_t afdep_ll_row_index(const afdep_ll_plane_t *p, int e, uint32_t i)
{
    return (size_t)e * (size_t)p->shape.ranks * (size_t)p->shape.max_tokens + i;
}

#endif
