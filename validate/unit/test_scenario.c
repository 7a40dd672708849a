/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario loader: the files of scenarios/ load, what is written back loads as the same, and each of many single
 * mistakes is refused in one line that names the file, the field and the value.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/json.h"
#include "bench/lib/scenario.h"

static char why[512];
static char folder[64], file[96];

static const char good[] =
    "{\"schema\": \"afdep-scenario/1\", \"name\": \"x\",\n"
    " \"topology\": {\"ffn_ranks\": 2, \"attention_ranks\": 4, \"ranks_per_domain\": 2},\n"
    " \"model\": {\"num_experts\": 8, \"top_k\": 2, \"hidden\": 256},\n"
    " \"dtype\": \"fp8\", \"capacity\": 16, \"num_sms\": 1, \"expert_alignment\": 4,\n"
    " \"tokens\": [1, 3, 16], \"graph\": true, \"routing\": {\"kind\": \"uniform\"}, \"seed\": 9}\n";

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/afdep-scenario-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(file, sizeof file, "%s/x.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(folder);
}

static int load_bytes(const void *bytes, size_t size, afdep_scenario_t *scenario)
{
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
    why[0] = 0;
    return afdep_scenario_load(file, scenario, why, sizeof why);
}

/* The good file with the first `old` replaced by `new`. */
static int load_changed(const char *old, const char *new, afdep_scenario_t *scenario)
{
    char text[2 * sizeof good + 4096];
    const char *at = strstr(good, old);
    assert_non_null(at);
    int size = snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, new, at + strlen(old));
    assert_true(size < (int)sizeof text);
    return load_bytes(text, (size_t)size, scenario);
}

static void loads_every_field(void **state)
{
    (void)state;
    afdep_scenario_t s;
    assert_int_equal(load_bytes(good, sizeof good - 1, &s), 0);
    assert_string_equal(s.file, file);
    assert_string_equal(s.name, "x");
    assert_int_equal(s.ffn_ranks, 2);
    assert_int_equal(s.attention_ranks, 4);
    assert_int_equal(s.ranks_per_domain, 2);
    assert_int_equal(s.num_experts, 8);
    assert_int_equal(s.top_k, 2);
    assert_int_equal(s.hidden, 256);
    assert_int_equal(s.dtype, AFDEP_DTYPE_FP8);
    assert_int_equal(s.capacity, 16);
    assert_int_equal(s.num_sms, 1);
    assert_int_equal(s.expert_alignment, 4);
    assert_int_equal(s.token_counts, 3);
    assert_int_equal(s.tokens[2], 16);
    assert_int_equal(s.graph, 1);
    assert_int_equal(s.routing.kind, AFDEP_ROUTING_UNIFORM);
    assert_true(s.seed == 9);
    afdep_scenario_free(&s);
    assert_null(s.file);
    assert_int_equal(load_changed(", \"expert_alignment\": 4", "", &s), 0);
    assert_int_equal(s.expert_alignment, 1);
    afdep_scenario_free(&s);
    assert_int_equal(load_changed(", \"graph\": true, \"routing\": {\"kind\": \"uniform\"}, \"seed\": 9", "", &s), 0);
    assert_int_equal(s.graph, 0);
    assert_true(s.seed == 1);
    afdep_scenario_free(&s);
}

/* Each line: what is changed into what, the field to be named, and a piece of the rule. */
static const struct {
    const char *old, *new, *field, *rule;
} bad[] = {
    { "scenario/1", "scenario/99", "schema", "\"afdep-scenario/99\"" },
    { "\"schema\": \"afdep-scenario/1\", ", "", "schema", "missing" },
    /* A later version is refused as such, not for the fields it adds. */
    { "\"schema\": \"afdep-scenario/1\"", "\"new\": 1, \"schema\": \"afdep-scenario/2\"", "schema", "scenario/2" },
    { "\"name\": \"x\"", "\"name\": \"a b\"", "name", "a b" },
    { "\"name\": \"x\"", "\"name\": \"../x\"", "name", "../x" },
    { "\"name\": \"x\"", "\"name\": \"\"", "name", "letters" },
    { "\"name\": \"x\"", "\"name\": \"a\\nb\"", "name", "a?b" },
    { "\"name\": \"x\"", "\"name\": 1", "name", "1 is not a string" },
    { "\"num_experts\": 8", "\"num_experts\": 7", "num_experts", "7 is not a multiple of ffn_ranks 2" },
    { "\"num_experts\": 8", "\"num_experts\": 0", "num_experts", "0 is not in 1 .. " },
    { "\"hidden\": 256", "\"hidden\": 300", "hidden", "300 is not a multiple of 256" },
    { "\"hidden\": 256", "\"hidden\": 128", "hidden", "128" },
    { "\"top_k\": 2", "\"top_k\": 9", "top_k", "9 is larger than num_experts 8" },
    { "\"top_k\": 2", "\"top_k\": 33", "top_k", "33 is not in 1 .. 32" },
    { "\"top_k\": 2", "\"top_k\": 0", "top_k", "0" },
    { "\"top_k\": 2, ", "", "top_k", "missing" },
    { "\"top_k\": 2", "\"top_k\": 2, \"top_k\": 2", "model.top_k", "second time" },
    { "\"top_k\": 2", "\"top_k\": 2, \"TOP_K\": 2", "TOP_K", "no known field" },
    { "[1, 3, 16]", "[17]", "tokens", "17 is larger than capacity 16" },
    { "[1, 3, 16]", "[-1]", "tokens", "-1" },
    { "[1, 3, 16]", "[]", "tokens", "[]" },
    { "[1, 3, 16]", "[1.5]", "tokens", "1.5 is not an integer" },
    { "[1, 3, 16]", "[\"1\"]", "tokens", "\"1\" is not an integer" },
    { "[1, 3, 16]", "[[1]]", "tokens", "[1] is not an integer" },
    { "[1, 3, 16]", "16", "tokens", "16" },
    { "\"ranks_per_domain\": 2", "\"ranks_per_domain\": 4", "ranks_per_domain", "4 does not divide the 6 ranks" },
    { "\"ffn_ranks\": 2, \"attention_ranks\": 4, \"ranks_per_domain\": 2",
      "\"ffn_ranks\": 1, \"attention_ranks\": 5, \"ranks_per_domain\": 3", "ranks_per_domain",
      "3 gives 2 domains, which cannot hold one role each (3 does not divide ffn_ranks 1) nor as many FFN ranks each" },
    { "\"ranks_per_domain\": 2", "\"ranks_per_domain\": 0", "ranks_per_domain", "0 is not in" },
    { "\"ffn_ranks\": 2, \"attention_ranks\": 4", "\"ffn_ranks\": 0, \"attention_ranks\": 6", "num_experts",
      "8 is not a multiple of attention_ranks 6" },
    { "\"ffn_ranks\": 2", "\"ffn_ranks\": -2", "ffn_ranks", "-2" },
    { "\"attention_ranks\": 4", "\"attention_ranks\": 0", "attention_ranks", "0" },
    { "\"attention_ranks\": 4", "\"attention_ranks\": 65536", "attention_ranks", "65536" },
    { "\"fp8\"", "\"fp7\"", "dtype", "\"fp7\"" },
    { "\"fp8\"", "8", "dtype", "8" },
    { "\"capacity\": 16", "\"capacity\": 1099511627776", "capacity", "1099511627776 is not in 1 .. " },
    { "\"capacity\": 16", "\"capacity\": 4294967312", "capacity", "4294967312" }, /* 16 in 32 bits */
    { "\"capacity\": 16", "\"capacity\": 1e99", "capacity", "1e+99" },
    { "\"capacity\": 16", "\"capacity\": 1e999", "capacity", "capacity" },
    { "\"capacity\": 16", "\"capacity\": 16.5", "capacity", "16.5 is not an integer" },
    { "\"capacity\": 16", "\"capacity\": null", "capacity", "null" },
    { "\"capacity\": 16", "\"capacity\": true", "capacity", "true" },
    { "\"num_sms\": 1", "\"num_sms\": 1025", "num_sms", "1025 is not in 1 .. 1024" },
    { "\"expert_alignment\": 4", "\"expert_alignment\": 0", "expert_alignment", "0" },
    { "\"graph\": true", "\"graph\": 1", "graph", "1 is not true or false" },
    { "\"graph\": true", "\"graph\": true, \"colour\": \"red\"", "colour", "\"red\" belongs to no known field" },
    { "\"seed\": 9", "\"seed\": 9007199254740992", "seed", "is not in 0 .. 9007199254740991" },
    { "\"seed\": 9", "\"seed\": -1", "seed", "-1" },
    { "\"seed\": 9", "\"seed\": 9, \"dtype\": \"fp8\"", "dtype", "second time" },
    { "{\"kind\": \"uniform\"}", "\"uniform\"", "routing", "\"uniform\" is not an object" },
    { "{\"kind\": \"uniform\"}", "{}", "kind", "missing" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"random\"}", "kind", "\"random\"" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"uniform\", \"s\": 1}", "s", "no known field" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"zipf\"}", "s", "missing" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"zipf\", \"s\": -1}", "routing", "-1" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"hot\", \"expert\": 8}", "routing", "8 is not in 0 .. 7" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"trace\", \"file\": \"\"}", "file", "file name" },
    { "{\"kind\": \"uniform\"}", "{\"kind\": \"trace\", \"file\": \"a\", \"file\": \"b\"}", "routing.file",
      "second time" },
    { "\"topology\": {", "\"topology\": {\"gpus\": 8, ", "gpus", "8" },
    { "{\"num_experts\": 8, \"top_k\": 2, \"hidden\": 256}", "[]", "model", "[] is not an object" },
};

/* "FILE: FIELD: ...", one line, nothing held afterwards. */
static void assert_refused(int status, const afdep_scenario_t *s, const char *field, const char *rule, const char *what)
{
    static const afdep_scenario_t nothing;
    char start[192];
    snprintf(start, sizeof start, "%s: %s: ", file, field);
    if (status != -1 || strncmp(why, start, strlen(start)) != 0 || !strstr(why + strlen(file), rule) ||
        strchr(why, '\n'))
        fail_msg("%s: returned %d and said \"%s\"", what, status, why);
    assert_memory_equal(s, &nothing, sizeof nothing);
}

static void refuses_each_mistake(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        afdep_scenario_t s;
        int status = load_changed(bad[i].old, bad[i].new, &s);
        assert_refused(status, &s, bad[i].field, bad[i].rule, bad[i].new);
    }
}

static void says_it_in_full(void **state)
{
    (void)state;
    afdep_scenario_t s;
    char wanted[192];
    assert_int_equal(load_changed("\"num_experts\": 8", "\"num_experts\": 7", &s), -1);
    snprintf(wanted, sizeof wanted, "%s: num_experts: 7 is not a multiple of ffn_ranks 2", file);
    assert_string_equal(why, wanted);
}

static void refuses_too_many_tokens(void **state)
{
    (void)state;
    char list[4 * AFDEP_SCENARIO_TOKENS_MAX + 8] = "[1";
    afdep_scenario_t s;
    for (int i = 1; i < AFDEP_SCENARIO_TOKENS_MAX; i++)
        strcat(list, ",1");
    strcat(list, "]");
    assert_int_equal(load_changed("[1, 3, 16]", list, &s), 0);
    assert_int_equal(s.token_counts, AFDEP_SCENARIO_TOKENS_MAX);
    afdep_scenario_free(&s);
    strcpy(list + strlen(list) - 1, ",1]");
    assert_refused(load_changed("[1, 3, 16]", list, &s), &s, "tokens", "more than 64", "65 token counts");
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    afdep_scenario_t s;
    assert_int_equal(afdep_scenario_load("/nonexistent.json", &s, why, sizeof why), -1);
    assert_string_equal(why, "/nonexistent.json: cannot be opened: No such file or directory");
    assert_int_equal(afdep_scenario_load(folder, &s, why, sizeof why), -1);
    assert_non_null(strstr(why, folder));
}

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    afdep_scenario_t s;
    static const struct {
        const char *text, *place;
    } texts[] = {
        { "", "is empty" },
        { "  \n", "is empty" },
        { "nonsense", "line 1, column 1: is not JSON" },
        { "{\"schema\":\n  oops}", "line 2, column 3: is not JSON" },
        { "{} {}", "line 1, column 4: is not JSON" },
        { "{\"name\": \"a\\u0000b\"}", "column 12: a string holds a NUL" },
        { "{\"name\":\v1}", "column 9: a control character" },
        { "[]", "scenario: [] is not an object" },
        { "1", "scenario: 1 is not an object" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(load_bytes(texts[i].text, strlen(texts[i].text), &s), -1);
        if (strncmp(why, file, strlen(file)) != 0 || !strstr(why, texts[i].place))
            fail_msg("%s: said \"%s\"", texts[i].text, why);
    }
    /* A NUL does not end the file early. */
    char text[sizeof good + 1];
    memcpy(text, good, sizeof good);
    text[sizeof good] = 'x';
    assert_int_equal(load_bytes(text, sizeof text, &s), -1);
}

static void bounds_depth_and_size(void **state)
{
    (void)state;
    afdep_scenario_t s;
    size_t size = AFDEP_JSON_CONFIG_BYTES + 1;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, '[', size);
    assert_int_equal(load_bytes(text, size - 1, &s), -1);
    assert_non_null(strstr(why, "nested too deeply"));
    memset(text, ' ', size);
    assert_int_equal(load_bytes(text, size, &s), -1);
    assert_non_null(strstr(why, "is larger than 1048576 bytes"));
    memcpy(text, good, sizeof good - 1);
    assert_int_equal(load_bytes(text, size - 1, &s), 0);
    afdep_scenario_free(&s);
    free(text);
}

/* Every beginning of a good file is refused; every file with one byte changed is refused or is a legal scenario. */
static void survives_damage(void **state)
{
    (void)state;
    char text[sizeof good];
    afdep_scenario_t s;
    size_t size = sizeof good - 1;
    for (size_t cut = 0; cut < size - 2; cut++)
        assert_int_equal(load_bytes(good, cut, &s), -1);
    for (size_t i = 0; i < size; i++) {
        memcpy(text, good, sizeof good);
        text[i] = (char)(text[i] ^ (i % 7 == 0 ? 0x80 : 1 << i % 7));
        if (load_bytes(text, size, &s) == 0) {
            assert_int_equal(afdep_scenario_check(&s, why, sizeof why), 0);
            afdep_scenario_free(&s);
        } else {
            assert_true(strncmp(why, file, strlen(file)) == 0 && !strchr(why, '\n'));
        }
    }
}

static void resolves_traces_beside_the_file(void **state)
{
    (void)state;
    afdep_scenario_t s;
    char wanted[128];
    assert_int_equal(load_changed("{\"kind\": \"uniform\"}", "{\"kind\": \"trace\", \"file\": \"t.json\"}", &s), 0);
    snprintf(wanted, sizeof wanted, "%s/t.json", folder);
    assert_string_equal(s.routing.trace_file, wanted);
    afdep_scenario_free(&s);
    assert_int_equal(load_changed("{\"kind\": \"uniform\"}", "{\"kind\": \"trace\", \"file\": \"/a/t.json\"}", &s), 0);
    assert_string_equal(s.routing.trace_file, "/a/t.json");
    afdep_scenario_free(&s);
}

/* What is written loads as the same scenario: every routing, and what a command line may have changed. */
static void writes_what_it_reads(void **state)
{
    (void)state;
    static const char *const routings[] = { "uniform", "zipf:1.1", "hot:7", "trace:/a/t.json" };
    for (int i = 0; i < 4; i++) {
        afdep_scenario_t s, again;
        assert_int_equal(load_bytes(good, sizeof good - 1, &s), 0);
        assert_int_equal(afdep_routing_parse(routings[i], &s.routing, why, sizeof why), 0);
        s.seed = 9007199254740991;
        s.graph = i % 2;
        s.dtype = i % 2 ? AFDEP_DTYPE_BF16 : AFDEP_DTYPE_FP8;
        cJSON *json = afdep_scenario_json(&s);
        char *text = cJSON_Print(json);
        if (load_bytes(text, strlen(text), &again) != 0)
            fail_msg("%s", why);
        cJSON *json_again = afdep_scenario_json(&again);
        assert_true(cJSON_Compare(json, json_again, 1));
        assert_int_equal(again.routing.kind, i);
        assert_true(again.routing.zipf_s == s.routing.zipf_s && again.seed == s.seed && again.dtype == s.dtype);
        assert_int_equal(again.routing.hot_expert, s.routing.hot_expert);
        cJSON_Delete(json_again);
        cJSON_Delete(json);
        free(text);
        afdep_scenario_free(&again);
        afdep_scenario_free(&s);
    }
}

static void parses_routings(void **state)
{
    (void)state;
    static const char *const not_routings[] = { "", "uniform:1", "Uniform", "zipf", "zipf:", "zipf:x", "zipf:1x",
                                                "zipf:nan", "hot", "hot:", "hot:-1", "hot:1.5", "hot:99999999999",
                                                "trace:", "trace", "cold:1" };
    afdep_routing_t routing = { AFDEP_ROUTING_HOT, 0, 3, NULL };
    for (size_t i = 0; i < sizeof not_routings / sizeof *not_routings; i++) {
        if (afdep_routing_parse(not_routings[i], &routing, why, sizeof why) != -1 || !strstr(why, not_routings[i]) ||
            strncmp(why, "routing: ", 9) != 0)
            fail_msg("%s: said \"%s\"", not_routings[i], why);
        assert_int_equal(routing.kind, AFDEP_ROUTING_HOT);
        assert_int_equal(routing.hot_expert, 3);
    }
    assert_int_equal(afdep_routing_parse("trace:a", &routing, why, sizeof why), 0);
    assert_int_equal(afdep_routing_parse("trace:b", &routing, why, sizeof why), 0); /* frees the first */
    assert_string_equal(routing.trace_file, "b");
    assert_int_equal(afdep_routing_parse("zipf:1.25", &routing, why, sizeof why), 0);
    assert_true(routing.zipf_s == 1.25 && !routing.trace_file);
}

static void checks_command_lines(void **state)
{
    (void)state;
    afdep_scenario_t s;
    afdep_scenario_default(&s);
    assert_int_equal(s.num_experts, 128);
    assert_int_equal(s.top_k, 8);
    assert_int_equal(s.hidden, 2048);
    assert_int_equal(s.dtype, AFDEP_DTYPE_BF16);
    assert_int_equal(s.num_sms, 24);
    assert_int_equal(s.capacity, 0);
    s.ffn_ranks = 2;
    s.attention_ranks = 1;
    s.ranks_per_domain = 3;
    assert_int_equal(afdep_scenario_check(&s, why, sizeof why), -1);
    assert_string_equal(why, "command line: capacity: 0 is not in 1 .. 16777216");
    s.capacity = 128;
    assert_int_equal(afdep_scenario_check(&s, why, sizeof why), 0);
    s.ffn_ranks = 0; /* symmetric */
    s.attention_ranks = 4;
    s.ranks_per_domain = 2;
    assert_int_equal(afdep_scenario_check(&s, why, sizeof why), 0);
    assert_int_equal(afdep_scenario_experts(&s), 32);
    s.ffn_ranks = 2; /* domains of 1F:2A */
    s.ranks_per_domain = 3;
    assert_int_equal(afdep_scenario_check(&s, why, sizeof why), 0);
    assert_int_equal(afdep_scenario_domain_workers(&s), 1);
    s.seed = UINT64_MAX;
    assert_int_equal(afdep_scenario_check(&s, why, sizeof why), -1);
    assert_non_null(strstr(why, "seed: 18446744073709551615"));
    afdep_scenario_free(&s);
}

/* The scenarios that come with the source, where it can be found. */
static void loads_published_scenarios(void **state)
{
    (void)state;
    static const char *const names[] = {
        "11to1-12x2-fp8-h2048", "4f20a-12x2-fp8-h2048", "2f6a-4x2-fp8-h2048", "5to1-6x4-fp8-h2048",
        "5to1-6x4-bf16-h4096", "8f16a-6x4-bf16-h2048", "6a2f-1x8-bf16-h2048", "7a1f-1x8-bf16-h2048",
        "4a4f-1x8-bf16-h2048", "1a1f-1x2-bf16-h2048", "tiny-2f4a-3x2-fp8"
    };
    const char *top = getenv("srcdir") ? getenv("srcdir") : ".";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[4096];
        afdep_scenario_t s;
        snprintf(path, sizeof path, "%s/scenarios/%s.json", top, names[i]);
        if (afdep_scenario_load(path, &s, why, sizeof why) != 0)
            fail_msg("%s", why);
        assert_string_equal(s.name, names[i]);
        assert_int_equal(s.capacity, i == 10 ? 16 : 2048);
        assert_int_equal(s.num_sms, i == 10 ? 1 : 24);
        assert_int_equal(s.num_experts, i == 10 ? 8 : 128);
        afdep_scenario_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_every_field), cmocka_unit_test(refuses_each_mistake), cmocka_unit_test(says_it_in_full),
        cmocka_unit_test(refuses_too_many_tokens), cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_what_is_not_json), cmocka_unit_test(bounds_depth_and_size),
        cmocka_unit_test(survives_damage), cmocka_unit_test(resolves_traces_beside_the_file),
        cmocka_unit_test(writes_what_it_reads), cmocka_unit_test(parses_routings),
        cmocka_unit_test(checks_command_lines), cmocka_unit_test(loads_published_scenarios),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
