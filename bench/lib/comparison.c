/* SPDX-License-Identifier: Apache-2.0 */
/* Which records may stand side by side, and their cells by arm, token count and repeat. */
#include "bench/lib/comparison.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"

#define AFDEP_REPEATS_MAX 10000

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* ---- One record ------------------------------------------------------------------------------------------------ */

static int refuse(const char *name, const char *field, const cJSON *value, const char *rule, char *why, size_t why_size)
{
    char text[64];
    if (!value)
        return afdep_why(why, why_size, "%s: %s: is missing", name, field);
    return afdep_why(why, why_size, "%s: %s: %s %s", name, field, afdep_json_quote(value, text, sizeof(text)), rule);
}

static int is_whole(const cJSON *value, double low, double high)
{
    return cJSON_IsNumber(value) && value->valuedouble >= low && value->valuedouble <= high &&
           value->valuedouble == floor(value->valuedouble);
}

static int check_cell(const cJSON *cell, const char *name, char *why, size_t why_size)
{
    const cJSON *tokens = get(cell, "tokens"), *median = get(cell, "median_us");
    if (!is_whole(tokens, 0, INT_MAX))
        return refuse(name, "cells[].tokens", tokens, "is not a token count", why, why_size);
    if (!cJSON_IsNumber(median) || !(median->valuedouble > 0))
        return refuse(name, "cells[].median_us", median, "is not a time above 0", why, why_size);
    return 0;
}

int afdep_benchmark_check(const cJSON *record, const char *name, char *why, size_t why_size)
{
    static const char *const objects[] = { "scenario", "arm", "build", "machine" };
    const cJSON *schema = get(record, "schema"), *cells = get(record, "cells");
    if (!cJSON_IsString(schema) || strcmp(schema->valuestring, "afdep-benchmark/1") != 0)
        return refuse(name, "schema", schema, "is not \"afdep-benchmark/1\"", why, why_size);
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++)
        if (!cJSON_IsObject(get(record, objects[i])))
            return refuse(name, objects[i], get(record, objects[i]), "is not an object", why, why_size);
    if (!cJSON_IsString(get(get(record, "arm"), "name")))
        return refuse(name, "arm.name", get(get(record, "arm"), "name"), "is not a string", why, why_size);
    if (!cJSON_IsString(get(record, "native_tree")))
        return refuse(name, "native_tree", get(record, "native_tree"), "is not a string", why, why_size);
    if (!cJSON_IsArray(cells) || !cells->child)
        return refuse(name, "cells", cells, "is not a list of cells", why, why_size);
    for (const cJSON *cell = cells->child; cell; cell = cell->next)
        if (check_cell(cell, name, why, why_size) < 0)
            return -1;
    return 0;
}

const char *afdep_benchmark_arm(const cJSON *record)
{
    const cJSON *called = get(get(record, "run"), "arm");
    return cJSON_IsString(called) ? called->valuestring : get(get(record, "arm"), "name")->valuestring;
}

const cJSON *afdep_benchmark_cell(const cJSON *record, int tokens)
{
    for (const cJSON *cell = get(record, "cells")->child; cell; cell = cell->next)
        if (get(cell, "tokens")->valuedouble == tokens)
            return cell;
    return NULL;
}

double afdep_cell_number(const cJSON *cell, const char *key, const char *inner)
{
    const cJSON *value = get(cell, key);
    if (inner)
        value = get(value, inner);
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

/* ---- Two records ----------------------------------------------------------------------------------------------- */

static int listed(const cJSON *list, const char *name)
{
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next)
        if (cJSON_IsString(item) && strcmp(item->valuestring, name) == 0)
            return 1;
    return 0;
}

static int same(const cJSON *a, const cJSON *b)
{
    return (!a && !b) || (a && b && cJSON_Compare(a, b, 1));
}

static int disagree(const char *part, const char *field, const cJSON *a, const cJSON *b, char *why, size_t why_size)
{
    char one[96] = "nothing", other[96] = "nothing";
    if (a)
        afdep_json_quote(a, one, sizeof(one));
    if (b)
        afdep_json_quote(b, other, sizeof(other));
    return afdep_why(why, why_size, "%s%s%s differs: %s against %s", part, part[0] ? "." : "", field, one, other);
}

/* Every field of either; a field that only one has disagrees too. */
static int scenarios_agree(const cJSON *a, const cJSON *b, const cJSON *may_differ, char *why, size_t why_size)
{
    for (const cJSON *item = a->child; item; item = item->next)
        if (!listed(may_differ, item->string) && !same(item, get(b, item->string)))
            return disagree("scenario", item->string, item, get(b, item->string), why, why_size);
    for (const cJSON *item = b->child; item; item = item->next)
        if (!listed(may_differ, item->string) && !get(a, item->string))
            return disagree("scenario", item->string, NULL, item, why, why_size);
    return 0;
}

static int machines_agree(const cJSON *a, const cJSON *b, char *why, size_t why_size)
{
    static const char *const fields[] = { "cpu",  "cores",  "cores_allowed", "memory_bytes",   "kernel",
                                          "gpus", "driver", "mps",           "ranks_per_host", "ranks_per_gpu" };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (!same(get(a, fields[i]), get(b, fields[i])))
            return disagree("machine", fields[i], get(a, fields[i]), get(b, fields[i]), why, why_size);
    /* A build without rdma-core knows no NICs, which says nothing of the machine. */
    const cJSON *one = get(a, "nics"), *other = get(b, "nics");
    if (cJSON_IsArray(one) && cJSON_IsArray(other) && !same(one, other))
        return disagree("machine", "nics", one, other, why, why_size);
    return 0;
}

int afdep_benchmarks_agree(const cJSON *record, const cJSON *other, const cJSON *may_differ, char *why, size_t why_size)
{
    if (scenarios_agree(get(record, "scenario"), get(other, "scenario"), may_differ, why, why_size) < 0 ||
        machines_agree(get(record, "machine"), get(other, "machine"), why, why_size) < 0)
        return -1;
    if (!same(get(record, "ranks"), get(other, "ranks")))
        return disagree("", "ranks", get(record, "ranks"), get(other, "ranks"), why, why_size);
    const cJSON *one = get(get(record, "arm"), "emulated"), *two = get(get(other, "arm"), "emulated");
    return same(one, two) ? 0 : disagree("arm", "emulated", one, two, why, why_size);
}

/* ---- All records ----------------------------------------------------------------------------------------------- */

static int arm_index(const afdep_comparison_t *c, const char *name)
{
    for (int arm = 0; arm < c->arms; arm++)
        if (strcmp(c->names[arm], name) == 0)
            return arm;
    return -1;
}

static int token_index(const afdep_comparison_t *c, int tokens)
{
    for (int token = 0; token < c->token_counts; token++)
        if (c->tokens[token] == tokens)
            return token;
    return -1;
}

static int insert_tokens(afdep_comparison_t *c, int tokens)
{
    if (token_index(c, tokens) >= 0)
        return 0;
    if (c->token_counts == AFDEP_COMPARISON_TOKENS_MAX)
        return -1;
    int at = c->token_counts++;
    for (; at > 0 && c->tokens[at - 1] > tokens; at--)
        c->tokens[at] = c->tokens[at - 1];
    c->tokens[at] = tokens;
    return 0;
}

/* From 0. */
static int repeat_of(const cJSON *record, int fallback)
{
    const cJSON *repeat = get(get(record, "run"), "repeat");
    return is_whole(repeat, 1, AFDEP_REPEATS_MAX) ? (int)repeat->valuedouble - 1 : fallback;
}

/* Finds arms, token counts and the number of repeats. */
static int survey(const cJSON *records, afdep_comparison_t *c, char *why, size_t why_size)
{
    for (const cJSON *record = records->child; record; record = record->next) {
        int arm = arm_index(c, afdep_benchmark_arm(record));
        if (arm < 0 && c->arms == AFDEP_COMPARISON_ARMS_MAX)
            return afdep_why(why, why_size, "more than %d arms", AFDEP_COMPARISON_ARMS_MAX);
        if (arm < 0) {
            arm = c->arms++;
            c->names[arm] = afdep_benchmark_arm(record);
            c->first[arm] = record;
        }
        int repeat = repeat_of(record, c->runs[arm]++);
        if (repeat >= AFDEP_REPEATS_MAX)
            return afdep_why(why, why_size, "arm %s: more than %d repeats", c->names[arm], AFDEP_REPEATS_MAX);
        c->repeats = repeat + 1 > c->repeats ? repeat + 1 : c->repeats;
        for (const cJSON *cell = get(record, "cells")->child; cell; cell = cell->next)
            if (insert_tokens(c, (int)get(cell, "tokens")->valuedouble) < 0)
                return afdep_why(why, why_size, "more than %d token counts", AFDEP_COMPARISON_TOKENS_MAX);
    }
    return 0;
}

static double *median_at(const afdep_comparison_t *c, int arm, int token, int repeat)
{
    return c->median_us + ((size_t)arm * (size_t)c->token_counts + (size_t)token) * (size_t)c->repeats + (size_t)repeat;
}

static void fill(const cJSON *records, afdep_comparison_t *c)
{
    int seen[AFDEP_COMPARISON_ARMS_MAX] = { 0 };
    for (const cJSON *record = records->child; record; record = record->next) {
        int arm = arm_index(c, afdep_benchmark_arm(record));
        int repeat = repeat_of(record, seen[arm]++);
        for (const cJSON *cell = get(record, "cells")->child; cell; cell = cell->next)
            *median_at(c, arm, token_index(c, (int)get(cell, "tokens")->valuedouble), repeat) =
                get(cell, "median_us")->valuedouble;
    }
}

int afdep_comparison_make(const cJSON *records, const char *baseline, afdep_comparison_t *comparison, char *why,
                          size_t why_size)
{
    memset(comparison, 0, sizeof(*comparison));
    comparison->baseline = -1;
    if (survey(records, comparison, why, why_size) < 0)
        return -1;
    size_t cells = (size_t)comparison->arms * (size_t)comparison->token_counts * (size_t)comparison->repeats;
    comparison->median_us = malloc((cells ? cells : 1) * sizeof(double));
    if (!comparison->median_us)
        return afdep_why(why, why_size, "no memory for %zu cells", cells);
    for (size_t i = 0; i < cells; i++)
        comparison->median_us[i] = NAN;
    fill(records, comparison);
    if (baseline)
        comparison->baseline = arm_index(comparison, baseline);
    return 0;
}

void afdep_comparison_free(afdep_comparison_t *comparison)
{
    free(comparison->median_us);
    comparison->median_us = NULL;
}

double afdep_comparison_at(const afdep_comparison_t *comparison, int arm, int token, int repeat)
{
    return *median_at(comparison, arm, token, repeat);
}

double afdep_comparison_median(const afdep_comparison_t *comparison, int arm, int token)
{
    double *values = malloc((size_t)(comparison->repeats ? comparison->repeats : 1) * sizeof(*values));
    int count = 0;
    for (int repeat = 0; values && repeat < comparison->repeats; repeat++)
        if (!isnan(*median_at(comparison, arm, token, repeat)))
            values[count++] = *median_at(comparison, arm, token, repeat);
    double median = values ? afdep_median(values, count) : NAN;
    free(values);
    return median;
}

afdep_paired_t afdep_comparison_pair(const afdep_comparison_t *comparison, int arm, int token)
{
    afdep_paired_t paired = { 0, NAN, NAN, NAN };
    size_t room = (size_t)(comparison->repeats ? comparison->repeats : 1);
    double *base = malloc(2 * room * sizeof(*base)), *other = base ? base + room : NULL;
    int count = 0;
    for (int repeat = 0; base && comparison->baseline >= 0 && repeat < comparison->repeats; repeat++) {
        double one = *median_at(comparison, comparison->baseline, token, repeat);
        double two = *median_at(comparison, arm, token, repeat);
        if (!isnan(one) && !isnan(two)) {
            base[count] = one;
            other[count++] = two;
        }
    }
    if (base)
        paired = afdep_pair(base, other, count);
    free(base);
    return paired;
}

const char *afdep_paired_words(const afdep_paired_t *paired, char *text, size_t size)
{
    if (paired->repeats == 0)
        snprintf(text, size, "-");
    else if (paired->repeats == 1)
        snprintf(text, size, "%+.1f (one repeat)", paired->change_pct);
    else
        snprintf(text, size, "%+.1f (%+.1f .. %+.1f)%s%s", paired->change_pct, paired->change_low_pct,
                 paired->change_high_pct, paired->change_low_pct <= 0 && paired->change_high_pct >= 0 ? " " : "",
                 paired->change_low_pct <= 0 && paired->change_high_pct >= 0 ? afdep_paired_verdict(paired) : "");
    return text;
}
