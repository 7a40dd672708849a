/* SPDX-License-Identifier: Apache-2.0 */
/* benchmarks.json as it grows, the checks of each record that joins it, the printed table and the gate. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/screen_results.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/comparison.h"
#include "bench/lib/json.h"
#include "bench/lib/record.h"
#include "bench/lib/why.h"

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

int afdep_screen_results_begin(const afdep_screen_t *screen, afdep_screen_results_t *results)
{
    results->screen = screen;
    results->json = cJSON_CreateObject();
    cJSON *whole = cJSON_Duplicate(screen->json, 1);
    /* As it is run: --repeats may have changed it. */
    int good = whole && cJSON_ReplaceItemInObjectCaseSensitive(whole, "repeats", cJSON_CreateNumber(screen->repeats)) &&
               cJSON_AddStringToObject(results->json, "schema", "afdep-benchmarks/1") &&
               cJSON_AddItemToObject(results->json, "screen", whole);
    results->records = cJSON_AddArrayToObject(results->json, "records");
    good = good && results->records && cJSON_AddArrayToObject(results->json, "pairs") &&
           cJSON_AddArrayToObject(results->json, "failures") && cJSON_AddFalseToObject(results->json, "complete");
    if (!good)
        afdep_screen_results_free(results);
    return good ? 0 : -1;
}

void afdep_screen_results_free(afdep_screen_results_t *results)
{
    cJSON_Delete(results->json);
    results->json = NULL;
}

/* ---- A record joins -------------------------------------------------------------------------------------------- */

static cJSON *run_json(const afdep_screen_results_t *results, const afdep_screen_run_t *run)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToObject(json, "arm", afdep_json_string(results->screen->arms[run->arm].name));
    cJSON_AddNumberToObject(json, "repeat", run->repeat + 1);
    cJSON_AddNumberToObject(json, "seconds", floor(run->seconds * 1000 + 0.5) / 1000);
    cJSON_AddItemToObject(json, "command", afdep_json_string(run->line));
    return json;
}

/* Everything that the screen asks for is measured. */
static int check_cells(const afdep_screen_t *screen, const cJSON *record, char *why, size_t why_size)
{
    if (afdep_benchmark_check(record, "its record", why, why_size) < 0)
        return -1;
    for (int i = 0; i < screen->token_counts; i++)
        if (!afdep_benchmark_cell(record, screen->tokens[i]))
            return afdep_why(why, why_size, "its record: cells: none has %d tokens", screen->tokens[i]);
    return 0;
}

static const cJSON *earlier_of_arm(const afdep_screen_results_t *results, const char *arm)
{
    for (const cJSON *record = results->records->child; record; record = record->next)
        if (strcmp(afdep_benchmark_arm(record), arm) == 0)
            return record;
    return NULL;
}

static int check_build(const afdep_screen_results_t *results, const afdep_screen_arm_t *arm, const cJSON *record,
                       char *why, size_t why_size)
{
    const char *tree = get(record, "native_tree")->valuestring;
    const cJSON *earlier = earlier_of_arm(results, arm->name), *dirty = get(get(record, "build"), "dirty");
    if (arm->native_tree && strncmp(tree, arm->native_tree, strlen(arm->native_tree)) != 0)
        return afdep_why(why, why_size, "its program reports native_tree \"%s\", the screen demands \"%s\"", tree,
                         arm->native_tree);
    if (earlier && strcmp(tree, get(earlier, "native_tree")->valuestring) != 0)
        return afdep_why(why, why_size, "its program reports native_tree \"%s\", in an earlier repeat it was \"%s\"",
                         tree, get(earlier, "native_tree")->valuestring);
    if (results->screen->clean && !cJSON_IsFalse(dirty))
        return afdep_why(why, why_size,
                         "its program's build has uncommitted changes (build.dirty), the screen demands "
                         "a clean one");
    return 0;
}

int afdep_screen_results_add(afdep_screen_results_t *results, const afdep_screen_run_t *run, cJSON *record, char *why,
                             size_t why_size)
{
    const afdep_screen_t *screen = results->screen;
    const afdep_screen_arm_t *arm = &screen->arms[run->arm];
    int status = check_cells(screen, record, why, why_size);
    if (status == 0)
        status = check_build(results, arm, record, why, why_size);
    if (status == 0 && results->records->child) {
        char differs[512];
        status = afdep_benchmarks_agree(record, results->records->child, screen->may_differ, differs, sizeof(differs));
        if (status < 0)
            afdep_why(why, why_size, "its record cannot be paired with that of %s: %s",
                      afdep_benchmark_arm(results->records->child), differs);
    }
    if (status < 0) {
        afdep_screen_results_fail(results, run, why, NULL, record);
        return -1;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(record, "run");
    cJSON_AddItemToObject(record, "run", run_json(results, run));
    cJSON_AddItemToArray(results->records, record);
    return 0;
}

void afdep_screen_results_fail(afdep_screen_results_t *results, const afdep_screen_run_t *run, const char *reason,
                               const char *said, cJSON *record)
{
    cJSON *failure = run_json(results, run);
    cJSON_AddItemToObject(failure, "why", afdep_json_string(reason));
    if (said && said[0])
        cJSON_AddItemToObject(failure, "said", afdep_json_string(said));
    if (record)
        cJSON_AddItemToObject(failure, "record", record);
    cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(results->json, "failures"), failure);
}

/* ---- Pairs and the file ---------------------------------------------------------------------------------------- */

static cJSON *rounded(double value)
{
    return afdep_record_number(round(value * 1000) / 1000);
}

static cJSON *pair_json(const afdep_comparison_t *c, int arm, int token, const afdep_paired_t *paired)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "tokens", c->tokens[token]);
    cJSON_AddItemToObject(json, "baseline", afdep_json_string(c->names[c->baseline]));
    cJSON_AddItemToObject(json, "candidate", afdep_json_string(c->names[arm]));
    cJSON_AddItemToObject(json, "baseline_us", rounded(afdep_comparison_median(c, c->baseline, token)));
    cJSON_AddItemToObject(json, "candidate_us", rounded(afdep_comparison_median(c, arm, token)));
    cJSON_AddItemToObject(json, "change_pct", rounded(paired->change_pct));
    cJSON_AddItemToObject(json, "change_low_pct", rounded(paired->change_low_pct));
    cJSON_AddItemToObject(json, "change_high_pct", rounded(paired->change_high_pct));
    cJSON_AddNumberToObject(json, "repeats", paired->repeats);
    cJSON_AddStringToObject(json, "verdict", afdep_paired_verdict(paired));
    return json;
}

static int compare(const afdep_screen_results_t *results, afdep_comparison_t *c, char *why, size_t why_size)
{
    return afdep_comparison_make(results->records, results->screen->arms[results->screen->baseline].name, c, why,
                                 why_size);
}

static int update_pairs(afdep_screen_results_t *results, char *why, size_t why_size)
{
    afdep_comparison_t c;
    cJSON *pairs = cJSON_CreateArray();
    if (compare(results, &c, why, why_size) < 0) {
        cJSON_Delete(pairs);
        return -1;
    }
    for (int arm = 0; c.baseline >= 0 && arm < c.arms; arm++)
        for (int token = 0; arm != c.baseline && token < c.token_counts; token++) {
            afdep_paired_t paired = afdep_comparison_pair(&c, arm, token);
            if (paired.repeats > 0)
                cJSON_AddItemToArray(pairs, pair_json(&c, arm, token, &paired));
        }
    afdep_comparison_free(&c);
    cJSON_ReplaceItemInObjectCaseSensitive(results->json, "pairs", pairs);
    return 0;
}

int afdep_screen_results_save(afdep_screen_results_t *results, const char *file, char *why, size_t why_size)
{
    int complete = cJSON_GetArraySize(results->records) == results->screen->repeats * results->screen->arm_count;
    if (update_pairs(results, why, why_size) < 0)
        return -1;
    cJSON_ReplaceItemInObjectCaseSensitive(results->json, "complete", cJSON_CreateBool(complete));
    return afdep_record_write(file, results->json, why, why_size);
}

/* ---- The table ------------------------------------------------------------------------------------------------- */

static void print_median(const afdep_comparison_t *c, int arm, int token)
{
    double median = afdep_comparison_median(c, arm, token);
    if (isnan(median))
        printf(" - |");
    else
        printf(" %.1f |", median);
}

static void print_change(const afdep_comparison_t *c, int arm, int token)
{
    char words[128];
    afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
    print_median(c, arm, token);
    printf(" %s |", afdep_paired_words(&paired, words, sizeof(words)));
}

/* A line for each token count, arms side by side. */
static void print_abreast(const afdep_comparison_t *c)
{
    printf("| tokens |");
    if (c->baseline >= 0)
        printf(" %s us |", c->names[c->baseline]);
    for (int arm = 0; arm < c->arms; arm++)
        if (arm != c->baseline)
            printf(" %s us | change %% (95%%) |", c->names[arm]);
    printf("\n|---:|");
    for (int arm = 0; arm < c->arms; arm++)
        printf(arm == c->baseline ? "---:|" : "---:|---:|");
    printf("\n");
    for (int token = 0; token < c->token_counts; token++) {
        printf("| %d |", c->tokens[token]);
        if (c->baseline >= 0)
            print_median(c, c->baseline, token);
        for (int arm = 0; arm < c->arms; arm++)
            if (arm != c->baseline)
                print_change(c, arm, token);
        printf("\n");
    }
}

/* A line for each arm and token count. */
static void print_long(const afdep_comparison_t *c)
{
    printf("| arm | tokens | us | change %% (95%%) |\n|---|---:|---:|---:|\n");
    for (int arm = 0; arm < c->arms; arm++)
        for (int token = 0; token < c->token_counts; token++) {
            printf("| %s | %d |", c->names[arm], c->tokens[token]);
            if (arm != c->baseline)
                print_change(c, arm, token);
            else
                print_median(c, arm, token), printf(" (baseline) |");
            printf("\n");
        }
}

void afdep_screen_results_print(const afdep_screen_results_t *results)
{
    char why[256];
    afdep_comparison_t c;
    if (!results->records->child || compare(results, &c, why, sizeof(why)) < 0)
        return;
    if (c.arms - 1 > AFDEP_COMPARISON_ABREAST)
        print_long(&c);
    else
        print_abreast(&c);
    afdep_comparison_free(&c);
    fflush(stdout);
}

/* ---- The gate -------------------------------------------------------------------------------------------------- */

static int gate_arm(const afdep_comparison_t *c, int arm, double percent)
{
    int status = 0;
    char words[128];
    for (int token = 0; token < c->token_counts; token++) {
        afdep_paired_t paired = afdep_comparison_pair(c, arm, token);
        if (paired.repeats == 0 || paired.change_pct <= percent)
            continue;
        fprintf(stderr, "afdep-screen: gate: %s against %s at %d tokens: %s %%, more than %+g %%\n", c->names[arm],
                c->names[c->baseline], c->tokens[token], afdep_paired_words(&paired, words, sizeof(words)), percent);
        status = -1;
    }
    return status;
}

int afdep_screen_results_gate(const afdep_screen_results_t *results, double percent)
{
    char why[256];
    afdep_comparison_t c;
    int status = 0, named = -1;
    if (compare(results, &c, why, sizeof(why)) < 0) {
        fprintf(stderr, "afdep-screen: gate: %s\n", why);
        return -1;
    }
    for (int arm = 0; arm < c.arms; arm++)
        if (strcmp(c.names[arm], "candidate") == 0)
            named = arm;
    for (int arm = 0; arm < c.arms; arm++)
        if (arm != c.baseline && (named < 0 || named == arm) && gate_arm(&c, arm, percent) < 0)
            status = -1;
    afdep_comparison_free(&c);
    return status;
}
