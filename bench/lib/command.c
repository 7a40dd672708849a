/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what programs such as nvidia-smi and files under /proc say about the machine. Bounded in size and time: a tool
 * that hangs on a broken driver must not hang the program that wanted one line of it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2 */
#endif

#include "bench/lib/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AFDEP_TEXT_MAX ((size_t)1 << 20)

extern char **environ;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Reads until the end or the deadline (-1: none). 0 at the end, -1 at the deadline, the limit or an error. */
static int drain(int fd, char *text, int64_t deadline)
{
    size_t size = 0;
    for (;;) {
        struct pollfd poller = { fd, POLLIN, 0 };
        int64_t left = deadline < 0 ? -1 : deadline - now_ms();
        if (deadline >= 0 && (left <= 0 || poll(&poller, 1, (int)left) <= 0))
            return -1;
        if (size == AFDEP_TEXT_MAX)
            return -1;
        ssize_t got = read(fd, text + size, AFDEP_TEXT_MAX - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        text[size += (size_t)got] = 0;
        if (got == 0)
            return 0;
    }
}

static int spawn_piped(const char *const *argv, int out, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return -1;
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int failed = posix_spawnp(pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return failed ? -1 : 0;
}

/* Waits until the deadline for the child to end, then kills it. A child stuck in the kernel is left behind rather than
   waited for. Returns whether it ended well. */
static int reap(pid_t pid, int64_t deadline)
{
    int status = 0, killed = 0;
    for (;;) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid)
            return !killed && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (ended < 0 && errno != EINTR)
            return 0;
        if (now_ms() >= deadline) {
            if (killed)
                return 0;
            kill(pid, SIGKILL);
            killed = 1;
            deadline = now_ms() + 1000;
        }
        poll(NULL, 0, 2);
    }
}

char *afdep_command_output(const char *const *argv, int timeout_ms)
{
    int ends[2];
    pid_t pid;
    int64_t deadline = now_ms() + timeout_ms;
    char *text = malloc(AFDEP_TEXT_MAX + 1);
    if (!text || pipe2(ends, O_CLOEXEC) < 0) {
        free(text);
        return NULL;
    }
    int good = spawn_piped(argv, ends[1], &pid) == 0;
    close(ends[1]);
    if (good) {
        good = drain(ends[0], text, deadline) == 0;
        good = reap(pid, good ? deadline : 0) && good;
    }
    close(ends[0]);
    if (good)
        return text;
    free(text);
    return NULL;
}

char *afdep_file_text(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    char *text = fd < 0 ? NULL : malloc(AFDEP_TEXT_MAX + 1);
    int good = text && drain(fd, text, -1) == 0;
    if (fd >= 0)
        close(fd);
    if (good)
        return text;
    free(text);
    return NULL;
}

const char *afdep_text_value(const char *text, const char *key, char *value, size_t size)
{
    size_t key_length = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        line += strspn(line, " \t");
        if (strncmp(line, key, key_length) != 0)
            continue;
        const char *colon = line + key_length + strspn(line + key_length, " \t");
        if (*colon != ':')
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        size_t length = strcspn(colon, "\n");
        while (length > 0 && (colon[length - 1] == ' ' || colon[length - 1] == '\t'))
            length--;
        snprintf(value, size, "%.*s", (int)length, colon);
        return value;
    }
    return NULL;
}
