/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the MPI group and the MPI fabric share: the communicator, errors with MPI's own text, and waiting that gives the
 * processor away.
 */
#ifndef AFDEP_MPI_GROUP_MPI_H
#define AFDEP_MPI_GROUP_MPI_H

#include <mpi.h>

#include <afdep/group.h>

#include "fabric/fabric.h"

/* The group's context. */
typedef struct afdep_group_mpi {
    MPI_Comm comm; /* a duplicate of the caller's; returns its errors */
    int rank, size;
    int broken;    /* a collective did not complete; the communicator must not be used, nor freed, any more */
} afdep_group_mpi_t;

extern const afdep_fabric_provider_t afdep_fabric_mpi;

/* The MPI group behind `group`, or NULL when it is of another maker. */
afdep_group_mpi_t *afdep_group_mpi_of(const afdep_group_t *group);

/* AFDEP_OK for MPI_SUCCESS, else AFDEP_ERR_SYSTEM with "<call>: <MPI's text>". */
afdep_status_t afdep_mpi_check(int code, const char *call);

/* Waits for `request`, letting others run. Errors: SYSTEM, BOOTSTRAP when timeout_ms passed (the request stays active:
   its buffers must outlive it). */
afdep_status_t afdep_mpi_wait(MPI_Request *request, int timeout_ms, const char *call);

#endif
