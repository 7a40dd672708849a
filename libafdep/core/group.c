/* SPDX-License-Identifier: Apache-2.0 */
/* Groups as the library sees them, whoever made them: checks, calls through the callbacks, destruction. */
#include "core/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

enum { SENTENCE_BYTES = 1024 };

/* A caller from the future may hand in a longer struct; what this library does not know must be left at zero. */
static afdep_status_t check_struct_size(const afdep_group_t *group)
{
    if (group->struct_size < sizeof *group)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group.struct_size is %zu; start from AFDEP_GROUP_INIT, which sets it "
                          "to %zu", group->struct_size, sizeof *group);
    if (group->struct_size > 2 * sizeof *group + 4096)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group.struct_size is %zu, which no version of the struct has; "
                          "start from AFDEP_GROUP_INIT", group->struct_size);
    const unsigned char *bytes = (const unsigned char *)group;
    for (size_t i = sizeof *group; i < group->struct_size; i++) {
        if (bytes[i] != 0)
            return afdep_fail(AFDEP_ERR_ARGUMENT, "group has a nonzero field at byte %zu that this version of the "
                              "library does not know", i);
    }
    return AFDEP_OK;
}

afdep_status_t afdep_group_check(const afdep_group_t *group)
{
    if (group == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group is NULL");
    afdep_status_t status = check_struct_size(group);
    if (status != AFDEP_OK)
        return status;
    if (group->size < 1)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group.size is %d; it must be at least 1", group->size);
    if (group->rank < 0 || group->rank >= group->size)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group.rank is %d; it must be in 0 .. %d", group->rank, group->size - 1);
    if (group->allgather == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group.allgather is NULL on rank %d", group->rank);
    if (group->barrier == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "group.barrier is NULL on rank %d", group->rank);
    return AFDEP_OK;
}

/* A callback of the caller's cannot write afdep's sentence, and may return numbers that are no status: where the
   thread's sentence is still the one from `before`, a new one names the callback and keeps the old one behind it. */
static afdep_status_t after_callback(const afdep_group_t *group, const char *name, afdep_status_t status,
                                     const char *before)
{
    if (status == AFDEP_OK)
        return AFDEP_OK;
    if ((int)status > 0)
        status = AFDEP_ERR_BOOTSTRAP;
    if (strcmp(before, afdep_last_error()) == 0)
        return afdep_fail(status, "the group's %s failed on rank %d of %d; the error before it: %s", name, group->rank,
                          group->size, before[0] != '\0' ? before : "none");
    return status;
}

afdep_status_t afdep_group_allgather(const afdep_group_t *group, const void *send, void *recv, size_t bytes)
{
    char before[SENTENCE_BYTES];
    snprintf(before, sizeof before, "%s", afdep_last_error());
    int saved = errno;
    afdep_status_t status = group->allgather(group->context, send, recv, bytes);
    errno = saved;
    return after_callback(group, "allgather", status, before);
}

afdep_status_t afdep_group_barrier(const afdep_group_t *group)
{
    char before[SENTENCE_BYTES];
    snprintf(before, sizeof before, "%s", afdep_last_error());
    int saved = errno;
    afdep_status_t status = group->barrier(group->context);
    errno = saved;
    return after_callback(group, "barrier", status, before);
}

void afdep_group_destroy(afdep_group_t *group)
{
    if (group == NULL || group->struct_size < sizeof *group || group->destroy == NULL)
        return;
    int saved = errno;
    group->destroy(group->context);
    errno = saved;
    /* A second destroy, and any use after this one, then meets an empty group and not freed memory. */
    *group = (afdep_group_t)AFDEP_GROUP_INIT;
}
