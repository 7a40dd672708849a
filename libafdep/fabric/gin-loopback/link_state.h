/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a link consists of, shared by the files that make, send and apply.
 */
#ifndef AFDEP_GIN_LOOPBACK_LINK_STATE_H
#define AFDEP_GIN_LOOPBACK_LINK_STATE_H

#include <pthread.h>

#include "fabric/gin-loopback/link.h"
#include "fabric/gin-loopback/queue.h"

#define AFDEP_GIN_STAGING_BYTES (1u << 20) /* of each stream */
#define AFDEP_GIN_FLIGHTS 256              /* messages between their copy's start and their publication */
#define AFDEP_GIN_ROUND_MESSAGES 128       /* messages applied in one go */

/* A stream, how many marks it was given, and how many it has passed. */
typedef struct afdep_gin_lane {
    afdep_gin_memory_t *memory;
    unsigned char *staging;
    uint64_t marks, passed;
    int unmarked; /* something was queued since the last mark */
} afdep_gin_lane_t;

struct afdep_gin_region {
    afdep_gin_link_t *link;
    unsigned char *data;
    uint64_t bytes;
    uint32_t id; /* from 1 */
    int on_device;
};

struct afdep_gin_request {
    afdep_gin_request_t *next; /* of its peer's queue, or of the free ones */
    afdep_gin_put_t put;
    uint64_t issued; /* bytes that have a message */
    int peer, done;
};

/* A message that has its room in the target's queue, and whose payload is on its way into staging. */
typedef struct afdep_gin_flight {
    afdep_gin_header_t header;
    unsigned char *slot;  /* in the target's queue */
    uint64_t end;         /* what is published with it */
    uint64_t ticket;      /* the mark after its copy */
    uint64_t staged;      /* where in staging; counted on and on, like a queue's position */
    afdep_gin_request_t *finishes; /* NULL but for a put's last message */
    int peer;
} afdep_gin_flight_t;

typedef struct afdep_gin_peer {
    int fd; /* of its inbox; -1: this rank itself */
    afdep_process_t process;
    afdep_gin_inbox_t *inbox;
    afdep_gin_sender_t sender;
    afdep_gin_receiver_t receiver;
    afdep_gin_request_t *first, *last; /* not wholly issued yet, in order */
    afdep_status_t failed;             /* PEER or PROTOCOL: nothing is sent to it or taken from it any more */
} afdep_gin_peer_t;

/* A signal word that the round adds to. */
typedef struct afdep_gin_word {
    unsigned char *at;
    uint64_t add;
    int on_device;
} afdep_gin_word_t;

/* One of two rounds, so that one is gathered while the other's last copies are under way. */
typedef struct afdep_gin_round {
    unsigned char *staging; /* payloads, then the words */
    uint64_t *values;       /* [AFDEP_GIN_ROUND_MESSAGES], within staging */
    afdep_gin_word_t words[AFDEP_GIN_ROUND_MESSAGES];
    int word_count;
    uint64_t ticket; /* staging is free again once it has been passed */
} afdep_gin_round_t;

struct afdep_gin_link {
    pthread_mutex_t lock;
    int ranks, rank;
    afdep_shm_object_t own;
    afdep_gin_inbox_t *inbox;
    uint64_t inbox_bytes;
    afdep_status_t failed; /* the first failure, of the link or of a peer */
    int broken;            /* it was the link's own: nothing goes on */
    char why[512];
    int64_t looked_ms; /* when the peers' lives were looked at */

    afdep_gin_region_t **regions; /* by id - 1; without data once deregistered */
    uint32_t region_count, region_room;

    afdep_gin_lane_t out;
    afdep_gin_request_t *free_requests;
    struct afdep_gin_block *blocks; /* of requests, for freeing */
    uint64_t staged_first, staged_next; /* staging of `out`: oldest in use, next free */
    afdep_gin_flight_t flights[AFDEP_GIN_FLIGHTS];
    uint64_t flight_first, flight_next;
    int pending; /* peers may have requests that are not wholly issued */
    int turn;    /* the peer to begin with */

    afdep_gin_lane_t in;
    afdep_gin_round_t rounds[2];
    int gathering;   /* which of them is next */
    int reading;     /* its words' values are on their way */
    uint64_t bell;   /* seen */
    int deferred;    /* a message waits for its region: look again whatever the bell says */
    int in_turn;

    afdep_gin_peer_t peers[]; /* [ranks] */
};

/* Remembers the first failure with the thread's last sentence, and passes `status` on. */
afdep_status_t afdep_gin_link_fail(afdep_gin_link_t *link, afdep_status_t status, int broken);

/* Gives a peer up: its requests fail, nothing more is taken from it. */
afdep_status_t afdep_gin_peer_fail(afdep_gin_link_t *link, int peer, afdep_status_t status);

/* ---- Lanes ------------------------------------------------------------------------------------------------------ */

/* The mark after everything queued so far. */
static inline uint64_t afdep_gin_ticket(const afdep_gin_lane_t *lane)
{
    return lane->marks + (lane->unmarked ? 1 : 0);
}

/* Whether another mark may be queued. */
static inline int afdep_gin_can_mark(const afdep_gin_lane_t *lane)
{
    return lane->marks - lane->passed < AFDEP_GIN_MARKS;
}

static inline afdep_status_t afdep_gin_mark(afdep_gin_lane_t *lane)
{
    afdep_status_t status = lane->unmarked ? lane->memory->mark(lane->memory) : AFDEP_OK;

    if (lane->unmarked && status == AFDEP_OK) {
        lane->marks++;
        lane->unmarked = 0;
    }
    return status;
}

static inline afdep_status_t afdep_gin_look(afdep_gin_lane_t *lane)
{
    return lane->passed == lane->marks ? AFDEP_OK : lane->memory->passed(lane->memory, &lane->passed);
}

/* ---- The two directions ----------------------------------------------------------------------------------------- */

/* Each: one step, the link locked and the memory entered. An error has broken the link. */
afdep_status_t afdep_gin_send_step(afdep_gin_link_t *link);
afdep_status_t afdep_gin_apply_step(afdep_gin_link_t *link);

/* Writes the sums of the round whose words have been read. */
afdep_status_t afdep_gin_apply_finish(afdep_gin_link_t *link);

/* Whether a step could do anything, without entering the memory. */
int afdep_gin_send_idle(const afdep_gin_link_t *link);
int afdep_gin_apply_idle(const afdep_gin_link_t *link);

/* Publishes what has been read, without starting more. For closing. */
void afdep_gin_send_land(afdep_gin_link_t *link);

void afdep_gin_free_requests(afdep_gin_link_t *link);

#endif
