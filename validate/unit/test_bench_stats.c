/* SPDX-License-Identifier: Apache-2.0 */
/* What afdep-bench says of its samples: order statistics by hand-counted examples, reservoirs that ranks fill alike. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "bench/bench_stats.h"

static void test_no_values(void **state)
{
    (void)state;
    afdep_summary_t s = afdep_summarize(NULL, 0);
    assert_true(isnan(s.min) && isnan(s.median) && isnan(s.mean) && isnan(s.p99));
}

static void test_few_values(void **state)
{
    (void)state;
    double one[] = { 7 }, even[] = { 4, 1, 3, 10 }, odd[] = { 5, 1, 9 };
    afdep_summary_t s = afdep_summarize(one, 1);
    assert_true(s.min == 7 && s.median == 7 && s.mean == 7 && s.p99 == 7);
    s = afdep_summarize(even, 4);
    assert_true(s.min == 1 && s.median == 3.5 && s.mean == 4.5 && s.p99 == 10);
    s = afdep_summarize(odd, 3);
    assert_true(s.min == 1 && s.median == 5 && s.mean == 5 && s.p99 == 9);
}

/* Of 1 .. n, p99 is the smallest value that 99% do not exceed: 99 of 100, 100 of 101, 198 of 200. */
static void test_p99(void **state)
{
    (void)state;
    const int counts[] = { 100, 101, 200 }, wanted[] = { 99, 100, 198 };
    double values[200];
    for (int c = 0; c < 3; c++) {
        for (int i = 0; i < counts[c]; i++)
            values[i] = counts[c] - i;
        assert_true(afdep_summarize(values, counts[c]).p99 == wanted[c]);
    }
}

static afdep_reservoir_t *filled(uint64_t seed, int64_t iterations, int64_t offset)
{
    afdep_reservoir_t *reservoir = malloc(sizeof(*reservoir));
    assert_non_null(reservoir);
    afdep_reservoir_init(reservoir, seed);
    for (int64_t i = 0; i < iterations; i++)
        afdep_reservoir_add(reservoir, i + offset, 2 * i);
    return reservoir;
}

static void test_everything_is_kept_while_it_fits(void **state)
{
    (void)state;
    afdep_reservoir_t *reservoir = filled(1, AFDEP_BENCH_SAMPLES_MAX, 0);
    assert_int_equal(reservoir->kept, AFDEP_BENCH_SAMPLES_MAX);
    for (int i = 0; i < reservoir->kept; i++)
        assert_true(reservoir->start_ns[i] == i && reservoir->took_ns[i] == 2 * i);
    free(reservoir);
}

/* Two ranks keep the same iterations at the same places, whatever they measured, and late ones as often as early. */
static void test_ranks_keep_the_same(void **state)
{
    (void)state;
    const int64_t many = 10 * AFDEP_BENCH_SAMPLES_MAX;
    afdep_reservoir_t *a = filled(42, many, 0), *b = filled(42, many, 1000000), *other = filled(43, many, 0);
    int late = 0, same = 0;
    assert_int_equal(a->kept, AFDEP_BENCH_SAMPLES_MAX);
    for (int i = 0; i < a->kept; i++) {
        assert_true(a->start_ns[i] + 1000000 == b->start_ns[i] && a->took_ns[i] == 2 * a->start_ns[i]);
        late += a->start_ns[i] >= many / 2;
        same += a->start_ns[i] == other->start_ns[i];
    }
    assert_in_range(late, AFDEP_BENCH_SAMPLES_MAX * 45 / 100, AFDEP_BENCH_SAMPLES_MAX * 55 / 100);
    assert_true(same < AFDEP_BENCH_SAMPLES_MAX / 4);
    free(other);
    free(b);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_values),
        cmocka_unit_test(test_few_values),
        cmocka_unit_test(test_p99),
        cmocka_unit_test(test_everything_is_kept_while_it_fits),
        cmocka_unit_test(test_ranks_keep_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
