/* SPDX-License-Identifier: Apache-2.0 */
/* The library's only door to the environment, so that one file shows every way in. */
#ifndef AFDEP_CORE_ENV_H
#define AFDEP_CORE_ENV_H

/* The value of the environment variable `name`; NULL when it is unset, or when the program runs with privileges that
   its caller does not have. */
const char *afdep_env(const char *name);

#endif
