/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's side of the meeting. Whoever connects is a guest until it has proved that it knows the job token. Guests
 * are few, short-lived, served together and never waited for, so that a stranger, however slow or loud, costs the job
 * next to nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/tcp_group.h"

/* When all places are taken, the oldest guest loses its own to a newcomer once it has had this long: far more than a
   rank needs, and short enough that silent strangers cannot keep the ranks out. */
#define EVICT_AFTER_MS 250

/* How long not to accept after the system had no file descriptor to give. */
#define ACCEPT_PAUSE_MS 50

typedef struct afdep_tcp_guest {
    int fd;
    int64_t since;
    bool challenged;
    size_t got;
    uint8_t bytes[AFDEP_TCP_HELLO_BYTES]; /* hello, then proof */
    afdep_tcp_transcript_t transcript;
} afdep_tcp_guest_t;

typedef struct afdep_tcp_meeting {
    afdep_tcp_group_t *group;
    const uint8_t *job_key;
    int listener;
    int64_t accept_after;
    int count;
    afdep_tcp_guest_t guests[AFDEP_TCP_MAX_GUESTS]; /* in the order of their coming */
    bool starved; /* the system had no file descriptor to give */
    unsigned dropped;
    char last_drop[112];
} afdep_tcp_meeting_t;

/* What becomes of a guest after a step. */
typedef enum afdep_tcp_fate { STAYS, GOES, IS_ADMITTED } afdep_tcp_fate_t;

static void remove_guest(afdep_tcp_meeting_t *meeting, int index)
{
    afdep_tcp_guest_t *guest = &meeting->guests[index];
    meeting->count--;
    memmove(guest, guest + 1, (size_t)(meeting->count - index) * sizeof *guest);
}

static afdep_tcp_fate_t drop(afdep_tcp_meeting_t *meeting, const char *why)
{
    meeting->dropped++;
    snprintf(meeting->last_drop, sizeof meeting->last_drop, "%s", why);
    afdep_log(AFDEP_LOG_INFO, "rank 0 at %s dropped a connection: %s", meeting->group->address.place, why);
    return GOES;
}

static void dismiss(afdep_tcp_meeting_t *meeting, int index)
{
    close(meeting->guests[index].fd);
    remove_guest(meeting, index);
}

/* ---- A guest's steps ------------------------------------------------------------------------------------------ */

/* Sends a few bytes on a connection whose buffer is empty; one that does not take them is not worth waiting for. */
static bool send_small(int fd, const void *bytes, size_t count)
{
    ssize_t sent;
    do {
        sent = send(fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)count;
}

static afdep_tcp_fate_t challenge(afdep_tcp_meeting_t *meeting, afdep_tcp_guest_t *guest)
{
    uint8_t bytes[AFDEP_TCP_CHALLENGE_BYTES];
    afdep_tcp_decode_hello(guest->bytes, &guest->transcript);
    guest->transcript.root_size = (uint32_t)meeting->group->size;
    if (!afdep_random_bytes(guest->transcript.root_nonce, AFDEP_TCP_NONCE_BYTES))
        return drop(meeting, "the system has no random bytes");
    afdep_tcp_encode_challenge(&guest->transcript, bytes);
    if (!send_small(guest->fd, bytes, sizeof bytes))
        return drop(meeting, "it did not take the challenge");
    guest->challenged = true;
    guest->got = 0;
    return STAYS;
}

static bool send_verdict(afdep_tcp_meeting_t *meeting, afdep_tcp_guest_t *guest, afdep_tcp_verdict_t verdict)
{
    uint8_t bytes[AFDEP_TCP_VERDICT_BYTES] = { 0 };
    afdep_tcp_put32(bytes, (uint32_t)verdict);
    if (verdict != AFDEP_TCP_WRONG_PROOF && !afdep_tcp_derive(meeting->job_key, AFDEP_TCP_LABEL_VERDICT,
                                                              (uint32_t)verdict, &guest->transcript, bytes + 4))
        return false;
    return send_small(guest->fd, bytes, sizeof bytes);
}

/* Whether the claimed rank has somebody already. One whose connection is gone, which the polls may not have told yet,
   makes room for its next attempt. */
static bool is_taken(afdep_tcp_group_t *group, int rank)
{
    if (group->links[rank].fd >= 0 && !afdep_tcp_link_alive(&group->links[rank])) {
        afdep_tcp_link_close(&group->links[rank]);
        group->have[rank / 8] = (uint8_t)(group->have[rank / 8] & ~(1u << rank % 8));
    }
    return group->links[rank].fd >= 0;
}

static afdep_tcp_verdict_t judge(afdep_tcp_meeting_t *meeting, const afdep_tcp_guest_t *guest)
{
    uint8_t proof[AFDEP_HMAC_BYTES];
    const afdep_tcp_transcript_t *said = &guest->transcript;
    if (!afdep_tcp_derive(meeting->job_key, AFDEP_TCP_LABEL_PROOF, 0, said, proof) ||
        !afdep_hmac_equal(proof, guest->bytes))
        return AFDEP_TCP_WRONG_PROOF;
    if (said->size != (uint32_t)meeting->group->size)
        return AFDEP_TCP_WRONG_SIZE;
    if (said->rank < 1 || said->rank >= said->size)
        return AFDEP_TCP_WRONG_RANK;
    return is_taken(meeting->group, (int)said->rank) ? AFDEP_TCP_TAKEN_RANK : AFDEP_TCP_ADMITTED;
}

static afdep_tcp_fate_t drop_judged(afdep_tcp_meeting_t *meeting, const afdep_tcp_guest_t *guest,
                                    afdep_tcp_verdict_t verdict)
{
    char why[sizeof meeting->last_drop];
    switch (verdict) {
    case AFDEP_TCP_WRONG_SIZE:
        snprintf(why, sizeof why, "rank %u counts %u ranks, rank 0 counts %d", guest->transcript.rank,
                 guest->transcript.size, meeting->group->size);
        break;
    case AFDEP_TCP_WRONG_RANK:
        snprintf(why, sizeof why, "rank %u is not in 1 .. %d", guest->transcript.rank, meeting->group->size - 1);
        break;
    case AFDEP_TCP_TAKEN_RANK:
        snprintf(why, sizeof why, "rank %u was there already", guest->transcript.rank);
        break;
    default:
        snprintf(why, sizeof why, "it did not know the job token");
    }
    return drop(meeting, why);
}

static afdep_tcp_fate_t conclude(afdep_tcp_meeting_t *meeting, afdep_tcp_guest_t *guest)
{
    afdep_tcp_group_t *group = meeting->group;
    afdep_tcp_verdict_t verdict = judge(meeting, guest);
    if (!send_verdict(meeting, guest, verdict) && verdict == AFDEP_TCP_ADMITTED)
        return drop(meeting, "it did not take the verdict");
    if (verdict != AFDEP_TCP_ADMITTED)
        return drop_judged(meeting, guest, verdict);
    int rank = (int)guest->transcript.rank;
    if (!afdep_tcp_link_open(&group->links[rank], guest->fd, true, meeting->job_key, &guest->transcript))
        return drop(meeting, "libcrypto refused HMAC-SHA256");
    afdep_rank_set_add(group->have, rank);
    return IS_ADMITTED;
}

/* Reads no more than the step at hand needs, so that whatever a stranger sends, it fits. */
static afdep_tcp_fate_t step_guest(afdep_tcp_meeting_t *meeting, afdep_tcp_guest_t *guest)
{
    for (;;) {
        size_t wanted = guest->challenged ? AFDEP_TCP_PROOF_BYTES : AFDEP_TCP_HELLO_BYTES;
        ssize_t got = recv(guest->fd, guest->bytes + guest->got, wanted - guest->got, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return STAYS;
        if (got <= 0)
            return drop(meeting, "it closed before it had proved anything");
        guest->got += (size_t)got;
        if (!guest->challenged && !afdep_tcp_hello_begins(guest->bytes, guest->got))
            return drop(meeting, "its greeting was not that of a rank of this version");
        if (guest->got < wanted)
            continue;
        if (guest->challenged)
            return conclude(meeting, guest);
        if (challenge(meeting, guest) == GOES)
            return GOES;
    }
}

/* ---- The meeting's rounds ------------------------------------------------------------------------------------- */

static void drop_overdue(afdep_tcp_meeting_t *meeting, int64_t now)
{
    while (meeting->count > 0 && now - meeting->guests[0].since >= AFDEP_TCP_GUEST_MS) {
        (void)drop(meeting, "it was silent for too long");
        dismiss(meeting, 0);
    }
}

/* Whether a newcomer may be let in now: there is a place, or the oldest guest has had its time. */
static bool has_place(const afdep_tcp_meeting_t *meeting, int64_t now)
{
    return meeting->count < AFDEP_TCP_MAX_GUESTS || now - meeting->guests[0].since >= EVICT_AFTER_MS;
}

static void let_in(afdep_tcp_meeting_t *meeting, int64_t now)
{
    while (has_place(meeting, now)) {
        int fd = afdep_tcp_accept(meeting->listener);
        if (fd < 0) {
            /* A newcomer that is gone again is no reason to pause; a full table of descriptors is. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                meeting->accept_after = now + ACCEPT_PAUSE_MS;
                meeting->starved = true;
            }
            return;
        }
        if (meeting->count == AFDEP_TCP_MAX_GUESTS) {
            (void)drop(meeting, "it was silent while others waited");
            dismiss(meeting, 0);
        }
        meeting->guests[meeting->count++] = (afdep_tcp_guest_t){ .fd = fd, .since = now };
    }
}

/* An admitted rank has nothing to say but that its deadline passed. One that closes may come again. */
static void hear_admitted(afdep_tcp_meeting_t *meeting, int rank)
{
    afdep_tcp_group_t *group = meeting->group;
    afdep_tcp_step_t step = afdep_tcp_hear(group, rank, false, NULL, 0);
    if (step == AFDEP_TCP_AGAIN)
        return;
    char why[64];
    snprintf(why, sizeof why, "rank %d left again", rank);
    (void)drop(meeting, why);
    afdep_tcp_link_close(&group->links[rank]);
    group->have[rank / 8] = (uint8_t)(group->have[rank / 8] & ~(1u << rank % 8));
}

/* Polls links (by rank), guests (by -1 - index) and the listener (0). Returns how many polls there are. */
static int fill_polls(afdep_tcp_meeting_t *meeting, int64_t now)
{
    afdep_tcp_group_t *group = meeting->group;
    int count = 0;
    for (int rank = 1; rank < group->size; rank++) {
        if (group->links[rank].fd < 0)
            continue;
        group->polls[count] = (struct pollfd){ .fd = group->links[rank].fd, .events = POLLIN };
        group->poll_ranks[count++] = rank;
    }
    for (int i = 0; i < meeting->count; i++) {
        group->polls[count] = (struct pollfd){ .fd = meeting->guests[i].fd, .events = POLLIN };
        group->poll_ranks[count++] = -1 - i;
    }
    if (has_place(meeting, now) && now >= meeting->accept_after) {
        group->polls[count] = (struct pollfd){ .fd = meeting->listener, .events = POLLIN };
        group->poll_ranks[count++] = 0;
    }
    return count;
}

static void serve_guest(afdep_tcp_meeting_t *meeting, int index)
{
    afdep_tcp_fate_t fate = step_guest(meeting, &meeting->guests[index]);
    if (fate == GOES)
        dismiss(meeting, index);
    else if (fate == IS_ADMITTED)
        remove_guest(meeting, index);
}

static void serve_round(afdep_tcp_meeting_t *meeting, int count, int64_t now)
{
    afdep_tcp_group_t *group = meeting->group;
    /* Guests leave from the end of their list, so that the places of those not served yet stay as they are. */
    int guests_at = count;
    bool newcomers = false;
    for (int i = 0; i < count; i++) {
        int whose = group->poll_ranks[i];
        if (whose < 0 && guests_at == count)
            guests_at = i;
        if (whose > 0 && group->polls[i].revents != 0)
            hear_admitted(meeting, whose);
        if (whose == 0 && group->polls[i].revents != 0)
            newcomers = true;
    }
    for (int i = count - 1; i >= guests_at; i--) {
        if (group->poll_ranks[i] < 0 && group->polls[i].revents != 0)
            serve_guest(meeting, -1 - group->poll_ranks[i]);
    }
    if (newcomers)
        let_in(meeting, now);
}

static bool everybody_came(const afdep_tcp_group_t *group)
{
    for (int rank = 1; rank < group->size; rank++) {
        if (!afdep_rank_set_has(group->have, rank))
            return false;
    }
    return true;
}

static afdep_status_t break_meeting(afdep_tcp_meeting_t *meeting)
{
    char more[192] = "";
    if (meeting->starved)
        snprintf(more, sizeof more, "rank 0 has no file descriptor left for another connection");
    else if (meeting->dropped > 0)
        snprintf(more, sizeof more, "%u connection%s dropped, the last because %s", meeting->dropped,
                 meeting->dropped == 1 ? " was" : "s were", meeting->last_drop);
    return afdep_tcp_break(meeting->group, more);
}

static afdep_status_t hold_meeting(afdep_tcp_meeting_t *meeting, int64_t deadline)
{
    afdep_tcp_group_t *group = meeting->group;
    while (!everybody_came(group)) {
        int64_t now = afdep_now_ms();
        drop_overdue(meeting, now);
        int count = fill_polls(meeting, now);
        int left = afdep_ms_left(deadline);
        /* With guests, or a pause in accepting, there is something to look at before the deadline. */
        bool soon = meeting->count > 0 || now < meeting->accept_after;
        int ready = poll(group->polls, (nfds_t)count, soon && left > ACCEPT_PAUSE_MS ? ACCEPT_PAUSE_MS : left);
        if (ready > 0)
            serve_round(meeting, count, afdep_now_ms());
        if (left == 0 && !everybody_came(group))
            afdep_tcp_fault_missed(group, group->timeout_ms);
        if (afdep_tcp_fault(group) != AFDEP_TCP_NO_FAULT)
            return break_meeting(meeting);
    }
    return afdep_tcp_scatter(group, NULL, 0, deadline);
}

afdep_status_t afdep_tcp_meet_root(afdep_tcp_group_t *group, const uint8_t job_key[AFDEP_TCP_KEY_BYTES])
{
    int64_t deadline = afdep_now_ms() + group->timeout_ms;
    afdep_tcp_meeting_t *meeting = calloc(1, sizeof *meeting);
    if (meeting == NULL)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for the meeting at %s", group->address.place);
    meeting->group = group;
    meeting->job_key = job_key;
    afdep_status_t status = afdep_tcp_listen(&group->address, &meeting->listener);
    if (status == AFDEP_OK) {
        status = hold_meeting(meeting, deadline);
        while (meeting->count > 0)
            dismiss(meeting, meeting->count - 1);
        close(meeting->listener);
    }
    free(meeting);
    return status;
}
