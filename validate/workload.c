/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources send. Cheap, because every rank of an oversubscribed machine computes it: payload is random 64-bit
 * words masked into the wanted range, without a branch per element. Build with -ffp-contract=off: the expert stand-in
 * must round after its multiplication.
 */
#include "validate/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "validate/convert.h"
#include "validate/trace.h"

enum {
    BLOCK = 128
}; /* elements per scale; hidden is a multiple of it */

/* ---- Randomness ------------------------------------------------------------------------------------------------ */

#define GOLDEN 0x9E3779B97F4A7C15u

/* The finalizer of splitmix64: neighbouring inputs give unrelated outputs. */
static inline uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* What a stream of random words is for: streams of one token never overlap in their use. */
typedef enum purpose {
    PURPOSE_PAYLOAD = 1,
    PURPOSE_SCALES,
    PURPOSE_ROUTES,
    PURPOSE_POPULARITY
} purpose_t;

static uint64_t stream_of(uint64_t seed, uint64_t exchange, int source, int token, purpose_t purpose)
{
    uint64_t state = mix(seed + GOLDEN * (uint64_t)purpose);

    /* One inside the other: mixed side by side, seed and exchange could change places, or cancel when equal. */
    state = mix(state + exchange);
    return mix(state + ((uint64_t)(uint32_t)source << 32 | (uint32_t)token));
}

static inline uint64_t stream_next(uint64_t *stream)
{
    *stream += GOLDEN;
    return mix(*stream);
}

/* 0 .. bound-1. */
static int32_t stream_below(uint64_t *stream, int32_t bound)
{
    return (int32_t)(((stream_next(stream) >> 32) * (uint64_t)bound) >> 32);
}

/* [0, 1). */
static double stream_unit(uint64_t *stream)
{
    return (double)(stream_next(stream) >> 11) * 0x1p-53;
}

/* ---- Allocation ------------------------------------------------------------------------------------------------ */

/* Expert of popularity rank i is expert_of[i]; its share is 1 / (i+1)^s, summed up in cumulative[i]. */
struct afdep_popularity {
    int experts;
    int seeded;
    uint64_t seed; /* that expert_of belongs to */
    double *cumulative;
    int32_t *expert_of;
};

static void popularity_free(afdep_popularity_t *popularity)
{
    if (popularity != NULL) {
        free(popularity->expert_of);
        free(popularity->cumulative);
        free(popularity);
    }
}

static afdep_popularity_t *popularity_create(int experts, double exponent)
{
    afdep_popularity_t *popularity = calloc(1, sizeof(*popularity));
    double sum = 0;

    if (popularity == NULL)
        return NULL;
    popularity->experts = experts;
    popularity->cumulative = malloc((size_t)experts * sizeof(*popularity->cumulative));
    popularity->expert_of = malloc((size_t)experts * sizeof(*popularity->expert_of));
    if (popularity->cumulative == NULL || popularity->expert_of == NULL) {
        popularity_free(popularity);
        return NULL;
    }
    for (int i = 0; i < experts; i++) {
        sum += pow(i + 1, -exponent);
        popularity->cumulative[i] = sum;
    }
    return popularity;
}

/* Which experts are popular is the seed's choice, the same in every exchange (Fisher-Yates). */
static void popularity_seed(afdep_popularity_t *popularity, uint64_t seed)
{
    uint64_t stream = stream_of(seed, 0, 0, 0, PURPOSE_POPULARITY);
    int32_t *expert_of = popularity->expert_of;

    if (popularity->seeded && popularity->seed == seed)
        return;
    for (int32_t i = 0; i < popularity->experts; i++) {
        int32_t j = stream_below(&stream, i + 1);
        expert_of[i] = expert_of[j];
        expert_of[j] = i;
    }
    popularity->seed = seed;
    popularity->seeded = 1;
}

int afdep_workload_alloc_routes(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, int max_tokens)
{
    size_t choices = (size_t)(max_tokens > 0 ? max_tokens : 1) * (size_t)scenario->top_k;

    memset(tokens, 0, sizeof(*tokens));
    tokens->ids = malloc(choices * sizeof(*tokens->ids));
    tokens->weights = malloc(choices * sizeof(*tokens->weights));
    if (tokens->ids == NULL || tokens->weights == NULL)
        goto fail;
    if (scenario->routing.kind == AFDEP_ROUTING_ZIPF) {
        tokens->popularity = popularity_create(scenario->num_experts, scenario->routing.zipf_s);
        if (tokens->popularity == NULL)
            goto fail;
    }
    return 0;

fail:
    afdep_workload_free(tokens);
    return -1;
}

int afdep_workload_alloc(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, int max_tokens)
{
    size_t elements = (size_t)(max_tokens > 0 ? max_tokens : 1) * (size_t)scenario->hidden;
    int fp8 = scenario->dtype == AFDEP_DTYPE_FP8;

    if (afdep_workload_alloc_routes(tokens, scenario, max_tokens) != 0)
        return -1;
    /* hidden is a multiple of 256, so the size is one of the alignment, as aligned_alloc wants it. */
    tokens->x = aligned_alloc(64, elements * (fp8 ? 1 : 2));
    tokens->x_scale = fp8 ? malloc(elements / BLOCK * sizeof(*tokens->x_scale)) : NULL;
    if (tokens->x == NULL || (fp8 && tokens->x_scale == NULL)) {
        afdep_workload_free(tokens);
        return -1;
    }
    return 0;
}

void afdep_workload_free(afdep_source_tokens_t *tokens)
{
    popularity_free(tokens->popularity);
    free(tokens->weights);
    free(tokens->ids);
    free(tokens->x_scale);
    free(tokens->x);
    memset(tokens, 0, sizeof(*tokens));
}

/* ---- Routes ---------------------------------------------------------------------------------------------------- */

static int is_among(const int32_t *ids, int count, int32_t id)
{
    for (int i = 0; i < count; i++) {
        if (ids[i] == id)
            return 1;
    }
    return 0;
}

/* The expert at place i of the order that draws are made in, and its share; without popularity all are alike. */
static int32_t expert_at(const afdep_popularity_t *popularity, int i)
{
    return popularity != NULL ? popularity->expert_of[i] : i;
}

static double share_at(const afdep_popularity_t *popularity, int i)
{
    if (popularity == NULL)
        return 1;
    return i == 0 ? popularity->cumulative[0] : popularity->cumulative[i] - popularity->cumulative[i - 1];
}

/* One expert, whether or not the token has it already. */
static int32_t draw_any(uint64_t *stream, const afdep_popularity_t *popularity, int num_experts)
{
    int low = 0;
    int high = num_experts - 1;

    if (popularity == NULL)
        return stream_below(stream, num_experts);
    double point = stream_unit(stream) * popularity->cumulative[high];
    while (low < high) { /* the first place whose cumulative share lies above the point */
        int middle = (low + high) / 2;
        if (popularity->cumulative[middle] > point)
            high = middle;
        else
            low = middle + 1;
    }
    return expert_at(popularity, low);
}

/* One expert that is not among ids[0 .. count), with the shares of those left: a scan over all of them. */
static int32_t draw_left(uint64_t *stream, const afdep_popularity_t *popularity, int num_experts, const int32_t *ids,
                         int count)
{
    double sum = 0;
    int32_t last = -1;

    for (int i = 0; i < num_experts; i++) {
        if (!is_among(ids, count, expert_at(popularity, i)))
            sum += share_at(popularity, i);
    }
    double point = stream_unit(stream) * sum;
    for (int i = 0; i < num_experts; i++) {
        int32_t expert = expert_at(popularity, i);
        if (is_among(ids, count, expert))
            continue;
        double share = share_at(popularity, i);
        if (last < 0 || share > 0) /* shares may have vanished beside the first; then the first left is taken */
            last = expert;
        point -= share;
        if (point < 0)
            break;
    }
    return last;
}

/* Fills ids[count .. top_k) with distinct experts. Drawing again is the same distribution as drawing from those left,
   and quicker unless nearly all the share is taken. */
static void draw_distinct(uint64_t *stream, const afdep_popularity_t *popularity, const afdep_scenario_t *scenario,
                          int32_t *ids, int count)
{
    for (; count < scenario->top_k; count++) {
        int32_t expert = -1;
        for (int attempt = 0; attempt < 4 && expert < 0; attempt++) {
            int32_t drawn = draw_any(stream, popularity, scenario->num_experts);
            if (!is_among(ids, count, drawn))
                expert = drawn;
        }
        if (expert < 0)
            expert = draw_left(stream, popularity, scenario->num_experts, ids, count);
        ids[count] = expert;
    }
}

/* The hot expert stands in any slot, so that sums do not always start with it. */
static void draw_hot(uint64_t *stream, const afdep_scenario_t *scenario, int32_t *ids)
{
    int slot = stream_below(stream, scenario->top_k);

    ids[0] = scenario->routing.hot_expert;
    draw_distinct(stream, NULL, scenario, ids, 1);
    ids[0] = ids[slot];
    ids[slot] = scenario->routing.hot_expert;
}

static void draw_weights(uint64_t *stream, float *weights, int top_k)
{
    float sum = 0;

    for (int slot = 0; slot < top_k; slot++) {
        weights[slot] = 0.0625f + (float)(stream_next(stream) >> 40) * 0x1p-24f;
        sum += weights[slot];
    }
    for (int slot = 0; slot < top_k; slot++)
        weights[slot] /= sum;
}

static void draw_routes(int32_t *ids, float *weights, const afdep_popularity_t *popularity,
                        const afdep_scenario_t *scenario, const afdep_trace_t *trace, uint64_t stream, uint64_t place)
{
    /* Weights first, so that how often ids were drawn does not matter to them. */
    draw_weights(&stream, weights, scenario->top_k);
    switch (scenario->routing.kind) {
    case AFDEP_ROUTING_TRACE:
        afdep_trace_read(trace, place, ids, weights);
        break;
    case AFDEP_ROUTING_HOT:
        draw_hot(&stream, scenario, ids);
        break;
    case AFDEP_ROUTING_ZIPF:
    case AFDEP_ROUTING_UNIFORM:
        draw_distinct(&stream, popularity, scenario, ids, 0);
        break;
    }
}

void afdep_workload_routes(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, const afdep_trace_t *trace,
                           uint64_t seed, uint64_t exchange, int source, int count)
{
    size_t top_k = (size_t)scenario->top_k;

    tokens->source = source;
    tokens->tokens = count;
    if (tokens->popularity != NULL)
        popularity_seed(tokens->popularity, seed);
    for (int token = 0; token < count; token++) {
        draw_routes(tokens->ids + (size_t)token * top_k, tokens->weights + (size_t)token * top_k, tokens->popularity,
                    scenario, trace, stream_of(seed, exchange, source, token, PURPOSE_ROUTES),
                    exchange + (uint64_t)source * 131 + (uint64_t)token);
    }
}

/* ---- Payload --------------------------------------------------------------------------------------------------- */

/* BF16 bits that random words would rarely hold: zeros, the smallest and largest denormals, the smallest normals,
   small and large values whose sums lose the other's digits, and large ones whose sums stay finite. */
static const uint16_t rare_bf16[16] = { 0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x807F, 0x0080, 0x8080,
                                        0x3380, 0xB381, 0x4B80, 0xCB81, 0x3F80, 0xBF80, 0x7F00, 0xFF00 };

static void fill_bf16(uint16_t *x_row, int hidden, uint64_t stream)
{
    enum {
        EVERY = 32
    }; /* one rare value in so many */

    for (int i = 0; i < hidden; i += 4) {
        /* Any sign and mantissa, exponents 2^-7 .. 2^0. */
        uint64_t word = (stream_next(&stream) & 0x83FF83FF83FF83FFu) | 0x3C003C003C003C00u;
        memcpy(x_row + i, &word, sizeof(word));
    }
    for (int i = 0; i < hidden; i += EVERY) {
        uint64_t word = stream_next(&stream);
        x_row[i + (int)(word % EVERY)] = rare_bf16[(word >> 32) % 16];
    }
}

static void fill_e4m3(uint8_t *x_row, int hidden, uint64_t stream)
{
    for (int i = 0; i < hidden; i += 8) {
        uint64_t word = stream_next(&stream);
        /* Adding one to its low seven bits carries into the top bit of NaN codes only; those lose their last bit. */
        uint64_t nan = ((word & 0x7F7F7F7F7F7F7F7Fu) + 0x0101010101010101u) & 0x8080808080808080u;
        word ^= nan >> 7;
        memcpy(x_row + i, &word, sizeof(word));
    }
}

static void fill_scales(float *scale_row, int blocks, uint64_t stream)
{
    for (int i = 0; i < blocks; i++) {
        uint64_t word = stream_next(&stream);
        uint32_t mantissa = (uint32_t)word & 0x7FFFFFu & (0u - (uint32_t)(word >> 32 & 1)); /* half: powers of two */
        uint32_t exponent = 115 + (uint32_t)(word >> 40 & 7);
        if (word >> 56 == 0)
            exponent = 5; /* rarely: so small that denormals come out */
        scale_row[i] = afdep_convert_float(exponent << 23 | mantissa);
    }
}

void afdep_workload_row(void *x_row, float *scale_row, const afdep_scenario_t *scenario, uint64_t seed,
                        uint64_t exchange, int source, int token)
{
    uint64_t stream = stream_of(seed, exchange, source, token, PURPOSE_PAYLOAD);

    if (scenario->dtype == AFDEP_DTYPE_FP8) {
        fill_e4m3(x_row, scenario->hidden, stream);
        fill_scales(scale_row, scenario->hidden / BLOCK, stream_of(seed, exchange, source, token, PURPOSE_SCALES));
    } else {
        fill_bf16(x_row, scenario->hidden, stream);
    }
}

void afdep_workload_source(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, const afdep_trace_t *trace,
                           uint64_t seed, uint64_t exchange, int source, int count)
{
    size_t hidden = (size_t)scenario->hidden;
    int fp8 = scenario->dtype == AFDEP_DTYPE_FP8;

    afdep_workload_routes(tokens, scenario, trace, seed, exchange, source, count);
    for (int token = 0; token < count; token++) {
        afdep_workload_row((char *)tokens->x + (size_t)token * hidden * (fp8 ? 1 : 2),
                           fp8 ? tokens->x_scale + (size_t)token * (hidden / BLOCK) : NULL, scenario, seed, exchange,
                           source, token);
    }
}

/* ---- The expert stand-in --------------------------------------------------------------------------------------- */

/* Loops of constant length over arrays that do not overlap: what compilers vectorize without being asked twice. */

static inline void widen_bf16(float *restrict values, const uint16_t *restrict row)
{
    for (int i = 0; i < BLOCK; i++)
        values[i] = afdep_convert_from_bf16(row[i]);
}

static inline void widen_e4m3(float *restrict values, const uint8_t *restrict row, float scale)
{
    for (int i = 0; i < BLOCK; i++)
        values[i] = afdep_convert_from_e4m3(row[i]) * scale;
}

static inline void affine_to_bf16(uint16_t *restrict reply, const float *restrict values, float factor, float offset,
                                  float weight)
{
    for (int i = 0; i < BLOCK; i++)
        reply[i] = afdep_convert_to_bf16((values[i] * factor + offset) * weight);
}

void afdep_workload_expert(uint16_t *reply, const void *row, const float *row_scale, float weight, int expert,
                           const afdep_scenario_t *scenario, int apply_weights)
{
    uint64_t hash = mix((uint64_t)(uint32_t)expert + GOLDEN);
    float factor = 0.5f + (float)(hash & 1023) / 1024;
    /* A quarter of the experts adds nothing, so that zeros and denormals survive into some replies. */
    float offset = (hash >> 10 & 3) == 0 ? 0 : (float)(hash >> 12 & 1023) / 1024 - 0.5f;
    float applied = apply_weights ? 1 : weight; /* multiplying by one is exact */
    float values[BLOCK];

    for (int block = 0; block < scenario->hidden / BLOCK; block++) {
        if (scenario->dtype == AFDEP_DTYPE_FP8)
            widen_e4m3(values, (const uint8_t *)row + block * BLOCK, row_scale[block]);
        else
            widen_bf16(values, (const uint16_t *)row + block * BLOCK);
        affine_to_bf16(reply + block * BLOCK, values, factor, offset, applied);
    }
}
