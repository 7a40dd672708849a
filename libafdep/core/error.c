/* SPDX-License-Identifier: Apache-2.0 */
/* The thread's last error, and the names of statuses. */
#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/log.h"

static _Thread_local char last_error[768];

afdep_status_t afdep_fail(afdep_status_t status, const char *format, ...)
{
    int saved = errno;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof(last_error), format, arguments);
    va_end(arguments);
    /* A sentence is one line, whatever a caller's or a variable's text holds. */
    for (char *c = last_error; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            *c = '?';
    afdep_log(AFDEP_LOG_DEBUG, "%s: %s", afdep_status_string(status), last_error);
    errno = saved;
    return status;
}

const char *afdep_last_error(void)
{
    return last_error;
}

const char *afdep_status_string(afdep_status_t status)
{
    switch (status) {
    case AFDEP_OK: return "AFDEP_OK";
    case AFDEP_ERR_ARGUMENT: return "AFDEP_ERR_ARGUMENT";
    case AFDEP_ERR_CONFIG: return "AFDEP_ERR_CONFIG";
    case AFDEP_ERR_ROLE: return "AFDEP_ERR_ROLE";
    case AFDEP_ERR_ORDER: return "AFDEP_ERR_ORDER";
    case AFDEP_ERR_UNSUPPORTED: return "AFDEP_ERR_UNSUPPORTED";
    case AFDEP_ERR_CAPACITY: return "AFDEP_ERR_CAPACITY";
    case AFDEP_ERR_MEMORY: return "AFDEP_ERR_MEMORY";
    case AFDEP_ERR_SYSTEM: return "AFDEP_ERR_SYSTEM";
    case AFDEP_ERR_BOOTSTRAP: return "AFDEP_ERR_BOOTSTRAP";
    case AFDEP_ERR_AGREEMENT: return "AFDEP_ERR_AGREEMENT";
    case AFDEP_ERR_ROUTE: return "AFDEP_ERR_ROUTE";
    case AFDEP_ERR_TIMEOUT: return "AFDEP_ERR_TIMEOUT";
    case AFDEP_ERR_PEER: return "AFDEP_ERR_PEER";
    case AFDEP_ERR_PROTOCOL: return "AFDEP_ERR_PROTOCOL";
    case AFDEP_ERR_TRANSPORT: return "AFDEP_ERR_TRANSPORT";
    case AFDEP_ERR_POISONED: return "AFDEP_ERR_POISONED";
    }
    return "unknown status";
}

int afdep_status_is_fatal(afdep_status_t status)
{
    return status <= AFDEP_ERR_TIMEOUT && status >= AFDEP_ERR_TRANSPORT;
}
