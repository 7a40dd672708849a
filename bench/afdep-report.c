/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep-report: pictures and tables of records. The parts: report_set (files into sets of records that may stand
 * together), report_plot (pictures), report_text (what is said), report_page (Markdown and HTML).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <afdep/afdep.h>

#include "bench/lib/options.h"
#include "bench/lib/run.h"
#include "bench/lib/why.h"
#include "bench/report_page.h"
#include "bench/report_plot.h"
#include "bench/report_set.h"
#include "bench/report_text.h"

typedef struct options {
    int help, version;
    const char *in, *out, *title;
    const char **files; /* of all --in; owned */
    int file_count;
} options_t;

/* ---- The command line ------------------------------------------------------------------------------------------ */

/* The parser knows one value for each option: what follows --in FILE up to the next option is taken out for it. */
static int take_files(options_t *o, int argc, char **argv, char **rest)
{
    int count = 0, taking = 0;
    for (int i = 0; i < argc; i++) {
        int option = i == 0 || strncmp(argv[i], "--", 2) == 0;
        if (option)
            taking = strcmp(argv[i], "--in") == 0;
        if (!option && taking)
            o->files[o->file_count++] = argv[i];
        else if (i > 0 && strncmp(argv[i], "--in=", 5) == 0 && argv[i][5])
            o->files[o->file_count++] = argv[i] + 5;
        /* The parser still sees the first value, and misses one that is not there. */
        if (option || !taking || strcmp(argv[i - 1], "--in") == 0)
            rest[count++] = argv[i];
    }
    return count;
}

static int parse_rest(options_t *o, int argc, char **argv, char *why, size_t why_size)
{
    const afdep_option_t options[] = {
        { "in", AFDEP_OPTION_STRING, &o->in, 0, 0, 0, "FILE...",
          "benchmarks.json of screens, or single benchmark records", 0 },
        { "out", AFDEP_OPTION_STRING, &o->out, 0, 0, 0, "DIR",
          "folder of index.md, index.html and the pictures; made if need be", 0 },
        { "title", AFDEP_OPTION_STRING, &o->title, 0, 0, 0, "TEXT", "heading of the page (default: afdep report)", 0 },
        { "help", AFDEP_OPTION_FLAG, &o->help, 0, 0, 0, 0, "print this help and exit", 0 },
        { "version", AFDEP_OPTION_FLAG, &o->version, 0, 0, 0, 0, "print the version and the native tree and exit", 0 },
        { 0 },
    };
    int asked = afdep_options_parse(options, argc, argv, why, why_size);
    if (asked == 1 && o->version)
        printf("afdep-report (afdep) %s\nnative tree %s\n", afdep_version(), afdep_native_tree());
    else if (asked == 1)
        afdep_options_help("afdep-report", "--in FILE... --out DIR [--title TEXT]",
                           "Makes a page and pictures of records: what changed and how sure that is, round trips, "
                           "signals, arms, builds and machine. The HTML page holds its pictures; it and the Markdown "
                           "are read without a network. Pictures are drawn by gnuplot.",
                           options);
    if (asked != 0)
        return asked;
    if (o->file_count == 0)
        return afdep_why(why, why_size, "--in: a file with records is needed");
    return o->out ? 0 : afdep_why(why, why_size, "--out: a folder for the report is needed");
}

static int parse(options_t *o, int argc, char **argv, char *why, size_t why_size)
{
    char **rest = calloc((size_t)argc + 1, sizeof(*rest));
    o->files = calloc((size_t)argc + 1, sizeof(*o->files));
    o->title = "afdep report";
    int status = rest && o->files ? parse_rest(o, take_files(o, argc, argv, rest), rest, why, why_size)
                                  : afdep_why(why, why_size, "no memory for the command line");
    free(rest);
    return status;
}

/* ---- The report ------------------------------------------------------------------------------------------------ */

static int add_pictures(afdep_page_t *page, const afdep_report_set_t *set, const char *out, int signals, char *why,
                        size_t why_size)
{
    for (int kind = 0; kind < AFDEP_PICTURES; kind++) {
        afdep_picture_t picture;
        if (!afdep_picture_possible(set, (afdep_picture_kind_t)kind))
            continue;
        int status = afdep_picture_draw(set, (afdep_picture_kind_t)kind, out, signals, &picture, why, why_size);
        if (status == 0)
            afdep_page_picture(page, picture.file, picture.svg, picture.size, picture.caption);
        free(picture.svg);
        if (status < 0)
            return -1;
    }
    return 0;
}

static int add_set(afdep_page_t *page, const afdep_report_set_t *set, const char *out, int signals, char *why,
                   size_t why_size)
{
    const cJSON *description = cJSON_GetObjectItemCaseSensitive(set->screen, "description");
    afdep_page_heading(page, 2, set->title);
    if (cJSON_IsString(description))
        afdep_page_paragraph(page, "%s", description->valuestring);
    afdep_page_heading(page, 3, "What changed, and how sure that is");
    afdep_text_changes(page, set);
    if (add_pictures(page, set, out, signals, why, why_size) < 0)
        return -1;
    afdep_text_details(page, set);
    return 0;
}

static void explain(afdep_page_t *page)
{
    afdep_page_heading(page, 2, "How to read this");
    afdep_page_paragraph(page,
                         "A time is a round trip without expert computation: dispatch, receive, reply, collect, the "
                         "longest of any Attention rank. Each run's median over its iterations is taken, and of those "
                         "the median over the repeats. A change is the geometric mean, over the repeats, of the ratio "
                         "of both arms' medians; its interval is the 95%% interval of Student's t on the logarithms of "
                         "those ratios. Repeats are fresh processes, and the arms alternate. Where the interval "
                         "includes zero the records show no difference; that is not proof that there is none.");
}

static int write_report(const options_t *o, const afdep_report_t *report, char *why, size_t why_size)
{
    afdep_page_t page;
    int signals = afdep_run_begin();
    if (signals < 0)
        return afdep_why(why, why_size, "cannot begin: %s", strerror(errno));
    if (mkdir(o->out, 0777) < 0 && errno != EEXIST)
        return afdep_why(why, why_size, "--out: %s: cannot be made: %s", o->out, strerror(errno));
    if (afdep_page_begin(&page, o->title) < 0)
        return afdep_why(why, why_size, "no memory for the page");
    int status = 0;
    for (int i = 0; status == 0 && i < report->count; i++)
        status = add_set(&page, &report->sets[i], o->out, signals, why, why_size);
    explain(&page);
    /* A page that lacks a picture is not written; the reason why was found first, and stands. */
    char ignored[8];
    return status == 0 ? afdep_page_end(&page, o->out, why, why_size)
                       : (afdep_page_end(&page, NULL, ignored, sizeof(ignored)), -1);
}

int main(int argc, char **argv)
{
    char why[1536];
    options_t options = { 0 };
    afdep_report_t *report = calloc(1, sizeof(*report));
    int status = report ? parse(&options, argc, argv, why, sizeof(why)) : afdep_why(why, sizeof(why), "no memory");
    int refused = status < 0;
    if (status == 0) {
        status = afdep_report_load(report, options.files, options.file_count, why, sizeof(why));
        refused = status < 0;
        if (status == 0)
            status = write_report(&options, report, why, sizeof(why));
        afdep_report_free(report);
    }
    free(report);
    free(options.files);
    if (status >= 0 && (fflush(stdout) != 0 || ferror(stdout)))
        status = afdep_why(why, sizeof(why), "standard output: cannot be written");
    if (status >= 0)
        return 0;
    fprintf(stderr, "afdep-report: %s\n", why);
    return refused ? 2 : 1;
}
