/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One text in two forms: Markdown beside its pictures, and an HTML page that carries them inside. Everything is escaped
 * here; callers hand over plain text.
 */
#ifndef AFDEP_BENCH_REPORT_PAGE_H
#define AFDEP_BENCH_REPORT_PAGE_H

#include <stddef.h>
#include <stdio.h>

typedef struct afdep_page {
    FILE *md, *html; /* into memory */
    char *md_text, *html_text;
    size_t md_size, html_size;
    int columns, numbers; /* of the table under way */
} afdep_page_t;

/* -1 without memory. */
int afdep_page_begin(afdep_page_t *page, const char *title);
void afdep_page_heading(afdep_page_t *page, int level, const char *text);
void afdep_page_paragraph(afdep_page_t *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `numbers` columns from the right are aligned as numbers. */
void afdep_page_table(afdep_page_t *page, const char *const *names, int columns, int numbers);
void afdep_page_row(afdep_page_t *page, const char *const *cells);
void afdep_page_table_end(afdep_page_t *page);
/* `file`: the SVG beside the page; `svg`: its content. */
void afdep_page_picture(afdep_page_t *page, const char *file, const char *svg, size_t size, const char *caption);
/* Writes FOLDER/index.md and FOLDER/index.html (FOLDER NULL: nothing), and frees the page. 0, or -1 with one line. */
int afdep_page_end(afdep_page_t *page, const char *folder, char *why, size_t why_size);

#endif
