/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An FFN rank's reply in virtual time, as host/reply.c does it: warps sum the rows of a token into a partial for the
 * rank on the token's rail; when the domain's partials are there, the warp of each channel sums and sends them back in
 * order.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <string.h>

#include "bench/predict_internal.h"

static int own_domain(const afdep_predictor_t *p, uint32_t rank)
{
    return afdep_domain_of(&p->shape, (int)rank);
}

static uint32_t source_of(const afdep_predictor_t *p, uint32_t rank, int source_domain)
{
    int rail = afdep_rail_of(&p->shape, (int)rank);
    return (uint32_t)(afdep_source_rank(&p->shape, source_domain, rail) - p->shape.ffn_ranks);
}

static afdep_predict_arrivals_t *arrivals_of(afdep_predict_ffn_t *f)
{
    return &f->arrivals[f->exchange & 1];
}

void afdep_predict_witness(afdep_predictor_t *p, uint32_t rank)
{
    if (p->direct) {
        for (int a = 0; a < p->shape.attention_ranks; a++)
            afdep_predict_nvlink_word(p, (int)rank, p->shape.ffn_ranks + a, AFDEP_SAYS_WITNESS, 0);
        return;
    }
    for (int s = 0; p->shape.sparse_combine && s < p->shape.attention_domains; s++)
        afdep_predict_word(p, (int)rank, p->shape.ffn_ranks + (int)source_of(p, rank, s), -1, AFDEP_SAYS_WITNESS, 0);
}

/* The exchange is over here: its entries are free for the one after the next. */
static void replied(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    int parity = f->exchange & 1;
    afdep_predict_called(p, rank, f->exchange, "reply", f->began);
    if (!p->direct && p->predict->witness == AFDEP_WITNESS_COLLECT)
        afdep_predict_witness(p, rank);
    f->arrivals[parity].count = 0;
    f->joined[parity] = 0;
    f->replied[parity] = 0;
    if (!p->direct)
        memset(f->forwarded[parity], 0, (size_t)p->shape.ranks_per_domain * sizeof(uint32_t));
    afdep_predict_ffn_done(p, rank);
}

/* ---- Partials ------------------------------------------------------------------------------------------------ */

/* Whether this rank alone serves an arrival of its own rail: its sum goes to the source at once. */
static int is_sole(const afdep_predictor_t *p, uint32_t rank, uint32_t source, int token, int *count)
{
    uint16_t rails[32];
    const int32_t *ids = afdep_predict_ids(p, source, p->ffns[rank].exchange, token);
    *count = afdep_token_rails(&p->shape, own_domain(p, rank), ids, rails);
    return *count == 1 && rails[0] == afdep_rail_of(&p->shape, (int)rank);
}

static void begin_sum(afdep_predictor_t *p, uint32_t rank, int warp)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    const afdep_predict_arrival_t *a = &arrivals_of(f)->list[f->warp_index[warp]];
    int remote = p->direct || a->rail != afdep_rail_of(&p->shape, (int)rank);
    uint64_t bytes = p->row.reply_payload_bytes;
    afdep_predict_work_t work = { (a->rows + (remote ? 0u : 1u)) * bytes, remote ? bytes : 0, 0, p->sum_row, "sum" };
    afdep_predict_at(p, afdep_predict_warp(p, (int)rank, warp, &work), AFDEP_EVENT_SUM, (int)rank, warp);
}

static void summed(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    f->summed = 1;
    if (p->direct) {
        replied(p, rank);
        return;
    }
    for (int rail = 0; rail < p->shape.ranks_per_domain; rail++) {
        if (rail == afdep_rail_of(&p->shape, (int)rank) || f->arrived[f->exchange & 1][rail] == 0)
            continue; /* a rail that forwarded no row awaits no reply */
        afdep_predict_nvlink_word(p, (int)rank, afdep_ffn_rank(&p->shape, own_domain(p, rank), rail),
                                  AFDEP_SAYS_REPLIED, 0);
    }
    afdep_predict_gate(p, rank);
}

void afdep_predict_reply(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    const afdep_predict_arrivals_t *arrivals = arrivals_of(f);
    f->began = p->now;
    f->summed = f->gate = 0;
    f->sums_left = arrivals->count;
    if (p->direct) {
        memset(f->source_left, 0, (size_t)p->shape.attention_ranks * sizeof(*f->source_left));
        for (uint32_t i = 0; i < arrivals->count; i++)
            f->source_left[arrivals->list[i].source]++;
    }
    for (uint32_t i = 0; i < arrivals->count && i < (uint32_t)p->shape.channels; i++) {
        f->warp_index[i] = i;
        begin_sum(p, rank, (int)i);
    }
    if (arrivals->count == 0)
        summed(p, rank);
}

static void send_sum(afdep_predictor_t *p, uint32_t rank, const afdep_predict_arrival_t *a)
{
    int own = afdep_rail_of(&p->shape, (int)rank), source = p->shape.ffn_ranks + (int)a->source, count;
    if (p->direct) {
        afdep_predict_nvlink_put(p, (int)rank, source, p->row.reply_bytes);
        if (--p->ffns[rank].source_left[a->source] == 0)
            afdep_predict_nvlink_word(p, (int)rank, source, AFDEP_SAYS_COMBINE, 0);
    } else if (a->rail != own) {
        afdep_predict_nvlink_put(p, (int)rank, afdep_ffn_rank(&p->shape, own_domain(p, rank), a->rail),
                                 p->row.reply_bytes);
    } else if (is_sole(p, rank, a->source, (int)a->token, &count)) {
        int channel = afdep_channel_of(&p->shape, afdep_source_domain(&p->shape, source), (int)a->token);
        afdep_predict_put(p, (int)rank, source, channel, p->row.reply_bytes);
    }
}

void afdep_predict_sum(afdep_predictor_t *p, uint32_t rank, int warp)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    const afdep_predict_arrivals_t *arrivals = arrivals_of(f);
    send_sum(p, rank, &arrivals->list[f->warp_index[warp]]);
    f->warp_index[warp] += (uint32_t)p->shape.channels;
    if (f->warp_index[warp] < arrivals->count)
        begin_sum(p, rank, warp);
    if (--f->sums_left == 0)
        summed(p, rank);
}

/* ---- The way back -------------------------------------------------------------------------------------------- */

/* Goes on to the warp's next row, or the next signal of a channel without rows. */
static void next_back(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    for (; f->back_source[channel] < p->shape.attention_domains; f->back_source[channel]++) {
        int domain = f->back_source[channel], count;
        uint32_t source = source_of(p, rank, domain);
        int first = f->back_token[channel] < 0,
            token = first ? afdep_channel_first(&p->shape, domain, channel) : f->back_token[channel];
        for (; token < p->predict->tokens; token += p->shape.channels) {
            int sole = is_sole(p, rank, source, token, &count);
            if (count == 0)
                continue;
            f->back_token[channel] = token;
            /* The sum is staged for the NIC. */
            afdep_predict_work_t work = { ((uint64_t)count + 1) * p->row.reply_payload_bytes, 0, 1, p->back_row,
                                          "reply" };
            afdep_ps_t done = sole ? p->now + p->issue : afdep_predict_warp(p, (int)rank, channel, &work);
            afdep_predict_at(p, done, AFDEP_EVENT_BACK, (int)rank, channel);
            return;
        }
        if (first && afdep_channel_answers(&p->shape, 0)) {
            f->back_token[channel] = p->predict->tokens; /* no row: the signal alone */
            afdep_predict_at(p, p->now + p->issue, AFDEP_EVENT_BACK, (int)rank, channel);
            return;
        }
        f->back_token[channel] = -1;
    }
    if (--f->warps_left == 0)
        replied(p, rank);
}

/* Whether a token after `token` of the lane came to this domain. */
static int comes_again(const afdep_predictor_t *p, uint32_t rank, uint32_t source, int token)
{
    int count = 0;
    for (token += p->shape.channels; token < p->predict->tokens && count == 0; token += p->shape.channels)
        (void)is_sole(p, rank, source, token, &count);
    return count > 0;
}

void afdep_predict_back(afdep_predictor_t *p, uint32_t rank, int channel)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    int token = f->back_token[channel], count;
    if (token != -1) {
        uint32_t source = source_of(p, rank, f->back_source[channel]);
        int peer = p->shape.ffn_ranks + (int)source, last = 1;
        if (token < p->predict->tokens) {
            if (!is_sole(p, rank, source, token, &count))
                afdep_predict_put(p, (int)rank, peer, channel, p->row.reply_bytes);
            last = !comes_again(p, rank, source, token);
        }
        f->back_token[channel] = token + p->shape.channels;
        if (last) {
            afdep_predict_word(p, (int)rank, peer, channel, AFDEP_SAYS_COMBINE, 0);
            f->back_source[channel]++;
            f->back_token[channel] = -1;
        }
    }
    next_back(p, rank, channel);
}

/* Once all partials are there: its own, and those of every rail that it forwarded rows to. */
void afdep_predict_gate(afdep_predictor_t *p, uint32_t rank)
{
    afdep_predict_ffn_t *f = &p->ffns[rank];
    if (f->gate || !f->summed || f->replied[f->exchange & 1] < f->awaits_replies)
        return;
    f->gate = 1;
    f->warps_left = p->shape.channels;
    for (int c = 0; c < p->shape.channels; c++) {
        f->back_source[c] = 0;
        f->back_token[c] = -1;
        afdep_predict_at(p, p->now + p->poll, AFDEP_EVENT_BACK, (int)rank, c);
    }
}
