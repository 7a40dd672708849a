/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward phase of an exchange across domains: rows leave the rail inbox for the ranks of the domain that own their
 * experts, and a record is kept of which rank got which row, for the way back.
 *
 * Inside a domain. A row for another rank is stored into that rank's domain inbox, at the place of its rail, source
 * and token; rows for this rank stay where they are, and receive lays them out straight from the rail inbox. After the
 * last row, one forward word tells each worker how many rows came over this rail, zero included. It has two entries, by
 * exchange parity: a rank that got no rows owes this rail no reply, so the rail may be one exchange ahead of it; not
 * two, since every receive joins the words of all rails. Extents are written only with rows, so the reply to those rows
 * guards them.
 *
 * Shared domains: a forwarder is no worker and joins nobody, so it could lead a worker that gets no rows by any number
 * of exchanges, and neither parity nor replies would hold it back. There each worker answers each forwarder of its
 * domain once per exchange, after it has read the words, extents and rows of all its rails, and the forwarder writes
 * nothing into that worker's plane before the answer of n - G has come (dispatch.c opens the gate).
 */
#include <string.h>

#include "core/error.h"
#include "host/host.h"

#define ROWS_A_STEP 32

static uint64_t lane_of(const afdep_host_t *h, int source_domain, int channel)
{
    return (uint64_t)source_domain * (uint32_t)h->shape->channels + (uint32_t)channel;
}

static int rails_stride(const afdep_shape_t *s)
{
    return s->ranks_per_domain < s->top_k ? s->ranks_per_domain : s->top_k;
}

static void retire(afdep_host_t *h, int source_domain, int channel)
{
    afdep_plane_t *p = h->plane;
    p->open[lane_of(h, source_domain, channel)] = 0;
    p->pending[channel]--;
}

/* count: one poller for the sources' count words. actor->left: sources whose word has not come. */
static afdep_status_t count_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int moved = 0, waits_for = 0;
    for (int source = 0; source < s->attention_domains && actor->left > 0; source++) {
        if (p->source_tokens[source] >= 0 || afdep_host_is_own_domain(h, source))
            continue;
        uint64_t word = afdep_fabric_read(h->fabric, p->base + afdep_at_count_word(h->at_forwarder, source));
        afdep_word_state_t state = afdep_tag_state(word, (uint32_t)h->exchange, (uint32_t)s->in_flight);
        int rank = afdep_source_rank(s, source, h->rail);
        if (afdep_host_is_lost(h, rank)) { /* its channels are retired one by one */
            p->source_tokens[source] = 0;
            actor->left--;
            moved = 1;
            continue;
        }
        if (AFDEP_PLANTED(UNTAGGED_COUNT) ||
            (AFDEP_PLANTED(EARLIER_COUNT) && state == AFDEP_WORD_WAIT && h->started > 1))
            state = AFDEP_WORD_READY;
        if (state == AFDEP_WORD_WAIT) {
            waits_for = rank;
            continue;
        }
        if (state == AFDEP_WORD_BROKEN)
            return afdep_host_broken(h, actor, rank, "the count word", word);
        if (afdep_word_low(word) > (uint32_t)p->bucket)
            return afdep_host_beyond_bucket(h, actor, rank, "a token count of", afdep_word_low(word));
        p->source_tokens[source] = (int32_t)afdep_word_low(word);
        for (int c = 0; c < s->channels; c++)
            if (afdep_channel_tokens(s, source, p->source_tokens[source], c) == 0)
                retire(h, source, c);
        actor->left--;
        moved = 1;
    }
    if (actor->left == 0)
        return AFDEP_DONE;
    return moved ? AFDEP_OK : afdep_host_wait(actor, waits_for, "the count word");
}

/* The most rows a source may send on a channel, as far as it is known. */
static uint32_t most_rows(const afdep_host_t *h, int source_domain, int channel)
{
    const afdep_plane_t *p = h->plane;
    int tokens = h->shape->sparse_dispatch ? p->source_tokens[source_domain] : p->bucket;
    return (uint32_t)afdep_channel_tokens(h->shape, source_domain, tokens, channel);
}

static afdep_status_t bad_row(afdep_host_t *h, const afdep_actor_t *actor, int rank, uint32_t position,
                              const afdep_row_tag_t *tag)
{
    return afdep_fail(AFDEP_ERR_PROTOCOL,
                      "rank %d in %s of exchange %llu, forward, channel %d: row %u of rank %d is not there: its place "
                      "holds exchange %u, token %u of rank %u",
                      h->rank, h->call_name, (unsigned long long)h->exchange, actor->channel, position, rank,
                      tag->exchange, tag->token, tag->source);
}

/* The rails of this domain that own experts of the row, ascending. Negative: an id no source may send. */
static int rails_of(const afdep_host_t *h, const int32_t *ids, uint16_t *rails)
{
    const afdep_shape_t *s = h->shape;
    for (int k = 0; k < s->top_k; k++)
        if (ids[k] < -1 || ids[k] >= s->num_experts)
            return -1;
    return afdep_token_rails(s, h->domain, ids, rails);
}

/* `row` is NULL for a token of this rank itself, whose row is not built yet. */
static afdep_status_t hand_on(afdep_host_t *h, int rail, int source, uint32_t token, uint64_t slot, const void *row)
{
    afdep_plane_t *p = h->plane;
    if (rail == h->rail) { /* this rank is the worker too */
        afdep_own_row_t *own = &p->own[(uint64_t)source * (uint32_t)h->shape->capacity + token];
        own->exchange = (uint32_t)h->exchange;
        own->place = 1 + (uint32_t)(slot % h->layout->slots);
    } else {
        uint64_t offset = p->peer_worker + afdep_at_domain_row(h->at_worker, h->layout, h->shape, h->rail, source,
                                                               (int)token);
        int peer = afdep_ffn_rank(h->shape, h->domain, rail);
        if (!row)
            row = afdep_host_ready_row(h, peer, offset, (int)token);
        afdep_status_t status = afdep_fabric_put(h->fabric, h->lane_domain, peer, offset, row, h->layout->row.bytes);
        if (status != AFDEP_OK)
            return status;
    }
    uint32_t *extent = &p->extents[(uint64_t)rail * h->layout->extent_stride + (uint32_t)source];
    if (token + 1 > *extent)
        *extent = token + 1;
    p->forwarded[rail]++;
    return AFDEP_OK;
}

/* Which rails get the row in `slot` with these choices. 0: none, which no correct peer asks for. */
static int record(afdep_host_t *h, uint64_t slot, uint32_t token, const int32_t *ids)
{
    afdep_plane_t *p = h->plane;
    uint16_t found[32];
    int count = rails_of(h, ids, found);
    if (count <= 0)
        return 0;
    memcpy(p->record_rails + slot * (uint64_t)rails_stride(h->shape), found, (size_t)count * sizeof(*found));
    p->record_token[slot] = token;
    p->record_count[slot] = (uint8_t)count;
    return 1;
}

/* Forwards the row at `position`; actor->j is the next of its rails, so that back-pressure can stop in between. */
static afdep_status_t forward_row(afdep_host_t *h, afdep_actor_t *actor, int source, uint32_t position)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int channel = actor->channel, rank = afdep_source_rank(s, source, h->rail);
    uint64_t slot = lane_of(h, source, channel) * h->layout->slots + position;
    unsigned char *row = afdep_host_own(h, p->base + afdep_at_rail_row(h->at_forwarder, h->layout, s, source, channel,
                                                                       (int)position));
    const afdep_row_tag_t *tag = afdep_tag_at(row, h->layout->row.tag_offset);
    uint16_t *rails = p->record_rails + slot * (uint64_t)rails_stride(s);
    uint32_t token = tag->token;
    if (afdep_tag_is(tag, h->exchange, token, rank) && token >= (uint32_t)p->bucket)
        return afdep_host_beyond_bucket(h, actor, rank, "token", token);
    if (!afdep_tag_is(tag, h->exchange, token, rank) ||
        afdep_channel_of(s, source, (int)token) != channel)
        return bad_row(h, actor, rank, position, tag);
    if (actor->j == 0 && h->cached) {
        afdep_status_t status = afdep_host_check_recorded(h, actor, slot, rank, tag);
        if (status != AFDEP_OK)
            return status;
    } else if (actor->j == 0 &&
               !record(h, slot, token, (const int32_t *)(const void *)(row + h->layout->row.ids_offset))) {
        return bad_row(h, actor, rank, position, tag);
    }
    for (; actor->j < p->record_count[slot]; actor->j++) {
        afdep_status_t status = hand_on(h, rails[actor->j], source, token, slot, row);
        if (status != AFDEP_OK)
            return status;
    }
    actor->j = 0;
    return AFDEP_OK;
}

/*
 * Mixed: a token of this rank that its own domain serves goes straight to the ranks that own its experts, recorded as
 * if it had come over this rail, so that everything that follows is the same. actor->left: the next of its rails.
 */
afdep_status_t afdep_host_forward_own(afdep_host_t *h, afdep_actor_t *actor, int token)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    uint64_t lane = lane_of(h, h->source_domain, actor->channel), slot = lane * h->layout->slots + p->taken[lane];
    if (actor->left == 0)
        (void)record(h, slot, (uint32_t)token, p->ids + (size_t)token * (size_t)s->top_k);
    for (; actor->left < p->record_count[slot]; actor->left++) {
        int rail = p->record_rails[slot * (uint64_t)rails_stride(s) + actor->left];
        afdep_status_t status = hand_on(h, rail, h->source_domain, (uint32_t)token, slot, NULL);
        if (status != AFDEP_OK)
            return status;
    }
    actor->left = 0;
    p->taken[lane]++;
    return AFDEP_OK;
}

void afdep_host_retire_own(afdep_host_t *h, int channel)
{
    retire(h, h->source_domain, channel);
}

/* Takes what has come from one source on the actor's channel. AFDEP_DONE: retired it. */
static afdep_status_t forward_source(afdep_host_t *h, afdep_actor_t *actor, int source, int *budget)
{
    afdep_plane_t *p = h->plane;
    uint64_t lane = lane_of(h, source, actor->channel);
    int rank = afdep_source_rank(h->shape, source, h->rail);
    if (afdep_host_is_lost(h, rank)) { /* with the rows that were taken, which are whole */
        actor->j = 0;
        retire(h, source, actor->channel);
        return AFDEP_DONE;
    }
    uint64_t tail = afdep_fabric_read(h->fabric, p->base + h->at_forwarder->finish_tails + 8 * lane);
    uint32_t finishes = afdep_tail_finishes(p->finish_shadow[lane], tail);
    uint32_t rows = afdep_tail_tokens(p->finish_shadow[lane], tail);
    if (finishes <= 1 && !h->shape->sparse_dispatch && rows > most_rows(h, source, actor->channel) &&
        rows <= h->layout->slots)
        return afdep_host_beyond_bucket(h, actor, rank, "a row count on one channel of", rows);
    if (finishes > 1 || rows > most_rows(h, source, actor->channel) || rows < p->taken[lane])
        return afdep_host_broken(h, actor, rank, "the finish tail", tail);
    if (finishes == 0 && rows == p->taken[lane])
        return afdep_host_wait(actor, rank, "the finish tail");
    for (; p->taken[lane] < rows && *budget > 0; p->taken[lane]++, --*budget) {
        afdep_status_t status = forward_row(h, actor, source, p->taken[lane]);
        if (status == AFDEP_AGAIN)
            return afdep_host_wait(actor, rank, "room in a queue of the domain");
        if (status != AFDEP_OK)
            return status;
    }
    if (finishes == 0 || p->taken[lane] < rows)
        return AFDEP_OK;
    p->finish_shadow[lane] = tail;
    retire(h, source, actor->channel);
    return AFDEP_DONE;
}

/* forward: one channel of all sources, in whatever order they come; actor->i: the source looked at first. */
static afdep_status_t forward_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int moved = 0, budget = ROWS_A_STEP;
    if (!h->worker && !h->gate)
        return afdep_host_wait(actor, -1, "the rail answers");
    for (int n = 0; n < s->attention_domains && p->pending[actor->channel] > 0 && budget > 0; n++) {
        int source = (actor->i + n) % s->attention_domains;
        if (!p->open[lane_of(h, source, actor->channel)])
            continue;
        if (s->sparse_dispatch && p->source_tokens[source] < 0) {
            (void)afdep_host_wait(actor, afdep_source_rank(s, source, h->rail), "the count word");
            continue;
        }
        afdep_status_t status = forward_source(h, actor, source, &budget);
        if (status < 0)
            return status;
        moved |= status != AFDEP_AGAIN;
        if (actor->j != 0) {
            actor->i = source; /* a row half handed on: its cursor belongs to this source */
            return status;
        }
    }
    if (p->pending[actor->channel] == 0)
        return AFDEP_DONE;
    return moved ? AFDEP_OK : AFDEP_AGAIN;
}

static int forward_done(const afdep_host_t *h)
{
    for (int c = 0; c < h->shape->channels; c++)
        if (h->plane->pending[c] > 0)
            return 0;
    return 1;
}

/* Tells one rank of the domain how many rows came over this rail, and up to which token of each source. */
static afdep_status_t tell_rail(afdep_host_t *h, int rail)
{
    afdep_plane_t *p = h->plane;
    int parity = afdep_plane_parity(h->shape, h->exchange), peer = afdep_ffn_rank(h->shape, h->domain, rail);
    uint64_t word = p->peer_worker + afdep_at_forward_word(h->at_worker, h->rail, parity);
    uint64_t *last = &p->forward_words[2 * rail + parity];
    uint64_t value = afdep_word((uint32_t)h->exchange, p->forwarded[rail]);
    afdep_status_t status;
    if (p->forwarded[rail] > 0)
        status = afdep_fabric_put_signal(h->fabric, AFDEP_SIGNAL_DOMAIN_WORD, h->lane_domain, peer,
                                         p->peer_worker + afdep_at_extents(h->at_worker, h->layout, h->rail),
                                         p->extents + (uint64_t)rail * h->layout->extent_stride,
                                         h->layout->extent_stride * 4u, word, *last, value);
    else
        status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_DOMAIN_WORD, h->lane_domain, peer, word, *last, value);
    if (status == AFDEP_OK)
        *last = value;
    return status;
}

/* Once forwarding is done, tells the other workers of the domain (actor->j: the next of them). */
static afdep_status_t tell_rails(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    if (actor->j == 0 && !forward_done(h))
        return afdep_host_wait(actor, -1, "the end of forwarding");
    for (; actor->j < afdep_worker_rails(s); actor->j++) {
        if (actor->j == h->rail)
            continue;
        afdep_status_t status = tell_rail(h, actor->j);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, afdep_ffn_rank(s, h->domain, actor->j),
                                                           "room in its queue")
                                         : status;
    }
    return AFDEP_DONE;
}

/* The end of a forwarder that is no worker: nothing reads its rail inbox any more. actor->i: the next witness. */
static afdep_status_t forwarded_step(afdep_host_t *h, afdep_actor_t *actor)
{
    if (!h->gate && !AFDEP_PLANTED(WORD_BEFORE_ANSWER)) /* also where nothing is handed on: the words are written too */
        return afdep_host_wait(actor, -1, "the rail answers");
    afdep_status_t status = tell_rails(h, actor);
    if (status != AFDEP_DONE)
        return status;
    h->read_rail = h->exchange;
    return AFDEP_PLANTED(WITNESS_CHANNEL_0) ? AFDEP_DONE : afdep_host_send_witnesses(h, actor);
}

/* Planted variant only: the witnesses go out as soon as channel 0 is forwarded. */
static afdep_status_t early_witness_step(afdep_host_t *h, afdep_actor_t *actor)
{
    return h->plane->pending[0] > 0 ? AFDEP_AGAIN : afdep_host_send_witnesses(h, actor);
}

void afdep_host_add_forward(afdep_host_t *h)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    uint64_t lanes = (uint64_t)s->attention_domains * (uint32_t)s->channels;
    int mixed = s->protocol == AFDEP_PROTOCOL_MIXED;
    memset(p->taken, 0, lanes * sizeof(*p->taken));
    memset(p->open, 1, lanes * sizeof(*p->open));
    memset(p->extents, 0, (uint64_t)s->ranks_per_domain * h->layout->extent_stride * sizeof(*p->extents));
    memset(p->forwarded, 0, (uint64_t)s->ranks_per_domain * sizeof(*p->forwarded));
    for (int source = 0; source < s->attention_domains; source++)
        p->source_tokens[source] = -1;
    if (s->sparse_dispatch)
        afdep_host_add(h, count_step, "count", -1)->left = (uint32_t)(s->attention_domains - mixed);
    for (int c = 0; c < s->channels; c++) {
        p->pending[c] = s->attention_domains;
        afdep_host_add(h, forward_step, "forward", c);
        if (mixed) /* retired by the channel's source_dispatch instead, where there is one */
            p->open[lane_of(h, h->source_domain, c)] = 0;
        if (mixed && s->sparse_dispatch && afdep_channel_tokens(s, h->source_domain, p->tokens, c) == 0)
            retire(h, h->source_domain, c);
    }
    if (!h->worker)
        afdep_host_add(h, forwarded_step, "forward", -1);
    if (AFDEP_PLANTED(WITNESS_CHANNEL_0))
        afdep_host_add(h, early_witness_step, "receive", -1);
}

/*
 * The first part of receive: a worker that forwards tells the others once that is done (actor->j), then joins the words
 * of all rails (actor->i: the next awaited). AFDEP_DONE when joined.
 */
afdep_status_t afdep_host_forward_joined(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    afdep_status_t told = h->forwarder ? tell_rails(h, actor) : AFDEP_DONE;
    if (told != AFDEP_DONE)
        return told;
    uint32_t step = (AFDEP_PLANTED(ONE_FORWARD_WORD) ? 1 : 2) * (uint32_t)s->in_flight;
    int parity = afdep_plane_parity(s, h->exchange), first = afdep_first_forwarder_rail(s);
    for (; first + actor->i < s->ranks_per_domain; actor->i++) {
        int rail = first + actor->i;
        if (rail == h->rail) {
            p->arrived[rail] = p->forwarded[rail];
            continue;
        }
        int peer = afdep_ffn_rank(s, h->domain, rail);
        uint64_t word = afdep_fabric_read(h->fabric, p->base + afdep_at_forward_word(h->at_worker, rail, parity));
        afdep_word_state_t state = afdep_tag_state(word, (uint32_t)h->exchange, step);
        if (state == AFDEP_WORD_WAIT)
            return afdep_host_wait(actor, peer, "the forward word");
        if (state == AFDEP_WORD_BROKEN)
            return afdep_host_broken(h, actor, peer, "the forward word", word);
        p->arrived[rail] = afdep_word_low(word);
    }
    return AFDEP_DONE;
}

const uint16_t *afdep_host_record_at(const afdep_host_t *h, uint64_t slot, int *count)
{
    *count = h->plane->record_count[slot];
    return h->plane->record_rails + slot * (uint64_t)rails_stride(h->shape);
}

const uint16_t *afdep_host_record(const afdep_host_t *h, int source_domain, uint32_t token, int *count)
{
    const afdep_shape_t *s = h->shape;
    const afdep_own_row_t *own = &h->plane->own[(uint64_t)source_domain * (uint32_t)s->capacity + token];
    uint64_t lane = lane_of(h, source_domain, afdep_channel_of(s, source_domain, (int)token));
    return afdep_host_record_at(h, lane * h->layout->slots + own->place - 1, count);
}
