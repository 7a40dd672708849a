/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants of a schedule that the compared values alone might not show. */
#include "validate/explorer_internal.h"

#include <stdio.h>
#include <string.h>

/* Until when a region's rows are read. */
typedef enum reader { READ_NOT, READ_BY_RECEIVE, READ_BY_END } reader_t;

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
static region_t region_of(const afdep_explorer_t *e, int rank, uint64_t at)
{
    const afdep_shape_t *s = &e->settings.shape;
    const afdep_layout_t *l = &e->settings.layout;
    const afdep_plane_layout_t *p = afdep_plane_of(l, s, rank);
    uint64_t capacity = (uint64_t)s->capacity, tokens = capacity * (uint64_t)s->attention_ranks;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    uint64_t rows = direct ? tokens : (uint64_t)s->attention_domains * (uint32_t)s->channels * l->slots;
    region_t ffn[] = {
        { READ_BY_RECEIVE, p->inbox, rows * l->row.stride, l->row.stride, l->row.tag_offset },
        { READ_BY_RECEIVE, p->domain_inbox, direct ? 0 : tokens * l->row.stride, l->row.stride, l->row.tag_offset },
        { READ_BY_END, p->partials, direct ? 0 : tokens * l->row.reply_stride, l->row.reply_stride,
          l->row.reply_tag_offset },
    };
    region_t attention = { READ_BY_END, p->combine_rows,
                           (uint64_t)afdep_targets(s) * capacity * l->row.reply_stride, l->row.reply_stride,
                           l->row.reply_tag_offset };
    region_t none = { READ_NOT, 0, 0, 1, 0 };
    if (!afdep_is_ffn(s, rank))
        return in_region(&attention, at) ? attention : none;
    for (size_t i = 0; i < sizeof(ffn) / sizeof(ffn[0]); i++)
        if (in_region(&ffn[i], at))
            return ffn[i];
    return none;
}

/* The last exchange whose rows in the region this rank is finished with. */
static uint64_t finished_reading(const afdep_host_t *h, reader_t reader)
{
    if (reader == READ_BY_END)
        return h->finished;
    return h->started - (h->receive_stage != AFDEP_RECEIVE_IDLE);
}

static afdep_status_t check_row(const afdep_explorer_t *e, const afdep_sim_message_t *m, uint64_t plane_start, char *why,
                                size_t why_size)
{
    const afdep_host_t *h = e->rank[m->target].host;
    region_t region = region_of(e, m->target, m->offset - plane_start);
    if (region.reader == READ_NOT)
        return AFDEP_OK;
    const afdep_row_tag_t *was =
        (const afdep_row_tag_t *)(const void *)(h->fabric->base + m->offset + region.tag_offset);
    afdep_row_tag_t is;
    memcpy(&is, (const char *)m->data + region.tag_offset, sizeof(is));
    if (was->source == 0 && was->exchange == 0 && was->token == 0)
        return AFDEP_OK; /* never written (rank 0's first token of exchange 0 has no earlier row to lose) */
    uint32_t done = (uint32_t)finished_reading(h, region.reader);
    if ((int32_t)(done - was->exchange) < 0) {
        snprintf(why, why_size,
                 "rank %d overwrites the row of exchange %u, token %u, at rank %d, which is finished with exchange %u only",
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

/* What the contract's table says for FFN rank `f` over the whole schedule; combine is an upper bound in sparse. */
static totals_t wanted(const afdep_explorer_t *e, int f, int *exact_combine)
{
    const afdep_shape_t *s = &e->settings.shape;
    totals_t want = { 0 };
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    *exact_combine = !direct && !s->sparse_combine;
    for (int n = 0; n < e->explore.exchanges; n++)
        for (int a = 0; a < s->attention_ranks; a++) {
            uint64_t tokens = (uint64_t)e->tokens[n][a], channels = (uint64_t)s->channels;
            uint64_t used = tokens < channels ? tokens : channels;
            if (direct) {
                want.count_words++;
                want.witnesses++;
                want.combines += tokens > 0;
                continue;
            }
            if (afdep_rail_of(s, s->ffn_ranks + a) != afdep_rail_of(s, f))
                continue;
            want.finish_tails += s->sparse_dispatch ? used : channels;
            want.count_words += (uint64_t)s->sparse_dispatch;
            want.combines += s->sparse_combine ? used : channels;
            want.witnesses += (uint64_t)s->sparse_combine;
        }
    return want;
}

afdep_status_t afdep_explore_check_counts(const afdep_explorer_t *e, char *why, size_t why_size)
{
    const afdep_shape_t *s = &e->settings.shape;
    for (int f = 0; f < s->ffn_ranks; f++) {
        totals_t in = { 0 }, out = { 0 };
        for (int r = 0; r < e->ranks; r++) {
            add_sent(&in, &e->rank[r].host->fabric->counters[f]);
            add_sent(&out, &e->rank[f].host->fabric->counters[r]);
        }
        int exact;
        totals_t want = wanted(e, f, &exact);
        if (in.finish_tails != want.finish_tails || in.count_words != want.count_words ||
            out.witnesses != want.witnesses || out.combines > want.combines ||
            (exact && out.combines != want.combines)) {
            snprintf(why, why_size,
                     "signals at FFN rank %d: %llu finish tails, %llu count words, %llu combine, %llu witnesses; wanted "
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
