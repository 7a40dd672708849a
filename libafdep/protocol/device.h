/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct protocol as kernels run it: who is sent what is the same as on the host, where it stands is not. A row's
 * slot is its token, so that no warp waits for a prefix sum before it stores, and rows travel in pieces, each with a
 * readiness word of its own (a 32-bit exchange number), so that a reader starts on what has come.
 *
 * A segment is a control area and `in_flight` planes; exchange n uses plane (n - 1) mod in_flight.
 *
 *   FFN rank:        route word [A][capacity][K] | row word [A][capacity][pieces] | rows [A][capacity]
 *   Attention rank:  answer word [F] | combine word [F][capacity][pieces] | combine rows [F][capacity]
 *
 * A route word is one choice of one token, and its own proof that it has come: (exchange << 32 | mark of the bucket |
 * id + 1), 0 in place of id + 1 where nothing is chosen. They go to every FFN rank for every token of the bucket, so that a
 * receiver knows all counts before the first row. Rows: [payload][scales, FP8 only][weights K].
 */
#ifndef AFDEP_PROTOCOL_DEVICE_H
#define AFDEP_PROTOCOL_DEVICE_H

#include "protocol/row.h"
#include "protocol/shape.h"

#define AFDEP_PIECE_SMALL 512  /* elements of a piece where few tokens shall keep many warps busy */
#define AFDEP_PIECE_LARGE 2048 /* and where many tokens do so by themselves */
#define AFDEP_SMALL_PIECES 512 /* small pieces of a bucket at most; beyond, pieces are large */

typedef struct afdep_device_layout {
    uint64_t control_bytes;
    uint64_t plane_bytes;
    uint64_t bytes; /* of the whole segment */
    /* FFN */
    uint64_t route_words, row_words, rows;
    /* Attention */
    uint64_t answers, combine_words, combine_rows;
    uint32_t pieces; /* most of a row: stride of the word arrays */
    uint32_t row_stride, scale_offset, weight_offset;
} afdep_device_layout_t;

/* Elements of a piece in exchanges of this bucket: the same on all ranks, as the bucket is. */
AFDEP_HD int afdep_pieces(const afdep_shape_t *s, int piece)
{
    return (s->hidden + piece - 1) / piece;
}

AFDEP_HD int afdep_piece_elements(const afdep_shape_t *s, int32_t bucket)
{
    int64_t small = (int64_t)bucket * afdep_pieces(s, AFDEP_PIECE_SMALL);
    return small <= AFDEP_SMALL_PIECES ? AFDEP_PIECE_SMALL : AFDEP_PIECE_LARGE;
}

/* Ids have 21 bits with none; the upper 11 of the half mark the bucket, so that ranks that were given different ones find
   out instead of waiting for words that never come. */
AFDEP_HD uint32_t afdep_route_low(int32_t bucket, int32_t id)
{
    return ((uint32_t)bucket * 0x9E3779B1u & 0xFFE00000u) | (uint32_t)(id + 1);
}

AFDEP_HD int32_t afdep_route_id(uint32_t low)
{
    return (int32_t)(low & 0x001FFFFFu) - 1;
}

AFDEP_HD int afdep_route_fits(int32_t bucket, uint32_t low)
{
    return ((low ^ (uint32_t)bucket * 0x9E3779B1u) & 0xFFE00000u) == 0;
}

/* Layout of a segment of either role (with united buffers: of both). Nonzero: a size does not fit into 63 bits. */
int afdep_device_layout_init(afdep_device_layout_t *layout, const afdep_shape_t *shape, int ffn);

#endif
