/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle against cases worked out by hand, each chosen so that another order, another place to round or another
 * way to multiply would give other bits; and its check of received tensors against every single planted error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "validate/convert.h"
#include "validate/oracle.h"

enum {
    HIDDEN = 256,
    ONE = 0x3F80,
    MINUS_ONE = 0xBF80,
    ONE_AND_ULP = 0x3F81, /* 1 + 2^-7 */
    HALF_ULP = 0x3B80,    /* 2^-8: half of what separates BF16 numbers just above one */
    BIG = 0x4B80,         /* 2^24: FP32 numbers there are 2 apart, so that adding one is lost */
    MINUS_BIG = 0xCB80
};

/* ---- Numbers --------------------------------------------------------------------------------------------------- */

static void test_e4m3_all_codes(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        float got = afdep_convert_from_e4m3((uint8_t)code);
        int exponent = code >> 3 & 15;
        int mantissa = code & 7;
        float magnitude = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);

        if ((code & 0x7F) == 0x7F)
            assert_true(isnan(got));
        else
            assert_int_equal(afdep_convert_bits(got), afdep_convert_bits(code & 0x80 ? -magnitude : magnitude));
    }
}

static void test_bf16_rounding(void **state)
{
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        { 0x3F800000, 0x3F80 }, { 0x3F807FFF, 0x3F80 }, { 0x3F808000, 0x3F80 }, { 0x3F808001, 0x3F81 },
        { 0x3F818000, 0x3F82 }, { 0x3F817FFF, 0x3F81 }, { 0x80000000, 0x8000 }, { 0x00008000, 0x0000 },
        { 0x00018000, 0x0002 }, { 0x007FFFFF, 0x0080 }, { 0x7F7FFFFF, 0x7F80 }, { 0xFF7FFFFF, 0xFF80 },
        { 0x7F7F7FFF, 0x7F7F }, { 0x7F800000, 0x7F80 }, { 0xFF800000, 0xFF80 }, { 0x7F800001, 0x7FFF },
        { 0xFFC00000, 0x7FFF }, { 0xFFFFFFFF, 0x7FFF }, { 0x7FFFFFFF, 0x7FFF },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(afdep_convert_to_bf16(afdep_convert_float(cases[i].from)), cases[i].to);
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t back = afdep_convert_to_bf16(afdep_convert_from_bf16((uint16_t)bits));
        assert_int_equal(back, (bits & 0x7FFF) > 0x7F80 ? 0x7FFF : bits);
    }
}

/* ---- Sums ------------------------------------------------------------------------------------------------------ */

/* One token's choices, and what the rank owning each choice replies in every element. */
typedef struct token {
    int ffn_ranks, ranks_per_domain, num_experts, top_k;
    int32_t ids[8];
    uint16_t replies[8];
    float weights[8];
    int apply_weights;
} token_t;

static void reply_with(void *context, uint16_t *row, int slot)
{
    const token_t *token = context;

    for (int i = 0; i < HIDDEN; i++)
        row[i] = token->replies[slot];
}

/* The sum, which must be the same in every element. */
static uint16_t sum_of(const token_t *token)
{
    afdep_scenario_t scenario = { .ffn_ranks = token->ffn_ranks,
                                  .attention_ranks = token->ffn_ranks,
                                  .ranks_per_domain = token->ranks_per_domain,
                                  .num_experts = token->num_experts,
                                  .top_k = token->top_k,
                                  .hidden = HIDDEN };
    uint16_t out[HIDDEN];
    void *scratch = malloc(afdep_oracle_scratch(&scenario));

    assert_non_null(scratch);
    memset(out, 0xA5, sizeof(out));
    afdep_oracle_sum(out, &scenario, token->ids, token->weights, token->apply_weights, reply_with, (void *)token,
                     scratch);
    free(scratch);
    for (int i = 1; i < HIDDEN; i++)
        assert_int_equal(out[i], out[0]);
    return out[0];
}

static void test_no_contributor(void **state)
{
    token_t token = { 2, 1, 8, 2, { -1, -1 }, { ONE, ONE }, { 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&token), 0x0000);
    token.apply_weights = 1;
    assert_int_equal(sum_of(&token), 0x0000);
}

/* Alone, bits pass: NaN payloads, -0 (adding it to +0 would lose it). With weights it is arithmetic. */
static void test_single_contributor(void **state)
{
    static const uint16_t bits[] = { 0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0xFFA5, 0x7FC0, ONE };
    token_t token = { 2, 1, 8, 3, { -1, 6, -1 }, { ONE, 0, ONE }, { 1, 1, 1 }, 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
        token.replies[1] = bits[i];
        token.apply_weights = 0;
        assert_int_equal(sum_of(&token), bits[i]);
        token.apply_weights = 1;
        assert_int_equal(sum_of(&token), (bits[i] & 0x7FFF) > 0x7F80 ? 0x7FFF : bits[i]);
    }
}

/* Two -0 are -0: a sum that starts from zero would give +0. */
static void test_starts_from_first(void **state)
{
    token_t one_rank = { 1, 1, 8, 2, { 1, 2 }, { 0x8000, 0x8000 }, { 1, 1 }, 0 };
    token_t two_ranks = { 2, 2, 8, 2, { 1, 5 }, { 0x8000, 0x8000 }, { 1, 1 }, 0 };
    token_t two_domains = { 2, 1, 8, 2, { 1, 5 }, { 0x8000, 0x8000 }, { 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&one_rank), 0x8000);
    assert_int_equal(sum_of(&two_ranks), 0x8000);
    assert_int_equal(sum_of(&two_domains), 0x8000);
    one_rank.apply_weights = 1;
    assert_int_equal(sum_of(&one_rank), 0x8000);
}

/* Ascending slots in a rank, whatever the experts: (2^24 + 1) - 2^24 is 0, (2^24 - 2^24) + 1 is 1. */
static void test_slot_order(void **state)
{
    token_t lost = { 1, 1, 8, 3, { 3, 1, 2 }, { BIG, ONE, MINUS_BIG }, { 1, 1, 1 }, 0 };
    token_t kept = { 1, 1, 8, 3, { 3, 2, 1 }, { BIG, MINUS_BIG, ONE }, { 1, 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&lost), 0x0000);
    assert_int_equal(sum_of(&kept), ONE);
    lost.apply_weights = kept.apply_weights = 1;
    assert_int_equal(sum_of(&lost), 0x0000);
    assert_int_equal(sum_of(&kept), ONE);
}

/* Ranks in ascending order in a domain, and domains at the source, whatever the slots: slots would keep the one. */
static void test_rank_and_domain_order(void **state)
{
    token_t token = { 3, 6, 6, 3, { 2, 4, 0 }, { BIG, MINUS_BIG, ONE }, { 1, 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&token), 0x0000); /* one domain */
    token.ranks_per_domain = 0;               /* says the same */
    assert_int_equal(sum_of(&token), 0x0000);
    token.ranks_per_domain = 1;
    assert_int_equal(sum_of(&token), 0x0000);
    token.ids[0] = 0; /* now rank 0 has 2^24, rank 1 -2^24, rank 2 the one */
    token.ids[1] = 2;
    token.ids[2] = 4;
    assert_int_equal(sum_of(&token), ONE);
    token.ranks_per_domain = 6;
    assert_int_equal(sum_of(&token), ONE);
}

/* 1 + 2^-8 is a tie that goes to 1 in BF16; 1 + 2^-8 + 2^-8 is 1 + 2^-7. Who rounds first decides. */
static void test_where_rounding_happens(void **state)
{
    token_t one_rank = { 1, 1, 8, 3, { 0, 1, 2 }, { ONE, HALF_ULP, HALF_ULP }, { 1, 1, 1 }, 0 };
    token_t rank_first = { 2, 2, 8, 3, { 0, 1, 4 }, { ONE, HALF_ULP, HALF_ULP }, { 1, 1, 1 }, 0 };
    token_t three_ranks = { 4, 2, 8, 3, { 0, 2, 4 }, { ONE, HALF_ULP, HALF_ULP }, { 1, 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&one_rank), ONE_AND_ULP);
    assert_int_equal(sum_of(&rank_first), ONE);
    assert_int_equal(sum_of(&three_ranks), ONE); /* ranks 0 and 1 round as a domain before rank 2 comes */
    three_ranks.ranks_per_domain = 1;            /* three domains: the source rounds once */
    assert_int_equal(sum_of(&three_ranks), ONE_AND_ULP);
    three_ranks.ranks_per_domain = 4; /* one domain: it rounds once */
    assert_int_equal(sum_of(&three_ranks), ONE_AND_ULP);
}

/* A lone rank's partial may not be summed with its neighbour domain's before that one rounds. */
static void test_domains_by_rank_number(void **state)
{
    token_t token = { 4, 2, 4, 3, { 1, 2, 3 }, { ONE, HALF_ULP, HALF_ULP }, { 1, 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&token), ONE_AND_ULP); /* 2^-8 + 2^-8 in domain 1 first */
}

/* (1 + 2^-23) * (1 + 2^-7) has a last bit, 2^-30, that a separate multiplication loses. */
static void test_fused(void **state)
{
    float nearly = 1 + 0x1p-7f + 0x1p-23f;
    token_t token = { 1, 1, 8, 2, { 0, 1 }, { MINUS_ONE, ONE_AND_ULP }, { nearly, 1 + 0x1p-23f }, 1 };

    (void)state;
    assert_int_equal(sum_of(&token), 0x3080); /* 2^-30 */
}

/* The product is 2^-24 + 2^-54. Added to 1 in double precision its end is lost, and the tie that remains goes back to
   1; fma gives 1 + 2^-23. The third term shows which. */
static void test_fused_is_not_double(void **state)
{
    token_t token = { 1, 1, 8, 3, { 0, 1, 2 }, { ONE, 0x3FCD, MINUS_ONE }, { 1, 10475530 * 0x1p-48f, 1 }, 1 };

    (void)state;
    assert_int_equal(sum_of(&token), 0x3400); /* 2^-23 */
}

/* The first product is 1 + 2^-8 + 125 * 2^-31: as FP32 that is the tie 1 + 2^-8, and as BF16 then 1. Rounded to BF16
   at once it would be 1 + 2^-7. */
static void test_first_product_is_rounded(void **state)
{
    token_t token = { 1, 1, 8, 2, { 0, -1 }, { ONE_AND_ULP, ONE }, { 16712189 * 0x1p-24f, 1 }, 1 };

    (void)state;
    assert_int_equal(sum_of(&token), ONE);
}

static void test_special_values(void **state)
{
    token_t token = { 1, 1, 8, 2, { 0, 1 }, { 0x7F7F, 0x7F7F }, { 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&token), 0x7F80); /* overflow */
    token.replies[0] = 0x7F80;
    token.replies[1] = 0xFF80;
    assert_int_equal(sum_of(&token), 0x7FFF); /* infinity less infinity */
    token.replies[0] = 0xFFC1;
    token.replies[1] = ONE;
    assert_int_equal(sum_of(&token), 0x7FFF); /* a NaN that went through arithmetic */
    token.replies[0] = token.replies[1] = 0x0001;
    assert_int_equal(sum_of(&token), 0x0002); /* denormals stay */
    token.replies[1] = 0x8001;
    assert_int_equal(sum_of(&token), 0x0000);
}

/* Ids out of range and repeated ones are no choice. */
static void test_invalid_ids(void **state)
{
    token_t token = { 2, 1, 8, 4, { 8, 3, 3, -7 }, { BIG, ONE, BIG, BIG }, { 1, 1, 1, 1 }, 0 };

    (void)state;
    assert_int_equal(sum_of(&token), ONE);
}

/* Every choice's own reply is used: token 1 of a source, its row, scales, weights, experts. */
static void check_token(afdep_dtype_t dtype)
{
    afdep_scenario_t scenario = { .ffn_ranks = 1,
                                  .attention_ranks = 1,
                                  .ranks_per_domain = 2,
                                  .num_experts = 4,
                                  .top_k = 2,
                                  .hidden = HIDDEN,
                                  .dtype = dtype };
    afdep_source_tokens_t source;
    uint16_t replies[2][HIDDEN], out[HIDDEN];
    void *scratch = malloc(afdep_oracle_scratch(&scenario));

    assert_non_null(scratch);
    assert_int_equal(afdep_workload_alloc(&source, &scenario, 3), 0);
    afdep_workload_source(&source, &scenario, NULL, 5, 6, 0, 3);
    for (int slot = 0; slot < 2; slot++) {
        const char *row = (const char *)source.x + (dtype == AFDEP_DTYPE_FP8 ? HIDDEN : 2 * HIDDEN);
        afdep_workload_expert(replies[slot], row, dtype == AFDEP_DTYPE_FP8 ? source.x_scale + HIDDEN / 128 : NULL,
                              source.weights[2 + slot], source.ids[2 + slot], &scenario, 0);
    }
    afdep_oracle_token(out, &scenario, &source, 1, 0, scratch);
    for (int i = 0; i < HIDDEN; i++) {
        float sum = afdep_convert_from_bf16(replies[0][i]) + afdep_convert_from_bf16(replies[1][i]);
        assert_int_equal(out[i], afdep_convert_to_bf16(sum));
    }
    afdep_workload_free(&source);
    free(scratch);
}

static void test_token(void **state)
{
    (void)state;
    check_token(AFDEP_DTYPE_BF16);
    check_token(AFDEP_DTYPE_FP8);
}

/* ---- Received -------------------------------------------------------------------------------------------------- */

enum {
    F = 2,
    A = 2,
    E = 4,
    K = 2
};

static afdep_scenario_t small_scenario(afdep_dtype_t dtype, int alignment)
{
    return (afdep_scenario_t){ .ffn_ranks = F,
                               .attention_ranks = A,
                               .ranks_per_domain = 2,
                               .num_experts = E,
                               .top_k = K,
                               .hidden = HIDDEN,
                               .dtype = dtype,
                               .expert_alignment = alignment };
}

static int32_t hand_ids[A][4] = { { 2, 0, 0, -1 }, { 0, 3, 1, 0 } };
static float hand_weights[A][4] = { { 0.5f, 0.25f, 0.125f, 9 }, { 3, 4, 5, 6 } };

static void hand_sources(afdep_source_tokens_t *sources)
{
    for (int s = 0; s < A; s++) {
        sources[s] =
            (afdep_source_tokens_t){ .source = s, .tokens = 2, .ids = hand_ids[s], .weights = hand_weights[s] };
    }
}

static void assert_received(const afdep_oracle_received_t *got, int rows, const int32_t *ends, const int32_t *counts,
                            const int32_t *row_source, const float *row_weight)
{
    assert_int_equal(got->rows, rows);
    assert_memory_equal(got->ends, ends, E / F * sizeof(*ends));
    assert_memory_equal(got->counts, counts, E / F * sizeof(*counts));
    assert_memory_equal(got->row_source, row_source, (size_t)rows * 2 * sizeof(*row_source));
    assert_memory_equal(got->row_weight, row_weight, (size_t)rows * sizeof(*row_weight));
}

/* Expert by expert; inside one by source rank, then token, whatever the slot; aligned starts. */
static void test_received_by_hand(void **state)
{
    static const int32_t ends0[] = { 4, 7 }, counts0[] = { 6, 3 };
    static const int32_t source0[] = { 2, 0, 2, 1, 3, 0, 3, 1, -1, -1, -1, -1, 3, 1, -1, -1, -1, -1 };
    static const float weight0[] = { 0.25f, 0.125f, 3, 6, 0, 0, 5, 0, 0 };
    static const int32_t ends1[] = { 1, 4 }, counts1[] = { 3, 3 };
    static const int32_t source1[] = { 2, 0, -1, -1, -1, -1, 3, 0, -1, -1, -1, -1 };
    static const float weight1[] = { 0.5f, 0, 0, 4, 0, 0 };
    static const int32_t unaligned_ends[] = { 4, 5 }, unaligned_counts[] = { 4, 1 };
    static const int32_t unaligned_source[] = { 2, 0, 2, 1, 3, 0, 3, 1, 3, 1 };
    static const float unaligned_weight[] = { 0.25f, 0.125f, 3, 6, 5 };
    afdep_scenario_t scenario = small_scenario(AFDEP_DTYPE_BF16, 3);
    afdep_source_tokens_t sources[A];
    afdep_oracle_received_t got;

    (void)state;
    hand_sources(sources);
    assert_int_equal(afdep_oracle_received(&got, &scenario, sources, 0), 0);
    assert_received(&got, 9, ends0, counts0, source0, weight0);
    afdep_oracle_received_free(&got);
    assert_int_equal(afdep_oracle_received(&got, &scenario, sources, 1), 0);
    assert_received(&got, 6, ends1, counts1, source1, weight1);
    afdep_oracle_received_free(&got);
    scenario.expert_alignment = 1;
    assert_int_equal(afdep_oracle_received(&got, &scenario, sources, 0), 0);
    assert_received(&got, 5, unaligned_ends, unaligned_counts, unaligned_source, unaligned_weight);
    afdep_oracle_received_free(&got);
}

/* Nothing sent, or an expert in the middle that nobody chose: ends stay where the next expert starts. */
static void test_received_empty(void **state)
{
    static const int32_t none[] = { 0, 0 };
    static const int32_t ends[] = { 0, 1 }, counts[] = { 0, 4 }, source[] = { 2, 0, -1, -1, -1, -1, -1, -1 };
    static const float weight[] = { 0.5f, 0, 0, 0 };
    int32_t ids[] = { 1, 7, 1, 1 }; /* out of range; repeated */
    afdep_scenario_t scenario = small_scenario(AFDEP_DTYPE_BF16, 4);
    afdep_source_tokens_t sources[A];
    afdep_oracle_received_t got;

    (void)state;
    hand_sources(sources);
    sources[0].tokens = sources[1].tokens = 0;
    assert_int_equal(afdep_oracle_received(&got, &scenario, sources, 0), 0);
    assert_received(&got, 0, none, none, NULL, NULL);
    afdep_oracle_received_free(&got);
    sources[0].tokens = 1;
    sources[0].ids = ids;
    assert_int_equal(afdep_oracle_received(&got, &scenario, sources, 0), 0);
    assert_received(&got, 4, ends, counts, source, weight);
    afdep_oracle_received_free(&got);
    sources[0].ids = ids + 2;
    assert_int_equal(afdep_oracle_received(&got, &scenario, sources, 0), 0);
    assert_received(&got, 4, ends, counts, source, weight);
    afdep_oracle_received_free(&got);
}

/* What worker_receive would have written, to be damaged. */
typedef struct tensors {
    afdep_scenario_t scenario;
    afdep_oracle_received_t want;
    char *rows;
    size_t row_bytes;
    float *row_scale, *row_weight;
    int32_t *row_source, *ends, *host_counts;
    int64_t row_count;
} tensors_t;

enum {
    SEED = 77,
    EXCHANGE = 3
};

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    assert_non_null(copy);
    return memcpy(copy, from, bytes);
}

static void tensors_make(tensors_t *t, afdep_dtype_t dtype)
{
    afdep_source_tokens_t sources[A];

    t->scenario = small_scenario(dtype, 3);
    hand_sources(sources);
    assert_int_equal(afdep_oracle_received(&t->want, &t->scenario, sources, 0), 0);
    size_t rows = (size_t)t->want.rows;
    t->row_bytes = dtype == AFDEP_DTYPE_FP8 ? HIDDEN : 2 * HIDDEN;
    t->rows = calloc(rows, t->row_bytes);
    t->row_scale = calloc(rows, HIDDEN / 128 * sizeof(float));
    assert_non_null(t->rows);
    assert_non_null(t->row_scale);
    for (size_t r = 0; r < rows; r++) {
        if (t->want.row_source[2 * r] >= 0)
            afdep_workload_row(t->rows + r * t->row_bytes, t->row_scale + r * (HIDDEN / 128), &t->scenario, SEED,
                               EXCHANGE, t->want.row_source[2 * r] - F, t->want.row_source[2 * r + 1]);
    }
    t->row_weight = copy_of(t->want.row_weight, rows * sizeof(float));
    t->row_source = copy_of(t->want.row_source, rows * 2 * sizeof(int32_t));
    t->ends = copy_of(t->want.ends, E / F * sizeof(int32_t));
    t->host_counts = copy_of(t->want.counts, E / F * sizeof(int32_t));
    t->row_count = t->want.rows;
}

static void tensors_free(tensors_t *t)
{
    free(t->host_counts);
    free(t->ends);
    free(t->row_source);
    free(t->row_weight);
    free(t->row_scale);
    free(t->rows);
    afdep_oracle_received_free(&t->want);
}

/* Number of wrong values; the description must hold `about`, and be empty when there is nothing wrong. */
static int64_t check(const tensors_t *t, const char *about)
{
    char why[200] = "";
    int64_t wrong =
        afdep_oracle_check_received(&t->want, &t->scenario, SEED, EXCHANGE, 0, t->rows, t->row_scale, t->row_weight,
                                    t->row_source, t->ends, t->host_counts, t->row_count, why, sizeof(why));

    if (wrong == 0)
        assert_string_equal(why, "");
    else
        assert_non_null(strstr(why, about));
    return wrong;
}

static void check_planted(afdep_dtype_t dtype)
{
    tensors_t t;

    tensors_make(&t, dtype);
    assert_int_equal(check(&t, ""), 0);

    t.rows[4 * t.row_bytes] ^= 1; /* padding: unspecified */
    assert_int_equal(check(&t, ""), 0);
    t.rows[6 * t.row_bytes + t.row_bytes - 1] ^= 1; /* the last element of the last live row */
    assert_int_equal(check(&t, "rows[6][255] (source rank 3, token 1)"), 1);
    t.rows[6 * t.row_bytes + t.row_bytes - 1] ^= 1;

    if (dtype == AFDEP_DTYPE_FP8) {
        t.row_scale[3] *= 2;
        assert_int_equal(check(&t, "row_scale[1][1]"), 1);
        t.row_scale[3] /= 2;
    }
    t.row_weight[5] = -0.0f; /* padding must be +0 */
    t.row_weight[0] += 1;
    assert_int_equal(check(&t, "row_weight[0]"), 2);
    t.row_weight[5] = 0;
    t.row_weight[0] -= 1;

    t.row_source[1] = 1;
    t.row_source[2 * 8] = 0; /* padding must be -1 */
    assert_int_equal(check(&t, "row_source[0] is (2, 1), should be (2, 0)"), 2);
    memcpy(t.row_source, t.want.row_source, 18 * sizeof(int32_t));

    t.ends[1]++;
    assert_int_equal(check(&t, "ends[1] is 8, should be 7"), 1);
    t.ends[1]--;
    t.host_counts[0] = 4; /* the live count in place of the aligned one */
    assert_int_equal(check(&t, "host_counts[0] is 4, should be 6"), 1);
    t.host_counts[0] = 6;
    t.row_count = 8;
    assert_int_equal(check(&t, "row_count is 8, should be 9"), 1);
    t.row_count = 9;
    assert_int_equal(check(&t, ""), 0);
    tensors_free(&t);
}

static void test_check_received(void **state)
{
    (void)state;
    check_planted(AFDEP_DTYPE_BF16);
    check_planted(AFDEP_DTYPE_FP8);
}

/* Another exchange's rows, such as stale ones of an inbox, are wrong nearly everywhere. */
static void test_check_stale_rows(void **state)
{
    tensors_t t;

    (void)state;
    tensors_make(&t, AFDEP_DTYPE_BF16);
    afdep_workload_row(t.rows, NULL, &t.scenario, SEED, EXCHANGE - 1, 0, 0);
    assert_true(check(&t, "rows[0][") > HIDDEN / 2);
    tensors_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3_all_codes),
        cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_no_contributor),
        cmocka_unit_test(test_single_contributor),
        cmocka_unit_test(test_starts_from_first),
        cmocka_unit_test(test_slot_order),
        cmocka_unit_test(test_rank_and_domain_order),
        cmocka_unit_test(test_where_rounding_happens),
        cmocka_unit_test(test_domains_by_rank_number),
        cmocka_unit_test(test_fused),
        cmocka_unit_test(test_fused_is_not_double),
        cmocka_unit_test(test_first_product_is_rounded),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_invalid_ids),
        cmocka_unit_test(test_token),
        cmocka_unit_test(test_received_by_hand),
        cmocka_unit_test(test_received_empty),
        cmocka_unit_test(test_check_received),
        cmocka_unit_test(test_check_stale_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
