/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of a TCP group: every rank sends its part to rank 0, which sends all parts to every rank. Rank 0 serves
 * its links together, so that no slow rank holds up another, and watches all of them until the last part is there, so
 * that a death is seen when it happens and not at the deadline.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/tcp_group.h"

/* ---- Rank 0 --------------------------------------------------------------------------------------------------- */

afdep_tcp_step_t afdep_tcp_hear(afdep_tcp_group_t *group, int rank, bool data, void *payload, uint64_t length)
{
    afdep_tcp_link_t *link = &group->links[rank];
    const afdep_tcp_expect_t expect = { .operation = group->operation, .data = data, .payload = payload,
                                        .length = length, .note_kind = AFDEP_TCP_EXPIRED, .note = link->note,
                                        .note_length = AFDEP_TCP_EXPIRED_BYTES };
    afdep_tcp_step_t step = afdep_tcp_link_receive(link, &expect);
    if (step != AFDEP_TCP_DONE || link->in.kind == AFDEP_TCP_DATA)
        return step;
    /* A call from an earlier operation crossed with that operation's result, and is answered by it. */
    if (link->in.operation == group->operation)
        afdep_tcp_fault_missed(group, (int)(afdep_tcp_get32(link->note) & INT32_MAX));
    return AFDEP_TCP_AGAIN;
}

/* Fills the polls with the links that are open: to read from, or where `sending`, those with something left to send. */
static int fill_polls(afdep_tcp_group_t *group, bool sending)
{
    int count = 0;
    for (int rank = 1; rank < group->size; rank++) {
        const afdep_tcp_link_t *link = &group->links[rank];
        if (link->fd < 0 || (sending && !link->out_busy))
            continue;
        group->polls[count] = (struct pollfd){ .fd = link->fd, .events = sending ? POLLOUT : POLLIN };
        group->poll_ranks[count++] = rank;
    }
    return count;
}

static void fault_step(afdep_tcp_group_t *group, int rank, afdep_tcp_step_t step)
{
    afdep_tcp_fault_add(group, step == AFDEP_TCP_CLOSED ? AFDEP_TCP_LEFT : AFDEP_TCP_BAD, rank, 0);
    afdep_tcp_link_close(&group->links[rank]);
}

static void hear_part(afdep_tcp_group_t *group, int rank, uint8_t *recv, size_t bytes)
{
    bool has = afdep_rank_set_has(group->have, rank);
    uint8_t *part = bytes > 0 ? recv + (size_t)rank * bytes : NULL;
    afdep_tcp_step_t step = afdep_tcp_hear(group, rank, !has, part, bytes);
    if (step == AFDEP_TCP_DONE)
        afdep_rank_set_add(group->have, rank);
    else if (step != AFDEP_TCP_AGAIN)
        fault_step(group, rank, step);
}

static int count_missing(const afdep_tcp_group_t *group)
{
    int missing = 0;
    for (int rank = 1; rank < group->size; rank++)
        missing += !afdep_rank_set_has(group->have, rank);
    return missing;
}

static const char *complaint_of_fault(const afdep_tcp_group_t *group, char text[160])
{
    text[0] = '\0';
    for (int rank = 1; rank < group->size && text[0] == '\0'; rank++) {
        const char *complaint = group->links[rank].complaint;
        if (complaint[0] != '\0' && afdep_rank_set_has(group->fault + AFDEP_TCP_NOTICE_PREFIX, rank))
            snprintf(text, 160, "rank %d sent %s", rank, complaint);
    }
    return text;
}

static afdep_status_t break_root(afdep_tcp_group_t *group)
{
    char text[160];
    return afdep_tcp_break(group, complaint_of_fault(group, text));
}

static afdep_status_t gather(afdep_tcp_group_t *group, void *recv, size_t bytes, int64_t deadline)
{
    memset(group->have, 0, afdep_rank_set_bytes(group->size));
    while (count_missing(group) > 0 && afdep_tcp_fault(group) == AFDEP_TCP_NO_FAULT) {
        int count = fill_polls(group, false);
        int left = afdep_ms_left(deadline);
        int ready = poll(group->polls, (nfds_t)count, left);
        for (int i = 0; i < count && ready > 0; i++) {
            if (group->polls[i].revents != 0)
                hear_part(group, group->poll_ranks[i], recv, bytes);
        }
        if (left == 0)
            afdep_tcp_fault_missed(group, group->timeout_ms);
    }
    return afdep_tcp_fault(group) == AFDEP_TCP_NO_FAULT ? AFDEP_OK : break_root(group);
}

static void send_to(afdep_tcp_group_t *group, int rank)
{
    afdep_tcp_step_t step = afdep_tcp_link_send(&group->links[rank]);
    if (step == AFDEP_TCP_CLOSED)
        fault_step(group, rank, step);
}

static void begin_results(afdep_tcp_group_t *group, const void *payload, uint64_t length)
{
    for (int rank = 1; rank < group->size; rank++) {
        afdep_tcp_step_t step = afdep_tcp_link_begin(&group->links[rank], AFDEP_TCP_DATA, group->operation, payload,
                                                     length);
        if (step == AFDEP_TCP_DONE)
            send_to(group, rank);
        else
            fault_step(group, rank, step);
    }
}

static void fault_unsent(afdep_tcp_group_t *group)
{
    for (int rank = 1; rank < group->size; rank++) {
        if (group->links[rank].fd >= 0 && group->links[rank].out_busy)
            afdep_tcp_fault_add(group, AFDEP_TCP_MISSED, rank, group->timeout_ms);
    }
}

/* A fault does not stop the sending to the other ranks: half a result is of no use to them, and a notice can only
   follow a whole one. */
afdep_status_t afdep_tcp_scatter(afdep_tcp_group_t *group, const void *payload, uint64_t length, int64_t deadline)
{
    begin_results(group, payload, length);
    for (;;) {
        int count = fill_polls(group, true);
        if (count == 0)
            break;
        int left = afdep_ms_left(deadline);
        int ready = poll(group->polls, (nfds_t)count, left);
        for (int i = 0; i < count && ready > 0; i++) {
            if (group->polls[i].revents != 0)
                send_to(group, group->poll_ranks[i]);
        }
        if (left == 0) {
            fault_unsent(group);
            break;
        }
    }
    return afdep_tcp_fault(group) == AFDEP_TCP_NO_FAULT ? AFDEP_OK : break_root(group);
}

static afdep_status_t allgather_root(afdep_tcp_group_t *group, const void *send, void *recv, size_t bytes)
{
    int64_t deadline = afdep_now_ms() + group->timeout_ms;
    if (bytes > 0)
        memmove(recv, send, bytes);
    afdep_status_t status = gather(group, recv, bytes, deadline);
    if (status != AFDEP_OK)
        return status;
    return afdep_tcp_scatter(group, recv, (uint64_t)bytes * (uint64_t)group->size, deadline);
}

/* ---- The other ranks ------------------------------------------------------------------------------------------ */

static afdep_status_t break_peer(afdep_tcp_group_t *group, afdep_tcp_reason_t reason)
{
    char text[160] = "";
    memset(group->fault, 0, group->fault_bytes);
    afdep_tcp_fault_add(group, reason, 0, group->timeout_ms);
    if (reason == AFDEP_TCP_BAD)
        snprintf(text, sizeof text, "rank 0 sent %s", group->links[0].complaint);
    return afdep_tcp_break(group, text);
}

static afdep_status_t break_noticed(afdep_tcp_group_t *group)
{
    afdep_tcp_reason_t reason = afdep_tcp_fault(group);
    if (reason == AFDEP_TCP_MISSED || reason == AFDEP_TCP_LEFT || reason == AFDEP_TCP_BAD) {
        /* Rank 0 may have failed while sending an earlier result, which has reached this rank. */
        group->operation = group->links[0].in.operation;
        return afdep_tcp_break(group, NULL);
    }
    snprintf(group->links[0].complaint, sizeof group->links[0].complaint, "a notice without a reason");
    return break_peer(group, AFDEP_TCP_BAD);
}

/* Reads what rank 0 has sent. Returns true when the collective is over, one way or the other, with its `status`. */
static bool hear_root(afdep_tcp_group_t *group, const afdep_tcp_expect_t *expect, afdep_status_t *status)
{
    afdep_tcp_link_t *link = &group->links[0];
    switch (afdep_tcp_link_receive(link, expect)) {
    case AFDEP_TCP_AGAIN:
        return false;
    case AFDEP_TCP_CLOSED:
        *status = break_peer(group, AFDEP_TCP_LEFT);
        return true;
    case AFDEP_TCP_GARBLED:
        *status = break_peer(group, AFDEP_TCP_BAD);
        return true;
    case AFDEP_TCP_DONE:
        break;
    }
    *status = link->in.kind == AFDEP_TCP_NOTICE ? break_noticed(group) : AFDEP_OK;
    return true;
}

/* Asks rank 0 who is missing. Where half a contribution is still on its way the question has no place; the wait for
   rank 0's word goes on all the same. */
static void ask_root(afdep_tcp_group_t *group)
{
    afdep_tcp_link_t *link = &group->links[0];
    if (link->out_busy)
        return;
    afdep_tcp_put32(link->note, (uint32_t)group->timeout_ms);
    (void)afdep_tcp_link_begin(link, AFDEP_TCP_EXPIRED, group->operation, link->note, AFDEP_TCP_EXPIRED_BYTES);
}

afdep_status_t afdep_tcp_await_result(afdep_tcp_group_t *group, void *payload, uint64_t length, int64_t deadline)
{
    afdep_tcp_link_t *link = &group->links[0];
    const afdep_tcp_expect_t expect = { .operation = group->operation, .data = true, .payload = payload,
                                        .length = length, .note_kind = AFDEP_TCP_NOTICE, .note = group->fault,
                                        .note_length = group->fault_bytes };
    afdep_status_t status = AFDEP_OK;
    bool asked = false;
    for (;;) {
        /* After a failed write nothing more can be sent, but rank 0's last word may still be there to read. */
        if (link->out_busy && afdep_tcp_link_send(link) == AFDEP_TCP_CLOSED)
            link->out_busy = false;
        if (hear_root(group, &expect, &status))
            return status;
        int left = afdep_ms_left(deadline);
        if (left == 0 && asked)
            return break_peer(group, AFDEP_TCP_MISSED);
        if (left == 0) {
            ask_root(group);
            asked = true;
            deadline = afdep_now_ms() + AFDEP_TCP_GRACE_MS;
            continue;
        }
        struct pollfd ready = { .fd = link->fd, .events = (short)(link->out_busy ? POLLIN | POLLOUT : POLLIN) };
        (void)poll(&ready, 1, left);
    }
}

static afdep_status_t allgather_peer(afdep_tcp_group_t *group, const void *send, void *recv, size_t bytes)
{
    int64_t deadline = afdep_now_ms() + group->timeout_ms;
    if (afdep_tcp_link_begin(&group->links[0], AFDEP_TCP_DATA, group->operation, send, bytes) != AFDEP_TCP_DONE) {
        snprintf(group->why, sizeof group->why, "libcrypto refused HMAC-SHA256 on rank %d", group->rank);
        group->broken = true;
        afdep_tcp_link_close(&group->links[0]);
        return afdep_fail(AFDEP_ERR_SYSTEM, "%s", group->why);
    }
    return afdep_tcp_await_result(group, recv, (uint64_t)bytes * (uint64_t)group->size, deadline);
}

afdep_status_t afdep_tcp_allgather(afdep_tcp_group_t *group, const void *send, void *recv, size_t bytes)
{
    if (bytes > 0 && (send == NULL || recv == NULL))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "allgather of %zu bytes on rank %d has a NULL %s", bytes, group->rank,
                          send == NULL ? "send" : "recv");
    if (bytes > (size_t)PTRDIFF_MAX / (size_t)group->size)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "allgather of %zu bytes from %d ranks is larger than memory", bytes,
                          group->size);
    if (group->broken)
        return afdep_fail(AFDEP_ERR_BOOTSTRAP, "%s", group->why);
    group->operation++;
    if (group->rank == 0)
        return allgather_root(group, send, recv, bytes);
    return allgather_peer(group, send, recv, bytes);
}
