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
 * id + 1), 0 in place of id + 1 where nothing is chosen. They go to every FFN rank for every token of the bucket, so
 * that a receiver knows all counts before the first row. Rows: [payload][scales, FP8 only][weights K].
 *
 * Few tokens travel in lines instead, in both directions, and then a row has no words: a line is 32 words of 16 bytes,
 * each of which carries 12 bytes of data and, in its last four, the number of its exchange. It is a third more to
 * carry, and nothing to wait for behind it. Which exchanges do so follows from the bucket, so that all ranks agree and
 * a captured graph stays with it.
 *
 *   FFN rank:        row lines [A][few][lines of a row]     Attention rank:  combine lines [F][few][lines of a reply]
 *
 * Across domains few tokens travel in lines too, on a rail that carries 16-byte words whole (cuda/rail_few.cuh). Such
 * an area stands behind the planes of protocol/layout.h and has planes of its own, 2 * in_flight of them: a rail may be
 * one exchange ahead of a rank of its domain that owes it no reply, as with the two entries of a forward word.
 *
 *   FFN rank:        weights [A][capacity] | row lines [A][few][lines of a row] | choice words [A][few][K / 8] |
 *                    partial lines [D][S][few][lines of a reply]
 *   Attention rank:  combine lines [M][few][lines of a reply]
 */
#ifndef AFDEP_PROTOCOL_DEVICE_H
#define AFDEP_PROTOCOL_DEVICE_H

#include "protocol/row.h"
#include "protocol/shape.h"

#define AFDEP_PIECE 2048 /* elements of a row that share a readiness word */
#define AFDEP_PART 512   /* elements that a warp places or sums at once */

/* Lines. 24 vectors of 16 bytes a line: lane l < 24 carries three quarters of vector l, lane 24 + m the last quarters
   of vectors 3m to 3m + 2. Behind a row's payload stand its tail lines, word i of which carries scale i and weight
   i. */
#define AFDEP_LINE_BYTES 512
#define AFDEP_LINE_VECTORS 24
#define AFDEP_FEW_BYTES (1 << 19) /* of a bucket's rows of BF16, at most; beyond, a third more to carry costs more */
#define AFDEP_FEW_INDICES 1024    /* tokens of all sources at most: every CTA of a receive positions them all */
#define AFDEP_FEW_EXPERTS 512     /* experts of a rank at most, for the same reason */

typedef struct afdep_device_layout {
    uint64_t control_bytes;
    uint64_t plane_bytes;
    uint64_t bytes; /* of the whole segment */
    /* FFN */
    uint64_t route_words, row_words, rows, row_lines, choice_words, partial_lines;
    /* Attention */
    uint64_t answers, combine_words, combine_rows, combine_lines;
    uint32_t pieces; /* of a row: stride of the word arrays */
    int32_t few_tokens, row_line_count, reply_line_count; /* afdep_few_tokens(), lines of a row and of a reply */
    uint32_t row_stride, scale_offset, weight_offset;
    int32_t planes; /* in_flight, or twice that */
} afdep_device_layout_t;

/* Pieces (or parts) of that many elements in a row. */
AFDEP_HD int afdep_pieces(const afdep_shape_t *s, int piece)
{
    return (s->hidden + piece - 1) / piece;
}

/* The largest bucket that travels in lines; 0: none does. */
AFDEP_HD int afdep_few_tokens(const afdep_shape_t *s)
{
    int by_bytes = AFDEP_FEW_BYTES / (2 * s->hidden), by_indices = AFDEP_FEW_INDICES / s->attention_ranks;
    int few = by_bytes < by_indices ? by_bytes : by_indices;
    few = few < s->capacity ? few : s->capacity;
    return s->experts_per_rank <= AFDEP_FEW_EXPERTS ? few : 0;
}

AFDEP_HD int afdep_in_lines(const afdep_shape_t *s, int32_t bucket)
{
    return bucket <= afdep_few_tokens(s);
}

/* 16-byte vectors of a row's payload and of a reply; lines that they take. */
AFDEP_HD int afdep_row_vectors(const afdep_shape_t *s)
{
    return s->hidden * (s->fp8 ? 1 : 2) / 16;
}

AFDEP_HD int afdep_reply_vectors(const afdep_shape_t *s)
{
    return s->hidden / 8;
}

AFDEP_HD int afdep_lines(int vectors)
{
    return (vectors + AFDEP_LINE_VECTORS - 1) / AFDEP_LINE_VECTORS;
}

AFDEP_HD int afdep_scales(const afdep_shape_t *s)
{
    return s->fp8 ? s->hidden / AFDEP_SCALE_BLOCK : 0;
}

AFDEP_HD int afdep_tail_words(const afdep_shape_t *s)
{
    int scales = afdep_scales(s);
    return scales > s->top_k ? scales : s->top_k;
}

AFDEP_HD int afdep_tail_lines(const afdep_shape_t *s)
{
    return (afdep_tail_words(s) + 31) / 32;
}

AFDEP_HD int afdep_row_lines(const afdep_shape_t *s)
{
    return afdep_lines(afdep_row_vectors(s)) + afdep_tail_lines(s);
}

/* Whether a line that carries `vectors` (at most 24) vectors uses a lane's word. */
AFDEP_HD int afdep_line_uses(int lane, int vectors)
{
    return lane < AFDEP_LINE_VECTORS ? lane < vectors : 3 * (lane - AFDEP_LINE_VECTORS) < vectors;
}

/* Ids have 21 bits with none; the upper 11 of the half mark the bucket, so that ranks that were given different ones
   find out instead of waiting for words that never come. */
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

/* Stands in the place of a source's first choice where it uses the ids of the exchange before on the plane again, and
   sends none: no choice looks like it. */
AFDEP_HD uint32_t afdep_route_cached(int32_t bucket)
{
    return (~((uint32_t)bucket * 0x9E3779B1u) & 0xFFE00000u) | 0x001FFFFFu;
}

/* Across domains. A source marks tokens of the bucket that there are not, in the place of an id. */
#define AFDEP_ROUTE_ABSENT 0x001FFFFE

/* Across domains: an id, with its mark of the bucket turned round where the ids of the exchange before on the plane are
   used again. */
AFDEP_HD uint32_t afdep_rail_route_low(int32_t bucket, int32_t id, int cached)
{
    return afdep_route_low(bucket, id) ^ (cached ? 0xFFE00000u : 0);
}

AFDEP_HD int afdep_rail_route_fits(int32_t bucket, uint32_t low, int cached)
{
    return afdep_route_fits(bucket, low ^ (cached ? 0xFFE00000u : 0));
}

/* A rail rank tells another rank of its domain which of its experts a token chose: eight choices a word of 16 bytes,
   ten bits each (expert of that rank + 1; 0: none), three to each 32-bit element, twelve bits that mark the bucket, and
   the number of the exchange. */
#define AFDEP_CHOICES_A_WORD 8

AFDEP_HD int afdep_choice_words(const afdep_shape_t *s)
{
    return (s->top_k + AFDEP_CHOICES_A_WORD - 1) / AFDEP_CHOICES_A_WORD;
}

AFDEP_HD uint32_t afdep_bucket_mark(int32_t bucket)
{
    return (uint32_t)bucket * 0x9E3779B1u & 0xFFF00000u;
}

/* Layout of a segment of either role (with united buffers: of both). Nonzero: a size does not fit into 63 bits. */
int afdep_device_layout_init(afdep_device_layout_t *layout, const afdep_shape_t *shape, int ffn);

/* Layout of the area of few tokens across domains, which begins at `from` (a multiple of 512) of the segment of a rank
   of either role; `control_bytes` is where its planes begin, `bytes` where it ends. Nonzero: as above. */
int afdep_few_layout_init(afdep_device_layout_t *layout, const afdep_shape_t *shape, int ffn, uint64_t from);

#endif
