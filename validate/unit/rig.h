/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of small exchanges whose results are known by heart, for tests of what goes wrong. A token's payload is one
 * small whole number in every element, its weights are 1, and FFN ranks reply with the rows they received: the result
 * is the number times the choices that were served, exact in BF16.
 */
#ifndef AFDEP_VALIDATE_UNIT_RIG_H
#define AFDEP_VALIDATE_UNIT_RIG_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

#define RIG_HIDDEN 256
#define RIG_CAPACITY 16
#define RIG_TOP_K 2
#define RIG_EXPERTS 8
#define RIG_MOST_ROWS 512

typedef struct rig {
    afdep_buffer_t *buffer;
    int rank, ffn;
    int32_t ids[RIG_CAPACITY][RIG_TOP_K];
    float weights[RIG_CAPACITY][RIG_TOP_K];
    _Alignas(64) uint16_t x[RIG_CAPACITY][RIG_HIDDEN];
    _Alignas(64) uint16_t out[RIG_CAPACITY][RIG_HIDDEN];
    _Alignas(64) uint16_t rows[RIG_MOST_ROWS][RIG_HIDDEN];
    float row_weight[RIG_MOST_ROWS];
    int32_t ends[RIG_EXPERTS], host_counts[RIG_EXPERTS];
    afdep_receipt_t receipt;
    int64_t row_count;
} rig_t;

/* `per_domain` 0: one domain. */
static inline afdep_config_t rig_config(int ffn, int per_domain, int timeout_ms)
{
    afdep_config_t c = AFDEP_CONFIG_INIT;
    c.ffn_ranks = ffn;
    c.ranks_per_domain = per_domain;
    c.num_experts = RIG_EXPERTS;
    c.top_k = RIG_TOP_K;
    c.hidden = RIG_HIDDEN;
    c.capacity = RIG_CAPACITY;
    c.num_sms = 1;
    c.timeout_ms = timeout_ms;
    return c;
}

/* The number of a rank's token, 1 .. 100. */
static inline int rig_value(int rank, int token)
{
    return 1 + (rank * 31 + token * 7) % 100;
}

static inline uint16_t rig_bf16(int value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

/* A rank's tensors, for a buffer that is opened apart. */
static inline rig_t *rig_new(int rank, int ffn)
{
    rig_t *rig = aligned_alloc(64, (sizeof(rig_t) + 63) / 64 * 64);
    if (!rig)
        abort();
    memset(rig, 0, sizeof(*rig));
    rig->rank = rank;
    rig->ffn = ffn;
    for (int t = 0; t < RIG_CAPACITY; t++) {
        for (int k = 0; k < RIG_TOP_K; k++) {
            rig->ids[t][k] = (rank + 3 * t + 4 * k) % RIG_EXPERTS;
            rig->weights[t][k] = 1;
        }
        for (int i = 0; i < RIG_HIDDEN; i++)
            rig->x[t][i] = rig_bf16(rig_value(rank, t));
    }
    return rig;
}

/* Opens a rank; NULL where that fails, with the status. */
static inline rig_t *rig_open(const afdep_group_t *group, const afdep_config_t *config, afdep_status_t *status)
{
    rig_t *rig = rig_new(group->rank, group->rank < config->ffn_ranks);
    *status = afdep_buffer_open(group, config, &rig->buffer);
    if (*status == AFDEP_OK)
        return rig;
    free(rig);
    return NULL;
}

static inline afdep_status_t rig_close(rig_t *rig)
{
    afdep_status_t status = afdep_buffer_close(rig->buffer);
    free(rig);
    return status;
}

static inline afdep_dispatch_t rig_dispatch_args(rig_t *rig, int bucket, int tokens)
{
    afdep_dispatch_t d = AFDEP_DISPATCH_INIT;
    d.tokens = tokens;
    d.bucket = bucket;
    d.x = rig->x;
    d.ids = rig->ids[0];
    d.weights = rig->weights[0];
    return d;
}

static inline afdep_receive_t rig_receive_args(rig_t *rig, int bucket)
{
    afdep_receive_t r = AFDEP_RECEIVE_INIT;
    r.bucket = bucket;
    r.rows = rig->rows;
    r.row_weight = rig->row_weight;
    r.ends = rig->ends;
    r.rows_capacity = RIG_MOST_ROWS;
    return r;
}

static inline afdep_status_t rig_dispatch(rig_t *rig, int bucket, int tokens)
{
    afdep_dispatch_t d = rig_dispatch_args(rig, bucket, tokens);
    return afdep_source_dispatch(rig->buffer, &d, NULL);
}

static inline afdep_status_t rig_receive(rig_t *rig, int bucket)
{
    afdep_receive_t r = rig_receive_args(rig, bucket);
    afdep_status_t status = afdep_worker_receive(rig->buffer, &r, NULL);
    if (status == AFDEP_OK) {
        rig->receipt = r.receipt;
        rig->row_count = r.row_count;
    }
    return status;
}

static inline afdep_status_t rig_reply(rig_t *rig)
{
    afdep_reply_t r = AFDEP_REPLY_INIT;
    r.rows = rig->rows;
    r.receipt = rig->receipt;
    return afdep_worker_reply(rig->buffer, &r, NULL);
}

static inline afdep_status_t rig_collect(rig_t *rig)
{
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    c.out = rig->out;
    memset(rig->out, 0xA5, sizeof(rig->out));
    return afdep_source_collect(rig->buffer, &c, NULL);
}

/* Dispatch or receive; collect or reply. */
static inline afdep_status_t rig_first(rig_t *rig, int bucket, int tokens)
{
    return rig->ffn ? rig_receive(rig, bucket) : rig_dispatch(rig, bucket, tokens);
}

static inline afdep_status_t rig_second(rig_t *rig)
{
    return rig->ffn ? rig_reply(rig) : rig_collect(rig);
}

/* The first token of `tokens` whose result is wrong, or -1. */
static inline int rig_wrong_token(const rig_t *rig, int tokens)
{
    for (int t = 0; t < tokens; t++) {
        int served = 0;
        for (int k = 0; k < RIG_TOP_K; k++) {
            int id = rig->ids[t][k], live = id >= 0 && id < RIG_EXPERTS;
            for (int j = 0; j < k; j++)
                live &= rig->ids[t][j] != id;
            served += live;
        }
        for (int i = 0; i < RIG_HIDDEN; i++)
            if (rig->out[t][i] != rig_bf16(served * rig_value(rig->rank, t)))
                return t;
    }
    return -1;
}

#endif
