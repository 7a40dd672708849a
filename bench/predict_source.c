/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An Attention rank in virtual time: dispatch, then collect, as host/dispatch.c and host/collect.c do them. A warp
 * serves each channel; in one domain, where there are no channels, warps take the tokens in turn.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <string.h>

#include "bench/predict_internal.h"

#define TARGETS_MOST 32

static int source_domain(const afdep_predictor_t *p, uint32_t rank)
{
    return p->direct ? 0 : afdep_source_domain(&p->shape, (int)rank);
}

/* Where a target's rows go: the FFN rank itself, or the one on this source's rail. */
static int peer_of(const afdep_predictor_t *p, uint32_t rank, int target)
{
    return p->direct ? target : afdep_ffn_rank(&p->shape, target, afdep_rail_of(&p->shape, (int)rank));
}

static int targets_of(const afdep_predictor_t *p, uint32_t rank, int token, int32_t *targets)
{
    uint32_t source = rank - (uint32_t)p->shape.ffn_ranks;
    return afdep_token_targets(&p->shape, afdep_predict_ids(p, source, p->sources[source].exchange, token), targets);
}

/* The first token of a warp. */
static int first_token(const afdep_predictor_t *p, uint32_t rank, int channel)
{
    return p->direct ? channel : afdep_channel_first(&p->shape, source_domain(p, rank), channel);
}

/* Whether a token after `token` on the same channel goes to `target`. */
static int goes_again(const afdep_predictor_t *p, uint32_t rank, int token, int target)
{
    int32_t targets[TARGETS_MOST];
    for (token += p->shape.channels; token < p->predict->tokens; token += p->shape.channels) {
        int count = targets_of(p, rank, token, targets);
        for (int j = 0; j < count; j++)
            if (targets[j] == target)
                return 1;
    }
    return 0;
}

/* ---- An exchange begins -------------------------------------------------------------------------------------- */

void afdep_predict_begin_exchange(afdep_predictor_t *p, uint32_t source)
{
    afdep_predict_source_t *s = &p->sources[source];
    uint64_t n = ++s->exchange;
    s->began = p->now;
    s->waiting = 0;
    s->collecting = 0;
    if (p->now < p->first_start[n - 1])
        p->first_start[n - 1] = p->now;
    if (p->now > p->final_start[n - 1])
        p->final_start[n - 1] = p->now;
    if (p->predict->tokens > 0) {
        const afdep_predict_case_t *c = p->predict;
        afdep_workload_routes(&p->routes, c->scenario, c->trace, c->seed, n, (int)source, c->tokens);
        memcpy(s->ids[n & 1], p->routes.ids, (size_t)c->tokens * (size_t)p->shape.top_k * sizeof(int32_t));
    }
    afdep_predict_at(p, p->now + p->gap, AFDEP_EVENT_DISPATCH, p->shape.ffn_ranks + (int)source, 0);
}

/* ---- Dispatch ------------------------------------------------------------------------------------------------ */

/* A warp takes up its next token, or its last duty: finish tails where it sent no row. */
static void take_up(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    int32_t targets[TARGETS_MOST];
    int token = s->next[channel];
    if (token >= p->predict->tokens) {
        afdep_predict_at(p, p->now + p->issue, AFDEP_EVENT_SEND, (int)rank, channel);
        return;
    }
    int count = targets_of(p, rank, token, targets);
    /* A rail's row is staged once for all NICs; inside a domain it is stored to each target. */
    afdep_predict_work_t work = { p->row.bytes * (p->direct ? 1u : 2u), p->direct ? (uint64_t)count * p->row.bytes : 0,
                                  !p->direct, p->send_row, "send" };
    afdep_predict_at(p, afdep_predict_warp(p, (int)rank, channel, &work), AFDEP_EVENT_SEND, (int)rank, channel);
}

/* What a channel waits for in collect: an answer of each target that got a row on it, or of all. */
static uint32_t awaited_of(const afdep_predictor_t *p, uint32_t rank, int channel)
{
    int targets_all = afdep_targets(&p->shape);
    if (afdep_channel_answers(&p->shape, 0))
        return (uint32_t)targets_all;
    uint64_t seen[1024]; /* a set of at most 65,536 targets */
    memset(seen, 0, ((size_t)targets_all + 63) / 64 * sizeof(seen[0]));
    uint32_t count = 0;
    int32_t targets[TARGETS_MOST];
    int step = p->direct ? 1 : p->shape.channels;
    for (int token = p->direct ? 0 : first_token(p, rank, channel); token < p->predict->tokens; token += step) {
        int some = targets_of(p, rank, token, targets);
        for (int j = 0; j < some; j++) {
            uint64_t bit = (uint64_t)1 << (targets[j] & 63);
            count += !(seen[targets[j] >> 6] & bit);
            seen[targets[j] >> 6] |= bit;
        }
    }
    return count;
}

static void begin_warps(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    int tokens = p->predict->tokens, domain = source_domain(p, rank);
    s->sending = 0;
    s->channels_left = 0;
    if (p->direct) {
        s->awaited[0] = awaited_of(p, rank, 0);
        s->channels_left = 1;
        for (int c = 0; c < p->shape.channels && c < tokens; c++) {
            s->next[c] = c;
            s->sending++;
            take_up(p, rank, c);
        }
        return;
    }
    for (int c = 0; c < p->shape.channels; c++) {
        int assigned = afdep_channel_tokens(&p->shape, domain, tokens, c);
        s->next[c] = first_token(p, rank, c);
        s->awaited[c] = assigned > 0 || afdep_channel_answers(&p->shape, 0) ? awaited_of(p, rank, c) : 0;
        s->channels_left += s->awaited[c] > 0;
        if (!afdep_channel_finishes(&p->shape, domain, tokens, c))
            continue;
        s->sending++;
        take_up(p, rank, c);
    }
}

/* All that this rank issues in dispatch is issued. */
static void dispatched(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    afdep_predict_called(p, rank, s->exchange, "dispatch", s->began);
    afdep_predict_at(p, p->now + p->gap, AFDEP_EVENT_COLLECT, (int)rank, 0);
}

static void send_counts(afdep_predictor_t *p, uint32_t rank)
{
    for (int target = 0; target < afdep_targets(&p->shape); target++) {
        if (p->direct)
            afdep_predict_nvlink_word(p, (int)rank, target, AFDEP_SAYS_COUNT, 0);
        else
            afdep_predict_word(p, (int)rank, peer_of(p, rank, target), -1, AFDEP_SAYS_COUNT,
                               (uint32_t)p->predict->tokens);
    }
}

/* Nothing of exchange n is sent before the witnesses of n - 1: see host/dispatch.c. */
static int may_overwrite(const afdep_predictor_t *p, const afdep_predict_source_t *s)
{
    if (!afdep_dispatch_awaits_witness(&p->shape))
        return 1;
    return s->witnesses >= (s->exchange - 1) * (uint64_t)afdep_targets(&p->shape);
}

void afdep_predict_dispatch(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    s->waiting = !may_overwrite(p, s);
    if (s->waiting)
        return;
    if (p->now > p->last_start[s->exchange & 1])
        p->last_start[s->exchange & 1] = p->now;
    if (!p->direct && p->shape.sparse_dispatch)
        send_counts(p, rank);
    begin_warps(p, rank);
    if (s->sending > 0)
        return;
    if (p->direct)
        send_counts(p, rank);
    dispatched(p, rank);
}

/* A token's row to every target; the last row of a lane carries its finish tail. */
static void send_token(afdep_predictor_t *p, uint32_t rank, int channel, int token)
{
    int32_t targets[TARGETS_MOST];
    int count = targets_of(p, rank, token, targets);
    uint32_t source = rank - (uint32_t)p->shape.ffn_ranks;
    for (int j = 0; j < count; j++) {
        int peer = peer_of(p, rank, targets[j]);
        if (p->direct) {
            afdep_predict_nvlink_put(p, (int)rank, peer, p->row.bytes);
            afdep_predict_add_arrival(p, (uint32_t)peer, p->sources[source].exchange, source, token, 0);
            continue;
        }
        afdep_predict_put(p, (int)rank, peer, channel, p->row.bytes);
        if (!goes_again(p, rank, token, targets[j]))
            afdep_predict_word(p, (int)rank, peer, channel, AFDEP_SAYS_FINISH, 1);
    }
}

/* Whether any token of the channel goes to the target. */
static int sends_to(const afdep_predictor_t *p, uint32_t rank, int channel, int target)
{
    return goes_again(p, rank, first_token(p, rank, channel) - p->shape.channels, target);
}

void afdep_predict_send(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    if (s->next[channel] < p->predict->tokens) {
        send_token(p, rank, channel, s->next[channel]);
        s->next[channel] += p->shape.channels;
        if (s->next[channel] < p->predict->tokens) {
            take_up(p, rank, channel);
            return;
        }
    }
    for (int target = 0; !p->direct && target < afdep_targets(&p->shape); target++)
        if (!sends_to(p, rank, channel, target))
            afdep_predict_word(p, (int)rank, peer_of(p, rank, target), channel, AFDEP_SAYS_FINISH, 0);
    if (--s->sending > 0)
        return;
    if (p->direct)
        send_counts(p, rank); /* each behind the rows of its lane */
    dispatched(p, rank);
}

/* ---- Collect ------------------------------------------------------------------------------------------------- */

static void end_if_done(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    uint64_t n = s->exchange;
    if (!s->collecting || s->channels_left > 0)
        return;
    if (p->predict->witness == AFDEP_WITNESS_COLLECT && afdep_dispatch_awaits_witness(&p->shape) &&
        s->witnesses < n * (uint64_t)afdep_targets(&p->shape))
        return;
    s->collecting = 0;
    if (p->now - s->began > p->longest[n - 1])
        p->longest[n - 1] = p->now - s->began;
    afdep_predict_called(p, rank, n, "exchange", s->began);
    afdep_predict_source_done(p, rank);
}

/* The only reply row is the result where there is one FFN rank in one domain: nothing to sum. */
static int is_view(const afdep_predictor_t *p)
{
    return p->direct && p->shape.ffn_ranks == 1;
}

/* A warp sums its next token, or its channel is done. */
static void collect_token(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    int32_t targets[TARGETS_MOST];
    int token = s->next[channel];
    if (token >= p->predict->tokens || is_view(p)) {
        s->channels_left--;
        return;
    }
    uint64_t rows = (uint64_t)targets_of(p, rank, token, targets) + 1;
    afdep_predict_work_t work = { rows * p->row.reply_payload_bytes, 0, 0, p->collect_row, "collect" };
    afdep_predict_at(p, afdep_predict_warp(p, (int)rank, channel, &work), AFDEP_EVENT_COLLECTED, (int)rank, channel);
}

/* All that was awaited on the channel has come. */
static void begin_channel(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    if (!p->direct) {
        s->next[channel] = first_token(p, rank, channel);
        collect_token(p, rank, channel);
        return;
    }
    for (int c = 0; c < p->shape.channels && c < p->predict->tokens; c++) {
        s->next[c] = c;
        s->channels_left++;
        collect_token(p, rank, c);
    }
    s->channels_left--; /* what stood for all of them */
}

void afdep_predict_collected(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    s->next[channel] += p->shape.channels;
    collect_token(p, rank, channel);
    end_if_done(p, rank);
}

/* Words that came before collect ran are looked at when it begins. */
void afdep_predict_collect(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    s->collecting = 1;
    if (p->direct) {
        if (s->awaited[0] == 0)
            begin_channel(p, rank, 0);
    } else {
        for (int c = 0; c < p->shape.channels; c++)
            if (s->awaited[c] == AFDEP_NO_LANE)
                begin_channel(p, rank, c);
    }
    end_if_done(p, rank);
}

void afdep_predict_source_word(afdep_predictor_t *p, const afdep_event_t *event)
{
    uint32_t rank = event->rank;
    afdep_predict_source_t *s = afdep_predict_source(p, rank);
    int channel = p->direct ? 0 : (int)event->channel - 1;
    if (event->says == AFDEP_SAYS_WITNESS) {
        s->witnesses++;
        if (s->waiting && may_overwrite(p, s))
            afdep_predict_at(p, p->now + p->poll, AFDEP_EVENT_DISPATCH, (int)rank, 0);
        end_if_done(p, rank);
        return;
    }
    if (--s->awaited[channel] > 0)
        return;
    if (!s->collecting) {
        if (!p->direct)
            s->awaited[channel] = AFDEP_NO_LANE; /* come, not yet seen */
        return;
    }
    begin_channel(p, rank, channel);
    end_if_done(p, rank);
}
