/* SPDX-License-Identifier: Apache-2.0 */
/* What afdep-bench --api low-latency refuses before ranks run: once, and not by each rank in the middle of a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/ll_bench.h"

/* NULL where the plan would run, else the reason. */
static const char *check(const char *profile, const char *tokens, char *why, size_t size)
{
    const char *const words[] = { "afdep-bench", "--api", "low-latency", "--ffn-ranks", "2", "--attention-ranks", "2",
                                  "--num-experts", "8", "--top-k", "2", "--hidden", "256", "--profile", profile,
                                  "--tokens", tokens, NULL };
    char *arguments[sizeof(words) / sizeof(words[0])];
    afdep_bench_plan_t plan;
    memcpy(arguments, words, sizeof(words));
    assert_int_equal(
        afdep_bench_plan_parse(&plan, (int)(sizeof(words) / sizeof(words[0])) - 1, arguments, 0, why, size), 0);
    int status = afdep_bench_ll_check(&plan, why, size);
    afdep_bench_plan_free(&plan);
    return status == 0 ? NULL : why;
}

static void test_tokens_of_a_profile(void **state)
{
    static const char *const profiles[] = { "a2", "a3", "a5" };
    char why[512];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_null(check(profiles[i], "0,512", why, sizeof(why)));
        const char *said = check(profiles[i], "1,513,4", why, sizeof(why));
        assert_non_null(said);
        assert_non_null(strstr(said, "tokens is 513"));
        assert_non_null(strstr(said, profiles[i]));
    }
    assert_null(check("native", "513", why, sizeof(why)));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_tokens_of_a_profile) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
