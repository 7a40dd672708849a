/* SPDX-License-Identifier: Apache-2.0 */
/* One log sink per process; by default standard error, and silent below the level that AFDEP_LOG names. */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/env.h"

typedef void (*log_write_fn)(void *context, afdep_log_level_t level, const char *line);

static log_write_fn log_write;
static void *log_context;
static atomic_int log_level = -1; /* -1: not looked up yet */

static int level_from_environment(void)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    const char *text = afdep_env("AFDEP_LOG");
    for (int i = 0; text && i < 4; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    return AFDEP_LOG_ERROR;
}

afdep_log_level_t afdep_log_level(void)
{
    int level = atomic_load_explicit(&log_level, memory_order_relaxed);
    if (level < 0) {
        level = level_from_environment();
        atomic_store_explicit(&log_level, level, memory_order_relaxed);
    }
    return (afdep_log_level_t)level;
}

void afdep_log_set(void (*write)(void *context, afdep_log_level_t level, const char *line), void *context,
                   afdep_log_level_t level)
{
    log_write = write;
    log_context = context;
    atomic_store_explicit(&log_level, write ? (int)level : -1, memory_order_relaxed);
}

void afdep_log(afdep_log_level_t level, const char *format, ...)
{
    if (level > afdep_log_level())
        return;
    int saved = errno;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    if (log_write)
        log_write(log_context, level, line);
    else
        fprintf(stderr, "afdep: %s\n", line);
    errno = saved;
}
