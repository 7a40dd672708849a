/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any number of ranks as threads of a test. A rank returns NULL, or a sentence saying what was wrong; the first failing
 * rank's sentence is the crowd's.
 */
#ifndef AFDEP_VALIDATE_UNIT_CROWD_H
#define AFDEP_VALIDATE_UNIT_CROWD_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

typedef const char *(*crowd_rank_fn)(const afdep_group_t *group, void *context);

typedef struct crowd_member {
    pthread_t thread;
    afdep_group_t group;
    crowd_rank_fn body;
    void *context;
    char failed[512];
} crowd_member_t;

/* A sentence in this thread's own storage. */
__attribute__((format(printf, 1, 2))) static inline const char *crowd_say(const char *format, ...)
{
    static _Thread_local char sentence[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof(sentence), format, arguments);
    va_end(arguments);
    return sentence;
}

static inline void *crowd_main(void *argument)
{
    crowd_member_t *m = argument;
    const char *failed = m->body(&m->group, m->context);
    if (failed)
        snprintf(m->failed, sizeof(m->failed), "rank %d: %s", m->group.rank, failed);
    return NULL;
}

/* NULL when every rank was content; else the first sentence, in this thread's storage, until its next run. */
static inline const char *crowd_run(int size, crowd_rank_fn body, void *context)
{
    static _Thread_local char first[512];
    crowd_member_t *members = calloc((size_t)size, sizeof(*members));
    afdep_group_t *groups = calloc((size_t)size, sizeof(*groups));
    first[0] = '\0';
    if (!members || !groups || afdep_group_threads_create(size, 30000, groups) != AFDEP_OK)
        abort();
    for (int r = 0; r < size; r++) {
        members[r].group = groups[r];
        members[r].body = body;
        members[r].context = context;
        if (pthread_create(&members[r].thread, NULL, crowd_main, &members[r]) != 0)
            abort();
    }
    for (int r = 0; r < size; r++) {
        pthread_join(members[r].thread, NULL);
        if (!first[0] && members[r].failed[0])
            memcpy(first, members[r].failed, sizeof(first));
    }
    for (int r = 0; r < size; r++)
        afdep_group_destroy(&groups[r]);
    free(groups);
    free(members);
    return first[0] ? first : NULL;
}

#endif
