/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host backend: every rank is a set of small actors over a fabric. An actor's step does what it can and returns;
 * it never blocks. They are the readable form of the GPU's warp duties and carry the same names:
 *
 *   Source:     source_dispatch   sends the tokens of a channel (direct: of a worker)
 *               count             waits for the plane's witnesses, sends the count words
 *               collect           waits for a channel's replies and sums the domains' rows
 *   Forwarder:  count             reads the sources' count words and retires channels without tokens
 *               forward           takes the rows of a channel from the rail inbox to the ranks that own their experts
 *               reply_forward     sums the ranks' partials of a channel and sends them to the sources
 *   Worker:     receive           joins the words of all rails, lays rows out by expert, sends witnesses
 *               reply             sums this rank's rows per token
 *   All:        entry             the barrier that a dispatch begins with, where the configuration asks for it
 *
 * Which duties a rank has follows from the topology (protocol/shape.h): an FFN rank works, and forwards where its rail
 * has sources; an Attention rank is a source, and forwards in domains that hold both roles; a symmetric rank has all
 * three. Forwarding is part of the call that makes a rank's first half (source_dispatch, worker_receive or
 * elastic_dispatch), its way back of the second.
 *
 * A role call is begin (checks, sets up actors), run (steps them until all are done), end (moves the state on). The
 * caller's pointers live in `call` meanwhile.
 */
#ifndef AFDEP_HOST_HOST_H
#define AFDEP_HOST_HOST_H

#define AFDEP_RECEIPT_MAGIC 0x7265636569707421u

#include "core/backend.h"
#include "core/config.h"
#include "fabric/fabric.h"
#include "host/load.h"
#include "numerics/numerics.h"
#include "protocol/channel.h"
#include "protocol/layout.h"
#include "protocol/planted.h"
#include "protocol/route.h"
#include "protocol/word.h"

typedef struct afdep_host afdep_host_t;
typedef struct afdep_actor afdep_actor_t;

/* AFDEP_OK: did something and wants to be stepped again; AFDEP_AGAIN: waits for `wait`; AFDEP_DONE; or an error. */
typedef afdep_status_t (*afdep_step_fn)(afdep_host_t *h, afdep_actor_t *actor);

/* What an actor waits for, for the sentence that a deadline ends in. */
typedef struct afdep_wait {
    int peer;         /* -1: nobody in particular */
    const char *word; /* static text */
} afdep_wait_t;

struct afdep_actor {
    afdep_step_fn step;
    const char *duty;
    int channel; /* -1: of no channel */
    int blocked; /* afdep_host_step: it waits, and nothing has come for this rank since */
    afdep_wait_t wait;
    /* Cursors, each with the meaning its duty gives it. */
    int32_t i, j;
    uint32_t left, rows;
};

/* One token of one source as an FFN rank received it. */
typedef struct afdep_arrival {
    uint32_t token;
    uint32_t first; /* its rows: positions[first .. first + rows) */
    uint32_t rows;
    int32_t source_domain; /* direct: the Attention index */
    int32_t rail;
    int32_t absent; /* cached, and its source lost: it has not come again */
} afdep_arrival_t;

/* Where a forwarded or laid-out row of this rank's own rail stands. */
typedef struct afdep_own_row {
    uint32_t exchange;
    uint32_t place; /* 1 + position on its channel; 0: never written */
} afdep_own_row_t;

/* This rank's bookkeeping of one plane. Sizes in brackets; all private memory. */
typedef struct afdep_plane {
    uint64_t base; /* offset of the plane in this rank's own segment */
    uint64_t peer_worker, peer_forwarder, peer_source; /* the same in the segment of a rank with that duty */
    int32_t bucket;
    int32_t tokens; /* source: T */
    uint64_t routing; /* the exchange whose ids and arrivals stand here; 0: none's yet */
#ifdef AFDEP_PLANT
    uint64_t served, served_before; /* bits: targets that got rows in this exchange, and in the one before */
#endif

    /* Source */
    int32_t *ids;             /* [capacity][K]: as sent, invalid ones -1 */
    int32_t *targets;         /* [capacity][Kt]: workers or domains of a token, ascending */
    uint8_t *target_count;    /* [capacity] */
    uint32_t *sent, *placed;  /* [targets][Cc]: rows this exchange sends, has sent */
    uint64_t *finish_tails;   /* [targets][Cc]: as last written (directional) */
    uint64_t *count_words;    /* [targets]: as last written */
    uint64_t *combine_shadow; /* [targets][Cc]: as last consumed */
    unsigned char *staging;   /* [capacity] rows, where the fabric maps no rail peer */
    uint8_t *staged;          /* [capacity]: its row is built */

    /* Forwarder */
    uint64_t *finish_shadow;                /* [S][C] */
    uint32_t *taken;                        /* [S][C]: rows taken this exchange */
    uint8_t *open;                          /* [S][C]: not yet retired this exchange */
    int32_t *pending;                       /* [C]: sources not yet retired */
    int32_t *source_tokens;                 /* [S]: T, -1 before its count word */
    uint32_t *record_token;                 /* [S][C][slots] */
    uint8_t *record_count;                  /* [S][C][slots]: ranks of the domain that got the row */
    uint16_t *record_rails;                 /* [S][C][slots][Kd] */
    afdep_own_row_t *own;                   /* [S][capacity] */
    uint32_t *extents;                      /* [D][extent_stride]: 1 + largest token forwarded, per source domain */
    uint32_t *forwarded;                    /* [D]: rows to each rail */
    uint64_t *forward_words;                /* [D][2]: as last written at each rail's rank */

    /* Worker across domains */
    uint32_t *arrived;     /* [D]: rows from each rail */
    uint64_t *reply_words; /* [D]: as last written at each rail's rank */

    /* Whoever replies to sources: worker in the direct protocol, forwarder across domains */
    uint64_t *combine_tails;      /* [sources][Cc]: as last written at each source */
    unsigned char *reply_staging; /* reply rows, where the fabric maps no peer; worker: [A][capacity], else
                                     [S][capacity] */

    /* Worker */
    afdep_arrival_t *arrivals;
    uint32_t arrival_count;
    int32_t *positions;     /* [A * capacity * min(K, E over the workers)]: rows of each arrival, in slot order */
    float *weights;         /* the same */
    uint8_t *choices;       /* the same: the slot of the token's choice */
    int32_t *counts, *ends; /* [experts of this rank] */
    int64_t row_count;
} afdep_plane_t;

/* How far a worker is in the receive of its next exchange. */
typedef enum afdep_receive_stage { AFDEP_RECEIVE_IDLE, AFDEP_RECEIVE_JOIN, AFDEP_RECEIVE_PLACE } afdep_receive_stage_t;

struct afdep_host {
    const afdep_settings_t *settings;
    const afdep_shape_t *shape;
    const afdep_layout_t *layout;
    const afdep_row_ops_t *ops;
    afdep_fabric_t *fabric;
    const afdep_plane_layout_t *at_worker, *at_forwarder, *at_source; /* planes of ranks with that duty */
    int rank, source, forwarder, worker; /* the duties of this rank: 0 or 1 */
    int domain, rail, source_domain;
    uint32_t targets, sources, combine_channels; /* sources: that a rank answers (direct: A, else S) */
    int lane_control, lane_domain;

    afdep_plane_t planes[4];
    void *arena;
    uint64_t arena_bytes;

    /* Exchange numbers: started and finished by this rank (dispatched, collected; or received, replied). What the
       witnesses and answers say: this rank has read its rail inbox, and the rows of its domain (direct: its inbox). */
    uint64_t opened_at, started, finished, read_rail, read_rows;

    /* The call under way. `then` runs when its actors are done: AFDEP_AGAIN when it added more, else the call's status.
       */
    const char *call_name;
    afdep_status_t (*then)(afdep_host_t *h);
    uint64_t exchange;
    afdep_plane_t *plane;
    int entered;            /* dispatch: the entry barrier is passed */
    int gate;               /* dispatch: the planes of the peers may be overwritten; reply: the partials are there */
    int reply_summed;       /* reply: this rank's own partials are written */
    int cached;             /* dispatch, receive: the plane's routing is used again */
    int incomplete;         /* a send-only dispatch is under way between calls */
    uint16_t *leaving;      /* [H] FFN with FP8 combine: a sum before it is packed */
    afdep_receive_stage_t receive_stage;
    afdep_dispatch_t dispatch;
    afdep_receive_t *receive;
    afdep_reply_t reply;
    afdep_collect_t *collect;
    struct {
        int found, token, slot, id, repeated;
    } bad_route; /* dispatch: the first invalid choice */
    afdep_actor_t *actors; /* [actor_limit] */
    int actor_count, actor_limit;

    afdep_load_counts_t *load;
    uint8_t *lost; /* [ranks]: masked; NULL without survive_sources */

    /* The first fatal error. */
    afdep_status_t poison;
    char poison_why[512];
};

/* ---- run.c: stepping, deadlines, failures -------------------------------------------------------------------- */

void afdep_host_begin(afdep_host_t *h, const char *call_name, uint64_t exchange,
                      afdep_status_t (*then)(afdep_host_t *h));
afdep_actor_t *afdep_host_add(afdep_host_t *h, afdep_step_fn step, const char *duty, int channel);

/* Steps the actors of the call under way until it has its status and everything issued is on its way. A fatal error
   poisons the buffer and tells the peers. */
afdep_status_t afdep_host_run(afdep_host_t *h);

/* Steps the actors for as long as something moves, without waiting. AFDEP_OK, or the error that poisoned the buffer. */
afdep_status_t afdep_host_advance(afdep_host_t *h);

/* Steps one actor, and ends the call when it was the last: AFDEP_OK (moved), AFDEP_AGAIN (waits), AFDEP_DONE (the call
   is over; *result is its status). For whoever schedules actors by itself. */
afdep_status_t afdep_host_step(afdep_host_t *h, int actor, afdep_status_t *result);

/* POISONED with the first error's sentence, or OK. */
afdep_status_t afdep_host_check(afdep_host_t *h);

/* Poisons the buffer with `status` and the thread's last error, and tells all peers whom it is about (-1: nobody). */
afdep_status_t afdep_host_poison(afdep_host_t *h, afdep_status_t status, int culprit);

/* Looks once at what peers said of failures, and is poisoned by it. */
afdep_status_t afdep_host_look(afdep_host_t *h);

/* Best effort: writes a control word of a peer, unless it is dead. */
void afdep_host_tell(afdep_host_t *h, int peer, uint64_t offset, uint64_t word);

/* Waits, in an orderly parting, for every peer's closing word. */
afdep_status_t afdep_host_part(afdep_host_t *h);

static inline afdep_status_t afdep_host_wait(afdep_actor_t *actor, int peer, const char *word)
{
    actor->wait.peer = peer;
    actor->wait.word = word;
    return AFDEP_AGAIN;
}

/* A named protocol error: `word` of `peer` holds `seen`. */
afdep_status_t afdep_host_broken(afdep_host_t *h, const afdep_actor_t *actor, int peer, const char *word,
                                 uint64_t seen);

/* A named protocol error: `peer` sent more than this rank's bucket holds, so the ranks were given different buckets. */
afdep_status_t afdep_host_beyond_bucket(afdep_host_t *h, const afdep_actor_t *actor, int peer, const char *what,
                                        uint64_t value);

/* ---- host.c: making a rank ----------------------------------------------------------------------------------- */

/* Local. A rank without a fabric yet; `settings` must outlive it. */
afdep_status_t afdep_host_create(const afdep_settings_t *settings, int rank, afdep_host_t **host);

/* Local. Back to the state just after creation, for the simulator; the segment is prepared anew by its owner. */
void afdep_host_restart(afdep_host_t *h);

/* Local. Frees the rank, not its fabric. */
void afdep_host_destroy(afdep_host_t *h);

/* ---- The rest, by file --------------------------------------------------------------------------------------- */

/* planes.c */
uint64_t afdep_host_private_bytes(const afdep_settings_t *settings, int ffn);
afdep_status_t afdep_host_planes_open(afdep_host_t *h);
void afdep_host_planes_restart(afdep_host_t *h);
void afdep_host_planes_close(afdep_host_t *h);
void afdep_host_prepare_segment(void *host, void *base); /* words to their starting values */

/* The calls' first parts: check, set up actors. The call is then under way until afdep_host_run() or afdep_host_step()
   says its status; what was passed stays valid until then. An error here changed nothing. */
afdep_status_t afdep_host_begin_dispatch(afdep_host_t *h, const afdep_dispatch_t *dispatch, afdep_stream_t stream);
afdep_status_t afdep_host_begin_receive(afdep_host_t *h, afdep_receive_t *receive, afdep_stream_t stream);
afdep_status_t afdep_host_begin_reply(afdep_host_t *h, const afdep_reply_t *reply, afdep_stream_t stream);
afdep_status_t afdep_host_begin_collect(afdep_host_t *h, afdep_collect_t *collect, afdep_stream_t stream);
afdep_status_t afdep_host_begin_elastic_dispatch(afdep_host_t *h, const afdep_dispatch_t *dispatch,
                                                 afdep_receive_t *receive, afdep_stream_t stream);
afdep_status_t afdep_host_begin_elastic_combine(afdep_host_t *h, const afdep_reply_t *reply, afdep_collect_t *collect,
                                                afdep_stream_t stream);

/* Their parts, for the calls that are two in one: what is wrong with the arguments; the actors of a call under way; its
   end. dispatch.c, receive.c, reply.c, collect.c */
afdep_status_t afdep_host_check_dispatch(const afdep_host_t *h, const afdep_dispatch_t *d, afdep_stream_t stream);
void afdep_host_start_dispatch(afdep_host_t *h, const afdep_dispatch_t *dispatch);
afdep_status_t afdep_host_dispatched(afdep_host_t *h);
afdep_status_t afdep_host_check_receive(const afdep_host_t *h, const afdep_receive_t *r, afdep_stream_t stream);
void afdep_host_start_receive(afdep_host_t *h, afdep_receive_t *receive);
afdep_status_t afdep_host_counted(afdep_host_t *h);
afdep_status_t afdep_host_check_reply(const afdep_host_t *h, const afdep_reply_t *r, afdep_stream_t stream);
void afdep_host_start_reply(afdep_host_t *h, const afdep_reply_t *reply);
afdep_status_t afdep_host_check_collect(afdep_host_t *h, const afdep_collect_t *c, afdep_stream_t stream);
void afdep_host_start_collect(afdep_host_t *h, afdep_collect_t *collect);
afdep_status_t afdep_host_collected(afdep_host_t *h);

/* dispatch.c: the row of `token` ready to be put at `offset` of `peer`. */
const void *afdep_host_ready_row(afdep_host_t *h, int peer, uint64_t offset, int token);

/* elastic.c */
afdep_status_t afdep_host_entry_step(afdep_host_t *h, afdep_actor_t *actor);

/* forward.c */
void afdep_host_add_forward(afdep_host_t *h);
afdep_status_t afdep_host_forward_joined(afdep_host_t *h, afdep_actor_t *actor);
afdep_status_t afdep_host_forward_own(afdep_host_t *h, afdep_actor_t *actor, int token);
void afdep_host_retire_own(afdep_host_t *h, int channel);

/* receive.c: witness or answer to each source that this rank answers (actor->i: the next). */
afdep_status_t afdep_host_send_witnesses(afdep_host_t *h, afdep_actor_t *actor);

/* reply.c: what a forwarder does on the way back. */
void afdep_host_add_reply_forward(afdep_host_t *h);

/* The contributors of an own-rail row, by token or by slot of the rail inbox: the rails of this domain that got it. */
const uint16_t *afdep_host_record_at(const afdep_host_t *h, uint64_t slot, int *count);
const uint16_t *afdep_host_record(const afdep_host_t *h, int source_domain, uint32_t token, int *count);

/* receive.c: the row of an arrival as it stands in this rank's segment, and the count word of the direct source
   actor->i. */
unsigned char *afdep_host_arrival_row(const afdep_host_t *h, const afdep_arrival_t *arrival);
afdep_status_t afdep_host_read_count(afdep_host_t *h, afdep_actor_t *actor, uint64_t *word);

/* cached.c: whether the next exchange may use its plane's routing again; the recorded arrivals, once all rows have come
   (AFDEP_DONE); the record of a row that is forwarded again. */
afdep_status_t afdep_host_check_cached(const afdep_host_t *h, int32_t bucket);
afdep_status_t afdep_host_relist(afdep_host_t *h, afdep_actor_t *actor);
afdep_status_t afdep_host_check_recorded(const afdep_host_t *h, const afdep_actor_t *actor, uint64_t slot, int rank,
                                         const afdep_row_tag_t *tag);

/* engine.c: adds the exchange under way to the load statistics; starts a dispatch without waiting, and completes it. */
void afdep_host_count_sent(afdep_host_t *h);
void afdep_host_count_received(afdep_host_t *h);
afdep_status_t afdep_host_check_complete(const afdep_host_t *h);
afdep_status_t afdep_host_send(afdep_host_t *h);
afdep_status_t afdep_host_complete(afdep_host_t *h);

/* survive.c: masks a source (FFN ranks tell everybody); reads the others' masks (an error: this rank is masked);
   whether what is wrong with a rank is a loss that is survived, and then masks it; masks the sources that the call
   under way waits for (0: none); lists the masked ranks and returns how many there are. */
void afdep_host_lose(afdep_host_t *h, int rank, const char *why);
afdep_status_t afdep_host_hear(afdep_host_t *h);
int afdep_host_forgives(afdep_host_t *h, int rank, const char *why);
int afdep_host_lose_awaited(afdep_host_t *h);
int32_t afdep_host_list_lost(afdep_host_t *h, int32_t *ranks, int32_t room);

static inline int afdep_host_is_lost(const afdep_host_t *h, int rank)
{
    return h->lost && h->lost[rank];
}

/* ---- Small things several duties need ------------------------------------------------------------------------ */

/* The plane of an exchange. */
static inline afdep_plane_t *afdep_host_plane(afdep_host_t *h, uint64_t exchange)
{
    return &h->planes[AFDEP_PLANTED(ONE_PLANE) ? 0 : afdep_plane_index(h->shape, exchange)];
}

/* Mixed: what is bound for this rank's own domain takes no rail. `target` and `source_domain` count domains alike
   there. */
static inline int afdep_host_is_own_domain(const afdep_host_t *h, int domain)
{
    return h->shape->protocol == AFDEP_PROTOCOL_MIXED && domain == h->domain;
}

/* Whether the exchange of the call under way has packed replies. */
static inline int afdep_host_packs(const afdep_host_t *h)
{
    return afdep_packs_replies(h->shape, h->plane->bucket);
}

static inline unsigned char *afdep_host_own(const afdep_host_t *h, uint64_t offset)
{
    return h->fabric->base + offset;
}

static inline afdep_row_tag_t *afdep_tag_at(unsigned char *row, uint32_t tag_offset)
{
    return (afdep_row_tag_t *)(void *)(row + tag_offset);
}

static inline int afdep_tag_is(const afdep_row_tag_t *tag, uint64_t exchange, uint32_t token, int source)
{
    return afdep_row_age(tag) < 1u << 31 && tag->exchange == (uint32_t)exchange && tag->token == token &&
           tag->source == (uint32_t)source;
}

/* The Attention rank behind an arrival's source domain and rail (direct: its Attention index). */
static inline int afdep_host_source(const afdep_host_t *h, int source_domain, int rail)
{
    if (h->shape->protocol == AFDEP_PROTOCOL_DIRECT)
        return h->shape->ffn_ranks + source_domain;
    return afdep_source_rank(h->shape, source_domain, rail);
}

static inline uint64_t afdep_combine_index(const afdep_host_t *h, int target_or_source, int channel)
{
    return (uint64_t)target_or_source * h->combine_channels + (uint32_t)channel;
}

#endif
