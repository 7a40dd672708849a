/* SPDX-License-Identifier: Apache-2.0 */
/* The environment. No other file of the library reads it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* secure_getenv */
#endif

#include "core/env.h"

#include <stdlib.h>

const char *afdep_env(const char *name)
{
    return secure_getenv(name);
}
