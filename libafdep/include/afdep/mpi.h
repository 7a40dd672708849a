/*
 * afdep/mpi.h - a group over an MPI communicator (link -lafdep-mpi; libafdep itself knows no MPI).
 */
#ifndef AFDEP_MPI_H
#define AFDEP_MPI_H

#include <mpi.h>

#include <afdep/group.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Collective over `comm`. Makes this rank's group from a duplicate of `comm` (freed by afdep_group_destroy(), before
 * MPI_Finalize). MPI must be initialized; calls on the group's buffers must come from the thread level that MPI was
 * initialized with. The group brings the fabric "mpi" (MPI-3 one-sided windows).
 * Errors: ARGUMENT, MEMORY, SYSTEM (MPI's own error text; what the duplication itself finds goes to the communicator's
 * error handler, which by default ends the job).
 *
 * MPI has no completion that does not wait for a rank that is gone. After a death the survivors' calls return
 * AFDEP_ERR_PEER where they were waiting for a word, but one that had a row under way to the dead rank may not return:
 * let the first that returns end the job by MPI_Abort, as the programs of this project do. Ranks on other hosts count
 * as living until the launcher ends the job. A group whose buffer was closed after an error is not used again.
 */
AFDEP_EXPORT afdep_status_t afdep_group_mpi_create(MPI_Comm comm, afdep_group_t *group);

#ifdef __cplusplus
}
#endif
#endif
