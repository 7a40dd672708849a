/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses command lines by a program's table, and prints the same table as help. Nothing is guessed: no abbreviations,
 * no positional arguments, no trailing characters after a number. Of an option given twice the last one holds.
 */
#include "bench/lib/options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/why.h"

static int bounded(const afdep_option_t *option)
{
    return option->min != 0 || option->max != 0;
}

/* An optional minus and digits: strtoll alone would take white space and a plus as well. */
static int plain_integer(const char *text)
{
    const char *digits = text + (text[0] == '-');
    return digits[0] != 0 && strspn(digits, "0123456789") == strlen(digits);
}

static int parse_int(const afdep_option_t *option, const char *text, int *value, char *why, size_t why_size)
{
    double low = bounded(option) ? option->min : INT_MIN, high = bounded(option) ? option->max : INT_MAX;
    if (!plain_integer(text))
        return afdep_why(why, why_size, "--%s: \"%s\" is not an integer", option->name, text);
    long long wide = strtoll(text, NULL, 10); /* far outside it saturates, which is out of every range as well */
    if (wide < INT_MIN || wide > INT_MAX || (double)wide < low || (double)wide > high)
        return afdep_why(why, why_size, "--%s: %s is not in %.0f .. %.0f", option->name, text, low, high);
    *value = (int)wide;
    return 0;
}

static int parse_u64(const afdep_option_t *option, const char *text, uint64_t *value, char *why, size_t why_size)
{
    if (!plain_integer(text) || text[0] == '-')
        return afdep_why(why, why_size, "--%s: \"%s\" is not an unsigned integer", option->name, text);
    errno = 0;
    unsigned long long wide = strtoull(text, NULL, 10);
    if (errno)
        return afdep_why(why, why_size, "--%s: %s is not in 0 .. %llu", option->name, text, ULLONG_MAX);
    if (bounded(option) && ((double)wide < option->min || (double)wide > option->max))
        return afdep_why(why, why_size, "--%s: %s is not in %.0f .. %.0f", option->name, text, option->min,
                         option->max);
    *value = wide;
    return 0;
}

static int parse_double(const afdep_option_t *option, const char *text, double *value, char *why, size_t why_size)
{
    char *end = NULL;
    /* Only decimal digits: strtod alone would take hexadecimal, "inf" and "nan". */
    if (text[0] == 0 || strspn(text, "0123456789.eE+-") != strlen(text))
        return afdep_why(why, why_size, "--%s: \"%s\" is not a number", option->name, text);
    double parsed = strtod(text, &end);
    if (*end != 0 || !isfinite(parsed))
        return afdep_why(why, why_size, "--%s: \"%s\" is not a number", option->name, text);
    if (bounded(option) && (parsed < option->min || parsed > option->max))
        return afdep_why(why, why_size, "--%s: %s is not in %g .. %g", option->name, text, option->min, option->max);
    *value = parsed;
    return 0;
}

static int parse_choice(const afdep_option_t *option, const char *choices, const char *text, int *index, char *why,
                        size_t why_size)
{
    int i = 0;
    for (const char *choice = choices;; i++) {
        size_t length = strcspn(choice, "|");
        if (strlen(text) == length && strncmp(choice, text, length) == 0) {
            *index = i;
            return 0;
        }
        if (choice[length] == 0)
            return afdep_why(why, why_size, "--%s: \"%s\" is not one of %s", option->name, text, choices);
        choice += length + 1;
    }
}

/* The list is replaced only once all of it is good. */
static int parse_ints(const afdep_option_t *option, const char *text, afdep_ints_t *ints, char *why, size_t why_size)
{
    afdep_ints_t *parsed = calloc(1, sizeof *parsed);
    int status = parsed ? 0 : afdep_why(why, why_size, "--%s: no memory", option->name);
    for (const char *item = text; status == 0;) {
        char word[32];
        size_t length = strcspn(item, ",");
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1), item);
        if (length >= sizeof word)
            status = afdep_why(why, why_size, "--%s: \"%s...\" is not an integer", option->name, word);
        else if (parsed->count == AFDEP_INTS_MAX)
            status = afdep_why(why, why_size, "--%s: more than %d values", option->name, AFDEP_INTS_MAX);
        else
            status = parse_int(option, word, &parsed->values[parsed->count++], why, why_size);
        if (item[length] == 0)
            break;
        item += length + 1;
    }
    if (status == 0)
        *ints = *parsed;
    free(parsed);
    return status;
}

static int parse_value(const afdep_option_t *option, const char *text, char *why, size_t why_size)
{
    int off;
    switch (option->type) {
    case AFDEP_OPTION_FLAG:
        break; /* takes no value; handled by the caller */
    case AFDEP_OPTION_STRING:
        if (text[0] == 0)
            return afdep_why(why, why_size, "--%s: an empty value", option->name);
        *(const char **)option->target = text;
        return 0;
    case AFDEP_OPTION_INT:
        return parse_int(option, text, option->target, why, why_size);
    case AFDEP_OPTION_U64:
        return parse_u64(option, text, option->target, why, why_size);
    case AFDEP_OPTION_DOUBLE:
        return parse_double(option, text, option->target, why, why_size);
    case AFDEP_OPTION_ON_OFF:
        if (parse_choice(option, "on|off", text, &off, why, why_size) < 0)
            return -1;
        *(int *)option->target = !off;
        return 0;
    case AFDEP_OPTION_CHOICE:
        return parse_choice(option, option->choices, text, option->target, why, why_size);
    case AFDEP_OPTION_INTS:
        return parse_ints(option, text, option->target, why, why_size);
    }
    return afdep_why(why, why_size, "--%s: takes no value", option->name);
}

static const afdep_option_t *find(const afdep_option_t *options, const char *name, size_t length)
{
    for (const afdep_option_t *option = options; option->name; option++)
        if (strlen(option->name) == length && strncmp(option->name, name, length) == 0)
            return option;
    return NULL;
}

/* Parses argv[*i] and, where it takes one from there, its value at the next place. */
static int parse_one(const afdep_option_t *option, int argc, char **argv, int *i, const char *value, char *why,
                     size_t why_size)
{
    if (option->type == AFDEP_OPTION_FLAG) {
        if (value)
            return afdep_why(why, why_size, "--%s: takes no value, got \"%s\"", option->name, value);
        *(int *)option->target = 1;
    } else {
        /* "--a --b": b was meant as an option. A value that does begin with two dashes is given as --a=--b. */
        if (!value && (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0))
            return afdep_why(why, why_size, "--%s: its value is missing", option->name);
        if (!value)
            value = argv[++*i];
        if (parse_value(option, value, why, why_size) < 0)
            return -1;
    }
    if (option->given)
        *option->given = 1;
    return 0;
}

int afdep_options_parse(const afdep_option_t *options, int argc, char **argv, char *why, size_t why_size)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || argv[i][2] == 0)
            return afdep_why(why, why_size, "\"%s\": not an option; options begin with two dashes", argv[i]);
        const char *name = argv[i] + 2;
        size_t length = strcspn(name, "=");
        const afdep_option_t *option = find(options, name, length);
        if (!option)
            return afdep_why(why, why_size, "--%.*s: unknown option (see --help)", (int)(length < 256 ? length : 256),
                             name);
        if (parse_one(option, argc, argv, &i, name[length] ? name + length + 1 : NULL, why, why_size) < 0)
            return -1;
        if (strcmp(option->name, "help") == 0 || strcmp(option->name, "version") == 0)
            return 1;
    }
    return 0;
}

/* ---- Help ------------------------------------------------------------------------------------------------------ */

#define AFDEP_HELP_WIDTH 80
#define AFDEP_HELP_COLUMN 26

/* Words of `text` from `column` on, wrapped at the width, later lines indented by `indent`. */
static void print_wrapped(const char *text, size_t column, size_t indent)
{
    int first = 1;
    while (*text) {
        size_t length = strcspn(text, " ");
        if (!first && column + 1 + length > AFDEP_HELP_WIDTH) {
            printf("\n%*s", (int)indent, "");
            column = indent;
            first = 1;
        }
        printf("%s%.*s", first ? "" : " ", (int)length, text);
        column += length + !first;
        first = 0;
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static const char *value_name(const afdep_option_t *option)
{
    if (option->value_name)
        return option->value_name;
    switch (option->type) {
    case AFDEP_OPTION_CHOICE:
        return option->choices;
    case AFDEP_OPTION_ON_OFF:
        return "on|off";
    case AFDEP_OPTION_INTS:
        return "N,N,...";
    case AFDEP_OPTION_STRING:
        return "TEXT";
    default:
        return "N";
    }
}

void afdep_options_help(const char *program, const char *usage, const char *description, const afdep_option_t *options)
{
    printf("Usage: %s %s\n", program, usage);
    print_wrapped(description, 0, 0);
    printf("\nOptions:\n");
    for (const afdep_option_t *option = options; option->name; option++) {
        int used = option->type == AFDEP_OPTION_FLAG ? printf("  --%s", option->name)
                                                     : printf("  --%s %s", option->name, value_name(option));
        /* Two spaces at least between the option and its sentence: help2man goes by them. */
        if (used > AFDEP_HELP_COLUMN - 2)
            printf("\n%*s", AFDEP_HELP_COLUMN, "");
        else
            printf("%*s", AFDEP_HELP_COLUMN - used, "");
        print_wrapped(option->help, AFDEP_HELP_COLUMN, AFDEP_HELP_COLUMN);
    }
}

int afdep_options_finish(const char *program, int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "%s: standard output could not be written\n", program);
    return status ? status : 1;
}
