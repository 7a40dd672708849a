/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing to a segment that is mapped here: the bounds that every put and signal is held to, and the two stores. A put
 * is a memcpy and a signal a release store, so a lane keeps its order by itself and nothing is ever queued.
 */
#ifndef AFDEP_FABRIC_DIRECT_H
#define AFDEP_FABRIC_DIRECT_H

#include <stdatomic.h>
#include <string.h>

#include "core/error.h"
#include "fabric/fabric.h"

static inline int afdep_direct_reaches(const afdep_fabric_t *fabric, int peer, uint64_t offset, uint64_t bytes)
{
    return peer >= 0 && peer < fabric->size && bytes <= fabric->peer_bytes[peer] &&
           offset <= fabric->peer_bytes[peer] - bytes;
}

static inline int afdep_direct_reaches_word(const afdep_fabric_t *fabric, int peer, uint64_t offset)
{
    return offset % sizeof(uint64_t) == 0 && afdep_direct_reaches(fabric, peer, offset, sizeof(uint64_t));
}

/* The sentence for what does not reach. */
static __attribute__((cold, noinline, unused)) afdep_status_t
afdep_direct_refuse(const afdep_fabric_t *fabric, const char *what, int peer, uint64_t offset, uint64_t bytes)
{
    if (peer < 0 || peer >= fabric->size)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "a %s for rank %d, where there are %d ranks", what, peer, fabric->size);
    if (afdep_direct_reaches(fabric, peer, offset, bytes))
        return afdep_fail(AFDEP_ERR_PROTOCOL, "a %s for rank %d at offset %llu, which is not a multiple of 8", what,
                          peer, (unsigned long long)offset);
    return afdep_fail(AFDEP_ERR_PROTOCOL, "a %s of %llu bytes at offset %llu does not lie in the %llu bytes of rank "
                      "%d's segment", what, (unsigned long long)bytes, (unsigned long long)offset,
                      (unsigned long long)fabric->peer_bytes[peer], peer);
}

static inline void afdep_direct_put(unsigned char *segment, uint64_t offset, const void *src, size_t bytes)
{
    if (src != segment + offset && bytes > 0) /* else it was built in place */
        memcpy(segment + offset, src, bytes);
}

/* Release: whoever reads this value sees every put and signal that this rank has issued before. */
static inline void afdep_direct_signal(unsigned char *segment, uint64_t offset, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)(segment + offset), value, memory_order_release);
}

static inline uint64_t afdep_direct_read(const afdep_fabric_t *fabric, uint64_t offset)
{
    return atomic_load_explicit((_Atomic uint64_t *)(void *)(fabric->base + offset), memory_order_acquire);
}

#endif
