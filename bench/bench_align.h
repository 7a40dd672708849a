/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Aligned starts: a barrier that costs a few shared words instead of messages, so that it can stand before every timed
 * iteration. The ranks of one host meet in shared memory; of several hosts, one rank each meets the others over MPI.
 */
#ifndef AFDEP_BENCH_ALIGN_H
#define AFDEP_BENCH_ALIGN_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/lib/world.h"

/* One rank's mark: how often it arrived. A line of its own. */
typedef struct afdep_align_slot {
    _Alignas(64) _Atomic uint64_t arrived;
    int64_t process;
} afdep_align_slot_t;

/* What the ranks of one host share; their slots follow it. */
typedef struct afdep_align_area {
    _Alignas(64) _Atomic uint64_t arrivals;
    _Alignas(64) _Atomic uint64_t released;
} afdep_align_area_t;

typedef struct afdep_align afdep_align_t;

/* An area for `ranks` ranks that are threads of this process; freed by free(). NULL without memory. */
afdep_align_area_t *afdep_align_area_create(int ranks);

/*
 * Collective. `area` is where ranks that are threads of this process meet; processes make their own. NULL: it failed,
 * one line in `why`.
 */
afdep_align_t *afdep_align_open(afdep_world_t *world, afdep_align_area_t *area, char *why, size_t why_size);

/* Number of ranks on this rank's host, and whether that is all of them (so that their clocks are one clock). */
int afdep_align_host_ranks(const afdep_align_t *align);
int afdep_align_one_host(const afdep_align_t *align);

/*
 * Collective. Returns 0 once every rank has entered. -1: `timeout_ms` passed or a rank's process is gone; `why` names
 * the missing ranks. While it waits, `look(context)` is called a few times a second and ends the wait when nonzero
 * (-1, `why` left empty).
 */
int afdep_align_wait(afdep_align_t *align, int timeout_ms, int (*look)(void *context), void *context, char *why,
                     size_t why_size);

/* Collective. */
void afdep_align_close(afdep_align_t *align);

#endif
