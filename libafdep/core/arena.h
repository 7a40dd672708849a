/* SPDX-License-Identifier: Apache-2.0 */
/* Carving one mapping into arrays, so that exchanges allocate nothing; measured first, then cut the same way. */
#ifndef AFDEP_CORE_ARENA_H
#define AFDEP_CORE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define AFDEP_ARENA_ALIGN 64u

/* Under the address sanitizer a gap follows every array, and whoever touches it is found: the arena is one mapping,
   where an overrun would otherwise only reach the next array. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define AFDEP_ARENA_WATCHED
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define AFDEP_ARENA_WATCHED
#endif
#ifdef AFDEP_ARENA_WATCHED
#include <sanitizer/asan_interface.h>
#define AFDEP_ARENA_GAP 64u
#define AFDEP_ARENA_CLOSE(from, bytes) ASAN_POISON_MEMORY_REGION(from, bytes)
#define AFDEP_ARENA_OPEN(from, bytes) ASAN_UNPOISON_MEMORY_REGION(from, bytes)
#else
#define AFDEP_ARENA_GAP 0u
#define AFDEP_ARENA_CLOSE(from, bytes) ((void)(from), (void)(bytes))
#define AFDEP_ARENA_OPEN(from, bytes) ((void)(from), (void)(bytes))
#endif

/* Carves arrays off the arena; with a NULL base it only measures. */
typedef struct afdep_carver {
    unsigned char *base;
    uint64_t at;
} afdep_carver_t;

static inline void *afdep_carve(afdep_carver_t *c, uint64_t count, uint64_t bytes)
{
    uint64_t start = c->at, end = start + count * bytes;
    c->at = (end + AFDEP_ARENA_GAP + AFDEP_ARENA_ALIGN - 1) / AFDEP_ARENA_ALIGN * AFDEP_ARENA_ALIGN;
    if (!c->base)
        return NULL;
    if (c->at > end)
        AFDEP_ARENA_CLOSE(c->base + end, c->at - end);
    return c->base + start;
}

#endif
