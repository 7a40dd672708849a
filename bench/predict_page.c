/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of a sweep or a plan: its table, round trips against Attention domains (or tokens, where domains do not
 * vary), and how busy each resource is.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/lib/run.h"
#include "bench/lib/why.h"
#include "bench/predict_rows.h"
#include "bench/report_gnuplot.h"
#include "bench/report_page.h"

#define CURVES_MAX 48

/* What stands on the horizontal axis of a picture: the first of these that varies. */
typedef enum across {
    ACROSS_DOMAINS,
    ACROSS_TOKENS,
    ACROSS_CHANNELS
} across_t;

static double across_of(const afdep_predict_row_t *row, across_t across)
{
    return across == ACROSS_DOMAINS ? row->domains : across == ACROSS_TOKENS ? row->tokens : row->channels;
}

static across_t choose_across(const afdep_predict_rows_t *rows)
{
    for (int across = ACROSS_DOMAINS; across < ACROSS_CHANNELS; across++)
        for (int i = 1; i < rows->count; i++)
            if (across_of(&rows->rows[i], (across_t)across) != across_of(&rows->rows[0], (across_t)across))
                return (across_t)across;
    return ACROSS_CHANNELS;
}

/* Rows of one curve differ in nothing but what stands across. */
static int same_curve(const afdep_predict_row_t *a, const afdep_predict_row_t *b, across_t across)
{
    return a->nics_per_rank == b->nics_per_rank && (across == ACROSS_DOMAINS || a->domains == b->domains) &&
           (across == ACROSS_TOKENS || a->tokens == b->tokens) &&
           (across == ACROSS_CHANNELS || a->channels == b->channels);
}

typedef struct curves {
    const afdep_predict_rows_t *rows;
    across_t across;
    int first[CURVES_MAX]; /* a row of each curve */
    int count;
} curves_t;

static void find_curves(curves_t *curves, const afdep_predict_rows_t *rows)
{
    curves->rows = rows;
    curves->across = choose_across(rows);
    curves->count = 0;
    for (int i = 0; i < rows->count && curves->count < CURVES_MAX; i++) {
        int known = 0;
        for (int c = 0; c < curves->count; c++)
            known |= same_curve(&rows->rows[i], &rows->rows[curves->first[c]], curves->across);
        if (!known)
            curves->first[curves->count++] = i;
    }
}

/* ---- Round trips --------------------------------------------------------------------------------------------- */

static void frame(FILE *out, const curves_t *curves, const char *title)
{
    static const char *const names[] = { "Attention domains", "tokens per Attention rank", "channels" };
    double low = INFINITY, high = 0;
    for (int i = 0; i < curves->rows->count; i++) {
        double x = across_of(&curves->rows->rows[i], curves->across);
        low = x < low && x > 0 ? x : low;
        high = x > high ? x : high;
    }
    fputs("set encoding utf8\nset title ", out);
    afdep_gnuplot_quote(out, title);
    fprintf(out,
            " noenhanced\nset border 3 lc rgb '#555555'\nset tics nomirror\nset grid lc rgb '#cccccc' lw 1 dt 1\n"
            "set key outside below center horizontal noenhanced samplen 4 height 1\n"
            "set xlabel '%s'\nset logscale x 2\nset xrange [%g:%g]\n",
            names[curves->across], low / 1.2, high * 1.2);
}

static void trip_data(FILE *out, const void *context)
{
    const curves_t *curves = context;
    for (int c = 0; c < curves->count; c++) {
        const afdep_predict_row_t *first = &curves->rows->rows[curves->first[c]];
        fprintf(out, "$curve%d << EOD\n", c);
        for (int i = 0; i < curves->rows->count; i++) {
            const afdep_predict_row_t *row = &curves->rows->rows[i];
            if (!same_curve(row, first, curves->across))
                continue;
            afdep_gnuplot_number(out, across_of(row, curves->across));
            afdep_gnuplot_number(out, row->us);
            fputc('\n', out);
        }
        fputs("EOD\n", out);
    }
}

static void name_curve(FILE *out, const curves_t *curves, const afdep_predict_row_t *row)
{
    char domains[48] = "", tokens[48] = "", channels[48] = "", name[256];
    if (curves->across != ACROSS_DOMAINS)
        snprintf(domains, sizeof(domains), "%d domains, ", row->domains);
    if (curves->across != ACROSS_TOKENS)
        snprintf(tokens, sizeof(tokens), "%d tokens, ", row->tokens);
    if (curves->across != ACROSS_CHANNELS)
        snprintf(channels, sizeof(channels), "%d channels, ", row->channels);
    snprintf(name, sizeof(name), "%s%s%s%g NICs", domains, tokens, channels, row->nics_per_rank);
    afdep_gnuplot_quote(out, name);
}

static void trip_drawing(FILE *out, const void *context)
{
    const curves_t *curves = context;
    double low = INFINITY, high = 0, budget = curves->rows->rows[0].budget_us;
    for (int i = 0; i < curves->rows->count; i++) {
        low = fmin(low, curves->rows->rows[i].us);
        high = fmax(high, curves->rows->rows[i].us);
    }
    if (!isnan(budget)) {
        low = fmin(low, budget);
        high = fmax(high, budget);
    }
    frame(out, curves, "Round trip, predicted");
    afdep_gnuplot_log_axis(out, "y", low / 1.3, high * 1.3);
    fputs("set ylabel 'round trip (µs)'\nplot ", out);
    for (int c = 0; c < curves->count; c++) {
        fprintf(out, "%s$curve%d using 1:2 with linespoints lt %d title ", c ? ", " : "", c,
                c % AFDEP_GNUPLOT_STYLES + 1);
        name_curve(out, curves, &curves->rows->rows[curves->first[c]]);
    }
    if (!isnan(budget))
        fprintf(out, ", %.9g with lines lc rgb '#000000' lw 1 dt 2 title 'budget'", budget);
    fputc('\n', out);
}

/* ---- Busy resources, of the first curve ---------------------------------------------------------------------- */

static void busy_data(FILE *out, const void *context)
{
    const curves_t *curves = context;
    const afdep_predict_row_t *first = &curves->rows->rows[curves->first[0]];
    fputs("$busy << EOD\n", out);
    for (int i = 0; i < curves->rows->count; i++) {
        const afdep_predict_row_t *row = &curves->rows->rows[i];
        if (!same_curve(row, first, curves->across))
            continue;
        afdep_gnuplot_number(out, across_of(row, curves->across));
        for (int k = 0; k < AFDEP_RESOURCES; k++)
            afdep_gnuplot_number(out, 100 * row->load[k].share);
        fputc('\n', out);
    }
    fputs("EOD\n", out);
}

static void busy_drawing(FILE *out, const void *context)
{
    const curves_t *curves = context;
    frame(out, curves, "How long the busiest of each resource serves, first curve");
    fputs("set yrange [0:105]\nset ylabel 'share of the time (%)'\nplot ", out);
    for (int k = 0; k < AFDEP_RESOURCES; k++) {
        fprintf(out, "%s$busy using 1:%d with linespoints lt %d title ", k ? ", " : "", k + 2,
                k % AFDEP_GNUPLOT_STYLES + 1);
        afdep_gnuplot_quote(out, afdep_resource_name((afdep_resource_t)k));
    }
    fputc('\n', out);
}

/* ---- The page ------------------------------------------------------------------------------------------------ */

static void add_table(afdep_page_t *page, const afdep_predict_rows_t *rows)
{
    static const char *const names[] = { "busiest", "domains",       "FFN domains",    "channels",
                                         "tokens",  "NICs per rank", "round trip, us", "budget, us",
                                         "signals", "bytes",         "busy, %" };
    afdep_page_table(page, names, 11, 10);
    for (int i = 0; i < rows->count; i++) {
        const afdep_predict_row_t *r = &rows->rows[i];
        char text[10][32];
        const char *cells[11] = { afdep_resource_name(r->busiest) };
        const double values[10] = {
            r->domains, r->ffn_domains, r->channels, r->tokens, r->nics_per_rank,
            r->us,      r->budget_us,   r->signals,  r->bytes,  100 * r->load[r->busiest].share
        };
        for (int k = 0; k < 10; k++) {
            if (isnan(values[k]))
                snprintf(text[k], sizeof(text[k]), "-");
            else
                snprintf(text[k], sizeof(text[k]), k == 5 || k == 6 ? "%.1f" : k >= 7 ? "%.0f" : "%g", values[k]);
            cells[k + 1] = text[k];
        }
        afdep_page_row(page, cells);
    }
    afdep_page_table_end(page);
}

static int add_pictures(afdep_page_t *page, const afdep_predict_rows_t *rows, const char *folder, int signals,
                        char *why, size_t why_size)
{
    curves_t curves;
    find_curves(&curves, rows);
    int key = curves.count > 4 ? 10 * curves.count : 0;
    const afdep_drawing_t drawings[] = {
        { "round-trip", "Round trip of an exchange in virtual time. Both axes are logarithmic.", 500 + key, trip_data,
          trip_drawing, &curves },
        { "busy", "Share of the time that the busiest one of each resource serves.", 500, busy_data, busy_drawing,
          &curves },
    };
    for (size_t i = 0; i < sizeof(drawings) / sizeof(drawings[0]); i++) {
        afdep_picture_t picture;
        int status = afdep_gnuplot_draw(&drawings[i], folder, signals, &picture, why, why_size);
        if (status == 0)
            afdep_page_picture(page, picture.file, picture.svg, picture.size, picture.caption);
        free(picture.svg);
        if (status != 0)
            return -1;
    }
    return 0;
}

int afdep_predict_rows_folder(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    char file[PATH_MAX], what[512];
    if (!plan->out)
        return 0;
    if (mkdir(plan->out, 0777) < 0 && errno != EEXIST)
        return afdep_why(why, why_size, "--out: %s: cannot be made: %s", plan->out, strerror(errno));
    if (snprintf(file, sizeof(file), "%s/index.md", plan->out) >= (int)sizeof(file))
        return afdep_why(why, why_size, "--out: %.64s...: is too long", plan->out);
    return afdep_record_probe(file, what, sizeof(what)) == 0 ? 0 : afdep_why(why, why_size, "--out: %s", what);
}

int afdep_predict_rows_page(const afdep_predict_rows_t *rows, const afdep_predict_plan_t *plan, const char *title,
                            const char *const *said, int count, char *why, size_t why_size)
{
    afdep_page_t page;
    int signals = afdep_run_begin();
    if (signals < 0)
        return afdep_why(why, why_size, "cannot begin: %s", strerror(errno));
    if (afdep_page_begin(&page, title) < 0)
        return afdep_why(why, why_size, "no memory for the page");
    afdep_page_paragraph(&page, "Emulated: virtual time, cost model %s, native tree %s. Nothing here was measured.",
                         plan->cost.name, afdep_native_tree());
    for (int i = 0; i < count; i++)
        afdep_page_paragraph(&page, "%s", said[i]);
    add_table(&page, rows);
    int status = rows->count > 0 ? add_pictures(&page, rows, plan->out, signals, why, why_size) : 0;
    if (afdep_page_end(&page, status == 0 ? plan->out : NULL, why, why_size) != 0)
        return -1;
    return status;
}
