/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The direct protocol as kernels run it: who is sent what is the same as on the host, where it stands is not. A row's
 * slot is its token, so that no warp waits for a prefix sum before it stores, and rows travel in pieces, each with a
 * readiness word of its own (a 32-bit exchange number), so that a reader starts on what has come.
 *
 * A segment is a control area and `in_flight` planes; exchange n uses plane (n - 1) mod in_flight.
 *
 *   FFN rank:        route word [A][batches] | row word [A][capacity][pieces] | ids [A][capacity][K] |
 *                    weights [A][capacity][K] | rows [A][capacity]
 *   Attention rank:  answer word [F] | combine word [F][capacity][pieces] | combine rows [F][capacity]
 *
 * Route words (exchange << 32 | T) publish the ids and weights of a batch of tokens; they go to every FFN rank for every
 * batch of the bucket, so that a receiver knows all counts before the first row. Rows: [payload][scales, FP8 only].
 */
#ifndef AFDEP_PROTOCOL_DEVICE_H
#define AFDEP_PROTOCOL_DEVICE_H

#include "protocol/row.h"
#include "protocol/shape.h"

#define AFDEP_ROUTE_BATCH 32   /* tokens under one route word */
#define AFDEP_PIECE_SMALL 512  /* elements of a piece where few tokens shall keep many warps busy */
#define AFDEP_PIECE_LARGE 2048 /* and where many tokens do so by themselves */
#define AFDEP_SMALL_BUCKET 128

typedef struct afdep_device_layout {
    uint64_t control_bytes;
    uint64_t plane_bytes;
    uint64_t bytes; /* of the whole segment */
    /* FFN */
    uint64_t route_words, row_words, ids, weights, rows;
    /* Attention */
    uint64_t answers, combine_words, combine_rows;
    uint32_t batches, pieces; /* most of either: strides of the word arrays */
    uint32_t row_stride, scale_offset;
} afdep_device_layout_t;

/* Elements of a piece in exchanges of this bucket: the same on all ranks, as the bucket is. */
AFDEP_HD int afdep_piece_elements(int32_t bucket)
{
    return bucket <= AFDEP_SMALL_BUCKET ? AFDEP_PIECE_SMALL : AFDEP_PIECE_LARGE;
}

AFDEP_HD int afdep_pieces(const afdep_shape_t *s, int piece)
{
    return (s->hidden + piece - 1) / piece;
}

AFDEP_HD int afdep_route_batches(int32_t bucket)
{
    return (bucket + AFDEP_ROUTE_BATCH - 1) / AFDEP_ROUTE_BATCH;
}

/* Layout of a segment of either role (with united buffers: of both). Nonzero: a size does not fit into 63 bits. */
int afdep_device_layout_init(afdep_device_layout_t *layout, const afdep_shape_t *shape, int ffn);

#endif
