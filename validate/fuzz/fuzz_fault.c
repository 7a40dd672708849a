/* SPDX-License-Identifier: Apache-2.0 */
/* Fault files: what is accepted has rules within the ranges that the fault fabric is built for. */
#include <stdlib.h>

#include "bench/lib/faults.h"
#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static afdep_fault_file_t faults;
    char why[256] = "";
    if (afdep_fault_file_load(afdep_fuzz_file(data, size), &faults, why, sizeof(why)) < 0) {
        afdep_fuzz_expect_line(why, sizeof(why));
        return 0;
    }
    AFDEP_FUZZ_EXPECT(faults.faults.count >= 1 && faults.faults.count <= AFDEP_FAULTS_MAX);
    for (int i = 0; i < faults.faults.count; i++) {
        const afdep_fault_t *rule = &faults.faults.rules[i];
        AFDEP_FUZZ_EXPECT(rule->kind < AFDEP_FAULT_KINDS && rule->probability > 0 && rule->probability <= 1);
    }
    if (afdep_fault_file_check(&faults, 6, 8, why, sizeof(why)) < 0)
        afdep_fuzz_expect_line(why, sizeof(why));
    afdep_fault_file_free(&faults);
    return 0;
}
