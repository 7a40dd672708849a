/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the TCP group share: ranks as threads that only record, free ports, raw strangers, and the
   handshake done by hand for peers that know the token and misbehave. */
#ifndef AFDEP_VALIDATE_UNIT_TCP_RANKS_H
#define AFDEP_VALIDATE_UNIT_TCP_RANKS_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <afdep/group.h>

#include "core/tcp_wire.h"

#define TOKEN "a token that only this job has"

/* One rank's thread. `body` runs once the group is there; NULL does one allgather of 8 bytes. */
typedef struct tcp_rank {
    afdep_tcp_t tcp;
    afdep_status_t (*body)(struct tcp_rank *self);
    void *more;         /* for the body */
    afdep_group_t group;
    afdep_status_t made; /* what the maker returned */
    afdep_status_t ran;  /* what the body returned */
    int wrong;           /* bytes that were not what they should be */
    char error[768];
    pthread_t thread;
} tcp_rank_t;

/* A port of 127.0.0.1 on which nobody listens. */
int tcp_free_port(void);

/* Fills `ranks` with the settings of `size` ranks that meet at `port`. */
void tcp_prepare(tcp_rank_t *ranks, int size, int port, int timeout_ms);

void tcp_start(tcp_rank_t *rank);

/* Joins the thread and destroys its group. */
void tcp_join(tcp_rank_t *rank);

/* An allgather of `bytes` bytes with its contents checked, `round` making them differ from call to call. */
afdep_status_t tcp_gather_once(tcp_rank_t *self, size_t bytes, int round);

/* A raw connection to 127.0.0.`host`:`port`, tried until it is there; -1 when it is refused and `patient` is 0. */
int tcp_dial(int host, int port, int patient);

/* Sends and receives exactly `count` bytes; returns 0 when the other side closed. */
int tcp_put(int fd, const void *bytes, size_t count);
int tcp_get(int fd, void *bytes, size_t count);

/* Whether the other side closes the connection within `ms` milliseconds, whatever it sends before. */
int tcp_closes(int fd, int ms);

/* Hello, challenge and proof by hand, as `rank` of `size` with `token`. Returns the verdict, or -1. `key_out` and
   `key_in` are the session's. */
int tcp_handshake(int fd, int rank, int size, const char *token, uint8_t key_out[32], uint8_t key_in[32]);

/* A message by hand: header as given, payload, and a MAC under `key`, wrong in one bit where `spoil`. */
int tcp_put_message(int fd, const afdep_tcp_header_t *header, const void *payload, size_t bytes,
                    const uint8_t key[32], int spoil);

/* Open descriptors of this process, to see that none is left. */
int tcp_count_descriptors(void);

/* Whether every socket of this process is closed on exec. */
int tcp_all_close_on_exec(void);

void tcp_sleep_ms(int ms);

#endif
