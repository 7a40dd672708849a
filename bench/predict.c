/* SPDX-License-Identifier: Apache-2.0 */
/* One case from start to end: ranks, links, the loop over events, and what came of it. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict.h"

#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

#include "bench/lib/stats.h"
#include "bench/lib/why.h"
#include "bench/predict_internal.h"
#include "core/config.h"
#include "validate/exchanger.h"

const char *afdep_resource_name(afdep_resource_t resource)
{
    static const char *const names[] = { "NIC send", "NIC receive", "NVLink out", "NVLink in", "SM", "memory", "warp" };
    return names[resource];
}

/* ---- Setting up ---------------------------------------------------------------------------------------------- */

static afdep_toggle_t toggle(int on)
{
    return on ? AFDEP_ON : AFDEP_OFF;
}

/* The shape that the library itself would open with. */
static int resolve(afdep_predictor_t *p)
{
    const afdep_predict_case_t *c = p->predict;
    afdep_config_t config = afdep_exchanger_config(c->scenario);
    afdep_settings_t *settings = malloc(sizeof(*settings));
    config.stagger = toggle(c->stagger);
    config.sparse_dispatch = toggle(c->sparse_dispatch);
    config.sparse_combine = toggle(c->sparse_combine);
    if (!settings)
        return afdep_why(p->why, p->why_size, "no memory");
    afdep_status_t status = afdep_settings_resolve(&config, afdep_scenario_ranks(c->scenario), settings);
    if (status == AFDEP_OK) {
        p->shape = settings->shape;
        p->extent_bytes = settings->layout.extent_stride * 4;
    }
    free(settings);
    if (status != AFDEP_OK)
        return afdep_why(p->why, p->why_size, "%s", afdep_last_error());
    p->row = afdep_row_format(&p->shape);
    p->direct = p->shape.protocol == AFDEP_PROTOCOL_DIRECT;
    if (afdep_is_symmetric(&p->shape) || (!p->direct && p->shape.protocol != AFDEP_PROTOCOL_DIRECTIONAL))
        return afdep_why(p->why, p->why_size,
                         "scenario %s: its protocol has no model yet: only those of one domain, and of "
                         "several domains of one role each, have one",
                         c->scenario->name);
    p->domains = p->shape.ranks / p->shape.ranks_per_domain;
    p->exchanges = c->warmup + c->iterations;
    return 0;
}

static afdep_ps_t ps_of(const afdep_predict_case_t *c, afdep_cost_id_t id)
{
    return (afdep_ps_t)(c->cost->value[id] * 1000 + 0.5);
}

static void take_costs(afdep_predictor_t *p)
{
    const afdep_predict_case_t *c = p->predict;
    const double *value = c->cost->value, per_rank = value[AFDEP_COST_NICS_PER_RANK];
    p->put = ps_of(c, AFDEP_COST_NIC_PUT);
    p->signal_send = ps_of(c, AFDEP_COST_NIC_SIGNAL_SEND);
    p->signal_receive = ps_of(c, AFDEP_COST_NIC_SIGNAL_RECEIVE);
    p->nic_latency = ps_of(c, AFDEP_COST_NIC_LATENCY);
    p->nvlink_latency = ps_of(c, AFDEP_COST_NVLINK_LATENCY);
    p->send_row = ps_of(c, AFDEP_COST_WARP_SEND_ROW);
    p->issue = ps_of(c, AFDEP_COST_WARP_ISSUE);
    p->poll = ps_of(c, AFDEP_COST_WARP_POLL);
    p->forward_row = ps_of(c, AFDEP_COST_WARP_FORWARD_ROW);
    p->sum_row = ps_of(c, AFDEP_COST_WARP_SUM_ROW);
    p->sm_row = ps_of(c, AFDEP_COST_SM_ROW);
    p->back_row = ps_of(c, AFDEP_COST_WARP_BACK_ROW);
    p->collect_row = ps_of(c, AFDEP_COST_WARP_COLLECT_ROW);
    p->gap = ps_of(c, c->scenario->graph ? AFDEP_COST_KERNEL_GRAPH_GAP : AFDEP_COST_KERNEL_LAUNCH) +
             ps_of(c, AFDEP_COST_KERNEL_PROLOGUE);
    p->layout = ps_of(c, AFDEP_COST_KERNEL_LAYOUT);
    p->bookkeeping = ps_of(c, AFDEP_COST_KERNEL_BOOKKEEPING);
    /* 1 GB/s is 1,000 ps a byte. */
    p->nic_ps = 1000 / value[AFDEP_COST_NIC_BANDWIDTH];
    p->nvlink_ps = 1000 / value[AFDEP_COST_NVLINK_BANDWIDTH];
    p->load_ps = 1000 / value[AFDEP_COST_SM_LOAD];
    p->store_ps = 1000 / value[AFDEP_COST_SM_STORE];
    p->memory_ps = 1000 / value[AFDEP_COST_MEMORY_BANDWIDTH];
    p->nics = per_rank >= 1 ? (int)per_rank : 1;
    p->per_nic = per_rank < 1 ? (int)(1 / per_rank + 0.5) : 1;
}

static void *zeroed(int *failed, size_t count, size_t size)
{
    void *array = calloc(count ? count : 1, size);
    *failed |= array == NULL;
    return array;
}

static int make_source(afdep_predictor_t *p, afdep_predict_source_t *s)
{
    int failed = 0;
    size_t channels = (size_t)p->shape.channels;
    s->next = zeroed(&failed, channels, sizeof(*s->next));
    s->awaited = zeroed(&failed, channels, sizeof(*s->awaited));
    for (int i = 0; i < 2; i++)
        s->ids[i] = zeroed(&failed, (size_t)p->predict->tokens * (size_t)p->shape.top_k, sizeof(int32_t));
    return failed;
}

static int make_ffn(afdep_predictor_t *p, afdep_predict_ffn_t *f)
{
    int failed = 0;
    size_t channels = (size_t)p->shape.channels, sources = (size_t)p->shape.attention_domains;
    size_t rails = (size_t)p->shape.ranks_per_domain;
    f->warp_index = zeroed(&failed, channels, sizeof(*f->warp_index));
    if (p->direct) {
        f->source_left = zeroed(&failed, (size_t)p->shape.attention_ranks, sizeof(*f->source_left));
        return failed;
    }
    f->lane_next = zeroed(&failed, sources * channels, sizeof(*f->lane_next));
    f->held = zeroed(&failed, sources * channels, 1);
    f->lane_head = zeroed(&failed, channels, sizeof(*f->lane_head));
    f->lane_tail = zeroed(&failed, channels, sizeof(*f->lane_tail));
    f->lane_token = zeroed(&failed, channels, sizeof(*f->lane_token));
    f->pending = zeroed(&failed, channels, sizeof(*f->pending));
    f->back_source = zeroed(&failed, channels, sizeof(*f->back_source));
    f->back_token = zeroed(&failed, channels, sizeof(*f->back_token));
    f->counted = zeroed(&failed, sources, 1);
    for (int i = 0; i < 2; i++) {
        f->forwarded[i] = zeroed(&failed, rails, sizeof(uint32_t));
        f->arrived[i] = zeroed(&failed, rails, sizeof(uint32_t));
    }
    return failed;
}

static size_t nic_count(const afdep_predictor_t *p)
{
    if (p->per_nic > 1)
        return (size_t)p->domains * (size_t)((p->shape.ranks_per_domain - 1) / p->per_nic + 1);
    return (size_t)p->shape.ranks * (size_t)p->nics;
}

static int make_all(afdep_predictor_t *p)
{
    int failed = 0;
    size_t ranks = (size_t)p->shape.ranks, exchanges = (size_t)p->exchanges, nics = nic_count(p);
    p->nic_send = zeroed(&failed, nics, sizeof(*p->nic_send));
    p->nic_receive = zeroed(&failed, nics, sizeof(*p->nic_receive));
    p->port_out = zeroed(&failed, ranks, sizeof(*p->port_out));
    p->port_in = zeroed(&failed, ranks, sizeof(*p->port_in));
    p->sms = zeroed(&failed, ranks * (size_t)p->shape.num_sms, sizeof(*p->sms));
    p->memory = zeroed(&failed, (size_t)p->shape.ffn_ranks, sizeof(*p->memory));
    p->warps = zeroed(&failed, (size_t)p->shape.ffn_ranks * (size_t)p->shape.channels, sizeof(*p->warps));
    p->longest = zeroed(&failed, exchanges, sizeof(*p->longest));
    p->first_start = zeroed(&failed, exchanges, sizeof(*p->first_start));
    p->final_start = zeroed(&failed, exchanges, sizeof(*p->final_start));
    p->in = zeroed(&failed, ranks, sizeof(*p->in));
    p->out = zeroed(&failed, ranks, sizeof(*p->out));
    p->sources = zeroed(&failed, (size_t)p->shape.attention_ranks, sizeof(*p->sources));
    p->ffns = zeroed(&failed, (size_t)p->shape.ffn_ranks, sizeof(*p->ffns));
    for (int a = 0; !failed && a < p->shape.attention_ranks; a++)
        failed = make_source(p, &p->sources[a]);
    for (int f = 0; !failed && f < p->shape.ffn_ranks; f++)
        failed = make_ffn(p, &p->ffns[f]);
    if (!failed)
        failed = afdep_workload_alloc_routes(&p->routes, p->predict->scenario, p->predict->tokens) != 0;
    for (size_t n = 0; !failed && n < exchanges; n++)
        p->first_start[n] = INT64_MAX;
    return failed ? afdep_why(p->why, p->why_size, "no memory for %d ranks in virtual time", p->shape.ranks) : 0;
}

static void free_ffn(afdep_predict_ffn_t *f)
{
    void *const arrays[] = { f->warp_index,       f->source_left,     f->lane_next,  f->held,
                             f->lane_head,        f->lane_tail,       f->lane_token, f->pending,
                             f->back_source,      f->back_token,      f->counted,    f->early,
                             f->forwarded[0],     f->forwarded[1],    f->arrived[0], f->arrived[1],
                             f->arrivals[0].list, f->arrivals[1].list };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        free(arrays[i]);
}

static void free_all(afdep_predictor_t *p)
{
    for (int a = 0; p->sources && a < p->shape.attention_ranks; a++) {
        free(p->sources[a].next);
        free(p->sources[a].awaited);
        free(p->sources[a].ids[0]);
        free(p->sources[a].ids[1]);
    }
    for (int f = 0; p->ffns && f < p->shape.ffn_ranks; f++)
        free_ffn(&p->ffns[f]);
    void *const arrays[] = { p->nic_send, p->nic_receive, p->port_out, p->port_in,     p->sms,
                             p->memory,   p->warps,       p->longest,  p->first_start, p->final_start,
                             p->in,       p->out,         p->sources,  p->ffns,        p->queue.heap };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        free(arrays[i]);
    afdep_workload_free(&p->routes);
}

/* ---- The loop ------------------------------------------------------------------------------------------------ */

static void word_landed(afdep_predictor_t *p, const afdep_event_t *event)
{
    if ((int)event->rank < p->shape.ffn_ranks)
        afdep_predict_ffn_word(p, event);
    else
        afdep_predict_source_word(p, event);
}

static void take_event(afdep_predictor_t *p, const afdep_event_t *e)
{
    switch ((afdep_event_kind_t)e->kind) {
    case AFDEP_EVENT_DISPATCH:
        afdep_predict_dispatch(p, e->rank);
        return;
    case AFDEP_EVENT_SEND:
        afdep_predict_send(p, e->rank, e->channel);
        return;
    case AFDEP_EVENT_NIC:
        afdep_predict_arrive_nic(p, e);
        return;
    case AFDEP_EVENT_NVLINK:
        afdep_predict_arrive_nvlink(p, e);
        return;
    case AFDEP_EVENT_WORD:
        word_landed(p, e);
        return;
    case AFDEP_EVENT_RECEIVE:
        afdep_predict_receive(p, e->rank);
        return;
    case AFDEP_EVENT_FORWARD:
        afdep_predict_forward(p, e->rank, e->channel);
        return;
    case AFDEP_EVENT_LAID_OUT:
        afdep_predict_laid_out(p, e->rank);
        return;
    case AFDEP_EVENT_REPLY:
        afdep_predict_reply(p, e->rank);
        return;
    case AFDEP_EVENT_SUM:
        afdep_predict_sum(p, e->rank, e->channel);
        return;
    case AFDEP_EVENT_BACK:
        afdep_predict_back(p, e->rank, e->channel);
        return;
    case AFDEP_EVENT_COLLECT:
        afdep_predict_collect(p, e->rank);
        return;
    case AFDEP_EVENT_COLLECTED:
        afdep_predict_collected(p, e->rank, e->channel);
        return;
    }
}

/* All ranks begin their next exchange now. */
static void begin_all(afdep_predictor_t *p)
{
    p->begun++;
    p->sources_done = p->ffns_done = 0;
    for (int f = 0; f < p->shape.ffn_ranks; f++)
        afdep_predict_at(p, p->now + p->gap, AFDEP_EVENT_RECEIVE, f, 0);
    for (int a = 0; a < p->shape.attention_ranks; a++)
        afdep_predict_begin_exchange(p, (uint32_t)a);
}

static void begin_if_all_done(afdep_predictor_t *p)
{
    if (!p->predict->free_running && p->sources_done == p->shape.attention_ranks &&
        p->ffns_done == p->shape.ffn_ranks && p->begun < p->exchanges)
        begin_all(p);
}

void afdep_predict_source_done(afdep_predictor_t *p, uint32_t rank)
{
    int more = afdep_predict_source(p, rank)->exchange < (uint64_t)p->exchanges;
    if (p->predict->free_running && more) {
        afdep_predict_begin_exchange(p, rank - (uint32_t)p->shape.ffn_ranks);
        return;
    }
    p->sources_done++;
    begin_if_all_done(p);
}

void afdep_predict_ffn_done(afdep_predictor_t *p, uint32_t rank)
{
    int more = p->ffns[rank].exchange < (uint64_t)p->exchanges;
    if (p->predict->free_running && more) {
        afdep_predict_at(p, p->now + p->gap, AFDEP_EVENT_RECEIVE, (int)rank, 0);
        return;
    }
    p->ffns_done++;
    begin_if_all_done(p);
}

static int run(afdep_predictor_t *p)
{
    afdep_event_t event;
    begin_all(p);
    while (!p->queue.failed && afdep_queue_take(&p->queue, &event)) {
        if (event.at >= AFDEP_CLOCK_ENDS)
            return afdep_why(p->why, p->why_size,
                             "cost model %s: %d exchanges of %d tokens take more than 26 days of virtual time, where "
                             "the predictor's clock ends",
                             p->predict->cost->name, p->exchanges, p->predict->tokens);
        p->now = event.at;
        p->events++;
        take_event(p, &event);
    }
    if (p->queue.failed)
        return afdep_why(p->why, p->why_size, "no memory for events");
    if (p->sources_done != p->shape.attention_ranks)
        return afdep_why(p->why, p->why_size, "the predictor stopped with %d of %d sources done: a fault of its own",
                         p->sources_done, p->shape.attention_ranks);
    return 0;
}

/* ---- What came of it ----------------------------------------------------------------------------------------- */

static void count(const afdep_predictor_t *p, afdep_prediction_t *out)
{
    const afdep_predict_ffn_t *most = &p->ffns[0];
    for (int i = 1; i < p->shape.ffn_ranks; i++) {
        const afdep_predict_ffn_t *f = &p->ffns[i];
        uint64_t a = f->finish + f->count + f->combine + f->witness;
        uint64_t b = most->finish + most->count + most->combine + most->witness;
        if (a != b ? a > b : f->bytes > most->bytes)
            most = f;
    }
    double n = p->exchanges;
    out->counts =
        (afdep_predict_counts_t){ (double)most->finish / n,  (double)most->count / n, (double)most->combine / n,
                                  (double)most->witness / n, (double)most->puts / n,  (double)most->bytes / n };
    for (int r = 0; r < p->shape.ranks; r++) {
        out->in[r] = (double)p->in[r] / n;
        out->out[r] = (double)p->out[r] / n;
    }
}

static void load(const afdep_predictor_t *p, afdep_prediction_t *out, afdep_resource_t resource,
                 const afdep_link_t *links, size_t links_count, size_t ranks)
{
    size_t most = 0;
    for (size_t i = 1; i < links_count; i++)
        if (links[i].busy > links[most].busy)
            most = i;
    out->load[resource].share = p->now > 0 ? (double)links[most].busy / (double)p->now : 0;
    out->load[resource].rank = (int)(most * ranks / links_count);
}

static int report(const afdep_predictor_t *p, afdep_prediction_t *out)
{
    int failed = 0, ranks = p->shape.ranks, n = p->predict->iterations;
    size_t all = (size_t)ranks, ffn = (size_t)p->shape.ffn_ranks;
    double *skews = zeroed(&failed, (size_t)n, sizeof(*skews));
    out->samples_us = zeroed(&failed, (size_t)n, sizeof(*out->samples_us));
    out->in = zeroed(&failed, all, sizeof(*out->in));
    out->out = zeroed(&failed, all, sizeof(*out->out));
    if (failed) {
        free(skews);
        return afdep_why(p->why, p->why_size, "no memory for the results");
    }
    for (int i = 0; i < n; i++) {
        out->samples_us[i] = (double)p->longest[p->predict->warmup + i] / 1e6;
        skews[i] = (double)(p->final_start[p->predict->warmup + i] - p->first_start[p->predict->warmup + i]) / 1e6;
    }
    out->samples = n;
    out->skew_us = afdep_median(skews, n);
    out->events = p->events;
    count(p, out);
    load(p, out, AFDEP_RESOURCE_NIC_SEND, p->nic_send, nic_count(p), all);
    load(p, out, AFDEP_RESOURCE_NIC_RECEIVE, p->nic_receive, nic_count(p), all);
    load(p, out, AFDEP_RESOURCE_NVLINK_OUT, p->port_out, all, all);
    load(p, out, AFDEP_RESOURCE_NVLINK_IN, p->port_in, all, all);
    load(p, out, AFDEP_RESOURCE_SM, p->sms, all * (size_t)p->shape.num_sms, all);
    load(p, out, AFDEP_RESOURCE_MEMORY, p->memory, ffn, ffn);
    load(p, out, AFDEP_RESOURCE_WARP, p->warps, ffn * (size_t)p->shape.channels, ffn);
    free(skews);
    return 0;
}

int afdep_predict(const afdep_predict_case_t *predict, afdep_prediction_t *prediction, char *why, size_t why_size)
{
    afdep_predictor_t p = { .predict = predict, .why = why, .why_size = why_size };
    memset(prediction, 0, sizeof(*prediction));
    int status = resolve(&p);
    if (status != 0)
        return status;
    take_costs(&p);
    status = make_all(&p);
    if (status == 0)
        status = run(&p);
    if (status == 0)
        status = report(&p, prediction);
    if (status != 0)
        afdep_prediction_free(prediction);
    free_all(&p);
    return status;
}

void afdep_prediction_free(afdep_prediction_t *prediction)
{
    free(prediction->samples_us);
    free(prediction->in);
    free(prediction->out);
    memset(prediction, 0, sizeof(*prediction));
}
