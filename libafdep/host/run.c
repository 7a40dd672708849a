/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor: steps a call's actors round robin, and says who is to blame when nothing moves.
 *
 * A rank that waits looks at its peers' failure words every few milliseconds and at their liveness a few times a
 * second. Whoever finds a peer dead tells all others, so that those waiting for a live but stuck neighbour name the
 * dead rank too.
 */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "host/host.h"

#define LOOK_NS 2000000u       /* between looks at failure words */
#define LIVENESS_NS 100000000u /* between looks at every peer's liveness */

void afdep_host_begin(afdep_host_t *h, const char *call_name, uint64_t exchange,
                      afdep_status_t (*then)(afdep_host_t *h))
{
    h->call_name = call_name;
    h->then = then;
    h->exchange = exchange;
    h->plane = afdep_host_plane(h, exchange);
    h->actor_count = 0;
}

afdep_actor_t *afdep_host_add(afdep_host_t *h, afdep_step_fn step, const char *duty, int channel)
{
    afdep_actor_t *actor = &h->actors[h->actor_count++];
    memset(actor, 0, sizeof(*actor));
    actor->step = step;
    actor->duty = duty;
    actor->channel = channel;
    actor->wait.peer = -1;
    actor->wait.word = "its turn";
    return actor;
}

afdep_status_t afdep_host_check(afdep_host_t *h)
{
    if (h->poison == AFDEP_OK)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_POISONED, "the buffer failed before: %s: %s", afdep_status_string(h->poison),
                      h->poison_why);
}

/* A failure word holds the status and whom it is about. */
static uint64_t failure_word(afdep_status_t status, int culprit)
{
    return afdep_word((uint32_t)-status, (uint32_t)(culprit + 1));
}

/* Remembers the first fatal error. */
static afdep_status_t remember(afdep_host_t *h, afdep_status_t status)
{
    if (h->poison == AFDEP_OK) {
        h->poison = status;
        snprintf(h->poison_why, sizeof(h->poison_why), "%s", afdep_last_error());
    }
    return status;
}

/* Best effort: a peer that cannot be told will find out by its own deadline. The dead are not told: a transport may
   wait for them for ever. */
void afdep_host_tell(afdep_host_t *h, int peer, uint64_t offset, uint64_t word)
{
    const afdep_fabric_ops_t *ops = h->fabric->ops;
    if (peer == h->rank || !ops->alive(h->fabric, peer))
        return;
    for (int tries = 0; tries < 1000; tries++) {
        afdep_status_t status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_CONTROL, h->lane_control, peer, offset, 0,
                                                    word);
        if (status != AFDEP_AGAIN)
            return;
        (void)ops->flush(h->fabric);
        (void)ops->progress(h->fabric);
    }
}

afdep_status_t afdep_host_poison(afdep_host_t *h, afdep_status_t status, int culprit)
{
    if (h->poison != AFDEP_OK)
        return status;
    (void)remember(h, status);
    for (int peer = 0; peer < h->shape->ranks; peer++)
        afdep_host_tell(h, peer, afdep_failure_word(h->rank), failure_word(status, culprit));
    for (int tries = 0; tries < 1000 && h->fabric->ops->flush(h->fabric) == AFDEP_AGAIN; tries++)
        (void)h->fabric->ops->progress(h->fabric);
    return afdep_fail(status, "%s", h->poison_why); /* the flush may have said something else */
}

afdep_status_t afdep_host_look(afdep_host_t *h)
{
    afdep_status_t heard = afdep_host_hear(h);
    if (heard != AFDEP_OK)
        return remember(h, heard);
    for (int peer = 0; peer < h->shape->ranks; peer++) {
        uint64_t word = peer == h->rank ? 0 : afdep_fabric_read(h->fabric, afdep_failure_word(peer));
        if (word == 0 || afdep_host_is_lost(h, peer))
            continue;
        afdep_status_t status = (afdep_status_t)-(int)(afdep_word_high(word) & 0xFFFF);
        int culprit = (int)(afdep_word_low(word) & 0x7FFFFFFF) - 1;
        /* A source that gave up may be lost by itself; not so where it says that a worker is. */
        if ((culprit < 0 || !afdep_is_worker(h->shape, culprit)) && afdep_host_forgives(h, peer, "it gave up"))
            continue;
        if (status == AFDEP_ERR_PEER && culprit >= 0)
            status = afdep_fail(AFDEP_ERR_PEER, "rank %d is dead, says rank %d", culprit, peer);
        else if (culprit >= 0)
            status = afdep_fail(AFDEP_ERR_PEER, "rank %d gave up with %s about rank %d", peer,
                                afdep_status_string(status), culprit);
        else
            status = afdep_fail(AFDEP_ERR_PEER, "rank %d gave up with %s", peer, afdep_status_string(status));
        return remember(h, status); /* whoever wrote that word told the others as well */
    }
    return AFDEP_OK;
}

/* A rank that has said its farewell may be gone. */
static int has_parted(afdep_host_t *h, int peer)
{
    return afdep_fabric_read(h->fabric, afdep_closing_word(peer)) != 0;
}

/* -1: nobody. A rank that told its failure, or said farewell, before it went is not what went wrong. */
static int find_dead(afdep_host_t *h)
{
    for (int peer = 0; peer < h->shape->ranks; peer++)
        if (peer != h->rank && !afdep_host_is_lost(h, peer) && !h->fabric->ops->alive(h->fabric, peer)) {
            (void)h->fabric->ops->progress(h->fabric);
            if (!has_parted(h, peer) && afdep_fabric_read(h->fabric, afdep_failure_word(peer)) == 0 &&
                !afdep_host_forgives(h, peer, "its process is gone"))
                return peer;
        }
    return -1;
}

/* "worker_receive of exchange 7: forward, channel 3, waits for ..." */
static afdep_status_t fail_waiting(afdep_host_t *h, const afdep_actor_t *actor, afdep_status_t status,
                                   const char *verdict)
{
    char channel[32] = "", who[32] = "";
    if (actor && actor->channel >= 0)
        snprintf(channel, sizeof(channel), ", channel %d", actor->channel);
    if (actor && actor->wait.peer >= 0)
        snprintf(who, sizeof(who), " of rank %d", actor->wait.peer);
    return afdep_fail(status, "%s: rank %d in %s of exchange %llu%s%s%s waited for %s%s", verdict, h->rank,
                      h->call_name, (unsigned long long)h->exchange, actor ? ", " : "", actor ? actor->duty : "",
                      channel, actor ? actor->wait.word : "the transport", who);
}

static const afdep_actor_t *first_waiting(const afdep_host_t *h)
{
    for (int i = 0; i < h->actor_count; i++)
        if (h->actors[i].wait.peer >= 0)
            return &h->actors[i];
    return h->actor_count ? &h->actors[0] : NULL;
}

/* Clock of one call's waiting. */
typedef struct patience {
    unsigned rounds; /* without progress */
    uint64_t began;  /* the call's first wait */
    uint64_t since, next_look, next_liveness;
} patience_t;

/* Whether this wait is over. Surviving, FFN ranks mask the sources that they wait for, and waits for others are longer.
   */
static int is_late(afdep_host_t *h, const patience_t *p, uint64_t now)
{
    uint64_t deadline = (uint64_t)h->settings->timeout_ms * 1000000u;
    if (!h->lost)
        return now - p->since >= deadline;
    if ((now - p->since >= deadline || now - p->began >= 2 * deadline) && afdep_host_lose_awaited(h))
        return 0;
    return now - p->since >= 3 * deadline;
}

/* A round without progress: idles, and from time to time looks for a reason. */
static afdep_status_t wait_a_round(afdep_host_t *h, patience_t *p)
{
    const afdep_fabric_ops_t *ops = h->fabric->ops;
    ops->idle(h->fabric, p->rounds++);
    if (p->rounds % 16 != 1)
        return AFDEP_OK;
    uint64_t now = ops->now(h->fabric);
    if (p->rounds == 1) {
        p->since = now;
        p->began = p->began ? p->began : now;
        p->next_look = now + LOOK_NS;
        p->next_liveness = now + LIVENESS_NS;
        return AFDEP_OK;
    }
    if (now < p->next_look)
        return AFDEP_OK;
    p->next_look = now + LOOK_NS;
    afdep_status_t status = afdep_host_look(h);
    if (status != AFDEP_OK)
        return status;
    int late = is_late(h, p, now);
    if (now < p->next_liveness && !late)
        return AFDEP_OK;
    p->next_liveness = now + LIVENESS_NS;
    const afdep_actor_t *actor = first_waiting(h);
    int dead = find_dead(h);
    if (dead >= 0) {
        char verdict[48];
        snprintf(verdict, sizeof(verdict), "rank %d is dead", dead);
        return afdep_host_poison(h, fail_waiting(h, actor, AFDEP_ERR_PEER, verdict), dead);
    }
    if (late) {
        char verdict[64];
        snprintf(verdict, sizeof(verdict), "nothing came in %d ms though all ranks live", h->settings->timeout_ms);
        return afdep_host_poison(h, fail_waiting(h, actor, AFDEP_ERR_TIMEOUT, verdict),
                                 actor ? actor->wait.peer : -1);
    }
    return AFDEP_OK;
}

/* One step of one actor, of which the fabric is told where it asked for that. */
static inline afdep_status_t step_one(afdep_host_t *h, afdep_actor_t *actor)
{
    if (h->fabric->ops->before_step)
        h->fabric->ops->before_step(h->fabric, h->exchange - h->opened_at, actor->duty, actor->channel);
    return actor->step(h, actor);
}

/* Steps every actor once; finished ones leave. */
static afdep_status_t step_all(afdep_host_t *h, int *moved)
{
    int kept = 0;
    for (int i = 0; i < h->actor_count; i++) {
        afdep_actor_t *actor = &h->actors[i];
        afdep_status_t status = step_one(h, actor);
        if (status < 0)
            return status;
        if (status != AFDEP_AGAIN)
            *moved = 1;
        if (status == AFDEP_DONE)
            continue;
        if (kept != i)
            h->actors[kept] = *actor;
        kept++;
    }
    h->actor_count = kept;
    return AFDEP_OK;
}

/* An error that a step or the fabric returned leaves the exchange half done, so it poisons the buffer; one that is not
   among the fatal ones came out of the transport. */
static afdep_status_t fail_run(afdep_host_t *h, afdep_status_t status)
{
    return afdep_host_poison(h, afdep_status_is_fatal(status) ? status : AFDEP_ERR_TRANSPORT, -1);
}

/* Starts what was issued; AFDEP_AGAIN while some of it is not on its way. */
static afdep_status_t flush(afdep_host_t *h, int *flushed)
{
    afdep_status_t status = h->fabric->ops->flush(h->fabric);
    *flushed = status != AFDEP_AGAIN;
    return status < 0 ? status : AFDEP_OK;
}

afdep_status_t afdep_host_run(afdep_host_t *h)
{
    patience_t patience = { 0 };
    int flushed = 0; /* the call's first part may have issued something */
    for (;;) {
        int moved = 0;
        h->fabric->issued = 0;
        afdep_status_t status = h->fabric->ops->progress(h->fabric);
        if (status == AFDEP_OK)
            status = step_all(h, &moved);
        /* A step may issue something and then wait: that has to go out too, and is progress. */
        moved |= h->fabric->issued;
        if (status == AFDEP_OK && (moved || !flushed))
            status = flush(h, &flushed);
        if (status < 0)
            return fail_run(h, status);
        if (h->actor_count == 0 && flushed) {
            status = h->then ? h->then(h) : AFDEP_OK;
            if (status != AFDEP_AGAIN)
                return status;
            moved = 1;
        }
        if (moved) {
            patience.rounds = 0;
            continue;
        }
        status = wait_a_round(h, &patience);
        if (status != AFDEP_OK)
            return status;
    }
}

afdep_status_t afdep_host_advance(afdep_host_t *h)
{
    int flushed = 0;
    for (int moved = 1; moved;) {
        moved = 0;
        h->fabric->issued = 0;
        afdep_status_t status = h->fabric->ops->progress(h->fabric);
        if (status == AFDEP_OK)
            status = step_all(h, &moved);
        moved |= h->fabric->issued;
        if (status == AFDEP_OK)
            status = flush(h, &flushed);
        if (status < 0)
            return fail_run(h, status);
    }
    return AFDEP_OK;
}

afdep_status_t afdep_host_step(afdep_host_t *h, int index, afdep_status_t *result)
{
    afdep_status_t status = AFDEP_DONE;
    if (index < h->actor_count) {
        status = step_one(h, &h->actors[index]);
        if (status < 0) {
            *result = fail_run(h, status);
            return AFDEP_DONE;
        }
    }
    if (status != AFDEP_DONE) {
        h->actors[index].blocked = status == AFDEP_AGAIN;
        return status;
    }
    if (index < h->actor_count) /* order is the scheduler's business: the last one takes the place */
        h->actors[index] = h->actors[--h->actor_count];
    if (h->actor_count > 0)
        return AFDEP_OK;
    *result = h->then ? h->then(h) : AFDEP_OK;
    return *result == AFDEP_AGAIN ? AFDEP_OK : AFDEP_DONE;
}

afdep_status_t afdep_host_broken(afdep_host_t *h, const afdep_actor_t *actor, int peer, const char *word, uint64_t seen)
{
    char channel[32] = "";
    if (actor->channel >= 0)
        snprintf(channel, sizeof(channel), ", channel %d", actor->channel);
    return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d in %s of exchange %llu, %s%s: %s of rank %d holds 0x%016llx",
                      h->rank, h->call_name, (unsigned long long)h->exchange, actor->duty, channel, word, peer,
                      (unsigned long long)seen);
}

afdep_status_t afdep_host_beyond_bucket(afdep_host_t *h, const afdep_actor_t *actor, int peer, const char *what,
                                        uint64_t value)
{
    return afdep_fail(AFDEP_ERR_PROTOCOL,
                      "rank %d in %s of exchange %llu, %s: rank %d sent %s %llu and the bucket here is %d: all ranks "
                      "of an exchange must be given the same bucket", h->rank, h->call_name,
                      (unsigned long long)h->exchange, actor->duty, peer, what, (unsigned long long)value,
                      h->plane->bucket);
}

/* Parting: actor->j is the next peer that is told, actor->i the next whose closing word is awaited. */
static afdep_status_t part_step(afdep_host_t *h, afdep_actor_t *actor)
{
    for (; actor->j < h->shape->ranks; actor->j++) {
        if (actor->j == h->rank || afdep_host_is_lost(h, actor->j))
            continue;
        afdep_status_t status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_CONTROL, h->lane_control, actor->j,
                                                    afdep_closing_word(h->rank), 0, 1);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, actor->j, "room in its queue") : status;
    }
    for (; actor->i < h->shape->ranks; actor->i++)
        if (actor->i != h->rank && !afdep_host_is_lost(h, actor->i) && !has_parted(h, actor->i))
            return afdep_host_wait(actor, actor->i, "the closing word");
    return AFDEP_DONE;
}

afdep_status_t afdep_host_part(afdep_host_t *h)
{
    afdep_host_begin(h, "buffer_close", h->started, NULL);
    afdep_host_add(h, part_step, "part", -1);
    return afdep_host_run(h);
}
