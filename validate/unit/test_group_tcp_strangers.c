/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP group among strangers: whoever does not know the token is dropped without harm or delay, whoever answers in
   rank 0's place is not believed, and one who knows the token and misbehaves is named. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/group.h"
#include "tcp_ranks.h"

/* Less than the three seconds after which rank 0 hangs up on those who are merely silent. */
enum { LONG_MS = 20000, AT_ONCE_MS = 2500, SILENT = 150 };

static void expect_ok(tcp_rank_t *rank)
{
    if (rank->ran != AFDEP_OK)
        fail_msg("rank %d: %s", rank->tcp.rank, rank->error);
    assert_int_equal(rank->wrong, 0);
}

static void expect_error(const tcp_rank_t *rank, const char *words)
{
    assert_int_equal(rank->ran, AFDEP_ERR_BOOTSTRAP);
    if (strstr(rank->error, words) == NULL)
        fail_msg("rank %d says \"%s\", not \"%s\"", rank->tcp.rank, rank->error, words);
}

/* ---- Strangers at rank 0's door ------------------------------------------------------------------------------- */

static const uint8_t good_start[] = "AFDEP.HI\0\0\0\1\0\0\0\1\0\0\0\3";

/* A stranger each: what it sends, and whether rank 0 knows enough by then to hang up. */
typedef struct stranger {
    const void *bytes;
    size_t count;
    int dropped;
} stranger_t;

static void test_strangers_are_dropped(void **state)
{
    (void)state;
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char other_version[] = "AFDEP.HI\0\0\0\2";
    static uint8_t flood[200000];
    const stranger_t strangers[] = {
        { http, sizeof http - 1, 1 },           { "\0", 1, 1 },  { other_version, sizeof other_version - 1, 1 },
        { flood, sizeof flood, 1 },             { "", 0, 0 },    { good_start, sizeof good_start - 1, 0 },
        { good_start, 3, 0 },
    };
    enum { COUNT = sizeof strangers / sizeof strangers[0] };
    int before = tcp_count_descriptors(), fds[COUNT];
    tcp_rank_t ranks[3];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    tcp_start(&ranks[0]);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = tcp_dial(1, ranks[0].tcp.port, 1);
        (void)tcp_put(fds[i], strangers[i].bytes, strangers[i].count);
        if (strangers[i].dropped)
            assert_true(tcp_closes(fds[i], AT_ONCE_MS));
    }
    close(tcp_dial(1, ranks[0].tcp.port, 1)); /* a port scan */
    tcp_start(&ranks[1]);
    tcp_start(&ranks[2]);
    for (int rank = 0; rank < 3; rank++) {
        tcp_join(&ranks[rank]);
        expect_ok(&ranks[rank]);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_true(tcp_closes(fds[i], LONG_MS));
        close(fds[i]);
    }
    assert_int_equal(tcp_count_descriptors(), before);
}

/* A stranger who sends a good greeting a byte at a time is given up after a few seconds, even with nobody else there;
   and one who answers the challenge wrongly is told so and dropped. */
static void test_slow_and_ignorant_strangers(void **state)
{
    (void)state;
    uint8_t key_out[32], key_in[32];
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    tcp_start(&ranks[0]);
    int ignorant = tcp_dial(1, ranks[0].tcp.port, 1);
    assert_int_equal(tcp_handshake(ignorant, 1, 2, "not the token of this job", key_out, key_in),
                     AFDEP_TCP_WRONG_PROOF);
    assert_true(tcp_closes(ignorant, LONG_MS));
    close(ignorant);
    int slow = tcp_dial(1, ranks[0].tcp.port, 1), sent = 0;
    while (sent < 200 && tcp_put(slow, sent < 8 ? (const void *)&good_start[sent] : "\0", sent < 8 ? 1 : 0)) {
        char byte;
        tcp_sleep_ms(50);
        if (recv(slow, &byte, 1, MSG_DONTWAIT) == 0)
            break;
        sent++;
    }
    assert_true(sent < 200);
    close(slow);
    tcp_start(&ranks[1]);
    tcp_join(&ranks[0]);
    tcp_join(&ranks[1]);
    expect_ok(&ranks[0]);
    expect_ok(&ranks[1]);
}

/* More silent strangers than rank 0 has places: the ranks get in before the strangers' own time is over, so the whole
   meeting fits into less than that. */
static void test_crowd_of_silent_strangers(void **state)
{
    (void)state;
    int fds[SILENT];
    tcp_rank_t ranks[3];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    for (int rank = 1; rank < 3; rank++)
        ranks[rank].tcp.timeout_ms = 2700;
    tcp_start(&ranks[0]);
    for (int i = 0; i < SILENT; i++)
        fds[i] = tcp_dial(1, ranks[0].tcp.port, 1);
    tcp_start(&ranks[1]);
    tcp_start(&ranks[2]);
    for (int rank = 0; rank < 3; rank++)
        tcp_join(&ranks[rank]);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
    for (int rank = 0; rank < 3; rank++)
        expect_ok(&ranks[rank]);
}

static void test_wrong_token(void **state)
{
    (void)state;
    char words[160];
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    ranks[0].tcp.timeout_ms = 3000; /* it waits for the right rank 1 to the end */
    ranks[1].tcp.token = "a token that only that job has";
    tcp_start(&ranks[0]);
    tcp_start(&ranks[1]);
    tcp_join(&ranks[0]);
    tcp_join(&ranks[1]);
    expect_error(&ranks[1], "the job tokens differ");
    snprintf(words, sizeof words, "rank 1 of 2 did not come to 127.0.0.1:%d within 3000 ms; 1 connection was dropped, "
             "the last because it did not know the job token", ranks[0].tcp.port);
    expect_error(&ranks[0], words);
}

static void test_second_claimant(void **state)
{
    (void)state;
    tcp_rank_t ranks[3], again;
    uint8_t key_out[32], key_in[32];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    tcp_prepare(&again, 1, ranks[0].tcp.port, LONG_MS);
    again.tcp.rank = 1;
    again.tcp.size = 3;
    tcp_start(&ranks[0]);
    /* A first claimant that knows the token and dies makes room for the next. */
    int dead = tcp_dial(1, ranks[0].tcp.port, 1);
    assert_int_equal(tcp_handshake(dead, 1, 3, TOKEN, key_out, key_in), AFDEP_TCP_ADMITTED);
    int second = tcp_dial(1, ranks[0].tcp.port, 1);
    assert_int_equal(tcp_handshake(second, 1, 3, TOKEN, key_out, key_in), AFDEP_TCP_TAKEN_RANK);
    tcp_start(&again);
    tcp_join(&again);
    expect_error(&again, "another process came as this rank before");
    close(dead);
    close(second);
    tcp_start(&ranks[2]);
    tcp_sleep_ms(100); /* without rank 1 the meeting is not over */
    tcp_start(&ranks[1]);
    for (int rank = 0; rank < 3; rank++) {
        tcp_join(&ranks[rank]);
        expect_ok(&ranks[rank]);
    }
}

static void test_sizes_and_ranks_that_cannot_be(void **state)
{
    (void)state;
    uint8_t key_out[32], key_in[32];
    static const int ranks_out[] = { 0, 2, -1, 1 << 30 };
    tcp_rank_t ranks[2], other;
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    tcp_prepare(&other, 1, ranks[0].tcp.port, LONG_MS);
    other.tcp.rank = 1;
    other.tcp.size = 3;
    tcp_start(&ranks[0]);
    tcp_start(&other);
    tcp_join(&other);
    expect_error(&other, "rank 0 counts 2 ranks, this rank counts 3");
    for (size_t i = 0; i < sizeof ranks_out / sizeof ranks_out[0]; i++) {
        int fd = tcp_dial(1, ranks[0].tcp.port, 1);
        assert_int_equal(tcp_handshake(fd, ranks_out[i], 2, TOKEN, key_out, key_in), AFDEP_TCP_WRONG_RANK);
        assert_true(tcp_closes(fd, LONG_MS));
        close(fd);
    }
    tcp_start(&ranks[1]);
    tcp_join(&ranks[0]);
    tcp_join(&ranks[1]);
    expect_ok(&ranks[0]);
    expect_ok(&ranks[1]);
}

/* Rank 0 listens at its address and at no other of the same host. */
static void test_only_the_address_given(void **state)
{
    (void)state;
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    tcp_start(&ranks[0]);
    close(tcp_dial(1, ranks[0].tcp.port, 1));
    assert_int_equal(tcp_dial(2, ranks[0].tcp.port, 0), -1);
    tcp_start(&ranks[1]);
    tcp_join(&ranks[0]);
    tcp_join(&ranks[1]);
    expect_ok(&ranks[0]);
    expect_ok(&ranks[1]);
}

/* ---- Peers that know the token and misbehave ------------------------------------------------------------------ */

/* By hand: a place as rank 1 of three, up to the word that all are there. */
static int take_place(tcp_rank_t *ranks, uint8_t key_out[32])
{
    uint8_t key_in[32], started[AFDEP_TCP_HEADER_BYTES + AFDEP_HMAC_BYTES];
    tcp_start(&ranks[0]);
    tcp_start(&ranks[2]);
    int fd = tcp_dial(1, ranks[0].tcp.port, 1);
    assert_int_equal(tcp_handshake(fd, 1, 3, TOKEN, key_out, key_in), AFDEP_TCP_ADMITTED);
    assert_true(tcp_get(fd, started, sizeof started));
    return fd;
}

/* The contribution that tcp_gather_once() expects of rank 1 in round 0. */
static const uint8_t part_of_rank_1[8] = { 32, 33, 34, 35, 36, 37, 38, 39 };

typedef struct misdeed {
    afdep_tcp_header_t header;
    int spoil;
    const char *words;
} misdeed_t;

/* Rank 1 of three is admitted and then sends a message that it may not send, in place of its 8 bytes. Rank 0 must see
   that from the header or the MAC, whatever follows, and all others name rank 1. */
static void test_bad_messages(void **state)
{
    (void)state;
    static const misdeed_t misdeeds[] = {
        { { AFDEP_TCP_DATA, 1, UINT64_MAX, 0 }, 0, "a message of 18446744073709551615 bytes where 8 are expected" },
        { { AFDEP_TCP_DATA, 1, 1ull << 40, 0 }, 0, "a message of 1099511627776 bytes where 8 are expected" },
        { { AFDEP_TCP_DATA, 1, 7, 0 }, 0, "a message of 7 bytes where 8 are expected" },
        { { AFDEP_TCP_DATA, 1, 8, 0 }, 1, "a message whose MAC is wrong" },
        { { AFDEP_TCP_DATA, 1, 8, 1 }, 0, "a message out of turn" },
        { { AFDEP_TCP_DATA, 2, 8, 0 }, 0, "a message out of turn" },
        { { AFDEP_TCP_NOTICE, 1, 8, 0 }, 0, "a message out of turn" },
        { { AFDEP_TCP_EXPIRED, 1, 1 << 20, 0 }, 0, "a message of 1048576 bytes where 4 are expected" },
    };
    for (size_t i = 0; i < sizeof misdeeds / sizeof misdeeds[0]; i++) {
        uint8_t key_out[32];
        tcp_rank_t ranks[3];
        tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
        int fd = take_place(ranks, key_out);
        (void)tcp_put_message(fd, &misdeeds[i].header, part_of_rank_1, sizeof part_of_rank_1, key_out,
                              misdeeds[i].spoil);
        tcp_join(&ranks[0]);
        tcp_join(&ranks[2]);
        close(fd);
        expect_error(&ranks[0], misdeeds[i].words);
        expect_error(&ranks[0], "rank 1 of 3 broke collective 1");
        expect_error(&ranks[2], "rank 1 of 3 broke collective 1");
    }
}

/* Rank 1's call for a notice about the meeting crossed with the word that all are there: it means nothing any more. */
static void test_a_call_that_is_answered_already(void **state)
{
    (void)state;
    const afdep_tcp_header_t call = { AFDEP_TCP_EXPIRED, 0, AFDEP_TCP_EXPIRED_BYTES, 0 };
    const afdep_tcp_header_t part = { AFDEP_TCP_DATA, 1, sizeof part_of_rank_1, 1 };
    uint8_t key_out[32];
    tcp_rank_t ranks[3];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    int fd = take_place(ranks, key_out);
    assert_true(tcp_put_message(fd, &call, "\0\0\1\0", AFDEP_TCP_EXPIRED_BYTES, key_out, 0));
    assert_true(tcp_put_message(fd, &part, part_of_rank_1, sizeof part_of_rank_1, key_out, 0));
    tcp_join(&ranks[0]);
    tcp_join(&ranks[2]);
    close(fd);
    expect_ok(&ranks[0]);
    expect_ok(&ranks[2]);
}

/* Rank 2 comes to the collective only when rank 0 is out of it. */
static afdep_status_t gather_after_root(tcp_rank_t *self)
{
    pthread_barrier_t *root_done = self->more;
    if (self->group.rank == 2)
        pthread_barrier_wait(root_done);
    afdep_status_t status = tcp_gather_once(self, 8, 0);
    if (self->group.rank == 0)
        pthread_barrier_wait(root_done);
    return status;
}

/* A second contribution to the same collective is refused: it could change the first one's bytes under way. */
static void test_two_contributions(void **state)
{
    (void)state;
    uint8_t key_out[32];
    pthread_barrier_t root_done;
    tcp_rank_t ranks[3];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    pthread_barrier_init(&root_done, NULL, 2);
    for (int rank = 0; rank < 3; rank++) {
        ranks[rank].body = gather_after_root;
        ranks[rank].more = &root_done;
    }
    int fd = take_place(ranks, key_out);
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
        const afdep_tcp_header_t part = { AFDEP_TCP_DATA, 1, sizeof part_of_rank_1, sequence };
        assert_true(tcp_put_message(fd, &part, part_of_rank_1, sizeof part_of_rank_1, key_out, 0));
    }
    tcp_join(&ranks[0]);
    tcp_join(&ranks[2]);
    close(fd);
    pthread_barrier_destroy(&root_done);
    expect_error(&ranks[0], "rank 1 sent a message out of turn");
    expect_error(&ranks[2], "rank 1 of 3 broke collective 1");
}

/* ---- False rank 0 --------------------------------------------------------------------------------------------- */

/* Where the false rank 0's verdict comes from. */
typedef enum forgery { FROM_NOTHING, FROM_OTHER_TOKEN, FROM_THE_PROOF } forgery_t;

static int listen_at(int port)
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

/* Takes a rank's hello and proof, and forges an admission. Also looks for the token in what the rank sends. */
static void deceive(int fd, forgery_t forgery)
{
    afdep_tcp_transcript_t transcript = { .root_size = 2 };
    uint8_t heard[AFDEP_TCP_HELLO_BYTES + AFDEP_TCP_PROOF_BYTES], challenge[AFDEP_TCP_CHALLENGE_BYTES];
    uint8_t verdict[AFDEP_TCP_VERDICT_BYTES] = { 0 }, key[AFDEP_TCP_KEY_BYTES];
    afdep_tcp_encode_challenge(&transcript, challenge);
    assert_true(tcp_get(fd, heard, AFDEP_TCP_HELLO_BYTES));
    assert_true(tcp_put(fd, challenge, sizeof challenge));
    assert_true(tcp_get(fd, heard + AFDEP_TCP_HELLO_BYTES, AFDEP_TCP_PROOF_BYTES));
    for (size_t i = 0; i + 8 <= sizeof heard; i++)
        assert_memory_not_equal(heard + i, TOKEN, 8);
    afdep_tcp_decode_hello(heard, &transcript);
    if (forgery == FROM_OTHER_TOKEN) {
        assert_true(afdep_tcp_job_key("another token than this job's", key));
        assert_true(afdep_tcp_derive(key, AFDEP_TCP_LABEL_VERDICT, 0, &transcript, verdict + 4));
    } else if (forgery == FROM_THE_PROOF) {
        memcpy(verdict + 4, heard + AFDEP_TCP_HELLO_BYTES, AFDEP_TCP_PROOF_BYTES);
    }
    assert_true(tcp_put(fd, verdict, sizeof verdict));
    assert_true(tcp_closes(fd, LONG_MS));
}

/* A false rank 0 answers first, in three ways; the true one takes its place later, and the rank joins that one. */
static void test_false_root(void **state)
{
    (void)state;
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    int listener = listen_at(ranks[0].tcp.port);
    tcp_start(&ranks[1]);
    for (int forgery = FROM_NOTHING; forgery <= FROM_THE_PROOF; forgery++) {
        int fd = accept(listener, NULL, NULL);
        deceive(fd, (forgery_t)forgery);
        close(fd);
    }
    close(listener);
    tcp_start(&ranks[0]);
    tcp_join(&ranks[0]);
    tcp_join(&ranks[1]);
    expect_ok(&ranks[0]);
    expect_ok(&ranks[1]);
}

static void test_false_root_to_the_end(void **state)
{
    (void)state;
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), 400);
    int listener = listen_at(ranks[0].tcp.port);
    tcp_start(&ranks[1]);
    int fd = accept(listener, NULL, NULL);
    close(listener);
    deceive(fd, FROM_NOTHING);
    close(fd);
    tcp_join(&ranks[1]);
    expect_error(&ranks[1], "rank 0 of 2 did not come to 127.0.0.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_are_dropped),
        cmocka_unit_test(test_slow_and_ignorant_strangers),
        cmocka_unit_test(test_crowd_of_silent_strangers),
        cmocka_unit_test(test_wrong_token),
        cmocka_unit_test(test_second_claimant),
        cmocka_unit_test(test_sizes_and_ranks_that_cannot_be),
        cmocka_unit_test(test_only_the_address_given),
        cmocka_unit_test(test_bad_messages),
        cmocka_unit_test(test_a_call_that_is_answered_already),
        cmocka_unit_test(test_two_contributions),
        cmocka_unit_test(test_false_root),
        cmocka_unit_test(test_false_root_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
