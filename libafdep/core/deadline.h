/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlines on the monotonic clock, in milliseconds: a stepped wall clock neither shortens nor lengthens a wait. */
#ifndef AFDEP_CORE_DEADLINE_H
#define AFDEP_CORE_DEADLINE_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

static inline int64_t afdep_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Milliseconds until `deadline`, as poll() takes them: 0 once it has passed. */
static inline int afdep_ms_left(int64_t deadline)
{
    int64_t left = deadline - afdep_now_ms();
    if (left <= 0)
        return 0;
    return left < INT_MAX ? (int)left : INT_MAX;
}

#endif
