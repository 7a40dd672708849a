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
    AFDEP_PROTOCOL_DIRECT,      /* one domain: sources store into workers' inboxes */
    AFDEP_PROTOCOL_DIRECTIONAL, /* several domains, each of one role: rails, channels, forwarding */
    AFDEP_PROTOCOL_UNION,       /* several domains that hold both roles: every domain sources and forwards */
    AFDEP_PROTOCOL_MIXED        /* the same, and what stays in a domain uses no rail inbox */
} afdep_protocol_t;

typedef struct afdep_shape {
    int32_t ranks;             /* N = F + A */
    int32_t ffn_ranks;         /* F; 0: symmetric, every rank is both */
    int32_t attention_ranks;   /* A, the sources; symmetric: N */
    int32_t ranks_per_domain;  /* D */
    int32_t ffn_domains;       /* M (1 in the direct protocol): domains with workers */
    int32_t attention_domains; /* S (1 in the direct protocol): domains with sources */
    int32_t num_experts;       /* E */
    int32_t experts_per_rank;  /* E over the workers */
    int32_t top_k;             /* K */
    int32_t hidden;            /* H */
    int32_t fp8;               /* dispatched rows: 0 BF16, 1 e4m3 with block-128 scales */
    int32_t capacity;
    int32_t num_sms;
    int32_t channels; /* C */
    int32_t expert_alignment;
    int32_t in_flight; /* G */
    int32_t stagger, sparse_dispatch, sparse_combine;
    int32_t entry_barrier; /* symmetric only: dispatch begins with a barrier, which stands in for the witnesses */
    int32_t apply_weights, union_buffers;
    int32_t survive_sources;        /* a lost source is masked, and the others go on */
    int32_t fp8_combine;            /* the domains' sums travel as e4m3; directional only */
    int32_t fp8_combine_min_bucket; /* from this bucket on */
    afdep_protocol_t protocol;
} afdep_shape_t;

AFDEP_HD int afdep_is_ffn(const afdep_shape_t *s, int rank)
{
    return rank < s->ffn_ranks;
}

AFDEP_HD int afdep_is_symmetric(const afdep_shape_t *s)
{
    return s->ffn_ranks == 0;
}

/* ---- Duties: a source has tokens, a worker owns experts, a forwarder hands on what comes over its rail ---------- */

AFDEP_HD int afdep_is_source(const afdep_shape_t *s, int rank)
{
    return rank >= s->ffn_ranks;
}

AFDEP_HD int afdep_is_worker(const afdep_shape_t *s, int rank)
{
    return afdep_is_symmetric(s) || rank < s->ffn_ranks;
}

AFDEP_HD int afdep_workers(const afdep_shape_t *s)
{
    return afdep_is_symmetric(s) ? s->ranks : s->ffn_ranks;
}

/* Whether domains hold FFN and Attention ranks, each rank being one of the two. */
AFDEP_HD int afdep_has_shared_domains(const afdep_shape_t *s)
{
    return !afdep_is_symmetric(s) &&
           (s->protocol == AFDEP_PROTOCOL_UNION || s->protocol == AFDEP_PROTOCOL_MIXED);
}

/* Rails lead from source to source where domains are shared: there an Attention rank forwards, and an FFN rank, whose
   rail has no source, does not. */
AFDEP_HD int afdep_is_forwarder(const afdep_shape_t *s, int rank)
{
    if (s->protocol == AFDEP_PROTOCOL_DIRECT)
        return 0;
    return afdep_has_shared_domains(s) ? afdep_is_source(s, rank) : afdep_is_worker(s, rank);
}

/* ---- Places. A shared domain holds F/M FFN ranks, on its first rails, and then its Attention ranks: FFN ranks come
   first in the numbering of ranks all the same, so that there a domain is no range of ranks. ----------------------- */

/* The rails of a domain with workers: 0 .. this - 1. */
AFDEP_HD int afdep_worker_rails(const afdep_shape_t *s)
{
    return afdep_has_shared_domains(s) ? s->ffn_ranks / s->ffn_domains : s->ranks_per_domain;
}

/* The rails with forwarders: this .. D - 1. */
AFDEP_HD int afdep_first_forwarder_rail(const afdep_shape_t *s)
{
    return afdep_has_shared_domains(s) ? s->ffn_ranks / s->ffn_domains : 0;
}

AFDEP_HD int afdep_domain_of(const afdep_shape_t *s, int rank)
{
    if (!afdep_has_shared_domains(s))
        return rank / s->ranks_per_domain;
    int workers = afdep_worker_rails(s);
    return rank < s->ffn_ranks ? rank / workers : (rank - s->ffn_ranks) / (s->ranks_per_domain - workers);
}

AFDEP_HD int afdep_rail_of(const afdep_shape_t *s, int rank)
{
    if (!afdep_has_shared_domains(s))
        return rank % s->ranks_per_domain;
    int workers = afdep_worker_rails(s);
    return rank < s->ffn_ranks ? rank % workers
                               : workers + (rank - s->ffn_ranks) % (s->ranks_per_domain - workers);
}

/* The rank on rail `rail` of the m-th domain with workers: it works, forwards, or both. */
AFDEP_HD int afdep_ffn_rank(const afdep_shape_t *s, int m, int rail)
{
    if (!afdep_has_shared_domains(s))
        return m * s->ranks_per_domain + rail;
    int workers = afdep_worker_rails(s);
    return rail < workers ? m * workers + rail
                          : s->ffn_ranks + m * (s->ranks_per_domain - workers) + rail - workers;
}

/* The source on rail `rail` of the source_domain-th domain with sources. */
AFDEP_HD int afdep_source_rank(const afdep_shape_t *s, int source_domain, int rail)
{
    if (afdep_has_shared_domains(s))
        return afdep_ffn_rank(s, source_domain, rail);
    return s->ffn_ranks + source_domain * s->ranks_per_domain + rail;
}

/* The domain of a source, counted among those with sources (0 .. S-1). */
AFDEP_HD int afdep_source_domain(const afdep_shape_t *s, int rank)
{
    if (afdep_has_shared_domains(s))
        return afdep_domain_of(s, rank);
    return (rank - s->ffn_ranks) / s->ranks_per_domain;
}

/* The worker that owns expert `e`. */
AFDEP_HD int afdep_expert_owner(const afdep_shape_t *s, int e)
{
    return e / s->experts_per_rank;
}

/* Where a token with expert `e` is sent: a worker in the direct protocol, else a domain with workers. */
AFDEP_HD int afdep_expert_target(const afdep_shape_t *s, int e)
{
    int owner = afdep_expert_owner(s, e);
    return s->protocol == AFDEP_PROTOCOL_DIRECT ? owner : afdep_domain_of(s, owner);
}

/* Whether the replies of an exchange are packed: the same on all ranks, as the bucket is. */
AFDEP_HD int afdep_packs_replies(const afdep_shape_t *s, int32_t bucket)
{
    return s->fp8_combine && bucket >= s->fp8_combine_min_bucket;
}

/* Number of such targets. */
AFDEP_HD int afdep_targets(const afdep_shape_t *s)
{
    return s->protocol == AFDEP_PROTOCOL_DIRECT ? afdep_workers(s) : s->ffn_domains;
}

/* Whether a source is told that what it sent was read, before it writes there again: by answers in the direct protocol,
   by done witnesses across domains. Otherwise it learns the same from the entry barrier, or from combine signals on
   all channels. */
AFDEP_HD int afdep_has_witnesses(const afdep_shape_t *s)
{
    return !s->entry_barrier && (s->protocol == AFDEP_PROTOCOL_DIRECT || s->sparse_combine);
}

/* Whether combine signals go out where nothing was sent too. With roles in one domain they never do. */
AFDEP_HD int afdep_combines_everywhere(const afdep_shape_t *s)
{
    return !s->sparse_combine && (s->protocol != AFDEP_PROTOCOL_DIRECT || afdep_is_symmetric(s));
}

/* "direct", "directional", ...: static storage. */
static inline const char *afdep_protocol_name(const afdep_shape_t *s)
{
    static const char *const names[] = { "direct", "directional", "union", "mixed" };
    if (afdep_is_symmetric(s))
        return s->protocol == AFDEP_PROTOCOL_DIRECT ? "symmetric" : "symmetric-hybrid";
    return names[s->protocol];
}

/* Rows a worker may receive for `bucket` tokens at every source, padding included: each token meets at most
   min(K, E/F) experts of one rank. */
AFDEP_HD int64_t afdep_receive_rows(const afdep_shape_t *s, int32_t bucket)
{
    int64_t k = s->top_k < s->experts_per_rank ? s->top_k : s->experts_per_rank;
    int64_t live = (int64_t)s->attention_ranks * bucket * k;
    return live + (int64_t)s->experts_per_rank * (s->expert_alignment - 1);
}

#endif
