/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs run to their end, or to a deadline: each in a process group of its own, which is gone when the run is over,
 * together with whatever the program left behind.
 */
#ifndef AFDEP_BENCH_RUN_H
#define AFDEP_BENCH_RUN_H

#include <stddef.h>

/* The end of a program's standard error that is kept. */
#define AFDEP_RUN_TAIL 4096

typedef enum afdep_run_end {
    AFDEP_RUN_EXITED,      /* `code` is the exit status */
    AFDEP_RUN_SIGNALLED,   /* `code` is the signal */
    AFDEP_RUN_DEADLINE,    /* ended by the runner, at the deadline */
    AFDEP_RUN_INTERRUPTED, /* ended by the runner, which itself got the signal `code` */
    AFDEP_RUN_NOT_STARTED  /* `code` is the errno */
} afdep_run_end_t;

typedef struct afdep_run {
    char *const *argv;        /* ended by NULL; argv[0] is looked for on PATH */
    char *const *environment; /* NULL: this process's */
    const char *folder;       /* working directory; NULL: this process's */
    double deadline_s;
    double grace_s;                              /* between SIGTERM and SIGKILL */
    void (*tick)(void *context, double seconds); /* called about four times a second; may be NULL */
    void *context;
    /* What comes of it. */
    afdep_run_end_t end;
    int code;
    double seconds;
    char tail[AFDEP_RUN_TAIL + 1];
} afdep_run_t;

/*
 * For the whole process, before the first run: from now on SIGINT, SIGTERM, SIGHUP and SIGCHLD arrive through the
 * descriptor that it returns, and orphans of the programs become this process's children. -1: errno says why.
 */
int afdep_run_begin(void);

/* Runs the program, its standard input and output on /dev/null. `signals` is what afdep_run_begin() returned. */
void afdep_run(int signals, afdep_run_t *run);

/* How it ended, as words: "exit 3", "killed by signal 9 (Killed)", "no end after 600 s". Returns `text`. */
const char *afdep_run_words(const afdep_run_t *run, char *text, size_t size);

/* The line of the tail that says most: the last one that begins with "`program`: ", else the last with a letter in it;
   "" when there is none. */
const char *afdep_run_last_line(const afdep_run_t *run, const char *program, char *line, size_t size);

#endif
