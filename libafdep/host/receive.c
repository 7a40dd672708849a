/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's first half: joins what has come for this rank, counts rows per expert, writes the prefix sums and lays
 * rows out by expert, inside an expert by source rank, then token. Then the witnesses go out.
 *
 * The done witness (across domains) and the answer (direct) are sent here, after the last row was laid out, because
 * rows of this rank's own rail are laid out straight from the rail inbox: from then on nothing reads it, and the source
 * may overwrite it in exchange n + G. It guards that overwrite only; no result of this exchange waits for it. Without
 * sparse combine there is no witness: the combine signals on all channels, sent in reply, say the same.
 *
 * A worker that does not forward (shared domains) has no rail inbox. It answers the forwarders of its domain instead,
 * once everything that they wrote here is read: their forward words, extents and rows.
 */
#include <string.h>

#include "core/error.h"
#include "host/host.h"

#define ROWS_A_STEP 32

static int32_t align_up(int32_t value, int32_t to)
{
    return (int32_t)(((int64_t)value + to - 1) / to * to);
}

/* ---- Arrivals: the tokens that came, in order ---------------------------------------------------------------- */

/* The row of an arrival as it stands in this rank's segment. */
static unsigned char *row_of(const afdep_host_t *h, int source_domain, int rail, uint32_t token)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = h->plane;
    if (rail != h->rail)
        return afdep_host_own(h, p->base + afdep_at_domain_row(h->at_worker, h->layout, s, rail, source_domain,
                                                               (int)token));
    const afdep_own_row_t *own = &p->own[(uint64_t)source_domain * (uint32_t)s->capacity + token];
    int channel = afdep_channel_of(s, source_domain, (int)token);
    return afdep_host_own(h, p->base + afdep_at_rail_row(h->at_forwarder, h->layout, s, source_domain, channel,
                                                         (int)own->place - 1));
}

/* Adds an arrival and its choices among this rank's experts. 0: the row has none, which no correct peer sends. */
static int add_arrival(afdep_host_t *h, const unsigned char *row, uint32_t token, int source_domain, int rail,
                       uint32_t *rows)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    const int32_t *ids = (const int32_t *)(const void *)(row + h->layout->row.ids_offset);
    const float *weights = (const float *)(const void *)(row + h->layout->row.weights_offset);
    int32_t first_expert = h->rank * s->experts_per_rank;
    afdep_arrival_t *arrival = &p->arrivals[p->arrival_count];
    *arrival = (afdep_arrival_t){ token, *rows, 0, source_domain, rail, 0 };
    for (int k = 0; k < s->top_k; k++) {
        if (ids[k] < first_expert || ids[k] - first_expert >= s->experts_per_rank)
            continue;
        int32_t local = ids[k] - first_expert;
        if (arrival->rows == (uint32_t)(s->top_k < s->experts_per_rank ? s->top_k : s->experts_per_rank))
            return 0; /* an expert twice: more rows than the arrays hold */
        p->positions[*rows] = local; /* the expert for now; its row once the prefix sums are known */
        p->weights[*rows] = weights[k];
        p->choices[*rows] = (uint8_t)k;
        p->counts[local]++;
        arrival->rows++;
        ++*rows;
    }
    p->arrival_count += arrival->rows > 0;
    return arrival->rows > 0;
}

static afdep_status_t lost_row(afdep_host_t *h, const afdep_actor_t *actor, int peer, uint32_t want, uint32_t found)
{
    return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d in %s of exchange %llu, %s: rank %d sent %u rows, %u are there",
                      h->rank, h->call_name, (unsigned long long)h->exchange, actor->duty, peer, want, found);
}

/* Whether a token that came over this rank's own rail is for this rank. */
static int is_own_row(const afdep_host_t *h, int source, uint32_t token)
{
    const afdep_own_row_t *own = &h->plane->own[(uint64_t)source * (uint32_t)h->shape->capacity + token];
    return own->place != 0 && own->exchange == (uint32_t)h->exchange;
}

/* The tokens of one source over one rail, ascending; `found` counts them. */
static afdep_status_t list_source(afdep_host_t *h, const afdep_actor_t *actor, int source, int rail, uint32_t *rows,
                                  uint32_t *found)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int rank = afdep_source_rank(s, source, rail);
    const uint32_t *extents;
    if (rail == h->rail)
        extents = p->extents + (uint64_t)rail * h->layout->extent_stride;
    else
        extents = (const uint32_t *)(const void *)afdep_host_own(
            h, p->base + afdep_at_extents(h->at_worker, h->layout, rail));
    uint32_t extent = extents[source];
    if (extent > (uint32_t)p->bucket)
        return afdep_host_beyond_bucket(h, actor, afdep_ffn_rank(s, h->domain, rail), "tokens up to", extent - 1);
    for (uint32_t token = 0; token < extent; token++) {
        if (rail == h->rail && !is_own_row(h, source, token))
            continue;
        unsigned char *row = row_of(h, source, rail, token);
        if (!afdep_tag_is(afdep_tag_at(row, h->layout->row.tag_offset), h->exchange, token, rank))
            continue;
        if (*found == p->arrived[rail] || !add_arrival(h, row, token, source, rail, rows))
            return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d in %s of exchange %llu: a row of rank %d, token %u, was not "
                              "meant for this rank", h->rank, h->call_name, (unsigned long long)h->exchange, rank,
                              token);
        ++*found;
    }
    return AFDEP_OK;
}

static afdep_status_t list_domain(afdep_host_t *h, const afdep_actor_t *actor, uint32_t *rows)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int first = afdep_first_forwarder_rail(s);
    uint32_t found[s->ranks_per_domain];
    memset(found, 0, sizeof(found));
    for (int source = 0; source < s->attention_domains; source++)
        for (int rail = first; rail < s->ranks_per_domain; rail++) {
            if (p->arrived[rail] == 0)
                continue; /* nothing came over this rail, and it may already be writing its next exchange's extents */
            afdep_status_t status = list_source(h, actor, source, rail, rows, &found[rail]);
            if (status != AFDEP_OK)
                return status;
        }
    for (int rail = first; rail < s->ranks_per_domain; rail++)
        if (found[rail] != p->arrived[rail])
            return lost_row(h, actor, afdep_ffn_rank(s, h->domain, rail), p->arrived[rail], found[rail]);
    return AFDEP_OK;
}

afdep_status_t afdep_host_read_count(afdep_host_t *h, afdep_actor_t *actor, uint64_t *out)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = h->plane;
    uint64_t word = afdep_fabric_read(h->fabric, p->base + afdep_at_count_word(h->at_worker, actor->i));
    afdep_word_state_t state = afdep_tag_state(word, (uint32_t)h->exchange, (uint32_t)s->in_flight);
    int rank = s->ffn_ranks + actor->i;
    if (afdep_host_is_lost(h, rank)) {
        *out = afdep_word((uint32_t)h->exchange, 0);
        return AFDEP_OK;
    }
    if (state == AFDEP_WORD_WAIT)
        return afdep_host_wait(actor, rank, "the count word");
    if (state == AFDEP_WORD_BROKEN)
        return afdep_host_broken(h, actor, rank, "the count word", word);
    if (afdep_word_low(word) > (uint32_t)p->bucket)
        return afdep_host_beyond_bucket(h, actor, rank, "a row count of", afdep_word_low(word));
    *out = word;
    return AFDEP_OK;
}

/* Direct: source after source, as their count words come (actor->i: the next). */
static afdep_status_t list_direct(afdep_host_t *h, afdep_actor_t *actor, uint32_t *rows)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    for (; actor->i < s->attention_ranks; actor->i++) {
        uint64_t word;
        int rank = s->ffn_ranks + actor->i;
        afdep_status_t status = afdep_host_read_count(h, actor, &word);
        if (status != AFDEP_OK)
            return status;
        int64_t last = -1;
        for (uint32_t position = 0; position < afdep_word_low(word); position++) {
            unsigned char *row = afdep_host_own(h, p->base + afdep_at_direct_row(h->at_worker, h->layout, s, actor->i,
                                                                                 (int)position));
            const afdep_row_tag_t *tag = afdep_tag_at(row, h->layout->row.tag_offset);
            if (afdep_tag_is(tag, h->exchange, tag->token, rank) && tag->token >= (uint32_t)p->bucket)
                return afdep_host_beyond_bucket(h, actor, rank, "token", tag->token);
            if (!afdep_tag_is(tag, h->exchange, tag->token, rank) ||
                (int64_t)tag->token <= last || !add_arrival(h, row, tag->token, actor->i, (int)position, rows))
                return lost_row(h, actor, rank, afdep_word_low(word), position);
            last = tag->token;
        }
    }
    return AFDEP_DONE;
}

/* ---- Layout by expert ---------------------------------------------------------------------------------------- */

/* Prefix sums, and every arrival's rows: positions hold experts before, rows after. */
static void assign_rows(afdep_host_t *h, uint32_t rows)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int32_t end = 0;
    for (int e = 0; e < s->experts_per_rank; e++) {
        int32_t start = align_up(end, s->expert_alignment), count = p->counts[e];
        p->counts[e] = start; /* from here on the next free row of the expert */
        p->ends[e] = end = start + count;
    }
    p->row_count = align_up(end, s->expert_alignment);
    for (uint32_t r = 0; r < rows; r++)
        p->positions[r] = p->counts[p->positions[r]]++;
}

/* Rows that expert `e` occupies, its alignment padding included. */
static int32_t aligned_count(const afdep_host_t *h, int e)
{
    const afdep_plane_t *p = h->plane;
    int32_t align = h->shape->expert_alignment;
    int32_t start = e ? align_up(p->ends[e - 1], align) : 0;
    return align_up(p->ends[e], align) - start;
}

static afdep_status_t check_room(const afdep_host_t *h, const afdep_receive_t *r)
{
    if (r->rows_capacity < h->plane->row_count)
        return afdep_fail(AFDEP_ERR_CAPACITY, "%s: rows_capacity is %lld: %lld rows have come", h->call_name,
                          (long long)r->rows_capacity, (long long)h->plane->row_count);
    const char *missing = !r->ends ? "ends" : NULL;
    if (h->plane->row_count > 0 && !missing)
        missing = !r->rows                         ? "rows"
                  : !r->row_weight                 ? "row_weight"
                  : h->shape->fp8 && !r->row_scale ? "row_scale"
                                                   : NULL;
    if (missing)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s is NULL", h->call_name, missing);
    if ((uintptr_t)r->rows % 16 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: rows is %p: a multiple of 16 is wanted", h->call_name,
                          r->rows);
    return AFDEP_OK;
}

static void mark_padding(afdep_receive_t *r, int32_t from, int32_t to)
{
    for (int32_t row = from; row < to; row++) {
        r->row_weight[row] = 0;
        if (r->row_source)
            r->row_source[2 * (size_t)row] = r->row_source[2 * (size_t)row + 1] = -1;
    }
}

/* A caller's callback may return anything: only what leaves the buffer healthy is passed on as it is. */
static afdep_status_t ask_tensors(const afdep_host_t *h, afdep_receive_t *r, int64_t rows)
{
    afdep_status_t status = r->allocate(r->allocate_context, rows, r);
    if (status == AFDEP_OK || (status < 0 && !afdep_status_is_fatal(status)))
        return status;
    return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: allocate returned %d, which is no status that it may return",
                      h->call_name, (int)status);
}

/* Gives the caller its counts, asks it for tensors where it wants to be asked, and checks them. */
static afdep_status_t settle_tensors(afdep_host_t *h)
{
    afdep_receive_t *r = h->receive;
    if (r->read_host_counts && r->host_counts)
        for (int e = 0; e < h->shape->experts_per_rank; e++)
            r->host_counts[e] = aligned_count(h, e);
    r->row_count = h->plane->row_count; /* also where they find no room */
    afdep_status_t status = AFDEP_OK;
    if (r->read_host_counts && r->allocate)
        status = ask_tensors(h, r, h->plane->row_count);
    if (status == AFDEP_OK)
        status = check_room(h, r);
    if (status != AFDEP_OK)
        return status;
    memcpy(r->ends, h->plane->ends, (size_t)h->shape->experts_per_rank * sizeof(*r->ends));
    for (int e = 0; e < h->shape->experts_per_rank; e++)
        mark_padding(r, h->plane->ends[e], align_up(h->plane->ends[e], h->shape->expert_alignment));
    return AFDEP_OK;
}

unsigned char *afdep_host_arrival_row(const afdep_host_t *h, const afdep_arrival_t *arrival)
{
    if (h->shape->protocol != AFDEP_PROTOCOL_DIRECT)
        return row_of(h, arrival->source_domain, arrival->rail, arrival->token);
    return afdep_host_own(h, h->plane->base + afdep_at_direct_row(h->at_worker, h->layout, h->shape,
                                                                  arrival->source_domain, arrival->rail));
}

/* The rows of a source that is lost, in a layout that is used again: nothing, as in padding. */
static void blank_arrival(afdep_host_t *h, const afdep_arrival_t *arrival)
{
    const afdep_row_format_t *f = &h->layout->row;
    afdep_receive_t *r = h->receive;
    for (uint32_t k = 0; k < arrival->rows; k++) {
        int32_t to = h->plane->positions[arrival->first + k];
        memset((char *)r->rows + (size_t)to * f->payload_bytes, 0, f->payload_bytes);
        if (f->scale_bytes)
            memset(r->row_scale + (size_t)to * (f->scale_bytes / 4), 0, f->scale_bytes);
        mark_padding(r, to, to + 1);
    }
}

static void place_arrival(afdep_host_t *h, const afdep_arrival_t *arrival)
{
    const afdep_plane_t *p = h->plane;
    const afdep_row_format_t *f = &h->layout->row;
    afdep_receive_t *r = h->receive;
    unsigned char *row = afdep_host_arrival_row(h, arrival);
    void *copies[32];
    for (uint32_t k = 0; k < arrival->rows; k++) {
        int32_t to = p->positions[arrival->first + k];
        copies[k] = (char *)r->rows + (size_t)to * f->payload_bytes;
        if (f->scale_bytes)
            memcpy(r->row_scale + (size_t)to * (f->scale_bytes / 4), row + f->scale_offset, f->scale_bytes);
        r->row_weight[to] = p->weights[arrival->first + k];
        if (r->row_source) {
            r->row_source[2 * (size_t)to] = afdep_host_source(h, arrival->source_domain, arrival->rail);
            r->row_source[2 * (size_t)to + 1] = (int32_t)arrival->token;
        }
    }
    h->ops->fan_out(copies, (int)arrival->rows, row, f->payload_bytes);
}

/* Planted variant only: whether a source sent this rank rows in this exchange. */
static int has_served(const afdep_host_t *h, int source)
{
    uint32_t rows = 0;
    for (int c = 0; c < h->shape->channels; c++)
        rows += h->plane->taken[source * h->shape->channels + c];
    return rows > 0;
}

afdep_status_t afdep_host_send_witnesses(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    if (!afdep_has_witnesses(s))
        return AFDEP_DONE;
    uint64_t value = afdep_word((uint32_t)h->exchange, 0);
    uint64_t before = afdep_word((uint32_t)(h->exchange - (uint64_t)s->in_flight), 0);
    int target = direct ? h->rank : h->domain;
    for (; actor->i < (int)h->sources; actor->i++) {
        int peer = direct ? s->ffn_ranks + actor->i : afdep_source_rank(s, actor->i, h->rail);
        if ((AFDEP_PLANTED(WITNESS_SERVED) && !direct && !has_served(h, actor->i)) ||
            afdep_host_is_own_domain(h, actor->i) || afdep_host_is_lost(h, peer))
            continue;
        afdep_status_t status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_WITNESS, h->lane_control, peer,
                                                    p->peer_source + afdep_at_witness(h->at_source, target), before,
                                                    value);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, peer, "room in its queue") : status;
    }
    return AFDEP_DONE;
}

/* Shared domains: this worker's answer to each forwarder of its domain (actor->i: the next of them). */
static afdep_status_t send_answers(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    uint64_t value = afdep_word((uint32_t)h->exchange, 0);
    uint64_t before = afdep_word((uint32_t)(h->exchange - (uint64_t)s->in_flight), 0);
    int first = afdep_first_forwarder_rail(s);
    for (; first + actor->i < s->ranks_per_domain; actor->i++) {
        int peer = afdep_ffn_rank(s, h->domain, first + actor->i);
        afdep_status_t status = afdep_fabric_signal(
            h->fabric, AFDEP_SIGNAL_DOMAIN_WORD, h->lane_control, peer,
            h->plane->peer_forwarder + afdep_at_rail_answer(h->at_forwarder, h->rail), before, value);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, peer, "room in its queue") : status;
    }
    return AFDEP_DONE;
}

/* place: lays rows out (actor->rows: the next arrival), then sends the witnesses. */
static afdep_status_t place_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_plane_t *p = h->plane;
    for (int budget = ROWS_A_STEP; actor->rows < p->arrival_count; budget--) {
        if (budget == 0)
            return AFDEP_OK;
        const afdep_arrival_t *arrival = &p->arrivals[actor->rows++];
        if (arrival->absent)
            blank_arrival(h, arrival);
        else
            place_arrival(h, arrival);
    }
    h->read_rows = h->exchange;
    if (!h->forwarder && h->shape->protocol != AFDEP_PROTOCOL_DIRECT)
        return send_answers(h, actor);
    h->read_rail = h->exchange;
    return AFDEP_PLANTED(WITNESS_CHANNEL_0) ? AFDEP_DONE : afdep_host_send_witnesses(h, actor);
}

/* receive: joins, lists, counts; then becomes place. */
static afdep_status_t receive_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_status_t status = AFDEP_DONE;
    if (h->cached) {
        if (h->shape->protocol != AFDEP_PROTOCOL_DIRECT)
            status = afdep_host_forward_joined(h, actor);
        if (status == AFDEP_DONE)
            status = afdep_host_relist(h, actor);
        if (status != AFDEP_DONE)
            return status;
        h->receive_stage = AFDEP_RECEIVE_PLACE;
        afdep_host_count_received(h);
        return AFDEP_DONE;
    }
    if (h->shape->protocol == AFDEP_PROTOCOL_DIRECT) {
        status = list_direct(h, actor, &actor->rows);
        if (status != AFDEP_DONE)
            return status;
    } else {
        status = afdep_host_forward_joined(h, actor);
        if (status == AFDEP_DONE)
            status = list_domain(h, actor, &actor->rows);
        if (status != AFDEP_OK)
            return status;
    }
    assign_rows(h, actor->rows);
    afdep_host_count_received(h);
    h->receive_stage = AFDEP_RECEIVE_PLACE;
    return AFDEP_DONE;
}

/* ---- The call ------------------------------------------------------------------------------------------------ */

afdep_status_t afdep_host_check_receive(const afdep_host_t *h, const afdep_receive_t *r, afdep_stream_t stream)
{
    const afdep_shape_t *s = h->shape;
    if (stream)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: stream is not NULL on the host backend", h->call_name);
    if (r->bucket < 1 || r->bucket > s->capacity)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: bucket is %d: 1 to capacity, %d, is wanted", h->call_name, r->bucket,
                          s->capacity);
    if (h->receive_stage != AFDEP_RECEIVE_IDLE && r->bucket != h->plane->bucket)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: bucket is %d, and it was %d when this receive began", h->call_name,
                          r->bucket, h->plane->bucket);
    if (h->receive_stage == AFDEP_RECEIVE_IDLE && h->started - h->finished >= (uint64_t)s->in_flight)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: exchange %llu is not replied to yet, and in_flight is %d", h->call_name,
                          (unsigned long long)h->finished + 1, s->in_flight);
    if (!r->read_host_counts) {
        const char *missing = !r->rows ? "rows" : !r->row_weight ? "row_weight" : !r->ends ? "ends" : NULL;
        if (s->fp8 && !missing && !r->row_scale)
            missing = "row_scale";
        if (missing)
            return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s is NULL", h->call_name, missing);
        if (r->rows_capacity < afdep_receive_rows(s, r->bucket))
            return afdep_fail(AFDEP_ERR_ARGUMENT,
                              "%s: rows_capacity is %lld: bucket %d needs %lld without read_host_counts", h->call_name,
                              (long long)r->rows_capacity, r->bucket, (long long)afdep_receive_rows(s, r->bucket));
    }
    if ((uintptr_t)r->rows % 16 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: rows is %p: a multiple of 16 is wanted", h->call_name,
                          r->rows);
    if (r->cached && h->receive_stage == AFDEP_RECEIVE_IDLE)
        return afdep_host_check_cached(h, r->bucket);
    return AFDEP_OK;
}

/* The end of the call; of elastic_dispatch it says too what was wrong with the routes. */
static afdep_status_t received(afdep_host_t *h)
{
    h->receive_stage = AFDEP_RECEIVE_IDLE;
    h->receive->receipt = (afdep_receipt_t){ { AFDEP_RECEIPT_MAGIC, (uint64_t)(uintptr_t)h, h->exchange,
                                               (uint64_t)h->plane->row_count } };
    return h->source ? afdep_host_dispatched(h) : AFDEP_OK;
}

/* The rows are joined and counted: now the tensors, which may be refused (the same call is then made again), and place.
   */
afdep_status_t afdep_host_counted(afdep_host_t *h)
{
    afdep_status_t status = settle_tensors(h);
    if (status != AFDEP_OK)
        return status;
    h->then = received;
    afdep_host_add(h, place_step, "receive", -1);
    return AFDEP_AGAIN;
}

void afdep_host_start_receive(afdep_host_t *h, afdep_receive_t *receive)
{
    afdep_plane_t *p = h->plane;
    h->receive = receive;
    h->receive_stage = AFDEP_RECEIVE_JOIN;
    p->bucket = receive->bucket;
    h->cached = receive->cached;
    if (!h->cached) {
        p->routing = h->exchange;
        p->arrival_count = 0;
        memset(p->counts, 0, (size_t)h->shape->experts_per_rank * sizeof(*p->counts));
    }
    if (h->forwarder && !h->source) /* a source has begun that in its dispatch */
        afdep_host_add_forward(h);
    afdep_host_add(h, receive_step, "receive", -1);
}

afdep_status_t afdep_host_begin_receive(afdep_host_t *h, afdep_receive_t *receive, afdep_stream_t stream)
{
    h->call_name = "worker_receive";
    afdep_status_t status = afdep_host_check(h);
    if (status == AFDEP_OK)
        status = afdep_host_check_receive(h, receive, stream);
    if (status != AFDEP_OK)
        return status;
    if (h->receive_stage != AFDEP_RECEIVE_IDLE) {
        h->receive = receive;
        afdep_host_begin(h, h->call_name, h->started, afdep_host_counted);
        return AFDEP_OK;
    }
    afdep_host_begin(h, h->call_name, ++h->started, afdep_host_counted);
    afdep_host_start_receive(h, receive);
    return AFDEP_OK;
}
