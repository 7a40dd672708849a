/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed rows: e4m3 codes with a power-of-two scale per 128 elements. Every version against the oracle's packing, which
 * shares no code with the library's, and the rules themselves over crafted and random groups: the error bound, the
 * flush of tiny elements, NaN in place, infinities, the range limit.
 *
 * Would catch: a scale one step off (448 overflows, or the bound breaks), a NaN that enters the largest magnitude or
 * moves, a finite element that becomes infinite, codes of even and odd columns swapped, a vector version that rounds
 * otherwise.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "numerics/group.h"
#include "numerics/numerics.h"
#include "validate/oracle.h"

enum { N = 1024, GUARD = 32, ROUNDS = 400 };

static uint64_t random_state;

static uint32_t next_random(void)
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

/* What a version makes of a row, after both ways. */
static void there_and_back(const afdep_row_ops_t *ops, uint16_t *out, const uint16_t *row, size_t n)
{
    static uint8_t codes[GUARD + N + GUARD], scales[GUARD + N / 128 + GUARD];
    afdep_packed_term_t term = { codes + GUARD, scales + GUARD };

    memset(codes, 0xA5, sizeof(codes));
    memset(scales, 0xA5, sizeof(scales));
    ops->pack(codes + GUARD, scales + GUARD, row, n);
    for (size_t i = 0; i < GUARD; i++) {
        assert_true(codes[i] == 0xA5 && codes[GUARD + n + i] == 0xA5);
        assert_true(scales[i] == 0xA5 && scales[GUARD + n / 128 + i] == 0xA5);
    }
    ops->packed_sum(out, &term, 1, n);
}

static float value_of(uint16_t bf16)
{
    return afdep_bf16_to_f32(bf16);
}

/* The rules, whatever the way there. */
static void check_rules(const uint16_t *row, const uint16_t *out)
{
    double largest = 0, bound;
    int infinite = 0;

    for (int i = 0; i < 128; i++) {
        double magnitude = fabs((double)value_of(row[i]));

        infinite |= isinf(magnitude);
        largest = isfinite(magnitude) && magnitude > largest ? magnitude : largest;
    }
    bound = largest / 16;
    for (int i = 0; i < 128; i++) {
        double was = (double)value_of(row[i]), is = (double)value_of(out[i]);

        if (isnan(was)) {
            assert_int_equal(out[i], 0x7FFF);
        } else if (isinf(was)) {
            assert_int_equal(out[i], row[i]);
        } else if (infinite) {
            assert_true(isfinite(is));
            assert_true(fabs(was) > 0x1p117 ? is != 0 && fabs(is - was) <= fmax(fabs(was) / 16, 0x1p117) : is == 0);
            assert_int_equal(out[i] >> 15, row[i] >> 15);
        } else {
            assert_true(isfinite(is));
            assert_true(fabs(is - was) <= bound);
            assert_int_equal(out[i] >> 15, row[i] >> 15); /* a flushed element keeps its sign too */
        }
    }
}

static void check_row(const uint16_t *row, size_t n)
{
    static uint16_t want[N], got[N];

    memcpy(want, row, n * 2);
    afdep_oracle_pack(want, n);
    for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
        const afdep_row_ops_t *ops = afdep_row_ops_all[v];

        if (!afdep_row_ops_runs(ops)) {
            continue;
        }
        memset(got, 0x5A, sizeof(got));
        there_and_back(ops, got, row, n);
        for (size_t i = 0; i < n; i++) {
            if (got[i] != want[i]) {
                fail_msg("%s: element %zu, 0x%04X, comes back as 0x%04X and not as 0x%04X", ops->name, i, row[i],
                         got[i], want[i]);
            }
        }
    }
    for (size_t at = 0; at < n; at += 128) {
        check_rules(row + at, want + at);
    }
}

/* A group with `largest` (BF16 bits) in it and everything else below it. */
static void fill_group(uint16_t *row, uint32_t largest)
{
    for (int i = 0; i < 128; i++) {
        uint32_t magnitude = largest ? next_random() % (largest + 1) : 0;

        row[i] = (uint16_t)(magnitude | (next_random() & 0x8000u));
    }
    row[next_random() % 128] = (uint16_t)(largest | (next_random() & 0x8000u));
}

/* Every magnitude that can be a group's largest, so every scale, both sides of every 1.75. */
static void test_every_largest(void **state)
{
    uint16_t row[128];

    (void)state;
    random_state = 1;
    for (uint32_t largest = 0; largest <= 0x7F80; largest++) {
        fill_group(row, largest);
        check_row(row, 128);
    }
}

/* Every BF16 under scales of several sizes, so every code and every tie: the group's largest stands beside it. */
static void test_every_element(void **state)
{
    static const uint32_t largest[] = { 0x0001, 0x007F, 0x0480, 0x0560, 0x3F80, 0x3FE0, 0x3FE1, 0x7F00, 0x7F60, 0x7F7F,
                                        0x7F80 };
    uint16_t row[128];

    (void)state;
    for (size_t l = 0; l < sizeof(largest) / sizeof(largest[0]); l++) {
        for (uint32_t base = 0; base <= largest[l]; base += 127) {
            row[0] = (uint16_t)largest[l];
            for (uint32_t i = 1; i < 128; i++) {
                uint32_t magnitude = base + i - 1 < largest[l] ? base + i - 1 : largest[l];

                row[i] = (uint16_t)(magnitude | (i % 2 ? 0 : 0x8000u));
            }
            check_row(row, 128);
        }
    }
}

/* Any bits: NaN, infinities and every exponent beside each other, and rows of several groups. */
static void test_random_rows(void **state)
{
    static uint16_t row[N];

    (void)state;
    random_state = 3;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t kind = next_random() % 4, center = next_random() % 255;

        for (size_t i = 0; i < N; i++) {
            uint32_t r = next_random(), spread = (r >> 20) % 12;
            uint32_t exponent = center > spread ? center - spread : 0;

            row[i] = (uint16_t)(kind == 0 ? r : (r & 0x807Fu) | exponent << 7);
            if (kind == 1 && r % 61 == 0) {
                row[i] = (uint16_t)(0x7F81u + (r >> 8) % 127u) | (r & 0x8000u);
            } else if (kind == 2 && r % 211 == 0) {
                row[i] = (uint16_t)(0x7F80u | (r & 0x8000u));
            }
        }
        check_row(row, N);
    }
}

static void expect_group(uint16_t first, uint16_t second, uint16_t rest, uint16_t want_first, uint16_t want_second)
{
    uint16_t row[128], out[128];

    for (int i = 0; i < 128; i++) {
        row[i] = rest;
    }
    row[5] = first;
    row[77] = second;
    check_row(row, 128);
    there_and_back(afdep_row_ops_all[0], out, row, 128);
    assert_int_equal(out[5], want_first);
    assert_int_equal(out[77], want_second);
}

/* Each rule by itself, in numbers that were worked out by hand. */
static void test_crafted(void **state)
{
    (void)state;
    /* 1.75 * 2^8 is 448: the scale is 1, 447 is nearest to 448, and 2^-10 is a tie that goes to 0. */
    expect_group(0x43E0, 0x3A80, 0, 0x43E0, 0x0000);
    /* One step more and the scale is 2: 450 becomes 448 all the same, and the smallest step is 2^-8. */
    expect_group(0x43E1, 0x3B40, 0, 0x43E0, 0x3B80);
    expect_group(0x43E1, 0xBA80, 0, 0x43E0, 0x8000); /* 2^-10 under the scale 2 is below the tie: -0 */
    /* A NaN stays, and does not enter the largest magnitude. */
    expect_group(0xFFC1, 0x3F81, 0x3F81, 0x7FFF, 0x3F80);
    /* An infinity stays; what is finite is gone, but for the neighbourhood of the limit. */
    expect_group(0xFF80, 0x4900, 0x3F80, 0xFF80, 0x0000);
    expect_group(0x7F80, 0xFA00, 0, 0x7F80, 0x8000); /* 2^117: a tie, to zero */
    expect_group(0x7F80, 0x7A01, 0, 0x7F80, 0x7A80); /* beyond it: 2^118 */
    expect_group(0x7F80, 0x7F7F, 0, 0x7F80, 0x7F70); /* the largest finite number stays finite: 1.875 * 2^127 */
    expect_group(0x7F7F, 0xFF7F, 0, 0x7F70, 0xFF70); /* also where no infinity is near */
    /* The smallest numbers of all are multiples that e4m3 has. */
    expect_group(0x0001, 0x8001, 0, 0x0001, 0x8001);
}

/* Sums start from the first row, in order, rounded once; the versions agree on rows of any bits. */
static void test_sums(void **state)
{
    enum { ROWS = 32 };
    static uint8_t codes[ROWS][N], scales[ROWS][N / 128];
    static uint16_t want[N], got[N];
    afdep_packed_term_t terms[ROWS];

    (void)state;
    random_state = 4;
    for (int count = 0; count <= ROWS; count++) {
        for (int k = 0; k < count; k++) {
            for (size_t i = 0; i < N; i++) {
                codes[k][i] = (uint8_t)next_random();
                scales[k][i / 128] = (uint8_t)(count % 3 ? 120 + next_random() % 12 : next_random() % 255);
            }
            terms[k] = (afdep_packed_term_t){ codes[k], scales[k] };
        }
        for (size_t i = 0; i < N; i++) {
            float sum = 0;

            for (int k = 0; k < count; k++) {
                float value = (float)ldexp((double)afdep_e4m3_to_f32(codes[k][i]), (int)scales[k][i / 128] - 127);

                sum = k ? sum + value : value;
            }
            want[i] = count ? afdep_bf16_from_f32(sum) : 0;
        }
        for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
            if (afdep_row_ops_runs(afdep_row_ops_all[v])) {
                memset(got, 0x5A, sizeof(got));
                afdep_row_ops_all[v]->packed_sum(got, terms, count, N);
                for (size_t i = 0; i < N; i++) {
                    if (got[i] != want[i]) {
                        fail_msg("%s, %d rows: element %zu is 0x%04X, not 0x%04X", afdep_row_ops_all[v]->name, count, i,
                                 got[i], want[i]);
                    }
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_largest), cmocka_unit_test(test_every_element), cmocka_unit_test(test_random_rows),
        cmocka_unit_test(test_crafted),       cmocka_unit_test(test_sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
