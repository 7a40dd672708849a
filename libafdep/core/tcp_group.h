/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one rank's TCP group, and what its files do for each other: group_tcp.c makes it from settings,
 * tcp_root.c and tcp_peer.c meet (rank 0 and the others), tcp_gather.c runs the collectives.
 *
 * A group is a star: every rank has one link, to rank 0. Rank 0 decides when the group has failed and whose fault it
 * is, and tells the others in a notice, so that all name the same rank. A rank whose own deadline passes first asks
 * rank 0 for that notice and waits for it a little longer.
 */
#ifndef AFDEP_CORE_TCP_GROUP_H
#define AFDEP_CORE_TCP_GROUP_H

#include <poll.h>

#include <afdep/group.h>

#include "core/rank_set.h"
#include "core/tcp_link.h"
#include "core/tcp_socket.h"

/* How long a rank whose deadline has passed waits for rank 0's word about who is missing. */
#define AFDEP_TCP_GRACE_MS 1000

/* Connections that rank 0 deals with at once while they have not proved anything, and how long each may take. */
#define AFDEP_TCP_MAX_GUESTS 64
#define AFDEP_TCP_GUEST_MS 3000

typedef enum afdep_tcp_reason {
    AFDEP_TCP_NO_FAULT = 0,
    AFDEP_TCP_MISSED = 1, /* did not come before the deadline */
    AFDEP_TCP_LEFT = 2,   /* its connection closed */
    AFDEP_TCP_BAD = 3     /* sent what it may not send */
} afdep_tcp_reason_t;

typedef struct afdep_tcp_group {
    int rank, size, timeout_ms;
    afdep_tcp_address_t address;
    uint64_t operation; /* the collective under way or last done; 0 is the meeting */
    bool broken;
    char why[512];      /* the sentence of what broke the group */

    /* The fault that ends the group, in the form that a notice carries: reason, milliseconds, set of ranks. */
    uint8_t *fault;
    size_t fault_bytes;

    afdep_tcp_link_t *links; /* rank 0: [size] by rank, its own unused; elsewhere [1], to rank 0 */
    uint8_t *have;           /* rank 0: set of ranks whose part of the operation is done */
    struct pollfd *polls;    /* rank 0: [size + AFDEP_TCP_MAX_GUESTS] */
    int *poll_ranks;         /* rank 0: whose each poll is */
} afdep_tcp_group_t;

/* Rank 0's side of the meeting: listens, admits ranks 1 .. size-1, and tells them when all are there. */
afdep_status_t afdep_tcp_meet_root(afdep_tcp_group_t *group, const uint8_t job_key[AFDEP_TCP_KEY_BYTES]);

/* The other ranks' side: connects, proves, checks rank 0's proof, and waits until all are there. */
afdep_status_t afdep_tcp_meet_peer(afdep_tcp_group_t *group, const uint8_t job_key[AFDEP_TCP_KEY_BYTES]);

/* A collective after the meeting. */
afdep_status_t afdep_tcp_allgather(afdep_tcp_group_t *group, const void *send, void *recv, size_t bytes);

/* Rank 0: sends every rank the result of the current operation. */
afdep_status_t afdep_tcp_scatter(afdep_tcp_group_t *group, const void *payload, uint64_t length, int64_t deadline);

/* A rank: sends what its link has begun, if anything, and waits for the result of the current operation. */
afdep_status_t afdep_tcp_await_result(afdep_tcp_group_t *group, void *payload, uint64_t length, int64_t deadline);

/* The fault so far; adds `rank` to it. Only ranks with the same reason share a fault: the first reason stands. */
afdep_tcp_reason_t afdep_tcp_fault(const afdep_tcp_group_t *group);
void afdep_tcp_fault_add(afdep_tcp_group_t *group, afdep_tcp_reason_t reason, int rank, int waited_ms);

/* Rank 0: adds every rank that is not in `have` as missed. */
void afdep_tcp_fault_missed(afdep_tcp_group_t *group, int waited_ms);

/* Ends the group with its fault: writes the sentence (and `more` behind it, unless NULL) and, on rank 0, tells the
   ranks that are not at fault. Returns BOOTSTRAP. */
afdep_status_t afdep_tcp_break(afdep_tcp_group_t *group, const char *more);

/* Rank 0: reads what `rank` has sent: its part of the current operation where `data` (DONE once all of it is there),
   or its call for a notice, which ends the operation with a fault and returns AGAIN. */
afdep_tcp_step_t afdep_tcp_hear(afdep_tcp_group_t *group, int rank, bool data, void *payload, uint64_t length);

#endif
