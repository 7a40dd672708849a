/*
 * How a program's ranks run: one rank per process under mpirun or srun, or all ranks as threads of this process.
 */
#ifndef AFDEP_BENCH_WORLD_H
#define AFDEP_BENCH_WORLD_H

#include <stddef.h>

#include <afdep/afdep.h>

typedef struct afdep_world {
    int rank, size;
    int threads;         /* 1: the ranks are threads of this process */
    afdep_group_t group; /* this rank's */
    void *shared;        /* internal */
} afdep_world_t;

/*
 * Looks at the launcher's variables (Open MPI's, PMIx's, Slurm's and PMI's) and initializes MPI only when one is there
 * and says more than one rank. Returns the launched world's size, 1 without a launcher; `*rank` is this process's rank.
 * 0: it failed (one line in `why`).
 */
int afdep_world_begin(int *argc, char ***argv, int *rank, char *why, size_t why_size);

/*
 * Collective over the launched processes, before anything else is: whether all of them go on, and were started alike.
 * `verdict` is this process's: 0 go on, 1 it was asked for help, -1 refused with a line in `why`. Returns the world's:
 * -1 when one refused or was started with other arguments (`why` then says which rank and what), else the largest.
 */
int afdep_world_agree(int argc, char **argv, int verdict, char *why, size_t why_size);

/*
 * Runs `rank_main` for every rank of a world of `size`: once in this process under a launcher of `size` ranks; as
 * `size` threads when launched as one (affinity reset to all processors first, since mpirun pins). Returns the largest
 * status of any local rank. `size` must be 1-launched or equal to the launched size (the caller has checked).
 */
int afdep_world_run(int size, int timeout_ms, int (*rank_main)(afdep_world_t *world, void *argument), void *argument);

/*
 * Local. Where the world's ranks outnumber the processors that this rank may use, binds it to one of them, round robin
 * by rank: ranks that wait by yielding all look busy to the kernel, which may then leave two that do the work on one
 * processor for a whole run. Elsewhere, or where the system refuses, nothing changes.
 */
void afdep_world_pin(const afdep_world_t *world);

/* Collective. A further group of the same ranks, for buffers that may end badly: under MPI a buffer that was closed
   after an error takes its group along. Threads get the world's own. Freed by afdep_group_destroy(). 0, or -1. */
int afdep_world_group(const afdep_world_t *world, afdep_group_t *group);

/* Collective over the world's group; what goes wrong here ends the program (afdep_world_abort). */
void afdep_world_allgather(afdep_world_t *world, const void *send, void *recv, size_t bytes);
void afdep_world_barrier(afdep_world_t *world);

/* Ends the whole job at once with exit status `status` (MPI_Abort under a launcher, _exit otherwise): used when a peer
   is lost, after the record was saved. Does not return. */
void afdep_world_abort(afdep_world_t *world, int status);

/* Finalizes MPI if it was initialized. */
void afdep_world_end(void);

#endif
