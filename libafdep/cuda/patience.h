/* SPDX-License-Identifier: Apache-2.0 */
/* Calls into a library that may wait for other ranks for ever, made so that this rank does not. */
#ifndef AFDEP_CUDA_PATIENCE_H
#define AFDEP_CUDA_PATIENCE_H

#include <afdep/status.h>

typedef struct afdep_patience_call {
    /* Runs on a thread of its own. What `context` points to must stay for as long as it may run: see below. */
    afdep_status_t (*run)(void *context);
    void *context;
    /* Asked every few milliseconds: OK, or the status, with its sentence, that ends the waiting. May be NULL. */
    afdep_status_t (*over)(void *context);
    int timeout_ms;
    const char *what; /* for the sentence of a deadline */
} afdep_patience_call_t;

/*
 * What `run` returned, with its sentence as this thread's last error; else, with *left set, TIMEOUT or what `over` said:
 * the call then still runs, and `context` is its own from here on.
 */
afdep_status_t afdep_call_with_patience(const afdep_patience_call_t *call, int *left);

#endif
