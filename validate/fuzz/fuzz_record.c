/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Benchmark records as afdep-screen and afdep-report read them: a list of records, those that pass the check compared
 * with each other and gathered into a comparison, every cell of which is then looked at.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/lib/comparison.h"
#include "bench/lib/record.h"
#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"

static void look_at(const cJSON *records, const char *baseline)
{
    char why[256] = "", words[128];
    afdep_comparison_t comparison;
    if (afdep_comparison_make(records, baseline, &comparison, why, sizeof(why)) < 0) {
        afdep_fuzz_expect_line(why, sizeof(why));
        return;
    }
    for (int arm = 0; arm < comparison.arms; arm++)
        for (int token = 0; token < comparison.token_counts; token++) {
            (void)afdep_comparison_median(&comparison, arm, token);
            afdep_paired_t paired = afdep_comparison_pair(&comparison, arm, token);
            (void)afdep_paired_words(&paired, words, sizeof(words));
        }
    afdep_comparison_free(&comparison);
}

/* Keeps what passes the check. */
static cJSON *checked(const cJSON *given)
{
    cJSON *records = cJSON_CreateArray();
    for (const cJSON *record = cJSON_IsArray(given) ? given->child : NULL; record; record = record->next) {
        char why[256] = "";
        if (afdep_benchmark_check(record, "record", why, sizeof(why)) == 0)
            cJSON_AddItemToArray(records, cJSON_Duplicate(record, 1));
        else
            afdep_fuzz_expect_line(why, sizeof(why));
    }
    return records;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256] = "";
    cJSON *given = afdep_record_read(afdep_fuzz_file(data, size), why, sizeof(why));
    cJSON *records = checked(given);
    const cJSON *first = records->child;
    for (const cJSON *other = first; other; other = other->next) {
        (void)afdep_benchmark_cell(other, 1);
        if (afdep_benchmarks_agree(first, other, cJSON_GetObjectItemCaseSensitive(first, "may_differ"), why,
                                   sizeof(why)) < 0)
            afdep_fuzz_expect_line(why, sizeof(why));
    }
    if (first) {
        look_at(records, NULL);
        look_at(records, afdep_benchmark_arm(first));
    }
    cJSON_Delete(records);
    cJSON_Delete(given);
    return 0;
}
