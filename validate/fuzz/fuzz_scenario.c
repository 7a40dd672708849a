/* SPDX-License-Identifier: Apache-2.0 */
/* Scenario files: what is accepted passes the check again, and comes back from its own record as it was. */
#include <stdlib.h>

#include "bench/lib/scenario.h"
#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"

static char *printed_of(const afdep_scenario_t *scenario)
{
    cJSON *json = afdep_scenario_json(scenario);
    char *printed = json ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    AFDEP_FUZZ_EXPECT(printed);
    return printed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256] = "";
    afdep_scenario_t scenario, again;
    if (afdep_scenario_load(afdep_fuzz_file(data, size), &scenario, why, sizeof(why)) < 0) {
        afdep_fuzz_expect_line(why, sizeof(why));
        return 0;
    }
    AFDEP_FUZZ_EXPECT(afdep_scenario_check(&scenario, why, sizeof(why)) == 0);
    char *printed = printed_of(&scenario);
    /* A trace's name is made relative to its scenario: once more is another name. */
    if (scenario.routing.kind != AFDEP_ROUTING_TRACE) {
        const char *file = afdep_fuzz_file((const uint8_t *)printed, strlen(printed));
        AFDEP_FUZZ_EXPECT(afdep_scenario_load(file, &again, why, sizeof(why)) == 0);
        char *second = printed_of(&again);
        AFDEP_FUZZ_EXPECT(strcmp(printed, second) == 0);
        cJSON_free(second);
        afdep_scenario_free(&again);
    }
    cJSON_free(printed);
    afdep_scenario_free(&scenario);
    return 0;
}
