/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workload: the same everywhere for the same arguments and different for others, routes that are legal and spread
 * as their kind says, payloads that hold the awkward values and no NaN, an expert stand-in that depends on everything
 * it is given, and traces that are refused by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "validate/convert.h"
#include "validate/workload.h"

enum {
    HIDDEN = 512,
    EXPERTS = 32,
    TOP_K = 4,
    TOKENS = 40,
    MANY = 4000
};

static afdep_scenario_t scenario_of(afdep_dtype_t dtype, afdep_routing_kind_t kind)
{
    return (afdep_scenario_t){ .ffn_ranks = 2,
                               .attention_ranks = 3,
                               .ranks_per_domain = 1,
                               .num_experts = EXPERTS,
                               .top_k = TOP_K,
                               .hidden = HIDDEN,
                               .dtype = dtype,
                               .routing = { .kind = kind, .zipf_s = 1.2, .hot_expert = 5 } };
}

static size_t element_bytes(const afdep_scenario_t *scenario)
{
    return scenario->dtype == AFDEP_DTYPE_FP8 ? 1 : 2;
}

static afdep_source_tokens_t routes_of(const afdep_scenario_t *scenario, uint64_t seed, uint64_t exchange, int source,
                                       int count)
{
    afdep_source_tokens_t tokens;

    assert_int_equal(afdep_workload_alloc_routes(&tokens, scenario, count), 0);
    afdep_workload_routes(&tokens, scenario, NULL, seed, exchange, source, count);
    assert_int_equal(tokens.source, source);
    assert_int_equal(tokens.tokens, count);
    return tokens;
}

/* ---- The same, and different ----------------------------------------------------------------------------------- */

static void assert_same(const afdep_scenario_t *scenario, const afdep_source_tokens_t *a,
                        const afdep_source_tokens_t *b)
{
    assert_memory_equal(a->ids, b->ids, TOKENS * TOP_K * sizeof(int32_t));
    assert_memory_equal(a->weights, b->weights, TOKENS * TOP_K * sizeof(float));
    assert_memory_equal(a->x, b->x, TOKENS * HIDDEN * element_bytes(scenario));
    if (scenario->dtype == AFDEP_DTYPE_FP8)
        assert_memory_equal(a->x_scale, b->x_scale, TOKENS * HIDDEN / 128 * sizeof(float));
}

/* Every element differs from what was there, so that what was not written is seen. */
static void poison(const afdep_scenario_t *scenario, afdep_source_tokens_t *tokens)
{
    memset(tokens->ids, 0xEE, TOKENS * TOP_K * sizeof(int32_t));
    memset(tokens->weights, 0xEE, TOKENS * TOP_K * sizeof(float));
    memset(tokens->x, 0xFF, TOKENS * HIDDEN * element_bytes(scenario)); /* NaN in both formats */
    if (scenario->dtype == AFDEP_DTYPE_FP8)
        memset(tokens->x_scale, 0xFF, TOKENS * HIDDEN / 128 * sizeof(float));
}

/* The source's own view, any rank's view of its routes, and a single row are one. */
static void check_deterministic(afdep_dtype_t dtype, afdep_routing_kind_t kind)
{
    afdep_scenario_t scenario = scenario_of(dtype, kind);
    size_t row_bytes = HIDDEN * element_bytes(&scenario);
    afdep_source_tokens_t a, b;
    uint64_t row[HIDDEN / 4];
    float scale[HIDDEN / 128];

    assert_int_equal(afdep_workload_alloc(&a, &scenario, TOKENS), 0);
    assert_int_equal(afdep_workload_alloc(&b, &scenario, TOKENS), 0);
    assert_int_equal((uintptr_t)a.x % 64, 0);
    poison(&scenario, &a);
    afdep_workload_source(&a, &scenario, NULL, 9, 4, 2, TOKENS);
    afdep_workload_source(&b, &scenario, NULL, 1, 2, 1, TOKENS); /* what was there before leaves nothing behind */
    afdep_workload_source(&b, &scenario, NULL, 9, 4, 2, TOKENS);
    assert_same(&scenario, &a, &b);

    afdep_source_tokens_t routes = routes_of(&scenario, 9, 4, 2, TOKENS);
    assert_memory_equal(a.ids, routes.ids, TOKENS * TOP_K * sizeof(int32_t));
    assert_memory_equal(a.weights, routes.weights, TOKENS * TOP_K * sizeof(float));
    for (int t = 0; t < TOKENS; t++) {
        memset(row, 0xFF, sizeof(row));
        afdep_workload_row(row, scale, &scenario, 9, 4, 2, t);
        assert_memory_equal(row, (const char *)a.x + (size_t)t * row_bytes, row_bytes);
        if (dtype == AFDEP_DTYPE_FP8)
            assert_memory_equal(scale, a.x_scale + t * (HIDDEN / 128), sizeof(scale));
    }
    afdep_workload_free(&routes);
    afdep_workload_free(&b);
    afdep_workload_free(&a);
}

static void test_deterministic(void **state)
{
    (void)state;
    check_deterministic(AFDEP_DTYPE_BF16, AFDEP_ROUTING_UNIFORM);
    check_deterministic(AFDEP_DTYPE_FP8, AFDEP_ROUTING_ZIPF);
    check_deterministic(AFDEP_DTYPE_FP8, AFDEP_ROUTING_HOT);
}

static size_t equal_bytes(const void *a, const void *b, size_t size)
{
    size_t equal = 0;

    for (size_t i = 0; i < size; i++)
        equal += ((const uint8_t *)a)[i] == ((const uint8_t *)b)[i];
    return equal;
}

/* Seed, exchange, source and token each change payload, scales, ids and weights: stale or swapped rows are seen. */
static void check_different(afdep_dtype_t dtype)
{
    static const struct {
        uint64_t seed, exchange;
        int source;
    } others[] = {
        { 10, 4, 1 }, { 9, 5, 1 }, { 9, 4, 2 }, { 4, 9, 1 }, { 9, 1, 4 }, { 9, 4 + ((uint64_t)1 << 32), 1 }
    };
    afdep_scenario_t scenario = scenario_of(dtype, AFDEP_ROUTING_UNIFORM);
    size_t bytes = TOKENS * HIDDEN * element_bytes(&scenario);
    size_t row_bytes = bytes / TOKENS;
    afdep_source_tokens_t a, b;

    assert_int_equal(afdep_workload_alloc(&a, &scenario, TOKENS), 0);
    assert_int_equal(afdep_workload_alloc(&b, &scenario, TOKENS), 0);
    afdep_workload_source(&a, &scenario, NULL, 9, 4, 1, TOKENS);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        afdep_workload_source(&b, &scenario, NULL, others[i].seed, others[i].exchange, others[i].source, TOKENS);
        assert_true(equal_bytes(a.x, b.x, bytes) < bytes / 4);
        assert_memory_not_equal(a.ids, b.ids, TOKENS * TOP_K * sizeof(int32_t));
        assert_true(equal_bytes(a.weights, b.weights, TOKENS * TOP_K * 4) < TOKENS * TOP_K * 4 / 2);
        if (dtype == AFDEP_DTYPE_FP8)
            assert_memory_not_equal(a.x_scale, b.x_scale, TOKENS * HIDDEN / 128 * sizeof(float));
    }
    for (int t = 1; t < TOKENS; t++) {
        const char *row = (const char *)a.x + (size_t)t * row_bytes;
        assert_true(equal_bytes(row, row - row_bytes, row_bytes) < row_bytes / 4);
    }
    afdep_workload_source(&b, &scenario, NULL, 9, 4, 2, TOKENS); /* token 1 of source 1 is not token 0 of source 2 */
    assert_true(equal_bytes((const char *)a.x + row_bytes, b.x, row_bytes) < row_bytes / 4);
    afdep_workload_free(&b);
    afdep_workload_free(&a);
}

static void test_different(void **state)
{
    (void)state;
    check_different(AFDEP_DTYPE_BF16);
    check_different(AFDEP_DTYPE_FP8);
}

/* ---- Routes ---------------------------------------------------------------------------------------------------- */

/* Ids legal and distinct, weights positive with sum 1; counts [num_experts] gets how often each was chosen. */
static void check_routes(const afdep_scenario_t *scenario, const afdep_source_tokens_t *tokens, int *counts)
{
    memset(counts, 0, (size_t)scenario->num_experts * sizeof(*counts));
    for (int t = 0; t < tokens->tokens; t++) {
        const int32_t *ids = tokens->ids + t * scenario->top_k;
        float sum = 0;
        for (int i = 0; i < scenario->top_k; i++) {
            float weight = tokens->weights[t * scenario->top_k + i];
            assert_in_range(ids[i], 0, scenario->num_experts - 1);
            for (int j = 0; j < i; j++)
                assert_int_not_equal(ids[i], ids[j]);
            assert_true(weight > 0 && weight <= 1);
            sum += weight;
            counts[ids[i]]++;
        }
        assert_true(fabsf(sum - 1) < 1e-5f);
    }
}

static void test_uniform(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_UNIFORM);
    afdep_source_tokens_t tokens = routes_of(&scenario, 1, 1, 0, MANY);
    int counts[EXPERTS], first[EXPERTS] = { 0 };

    (void)state;
    check_routes(&scenario, &tokens, counts);
    for (int t = 0; t < MANY; t++)
        first[tokens.ids[t * TOP_K]]++;
    for (int e = 0; e < EXPERTS; e++) {
        assert_in_range(counts[e], MANY * TOP_K / EXPERTS * 8 / 10, MANY * TOP_K / EXPERTS * 12 / 10);
        assert_in_range(first[e], MANY / EXPERTS * 6 / 10, MANY / EXPERTS * 14 / 10); /* slots are not sorted */
    }
    afdep_workload_free(&tokens);
}

/* All experts of a token: drawing must end, and order must still vary. */
static void test_all_experts(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_UNIFORM);
    int counts[EXPERTS];

    (void)state;
    scenario.top_k = EXPERTS;
    for (int kind = AFDEP_ROUTING_UNIFORM; kind <= AFDEP_ROUTING_HOT; kind++) {
        scenario.routing.kind = (afdep_routing_kind_t)kind;
        afdep_source_tokens_t tokens = routes_of(&scenario, 1, 1, 0, 100);
        check_routes(&scenario, &tokens, counts);
        assert_memory_not_equal(tokens.ids, tokens.ids + EXPERTS, EXPERTS * sizeof(int32_t));
        afdep_workload_free(&tokens);
    }
    scenario.top_k = 1;
    scenario.num_experts = 1;
    scenario.routing.kind = AFDEP_ROUTING_UNIFORM;
    afdep_source_tokens_t tokens = routes_of(&scenario, 1, 1, 0, 2);
    assert_int_equal(tokens.ids[1], 0);
    assert_true(tokens.weights[1] == 1.0f);
    afdep_workload_free(&tokens);
}

static int largest(const int *counts)
{
    int best = 0;

    for (int e = 1; e < EXPERTS; e++) {
        if (counts[e] > counts[best])
            best = e;
    }
    return best;
}

/* First slots follow 1/rank^s: with s = 1.2 and 32 experts the first has 0.322 of them, the second 0.140. */
static void test_zipf(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_ZIPF);
    afdep_source_tokens_t tokens = routes_of(&scenario, 1, 1, 0, MANY);
    int counts[EXPERTS], first[EXPERTS] = { 0 }, others[EXPERTS];
    int moved = 0;

    (void)state;
    check_routes(&scenario, &tokens, counts);
    for (int t = 0; t < MANY; t++)
        first[tokens.ids[t * TOP_K]]++;
    int top = largest(first);
    double share = 0;
    for (int e = 1; e <= EXPERTS; e++)
        share += pow(e, -1.2);
    assert_true(fabs(first[top] * share / MANY - 1) < 0.1);
    int top_count = first[top];
    first[top] = 0;
    assert_true(fabs(first[largest(first)] * share / MANY - pow(2, -1.2)) < 0.05);
    assert_true(top_count > 0);
    for (int e = 0; e < EXPERTS; e++)
        assert_true(counts[e] > 0);

    for (uint64_t seed = 2; seed < 8; seed++) { /* the seed says who is popular, the exchange does not */
        afdep_workload_routes(&tokens, &scenario, NULL, seed, 1, 0, MANY);
        check_routes(&scenario, &tokens, counts);
        moved += largest(counts) != top;
        afdep_workload_routes(&tokens, &scenario, NULL, seed, 2, 1, MANY);
        check_routes(&scenario, &tokens, others);
        assert_int_equal(largest(counts), largest(others));
    }
    assert_true(moved >= 4);
    afdep_workload_free(&tokens);
}

/* So steep that all shares but the first vanish: still distinct, and it ends. */
static void test_steep_zipf(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_ZIPF);
    int counts[EXPERTS];

    (void)state;
    scenario.routing.zipf_s = 300;
    afdep_source_tokens_t tokens = routes_of(&scenario, 1, 1, 0, 200);
    check_routes(&scenario, &tokens, counts);
    assert_int_equal(counts[largest(counts)], 200);
    afdep_workload_free(&tokens);
}

static void test_hot(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_HOT);
    afdep_source_tokens_t tokens = routes_of(&scenario, 1, 1, 0, MANY);
    int counts[EXPERTS], slots[TOP_K] = { 0 };

    (void)state;
    check_routes(&scenario, &tokens, counts);
    for (int e = 0; e < EXPERTS; e++) {
        int want = MANY * (TOP_K - 1) / (EXPERTS - 1);
        if (e == 5)
            assert_int_equal(counts[e], MANY);
        else
            assert_in_range(counts[e], want * 8 / 10, want * 12 / 10);
    }
    for (int i = 0; i < MANY * TOP_K; i++)
        slots[i % TOP_K] += tokens.ids[i] == 5;
    for (int k = 0; k < TOP_K; k++)
        assert_in_range(slots[k], MANY / TOP_K * 8 / 10, MANY / TOP_K * 12 / 10);
    afdep_workload_free(&tokens);
}

/* ---- Payload --------------------------------------------------------------------------------------------------- */

static void test_bf16_values(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_UNIFORM);
    afdep_source_tokens_t tokens;
    int zeros[2] = { 0 }, denormals[2] = { 0 }, signs[2] = { 0 }, exponents[256] = { 0 }, mantissas[128] = { 0 };

    (void)state;
    assert_int_equal(afdep_workload_alloc(&tokens, &scenario, TOKENS), 0);
    afdep_workload_source(&tokens, &scenario, NULL, 3, 3, 0, TOKENS);
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        uint16_t bits = ((const uint16_t *)tokens.x)[i];
        int sign = bits >> 15;
        assert_true((bits & 0x7F80) != 0x7F80); /* neither infinite nor NaN */
        signs[sign]++;
        exponents[bits >> 7 & 0xFF]++;
        mantissas[bits & 0x7F]++;
        zeros[sign] += (bits & 0x7FFF) == 0;
        denormals[sign] += (bits & 0x7F80) == 0 && (bits & 0x7F) != 0;
    }
    for (int sign = 0; sign < 2; sign++) {
        assert_true(signs[sign] > TOKENS * HIDDEN * 45 / 100);
        assert_in_range(zeros[sign], 1, TOKENS * HIDDEN / 100);
        assert_in_range(denormals[sign], 1, TOKENS * HIDDEN / 100);
    }
    for (int e = 120; e < 128; e++)
        assert_true(exponents[e] > TOKENS * HIDDEN / 10);
    for (int m = 0; m < 128; m++)
        assert_true(mantissas[m] > TOKENS * HIDDEN / 256);
    afdep_workload_free(&tokens);
}

static void test_fp8_values(void **state)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_FP8, AFDEP_ROUTING_UNIFORM);
    afdep_source_tokens_t tokens;
    int codes[256] = { 0 }, powers = 0, others = 0;

    (void)state;
    assert_int_equal(afdep_workload_alloc(&tokens, &scenario, TOKENS), 0);
    afdep_workload_source(&tokens, &scenario, NULL, 3, 3, 0, TOKENS);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        codes[((const uint8_t *)tokens.x)[i]]++;
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7F) == 0x7F)
            assert_int_equal(codes[code], 0);
        else
            assert_true(codes[code] > TOKENS * HIDDEN / 512);
    }
    for (int i = 0; i < TOKENS * HIDDEN / 128; i++) {
        uint32_t bits = afdep_convert_bits(tokens.x_scale[i]);
        assert_true(tokens.x_scale[i] > 0 && isnormal(tokens.x_scale[i]));
        powers += (bits & 0x7FFFFF) == 0;
        others += (bits & 0x7FFFFF) != 0;
    }
    assert_true(powers > 10 && others > 10);
    afdep_workload_free(&tokens);
}

/* ---- The expert stand-in --------------------------------------------------------------------------------------- */

static void check_expert(afdep_dtype_t dtype)
{
    afdep_scenario_t scenario = scenario_of(dtype, AFDEP_ROUTING_UNIFORM);
    uint64_t row[HIDDEN / 4];
    float scale[HIDDEN / 128] = { 0 };
    uint16_t want[HIDDEN], got[HIDDEN], unweighted[HIDDEN];

    afdep_workload_row(row, scale, &scenario, 2, 2, 0, 0);
    for (int expert = 0; expert < EXPERTS; expert++) {
        afdep_workload_expert(want, row, scale, 0.3f, expert, &scenario, 0);
        memset(got, 0xFF, sizeof(got));
        afdep_workload_expert(got, row, scale, 0.3f, expert, &scenario, 0);
        assert_memory_equal(got, want, sizeof(got));
        for (int i = 0; i < HIDDEN; i++)
            assert_true((got[i] & 0x7F80) != 0x7F80);
        afdep_workload_expert(got, row, scale, 0.7f, expert, &scenario, 0);
        assert_true(equal_bytes(got, want, sizeof(got)) < sizeof(got) * 3 / 4);
        for (int other = 0; other < expert; other++) {
            afdep_workload_expert(got, row, scale, 0.3f, other, &scenario, 0);
            assert_memory_not_equal(got, want, sizeof(got));
        }
        /* With the weight left to the library, it is not in the row. */
        afdep_workload_expert(got, row, scale, 0.3f, expert, &scenario, 1);
        afdep_workload_expert(unweighted, row, scale, 0.7f, expert, &scenario, 1);
        assert_memory_equal(got, unweighted, sizeof(got));
        afdep_workload_expert(want, row, scale, 1, expert, &scenario, 0);
        assert_memory_equal(got, want, sizeof(got));
        if (dtype == AFDEP_DTYPE_FP8) {
            scale[HIDDEN / 128 - 1] *= 1.5f;
            afdep_workload_expert(got, row, scale, 1, expert, &scenario, 0);
            scale[HIDDEN / 128 - 1] /= 1.5f;
            assert_memory_equal(got, want, (HIDDEN - 128) * sizeof(*got));
            assert_memory_not_equal(got + HIDDEN - 128, want + HIDDEN - 128, 128 * sizeof(*got));
        }
    }
    /* A change of sign in any one element shows in that element. */
    afdep_workload_expert(want, row, scale, 1, 0, &scenario, 0);
    ((uint8_t *)row)[HIDDEN * element_bytes(&scenario) - 1] ^= 0x80;
    afdep_workload_expert(got, row, scale, 1, 0, &scenario, 0);
    assert_memory_equal(got, want, (HIDDEN - 1) * sizeof(*got));
    assert_int_not_equal(got[HIDDEN - 1], want[HIDDEN - 1]);
}

static void test_expert(void **state)
{
    (void)state;
    check_expert(AFDEP_DTYPE_BF16);
    check_expert(AFDEP_DTYPE_FP8);
}

/* ---- Traces ---------------------------------------------------------------------------------------------------- */

/* Loads `text` as a trace of 8 experts, top 2; on refusal returns NULL, and `why` must hold `about`. */
static afdep_trace_t *trace_of(const char *text, const char *about)
{
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_TRACE);
    char file[] = "test_workload_trace_XXXXXX";
    char why[256] = "";
    int descriptor = mkstemp(file);

    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
    close(descriptor);
    scenario.num_experts = 8;
    scenario.top_k = 2;
    afdep_trace_t *trace = afdep_trace_load(file, &scenario, why, sizeof(why));
    unlink(file);
    if (trace == NULL) {
        if (strstr(why, about) == NULL)
            print_error("%s\n", why);
        assert_non_null(strstr(why, about));
        assert_non_null(strstr(why, file)); /* names the file */
        assert_null(strchr(why, '\n'));
    }
    return trace;
}

#define HEAD "{\"schema\": \"afdep-trace/1\", \"top_k\": 2, \"num_experts\": 8, "

/* Token i of source s in exchange n takes row (n + 131 s + i) mod rows. */
static void test_trace(void **state)
{
    afdep_trace_t *trace = trace_of(HEAD "\"ids\": [[0, 7], [-1, -1], [3, -1]], "
                                         "\"weights\": [[0.5, 0.25], [1, 2], [3, 4]]}",
                                    "");
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_TRACE);
    static const int32_t ids[3][2] = { { 0, 7 }, { -1, -1 }, { 3, -1 } };
    static const float weights[3][2] = { { 0.5f, 0.25f }, { 1, 2 }, { 3, 4 } };
    afdep_source_tokens_t tokens;

    (void)state;
    assert_non_null(trace);
    scenario.top_k = 2;
    assert_int_equal(afdep_workload_alloc_routes(&tokens, &scenario, 5), 0);
    for (uint64_t exchange = 0; exchange < 4; exchange++) {
        for (int source = 0; source < 3; source++) {
            afdep_workload_routes(&tokens, &scenario, trace, 1, exchange, source, 5);
            for (int i = 0; i < 5; i++) {
                int row = (int)((exchange + 131 * (uint64_t)source + (uint64_t)i) % 3);
                assert_memory_equal(tokens.ids + 2 * i, ids[row], sizeof(ids[row]));
                assert_memory_equal(tokens.weights + 2 * i, weights[row], sizeof(weights[row]));
            }
        }
    }
    afdep_trace_free(trace);

    trace = trace_of(HEAD "\"ids\": [[1, 2]]}", ""); /* without weights they are drawn */
    assert_non_null(trace);
    afdep_workload_routes(&tokens, &scenario, trace, 1, 0, 0, 2);
    for (int i = 0; i < 2; i++) {
        assert_true(tokens.weights[2 * i] > 0 && tokens.weights[2 * i + 1] > 0);
        assert_true(fabsf(tokens.weights[2 * i] + tokens.weights[2 * i + 1] - 1) < 1e-6f);
    }
    assert_true(tokens.weights[0] != tokens.weights[2]);
    afdep_trace_free(trace);
    afdep_workload_free(&tokens);
}

static void test_trace_refusals(void **state)
{
    static const char *const cases[][2] = {
        { "[]", "object" },
        { "{\"schema\": \"afdep-trace/2\"}", "schema" },
        { "{\"schema\": \"afdep-trace/1\", \"num_experts\": 8, \"ids\": [[1, 2]]}", "top_k: missing" },
        { "{\"schema\": \"afdep-trace/1\", \"top_k\": 3, \"num_experts\": 8, \"ids\": [[1, 2]]}",
          "top_k: 3: the scenario says 2" },
        { "{\"schema\": \"afdep-trace/1\", \"top_k\": 2, \"num_experts\": 9, \"ids\": [[1, 2]]}",
          "num_experts: 9: the scenario says 8" },
        { HEAD "\"ids\": [[1, 2]], \"idz\": 1}", "idz: no such field" },
        { HEAD "\"ids\": []}", "ids: must be an array of at least one row" },
        { HEAD "\"ids\": [[1, 2], [1]]}", "ids[1]: must be an array of 2 ids" },
        { HEAD "\"ids\": [[1, 2], 5]}", "ids[1]: must be an array of 2 ids" },
        { HEAD "\"ids\": [[1, 8]]}", "ids[0][1]: 8: must be -1 or an expert, 0 .. 7" },
        { HEAD "\"ids\": [[-2, 1]]}", "ids[0][0]: -2:" },
        { HEAD "\"ids\": [[1.5, 1]]}", "ids[0][0]: 1.5:" },
        { HEAD "\"ids\": [[1, \"2\"]]}", "ids[0][1]: not a number" },
        { HEAD "\"ids\": [[4, 4]]}", "ids[0][1]: 4: repeats slot 0" },
        { HEAD "\"ids\": [[1, 2]], \"weights\": []}", "weights: must be an array of 1 rows" },
        { HEAD "\"ids\": [[1, 2]], \"weights\": [[1]]}", "weights[0]: must be an array of 2 weights" },
        { HEAD "\"ids\": [[1, 2]], \"weights\": [[1, 0]]}", "weights[0][1]: 0: must be positive" },
        { HEAD "\"ids\": [[1, 2]], \"weights\": [[1, 1e39]]}", "weights[0][1]: 1e+39: must be positive" },
        { HEAD "\"ids\": [[1, 2]", "" },
    };
    char why[256] = "";
    afdep_scenario_t scenario = scenario_of(AFDEP_DTYPE_BF16, AFDEP_ROUTING_TRACE);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_null(trace_of(cases[i][0], cases[i][1]));
    assert_null(afdep_trace_load("no/such/trace.json", &scenario, why, sizeof(why)));
    assert_non_null(strstr(why, "no/such/trace.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_different),   cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_all_experts),   cmocka_unit_test(test_zipf),        cmocka_unit_test(test_steep_zipf),
        cmocka_unit_test(test_hot),           cmocka_unit_test(test_bf16_values), cmocka_unit_test(test_fp8_values),
        cmocka_unit_test(test_expert),        cmocka_unit_test(test_trace),       cmocka_unit_test(test_trace_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
