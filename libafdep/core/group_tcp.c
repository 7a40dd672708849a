/* SPDX-License-Identifier: Apache-2.0 */
/* The TCP group's maker: settings from the caller or the launcher's environment, the job token, the group's memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <afdep/group.h>

#include "core/env.h"
#include "core/error.h"
#include "core/group.h"
#include "core/log.h"
#include "core/tcp_group.h"

#define TOKEN_AT_LEAST 16
#define TOKEN_AT_MOST 4096

/* ---- Settings ------------------------------------------------------------------------------------------------- */

/* A launcher's variable as a number from `low` to `high`. */
static afdep_status_t number_from_env(const char *name, const char *field, long low, long high, int *out)
{
    const char *text = afdep_env(name);
    if (text == NULL || text[0] == '\0')
        return afdep_fail(AFDEP_ERR_ARGUMENT, "tcp.%s is not given and the environment variable %s is not set", field,
                          name);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < low || value > high)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "environment variable %s is \"%.40s\": a whole number from %ld to %ld is "
                          "wanted", name, text, low, high);
    *out = (int)value;
    return AFDEP_OK;
}

static afdep_status_t resolve_number(int value, int unset, const char *field, const char *name, int low, int high,
                                     int *out)
{
    if (value == unset)
        return number_from_env(name, field, low, high, out);
    if (value < low || value > high)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "tcp.%s is %d; it must be in %d .. %d", field, value, low, high);
    *out = value;
    return AFDEP_OK;
}

static afdep_status_t resolve_place(const afdep_tcp_t *tcp, afdep_tcp_address_t *address)
{
    int port = 0;
    afdep_status_t status = resolve_number(tcp->port, 0, "port", "MASTER_PORT", 1, 65535, &port);
    if (status != AFDEP_OK)
        return status;
    const char *host = tcp->address != NULL ? tcp->address : afdep_env("MASTER_ADDR");
    if (host == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "tcp.address is not given and the environment variable MASTER_ADDR is "
                          "not set");
    if (host[0] == '\0')
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is empty; give rank 0's address",
                          tcp->address != NULL ? "tcp.address" : "environment variable MASTER_ADDR");
    return afdep_tcp_resolve(host, port, address);
}

static afdep_status_t check_struct(const afdep_tcp_t *tcp, const afdep_group_t *group)
{
    if (tcp == NULL || group == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is NULL", tcp == NULL ? "tcp" : "group");
    if (tcp->struct_size < sizeof *tcp || tcp->struct_size > sizeof *tcp + 4096)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "tcp.struct_size is %zu; start from AFDEP_TCP_INIT, which sets it to %zu",
                          tcp->struct_size, sizeof *tcp);
    const unsigned char *bytes = (const unsigned char *)tcp;
    for (size_t i = sizeof *tcp; i < tcp->struct_size; i++) {
        if (bytes[i] != 0)
            return afdep_fail(AFDEP_ERR_ARGUMENT, "tcp has a nonzero field at byte %zu that this version of the "
                              "library does not know", i);
    }
    if (tcp->timeout_ms < 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "tcp.timeout_ms is %d; it must be at least 0 (0: %d)", tcp->timeout_ms,
                          AFDEP_GROUP_TIMEOUT_MS);
    return AFDEP_OK;
}

/* ---- The job token -------------------------------------------------------------------------------------------- */

/* Reads up to `room` bytes. Returns the count, or -1 with errno. */
static ssize_t read_all(int fd, char *bytes, size_t room)
{
    size_t used = 0;
    while (used < room) {
        ssize_t got = read(fd, bytes + used, room - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

static void warn_if_open_to_all(int fd, const char *path)
{
    struct stat about;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & (S_IROTH | S_IWOTH)) != 0)
        afdep_log(AFDEP_LOG_WARN, "the job token file %s is open to every user of this machine (mode %03o)", path,
                  (unsigned)(about.st_mode & 0777));
}

/* Puts the content of the token file, less the white space at its end, into `token`. */
static afdep_status_t token_from_file(const char *path, char token[TOKEN_AT_MOST + 2])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the job token file %.200s (AFDEP_JOB_TOKEN_FILE) cannot be read: %s",
                          path, strerror(errno));
    warn_if_open_to_all(fd, path);
    ssize_t length = read_all(fd, token, TOKEN_AT_MOST + 1);
    int error = errno;
    close(fd);
    if (length < 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the job token file %.200s (AFDEP_JOB_TOKEN_FILE) cannot be read: %s",
                          path, strerror(error));
    while (length > 0 && strchr(" \t\r\n", token[length - 1]) != NULL && token[length - 1] != '\0')
        length--;
    token[length] = '\0';
    if (strlen(token) != (size_t)length)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the job token file %.200s (AFDEP_JOB_TOKEN_FILE) holds a zero byte",
                          path);
    return AFDEP_OK;
}

/* Judges the token and turns it into the job's key. The sentences name its length and never its content. */
static afdep_status_t key_from_token(const char *token, const char *origin, uint8_t key[AFDEP_TCP_KEY_BYTES])
{
    size_t length = strnlen(token, TOKEN_AT_MOST + 1);
    if (length < TOKEN_AT_LEAST)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the job token (%s) has %zu characters; at least %d are wanted", origin,
                          length, TOKEN_AT_LEAST);
    if (length > TOKEN_AT_MOST)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the job token (%s) has more than %d characters", origin, TOKEN_AT_MOST);
    if (!afdep_tcp_job_key(token, key))
        return afdep_fail(AFDEP_ERR_SYSTEM, "libcrypto refused HMAC-SHA256");
    return AFDEP_OK;
}

static afdep_status_t resolve_key(const afdep_tcp_t *tcp, uint8_t key[AFDEP_TCP_KEY_BYTES])
{
    if (tcp->token != NULL)
        return key_from_token(tcp->token, "tcp.token", key);
    const char *path = afdep_env("AFDEP_JOB_TOKEN_FILE");
    if (path != NULL && path[0] != '\0') {
        char token[TOKEN_AT_MOST + 2];
        afdep_status_t status = token_from_file(path, token);
        if (status == AFDEP_OK)
            status = key_from_token(token, "AFDEP_JOB_TOKEN_FILE", key);
        afdep_wipe(token, sizeof token);
        return status;
    }
    const char *token = afdep_env("AFDEP_JOB_TOKEN");
    if (token == NULL)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "no job token: set tcp.token, AFDEP_JOB_TOKEN_FILE or AFDEP_JOB_TOKEN "
                          "to the same secret on every rank");
    return key_from_token(token, "AFDEP_JOB_TOKEN", key);
}

/* ---- Group of one, and the group's memory --------------------------------------------------------------------- */

static void free_group(afdep_tcp_group_t *group)
{
    int links = group->links == NULL ? 0 : group->rank == 0 ? group->size : 1;
    for (int i = 0; i < links; i++)
        afdep_tcp_link_close(&group->links[i]);
    free(group->poll_ranks);
    free(group->polls);
    free(group->have);
    free(group->links);
    free(group->fault);
    free(group);
}

static afdep_tcp_group_t *allocate_group(int rank, int size, int timeout_ms)
{
    afdep_tcp_group_t *group = calloc(1, sizeof *group);
    if (group == NULL)
        return NULL;
    group->rank = rank;
    group->size = size;
    group->timeout_ms = timeout_ms;
    group->fault_bytes = AFDEP_TCP_NOTICE_PREFIX + afdep_rank_set_bytes(size);
    group->fault = calloc(1, group->fault_bytes);
    size_t links = rank == 0 ? (size_t)size : 1;
    size_t polls = rank == 0 ? (size_t)size + AFDEP_TCP_MAX_GUESTS : 1;
    group->links = calloc(links, sizeof *group->links);
    group->have = calloc(1, afdep_rank_set_bytes(size));
    group->polls = calloc(polls, sizeof *group->polls);
    group->poll_ranks = calloc(polls, sizeof *group->poll_ranks);
    for (size_t i = 0; group->links != NULL && i < links; i++)
        afdep_tcp_link_clear(&group->links[i]);
    if (group->fault == NULL || group->links == NULL || group->have == NULL || group->polls == NULL ||
        group->poll_ranks == NULL) {
        free_group(group);
        return NULL;
    }
    return group;
}

static afdep_status_t tcp_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    int saved = errno;
    afdep_status_t status = afdep_tcp_allgather(context, send, recv, bytes);
    errno = saved;
    return status;
}

static afdep_status_t tcp_barrier(void *context)
{
    return tcp_allgather(context, NULL, NULL, 0);
}

static void tcp_destroy(void *context)
{
    free_group(context);
}

/* ---- Maker ---------------------------------------------------------------------------------------------------- */

/* Meets the others, with the key on this function's stack only: after the meeting nobody needs it. */
static afdep_status_t meet(const afdep_tcp_t *tcp, afdep_tcp_group_t *group)
{
    uint8_t key[AFDEP_TCP_KEY_BYTES];
    afdep_status_t status = resolve_place(tcp, &group->address);
    if (status == AFDEP_OK)
        status = resolve_key(tcp, key);
    if (status == AFDEP_OK)
        status = group->rank == 0 ? afdep_tcp_meet_root(group, key) : afdep_tcp_meet_peer(group, key);
    afdep_wipe(key, sizeof key);
    return status;
}

static afdep_status_t create(const afdep_tcp_t *tcp, afdep_group_t *out)
{
    int rank = 0, size = 0;
    afdep_status_t status = check_struct(tcp, out);
    if (status == AFDEP_OK)
        status = resolve_number(tcp->size, 0, "size", "WORLD_SIZE", 1, AFDEP_TCP_MAX_RANKS, &size);
    if (status == AFDEP_OK)
        status = resolve_number(tcp->rank, -1, "rank", "RANK", 0, size - 1, &rank);
    if (status != AFDEP_OK)
        return status;
    afdep_tcp_group_t *group = allocate_group(rank, size, tcp->timeout_ms > 0 ? tcp->timeout_ms
                                                                             : AFDEP_GROUP_TIMEOUT_MS);
    if (group == NULL)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a TCP group of %d ranks", size);
    /* A single rank has nobody to meet: it needs neither address nor token, and opens no socket. */
    status = size == 1 ? AFDEP_OK : meet(tcp, group);
    if (status != AFDEP_OK) {
        free_group(group);
        return status;
    }
    *out = (afdep_group_t){ .struct_size = sizeof(afdep_group_t), .rank = rank, .size = size, .context = group,
                            .allgather = tcp_allgather, .barrier = tcp_barrier, .destroy = tcp_destroy };
    return AFDEP_OK;
}

afdep_status_t afdep_group_tcp_create(const afdep_tcp_t *tcp, afdep_group_t *group)
{
    int saved = errno;
    afdep_status_t status = create(tcp, group);
    errno = saved;
    return status;
}
