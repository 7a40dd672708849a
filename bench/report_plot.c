/* SPDX-License-Identifier: Apache-2.0 */
/* What the pictures of a set show. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/report_plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STYLES AFDEP_GNUPLOT_STYLES
#define PANELS_ABREAST 4

static const char *const names[] = { "latency", "change", "signals", "ranks" };
static const char *const captions[] = {
    "Round trip of an exchange: median over the repeats, against tokens per Attention rank; bars reach from the "
    "fastest "
    "to the slowest repeat. Both axes are logarithmic.",
    "Paired change against the baseline: geometric mean over the repeats with its 95% interval. Below zero is faster; "
    "an "
    "interval that crosses zero shows no difference. Wide intervals leave the frame.",
    "Signals of one exchange at the busiest FFN rank, in at dispatch and out at combine.",
    "Signals of one exchange at each rank, received and sent, by arm and tokens per Attention rank.",
};

/* ---- What the set holds ---------------------------------------------------------------------------------------- */

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static double signals_of(const afdep_comparison_t *c, int arm, int token)
{
    return afdep_cell_number(afdep_benchmark_cell(c->first[arm], c->tokens[token]), "signals_per_exchange", "total");
}

/* Received and sent; NaN when the record does not say. */
static double signals_of_rank(const afdep_comparison_t *c, int arm, int token, int rank)
{
    const cJSON *cell = afdep_benchmark_cell(c->first[arm], c->tokens[token]);
    const cJSON *one = cJSON_GetArrayItem(get(cell, "signals_by_rank"), rank);
    return afdep_cell_number(one, "in", NULL) + afdep_cell_number(one, "out", NULL);
}

static int ranks_of(const afdep_comparison_t *c)
{
    int most = 0;
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++) {
            const cJSON *cell = afdep_benchmark_cell(c->first[arm], c->tokens[token]);
            int count = cJSON_GetArraySize(get(cell, "signals_by_rank"));
            most = count > most ? count : most;
        }
    return most;
}

static int some_signals(const afdep_comparison_t *c)
{
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++)
            if (signals_of(c, arm, token) > 0)
                return 1;
    return 0;
}

int afdep_picture_possible(const afdep_report_set_t *set, afdep_picture_kind_t kind)
{
    const afdep_comparison_t *c = &set->comparison;
    if (c->arms == 0 || c->tokens[c->token_counts - 1] < 1)
        return 0;
    switch (kind) {
    case AFDEP_PICTURE_CHANGE:
        return c->baseline >= 0 && c->arms > 1;
    case AFDEP_PICTURE_SIGNALS:
        return some_signals(c);
    case AFDEP_PICTURE_RANKS:
        return ranks_of(c) > 0 && some_signals(c);
    default:
        return 1;
    }
}

/* ---- Pieces of scripts ----------------------------------------------------------------------------------------- */

/* A narrow panel's title: a long name goes on in a second line behind the plus sign nearest its middle. Line breaks
   take double quotes, in which gnuplot reads much: whatever a name rarely has becomes a question mark. */
static void quote_in_two(FILE *out, const char *text)
{
    size_t length = strlen(text), at = 0;
    for (size_t i = 0; length > 20 && i < length; i++)
        if (text[i] == '+' && (at == 0 || labs((long)(2 * i) - (long)length) < labs((long)(2 * at) - (long)length)))
            at = i;
    fputc('"', out);
    for (size_t i = 0; i < length; i++) {
        int plain = (unsigned char)text[i] >= 0x20 && !strchr("\\\"`$@%", text[i]);
        fputc(plain ? text[i] : '?', out);
        if (at && i == at)
            fputs("\\n", out);
    }
    fputc('"', out);
}

static void frame(FILE *out, const afdep_report_set_t *set, const char *what)
{
    char title[512];
    const cJSON *scenario = get(get(set->comparison.first[0], "scenario"), "name");
    const cJSON *arm = get(set->comparison.first[0], "arm");
    const cJSON *backend = get(arm, "backend");
    snprintf(title, sizeof(title), "%s: %s, %s%s", what, cJSON_IsString(scenario) ? scenario->valuestring : "?",
             cJSON_IsString(backend) ? backend->valuestring : "?",
             cJSON_IsTrue(get(arm, "emulated")) ? ", emulated" : "");
    fputs("set encoding utf8\nset title ", out);
    afdep_gnuplot_quote(out, title);
    fputs(" noenhanced\nset border 3 lc rgb '#555555'\nset tics nomirror\nset grid lc rgb '#cccccc' lw 1 dt 1\n"
          "set key outside below center horizontal noenhanced samplen 4 height 1\n",
          out);
}

/* The token counts themselves, on a scale of powers of two. */
static void token_axis(FILE *out, const afdep_comparison_t *c)
{
    int first = 0;
    while (c->tokens[first] < 1)
        first++;
    fputs("set xlabel 'tokens per Attention rank'\nset logscale x 2\nset xtics (", out);
    for (int token = first; token < c->token_counts; token++)
        fprintf(out, "%s'%d' %d", token > first ? "," : "", c->tokens[token], c->tokens[token]);
    fprintf(out, ")\nset xrange [%g:%g]\n", c->tokens[first] / 1.4, c->tokens[c->token_counts - 1] * 1.4);
}

static void widen(double value, double *low, double *high)
{
    if (!(value > 0) || !isfinite(value))
        return;
    *low = value < *low ? value : *low;
    *high = value > *high ? value : *high;
}

/* Arms stand beside each other, not on top: a factor for the token counts of the `place`-th of `count`, `step` of an
   octave apart as long as all together stay narrower than one. */
static double beside(int place, int count, double step)
{
    if (count * step > 0.6)
        step = 0.6 / count;
    return pow(2, step * (place - (count - 1) / 2.0));
}

/* ---- Latency --------------------------------------------------------------------------------------------------- */

static void latency_data(FILE *out, const afdep_comparison_t *c)
{
    for (int arm = 0; arm < c->arms; arm++) {
        fprintf(out, "$arm%d << EOD\n", arm);
        for (int token = 0; token < c->token_counts; token++) {
            double low = INFINITY, high = 0;
            for (int repeat = 0; repeat < c->repeats; repeat++)
                widen(afdep_comparison_at(c, arm, token, repeat), &low, &high);
            if (high == 0)
                continue;
            fprintf(out, "%d", c->tokens[token]);
            afdep_gnuplot_number(out, afdep_comparison_median(c, arm, token));
            afdep_gnuplot_number(out, low);
            afdep_gnuplot_number(out, high);
            fputc('\n', out);
        }
        fputs("EOD\n", out);
    }
}

static void latency_drawing(FILE *out, const afdep_report_set_t *set)
{
    const afdep_comparison_t *c = &set->comparison;
    double low = INFINITY, high = 0;
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++)
            for (int repeat = 0; repeat < c->repeats; repeat++)
                widen(afdep_comparison_at(c, arm, token, repeat), &low, &high);
    frame(out, set, "Round trip");
    token_axis(out, c);
    afdep_gnuplot_log_axis(out, "y", low / 1.3, high * 1.3);
    fputs("set ylabel 'round trip, median (µs)'\nset bars 0.7\nplot ", out);
    for (int arm = 0; arm < c->arms; arm++) {
        int type = arm % STYLES + 1;
        double x = beside(arm, c->arms, 0.04);
        fprintf(out, "%s$arm%d using ($1*%.4f):2:3:4 with yerrorbars lt %d lw 1 dt 1 ps 0 notitle", arm ? ", " : "",
                arm, x, type);
        fprintf(out, ", $arm%d using ($1*%.4f):2 with linespoints lt %d title ", arm, x, type);
        afdep_gnuplot_quote(out, c->names[arm]);
    }
    fputc('\n', out);
}

/* ---- Change ---------------------------------------------------------------------------------------------------- */

static void change_data(FILE *out, const afdep_comparison_t *c)
{
    for (int arm = 0; arm < c->arms; arm++) {
        fprintf(out, "$arm%d << EOD\n", arm);
        for (int token = 0; token < c->token_counts; token++) {
            afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
            if (paired.repeats == 0)
                continue;
            int one = paired.repeats == 1;
            fprintf(out, "%d", c->tokens[token]);
            afdep_gnuplot_number(out, paired.change_pct);
            afdep_gnuplot_number(out, one ? paired.change_pct : paired.change_low_pct);
            afdep_gnuplot_number(out, one ? paired.change_pct : paired.change_high_pct);
            fputc('\n', out);
        }
        fputs("EOD\n", out);
    }
}

/* So that one wide interval does not flatten all others; bars may then leave the frame. */
static void change_range(FILE *out, const afdep_comparison_t *c)
{
    double low = -1, high = 1, most = 20;
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; arm != c->baseline && token < c->token_counts; token++) {
            afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
            if (paired.repeats == 0)
                continue;
            most = fmax(most, fabs(paired.change_pct));
            low = fmin(low, paired.repeats > 1 ? paired.change_low_pct : paired.change_pct);
            high = fmax(high, paired.repeats > 1 ? paired.change_high_pct : paired.change_pct);
        }
    high = fmin(high, 1.5 * most);
    fprintf(out, "set yrange [%g:%g]\n", fmax(-105, low - 0.08 * (high - low)), high + 0.08 * (high - low));
}

static void change_drawing(FILE *out, const afdep_report_set_t *set)
{
    const afdep_comparison_t *c = &set->comparison;
    int place = 0, first = 1;
    char what[192];
    snprintf(what, sizeof(what), "Change against %.128s", c->names[c->baseline]);
    frame(out, set, what);
    token_axis(out, c);
    fputs("unset logscale y\nset ytics autofreq\n", out);
    change_range(out, c);
    fputs("set ylabel ", out);
    afdep_gnuplot_quote(out, "change of the round trip, 95% interval (%)");
    fputs("\nset xzeroaxis lt -1 lw 2 dt 1\nset bars 1.5\nplot ", out);
    for (int arm = 0; arm < c->arms; arm++) {
        if (arm == c->baseline)
            continue;
        double x = beside(place++, c->arms - 1, 0.12);
        fprintf(out, "%s$arm%d using ($1*%.4f):2:3:4 with yerrorbars lt %d dt 1 title ", first ? "" : ", ", arm, x,
                arm % STYLES + 1);
        afdep_gnuplot_quote(out, c->names[arm]);
        first = 0;
    }
    fputc('\n', out);
}

/* ---- Signals --------------------------------------------------------------------------------------------------- */

static void signals_data(FILE *out, const afdep_comparison_t *c)
{
    for (int arm = 0; arm < c->arms; arm++) {
        fprintf(out, "$arm%d << EOD\n", arm);
        for (int token = 0; token < c->token_counts; token++)
            if (signals_of(c, arm, token) > 0)
                fprintf(out, "%d %.9g\n", c->tokens[token], signals_of(c, arm, token));
        fputs("EOD\n", out);
    }
}

static void signals_drawing(FILE *out, const afdep_report_set_t *set)
{
    const afdep_comparison_t *c = &set->comparison;
    double low = INFINITY, high = 0;
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++)
            widen(signals_of(c, arm, token), &low, &high);
    frame(out, set, "Signals");
    token_axis(out, c);
    afdep_gnuplot_log_axis(out, "y", low / 1.3, high * 1.3);
    fputs("set ylabel 'signals per exchange, busiest FFN rank'\nplot ", out);
    for (int arm = 0; arm < c->arms; arm++) {
        fprintf(out, "%s$arm%d using 1:2 with linespoints lt %d title ", arm ? ", " : "", arm, arm % STYLES + 1);
        afdep_gnuplot_quote(out, c->names[arm]);
    }
    fputc('\n', out);
}

/* ---- Heat map of ranks ----------------------------------------------------------------------------------------- */

static void ranks_data(FILE *out, const afdep_comparison_t *c)
{
    int ranks = ranks_of(c);
    for (int arm = 0; arm < c->arms; arm++) {
        fprintf(out, "$arm%d << EOD\n", arm);
        for (int rank = 0; rank < ranks; rank++)
            for (int token = 0; token < c->token_counts; token++) {
                double signals = signals_of_rank(c, arm, token, rank);
                fprintf(out, "%d %d", token, rank);
                afdep_gnuplot_number(out, signals > 0 ? signals : NAN);
                fputc('\n', out);
            }
        fputs("EOD\n", out);
    }
}

static void ranks_colours(FILE *out, const afdep_comparison_t *c)
{
    double low = INFINITY, high = 0;
    int ranks = ranks_of(c);
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++)
            for (int rank = 0; rank < ranks; rank++)
                widen(signals_of_rank(c, arm, token, rank), &low, &high);
    /* Cividis: as even for colour-blind eyes as for others. */
    fputs("set palette defined (0 '#00224e', 0.25 '#434e6c', 0.5 '#7d7c78', 0.75 '#bcae6c', 1 '#fee838')\n", out);
    afdep_gnuplot_log_axis(out, "cb", low, high > low ? high : low * 10);
}

/* How far apart labelled ranks are. */
static int rank_step(int ranks)
{
    int step = 1;
    while (ranks / step > 24)
        step *= 2;
    return step;
}

static void ranks_drawing(FILE *out, const afdep_report_set_t *set)
{
    const afdep_comparison_t *c = &set->comparison;
    int ranks = ranks_of(c), abreast = c->arms < PANELS_ABREAST ? c->arms : PANELS_ABREAST;
    int rows = (c->arms + abreast - 1) / abreast;
    const cJSON *ffn = get(get(get(c->first[0], "scenario"), "topology"), "ffn_ranks");
    frame(out, set, "Signals by rank");
    ranks_colours(out, c);
    fprintf(out,
            "unset title\nset border 15\nunset grid\nunset key\nset xrange [-0.5:%d.5]\nset yrange [%d.5:-0.5]\n"
            "set xtics %s font ',10' (",
            c->token_counts - 1, ranks - 1, abreast * c->token_counts > 16 ? "rotate by -90" : "norotate");
    for (int token = 0; token < c->token_counts; token++)
        fprintf(out, "%s'%d' %d", token ? "," : "", c->tokens[token], token);
    fprintf(out, ")\nset ytics font ',%d' 0,%d\n", rows > 1 ? 8 : 10, rank_step(ranks) * (rows > 1 ? 2 : 1));
    if (cJSON_IsNumber(ffn) && ffn->valuedouble < ranks)
        fprintf(out, "set arrow 1 from graph 0, first %g to graph 1, first %g nohead front lc rgb '#D55E00' lw 2\n",
                ffn->valuedouble - 0.5, ffn->valuedouble - 0.5);
    fprintf(out, "set multiplot layout %d,%d margins 0.09,0.86,0.13,0.91 spacing 0.02,0.17\n", rows, abreast);
    fputs("set label 10 'signals per exchange, in and out' at screen 0.985,0.52 rotate by 90 center\n"
          "set label 11 'tokens per Attention rank' at screen 0.475,0.025 center\n",
          out);
    fputs("set label 12 'rank (FFN ranks above the line)' at screen 0.02,0.52 rotate by 90 center\n", out);
    fputs("set colorbox user origin 0.88,0.13 size 0.02,0.78\n", out);
    for (int arm = 0; arm < c->arms; arm++) {
        fputs("set title ", out);
        quote_in_two(out, c->names[arm]);
        fprintf(out, " noenhanced font ',%d'\nset format y '%s'\n", c->arms > 3 ? 9 : 12, arm % abreast ? "" : "%g");
        fprintf(out, "plot $arm%d using 1:2:3 with image notitle\n", arm);
        fputs("unset label 10\nunset label 11\nunset label 12\nunset colorbox\n", out);
    }
    fputs("unset multiplot\n", out);
}

/* ---- A picture ------------------------------------------------------------------------------------------------- */

/* What a drawing's functions get. */
typedef struct shown {
    const afdep_report_set_t *set;
    afdep_picture_kind_t kind;
} shown_t;

static void write_data(FILE *out, const void *context)
{
    static void (*const data[])(FILE *, const afdep_comparison_t *) = { latency_data, change_data, signals_data,
                                                                        ranks_data };
    const shown_t *shown = context;
    data[shown->kind](out, &shown->set->comparison);
}

static void write_drawing(FILE *out, const void *context)
{
    static void (*const drawing[])(FILE *, const afdep_report_set_t *) = { latency_drawing, change_drawing,
                                                                           signals_drawing, ranks_drawing };
    const shown_t *shown = context;
    drawing[shown->kind](out, shown->set);
}

int afdep_picture_draw(const afdep_report_set_t *set, afdep_picture_kind_t kind, const char *folder, int signals,
                       afdep_picture_t *picture, char *why, size_t why_size)
{
    char name[sizeof(picture->file) - 4];
    shown_t shown = { set, kind };
    int rows = (set->comparison.arms + PANELS_ABREAST - 1) / PANELS_ABREAST;
    /* Long keys take two columns at most. */
    int key = set->comparison.arms > 4 ? 10 * set->comparison.arms : 0;
    int height = kind != AFDEP_PICTURE_RANKS ? 500 + key : rows > 1 ? 350 * rows : 560;
    snprintf(name, sizeof(name), "%s%s", set->prefix, names[kind]);
    afdep_drawing_t drawing = { name, captions[kind], height, write_data, write_drawing, &shown };
    return afdep_gnuplot_draw(&drawing, folder, signals, picture, why, why_size);
}
