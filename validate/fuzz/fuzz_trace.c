/* SPDX-License-Identifier: Apache-2.0 */
/* Routing traces for a model of 8 experts, top-2: what is accepted makes routes that a source may send. */
#include <math.h>
#include <stdlib.h>

#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"
#include "validate/trace.h"

enum { EXPERTS = 8, CHOICES = 2, ROWS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256] = "";
    afdep_scenario_t scenario = { .num_experts = EXPERTS, .top_k = CHOICES };
    afdep_trace_t *trace = afdep_trace_load(afdep_fuzz_file(data, size), &scenario, why, sizeof(why));
    if (!trace) {
        afdep_fuzz_expect_line(why, sizeof(why));
        return 0;
    }
    for (uint64_t place = 0; place < ROWS; place++) {
        int32_t ids[CHOICES];
        float weights[CHOICES] = { 1, 1 };
        afdep_trace_read(trace, place * 0x9E3779B97F4A7C15u, ids, weights);
        for (int k = 0; k < CHOICES; k++)
            AFDEP_FUZZ_EXPECT(ids[k] >= -1 && ids[k] < EXPERTS && weights[k] > 0 && isfinite(weights[k]));
        AFDEP_FUZZ_EXPECT(ids[0] != ids[1] || ids[0] == -1);
    }
    afdep_trace_free(trace);
    return 0;
}
