/* SPDX-License-Identifier: Apache-2.0 */
#include "low_latency/ll_layout.h"

#include "protocol/layout.h"

#define REGION_ALIGN 4096u /* inboxes start pages of their own */

static int place(uint64_t *at, uint64_t *region, uint64_t count, uint64_t bytes, uint64_t align)
{
    uint64_t size, start;
    if (__builtin_add_overflow(*at, align - 1, &start))
        return -1;
    start = start / align * align;
    *region = start;
    return __builtin_mul_overflow(count, bytes, &size) || __builtin_add_overflow(start, size, at) || *at >> 62 ? -1 : 0;
}

int afdep_ll_layout_init(afdep_ll_layout_t *l, const afdep_ll_shape_t *s)
{
    uint64_t ranks = (uint64_t)s->ranks, tokens = (uint64_t)s->max_tokens, at = 0, plane = 0, bytes, planes;
    uint32_t k = (uint32_t)s->top_k, row = 2u * (uint32_t)s->hidden; /* no format has wider rows than BF16 */
    l->meta_bytes = afdep_align_up32((uint32_t)sizeof(afdep_row_tag_t) + 8u * k, 64);
    l->row_stride = afdep_align_up32(l->meta_bytes + row, AFDEP_ROW_ALIGN);
    /* The row sums read elements in groups of 128; what stands beyond H is read and dropped. */
    l->combine_stride = afdep_align_up32(AFDEP_LL_COMBINE_HEAD + afdep_align_up32(row, 256), AFDEP_ROW_ALIGN);
    l->control_bytes = (AFDEP_CONTROL_FABRIC_BYTES + 16u * ranks + 63) / 64 * 64;
    if (place(&at, &l->dispatch_words, ranks, 8, 64) || place(&at, &l->combine_words, ranks, 8, 64) ||
        place(&at, &l->headers, ranks, AFDEP_LL_HEADER_BYTES, 64) ||
        place(&at, &l->inbox, ranks * tokens, l->row_stride, 64) ||
        place(&at, &l->combine_inbox, tokens * k, l->combine_stride, 64) || place(&at, &plane, 0, 0, REGION_ALIGN))
        return -1;
    l->plane_bytes = plane;
    if (__builtin_mul_overflow(plane, AFDEP_LL_PLANES, &planes) ||
        __builtin_add_overflow(planes, l->control_bytes, &bytes) || bytes >> 62)
        return -1;
    l->bytes = bytes;
    return 0;
}
