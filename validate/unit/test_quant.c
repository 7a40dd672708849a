/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantized formats: every code, every tie and its neighbours, NaN, infinities, denormals, blocks of zeros, in
 * every version of the encoders that this processor runs, against the search of validate/ll_convert.h, bit for bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/int8.h"
#include "numerics/quant.h"
#include "validate/ll_convert.h"

enum { N_MOST = 7168, FORMAT_FIRST = AFDEP_LL_INT8, FORMAT_LAST = AFDEP_LL_FP8_BLOCK_UE8M0 };

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ---- Scalars ------------------------------------------------------------------------------------------------- */

static void check_scalar(float value)
{
    if (afdep_e4m3_from_f32(value) != afdep_ll_convert_to_e4m3((double)value))
        fail_msg("e4m3 of %a is 0x%02x, and 0x%02x by search", (double)value, afdep_e4m3_from_f32(value),
                 afdep_ll_convert_to_e4m3((double)value));
    if (afdep_e2m1_from_f32(value) != afdep_ll_convert_to_e2m1((double)value))
        fail_msg("e2m1 of %a is 0x%x, and 0x%x by search", (double)value, afdep_e2m1_from_f32(value),
                 afdep_ll_convert_to_e2m1((double)value));
    if (afdep_int8_from_f32(value) != afdep_ll_convert_to_int8((double)value))
        fail_msg("int8 of %a is %d, and %d by search", (double)value, afdep_int8_from_f32(value),
                 afdep_ll_convert_to_int8((double)value));
}

/* A value, its FP32 neighbours, and their negatives. */
static void check_around(double value)
{
    const float f = (float)value, around[] = { f, nextafterf(f, INFINITY), nextafterf(f, -INFINITY) };
    for (size_t i = 0; i < sizeof(around) / sizeof(around[0]); i++) {
        check_scalar(around[i]);
        check_scalar(-around[i]);
    }
}

static void test_codes_and_ties(void **state)
{
    (void)state;
    for (int code = 0; code < 0x7E; code++) {
        double value = afdep_ll_convert_e4m3((uint8_t)code), next = afdep_ll_convert_e4m3((uint8_t)(code + 1));
        check_around(value);
        check_around((value + next) / 2);
    }
    for (int code = 0; code < 7; code++) {
        double value = afdep_ll_convert_e2m1((uint8_t)code), next = afdep_ll_convert_e2m1((uint8_t)(code + 1));
        check_around(value);
        check_around((value + next) / 2);
    }
    for (int code = 0; code <= 128; code++) {
        check_around(code);
        check_around(code + 0.5);
    }
    const float special[] = { 448, 464, 480, 6, 7, 1e30f, INFINITY, NAN, 0x1p-149f, 0x1p-126f, 0x1p-10f, 0x1p-9f };
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++)
        check_around((double)special[i]);
    for (uint32_t bits = 0; bits < 0x10000; bits++)
        check_scalar(afdep_bf16_to_f32((uint16_t)bits));
}

static void assert_value(float got, double want)
{
    if (isnan(want))
        assert_int_equal(afdep_f32_bits(got), 0x7FFFFFFF);
    else
        assert_int_equal(afdep_f32_bits(got), afdep_f32_bits((float)want));
}

static void test_decoding(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        assert_value(afdep_e4m3_to_f32((uint8_t)code), afdep_ll_convert_e4m3((uint8_t)code));
        assert_value(afdep_e8m0_to_f32((uint8_t)code), afdep_ll_convert_e8m0((uint8_t)code));
        if (code < 16)
            assert_value(afdep_e2m1_to_f32((uint8_t)code), afdep_ll_convert_e2m1((uint8_t)code));
        if (code < 255)
            assert_int_equal(afdep_e8m0_of_power(afdep_e8m0_to_f32((uint8_t)code)), code);
    }
}

/* ---- Rows ---------------------------------------------------------------------------------------------------- */

static const afdep_quant_ops_t *runnable(int i)
{
    if (!afdep_row_ops_all[i])
        return NULL;
    if (!afdep_row_ops_runs(afdep_row_ops_all[i]))
        return &afdep_quant_ops_scalar;
    return afdep_quant_ops(afdep_row_ops_all[i]);
}

static void encode(const afdep_quant_ops_t *ops, int format, const uint16_t *x, size_t n, int power, uint8_t *codes,
                   uint8_t *scales)
{
    float floats[N_MOST / 128 + 1];
    switch (format) {
    case AFDEP_LL_INT8:
        ops->int8((int8_t *)codes, floats, x, n, power);
        memcpy(scales, floats, sizeof(float));
        break;
    case AFDEP_LL_FP8_TOKEN:
        ops->e4m3(codes, floats, x, n, n, power);
        memcpy(scales, floats, sizeof(float));
        break;
    case AFDEP_LL_FP8_BLOCK:
        ops->e4m3(codes, floats, x, n, 128, power);
        memcpy(scales, floats, n / 128 * sizeof(float));
        break;
    case AFDEP_LL_FP8_BLOCK_UE8M0:
        ops->e4m3(codes, floats, x, n, 128, 1);
        for (size_t b = 0; b < n / 128; b++)
            scales[b] = afdep_e8m0_of_power(floats[b]);
        break;
    case AFDEP_LL_MXFP8:
        ops->mxfp8(codes, scales, x, n);
        break;
    default:
        ops->mxfp4(codes, scales, x, n);
    }
}

static void decode(int format, float *out, size_t n, const uint8_t *codes, const uint8_t *scales)
{
    float floats[N_MOST / 128 + 1];
    memcpy(floats, scales, format == AFDEP_LL_FP8_BLOCK ? n / 128 * 4 : 4);
    switch (format) {
    case AFDEP_LL_INT8:
        afdep_dequant_int8(out, (const int8_t *)codes, floats[0], n);
        break;
    case AFDEP_LL_FP8_TOKEN:
        afdep_dequant_e4m3(out, codes, floats, n, n);
        break;
    case AFDEP_LL_FP8_BLOCK:
        afdep_dequant_e4m3(out, codes, floats, n, 128);
        break;
    case AFDEP_LL_FP8_BLOCK_UE8M0:
        afdep_dequant_mxfp8(out, codes, scales, n, 128);
        break;
    case AFDEP_LL_MXFP8:
        afdep_dequant_mxfp8(out, codes, scales, n, 32);
        break;
    default:
        afdep_dequant_mxfp4(out, codes, scales, n);
    }
}

static void check_decoded(int format, const uint8_t *codes, const uint8_t *scales, size_t n)
{
    static float got[N_MOST], want[N_MOST];
    decode(format, got, n, codes, scales);
    afdep_ll_convert_decode((afdep_ll_format_t)format, want, n, codes, scales);
    for (size_t i = 0; i < n; i++)
        assert_value(got[i], (double)want[i]);
}

static void check_row(const uint16_t *x, size_t n, const char *what)
{
    static uint8_t codes[N_MOST + 64], want_codes[N_MOST + 64], scales[N_MOST], want_scales[N_MOST];
    for (int format = FORMAT_FIRST; format <= FORMAT_LAST; format++)
        for (int power = 0; power < 2; power++) {
            if (n % 128 != 0 && format >= AFDEP_LL_FP8_BLOCK)
                continue;
            size_t code_bytes = afdep_ll_convert_code_bytes((afdep_ll_format_t)format, n);
            size_t scale_bytes = afdep_ll_convert_scale_bytes((afdep_ll_format_t)format, n);
            memset(want_codes, 0xA5, sizeof(want_codes));
            afdep_ll_convert_encode((afdep_ll_format_t)format, x, n, power, want_codes, want_scales);
            for (int v = 0; runnable(v); v++) {
                const afdep_quant_ops_t *ops = runnable(v);
                memset(codes, 0xA5, sizeof(codes));
                encode(ops, format, x, n, power, codes, scales);
                for (size_t i = 0; i < sizeof(codes); i++)
                    if (codes[i] != want_codes[i])
                        fail_msg("%s, %s, %s, power %d, n %zu: byte %zu is 0x%02x, not 0x%02x", what, ops->name,
                                 afdep_ll_format_name((afdep_ll_format_t)format), power, n, i, codes[i], want_codes[i]);
                if (memcmp(scales, want_scales, scale_bytes) != 0)
                    fail_msg("%s, %s, %s, power %d, n %zu: a scale differs", what, ops->name,
                             afdep_ll_format_name((afdep_ll_format_t)format), power, n);
            }
            if (n <= 512)
                check_decoded(format, codes, scales, n);
            (void)code_bytes;
        }
}

/* All BF16 values, each among others of any size, then among its likes. */
static void test_every_value(void **state)
{
    static uint16_t x[N_MOST];
    (void)state;
    for (uint32_t at = 0; at < 0x10000; at += 4096) {
        for (uint32_t i = 0; i < 4096; i++)
            x[i] = (uint16_t)(at + i);
        check_row(x, 4096, "values in order");
    }
    for (uint32_t at = 0; at < 0x10000; at += 32) {
        for (uint32_t i = 0; i < 32; i++)
            x[i] = (uint16_t)(at + i);
        check_row(x, 32, "32 values in order");
    }
}

/* The largest element fixes the scale at a power of two, the others are the ties of the format under it. */
static void test_ties_of_rows(void **state)
{
    static const int exponents[] = { -126, -100, -9, 0, 3, 100 };
    uint16_t x[128];
    (void)state;
    for (size_t e = 0; e < sizeof(exponents) / sizeof(exponents[0]); e++)
        for (int first = 0; first < 254; first += 127) {
            x[0] = afdep_bf16_from_f32(ldexpf(448, exponents[e]));
            for (int i = 1; i < 128; i++) {
                uint8_t code = (uint8_t)((i - 1) % 0x7E);
                double tie = (afdep_ll_convert_e4m3(code) + afdep_ll_convert_e4m3((uint8_t)(code + 1))) / 2;
                x[i] = afdep_bf16_from_f32(ldexpf((float)(first ? -tie : tie), exponents[e]));
            }
            check_row(x, 128, "ties");
            x[0] = afdep_bf16_from_f32(ldexpf(127, exponents[e]));
            for (int i = 1; i < 128; i++)
                x[i] = afdep_bf16_from_f32(ldexpf((float)i - 0.5f, exponents[e]));
            check_row(x, 128, "halves");
        }
}

static void test_special_rows(void **state)
{
    static uint16_t x[N_MOST];
    static const uint16_t special[] = { 0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81, 0x0001, 0x8001, 0x007F,
                                        0x0080, 0x7F7F, 0xFF7F, 0x3F80 };
    uint64_t random = 7;
    (void)state;
    for (size_t fill = 0; fill < sizeof(special) / sizeof(special[0]); fill++)
        for (size_t one = 0; one < sizeof(special) / sizeof(special[0]); one++) {
            for (size_t i = 0; i < 256; i++)
                x[i] = special[fill];
            x[next_random(&random) % 256] = special[one];
            check_row(x, 256, "special");
        }
}

static void test_random_rows(void **state)
{
    static uint16_t x[N_MOST];
    static const size_t widths[] = { 32, 64, 96, 128, 160, 1024, 7168 };
    uint64_t random = 11;
    (void)state;
    for (int round = 0; round < 6; round++)
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
            uint64_t r = next_random(&random);
            for (size_t i = 0; i < widths[w]; i++) {
                uint64_t bits = next_random(&random);
                x[i] = round % 2 ? (uint16_t)bits : (uint16_t)((bits & 0x83FF) + (r & 0x7000));
            }
            check_row(x, widths[w], "random");
        }
}

/* The table's scalar entry is what the vector entries are compared with above: they must not all be one. */
static void test_versions(void **state)
{
    (void)state;
    assert_string_equal(afdep_quant_ops(afdep_row_ops("scalar"))->name, "scalar");
    if (afdep_row_ops("avx2"))
        assert_string_equal(afdep_quant_ops(afdep_row_ops("avx2"))->name, "avx2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_and_ties), cmocka_unit_test(test_decoding),     cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_ties_of_rows),   cmocka_unit_test(test_special_rows), cmocka_unit_test(test_random_rows),
        cmocka_unit_test(test_versions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
