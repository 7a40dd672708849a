/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local work of the MPI baseline: as good as can be written with one copy per hop, so that what is compared is the
 * exchange. The sums follow the library's numeric rules, so that the results are the same bits.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/alltoallv.h"

#include <stdlib.h>
#include <string.h>

static size_t round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* ---- Sizes and memory ---------------------------------------------------------------------------------------- */

static void shape_row(afdep_a2a_t *a)
{
    afdep_a2a_row_t *row = &a->row;
    size_t k = (size_t)a->top_k * 4;
    row->payload = (size_t)a->hidden * (a->fp8 ? 1 : 2);
    row->scales = a->fp8 ? (size_t)a->hidden / 128 * sizeof(float) : 0;
    row->scales_at = row->payload;
    row->ids_at = row->scales_at + row->scales;
    row->weights_at = row->ids_at + k;
    row->token_at = row->weights_at + k;
    row->bytes = round_up(row->token_at + sizeof(int32_t), 16);
    row->reply = (size_t)a->hidden * sizeof(uint16_t);
}

void afdep_a2a_shape(afdep_a2a_t *a, const afdep_bench_plan_t *plan, int rank)
{
    const afdep_scenario_t *s = &plan->scenario;
    memset(a, 0, sizeof(*a));
    a->rank = rank;
    a->ranks = plan->ranks;
    a->ffn_ranks = s->ffn_ranks;
    a->attention_ranks = s->attention_ranks;
    a->domain_workers = afdep_scenario_domain_workers(s);
    a->domains = (s->ffn_ranks - 1) / a->domain_workers + 1;
    a->experts = s->num_experts / s->ffn_ranks;
    a->top_k = s->top_k;
    a->hidden = s->hidden;
    a->fp8 = s->dtype == AFDEP_DTYPE_FP8;
    a->alignment = s->expert_alignment;
    a->most_owners = least(s->top_k, s->ffn_ranks);
    a->most_here = least(s->top_k, a->experts);
    a->ops = afdep_row_ops(NULL);
    shape_row(a);
}

size_t afdep_a2a_wire_rows(const afdep_a2a_t *a, int ffn, int bucket)
{
    return (size_t)bucket * (size_t)(ffn ? a->attention_ranks : a->most_owners);
}

uint64_t afdep_a2a_bytes(const afdep_a2a_t *a, int ffn, int bucket)
{
    return afdep_a2a_wire_rows(a, ffn, bucket) *
               (a->row.bytes + a->row.reply + sizeof(int) * (size_t)(1 + a->most_here)) +
           (size_t)a->ranks * 4 * sizeof(int);
}

afdep_status_t afdep_a2a_memory(const afdep_bench_plan_t *plan, int bucket, afdep_memory_t *memory)
{
    const afdep_scenario_t *s = &plan->scenario;
    afdep_a2a_t a;
    afdep_a2a_shape(&a, plan, 0);
    *memory = (afdep_memory_t){ .struct_size = sizeof(*memory) };
    memory->ffn_private = afdep_a2a_bytes(&a, 1, bucket);
    memory->attention_private = afdep_a2a_bytes(&a, 0, bucket);
    memory->receive_rows = (int64_t)s->attention_ranks * bucket * a.most_here +
                           (int64_t)a.experts * (s->expert_alignment - 1);
    uint64_t row = a.row.payload + a.row.scales + sizeof(float) + 2 * sizeof(int32_t);
    memory->receive_bytes = (uint64_t)memory->receive_rows * row;
    memory->reply_bytes = (uint64_t)memory->receive_rows * a.row.reply;
    return AFDEP_OK;
}

int afdep_a2a_prefix(int *at, const int *counts, int ranks)
{
    int sum = 0;
    for (int r = 0; r < ranks; r++) {
        at[r] = sum;
        sum += counts[r];
    }
    return sum;
}

void afdep_a2a_count_sent(const afdep_a2a_t *a, afdep_counters_t *sent, const int *counts, size_t row)
{
    for (int r = 0; r < a->ranks; r++) {
        sent[r].puts += (uint64_t)counts[r];
        sent[r].put_bytes += (uint64_t)counts[r] * row;
    }
}

static void *allocate(size_t count, size_t size)
{
    return aligned_alloc(64, round_up((count ? count : 1) * size, 64));
}

int afdep_a2a_allocate(afdep_a2a_t *a, int bucket)
{
    int ffn = a->rank < a->ffn_ranks;
    size_t ranks = (size_t)a->ranks, rows = afdep_a2a_wire_rows(a, ffn, bucket), tokens = (size_t)bucket;
    a->send_counts = calloc(ranks, sizeof(int));
    a->recv_counts = calloc(ranks, sizeof(int));
    a->send_at = calloc(ranks, sizeof(int));
    a->recv_at = calloc(ranks, sizeof(int));
    a->wire = allocate(rows, a->row.bytes);
    a->replies = allocate(rows, a->row.reply);
    a->terms = allocate((size_t)(a->top_k + a->domains + a->ffn_ranks), sizeof(*a->terms));
    a->destinations = calloc((size_t)a->top_k, sizeof(void *));
    int made = a->send_counts && a->recv_counts && a->send_at && a->recv_at && a->wire && a->replies && a->terms &&
               a->destinations;
    if (ffn) {
        a->place_counts = calloc(rows, sizeof(int));
        a->places = calloc(rows * (size_t)a->most_here, sizeof(int));
        a->next = calloc((size_t)a->experts, sizeof(int));
        return made && a->place_counts && a->places && a->next ? 0 : -1;
    }
    a->owner_counts = calloc(tokens, sizeof(int));
    a->owners = calloc(tokens * (size_t)a->most_owners, sizeof(int));
    a->cursors = calloc((size_t)a->ffn_ranks, sizeof(int));
    a->partials = allocate((size_t)a->domains, a->row.reply);
    return made && a->owner_counts && a->owners && a->cursors && a->partials ? 0 : -1;
}

void afdep_a2a_free(afdep_a2a_t *a)
{
    free(a->partials);
    free(a->cursors);
    free(a->owners);
    free(a->owner_counts);
    free(a->next);
    free(a->places);
    free(a->place_counts);
    free(a->destinations);
    free(a->terms);
    free(a->replies);
    free(a->wire);
    free(a->recv_at);
    free(a->send_at);
    free(a->recv_counts);
    free(a->send_counts);
}

/* ---- Attention: dispatch ------------------------------------------------------------------------------------- */

/* The FFN ranks that own the token's experts, ascending, into `owners`; returns how many. */
static int find_owners(const afdep_a2a_t *a, const int32_t *ids, int *owners)
{
    int count = 0;
    for (int k = 0; k < a->top_k; k++) {
        if (ids[k] < 0)
            continue;
        int owner = ids[k] / a->experts, at = count;
        while (at > 0 && owners[at - 1] > owner)
            at--;
        if (at > 0 && owners[at - 1] == owner)
            continue;
        memmove(owners + at + 1, owners + at, (size_t)(count - at) * sizeof(int));
        owners[at] = owner;
        count++;
    }
    return count;
}

void afdep_a2a_count(afdep_a2a_t *a, const afdep_dispatch_t *dispatch)
{
    memset(a->send_counts, 0, (size_t)a->ranks * sizeof(int));
    a->tokens = dispatch->tokens;
    for (int t = 0; t < a->tokens; t++) {
        int *owners = a->owners + (size_t)t * (size_t)a->most_owners;
        a->owner_counts[t] = find_owners(a, dispatch->ids + (size_t)t * (size_t)a->top_k, owners);
        for (int i = 0; i < a->owner_counts[t]; i++)
            a->send_counts[owners[i]]++;
    }
}

static void pack_scales(const afdep_a2a_t *a, float *to, const afdep_dispatch_t *d, int token)
{
    int64_t blocks = a->hidden / 128, token_stride = d->x_scale_token_stride ? d->x_scale_token_stride : blocks;
    int64_t block_stride = d->x_scale_block_stride ? d->x_scale_block_stride : 1;
    const float *from = d->x_scale + token * token_stride;
    if (block_stride == 1) {
        memcpy(to, from, a->row.scales);
        return;
    }
    for (int64_t b = 0; b < blocks; b++)
        to[b] = from[b * block_stride];
}

void afdep_a2a_pack(afdep_a2a_t *a, const afdep_dispatch_t *dispatch)
{
    size_t k = (size_t)a->top_k;
    memcpy(a->cursors, a->send_at, (size_t)a->ffn_ranks * sizeof(int));
    for (int t = 0; t < a->tokens; t++) {
        int owners = a->owner_counts[t];
        if (owners == 0)
            continue;
        for (int i = 0; i < owners; i++) {
            int owner = a->owners[(size_t)t * (size_t)a->most_owners + (size_t)i];
            unsigned char *row = a->wire + (size_t)a->cursors[owner]++ * a->row.bytes;
            a->destinations[i] = row;
            if (a->fp8)
                pack_scales(a, (float *)(row + a->row.scales_at), dispatch, t);
            memcpy(row + a->row.ids_at, dispatch->ids + (size_t)t * k, k * sizeof(int32_t));
            memcpy(row + a->row.weights_at, dispatch->weights + (size_t)t * k, k * sizeof(float));
            memcpy(row + a->row.token_at, &t, sizeof(int32_t));
        }
        a->ops->fan_out(a->destinations, owners, (const unsigned char *)dispatch->x + (size_t)t * a->row.payload,
                        a->row.payload);
    }
}

/* ---- FFN: expert layout -------------------------------------------------------------------------------------- */

static int64_t align_rows(int64_t value, int alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

/* This rank's expert of a choice, 0 .. E/F-1; -1 when another rank's or none. */
static int expert_here(const afdep_a2a_t *a, int32_t id)
{
    int64_t expert = (int64_t)id - (int64_t)a->rank * a->experts;
    return id >= 0 && expert >= 0 && expert < a->experts ? (int)expert : -1;
}

static const int32_t *ids_of(const afdep_a2a_t *a, const unsigned char *row)
{
    return (const int32_t *)(row + a->row.ids_at);
}

/* Rows of padding have no weight and no source. */
static void write_padding(const afdep_receive_t *receive, int64_t from, int64_t to)
{
    for (int64_t r = from; r < to; r++) {
        receive->row_weight[r] = 0;
        if (receive->row_source)
            receive->row_source[2 * r] = receive->row_source[2 * r + 1] = -1;
    }
}

/* Ends from the counts in `next`, which then holds each expert's first row. Returns R, or -1 when it does not fit. */
static int64_t write_ends(afdep_a2a_t *a, afdep_receive_t *receive)
{
    int64_t rows = 0;
    for (int e = 0; e < a->experts; e++)
        rows += align_rows(a->next[e], a->alignment);
    if (rows > receive->rows_capacity)
        return -1;
    int64_t start = 0;
    for (int e = 0; e < a->experts; e++) {
        int64_t end = start + a->next[e], after = align_rows(end, a->alignment);
        receive->ends[e] = (int32_t)end;
        if (receive->host_counts)
            receive->host_counts[e] = (int32_t)(after - start);
        write_padding(receive, end, after);
        a->next[e] = (int)start;
        start = after;
    }
    return rows;
}

/* Places one received row at each of its experts here. */
static void place_row(afdep_a2a_t *a, const afdep_receive_t *receive, int i, int source)
{
    const unsigned char *row = a->wire + (size_t)i * a->row.bytes;
    const int32_t *ids = ids_of(a, row);
    const float *weights = (const float *)(row + a->row.weights_at);
    int *places = a->places + (size_t)i * (size_t)a->most_here;
    int count = 0;
    int32_t token;
    memcpy(&token, row + a->row.token_at, sizeof(token));
    for (int k = 0; k < a->top_k; k++) {
        int expert = expert_here(a, ids[k]);
        if (expert < 0)
            continue;
        int64_t at = a->next[expert]++;
        a->destinations[count] = (unsigned char *)receive->rows + (size_t)at * a->row.payload;
        places[count++] = (int)at;
        if (a->fp8)
            memcpy(receive->row_scale + (size_t)at * (a->row.scales / sizeof(float)), row + a->row.scales_at,
                   a->row.scales);
        receive->row_weight[at] = weights[k];
        if (receive->row_source) {
            receive->row_source[2 * at] = source;
            receive->row_source[2 * at + 1] = token;
        }
    }
    a->place_counts[i] = count;
    a->ops->fan_out(a->destinations, count, row, a->row.payload);
}

afdep_status_t afdep_a2a_lay_out(afdep_a2a_t *a, afdep_receive_t *receive)
{
    memset(a->next, 0, (size_t)a->experts * sizeof(int));
    for (int i = 0; i < a->rows; i++) {
        const int32_t *ids = ids_of(a, a->wire + (size_t)i * a->row.bytes);
        for (int k = 0; k < a->top_k; k++) {
            int expert = expert_here(a, ids[k]);
            if (expert >= 0)
                a->next[expert]++;
        }
    }
    receive->row_count = write_ends(a, receive);
    if (receive->row_count < 0)
        return AFDEP_ERR_CAPACITY;
    /* Rows arrive by source rank, then token: the order inside an expert. */
    int i = 0;
    for (int source = a->ffn_ranks; source < a->ranks; source++)
        for (int n = a->recv_counts[source]; n > 0; n--)
            place_row(a, receive, i++, source);
    return AFDEP_OK;
}

/* ---- Sums ---------------------------------------------------------------------------------------------------- */

void afdep_a2a_sum_replies(afdep_a2a_t *a, const uint16_t *rows)
{
    size_t hidden = (size_t)a->hidden;
    for (int i = 0; i < a->rows; i++) {
        const int *places = a->places + (size_t)i * (size_t)a->most_here;
        for (int p = 0; p < a->place_counts[i]; p++)
            a->terms[p] = (afdep_term_t){ rows + (size_t)places[p] * hidden, 1 };
        a->ops->sum(a->replies + (size_t)i * hidden, a->terms, a->place_counts[i], hidden);
    }
}

/* One token: its FFN ranks are ascending, so the ranks of a domain stand together. */
static void sum_token(afdep_a2a_t *a, uint16_t *out, const int *owners, int count)
{
    size_t hidden = (size_t)a->hidden;
    int domains = 0, i = 0;
    afdep_term_t *in = a->terms, *over = a->terms + a->ffn_ranks;
    while (i < count) {
        int domain = owners[i] / a->domain_workers, ranks = 0;
        for (; i < count && owners[i] / a->domain_workers == domain; i++)
            in[ranks++] = (afdep_term_t){ a->replies + (size_t)a->cursors[owners[i]]++ * hidden, 1 };
        int last = domains == 0 && i == count;
        uint16_t *partial = last ? out : a->partials + (size_t)domains * hidden;
        if (last || ranks > 1)
            a->ops->sum(partial, in, ranks, hidden);
        over[domains++] = (afdep_term_t){ last || ranks > 1 ? partial : in[0].row, 1 };
    }
    if (domains != 1)
        a->ops->sum(out, over, domains, hidden);
}

void afdep_a2a_sum_tokens(afdep_a2a_t *a, uint16_t *out)
{
    memcpy(a->cursors, a->send_at, (size_t)a->ffn_ranks * sizeof(int));
    for (int t = 0; t < a->tokens; t++)
        sum_token(a, out + (size_t)t * (size_t)a->hidden, a->owners + (size_t)t * (size_t)a->most_owners,
                  a->owner_counts[t]);
}
