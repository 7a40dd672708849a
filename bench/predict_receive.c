/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An FFN rank's receive in virtual time, as host/forward.c and host/receive.c do it: forward warps take the rows of
 * their channels from the rail inbox to the ranks that own the experts, the rails join, and rows are laid out by
 * expert.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdlib.h>
#include <string.h>

#include "bench/predict_internal.h"

static int domain_of(const afdep_predictor_t *p, uint32_t rank)
{
    return afdep_domain_of(&p->shape, (int)rank);
}

static int rail_of(const afdep_predictor_t *p, uint32_t rank)
{
    return afdep_rail_of(&p->shape, (int)rank);
}

/* The Attention index behind a source domain on this rank's rail. */
static uint32_t source_of(const afdep_predictor_t *p, uint32_t rank, int source_domain)
{
    return (uint32_t)(afdep_source_rank(&p->shape, source_domain, rail_of(p, rank)) - p->shape.ffn_ranks);
}

static uint32_t lane_of(const afdep_predictor_t *p, int source_domain, int channel)
{
    return (uint32_t)source_domain * (uint32_t)p->shape.channels + (uint32_t)channel;
}

/* ---- Arrivals ------------------------------------------------------------------------------------------------ */

void afdep_predict_add_arrival(afdep_predictor_t *p, uint32_t rank, uint64_t exchange, uint32_t source, int token,
                               int rail)
{
    afdep_predict_arrivals_t *arrivals = &p->ffns[rank].arrivals[exchange & 1];
    if (arrivals->count == arrivals->limit) {
        uint32_t limit = arrivals->limit ? 2 * arrivals->limit : 256;
        afdep_predict_arrival_t *list = realloc(arrivals->list, limit * sizeof(*list));
        if (!list) {
            p->queue.failed = 1;
            return;
        }
        arrivals->list = list;
        arrivals->limit = limit;
    }
    const int32_t *ids = afdep_predict_ids(p, source, exchange, token);
    uint16_t rows = 0;
    for (int k = 0; k < p->shape.top_k; k++)
        rows += ids[k] >= 0 && afdep_expert_owner(&p->shape, ids[k]) == (int)rank;
    arrivals->list[arrivals->count++] = (afdep_predict_arrival_t){ source, (uint32_t)token, rows, (uint16_t)rail };
}

/* ---- Joining the rails --------------------------------------------------------------------------------------- */

/* All rows of this exchange stand in this rank's inboxes: counts are known when the bookkeeping is done too. */
static void joined(afdep_predictor_t *p, uint32_t rank)
{
    const afdep_predict_ffn_t *f = &p->ffns[rank];
    const afdep_predict_arrivals_t *arrivals = &f->arrivals[f->exchange & 1];
    uint64_t rows = 0;
    for (uint32_t i = 0; i < arrivals->count; i++)
        rows += arrivals->list[i].rows;
    /* Across domains counts by expert are made and sent beside the rows; in one domain they come with them. */
    afdep_ps_t from = p->direct ? 0 : p->last_start[f->exchange & 1] + p->bookkeeping + p->nic_latency;
    from = from > p->now ? from : p->now;
    uint64_t bytes = (rows + arrivals->count) * (p->row.payload_bytes + p->row.scale_bytes);
    afdep_ps_t copy = afdep_bytes_ps(p->memory_ps, bytes);
    (void)afdep_link_use(&p->memory[rank], from, copy);
    const afdep_predict_watch_t *watch = p->predict->watch;
    if (watch && watch->served)
        watch->served(watch->context, AFDEP_RESOURCE_MEMORY, (int)rank, 0, from, from + p->layout + copy, "lay out");
    afdep_predict_at(p, from + p->layout + copy, AFDEP_EVENT_LAID_OUT, (int)rank, 0);
}

static void join_one(afdep_predictor_t *p, uint32_t rank, int parity)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    int rails = p->direct ? p->shape.attention_ranks : p->shape.ranks_per_domain;
    f->joined[parity]++;
    if (f->receiving && parity == (int)(f->exchange & 1) && f->joined[parity] == rails)
        joined(p, rank);
}

/* This rail has forwarded everything: tells the others how many rows came over it, zero included. */
static void forwarded_all(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    const uint32_t *forwarded = f->forwarded[f->exchange & 1];
    for (int rail = 0; rail < p->shape.ranks_per_domain; rail++) {
        if (rail == rail_of(p, rank))
            continue;
        int peer = afdep_ffn_rank(&p->shape, domain_of(p, rank), rail);
        f->awaits_replies += forwarded[rail] > 0;
        if (forwarded[rail] > 0)
            afdep_predict_nvlink_put(p, (int)rank, peer, p->extent_bytes);
        afdep_predict_nvlink_word(p, (int)rank, peer, AFDEP_SAYS_FORWARD, forwarded[rail]);
    }
    f->arrived[f->exchange & 1][rail_of(p, rank)] = forwarded[rail_of(p, rank)];
    join_one(p, rank, f->exchange & 1);
}

/* ---- Forwarding ---------------------------------------------------------------------------------------------- */

static void retire(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    if (--f->pending[channel] == 0 && --f->channels_left == 0)
        forwarded_all(p, rank);
}

/* The next row of a lane at or after `token` for this domain; tokens of the bucket, or beyond: none. */
static int next_row(const afdep_predictor_t *p, uint32_t rank, uint32_t source, int token)
{
    uint16_t rails[32];
    uint64_t exchange = p->ffns[rank].exchange;
    while (token < p->predict->tokens &&
           afdep_token_rails(&p->shape, domain_of(p, rank), afdep_predict_ids(p, source, exchange, token), rails) == 0)
        token += p->shape.channels;
    return token;
}

/* The warp of a channel goes on with the lane at the head of its list, whose tail has come. */
static void forward_head(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    while (f->lane_head[channel] != AFDEP_NO_LANE) {
        uint32_t lane = f->lane_head[channel];
        int domain = (int)(lane / (uint32_t)p->shape.channels);
        uint32_t source = source_of(p, rank, domain);
        if (f->lane_token[channel] < 0)
            f->lane_token[channel] = afdep_channel_first(&p->shape, domain, channel);
        int token = f->lane_token[channel] = next_row(p, rank, source, f->lane_token[channel]);
        if (token < p->predict->tokens) {
            uint16_t rails[32];
            int own = rail_of(p, rank), others = 0;
            int count = afdep_token_rails(&p->shape, domain_of(p, rank),
                                          afdep_predict_ids(p, source, f->exchange, token), rails);
            for (int k = 0; k < count; k++)
                others += rails[k] != own;
            afdep_predict_work_t work = { p->row.bytes, (uint64_t)others * p->row.bytes, 1, p->forward_row, "forward" };
            afdep_predict_at(p, afdep_predict_warp(p, (int)rank, channel, &work), AFDEP_EVENT_FORWARD, (int)rank,
                             channel);
            return;
        }
        f->lane_head[channel] = f->lane_next[lane];
        f->lane_token[channel] = -1;
        retire(p, rank, channel);
    }
}

/* A row is loaded: stores it where its experts are, and goes on. */
void afdep_predict_forward(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    uint32_t lane = f->lane_head[channel];
    int token = f->lane_token[channel];
    if (token >= 0) { /* else the warp has just woken */
        uint16_t rails[32];
        uint32_t source = source_of(p, rank, (int)(lane / (uint32_t)p->shape.channels));
        int count =
            afdep_token_rails(&p->shape, domain_of(p, rank), afdep_predict_ids(p, source, f->exchange, token), rails);
        for (int k = 0; k < count; k++) {
            int owner = afdep_ffn_rank(&p->shape, domain_of(p, rank), rails[k]);
            f->forwarded[f->exchange & 1][rails[k]]++;
            if (owner != (int)rank)
                afdep_predict_nvlink_put(p, (int)rank, owner, p->row.bytes);
            afdep_predict_add_arrival(p, (uint32_t)owner, f->exchange, source, token, rail_of(p, rank));
        }
        f->lane_token[channel] = token + p->shape.channels;
    }
    forward_head(p, rank, channel);
}

/* A finish tail that may be acted upon: the channel's warp sees it when it polls next. */
static void land_tail(afdep_predictor_t *p, uint32_t rank, uint32_t lane)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    int channel = (int)(lane % (uint32_t)p->shape.channels);
    f->lane_next[lane] = AFDEP_NO_LANE;
    if (f->lane_head[channel] != AFDEP_NO_LANE) {
        f->lane_next[f->lane_tail[channel]] = lane;
        f->lane_tail[channel] = lane;
        return;
    }
    f->lane_head[channel] = f->lane_tail[channel] = lane;
    f->lane_token[channel] = -1;
    /* A warp's lanes poll 32 sources at once. */
    afdep_ps_t rounds = (p->shape.attention_domains + 31) / 32;
    afdep_predict_at(p, p->now + rounds * p->poll, AFDEP_EVENT_FORWARD, (int)rank, channel);
}

/* Channels that a source's T leaves without tokens are retired; tails that came before it are looked at. */
static void land_count(afdep_predictor_t *p, uint32_t rank, int source_domain, int tokens)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    f->counted[source_domain] = 1;
    for (int c = 0; c < p->shape.channels; c++) {
        uint32_t lane = lane_of(p, source_domain, c);
        if (!afdep_channel_finishes(&p->shape, source_domain, tokens, c))
            retire(p, rank, c);
        else if (f->held[lane]) {
            f->held[lane] = 0;
            land_tail(p, rank, lane);
        }
    }
}

/* ---- Words --------------------------------------------------------------------------------------------------- */

static void keep_early(afdep_predictor_t *p, afdep_predict_ffn_t *f, const afdep_event_t *event)
{
    if (f->early_count == f->early_limit) {
        uint32_t limit = f->early_limit ? 2 * f->early_limit : 64;
        afdep_event_t *early = realloc(f->early, limit * sizeof(*early));
        if (!early) {
            p->queue.failed = 1;
            return;
        }
        f->early = early;
        f->early_limit = limit;
    }
    f->early[f->early_count++] = *event;
}

/* A word of a source. */
static void source_word(afdep_predictor_t *p, const afdep_event_t *event)
{
    afdep_predict_ffn_t *f = &p->ffns[event->rank];
    if (!f->receiving) {
        keep_early(p, f, event);
        return;
    }
    if (p->direct) {
        join_one(p, event->rank, f->exchange & 1);
        return;
    }
    int domain = afdep_source_domain(&p->shape, (int)event->peer);
    if (event->says == AFDEP_SAYS_COUNT) {
        land_count(p, event->rank, domain, (int)event->value);
        return;
    }
    uint32_t lane = lane_of(p, domain, (int)event->channel - 1);
    if (p->shape.sparse_dispatch && !f->counted[domain])
        f->held[lane] = 1;
    else
        land_tail(p, event->rank, lane);
}

void afdep_predict_ffn_word(afdep_predictor_t *p, const afdep_event_t *event)
{
    afdep_predict_ffn_t *f = &p->ffns[event->rank];
    if (event->says == AFDEP_SAYS_FORWARD) {
        /* Its sender may be one exchange ahead, not two: hence two entries, by parity. */
        f->arrived[event->channel & 1][rail_of(p, event->peer)] = event->value;
        join_one(p, event->rank, event->channel & 1);
        return;
    }
    if (event->says == AFDEP_SAYS_REPLIED) {
        f->replied[f->exchange & 1]++;
        afdep_predict_gate(p, event->rank);
        return;
    }
    source_word(p, event);
}

/* ---- The call ------------------------------------------------------------------------------------------------ */

static void prepare(afdep_predictor_t *p, afdep_predict_ffn_t *f)
{
    size_t channels = (size_t)p->shape.channels, sources = (size_t)p->shape.attention_domains;
    f->channels_left = p->shape.channels;
    memset(f->counted, 0, sources);
    for (size_t c = 0; c < channels; c++) {
        f->pending[c] = p->shape.attention_domains;
        f->lane_head[c] = AFDEP_NO_LANE;
        f->lane_token[c] = -1;
    }
}

void afdep_predict_receive(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    f->exchange++;
    f->began = p->now;
    f->receiving = 1;
    f->awaits_replies = 0;
    if (!p->direct)
        prepare(p, f);
    uint32_t early = f->early_count;
    f->early_count = 0;
    for (uint32_t i = 0; i < early; i++)
        source_word(p, &f->early[i]);
}

void afdep_predict_laid_out(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    f->receiving = 0;
    afdep_predict_called(p, rank, f->exchange, "receive", f->began);
    if (p->direct || p->predict->witness == AFDEP_WITNESS_DISPATCH)
        afdep_predict_witness(p, rank);
    afdep_predict_at(p, p->now + p->gap, AFDEP_EVENT_REPLY, (int)rank, 0);
}
