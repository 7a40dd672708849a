/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of a schedule that the compared values alone might not show. */
#include "validate/explorer_internal.h"

#include <stdio.h>
#include <string.h>

/* Until when a region's rows are read. */
typedef enum reader { READ_NOT, READ_FROM_RAIL, READ_BY_RECEIVE, READ_BY_END } reader_t;

typedef struct region {
    reader_t reader;
    uint64_t start, bytes, stride;
    uint32_t tag_offset;
} region_t;

static int in_region(const region_t *r, uint64_t at)
{
    return at >= r->start && at - r->start < r->bytes;
}

/* The row region of a rank's plane that `at` (an offset in the plane) lies in. */
static region_t region_of(const afdep_explorer_t *e, const afdep_host_t *h, uint64_t at)
{
    const afdep_shape_t *s = &e->settings.shape;
    const afdep_layout_t *l = &e->settings.layout;
    const afdep_plane_layout_t *p = afdep_plane_of(l, s, h->rank);
    const afdep_row_format_t *f = &l->row;
    uint64_t capacity = (uint64_t)s->capacity, targets = (uint64_t)afdep_targets(s);
    uint64_t rail_tokens = capacity * (uint64_t)s->ranks_per_domain * (uint64_t)s->attention_domains;
    uint64_t slots = (uint64_t)s->attention_domains * (uint32_t)s->channels * l->slots;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT, inside = !direct && s->ranks_per_domain > 1;
    region_t regions[] = {
        { READ_BY_RECEIVE, p->inbox, direct && h->worker ? capacity * (uint64_t)s->attention_ranks * f->stride : 0,
          f->stride, f->tag_offset },
        { READ_FROM_RAIL, p->inbox, h->forwarder ? slots * f->stride : 0, f->stride, f->tag_offset },
        { READ_BY_RECEIVE, p->domain_inbox, inside && h->worker ? rail_tokens * f->stride : 0, f->stride,
          f->tag_offset },
        { READ_BY_END, p->partials, inside && h->forwarder ? rail_tokens * f->reply_stride : 0, f->reply_stride,
          f->reply_tag_offset },
        { READ_BY_END, p->combine_rows, h->source ? targets * capacity * f->reply_stride : 0, f->reply_stride,
          s->fp8_combine ? f->packed_tag_offset : f->reply_tag_offset },
    };
    for (size_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++)
        if (in_region(&regions[i], at))
            return regions[i];
    return (region_t){ READ_NOT, 0, 0, 1, 0 };
}

/* The last exchange whose rows in the region this rank is finished with. */
static uint64_t finished_reading(const afdep_host_t *h, reader_t reader)
{
    return reader == READ_BY_END ? h->finished : reader == READ_FROM_RAIL ? h->read_rail : h->read_rows;
}

static afdep_status_t check_row(const afdep_explorer_t *e, const afdep_sim_message_t *m, uint64_t plane_start,
                                char *why, size_t why_size)
{
    const afdep_host_t *h = e->rank[m->target].host;
    region_t region = region_of(e, h, m->offset - plane_start);
    if (region.reader == READ_NOT)
        return AFDEP_OK;
    const afdep_row_tag_t *was =
        (const afdep_row_tag_t *)(const void *)(h->fabric->base + m->offset + region.tag_offset);
    afdep_row_tag_t is;
    memcpy(&is, (const char *)m->data + region.tag_offset, sizeof(is));
    if (afdep_row_age(was) >= 1u << 31)
        return AFDEP_OK; /* never written */
    uint32_t done = (uint32_t)finished_reading(h, region.reader);
    if ((int32_t)(done - was->exchange) < 0) {
        snprintf(why, why_size,
                 "rank %d overwrites the row of exchange %u, token %u, at rank %d, which is finished with exchange %u "
                 "only",
                 m->sender, was->exchange, was->token, m->target, done);
        return AFDEP_ERR_PROTOCOL;
    }
    if ((int32_t)(is.exchange - was->exchange) <= 0) {
        snprintf(why, why_size, "rank %d writes a row of exchange %u at rank %d over one of exchange %u", m->sender,
                 is.exchange, m->target, was->exchange);
        return AFDEP_ERR_PROTOCOL;
    }
    return AFDEP_OK;
}

afdep_status_t afdep_explore_check_landing(const afdep_explorer_t *e, const afdep_sim_message_t *m, char *why,
                                           size_t why_size)
{
    const afdep_host_t *h = e->rank[m->target].host;
    const afdep_layout_t *l = &e->settings.layout;
    if (m->offset < l->control_bytes)
        return AFDEP_OK;
    if (!m->is_signal) {
        uint64_t bytes = afdep_plane_of(l, &e->settings.shape, m->target)->bytes;
        uint64_t plane = (m->offset - l->control_bytes) / bytes;
        return check_row(e, m, l->control_bytes + plane * bytes, why, why_size);
    }
    uint64_t was;
    memcpy(&was, h->fabric->base + m->offset, sizeof(was));
    uint32_t high = afdep_word_high(m->value) - afdep_word_high(was);
    if (high > 1u << 30 || (high == 0 && m->value == was)) {
        snprintf(why, why_size, "rank %d turns a word of rank %d from 0x%016llx back to 0x%016llx", m->sender,
                 m->target, (unsigned long long)was, (unsigned long long)m->value);
        return AFDEP_ERR_PROTOCOL;
    }
    return AFDEP_OK;
}

/* ---- Counts at the end --------------------------------------------------------------------------------------- */

typedef struct totals {
    uint64_t finish_tails, count_words, combines, witnesses;
} totals_t;

static void add_sent(totals_t *t, const afdep_peer_counters_t *c)
{
    t->finish_tails += c->signals[AFDEP_SIGNAL_FINISH_TAIL];
    t->count_words += c->signals[AFDEP_SIGNAL_COUNT_WORD];
    t->combines += c->signals[AFDEP_SIGNAL_COMBINE];
    t->witnesses += c->signals[AFDEP_SIGNAL_WITNESS];
}

static int is_direct(const afdep_shape_t *s)
{
    return s->protocol == AFDEP_PROTOCOL_DIRECT;
}

/* Adds what the contract's table says of one source with T tokens at the rank that takes its rows; combine is an upper
   bound where it follows the routes. */
static void add_source(totals_t *want, const afdep_shape_t *s, int own, uint64_t tokens)
{
    uint64_t channels = (uint64_t)s->channels, used = tokens < channels ? tokens : channels;
    want->witnesses += (uint64_t)(afdep_has_witnesses(s) && !own);
    if (is_direct(s)) {
        want->count_words++;
        want->combines += afdep_combines_everywhere(s) || tokens > 0;
        return;
    }
    want->combines += s->sparse_combine ? used : channels;
    if (own) /* mixed: it takes no rail to its own domain */
        return;
    want->finish_tails += s->sparse_dispatch ? used : channels;
    want->count_words += (uint64_t)s->sparse_dispatch;
}

/* What rank `f`, which takes rows from sources, gets in dispatch and sends in combine over the whole schedule. */
static totals_t wanted(const afdep_explorer_t *e, int f)
{
    const afdep_shape_t *s = &e->settings.shape;
    totals_t want = { 0 };
    for (int n = 0; n < e->explore.exchanges; n++) {
        for (int a = 0; a < s->attention_ranks; a++) {
            int source = s->ffn_ranks + a;
            int own = s->protocol == AFDEP_PROTOCOL_MIXED && afdep_domain_of(s, source) == afdep_domain_of(s, f);
            if (is_direct(s) || afdep_rail_of(s, source) == afdep_rail_of(s, f))
                add_source(&want, s, own, (uint64_t)e->tokens[n][a]);
        }
        if (s->entry_barrier) /* its words stand in for witnesses */
            want.witnesses += (uint64_t)(s->ranks_per_domain + (is_direct(s) ? 1 : s->attention_domains) - 2);
    }
    return want;
}

afdep_status_t afdep_explore_check_counts(const afdep_explorer_t *e, char *why, size_t why_size)
{
    const afdep_shape_t *s = &e->settings.shape;
    int exact = afdep_combines_everywhere(s);
    for (int f = 0; f < s->ranks; f++) {
        if (is_direct(s) ? !afdep_is_worker(s, f) : !afdep_is_forwarder(s, f))
            continue;
        totals_t in = { 0 }, out = { 0 };
        for (int r = 0; r < e->ranks; r++) {
            add_sent(&in, &e->rank[r].host->fabric->counters[f]);
            add_sent(&out, &e->rank[f].host->fabric->counters[r]);
        }
        totals_t want = wanted(e, f);
        if (in.finish_tails != want.finish_tails || in.count_words != want.count_words ||
            out.witnesses != want.witnesses || out.combines > want.combines ||
            (exact && out.combines != want.combines)) {
            snprintf(why, why_size,
                     "signals at rank %d: %llu finish tails, %llu count words, %llu combine, %llu witnesses; wanted "
                     "%llu, %llu, %s%llu, %llu",
                     f, (unsigned long long)in.finish_tails, (unsigned long long)in.count_words,
                     (unsigned long long)out.combines, (unsigned long long)out.witnesses,
                     (unsigned long long)want.finish_tails, (unsigned long long)want.count_words,
                     exact ? "" : "at most ", (unsigned long long)want.combines, (unsigned long long)want.witnesses);
            return AFDEP_ERR_PROTOCOL;
        }
    }
    return AFDEP_OK;
}
