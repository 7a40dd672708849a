/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the planes of all duties, in checked 64-bit arithmetic. */
#include "protocol/layout.h"

#include <string.h>

#define REGION_ALIGN 4096u

/* A cursor that stops at the first overflow. */
typedef struct cursor {
    uint64_t at;
    int overflow;
} cursor_t;

/* Reserves a*b*bytes bytes, page-aligned, and returns where they start. */
static uint64_t reserve(cursor_t *cursor, uint64_t a, uint64_t b, uint64_t bytes)
{
    uint64_t start = cursor->at, size, end;
    if (__builtin_mul_overflow(a, b, &size) || __builtin_mul_overflow(size, bytes, &size) ||
        __builtin_add_overflow(start, size, &end) || end > (uint64_t)INT64_MAX - REGION_ALIGN) {
        cursor->overflow = 1;
        return start;
    }
    cursor->at = (end + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
    return start;
}

static void worker_regions(afdep_plane_layout_t *p, cursor_t *cursor, const afdep_layout_t *l, const afdep_shape_t *s)
{
    uint64_t a = (uint64_t)s->attention_ranks, sd = (uint64_t)s->attention_domains, d = (uint64_t)s->ranks_per_domain;
    uint64_t capacity = (uint64_t)s->capacity;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT) {
        p->count_words = reserve(cursor, a, 1, 8);
        p->inbox = reserve(cursor, a, capacity, l->row.stride);
        return;
    }
    p->forward_words = reserve(cursor, d, 2, 8);
    p->extents = reserve(cursor, d, l->extent_stride, 4);
    p->domain_inbox = reserve(cursor, d > 1 ? d * sd : 0, capacity, l->row.stride);
}

static void forwarder_regions(afdep_plane_layout_t *p, cursor_t *cursor, const afdep_layout_t *l,
                              const afdep_shape_t *s)
{
    uint64_t sd = (uint64_t)s->attention_domains, d = (uint64_t)s->ranks_per_domain, c = (uint64_t)s->channels;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT)
        return;
    p->count_words = reserve(cursor, sd, 1, 8);
    p->finish_tails = reserve(cursor, sd, c, 8);
    p->reply_words = reserve(cursor, d, 1, 8);
    p->rail_answers = reserve(cursor, afdep_has_shared_domains(s) ? d : 0, 1, 8);
    p->inbox = reserve(cursor, sd * c, l->slots, l->row.stride);
    p->partials = reserve(cursor, d > 1 ? d * sd : 0, (uint64_t)s->capacity, l->row.reply_stride);
}

static void source_regions(afdep_plane_layout_t *p, cursor_t *cursor, const afdep_layout_t *l, const afdep_shape_t *s)
{
    uint64_t targets = (uint64_t)afdep_targets(s);
    p->witness_words = reserve(cursor, targets, 1, 8);
    p->combine_tails = reserve(cursor, targets, (uint64_t)afdep_combine_channels(s), 8);
    p->combine_rows = reserve(cursor, targets, (uint64_t)s->capacity, l->row.reply_stride);
}

/* The plane of ranks like `rank`: the regions of their duties. */
static cursor_t lay_out(afdep_plane_layout_t *p, const afdep_layout_t *l, const afdep_shape_t *s, int rank)
{
    cursor_t cursor = { 0, 0 };
    if (s->union_buffers || afdep_is_worker(s, rank))
        worker_regions(p, &cursor, l, s);
    if (s->union_buffers || afdep_is_forwarder(s, rank))
        forwarder_regions(p, &cursor, l, s);
    if (s->union_buffers || afdep_is_source(s, rank))
        source_regions(p, &cursor, l, s);
    if (s->entry_barrier)
        p->barrier_words = reserve(&cursor, (uint64_t)s->ranks_per_domain + (uint64_t)s->attention_domains, 1, 8);
    p->bytes = cursor.at;
    return cursor;
}

int afdep_layout_init(afdep_layout_t *l, const afdep_shape_t *s)
{
    memset(l, 0, sizeof(*l));
    l->row = afdep_row_format(s);
    l->slots = (uint32_t)afdep_channel_slots(s);
    l->extent_stride = afdep_align_up32((uint32_t)s->attention_domains, 4);

    cursor_t control = { afdep_closing_word(0), 0 };
    (void)reserve(&control, (uint64_t)s->ranks, 3, 8);
    l->control_bytes = control.at;

    /* An FFN rank is rank 0, and the first rank after the FFN ranks an Attention rank. */
    cursor_t ffn = lay_out(&l->ffn, l, s, 0), attention = lay_out(&l->attention, l, s, s->ffn_ranks);

    cursor_t whole = { control.at, 0 };
    (void)reserve(&whole, (uint64_t)s->in_flight, 1, ffn.at);
    l->ffn_bytes = whole.at;
    int overflow = whole.overflow;
    whole = (cursor_t){ control.at, 0 };
    (void)reserve(&whole, (uint64_t)s->in_flight, 1, attention.at);
    l->attention_bytes = whole.at;
    return control.overflow || ffn.overflow || attention.overflow || overflow || whole.overflow;
}
