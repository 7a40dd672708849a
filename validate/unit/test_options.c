/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command-line parser: both forms of every type, what is refused and what the one line then names, and that a
 * refused value leaves its target alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/options.h"

typedef struct values {
    afdep_common_t common;
    int flag, number, number_given, toggle, choice;
    const char *text;
    double ratio;
    uint64_t big;
    afdep_ints_t list;
} values_t;

static values_t v;
static char why[512];

static int parse(const char *const *words)
{
    const afdep_option_t options[] = {
        { "flag", AFDEP_OPTION_FLAG, &v.flag, 0, 0, 0, 0, "a flag", 0 },
        { "number", AFDEP_OPTION_INT, &v.number, 1, 100, 0, 0, "1 to 100", &v.number_given },
        { "text", AFDEP_OPTION_STRING, &v.text, 0, 0, 0, "FILE", "a file", 0 },
        { "big", AFDEP_OPTION_U64, &v.big, 0, 0, 0, 0, "64 bits", 0 },
        { "ratio", AFDEP_OPTION_DOUBLE, &v.ratio, 0.5, 8, 0, 0, "0.5 to 8", 0 },
        { "free", AFDEP_OPTION_DOUBLE, &v.ratio, 0, 0, 0, 0, "any number", 0 },
        { "toggle", AFDEP_OPTION_ON_OFF, &v.toggle, 0, 0, 0, 0, "on or off", 0 },
        { "choice", AFDEP_OPTION_CHOICE, &v.choice, 0, 0, "one|two|three", 0, "one of three", 0 },
        { "list", AFDEP_OPTION_INTS, &v.list, 0, 1000, 0, 0, "several", 0 },
        AFDEP_COMMON_OPTIONS(v.common),
        { 0 }
    };
    char *argv[16] = { (char *)(uintptr_t) "program" };
    int argc = 1;
    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    why[0] = 0;
    return afdep_options_parse(options, argc, argv, why, sizeof why);
}

#define PARSE(...) parse((const char *const[]){ __VA_ARGS__, NULL })

static int reset(void **state)
{
    (void)state;
    memset(&v, 0, sizeof v);
    v.number = 7;
    return 0;
}

static void takes_both_forms(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--flag", "--number", "100", "--text=a=b", "--big", "18446744073709551615", "--ratio=2.5e0",
                           "--toggle=on", "--choice", "three", "--list=1,8,0"), 0);
    assert_int_equal(v.flag, 1);
    assert_int_equal(v.number, 100);
    assert_int_equal(v.number_given, 1);
    assert_string_equal(v.text, "a=b");
    assert_true(v.big == UINT64_MAX);
    assert_true(v.ratio == 2.5);
    assert_int_equal(v.toggle, 1);
    assert_int_equal(v.choice, 2);
    assert_int_equal(v.list.count, 3);
    assert_int_equal(v.list.values[1], 8);
    assert_int_equal(v.list.values[2], 0);
}

static void last_one_holds(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--number", "3", "--list=1,2,3", "--toggle=on", "--number=4", "--list=9",
                           "--toggle=off"), 0);
    assert_int_equal(v.number, 4);
    assert_int_equal(v.list.count, 1);
    assert_int_equal(v.toggle, 0);
}

static void help_and_version_stop(void **state)
{
    (void)state;
    assert_int_equal(PARSE("--help", "--frobnicate"), 1);
    assert_int_equal(v.common.help, 1);
    assert_int_equal(PARSE("--version"), 1);
    assert_int_equal(v.common.version, 1);
    assert_int_equal(PARSE("--seed=3"), 0);
    assert_int_equal(v.common.seed_given, 1);
}

static void refuses(const char *word, int line, const char *const *words)
{
    reset(NULL);
    int status = parse(words);
    if (status != -1 || !strstr(why, word) || strchr(why, '\n'))
        fail_msg("line %d: returned %d, said \"%s\", wanted a word of \"%s\"", line, status, why, word);
    /* Nothing of a refused value is kept. */
    assert_int_equal(v.number, 7);
    assert_int_equal(v.number_given, 0);
    assert_int_equal(v.list.count, 0);
    assert_true(v.big == 0);
    assert_true(v.ratio == 0);
}

#define REFUSES(word, ...) refuses(word, __LINE__, (const char *const[]){ __VA_ARGS__, NULL })

static void refuses_words(void **state)
{
    (void)state;
    REFUSES("frobnicate", "--frobnicate");
    REFUSES("frobnicate", "--frobnicate=1");
    REFUSES("num", "--num", "1"); /* no abbreviations */
    REFUSES("number1", "--number1");
    REFUSES("positional", "positional");
    REFUSES("-n", "-n", "1");
    REFUSES("\"--\"", "--");
    REFUSES("number", "--number");
    REFUSES("text", "--text", "--flag"); /* an option is not a value */
    REFUSES("text", "--text=");
    REFUSES("flag", "--flag=1");
    REFUSES("1", "--flag", "1");
    REFUSES("a?b", "a\nb");
}

static void refuses_values(void **state)
{
    (void)state;
    static const char *const not_numbers[] = { "",    "x",   "1x", " 1",  "1 ", "+1",
                                              "0x10", "1.0", "1e1", "-", "--1", "1,2" };
    for (size_t i = 0; i < sizeof not_numbers / sizeof *not_numbers; i++) {
        char number[32], list[32], big[32];
        snprintf(number, sizeof number, "--number=%s", not_numbers[i]);
        snprintf(list, sizeof list, "--list=1,%s%s", not_numbers[i], strcmp(not_numbers[i], "1,2") ? "" : ",");
        snprintf(big, sizeof big, "--big=%s", not_numbers[i]);
        REFUSES("number", number);
        REFUSES("list", list);
        REFUSES("big", big);
    }
    REFUSES("101 is not in 1 .. 100", "--number", "101");
    REFUSES("-1", "--number", "-1");
    REFUSES("4294967297", "--number", "4294967297"); /* would be 1 in 32 bits */
    REFUSES("99999999999999999999", "--number", "99999999999999999999");
    REFUSES("18446744073709551616", "--big", "18446744073709551616");
    REFUSES("-1", "--big", "-1");
    REFUSES("1001", "--list", "1,1001");
    REFUSES("list", "--list", ",1");
    REFUSES("list", "--list", "1,");
    REFUSES("list", "--list", "1,00000000000000000000000000000000000005");
    REFUSES("0.4", "--ratio", "0.4");
    REFUSES("ratio", "--ratio", "nan");
    REFUSES("ratio", "--ratio", "inf");
    REFUSES("ratio", "--ratio", "0x1p0");
    REFUSES("ratio", "--ratio", "1e999");
    REFUSES("1e999", "--free", "1e999");
    REFUSES("ratio", "--ratio", "1.5.2");
    REFUSES("yes", "--toggle", "yes");
    REFUSES("one|two|three", "--choice", "on");
    REFUSES("one|two|three", "--choice", "one|two");
    REFUSES("four", "--choice", "four");
}

static void bounds_lists(void **state)
{
    (void)state;
    enum { SIZE = 2 * AFDEP_INTS_MAX + 16 };
    char *text = calloc(1, SIZE);
    strcpy(text, "--list=1");
    for (int i = 1; i < AFDEP_INTS_MAX; i++)
        strcpy(text + 8 + 2 * (i - 1), ",1");
    assert_int_equal(PARSE(text), 0);
    assert_int_equal(v.list.count, AFDEP_INTS_MAX);
    strcat(text, ",1");
    REFUSES("more than", text);
    free(text);
}

/* Every option of the table is in the help, no line is wider than a terminal, and help2man finds its sections. */
static void prints_help(void **state)
{
    (void)state;
    char file[] = "/tmp/afdep-help-XXXXXX", text[4096];
    const afdep_option_t options[] = {
        { "a-rather-long-option-name", AFDEP_OPTION_INT, &v.number, 0, 0, 0, "N",
          "a sentence that is much too long for the rest of its line and therefore goes on in the lines below it", 0 },
        { "choice", AFDEP_OPTION_CHOICE, &v.choice, 0, 0, "one|two", 0, "one of two", 0 },
        { 0 }
    };
    int fd = mkstemp(file), saved = dup(STDOUT_FILENO);
    assert_true(fd >= 0 && saved >= 0);
    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    afdep_options_help("program", "[OPTION]...", "Says what it does.", options);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    ssize_t size = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    unlink(file);
    assert_true(size > 0);
    text[size] = 0;
    assert_non_null(strstr(text, "Usage: program [OPTION]...\nSays what it does.\n\nOptions:\n"));
    assert_non_null(strstr(text, "  --a-rather-long-option-name N\n"));
    assert_non_null(strstr(text, "  --choice one|two        one of two\n"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(takes_both_forms, reset), cmocka_unit_test_setup(last_one_holds, reset),
        cmocka_unit_test_setup(help_and_version_stop, reset), cmocka_unit_test_setup(refuses_words, reset),
        cmocka_unit_test_setup(refuses_values, reset), cmocka_unit_test_setup(bounds_lists, reset),
        cmocka_unit_test_setup(prints_help, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
