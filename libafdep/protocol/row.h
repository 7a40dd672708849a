/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a row looks like on the wire and in an inbox.
 *
 * Dispatch row: [payload H][scales H/128, FP8 only][tag][ids K][weights K], one contiguous put.
 * Reply row:    [BF16 H][tag], written by a rank to its rail rank (a partial) or to the source (the domain's sum).
 * Packed reply: [e4m3 H][scale exponents H/128][tag], a domain's sum where FP8 combine is on; it fits a reply row's
 *               slot.
 *
 * The tag says which exchange and token a slot holds, so that a put that was lost, or came late, is a named error and
 * never a wrong value.
 */
#ifndef AFDEP_PROTOCOL_ROW_H
#define AFDEP_PROTOCOL_ROW_H

#include "protocol/shape.h"

#define AFDEP_ROW_ALIGN 128u
#define AFDEP_SCALE_BLOCK 128

typedef struct afdep_row_tag {
    uint32_t exchange;
    uint32_t token;
    uint32_t source; /* rank */
    uint32_t mark;   /* AFDEP_ROW_MARK and, of dispatched rows, the age of their ids in exchanges: cached routing is not
                        taken for another's. Fresh memory is no row of exchange 0 (or 2^32), token 0 of rank 0 */
} afdep_row_tag_t;

#define AFDEP_ROW_MARK 0x726F7761u

/* 2^31 and more: not a row's mark. */
AFDEP_HD uint32_t afdep_row_age(const afdep_row_tag_t *tag)
{
    return tag->mark - AFDEP_ROW_MARK;
}

AFDEP_HD afdep_row_tag_t afdep_row_tag(uint64_t exchange, uint32_t token, int source)
{
    afdep_row_tag_t tag = { (uint32_t)exchange, token, (uint32_t)source, AFDEP_ROW_MARK };
    return tag;
}

typedef struct afdep_row_format {
    uint32_t payload_bytes;
    uint32_t scale_offset, scale_bytes; /* scale_bytes 0: BF16 */
    uint32_t tag_offset;
    uint32_t ids_offset, weights_offset;
    uint32_t bytes;  /* of a dispatch row's put, a multiple of 16 */
    uint32_t stride; /* of its slots, a multiple of AFDEP_ROW_ALIGN */
    uint32_t reply_payload_bytes, reply_tag_offset, reply_bytes, reply_stride; /* the same of a reply row */
    uint32_t packed_scale_offset, packed_tag_offset, packed_bytes; /* of a packed one; its slots are a reply row's */
} afdep_row_format_t;

AFDEP_HD uint32_t afdep_align_up32(uint32_t value, uint32_t to)
{
    return (value + to - 1) / to * to;
}

AFDEP_HD afdep_row_format_t afdep_row_format(const afdep_shape_t *s)
{
    afdep_row_format_t f;
    uint32_t h = (uint32_t)s->hidden, k = (uint32_t)s->top_k;
    f.payload_bytes = s->fp8 ? h : 2 * h;
    f.scale_offset = f.payload_bytes;
    f.scale_bytes = s->fp8 ? h / AFDEP_SCALE_BLOCK * 4 : 0;
    f.tag_offset = afdep_align_up32(f.scale_offset + f.scale_bytes, 16);
    f.ids_offset = f.tag_offset + (uint32_t)sizeof(afdep_row_tag_t);
    f.weights_offset = f.ids_offset + 4 * k;
    f.bytes = afdep_align_up32(f.weights_offset + 4 * k, 16);
    f.stride = afdep_align_up32(f.bytes, AFDEP_ROW_ALIGN);
    f.reply_payload_bytes = 2 * h;
    f.reply_tag_offset = 2 * h;
    f.reply_bytes = f.reply_tag_offset + (uint32_t)sizeof(afdep_row_tag_t);
    f.reply_stride = afdep_align_up32(f.reply_bytes, AFDEP_ROW_ALIGN);
    f.packed_scale_offset = h;
    f.packed_tag_offset = afdep_align_up32(h + h / AFDEP_SCALE_BLOCK, 16);
    f.packed_bytes = f.packed_tag_offset + (uint32_t)sizeof(afdep_row_tag_t);
    return f;
}

#endif
