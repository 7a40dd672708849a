/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reasons for refusing: one line each, whatever the input holds, because the programs promise exactly one line on
 * standard error and the values quoted in it come from files and command lines.
 */
#ifndef AFDEP_BENCH_WHY_H
#define AFDEP_BENCH_WHY_H

#include <stdarg.h>
#include <stdio.h>

/* Writes one line (printf format, no newline) into `why`, control characters replaced by '?'. Returns -1, so that a
   caller can refuse and return in one statement. */
static inline int __attribute__((format(printf, 3, 4))) afdep_why(char *why, size_t why_size, const char *format, ...)
{
    if (!why || why_size == 0)
        return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(why, why_size, format, args);
    va_end(args);
    for (char *c = why; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return -1;
}

#endif
