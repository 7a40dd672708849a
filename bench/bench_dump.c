/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a rank's tensors of one exchange. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/bench_dump.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/lib/npy.h"

#define PATH_BYTES 4096

static void make_folder(afdep_bench_rank_t *rank, const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return;
    char why[PATH_BYTES + 256];
    snprintf(why, sizeof(why), "%s: %s", path, strerror(errno));
    afdep_bench_fatal(rank, "dump", why);
}

/* Makes the rank's folder and returns its name in `path`. */
static void rank_folder(afdep_bench_rank_t *rank, const char *folder, int tokens, char *path)
{
    if (strlen(folder) > PATH_BYTES - 128)
        afdep_bench_fatal(rank, "dump", "the folder's name is too long");
    make_folder(rank, folder);
    snprintf(path, PATH_BYTES, "%s/T%d", folder, tokens);
    make_folder(rank, path);
    snprintf(path, PATH_BYTES, "%s/T%d/rank%d", folder, tokens, rank->world->rank);
    make_folder(rank, path);
}

static void dump(afdep_bench_rank_t *rank, const char *folder, const char *name, afdep_npy_type_t type,
                 const void *data, int64_t rows, int64_t columns)
{
    char file[PATH_BYTES + 64], why[PATH_BYTES + 512];
    snprintf(file, sizeof(file), "%s/%s.npy", folder, name);
    if (afdep_npy_write(file, type, data, rows, columns, why, sizeof(why)) != 0)
        afdep_bench_fatal(rank, "dump", why);
}

static afdep_npy_type_t row_type(const afdep_bench_rank_t *rank)
{
    return rank->fp8 ? AFDEP_NPY_UINT8 : AFDEP_NPY_UINT16;
}

/* The collected rows without a view's stride, to be freed. */
static uint16_t *contiguous(afdep_bench_rank_t *rank, const afdep_collect_t *collect, int tokens)
{
    size_t row = (size_t)rank->plan->scenario.hidden * sizeof(uint16_t);
    unsigned char *copy = malloc((size_t)(tokens > 0 ? tokens : 1) * row);
    if (!copy)
        afdep_bench_fatal(rank, "dump", "no memory for the collected rows");
    for (size_t t = 0; t < (size_t)tokens; t++)
        memcpy(copy + t * row, (const uint16_t *)collect->result + t * (size_t)collect->result_stride, row);
    return (uint16_t *)copy;
}

void afdep_bench_dump_source(afdep_bench_rank_t *rank, const char *folder, int tokens,
                             const afdep_source_tokens_t *sent, const afdep_collect_t *collect)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    char path[PATH_BYTES];
    rank_folder(rank, folder, tokens, path);
    uint16_t *out = contiguous(rank, collect, sent->tokens);
    dump(rank, path, "x", row_type(rank), sent->x, sent->tokens, s->hidden);
    if (rank->fp8)
        dump(rank, path, "x_scale", AFDEP_NPY_FLOAT32, sent->x_scale, sent->tokens, s->hidden / 128);
    dump(rank, path, "ids", AFDEP_NPY_INT32, sent->ids, sent->tokens, s->top_k);
    dump(rank, path, "weights", AFDEP_NPY_FLOAT32, sent->weights, sent->tokens, s->top_k);
    dump(rank, path, "out", AFDEP_NPY_UINT16, out, sent->tokens, s->hidden);
    free(out);
}

void afdep_bench_dump_worker(afdep_bench_rank_t *rank, const char *folder, int tokens, int64_t rows)
{
    const afdep_scenario_t *s = &rank->plan->scenario;
    char path[PATH_BYTES];
    rank_folder(rank, folder, tokens, path);
    dump(rank, path, "ends", AFDEP_NPY_INT32, rank->ends, rank->experts, AFDEP_NPY_1D);
    dump(rank, path, "rows", row_type(rank), rank->rows, rows, s->hidden);
    if (rank->fp8)
        dump(rank, path, "row_scale", AFDEP_NPY_FLOAT32, rank->row_scale, rows, s->hidden / 128);
    dump(rank, path, "row_weight", AFDEP_NPY_FLOAT32, rank->row_weight, rows, AFDEP_NPY_1D);
    dump(rank, path, "row_source", AFDEP_NPY_INT32, rank->row_source, rows, 2);
    dump(rank, path, "reply", AFDEP_NPY_UINT16, rank->reply, rows, s->hidden);
}
