/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency API's rules that need no buffer, line by line of the document that it follows: which format a request
 * becomes on which profile, limits, sizes, layout, order of calls; and the quotients that GPUs encode with.
 */
#include <math.h>
#include <stdlib.h>

#include "low_latency/ll.h"
#include "low_latency/ll_ledger.h"
#include "validate/unit/ll_expect.h"

/* ---- Formats ------------------------------------------------------------------------------------------------- */

/* What the flags become: each row one line of the document's priority list. */
static void test_priority(void **state)
{
    enum { FP8 = 1, UE8M0 = 2, MX8 = 4, MX4 = 8 };
    static const struct {
        int flags, int8;
        int want[4]; /* native, a2, a3, a5; 0: not implemented there */
    } rows[] = {
        { MX4 | MX8 | FP8, 0, { AFDEP_LL_MXFP4, 0, 0, AFDEP_LL_MXFP4 } },
        { MX4, 1, { AFDEP_LL_MXFP4, 0, 0, AFDEP_LL_MXFP4 } },
        { MX8 | FP8, 0, { AFDEP_LL_MXFP8, 0, 0, AFDEP_LL_MXFP8 } },
        { MX8, 1, { AFDEP_LL_MXFP8, 0, 0, AFDEP_LL_MXFP8 } },
        { FP8 | UE8M0, 0, { AFDEP_LL_MXFP8, 0, 0, AFDEP_LL_MXFP8 } },
        { FP8, 0, { AFDEP_LL_FP8_BLOCK, AFDEP_LL_INT8, AFDEP_LL_INT8, AFDEP_LL_FP8_TOKEN } },
        { FP8, 1, { AFDEP_LL_FP8_BLOCK, AFDEP_LL_INT8, AFDEP_LL_INT8, AFDEP_LL_FP8_TOKEN } },
        { UE8M0, 0, { AFDEP_LL_BF16, AFDEP_LL_BF16, AFDEP_LL_BF16, AFDEP_LL_BF16 } },
        { UE8M0, 1, { AFDEP_LL_INT8, AFDEP_LL_INT8, AFDEP_LL_INT8, AFDEP_LL_INT8 } },
        { 0, 1, { AFDEP_LL_INT8, AFDEP_LL_INT8, AFDEP_LL_INT8, AFDEP_LL_INT8 } },
        { 0, 0, { AFDEP_LL_BF16, AFDEP_LL_BF16, AFDEP_LL_BF16, AFDEP_LL_BF16 } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int p = 0; p < 4; p++) {
            int f = rows[i].flags;
            afdep_ll_request_t request = { AFDEP_LL_AUTO, f & FP8, f & UE8M0, f & MX8, f & MX4 };
            afdep_ll_format_t format = AFDEP_LL_AUTO;
            setenv("DEEP_NORMAL_MODE_USE_INT8_QUANT", rows[i].int8 ? "1" : "0", 1);
            afdep_status_t status = afdep_ll_resolve_format((afdep_ll_profile_t)p, &request, &format);
            if (rows[i].want[p] == 0)
                EXPECT(status, AFDEP_ERR_UNSUPPORTED, "not implemented on profile");
            else if (status != AFDEP_OK || (int)format != rows[i].want[p])
                fail_msg("row %zu, profile %d: %s", i, p, afdep_ll_format_name(format));
        }
    unsetenv("DEEP_NORMAL_MODE_USE_INT8_QUANT");
}

static void test_requests(void **state)
{
    /* By name: bits of what each profile has. */
    static const unsigned has[] = { 0xFE, 0x06, 0x06, 0x3E };
    afdep_ll_format_t format = AFDEP_LL_AUTO;
    (void)state;
    for (int p = 0; p < 4; p++)
        for (int f = 1; f <= 7; f++) {
            afdep_ll_request_t request = { (afdep_ll_format_t)f, 1, 1, 1, 1 };
            afdep_status_t status = afdep_ll_resolve_format((afdep_ll_profile_t)p, &request, &format);
            assert_int_equal(status, has[p] >> f & 1 ? AFDEP_OK : AFDEP_ERR_UNSUPPORTED);
            if (status == AFDEP_OK)
                assert_int_equal(format, f);
        }
    afdep_ll_request_t bad = { (afdep_ll_format_t)8, 0, 0, 0, 0 };
    EXPECT(afdep_ll_resolve_format(AFDEP_LL_NATIVE, &bad, &format), AFDEP_ERR_ARGUMENT, "format is 8");
    EXPECT(afdep_ll_resolve_format((afdep_ll_profile_t)9, &bad, &format), AFDEP_ERR_CONFIG, "profile is 9");
    EXPECT(afdep_ll_resolve_format(AFDEP_LL_NATIVE, NULL, &format), AFDEP_ERR_ARGUMENT, "request is NULL");
    setenv("DEEP_NORMAL_MODE_USE_INT8_QUANT", "yes", 1);
    bad.format = AFDEP_LL_AUTO;
    EXPECT(afdep_ll_resolve_format(AFDEP_LL_NATIVE, &bad, &format), AFDEP_ERR_CONFIG,
           "DEEP_NORMAL_MODE_USE_INT8_QUANT");
    unsetenv("DEEP_NORMAL_MODE_USE_INT8_QUANT");
    afdep_ll_dispatch_t d = AFDEP_LL_DISPATCH_INIT;
    assert_int_equal(d.use_fp8, 1);
    assert_int_equal(d.round_scale | d.use_ue8m0 | d.use_mxfp4 | d.use_mxfp8 | d.async_finish | d.return_recv_hook, 0);
    assert_int_equal(d.struct_size, sizeof(d));
}

static void test_row_sizes(void **state)
{
    static const size_t codes[] = { 0, 14336, 7168, 7168, 7168, 3584, 7168, 7168 },
                        scales[] = { 0, 0, 4, 4, 224, 224, 224, 56 };
    size_t code_bytes, scale_bytes;
    (void)state;
    for (int f = 1; f <= 7; f++) {
        EXPECT_OK(afdep_ll_format_bytes((afdep_ll_format_t)f, 7168, &code_bytes, &scale_bytes));
        assert_int_equal(code_bytes, codes[f]);
        assert_int_equal(scale_bytes, scales[f]);
    }
    EXPECT(afdep_ll_format_bytes(AFDEP_LL_AUTO, 128, NULL, NULL), AFDEP_ERR_ARGUMENT, "format is 0");
    EXPECT(afdep_ll_format_bytes(AFDEP_LL_FP8_BLOCK, 96, NULL, NULL), AFDEP_ERR_ARGUMENT, "multiple of 128");
    EXPECT(afdep_ll_format_bytes(AFDEP_LL_MXFP4, 40, NULL, NULL), AFDEP_ERR_ARGUMENT, "multiple of 32");
    assert_string_equal(afdep_ll_format_name((afdep_ll_format_t)99), "unknown format");
    assert_string_equal(afdep_ll_profile_name(AFDEP_LL_A5), "a5");
}

/* ---- Limits and sizes ---------------------------------------------------------------------------------------- */

static afdep_status_t bytes_of(afdep_ll_config_t c, int ranks, afdep_ll_memory_t *m)
{
    m->struct_size = sizeof(*m);
    return afdep_ll_buffer_bytes(&c, ranks, m);
}

static void test_limits(void **state)
{
    afdep_ll_memory_t m;
    (void)state;
    for (int p = AFDEP_LL_A2; p <= AFDEP_LL_A5; p++) {
        afdep_ll_profile_t profile = (afdep_ll_profile_t)p;
        EXPECT_OK(bytes_of(config_of(profile, 512, 7168, 16, 512), 8, &m));
        EXPECT(bytes_of(config_of(profile, 512, 7168, 8, 520), 8, &m), AFDEP_ERR_CONFIG,
               "num_experts is 520: 1 to 512");
        EXPECT(bytes_of(config_of(profile, 512, 7168, 8, 0), 8, &m), AFDEP_ERR_CONFIG, "num_experts is 0");
        EXPECT(bytes_of(config_of(profile, 512, 7168, 0, 64), 8, &m), AFDEP_ERR_CONFIG, "num_topk is 0");
        EXPECT(bytes_of(config_of(profile, 0, 7168, 8, 64), 8, &m), AFDEP_ERR_CONFIG, "per_rank is 0");
        EXPECT(bytes_of(config_of(profile, 512, 0, 8, 64), 8, &m), AFDEP_ERR_CONFIG, "hidden is 0");
        EXPECT(bytes_of(config_of(profile, 512, 48, 8, 64), 8, &m), AFDEP_ERR_CONFIG, "multiple of 32");
        EXPECT(bytes_of(config_of(profile, 512, 64, 8, 60), 8, &m), AFDEP_ERR_CONFIG, "multiple of the 8 ranks");
        EXPECT(bytes_of(config_of(profile, 512, 64, 9, 8), 8, &m), AFDEP_ERR_CONFIG, "at most num_experts");
        /* More than 512 tokens, and as many as the maximum. */
        EXPECT_OK(afdep_ll_check_tokens(profile, 512, 600));
        EXPECT(afdep_ll_check_tokens(profile, 513, 600), AFDEP_ERR_CONFIG, "tokens is 513: 0 to 512");
        EXPECT(afdep_ll_check_tokens(profile, 128, 128), AFDEP_ERR_CONFIG, "tokens is 128: 0 to 127");
        EXPECT_OK(afdep_ll_check_tokens(profile, 127, 128));
    }
    EXPECT_OK(afdep_ll_check_tokens(AFDEP_LL_NATIVE, 128, 128));
    EXPECT(afdep_ll_check_tokens(AFDEP_LL_NATIVE, 129, 128), AFDEP_ERR_CONFIG, "tokens is 129");
    EXPECT(afdep_ll_check_tokens(AFDEP_LL_NATIVE, -1, 128), AFDEP_ERR_CONFIG, "tokens is -1");
    /* 16 choices, on a2 and a3; 7168 elements, on a2. */
    EXPECT(bytes_of(config_of(AFDEP_LL_A2, 8, 64, 17, 64), 8, &m), AFDEP_ERR_CONFIG, "num_topk is 17: 1 to 16");
    EXPECT(bytes_of(config_of(AFDEP_LL_A3, 8, 64, 17, 64), 8, &m), AFDEP_ERR_CONFIG, "num_topk is 17: 1 to 16");
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_A5, 8, 64, 17, 64), 8, &m));
    EXPECT(bytes_of(config_of(AFDEP_LL_A2, 8, 7200, 8, 64), 8, &m), AFDEP_ERR_CONFIG, "hidden is 7200: 1 to 7168");
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_A3, 8, 7200, 8, 64), 8, &m));
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_NATIVE, 600, 8192, 32, 1024), 8, &m));
    EXPECT(bytes_of(config_of((afdep_ll_profile_t)4, 8, 64, 8, 64), 8, &m), AFDEP_ERR_CONFIG, "profile is 4");
}

/* Profile a2 over two hosts: top-k from 2, the two variables, the layered formula; no rule for three. */
static void test_two_hosts(void **state)
{
    afdep_ll_memory_t m;
    afdep_ll_config_t c = config_of(AFDEP_LL_A2, 128, 7168, 8, 256);
    (void)state;
    c.ranks_per_domain = 8;
    EXPECT(bytes_of(c, 16, &m), AFDEP_ERR_CONFIG, "HCCL_INTRA_PCIE_ENABLE is 0");
    setenv("HCCL_INTRA_PCIE_ENABLE", "1", 1);
    EXPECT_OK(bytes_of(c, 16, &m));
    assert_int_equal(m.required, 256ull * 128 * (7168 * 2 + 4 * 8 * 4) + 4 * MIB + 800 * MIB);
    setenv("HCCL_INTRA_ROCE_ENABLE", "1", 1);
    EXPECT(bytes_of(c, 16, &m), AFDEP_ERR_CONFIG, "HCCL_INTRA_ROCE_ENABLE 1");
    unsetenv("HCCL_INTRA_ROCE_ENABLE");
    c.num_topk = 1;
    EXPECT(bytes_of(c, 16, &m), AFDEP_ERR_CONFIG, "num_topk is 1: 2 to 16");
    c.num_topk = 8;
    EXPECT(bytes_of(c, 32, &m), AFDEP_ERR_UNSUPPORTED, "4 hosts");
    c.profile = AFDEP_LL_A3; /* of several hosts too */
    EXPECT_OK(bytes_of(c, 32, &m));
    c.ranks_per_domain = 7;
    EXPECT(bytes_of(c, 32, &m), AFDEP_ERR_CONFIG, "ranks_per_domain is 7");
    unsetenv("HCCL_INTRA_PCIE_ENABLE");
}

static void test_sizes(void **state)
{
    afdep_ll_memory_t m;
    (void)state;
    /* min(local experts, top-k), either way. */
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_A3, 128, 7168, 8, 256), 8, &m));
    assert_int_equal(m.required, (128ull * 8 * 8 * 7168 * 2 + 2 * MIB) * 2);
    assert_int_equal(m.configured, 200 * MIB);
    assert_int_equal(m.available, 200 * MIB);
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_A3, 128, 7168, 8, 16), 8, &m));
    assert_int_equal(m.required, (128ull * 8 * 2 * 7168 * 2 + 2 * MIB) * 2);
    assert_int_equal(m.combine_buffer_bytes, 16ull * 128 * 7168 * 2);
    setenv("HCCL_BUFFSIZE", "512", 1);
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_A5, 128, 7168, 8, 16), 8, &m));
    assert_int_equal(m.configured, 512 * MIB);
    assert_int_equal(m.available, 511 * MIB);
    setenv("HCCL_BUFFSIZE", "lots", 1);
    EXPECT(bytes_of(config_of(AFDEP_LL_A5, 128, 7168, 8, 16), 8, &m), AFDEP_ERR_CONFIG, "HCCL_BUFFSIZE is \"lots\"");
    EXPECT_OK(bytes_of(config_of(AFDEP_LL_NATIVE, 128, 7168, 8, 16), 8, &m)); /* which does not look at it */
    assert_int_equal(m.required, m.segment_bytes);
    assert_int_equal(m.configured, m.segment_bytes);
    unsetenv("HCCL_BUFFSIZE");
    m.struct_size = 8;
    afdep_ll_config_t c = config_of(AFDEP_LL_NATIVE, 8, 64, 2, 8);
    EXPECT(afdep_ll_buffer_bytes(&c, 8, &m), AFDEP_ERR_ARGUMENT, "struct_size");
    EXPECT(afdep_ll_buffer_bytes(&c, 8, NULL), AFDEP_ERR_ARGUMENT, "memory is NULL");
    c.struct_size = 8;
    EXPECT(bytes_of(c, 8, &m), AFDEP_ERR_ARGUMENT, "struct_size");
}

/* No two places of a segment overlap, and all lie in it: every place is painted once. */
static void test_layout(void **state)
{
    static const afdep_ll_shape_t shapes[] = { { 1, 1, 32, 1, 1 }, { 3, 5, 96, 4, 6 }, { 8, 16, 256, 8, 64 } };
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const afdep_ll_shape_t *s = &shapes[i];
        afdep_ll_layout_t l;
        assert_int_equal(afdep_ll_layout_init(&l, s), 0);
        unsigned char *paint = calloc(1, l.bytes);
        assert_non_null(paint);
        uint64_t painted = 0, row = l.meta_bytes + 2u * (uint32_t)s->hidden;
#define PAINT(offset, size)                                                                                           \
    do {                                                                                                              \
        uint64_t at_ = (offset), size_ = (size);                                                                      \
        assert_true(at_ + size_ <= l.bytes);                                                                          \
        for (uint64_t b_ = 0; b_ < size_; b_++)                                                                       \
            painted += paint[at_ + b_]++ == 0;                                                                        \
        all += size_;                                                                                                 \
    } while (0)
        uint64_t all = 0;
        for (int r = 0; r < s->ranks; r++) {
            PAINT(afdep_closing_word(r), 8);
            PAINT(afdep_failure_word(r), 8);
        }
        PAINT(0, AFDEP_CONTROL_FABRIC_BYTES);
        for (int g = 0; g < AFDEP_LL_PLANES; g++) {
            uint64_t base = afdep_ll_plane_start(&l, g);
            for (int r = 0; r < s->ranks; r++) {
                assert_int_equal((base + afdep_ll_at_dispatch_word(&l, r)) % 8, 0);
                assert_int_equal((base + afdep_ll_at_combine_word(&l, r)) % 8, 0);
                PAINT(base + afdep_ll_at_dispatch_word(&l, r), 8);
                PAINT(base + afdep_ll_at_combine_word(&l, r), 8);
                PAINT(base + afdep_ll_at_header(&l, r), AFDEP_LL_HEADER_BYTES);
                for (uint32_t t = 0; t < (uint32_t)s->max_tokens; t++) {
                    assert_int_equal((base + afdep_ll_at_row(&l, s, r, t)) % 64, 0);
                    PAINT(base + afdep_ll_at_row(&l, s, r, t), row);
                }
            }
            for (uint32_t t = 0; t < (uint32_t)s->max_tokens; t++)
                for (uint32_t k = 0; k < (uint32_t)s->top_k; k++) {
                    assert_int_equal((base + afdep_ll_at_combine_row(&l, s, t, k)) % 64, 0);
                    /* With what the row sums read beyond H. */
                    PAINT(base + afdep_ll_at_combine_row(&l, s, t, k),
                          AFDEP_LL_COMBINE_HEAD + ((uint64_t)s->hidden + 127) / 128 * 256);
                }
        }
        assert_int_equal(painted, all);
        free(paint);
    }
    afdep_ll_layout_t l;
    const afdep_ll_shape_t huge = { 1 << 20, 1 << 30, 1 << 20, 32, 1 << 20 };
    assert_int_not_equal(afdep_ll_layout_init(&l, &huge), 0);
}

/* ---- Who may call when --------------------------------------------------------------------------------------- */

static afdep_ll_ledger_t open_ledger(int *of)
{
    afdep_ll_ledger_t ledger;
    afdep_ll_ledger_start(&ledger, of, 7);
    return ledger;
}

/* Two exchanges at most; combined in their order; a handle, hook or event is of one buffer, one half, one exchange. */
static void test_ledger(void **state)
{
    int here = 0, there = 0, done = 0;
    uint64_t exchange = 0, half_of[2];
    afdep_ll_half_t half;
    afdep_ll_ledger_t l = open_ledger(&here), other = open_ledger(&there);
    (void)state;
    for (uint64_t n = 8; n <= 9; n++) {
        assert_int_equal(afdep_ll_may_dispatch(&l), AFDEP_OK);
        assert_int_equal(afdep_ll_start_exchange(&l), n);
        afdep_ll_set_stage(&l, n, AFDEP_LL_SENT);
    }
    assert_int_equal(afdep_ll_may_dispatch(&l), AFDEP_ERR_ORDER);
    assert_int_equal(afdep_ll_may_close(&l, 0), AFDEP_ERR_ORDER);
    afdep_ll_handle_t first = afdep_ll_handle_of(&l, 8), second = afdep_ll_handle_of(&l, 9);
    assert_int_equal(afdep_ll_find_combine(&l, &first, &exchange), AFDEP_ERR_ORDER); /* not received */
    afdep_ll_set_stage(&l, 8, AFDEP_LL_RECEIVED);
    afdep_ll_set_stage(&l, 9, AFDEP_LL_RECEIVED);
    assert_int_equal(afdep_ll_find_combine(&l, &second, &exchange), AFDEP_ERR_ORDER); /* 8 comes first */
    assert_int_equal(afdep_ll_find_combine(&other, &first, &exchange), AFDEP_ERR_ARGUMENT);
    assert_int_equal(afdep_ll_find_combine(&l, &first, &exchange), AFDEP_OK);
    assert_int_equal(exchange, 8);
    l.combined = 8;
    afdep_ll_set_stage(&l, 8, AFDEP_LL_RETURNED);
    assert_int_equal(afdep_ll_find_combine(&l, &first, &exchange), AFDEP_ERR_ORDER); /* twice */
    afdep_ll_name_half(&l, 8, AFDEP_LL_COMBINE, half_of);
    assert_int_equal(afdep_ll_find_half(&l, half_of, "test", &exchange, &half, &done), AFDEP_OK);
    assert_true(exchange == 8 && half == AFDEP_LL_COMBINE && !done);
    assert_int_equal(afdep_ll_find_half(&other, half_of, "test", &exchange, &half, &done), AFDEP_ERR_ARGUMENT);
    afdep_ll_set_stage(&l, 8, AFDEP_LL_FREE);
    assert_int_equal(afdep_ll_find_half(&l, half_of, "test", &exchange, &half, &done), AFDEP_OK);
    assert_true(done);
    half_of[1] = 7; /* the one before the first */
    assert_int_equal(afdep_ll_find_half(&l, half_of, "test", &exchange, &half, &done), AFDEP_ERR_ARGUMENT);
    assert_int_equal(afdep_ll_may_dispatch(&l), AFDEP_OK); /* the plane of 8 is free */
    afdep_ll_set_stage(&l, 9, AFDEP_LL_FREE);
    assert_int_equal(afdep_ll_may_close(&l, 0), AFDEP_OK);
}

/* ---- Quotients of the GPU's encoders ------------------------------------------------------------------------- */

/* As ll_divided() of cuda/ll_encode.cuh: one over the scale, a product, and a fused step on what that leaves. */
static float stepped_quotient(float element, float scale)
{
    float inverse = 1.0f / scale, near = element * inverse;
    return copysignf(fmaf(fmaf(-near, scale, element), inverse, near), element);
}

/* Every BF16 significand as largest and as element, elements up to 2^18 below the largest (smaller ones have no code),
   e4m3 and INT8: bit for bit what one division gives. The exponent of the largest moves both alike. */
static void test_quotients(void **state)
{
    (void)state;
    for (int format = 0; format < 2; format++)
        for (uint32_t amax = 0x80; amax < 0x100; amax++) {
            float scale = (float)amax / (format ? 127.0f : 448.0f);
            for (uint32_t element = 0x80; element < 0x100; element++)
                for (int below = 0; below <= 18; below++) {
                    float x = ldexpf((float)element, -below), want = x / scale, got = stepped_quotient(x, scale);
                    if (got != want)
                        fail_msg("%a / %a: %a, not %a", (double)x, (double)scale, (double)got, (double)want);
                }
        }
    assert_true(signbit(stepped_quotient(-0.0f, 3.0f)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_row_sizes),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_two_hosts),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_quotients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
