/* SPDX-License-Identifier: Apache-2.0 */
/* Words and rows in the segment of an Attention rank, in the direct and in the directional protocol. */
#include "validate/fuzz/lib/input.h"
#include "validate/fuzz/lib/rank.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return afdep_fuzz_rank(AFDEP_FUZZ_ATTENTION, data, size);
}
