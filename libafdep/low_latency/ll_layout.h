/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything of the low-latency API stands in a rank's segment: the same at every rank, a pure function of the
 * configuration. Strides come from the configuration and its largest row, never from an exchange.
 *
 * A segment is a control area and two planes. Exchange n uses plane (n - 1) mod 2:
 *
 *   dispatch word [R] | combine word [R] | header [R] | dispatch inbox [R][M] rows | combine inbox [M][K] rows
 *
 * The first four are written by the rank of their index; the combine row of a token's slot by the rank that owns the
 * expert chosen there. A dispatched token is one row for every rank that owns one of its experts, however many:
 *
 *   dispatch row: [tag][ids K][weights K] pad | [codes][scales]
 *   combine row:  [tag] pad | [BF16 H]
 *
 * Reuse, with nothing cleared: a plane's words and rows of exchange n may be overwritten by exchange n + 2, because
 *
 * 1. the receive of dispatch n joins the words of all ranks, zeros included, and combine n is sent after it;
 * 2. the receive of combine n joins the words of all ranks, and dispatch n + 2 is sent after it;
 * 3. so whoever sends dispatch n + 2 knows that every rank has sent combine n, and has received dispatch n: nothing
 *    reads the dispatch inbox, headers or dispatch words of n any more;
 * 4. whoever sends combine n + 2 has received dispatch n + 2, which every rank sent after it had received combine n:
 *    nothing reads the combine inbox or the combine words of n any more.
 *
 * While the calls of two exchanges do not mix, 1 and 3 alone would do: dispatch n + 1 joins all ranks before n + 2
 * comes. With both dispatched before either is combined, only 2 keeps a rank that chose no expert of another from
 * running ahead of it.
 *
 * Words carry (exchange << 32 | rows): one that holds neither n nor n - 2 was written by no correct peer.
 */
#ifndef AFDEP_LOW_LATENCY_LL_LAYOUT_H
#define AFDEP_LOW_LATENCY_LL_LAYOUT_H

#include "protocol/row.h"

#define AFDEP_LL_PLANES 2
#define AFDEP_LL_HEADER_BYTES 64u
#define AFDEP_LL_COMBINE_HEAD 64u /* of a combine row: the tag, padded so that the elements start a cache line */
#define AFDEP_LL_TOPK_MOST 32
#define AFDEP_LL_BLOCKS_AT_ONCE 64 /* scales that go through a small array on their way to e8m0 */

/* The largest of any exchange, and the world. */
typedef struct afdep_ll_shape {
    int32_t ranks;      /* R */
    int32_t max_tokens; /* M */
    int32_t hidden;     /* H */
    int32_t top_k;      /* K */
    int32_t experts;    /* E */
} afdep_ll_shape_t;

typedef struct afdep_ll_layout {
    uint32_t meta_bytes;     /* tag, ids and weights of a dispatch row */
    uint32_t row_stride, combine_stride;
    uint64_t control_bytes, plane_bytes;
    /* From the plane's start. */
    uint64_t dispatch_words, combine_words, headers, inbox, combine_inbox;
    uint64_t bytes; /* of the segment */
} afdep_ll_layout_t;

/* What a source says of its dispatch, once to each rank. */
typedef struct afdep_ll_header {
    uint32_t exchange;
    int32_t max_tokens, experts, hidden, top_k, format, weights, tokens;
    int32_t reserved[8];
} afdep_ll_header_t;

#ifndef __cplusplus
_Static_assert(sizeof(afdep_ll_header_t) == AFDEP_LL_HEADER_BYTES, "headers fill their places");
#endif

/* Fills `layout`; nonzero when a size does not fit into 63 bits. */
int afdep_ll_layout_init(afdep_ll_layout_t *layout, const afdep_ll_shape_t *shape);

AFDEP_HD int afdep_ll_plane_index(uint64_t exchange)
{
    return (int)((exchange - 1) % AFDEP_LL_PLANES);
}

AFDEP_HD uint64_t afdep_ll_plane_start(const afdep_ll_layout_t *l, int plane)
{
    return l->control_bytes + (uint64_t)plane * l->plane_bytes;
}

/* Offsets within a plane. */
AFDEP_HD uint64_t afdep_ll_at_dispatch_word(const afdep_ll_layout_t *l, int source)
{
    return l->dispatch_words + 8u * (uint64_t)source;
}

AFDEP_HD uint64_t afdep_ll_at_combine_word(const afdep_ll_layout_t *l, int owner)
{
    return l->combine_words + 8u * (uint64_t)owner;
}

AFDEP_HD uint64_t afdep_ll_at_header(const afdep_ll_layout_t *l, int source)
{
    return l->headers + (uint64_t)AFDEP_LL_HEADER_BYTES * (uint64_t)source;
}

AFDEP_HD uint64_t afdep_ll_at_row(const afdep_ll_layout_t *l, const afdep_ll_shape_t *s, int source, uint32_t position)
{
    return l->inbox + ((uint64_t)source * (uint32_t)s->max_tokens + position) * l->row_stride;
}

AFDEP_HD uint64_t afdep_ll_at_combine_row(const afdep_ll_layout_t *l, const afdep_ll_shape_t *s, uint32_t token,
                                          uint32_t slot)
{
    return l->combine_inbox + ((uint64_t)token * (uint32_t)s->top_k + slot) * l->combine_stride;
}

#endif
