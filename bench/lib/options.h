/*
 * Command lines: long options only, "--name value" and "--name=value". A program declares one table; the same table
 * parses, prints --help and refuses what it does not know.
 */
#ifndef AFDEP_BENCH_OPTIONS_H
#define AFDEP_BENCH_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef enum afdep_option_type {
    AFDEP_OPTION_FLAG,   /* no value; *(int *)target = 1 */
    AFDEP_OPTION_STRING, /* *(const char **)target = the value (points into argv) */
    AFDEP_OPTION_INT,    /* *(int *)target, min .. max */
    AFDEP_OPTION_U64,    /* *(uint64_t *)target */
    AFDEP_OPTION_DOUBLE, /* *(double *)target, min .. max */
    AFDEP_OPTION_ON_OFF, /* *(int *)target = 1 or 0 */
    AFDEP_OPTION_CHOICE, /* *(int *)target = index into choices, "a|b|c" */
    AFDEP_OPTION_INTS    /* *(afdep_ints_t *)target: "1,8,32", each min .. max */
} afdep_option_type_t;

#define AFDEP_INTS_MAX 4096
typedef struct afdep_ints {
    int count;
    int values[AFDEP_INTS_MAX];
} afdep_ints_t;

typedef struct afdep_option {
    const char *name; /* without the dashes */
    afdep_option_type_t type;
    void *target;
    double min, max;
    const char *choices;
    const char *value_name; /* in the help: FILE, N, ... */
    const char *help;       /* one sentence, with the default */
    int *given;             /* set to 1 when the option occurs; may be NULL */
} afdep_option_t;

/*
 * Parses argv (argv[0] skipped) against `options` (ended by a NULL name). 0: go on; 1: --help or --version was
 * asked for (see help, version); -1: refused, one line naming option and value in `why`.
 */
int afdep_options_parse(const afdep_option_t *options, int argc, char **argv, char *why, size_t why_size);

/* Writes usage line, description and the table of options to standard output, readable by help2man. */
void afdep_options_help(const char *program, const char *usage, const char *description, const afdep_option_t *options);

/* The exit status of a program that would end with `status`: 1, with a line, when standard output was not written. */
int afdep_options_finish(const char *program, int status);

/* Options every program has, to be placed at the head of a program's table with AFDEP_COMMON_OPTIONS(c). */
typedef struct afdep_common {
    int help, version;
    int backend; /* 0 host, 1 cuda */
    const char *fabric;
    const char *json;
    uint64_t seed;
    int seed_given;
    int timeout_ms; /* 0: the library's default */
    int log;        /* afdep_log_level_t */
} afdep_common_t;

#define AFDEP_COMMON_OPTIONS(c)                                                                                       \
    { "help", AFDEP_OPTION_FLAG, &(c).help, 0, 0, 0, 0, "print this help and exit", 0 },                              \
    { "version", AFDEP_OPTION_FLAG, &(c).version, 0, 0, 0, 0, "print the version and the native tree and exit", 0 },  \
    { "backend", AFDEP_OPTION_CHOICE, &(c).backend, 0, 0, "host|cuda", 0, "where exchanges run (default host)", 0 },  \
    { "fabric", AFDEP_OPTION_STRING, &(c).fabric, 0, 0, 0, "shm|mpi|sim|peer|nccl",                                   \
      "what moves bytes (default shm on one host, mpi across hosts)", 0 },                                            \
    { "json", AFDEP_OPTION_STRING, &(c).json, 0, 0, 0, "FILE", "write the record to FILE", 0 },                       \
    { "seed", AFDEP_OPTION_U64, &(c).seed, 0, 0, 0, "N", "seed of payloads and routing (default: the scenario's)",    \
      &(c).seed_given },                                                                                              \
    { "timeout-ms", AFDEP_OPTION_INT, &(c).timeout_ms, 1, 2147483647.0, 0, "N",                                       \
      "deadline of every wait (default 60000)", 0 },                                                                  \
    { "log", AFDEP_OPTION_CHOICE, &(c).log, 0, 0, "error|warn|info|debug", 0, "what the library says (default error)",\
      0 }

#endif
