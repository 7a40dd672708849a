/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of ranks as bitmaps, and their names in sentences. */
#ifndef AFDEP_CORE_RANK_SET_H
#define AFDEP_CORE_RANK_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Long enough for any text that afdep_rank_set_text() writes. */
#define AFDEP_RANK_TEXT_BYTES 192

static inline size_t afdep_rank_set_bytes(int size)
{
    return ((size_t)size + 7) / 8;
}

static inline void afdep_rank_set_add(uint8_t *set, int rank)
{
    set[rank / 8] = (uint8_t)(set[rank / 8] | 1u << rank % 8);
}

static inline bool afdep_rank_set_has(const uint8_t *set, int rank)
{
    return (set[rank / 8] >> rank % 8 & 1) != 0;
}

/* Writes "rank 2 of 8", "ranks 2, 5 of 8", or the first sixteen and how many more there are. Returns `text`. */
const char *afdep_rank_set_text(const uint8_t *set, int size, char text[AFDEP_RANK_TEXT_BYTES]);

#endif
