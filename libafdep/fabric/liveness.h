/*
 * Whether the other ranks of this host live: each holds a lock that the kernel drops with its process.
 * What is exported here is so for libafdep-mpi only.
 */
#ifndef AFDEP_FABRIC_LIVENESS_H
#define AFDEP_FABRIC_LIVENESS_H

#include <afdep/afdep.h>

typedef struct afdep_liveness afdep_liveness_t;

/*
 * Collective over `group` (a fixed number of allgathers on every rank, failing or not). Peers on other hosts, and peers
 * that are threads of this process, always count as living.
 */
AFDEP_EXPORT afdep_status_t afdep_liveness_open(const afdep_group_t *group, afdep_liveness_t **liveness);

/* 1: lives (or cannot be told); 0: its process is gone. */
AFDEP_EXPORT int afdep_liveness_alive(afdep_liveness_t *liveness, int peer);

/* 1 when the peer is on this host and is not a thread of this process, so that alive() can tell. */
int afdep_liveness_tells(const afdep_liveness_t *liveness, int peer);

/* Local. Frees, and drops this rank's lock. */
AFDEP_EXPORT void afdep_liveness_close(afdep_liveness_t *liveness);

#endif
