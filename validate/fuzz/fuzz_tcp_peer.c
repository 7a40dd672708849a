/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap as another rank hears it: what answers its greeting, rightly or not, the verdict on its proof, and rank
 * 0's messages in the meeting and in two collectives. All of it waits in the socket before the rank begins.
 */
#define afdep_random_bytes afdep_fuzz_random_bytes
#include "core/tcp_peer.c" /* NOLINT: its static functions are what is tested */
#undef afdep_random_bytes

#include <stdlib.h>
#include <sys/socket.h>

#include "validate/fuzz/lib/input.h"
#include "validate/fuzz/lib/tcp.h"

enum { RANK = 3, SIZE = 11 };

/* Writes the root's side of the meeting; what the rank will then believe goes to `said`. */
static void answer(int fd, afdep_fuzz_input_t *input, uint8_t how, afdep_tcp_transcript_t *said)
{
    uint8_t challenge[AFDEP_TCP_CHALLENGE_BYTES], verdict[AFDEP_TCP_VERDICT_BYTES];
    uint32_t code = how >> 4 & 7;
    *said = (afdep_tcp_transcript_t){ .rank = RANK, .size = SIZE, .root_size = how & 4 ? afdep_fuzz_u32(input) : SIZE };
    (void)afdep_fuzz_random_bytes(said->nonce, sizeof(said->nonce));
    afdep_tcp_encode_challenge(said, challenge);
    afdep_tcp_put32(verdict, code);
    AFDEP_FUZZ_EXPECT(afdep_tcp_derive(afdep_fuzz_key, AFDEP_TCP_LABEL_VERDICT, code, said, verdict + 4));
    if (how & 1)
        afdep_fuzz_send_raw(fd, input, afdep_fuzz_u8(input));
    else
        (void)!send(fd, challenge, sizeof(challenge), MSG_NOSIGNAL);
    if (how & 2)
        afdep_fuzz_send_raw(fd, input, afdep_fuzz_u8(input));
    else
        (void)!send(fd, verdict, sizeof(verdict), MSG_NOSIGNAL);
}

static void say_messages(int fd, afdep_fuzz_input_t *input, const afdep_tcp_transcript_t *said,
                         const afdep_tcp_group_t *group)
{
    afdep_tcp_link_t link;
    AFDEP_FUZZ_EXPECT(afdep_tcp_link_open(&link, fd, true, afdep_fuzz_key, said));
    while (input->left > 0) {
        uint8_t how = afdep_fuzz_u8(input);
        if (how & 0x80)
            afdep_fuzz_send_raw(fd, input, how & 0x7f);
        else
            afdep_fuzz_send_signed(&link, input, group);
    }
}

static void collect_twice(afdep_tcp_group_t *group, size_t bytes)
{
    uint8_t own[16] = { 0 }, *all = malloc(SIZE * bytes + 1);
    AFDEP_FUZZ_EXPECT(all);
    afdep_status_t status = afdep_tcp_await_result(group, NULL, 0, afdep_now_ms() + 1);
    for (int i = 0; i < 2; i++) {
        AFDEP_FUZZ_EXPECT(status == AFDEP_OK || status == AFDEP_ERR_BOOTSTRAP);
        status = afdep_tcp_allgather(group, own, all, bytes);
    }
    free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    afdep_fuzz_input_t input = { data, size };
    afdep_tcp_group_t *group = afdep_fuzz_group(RANK, SIZE);
    afdep_tcp_attempt_t attempt = { .group = group, .job_key = afdep_fuzz_key };
    afdep_tcp_transcript_t said;
    uint8_t how = afdep_fuzz_u8(&input), bytes = afdep_fuzz_u8(&input) & 15;
    int ends[2];
    afdep_fuzz_pair(ends);
    answer(ends[1], &input, how, &said);
    say_messages(ends[1], &input, &said, group);
    (void)shutdown(ends[1], SHUT_WR); /* nothing more comes, so that nobody waits for it */
    attempt.fd = ends[0];
    attempt.deadline = afdep_now_ms() + 1000;
    afdep_tcp_outcome_t outcome = prove(&attempt);
    if (outcome == ADMITTED)
        outcome = hear_verdict(&attempt);
    if (outcome == ADMITTED) {
        AFDEP_FUZZ_EXPECT(afdep_tcp_link_open(&group->links[0], ends[0], false, afdep_fuzz_key, &attempt.transcript));
        collect_twice(group, bytes);
    } else {
        AFDEP_FUZZ_EXPECT(attempt.why[0] != 0);
        close(ends[0]);
    }
    close(ends[1]);
    afdep_fuzz_group_free(group);
    return 0;
}
