/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of messages per lane, in memory that is reused from schedule to schedule. */
#include "fabric/sim.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#define NONE UINT32_MAX

/* A message in the pool; a put's bytes stand in the data arena. */
typedef struct entry {
    uint64_t offset, value; /* value: of a signal, or where a put's bytes start in the arena */
    uint32_t bytes;         /* 0: a signal */
    uint32_t next;
} entry_t;

/* One lane's queue. `place` is its index among the pending lanes. */
typedef struct queue {
    uint32_t head, tail, place;
} queue_t;

typedef struct sim_fabric {
    afdep_fabric_t super;
    afdep_sim_t *sim;
} sim_fabric_t;

struct afdep_sim {
    int ranks, lanes;
    sim_fabric_t *fabrics; /* [ranks] */
    uint64_t *bytes;
    unsigned char *dead; /* [ranks] */
    queue_t *queues;     /* [ranks][ranks][lanes] */
    uint32_t *pending;   /* queues that are not empty */
    int pending_count;
    entry_t *entries;
    uint32_t entry_count, entry_limit;
    unsigned char *arena;
    uint64_t arena_used, arena_limit;
    uint64_t now;
    int unordered; /* put_signal puts last */
};

/* ---- Queues -------------------------------------------------------------------------------------------------- */

static int grow(void **array, uint64_t *limit, uint64_t want, size_t size)
{
    if (want <= *limit)
        return 0;
    uint64_t larger = want + want / 2 + 1024;
    void *moved = realloc(*array, larger * size);
    if (!moved)
        return -1;
    *array = moved;
    *limit = larger;
    return 0;
}

static afdep_status_t push(afdep_sim_t *sim, int sender, int target, int lane, const entry_t *entry)
{
    uint64_t limit = sim->entry_limit;
    if (grow((void **)&sim->entries, &limit, (uint64_t)sim->entry_count + 1, sizeof(entry_t)) != 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "no memory for a message of the simulator");
    sim->entry_limit = (uint32_t)limit;
    uint32_t index = ((uint32_t)sender * (uint32_t)sim->ranks + (uint32_t)target) * (uint32_t)sim->lanes +
                     (uint32_t)lane;
    queue_t *queue = &sim->queues[index];
    uint32_t at = sim->entry_count++;
    sim->entries[at] = *entry;
    sim->entries[at].next = NONE;
    if (queue->head == NONE) {
        queue->head = at;
        queue->place = (uint32_t)sim->pending_count;
        sim->pending[sim->pending_count++] = index;
    } else {
        sim->entries[queue->tail].next = at;
    }
    queue->tail = at;
    return AFDEP_OK;
}

static void pop(afdep_sim_t *sim, int i)
{
    queue_t *queue = &sim->queues[sim->pending[i]];
    queue->head = sim->entries[queue->head].next;
    if (queue->head != NONE)
        return;
    uint32_t last = sim->pending[--sim->pending_count];
    sim->pending[i] = last;
    sim->queues[last].place = (uint32_t)i;
}

/* ---- The ops ------------------------------------------------------------------------------------------------- */

static void *sim_window(afdep_fabric_t *f, int peer, uint64_t offset, size_t bytes)
{
    (void)f, (void)peer, (void)offset, (void)bytes;
    return NULL; /* everything goes through the queues, else its landing could not be chosen */
}

static afdep_status_t check_reach(const afdep_fabric_t *f, int lane, int peer, uint64_t offset, size_t bytes)
{
    if (peer >= 0 && peer < f->size && lane >= 0 && lane < f->lanes && bytes <= f->peer_bytes[peer] &&
        offset <= f->peer_bytes[peer] - bytes)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d writes %zu bytes at %llu of rank %d on lane %d, out of reach",
                      f->rank, bytes, (unsigned long long)offset, peer, lane);
}

static afdep_status_t sim_put(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src, size_t bytes)
{
    afdep_sim_t *sim = ((sim_fabric_t *)f)->sim;
    afdep_status_t status = check_reach(f, lane, peer, offset, bytes);
    if (status != AFDEP_OK)
        return status;
    if (grow((void **)&sim->arena, &sim->arena_limit, sim->arena_used + bytes, 1) != 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "no memory for a row of the simulator");
    memcpy(sim->arena + sim->arena_used, src, bytes);
    entry_t entry = { offset, sim->arena_used, (uint32_t)bytes, NONE };
    sim->arena_used += bytes;
    return push(sim, f->rank, peer, lane, &entry);
}

static afdep_status_t sim_signal(afdep_fabric_t *f, int lane, int peer, uint64_t offset, uint64_t old_value,
                                 uint64_t new_value)
{
    (void)old_value;
    afdep_status_t status = check_reach(f, lane, peer, offset, 8);
    entry_t entry = { offset, new_value, 0, NONE };
    return status == AFDEP_OK ? push(((sim_fabric_t *)f)->sim, f->rank, peer, lane, &entry) : status;
}

static afdep_status_t sim_put_signal(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src,
                                     size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value)
{
    afdep_status_t status = AFDEP_OK;
    if (((sim_fabric_t *)f)->sim->unordered) {
        status = sim_signal(f, lane, peer, word, old_value, new_value);
        return status == AFDEP_OK ? sim_put(f, lane, peer, offset, src, bytes) : status;
    }
    status = sim_put(f, lane, peer, offset, src, bytes);
    return status == AFDEP_OK ? sim_signal(f, lane, peer, word, old_value, new_value) : status;
}

static uint64_t sim_read(afdep_fabric_t *f, uint64_t offset)
{
    uint64_t value;
    memcpy(&value, f->base + offset, sizeof(value));
    return value;
}

static afdep_status_t sim_flush(afdep_fabric_t *f)
{
    (void)f;
    return AFDEP_OK; /* messages hold copies */
}

static afdep_status_t sim_progress(afdep_fabric_t *f)
{
    (void)f;
    return AFDEP_OK;
}

static uint64_t sim_now(afdep_fabric_t *f)
{
    return ((sim_fabric_t *)f)->sim->now;
}

static void sim_idle(afdep_fabric_t *f, unsigned rounds)
{
    (void)rounds;
    ((sim_fabric_t *)f)->sim->now += 1000;
}

static int sim_alive(afdep_fabric_t *f, int peer)
{
    return !((sim_fabric_t *)f)->sim->dead[peer];
}

static void sim_close(afdep_fabric_t *f, int in_order)
{
    (void)f, (void)in_order; /* belongs to the network */
}

static const afdep_fabric_ops_t sim_ops = {
    .name = "sim",
    .window = sim_window,
    .put = sim_put,
    .signal = sim_signal,
    .put_signal = sim_put_signal,
    .read = sim_read,
    .flush = sim_flush,
    .progress = sim_progress,
    .now = sim_now,
    .idle = sim_idle,
    .alive = sim_alive,
    .close = sim_close,
};

/* ---- The network --------------------------------------------------------------------------------------------- */

static int make_rank(afdep_sim_t *sim, int rank)
{
    afdep_fabric_t *f = &sim->fabrics[rank].super;
    sim->fabrics[rank].sim = sim;
    f->ops = &sim_ops;
    f->rank = rank;
    f->size = sim->ranks;
    f->lanes = sim->lanes;
    f->bytes = sim->bytes[rank];
    f->peer_bytes = sim->bytes;
    f->base = aligned_alloc(4096, (f->bytes + 4095) / 4096 * 4096);
    f->counters = calloc((size_t)sim->ranks, sizeof(*f->counters));
    return f->base && f->counters ? 0 : -1;
}

afdep_status_t afdep_sim_create(int ranks, int lanes, const uint64_t *bytes, afdep_sim_t **out)
{
    size_t n = (size_t)ranks, queues = n * n * (size_t)lanes;
    afdep_sim_t *sim = calloc(1, sizeof(*sim));
    if (!sim)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a simulated network");
    sim->ranks = ranks;
    sim->lanes = lanes;
    sim->fabrics = calloc(n, sizeof(*sim->fabrics));
    sim->bytes = calloc(n, sizeof(*sim->bytes));
    sim->dead = calloc(n, 1);
    sim->queues = malloc(queues * sizeof(*sim->queues));
    sim->pending = malloc(queues * sizeof(*sim->pending));
    int failed = !sim->fabrics || !sim->bytes || !sim->dead || !sim->queues || !sim->pending;
    if (!failed)
        memcpy(sim->bytes, bytes, n * sizeof(*bytes));
    for (int r = 0; r < ranks && !failed; r++)
        failed = make_rank(sim, r);
    if (failed) {
        afdep_sim_destroy(sim);
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a simulated network of %d ranks", ranks);
    }
    for (size_t q = 0; q < queues; q++)
        sim->queues[q].head = NONE;
    afdep_sim_reset(sim);
    *out = sim;
    return AFDEP_OK;
}

void afdep_sim_destroy(afdep_sim_t *sim)
{
    if (!sim)
        return;
    for (int r = 0; sim->fabrics && r < sim->ranks; r++) {
        free(sim->fabrics[r].super.base);
        free(sim->fabrics[r].super.counters);
    }
    free(sim->arena);
    free(sim->entries);
    free(sim->pending);
    free(sim->queues);
    free(sim->dead);
    free(sim->bytes);
    free(sim->fabrics);
    free(sim);
}

void afdep_sim_reset(afdep_sim_t *sim)
{
    for (int i = 0; i < sim->pending_count; i++)
        sim->queues[sim->pending[i]].head = NONE;
    sim->pending_count = 0;
    sim->entry_count = 0;
    sim->arena_used = 0;
    sim->now = 0;
    memset(sim->dead, 0, (size_t)sim->ranks);
    for (int r = 0; r < sim->ranks; r++) {
        afdep_fabric_t *f = &sim->fabrics[r].super;
        memset(f->base, 0, f->bytes);
        memset(f->counters, 0, (size_t)sim->ranks * sizeof(*f->counters));
    }
}

afdep_fabric_t *afdep_sim_fabric(afdep_sim_t *sim, int rank)
{
    return &sim->fabrics[rank].super;
}

int afdep_sim_pending(const afdep_sim_t *sim)
{
    return sim->pending_count;
}

void afdep_sim_head(const afdep_sim_t *sim, int i, afdep_sim_message_t *message)
{
    uint32_t index = sim->pending[i];
    const entry_t *entry = &sim->entries[sim->queues[index].head];
    uint32_t pair = index / (uint32_t)sim->lanes;
    message->lane = (int)(index % (uint32_t)sim->lanes);
    message->target = (int)(pair % (uint32_t)sim->ranks);
    message->sender = (int)(pair / (uint32_t)sim->ranks);
    message->is_signal = entry->bytes == 0;
    message->offset = entry->offset;
    message->bytes = entry->bytes;
    message->value = message->is_signal ? entry->value : 0;
    message->data = message->is_signal ? NULL : sim->arena + entry->value;
}

void afdep_sim_land(afdep_sim_t *sim, int i, afdep_sim_message_t *message)
{
    afdep_sim_head(sim, i, message);
    unsigned char *place = sim->fabrics[message->target].super.base + message->offset;
    if (message->is_signal)
        memcpy(place, &message->value, sizeof(message->value));
    else
        memcpy(place, message->data, message->bytes);
    pop(sim, i);
}

void afdep_sim_drop(afdep_sim_t *sim, int i)
{
    pop(sim, i);
}

void afdep_sim_kill(afdep_sim_t *sim, int rank)
{
    sim->dead[rank] = 1;
}

void afdep_sim_unorder(afdep_sim_t *sim, int unordered)
{
    sim->unordered = unordered;
}

void afdep_sim_advance(afdep_sim_t *sim, uint64_t ns)
{
    sim->now += ns;
}
