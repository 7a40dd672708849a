/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the other ranks claim when a buffer is opened. They start from this rank's own claim; the input then says what
 * is written over it: rank, place and bytes.
 */
#include <stdlib.h>

#include <afdep/afdep.h>
#include <afdep/group.h>

#include "core/agreement.h"
#include "validate/fuzz/lib/input.h"

static afdep_fuzz_input_t input;

enum { RANKS = 7 };

static afdep_status_t allgather(void *context, const void *send, void *recv, size_t bytes)
{
    const afdep_group_t *group = context;
    for (int r = 0; r < group->size; r++)
        memcpy((char *)recv + (size_t)r * bytes, send, bytes);
    while (input.left > 0) {
        int rank = afdep_fuzz_u8(&input) % group->size;
        uint8_t fill = afdep_fuzz_u8(&input);
        uint32_t at = (afdep_fuzz_u8(&input) | (uint32_t)afdep_fuzz_u8(&input) << 8) % (uint32_t)bytes;
        size_t length = afdep_fuzz_u8(&input);
        char *place = (char *)recv + (size_t)rank * bytes + at;
        if (length > bytes - at)
            length = bytes - at;
        if (fill == 0)
            (void)afdep_fuzz_take(&input, place, length);
        else
            memset(place, fill == 1 ? 0 : fill, bytes - at);
    }
    memcpy((char *)recv + (size_t)group->rank * bytes, send, bytes);
    return AFDEP_OK;
}

static afdep_status_t barrier(void *context)
{
    (void)context;
    return AFDEP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static afdep_settings_t settings;
    afdep_group_t group = { sizeof(group), 0, 0, NULL, allgather, barrier, NULL, NULL };
    afdep_config_t config = AFDEP_CONFIG_INIT;
    input = (afdep_fuzz_input_t){ data, size };
    uint8_t how = afdep_fuzz_u8(&input);
    group.size = 1 + how % RANKS;
    group.rank = how / RANKS % group.size;
    group.context = &group;
    config.ffn_ranks = 1;
    config.num_experts = config.top_k = config.capacity = 2;
    config.hidden = 256;
    AFDEP_FUZZ_EXPECT(settings.backend || afdep_settings_resolve(&config, RANKS, &settings) == AFDEP_OK);
    afdep_status_t status = how & 0x80 ? afdep_agree_status(&group, AFDEP_OK, "open its segment")
                                       : afdep_agree(&group, AFDEP_OK, &settings, "shm");
    AFDEP_FUZZ_EXPECT(status <= AFDEP_OK);
    AFDEP_FUZZ_EXPECT(status == AFDEP_OK || strnlen(afdep_last_error(), 4096) > 0);
    return 0;
}
