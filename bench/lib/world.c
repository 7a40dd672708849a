/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a program's ranks come from: a launcher's processes over MPI, or threads of this process. Nothing is kept in
 * globals; whether MPI runs is asked of MPI.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/lib/world.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef AFDEP_HAVE_MPI
#include <afdep/mpi.h>
#include <mpi.h>

#include "mpi/before_init.h"
#endif

#include "bench/lib/why.h"

#define AFDEP_THREAD_STACK ((size_t)1 << 20) /* dozens of rank threads on a small machine; the default is 8 MiB */
#define AFDEP_CPUS_MAX 8192

/* ---- Launchers ------------------------------------------------------------------------------------------------- */

typedef struct afdep_launcher {
    const char *name; /* NULL: no launcher */
    int size;
    int pins;   /* it binds processes to processors unasked */
    int speaks; /* it gives MPI what MPI needs to find the other ranks */
} afdep_launcher_t;

static int variable_int(const char *name)
{
    const char *text = getenv(name);
    long value = text && text[0] && strspn(text, "0123456789") == strlen(text) ? strtol(text, NULL, 10) : 0;
    return value > 0 && value <= 1 << 24 ? (int)value : 0;
}

/*
 * The step's size before the job's: inside a batch script SLURM_NTASKS is set without anything having been launched, so
 * Slurm's counts mean something only beside PMIx's or PMI's own variables, or as a step of several tasks.
 */
static afdep_launcher_t find_launcher(void)
{
    int step = variable_int("SLURM_STEP_NUM_TASKS"), size;
    if ((size = variable_int("OMPI_COMM_WORLD_SIZE")) > 0)
        return (afdep_launcher_t){ "mpirun", size, 1, 1 };
    if (getenv("PMIX_RANK") && (size = step ? step : variable_int("SLURM_NTASKS")) > 0)
        return (afdep_launcher_t){ "srun", size, 0, 1 };
    if ((size = variable_int("PMI_SIZE")) > 0)
        return (afdep_launcher_t){ step ? "srun" : "mpiexec", size, step == 0, 1 };
    if (step > 1)
        return (afdep_launcher_t){ "srun", step, 0, 0 };
    return (afdep_launcher_t){ NULL, 1, 0, 1 };
}

/* What a process says before the ranks run. */
typedef struct afdep_claim {
    int verdict;
    uint64_t digest;
    char why[480];
} afdep_claim_t;

#ifdef AFDEP_HAVE_MPI

static int mpi_runs(void)
{
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized && !finalized;
}

static int launched_size(void)
{
    int size = 1;
    if (mpi_runs())
        MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
}

static int begin_mpi(const afdep_launcher_t *launcher, int *argc, char ***argv, int *rank, char *why, size_t why_size)
{
    int provided, size = 0;
    /* All calls on a group come from the thread that opened it. */
    afdep_mpi_before_init();
    if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        afdep_why(why, why_size, "%s started %d ranks, but MPI_Init_thread failed", launcher->name, launcher->size);
        return 0;
    }
    /* Errors come back as codes, so that a lost peer gets a sentence instead of MPI's own abort. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    if (size == launcher->size)
        return size;
    afdep_why(why, why_size, "%s started %d ranks, but MPI sees a world of %d: the launcher does not belong to the MPI "
              "that this program was built with", launcher->name, launcher->size, size);
    return 0;
}

#else

static int launched_size(void)
{
    return 1;
}

static int begin_mpi(const afdep_launcher_t *launcher, int *argc, char ***argv, int *rank, char *why, size_t why_size)
{
    (void)argc, (void)argv, (void)rank;
    afdep_why(why, why_size, "%s started %d ranks, but this build has no MPI: start one process, whose threads then "
              "are the ranks, or configure with MPI", launcher->name, launcher->size);
    return 0;
}

#endif

int afdep_world_begin(int *argc, char ***argv, int *rank, char *why, size_t why_size)
{
    afdep_launcher_t launcher = find_launcher();
    *rank = 0;
    if (!launcher.speaks) {
        *rank = variable_int("SLURM_PROCID");
        afdep_why(why, why_size, "srun started %d tasks without an MPI plug-in: use srun --mpi=pmix (or pmi2)",
                  launcher.size);
        return 0;
    }
    return launcher.size == 1 ? 1 : begin_mpi(&launcher, argc, argv, rank, why, why_size);
}

/* ---- Ranks as threads ------------------------------------------------------------------------------------------ */

/* Ranks wait here until all threads exist: a thread that cannot be made must not leave the others waiting for it. */
typedef struct afdep_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int state; /* 0: wait, 1: go, -1: give up */
} afdep_gate_t;

typedef struct afdep_rank_thread {
    pthread_t thread;
    afdep_gate_t *gate;
    afdep_world_t world;
    int (*rank_main)(afdep_world_t *world, void *argument);
    void *argument;
    int status;
} afdep_rank_thread_t;

static void open_gate(afdep_gate_t *gate, int state)
{
    pthread_mutex_lock(&gate->lock);
    gate->state = state;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static int pass_gate(afdep_gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    while (gate->state == 0)
        pthread_cond_wait(&gate->changed, &gate->lock);
    int go = gate->state > 0;
    pthread_mutex_unlock(&gate->lock);
    return go;
}

static void *thread_main(void *argument)
{
    afdep_rank_thread_t *self = argument;
    if (pass_gate(self->gate))
        self->status = self->rank_main(&self->world, self->argument);
    return NULL;
}

/* Undoes a launcher's pinning of the one process that now runs all ranks. The kernel keeps to the processors that this
   process may use at all. A binding that the user chose (taskset, numactl, srun) stays. */
static void unpin(void)
{
    afdep_launcher_t launcher = find_launcher();
    cpu_set_t *set = launcher.name && launcher.pins ? CPU_ALLOC(AFDEP_CPUS_MAX) : NULL;
    if (!set)
        return;
    size_t size = CPU_ALLOC_SIZE(AFDEP_CPUS_MAX);
    memset(set, 0xff, size);
    sched_setaffinity(0, size, set); /* on failure the ranks are slow, not wrong */
    CPU_FREE(set);
}

void afdep_world_pin(const afdep_world_t *world)
{
    size_t size = CPU_ALLOC_SIZE(AFDEP_CPUS_MAX);
    cpu_set_t *own = CPU_ALLOC(AFDEP_CPUS_MAX);
    if (own && sched_getaffinity(0, size, own) == 0 && CPU_COUNT_S(size, own) < world->size) {
        int left = world->rank % CPU_COUNT_S(size, own), cpu = 0;
        while (!CPU_ISSET_S(cpu, size, own) || left-- > 0)
            cpu++;
        CPU_ZERO_S(size, own);
        CPU_SET_S(cpu, size, own);
        sched_setaffinity(0, size, own); /* on failure the kernel goes on placing the rank */
    }
    CPU_FREE(own);
}

/* Starts the threads, or none: on failure those that exist have left again. */
static int start_threads(afdep_rank_thread_t *ranks, int size, afdep_gate_t *gate)
{
    pthread_attr_t attributes;
    int started = 0, failed = pthread_attr_init(&attributes);
    if (!failed) {
        failed = pthread_attr_setstacksize(&attributes, AFDEP_THREAD_STACK);
        while (!failed && started < size) {
            failed = pthread_create(&ranks[started].thread, &attributes, thread_main, &ranks[started]);
            started += !failed;
        }
        pthread_attr_destroy(&attributes);
    }
    open_gate(gate, failed ? -1 : 1);
    if (!failed)
        return 0;
    fprintf(stderr, "afdep: thread %d of %d could not be started: %s\n", started, size, strerror(failed));
    for (int i = 0; i < started; i++)
        pthread_join(ranks[i].thread, NULL);
    return -1;
}

static int join_threads(afdep_rank_thread_t *ranks, int size)
{
    int largest = 0;
    for (int i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        largest = i == 0 || ranks[i].status > largest ? ranks[i].status : largest;
    }
    return largest;
}

static int run_threads(int size, int timeout_ms, int (*rank_main)(afdep_world_t *world, void *argument), void *argument)
{
    int status = 1;
    afdep_gate_t gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    afdep_rank_thread_t *ranks = calloc((size_t)size, sizeof *ranks);
    afdep_group_t *groups = calloc((size_t)size, sizeof *groups);
    if (!ranks || !groups) {
        fprintf(stderr, "afdep: no memory for %d ranks as threads\n", size);
        goto free_arrays;
    }
    if (afdep_group_threads_create(size, timeout_ms, groups) != AFDEP_OK) {
        fprintf(stderr, "afdep: %s\n", afdep_last_error());
        goto free_arrays;
    }
    for (int i = 0; i < size; i++) {
        afdep_world_t world = { i, size, 1, groups[i], NULL };
        ranks[i] = (afdep_rank_thread_t){ .gate = &gate, .world = world, .rank_main = rank_main, .argument = argument };
    }
    unpin();
    if (start_threads(ranks, size, &gate) == 0)
        status = join_threads(ranks, size);
    for (int i = 0; i < size; i++)
        afdep_group_destroy(&groups[i]);
free_arrays:
    free(groups);
    free(ranks);
    pthread_cond_destroy(&gate.changed);
    pthread_mutex_destroy(&gate.lock);
    return status;
}

/* ---- Ranks as processes ---------------------------------------------------------------------------------------- */

#ifdef AFDEP_HAVE_MPI

#define AGREE_S 60 /* how long the slowest process may take to read its arguments */

/* All processes' claims, or 0 after a deadline: one of them is not coming. */
static int gather_claims(const afdep_claim_t *mine, afdep_claim_t *all)
{
    MPI_Request request;
    int done = 0;
    time_t deadline = time(NULL) + AGREE_S;
    if (MPI_Iallgather(mine, sizeof(*mine), MPI_BYTE, all, sizeof(*mine), MPI_BYTE, MPI_COMM_WORLD, &request) !=
        MPI_SUCCESS)
        return 0;
    while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done && time(NULL) < deadline)
        sched_yield();
    return done;
}

static int make_group(afdep_group_t *group)
{
    return afdep_group_mpi_create(MPI_COMM_WORLD, group) == AFDEP_OK ? 0 : -1;
}

static int run_process(int (*rank_main)(afdep_world_t *world, void *argument), void *argument)
{
    afdep_world_t world = { 0, 0, 0, AFDEP_GROUP_INIT, NULL };
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    if (afdep_group_mpi_create(MPI_COMM_WORLD, &world.group) != AFDEP_OK) {
        fprintf(stderr, "afdep: rank %d: %s\n", world.rank, afdep_last_error());
        afdep_world_abort(&world, 1);
    }
    int status = rank_main(&world, argument);
    afdep_group_destroy(&world.group);
    return status;
}

#else

static int run_process(int (*rank_main)(afdep_world_t *world, void *argument), void *argument)
{
    (void)rank_main, (void)argument;
    return 1; /* unreachable: without MPI the launched size is 1 */
}

static int make_group(afdep_group_t *group)
{
    (void)group;
    return -1; /* unreachable likewise */
}

static int gather_claims(const afdep_claim_t *mine, afdep_claim_t *all)
{
    *all = *mine;
    return 1;
}

#endif

/* Of the arguments behind the program's name. */
static uint64_t digest_arguments(int argc, char **argv)
{
    uint64_t digest = 0xCBF29CE484222325u;
    for (int i = 1; i < argc; i++)
        for (const char *c = argv[i];; c++) {
            digest = (digest ^ (unsigned char)*c) * 0x100000001B3u;
            if (!*c)
                break;
        }
    return digest;
}

int afdep_world_agree(int argc, char **argv, int verdict, char *why, size_t why_size)
{
    int size = launched_size();
    if (size == 1)
        return verdict;
    afdep_claim_t mine = { verdict, digest_arguments(argc, argv), "" };
    afdep_claim_t *all = calloc((size_t)size, sizeof(*all));
    if (verdict < 0)
        snprintf(mine.why, sizeof(mine.why), "%s", why);
    if (!all || !gather_claims(&mine, all)) {
        fprintf(stderr, "afdep: not all of the %d processes came to compare their arguments\n", size);
        afdep_world_abort(NULL, 1);
    }
    for (int r = 0; r < size && verdict >= 0; r++) {
        all[r].why[sizeof(all[r].why) - 1] = '\0';
        if (all[r].verdict < 0)
            afdep_why(why, why_size, "rank %d: %s", r, all[r].why);
        else if (all[r].digest != all[0].digest)
            afdep_why(why, why_size, "rank %d was started with other arguments than rank 0", r);
        else
            continue;
        verdict = -1;
    }
    free(all);
    return verdict;
}

int afdep_world_group(const afdep_world_t *world, afdep_group_t *group)
{
    if (!world->threads)
        return make_group(group);
    *group = world->group;
    group->destroy = NULL; /* the world's own */
    return 0;
}

int afdep_world_run(int size, int timeout_ms, int (*rank_main)(afdep_world_t *world, void *argument), void *argument)
{
    return launched_size() > 1 ? run_process(rank_main, argument) : run_threads(size, timeout_ms, rank_main, argument);
}

/* ---- Collectives and ends -------------------------------------------------------------------------------------- */

/* One rank's failure is every rank's end; what it was is said once, by whoever noticed. */
static void require(afdep_world_t *world, afdep_status_t status)
{
    if (status == AFDEP_OK)
        return;
    fprintf(stderr, "afdep: rank %d: %s\n", world->rank, afdep_last_error());
    afdep_world_abort(world, 1);
}

void afdep_world_allgather(afdep_world_t *world, const void *send, void *recv, size_t bytes)
{
    require(world, world->group.allgather(world->group.context, send, recv, bytes));
}

void afdep_world_barrier(afdep_world_t *world)
{
    require(world, world->group.barrier(world->group.context));
}

void afdep_world_abort(afdep_world_t *world, int status)
{
    (void)world;
    fflush(stdout);
    fflush(stderr);
#ifdef AFDEP_HAVE_MPI
    /* After a death Open MPI hangs in MPI_Finalize and on plain exit. */
    if (mpi_runs())
        MPI_Abort(MPI_COMM_WORLD, status);
#endif
    _exit(status);
}

void afdep_world_end(void)
{
#ifdef AFDEP_HAVE_MPI
    if (mpi_runs())
        MPI_Finalize();
#endif
}
