/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resolved numbers of a buffer, the same on every rank, and who is who. Pure; compiled by the C compiler and by
 * nvcc.
 */
#ifndef AFDEP_PROTOCOL_SHAPE_H
#define AFDEP_PROTOCOL_SHAPE_H

#include <stdint.h>

#ifndef AFDEP_HD
#ifdef __CUDACC__
#define AFDEP_HD __host__ __device__ __forceinline__
#else
#define AFDEP_HD static inline
#endif
#endif

typedef enum afdep_protocol {
    AFDEP_PROTOCOL_DIRECT,     /* one domain: sources store into FFN inboxes */
    AFDEP_PROTOCOL_DIRECTIONAL /* several domains, each of one role: rails, channels, forwarding */
} afdep_protocol_t;

typedef struct afdep_shape {
    int32_t ranks;             /* N = F + A */
    int32_t ffn_ranks;         /* F */
    int32_t attention_ranks;   /* A */
    int32_t ranks_per_domain;  /* D */
    int32_t ffn_domains;       /* M (1 in the direct protocol) */
    int32_t attention_domains; /* S (1 in the direct protocol) */
    int32_t num_experts;       /* E */
    int32_t experts_per_rank;  /* E/F */
    int32_t top_k;             /* K */
    int32_t hidden;            /* H */
    int32_t fp8;               /* dispatched rows: 0 BF16, 1 e4m3 with block-128 scales */
    int32_t capacity;
    int32_t num_sms;
    int32_t channels; /* C */
    int32_t expert_alignment;
    int32_t in_flight; /* G */
    int32_t stagger, sparse_dispatch, sparse_combine;
    int32_t apply_weights, union_buffers;
    afdep_protocol_t protocol;
} afdep_shape_t;

AFDEP_HD int afdep_is_ffn(const afdep_shape_t *s, int rank)
{
    return rank < s->ffn_ranks;
}

AFDEP_HD int afdep_domain_of(const afdep_shape_t *s, int rank)
{
    return rank / s->ranks_per_domain;
}

AFDEP_HD int afdep_rail_of(const afdep_shape_t *s, int rank)
{
    return rank % s->ranks_per_domain;
}

/* The rank on rail `rail` of FFN domain `m`, and of Attention domain `s`. */
AFDEP_HD int afdep_ffn_rank(const afdep_shape_t *s, int m, int rail)
{
    return m * s->ranks_per_domain + rail;
}

AFDEP_HD int afdep_source_rank(const afdep_shape_t *s, int source_domain, int rail)
{
    return s->ffn_ranks + source_domain * s->ranks_per_domain + rail;
}

/* The Attention domain (0 .. S-1) of an Attention rank. */
AFDEP_HD int afdep_source_domain(const afdep_shape_t *s, int rank)
{
    return (rank - s->ffn_ranks) / s->ranks_per_domain;
}

/* The FFN rank that owns expert `e`. */
AFDEP_HD int afdep_expert_owner(const afdep_shape_t *s, int e)
{
    return e / s->experts_per_rank;
}

/* Where a token with expert `e` is sent: an FFN rank in the direct protocol, an FFN domain in the directional one. */
AFDEP_HD int afdep_expert_target(const afdep_shape_t *s, int e)
{
    int owner = afdep_expert_owner(s, e);
    return s->protocol == AFDEP_PROTOCOL_DIRECT ? owner : owner / s->ranks_per_domain;
}

/* Number of such targets. */
AFDEP_HD int afdep_targets(const afdep_shape_t *s)
{
    return s->protocol == AFDEP_PROTOCOL_DIRECT ? s->ffn_ranks : s->ffn_domains;
}

/* Rows an FFN rank may receive for `bucket` tokens at every source, padding included: each token meets at most
   min(K, E/F) experts of one rank. */
AFDEP_HD int64_t afdep_receive_rows(const afdep_shape_t *s, int32_t bucket)
{
    int64_t k = s->top_k < s->experts_per_rank ? s->top_k : s->experts_per_rank;
    int64_t live = (int64_t)s->attention_ranks * bucket * k;
    return live + (int64_t)s->experts_per_rank * (s->expert_alignment - 1);
}

#endif
