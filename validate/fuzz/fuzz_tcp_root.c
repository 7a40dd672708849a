/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap as rank 0 hears it: guests that greet and prove, rightly or not, then messages of those that were
 * admitted, in the meeting and in two collectives. The file under test is included, for the steps of a guest; its
 * nonces are always the same, so that a proof of the input's can be right.
 */
#define afdep_random_bytes afdep_fuzz_random_bytes
#include "core/tcp_root.c" /* NOLINT: its static functions are what is tested */
#undef afdep_random_bytes

#include <sys/socket.h>

#include "validate/fuzz/lib/input.h"
#include "validate/fuzz/lib/tcp.h"

enum { RANKS = 5, GUESTS = 6 };

/* The other ends: of guests, and once admitted, with the keys of a link. */
typedef struct world {
    afdep_tcp_meeting_t meeting;
    int ends[GUESTS], count;
    afdep_tcp_link_t links[RANKS];
} world_t;

static void say_hello(int fd, afdep_fuzz_input_t *input, uint8_t how, afdep_tcp_transcript_t *said)
{
    uint8_t bytes[AFDEP_TCP_HELLO_BYTES];
    memset(said, 0, sizeof(*said));
    said->rank = how >> 4 & 7;
    said->size = how & 8 ? afdep_fuzz_u32(input) : RANKS;
    afdep_tcp_encode_hello(said, bytes);
    if (how & 1)
        afdep_fuzz_send_raw(fd, input, afdep_fuzz_u8(input));
    else
        AFDEP_FUZZ_EXPECT(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) == (ssize_t)sizeof(bytes));
}

static void say_proof(int fd, afdep_fuzz_input_t *input, uint8_t how, afdep_tcp_transcript_t *said)
{
    uint8_t proof[AFDEP_TCP_PROOF_BYTES];
    said->root_size = RANKS;
    (void)afdep_fuzz_random_bytes(said->root_nonce, sizeof(said->root_nonce));
    AFDEP_FUZZ_EXPECT(afdep_tcp_derive(afdep_fuzz_key, AFDEP_TCP_LABEL_PROOF, 0, said, proof));
    if (how & 2)
        afdep_fuzz_send_raw(fd, input, afdep_fuzz_u8(input));
    else
        (void)!send(fd, proof, sizeof(proof), MSG_NOSIGNAL);
}

/* One guest from its coming until rank 0 has made up its mind, or it has nothing more to say. */
static void receive_guest(world_t *w, afdep_fuzz_input_t *input)
{
    afdep_tcp_meeting_t *meeting = &w->meeting;
    afdep_tcp_transcript_t said;
    uint8_t how = afdep_fuzz_u8(input);
    int ends[2];
    afdep_fuzz_pair(ends);
    w->ends[w->count++] = ends[1];
    meeting->guests[meeting->count++] = (afdep_tcp_guest_t){ .fd = ends[0], .since = 0 };
    say_hello(ends[1], input, how, &said);
    int before = meeting->count;
    if (!(how & 4)) /* else hello and proof come together, which no rank does */
        serve_guest(meeting, before - 1);
    if (meeting->count < before)
        return;
    say_proof(ends[1], input, how, &said);
    serve_guest(meeting, before - 1);
    if (meeting->count == before || said.rank >= RANKS || meeting->group->links[said.rank].fd != ends[0])
        return;
    AFDEP_FUZZ_EXPECT(said.rank >= 1);
    (void)afdep_tcp_link_open(&w->links[said.rank], ends[1], false, afdep_fuzz_key, &said);
}

static void say_message(world_t *w, afdep_fuzz_input_t *input)
{
    uint8_t how = afdep_fuzz_u8(input);
    int rank = how % RANKS;
    if (w->links[rank].fd < 0)
        return;
    if (how & 0x80)
        afdep_fuzz_send_raw(w->links[rank].fd, input, afdep_fuzz_u8(input));
    else
        afdep_fuzz_send_signed(&w->links[rank], input, w->meeting.group);
    if (how & 0x40 && w->meeting.group->links[rank].fd >= 0 && w->meeting.group->operation == 0)
        hear_admitted(&w->meeting, rank);
}

static void collect_twice(afdep_tcp_group_t *group, size_t bytes)
{
    uint8_t own[64] = { 0 }, *all = malloc(RANKS * bytes + 1);
    AFDEP_FUZZ_EXPECT(all);
    afdep_status_t status = everybody_came(group) ? afdep_tcp_scatter(group, NULL, 0, afdep_now_ms() + 1) : AFDEP_OK;
    AFDEP_FUZZ_EXPECT(status == AFDEP_OK || status == AFDEP_ERR_BOOTSTRAP);
    for (int i = 0; i < 2; i++) {
        status = afdep_tcp_allgather(group, own, all, bytes);
        AFDEP_FUZZ_EXPECT(status == AFDEP_OK || status == AFDEP_ERR_BOOTSTRAP);
    }
    free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    afdep_fuzz_input_t input = { data, size };
    static world_t w;
    memset(&w, 0, sizeof(w));
    for (int r = 0; r < RANKS; r++)
        afdep_tcp_link_clear(&w.links[r]);
    w.meeting.group = afdep_fuzz_group(0, RANKS);
    w.meeting.job_key = afdep_fuzz_key;
    uint8_t how = afdep_fuzz_u8(&input);
    for (int guests = how % (GUESTS + 1); guests > 0; guests--)
        receive_guest(&w, &input);
    while (input.left > 0)
        say_message(&w, &input);
    for (int i = 0; i < w.count; i++)
        (void)shutdown(w.ends[i], SHUT_WR); /* nothing more comes, so that nobody waits for it */
    /* Without them all a collective only waits for its deadline, which is no news and slow. */
    if (everybody_came(w.meeting.group) || how & 0x80)
        collect_twice(w.meeting.group, how >> 3 & 15);
    while (w.meeting.count > 0)
        dismiss(&w.meeting, w.meeting.count - 1);
    for (int i = 0; i < w.count; i++)
        close(w.ends[i]);
    afdep_fuzz_group_free(w.meeting.group);
    return 0;
}
