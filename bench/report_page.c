/* SPDX-License-Identifier: Apache-2.0 */
/* The two writers side by side. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/report_page.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/record.h"
#include "bench/lib/why.h"

static const char style[] = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
                            "1rem;color:#111;background:#fff}"
                            "h1,h2,h3{line-height:1.25}h2{margin-top:3rem;border-top:1px solid #ccc;padding-top:1rem}"
                            "table{border-collapse:collapse;display:block;overflow-x:auto;margin:1rem 0}"
                            "th,td{border:1px solid #ccc;padding:.25rem .6rem;text-align:left;vertical-align:top}"
                            "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}th{background:#f3f3f3}"
                            "img{max-width:100%;height:auto}figure{margin:1.5rem 0}figcaption{color:#444}";

static void html_text(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
}

/* Line breaks would end a table's row or a heading. */
static void md_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (strchr("\\`*_{}[]<>#|&", *text))
            fputc('\\', out);
        fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
    }
}

int afdep_page_begin(afdep_page_t *page, const char *title)
{
    memset(page, 0, sizeof(*page));
    page->md = open_memstream(&page->md_text, &page->md_size);
    page->html = page->md ? open_memstream(&page->html_text, &page->html_size) : NULL;
    if (!page->html)
        return -1;
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          page->html);
    html_text(page->html, title);
    fprintf(page->html, "</title>\n<style>%s</style>\n</head>\n<body>\n", style);
    afdep_page_heading(page, 1, title);
    return 0;
}

void afdep_page_heading(afdep_page_t *page, int level, const char *text)
{
    fprintf(page->md, "%s%.*s ", level > 1 ? "\n" : "", level, "######");
    md_text(page->md, text);
    fputs("\n", page->md);
    fprintf(page->html, "<h%d>", level);
    html_text(page->html, text);
    fprintf(page->html, "</h%d>\n", level);
}

void afdep_page_paragraph(afdep_page_t *page, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    if (!text)
        return;
    fputs("\n", page->md);
    md_text(page->md, text);
    fputs("\n", page->md);
    fputs("<p>", page->html);
    html_text(page->html, text);
    fputs("</p>\n", page->html);
    free(text);
}

static void html_cell(afdep_page_t *page, const char *tag, const char *text, int number)
{
    fprintf(page->html, "<%s%s>", tag, number ? " class=\"n\"" : "");
    html_text(page->html, text);
    fprintf(page->html, "</%s>", tag);
}

void afdep_page_table(afdep_page_t *page, const char *const *names, int columns, int numbers)
{
    page->columns = columns;
    page->numbers = numbers;
    fputs("\n|", page->md);
    fputs("<table>\n<tr>", page->html);
    for (int i = 0; i < columns; i++) {
        fputc(' ', page->md);
        md_text(page->md, names[i]);
        fputs(" |", page->md);
        html_cell(page, "th", names[i], i >= columns - numbers);
    }
    fputs("\n|", page->md);
    for (int i = 0; i < columns; i++)
        fputs(i >= columns - numbers ? "---:|" : "---|", page->md);
    fputs("\n", page->md);
    fputs("</tr>\n", page->html);
}

void afdep_page_row(afdep_page_t *page, const char *const *cells)
{
    fputs("|", page->md);
    fputs("<tr>", page->html);
    for (int i = 0; i < page->columns; i++) {
        fputc(' ', page->md);
        md_text(page->md, cells[i]);
        fputs(" |", page->md);
        html_cell(page, "td", cells[i], i >= page->columns - page->numbers);
    }
    fputs("\n", page->md);
    fputs("</tr>\n", page->html);
}

void afdep_page_table_end(afdep_page_t *page)
{
    fputs("</table>\n", page->html);
}

static void base64(FILE *out, const unsigned char *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        unsigned three = (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                         (left > 2 ? (unsigned)bytes[i + 2] : 0);
        fputc(digits[three >> 18], out);
        fputc(digits[three >> 12 & 63], out);
        fputc(left > 1 ? digits[three >> 6 & 63] : '=', out);
        fputc(left > 2 ? digits[three & 63] : '=', out);
    }
}

void afdep_page_picture(afdep_page_t *page, const char *file, const char *svg, size_t size, const char *caption)
{
    fputs("\n![", page->md);
    md_text(page->md, caption);
    fprintf(page->md, "](%s)\n\n", file);
    md_text(page->md, caption);
    fputs("\n", page->md);
    fputs("<figure><img alt=\"", page->html);
    html_text(page->html, caption);
    fputs("\" src=\"data:image/svg+xml;base64,", page->html);
    base64(page->html, (const unsigned char *)svg, size);
    fputs("\"><figcaption>", page->html);
    html_text(page->html, caption);
    fputs("</figcaption></figure>\n", page->html);
}

static int write_file(const char *folder, const char *name, const char *text, size_t size, char *why, size_t why_size)
{
    char *file = NULL;
    if (asprintf(&file, "%s/%s", folder, name) < 0)
        return afdep_why(why, why_size, "%s: no memory for its name", name);
    int status = afdep_file_write(file, text, size, why, why_size);
    free(file);
    return status;
}

int afdep_page_end(afdep_page_t *page, const char *folder, char *why, size_t why_size)
{
    fputs("</body>\n</html>\n", page->html);
    int failed = fclose(page->md) != 0;
    failed = fclose(page->html) != 0 || failed;
    int status = failed ? afdep_why(why, why_size, "no memory for the page") : folder ? 0 : -1;
    if (status == 0)
        status = write_file(folder, "index.md", page->md_text, page->md_size, why, why_size);
    if (status == 0)
        status = write_file(folder, "index.html", page->html_text, page->html_size, why, why_size);
    free(page->md_text);
    free(page->html_text);
    return status;
}
