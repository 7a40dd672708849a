/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads: which launchers' variables mean that, that ranks meet, that pinning by mpirun is undone and pinning
 * by the user is not, and that a program whose ranks lose each other ends. MPI is never initialized here.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/world.h"

enum { RANKS = 5 };

static const char *const variables[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
                                         "PMI_SIZE", "SLURM_PROCID" };

static int no_launcher(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
    return 0;
}

/* ---- Launchers ------------------------------------------------------------------------------------------------- */

static int begin(const char *const *settings, int *rank, char *why, size_t why_size)
{
    no_launcher(NULL);
    for (; settings[0]; settings += 2)
        setenv(settings[0], settings[1], 1);
    why[0] = 0;
    int size = afdep_world_begin(NULL, NULL, rank, why, why_size);
    no_launcher(NULL);
    return size;
}

#define BEGIN(...) begin((const char *const[]){ __VA_ARGS__, NULL, NULL }, &rank, why, sizeof why)

static void knows_who_launched(void **state)
{
    (void)state;
    int rank = -1;
    char why[512];
    assert_int_equal(afdep_world_begin(NULL, NULL, &rank, why, sizeof why), 1);
    assert_int_equal(rank, 0);
    assert_int_equal(BEGIN("OMPI_COMM_WORLD_SIZE", "1"), 1);
    assert_int_equal(BEGIN("OMPI_COMM_WORLD_SIZE", ""), 1);
    assert_int_equal(BEGIN("OMPI_COMM_WORLD_SIZE", "many"), 1);
    assert_int_equal(BEGIN("PMI_SIZE", "1"), 1);
    assert_int_equal(BEGIN("PMIX_RANK", "0", "SLURM_NTASKS", "8", "SLURM_STEP_NUM_TASKS", "1"), 1);
    /* Inside a batch script Slurm's count says what was asked for, not what was launched. */
    assert_int_equal(BEGIN("SLURM_NTASKS", "8"), 1);
    assert_int_equal(BEGIN("SLURM_NTASKS", "8", "SLURM_PROCID", "0"), 1);
    /* Many tasks that do not know of each other would each run the whole world. */
    assert_int_equal(BEGIN("SLURM_STEP_NUM_TASKS", "8", "SLURM_PROCID", "3"), 0);
    assert_int_equal(rank, 3);
    assert_non_null(strstr(why, "srun started 8 tasks"));
#ifndef AFDEP_HAVE_MPI
    assert_int_equal(BEGIN("OMPI_COMM_WORLD_SIZE", "3"), 0);
    assert_non_null(strstr(why, "mpirun started 3 ranks"));
    assert_int_equal(BEGIN("PMI_SIZE", "3"), 0);
    assert_non_null(strstr(why, "mpiexec started 3 ranks"));
    assert_int_equal(BEGIN("PMIX_RANK", "0", "SLURM_NTASKS", "4"), 0);
    assert_non_null(strstr(why, "srun started 4 ranks"));
#endif
}

/* ---- Ranks ----------------------------------------------------------------------------------------------------- */

static int meet(afdep_world_t *world, void *argument)
{
    int seen[RANKS], own = 100 + world->rank;
    size_t stack = 0;
    pthread_attr_t attributes;
    for (int round = 0; round < 50; round++) {
        own += 1000;
        afdep_world_allgather(world, &own, seen, sizeof own);
        for (int r = 0; r < RANKS; r++)
            if (seen[r] != own - world->rank + r)
                return 99;
        afdep_world_barrier(world);
    }
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstacksize(&attributes, &stack);
        pthread_attr_destroy(&attributes);
    }
    if (world->size != RANKS || !world->threads || world->group.rank != world->rank || stack > 2u << 20)
        return 98;
    return ((int *)argument)[world->rank];
}

static void ranks_meet(void **state)
{
    (void)state;
    int statuses[RANKS] = { 0 };
    assert_int_equal(afdep_world_run(RANKS, 20000, meet, statuses), 0);
    statuses[3] = 7;
    statuses[1] = 2;
    assert_int_equal(afdep_world_run(RANKS, 20000, meet, statuses), 7);
    for (int r = 0; r < RANKS; r++)
        statuses[r] = -5 - r;
    assert_int_equal(afdep_world_run(RANKS, 20000, meet, statuses), -5);
}

static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

static int report_processors(afdep_world_t *world, void *argument)
{
    ((int *)argument)[world->rank] = processors();
    return 0;
}

/* Pins this (child) process to one processor, sets a launcher's variable, and returns how many its ranks have. */
static int processors_of_ranks(const char *variable, const char *value)
{
    int seen[2] = { 0, 0 };
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return 100;
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        return 100;
    if (variable)
        setenv(variable, value, 1);
    if (afdep_world_run(2, 20000, report_processors, seen) != 0 || seen[0] != seen[1])
        return 101;
    return seen[0];
}

static int exit_status(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define IN_CHILD(child, expression)                                                                                   \
    do {                                                                                                              \
        fflush(NULL);                                                                                                 \
        (child) = fork();                                                                                             \
        if ((child) == 0)                                                                                             \
            _exit(expression);                                                                                        \
    } while (0)

static void undoes_the_launchers_pinning_only(void **state)
{
    (void)state;
    pid_t child;
    int all = processors();
    if (all < 2) {
        print_message("skipped: one processor only, pinning cannot be seen\n");
        skip();
    }
    IN_CHILD(child, processors_of_ranks("OMPI_COMM_WORLD_SIZE", "1") >= all ? 0 : 1);
    assert_int_equal(exit_status(child), 0);
    IN_CHILD(child, processors_of_ranks(NULL, NULL));
    assert_int_equal(exit_status(child), 1);
    IN_CHILD(child, processors_of_ranks("SLURM_STEP_NUM_TASKS", "1"));
    assert_int_equal(exit_status(child), 1);
}

static int pin_and_tell(afdep_world_t *world, void *argument)
{
    int *cpus = argument;
    afdep_world_pin(world);
    cpus[world->rank] = processors() == 1 ? sched_getcpu() : -1;
    return 0;
}

static int pinned_apart(int ranks)
{
    int cpus[1024] = { 0 };
    if (afdep_world_run(ranks, 20000, pin_and_tell, cpus) != 0)
        return 100;
    for (int r = 0; r < ranks; r++)
        if (cpus[r] < 0 || (cpus[r] == cpus[0]) != (r % (ranks - 1) == 0))
            return 1;
    return 0;
}

/* Ranks outnumber processors by one, so that the last shares the first one's processor and no other does. */
static void pins_round_robin_where_processors_are_short(void **state)
{
    (void)state;
    pid_t child;
    int all = processors();
    if (all < 2 || all > 1000) {
        print_message("skipped: %d processors\n", all);
        skip();
    }
    IN_CHILD(child, pinned_apart(all + 1));
    assert_int_equal(exit_status(child), 0);
    IN_CHILD(child, pinned_apart(all)); /* enough for everybody: nobody is bound */
    assert_int_equal(exit_status(child), 1);
}

/* ---- Losing each other ----------------------------------------------------------------------------------------- */

static int stay_away(afdep_world_t *world, void *argument)
{
    (void)argument;
    if (world->rank == 0)
        return 0;
    afdep_world_barrier(world);
    return 0;
}

static int give_up(afdep_world_t *world, void *argument)
{
    (void)argument;
    if (world->rank == 1)
        afdep_world_abort(world, 5);
    afdep_world_barrier(world);
    return 0;
}

/* What a child that runs `rank_main` says on standard error goes to `text`. */
static int run_in_child(int (*rank_main)(afdep_world_t *, void *), int timeout_ms, char *text, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        _exit(afdep_world_run(3, timeout_ms, rank_main, NULL));
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used < size - 1; used += got > 0 ? (size_t)got : 0)
        got = read(ends[0], text + used, size - 1 - used);
    text[used] = 0;
    close(ends[0]);
    return exit_status(child);
}

static void ends_when_ranks_are_lost(void **state)
{
    (void)state;
    char text[2048];
    assert_int_equal(run_in_child(stay_away, 200, text, sizeof text), 1);
    assert_non_null(strstr(text, "afdep: rank "));
    assert_int_equal(run_in_child(give_up, 20000, text, sizeof text), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(knows_who_launched, no_launcher), cmocka_unit_test_setup(ranks_meet, no_launcher),
        cmocka_unit_test_setup(undoes_the_launchers_pinning_only, no_launcher),
        cmocka_unit_test_setup(pins_round_robin_where_processors_are_short, no_launcher),
        cmocka_unit_test_setup(ends_when_ranks_are_lost, no_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
