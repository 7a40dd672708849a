/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the row loops are: GB/s (10^9 bytes read and written per second) of every version this processor runs,
 * beside memcpy counted the same way. "cached" repeats the same rows, "spread" walks through a pool (first argument,
 * MiB, default 256) that no cache near the core holds. Not installed; for looking, never a timed test.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "numerics/numerics.h"

enum { COUNT_MAX = 8, SAMPLES = 15 };

typedef enum kind { KIND_MEMCPY, KIND_SUM, KIND_WEIGHTED, KIND_FAN_OUT } kind_t;

typedef struct run {
    kind_t kind;
    const afdep_row_ops_t *ops;
    int count;
    size_t n;
    uint16_t *pool;   /* rows of n elements */
    size_t pool_rows; /* in the pool; a run uses count + 1 rows at a time */
} run_t;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One call on the rows from `row` on. */
static void call(const run_t *run, size_t row)
{
    uint16_t *first = run->pool + row * run->n;
    afdep_term_t terms[COUNT_MAX];
    void *dst[COUNT_MAX];

    for (int k = 0; k < run->count; k++) {
        terms[k].row = first + (size_t)(k + 1) * run->n;
        terms[k].weight = 0.125f;
        dst[k] = first + (size_t)(k + 1) * run->n;
    }
    switch (run->kind) {
    case KIND_MEMCPY:
        memcpy(first, terms[0].row, run->n * sizeof(*first));
        break;
    case KIND_SUM:
        run->ops->sum(first, terms, run->count, run->n);
        break;
    case KIND_WEIGHTED:
        run->ops->weighted_sum(first, terms, run->count, run->n);
        break;
    case KIND_FAN_OUT:
        run->ops->fan_out(dst, run->count, first, run->n * sizeof(*first));
        break;
    }
}

/* The best of several samples of about a millisecond or one walk through the pool: the machine is shared. */
static double gigabytes_per_second(const run_t *run, int spread)
{
    size_t rows = (size_t)run->count + 1;
    size_t bytes = rows * run->n * sizeof(uint16_t);
    size_t calls = spread ? run->pool_rows / rows : (size_t)30000000 / bytes + 1;
    double best = 0;

    for (int s = 0; s < (spread ? 3 : SAMPLES); s++) {
        double start = now(), rate;

        for (size_t i = 0; i < calls; i++) {
            call(run, spread ? i * rows : 0);
        }
        rate = (double)calls * (double)bytes / (now() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}

static void print_line(const run_t *run, const char *what)
{
    printf("%8zu  %-14s %-8s %5d  %8.1f  %8.1f\n", run->n, what, run->ops != NULL ? run->ops->name : "-", run->count,
           gigabytes_per_second(run, 0), gigabytes_per_second(run, 1));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const size_t hidden[] = { 2048, 7168 };
    static const int counts[] = { 1, 2, 8 };
    size_t pool_bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 256) << 20;
    uint16_t *pool;

    if (pool_bytes < (size_t)1 << 20 || (pool = aligned_alloc(4096, pool_bytes)) == NULL) {
        fprintf(stderr, "micro_rows: pool %s: a number of MiB, at least 1, that fits the memory\n",
                argc > 1 ? argv[1] : "");
        return 2;
    }
    for (size_t i = 0; i < pool_bytes / sizeof(*pool); i++) {
        pool[i] = (uint16_t)(0x3F00 + i % 251);
    }
    printf("# pool %zu MiB\n#%7s  %-14s %-8s %5s  %8s  %8s\n", pool_bytes >> 20, "hidden", "loop", "version", "count",
           "cached", "spread");
    for (size_t h = 0; h < sizeof(hidden) / sizeof(hidden[0]); h++) {
        run_t run = { KIND_MEMCPY, NULL, 1, hidden[h], pool, pool_bytes / (hidden[h] * sizeof(*pool)) };

        print_line(&run, "memcpy");
        for (int v = 0; afdep_row_ops_all[v] != NULL; v++) {
            run.ops = afdep_row_ops_all[v];
            for (size_t c = 0; afdep_row_ops_runs(run.ops) && c < sizeof(counts) / sizeof(counts[0]); c++) {
                run.count = counts[c];
                run.kind = KIND_SUM;
                print_line(&run, "sum");
                run.kind = KIND_WEIGHTED;
                print_line(&run, "weighted_sum");
                run.kind = KIND_FAN_OUT;
                print_line(&run, "fan_out");
            }
        }
    }
    free(pool);
    return 0;
}
