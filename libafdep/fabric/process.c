/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether another process of this host is still the one it was.
 */
#include "fabric/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* When a process started, and its state; 0 where it cannot be seen. */
static uint64_t start_of(uint64_t pid, char *state)
{
    char name[48], text[1024];
    unsigned long long start = 0;
    int fd;
    ssize_t size;
    const char *rest;

    snprintf(name, sizeof(name), "/proc/%llu/stat", (unsigned long long)pid);
    fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[size > 0 ? size : 0] = '\0';
    rest = strrchr(text, ')'); /* the name before it may hold anything */
    if (!rest || sscanf(rest, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        state, &start) != 2)
        return 0;
    return start;
}

afdep_process_t afdep_process_self(void)
{
    char state = '?';
    uint64_t pid = (uint64_t)getpid();

    return (afdep_process_t){ pid, start_of(pid, &state) };
}

afdep_process_t afdep_process_seen(afdep_process_t announced)
{
    char state = '?';

    if (announced.start && start_of(announced.pid, &state) == announced.start)
        return announced;
    return (afdep_process_t){ 0, 0 };
}

int afdep_process_gone(afdep_process_t process)
{
    char state = '?';

    return process.pid && (start_of(process.pid, &state) != process.start || state == 'Z' || state == 'X');
}
