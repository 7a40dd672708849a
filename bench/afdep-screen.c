/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep-screen: runs the arms of a screen as fresh processes, interleaved (A B A B ...), and pairs what they measured.
 * The parts: screen_file (what is asked for), screen_command (command lines), lib/run (processes), screen_folder (where
 * results go), screen_results (records, pairs, the table), screen_progress (what is said meanwhile).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <afdep/afdep.h>

#include "bench/lib/json.h"
#include "bench/lib/record.h"
#include "bench/lib/run.h"
#include "bench/lib/why.h"
#include "bench/screen_command.h"
#include "bench/screen_folder.h"
#include "bench/screen_progress.h"
#include "bench/screen_results.h"

#define GRACE_S 5.0
#define WHY_MAX 1536

enum {
    DONE = 0,
    FAILED = 1,
    REFUSED = 2
}; /* exit statuses */

typedef struct options {
    afdep_common_t common;
    const char *screen, *out;
    int repeats, dry_run, force, gate_given;
    double gate;
} options_t;

/* A screen under way. */
typedef struct session {
    const options_t *options;
    afdep_screen_t screen;
    afdep_screen_command_t commands[AFDEP_SCREEN_ARMS_MAX];
    afdep_screen_folder_t folder;
    afdep_screen_results_t results;
    afdep_progress_t progress;
    int signals;
    char why[WHY_MAX];
} session_t;

static int parse(options_t *o, int argc, char **argv, char *why, size_t why_size)
{
    const afdep_option_t options[] = {
        { "screen", AFDEP_OPTION_STRING, &o->screen, 0, 0, 0, "FILE", "the arms, and what they exchange", 0 },
        { "out", AFDEP_OPTION_STRING, &o->out, 0, 0, 0, "DIR", "folder of the results: DIR/benchmarks.json", 0 },
        { "repeats", AFDEP_OPTION_INT, &o->repeats, 1, 10000, 0, "N", "runs of each arm (default: the screen's)", 0 },
        { "gate", AFDEP_OPTION_DOUBLE, &o->gate, 0, 1e6, 0, "PCT",
          "exit 1 if the arm candidate (if none is named so: any arm) is slower than the baseline by more than PCT per "
          "cent at any token count",
          &o->gate_given },
        { "dry-run", AFDEP_OPTION_FLAG, &o->dry_run, 0, 0, 0, 0, "print the command lines in their order, run nothing",
          0 },
        { "force", AFDEP_OPTION_FLAG, &o->force, 0, 0, 0, 0, "replace the results of an earlier screen", 0 },
        AFDEP_COMMON_OPTIONS(o->common),
        { 0 },
    };
    int asked = afdep_options_parse(options, argc, argv, why, why_size);
    if (asked == 1 && o->common.version)
        printf("afdep-screen (afdep) %s\nnative tree %s\n", afdep_version(), afdep_native_tree());
    else if (asked == 1)
        afdep_options_help(
            "afdep-screen", "--screen FILE --out DIR [OPTION...]",
            "Runs the arms of a screen as fresh processes, interleaved, and pairs what they measured: per "
            "token count each arm's median, and its change against the baseline with a 95% interval over "
            "the repeats. Options that every program has (--backend, --fabric, --seed, --timeout-ms, "
            "--log) are handed to every arm; --json writes the results to FILE as well.",
            options);
    if (asked != 0)
        return asked;
    if (!o->screen)
        return afdep_why(why, why_size, "--screen: a screen file is needed");
    if (!o->out && !o->dry_run)
        return afdep_why(why, why_size, "--out: a folder for the results is needed");
    return 0;
}

/* ---- One run --------------------------------------------------------------------------------------------------- */

/* `why` gets what went wrong; what the run left is noted with the failures. */
static int failed_run(session_t *s, const afdep_screen_run_t *which, const afdep_run_t *run, const char *what)
{
    const char *program = s->commands[which->arm].program;
    char said[512], none[8];
    afdep_run_last_line(run, program, said, sizeof(said));
    cJSON *partial = afdep_json_read(s->folder.record, AFDEP_JSON_RECORD_BYTES, none, sizeof(none));
    afdep_why(s->why, sizeof(s->why), "%s%s%s", what, said[0] ? ": " : "", said);
    afdep_screen_results_fail(&s->results, which, s->why, run->tail, partial);
    return FAILED;
}

static int run_arm(session_t *s, int arm, int repeat)
{
    const afdep_screen_command_t *command = &s->commands[arm];
    afdep_run_t run = { .argv = command->argv,
                        .environment = command->environment,
                        .grace_s = GRACE_S,
                        .deadline_s = s->screen.deadline_s,
                        .tick = afdep_progress_tick,
                        .context = &s->progress };
    char what[512];
    afdep_progress_start(&s->progress, arm, repeat);
    afdep_run(s->signals, &run);
    afdep_screen_run_t which = { arm, repeat, command->line, run.seconds };
    if (run.end != AFDEP_RUN_EXITED || run.code != 0)
        return failed_run(s, &which, &run, afdep_run_words(&run, what, sizeof(what)));
    cJSON *record = afdep_json_read(s->folder.record, AFDEP_JSON_RECORD_BYTES, what, sizeof(what));
    if (!record) {
        char left[600];
        snprintf(left, sizeof(left), "left no record: %s", what);
        return failed_run(s, &which, &run, left);
    }
    if (afdep_screen_results_add(&s->results, &which, record, s->why, sizeof(s->why)) < 0)
        return REFUSED;
    afdep_progress_end(&s->progress, run.seconds);
    return DONE;
}

/* ---- All runs -------------------------------------------------------------------------------------------------- */

static int save(session_t *s, char *why, size_t why_size)
{
    if (afdep_screen_results_save(&s->results, s->folder.results, why, why_size) < 0)
        return -1;
    return s->options->common.json ? afdep_screen_results_save(&s->results, s->options->common.json, why, why_size) : 0;
}

/* One line: which run, what happened, and what there is all the same. */
static void report(session_t *s, int arm, int repeat, int saved, const char *not_saved)
{
    int records = cJSON_GetArraySize(s->results.records), runs = s->screen.repeats * s->screen.arm_count;
    afdep_progress_clear(&s->progress);
    fprintf(stderr, "afdep-screen: arm %s, repeat %d: %s", s->screen.arms[arm].name, repeat + 1, s->why);
    if (saved)
        fprintf(stderr, "; %d of %d runs are in %s\n", records, runs, s->folder.results);
    else
        fprintf(stderr, "; %s\n", not_saved);
}

static int run_all(session_t *s)
{
    char why[WHY_MAX];
    for (int repeat = 0; repeat < s->screen.repeats; repeat++)
        for (int arm = 0; arm < s->screen.arm_count; arm++) {
            int status = run_arm(s, arm, repeat);
            afdep_screen_folder_sweep(&s->folder);
            int saved = save(s, why, sizeof(why)) == 0;
            if (status == DONE && saved)
                continue;
            if (status == DONE) {
                afdep_progress_clear(&s->progress);
                fprintf(stderr, "afdep-screen: after arm %s, repeat %d: %s\n", s->screen.arms[arm].name, repeat + 1,
                        why);
                return FAILED;
            }
            report(s, arm, repeat, saved, why);
            return status;
        }
    afdep_progress_clear(&s->progress);
    return DONE;
}

static int measure(session_t *s)
{
    if (afdep_screen_folder_open(s->options->out, s->options->force, &s->folder, s->why, sizeof(s->why)) < 0) {
        fprintf(stderr, "afdep-screen: %s\n", s->why);
        return REFUSED;
    }
    int status = FAILED;
    s->signals = afdep_run_begin();
    if (s->signals < 0 || afdep_screen_results_begin(&s->screen, &s->results) < 0) {
        fprintf(stderr, "afdep-screen: cannot begin: %s\n", s->signals < 0 ? strerror(errno) : "no memory");
    } else {
        afdep_progress_begin(&s->progress, &s->screen);
        status = run_all(s);
        afdep_screen_results_print(&s->results);
        if (status == DONE && s->options->gate_given && afdep_screen_results_gate(&s->results, s->options->gate) < 0)
            status = FAILED;
    }
    afdep_screen_results_free(&s->results);
    afdep_screen_folder_close(&s->folder);
    return status;
}

/* ---- The program ----------------------------------------------------------------------------------------------- */

/* The names of the folder are known before it is opened: a dry run prints them without touching it. */
static int make_commands(session_t *s)
{
    afdep_screen_folder_t names;
    int status = afdep_screen_folder_name(s->options->out ? s->options->out : "DIR", &names);
    if (status < 0)
        afdep_why(s->why, sizeof(s->why), "no memory for the names of files");
    for (int arm = 0; status == 0 && arm < s->screen.arm_count; arm++) {
        const afdep_screen_arm_t *which = &s->screen.arms[arm];
        status = afdep_screen_command_make(&s->screen, which, &s->options->common, names.record, &s->commands[arm],
                                           s->why, sizeof(s->why));
        if (status == 0 && !s->options->dry_run)
            status = afdep_screen_command_check(&s->screen, which, &s->commands[arm], s->why, sizeof(s->why));
    }
    afdep_screen_folder_close(&names);
    return status;
}

static void print_commands(const session_t *s)
{
    for (int repeat = 0; repeat < s->screen.repeats; repeat++)
        for (int arm = 0; arm < s->screen.arm_count; arm++)
            printf("%s\n", s->commands[arm].line);
}

static int run_screen(session_t *s)
{
    int status = REFUSED;
    if (afdep_screen_load(s->options->screen, &s->screen, s->why, sizeof(s->why)) < 0) {
        fprintf(stderr, "afdep-screen: %s\n", s->why);
        return REFUSED;
    }
    if (s->options->repeats)
        s->screen.repeats = s->options->repeats;
    if (make_commands(s) < 0)
        fprintf(stderr, "afdep-screen: %s\n", s->why);
    else if (!s->options->dry_run)
        status = measure(s);
    else
        print_commands(s), status = DONE;
    for (int arm = 0; arm < s->screen.arm_count; arm++)
        afdep_screen_command_free(&s->commands[arm]);
    afdep_screen_free(&s->screen);
    return status;
}

int main(int argc, char **argv)
{
    char why[512];
    options_t options = { 0 };
    int asked = parse(&options, argc, argv, why, sizeof(why)), status = DONE;
    if (asked < 0) {
        fprintf(stderr, "afdep-screen: %s\n", why);
        return REFUSED;
    }
    session_t *session = asked == 0 ? calloc(1, sizeof(*session)) : NULL;
    if (asked == 0) {
        if (session)
            session->options = &options;
        status = session ? run_screen(session) : FAILED;
    }
    free(session);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "afdep-screen: standard output: cannot be written\n");
        status = status == DONE ? FAILED : status;
    }
    return status;
}
