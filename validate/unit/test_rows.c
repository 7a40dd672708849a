/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every version of the row loops that this processor runs, against a slow reference written here, bit for bit: all
 * counts, many widths, rows of all bit patterns. Outputs are poisoned first and lie between guards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/numerics.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { COUNT_MAX = 32, N_MAX = 7168, GUARD = 64, STRIDE = N_MAX + 24 }; /* rows 16 bytes apart from any cache line */

typedef struct fixture {
    uint16_t *rows;            /* [COUNT_MAX, STRIDE] */
    uint16_t *want, *got;      /* [GUARD + N_MAX + GUARD] */
    afdep_term_t terms[COUNT_MAX];
    uint64_t random;
} fixture_t;

typedef enum fill {
    FILL_ALL_BITS,   /* any pattern: NaN, infinities, every exponent */
    FILL_NEAR,       /* like magnitudes: sums that round, tie and cancel */
    FILL_TINY,       /* denormals, both zeros, the smallest normals */
    FILL_HUGE,       /* sums that overflow, infinities of both signs */
    FILL_KINDS
} fill_t;

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static float of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* ---- The reference --------------------------------------------------------------------------------------------- */

static float decode(uint16_t bf16)
{
    return of_bits((uint32_t)bf16 << 16);
}

/* The nearer of the two neighbours, the even one on a tie. Differences of like numbers are exact in double. */
static uint16_t encode(float value)
{
    uint32_t bits, sign, below;
    double low, high, magnitude;

    if (isnan(value)) {
        return 0x7FFF;
    }
    memcpy(&bits, &value, sizeof(bits));
    sign = bits >> 31 << 15;
    below = (bits & 0x7FFFFFFF) >> 16;
    if (below == 0x7F80) {
        return (uint16_t)(sign | below);
    }
    magnitude = fabs((double)value);
    low = (double)decode((uint16_t)below);
    high = below == 0x7F7F ? ldexp(1, 128) : (double)decode((uint16_t)(below + 1));
    if (magnitude - low > high - magnitude || (magnitude - low == high - magnitude && (below & 1))) {
        below++;
    }
    return (uint16_t)(sign | below);
}

static uint16_t reference(const afdep_term_t *terms, int count, size_t i, int weighted)
{
    float acc;

    if (count == 0) {
        return 0;
    }
    if (count == 1 && !weighted) {
        return terms[0].row[i];
    }
    acc = decode(terms[0].row[i]);
    acc = weighted ? terms[0].weight * acc : acc;
    for (int k = 1; k < count; k++) {
        float value = decode(terms[k].row[i]);

        acc = weighted ? fmaf(terms[k].weight, value, acc) : acc + value;
    }
    return encode(acc);
}

/* ---- Data ------------------------------------------------------------------------------------------------------ */

static uint16_t random_bf16(fixture_t *f, fill_t fill)
{
    uint32_t r = (uint32_t)(next_random(&f->random) >> 32);
    uint32_t rest = r & 0x807F; /* sign and mantissa */

    switch (fill) {
    case FILL_NEAR:
        return (uint16_t)(rest | (124u + (r >> 16) % 6) << 7);
    case FILL_TINY:
        return (uint16_t)((r >> 16) % 5 == 0 ? rest & 0x8000 : rest | (r >> 16) % 3 << 7);
    case FILL_HUGE:
        return (uint16_t)((r >> 16) % 97 == 0 ? (rest & 0x8000) | 0x7F80 : rest | (252u + (r >> 16) % 3) << 7);
    default:
        return (uint16_t)r;
    }
}

static float random_weight(fixture_t *f, fill_t fill)
{
    static const uint32_t special[] = { 0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x00000001, 0x007FFFFF,
                                        0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000, 0xFF800001 };
    uint32_t r = (uint32_t)(next_random(&f->random) >> 32);

    if (fill == FILL_ALL_BITS && r % 4 == 0) {
        return of_bits(special[(r >> 8) % (sizeof(special) / sizeof(special[0]))]);
    }
    return ldexpf((float)(r | 1), -32) * (r & 0x10000 ? 1.0f : -1.0f);
}

static void fill_terms(fixture_t *f, fill_t fill, int count, size_t n)
{
    for (int k = 0; k < count; k++) {
        for (size_t i = 0; i < n; i++) {
            f->rows[(size_t)k * STRIDE + i] = random_bf16(f, fill);
        }
        f->terms[k].row = f->rows + (size_t)k * STRIDE;
        f->terms[k].weight = random_weight(f, fill);
    }
}

static int set_up(void **state)
{
    fixture_t *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->rows = aligned_alloc(64, (size_t)COUNT_MAX * STRIDE * 2);
    f->want = aligned_alloc(64, (size_t)(GUARD + N_MAX + GUARD) * 2);
    f->got = aligned_alloc(64, (size_t)(GUARD + N_MAX + GUARD) * 2);
    assert_true(f->rows != NULL && f->want != NULL && f->got != NULL);
    f->random = 20240607;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *f = *state;

    free(f->got);
    free(f->want);
    free(f->rows);
    free(f);
    return 0;
}

/* ---- Sums ------------------------------------------------------------------------------------------------------ */

static void poison(uint16_t *row)
{
    memset(row, 0xA5, (size_t)(GUARD + N_MAX + GUARD) * 2);
}

/* One call of one version against f->want, guards included. */
static void check_version(fixture_t *f, const afdep_row_ops_t *ops, int count, size_t n, int weighted)
{
    poison(f->got);
    (weighted ? ops->weighted_sum : ops->sum)(f->got + GUARD, f->terms, count, n);
    for (size_t i = 0; i < GUARD + n + GUARD; i++) {
        if (f->got[i] != f->want[i]) {
            fail_msg("%s %s count %d n %zu: column %ld is 0x%04X, not 0x%04X", ops->name, weighted ? "weighted" : "sum",
                     count, n, (long)i - GUARD, f->got[i], f->want[i]);
        }
    }
}

static void check_versions(fixture_t *f, int count, size_t n, int weighted)
{
    for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
        if (afdep_row_ops_runs(afdep_row_ops_all[v])) {
            check_version(f, afdep_row_ops_all[v], count, n, weighted);
        }
    }
}

static void check_reference(fixture_t *f, int count, size_t n, int weighted)
{
    poison(f->want);
    for (size_t i = 0; i < n; i++) {
        f->want[GUARD + i] = reference(f->terms, count, i, weighted);
    }
    check_versions(f, count, n, weighted);
}

static void test_sums(void **state)
{
    static const size_t widths[] = { 128, 256, 384, 640, 2048 };
    fixture_t *f = *state;

    for (int fill = 0; fill < FILL_KINDS; fill++) {
        for (int count = 0; count <= COUNT_MAX; count++) {
            size_t n = widths[(size_t)(count + fill) % (sizeof(widths) / sizeof(widths[0]))];

            fill_terms(f, (fill_t)fill, count, n);
            check_reference(f, count, n, 0);
            check_reference(f, count, n, 1);
        }
    }
}

static void test_every_width(void **state)
{
    fixture_t *f = *state;

    for (size_t n = 128; n <= N_MAX; n += n < 1024 ? 128 : 1024) {
        for (int count = 0; count <= 3; count++) {
            fill_terms(f, count == 3 ? FILL_NEAR : FILL_ALL_BITS, count, n);
            check_reference(f, count, n, 0);
            check_reference(f, count, n, 1);
        }
    }
    fill_terms(f, FILL_NEAR, COUNT_MAX, N_MAX);
    check_reference(f, COUNT_MAX, N_MAX, 0);
    check_reference(f, COUNT_MAX, N_MAX, 1);
}

/* One unweighted row is copied as bits, whatever NaN it holds; one weighted row is arithmetic, also with weight 1. */
static void test_one_row(void **state)
{
    enum { PIECE = 4096 };
    fixture_t *f = *state;

    for (uint32_t base = 0; base <= 0xFFFF; base += PIECE) {
        for (uint32_t i = 0; i < PIECE; i++) {
            f->rows[i] = (uint16_t)(base + i);
        }
        f->terms[0].row = f->rows;
        f->terms[0].weight = 1.0f;
        poison(f->want);
        memcpy(f->want + GUARD, f->rows, PIECE * 2);
        check_versions(f, 1, PIECE, 0);
        for (uint32_t i = 0; i < PIECE; i++) {
            f->want[GUARD + i] = ((base + i) & 0x7FFF) > 0x7F80 ? 0x7FFF : (uint16_t)(base + i);
        }
        check_versions(f, 1, PIECE, 1);
    }
}

/* Sets `count` constant rows of 128 columns and checks that all versions and the reference give `want`. */
static void check_constant(fixture_t *f, int count, const uint16_t *values, const float *weights, uint16_t want)
{
    for (int k = 0; k < count; k++) {
        for (size_t i = 0; i < 128; i++) {
            f->rows[(size_t)k * STRIDE + i] = values[k];
        }
        f->terms[k].row = f->rows + (size_t)k * STRIDE;
        f->terms[k].weight = weights != NULL ? weights[k] : 1.0f;
    }
    check_reference(f, count, 128, weights != NULL);
    assert_int_equal(f->want[GUARD], want);
}

/* What a plausible wrong rule would give differently. */
static void test_rules(void **state)
{
    fixture_t *f = *state;
    const float odd = 1.0f + 0x1p-23f;     /* times 0x3F81 = 1 + 2^-7: needs 31 bits, so the product rounds */
    const float odd_twice[] = { odd, odd };
    const float tiny[] = { 0x1p-126f, 0x1p-100f };
    const float nothing[] = { 0.0f, 0.0f };
    const uint16_t cancel[] = { 0xBF81, 0x3F81 };
    const uint16_t zeros[] = { 0x8000, 0x8000, 0x8000 };
    const uint16_t opposite[] = { 0x7F80, 0xFF80, 0x3F80 };
    const uint16_t order[] = { 0x5F00, 0xDF00, 0x3F80 };
    const uint16_t late[] = { 0x5F00, 0x3F80, 0xDF00 };
    const uint16_t denormals[] = { 0x0001, 0x0002, 0x0004 };
    const uint16_t half[] = { 0x3F80, 0x3B80, 0x3300 }; /* 1 + 2^-8 is a tie; 2^-25 is lost in FP32 before it counts */
    const uint16_t more[] = { 0x3F80, 0x3B80, 0x3400 }; /* 2^-23 is kept, and decides the tie */
    const uint16_t ones[] = { 0x3F80, 0xBF80 };
    const uint16_t infinite[] = { 0x7F80, 0x3F80 };
    float error = fmaf(odd, 1.0f + 0x1p-7f, -(odd * (1.0f + 0x1p-7f)));

    assert_true(error != 0.0f); /* else the next line shows nothing */
    check_constant(f, 2, cancel, odd_twice, encode(error)); /* first rounded, second fused; unfused gives 0 */
    check_constant(f, 2, zeros, NULL, 0x8000);              /* starts from the first row: from +0 it would be +0 */
    check_constant(f, 3, zeros, NULL, 0x8000);
    check_constant(f, 2, opposite, NULL, 0x7FFF);           /* the NaN that arithmetic makes is negative on x86 */
    check_constant(f, 3, opposite, NULL, 0x7FFF);
    check_constant(f, 3, order, NULL, 0x3F80);              /* in order */
    check_constant(f, 3, late, NULL, 0x0000);
    check_constant(f, 3, denormals, NULL, 0x0007);
    check_constant(f, 3, half, NULL, 0x3F80);
    check_constant(f, 3, more, NULL, 0x3F81);               /* one rounding at the end, not one per row */
    check_constant(f, 2, ones, tiny, encode(0x1p-126f - 0x1p-100f));
    check_constant(f, 1, ones, tiny, 0x0080);
    check_constant(f, 2, ones, nothing, 0x0000);            /* +0 + -0 */
    check_constant(f, 1, infinite, nothing, 0x7FFF);        /* 0 * infinity */
    check_constant(f, 0, zeros, NULL, 0x0000);
    check_constant(f, 0, zeros, nothing, 0x0000);
}

/* ---- Fan-out --------------------------------------------------------------------------------------------------- */

enum { FAN_MAX = 8, FAN_STRIDE = N_MAX * 2 + 3 * 16 };

static void check_fan_out(const afdep_row_ops_t *ops, unsigned char *pool, const unsigned char *src, int count,
                          size_t bytes)
{
    void *dst[FAN_MAX];

    memset(pool, 0xA5, (size_t)FAN_MAX * FAN_STRIDE);
    for (int k = 0; k < count; k++) {
        dst[k] = pool + (size_t)k * FAN_STRIDE + 16;
    }
    ops->fan_out(dst, count, src, bytes);
    for (int k = 0; k < FAN_MAX; k++) {
        const unsigned char *at = pool + (size_t)k * FAN_STRIDE;
        size_t written = k < count ? bytes : 0;

        if (memcmp(at + 16, src, written) != 0) {
            fail_msg("%s fan_out count %d bytes %zu: destination %d is not the source", ops->name, count, bytes, k);
        }
        for (size_t i = 0; i < FAN_STRIDE; i++) {
            if ((i < 16 || i >= 16 + written) && at[i] != 0xA5) {
                fail_msg("%s fan_out count %d bytes %zu: destination %d is written outside, at %ld", ops->name, count,
                         bytes, k, (long)i - 16);
            }
        }
    }
}

static void test_fan_out(void **state)
{
    static const size_t sizes[] = { 0,   16,  48,  112,  128,  144,  240,
                                    256, 272, 752, 2224, 4096, 4112, 2 * N_MAX };
    fixture_t *f = *state;
    unsigned char *pool = aligned_alloc(64, (size_t)FAN_MAX * FAN_STRIDE);
    unsigned char *src = (unsigned char *)f->rows + 16;

    assert_non_null(pool);
    for (size_t i = 0; i < STRIDE; i++) {
        f->rows[i] = random_bf16(f, FILL_ALL_BITS);
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int count = 0; count <= FAN_MAX; count++) {
            for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
                if (afdep_row_ops_runs(afdep_row_ops_all[v])) {
                    check_fan_out(afdep_row_ops_all[v], pool, src, count, sizes[i]);
                }
            }
        }
    }
    free(pool);
}

/* ---- Choice and environment ------------------------------------------------------------------------------------ */

static void test_choice(void **state)
{
    const afdep_row_ops_t *best = NULL;

    (void)state;
    for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
        const afdep_row_ops_t *ops = afdep_row_ops_all[v];

        if (afdep_row_ops_runs(ops)) {
            best = ops;
            assert_ptr_equal(afdep_row_ops(ops->name), ops);
        } else {
            print_message("not tested: this processor has no %s\n", ops->name);
            assert_null(afdep_row_ops(ops->name));
        }
    }
    assert_non_null(best);
    assert_ptr_equal(afdep_row_ops(NULL), best);
    assert_ptr_equal(afdep_row_ops("auto"), best);
    assert_string_equal(afdep_row_ops("scalar")->name, "scalar");
    assert_null(afdep_row_ops(""));
    assert_null(afdep_row_ops("avx"));
    assert_null(afdep_row_ops("Scalar"));
}

#if defined(__x86_64__)

enum { MXCSR_DEFAULT = 0x1F80, MXCSR_FLUSH = 0x8040, MXCSR_DOWN = 0x2000, MXCSR_INEXACT = 0x20 };

/* Nonzero when the flush settings have an effect; emulators such as valgrind leave them without. */
static int flushes(void)
{
    volatile float smallest = 0x1p-126f, half = 0.5f, product;

    _mm_setcsr(MXCSR_DEFAULT | MXCSR_FLUSH);
    product = smallest * half;
    _mm_setcsr(MXCSR_DEFAULT);
    return product == 0.0f;
}

/* Sums of denormals, and sums that rounding down gets wrong. */
static void test_fp_environment(void **state)
{
    fixture_t *f = *state;
    /* Flush and denormals are zero, round down, every exception unmasked, one flag up. */
    const unsigned hostile = MXCSR_FLUSH | MXCSR_DOWN | MXCSR_INEXACT;

    if (!flushes()) {
        print_message("skipped: MXCSR has no effect here (an emulator)\n");
        skip();
    }
    for (size_t i = 0; i < 128; i++) {
        f->rows[i] = i % 2 ? 0x0003 : 0x3F80;
        f->rows[STRIDE + i] = i % 2 ? 0x0004 : 0x3B80;
        f->rows[2 * STRIDE + i] = i % 2 ? 0x0000 : 0x33C0; /* rounds up to the bit that decides the tie */
    }
    f->rows[0] = 0x7F80;
    f->rows[STRIDE] = 0xFF80; /* an invalid operation: a trap, were it not masked */
    for (int k = 0; k < 3; k++) {
        f->terms[k].row = f->rows + (size_t)k * STRIDE;
    }
    for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
        const afdep_row_ops_t *ops = afdep_row_ops_all[v];
        afdep_fp_state_t saved;
        unsigned after;

        if (!afdep_row_ops_runs(ops)) {
            continue;
        }
        _mm_setcsr(MXCSR_DEFAULT | MXCSR_FLUSH | MXCSR_DOWN);
        ops->sum(f->got, f->terms, 3, 128);
        _mm_setcsr(MXCSR_DEFAULT);
        assert_int_equal(f->got[1], 0x0000); /* the settings do matter */
        assert_int_equal(f->got[2], 0x3F80);

        _mm_setcsr(hostile);
        saved = afdep_fp_enter();
        ops->sum(f->got, f->terms, 3, 128);
        afdep_fp_leave(saved);
        after = _mm_getcsr();
        _mm_setcsr(MXCSR_DEFAULT);
        assert_int_equal(after, hostile);
        assert_int_equal(f->got[0], 0x7FFF);
        assert_int_equal(f->got[1], 0x0007);
        assert_int_equal(f->got[2], 0x3F81);
    }
}

#else

static void test_fp_environment(void **state)
{
    (void)state;
    print_message("skipped: setting the floating-point environment is written for x86 only\n");
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),    cmocka_unit_test(test_every_width), cmocka_unit_test(test_one_row),
        cmocka_unit_test(test_rules),   cmocka_unit_test(test_fan_out),     cmocka_unit_test(test_choice),
        cmocka_unit_test(test_fp_environment),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
