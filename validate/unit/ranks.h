/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for tests, as threads of the test or as forked processes. A rank returns 0, or the line that was not as it
 * should be.
 */
#ifndef AFDEP_VALIDATE_UNIT_RANKS_H
#define AFDEP_VALIDATE_UNIT_RANKS_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <afdep/afdep.h>

#define RANKS_MOST 8
#define RANKS_RECORD_MOST 4096
#define RANKS_WAIT_S 30

typedef int (*rank_body_t)(const afdep_group_t *group, void *context);

/* ---- Threads ------------------------------------------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    afdep_group_t group;
    rank_body_t body;
    void *context;
    int result;
} rank_thread_t;

static inline void *rank_thread_main(void *argument)
{
    rank_thread_t *t = argument;
    t->result = t->body(&t->group, t->context);
    return NULL;
}

static inline int run_thread_ranks(int size, rank_body_t body, void *context)
{
    rank_thread_t threads[RANKS_MOST];
    afdep_group_t groups[RANKS_MOST];
    int result = 0;

    if (afdep_group_threads_create(size, RANKS_WAIT_S * 1000, groups) != AFDEP_OK)
        return -1;
    for (int r = 0; r < size; r++) {
        threads[r] = (rank_thread_t){ .group = groups[r], .body = body, .context = context };
        if (pthread_create(&threads[r].thread, NULL, rank_thread_main, &threads[r]) != 0)
            abort();
    }
    for (int r = 0; r < size; r++) {
        pthread_join(threads[r].thread, NULL);
        if (result == 0)
            result = threads[r].result;
    }
    for (int r = 0; r < size; r++)
        afdep_group_destroy(&groups[r]);
    return result;
}

/* ---- Processes ----------------------------------------------------------------------------------------------- */

/* A bootstrap over memory that the forked ranks inherit. */
typedef struct fork_board {
    int size;
    atomic_uint arrived; /* ranks that have entered, over all collectives */
    unsigned char records[2][RANKS_MOST][RANKS_RECORD_MOST]; /* by parity: nobody is two collectives ahead */
} fork_board_t;

typedef struct fork_rank {
    fork_board_t *board;
    int rank;
    unsigned turn;
} fork_rank_t;

static inline afdep_status_t fork_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    fork_rank_t *me = context;
    fork_board_t *board = me->board;
    time_t deadline = time(NULL) + RANKS_WAIT_S;
    unsigned parity = me->turn % 2;

    if (bytes > RANKS_RECORD_MOST)
        return AFDEP_ERR_BOOTSTRAP;
    memcpy(board->records[parity][me->rank], send, bytes);
    atomic_fetch_add(&board->arrived, 1);
    me->turn++;
    while (atomic_load(&board->arrived) < me->turn * (unsigned)board->size) {
        if (time(NULL) > deadline)
            return AFDEP_ERR_BOOTSTRAP;
        sched_yield();
    }
    for (int r = 0; r < board->size; r++)
        memcpy((unsigned char *)recv + (size_t)r * bytes, board->records[parity][r], bytes);
    return AFDEP_OK;
}

static inline afdep_status_t fork_barrier(void *context)
{
    unsigned char mine = 0, all[RANKS_MOST];
    return fork_allgather(context, &mine, all, 1);
}

static inline int fork_rank_main(fork_board_t *board, int rank, rank_body_t body, void *context)
{
    fork_rank_t me = { board, rank, 0 };
    afdep_group_t group = AFDEP_GROUP_INIT;

    group.rank = rank;
    group.size = board->size;
    group.context = &me;
    group.allgather = fork_allgather;
    group.barrier = fork_barrier;
    return body(&group, context) == 0 ? 0 : 1;
}

/* `killed` is the rank that is expected to die by SIGKILL, -1 for none. Returns 0 when all ended as they should. */
static inline int run_fork_ranks(int size, rank_body_t body, void *context, int killed)
{
    fork_board_t *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[RANKS_MOST];
    int result = 0;

    if (board == MAP_FAILED)
        return -1;
    board->size = size;
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank outlives its test */
            exit(fork_rank_main(board, r, body, context));
        }
    }
    for (int r = 0; r < size; r++) {
        int status = 0;

        if (pids[r] < 0 || waitpid(pids[r], &status, 0) != pids[r])
            result = -1;
        else if (r == killed ? !WIFSIGNALED(status) : !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            result = r + 1;
    }
    munmap(board, sizeof(*board));
    return result;
}

#endif
