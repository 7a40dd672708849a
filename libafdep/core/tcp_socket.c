/* SPDX-License-Identifier: Apache-2.0 */
/* Resolving, binding, accepting and connecting, with every wait bounded by a deadline. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif

#include "core/tcp_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"

static bool is_wildcard(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(six))
        return six->s6_addr32[3] == 0;
    return IN6_IS_ADDR_UNSPECIFIED(six);
}

static void write_place(afdep_tcp_address_t *address, const char *host, int port)
{
    char numeric[64];
    if (getnameinfo((const struct sockaddr *)&address->storage, address->length, numeric, sizeof numeric, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(numeric, sizeof numeric, "%.63s", host);
    snprintf(address->place, sizeof address->place, address->family == AF_INET6 ? "[%s]:%d" : "%s:%d", numeric, port);
}

afdep_status_t afdep_tcp_resolve(const char *host, int port, afdep_tcp_address_t *address)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int error = getaddrinfo(host, service, &hints, &found);
    if (error != 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "address \"%.200s\" does not resolve: %s", host,
                          error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    bool usable = found->ai_family == AF_INET || found->ai_family == AF_INET6;
    bool wildcard = usable && is_wildcard(found->ai_addr);
    if (usable) {
        memset(address, 0, sizeof *address);
        memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
        address->length = found->ai_addrlen;
        address->family = found->ai_family;
        write_place(address, host, port);
    }
    freeaddrinfo(found);
    if (!usable)
        return afdep_fail(AFDEP_ERR_SYSTEM, "address \"%.200s\" is neither IPv4 nor IPv6", host);
    if (wildcard)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "address \"%.200s\" is a wildcard, which would open port %d to every "
                          "network; give rank 0's own address", host, port);
    return AFDEP_OK;
}

static void set_no_delay(int fd)
{
    int on = 1;
    /* Only a matter of speed, so that a refusal does not matter. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* A rank that tries to connect before rank 0 listens can meet itself for an instant, when the kernel picks rank 0's
   port as its own; its socket then holds the port. So a port in use is tried again for a moment. */
static int bind_patiently(int fd, const afdep_tcp_address_t *address)
{
    const struct timespec pause = { .tv_nsec = 20 * 1000000 };
    for (int attempt = 0;; attempt++) {
        if (bind(fd, (const struct sockaddr *)&address->storage, address->length) == 0)
            return 0;
        if (errno != EADDRINUSE || attempt == 10)
            return -1;
        nanosleep(&pause, NULL);
    }
}

afdep_status_t afdep_tcp_listen(const afdep_tcp_address_t *address, int *out)
{
    int fd = socket(address->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "no socket for %s: %s", address->place, strerror(errno));
    int on = 1;
    bool ready = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
    if (ready && address->family == AF_INET6)
        ready = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0;
    ready = ready && bind_patiently(fd, address) == 0 && listen(fd, SOMAXCONN) == 0;
    if (!ready) {
        afdep_status_t status = afdep_fail(AFDEP_ERR_SYSTEM, "rank 0 cannot listen at %s: %s", address->place,
                                           strerror(errno));
        close(fd);
        return status;
    }
    *out = fd;
    return AFDEP_OK;
}

int afdep_tcp_accept(int listener)
{
    int fd;
    do {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    if (fd >= 0)
        set_no_delay(fd);
    return fd;
}

/* Waits for `events`. Returns 0 once they are there, ETIMEDOUT, or another errno value. */
static int await(int fd, short events, int64_t deadline)
{
    for (;;) {
        struct pollfd ready = { .fd = fd, .events = events };
        int left = afdep_ms_left(deadline);
        int count = poll(&ready, 1, left);
        if (count > 0)
            return 0;
        if (count < 0 && errno != EINTR)
            return errno;
        if (left == 0)
            return ETIMEDOUT;
    }
}

/* A connection from a port of this host to the same port: the kernel offers that where nobody listens yet. */
static bool met_itself(int fd)
{
    struct sockaddr_storage here, there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    socklen_t here_length = sizeof here, there_length = sizeof there;
    return getsockname(fd, (struct sockaddr *)&here, &here_length) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &there_length) == 0 && here_length == there_length &&
           memcmp(&here, &there, here_length) == 0;
}

static int finish_connect(int fd, int64_t deadline)
{
    int error = await(fd, POLLOUT, deadline);
    if (error != 0)
        return error;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        return errno;
    return error;
}

int afdep_tcp_connect(const afdep_tcp_address_t *address, int64_t deadline)
{
    int fd = socket(address->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    int error = 0;
    if (connect(fd, (const struct sockaddr *)&address->storage, address->length) != 0)
        error = errno == EINPROGRESS || errno == EINTR ? finish_connect(fd, deadline) : errno;
    if (error == 0 && met_itself(fd)) {
        /* Closed without a trace: a lingering socket would keep rank 0 from its port. */
        const struct linger none = { .l_onoff = 1, .l_linger = 0 };
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        error = ECONNREFUSED;
    }
    if (error != 0) {
        close(fd);
        errno = error;
        return -1;
    }
    set_no_delay(fd);
    return fd;
}

int afdep_tcp_read_whole(int fd, void *bytes, size_t count, int64_t deadline)
{
    uint8_t *next = bytes;
    while (count > 0) {
        ssize_t got = recv(fd, next, count, MSG_DONTWAIT);
        if (got == 0)
            return ECONNRESET;
        if (got > 0) {
            next += got;
            count -= (size_t)got;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int error = await(fd, POLLIN, deadline);
            if (error != 0)
                return error;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

int afdep_tcp_write_whole(int fd, const void *bytes, size_t count, int64_t deadline)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        ssize_t sent = send(fd, next, count, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            next += sent;
            count -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            int error = await(fd, POLLOUT, deadline);
            if (error != 0)
                return error;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}
