/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load statistics of a rank: cumulative tokens per expert and per source. One writer, the thread that makes the role
 * calls; readers of any thread get a whole exchange or none of it, and neither side waits for the other.
 */
#ifndef AFDEP_HOST_LOAD_H
#define AFDEP_HOST_LOAD_H

#include <stdatomic.h>

#include <afdep/afdep.h>

#include "protocol/shape.h"

typedef struct afdep_load_counts {
    int experts, sources;
    _Atomic uint64_t sequence;  /* odd while an exchange is being added */
    _Atomic uint64_t exchanges;
    _Atomic uint64_t tokens[];  /* [E], then [A] */
} afdep_load_counts_t;

/* NULL without memory. */
afdep_load_counts_t *afdep_load_create(const afdep_shape_t *shape);

/* Back to nothing, with no reader about. */
void afdep_load_restart(afdep_load_counts_t *load);

/* The writer's bracket around the additions of an exchange. */
void afdep_load_begin(afdep_load_counts_t *load);
void afdep_load_expert(afdep_load_counts_t *load, int expert, uint64_t tokens);
void afdep_load_source(afdep_load_counts_t *load, int source, uint64_t tokens);
void afdep_load_end(afdep_load_counts_t *load);

/* Any thread. */
void afdep_load_read(const afdep_load_counts_t *load, afdep_load_t *out);

#endif
