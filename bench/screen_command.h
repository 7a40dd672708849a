/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line and environment of an arm: launcher, program, the screen's scenario and token counts, the arm's
 * flags, and where the record goes.
 */
#ifndef AFDEP_BENCH_SCREEN_COMMAND_H
#define AFDEP_BENCH_SCREEN_COMMAND_H

#include "bench/lib/options.h"
#include "bench/screen_file.h"

typedef struct afdep_screen_command {
    char **argv; /* ended by NULL; owned, with the words */
    int argc;
    char **environment; /* this process's with the arm's variables, ended by NULL; owned, with the entries */
    char *line;         /* the added variables and the words, as a shell takes them; owned */
    char *program;      /* as found; owned */
} afdep_screen_command_t;

/*
 * `common`: what every arm is handed besides (seed, fabric, ... as given to afdep-screen). `record`: the file that
 * --json names. A program without a slash is looked for beside this program, then on PATH; where it is nowhere its name
 * stands as it is. 0, or -1 with one line. Freed by afdep_screen_command_free() in both cases.
 */
int afdep_screen_command_make(const afdep_screen_t *screen, const afdep_screen_arm_t *arm, const afdep_common_t *common,
                              const char *record, afdep_screen_command_t *command, char *why, size_t why_size);
void afdep_screen_command_free(afdep_screen_command_t *command);

/* -1 with one line when an arm's launcher or program is not there to be run. */
int afdep_screen_command_check(const afdep_screen_t *screen, const afdep_screen_arm_t *arm,
                               const afdep_screen_command_t *command, char *why, size_t why_size);

#endif
