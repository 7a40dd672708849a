/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The runner behind screens and pictures. Launchers put the ranks that they start into process groups of their own, so
 * that killing a group is not enough: this process is their subreaper, and what is orphaned ends up here.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2, posix_spawn_file_actions_addchdir_np */
#endif

#include "bench/lib/run.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AFDEP_TICK_S 0.25
#define AFDEP_SWEEP_S 2.0

extern char **environ;

static const int stopping[] = { SIGINT, SIGTERM, SIGHUP };

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int afdep_run_begin(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof(stopping) / sizeof(stopping[0]); i++)
        sigaddset(&set, stopping[i]);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -1;
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* without it only orphans in other groups would stay */
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* ---- Starting -------------------------------------------------------------------------------------------------- */

static int spawn_actions(posix_spawn_file_actions_t *actions, const afdep_run_t *run, int error)
{
    int failed = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!failed)
        failed = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(actions, error, STDERR_FILENO);
    if (!failed && run->folder)
        failed = posix_spawn_file_actions_addchdir_np(actions, run->folder);
    return failed;
}

/* Own group, no signal blocked, none ignored that the runner uses. */
static int spawn_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    for (size_t i = 0; i < sizeof(stopping) / sizeof(stopping[0]); i++)
        sigaddset(&defaults, stopping[i]);
    int failed = posix_spawnattr_setpgroup(attributes, 0);
    if (!failed)
        failed = posix_spawnattr_setsigmask(attributes, &none);
    if (!failed)
        failed = posix_spawnattr_setsigdefault(attributes, &defaults);
    if (!failed)
        failed = posix_spawnattr_setflags(attributes,
                                          POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return failed;
}

static int spawn(const afdep_run_t *run, int error, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return ENOMEM;
    int failed = posix_spawnattr_init(&attributes);
    if (!failed) {
        failed = spawn_actions(&actions, run, error);
        if (!failed)
            failed = spawn_attributes(&attributes);
        if (!failed)
            failed = posix_spawnp(pid, run->argv[0], &actions, &attributes, run->argv,
                                  run->environment ? run->environment : environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

/* ---- Ending ---------------------------------------------------------------------------------------------------- */

/* Kills every process whose parent is this one. */
static void kill_children(void)
{
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        char name[300], text[512];
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(name, sizeof(name), "/proc/%s/stat", entry->d_name);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
        if (fd >= 0)
            close(fd);
        text[size > 0 ? size : 0] = 0;
        /* "pid (any text) state ppid ..." */
        const char *after = strrchr(text, ')');
        char state;
        int parent;
        if (after && sscanf(after, ") %c %d", &state, &parent) == 2 && parent == (int)getpid())
            kill((pid_t)atoi(entry->d_name), SIGKILL);
    }
    if (processes)
        closedir(processes);
}

/* Until no child is left: as parents die, their children arrive here. */
static void sweep(void)
{
    double limit = now_s() + AFDEP_SWEEP_S;
    for (;;) {
        pid_t ended = waitpid(-1, NULL, WNOHANG);
        if (ended > 0)
            continue;
        if (ended < 0 || now_s() >= limit)
            return;
        kill_children();
        poll(NULL, 0, 10);
    }
}

/* Whether the program is over; then its group is ended too, before its id can belong to anyone else. */
static int reap(pid_t pid, afdep_run_t *run)
{
    siginfo_t info = { 0 };
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == EINTR)
        return 0;
    if (info.si_pid != pid)
        return 0;
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (run->end == AFDEP_RUN_EXITED) {
        run->end = info.si_code == CLD_EXITED ? AFDEP_RUN_EXITED : AFDEP_RUN_SIGNALLED;
        run->code = info.si_status;
    }
    return 1;
}

/* ---- In between ------------------------------------------------------------------------------------------------ */

/* Keeps the end of what comes through the pipe. */
static void drain(int fd, afdep_run_t *run)
{
    char text[AFDEP_RUN_TAIL];
    for (ssize_t got; (got = read(fd, text, sizeof(text))) > 0 || (got < 0 && errno == EINTR);) {
        size_t held = strlen(run->tail), come = got > 0 ? (size_t)got : 0;
        size_t cut = held + come > AFDEP_RUN_TAIL ? held + come - AFDEP_RUN_TAIL : 0;
        for (size_t i = 0; i < come; i++)
            text[i] = text[i] ? text[i] : '?';
        memmove(run->tail, run->tail + cut, held - cut);
        memcpy(run->tail + held - cut, text, come);
        run->tail[held - cut + come] = 0;
    }
}

/* The signal that asks this process to end, or 0. */
static int asked_to_stop(int signals)
{
    struct signalfd_siginfo info;
    int asked = 0;
    while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        for (size_t i = 0; i < sizeof(stopping) / sizeof(stopping[0]); i++)
            if ((int)info.ssi_signo == stopping[i])
                asked = stopping[i];
    return asked;
}

static void end_early(afdep_run_t *run, afdep_run_end_t end, int code)
{
    if (run->end == AFDEP_RUN_EXITED) {
        run->end = end;
        run->code = code;
    }
}

/* Watches over the program until it is gone: SIGTERM at the deadline or when this process is asked to stop, SIGKILL
   after the grace, and at once when asked a second time. */
static void watch(int signals, int error, pid_t pid, afdep_run_t *run, double start)
{
    static const int ways[] = { SIGTERM, SIGKILL };
    int tried = 0;
    double limit = start + run->deadline_s;
    while (!reap(pid, run)) {
        int asked = asked_to_stop(signals);
        double now = now_s();
        if (asked || now >= limit) {
            end_early(run, asked ? AFDEP_RUN_INTERRUPTED : AFDEP_RUN_DEADLINE, asked);
            if (tried == 2 && now >= limit)
                return; /* stuck in the kernel: left behind rather than waited for */
            tried += tried < 2;
            kill(-pid, ways[tried - 1]);
            limit = now + (tried == 1 ? run->grace_s : AFDEP_SWEEP_S);
        }
        struct pollfd ready[] = { { signals, POLLIN, 0 }, { error, POLLIN, 0 } };
        double wait = limit - now < AFDEP_TICK_S ? limit - now : AFDEP_TICK_S;
        poll(ready, ready[1].fd >= 0 ? 2 : 1, wait > 0 ? (int)(wait * 1000) + 1 : 1);
        if (ready[1].revents & POLLHUP && !(ready[1].revents & POLLIN))
            error = -1; /* closed by all: not to be polled again */
        else
            drain(error, run);
        if (run->tick)
            run->tick(run->context, now_s() - start);
    }
}

void afdep_run(int signals, afdep_run_t *run)
{
    int ends[2];
    pid_t pid = 0;
    double start = now_s();
    run->end = AFDEP_RUN_EXITED;
    run->code = 0;
    run->tail[0] = 0;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
        run->end = AFDEP_RUN_NOT_STARTED;
        run->code = errno;
        return;
    }
    /* The program's end blocks as programs expect. */
    fcntl(ends[1], F_SETFL, 0);
    int failed = spawn(run, ends[1], &pid);
    close(ends[1]);
    if (failed) {
        run->end = AFDEP_RUN_NOT_STARTED;
        run->code = failed;
    } else {
        watch(signals, ends[0], pid, run, start);
        sweep();
        drain(ends[0], run);
    }
    close(ends[0]);
    run->seconds = now_s() - start;
}

/* ---- In words -------------------------------------------------------------------------------------------------- */

const char *afdep_run_words(const afdep_run_t *run, char *text, size_t size)
{
    switch (run->end) {
    case AFDEP_RUN_EXITED:
        snprintf(text, size, "exit %d", run->code);
        break;
    case AFDEP_RUN_SIGNALLED:
        snprintf(text, size, "killed by signal %d (%s)", run->code, strsignal(run->code));
        break;
    case AFDEP_RUN_DEADLINE:
        snprintf(text, size, "no end after %g s, killed", run->deadline_s);
        break;
    case AFDEP_RUN_INTERRUPTED:
        snprintf(text, size, "interrupted by signal %d (%s)", run->code, strsignal(run->code));
        break;
    case AFDEP_RUN_NOT_STARTED:
        snprintf(text, size, "cannot be started: %s", strerror(run->code));
        break;
    }
    return text;
}

static int says_something(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (isalpha((unsigned char)line[i]))
            return 1;
    return 0;
}

const char *afdep_run_last_line(const afdep_run_t *run, const char *program, char *line, size_t size)
{
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    size_t name_length = strlen(name), best_length = 0, length;
    const char *best = "";
    int best_own = 0;
    for (const char *at = run->tail; *at; at += length + (at[length] == '\n')) {
        length = strcspn(at, "\n");
        int own = length > name_length && strncmp(at, name, name_length) == 0 && at[name_length] == ':';
        if (own < best_own || !says_something(at, length))
            continue;
        best = at, best_length = length, best_own = own;
    }
    snprintf(line, size, "%.*s", (int)(best_length < size ? best_length : size - 1), best);
    return line;
}
