/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out device segments, in checked 64-bit arithmetic. */
#include "protocol/device.h"

#include <string.h>

#include "protocol/layout.h"

#define REGION_ALIGN 512u

typedef struct cursor {
    uint64_t at;
    int overflow;
} cursor_t;

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

static void ffn_regions(afdep_device_layout_t *l, cursor_t *cursor, const afdep_shape_t *s)
{
    uint64_t a = (uint64_t)s->attention_ranks, capacity = (uint64_t)s->capacity, k = (uint64_t)s->top_k;
    l->route_words = reserve(cursor, a * capacity, k, 8);
    l->row_words = reserve(cursor, a * capacity, l->pieces, 4);
    l->rows = reserve(cursor, a, capacity, l->row_stride);
    l->row_lines = reserve(cursor, a * (uint64_t)afdep_few_tokens(s), (uint64_t)afdep_row_lines(s), AFDEP_LINE_BYTES);
}

static void attention_regions(afdep_device_layout_t *l, cursor_t *cursor, const afdep_shape_t *s)
{
    uint64_t f = (uint64_t)s->ffn_ranks, capacity = (uint64_t)s->capacity;
    l->answers = reserve(cursor, f, 1, 8);
    l->combine_words = reserve(cursor, f * capacity, l->pieces, 4);
    l->combine_rows = reserve(cursor, f, capacity, 2 * (uint64_t)s->hidden);
    l->combine_lines = reserve(cursor, f * (uint64_t)afdep_few_tokens(s), (uint64_t)afdep_lines(afdep_reply_vectors(s)),
                               AFDEP_LINE_BYTES);
}

static void init_rows(afdep_device_layout_t *l, const afdep_shape_t *s)
{
    l->few_tokens = afdep_few_tokens(s);
    l->row_line_count = afdep_row_lines(s);
    l->reply_line_count = afdep_lines(afdep_reply_vectors(s));
}

int afdep_device_layout_init(afdep_device_layout_t *l, const afdep_shape_t *s, int ffn)
{
    memset(l, 0, sizeof(*l));
    afdep_row_format_t row = afdep_row_format(s);
    l->pieces = (uint32_t)afdep_pieces(s, AFDEP_PIECE);
    init_rows(l, s);
    l->planes = s->in_flight;
    l->scale_offset = row.scale_offset;
    l->weight_offset = afdep_align_up32(row.scale_offset + row.scale_bytes, 16);
    l->row_stride = afdep_align_up32(l->weight_offset + 4 * (uint32_t)s->top_k, AFDEP_ROW_ALIGN);
    cursor_t control = { AFDEP_CONTROL_FABRIC_BYTES, 0 }, plane = { 0, 0 }, whole;
    (void)reserve(&control, (uint64_t)s->ranks, 2, 8);
    l->control_bytes = control.at;
    if (ffn || s->union_buffers)
        ffn_regions(l, &plane, s);
    if (!ffn || s->union_buffers)
        attention_regions(l, &plane, s);
    l->plane_bytes = plane.at;
    whole = (cursor_t){ control.at, 0 };
    (void)reserve(&whole, (uint64_t)s->in_flight, 1, plane.at);
    l->bytes = whole.at;
    return control.overflow || plane.overflow || whole.overflow;
}

int afdep_few_layout_init(afdep_device_layout_t *l, const afdep_shape_t *s, int ffn, uint64_t from)
{
    uint64_t a = (uint64_t)s->attention_ranks;
    memset(l, 0, sizeof(*l));
    init_rows(l, s);
    l->planes = 2 * s->in_flight;
    l->control_bytes = from;
    l->row_stride = afdep_align_up32(4 * (uint32_t)s->top_k, 16);
    uint64_t few = (uint64_t)l->few_tokens, reply_lines = (uint64_t)l->reply_line_count;
    cursor_t plane = { 0, 0 }, whole = { from, 0 };
    if (ffn) {
        if (s->apply_weights)
            l->rows = reserve(&plane, a, (uint64_t)s->capacity, l->row_stride);
        l->row_lines = reserve(&plane, a * few, (uint64_t)l->row_line_count, AFDEP_LINE_BYTES);
        l->choice_words = reserve(&plane, a * few, (uint64_t)afdep_choice_words(s), 16);
        l->partial_lines = reserve(&plane, (uint64_t)s->ranks_per_domain * (uint64_t)s->attention_domains * few,
                                   reply_lines, AFDEP_LINE_BYTES);
    } else {
        l->combine_lines = reserve(&plane, (uint64_t)s->ffn_domains * few, reply_lines, AFDEP_LINE_BYTES);
    }
    l->plane_bytes = plane.at;
    (void)reserve(&whole, (uint64_t)l->planes, 1, plane.at);
    l->bytes = whole.at;
    return plane.overflow || whole.overflow;
}
