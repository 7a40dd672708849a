/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks, strangers and hand-made peers for the tests of the TCP group. */
#include "tcp_ranks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/group.h"

void tcp_sleep_ms(int ms)
{
    const struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L };
    nanosleep(&pause, NULL);
}

static struct sockaddr_in loopback(int host, int port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                 .sin_addr.s_addr = htonl(0x7f000000u + (uint32_t)host) };
}

int tcp_free_port(void)
{
    struct sockaddr_in address = loopback(1, 0);
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}

void tcp_prepare(tcp_rank_t *ranks, int size, int port, int timeout_ms)
{
    memset(ranks, 0, (size_t)size * sizeof *ranks);
    for (int rank = 0; rank < size; rank++) {
        ranks[rank].tcp = (afdep_tcp_t)AFDEP_TCP_INIT;
        ranks[rank].tcp.address = "127.0.0.1";
        ranks[rank].tcp.port = port;
        ranks[rank].tcp.rank = rank;
        ranks[rank].tcp.size = size;
        ranks[rank].tcp.token = TOKEN;
        ranks[rank].tcp.timeout_ms = timeout_ms;
    }
}

static uint8_t pattern(int rank, int round, size_t i)
{
    return (uint8_t)(31 * rank + 7 * round + (int)(i % 251) + 1);
}

afdep_status_t tcp_gather_once(tcp_rank_t *self, size_t bytes, int round)
{
    size_t total = bytes * (size_t)self->group.size;
    uint8_t *mine = calloc(1, bytes + 1), *all = malloc(total + 1);
    for (size_t i = 0; i < bytes; i++)
        mine[i] = pattern(self->group.rank, round, i);
    memset(all, 0xdd, total + 1);
    afdep_status_t status = afdep_group_allgather(&self->group, mine, all, bytes);
    if (status == AFDEP_OK) {
        for (size_t i = 0; i < total; i++)
            self->wrong += all[i] != pattern((int)(i / bytes), round, i % bytes);
    }
    self->wrong += all[total] != 0xdd;
    free(all);
    free(mine);
    return status;
}

static void *run(void *argument)
{
    tcp_rank_t *self = argument;
    self->made = afdep_group_tcp_create(&self->tcp, &self->group);
    self->ran = self->made;
    if (self->made == AFDEP_OK)
        self->ran = self->body != NULL ? self->body(self) : tcp_gather_once(self, 8, 0);
    snprintf(self->error, sizeof self->error, "%.767s", afdep_last_error());
    return NULL;
}

void tcp_start(tcp_rank_t *rank)
{
    assert_int_equal(pthread_create(&rank->thread, NULL, run, rank), 0);
}

void tcp_join(tcp_rank_t *rank)
{
    assert_int_equal(pthread_join(rank->thread, NULL), 0);
    afdep_group_destroy(&rank->group);
}

int tcp_dial(int host, int port, int patient)
{
    for (;;) {
        struct sockaddr_in there = loopback(host, port), here = { 0 };
        socklen_t length = sizeof here;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int failed = connect(fd, (struct sockaddr *)&there, sizeof there) != 0;
        if (!failed && getsockname(fd, (struct sockaddr *)&here, &length) == 0 && here.sin_port != there.sin_port)
            return fd;
        close(fd);
        if (!patient)
            return -1;
        tcp_sleep_ms(2);
    }
}

int tcp_put(int fd, const void *bytes, size_t count)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        ssize_t sent = send(fd, next, count, MSG_NOSIGNAL);
        if (sent <= 0)
            return 0;
        next += sent;
        count -= (size_t)sent;
    }
    return 1;
}

int tcp_get(int fd, void *bytes, size_t count)
{
    uint8_t *next = bytes;
    while (count > 0) {
        ssize_t got = recv(fd, next, count, 0);
        if (got <= 0)
            return 0;
        next += got;
        count -= (size_t)got;
    }
    return 1;
}

int tcp_closes(int fd, int ms)
{
    char rest[256];
    for (;;) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        if (poll(&ready, 1, ms) <= 0)
            return 0;
        if (recv(fd, rest, sizeof rest, 0) <= 0)
            return 1;
    }
}

int tcp_handshake(int fd, int rank, int size, const char *token, uint8_t key_out[32], uint8_t key_in[32])
{
    afdep_tcp_transcript_t transcript = { .rank = (uint32_t)rank, .size = (uint32_t)size };
    uint8_t hello[AFDEP_TCP_HELLO_BYTES], challenge[AFDEP_TCP_CHALLENGE_BYTES], verdict[AFDEP_TCP_VERDICT_BYTES];
    uint8_t key[AFDEP_TCP_KEY_BYTES], proof[AFDEP_TCP_PROOF_BYTES];
    afdep_tcp_encode_hello(&transcript, hello);
    if (!tcp_put(fd, hello, sizeof hello) || !tcp_get(fd, challenge, sizeof challenge) ||
        !afdep_tcp_decode_challenge(challenge, &transcript) || !afdep_tcp_job_key(token, key) ||
        !afdep_tcp_derive(key, AFDEP_TCP_LABEL_PROOF, 0, &transcript, proof) ||
        !afdep_tcp_derive(key, AFDEP_TCP_LABEL_TO_ROOT, 0, &transcript, key_out) ||
        !afdep_tcp_derive(key, AFDEP_TCP_LABEL_FROM_ROOT, 0, &transcript, key_in) ||
        !tcp_put(fd, proof, sizeof proof) || !tcp_get(fd, verdict, sizeof verdict))
        return -1;
    return (int)afdep_tcp_get32(verdict);
}

int tcp_put_message(int fd, const afdep_tcp_header_t *header, const void *payload, size_t bytes,
                    const uint8_t key[32], int spoil)
{
    uint8_t encoded[AFDEP_TCP_HEADER_BYTES], mac[AFDEP_HMAC_BYTES];
    afdep_tcp_encode_header(header, encoded);
    const struct iovec parts[2] = { { encoded, sizeof encoded }, { (void *)payload, bytes } };
    if (!afdep_hmac_sha256(key, 32, parts, 2, mac))
        return 0;
    mac[31] ^= spoil ? 1 : 0;
    return tcp_put(fd, encoded, sizeof encoded) && tcp_put(fd, payload, bytes) && tcp_put(fd, mac, sizeof mac);
}

int tcp_count_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

int tcp_all_close_on_exec(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct stat about;
        if (fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode) && (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0)
            return 0;
    }
    return 1;
}
