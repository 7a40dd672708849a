/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one rank hands another: a queue of messages in the target's shared memory (its inbox), one queue per source, in
 * order. A message says which bytes go where and which signal is added to afterwards; its payload stands behind its
 * header. A queue has one writer and one reader, and nothing in it is ever reset: both positions only grow.
 *
 * The reader trusts nothing that it finds here: positions and headers are copied once, and held to their bounds.
 */
#ifndef AFDEP_GIN_LOOPBACK_QUEUE_H
#define AFDEP_GIN_LOOPBACK_QUEUE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <afdep/status.h>

#define AFDEP_GIN_MAGIC 0x4E494741u /* "AGIN" */
#define AFDEP_GIN_VERSION 1u
#define AFDEP_GIN_RANKS_MOST 1024
#define AFDEP_GIN_UNIT 64 /* messages begin and end at multiples of it */

/* The inbox object's size whatever the number of ranks, so that its name can be told before that is known. Only what
   `ranks` need of it is ever given memory. */
#define AFDEP_GIN_OBJECT_BYTES (64u << 20)

typedef struct afdep_gin_inbox {
    uint32_t magic, version;
    uint32_t ranks, rank;        /* of the communicator; its owner's */
    _Atomic uint32_t ready;      /* 1: the owner has given it memory; written by the owner */
    _Atomic uint32_t closed;     /* 1: the owner has left in order; written by the owner */
    _Atomic uint32_t attached;   /* peers that have it mapped; counted up by each of them */
    _Alignas(64) _Atomic uint64_t bell; /* counted up by every source that has published something */
} afdep_gin_inbox_t;

typedef struct afdep_gin_positions {
    _Alignas(64) _Atomic uint64_t tail; /* bytes published; written by the source */
    _Alignas(64) _Atomic uint64_t head; /* bytes taken; written by the target */
} afdep_gin_positions_t;

enum { AFDEP_GIN_MESSAGE = 1, AFDEP_GIN_PAD = 2 };

typedef struct afdep_gin_header {
    uint32_t kind;
    uint32_t bytes;  /* MESSAGE: of the payload. PAD: of what is skipped, this header included */
    uint64_t number; /* of this pair's messages and pads, from 1 */
    uint32_t put_region, signal_region; /* 0: none */
    uint64_t put_offset, signal_offset, signal_add;
    uint64_t zero[2];
} afdep_gin_header_t;
_Static_assert(sizeof(afdep_gin_header_t) == AFDEP_GIN_UNIT, "a header is one unit");

/* Bytes of each queue between `ranks` ranks: a power of two, smaller the more ranks there are. */
uint64_t afdep_gin_queue_bytes(int ranks);

/* Bytes of an inbox that are in use. */
uint64_t afdep_gin_inbox_bytes(int ranks);

/* The largest payload of one message: a quarter of a queue, so that copies overlap. */
uint64_t afdep_gin_payload_most(int ranks);

/* ---- The source's end ------------------------------------------------------------------------------------------- */

typedef struct afdep_gin_sender {
    afdep_gin_positions_t *positions;
    unsigned char *ring;
    uint64_t ring_bytes;
    uint64_t reserved; /* up to where this source has claimed room; it publishes in the same order */
    uint64_t number;
} afdep_gin_sender_t;

/* The queue of `source` in an inbox that is mapped at `inbox`. */
void afdep_gin_sender_init(afdep_gin_sender_t *sender, void *inbox, int ranks, int source);

/*
 * Claims room for one message with `bytes` of payload, after a pad where it would not fit before the ring's end.
 * Returns 1 and sets `*slot` (the header's place; the payload's is behind it), `*number`, and `*end`, the position to
 * publish once it is written; 0 where the queue is full: try again. PROTOCOL where the target's position is impossible.
 */
int afdep_gin_reserve(afdep_gin_sender_t *sender, uint64_t bytes, unsigned char **slot, uint64_t *number, uint64_t *end,
                      afdep_status_t *status);

/* Lets the target see everything up to `end`. Release: the header and payload written before are seen with it. */
void afdep_gin_publish(afdep_gin_sender_t *sender, uint64_t end);

/* ---- The target's end ------------------------------------------------------------------------------------------- */

typedef struct afdep_gin_receiver {
    afdep_gin_positions_t *positions;
    const unsigned char *ring;
    uint64_t ring_bytes, payload_most;
    uint64_t taken;
    uint64_t number;
} afdep_gin_receiver_t;

void afdep_gin_receiver_init(afdep_gin_receiver_t *receiver, void *inbox, int ranks, int source);

/*
 * The next message, if one was published: 1 sets `*header` (a copy that the source cannot change any more) and
 * `*payload`; 0: none. Stays the next one until it is taken. `*status` PROTOCOL, with a sentence, where what is there
 * is nothing that a correct source writes.
 */
int afdep_gin_next(afdep_gin_receiver_t *receiver, int source, afdep_gin_header_t *header,
                   const unsigned char **payload, afdep_status_t *status);

/* Goes past the message that next() returned and gives its room back to the source. */
void afdep_gin_take(afdep_gin_receiver_t *receiver, const afdep_gin_header_t *header);

/* OK, or PROTOCOL: whether `header` is one that a correct source writes as its `number`th, where `room` bytes are left
   before the ring's end and `published` were published. */
afdep_status_t afdep_gin_check(const afdep_gin_header_t *header, int source, uint64_t number, uint64_t room,
                               uint64_t published, uint64_t payload_most);

#endif
