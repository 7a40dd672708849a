/* SPDX-License-Identifier: Apache-2.0 */
/* Names of sets of ranks, bounded in length however many ranks there are. */
#include "core/rank_set.h"

#include <stdio.h>

enum { NAMED_AT_MOST = 16 };

const char *afdep_rank_set_text(const uint8_t *set, int size, char text[AFDEP_RANK_TEXT_BYTES])
{
    int count = 0;
    for (int rank = 0; rank < size; rank++)
        count += afdep_rank_set_has(set, rank);
    if (count == 0) {
        snprintf(text, AFDEP_RANK_TEXT_BYTES, "no rank of %d", size);
        return text;
    }
    size_t used = (size_t)snprintf(text, AFDEP_RANK_TEXT_BYTES, count == 1 ? "rank" : "ranks");
    int named = 0;
    for (int rank = 0; rank < size && named < NAMED_AT_MOST; rank++) {
        if (!afdep_rank_set_has(set, rank))
            continue;
        used += (size_t)snprintf(text + used, AFDEP_RANK_TEXT_BYTES - used, named == 0 ? " %d" : ", %d", rank);
        named++;
    }
    if (count > named)
        used += (size_t)snprintf(text + used, AFDEP_RANK_TEXT_BYTES - used, " and %d more", count - named);
    snprintf(text + used, AFDEP_RANK_TEXT_BYTES - used, " of %d", size);
    return text;
}
