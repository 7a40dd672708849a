/* SPDX-License-Identifier: Apache-2.0 */
/* Which arm and repeat, how long so far, and how much longer, going by the runs that ended. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/screen_progress.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int total(const afdep_progress_t *p)
{
    return p->screen->arm_count * p->screen->repeats;
}

/* "12 s", "3:05", "1:02:03". Returns `text`. */
static const char *duration(double seconds, char *text, size_t size)
{
    long s = (long)(seconds + 0.5);
    if (s < 60)
        snprintf(text, size, "%ld s", s);
    else if (s < 3600)
        snprintf(text, size, "%ld:%02ld", s / 60, s % 60);
    else
        snprintf(text, size, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    return text;
}

/* Seconds of a run of `arm`: the mean of its own so far, else of all; below 0 when none has ended. */
static double expected(const afdep_progress_t *p, int arm)
{
    double spent = 0;
    int runs = 0;
    if (p->runs[arm])
        return p->spent[arm] / p->runs[arm];
    for (int i = 0; i < p->screen->arm_count; i++)
        spent += p->spent[i], runs += p->runs[i];
    return runs ? spent / runs : -1;
}

/* " about 40 s left", or "" while nothing is known. `running`: seconds of the run under way, below 0 when none is. */
static const char *left(const afdep_progress_t *p, double running, char *text, size_t size)
{
    double sum = 0;
    char words[32];
    text[0] = 0;
    for (int run = p->done; run < total(p); run++) {
        double one = expected(p, run % p->screen->arm_count);
        if (one < 0)
            return text;
        if (run == p->done && running >= 0)
            one = one > running ? one - running : 0;
        sum += one;
    }
    snprintf(text, size, ", about %s left", duration(sum, words, sizeof(words)));
    return text;
}

void afdep_progress_begin(afdep_progress_t *progress, const afdep_screen_t *screen)
{
    memset(progress, 0, sizeof(*progress));
    progress->screen = screen;
    progress->terminal = isatty(STDERR_FILENO);
    progress->started = now_s();
    fprintf(stderr, "== %s: %d arm%s, %d repeat%s, scenario %s\n", screen->name, screen->arm_count,
            screen->arm_count == 1 ? "" : "s", screen->repeats, screen->repeats == 1 ? "" : "s", screen->scenario.name);
}

void afdep_progress_start(afdep_progress_t *progress, int arm, int repeat)
{
    progress->arm = arm;
    progress->repeat = repeat;
    progress->minutes_said = 0;
    afdep_progress_tick(progress, 0);
}

/* A line that wraps could not be updated: on a terminal it is cut to the width. */
static int width_of(const afdep_progress_t *p)
{
    struct winsize size;
    return p->terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : INT_MAX;
}

static void say(const afdep_progress_t *p, double seconds, const char *before, const char *after, const char *remaining)
{
    char run[32], all[32], line[512];
    snprintf(line, sizeof(line), "[%d/%d] %s, repeat %d of %d: %s; %s in all%s", p->done + 1, total(p),
             p->screen->arms[p->arm].name, p->repeat + 1, p->screen->repeats, duration(seconds, run, sizeof(run)),
             duration(now_s() - p->started, all, sizeof(all)), remaining);
    fprintf(stderr, "%s%.*s%s", before, width_of(p), line, after);
}

void afdep_progress_tick(void *context, double seconds)
{
    afdep_progress_t *p = context;
    char remaining[64];
    if (!p->terminal && seconds < 60 * (p->minutes_said + 1))
        return;
    left(p, seconds, remaining, sizeof(remaining));
    if (p->terminal)
        say(p, seconds, "\r", "\033[K", remaining);
    else
        say(p, seconds, "", " (running)\n", remaining);
    fflush(stderr);
    p->minutes_said = (double)(long)(seconds / 60);
}

void afdep_progress_end(afdep_progress_t *progress, double seconds)
{
    char remaining[64];
    progress->spent[progress->arm] += seconds;
    progress->runs[progress->arm]++;
    if (!progress->terminal) {
        progress->done++;
        left(progress, -1, remaining, sizeof(remaining));
        progress->done--;
        say(progress, seconds, "", "\n", progress->done + 1 < total(progress) ? remaining : "");
    }
    progress->done++;
}

void afdep_progress_clear(const afdep_progress_t *progress)
{
    if (progress->terminal)
        fprintf(stderr, "\r\033[K");
    fflush(stderr);
}
