/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time, and waiting for other ranks of the same processors: spin briefly, then give the processor away, and sleep only
 * where nothing has happened for long. Yielding beat sleeping on a futex three times when 24 ranks shared 2 processors
 * (0.10 against 0.32 ms per round trip), since the waker then pays no system call.
 */
#ifndef AFDEP_FABRIC_PAUSE_H
#define AFDEP_FABRIC_PAUSE_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

#define AFDEP_IDLE_SPINS 8u       /* rounds that only pause the processor, where every rank has one to itself */
#define AFDEP_IDLE_YIELDS 200000u /* rounds that yield, some 0.1 s on an idle machine, before rounds sleep */
#define AFDEP_IDLE_SLEEP_NS 50000

static inline void afdep_cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline uint64_t afdep_monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Spinning only keeps the others of an oversubscribed host from what this rank waits for. */
static inline unsigned afdep_idle_spins(int ranks)
{
    cpu_set_t processors;
    int own = sched_getaffinity(0, sizeof(processors), &processors) == 0 ? CPU_COUNT(&processors) : 1;
    return ranks > own ? 0 : AFDEP_IDLE_SPINS;
}

/* Nothing was to be done `rounds` times in a row; `spins` of them are spent spinning. */
static inline void afdep_idle(unsigned rounds, unsigned spins)
{
    if (rounds < spins) {
        for (int i = 0; i < 16; i++)
            afdep_cpu_pause();
    } else if (rounds < spins + AFDEP_IDLE_YIELDS) {
        sched_yield();
    } else {
        struct timespec t = { 0, AFDEP_IDLE_SLEEP_NS };
        nanosleep(&t, 0);
    }
}

#endif
