/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures by gnuplot, as SVG and PNG. Colours are those of Okabe and Ito, which colour-blind readers can tell apart;
 * each line type also has a point shape and a dash of its own, for print.
 */
#ifndef AFDEP_BENCH_REPORT_GNUPLOT_H
#define AFDEP_BENCH_REPORT_GNUPLOT_H

#include <stddef.h>
#include <stdio.h>

#define AFDEP_GNUPLOT_STYLES 8 /* line types 1 to this; then they come again */

typedef struct afdep_picture {
    char file[192]; /* name of the SVG in the folder of the report; the PNG stands beside it */
    const char *caption;
    char *svg; /* its content; owned by the caller: free() */
    size_t size;
} afdep_picture_t;

typedef struct afdep_drawing {
    const char *name; /* of the files, without their endings */
    const char *caption;
    int height;                                   /* of 800 pixels' width */
    void (*data)(FILE *out, const void *context); /* data blocks, written once */
    void (*draw)(FILE *out, const void *context); /* written for each form */
    const void *context;
} afdep_drawing_t;

/* Draws into `folder`. `signals`: of afdep_run_begin(). 0, or -1 with one line. */
int afdep_gnuplot_draw(const afdep_drawing_t *drawing, const char *folder, int signals, afdep_picture_t *picture,
                       char *why, size_t why_size);

/* In single quotes, where gnuplot reads nothing; quotes of the text's own become typographic ones. */
void afdep_gnuplot_quote(FILE *out, const char *text);

/* A space and the number, or NaN. */
void afdep_gnuplot_number(FILE *out, double value);

/* A logarithmic scale for `axis`: tics at 1, 2, 5 of each power of ten while there is room, else at the powers. */
void afdep_gnuplot_log_axis(FILE *out, const char *axis, double low, double high);

#endif
