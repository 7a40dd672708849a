/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of the TCP bootstrap: one address, never a wildcard; close-on-exec, non-blocking, without delay. */
#ifndef AFDEP_CORE_TCP_SOCKET_H
#define AFDEP_CORE_TCP_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <afdep/status.h>

#define AFDEP_TCP_PLACE_BYTES 96

typedef struct afdep_tcp_address {
    struct sockaddr_storage storage;
    socklen_t length;
    int family;
    char place[AFDEP_TCP_PLACE_BYTES]; /* "127.0.0.1:29500", "[::1]:29500" */
} afdep_tcp_address_t;

/* Resolves `host` to its first address. ARGUMENT when that is a wildcard, SYSTEM when there is none. */
afdep_status_t afdep_tcp_resolve(const char *host, int port, afdep_tcp_address_t *address);

/* Binds exactly `address` and listens. SYSTEM with the reason. */
afdep_status_t afdep_tcp_listen(const afdep_tcp_address_t *address, int *fd);

/* Accepts one connection, ready for use. Returns -1 with errno: EAGAIN when none waits. */
int afdep_tcp_accept(int listener);

/* Connects before `deadline`. Returns the socket, or -1 with errno. */
int afdep_tcp_connect(const afdep_tcp_address_t *address, int64_t deadline);

/* Moves exactly `count` bytes before `deadline`. Returns 0 or an errno value: ETIMEDOUT, or ECONNRESET where the other
   side closed. */
int afdep_tcp_read_whole(int fd, void *bytes, size_t count, int64_t deadline);
int afdep_tcp_write_whole(int fd, const void *bytes, size_t count, int64_t deadline);

#endif
