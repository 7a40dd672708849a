/* SPDX-License-Identifier: Apache-2.0 */
/* A thread per call, and a note that whoever is done with it last throws away. */
#include "cuda/patience.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/error.h"

#define LOOK_MS 20

typedef struct note {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    afdep_status_t (*run)(void *context);
    void *context;
    afdep_status_t status;
    char why[512];
    int done, left;
} note_t;

static void throw_away(note_t *note)
{
    pthread_cond_destroy(&note->changed);
    pthread_mutex_destroy(&note->lock);
    free(note);
}

static void *run(void *argument)
{
    note_t *note = argument;
    afdep_status_t status = note->run(note->context);
    pthread_mutex_lock(&note->lock);
    note->status = status;
    if (status != AFDEP_OK)
        snprintf(note->why, sizeof(note->why), "%s", afdep_last_error());
    note->done = 1;
    int left = note->left;
    pthread_cond_signal(&note->changed);
    pthread_mutex_unlock(&note->lock);
    if (left)
        throw_away(note);
    return NULL;
}

static struct timespec from_now(clockid_t clock, int ms)
{
    struct timespec t;
    clock_gettime(clock, &t);
    int64_t ns = t.tv_nsec + (int64_t)(ms % 1000) * 1000000;
    t.tv_sec += ms / 1000 + ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

static int is_past(const struct timespec *deadline)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > deadline->tv_sec || (now.tv_sec == deadline->tv_sec && now.tv_nsec > deadline->tv_nsec);
}

/* With the lock held. Nonzero: the waiting is over before the call is. */
static afdep_status_t wait(note_t *note, const afdep_patience_call_t *call)
{
    struct timespec deadline = from_now(CLOCK_MONOTONIC, call->timeout_ms);
    while (!note->done) {
        struct timespec look = from_now(CLOCK_MONOTONIC, LOOK_MS);
        (void)pthread_cond_timedwait(&note->changed, &note->lock, &look);
        afdep_status_t status = note->done || !call->over ? AFDEP_OK : call->over(call->context);
        if (status == AFDEP_OK && !note->done && is_past(&deadline))
            status = afdep_fail(AFDEP_ERR_TIMEOUT, "%s: not done in %d ms though all ranks live", call->what,
                                call->timeout_ms);
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_OK;
}

static note_t *begin(const afdep_patience_call_t *call)
{
    note_t *note = calloc(1, sizeof(*note));
    pthread_condattr_t clock;
    pthread_t thread;
    if (!note)
        return NULL;
    note->run = call->run;
    note->context = call->context;
    pthread_mutex_init(&note->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&note->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (pthread_create(&thread, NULL, run, note) == 0) {
        pthread_detach(thread);
        return note;
    }
    throw_away(note);
    return NULL;
}

afdep_status_t afdep_call_with_patience(const afdep_patience_call_t *call, int *left)
{
    *left = 0;
    note_t *note = begin(call);
    if (!note)
        return afdep_fail(AFDEP_ERR_SYSTEM, "%s: no thread for it", call->what);
    pthread_mutex_lock(&note->lock);
    afdep_status_t status = wait(note, call);
    *left = note->left = !note->done;
    pthread_mutex_unlock(&note->lock);
    if (*left)
        return status; /* the thread throws the note away */
    status = note->status;
    if (status != AFDEP_OK)
        (void)afdep_fail(status, "%s", note->why);
    throw_away(note);
    return status;
}
