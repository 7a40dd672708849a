/* SPDX-License-Identifier: Apache-2.0 */
/* Files into sets. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/report_set.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/record.h"
#include "bench/lib/why.h"

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static const char *text_of(const cJSON *value, const char *fallback)
{
    return cJSON_IsString(value) && value->valuestring[0] ? value->valuestring : fallback;
}

static afdep_report_set_t *new_set(afdep_report_t *report, cJSON *json, const char *file, char *why, size_t why_size)
{
    if (report->count == AFDEP_REPORT_SETS_MAX) {
        afdep_why(why, why_size, "%s: more than %d tables", file, AFDEP_REPORT_SETS_MAX);
        cJSON_Delete(json);
        return NULL;
    }
    afdep_report_set_t *set = &report->sets[report->count++];
    memset(set, 0, sizeof(*set));
    set->json = json;
    set->records = get(json, "records");
    return set;
}

/* ---- A screen's results ---------------------------------------------------------------------------------------- */

static int check_records(const afdep_report_set_t *set, const char *file, char *why, size_t why_size)
{
    int index = 0;
    const cJSON *may_differ = get(set->screen, "may_differ"), *first = set->records->child;
    for (const cJSON *record = first; record; record = record->next, index++) {
        char name[512], differs[512];
        snprintf(name, sizeof(name), "%.400s: records[%d]", file, index);
        if (afdep_benchmark_check(record, name, why, why_size) < 0)
            return -1;
        if (afdep_benchmarks_agree(record, first, may_differ, differs, sizeof(differs)) < 0)
            return afdep_why(why, why_size, "%s: cannot stand in one table with records[0]: %s", name, differs);
    }
    return 0;
}

static int add_results(afdep_report_t *report, cJSON *json, const char *file, char *why, size_t why_size)
{
    afdep_report_set_t *set = new_set(report, json, file, why, why_size);
    if (!set)
        return -1;
    if (!cJSON_IsArray(set->records))
        return afdep_why(why, why_size, "%s: records: is not a list", file);
    set->screen = cJSON_IsObject(get(json, "screen")) ? get(json, "screen") : NULL;
    set->title = text_of(get(set->screen, "name"), text_of(get(json, "screen"), "records"));
    if (check_records(set, file, why, why_size) < 0)
        return -1;
    const cJSON *pairs = get(json, "pairs");
    const char *paired = text_of(get(pairs ? pairs->child : NULL, "baseline"), NULL);
    return afdep_comparison_make(set->records, text_of(get(set->screen, "baseline"), paired), &set->comparison, why,
                                 why_size);
}

/* ---- Single records -------------------------------------------------------------------------------------------- */

static afdep_report_set_t *set_for(afdep_report_t *report, const cJSON *record)
{
    char differs[256];
    for (int i = 0; i < report->count; i++)
        if (get(report->sets[i].json, "single") &&
            afdep_benchmarks_agree(record, report->sets[i].records->child, NULL, differs, sizeof(differs)) == 0)
            return &report->sets[i];
    return NULL;
}

/* Compared once all are there. */
static int add_record(afdep_report_t *report, cJSON *record, const char *file, char *why, size_t why_size)
{
    if (afdep_benchmark_check(record, file, why, why_size) < 0) {
        cJSON_Delete(record);
        return -1;
    }
    afdep_report_set_t *set = set_for(report, record);
    if (!set) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddTrueToObject(json, "single");
        cJSON_AddArrayToObject(json, "records");
        set = new_set(report, json, file, why, why_size);
        if (set)
            set->title = text_of(get(get(record, "scenario"), "name"), "records");
    }
    if (!set || !cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(set->json, "records"), record)) {
        cJSON_Delete(record);
        return -1;
    }
    return 0;
}

/* ---- All ------------------------------------------------------------------------------------------------------- */

static int load_file(afdep_report_t *report, const char *file, char *why, size_t why_size)
{
    char quoted[64];
    cJSON *json = afdep_record_read(file, why, why_size);
    if (!json)
        return -1;
    const cJSON *schema = get(json, "schema");
    if (strcmp(text_of(schema, ""), "afdep-benchmarks/1") == 0)
        return add_results(report, json, file, why, why_size);
    if (strcmp(text_of(schema, ""), "afdep-benchmark/1") == 0)
        return add_record(report, json, file, why, why_size);
    afdep_why(why, why_size, "%s: schema: %s is neither \"afdep-benchmarks/1\" nor \"afdep-benchmark/1\"", file,
              schema ? afdep_json_quote(schema, quoted, sizeof(quoted)) : "nothing");
    cJSON_Delete(json);
    return -1;
}

/* The title as a part of file names, a number behind it where an earlier set has the same. */
static void name_files(afdep_report_t *report)
{
    for (int i = 0; i < report->count && report->count > 1; i++) {
        afdep_report_set_t *set = &report->sets[i];
        char base[128];
        int same = 0;
        snprintf(base, sizeof(base), "%s", set->title);
        for (char *c = base; *c; c++)
            if (!isalnum((unsigned char)*c) && *c != '.' && *c != '_' && *c != '+')
                *c = '-';
        for (int j = 0; j < i; j++)
            same += strcmp(report->sets[j].title, set->title) == 0;
        if (same)
            snprintf(set->prefix, sizeof(set->prefix), "%s-%d-", base, same + 1);
        else
            snprintf(set->prefix, sizeof(set->prefix), "%s-", base);
        if (set->prefix[0] == '.')
            set->prefix[0] = '_';
    }
}

int afdep_report_load(afdep_report_t *report, const char *const *files, int count, char *why, size_t why_size)
{
    for (int i = 0; i < count; i++)
        if (load_file(report, files[i], why, why_size) < 0)
            return -1;
    for (int i = 0; i < report->count; i++)
        if (get(report->sets[i].json, "single") &&
            afdep_comparison_make(report->sets[i].records, NULL, &report->sets[i].comparison, why, why_size) < 0)
            return -1;
    name_files(report);
    return 0;
}

void afdep_report_free(afdep_report_t *report)
{
    for (int i = 0; i < report->count; i++) {
        afdep_comparison_free(&report->sets[i].comparison);
        cJSON_Delete(report->sets[i].json);
    }
    report->count = 0;
}
