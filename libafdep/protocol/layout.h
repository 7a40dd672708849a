/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything stands in a rank's segment. A pure function of shape and role, so that every rank knows every
 * other's offsets. Strides come from capacity and row format, never from the bucket.
 *
 * A segment is a control area and `in_flight` planes. Exchange n uses plane (n - 1) mod in_flight.
 *
 *   worker, direct:   count word [A] | inbox rows [A][capacity]
 *   source, direct:   answer word [workers] | combine tail [workers] | combine rows [workers][capacity]
 *   worker, domains:  forward word [D][2] | extents [D][S] | domain inbox rows [capacity][D][S]
 *   forwarder:        count word [S] | finish tail [S][C] | reply word [D] | rail answer [D] |
 *                     rail inbox rows [slots][S][C] | partial rows [capacity][D][S]
 *   source, domains:  witness [M] | combine tail [M][C] | combine rows [M][capacity]
 *
 * A rank's plane holds the regions of its duties (shape.h): an FFN rank of the directional protocol is worker and
 * forwarder, an Attention rank of a shared domain source and forwarder, a symmetric rank all three.
 */
#ifndef AFDEP_PROTOCOL_LAYOUT_H
#define AFDEP_PROTOCOL_LAYOUT_H

#include "protocol/channel.h"
#include "protocol/planted.h"
#include "protocol/row.h"
#include "protocol/shape.h"

/* Control area: the first 64 bytes are the fabric's own, then one closing and one failure word per peer, then one lost
   word per rank, which says that this rank is masked. */
#define AFDEP_CONTROL_FABRIC_BYTES 64u

AFDEP_HD uint64_t afdep_closing_word(int writer)
{
    return AFDEP_CONTROL_FABRIC_BYTES + 16u * (uint64_t)writer;
}

AFDEP_HD uint64_t afdep_failure_word(int writer)
{
    return AFDEP_CONTROL_FABRIC_BYTES + 16u * (uint64_t)writer + 8u;
}

AFDEP_HD uint64_t afdep_lost_word(const afdep_shape_t *s, int rank)
{
    return AFDEP_CONTROL_FABRIC_BYTES + 16u * (uint64_t)s->ranks + 8u * (uint64_t)rank;
}

/* Offsets of the regions of one plane, from the plane's start. Regions of duties that the rank does not have are absent
   unless buffers are united. */
typedef struct afdep_plane_layout {
    /* Direct: worker. Across domains: forwarder */
    uint64_t count_words;   /* u64 [sources] */
    uint64_t inbox;         /* direct: rows [A][capacity]; across domains: rows [slots][S][C] */
    /* Forwarder */
    uint64_t finish_tails;  /* u64 [S][C] */
    uint64_t reply_words;   /* u64 [D] */
    uint64_t rail_answers;  /* u64 [D]; shared domains only */
    uint64_t partials;      /* reply rows [capacity][D][S] */
    /* Worker, across domains */
    uint64_t forward_words; /* u64 [D][2] */
    uint64_t extents;       /* u32 [D][extent_stride] */
    uint64_t domain_inbox;  /* rows [capacity][D][S] */
    /* Source */
    uint64_t witness_words; /* u64 [targets]: answers, done witnesses */
    uint64_t combine_tails; /* u64 [targets][C], or [targets] in the direct protocol */
    uint64_t combine_rows;  /* reply rows [targets][capacity] */
    /* All ranks, with an entry barrier */
    uint64_t barrier_words; /* u64 [D + S]: of the domain by rail, of the rail by domain */
    uint64_t bytes;
} afdep_plane_layout_t;

typedef struct afdep_layout {
    afdep_row_format_t row;
    uint32_t slots;         /* of a channel of a source */
    uint32_t extent_stride; /* u32 between two rails' extents, a multiple of 4 */
    uint64_t control_bytes;
    afdep_plane_layout_t ffn, attention; /* plane of either role; symmetric: the same */
    uint64_t ffn_bytes, attention_bytes; /* whole segments */
} afdep_layout_t;

/* Fills `layout`; nonzero when a size does not fit into 63 bits. */
int afdep_layout_init(afdep_layout_t *layout, const afdep_shape_t *shape);

AFDEP_HD uint64_t afdep_segment_bytes(const afdep_layout_t *l, const afdep_shape_t *s, int rank)
{
    return afdep_is_ffn(s, rank) ? l->ffn_bytes : l->attention_bytes;
}

AFDEP_HD const afdep_plane_layout_t *afdep_plane_of(const afdep_layout_t *l, const afdep_shape_t *s, int rank)
{
    return afdep_is_ffn(s, rank) ? &l->ffn : &l->attention;
}

/* The plane that a peer with a duty has. */
AFDEP_HD const afdep_plane_layout_t *afdep_worker_plane(const afdep_layout_t *l)
{
    return &l->ffn;
}

AFDEP_HD const afdep_plane_layout_t *afdep_source_plane(const afdep_layout_t *l)
{
    return &l->attention;
}

AFDEP_HD const afdep_plane_layout_t *afdep_forwarder_plane(const afdep_layout_t *l, const afdep_shape_t *s)
{
    return afdep_has_shared_domains(s) ? &l->attention : &l->ffn;
}

AFDEP_HD int afdep_plane_index(const afdep_shape_t *s, uint64_t exchange)
{
    return (int)((exchange - 1) % (uint64_t)s->in_flight);
}

/* Which of the two entries of a forward word exchange `exchange` uses: by parity within its plane. */
AFDEP_HD int afdep_plane_parity(const afdep_shape_t *s, uint64_t exchange)
{
    if (AFDEP_PLANTED(ONE_FORWARD_WORD))
        return 0;
    return (int)((exchange - 1) / (uint64_t)s->in_flight & 1);
}

AFDEP_HD uint64_t afdep_plane_start(const afdep_layout_t *l, const afdep_plane_layout_t *p, int plane)
{
    return l->control_bytes + (uint64_t)plane * p->bytes;
}

/* Offsets within a plane. */
AFDEP_HD uint64_t afdep_at_count_word(const afdep_plane_layout_t *p, int source)
{
    return p->count_words + 8u * (uint64_t)source;
}

AFDEP_HD uint64_t afdep_at_finish_tail(const afdep_plane_layout_t *p, const afdep_shape_t *s, int source_domain, int c)
{
    return p->finish_tails + 8u * ((uint64_t)source_domain * (uint32_t)s->channels + (uint32_t)c);
}

AFDEP_HD uint64_t afdep_at_forward_word(const afdep_plane_layout_t *p, int rail, int parity)
{
    return p->forward_words + 8u * (2u * (uint64_t)rail + (uint32_t)parity);
}

AFDEP_HD uint64_t afdep_at_reply_word(const afdep_plane_layout_t *p, int rail)
{
    return p->reply_words + 8u * (uint64_t)rail;
}

AFDEP_HD uint64_t afdep_at_rail_answer(const afdep_plane_layout_t *p, int rail)
{
    return p->rail_answers + 8u * (uint64_t)rail;
}

/* Entry barrier: the word of the rank on rail `rail` of this domain; of the rank of this rail in domain `domain`. */
AFDEP_HD uint64_t afdep_at_domain_barrier(const afdep_plane_layout_t *p, int rail)
{
    return p->barrier_words + 8u * (uint64_t)rail;
}

AFDEP_HD uint64_t afdep_at_rail_barrier(const afdep_plane_layout_t *p, const afdep_shape_t *s, int domain)
{
    return p->barrier_words + 8u * ((uint64_t)(uint32_t)s->ranks_per_domain + (uint64_t)domain);
}

AFDEP_HD uint64_t afdep_at_extents(const afdep_plane_layout_t *p, const afdep_layout_t *l, int rail)
{
    return p->extents + 4u * (uint64_t)rail * l->extent_stride;
}

/* Direct inbox: row `position` of source `a`. */
AFDEP_HD uint64_t afdep_at_direct_row(const afdep_plane_layout_t *p, const afdep_layout_t *l, const afdep_shape_t *s,
                                      int a, int position)
{
    return p->inbox + ((uint64_t)a * (uint32_t)s->capacity + (uint32_t)position) * l->row.stride;
}

/* Rail inbox: row `position` on channel `c` of source domain `source_domain`. Positions run slowest, so that exchanges
   of few tokens, which use the first of every lane, touch few pages. */
AFDEP_HD uint64_t afdep_at_rail_row(const afdep_plane_layout_t *p, const afdep_layout_t *l, const afdep_shape_t *s,
                                    int source_domain, int c, int position)
{
    uint64_t lane = (uint64_t)source_domain * (uint32_t)s->channels + (uint32_t)c;
    uint64_t lanes = (uint64_t)s->attention_domains * (uint32_t)s->channels;
    return p->inbox + ((uint32_t)position * lanes + lane) * l->row.stride;
}

/* Tokens run slowest, for the same reason. */
AFDEP_HD uint64_t afdep_rail_token_index(const afdep_shape_t *s, int rail, int source_domain, int token)
{
    return ((uint64_t)token * (uint32_t)s->ranks_per_domain + (uint32_t)rail) * (uint32_t)s->attention_domains +
           (uint32_t)source_domain;
}

/* Domain inbox: the row of `token` of the source of `source_domain` on `rail`. */
AFDEP_HD uint64_t afdep_at_domain_row(const afdep_plane_layout_t *p, const afdep_layout_t *l, const afdep_shape_t *s,
                                      int rail, int source_domain, int token)
{
    return p->domain_inbox + afdep_rail_token_index(s, rail, source_domain, token) * l->row.stride;
}

/* Partial inbox: what the rank of `rail` sums for `token` of the source of `source_domain` on the owner's rail. */
AFDEP_HD uint64_t afdep_at_partial(const afdep_plane_layout_t *p, const afdep_layout_t *l, const afdep_shape_t *s,
                                   int rail, int source_domain, int token)
{
    return p->partials + afdep_rail_token_index(s, rail, source_domain, token) * l->row.reply_stride;
}

AFDEP_HD uint64_t afdep_at_witness(const afdep_plane_layout_t *p, int target)
{
    return p->witness_words + 8u * (uint64_t)target;
}

/* Channels of combine tails per target: C, or one in the direct protocol. */
AFDEP_HD int afdep_combine_channels(const afdep_shape_t *s)
{
    return s->protocol == AFDEP_PROTOCOL_DIRECT ? 1 : s->channels;
}

AFDEP_HD uint64_t afdep_at_combine_tail(const afdep_plane_layout_t *p, const afdep_shape_t *s, int target, int c)
{
    return p->combine_tails + 8u * ((uint64_t)target * (uint32_t)afdep_combine_channels(s) + (uint32_t)c);
}

AFDEP_HD uint64_t afdep_at_combine_row(const afdep_plane_layout_t *p, const afdep_layout_t *l, const afdep_shape_t *s,
                                       int target, int token)
{
    return p->combine_rows + ((uint64_t)target * (uint32_t)s->capacity + (uint32_t)token) * l->row.reply_stride;
}

#endif
