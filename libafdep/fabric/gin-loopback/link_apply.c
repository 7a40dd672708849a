/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applying what peers have sent, in rounds. A round takes messages in each pair's order, queues their payloads' copies,
 * and reads the signal words that they add to; once all of that is done it writes the sums.
 *
 * Why signals come after the puts they follow: a round's words are written only after the mark behind its payloads has
 * been passed, earlier rounds' payloads are earlier on the same stream, and a later round never begins before this
 * one's words are queued. Why no addition is lost: this rank is the only writer of its words beside the program's own
 * resets, which may not race with signals, and a word's next read is behind its last write on the stream.
 */
#include <string.h>

#include "core/error.h"
#include "fabric/gin-loopback/link_state.h"

/* What a round's staging holds beside the words. */
#define PAYLOAD_BYTES (AFDEP_GIN_STAGING_BYTES / 2 - AFDEP_GIN_ROUND_MESSAGES * sizeof(uint64_t))

/* How far ahead of this rank's registrations a peer may be. */
#define REGIONS_AHEAD 4096

/* 1: `*region` is there; 0: not yet, its registration is under way; PROTOCOL for what will never be right. */
static int find_region(afdep_gin_link_t *link, int source, uint32_t id, uint64_t offset, uint64_t bytes,
                       const afdep_gin_region_t **region, afdep_status_t *status)
{
    if (id > link->region_count && id - link->region_count <= REGIONS_AHEAD)
        return 0;
    *region = id <= link->region_count ? link->regions[id - 1] : NULL;
    if (!*region || !(*region)->data) {
        *status = afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d writes to registration %u, which rank %d does not have",
                             source, id, link->rank);
        return 0;
    }
    if (bytes > (*region)->bytes || offset > (*region)->bytes - bytes) {
        *status = afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d writes %llu bytes at offset %llu of registration %u, which "
                             "has %llu", source, (unsigned long long)bytes, (unsigned long long)offset, id,
                             (unsigned long long)(*region)->bytes);
        return 0;
    }
    return 1;
}

/* ---- Words ------------------------------------------------------------------------------------------------------ */

/* Adds to a word of the round, which are kept sorted by place so that neighbours are copied together. */
static void add_to_word(afdep_gin_round_t *round, const afdep_gin_region_t *region, uint64_t offset, uint64_t add)
{
    unsigned char *at = region->data + offset;
    int i = round->word_count;

    while (i > 0 && round->words[i - 1].at > at)
        i--;
    if (i > 0 && round->words[i - 1].at == at) {
        round->words[i - 1].add += add;
        return;
    }
    memmove(&round->words[i + 1], &round->words[i], (size_t)(round->word_count - i) * sizeof(round->words[0]));
    round->words[i] = (afdep_gin_word_t){ at, add, region->on_device };
    round->word_count++;
}

/* Where the run of neighbouring words that begins at `first` ends. */
static int run_end(const afdep_gin_round_t *round, int first)
{
    int i = first + 1;

    while (i < round->word_count && round->words[i].at == round->words[i - 1].at + sizeof(uint64_t) &&
           round->words[i].on_device == round->words[first].on_device)
        i++;
    return i;
}

static afdep_status_t read_words(afdep_gin_link_t *link, afdep_gin_round_t *round)
{
    for (int i = 0, end; i < round->word_count; i = end) {
        afdep_status_t status = AFDEP_OK;

        end = run_end(round, i);
        if (!round->words[i].on_device)
            continue;
        status = link->in.memory->read(link->in.memory, &round->values[i], round->words[i].at,
                                       (size_t)(end - i) * sizeof(uint64_t));
        if (status != AFDEP_OK)
            return status;
        link->in.unmarked = 1;
    }
    return AFDEP_OK;
}

static afdep_status_t write_words(afdep_gin_link_t *link, afdep_gin_round_t *round)
{
    for (int i = 0; i < round->word_count; i++) {
        if (round->words[i].on_device)
            round->values[i] += round->words[i].add;
        else /* the program reads it while this is added */
            atomic_fetch_add_explicit((_Atomic uint64_t *)(void *)round->words[i].at, round->words[i].add,
                                      memory_order_release);
    }
    for (int i = 0, end; i < round->word_count; i = end) {
        afdep_status_t status = AFDEP_OK;

        end = run_end(round, i);
        if (!round->words[i].on_device)
            continue;
        status = link->in.memory->write(link->in.memory, round->words[i].at, &round->values[i],
                                        (size_t)(end - i) * sizeof(uint64_t));
        if (status != AFDEP_OK)
            return status;
        link->in.unmarked = 1;
    }
    return AFDEP_OK;
}

/* ---- Rounds ----------------------------------------------------------------------------------------------------- */

typedef struct gathering {
    afdep_gin_round_t *round;
    uint64_t staged;
    int messages;
} gathering_t;

/* Takes one message into the round. 1: taken; 0: none, or no room, or its region is not there yet. */
static int gather_one(afdep_gin_link_t *link, int p, gathering_t *g, afdep_status_t *broken)
{
    afdep_gin_peer_t *peer = &link->peers[p];
    const afdep_gin_region_t *to = NULL, *signal = NULL;
    afdep_gin_header_t header;
    const unsigned char *payload;
    afdep_status_t status = AFDEP_OK;
    int here;

    if (peer->failed != AFDEP_OK || !afdep_gin_next(&peer->receiver, p, &header, &payload, &status)) {
        if (status != AFDEP_OK)
            afdep_gin_peer_fail(link, p, status);
        return 0;
    }
    if (g->messages == AFDEP_GIN_ROUND_MESSAGES || g->staged + header.bytes > PAYLOAD_BYTES) {
        link->deferred = 1;
        return 0;
    }
    here = !header.put_region || find_region(link, p, header.put_region, header.put_offset, header.bytes, &to, &status);
    here = here && (!header.signal_region || find_region(link, p, header.signal_region, header.signal_offset,
                                                         sizeof(uint64_t), &signal, &status));
    if (status != AFDEP_OK)
        afdep_gin_peer_fail(link, p, status);
    else if (!here)
        link->deferred = 1;
    if (!here)
        return 0;
    if (to && !to->on_device) {
        memcpy(to->data + header.put_offset, payload, header.bytes);
    } else if (to) {
        unsigned char *staging = g->round->staging + g->staged;

        /* Out of the queue before its room is given back. */
        memcpy(staging, payload, header.bytes);
        g->staged += header.bytes;
        *broken = link->in.memory->write(link->in.memory, to->data + header.put_offset, staging, header.bytes);
        link->in.unmarked = 1;
    }
    if (signal)
        add_to_word(g->round, signal, header.signal_offset, header.signal_add);
    g->messages++;
    afdep_gin_take(&peer->receiver, &header);
    return *broken == AFDEP_OK;
}

static afdep_status_t gather(afdep_gin_link_t *link, afdep_gin_round_t *round)
{
    gathering_t g = { .round = round };
    afdep_status_t status = AFDEP_OK;
    /* Acquire, and before the queues are looked at: a message published later rings again. */
    uint64_t bell = atomic_load_explicit(&link->inbox->bell, memory_order_acquire);

    link->bell = bell;
    link->deferred = 0;
    round->word_count = 0;
    for (int i = 0; i < link->ranks && status == AFDEP_OK; i++) {
        while (gather_one(link, (link->in_turn + i) % link->ranks, &g, &status)) {
        }
    }
    link->in_turn = (link->in_turn + 1) % link->ranks;
    if (status == AFDEP_OK)
        status = read_words(link, round);
    if (status == AFDEP_OK)
        status = afdep_gin_mark(&link->in);
    round->ticket = link->in.marks;
    link->reading = round->word_count > 0;
    if (g.messages > 0 && !link->reading)
        link->gathering ^= 1;
    return status;
}

afdep_status_t afdep_gin_apply_finish(afdep_gin_link_t *link)
{
    afdep_gin_round_t *round = &link->rounds[link->gathering];
    afdep_status_t status = write_words(link, round);

    if (status == AFDEP_OK)
        status = afdep_gin_mark(&link->in);
    round->ticket = link->in.marks;
    link->reading = 0;
    link->gathering ^= 1;
    return status;
}

int afdep_gin_apply_idle(const afdep_gin_link_t *link)
{
    return !link->reading && !link->deferred &&
           atomic_load_explicit(&link->inbox->bell, memory_order_acquire) == link->bell;
}

afdep_status_t afdep_gin_apply_step(afdep_gin_link_t *link)
{
    afdep_status_t status = afdep_gin_look(&link->in);

    /* A step queues two marks at most. */
    while (status == AFDEP_OK && link->in.marks - link->in.passed + 2 <= AFDEP_GIN_MARKS) {
        afdep_gin_round_t *round = &link->rounds[link->gathering];

        if (link->in.passed < round->ticket)
            break;
        if (link->reading)
            status = afdep_gin_apply_finish(link);
        else if (!afdep_gin_apply_idle(link))
            status = gather(link, round);
        else
            break;
        if (status == AFDEP_OK)
            status = afdep_gin_look(&link->in);
        if (link->deferred && !link->reading)
            break; /* it waits for a registration, which needs this lock */
    }
    return status;
}
