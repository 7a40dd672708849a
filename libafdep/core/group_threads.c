/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The group of threads of one process: one shared allocation, a mutex and a condition.
 *
 * A collective is a generation. Every rank copies its contribution into the generation's stage, the last one opens the
 * gate, and every rank copies the whole stage out. There are two stages, by generation parity: stage g is written again
 * only in generation g+2, which no rank enters before all have entered g+1, and a rank enters g+1 only after it has
 * copied g out. So no rank ever reads memory of another rank's caller, which may have timed out and gone.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <afdep/group.h>

#include "core/error.h"
#include "core/group.h"
#include "core/rank_set.h"

typedef struct afdep_threads_stage {
    unsigned char *bytes; /* [size][contribution] */
    size_t room;
} afdep_threads_stage_t;

typedef struct afdep_threads_member {
    struct afdep_threads_shared *shared;
    int rank;
    bool present; /* has entered the collective of the current generation */
    bool gone;    /* its group was destroyed */
} afdep_threads_member_t;

typedef struct afdep_threads_shared {
    pthread_mutex_t lock;
    pthread_cond_t turn; /* the generation ended, or the group broke */
    int size;
    int timeout_ms;
    int arrived;
    int left;            /* members not yet destroyed */
    uint64_t generation;
    size_t bytes;        /* each rank's contribution to this generation, as its first rank said */
    int first;           /* that rank */
    bool broken;
    char why[AFDEP_RANK_TEXT_BYTES + 128];
    afdep_threads_stage_t stage[2];
    afdep_threads_member_t members[];
} afdep_threads_shared_t;

/* Ends the group for everybody, with the lock held: those who wait and those who come later get the same sentence. */
static void break_group(afdep_threads_shared_t *shared)
{
    shared->broken = true;
    pthread_cond_broadcast(&shared->turn);
}

/* Names the ranks that destroyed their group, or those that have not come. The set's room is behind the members. */
static const char *name_ranks(afdep_threads_shared_t *shared, bool destroyed, char text[AFDEP_RANK_TEXT_BYTES])
{
    uint8_t *set = (uint8_t *)(shared->members + shared->size);
    memset(set, 0, afdep_rank_set_bytes(shared->size));
    for (int rank = 0; rank < shared->size; rank++) {
        const afdep_threads_member_t *member = &shared->members[rank];
        if (destroyed ? member->gone : !member->present)
            afdep_rank_set_add(set, rank);
    }
    return afdep_rank_set_text(set, shared->size, text);
}

static void break_missing(afdep_threads_shared_t *shared)
{
    char ranks[AFDEP_RANK_TEXT_BYTES];
    snprintf(shared->why, sizeof shared->why, "%s did not come to collective %llu of the threads group within %d ms",
             name_ranks(shared, false, ranks), (unsigned long long)shared->generation + 1, shared->timeout_ms);
    break_group(shared);
}

static void break_gone(afdep_threads_shared_t *shared)
{
    char ranks[AFDEP_RANK_TEXT_BYTES];
    snprintf(shared->why, sizeof shared->why, "%s left the threads group (destroyed it) before collective %llu",
             name_ranks(shared, true, ranks), (unsigned long long)shared->generation + 1);
    break_group(shared);
}

/* The first rank of a generation says how large it is and finds room for it. Returns false when the group broke. */
static bool enter_first(afdep_threads_shared_t *shared, const afdep_threads_member_t *member, size_t bytes)
{
    afdep_threads_stage_t *stage = &shared->stage[shared->generation % 2];
    size_t room = bytes * (size_t)shared->size;
    if (room > stage->room) {
        free(stage->bytes);
        stage->bytes = malloc(room);
        stage->room = stage->bytes != NULL ? room : 0;
        if (stage->bytes == NULL) {
            snprintf(shared->why, sizeof shared->why, "rank %d of %d found no memory for an allgather of %zu bytes",
                     member->rank, shared->size, room);
            break_group(shared);
            return false;
        }
    }
    shared->bytes = bytes;
    shared->first = member->rank;
    return true;
}

/* Enters the current generation with the lock held and hands in `send`. Returns false when the group is broken. */
static bool enter(afdep_threads_shared_t *shared, afdep_threads_member_t *member, const void *send, size_t bytes)
{
    if (shared->broken)
        return false;
    if (shared->left < shared->size) {
        break_gone(shared);
        return false;
    }
    if (member->present) {
        snprintf(shared->why, sizeof shared->why, "two threads entered collective %llu of the threads group as rank %d "
                 "of %d", (unsigned long long)shared->generation + 1, member->rank, shared->size);
        break_group(shared);
        return false;
    }
    if (shared->arrived == 0 && !enter_first(shared, member, bytes))
        return false;
    if (bytes != shared->bytes) {
        snprintf(shared->why, sizeof shared->why, "rank %d of %d gathers %zu bytes where rank %d gathers %zu in "
                 "collective %llu of the threads group", member->rank, shared->size, bytes, shared->first,
                 shared->bytes, (unsigned long long)shared->generation + 1);
        break_group(shared);
        return false;
    }
    if (bytes > 0)
        memcpy(shared->stage[shared->generation % 2].bytes + (size_t)member->rank * bytes, send, bytes);
    member->present = true;
    shared->arrived++;
    return true;
}

static void open_gate(afdep_threads_shared_t *shared)
{
    for (int rank = 0; rank < shared->size; rank++)
        shared->members[rank].present = false;
    shared->arrived = 0;
    shared->generation++;
    pthread_cond_broadcast(&shared->turn);
}

static struct timespec deadline_after(int timeout_ms)
{
    struct timespec when;
    clock_gettime(CLOCK_MONOTONIC, &when);
    when.tv_sec += timeout_ms / 1000;
    when.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (when.tv_nsec >= 1000000000) {
        when.tv_nsec -= 1000000000;
        when.tv_sec++;
    }
    return when;
}

/* Waits with the lock held until `generation` is over. Returns false when the group broke before that. */
static bool await_gate(afdep_threads_shared_t *shared, uint64_t generation, const struct timespec *deadline)
{
    while (shared->generation == generation && !shared->broken) {
        int error = pthread_cond_timedwait(&shared->turn, &shared->lock, deadline);
        if (error == ETIMEDOUT && shared->generation == generation && !shared->broken)
            break_missing(shared);
    }
    return shared->generation != generation;
}

static afdep_status_t threads_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    afdep_threads_member_t *member = context;
    afdep_threads_shared_t *shared = member->shared;
    if (bytes > 0 && (send == NULL || recv == NULL))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "allgather of %zu bytes on rank %d has a NULL %s", bytes, member->rank,
                          send == NULL ? "send" : "recv");
    if (bytes > SIZE_MAX / (size_t)shared->size)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "allgather of %zu bytes from %d ranks is larger than memory", bytes,
                          shared->size);

    struct timespec deadline = deadline_after(shared->timeout_ms);
    char why[sizeof shared->why] = "";
    const unsigned char *stage = NULL;
    pthread_mutex_lock(&shared->lock);
    uint64_t generation = shared->generation;
    bool done = enter(shared, member, send, bytes);
    if (done && shared->arrived == shared->size)
        open_gate(shared);
    else if (done)
        done = await_gate(shared, generation, &deadline);
    if (done)
        stage = shared->stage[generation % 2].bytes;
    else
        memcpy(why, shared->why, sizeof why);
    pthread_mutex_unlock(&shared->lock);

    if (!done)
        return afdep_fail(AFDEP_ERR_BOOTSTRAP, "%s", why);
    /* Outside the lock: this stage rests until this rank has entered the next generation. */
    if (bytes > 0)
        memcpy(recv, stage, bytes * (size_t)shared->size);
    return AFDEP_OK;
}

static afdep_status_t threads_barrier(void *context)
{
    return threads_allgather(context, NULL, NULL, 0);
}

static void free_shared(afdep_threads_shared_t *shared)
{
    free(shared->stage[1].bytes);
    free(shared->stage[0].bytes);
    pthread_cond_destroy(&shared->turn);
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

static void threads_destroy(void *context)
{
    afdep_threads_member_t *member = context;
    afdep_threads_shared_t *shared = member->shared;
    pthread_mutex_lock(&shared->lock);
    member->gone = true;
    shared->left--;
    bool last = shared->left == 0;
    /* Ranks that wait for this one need not wait for their deadline. */
    if (!last && shared->arrived > 0 && !shared->broken)
        break_gone(shared);
    pthread_mutex_unlock(&shared->lock);
    if (last)
        free_shared(shared);
}

/* The condition counts on the monotonic clock: a stepped wall clock must not end or prolong a wait. */
static int init_sync(afdep_threads_shared_t *shared)
{
    pthread_condattr_t monotonic;
    int error = pthread_condattr_init(&monotonic);
    if (error != 0)
        return error;
    error = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    if (error == 0)
        error = pthread_cond_init(&shared->turn, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (error != 0)
        return error;
    error = pthread_mutex_init(&shared->lock, NULL);
    if (error != 0)
        pthread_cond_destroy(&shared->turn);
    return error;
}

afdep_status_t afdep_group_threads_create(int size, int timeout_ms, afdep_group_t *groups)
{
    if (groups == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "groups is NULL");
    if (size < 1)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "size is %d; a group has at least 1 rank", size);
    if (timeout_ms < 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "timeout_ms is %d; it must be at least 0 (0: %d)", timeout_ms,
                          AFDEP_GROUP_TIMEOUT_MS);

    int saved = errno;
    afdep_threads_shared_t *shared = calloc(1, sizeof *shared + (size_t)size * sizeof shared->members[0] +
                                                   afdep_rank_set_bytes(size));
    errno = saved;
    if (shared == NULL)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a threads group of %d ranks", size);
    int error = init_sync(shared);
    if (error != 0) {
        free(shared);
        return afdep_fail(AFDEP_ERR_MEMORY, "no mutex and condition for a threads group of %d ranks (error %d)", size,
                          error);
    }
    shared->size = size;
    shared->left = size;
    shared->timeout_ms = timeout_ms > 0 ? timeout_ms : AFDEP_GROUP_TIMEOUT_MS;
    for (int rank = 0; rank < size; rank++) {
        shared->members[rank].shared = shared;
        shared->members[rank].rank = rank;
        groups[rank] = (afdep_group_t){ .struct_size = sizeof(afdep_group_t), .rank = rank, .size = size,
                                        .context = &shared->members[rank], .allgather = threads_allgather,
                                        .barrier = threads_barrier, .destroy = threads_destroy };
    }
    return AFDEP_OK;
}
