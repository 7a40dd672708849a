/* SPDX-License-Identifier: Apache-2.0 */
/* Who moves next. All strategies keep to what a fabric promises; they make different unlikely orders likely. */
#include "validate/explorer_internal.h"

#include <string.h>

uint64_t afdep_explore_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((afdep_explore_random(state) >> 32) * n >> 32);
}

const char *afdep_strategy_name(afdep_strategy_t strategy)
{
    static const char *const names[] = { "uniform", "priority", "delay", "starve" };
    return names[strategy];
}

afdep_strategy_t afdep_explorer_strategy(uint64_t seed)
{
    uint64_t state = seed;
    return (afdep_strategy_t)(afdep_explore_random(&state) % AFDEP_STRATEGY_COUNT);
}

void afdep_chooser_start(afdep_chooser_t *c, uint64_t seed)
{
    memset(c, 0, sizeof(*c));
    c->strategy = afdep_explorer_strategy(seed);
    c->state = seed * 0xD1342543DE82EF95u + 1;
    c->salt = afdep_explore_random(&c->state);
    for (int i = 0; i < AFDEP_EXPLORE_CHANGES; i++)
        c->change_at[i] = 1 + below(&c->state, 400);
    c->starved_kind = (int)below(&c->state, 4);
    c->starved = afdep_explore_random(&c->state);
}

/* ---- Identities ---------------------------------------------------------------------------------------------- */

/* An actor keeps its identity over the calls of a schedule, so that a starved duty stays starved. */
static uint64_t actor_identity(const afdep_explorer_t *e, int rank, int actor)
{
    if (actor < 0)
        return (uint64_t)rank << 32;
    const afdep_actor_t *a = &e->rank[rank].host->actors[actor];
    return (uint64_t)rank << 32 | (uint64_t)(unsigned char)a->duty[0] << 24 |
           (uint64_t)(unsigned char)a->duty[strlen(a->duty) - 1] << 16 | (uint32_t)(a->channel + 2);
}

static uint64_t lane_identity(const afdep_sim_message_t *m)
{
    return 1ull << 63 | (uint64_t)m->sender << 40 | (uint64_t)m->target << 16 | (uint32_t)m->lane;
}

static uint64_t priority_of(const afdep_chooser_t *c, uint64_t identity)
{
    for (int i = 0; i < c->changes; i++)
        if (c->demoted[i] == identity)
            return (uint64_t)(AFDEP_EXPLORE_CHANGES - i); /* below everyone else */
    uint64_t state = c->salt ^ identity * 0x9E3779B97F4A7C15u;
    return afdep_explore_random(&state) | 1ull << 32;
}

static int is_starved(const afdep_explorer_t *e, const afdep_mover_t *m)
{
    const afdep_chooser_t *c = &e->chooser;
    int rank = (int)(c->starved % (uint64_t)e->ranks);
    if (m->rank >= 0) {
        if (c->starved_kind == 1)
            return m->rank == rank;
        return c->starved_kind == 0 && m->rank == rank && m->actor >= 0 &&
               (uint64_t)(e->rank[rank].host->actors[m->actor].channel + 1) ==
                   c->starved / 64 % (uint64_t)(e->settings.shape.channels + 1);
    }
    afdep_sim_message_t head;
    afdep_sim_head(e->sim, m->lane, &head);
    if (c->starved_kind == 3)
        return head.target == rank;
    return c->starved_kind == 2 && head.target == rank &&
           (uint64_t)head.lane == c->starved / 64 % (uint64_t)AFDEP_LANE_COUNT(e->settings.shape.channels);
}

/* ---- Candidates ---------------------------------------------------------------------------------------------- */

/* The first actor of a rank, from `start` on and around, that does not wait; -1 between calls; -2: all wait. */
static int free_actor(const afdep_explore_rank_t *rank, uint32_t start)
{
    if (!rank->under_way)
        return -1;
    int count = rank->host->actor_count;
    if (count == 0)
        return 0; /* the call has nothing left but its end */
    for (int n = 0; n < count; n++) {
        int i = (int)((start + (uint32_t)n) % (uint32_t)count);
        if (!rank->host->actors[i].blocked)
            return i;
    }
    return -2;
}

/* A uniformly chosen awake rank's actor; ranks found to sleep are marked. */
static int random_actor(afdep_explorer_t *e, afdep_mover_t *m)
{
    int awake[AFDEP_EXPLORE_RANKS], count = 0;
    for (int r = 0; r < e->ranks; r++)
        if (e->rank[r].awake)
            awake[count++] = r;
    while (count > 0) {
        int at = (int)below(&e->chooser.state, (uint32_t)count), r = awake[at];
        int actor = free_actor(&e->rank[r], (uint32_t)afdep_explore_random(&e->chooser.state));
        if (actor >= -1) {
            *m = (afdep_mover_t){ r, actor, -1 };
            return 1;
        }
        e->rank[r].awake = 0;
        awake[at] = awake[--count];
    }
    return 0;
}

static int random_mover(afdep_explorer_t *e, afdep_mover_t *m)
{
    int pending = afdep_sim_pending(e->sim), awake = 0;
    for (int r = 0; r < e->ranks; r++)
        awake += e->rank[r].awake;
    if (pending > 0 && (awake == 0 || (int)below(&e->chooser.state, (uint32_t)(pending + 2 * awake)) < pending)) {
        *m = (afdep_mover_t){ -1, -1, (int)below(&e->chooser.state, (uint32_t)pending) };
        return 1;
    }
    if (random_actor(e, m))
        return 1;
    if (pending == 0)
        return 0;
    *m = (afdep_mover_t){ -1, -1, (int)below(&e->chooser.state, (uint32_t)pending) };
    return 1;
}

/* The candidate of the highest priority, over all lanes and all actors. */
static int highest_mover(afdep_explorer_t *e, afdep_mover_t *best, uint64_t *identity)
{
    uint64_t top = 0;
    for (int i = 0; i < afdep_sim_pending(e->sim); i++) {
        afdep_sim_message_t head;
        afdep_sim_head(e->sim, i, &head);
        uint64_t id = lane_identity(&head), p = priority_of(&e->chooser, id);
        if (p > top) {
            top = p;
            *identity = id;
            *best = (afdep_mover_t){ -1, -1, i };
        }
    }
    for (int r = 0; r < e->ranks; r++) {
        if (!e->rank[r].awake)
            continue;
        int first = free_actor(&e->rank[r], 0), count = first == -1 ? 0 : e->rank[r].host->actor_count;
        if (first == -2) {
            e->rank[r].awake = 0;
            continue;
        }
        for (int i = first; i < (count > first ? count : first + 1); i++) {
            if (i >= 0 && i < count && e->rank[r].host->actors[i].blocked)
                continue;
            uint64_t id = actor_identity(e, r, i < count ? i : -1), p = priority_of(&e->chooser, id);
            if (p > top) {
                top = p;
                *identity = id;
                *best = (afdep_mover_t){ r, i, -1 };
            }
        }
    }
    return top > 0;
}

static int by_priority(afdep_explorer_t *e, afdep_mover_t *m)
{
    afdep_chooser_t *c = &e->chooser;
    uint64_t identity = 0;
    if (!highest_mover(e, m, &identity))
        return 0;
    if (c->changes < AFDEP_EXPLORE_CHANGES && e->steps >= c->change_at[c->changes])
        c->demoted[c->changes++] = identity;
    return 1;
}

/* Everything lands as soon as it can, but for lanes that the salt holds back for a stretch of steps. */
static int with_delays(afdep_explorer_t *e, afdep_mover_t *m)
{
    int pending = afdep_sim_pending(e->sim);
    for (int i = 0; i < pending; i++) {
        afdep_sim_message_t head;
        afdep_sim_head(e->sim, i, &head);
        uint64_t state = e->chooser.salt ^ lane_identity(&head) ^ e->steps / 64;
        if (afdep_explore_random(&state) % 8 != 0) {
            *m = (afdep_mover_t){ -1, -1, i };
            return 1;
        }
    }
    if (random_actor(e, m))
        return 1;
    if (pending == 0)
        return 0;
    *m = (afdep_mover_t){ -1, -1, (int)below(&e->chooser.state, (uint32_t)pending) };
    return 1;
}

/* Random, but the starved one only after many tries have found nobody else. */
static int with_starvation(afdep_explorer_t *e, afdep_mover_t *m)
{
    for (int tries = 0; tries < 24; tries++) {
        if (!random_mover(e, m))
            return 0;
        if (!is_starved(e, m))
            return 1;
    }
    return 1;
}

int afdep_explore_choose(afdep_explorer_t *e, afdep_mover_t *m)
{
    switch (e->chooser.strategy) {
    case AFDEP_STRATEGY_PRIORITY: return by_priority(e, m);
    case AFDEP_STRATEGY_DELAY: return with_delays(e, m);
    case AFDEP_STRATEGY_STARVE: return with_starvation(e, m);
    default: return random_mover(e, m);
    }
}
