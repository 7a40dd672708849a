/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way back: every worker sums its rows of a token into one BF16 partial.
 *
 * Direct: the partial is the rank's answer and goes straight into the source's combine inbox; the source sums ranks.
 * Across domains: the partial goes to the rank on the token's rail (partial inbox, at this rank's rail), and a reply
 * word, tagged with the exchange, says that all of this rank's partials for that rail are there. The rail rank's
 * reply_forward replays its record channel by channel, sums the partials in rail order and sends one row per token to
 * the source. A token served by the rail rank alone needs no partial: its sum is built in the source's combine inbox at
 * once. In shared domains the rail rank is a source, and its reply_forward is part of its collect. With FP8 combine the
 * rows that leave the domain are packed; partials inside it stay BF16.
 *
 * Reuse. A partial inbox place of exchange n + G is written only for rows that its owner forwarded in n + G, which is
 * after the owner's second half of n. A reply word cannot pass the value its reader waits for: its writer would have to
 * receive n + G, and that joins the reader's forward word of n + G.
 */
#include <string.h>

#include "core/error.h"
#include "host/host.h"

#define ROWS_A_STEP 16

static const unsigned char *reply_row(const afdep_host_t *h, int32_t row)
{
    return (const unsigned char *)h->reply.rows + (size_t)row * h->layout->row.reply_payload_bytes;
}

static void tag_reply(const afdep_host_t *h, unsigned char *place, uint32_t tag_offset, uint32_t token)
{
    *afdep_tag_at(place, tag_offset) = afdep_row_tag(h->exchange, token, h->rank);
}

/* Sums the rows of an arrival. */
static void add_arrival(const afdep_host_t *h, const afdep_arrival_t *arrival, uint16_t *sum)
{
    const afdep_plane_t *p = h->plane;
    afdep_term_t terms[32];
    for (uint32_t k = 0; k < arrival->rows; k++) {
        terms[k].row = (const uint16_t *)(const void *)reply_row(h, p->positions[arrival->first + k]);
        terms[k].weight = p->weights[arrival->first + k];
    }
    if (h->shape->apply_weights)
        h->ops->weighted_sum(sum, terms, (int)arrival->rows, (size_t)h->shape->hidden);
    else
        h->ops->sum(sum, terms, (int)arrival->rows, (size_t)h->shape->hidden);
}

/* Sums the rows of an arrival into `place` and tags it. */
static void sum_arrival(const afdep_host_t *h, const afdep_arrival_t *arrival, unsigned char *place)
{
    add_arrival(h, arrival, (uint16_t *)(void *)place);
    tag_reply(h, place, h->layout->row.reply_tag_offset, arrival->token);
}

/* A row that leaves the domain: where its BF16 sum is made, what becomes of it at `place`, and its bytes. */
static uint16_t *leaving_sum(const afdep_host_t *h, unsigned char *place)
{
    return afdep_host_packs(h) ? h->leaving : (uint16_t *)(void *)place;
}

static void leave(const afdep_host_t *h, unsigned char *place, uint32_t token)
{
    const afdep_row_format_t *f = &h->layout->row;
    if (!afdep_host_packs(h)) {
        tag_reply(h, place, f->reply_tag_offset, token);
        return;
    }
    h->ops->pack(place, place + f->packed_scale_offset, h->leaving, (size_t)h->shape->hidden);
    tag_reply(h, place, f->packed_tag_offset, token);
}

static size_t leaving_bytes(const afdep_host_t *h)
{
    return afdep_host_packs(h) ? h->layout->row.packed_bytes : h->layout->row.reply_bytes;
}

/* Where a reply row of an arrival is built for `peer`: in place where it is mapped, else staged. */
static unsigned char *reply_place(const afdep_host_t *h, int peer, uint64_t offset, int source, int rail,
                                  uint32_t token)
{
    unsigned char *place = afdep_fabric_window(h->fabric, peer, offset, h->layout->row.reply_bytes);
    if (place)
        return place;
    /* Direct: sources are counted over the whole domain. A forwarder that is no worker replies on its own rail only. */
    if (h->shape->protocol == AFDEP_PROTOCOL_DIRECT || !h->worker)
        rail = 0;
    else
        rail -= afdep_first_forwarder_rail(h->shape);
    uint64_t index = ((uint64_t)rail * h->sources + (uint32_t)source) * (uint32_t)h->shape->capacity + token;
    return h->plane->reply_staging + index * h->layout->row.reply_stride;
}

/* ---- Direct -------------------------------------------------------------------------------------------------- */

static afdep_status_t direct_send(afdep_host_t *h, const afdep_arrival_t *arrival, int last, uint32_t rows)
{
    afdep_plane_t *p = h->plane;
    const afdep_plane_layout_t *l = h->at_source;
    int peer = afdep_host_source(h, arrival->source_domain, arrival->rail);
    uint64_t offset = p->peer_source + afdep_at_combine_row(l, h->layout, h->shape, h->rank, (int)arrival->token);
    unsigned char *place = reply_place(h, peer, offset, arrival->source_domain, 0, arrival->token);
    sum_arrival(h, arrival, place);
    if (!last)
        return afdep_fabric_put(h->fabric, h->lane_domain, peer, offset, place, h->layout->row.reply_bytes);
    uint64_t *tail = &p->combine_tails[arrival->source_domain];
    uint64_t next = afdep_tail_advance(*tail, 1, rows);
    afdep_status_t status = afdep_fabric_put_signal(
        h->fabric, AFDEP_SIGNAL_COMBINE, h->lane_domain, peer, offset, place, h->layout->row.reply_bytes,
        p->peer_source + afdep_at_combine_tail(l, h->shape, h->rank, 0), *tail, next);
    if (status == AFDEP_OK)
        *tail = next;
    return status;
}

/* actor->rows: the next arrival; actor->left: rows sent to its source so far. */
static afdep_status_t direct_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_plane_t *p = h->plane;
    for (int budget = ROWS_A_STEP; actor->rows < p->arrival_count; budget--) {
        if (budget == 0)
            return AFDEP_OK;
        const afdep_arrival_t *arrival = &p->arrivals[actor->rows];
        if (afdep_host_is_lost(h, afdep_host_source(h, arrival->source_domain, arrival->rail))) {
            actor->left = 0;
            actor->rows++;
            continue;
        }
        int last = actor->rows + 1 == p->arrival_count || arrival[1].source_domain != arrival->source_domain;
        afdep_status_t status = direct_send(h, arrival, last, actor->left + 1);
        if (status == AFDEP_AGAIN)
            return afdep_host_wait(actor, afdep_host_source(h, arrival->source_domain, 0), "room in its queue");
        if (status != AFDEP_OK)
            return status;
        actor->left = last ? 0 : actor->left + 1;
        actor->rows++;
    }
    return AFDEP_DONE;
}

/* Symmetric without sparse combine: a source that sent nothing hears that it gets nothing. actor->i: the next source,
   actor->rows: the first arrival of it or a later one. */
static afdep_status_t silent_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_plane_t *p = h->plane;
    for (; actor->i < (int)h->sources; actor->i++) {
        while (actor->rows < p->arrival_count && p->arrivals[actor->rows].source_domain < actor->i)
            actor->rows++;
        if (actor->rows < p->arrival_count && p->arrivals[actor->rows].source_domain == actor->i)
            continue;
        int peer = afdep_host_source(h, actor->i, 0);
        uint64_t *tail = &p->combine_tails[actor->i], next = afdep_tail_advance(*tail, 1, 0);
        afdep_status_t status = afdep_fabric_signal(
            h->fabric, AFDEP_SIGNAL_COMBINE, h->lane_domain, peer,
            p->peer_source + afdep_at_combine_tail(h->at_source, h->shape, h->rank, 0), *tail, next);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, peer, "room in its queue") : status;
        *tail = next;
    }
    return AFDEP_DONE;
}

/* ---- Across domains: partials ----------------------------------------------------------------------------------- */

/* Whether this rank alone serves an arrival of its own rail. */
static int is_sole(const afdep_host_t *h, int source, uint32_t token)
{
    int count;
    const uint16_t *rails = afdep_host_record(h, source, token, &count);
    return count == 1 && rails[0] == h->rail;
}

static afdep_status_t send_partial(afdep_host_t *h, const afdep_arrival_t *arrival)
{
    afdep_plane_t *p = h->plane;
    int source = arrival->source_domain;
    uint64_t partial = afdep_at_partial(h->at_forwarder, h->layout, h->shape, h->rail, source, (int)arrival->token);
    if (arrival->rail != h->rail) {
        int peer = afdep_ffn_rank(h->shape, h->domain, arrival->rail);
        uint64_t offset = p->peer_forwarder + partial;
        unsigned char *place = reply_place(h, peer, offset, source, arrival->rail, arrival->token);
        sum_arrival(h, arrival, place);
        return afdep_fabric_put(h->fabric, h->lane_domain, peer, offset, place, h->layout->row.reply_bytes);
    }
    if (!is_sole(h, source, arrival->token)) {
        sum_arrival(h, arrival, afdep_host_own(h, p->base + partial));
        return AFDEP_OK;
    }
    int peer = afdep_source_rank(h->shape, source, h->rail);
    if (afdep_host_is_lost(h, peer))
        return AFDEP_OK;
    int channel = afdep_channel_of(h->shape, source, (int)arrival->token);
    uint64_t offset = p->peer_source + afdep_at_combine_row(h->at_source, h->layout, h->shape, h->domain,
                                                            (int)arrival->token);
    unsigned char *place = reply_place(h, peer, offset, source, h->rail, arrival->token);
    add_arrival(h, arrival, leaving_sum(h, place));
    leave(h, place, arrival->token);
    return afdep_fabric_put(h->fabric, channel, peer, offset, place, leaving_bytes(h));
}

/* reply: actor->rows is the next arrival, actor->j the next rail that is told. */
static afdep_status_t partial_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    for (int budget = ROWS_A_STEP; actor->rows < p->arrival_count; budget--) {
        if (budget == 0)
            return AFDEP_OK;
        const afdep_arrival_t *arrival = &p->arrivals[actor->rows];
        afdep_status_t status = send_partial(h, arrival);
        if (status == AFDEP_AGAIN)
            return afdep_host_wait(actor, afdep_ffn_rank(s, h->domain, arrival->rail), "room in its queue");
        if (status != AFDEP_OK)
            return status;
        actor->rows++;
    }
    h->reply_summed = 1;
    for (; actor->j < s->ranks_per_domain; actor->j++) {
        if (actor->j == h->rail || p->arrived[actor->j] == 0)
            continue; /* a rail that forwarded no row awaits no reply */
        int peer = afdep_ffn_rank(s, h->domain, actor->j);
        uint64_t value = afdep_word((uint32_t)h->exchange, p->arrived[actor->j]);
        afdep_status_t status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_DOMAIN_WORD, h->lane_domain, peer,
                                                    p->peer_forwarder + afdep_at_reply_word(h->at_forwarder, h->rail),
                                                    p->reply_words[actor->j], value);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, peer, "room in its queue") : status;
        p->reply_words[actor->j] = value;
    }
    return AFDEP_DONE;
}

/* ---- Across domains: the way back ------------------------------------------------------------------------------- */

/* join: waits for the partials of every rail that this rank forwarded rows to (actor->i: the next). Opens the gate. */
static afdep_status_t join_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    for (; actor->i < afdep_worker_rails(s); actor->i++) {
        if (actor->i == h->rail || p->forwarded[actor->i] == 0)
            continue;
        int peer = afdep_ffn_rank(s, h->domain, actor->i);
        uint64_t word = afdep_fabric_read(h->fabric, p->base + afdep_at_reply_word(h->at_forwarder, actor->i));
        if (afdep_word_high(word) != (uint32_t)h->exchange)
            return afdep_host_wait(actor, peer, "the reply word");
        if (afdep_word_low(word) != p->forwarded[actor->i])
            return afdep_host_broken(h, actor, peer, "the reply word", word);
    }
    if (h->worker && !h->reply_summed)
        return afdep_host_wait(actor, -1, "its own partials");
    h->gate = 1;
    return AFDEP_DONE;
}

/* The partials of a recorded row, in rail order. 0: one of them is not there. */
static int gather_partials(const afdep_host_t *h, int source, uint32_t token, const uint16_t *rails, int count,
                           afdep_term_t *terms)
{
    const afdep_plane_t *p = h->plane;
    for (int k = 0; k < count; k++) {
        unsigned char *row = afdep_host_own(h, p->base + afdep_at_partial(h->at_forwarder, h->layout, h->shape,
                                                                          rails[k], source, (int)token));
        int rank = afdep_ffn_rank(h->shape, h->domain, rails[k]);
        if (!afdep_tag_is(afdep_tag_at(row, h->layout->row.reply_tag_offset), h->exchange, token, rank))
            return 0;
        terms[k].row = (const uint16_t *)(const void *)row;
        terms[k].weight = 1;
    }
    return 1;
}

/* Sends the row at `position` of a channel back, the last one together with the channel's combine signal. */
static afdep_status_t send_back(afdep_host_t *h, afdep_actor_t *actor, int source, uint32_t position)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    uint64_t lane = (uint64_t)source * (uint32_t)s->channels + (uint32_t)actor->channel;
    uint32_t token = p->record_token[lane * h->layout->slots + position];
    int peer = afdep_source_rank(s, source, h->rail), count, last = position + 1 == p->taken[lane];
    const uint16_t *rails = afdep_host_record_at(h, lane * h->layout->slots + position, &count);
    uint64_t offset = p->peer_source + afdep_at_combine_row(h->at_source, h->layout, s, h->domain, (int)token);
    uint64_t word = p->peer_source + afdep_at_combine_tail(h->at_source, s, h->domain, actor->channel);
    uint64_t tail = p->combine_tails[lane], next = afdep_tail_advance(tail, 1, p->taken[lane]);
    afdep_status_t status = AFDEP_OK;
    if (count == 1 && rails[0] == h->rail) { /* put by reply already, on this lane */
        if (last)
            status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_COMBINE, actor->channel, peer, word, tail, next);
    } else {
        afdep_term_t terms[32];
        if (!gather_partials(h, source, token, rails, count, terms))
            return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d in %s of exchange %llu, reply_forward, channel %d: a "
                              "partial of token %u of rank %d is not there", h->rank, h->call_name,
                              (unsigned long long)h->exchange, actor->channel, token, peer);
        unsigned char *place = reply_place(h, peer, offset, source, h->rail, token);
        h->ops->sum(leaving_sum(h, place), terms, count, (size_t)s->hidden);
        leave(h, place, token);
        if (last)
            status = afdep_fabric_put_signal(h->fabric, AFDEP_SIGNAL_COMBINE, actor->channel, peer, offset, place,
                                             leaving_bytes(h), word, tail, next);
        else
            status = afdep_fabric_put(h->fabric, actor->channel, peer, offset, place, leaving_bytes(h));
    }
    if (status == AFDEP_OK && last)
        p->combine_tails[lane] = next;
    return status;
}

/* A channel that carried no row of a source still signals it in the dense protocol. */
static afdep_status_t signal_empty(afdep_host_t *h, const afdep_actor_t *actor, int source)
{
    afdep_plane_t *p = h->plane;
    uint64_t lane = (uint64_t)source * (uint32_t)h->shape->channels + (uint32_t)actor->channel;
    uint64_t word = p->peer_source + afdep_at_combine_tail(h->at_source, h->shape, h->domain, actor->channel);
    uint64_t next = afdep_tail_advance(p->combine_tails[lane], 1, 0);
    afdep_status_t status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_COMBINE, actor->channel,
                                                afdep_source_rank(h->shape, source, h->rail), word,
                                                p->combine_tails[lane], next);
    if (status == AFDEP_OK)
        p->combine_tails[lane] = next;
    return status;
}

/* reply_forward: actor->i is the next source, actor->rows its next row. */
static afdep_status_t back_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int budget = ROWS_A_STEP;
    if (!h->gate)
        return afdep_host_wait(actor, -1, "the partials");
    for (; actor->i < s->attention_domains; actor->i++, actor->rows = 0) {
        uint64_t lane = (uint64_t)actor->i * (uint32_t)s->channels + (uint32_t)actor->channel;
        afdep_status_t status = AFDEP_OK;
        if (afdep_host_is_lost(h, afdep_source_rank(s, actor->i, h->rail)))
            continue;
        if (p->taken[lane] == 0 && !s->sparse_combine)
            status = signal_empty(h, actor, actor->i);
        for (; status == AFDEP_OK && actor->rows < p->taken[lane]; actor->rows++, budget--) {
            if (budget == 0)
                return AFDEP_OK;
            status = send_back(h, actor, actor->i, actor->rows);
            if (status != AFDEP_OK)
                break;
        }
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN
                       ? afdep_host_wait(actor, afdep_source_rank(s, actor->i, h->rail), "room in its queue")
                       : status;
    }
    return AFDEP_DONE;
}

/* Whether any source has something to hear on a channel. */
static int channel_replies(const afdep_host_t *h, int channel)
{
    const afdep_shape_t *s = h->shape;
    if (!s->sparse_combine)
        return 1;
    for (int source = 0; source < s->attention_domains; source++)
        if (h->plane->taken[(uint64_t)source * (uint32_t)s->channels + (uint32_t)channel] > 0)
            return 1;
    return 0;
}

/* ---- The call ------------------------------------------------------------------------------------------------ */

void afdep_host_add_reply_forward(afdep_host_t *h)
{
    afdep_host_add(h, join_step, "reply_forward", -1);
    for (int c = 0; c < h->shape->channels; c++)
        if (channel_replies(h, c))
            afdep_host_add(h, back_step, "reply_forward", c);
}

afdep_status_t afdep_host_check_reply(const afdep_host_t *h, const afdep_reply_t *r, afdep_stream_t stream)
{
    if (stream)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: stream is not NULL on the host backend", h->call_name);
    if (h->receive_stage != AFDEP_RECEIVE_IDLE)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: the receive of exchange %llu has not returned its rows yet",
                          h->call_name, (unsigned long long)h->started);
    if (h->finished == h->started)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: no receive is unanswered; exchange %llu was the last", h->call_name,
                          (unsigned long long)h->finished);
    const uint64_t *o = r->receipt.opaque;
    if (o[0] != AFDEP_RECEIPT_MAGIC || o[1] != (uint64_t)(uintptr_t)h)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: the receipt is not one of this buffer's", h->call_name);
    if (o[2] != h->finished + 1)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: the receipt is of exchange %llu: %llu is answered next",
                          h->call_name, (unsigned long long)o[2], (unsigned long long)h->finished + 1);
    if (o[3] != (uint64_t)h->planes[afdep_plane_index(h->shape, o[2])].row_count)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: the receipt was altered since its receive", h->call_name);
    if (o[3] > 0 && !r->rows)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: rows is NULL with %llu rows received", h->call_name,
                          (unsigned long long)o[3]);
    if ((uintptr_t)r->rows % 16 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: rows is %p: a multiple of 16 is wanted", h->call_name, r->rows);
    return AFDEP_OK;
}

static afdep_status_t replied(afdep_host_t *h)
{
    h->finished++;
    return AFDEP_OK;
}

void afdep_host_start_reply(afdep_host_t *h, const afdep_reply_t *reply)
{
    h->reply = *reply;
    h->gate = h->reply_summed = 0;
    if (h->shape->protocol == AFDEP_PROTOCOL_DIRECT) {
        afdep_host_add(h, direct_step, "reply", -1);
        if (afdep_combines_everywhere(h->shape))
            afdep_host_add(h, silent_step, "reply", -1);
        return;
    }
    afdep_host_add(h, partial_step, "reply", -1);
    if (h->forwarder)
        afdep_host_add_reply_forward(h);
}

afdep_status_t afdep_host_begin_reply(afdep_host_t *h, const afdep_reply_t *reply, afdep_stream_t stream)
{
    h->call_name = "worker_reply";
    afdep_status_t status = afdep_host_check(h);
    if (status == AFDEP_OK)
        status = afdep_host_check_reply(h, reply, stream);
    if (status != AFDEP_OK)
        return status;
    afdep_host_begin(h, h->call_name, h->finished + 1, replied);
    afdep_host_start_reply(h, reply);
    return AFDEP_OK;
}
