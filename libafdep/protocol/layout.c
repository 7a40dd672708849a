/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the planes of both roles, in checked 64-bit arithmetic. */
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

static void ffn_regions(afdep_plane_layout_t *p, cursor_t *cursor, const afdep_layout_t *l, const afdep_shape_t *s)
{
    uint64_t a = (uint64_t)s->attention_ranks, sd = (uint64_t)s->attention_domains, d = (uint64_t)s->ranks_per_domain;
    uint64_t c = (uint64_t)s->channels, capacity = (uint64_t)s->capacity;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT) {
        p->count_words = reserve(cursor, a, 1, 8);
        p->inbox = reserve(cursor, a, capacity, l->row.stride);
        return;
    }
    p->count_words = reserve(cursor, sd, 1, 8);
    p->finish_tails = reserve(cursor, sd, c, 8);
    p->forward_words = reserve(cursor, d, 2, 8);
    p->reply_words = reserve(cursor, d, 1, 8);
    p->extents = reserve(cursor, d, l->extent_stride, 4);
    p->inbox = reserve(cursor, sd * c, l->slots, l->row.stride);
    p->domain_inbox = reserve(cursor, d > 1 ? d * sd : 0, capacity, l->row.stride);
    p->partials = reserve(cursor, d > 1 ? d * sd : 0, capacity, l->row.reply_stride);
}

static void attention_regions(afdep_plane_layout_t *p, cursor_t *cursor, const afdep_layout_t *l,
                              const afdep_shape_t *s)
{
    uint64_t targets = (uint64_t)afdep_targets(s);
    p->witness_words = reserve(cursor, targets, 1, 8);
    p->combine_tails = reserve(cursor, targets, (uint64_t)afdep_combine_channels(s), 8);
    p->combine_rows = reserve(cursor, targets, (uint64_t)s->capacity, l->row.reply_stride);
}

int afdep_layout_init(afdep_layout_t *l, const afdep_shape_t *s)
{
    memset(l, 0, sizeof(*l));
    l->row = afdep_row_format(s);
    l->slots = (uint32_t)afdep_channel_slots(s);
    l->extent_stride = afdep_align_up32((uint32_t)s->attention_domains, 4);

    cursor_t control = { afdep_closing_word(0), 0 };
    (void)reserve(&control, (uint64_t)s->ranks, 2, 8);
    l->control_bytes = control.at;

    cursor_t ffn = { 0, 0 }, attention = { 0, 0 };
    ffn_regions(&l->ffn, &ffn, l, s);
    if (s->union_buffers)
        attention_regions(&l->ffn, &ffn, l, s);
    attention_regions(&l->attention, &attention, l, s);
    if (s->union_buffers)
        ffn_regions(&l->attention, &attention, l, s);
    l->ffn.bytes = ffn.at;
    l->attention.bytes = attention.at;

    cursor_t whole = { control.at, 0 };
    (void)reserve(&whole, (uint64_t)s->in_flight, 1, ffn.at);
    l->ffn_bytes = whole.at;
    int overflow = whole.overflow;
    whole = (cursor_t){ control.at, 0 };
    (void)reserve(&whole, (uint64_t)s->in_flight, 1, attention.at);
    l->attention_bytes = whole.at;
    return control.overflow || ffn.overflow || attention.overflow || overflow || whole.overflow;
}
