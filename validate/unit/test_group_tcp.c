/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP group among ranks of good will: settings, the meeting, collectives, and ranks that are missing or die. */
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/group.h"
#include "tcp_ranks.h"

enum { MOST_RANKS = 9, LONG_MS = 20000 };

static void start_all(tcp_rank_t *ranks, int size)
{
    for (int rank = 0; rank < size; rank++)
        tcp_start(&ranks[rank]);
}

static void join_all(tcp_rank_t *ranks, int size)
{
    for (int rank = 0; rank < size; rank++)
        tcp_join(&ranks[rank]);
}

static void expect_error(const tcp_rank_t *rank, afdep_status_t status, const char *words)
{
    assert_int_equal(rank->ran, status);
    if (strstr(rank->error, words) == NULL)
        fail_msg("rank %d says \"%s\", not \"%s\"", rank->tcp.rank, rank->error, words);
}

/* ---- Contents ------------------------------------------------------------------------------------------------- */

static afdep_status_t gather_sizes(tcp_rank_t *self)
{
    static const size_t sizes[] = { 0, 1, 8, 333, 70000, 1 << 20 };
    afdep_status_t status = AFDEP_OK;
    for (int round = 0; round < 12 && status == AFDEP_OK; round++) {
        size_t bytes = sizes[round % 6];
        if (bytes > 100000 && self->group.size != 1 && self->group.size != 3)
            continue;
        status = tcp_gather_once(self, bytes, round);
        if (status == AFDEP_OK && round % 2 == 0)
            status = afdep_group_barrier(&self->group);
    }
    return status;
}

static void test_contents(void **state)
{
    (void)state;
    int before = tcp_count_descriptors();
    for (int size = 1; size <= MOST_RANKS; size++) {
        tcp_rank_t ranks[MOST_RANKS];
        tcp_prepare(ranks, size, tcp_free_port(), LONG_MS);
        for (int rank = 0; rank < size; rank++)
            ranks[rank].body = gather_sizes;
        start_all(ranks, size);
        join_all(ranks, size);
        for (int rank = 0; rank < size; rank++) {
            assert_int_equal(ranks[rank].ran, AFDEP_OK);
            assert_int_equal(ranks[rank].wrong, 0);
        }
    }
    assert_int_equal(tcp_count_descriptors(), before);
}

/* In place: a rank's contribution already stands in its place of the result. */
static afdep_status_t gather_in_place(tcp_rank_t *self)
{
    uint32_t all[3] = { 0 };
    all[self->group.rank] = 100u + (uint32_t)self->group.rank;
    afdep_status_t status = afdep_group_allgather(&self->group, &all[self->group.rank], all, sizeof all[0]);
    for (uint32_t i = 0; i < 3; i++)
        self->wrong += all[i] != 100u + i;
    return status;
}

static void test_in_place_and_late_root(void **state)
{
    (void)state;
    tcp_rank_t ranks[3];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    for (int rank = 2; rank >= 0; rank--) {
        ranks[rank].body = gather_in_place;
        tcp_start(&ranks[rank]);
        tcp_sleep_ms(rank > 0 ? 60 : 0); /* the others knock before rank 0 listens */
    }
    join_all(ranks, 3);
    for (int rank = 0; rank < 3; rank++) {
        assert_int_equal(ranks[rank].ran, AFDEP_OK);
        assert_int_equal(ranks[rank].wrong, 0);
    }
}

static void test_ipv6(void **state)
{
    (void)state;
    const struct sockaddr_in6 here = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int none = fd < 0 || bind(fd, (const struct sockaddr *)&here, sizeof here) != 0;
    if (fd >= 0)
        close(fd);
    if (none) {
        print_message("skipped: this machine has no address ::1\n");
        skip();
    }
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    ranks[0].tcp.address = "::1";
    ranks[1].tcp.address = "::1";
    start_all(ranks, 2);
    join_all(ranks, 2);
    assert_int_equal(ranks[0].ran, AFDEP_OK);
    assert_int_equal(ranks[1].ran, AFDEP_OK);
}

static afdep_status_t look_at_sockets(tcp_rank_t *self)
{
    afdep_status_t status = afdep_group_barrier(&self->group);
    if (status == AFDEP_OK && self->group.rank == 0) {
        self->wrong += !tcp_all_close_on_exec();
        self->wrong += tcp_dial(1, self->tcp.port, 0) >= 0; /* nobody is let in after the meeting */
    }
    return status == AFDEP_OK ? afdep_group_barrier(&self->group) : status;
}

static void test_sockets(void **state)
{
    (void)state;
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    ranks[0].body = look_at_sockets;
    ranks[1].body = look_at_sockets;
    start_all(ranks, 2);
    join_all(ranks, 2);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(ranks[rank].ran, AFDEP_OK);
        assert_int_equal(ranks[rank].wrong, 0);
    }
}

/* ---- Settings ------------------------------------------------------------------------------------------------- */

static void refuses(const afdep_tcp_t *tcp, afdep_status_t status, const char *words)
{
    afdep_group_t group;
    memset(&group, 0x55, sizeof group);
    afdep_group_t before = group;
    assert_int_equal(afdep_group_tcp_create(tcp, &group), status);
    if (strstr(afdep_last_error(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", afdep_last_error(), words);
    assert_memory_equal(&group, &before, sizeof group);
}

static afdep_tcp_t good_settings(int rank)
{
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, 29500, 300);
    return ranks[rank].tcp;
}

static void clear_environment(void)
{
    static const char *const names[] = { "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "AFDEP_JOB_TOKEN",
                                         "AFDEP_JOB_TOKEN_FILE" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

static void test_wildcards(void **state)
{
    (void)state;
    static const char *const wildcards[] = { "0.0.0.0", "::", "::ffff:0.0.0.0", "0" };
    for (size_t i = 0; i < sizeof wildcards / sizeof wildcards[0]; i++) {
        for (int rank = 0; rank < 2; rank++) {
            afdep_tcp_t tcp = good_settings(rank);
            tcp.address = wildcards[i];
            refuses(&tcp, AFDEP_ERR_ARGUMENT, "wildcard");
        }
    }
}

static void test_fields(void **state)
{
    (void)state;
    clear_environment();
    afdep_tcp_t tcp = good_settings(0);
    assert_int_equal(afdep_group_tcp_create(&tcp, NULL), AFDEP_ERR_ARGUMENT);
    refuses(NULL, AFDEP_ERR_ARGUMENT, "tcp is NULL");
    tcp.struct_size = sizeof tcp - 8;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "struct_size");
    tcp = good_settings(0);
    tcp.rank = 2;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "tcp.rank is 2; it must be in 0 .. 1");
    tcp.rank = -2;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "tcp.rank is -2");
    tcp.rank = -1;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "RANK is not set");
    tcp = good_settings(0);
    tcp.size = -1;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "tcp.size is -1");
    tcp.size = 0;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "WORLD_SIZE");
    tcp = good_settings(0);
    tcp.port = 65536;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "tcp.port is 65536");
    tcp = good_settings(0);
    tcp.timeout_ms = -5;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "timeout_ms is -5");
    tcp = good_settings(0);
    tcp.address = NULL;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "MASTER_ADDR");
    tcp.address = "";
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "empty");
    tcp.address = "no such host.invalid";
    refuses(&tcp, AFDEP_ERR_SYSTEM, "does not resolve");
    tcp.address = "192.0.2.1"; /* an address of documentation, which no machine has */
    refuses(&tcp, AFDEP_ERR_SYSTEM, "192.0.2.1:29500");
}

static void test_tokens(void **state)
{
    (void)state;
    clear_environment();
    afdep_tcp_t tcp = good_settings(0);
    tcp.token = "fifteen letters";
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "15 characters; at least 16");
    assert_null(strstr(afdep_last_error(), "fifteen letters"));
    tcp.token = NULL;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "no job token");
    setenv("AFDEP_JOB_TOKEN", "short", 1);
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "(AFDEP_JOB_TOKEN) has 5 characters");
    setenv("AFDEP_JOB_TOKEN_FILE", "/nonexistent/token", 1);
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "/nonexistent/token");
    char long_token[5000];
    memset(long_token, 'x', sizeof long_token - 1);
    long_token[sizeof long_token - 1] = '\0';
    tcp.token = long_token;
    refuses(&tcp, AFDEP_ERR_ARGUMENT, "more than 4096");
    clear_environment();
}

/* Rank 0 takes everything from the environment and the token from a file, rank 1 from fields: they meet. */
static void test_environment(void **state)
{
    (void)state;
    char path[] = "/tmp/afdep-token-XXXXXX", port[16];
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, TOKEN "\n", sizeof TOKEN), (ssize_t)sizeof TOKEN);
    close(fd);
    snprintf(port, sizeof port, "%d", ranks[1].tcp.port);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", port, 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("AFDEP_JOB_TOKEN_FILE", path, 1);
    setenv("AFDEP_JOB_TOKEN", "the file goes before this one", 1);
    ranks[0].tcp = (afdep_tcp_t)AFDEP_TCP_INIT;
    ranks[0].tcp.timeout_ms = LONG_MS;
    ranks[1].tcp.address = "localhost";
    start_all(ranks, 2);
    join_all(ranks, 2);
    unlink(path);
    assert_int_equal(ranks[0].ran, AFDEP_OK);
    assert_int_equal(ranks[1].ran, AFDEP_OK);
    setenv("RANK", "1x", 1);
    refuses(&ranks[0].tcp, AFDEP_ERR_ARGUMENT, "RANK is \"1x\"");
    setenv("RANK", "2", 1);
    refuses(&ranks[0].tcp, AFDEP_ERR_ARGUMENT, "RANK is \"2\": a whole number from 0 to 1");
    clear_environment();
}

static void test_one_rank_needs_no_network(void **state)
{
    (void)state;
    clear_environment();
    int before = tcp_count_descriptors();
    tcp_rank_t rank = { .tcp = AFDEP_TCP_INIT };
    rank.tcp.rank = 0;
    rank.tcp.size = 1;
    assert_int_equal(afdep_group_tcp_create(&rank.tcp, &rank.group), AFDEP_OK);
    assert_int_equal(tcp_count_descriptors(), before);
    assert_int_equal(tcp_gather_once(&rank, 100, 1), AFDEP_OK);
    assert_int_equal(rank.wrong, 0);
    assert_int_equal(afdep_group_barrier(&rank.group), AFDEP_OK);
    afdep_group_destroy(&rank.group);
}

static void test_port_in_use(void **state)
{
    (void)state;
    char words[64];
    tcp_rank_t ranks[2], other[2];
    tcp_prepare(ranks, 2, tcp_free_port(), LONG_MS);
    tcp_prepare(other, 2, ranks[0].tcp.port, LONG_MS);
    tcp_start(&ranks[0]);
    close(tcp_dial(1, ranks[0].tcp.port, 1)); /* rank 0 listens */
    tcp_start(&other[0]);
    tcp_join(&other[0]);
    snprintf(words, sizeof words, "cannot listen at 127.0.0.1:%d", ranks[0].tcp.port);
    expect_error(&other[0], AFDEP_ERR_SYSTEM, words);
    tcp_start(&ranks[1]);
    join_all(ranks, 2);
    assert_int_equal(ranks[0].ran, AFDEP_OK);
    assert_int_equal(ranks[1].ran, AFDEP_OK);
}

/* ---- Missing, late and dead ranks ----------------------------------------------------------------------------- */

static void test_missing_ranks_are_named(void **state)
{
    (void)state;
    /* Whoever's deadline passes first, all say the same: rank 0's own, or that of rank 1 or 3. */
    for (int impatient = 0; impatient < 4; impatient += 3) {
        char words[96];
        tcp_rank_t ranks[5];
        tcp_prepare(ranks, 5, tcp_free_port(), LONG_MS);
        ranks[impatient].tcp.timeout_ms = 700;
        snprintf(words, sizeof words, "ranks 2, 4 of 5 did not come to 127.0.0.1:%d within 700 ms",
                 ranks[0].tcp.port);
        tcp_start(&ranks[0]);
        tcp_start(&ranks[1]);
        tcp_start(&ranks[3]);
        tcp_join(&ranks[0]);
        tcp_join(&ranks[1]);
        tcp_join(&ranks[3]);
        expect_error(&ranks[0], AFDEP_ERR_BOOTSTRAP, words);
        expect_error(&ranks[1], AFDEP_ERR_BOOTSTRAP, words);
        expect_error(&ranks[3], AFDEP_ERR_BOOTSTRAP, words);
    }
}

static void test_missing_root_is_named(void **state)
{
    (void)state;
    char words[96];
    tcp_rank_t ranks[2];
    tcp_prepare(ranks, 2, tcp_free_port(), 200);
    snprintf(words, sizeof words, "rank 0 of 2 did not come to 127.0.0.1:%d within 200 ms", ranks[1].tcp.port);
    tcp_start(&ranks[1]);
    tcp_join(&ranks[1]);
    expect_error(&ranks[1], AFDEP_ERR_BOOTSTRAP, words);
}

/* The late rank waits until the others have given up, and then learns that it is the late one. */
static afdep_status_t come_late(tcp_rank_t *self)
{
    pthread_barrier_t *others_done = self->more;
    if (self->group.rank == 2)
        pthread_barrier_wait(others_done);
    afdep_status_t status = tcp_gather_once(self, 8, 0);
    if (self->group.rank != 2)
        pthread_barrier_wait(others_done);
    /* The group stays broken, in the same words. */
    return status == AFDEP_ERR_BOOTSTRAP ? afdep_group_barrier(&self->group) : AFDEP_OK;
}

static void test_late_rank_is_named(void **state)
{
    (void)state;
    for (int impatient = 0; impatient < 2; impatient++) {
        char words[128];
        pthread_barrier_t others_done;
        tcp_rank_t ranks[3];
        tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
        ranks[impatient].tcp.timeout_ms = 800;
        pthread_barrier_init(&others_done, NULL, 3);
        for (int rank = 0; rank < 3; rank++) {
            ranks[rank].body = come_late;
            ranks[rank].more = &others_done;
        }
        start_all(ranks, 3);
        join_all(ranks, 3);
        pthread_barrier_destroy(&others_done);
        snprintf(words, sizeof words, "rank 2 of 3 did not come to collective 1 of the group at 127.0.0.1:%d within "
                 "800 ms", ranks[0].tcp.port);
        for (int rank = 0; rank < 3; rank++)
            expect_error(&ranks[rank], AFDEP_ERR_BOOTSTRAP, words);
    }
}

static afdep_status_t gather_twice(tcp_rank_t *self)
{
    afdep_status_t status = tcp_gather_once(self, 8, 0);
    return status == AFDEP_OK ? tcp_gather_once(self, self->more != NULL ? 400000 : 8, 1) : status;
}

/* A process of its own that takes part in one collective and is killed, in the second at the latest. */
static void be_killed(afdep_tcp_t *tcp)
{
    tcp_rank_t self;
    memset(&self, 0, sizeof self);
    if (afdep_group_tcp_create(tcp, &self.group) == AFDEP_OK && tcp_gather_once(&self, 8, 0) == AFDEP_OK)
        raise(SIGKILL);
    _exit(1);
}

/* Rank `victim` of four dies between two collectives, small or large. All others name it, long before their deadline
   of 20 s (the test program's own limit would end it otherwise). */
static void kill_rank(int victim, int large)
{
    char words[32];
    int status = 0;
    tcp_rank_t ranks[4];
    tcp_prepare(ranks, 4, tcp_free_port(), LONG_MS);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        be_killed(&ranks[victim].tcp);
    for (int rank = 0; rank < 4; rank++) {
        ranks[rank].body = gather_twice;
        ranks[rank].more = large ? &status : NULL;
        if (rank != victim)
            tcp_start(&ranks[rank]);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    snprintf(words, sizeof words, "rank %d of 4 left the group", victim);
    for (int rank = 0; rank < 4; rank++) {
        if (rank == victim)
            continue;
        tcp_join(&ranks[rank]);
        assert_int_equal(ranks[rank].made, AFDEP_OK);
        expect_error(&ranks[rank], AFDEP_ERR_BOOTSTRAP, words);
    }
}

static void test_killed_rank_is_named(void **state)
{
    (void)state;
    kill_rank(2, 0);
    kill_rank(3, 1);
    kill_rank(0, 0);
    kill_rank(0, 1);
}

static afdep_status_t gather_uneven(tcp_rank_t *self)
{
    return tcp_gather_once(self, self->group.rank == 1 ? 16 : 8, 0);
}

static void test_lengths_that_differ(void **state)
{
    (void)state;
    tcp_rank_t ranks[3];
    tcp_prepare(ranks, 3, tcp_free_port(), LONG_MS);
    for (int rank = 0; rank < 3; rank++)
        ranks[rank].body = gather_uneven;
    start_all(ranks, 3);
    join_all(ranks, 3);
    expect_error(&ranks[0], AFDEP_ERR_BOOTSTRAP, "rank 1 sent a message of 16 bytes where 8 are expected");
    expect_error(&ranks[2], AFDEP_ERR_BOOTSTRAP, "rank 1 of 3 broke collective 1");
    assert_int_equal(ranks[1].ran, AFDEP_ERR_BOOTSTRAP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_in_place_and_late_root),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_sockets),
        cmocka_unit_test(test_wildcards),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_one_rank_needs_no_network),
        cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_missing_root_is_named),
        cmocka_unit_test(test_late_rank_is_named),
        cmocka_unit_test(test_killed_rank_is_named),
        cmocka_unit_test(test_lengths_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
