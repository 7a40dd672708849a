/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sim fabric: a network in one process where nothing lands until somebody says so. Every lane (sender, target, lane
 * number) is a queue in order; which lane's head lands next is the scheduler's choice. That is all a fabric promises
 * and nothing more, so a protocol that survives every choice survives every network.
 */
#ifndef AFDEP_FABRIC_SIM_H
#define AFDEP_FABRIC_SIM_H

#include "fabric/fabric.h"

typedef struct afdep_sim afdep_sim_t;

/* What waits at the head of a lane, or has just landed. */
typedef struct afdep_sim_message {
    int sender, target, lane;
    int is_signal;
    uint64_t offset; /* in the target's segment */
    uint32_t bytes;  /* of a put */
    uint64_t value;  /* of a signal */
    const void *data; /* of a put */
} afdep_sim_message_t;

/* Local. A network of `ranks` ranks with `lanes` lanes each and segments of bytes[rank] bytes, zero-filled. */
afdep_status_t afdep_sim_create(int ranks, int lanes, const uint64_t *bytes, afdep_sim_t **sim);
void afdep_sim_destroy(afdep_sim_t *sim);

/* Forgets all messages and counts, zero-fills all segments, revives the dead. */
void afdep_sim_reset(afdep_sim_t *sim);

/* The fabric of one rank. It belongs to the network. */
afdep_fabric_t *afdep_sim_fabric(afdep_sim_t *sim, int rank);

/* Lanes that have something to land, and what stands at the head of the i-th of them. */
int afdep_sim_pending(const afdep_sim_t *sim);
void afdep_sim_head(const afdep_sim_t *sim, int i, afdep_sim_message_t *message);

/* Lands the head of the i-th pending lane and says what it was; `data` is valid until the next put. */
void afdep_sim_land(afdep_sim_t *sim, int i, afdep_sim_message_t *message);

/* Drops the head of the i-th pending lane instead (for faults). */
void afdep_sim_drop(afdep_sim_t *sim, int i);

/* From now on alive() says 0 for the rank. */
void afdep_sim_kill(afdep_sim_t *sim, int rank);

/* From now on a word that rides on a row lands before it: a missing release. For negative controls. */
void afdep_sim_unorder(afdep_sim_t *sim, int unordered);

/* Virtual time. */
void afdep_sim_advance(afdep_sim_t *sim, uint64_t ns);

#endif
