/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fabric for tests, over shm: every peer has a short queue, what is issued starts at flush only, a full queue is
 * back-pressure, and words are added to. With `windows`, odd peers are mapped and even ones are not. What a real
 * network does on a bad day.
 */
#ifndef AFDEP_VALIDATE_UNIT_QUEUE_FABRIC_H
#define AFDEP_VALIDATE_UNIT_QUEUE_FABRIC_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/fabric.h"

#define QUEUE_MOST 8
#define QUEUE_PEERS 16

typedef struct queue_message {
    int lane, is_signal;
    uint64_t offset, old_value, new_value;
    const void *src; /* not copied: it stays unchanged until flush, or the caller is wrong */
    size_t bytes;
} queue_message_t;

typedef struct queue_fabric {
    afdep_fabric_t super;
    afdep_fabric_t *inner;
    struct {
        queue_message_t messages[QUEUE_MOST];
        int count, started;
    } peers[QUEUE_PEERS];
    unsigned random;
} queue_fabric_t;

static int queue_depth = QUEUE_MOST, queue_windows;
static atomic_ulong queue_refusals;

/* A fabric may add the difference of the two values instead of storing the new one. */
static void queue_add_to_word(queue_fabric_t *f, int peer, const queue_message_t *m)
{
    _Atomic uint64_t *word = f->inner->ops->window(f->inner, peer, m->offset, sizeof(*word));
    uint64_t sum = m->new_value - m->old_value + (word ? atomic_load_explicit(word, memory_order_relaxed) : 0);
    f->inner->ops->signal(f->inner, m->lane, peer, m->offset, 0, sum);
}

static void queue_go(queue_fabric_t *f, int peer)
{
    int started = f->peers[peer].started;
    queue_message_t *m = f->peers[peer].messages;
    for (int i = 0; i < started; i++)
        if (m[i].is_signal)
            queue_add_to_word(f, peer, &m[i]);
        else
            f->inner->ops->put(f->inner, m[i].lane, peer, m[i].offset, m[i].src, m[i].bytes);
    f->peers[peer].count -= started;
    memmove(m, m + started, (size_t)f->peers[peer].count * sizeof(*m));
    f->peers[peer].started = 0;
}

static afdep_status_t queue_add(queue_fabric_t *f, int peer, int room, const queue_message_t *m)
{
    if (f->peers[peer].count + room > queue_depth || rand_r(&f->random) % 4 == 0) { /* also the first and only one */
        atomic_fetch_add(&queue_refusals, 1);
        return AFDEP_AGAIN;
    }
    f->peers[peer].messages[f->peers[peer].count++] = *m;
    return AFDEP_OK;
}

static void *queue_window(afdep_fabric_t *s, int peer, uint64_t offset, size_t bytes)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    return queue_windows && peer % 2 ? f->inner->ops->window(f->inner, peer, offset, bytes) : NULL;
}

static afdep_status_t queue_put(afdep_fabric_t *s, int lane, int peer, uint64_t offset, const void *src, size_t bytes)
{
    queue_message_t m = { lane, 0, offset, 0, 0, src, bytes };
    return queue_add((queue_fabric_t *)s, peer, 1, &m);
}

static afdep_status_t queue_signal(afdep_fabric_t *s, int lane, int peer, uint64_t offset, uint64_t old_value,
                                   uint64_t new_value)
{
    queue_message_t m = { lane, 1, offset, old_value, new_value, NULL, 0 };
    return queue_add((queue_fabric_t *)s, peer, 1, &m);
}

static afdep_status_t queue_put_signal(afdep_fabric_t *s, int lane, int peer, uint64_t offset, const void *src,
                                       size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    queue_message_t row = { lane, 0, offset, 0, 0, src, bytes };
    afdep_status_t status = queue_add(f, peer, 2, &row);
    if (status == AFDEP_OK)
        f->peers[peer].messages[f->peers[peer].count++] =
            (queue_message_t){ lane, 1, word, old_value, new_value, NULL, 0 };
    return status;
}

static uint64_t queue_read(afdep_fabric_t *s, uint64_t offset)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    return f->inner->ops->read(f->inner, offset);
}

static afdep_status_t queue_flush(afdep_fabric_t *s)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    int left = 0;
    for (int p = 0; p < s->size; p++) {
        f->peers[p].started = f->peers[p].count;
        if (p > s->rank && rand_r(&f->random) % 2) /* to the others progress alone moves anything */
            queue_go(f, p);
        left |= f->peers[p].count;
    }
    return left ? AFDEP_AGAIN : AFDEP_OK;
}

static afdep_status_t queue_progress(afdep_fabric_t *s)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    for (int p = 0; p < s->size; p++)
        if (rand_r(&f->random) % 2)
            queue_go(f, p);
    return AFDEP_OK;
}

static uint64_t queue_now(afdep_fabric_t *s)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    return f->inner->ops->now(f->inner);
}

static void queue_idle(afdep_fabric_t *s, unsigned rounds)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    f->inner->ops->idle(f->inner, rounds);
}

static int queue_alive(afdep_fabric_t *s, int peer)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    return f->inner->ops->alive(f->inner, peer);
}

static void queue_close(afdep_fabric_t *s, int in_order)
{
    queue_fabric_t *f = (queue_fabric_t *)s;
    f->inner->ops->close(f->inner, in_order);
    free(f->super.counters);
    free(f);
}

static const afdep_fabric_ops_t queue_ops = {
    .name = "queue",
    .window = queue_window,
    .put = queue_put,
    .signal = queue_signal,
    .put_signal = queue_put_signal,
    .read = queue_read,
    .flush = queue_flush,
    .progress = queue_progress,
    .now = queue_now,
    .idle = queue_idle,
    .alive = queue_alive,
    .close = queue_close,
};

static afdep_status_t queue_open(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                 afdep_fabric_t **out)
{
    (void)self;
    queue_fabric_t *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    afdep_status_t status = afdep_fabric_shm.open(&afdep_fabric_shm, args, &f->inner);
    if (status != AFDEP_OK) {
        free(f);
        return status;
    }
    f->super = *f->inner;
    f->super.ops = &queue_ops;
    f->super.counters = calloc((size_t)f->super.size, sizeof(*f->super.counters));
    f->random = (unsigned)f->super.rank + 1;
    *out = &f->super;
    return AFDEP_OK;
}

static const afdep_fabric_provider_t queue_provider = { "queue", queue_open, NULL };

#endif
