/* SPDX-License-Identifier: Apache-2.0 */
/* Spans are kept until the end, since only then it is known when the wanted exchange began. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/record.h"
#include "bench/lib/why.h"

#define ROWS_OF_RESOURCE 65536 /* thread ids: one block for each resource, calls before all */

typedef struct span {
    int64_t from, to;
    const char *what; /* static text */
    int rank, row;
} span_t;

struct afdep_chrome {
    char *file;
    const afdep_scenario_t *scenario;
    uint64_t exchange;
    int64_t began; /* the wanted exchange; INT64_MAX before */
    span_t *spans;
    size_t count, limit;
    int failed;
    afdep_predict_watch_t watch;
};

static void add_span(afdep_chrome_t *c, int rank, int row, int64_t from, int64_t to, const char *what)
{
    if (c->count == c->limit) {
        size_t limit = c->limit ? 2 * c->limit : 65536;
        span_t *spans = realloc(c->spans, limit * sizeof(*spans));
        if (!spans) {
            c->failed = 1;
            return;
        }
        c->spans = spans;
        c->limit = limit;
    }
    c->spans[c->count++] = (span_t){ from, to, what, rank, row };
}

static void served(void *context, afdep_resource_t resource, int rank, int index, int64_t from, int64_t to,
                   const char *what)
{
    add_span(context, rank, ((int)resource + 1) * ROWS_OF_RESOURCE + index % ROWS_OF_RESOURCE, from, to, what);
}

static void called(void *context, int rank, uint64_t exchange, const char *call, int64_t from, int64_t to)
{
    afdep_chrome_t *c = context;
    if (exchange == c->exchange && from < c->began)
        c->began = from;
    add_span(c, rank, strcmp(call, "exchange") == 0 ? 0 : 1, from, to, call);
}

afdep_chrome_t *afdep_chrome_begin(const char *file, const afdep_scenario_t *scenario, uint64_t exchange, char *why,
                                   size_t why_size)
{
    if (afdep_record_probe(file, why, why_size) != 0)
        return NULL;
    afdep_chrome_t *c = calloc(1, sizeof(*c));
    char *name = strdup(file);
    if (!c || !name) {
        afdep_why(why, why_size, "no memory for a trace");
        free(name);
        free(c);
        return NULL;
    }
    c->file = name;
    c->scenario = scenario;
    c->exchange = exchange;
    c->began = INT64_MAX;
    c->watch = (afdep_predict_watch_t){ .context = c, .served = served, .called = called };
    return c;
}

const afdep_predict_watch_t *afdep_chrome_watch(afdep_chrome_t *chrome)
{
    return &chrome->watch;
}

/* ---- Writing ------------------------------------------------------------------------------------------------- */

static int by_row(const void *a, const void *b)
{
    const span_t *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void name_row(FILE *out, const span_t *span)
{
    int resource = span->row / ROWS_OF_RESOURCE - 1, index = span->row % ROWS_OF_RESOURCE;
    char name[64];
    if (resource < 0)
        snprintf(name, sizeof(name), "%s", span->row == 0 ? "exchange" : "calls");
    else if (resource == AFDEP_RESOURCE_SM || resource == AFDEP_RESOURCE_WARP || resource == AFDEP_RESOURCE_NIC_SEND ||
             resource == AFDEP_RESOURCE_NIC_RECEIVE)
        snprintf(name, sizeof(name), "%s %d", afdep_resource_name((afdep_resource_t)resource), index);
    else
        snprintf(name, sizeof(name), "%s", afdep_resource_name((afdep_resource_t)resource));
    fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
            span->rank, span->row, name);
    fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
            span->rank, span->row, span->row);
}

static void write_all(FILE *out, afdep_chrome_t *c)
{
    int rank = -1, row = -1;
    fprintf(out,
            "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"emulated\":true,\"scenario\":\"%s\"},\"traceEvents\":[\n",
            c->scenario->name);
    fputs("{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":0,\"args\":{\"sort_index\":0}}", out);
    for (size_t i = 0; i < c->count; i++) {
        const span_t *s = &c->spans[i];
        if (s->to < c->began)
            continue;
        if (s->rank != rank)
            fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s rank %d\"}}",
                    s->rank, s->rank < c->scenario->ffn_ranks ? "FFN" : "Attention", s->rank);
        if (s->rank != rank || s->row != row)
            name_row(out, s);
        rank = s->rank;
        row = s->row;
        /* Microseconds; picoseconds stand behind the point. */
        fprintf(out, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.6f,\"dur\":%.6f}", s->what,
                s->rank, s->row, (double)s->from / 1e6, (double)(s->to - s->from) / 1e6);
    }
    fputs("\n]}\n", out);
}

int afdep_chrome_end(afdep_chrome_t *c, char *why, size_t why_size)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = c->failed ? NULL : open_memstream(&text, &size);
    int status = -1;
    if (out) {
        qsort(c->spans, c->count, sizeof(*c->spans), by_row);
        write_all(out, c);
        status = fclose(out);
    }
    if (status != 0)
        afdep_why(why, why_size, "%s: no memory for the trace", c->file);
    else
        status = afdep_file_write(c->file, text, size, why, why_size);
    free(text);
    free(c->spans);
    free(c->file);
    free(c);
    return status;
}
