/* SPDX-License-Identifier: Apache-2.0 */
/* The pictures of a set, drawn by gnuplot. */
#ifndef AFDEP_BENCH_REPORT_PLOT_H
#define AFDEP_BENCH_REPORT_PLOT_H

#include <stddef.h>

#include "bench/report_gnuplot.h"
#include "bench/report_set.h"

typedef enum afdep_picture_kind {
    AFDEP_PICTURE_LATENCY, /* medians against token counts */
    AFDEP_PICTURE_CHANGE,  /* paired changes with their intervals */
    AFDEP_PICTURE_SIGNALS, /* signals of an exchange at the busiest FFN rank */
    AFDEP_PICTURE_RANKS,   /* signals of each rank, as a heat map */
    AFDEP_PICTURES
} afdep_picture_kind_t;

/* Whether the set holds what the picture shows. */
int afdep_picture_possible(const afdep_report_set_t *set, afdep_picture_kind_t kind);

/* Draws into `folder`. `signals`: of afdep_run_begin(). 0, or -1 with one line. */
int afdep_picture_draw(const afdep_report_set_t *set, afdep_picture_kind_t kind, const char *folder, int signals,
                       afdep_picture_t *picture, char *why, size_t why_size);

#endif
