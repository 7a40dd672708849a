/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Baselines that move packed rows: by MPI collectives (alltoallv.c), by NCCL's sends and receives (nccl_p2p.c). Sizes
 * and state of both, and their local work (alltoallv_rows.c: packing, expert layout and sums).
 */
#ifndef AFDEP_BENCH_ALLTOALLV_H
#define AFDEP_BENCH_ALLTOALLV_H

#include "bench/bench_plan.h"
#include "numerics/numerics.h"

/* Rows on the wire: payload [H], scales [H/128] (FP8), ids [K], weights [K], token; 16-byte multiples. */
typedef struct afdep_a2a_row {
    size_t payload, scales; /* bytes */
    size_t scales_at, ids_at, weights_at, token_at;
    size_t bytes;
    size_t reply; /* bytes of a reply row */
} afdep_a2a_row_t;

typedef struct afdep_a2a {
    int rank, ranks, ffn_ranks, attention_ranks;
    int domain_workers, domains; /* FFN ranks of a domain that holds any, and such domains */
    int experts, top_k, hidden, fp8, alignment;
    int most_owners;  /* FFN ranks a token can need; choices that one FFN rank can serve is most_here */
    int most_here;
    const afdep_row_ops_t *ops;
    afdep_a2a_row_t row;
    int *send_counts, *recv_counts, *send_at, *recv_at; /* [ranks], in rows */
    unsigned char *wire; /* rows sent (Attention) or received (FFN) */
    uint16_t *replies;   /* reply rows received (Attention) or sent (FFN) */
    afdep_term_t *terms;
    /* Attention ranks. */
    int tokens;
    int *owner_counts; /* [bucket] */
    int *owners;       /* [bucket][most_owners], ascending */
    int *cursors;      /* [ffn_ranks] */
    uint16_t *partials; /* [domains][H] */
    /* FFN ranks. */
    int rows;          /* received in this exchange */
    int *place_counts; /* [rows] */
    int *places;       /* [rows][most_here]: where the row stands in the expert layout, in slot order */
    int *next;         /* [experts] */
    void **destinations; /* [max(most_owners, most_here)] */
} afdep_a2a_t;

/* Sizes for a plan; no memory yet. */
void afdep_a2a_shape(afdep_a2a_t *a, const afdep_bench_plan_t *plan, int rank);

/* Arrays for exchanges of at most `bucket` tokens. 0, or -1 without memory. */
int afdep_a2a_allocate(afdep_a2a_t *a, int bucket);
void afdep_a2a_free(afdep_a2a_t *a);

/* Bytes that afdep_a2a_allocate() takes at an FFN (1) or Attention rank (0). */
uint64_t afdep_a2a_bytes(const afdep_a2a_t *a, int ffn, int bucket);

/* Rows on the wire at most, and a path's `memory`. */
size_t afdep_a2a_wire_rows(const afdep_a2a_t *a, int ffn, int bucket);
afdep_status_t afdep_a2a_memory(const afdep_bench_plan_t *plan, int bucket, afdep_memory_t *memory);

/* First places from counts; returns their sum. */
int afdep_a2a_prefix(int *at, const int *counts, int ranks);

/* Adds rows of `row` bytes to what this rank has sent to each peer. */
void afdep_a2a_count_sent(const afdep_a2a_t *a, afdep_counters_t *sent, const int *counts, size_t row);

/* Attention: counts rows per FFN rank into send_counts; then, with send_at set, packs them. */
void afdep_a2a_count(afdep_a2a_t *a, const afdep_dispatch_t *dispatch);
void afdep_a2a_pack(afdep_a2a_t *a, const afdep_dispatch_t *dispatch);

/* FFN: lays the received rows out by expert. CAPACITY when the caller's tensors are too small. */
afdep_status_t afdep_a2a_lay_out(afdep_a2a_t *a, afdep_receive_t *receive);

/* FFN: sums each received row's replies. */
void afdep_a2a_sum_replies(afdep_a2a_t *a, const uint16_t *rows);

/* Attention: sums each token's reply rows, by domain, then over domains. */
void afdep_a2a_sum_tokens(afdep_a2a_t *a, uint16_t *out);

#endif
