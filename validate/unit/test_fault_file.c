/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader of fault files: the files of scenarios/faults/ load, every field arrives where it belongs, and each of
 * many single mistakes is refused in one line that names the file, the field and the value. A mistake that is let
 * through would be a fault that never happens, and a test that passes for it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/faults.h"

static char why[512];
static char folder[64], file[96];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/afdep-faults-XXXXXX");
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

static int load(const char *text, afdep_fault_file_t *faults)
{
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
    why[0] = 0;
    return afdep_fault_file_load(file, faults, why, sizeof why);
}

/* A file of one rule. */
static int load_rule(const char *rule, afdep_fault_file_t *faults)
{
    char text[1024];
    assert_true(snprintf(text, sizeof text, "{\"schema\": \"afdep-fault/1\", \"faults\": [%s]}", rule) <
                (int)sizeof text);
    return load(text, faults);
}

static void loads_every_field(void **state)
{
    (void)state;
    afdep_fault_file_t f;
    assert_int_equal(load("{\"schema\": \"afdep-fault/1\", \"name\": \"all\", \"seed\": 9, \"faults\": [\n"
                          "{\"kind\": \"delay\", \"amount_us\": 250, \"where\": {\"rank\": 3, \"peer\": 1,"
                          " \"channel\": 5, \"what\": \"combine\"}, \"when\": {\"exchange\": 4, \"after\": 2,"
                          " \"count\": 7, \"probability\": 0.5}},\n"
                          "{\"kind\": \"slow-actor\", \"amount_us\": 200, \"where\": {\"duty\": \"forward\"}},\n"
                          "{\"kind\": \"corrupt\", \"bit\": -3, \"where\": {\"lane\": \"domain\", \"what\": \"put\"}},"
                          "{\"kind\": \"reorder\", \"overtake\": 2, \"where\": {\"lane\": \"control\", \"what\": "
                          "\"signal\"}},\n"
                          "{\"kind\": \"kill\"}]}",
                          &f),
                     0);
    assert_int_equal(f.faults.count, 5);
    assert_int_equal(f.faults.seed, 9);
    assert_ptr_equal(f.faults.rules, f.rules);
    const afdep_fault_t *r = f.rules;
    assert_int_equal(r[0].kind, AFDEP_FAULT_DELAY);
    assert_int_equal(r[0].amount_us, 250);
    assert_int_equal(r[0].rank, 3);
    assert_int_equal(r[0].peer, 1);
    assert_int_equal(r[0].lane, 5);
    assert_int_equal(r[0].what, AFDEP_SIGNAL_COMBINE);
    assert_int_equal(r[0].exchange, 4);
    assert_int_equal(r[0].after, 2);
    assert_int_equal(r[0].count, 7);
    assert_true(r[0].probability == 0.5);
    assert_int_equal(r[1].kind, AFDEP_FAULT_SLOW_ACTOR);
    assert_string_equal(r[1].duty, "forward");
    assert_int_equal(r[1].rank, AFDEP_FAULT_ANY);
    assert_int_equal(r[1].what, AFDEP_FAULT_ANY);
    assert_true(r[1].probability == 1);
    assert_int_equal(r[2].bit, -3);
    assert_int_equal(r[2].lane, AFDEP_FAULT_LANE_DOMAIN);
    assert_int_equal(r[2].what, AFDEP_FAULT_PUT);
    assert_int_equal(r[3].overtake, 2);
    assert_int_equal(r[3].amount_us, AFDEP_FAULT_REORDER_US);
    assert_int_equal(r[3].lane, AFDEP_FAULT_LANE_CONTROL);
    assert_int_equal(r[3].what, AFDEP_FAULT_SIGNAL);
    assert_int_equal(r[4].kind, AFDEP_FAULT_KILL);
    assert_null(r[4].duty);
    assert_int_equal(afdep_fault_file_check(&f, 4, 6, why, sizeof why), 0);
    afdep_fault_file_free(&f);
    assert_null(f.file);
}

/* Every kind and every message by its name. */
static void knows_every_name(void **state)
{
    (void)state;
    char text[256];
    afdep_fault_file_t f;
    for (int kind = 0; kind < AFDEP_FAULT_KINDS; kind++) {
        int timed = kind == AFDEP_FAULT_DELAY || kind == AFDEP_FAULT_SLOW_ACTOR;
        snprintf(text, sizeof text, "{\"kind\": \"%s\"%s}", afdep_fault_kind_names[kind],
                 timed ? ", \"amount_us\": 1" : "");
        if (load_rule(text, &f) != 0)
            fail_msg("%s: %s", text, why);
        assert_int_equal(f.rules[0].kind, kind);
        afdep_fault_file_free(&f);
    }
    for (int what = 0; what < AFDEP_SIGNAL_KINDS; what++) {
        snprintf(text, sizeof text, "{\"kind\": \"drop\", \"where\": {\"what\": \"%s\"}}",
                 afdep_signal_kind_names[what]);
        if (load_rule(text, &f) != 0)
            fail_msg("%s: %s", text, why);
        assert_int_equal(f.rules[0].what, what);
        afdep_fault_file_free(&f);
    }
    for (int i = 0; afdep_fault_duties[i]; i++) {
        snprintf(text, sizeof text, "{\"kind\": \"kill\", \"where\": {\"duty\": \"%s\"}}", afdep_fault_duties[i]);
        if (load_rule(text, &f) != 0)
            fail_msg("%s: %s", text, why);
        assert_string_equal(f.rules[0].duty, afdep_fault_duties[i]);
        afdep_fault_file_free(&f);
    }
}

static void refuses_single_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *rule, *field, *value;
    } mistakes[] = {
        { "7", "faults[0]", "7" },
        { "{}", "faults[0].kind", "missing" },
        { "{\"kind\": \"smash\"}", "faults[0].kind", "smash" },
        { "{\"kind\": \"drop\", \"kind\": \"drop\"}", "faults[0].kind", "second time" },
        { "{\"kind\": \"drop\", \"when\": 3}", "faults[0].when", "3" },
        { "{\"kind\": \"drop\", \"where\": {\"what\": \"tail\"}}", "faults[0].where.what", "tail" },
        { "{\"kind\": \"drop\", \"where\": {\"rank\": -1}}", "faults[0].where.rank", "-1" },
        { "{\"kind\": \"drop\", \"where\": {\"rank\": 1.5}}", "faults[0].where.rank", "1.5" },
        { "{\"kind\": \"drop\", \"where\": {\"rank\": \"1\"}}", "faults[0].where.rank", "\"1\"" },
        { "{\"kind\": \"drop\", \"where\": {\"peer\": 99999}}", "faults[0].where.peer", "99999" },
        { "{\"kind\": \"drop\", \"where\": {\"lane\": \"left\"}}", "faults[0].where.lane", "left" },
        { "{\"kind\": \"drop\", \"where\": {\"lane\": \"domain\", \"channel\": 1}}", "faults[0].where.channel", "1" },
        { "{\"kind\": \"drop\", \"where\": {\"channel\": 1, \"lane\": \"domain\"}}", "faults[0].where.lane", "domain" },
        { "{\"kind\": \"drop\", \"where\": {\"duty\": \"forward\"}}", "faults[0].where.duty", "drop" },
        { "{\"kind\": \"drop\", \"where\": {\"target\": 1}}", "faults[0].where.target", "no known field" },
        { "{\"kind\": \"drop\", \"when\": {\"exchange\": 0}}", "faults[0].when.exchange", "0" },
        { "{\"kind\": \"drop\", \"when\": {\"count\": 0}}", "faults[0].when.count", "0" },
        { "{\"kind\": \"drop\", \"when\": {\"after\": 1e300}}", "faults[0].when.after", "1e+300" },
        { "{\"kind\": \"drop\", \"when\": {\"probability\": 0}}", "faults[0].when.probability", "0" },
        { "{\"kind\": \"drop\", \"when\": {\"probability\": 1.01}}", "faults[0].when.probability", "1.01" },
        { "{\"kind\": \"drop\", \"amount_us\": 5}", "faults[0].amount_us", "drop" },
        { "{\"kind\": \"delay\"}", "faults[0].amount_us", "missing" },
        { "{\"kind\": \"slow-actor\"}", "faults[0].amount_us", "missing" },
        { "{\"kind\": \"delay\", \"amount_us\": 0}", "faults[0].amount_us", "0" },
        { "{\"kind\": \"delay\", \"amount_us\": 1, \"overtake\": 1}", "faults[0].overtake", "delay" },
        { "{\"kind\": \"delay\", \"amount_us\": 1, \"bit\": 1}", "faults[0].bit", "delay" },
        { "{\"kind\": \"corrupt\", \"bit\": 1e9}", "faults[0].bit", "1000000000" },
        { "{\"kind\": \"slow-actor\", \"amount_us\": 1, \"where\": {\"duty\": \"forwards\"}}", "faults[0].where.duty",
          "forwards" },
        { "{\"kind\": \"slow-actor\", \"amount_us\": 1, \"where\": {\"peer\": 1}}", "faults[0].where.peer",
          "slow-actor" },
        { "{\"kind\": \"kill\", \"where\": {\"duty\": \"forward\", \"what\": \"put\"}}", "faults[0].where.what",
          "kill" },
        { "{\"kind\": \"kill\"}, {\"kind\": \"drop\", \"bit\": 1}", "faults[1].bit", "drop" },
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        afdep_fault_file_t f;
        char blame[160];
        snprintf(blame, sizeof blame, "%s: %s: ", file, mistakes[i].field);
        if (load_rule(mistakes[i].rule, &f) != -1)
            fail_msg("%s was let through", mistakes[i].rule);
        if (strncmp(why, blame, strlen(blame)) != 0 || !strstr(why + strlen(blame), mistakes[i].value) ||
            strchr(why, '\n'))
            fail_msg("%s: %s", mistakes[i].rule, why);
        assert_null(f.file);
    }
}

static void refuses_whole_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *blame;
    } files[] = {
        { "", "is empty" },
        { "[]", "faults: [] is not an object" },
        { "{\"faults\": [{\"kind\": \"kill\"}]}", "schema: is missing" },
        { "{\"schema\": \"afdep-fault/2\", \"news\": 1}", "schema: \"afdep-fault/2\"" },
        { "{\"schema\": \"afdep-fault/1\"}", "faults: is missing" },
        { "{\"schema\": \"afdep-fault/1\", \"faults\": []}", "faults: [] is not a list of faults" },
        { "{\"schema\": \"afdep-fault/1\", \"faults\": {}}", "faults: {} is not a list of faults" },
        { "{\"schema\": \"afdep-fault/1\", \"name\": \"a/b\", \"faults\": [{\"kind\": \"kill\"}]}", "name: \"a/b\"" },
        { "{\"schema\": \"afdep-fault/1\", \"seed\": -1, \"faults\": [{\"kind\": \"kill\"}]}", "seed: -1" },
    };
    afdep_fault_file_t f;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        assert_int_equal(load(files[i].text, &f), -1);
        if (!strstr(why, files[i].blame) || strncmp(why, file, strlen(file)) != 0)
            fail_msg("%s: %s", files[i].text, why);
    }
    char many[4096] = "{\"kind\": \"kill\"}";
    for (int i = 0; i < AFDEP_FAULTS_MAX; i++)
        strcat(many, ",{\"kind\": \"kill\"}");
    char text[5000];
    snprintf(text, sizeof text, "{\"schema\": \"afdep-fault/1\", \"faults\": [%s]}", many);
    assert_int_equal(load(text, &f), -1);
    assert_non_null(strstr(why, "more than 64"));
    assert_int_equal(afdep_fault_file_load("/nowhere/x.json", &f, why, sizeof why), -1);
    assert_non_null(strstr(why, "/nowhere/x.json"));
}

static void refuses_ranks_that_are_not_there(void **state)
{
    (void)state;
    static const struct {
        const char *where, *blame;
    } places[] = {
        { "\"rank\": 6", "faults[0].where.rank: 6: there are ranks 0 .. 5" },
        { "\"peer\": 7", "faults[0].where.peer: 7: there are ranks 0 .. 5" },
        { "\"channel\": 8", "faults[0].where.channel: 8: there are channels 0 .. 7" },
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char rule[128];
        afdep_fault_file_t f;
        snprintf(rule, sizeof rule, "{\"kind\": \"drop\", \"where\": {%s}}", places[i].where);
        assert_int_equal(load_rule(rule, &f), 0);
        assert_int_equal(afdep_fault_file_check(&f, 6, 8, why, sizeof why), -1);
        if (!strstr(why, places[i].blame))
            fail_msg("%s", why);
        assert_int_equal(afdep_fault_file_check(&f, 8, 16, why, sizeof why), 0);
        afdep_fault_file_free(&f);
    }
}

static void loads_the_files_of_the_tree(void **state)
{
    (void)state;
    static const char *const names[] = { "corrupted-word", "delayed-dispatches", "delayed-replies", "dropped-put",
                                         "duplicated-signal", "killed-process", "reordered-lanes", "slow-forward",
                                         "stopped-source" };
    const char *top = getenv("srcdir") ? getenv("srcdir") : ".";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        afdep_fault_file_t f;
        snprintf(path, sizeof path, "%s/scenarios/faults/%s.json", top, names[i]);
        if (afdep_fault_file_load(path, &f, why, sizeof why) != 0 ||
            afdep_fault_file_check(&f, 6, 8, why, sizeof why) != 0)
            fail_msg("%s", why);
        assert_string_equal(cJSON_GetObjectItemCaseSensitive(f.json, "name")->valuestring, names[i]);
        afdep_fault_file_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_every_field),   cmocka_unit_test(knows_every_name),
        cmocka_unit_test(refuses_single_mistakes), cmocka_unit_test(refuses_whole_files),
        cmocka_unit_test(refuses_ranks_that_are_not_there), cmocka_unit_test(loads_the_files_of_the_tree),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
