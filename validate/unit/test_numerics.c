/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalar conversions against the rules themselves: decoding is rewritten from the definition of the formats with
 * ldexp, and rounding is "the nearer of the two neighbours, the even code on a tie", in double, where it is exact.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "numerics/bf16.h"
#include "numerics/e4m3.h"

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* ---- BF16 ------------------------------------------------------------------------------------------------------ */

/* The magnitude of a BF16 code by definition; code 0x7F80 gives 2^128, the value that rounding takes infinity for. */
static double bf16_magnitude(uint32_t code)
{
    int exponent = (int)(code >> 7);
    int mantissa = (int)(code & 0x7F);

    return exponent == 0 ? ldexp(mantissa, -133) : ldexp(128 + mantissa, exponent - 134);
}

/* The rule, for a finite value >= 0 between codes `below` and `below` + 1. */
static uint32_t bf16_nearest(double value, uint32_t below)
{
    double low = bf16_magnitude(below), high = bf16_magnitude(below + 1);

    assert_true(low <= value && value < high);
    if (value - low == high - value) {
        return below + (below & 1);
    }
    return value - low < high - value ? below : below + 1;
}

static void check_bf16(uint32_t magnitude_bits)
{
    uint32_t want = bf16_nearest((double)of_bits(magnitude_bits), magnitude_bits >> 16);

    assert_int_equal(afdep_bf16_from_f32(of_bits(magnitude_bits)), want);
    assert_int_equal(afdep_bf16_from_f32(of_bits(magnitude_bits | 0x80000000u)), want | 0x8000u);
}

static void test_bf16_round_trip(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0xFFFF; code++) {
        float value = afdep_bf16_to_f32((uint16_t)code);
        uint32_t magnitude = code & 0x7FFF;

        assert_int_equal(bits_of(value), code << 16);
        if (magnitude > 0x7F80) {
            assert_true(isnan(value));
            assert_int_equal(afdep_bf16_from_f32(value), 0x7FFF);
            continue;
        }
        if (magnitude < 0x7F80) {
            assert_true(fabs((double)value) == bf16_magnitude(magnitude));
        } else {
            assert_true(isinf(value));
        }
        assert_int_equal(signbit(value) != 0, code >> 15);
        assert_int_equal(afdep_bf16_from_f32(value), code);
    }
}

/* Every BF16 code, so every exponent, denormal and normal, even and odd: the value, the tie above it, and the FP32
   neighbours of both. */
static void test_bf16_rounding(void **state)
{
    static const uint32_t low[] = { 0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xABCD, 0xFFFF };

    (void)state;
    for (uint32_t code = 0; code < 0x7F80; code++) {
        for (size_t i = 0; i < sizeof(low) / sizeof(low[0]); i++) {
            check_bf16(code << 16 | low[i]);
        }
    }
}

static void test_bf16_ties_by_hand(void **state)
{
    (void)state;
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x3F808000)), 0x3F80); /* 1 + half a unit: even below */
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x3F818000)), 0x3F82); /* even above */
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x3FFF8000)), 0x4000); /* into the next exponent */
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x00008000)), 0x0000); /* denormal tie to zero */
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x80008000)), 0x8000); /* and to -0 */
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x00008001)), 0x0001);
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x00018000)), 0x0002);
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x007FFFFF)), 0x0080); /* largest denormal to smallest normal */
    assert_int_equal(afdep_bf16_from_f32(FLT_TRUE_MIN), 0x0000);
}

static void test_bf16_overflow(void **state)
{
    (void)state;
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x7F7F7FFF)), 0x7F7F); /* just below the tie to infinity */
    assert_int_equal(afdep_bf16_from_f32(of_bits(0x7F7F8000)), 0x7F80);
    assert_int_equal(afdep_bf16_from_f32(FLT_MAX), 0x7F80);
    assert_int_equal(afdep_bf16_from_f32(-FLT_MAX), 0xFF80);
    assert_int_equal(afdep_bf16_from_f32(INFINITY), 0x7F80);
    assert_int_equal(afdep_bf16_from_f32(-INFINITY), 0xFF80);
}

/* Payloads in the low half only would round to infinity, or carry through the sign. */
static void test_bf16_nan(void **state)
{
    static const uint32_t nans[] = { 0x7F800001, 0x7F80FFFF, 0x7F810000, 0x7FBFFFFF, 0x7FC00000, 0x7FFF8000,
                                     0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFF7FFF, 0xFFFFFFFF };

    (void)state;
    for (size_t i = 0; i < sizeof(nans) / sizeof(nans[0]); i++) {
        assert_int_equal(afdep_bf16_from_f32(of_bits(nans[i])), 0x7FFF);
    }
    for (int bit = 0; bit < 23; bit++) {
        assert_int_equal(afdep_bf16_from_f32(of_bits(0x7F800000u | 1u << bit)), 0x7FFF);
        assert_int_equal(afdep_bf16_from_f32(of_bits(0xFF800000u | 1u << bit)), 0x7FFF);
    }
}

/* ---- e4m3 ------------------------------------------------------------------------------------------------------ */

/* The magnitude of an e4m3 code by definition; 0x7F gives 480, what the code would be if it were not NaN. */
static double e4m3_magnitude(int code)
{
    int exponent = code >> 3;
    int mantissa = code & 7;

    return exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
}

static void test_e4m3_decode(void **state)
{
    (void)state;
    for (int code = 0; code <= 0xFF; code++) {
        float value = afdep_e4m3_to_f32((uint8_t)code);

        if ((code & 0x7F) == 0x7F) {
            assert_true(isnan(value));
            continue;
        }
        assert_true(fabs((double)value) == e4m3_magnitude(code & 0x7F));
        assert_int_equal(signbit(value) != 0, code >> 7);
    }
    assert_true(afdep_e4m3_to_f32(0x7E) == 448.0f);
    assert_true(afdep_e4m3_to_f32(0x38) == 1.0f);
    assert_true(afdep_e4m3_to_f32(0x81) == -0.001953125f);
}

static void check_e4m3(float magnitude, int want)
{
    assert_int_equal(afdep_e4m3_from_f32(magnitude), want);
    assert_int_equal(afdep_e4m3_from_f32(-magnitude), want | 0x80);
}

static void test_e4m3_encode(void **state)
{
    (void)state;
    for (int code = 0; code <= 0xFF; code++) {
        uint8_t again = afdep_e4m3_from_f32(afdep_e4m3_to_f32((uint8_t)code));

        assert_int_equal(again, (code & 0x7F) == 0x7F ? 0x7F : code);
    }
    /* Neighbours, the tie between them, and the FP32 values next to each of the three. */
    for (int code = 0; code < 0x7E; code++) {
        float low = (float)e4m3_magnitude(code), high = (float)e4m3_magnitude(code + 1);
        float tie = (low + high) / 2;

        check_e4m3(low, code);
        check_e4m3(nextafterf(low, INFINITY), code);
        check_e4m3(nextafterf(tie, 0), code);
        check_e4m3(tie, code + (code & 1));
        check_e4m3(nextafterf(tie, INFINITY), code + 1);
        check_e4m3(nextafterf(high, 0), code + 1);
    }
}

/* FP32 values all over the range against the rule; the steps are odd, so that every bit takes part. */
static void test_e4m3_sweep(void **state)
{
    int below = 0;

    (void)state;
    for (uint32_t bits = 0; bits < 0x43E00000u; bits += 4093) {
        double value = (double)of_bits(bits);
        double low, high;

        while (e4m3_magnitude(below + 1) <= value) {
            below++;
        }
        low = e4m3_magnitude(below);
        high = e4m3_magnitude(below + 1);
        if (value - low == high - value) {
            assert_int_equal(afdep_e4m3_from_f32(of_bits(bits)), below + (below & 1));
        } else {
            assert_int_equal(afdep_e4m3_from_f32(of_bits(bits)), value - low < high - value ? below : below + 1);
        }
    }
}

/* Beyond 464 the nearer code would be the NaN code; everything past 448 stays 448. */
static void test_e4m3_saturation(void **state)
{
    static const float large[] = { 448.0f, 455.9f, 456.0f, 463.9f, 464.0f, 464.1f, 480.0f, 496.0f, 512.0f, 1e4f, 1e30f,
                                   FLT_MAX, INFINITY };

    (void)state;
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        check_e4m3(large[i], 0x7E);
    }
    check_e4m3(nextafterf(448.0f, INFINITY), 0x7E);
    check_e4m3(FLT_TRUE_MIN, 0);
    check_e4m3(FLT_MIN, 0);
    check_e4m3(ldexpf(1, -11), 0);
}

static void test_e4m3_nan(void **state)
{
    (void)state;
    for (int bit = 0; bit < 23; bit++) {
        assert_int_equal(afdep_e4m3_from_f32(of_bits(0x7F800000u | 1u << bit)), 0x7F);
        assert_int_equal(afdep_e4m3_from_f32(of_bits(0xFF800000u | 1u << bit)), 0x7F);
    }
    assert_int_equal(afdep_e4m3_from_f32(of_bits(0xFFFFFFFF)), 0x7F);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_round_trip), cmocka_unit_test(test_bf16_rounding),
        cmocka_unit_test(test_bf16_ties_by_hand), cmocka_unit_test(test_bf16_overflow),
        cmocka_unit_test(test_bf16_nan), cmocka_unit_test(test_e4m3_decode),
        cmocka_unit_test(test_e4m3_encode), cmocka_unit_test(test_e4m3_sweep),
        cmocka_unit_test(test_e4m3_saturation), cmocka_unit_test(test_e4m3_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
