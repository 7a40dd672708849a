/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics of paired repeats: Student's t against printed tables, medians, and pairs worked out by hand. A wrong
 * number of degrees of freedom, a normal quantile in place of t's, an arithmetic mean of ratios, or a one-sided
 * interval each miss these values by far.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/lib/stats.h"

#define assert_near(value, wanted, within) assert_true(fabs((value) - (wanted)) <= (within))

/* Two-sided 95%, as tables print it. */
static void student_quantiles(void **state)
{
    static const double table[] = { 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                    2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                    2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042 };
    (void)state;
    for (int freedom = 1; freedom <= 30; freedom++)
        assert_near(afdep_student_quantile(0.95, freedom), table[freedom - 1], 0.0005 + 1e-9);
    assert_near(afdep_student_quantile(0.99, 2), 9.925, 0.0005);
    assert_near(afdep_student_quantile(0.90, 7), 1.895, 0.0005);
    assert_near(afdep_student_quantile(0.95, 9999), 1.9602, 0.0001); /* nearly the normal distribution's */
}

static void student_probabilities(void **state)
{
    (void)state;
    assert_near(afdep_student_within(1, 1), 0.5, 1e-12);           /* Cauchy: arctan 1 is a quarter turn */
    assert_near(afdep_student_within(1, 2), 1 / sqrt(3), 1e-12);   /* t / sqrt(t^2 + 2) */
    assert_near(afdep_student_within(0, 5), 0, 1e-12);
    assert_true(afdep_student_within(1e9, 3) <= 1 + 1e-12);
}

static void medians(void **state)
{
    (void)state;
    double odd[] = { 9, 1, 5 }, even[] = { 4, 1, 3, 2 };
    assert_near(afdep_median(odd, 3), 5, 0);
    assert_near(afdep_median(even, 4), 2.5, 0);
    assert_true(isnan(afdep_median(odd, 0)));
}

/* Ratios 1/2, 1/4, 1/8: the geometric mean is 1/4; their logarithms are one step of ln 2 apart. */
static void pairs_by_hand(void **state)
{
    (void)state;
    const double base[] = { 100, 200, 400 }, other[] = { 50, 50, 50 };
    afdep_paired_t paired = afdep_pair(base, other, 3);
    double half = 4.30265 * log(2) / sqrt(3);
    assert_int_equal(paired.repeats, 3);
    assert_near(paired.change_pct, -75, 1e-9);
    assert_near(paired.change_low_pct, (exp(-2 * log(2) - half) - 1) * 100, 1e-3);
    assert_near(paired.change_high_pct, (exp(-2 * log(2) + half) - 1) * 100, 1e-3);
    assert_string_equal(afdep_paired_verdict(&paired), "no difference seen");
}

static void verdicts(void **state)
{
    (void)state;
    const double base[] = { 100, 101, 99 }, fast[] = { 50, 51, 49 }, slow[] = { 130, 128, 131 };
    const double mixed[] = { 90, 110, 101 };
    afdep_paired_t paired = afdep_pair(base, fast, 3);
    assert_string_equal(afdep_paired_verdict(&paired), "faster");
    paired = afdep_pair(base, slow, 3);
    assert_string_equal(afdep_paired_verdict(&paired), "slower");
    paired = afdep_pair(base, mixed, 3);
    assert_string_equal(afdep_paired_verdict(&paired), "no difference seen");
    paired = afdep_pair(base, base, 3); /* exactly the same: an interval of no width, at zero */
    assert_near(paired.change_high_pct - paired.change_low_pct, 0, 1e-12);
    assert_string_equal(afdep_paired_verdict(&paired), "no difference seen");
    paired = afdep_pair(base, fast, 1);
    assert_true(isnan(paired.change_low_pct) && isnan(paired.change_high_pct));
    assert_string_equal(afdep_paired_verdict(&paired), "one repeat");
    paired = afdep_pair(base, fast, 0);
    assert_string_equal(afdep_paired_verdict(&paired), "not measured");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(student_quantiles), cmocka_unit_test(student_probabilities), cmocka_unit_test(medians),
        cmocka_unit_test(pairs_by_hand),     cmocka_unit_test(verdicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
