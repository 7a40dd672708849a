/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues in shared memory: where they lie, and both ends of one.
 */
#include "fabric/gin-loopback/queue.h"

#include <string.h>

#include "core/error.h"

#define QUEUES_AT 4096 /* the inbox's header has a page */
#define ALL_BYTES (32u << 20)
#define LEAST_BYTES (16u << 10)
#define MOST_BYTES (1u << 20)

/* All ranks' queues together stay near 32 MiB: containers are often given 64 MiB of /dev/shm. */
uint64_t afdep_gin_queue_bytes(int ranks)
{
    uint64_t bytes = MOST_BYTES;
    uint64_t pairs = (uint64_t)ranks * (uint64_t)ranks;

    while (bytes > LEAST_BYTES && bytes * pairs > ALL_BYTES)
        bytes /= 2;
    return bytes;
}

static uint64_t rings_at(int ranks)
{
    uint64_t positions = (uint64_t)ranks * sizeof(afdep_gin_positions_t);
    return (QUEUES_AT + positions + 4095) / 4096 * 4096;
}

uint64_t afdep_gin_inbox_bytes(int ranks)
{
    return rings_at(ranks) + (uint64_t)ranks * afdep_gin_queue_bytes(ranks);
}

uint64_t afdep_gin_payload_most(int ranks)
{
    return afdep_gin_queue_bytes(ranks) / 4;
}

static afdep_gin_positions_t *positions_of(void *inbox, int source)
{
    return (afdep_gin_positions_t *)(void *)((unsigned char *)inbox + QUEUES_AT) + source;
}

static unsigned char *ring_of(void *inbox, int ranks, int source)
{
    return (unsigned char *)inbox + rings_at(ranks) + (uint64_t)source * afdep_gin_queue_bytes(ranks);
}

/* What a message with that much payload takes up. */
static uint64_t taken_by(uint64_t bytes)
{
    return sizeof(afdep_gin_header_t) + (bytes + AFDEP_GIN_UNIT - 1) / AFDEP_GIN_UNIT * AFDEP_GIN_UNIT;
}

/* ---- The source's end ------------------------------------------------------------------------------------------- */

void afdep_gin_sender_init(afdep_gin_sender_t *sender, void *inbox, int ranks, int source)
{
    *sender = (afdep_gin_sender_t){ positions_of(inbox, source), ring_of(inbox, ranks, source),
                                    afdep_gin_queue_bytes(ranks), 0, 0 };
}

int afdep_gin_reserve(afdep_gin_sender_t *sender, uint64_t bytes, unsigned char **slot, uint64_t *number, uint64_t *end,
                      afdep_status_t *status)
{
    /* Acquire: the target has read what it gave back before this source writes over it. */
    uint64_t head = atomic_load_explicit(&sender->positions->head, memory_order_acquire);
    uint64_t used = sender->reserved - head;
    uint64_t at = sender->reserved % sender->ring_bytes;
    uint64_t pad = sender->ring_bytes - at < taken_by(bytes) ? sender->ring_bytes - at : 0;

    *status = AFDEP_OK;
    if (used > sender->ring_bytes || head % AFDEP_GIN_UNIT != 0) {
        *status = afdep_fail(AFDEP_ERR_PROTOCOL, "a peer has taken %llu bytes from a queue that was given %llu",
                             (unsigned long long)head, (unsigned long long)sender->reserved);
        return 0;
    }
    if (pad + taken_by(bytes) > sender->ring_bytes - used)
        return 0;
    if (pad) {
        afdep_gin_header_t skip = { .kind = AFDEP_GIN_PAD, .bytes = (uint32_t)pad, .number = ++sender->number };
        memcpy(sender->ring + at, &skip, sizeof(skip));
        sender->reserved += pad;
    }
    *slot = sender->ring + sender->reserved % sender->ring_bytes;
    *number = ++sender->number;
    *end = sender->reserved += taken_by(bytes);
    return 1;
}

void afdep_gin_publish(afdep_gin_sender_t *sender, uint64_t end)
{
    atomic_store_explicit(&sender->positions->tail, end, memory_order_release);
}

/* ---- The target's end ------------------------------------------------------------------------------------------- */

void afdep_gin_receiver_init(afdep_gin_receiver_t *receiver, void *inbox, int ranks, int source)
{
    *receiver = (afdep_gin_receiver_t){ positions_of(inbox, source), ring_of(inbox, ranks, source),
                                        afdep_gin_queue_bytes(ranks), afdep_gin_payload_most(ranks), 0, 0 };
}

static afdep_status_t refuse(int source, const char *field, uint64_t value)
{
    return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d sent a message whose %s is %llu", source, field,
                      (unsigned long long)value);
}

afdep_status_t afdep_gin_check(const afdep_gin_header_t *header, int source, uint64_t number, uint64_t room,
                               uint64_t published, uint64_t payload_most)
{
    uint64_t whole;

    if (header->number != number)
        return refuse(source, "number", header->number);
    if (header->kind != AFDEP_GIN_MESSAGE && header->kind != AFDEP_GIN_PAD)
        return refuse(source, "kind", header->kind);
    if (header->zero[0] || header->zero[1])
        return refuse(source, "reserved word", header->zero[0] ? header->zero[0] : header->zero[1]);
    if (header->kind == AFDEP_GIN_PAD) {
        if (header->bytes != room)
            return refuse(source, "pad", header->bytes);
        if (header->put_region || header->signal_region || header->put_offset || header->signal_offset ||
            header->signal_add)
            return refuse(source, "pad's region", header->put_region ? header->put_region : header->signal_region);
        return header->bytes <= published ? AFDEP_OK : refuse(source, "pad", header->bytes);
    }
    if (header->bytes > payload_most)
        return refuse(source, "payload", header->bytes);
    whole = taken_by(header->bytes);
    if (whole > room || whole > published)
        return refuse(source, "payload", header->bytes);
    if ((header->put_region != 0) != (header->bytes != 0))
        return refuse(source, "region", header->put_region);
    if (!header->put_region && !header->signal_region)
        return refuse(source, "signal region", 0);
    if (header->signal_offset % sizeof(uint64_t) != 0)
        return refuse(source, "signal offset", header->signal_offset);
    return AFDEP_OK;
}

int afdep_gin_next(afdep_gin_receiver_t *receiver, int source, afdep_gin_header_t *header,
                   const unsigned char **payload, afdep_status_t *status)
{
    *status = AFDEP_OK;
    for (;;) {
        /* Acquire: with the position come the messages up to it. */
        uint64_t tail = atomic_load_explicit(&receiver->positions->tail, memory_order_acquire);
        uint64_t published = tail - receiver->taken;
        uint64_t at = receiver->taken % receiver->ring_bytes;

        if (published == 0)
            return 0;
        if (published > receiver->ring_bytes || published % AFDEP_GIN_UNIT != 0) {
            *status = refuse(source, "end", tail);
            return 0;
        }
        memcpy(header, receiver->ring + at, sizeof(*header));
        *status = afdep_gin_check(header, source, receiver->number + 1, receiver->ring_bytes - at, published,
                                  receiver->payload_most);
        if (*status != AFDEP_OK)
            return 0;
        *payload = receiver->ring + at + sizeof(*header);
        if (header->kind == AFDEP_GIN_MESSAGE)
            return 1;
        afdep_gin_take(receiver, header);
    }
}

void afdep_gin_take(afdep_gin_receiver_t *receiver, const afdep_gin_header_t *header)
{
    receiver->taken += header->kind == AFDEP_GIN_PAD ? header->bytes : taken_by(header->bytes);
    receiver->number++;
    /* Release: what was read is read before the source may write over it. */
    atomic_store_explicit(&receiver->positions->head, receiver->taken, memory_order_release);
}
