/* SPDX-License-Identifier: Apache-2.0 */
/* What a buffer's ranks reach each other by where that is NCCL's GPU-initiated networking, for headers and records. */
#ifndef AFDEP_BENCH_GIN_NOTE_H
#define AFDEP_BENCH_GIN_NOTE_H

#include <cjson/cJSON.h>

#include <afdep/afdep.h>

typedef struct afdep_gin_note {
    int contexts; /* 0: there is none */
    int type, traffic_class, loopback;
    char why[192];
} afdep_gin_note_t;

/* As afdep_buffer_info() says. */
void afdep_gin_note_take(afdep_gin_note_t *note, const afdep_buffer_t *buffer);

/* What a buffer of several domains would get on this machine: asks NCCL with a communicator of this process alone, on the
   current GPU, for what the environment's settings want. 0, or -1 with the reason why it cannot be had. */
int afdep_gin_note_ask(afdep_gin_note_t *note, char *why, size_t why_size);

/* {"type", "contexts", "traffic_class", "loopback", "why"}, or NULL where there is none. The caller owns it. */
cJSON *afdep_gin_note_json(const afdep_gin_note_t *note);

/* A comment line of a program's header; nothing where there is none. */
void afdep_gin_note_print(const afdep_gin_note_t *note);

#endif
