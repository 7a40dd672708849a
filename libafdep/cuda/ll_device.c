/* SPDX-License-Identifier: Apache-2.0 */
/* Lays out the segments of the low-latency API on GPUs, in checked 64-bit arithmetic. */
#include <string.h>

#include "cuda/ll_device.h"
#include "protocol/layout.h"

#define REGION_ALIGN 512u

static int place(uint64_t *at, uint64_t *region, uint64_t count, uint64_t bytes)
{
    uint64_t size;
    *region = *at;
    if (__builtin_mul_overflow(count, bytes, &size) || __builtin_add_overflow(*at, size + REGION_ALIGN - 1, at) ||
        *at >> 62)
        return -1;
    *at = *at / REGION_ALIGN * REGION_ALIGN;
    return 0;
}

/*
 * Lines of `rows` rows, of which those of one exchange are at most `bytes` / (vectors * 16): with v vectors a row
 * that is at most bytes / 16 / v rows of v / 24 lines, rounded up; or, where all fit, the rows themselves.
 */
static uint64_t room(uint64_t rows, uint64_t most_vectors, uint64_t bytes)
{
    uint64_t all = rows * ((most_vectors + AFDEP_LINE_VECTORS - 1) / AFDEP_LINE_VECTORS);
    uint64_t few = 2 * (bytes / 16 / AFDEP_LINE_VECTORS + 1); /* v >= 24: lines are at most v / 24 + 1 <= v / 12 */
    uint64_t least = rows > few ? rows : few;                 /* v < 24: a line a row */
    return all < least ? all : least;
}

int afdep_ll_device_layout_init(afdep_ll_device_layout_t *l, const afdep_ll_shape_t *s)
{
    uint64_t ranks = (uint64_t)s->ranks, tokens = (uint64_t)s->max_tokens, k = (uint64_t)s->top_k, at = 0, bytes;
    uint64_t choices = tokens * k, vectors = (uint64_t)s->hidden / 8, lines, combine_lines;
    memset(l, 0, sizeof(*l));
    lines = room(tokens, vectors, AFDEP_LL_FEW_BYTES);
    combine_lines = room(choices, vectors, AFDEP_LL_FEW_COMBINE_BYTES);
    if (lines > INT32_MAX || combine_lines > INT32_MAX)
        return -1;
    l->line_room = (int32_t)lines;
    l->combine_room = (int32_t)combine_lines;
    l->pieces = (s->hidden / 8 + AFDEP_LL_SUM_VECTORS - 1) / AFDEP_LL_SUM_VECTORS;
    l->row_stride = l->combine_stride = afdep_align_up32(2u * (uint32_t)s->hidden, AFDEP_ROW_ALIGN);
    l->control_bytes = (AFDEP_CONTROL_FABRIC_BYTES + 16u * ranks + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
    if (place(&at, &l->headers, ranks, 16u * AFDEP_LL_HEADER_WORDS) || place(&at, &l->routes, ranks * choices, 8) ||
        place(&at, &l->weights, ranks * choices, 8) || place(&at, &l->combine_words, ranks, 8) ||
        place(&at, &l->row_words, ranks * tokens, 4) || place(&at, &l->piece_words, choices * (uint64_t)l->pieces, 4) ||
        place(&at, &l->lines, ranks * lines, AFDEP_LINE_BYTES) ||
        place(&at, &l->combine_lines, combine_lines, AFDEP_LINE_BYTES) ||
        place(&at, &l->rows, ranks * tokens, l->row_stride) || place(&at, &l->combine_rows, choices, l->combine_stride))
        return -1;
    l->plane_bytes = at;
    if (__builtin_mul_overflow(at, AFDEP_LL_PLANES, &bytes) ||
        __builtin_add_overflow(bytes, l->control_bytes, &bytes) || bytes >> 62)
        return -1;
    l->bytes = bytes;
    return 0;
}
