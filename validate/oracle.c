/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an exchange must give, bit for bit: who receives which rows in which order, and what the sources' sums are.
 * Straight loops over the routing, from the numeric rules alone; build with -ffp-contract=off.
 */
#include "validate/oracle.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "validate/convert.h"

enum {
    BLOCK = 128
}; /* hidden is a multiple of it; a constant trip count lets compilers vectorize at -O2 */

/* The expert that `slot` of a token chooses, or -1: invalid and repeated ids count as no choice. */
static int chosen(const int32_t *ids, int slot, int num_experts)
{
    if (ids[slot] < 0 || ids[slot] >= num_experts)
        return -1;
    for (int earlier = 0; earlier < slot; earlier++) {
        if (ids[earlier] == ids[slot])
            return -1;
    }
    return ids[slot];
}

/* ---- Received tensors ------------------------------------------------------------------------------------------ */

/* Live rows per expert of `rank`, into counts [E/F]. */
static void count_rows(int32_t *counts, const afdep_scenario_t *scenario, const afdep_source_tokens_t *sources,
                       int rank)
{
    int experts = afdep_scenario_experts(scenario);

    memset(counts, 0, (size_t)experts * sizeof(*counts));
    for (int s = 0; s < scenario->attention_ranks; s++) {
        for (int t = 0; t < sources[s].tokens; t++) {
            const int32_t *ids = sources[s].ids + (size_t)t * scenario->top_k;
            for (int slot = 0; slot < scenario->top_k; slot++) {
                int expert = chosen(ids, slot, scenario->num_experts);
                if (expert >= 0 && expert / experts == rank)
                    counts[expert % experts]++;
            }
        }
    }
}

/* Sources in ascending order and their tokens in ascending order: so are the rows inside every expert. `next` [E/F]
   holds each expert's next row. */
static void place_rows(afdep_oracle_received_t *received, int32_t *next, const afdep_scenario_t *scenario,
                       const afdep_source_tokens_t *sources, int rank)
{
    int experts = afdep_scenario_experts(scenario);

    for (int s = 0; s < scenario->attention_ranks; s++) {
        for (int t = 0; t < sources[s].tokens; t++) {
            size_t first = (size_t)t * scenario->top_k;
            for (int slot = 0; slot < scenario->top_k; slot++) {
                int expert = chosen(sources[s].ids + first, slot, scenario->num_experts);
                if (expert < 0 || expert / experts != rank)
                    continue;
                int32_t row = next[expert % experts]++;
                received->row_source[2 * (size_t)row] = scenario->ffn_ranks + s;
                received->row_source[2 * (size_t)row + 1] = t;
                received->row_weight[row] = sources[s].weights[first + slot];
            }
        }
    }
}

int afdep_oracle_received(afdep_oracle_received_t *received, const afdep_scenario_t *scenario,
                          const afdep_source_tokens_t *sources, int rank)
{
    int experts = afdep_scenario_experts(scenario);
    int alignment = scenario->expert_alignment > 0 ? scenario->expert_alignment : 1;
    int32_t *next = malloc((size_t)experts * sizeof(*next));

    memset(received, 0, sizeof(*received));
    received->ends = malloc((size_t)experts * sizeof(*received->ends));
    received->counts = malloc((size_t)experts * sizeof(*received->counts));
    if (next == NULL || received->ends == NULL || received->counts == NULL)
        goto fail;

    count_rows(received->counts, scenario, sources, rank);
    for (int e = 0; e < experts; e++) {
        next[e] = (int32_t)received->rows;
        received->ends[e] = next[e] + received->counts[e];
        received->counts[e] = (received->counts[e] + alignment - 1) / alignment * alignment;
        received->rows += received->counts[e];
    }

    size_t rows = (size_t)received->rows;
    received->row_source = malloc((rows ? rows : 1) * 2 * sizeof(*received->row_source));
    received->row_weight = calloc(rows ? rows : 1, sizeof(*received->row_weight));
    if (received->row_source == NULL || received->row_weight == NULL)
        goto fail;
    for (size_t i = 0; i < 2 * rows; i++)
        received->row_source[i] = -1;
    place_rows(received, next, scenario, sources, rank);
    free(next);
    return 0;

fail:
    free(next);
    afdep_oracle_received_free(received);
    return -1;
}

void afdep_oracle_received_free(afdep_oracle_received_t *received)
{
    free(received->row_weight);
    free(received->row_source);
    free(received->counts);
    free(received->ends);
    memset(received, 0, sizeof(*received));
}

/* ---- Checking what was received -------------------------------------------------------------------------------- */

/* Counts wrong values and keeps the first one's description. */
typedef struct verdict {
    int64_t wrong;
    int rank;
    char *why;
    size_t why_size;
} verdict_t;

static void found(verdict_t *verdict, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void found(verdict_t *verdict, const char *format, ...)
{
    if (verdict->wrong++ == 0 && verdict->why_size > 0) {
        int used = snprintf(verdict->why, verdict->why_size, "FFN rank %d: ", verdict->rank);
        if (used > 0 && (size_t)used < verdict->why_size) {
            va_list arguments;
            va_start(arguments, format);
            vsnprintf(verdict->why + used, verdict->why_size - (size_t)used, format, arguments);
            va_end(arguments);
        }
    }
}

static void check_payload(verdict_t *verdict, const afdep_scenario_t *scenario, int64_t row, const int32_t *source,
                          const void *got, const void *want)
{
    size_t hidden = (size_t)scenario->hidden;
    int fp8 = scenario->dtype == AFDEP_DTYPE_FP8;

    if (memcmp(got, want, fp8 ? hidden : 2 * hidden) == 0)
        return;
    for (size_t i = 0; i < hidden; i++) {
        unsigned got_bits = fp8 ? ((const uint8_t *)got)[i] : ((const uint16_t *)got)[i];
        unsigned want_bits = fp8 ? ((const uint8_t *)want)[i] : ((const uint16_t *)want)[i];
        if (got_bits != want_bits) {
            found(verdict, "rows[%lld][%zu] (source rank %d, token %d) is 0x%0*x, should be 0x%0*x", (long long)row, i,
                  source[0], source[1], fp8 ? 2 : 4, got_bits, fp8 ? 2 : 4, want_bits);
        }
    }
}

static void check_floats(verdict_t *verdict, const char *name, int64_t row, const float *got, const float *want,
                         size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t got_bits = afdep_convert_bits(got[i]);
        uint32_t want_bits = afdep_convert_bits(want[i]);
        if (got_bits != want_bits) {
            found(verdict, "%s[%lld][%zu] is %.9g (0x%08x), should be %.9g (0x%08x)", name, (long long)row, i,
                  (double)got[i], (unsigned)got_bits, (double)want[i], (unsigned)want_bits);
        }
    }
}

static void check_ints(verdict_t *verdict, const char *name, const int32_t *got, const int32_t *want, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (got[i] != want[i])
            found(verdict, "%s[%zu] is %d, should be %d", name, i, (int)got[i], (int)want[i]);
    }
}

int64_t afdep_oracle_check_received(const afdep_oracle_received_t *want, const afdep_scenario_t *scenario,
                                    uint64_t seed, uint64_t exchange, int rank, const void *rows,
                                    const float *row_scale, const float *row_weight, const int32_t *row_source,
                                    const int32_t *ends, const int32_t *host_counts, int64_t row_count, char *why,
                                    size_t why_size)
{
    verdict_t verdict = { 0, rank, why, why_size };
    size_t experts = (size_t)afdep_scenario_experts(scenario);
    int fp8 = scenario->dtype == AFDEP_DTYPE_FP8;
    size_t row_bytes = (size_t)scenario->hidden * (fp8 ? 1 : 2);
    size_t scales = fp8 ? (size_t)scenario->hidden / BLOCK : 0;

    if (row_count != want->rows)
        found(&verdict, "row_count is %lld, should be %lld", (long long)row_count, (long long)want->rows);
    check_ints(&verdict, "ends", ends, want->ends, experts);
    if (host_counts != NULL)
        check_ints(&verdict, "host_counts", host_counts, want->counts, experts);

    char *payload = malloc(row_bytes + scales * sizeof(float));
    if (payload == NULL) {
        found(&verdict, "no memory to check one row of %zu bytes", row_bytes);
        return verdict.wrong;
    }
    float *scale = (float *)(void *)(payload + row_bytes);
    int64_t checked = row_count < want->rows ? row_count : want->rows;
    for (int64_t row = 0; row < checked; row++) {
        const int32_t *source = want->row_source + 2 * row;
        check_floats(&verdict, "row_weight", row, row_weight + row, want->row_weight + row, 1);
        if (row_source != NULL && memcmp(row_source + 2 * row, source, 2 * sizeof(*source)) != 0) {
            found(&verdict, "row_source[%lld] is (%d, %d), should be (%d, %d)", (long long)row,
                  (int)row_source[2 * row], (int)row_source[2 * row + 1], (int)source[0], (int)source[1]);
        }
        if (source[0] < 0)
            continue; /* the payload of padding is unspecified */
        afdep_workload_row(payload, scale, scenario, seed, exchange, source[0] - scenario->ffn_ranks, source[1]);
        check_payload(&verdict, scenario, row, source, (const char *)rows + (size_t)row * row_bytes, payload);
        if (fp8)
            check_floats(&verdict, "row_scale", row, row_scale + (size_t)row * scales, scale, scales);
    }
    free(payload);
    return verdict.wrong;
}

/* ---- Sums ------------------------------------------------------------------------------------------------------ */

/* A sum of BF16 rows in progress. `count` terms so far; `first` keeps the bits of a single one, since adding it to
   anything, zero included, would not give them back (-0, NaN payloads). */
typedef struct sum {
    int count;
    uint16_t *first; /* [H] */
    float *acc;      /* [H] */
} sum_t;

/* Loops of constant length over arrays that do not overlap: compilers vectorize these at -O2. */

static inline void block_widen(float *restrict acc, const uint16_t *restrict row)
{
    for (int i = 0; i < BLOCK; i++)
        acc[i] = afdep_convert_from_bf16(row[i]);
}

static inline void block_add(float *restrict acc, const uint16_t *restrict row)
{
    for (int i = 0; i < BLOCK; i++)
        acc[i] += afdep_convert_from_bf16(row[i]);
}

static inline void block_round(uint16_t *restrict out, const float *restrict acc)
{
    for (int i = 0; i < BLOCK; i++)
        out[i] = afdep_convert_to_bf16(acc[i]);
}

static void sum_add(sum_t *sum, const uint16_t *row, size_t hidden)
{
    if (sum->count == 0)
        memcpy(sum->first, row, hidden * sizeof(*row));
    for (size_t block = 0; block < hidden; block += BLOCK) {
        if (sum->count == 0)
            block_widen(sum->acc + block, row + block);
        else
            block_add(sum->acc + block, row + block);
    }
    sum->count++;
}

static void sum_add_weighted(sum_t *sum, const uint16_t *row, float weight, size_t hidden)
{
    for (size_t i = 0; i < hidden; i++) {
        float value = afdep_convert_from_bf16(row[i]);
        sum->acc[i] = sum->count == 0 ? weight * value : fmaf(weight, value, sum->acc[i]);
    }
    sum->count++;
}

static void sum_round(uint16_t *out, const sum_t *sum, size_t hidden)
{
    for (size_t block = 0; block < hidden; block += BLOCK)
        block_round(out + block, sum->acc + block);
}

/* The BF16 row that leaves: nothing is +0, a single unweighted term is itself, anything else is rounded once. */
static void sum_finish(uint16_t *out, const sum_t *sum, size_t hidden)
{
    if (sum->count == 0)
        memset(out, 0, hidden * sizeof(*out));
    else if (sum->count == 1)
        memcpy(out, sum->first, hidden * sizeof(*out));
    else
        sum_round(out, sum, hidden);
}

/* A finite magnitude as the nearest multiple of `scale` that e4m3 has. */
static double nearest_e4m3(double magnitude, double scale)
{
    double value = magnitude / scale, step = 0x1p-9; /* below 2^-6 */
    for (int exponent = -6; exponent <= 8 && value >= ldexp(1, exponent); exponent++)
        step = ldexp(1, exponent - 3);
    value = nearbyint(value / step) * step;
    /* 2^128 is no FP32: the value below it then. */
    return value * scale < 0x1p128 ? value * scale : (value - step) * scale;
}

static void pack_group(uint16_t *row)
{
    double largest = 0, scale = 0x1p-127;
    for (int i = 0; i < BLOCK; i++) {
        double magnitude = fabs((double)afdep_convert_from_bf16(row[i]));
        if (magnitude > largest) /* no NaN is */
            largest = magnitude;
    }
    while (scale < 0x1p127 && largest > 448 * scale)
        scale *= 2;
    for (int i = 0; i < BLOCK; i++) {
        double value = (double)afdep_convert_from_bf16(row[i]);
        if (isfinite(value))
            row[i] = afdep_convert_to_bf16((float)copysign(nearest_e4m3(fabs(value), scale), value));
        else if (isnan(value))
            row[i] = 0x7FFF;
    }
}

void afdep_oracle_pack(uint16_t *row, size_t hidden)
{
    for (size_t block = 0; block < hidden; block += BLOCK)
        pack_group(row + block);
}

/* Three levels of sums, and one row in hand. */
enum {
    LEVELS = 3
};

size_t afdep_oracle_scratch(const afdep_scenario_t *scenario)
{
    return (size_t)scenario->hidden * (LEVELS * (sizeof(float) + sizeof(uint16_t)) + sizeof(uint16_t));
}

void afdep_oracle_sum(uint16_t *out, const afdep_scenario_t *scenario, const int32_t *ids, const float *weights,
                      unsigned rules, afdep_oracle_reply_fn reply, void *context, void *scratch)
{
    size_t hidden = (size_t)scenario->hidden;
    int experts = afdep_scenario_experts(scenario);
    int workers = afdep_scenario_workers(scenario);
    int per_domain = scenario->ranks_per_domain > 0 ? afdep_scenario_domain_workers(scenario) : workers;
    int apply_weights = (rules & AFDEP_ORACLE_APPLY_WEIGHTS) != 0;
    float *floats = scratch;
    uint16_t *halves = (uint16_t *)(floats + LEVELS * hidden);
    sum_t total = { 0, halves, floats };
    sum_t domain = { 0, halves + hidden, floats + hidden };
    sum_t partial = { 0, halves + 2 * hidden, floats + 2 * hidden };
    uint16_t *row = halves + 3 * hidden;

    for (int first = 0; first < workers; first += per_domain) {
        domain.count = 0;
        for (int rank = first; rank < first + per_domain && rank < workers; rank++) {
            partial.count = 0;
            for (int slot = 0; slot < scenario->top_k; slot++) {
                int expert = chosen(ids, slot, scenario->num_experts);
                if (expert < 0 || expert / experts != rank)
                    continue;
                reply(context, row, slot);
                if (apply_weights)
                    sum_add_weighted(&partial, row, weights[slot], hidden);
                else
                    sum_add(&partial, row, hidden);
            }
            if (partial.count == 0)
                continue;
            if (apply_weights)
                sum_round(row, &partial, hidden);
            else
                sum_finish(row, &partial, hidden);
            sum_add(&domain, row, hidden);
        }
        if (domain.count == 0)
            continue;
        sum_finish(row, &domain, hidden);
        if (rules & AFDEP_ORACLE_FP8_COMBINE)
            afdep_oracle_pack(row, hidden);
        sum_add(&total, row, hidden);
    }
    sum_finish(out, &total, hidden);
}

/* A token whose replies are afdep_workload_expert()'s. */
typedef struct stand_in {
    const afdep_scenario_t *scenario;
    const void *x;
    const float *x_scale;
    const int32_t *ids;
    const float *weights;
    int apply_weights;
} stand_in_t;

static void stand_in_reply(void *context, uint16_t *row, int slot)
{
    const stand_in_t *token = context;

    afdep_workload_expert(row, token->x, token->x_scale, token->weights[slot], token->ids[slot], token->scenario,
                          token->apply_weights);
}

void afdep_oracle_token(uint16_t *out, const afdep_scenario_t *scenario, const afdep_source_tokens_t *source, int token,
                        unsigned rules, void *scratch)
{
    size_t hidden = (size_t)scenario->hidden;
    int fp8 = scenario->dtype == AFDEP_DTYPE_FP8;
    stand_in_t replies = {
        .scenario = scenario,
        .x = (const char *)source->x + (size_t)token * hidden * (fp8 ? 1 : 2),
        .x_scale = fp8 ? source->x_scale + (size_t)token * (hidden / BLOCK) : NULL,
        .ids = source->ids + (size_t)token * scenario->top_k,
        .weights = source->weights + (size_t)token * scenario->top_k,
        .apply_weights = (rules & AFDEP_ORACLE_APPLY_WEIGHTS) != 0,
    };

    afdep_oracle_sum(out, scenario, replies.ids, replies.weights, rules, stand_in_reply, &replies, scratch);
}
