/* SPDX-License-Identifier: Apache-2.0 */
/* One schedule: ranks run their programs, messages land, until all is done or something is wrong. */
#include "validate/explorer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"

#define STEPS_MOST 4000000u

/* ---- Making -------------------------------------------------------------------------------------------------- */

static afdep_toggle_t toggle(int on)
{
    return on ? AFDEP_ON : AFDEP_OFF;
}

static afdep_status_t resolve(afdep_explorer_t *e)
{
    afdep_config_t c = afdep_exchanger_config(e->explore.scenario);
    c.stagger = toggle(e->explore.stagger);
    c.sparse_dispatch = toggle(e->explore.sparse_dispatch);
    c.sparse_combine = toggle(e->explore.sparse_combine);
    c.fp8_combine = toggle(e->explore.fp8_combine);
    c.in_flight = e->explore.in_flight;
    c.flags = (e->explore.apply_weights ? AFDEP_FLAG_APPLY_WEIGHTS : 0) |
              (e->explore.mixed_hybrid ? AFDEP_FLAG_MIXED_HYBRID : 0) |
              (e->explore.entry_barrier ? AFDEP_FLAG_ENTRY_BARRIER : 0);
    afdep_status_t status = afdep_settings_resolve(&c, e->ranks, &e->settings);
    if (status == AFDEP_OK && e->explore.first_exchange)
        e->settings.first_exchange = e->explore.first_exchange;
    e->worker_settings = e->settings;
    if (e->explore.one_sided_stagger)
        e->worker_settings.shape.stagger = !e->settings.shape.stagger;
    return status;
}

static afdep_status_t make_rank(afdep_explorer_t *e, int rank)
{
    afdep_explore_rank_t *r = &e->rank[rank];
    const afdep_scenario_t *s = e->explore.scenario;
    const afdep_settings_t *settings = afdep_scenario_is_worker(s, rank) ? &e->worker_settings : &e->settings;
    afdep_status_t status = afdep_host_create(settings, rank, &r->host);
    e->created = rank + 1;
    if (status != AFDEP_OK)
        return status;
    r->host->fabric = afdep_sim_fabric(e->sim, rank);
    for (int g = 0; g < e->explore.in_flight; g++)
        if (afdep_exchanger_init_rank(&r->exchangers[g], s, rank, e->explore.apply_weights, s->seed) != 0)
            return afdep_fail(AFDEP_ERR_MEMORY, "no memory for the tensors of rank %d", rank);
    for (int g = 0; g < e->explore.in_flight; g++)
        r->exchangers[g].fp8_combine = settings->shape.fp8_combine;
    return AFDEP_OK;
}

afdep_explorer_t *afdep_explorer_create(const afdep_explore_case_t *explore, char *why, size_t why_size)
{
    afdep_explorer_t *e = calloc(1, sizeof(*e));
    uint64_t bytes[AFDEP_EXPLORE_RANKS];
    if (!e) {
        snprintf(why, why_size, "no memory");
        return NULL;
    }
    e->explore = *explore;
    e->ranks = afdep_scenario_ranks(explore->scenario);
    if (e->ranks > AFDEP_EXPLORE_RANKS || explore->exchanges > AFDEP_EXPLORE_EXCHANGES) {
        snprintf(why, why_size, "%d ranks and %d exchanges a schedule: at most %d and %d are explored", e->ranks,
                 explore->exchanges, AFDEP_EXPLORE_RANKS, AFDEP_EXPLORE_EXCHANGES);
        free(e);
        return NULL;
    }
    afdep_status_t status = resolve(e);
    for (int r = 0; status == AFDEP_OK && r < e->ranks; r++)
        bytes[r] = afdep_segment_bytes(&e->settings.layout, &e->settings.shape, r);
    if (status == AFDEP_OK)
        status = afdep_sim_create(e->ranks, AFDEP_LANE_COUNT(e->settings.shape.channels), bytes, &e->sim);
    if (status == AFDEP_OK)
        afdep_sim_unorder(e->sim, explore->unordered);
    for (int r = 0; status == AFDEP_OK && r < e->ranks; r++)
        status = make_rank(e, r);
    if (status == AFDEP_OK)
        return e;
    snprintf(why, why_size, "%s", afdep_last_error());
    afdep_explorer_destroy(e);
    return NULL;
}

void afdep_explorer_destroy(afdep_explorer_t *e)
{
    if (!e)
        return;
    for (int r = 0; r < e->created; r++) {
        for (int g = 0; g < e->explore.in_flight; g++)
            if (e->rank[r].exchangers[g].scenario)
                afdep_exchanger_free(&e->rank[r].exchangers[g]);
        afdep_host_destroy(e->rank[r].host);
    }
    afdep_sim_destroy(e->sim);
    free(e);
}

uint64_t afdep_explorer_steps(const afdep_explorer_t *e)
{
    return e->steps;
}

/* ---- A schedule's plan --------------------------------------------------------------------------------------- */

static int pick_tokens(const afdep_explorer_t *e, uint64_t *state)
{
    const afdep_shape_t *s = &e->settings.shape;
    uint64_t r = afdep_explore_random(state);
    int edges[] = { 0, s->channels - 1, s->channels, s->channels + 1, s->capacity };
    int tokens = r % 8 < 6 ? (int)((r >> 8) % 4) : edges[(r >> 8) % 5];
    int most = e->explore.most_tokens ? e->explore.most_tokens : s->capacity;
    return tokens > most ? most : tokens;
}

/* In which order first and second halves follow each other: any that in_flight allows, the same on all ranks. */
static void make_order(afdep_explorer_t *e, uint64_t *state)
{
    int firsts = 0, seconds = 0;
    while (seconds < e->explore.exchanges) {
        int first = firsts < e->explore.exchanges && firsts - seconds < e->explore.in_flight;
        int second = seconds < firsts;
        int half = first && (!second || (afdep_explore_random(state) & 1)) ? 1 : 2;
        e->order[firsts + seconds] = (unsigned char)half;
        firsts += half == 1;
        seconds += half == 2;
    }
}

/* The routing of the exchange before it on its plane again. */
static void repeat_routing(afdep_explorer_t *e, int n)
{
    const afdep_exchange_plan_t *before = &e->plans[n - e->explore.in_flight];
    afdep_exchange_plan_t *plan = &e->plans[n];
    memcpy(e->tokens[n], before->tokens, sizeof(e->tokens[n]));
    plan->bucket = before->bucket;
    plan->inactive_percent = before->inactive_percent;
    plan->cached = 1;
    plan->routing = before->cached ? before->routing : before->number;
}

static void make_plans(afdep_explorer_t *e, uint64_t seed)
{
    uint64_t state = seed ^ 0x5851F42D4C957F2Du;
    for (int n = 0; n < e->explore.exchanges; n++) {
        afdep_exchange_plan_t *plan = &e->plans[n];
        uint64_t r = afdep_explore_random(&state);
        memset(plan, 0, sizeof(*plan));
        plan->number = seed * 16 + (uint64_t)n;
        plan->tokens = e->tokens[n];
        plan->inactive_percent = r % 8 == 0 ? 100 : r % 8 == 1 ? 50 : 0;
        plan->read_host_counts = r >> 8 & 1;
        plan->view = r >> 9 & 1;
        plan->strided_scales = r >> 10 & 1;
        int most = 1;
        for (int a = 0; a < e->settings.shape.attention_ranks; a++) {
            e->tokens[n][a] = pick_tokens(e, &state);
            most = e->tokens[n][a] > most ? e->tokens[n][a] : most;
        }
        plan->bucket = r >> 11 & 1 ? most : e->settings.shape.capacity;
        if (n >= e->explore.in_flight && (r >> 12) % 4 == 0)
            repeat_routing(e, n);
    }
    make_order(e, &state);
}

/* ---- Ranks --------------------------------------------------------------------------------------------------- */

static void wake(afdep_explore_rank_t *r)
{
    r->awake = 1;
    for (int i = 0; i < r->host->actor_count; i++)
        r->host->actors[i].blocked = 0;
}

static int is_done(const afdep_explorer_t *e, const afdep_explore_rank_t *r)
{
    return !r->under_way && r->seconds == e->explore.exchanges;
}

static afdep_status_t begin_call(afdep_explorer_t *e, afdep_explore_rank_t *r)
{
    afdep_host_t *h = r->host;
    r->under_way = e->order[r->firsts + r->seconds];
    int n = r->under_way == 1 ? r->firsts++ : r->seconds++;
    afdep_exchanger_t *x = &r->exchangers[n % e->explore.in_flight];
    afdep_log(AFDEP_LOG_DEBUG, "%6llu rank %d begins the %s half of exchange %d", (unsigned long long)e->steps, h->rank,
              r->under_way == 1 ? "first" : "second", n + 1);
    if (r->under_way == 1) {
        afdep_exchanger_prepare_first(x, &e->plans[n]);
        if (h->source && h->worker)
            return afdep_host_begin_elastic_dispatch(h, &x->dispatch, &x->receive, NULL);
        return h->worker ? afdep_host_begin_receive(h, &x->receive, NULL)
                         : afdep_host_begin_dispatch(h, &x->dispatch, NULL);
    }
    afdep_exchanger_prepare_second(x, &e->plans[n]);
    if (h->source && h->worker)
        return afdep_host_begin_elastic_combine(h, &x->reply_arguments, &x->collect, NULL);
    return h->worker ? afdep_host_begin_reply(h, &x->reply_arguments, NULL)
                     : afdep_host_begin_collect(h, &x->collect, NULL);
}

static afdep_status_t end_call(afdep_explorer_t *e, afdep_explore_rank_t *r, afdep_status_t result, char *why,
                               size_t why_size)
{
    int first = r->under_way == 1, n = (first ? r->firsts : r->seconds) - 1;
    afdep_exchanger_t *x = &r->exchangers[n % e->explore.in_flight];
    afdep_status_t status = first ? afdep_exchanger_judge_first(x, &e->plans[n], result)
                                  : afdep_exchanger_judge_second(x, &e->plans[n], result);
    r->under_way = 0;
    if (status != AFDEP_OK)
        snprintf(why, why_size, "exchange %d: %s", n + 1, x->why);
    return status;
}

static afdep_status_t move_rank(afdep_explorer_t *e, const afdep_mover_t *m, char *why, size_t why_size)
{
    afdep_explore_rank_t *r = &e->rank[m->rank];
    if (!r->under_way) {
        afdep_status_t status = begin_call(e, r);
        if (status != AFDEP_OK)
            return end_call(e, r, status, why, why_size);
        return AFDEP_OK;
    }
    afdep_status_t result = AFDEP_OK;
    const char *duty = m->actor < r->host->actor_count ? r->host->actors[m->actor].duty : "end";
    int channel = m->actor < r->host->actor_count ? r->host->actors[m->actor].channel : -1;
    afdep_status_t status = afdep_host_step(r->host, m->actor, &result);
    if (afdep_log_level() >= AFDEP_LOG_DEBUG)
        afdep_log(AFDEP_LOG_DEBUG, "%6llu rank %d steps %s, channel %d: %s", (unsigned long long)e->steps, m->rank,
                  duty, channel,
                  status == AFDEP_AGAIN  ? "waits"
                  : status == AFDEP_DONE ? "call over"
                                         : "moved");
    if (status == AFDEP_AGAIN)
        return AFDEP_OK;
    wake(r);
    if (status == AFDEP_OK)
        return AFDEP_OK;
    status = end_call(e, r, result, why, why_size);
    if (is_done(e, r))
        r->awake = 0;
    return status;
}

static afdep_status_t move_lane(afdep_explorer_t *e, int lane, char *why, size_t why_size)
{
    afdep_sim_message_t m;
    afdep_sim_head(e->sim, lane, &m);
    if (afdep_log_level() >= AFDEP_LOG_DEBUG)
        afdep_log(AFDEP_LOG_DEBUG, "%6llu lands %s of rank %d at rank %d, lane %d, offset %llu, %s0x%llx",
                  (unsigned long long)e->steps, m.is_signal ? "a word" : "a row", m.sender, m.target, m.lane,
                  (unsigned long long)m.offset, m.is_signal ? "" : "bytes ",
                  (unsigned long long)(m.is_signal ? m.value : m.bytes));
    afdep_status_t status = afdep_explore_check_landing(e, &m, why, why_size);
    afdep_sim_land(e->sim, lane, &m);
    if (!is_done(e, &e->rank[m.target]))
        wake(&e->rank[m.target]);
    return status;
}

/* ---- The schedule -------------------------------------------------------------------------------------------- */

static int all_done(const afdep_explorer_t *e)
{
    for (int r = 0; r < e->ranks; r++)
        if (!is_done(e, &e->rank[r]))
            return 0;
    return 1;
}

static afdep_status_t deadlock(const afdep_explorer_t *e, char *why, size_t why_size)
{
    for (int r = 0; r < e->ranks; r++) {
        const afdep_explore_rank_t *rank = &e->rank[r];
        if (!rank->under_way || rank->host->actor_count == 0)
            continue;
        const afdep_actor_t *actor = &rank->host->actors[0];
        for (int i = 0; i < rank->host->actor_count; i++)
            if (rank->host->actors[i].wait.peer >= 0)
                actor = &rank->host->actors[i];
        snprintf(why, why_size, "deadlock: rank %d in %s of exchange %llu, %s, channel %d, waits for %s of rank %d", r,
                 rank->host->call_name, (unsigned long long)rank->host->exchange, actor->duty, actor->channel,
                 actor->wait.word, actor->wait.peer);
        return AFDEP_ERR_TIMEOUT;
    }
    snprintf(why, why_size, "deadlock: nobody is in a call and not all are done");
    return AFDEP_ERR_TIMEOUT;
}

static void start(afdep_explorer_t *e, uint64_t seed)
{
    afdep_sim_reset(e->sim);
    afdep_chooser_start(&e->chooser, seed);
    make_plans(e, seed);
    e->steps = 0;
    for (int r = 0; r < e->ranks; r++) {
        afdep_explore_rank_t *rank = &e->rank[r];
        afdep_host_restart(rank->host);
        afdep_host_prepare_segment(rank->host, rank->host->fabric->base);
        rank->firsts = rank->seconds = rank->under_way = 0;
        rank->awake = 1;
    }
}

/* What is still on its way when all ranks are done lands too, so that its checks run. */
static afdep_status_t land_rest(afdep_explorer_t *e, char *why, size_t why_size)
{
    afdep_status_t status = AFDEP_OK;
    while (status == AFDEP_OK && afdep_sim_pending(e->sim) > 0)
        status = move_lane(e, afdep_sim_pending(e->sim) - 1, why, why_size);
    return status == AFDEP_OK ? afdep_explore_check_counts(e, why, why_size) : status;
}

static afdep_status_t run_steps(afdep_explorer_t *e, char *why, size_t why_size)
{
    afdep_status_t status = AFDEP_OK;
    while (status == AFDEP_OK && !all_done(e)) {
        afdep_mover_t m;
        if (!afdep_explore_choose(e, &m))
            return deadlock(e, why, why_size);
        status = m.rank >= 0 ? move_rank(e, &m, why, why_size) : move_lane(e, m.lane, why, why_size);
        if (++e->steps > STEPS_MOST) {
            snprintf(why, why_size, "%u steps without an end", STEPS_MOST);
            return AFDEP_ERR_TIMEOUT;
        }
    }
    return status == AFDEP_OK ? land_rest(e, why, why_size) : status;
}

afdep_status_t afdep_explorer_run(afdep_explorer_t *e, uint64_t seed, char *why, size_t why_size)
{
    char line[512] = "";
    start(e, seed);
    afdep_fp_state_t fp = afdep_fp_enter();
    afdep_status_t status = run_steps(e, line, sizeof(line));
    afdep_fp_leave(fp);
    if (status != AFDEP_OK)
        snprintf(why, why_size, "seed %llu (%s), step %llu: %s", (unsigned long long)seed,
                 afdep_strategy_name(e->chooser.strategy), (unsigned long long)e->steps, line);
    return status;
}
