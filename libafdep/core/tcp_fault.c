/* SPDX-License-Identifier: Apache-2.0 */
/* How a TCP group ends: whose fault it was, the sentence about it, and the notice that tells the other ranks. */
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/tcp_group.h"

afdep_tcp_reason_t afdep_tcp_fault(const afdep_tcp_group_t *group)
{
    return (afdep_tcp_reason_t)afdep_tcp_get32(group->fault);
}

void afdep_tcp_fault_add(afdep_tcp_group_t *group, afdep_tcp_reason_t reason, int rank, int waited_ms)
{
    afdep_tcp_reason_t stands = afdep_tcp_fault(group);
    if (stands != AFDEP_TCP_NO_FAULT && stands != reason)
        return;
    if (stands == AFDEP_TCP_NO_FAULT) {
        afdep_tcp_put32(group->fault, (uint32_t)reason);
        afdep_tcp_put32(group->fault + 4, (uint32_t)waited_ms);
    }
    afdep_rank_set_add(group->fault + AFDEP_TCP_NOTICE_PREFIX, rank);
}

void afdep_tcp_fault_missed(afdep_tcp_group_t *group, int waited_ms)
{
    for (int rank = 1; rank < group->size; rank++) {
        if (!afdep_rank_set_has(group->have, rank))
            afdep_tcp_fault_add(group, AFDEP_TCP_MISSED, rank, waited_ms);
    }
}

static void write_meeting_sentence(afdep_tcp_group_t *group, const char *ranks, uint32_t waited_ms)
{
    const char *place = group->address.place;
    switch (afdep_tcp_fault(group)) {
    case AFDEP_TCP_MISSED:
        snprintf(group->why, sizeof group->why, "%s did not come to %s within %u ms", ranks, place, waited_ms);
        break;
    case AFDEP_TCP_LEFT:
        snprintf(group->why, sizeof group->why, "%s left the meeting at %s (connection closed) before it was over",
                 ranks, place);
        break;
    default:
        snprintf(group->why, sizeof group->why, "%s broke the meeting at %s with a message that does not belong there",
                 ranks, place);
    }
}

static void write_collective_sentence(afdep_tcp_group_t *group, const char *ranks, uint32_t waited_ms)
{
    const char *place = group->address.place;
    unsigned long long number = group->operation;
    switch (afdep_tcp_fault(group)) {
    case AFDEP_TCP_MISSED:
        snprintf(group->why, sizeof group->why, "%s did not come to collective %llu of the group at %s within %u ms",
                 ranks, number, place, waited_ms);
        break;
    case AFDEP_TCP_LEFT:
        snprintf(group->why, sizeof group->why, "%s left the group at %s (connection closed) before the end of "
                 "collective %llu", ranks, place, number);
        break;
    default:
        snprintf(group->why, sizeof group->why, "%s broke collective %llu of the group at %s with a message that does "
                 "not belong there", ranks, number, place);
    }
}

/* Tells everybody who can still be told, those at fault as well: a rank that comes late should learn why it is late.
   A link with half a result on its way can only be closed. */
static void send_notices(afdep_tcp_group_t *group)
{
    for (int rank = 1; rank < group->size; rank++) {
        afdep_tcp_link_t *link = &group->links[rank];
        if (link->fd < 0)
            continue;
        if (link->out_busy ||
            afdep_tcp_link_begin(link, AFDEP_TCP_NOTICE, group->operation, group->fault, group->fault_bytes) !=
                AFDEP_TCP_DONE ||
            afdep_tcp_link_send(link) != AFDEP_TCP_DONE)
            afdep_tcp_link_close(link);
    }
}

afdep_status_t afdep_tcp_break(afdep_tcp_group_t *group, const char *more)
{
    char ranks[AFDEP_RANK_TEXT_BYTES];
    uint32_t waited_ms = afdep_tcp_get32(group->fault + 4);
    afdep_rank_set_text(group->fault + AFDEP_TCP_NOTICE_PREFIX, group->size, ranks);
    if (group->operation == 0)
        write_meeting_sentence(group, ranks, waited_ms);
    else
        write_collective_sentence(group, ranks, waited_ms);
    size_t used = strlen(group->why);
    if (more != NULL && more[0] != '\0')
        snprintf(group->why + used, sizeof group->why - used, "; %s", more);
    group->broken = true;
    if (group->rank == 0)
        send_notices(group);
    else
        afdep_tcp_link_close(&group->links[0]);
    return afdep_fail(AFDEP_ERR_BOOTSTRAP, "%s", group->why);
}
