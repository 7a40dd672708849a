/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether another process of this host is still the one it was: a pid is used again, but not with its start time.
 */
#ifndef AFDEP_FABRIC_PROCESS_H
#define AFDEP_FABRIC_PROCESS_H

#include <stdint.h>

typedef struct afdep_process {
    uint64_t pid;   /* as this process sees it; 0: not to be seen from here */
    uint64_t start; /* when it started, in the kernel's ticks; 0: unknown */
} afdep_process_t;

/* The calling process. */
afdep_process_t afdep_process_self(void);

/* `announced` where the process seen here under that number is the one that said so, else one that cannot be seen (it
   lives in another pid namespace). */
afdep_process_t afdep_process_seen(afdep_process_t announced);

/* 1 when it could be seen and is gone, or is a zombie. */
int afdep_process_gone(afdep_process_t process);

#endif
