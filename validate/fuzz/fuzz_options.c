/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines: a line of the input is one argument. They meet a table with an option of every type, the routing
 * parser, and all of afdep-bench's own options up to the resolved scenario.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/bench_plan.h"
#include "bench/lib/options.h"
#include "bench/lib/scenario.h"
#include "validate/fuzz/lib/file.h"
#include "validate/fuzz/lib/input.h"

enum { ARGUMENTS = 32 };

static void parse_every_type(int argc, char **argv)
{
    static afdep_ints_t list;
    static afdep_common_t common;
    int number = 3, on = 0, choice = 0, given = 0;
    double real = 1;
    const char *text = "";
    char why[256] = "";
    const afdep_option_t options[] = {
        AFDEP_COMMON_OPTIONS(common),
        { "int", AFDEP_OPTION_INT, &number, 1, 9, 0, 0, "", &given },
        { "any", AFDEP_OPTION_INT, &on, 0, 0, 0, 0, "", 0 },
        { "double", AFDEP_OPTION_DOUBLE, &real, 0.5, 2, 0, 0, "", 0 },
        { "on", AFDEP_OPTION_ON_OFF, &on, 0, 0, 0, 0, "", 0 },
        { "choice", AFDEP_OPTION_CHOICE, &choice, 0, 0, "a|bc|", 0, "", 0 },
        { "list", AFDEP_OPTION_INTS, &list, 0, 99, 0, 0, "", 0 },
        { "text", AFDEP_OPTION_STRING, &text, 0, 0, 0, 0, "", 0 },
        { 0 },
    };
    list.count = 0;
    if (afdep_options_parse(options, argc, argv, why, sizeof(why)) < 0)
        afdep_fuzz_expect_line(why, sizeof(why));
    AFDEP_FUZZ_EXPECT(number >= 1 && number <= 9 && real >= 0.5 && real <= 2 && choice >= 0 && choice <= 2 && text);
    AFDEP_FUZZ_EXPECT(list.count >= 0 && list.count <= AFDEP_INTS_MAX);
    for (int i = 0; i < list.count; i++)
        AFDEP_FUZZ_EXPECT(list.values[i] >= 0 && list.values[i] <= 99);
}

static void parse_routing(const char *text)
{
    afdep_routing_t routing = { AFDEP_ROUTING_UNIFORM, 0, 0, NULL };
    char why[256] = "";
    if (afdep_routing_parse(text, &routing, why, sizeof(why)) < 0)
        afdep_fuzz_expect_line(why, sizeof(why));
    free(routing.trace_file);
}

static void plan_bench(int argc, char **argv)
{
    static afdep_bench_plan_t plan;
    char why[512] = "";
    int asked = afdep_bench_plan_parse(&plan, argc, argv, 0, why, sizeof(why));
    if (asked < 0)
        afdep_fuzz_expect_line(why, sizeof(why));
    else if (asked == 0)
        AFDEP_FUZZ_EXPECT(afdep_scenario_check(&plan.scenario, why, sizeof(why)) == 0 && plan.ranks >= 2);
    afdep_bench_plan_free(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *argv[ARGUMENTS + 1] = { "fuzz" }, *text = malloc(size + 1);
    int argc = 1;
    AFDEP_FUZZ_EXPECT(text);
    memcpy(text, data, size);
    text[size] = 0;
    for (char *line = text; *line && argc < ARGUMENTS;) {
        size_t length = strcspn(line, "\n");
        int last = line[length] == 0;
        argv[argc++] = line;
        line[length] = 0;
        line += length + !last;
    }
    parse_every_type(argc, argv);
    for (int i = 1; i < argc; i++)
        parse_routing(argv[i]);
    plan_bench(argc, argv);
    free(text);
    return 0;
}
