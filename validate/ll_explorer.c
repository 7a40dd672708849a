/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/ll_explorer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric/sim.h"
#include "low_latency/ll.h"
#include "validate/ll_exchanger.h"

enum { RANKS_MOST = 8, EXCHANGES_MOST = 16, MAX_TOKENS = 4, HIDDEN = 64, TOP_K = 3, STEPS_MOST = 1000000 };

/* The four parts of an exchange, in their order. */
typedef enum part { SEND, RECEIVE, RETURN, SUM, PARTS } part_t;

typedef struct call {
    int exchange; /* 0 .. */
    part_t part;
} call_t;

typedef struct explored_rank {
    afdep_ll_rank_t *buffer;
    afdep_ll_exchanger_t x[AFDEP_LL_PLANES];
    int done;      /* calls */
    int under_way; /* a call has begun */
    int waits;     /* nothing has landed here since its actor last waited */
} explored_rank_t;

struct afdep_ll_explorer {
    afdep_ll_explore_case_t explore;
    afdep_ll_settings_t settings;
    afdep_sim_t *sim;
    explored_rank_t rank[RANKS_MOST];
    int created;
    afdep_ll_plan_t plans[EXCHANGES_MOST];
    int tokens[EXCHANGES_MOST][RANKS_MOST];
    call_t calls[EXCHANGES_MOST * PARTS]; /* the same at every rank */
    uint64_t random;
    int starved; /* a rank that moves only when nothing else can; -1: none */
    int late;    /* a rank whose messages land only then; -1: none */
    uint64_t steps;
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static afdep_status_t make_rank(afdep_ll_explorer_t *e, int rank, uint64_t seed)
{
    explored_rank_t *r = &e->rank[rank];
    afdep_status_t status = afdep_ll_create(&e->settings, rank, &r->buffer);
    e->created = rank + 1;
    for (int i = 0; status == AFDEP_OK && i < AFDEP_LL_PLANES; i++)
        if (afdep_ll_exchanger_init(&r->x[i], e->explore.ranks, rank, MAX_TOKENS, HIDDEN, TOP_K, 2 * e->explore.ranks,
                                    seed) != 0)
            status = afdep_fail(AFDEP_ERR_MEMORY, "no memory for the tensors of rank %d", rank);
    return status;
}

afdep_ll_explorer_t *afdep_ll_explorer_create(const afdep_ll_explore_case_t *explore, uint64_t seed, char *why,
                                              size_t why_size)
{
    afdep_ll_explorer_t *e = calloc(1, sizeof(*e));
    uint64_t bytes[RANKS_MOST];
    if (!e) {
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    e->explore = *explore;
    afdep_ll_config_t config = AFDEP_LL_CONFIG_INIT;
    config.num_max_dispatch_tokens_per_rank = MAX_TOKENS;
    config.hidden = HIDDEN;
    config.num_topk = TOP_K;
    config.num_experts = 2 * explore->ranks;
    afdep_status_t status = afdep_ll_settings_resolve(&config, explore->ranks, &e->settings);
    if (explore->first_exchange)
        e->settings.first_exchange = explore->first_exchange;
    for (int r = 0; r < explore->ranks; r++)
        bytes[r] = e->settings.layout.bytes;
    if (status == AFDEP_OK)
        status = afdep_sim_create(explore->ranks, AFDEP_LANE_COUNT(1), bytes, &e->sim);
    for (int r = 0; status == AFDEP_OK && r < explore->ranks; r++)
        status = make_rank(e, r, seed);
    if (status == AFDEP_OK) {
        afdep_sim_unorder(e->sim, explore->unordered);
        return e;
    }
    snprintf(why, why_size, "%s", afdep_last_error());
    afdep_ll_explorer_destroy(e);
    return NULL;
}

void afdep_ll_explorer_destroy(afdep_ll_explorer_t *e)
{
    if (!e)
        return;
    for (int r = 0; r < e->created; r++) {
        for (int i = 0; i < AFDEP_LL_PLANES; i++)
            if (e->rank[r].x[i].ids)
                afdep_ll_exchanger_free(&e->rank[r].x[i]);
        afdep_ll_destroy(e->rank[r].buffer);
    }
    if (e->sim)
        afdep_sim_destroy(e->sim);
    free(e);
}

/* ---- A schedule's program ---------------------------------------------------------------------------------------- */

/* Whether exchange `n`, whose next part is `next[n]`, may make it: combines in order, and two exchanges at most. */
static int may_go(const int *next, int n)
{
    if (next[n] == PARTS)
        return 0;
    if (next[n] == SEND)
        return (n == 0 || next[n - 1] > SEND) && (n < AFDEP_LL_PLANES || next[n - AFDEP_LL_PLANES] == PARTS);
    return next[n] != RETURN || n == 0 || next[n - 1] > RETURN;
}

/* Any order that the API allows. */
static void make_calls(afdep_ll_explorer_t *e)
{
    int next[EXCHANGES_MOST] = { 0 }, count = e->explore.exchanges;
    for (int made = 0; made < count * PARTS; made++) {
        int could[EXCHANGES_MOST], choices = 0;
        for (int n = 0; n < count; n++)
            if (may_go(next, n))
                could[choices++] = n;
        int n = could[e->explore.overlap ? next_random(&e->random) % (uint64_t)choices : 0];
        e->calls[made] = (call_t){ n, (part_t)next[n]++ };
    }
}

static void make_plans(afdep_ll_explorer_t *e, uint64_t seed)
{
    for (int n = 0; n < e->explore.exchanges; n++) {
        uint64_t r = next_random(&e->random);
        e->plans[n] = (afdep_ll_plan_t){ .number = seed * EXCHANGES_MOST + (uint64_t)n,
                                         .tokens = e->tokens[n],
                                         .format = (afdep_ll_format_t)(1 + r % 5),
                                         .inactive_percent = (r >> 8) % 8 == 0 ? 100 : (r >> 8) % 8 < 3 ? 50 : 0,
                                         .top_k = 1 + (int)(r >> 16 & 0xFF) % TOP_K,
                                         .plain = r >> 24 & 1 };
        for (int rank = 0; rank < e->explore.ranks; rank++) {
            uint64_t t = next_random(&e->random);
            e->tokens[n][rank] = t % 3 == 0 ? 0 : (int)(t >> 8 & 0xFF) % (MAX_TOKENS + 1);
        }
    }
    make_calls(e);
}

/* ---- Moving ------------------------------------------------------------------------------------------------------ */

static afdep_status_t begin_call(afdep_ll_explorer_t *e, explored_rank_t *r)
{
    call_t c = e->calls[r->done];
    afdep_ll_exchanger_t *x = &r->x[c.exchange % AFDEP_LL_PLANES];
    uint64_t exchange = r->buffer->host.opened_at + 1 + (uint64_t)c.exchange;
    r->under_way = 1;
    r->waits = 0;
    switch (c.part) {
    case SEND:
        afdep_ll_prepare_dispatch(x, &e->plans[c.exchange]);
        return afdep_ll_start_dispatch(r->buffer, &x->dispatch);
    case RECEIVE:
        afdep_ll_begin_receive(r->buffer, afdep_ll_plane_of(r->buffer, exchange));
        return AFDEP_OK;
    case RETURN:
        afdep_ll_prepare_combine(x, &e->plans[c.exchange], NULL); /* no plan of these has zero copy */
        return afdep_ll_start_combine(r->buffer, &x->combine);
    default:
        afdep_ll_begin_reduce(r->buffer, afdep_ll_plane_of(r->buffer, exchange));
        return AFDEP_OK;
    }
}

static afdep_status_t end_call(afdep_ll_explorer_t *e, explored_rank_t *r, char *why, size_t why_size)
{
    call_t c = e->calls[r->done++];
    afdep_ll_exchanger_t *x = &r->x[c.exchange % AFDEP_LL_PLANES];
    afdep_status_t status = AFDEP_OK;
    r->under_way = 0;
    switch (c.part) {
    case SEND:
        afdep_ll_end_dispatch(r->buffer, &x->dispatch);
        break;
    case RECEIVE:
        afdep_ll_end_receive(r->buffer, r->buffer->plane);
        status = afdep_ll_judge_dispatch(x, &e->plans[c.exchange]);
        break;
    case RETURN:
        afdep_ll_end_combine(r->buffer, &x->combine);
        break;
    default:
        afdep_ll_end_reduce(r->buffer, r->buffer->plane);
        status = afdep_ll_judge_combine(x, &e->plans[c.exchange]);
    }
    if (status != AFDEP_OK)
        snprintf(why, why_size, "rank %d, exchange %d: %s", r->buffer->host.rank, c.exchange + 1, x->why);
    return status;
}

static afdep_status_t move_rank(afdep_ll_explorer_t *e, explored_rank_t *r, char *why, size_t why_size)
{
    afdep_status_t result = AFDEP_OK, status = AFDEP_OK;
    if (!r->under_way)
        status = begin_call(e, r);
    else if ((status = afdep_host_step(&r->buffer->host, 0, &result)) == AFDEP_AGAIN)
        r->waits = 1;
    else if (status == AFDEP_DONE && (status = result) == AFDEP_OK)
        return end_call(e, r, why, why_size);
    if (status >= 0)
        return AFDEP_OK;
    snprintf(why, why_size, "%s: %s", afdep_status_string(status), afdep_last_error());
    return status;
}

static int is_done(const afdep_ll_explorer_t *e, const explored_rank_t *r)
{
    return r->done == e->explore.exchanges * PARTS;
}

static int can_move(const afdep_ll_explorer_t *e, const explored_rank_t *r)
{
    return !is_done(e, r) && !r->waits;
}

/* A rank (>= 0), or lane -1 - i; those that are held back only where there is nothing else. 0 of them: *mover unset. */
static int choose(afdep_ll_explorer_t *e, int *mover)
{
    int movers[RANKS_MOST + 2 * RANKS_MOST * RANKS_MOST * AFDEP_LANE_COUNT(1)], held[2] = { 0 }, count = 0, holds = 0;
    for (int r = 0; r < e->explore.ranks; r++) {
        if (!can_move(e, &e->rank[r]))
            continue;
        if (r == e->starved)
            held[holds++ & 1] = r;
        else
            movers[count++] = r;
    }
    for (int i = 0; i < afdep_sim_pending(e->sim); i++) {
        afdep_sim_message_t m;
        afdep_sim_head(e->sim, i, &m);
        if (m.sender == e->late)
            held[holds++ & 1] = -1 - i;
        else
            movers[count++] = -1 - i;
    }
    if (count)
        *mover = movers[next_random(&e->random) % (uint64_t)count];
    else if (holds)
        *mover = held[0];
    return count + holds;
}

static afdep_status_t move_any(afdep_ll_explorer_t *e, int mover, char *why, size_t why_size)
{
    afdep_sim_message_t m;
    if (mover >= 0)
        return move_rank(e, &e->rank[mover], why, why_size);
    afdep_sim_land(e->sim, -1 - mover, &m);
    e->rank[m.target].waits = 0;
    return AFDEP_OK;
}

static int all_done(const afdep_ll_explorer_t *e)
{
    for (int r = 0; r < e->explore.ranks; r++)
        if (!is_done(e, &e->rank[r]))
            return 0;
    return 1;
}

static afdep_status_t run_steps(afdep_ll_explorer_t *e, char *why, size_t why_size)
{
    while (!all_done(e)) {
        int mover;
        if (!choose(e, &mover)) {
            snprintf(why, why_size, "deadlock");
            return AFDEP_ERR_TIMEOUT;
        }
        afdep_status_t status = move_any(e, mover, why, why_size);
        if (status != AFDEP_OK)
            return status;
        if (++e->steps > STEPS_MOST) {
            snprintf(why, why_size, "%d steps without an end", STEPS_MOST);
            return AFDEP_ERR_TIMEOUT;
        }
    }
    return AFDEP_OK;
}

static void start(afdep_ll_explorer_t *e, uint64_t seed)
{
    afdep_sim_reset(e->sim);
    e->random = seed ^ 0x5851F42D4C957F2Du;
    e->steps = 0;
    uint64_t r = next_random(&e->random), ranks = (uint64_t)e->explore.ranks;
    e->starved = r % 3 == 1 ? (int)(r >> 8 & 0xFF) % (int)ranks : -1;
    e->late = r % 3 == 2 ? (int)(r >> 8 & 0xFF) % (int)ranks : -1;
    make_plans(e, seed);
    for (int i = 0; i < e->explore.ranks; i++) {
        explored_rank_t *rank = &e->rank[i];
        afdep_ll_restart(rank->buffer);
        rank->buffer->host.fabric = afdep_sim_fabric(e->sim, i);
        afdep_ll_prepare_segment(rank->buffer, rank->buffer->host.fabric->base);
        afdep_ll_attach(rank->buffer);
        rank->done = rank->under_way = rank->waits = 0;
    }
}

afdep_status_t afdep_ll_explorer_run(afdep_ll_explorer_t *e, uint64_t seed, char *why, size_t why_size)
{
    char line[480] = "";
    start(e, seed);
    afdep_fp_state_t fp = afdep_fp_enter();
    afdep_status_t status = run_steps(e, line, sizeof(line));
    afdep_fp_leave(fp);
    if (status != AFDEP_OK)
        snprintf(why, why_size, "seed %llu, step %llu: %.400s", (unsigned long long)seed, (unsigned long long)e->steps,
                 line);
    return status;
}
