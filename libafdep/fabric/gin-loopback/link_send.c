/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending: requests wait at their peer, become messages as its queue has room, and are published in the order in which
 * their copies were queued, which is each pair's order too.
 */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric/gin-loopback/link_state.h"

#define BLOCK_REQUESTS 256

/* Host memory, taken in blocks and kept: a device is never waited for by it. */
typedef struct afdep_gin_block {
    struct afdep_gin_block *next;
    afdep_gin_request_t requests[BLOCK_REQUESTS];
} afdep_gin_block_t;

static afdep_gin_request_t *new_request(afdep_gin_link_t *link)
{
    afdep_gin_request_t *request;

    if (!link->free_requests) {
        afdep_gin_block_t *block = calloc(1, sizeof(*block));
        if (!block)
            return NULL;
        block->next = link->blocks;
        link->blocks = block;
        for (int i = 0; i < BLOCK_REQUESTS; i++) {
            block->requests[i].next = link->free_requests;
            link->free_requests = &block->requests[i];
        }
    }
    request = link->free_requests;
    link->free_requests = request->next;
    memset(request, 0, sizeof(*request));
    return request;
}

static void release(afdep_gin_link_t *link, afdep_gin_request_t *request)
{
    request->next = link->free_requests;
    link->free_requests = request;
}

void afdep_gin_free_requests(afdep_gin_link_t *link)
{
    while (link->blocks) {
        afdep_gin_block_t *next = link->blocks->next;
        free(link->blocks);
        link->blocks = next;
    }
}

/* ---- Requests --------------------------------------------------------------------------------------------------- */

static afdep_status_t check_put(const afdep_gin_link_t *link, const afdep_gin_put_t *put)
{
    if (put->rank < 0 || put->rank >= link->ranks)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a put for rank %d, where there are %d ranks", put->rank, link->ranks);
    if (put->bytes > 0 && (!put->from || !put->to))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a put of %zu bytes without a registered %s", put->bytes,
                          put->from ? "destination" : "source");
    if ((put->from && put->from->link != link) || (put->to && put->to->link != link) ||
        (put->signal && put->signal->link != link))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a put names memory that was registered with another communicator");
    if (put->bytes > 0 &&
        (put->bytes > put->from->bytes || put->from_offset > put->from->bytes - put->bytes))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a put of %zu bytes at offset %llu of %llu registered ones", put->bytes,
                          (unsigned long long)put->from_offset, (unsigned long long)put->from->bytes);
    if (put->signal && put->signal_offset % sizeof(uint64_t) != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a signal at offset %llu, which is not a multiple of 8",
                          (unsigned long long)put->signal_offset);
    return AFDEP_OK;
}

static afdep_status_t queue_put(afdep_gin_link_t *link, const afdep_gin_put_t *put, afdep_gin_request_t **request)
{
    afdep_status_t status = check_put(link, put);
    afdep_gin_peer_t *peer;
    afdep_gin_request_t *r;

    if (status != AFDEP_OK)
        return status;
    peer = &link->peers[put->rank];
    if (link->broken || peer->failed != AFDEP_OK)
        return afdep_fail(link->broken ? link->failed : peer->failed, "%s", link->why);
    r = new_request(link);
    if (!r)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for more requests");
    r->put = *put;
    r->peer = put->rank;
    r->done = put->bytes == 0 && !put->signal; /* nothing to tell anybody */
    if (!r->done) {
        if (peer->last)
            peer->last->next = r;
        else
            peer->first = r;
        peer->last = r;
        link->pending = 1;
    }
    *request = r;
    return AFDEP_OK;
}

afdep_status_t afdep_gin_put(afdep_gin_link_t *link, const afdep_gin_put_t *put, afdep_gin_request_t **request)
{
    afdep_status_t status;

    pthread_mutex_lock(&link->lock);
    status = queue_put(link, put, request);
    pthread_mutex_unlock(&link->lock);
    return status;
}

afdep_status_t afdep_gin_test(afdep_gin_link_t *link, afdep_gin_request_t *request, int *done)
{
    afdep_status_t status = AFDEP_OK;

    pthread_mutex_lock(&link->lock);
    *done = request->done;
    if (!request->done && (link->broken || link->peers[request->peer].failed != AFDEP_OK))
        status = afdep_fail(link->broken ? link->failed : link->peers[request->peer].failed, "%s", link->why);
    /* One that failed stays where flights and queues may still point to it, and goes with the link. */
    if (*done)
        release(link, request);
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* ---- Messages --------------------------------------------------------------------------------------------------- */

/* Staging for `bytes`, in one piece, or NULL: it is handed out and given back in the same order. */
static unsigned char *stage(afdep_gin_link_t *link, uint64_t bytes, uint64_t *staged)
{
    uint64_t at = link->staged_next % AFDEP_GIN_STAGING_BYTES;
    uint64_t skip = AFDEP_GIN_STAGING_BYTES - at < bytes ? AFDEP_GIN_STAGING_BYTES - at : 0;

    if (link->staged_next + skip + bytes - link->staged_first > AFDEP_GIN_STAGING_BYTES)
        return NULL;
    *staged = link->staged_next + skip;
    link->staged_next += skip + bytes;
    return link->out.staging + *staged % AFDEP_GIN_STAGING_BYTES;
}

/* The next message of a request. 1: it is in flight; 0: no room now. */
static int issue(afdep_gin_link_t *link, afdep_gin_request_t *request, afdep_status_t *status)
{
    afdep_gin_peer_t *peer = &link->peers[request->peer];
    afdep_gin_put_t *put = &request->put;
    uint64_t left = put->bytes - request->issued;
    uint64_t most = afdep_gin_payload_most(link->ranks);
    uint64_t bytes = left < most ? left : most;
    uint64_t before = link->staged_next;
    afdep_gin_flight_t flight = { .peer = request->peer };
    unsigned char *staging;

    if (link->flight_next - link->flight_first == AFDEP_GIN_FLIGHTS)
        return 0;
    if (bytes > 0 && !put->from->data) {
        *status = afdep_fail(AFDEP_ERR_ARGUMENT, "a put's source was deregistered before it was read");
        return 0;
    }
    staging = stage(link, bytes, &flight.staged);
    if (!staging)
        return 0;
    /* The queue's room is claimed before the copy starts: a peer that does not read never holds up staging that
       messages for others need. */
    if (!afdep_gin_reserve(&peer->sender, bytes, &flight.slot, &flight.header.number, &flight.end, status)) {
        link->staged_next = before;
        return 0;
    }
    flight.header.kind = AFDEP_GIN_MESSAGE;
    flight.header.bytes = (uint32_t)bytes;
    if (bytes > 0) {
        const unsigned char *from = put->from->data + put->from_offset + request->issued;

        flight.header.put_region = put->to->id;
        flight.header.put_offset = put->to_offset + request->issued;
        if (!put->from->on_device) {
            memcpy(staging, from, bytes);
        } else {
            *status = link->out.memory->read(link->out.memory, staging, from, bytes);
            if (*status != AFDEP_OK)
                return 0;
            link->out.unmarked = 1;
        }
    }
    request->issued += bytes;
    if (request->issued == put->bytes) {
        flight.finishes = request;
        if (put->signal) {
            flight.header.signal_region = put->signal->id;
            flight.header.signal_offset = put->signal_offset;
            flight.header.signal_add = put->signal_add;
        }
    }
    flight.ticket = afdep_gin_ticket(&link->out);
    link->flights[link->flight_next++ % AFDEP_GIN_FLIGHTS] = flight;
    return 1;
}

/* Everything of one peer that has room. */
static afdep_status_t issue_peer(afdep_gin_link_t *link, int p, int *left)
{
    afdep_gin_peer_t *peer = &link->peers[p];
    afdep_status_t status = AFDEP_OK;

    if (peer->failed != AFDEP_OK)
        return AFDEP_OK;
    while (peer->first && issue(link, peer->first, &status)) {
        if (peer->first->issued == peer->first->put.bytes) {
            peer->first = peer->first->next;
            if (!peer->first)
                peer->last = NULL;
        }
    }
    if (status == AFDEP_ERR_PROTOCOL || status == AFDEP_ERR_ARGUMENT) {
        afdep_gin_peer_fail(link, p, status);
        return AFDEP_OK;
    }
    if (peer->first)
        *left = 1;
    return status;
}

static void publish(afdep_gin_link_t *link, afdep_gin_flight_t *flight)
{
    afdep_gin_peer_t *peer = &link->peers[flight->peer];

    if (peer->failed == AFDEP_OK) {
        memcpy(flight->slot + sizeof(flight->header), link->out.staging + flight->staged % AFDEP_GIN_STAGING_BYTES,
               flight->header.bytes);
        memcpy(flight->slot, &flight->header, sizeof(flight->header));
        afdep_gin_publish(&peer->sender, flight->end);
        /* After the position: who has heard the bell finds the message. */
        atomic_fetch_add_explicit(&peer->inbox->bell, 1, memory_order_release);
        if (flight->finishes)
            flight->finishes->done = 1;
    }
    link->staged_first = flight->staged + flight->header.bytes;
    link->flight_first++;
}

void afdep_gin_send_land(afdep_gin_link_t *link)
{
    while (link->flight_first != link->flight_next) {
        afdep_gin_flight_t *flight = &link->flights[link->flight_first % AFDEP_GIN_FLIGHTS];
        /* A payload is whole once the mark after its copy has been passed, and not before. */
        if (flight->ticket > link->out.passed)
            return;
        publish(link, flight);
    }
}

int afdep_gin_send_idle(const afdep_gin_link_t *link)
{
    return !link->pending && link->flight_first == link->flight_next;
}

afdep_status_t afdep_gin_send_step(afdep_gin_link_t *link)
{
    afdep_status_t status = afdep_gin_look(&link->out);

    if (status != AFDEP_OK)
        return status;
    afdep_gin_send_land(link);
    if (!link->pending || !afdep_gin_can_mark(&link->out))
        return AFDEP_OK;
    link->pending = 0;
    for (int i = 0; i < link->ranks && status == AFDEP_OK; i++)
        status = issue_peer(link, (link->turn + i) % link->ranks, &link->pending);
    /* Another peer begins next time, or the first ones would keep staging to themselves. */
    link->turn = (link->turn + 1) % link->ranks;
    if (status == AFDEP_OK)
        status = afdep_gin_mark(&link->out);
    if (status == AFDEP_OK)
        status = afdep_gin_look(&link->out);
    if (status == AFDEP_OK)
        afdep_gin_send_land(link); /* what needed no copy goes at once */
    return status;
}
