/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child programs and child worlds. A child world is this program started again as the ranks of a world of its own (TCP
 * group, shm fabric), so that a killed rank ends a case and not the suite.
 */
#ifndef AFDEP_VALIDATE_CHILD_H
#define AFDEP_VALIDATE_CHILD_H

#include "validate/cases.h"

/* Runs a program to its end. Returns its exit status, 128 + signal, or -1 (not started, or killed at the deadline);
   `said` gets its standard output without the last newline, cut to `size`. */
int afdep_validate_spawn(const char *const *argv, int timeout_ms, char *said, size_t size);

/* Runs this process as a rank of a child world when its command line says so. Nonzero: it was one, and *status is its
   exit status. */
int afdep_child_main(int argc, char **argv, int *status);

/* When the victim is killed. */
typedef enum afdep_kill_phase {
    AFDEP_KILL_EXCHANGING, /* at a random moment of running exchanges */
    AFDEP_KILL_OPENING,    /* at a random moment between start and the end of opening */
    AFDEP_KILL_SURVIVED    /* as exchanging, with AFDEP_FLAG_SURVIVE_SOURCES: an Attention rank, unless the victim is
                              given; the others go on, exact, say who is masked, and let a new process in */
} afdep_kill_phase_t;

/* A case that kills ranks. */
typedef struct afdep_kill {
    int ffn, attention, per_domain;
    int points; /* random kill points, each in a world of its own */
    int victim; /* -1: a random one; else the rank */
    afdep_kill_phase_t phase;
} afdep_kill_t;

/* A case whose argument is an afdep_kill_t. */
void afdep_run_kills(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome);

#endif
