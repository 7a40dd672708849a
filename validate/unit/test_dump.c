/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The .npy writer byte by byte, and scripts/check-dump against dumps made from the oracle: two implementations of the
 * numeric rules in two languages must agree on whole exchanges, and every planted error must be named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/npy.h"
#include "validate/oracle.h"

/* Two FFN domains of two ranks, several experts of a token on one rank: all three levels of sums. */
enum {
    F = 4,
    A = 2,
    D = 2,
    E = 16,
    K = 6,
    HIDDEN = 256,
    SEED = 11,
    EXCHANGE = 2,
    HEADER = 128
};

static char root[] = "test_dump_XXXXXX";

static const char *path_of(const char *format, ...) __attribute__((format(printf, 1, 2)));

static const char *path_of(const char *format, ...)
{
    static char path[512];
    int used = snprintf(path, sizeof(path), "%s/", root);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(path + used, sizeof(path) - (size_t)used, format, arguments);
    va_end(arguments);
    return path;
}

static long read_file(const char *path, char *content, size_t size)
{
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    size_t got = fread(content, 1, size, file);
    fclose(file);
    return (long)got;
}

/* ---- .npy ------------------------------------------------------------------------------------------------------ */

static void check_npy(afdep_npy_type_t type, const void *data, size_t bytes, int64_t rows, int64_t columns,
                      const char *dictionary)
{
    char content[1024], why[200] = "";
    const char *path = path_of("array.npy");

    assert_int_equal(afdep_npy_write(path, type, data, rows, columns, why, sizeof(why)), 0);
    assert_int_equal(read_file(path, content, sizeof(content)), HEADER + bytes);
    assert_memory_equal(content, "\x93NUMPY\x01\x00\x76\x00", 10); /* 118 more bytes of header */
    assert_memory_equal(content + 10, dictionary, strlen(dictionary));
    for (size_t i = 10 + strlen(dictionary); i < HEADER - 1; i++)
        assert_int_equal(content[i], ' ');
    assert_int_equal(content[HEADER - 1], '\n');
    if (bytes > 0)
        assert_memory_equal(content + HEADER, data, bytes);
}

static void test_npy(void **state)
{
    static const uint8_t bytes[] = { 1, 2, 3, 4, 5, 6 };
    static const uint16_t halves[] = { 0x3F80, 0x0102 };
    static const int32_t ints[] = { -1, 7, 9 };
    static const float floats[] = { 0.5f, -2 };
    char why[200] = "";

    (void)state;
    check_npy(AFDEP_NPY_UINT8, bytes, 6, 2, 3, "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }");
    check_npy(AFDEP_NPY_UINT16, halves, 4, 1, 2, "{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2), }");
    check_npy(AFDEP_NPY_INT32, ints, 12, 3, AFDEP_NPY_1D, "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }");
    check_npy(AFDEP_NPY_FLOAT32, floats, 8, 2, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }");
    check_npy(AFDEP_NPY_FLOAT32, NULL, 0, 0, 16, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 16), }");
    check_npy(AFDEP_NPY_INT32, NULL, 0, 0, AFDEP_NPY_1D, "{'descr': '<i4', 'fortran_order': False, 'shape': (0,), }");

    char absent[512];
    snprintf(absent, sizeof(absent), "%s", path_of("absent/array.npy"));
    assert_int_equal(afdep_npy_write(absent, AFDEP_NPY_UINT8, bytes, 6, AFDEP_NPY_1D, why, sizeof(why)), -1);
    assert_non_null(strstr(why, absent));
    assert_non_null(strstr(why, strerror(ENOENT)));
}

/* The temporary file neither stays nor takes the place of something that cannot be replaced. */
static void test_npy_is_whole_or_absent(void **state)
{
    static const uint8_t byte = 1;
    char folder[512], command[600], why[200];

    (void)state;
    snprintf(folder, sizeof(folder), "%s", path_of("folder.npy"));
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(afdep_npy_write(folder, AFDEP_NPY_UINT8, &byte, 1, AFDEP_NPY_1D, why, sizeof(why)), -1);
    snprintf(command, sizeof(command), "test -z \"$(ls %s | grep tmp)\"", root);
    assert_int_equal(system(command), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- A dump made from the oracle ------------------------------------------------------------------------------- */

typedef struct exchange {
    afdep_scenario_t scenario;
    int apply_weights;
    afdep_source_tokens_t sources[A];
} exchange_t;

static void save(int rank, const char *name, afdep_npy_type_t type, const void *data, int64_t rows, int64_t columns)
{
    char why[300] = "";

    if (afdep_npy_write(path_of("T6/rank%d/%s.npy", rank, name), type, data, rows, columns, why, sizeof(why)) != 0)
        fail_msg("%s", why);
}

static void dump_source(const exchange_t *exchange, int s)
{
    const afdep_source_tokens_t *source = &exchange->sources[s];
    int fp8 = exchange->scenario.dtype == AFDEP_DTYPE_FP8;
    uint16_t *out = calloc((size_t)source->tokens + 1, HIDDEN * sizeof(*out));
    void *scratch = malloc(afdep_oracle_scratch(&exchange->scenario));

    assert_non_null(out);
    assert_non_null(scratch);
    for (int t = 0; t < source->tokens; t++)
        afdep_oracle_token(out + t * HIDDEN, &exchange->scenario, source, t, exchange->apply_weights, scratch);
    save(F + s, "x", fp8 ? AFDEP_NPY_UINT8 : AFDEP_NPY_UINT16, source->x, source->tokens, HIDDEN);
    if (fp8)
        save(F + s, "x_scale", AFDEP_NPY_FLOAT32, source->x_scale, source->tokens, HIDDEN / 128);
    save(F + s, "ids", AFDEP_NPY_INT32, source->ids, source->tokens, K);
    save(F + s, "weights", AFDEP_NPY_FLOAT32, source->weights, source->tokens, K);
    save(F + s, "out", AFDEP_NPY_UINT16, out, source->tokens, HIDDEN);
    free(scratch);
    free(out);
}

static int expert_of_row(const afdep_oracle_received_t *received, int64_t row)
{
    int expert = 0;
    int64_t end = received->counts[0];

    while (row >= end)
        end += received->counts[++expert];
    return expert;
}

static void dump_worker(const exchange_t *exchange, int rank)
{
    const afdep_scenario_t *scenario = &exchange->scenario;
    int fp8 = scenario->dtype == AFDEP_DTYPE_FP8;
    size_t row_bytes = fp8 ? HIDDEN : 2 * HIDDEN;
    afdep_oracle_received_t got;

    assert_int_equal(afdep_oracle_received(&got, scenario, exchange->sources, rank), 0);
    size_t count = (size_t)got.rows + 1;
    char *rows = malloc(count * row_bytes);
    float *scales = malloc(count * (HIDDEN / 128) * sizeof(*scales));
    uint16_t *reply = malloc(count * HIDDEN * sizeof(*reply));
    assert_true(rows != NULL && scales != NULL && reply != NULL);
    memset(rows, 0x5A, count * row_bytes); /* padding: anything */
    memset(scales, 0x5A, count * (HIDDEN / 128) * sizeof(*scales));
    memset(reply, 0x5A, count * HIDDEN * sizeof(*reply));
    for (int64_t r = 0; r < got.rows; r++) {
        if (got.row_source[2 * r] < 0)
            continue;
        char *row = rows + (size_t)r * row_bytes;
        float *scale = scales + r * (HIDDEN / 128);
        afdep_workload_row(row, scale, scenario, SEED, EXCHANGE, got.row_source[2 * r] - F, got.row_source[2 * r + 1]);
        afdep_workload_expert(reply + r * HIDDEN, row, scale, got.row_weight[r],
                              rank * (E / F) + expert_of_row(&got, r), scenario, exchange->apply_weights);
    }
    save(rank, "ends", AFDEP_NPY_INT32, got.ends, E / F, AFDEP_NPY_1D);
    save(rank, "rows", fp8 ? AFDEP_NPY_UINT8 : AFDEP_NPY_UINT16, rows, got.rows, HIDDEN);
    if (fp8)
        save(rank, "row_scale", AFDEP_NPY_FLOAT32, scales, got.rows, HIDDEN / 128);
    save(rank, "row_weight", AFDEP_NPY_FLOAT32, got.row_weight, got.rows, AFDEP_NPY_1D);
    save(rank, "row_source", AFDEP_NPY_INT32, got.row_source, got.rows, 2);
    save(rank, "reply", AFDEP_NPY_UINT16, reply, got.rows, HIDDEN);
    free(reply);
    free(scales);
    free(rows);
    afdep_oracle_received_free(&got);
}

/* Writes T6/: one source of six tokens, another of `others`; -1, invalid and repeated ids among them. */
static void dump(afdep_dtype_t dtype, int alignment, int per_domain, int apply_weights, int others)
{
    exchange_t exchange = { .scenario = { .ffn_ranks = F,
                                          .attention_ranks = A,
                                          .ranks_per_domain = per_domain,
                                          .num_experts = E,
                                          .top_k = K,
                                          .hidden = HIDDEN,
                                          .dtype = dtype,
                                          .expert_alignment = alignment },
                            .apply_weights = apply_weights };
    char command[600];

    snprintf(command, sizeof(command), "rm -rf %s/T6", root);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(path_of("T6"), 0755), 0);
    for (int s = 0; s < A; s++) {
        assert_int_equal(afdep_workload_alloc(&exchange.sources[s], &exchange.scenario, 6), 0);
        afdep_workload_source(&exchange.sources[s], &exchange.scenario, NULL, SEED, EXCHANGE, s, s == 0 ? 6 : others);
    }
    int32_t *ids = exchange.sources[0].ids;
    for (int k = 0; k < K; k++)
        ids[K + k] = -1; /* token 1 goes nowhere */
    for (int k = 1; k < K; k++)
        ids[2 * K + k] = -1; /* token 2 has one contributor */
    ids[3 * K] = -1;
    ids[3 * K + 2] = E;
    ids[3 * K + 5] = ids[3 * K + 4];

    for (int rank = 0; rank < F + A; rank++) {
        assert_int_equal(mkdir(path_of("T6/rank%d", rank), 0755), 0);
        if (rank < F)
            dump_worker(&exchange, rank);
        else
            dump_source(&exchange, rank - F);
    }
    for (int s = 0; s < A; s++)
        afdep_workload_free(&exchange.sources[s]);
}

/* ---- scripts/check-dump ---------------------------------------------------------------------------------------- */

static char output[65536];

/* Runs the script; returns its exit status, what it printed in `output`. */
static int check_dump(const char *options)
{
    const char *source = getenv("srcdir");
    char command[1024];

    snprintf(command, sizeof(command), "python3 -S %s/scripts/check-dump %s %s 2>&1", source != NULL ? source : ".",
             root, options);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t got = fread(output, 1, sizeof(output) - 1, pipe);
    output[got] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_accepted(const char *options)
{
    int status = check_dump(options);

    if (status != 0)
        print_error("%s", output);
    assert_int_equal(status, 0);
    assert_non_null(strstr(output, "1 exchanges, 0 mismatches"));
}

static void assert_refused(const char *options, int status, const char *about)
{
    int got = check_dump(options);

    if (got != status || strstr(output, about) == NULL)
        print_error("status %d, output: %s", got, output);
    assert_int_equal(got, status);
    assert_non_null(strstr(output, about));
}

static void test_agrees(void **state)
{
    (void)state;
    dump(AFDEP_DTYPE_BF16, 1, D, 0, 4);
    assert_accepted("--ffn-ranks 4 --ranks-per-domain 2");
    /* Where rounding happens matters to these very values: with other domains they must not fit. */
    assert_refused("--ffn-ranks 4 --ranks-per-domain 1", 1, "out.npy[");
    dump(AFDEP_DTYPE_FP8, 3, 1, 0, 4);
    assert_accepted("--ffn-ranks=4 --ranks-per-domain=1 --expert-alignment=3");
    dump(AFDEP_DTYPE_FP8, 16, D, 1, 0);
    assert_accepted("--ffn-ranks 4 --ranks-per-domain 2 --expert-alignment 16 --apply-weights");
    assert_refused("--ffn-ranks 4 --ranks-per-domain 2 --expert-alignment 16", 1, "out.npy[");
    dump(AFDEP_DTYPE_BF16, 1, 0, 1, 6);
    assert_accepted("--ffn-ranks 4 --ranks-per-domain 0 --apply-weights");
    dump(AFDEP_DTYPE_BF16, 1, 3, 0, 2); /* two domains, each of 2 FFN ranks and one Attention rank */
    assert_accepted("--ffn-ranks 4 --ranks-per-domain 3");
    assert_refused("--ffn-ranks 4 --ranks-per-domain 1", 1, "out.npy[");
}

/* The script's fma where a double loses the product's end: 1 + (2^-24 + 2^-54), and less; see test_oracle.c. */
static void test_fused(void **state)
{
    const char *source = getenv("srcdir");
    char command[1024];

    (void)state;
    snprintf(command, sizeof(command),
             "python3 -S -c 'import runpy; c = runpy.run_path(\"%s/scripts/check-dump\"); "
             "fma = lambda w, bits, acc: c[\"weigh\"](w, c[\"widen\"](bits), [acc])[0]; w = 10475530 * 2.0**-48; "
             "assert fma(w, b\"\\xCD\\x3F\", 1.0) == 1 + 2.0**-23; "
             "assert fma(-w, b\"\\xCD\\x3F\", -1.0) == -1 - 2.0**-23; "
             "assert fma(9896238 * 2.0**-48, b\"\\xD9\\x3F\", 1 + 2.0**-23) == 1 + 2.0**-23'",
             source != NULL ? source : ".");
    assert_int_equal(system(command), 0);
}

/* The scenario beside the dump, or named. */
static void test_scenario(void **state)
{
    static const char text[] = "{\"topology\": {\"ffn_ranks\": 4, \"attention_ranks\": 2, \"ranks_per_domain\": 2}, "
                               "\"model\": {\"num_experts\": 16}, \"expert_alignment\": 3}";
    char carried[512], named[512], options[600];

    (void)state;
    dump(AFDEP_DTYPE_BF16, 3, D, 0, 4);
    assert_refused("", 2, "give --scenario, or --ffn-ranks and --ranks-per-domain");
    snprintf(carried, sizeof(carried), "%s", path_of("scenario.json"));
    snprintf(named, sizeof(named), "%s", path_of("other.json"));
    FILE *file = fopen(carried, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_accepted("");
    assert_int_equal(rename(carried, named), 0);
    snprintf(options, sizeof(options), "--scenario %s", named);
    assert_accepted(options);
    snprintf(options, sizeof(options), "--scenario %s --expert-alignment 1", named);
    assert_refused(options, 1, "rank0/ends.npy[3]: 13, should be 12");
    assert_int_equal(unlink(named), 0);
}

/* Flips the lowest bit of byte `offset` of a file's elements; the same again restores it. */
static void flip(const char *path, long offset)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    assert_int_equal(fseek(file, HEADER + offset, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, HEADER + offset, SEEK_SET), 0);
    assert_int_not_equal(byte, EOF);
    fputc(byte ^ 1, file);
    fclose(file);
}

/* One wrong bit in any file, and its first wrong place is printed. */
static void test_planted(void **state)
{
    static const struct {
        const char *file;
        long offset;
        const char *about;
    } cases[] = {
        { "T6/rank4/x.npy", 5 * HIDDEN + 3, "rows.npy[" },
        { "T6/rank4/x_scale.npy", 0, "row_scale.npy[" },
        { "T6/rank5/weights.npy", 4, "row_weight.npy[" },
        { "T6/rank4/out.npy", 2 * (4 * HIDDEN + 7), "rank4/out.npy[4, 7]: 0x" },
        { "T6/rank4/out.npy", 2 * (1 * HIDDEN + 255), "rank4/out.npy[1, 255]: 0x0001, should be 0x0000" },
        { "T6/rank5/out.npy", 0, "rank5/out.npy[0, 0]" },
        { "T6/rank0/ends.npy", 4, "rank0/ends.npy[1]" },
        { "T6/rank1/rows.npy", 0, "rank1/rows.npy[0, 0]" },
        { "T6/rank2/row_scale.npy", 4, "rank2/row_scale.npy[0, 1]" },
        { "T6/rank3/row_weight.npy", 0, "rank3/row_weight.npy[0]" },
        { "T6/rank3/row_source.npy", 4, "rank3/row_source.npy[0]" },
    };

    (void)state;
    dump(AFDEP_DTYPE_FP8, 1, D, 0, 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        flip(path_of("%s", cases[i].file), cases[i].offset);
        assert_refused("--ffn-ranks 4 --ranks-per-domain 2", 1, cases[i].about);
        flip(path_of("%s", cases[i].file), cases[i].offset);
    }
    flip(path_of("T6/rank0/reply.npy"), 1); /* an exponent bit of a reply that is summed */
    assert_refused("--ffn-ranks 4 --ranks-per-domain 2", 1, "out.npy[");
    flip(path_of("T6/rank0/reply.npy"), 1);
    assert_accepted("--ffn-ranks 4 --ranks-per-domain 2");
}

static void test_broken_files(void **state)
{
    char path[512];

    (void)state;
    dump(AFDEP_DTYPE_BF16, 1, D, 0, 4);
    snprintf(path, sizeof(path), "%s", path_of("T6/rank2/reply.npy"));
    assert_int_equal(truncate(path, HEADER + 100), 0);
    assert_refused("--ffn-ranks 4 --ranks-per-domain 2", 1, "rank2/reply.npy: holds 100 bytes");
    assert_int_equal(truncate(path, 5), 0);
    assert_refused("--ffn-ranks 4 --ranks-per-domain 2", 1, "rank2/reply.npy: not a .npy file");
    assert_int_equal(unlink(path), 0);
    assert_refused("--ffn-ranks 4 --ranks-per-domain 2", 1, "rank2/reply.npy: No such file");
    assert_refused("--ffn-ranks 6 --ranks-per-domain 2", 1, "folders of ranks");
    assert_refused("--ffn-ranks=-1 --ranks-per-domain 2", 2, "must be at least 0");
    /* not every rank is a source */
    assert_refused("--ffn-ranks 0 --ranks-per-domain 2", 1, "rank0/x.npy: No such file");
    assert_refused("--no-such-option", 2, "usage");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy),          cmocka_unit_test(test_npy_is_whole_or_absent),
        cmocka_unit_test(test_agrees),       cmocka_unit_test(test_fused),
        cmocka_unit_test(test_scenario),     cmocka_unit_test(test_planted),
        cmocka_unit_test(test_broken_files),
    };
    char command[600];

    if (system("python3 -c pass") != 0) {
        printf("skipped: scripts/check-dump needs python3, which is not here\n");
        return 77;
    }
    if (mkdtemp(root) == NULL) {
        perror(root);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command) != 0 || failed != 0;
}
