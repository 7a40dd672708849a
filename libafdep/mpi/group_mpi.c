/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group over an MPI communicator. Collectives are the non-blocking ones, tested between yields: blocking ones may
 * spin, and 24 ranks that spin on 2 processors keep the last one from coming.
 */
#include <afdep/mpi.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/group.h"
#include "fabric/pause.h"
#include "mpi/group_mpi.h"

afdep_status_t afdep_mpi_check(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return AFDEP_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", code);
    return afdep_fail(AFDEP_ERR_SYSTEM, "%s: %s", call, text);
}

afdep_status_t afdep_mpi_wait(MPI_Request *request, int timeout_ms, const char *call)
{
    uint64_t deadline = afdep_monotonic_ns() + (uint64_t)timeout_ms * 1000000u;

    for (unsigned rounds = 0;; rounds++) {
        int done = 0;
        afdep_status_t status = afdep_mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), call);

        if (status != AFDEP_OK || done)
            return status;
        if (afdep_monotonic_ns() > deadline)
            return afdep_fail(AFDEP_ERR_BOOTSTRAP, "%s: not every rank of the group came within %d ms", call,
                              timeout_ms);
        afdep_idle(rounds, 0);
    }
}

static afdep_status_t refuse_broken(void)
{
    return afdep_fail(AFDEP_ERR_BOOTSTRAP, "an earlier collective of this MPI group did not complete");
}

/* Through a copy of its own, which stays allocated when MPI may still write to it. */
static afdep_status_t gather(afdep_group_mpi_t *g, const void *send, void *recv, size_t bytes)
{
    size_t all = bytes * (size_t)g->size;
    unsigned char *copy = malloc(bytes + all + 1);
    MPI_Request request;
    afdep_status_t status;

    if (!copy) {
        g->broken = 1; /* the others wait for this rank's part, and would take its next one for it */
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory to gather %zu bytes of %d ranks", bytes, g->size);
    }
    memcpy(copy, send, bytes);
    status = afdep_mpi_check(MPI_Iallgather(copy, (int)bytes, MPI_BYTE, copy + bytes, (int)bytes, MPI_BYTE, g->comm,
                                            &request), "MPI_Iallgather");
    if (status == AFDEP_OK)
        status = afdep_mpi_wait(&request, AFDEP_GROUP_TIMEOUT_MS, "MPI_Iallgather");
    if (status != AFDEP_OK) {
        g->broken = 1;
        return status;
    }
    memcpy(recv, copy + bytes, all);
    free(copy);
    return AFDEP_OK;
}

static afdep_status_t mpi_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    afdep_group_mpi_t *g = context;

    if (g->broken)
        return refuse_broken();
    if (bytes > INT_MAX)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "cannot gather %zu bytes of a rank, %d at most", bytes, INT_MAX);
    return bytes == 0 ? AFDEP_OK : gather(g, send, recv, bytes);
}

static afdep_status_t mpi_barrier(void *context)
{
    afdep_group_mpi_t *g = context;
    MPI_Request request;
    afdep_status_t status;

    if (g->broken)
        return refuse_broken();
    status = afdep_mpi_check(MPI_Ibarrier(g->comm, &request), "MPI_Ibarrier");
    if (status == AFDEP_OK)
        status = afdep_mpi_wait(&request, AFDEP_GROUP_TIMEOUT_MS, "MPI_Ibarrier");
    if (status != AFDEP_OK)
        g->broken = 1;
    return status;
}

static void mpi_destroy(void *context)
{
    afdep_group_mpi_t *g = context;
    int finalized = 0;

    MPI_Finalized(&finalized);
    /* Freeing is collective; on a broken group it would wait for a rank that does not come. */
    if (!finalized && !g->broken)
        MPI_Comm_free(&g->comm);
    free(g);
}

afdep_group_mpi_t *afdep_group_mpi_of(const afdep_group_t *group)
{
    return group->allgather == mpi_allgather ? group->context : NULL;
}

static afdep_status_t duplicate(MPI_Comm comm, afdep_group_mpi_t *g)
{
    afdep_status_t status = afdep_mpi_check(MPI_Comm_dup(comm, &g->comm), "MPI_Comm_dup");

    if (status != AFDEP_OK)
        return status;
    MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(g->comm, &g->rank);
    MPI_Comm_size(g->comm, &g->size);
    return AFDEP_OK;
}

/* A rank without memory must not leave the others in the duplication. */
static afdep_status_t agree_memory(MPI_Comm comm, int mine)
{
    int all = 0;
    afdep_status_t status = afdep_mpi_check(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");

    if (status == AFDEP_OK && !all)
        status = afdep_fail(AFDEP_ERR_MEMORY, "no memory for an MPI group%s", mine ? " on another rank" : "");
    return status;
}

afdep_status_t afdep_group_mpi_create(MPI_Comm comm, afdep_group_t *group)
{
    int initialized = 0, finalized = 0;
    afdep_group_mpi_t *g;
    afdep_status_t status;

    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "MPI is not initialized, or finalized already");
    if (comm == MPI_COMM_NULL || !group)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "afdep_group_mpi_create needs a communicator and a group to fill in");
    g = calloc(1, sizeof(*g));
    if ((status = agree_memory(comm, g != NULL)) == AFDEP_OK)
        status = duplicate(comm, g);
    if (status != AFDEP_OK) {
        free(g);
        return status;
    }
    *group = (afdep_group_t){
        .struct_size = sizeof(*group),
        .rank = g->rank,
        .size = g->size,
        .context = g,
        .allgather = mpi_allgather,
        .barrier = mpi_barrier,
        .destroy = mpi_destroy,
        .fabrics = &afdep_fabric_mpi,
    };
    return AFDEP_OK;
}
