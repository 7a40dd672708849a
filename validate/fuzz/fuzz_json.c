/* SPDX-License-Identifier: Apache-2.0 */
/* The bounded JSON reader behind every file: what it accepts can be quoted, printed, and read again. */
#include <stdlib.h>

#include "bench/lib/json.h"
#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"

#define LIMIT 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256] = "", quoted[64];
    cJSON *json = afdep_json_read(afdep_fuzz_file(data, size), LIMIT, why, sizeof(why));
    if (!json) {
        afdep_fuzz_expect_line(why, sizeof(why));
        return 0;
    }
    AFDEP_FUZZ_EXPECT(size <= LIMIT);
    (void)afdep_json_quote(json, quoted, sizeof(quoted));
    char *printed = cJSON_PrintUnformatted(json);
    AFDEP_FUZZ_EXPECT(printed);
    cJSON *again = afdep_json_read(afdep_fuzz_file((const uint8_t *)printed, strlen(printed)), 16 * LIMIT, why,
                                   sizeof(why));
    AFDEP_FUZZ_EXPECT(again);
    /* Strings of arbitrary bytes become strings that are valid. */
    cJSON *text = afdep_json_string(printed);
    AFDEP_FUZZ_EXPECT(cJSON_IsString(text));
    cJSON_Delete(text);
    cJSON_Delete(again);
    cJSON_free(printed);
    cJSON_Delete(json);
    return 0;
}
