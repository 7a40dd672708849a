/* SPDX-License-Identifier: Apache-2.0 */
/* How the library uses a group: checked once, then called through wrappers that leave a sentence for every failure. */
#ifndef AFDEP_CORE_GROUP_H
#define AFDEP_CORE_GROUP_H

#include <stddef.h>

#include <afdep/group.h>

/* What a zero timeout_ms stands for. */
#define AFDEP_GROUP_TIMEOUT_MS 60000

/* ARGUMENT, naming the field, unless `group` can be used: struct_size, rank, size and both callbacks. */
afdep_status_t afdep_group_check(const afdep_group_t *group);

/* The group's callbacks. A failure of a caller's own callback, which cannot write afdep's sentence, gets one here. */
afdep_status_t afdep_group_allgather(const afdep_group_t *group, const void *send, void *recv, size_t bytes);
afdep_status_t afdep_group_barrier(const afdep_group_t *group);

#endif
