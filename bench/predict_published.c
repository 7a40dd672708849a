/* SPDX-License-Identifier: Apache-2.0 */
/* Published tables and records, read; their cells predicted; what the errors come to. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_published.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/comparison.h"
#include "bench/lib/json.h"
#include "bench/lib/stats.h"
#include "bench/lib/why.h"

#define SCHEMA "afdep-published/1"
#define GAIN 0.03

static const cJSON *field_of(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* ---- Arms by their names ------------------------------------------------------------------------------------- */

typedef struct known_arm {
    const char *name;
    int stagger, sparse_dispatch, sparse_combine;
    const char *not_modelled;
} known_arm_t;

static const known_arm_t known_arms[] = {
    { "dense", 0, 0, 0, NULL },
    { "1.0.0", 0, 0, 0, NULL },
    { "sparse", 1, 1, 1, NULL },
    { "sparse_on", 1, 1, 1, NULL },
    { "m2n", 0, 0, 0, "the symmetric baseline has no cost model" },
    { "sparse_unsafe_witness", 0, 0, 0, "an unsafe witness is none of the library's protocols" },
    { "sparse_stagger_le48", 0, 0, 0, "a bounded stagger is none of the library's protocols" },
};

/* "stagger+sparse_dispatch": toggles by name. 0 when one is not known. */
static int parse_toggles(afdep_published_arm_t *arm)
{
    const char *const names[] = { "stagger", "sparse_dispatch", "sparse_combine" };
    int *const toggles[] = { &arm->stagger, &arm->sparse_dispatch, &arm->sparse_combine };
    for (const char *at = arm->name; *at;) {
        size_t length = strcspn(at, "+");
        int found = 0;
        for (int i = 0; i < 3; i++)
            if (strlen(names[i]) == length && strncmp(at, names[i], length) == 0)
                found = *toggles[i] = 1;
        if (!found)
            return 0;
        at += length + (at[length] == '+');
    }
    return 1;
}

static void resolve_arm(afdep_published_arm_t *arm)
{
    for (size_t i = 0; i < sizeof(known_arms) / sizeof(known_arms[0]); i++) {
        const known_arm_t *known = &known_arms[i];
        if (strcmp(arm->name, known->name) != 0)
            continue;
        arm->stagger = known->stagger;
        arm->sparse_dispatch = known->sparse_dispatch;
        arm->sparse_combine = known->sparse_combine;
        arm->not_modelled = known->not_modelled;
        return;
    }
    if (!parse_toggles(arm))
        arm->not_modelled = "its name says no protocol that is known";
}

/* ---- Published tables ---------------------------------------------------------------------------------------- */

/* Strict, as all files are that people write: a misspelt field says nothing otherwise. */
static int check_fields(const char *place, const cJSON *object, const char *const *known, char *why, size_t why_size)
{
    const cJSON *field;
    cJSON_ArrayForEach(field, object)
    {
        char text[64];
        int i = 0;
        while (known[i] && strcmp(field->string, known[i]) != 0)
            i++;
        if (!known[i])
            return afdep_why(why, why_size, "%s: %.64s: %s is not a field of " SCHEMA, place, field->string,
                             afdep_json_quote(field, text, sizeof(text)));
    }
    return 0;
}

/* The scenario object that a screen of the tables amounts to. */
static cJSON *scenario_of(const cJSON *file, const cJSON *screen)
{
    cJSON *s = cJSON_CreateObject(), *model = cJSON_Duplicate(field_of(file, "model"), 1);
    int done = s && model && cJSON_AddStringToObject(s, "schema", "afdep-scenario/1") &&
               cJSON_AddItemToObject(s, "name", cJSON_Duplicate(field_of(screen, "id"), 1)) &&
               cJSON_AddItemToObject(s, "topology", cJSON_Duplicate(field_of(screen, "topology"), 1)) &&
               cJSON_AddItemToObject(model, "hidden", cJSON_Duplicate(field_of(screen, "hidden"), 1));
    if (!done || !cJSON_AddItemToObject(s, "model", model)) {
        cJSON_Delete(model);
        cJSON_Delete(s);
        return NULL;
    }
    cJSON_AddItemToObject(s, "dtype", cJSON_Duplicate(field_of(screen, "dtype"), 1));
    cJSON_AddItemToObject(s, "capacity", cJSON_Duplicate(field_of(file, "capacity"), 1));
    cJSON_AddItemToObject(s, "num_sms", cJSON_Duplicate(field_of(file, "num_sms"), 1));
    cJSON_AddItemToObject(s, "tokens", cJSON_Duplicate(field_of(screen, "tokens"), 1));
    cJSON_AddTrueToObject(s, "graph");
    return s;
}

/* Arms stand in tables and lists: what cannot be told apart there, or moves a terminal's cursor, is no name. */
static int is_name(const char *text, size_t room)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] <= 0x20 || text[i] == 0x7f)
            return 0;
    return length > 0 && length < room;
}

static int read_arm(const char *file, const cJSON *times, const afdep_published_screen_t *screen,
                    afdep_published_arm_t *arm, char *why, size_t why_size)
{
    int i = 0;
    const cJSON *time;
    if (!is_name(times->string, sizeof(arm->name)))
        return afdep_why(why, why_size,
                         "%s: screen %s, arms: \"%.64s\" is not a name of 1 to %zu letters without spaces", file,
                         screen->id, times->string, sizeof(arm->name) - 1);
    snprintf(arm->name, sizeof(arm->name), "%s", times->string);
    if (!cJSON_IsArray(times) || cJSON_GetArraySize(times) != screen->scenario.token_counts)
        return afdep_why(why, why_size, "%s: screen %s, arm %s: is not a list of %d times", file, screen->id, arm->name,
                         screen->scenario.token_counts);
    cJSON_ArrayForEach(time, times)
    {
        if (!cJSON_IsNumber(time) || !(time->valuedouble > 0) || isinf(time->valuedouble))
            return afdep_why(why, why_size, "%s: screen %s, arm %s: time %d is not a finite number above 0", file,
                             screen->id, arm->name, i + 1);
        arm->us[i++] = time->valuedouble;
    }
    resolve_arm(arm);
    return 0;
}

static int read_screen(const char *file, const cJSON *all, const cJSON *json, afdep_published_screen_t *screen,
                       char *why, size_t why_size)
{
    static const char *const known[] = { "id", "topology", "dtype", "hidden", "tokens", "arms", "note", NULL };
    const cJSON *id = field_of(json, "id"), *arms = field_of(json, "arms"), *arm;
    char place[512];
    if (!cJSON_IsString(id) || !cJSON_IsObject(arms))
        return afdep_why(why, why_size, "%s: screens: one has no id, or no arms", file);
    if (!is_name(id->valuestring, sizeof(screen->id)))
        return afdep_why(why, why_size, "%s: screens: \"%.64s\" is not a name of 1 to %zu letters without spaces", file,
                         id->valuestring, sizeof(screen->id) - 1);
    snprintf(screen->id, sizeof(screen->id), "%s", id->valuestring);
    snprintf(place, sizeof(place), "%s: screen %s", file, screen->id);
    if (check_fields(place, json, known, why, why_size) != 0)
        return -1;
    for (int i = 0; i < 5; i++) /* all that a scenario is made of */
        if (!field_of(json, known[i]))
            return afdep_why(why, why_size, "%s: %s: is missing", place, known[i]);
    if (field_of(json, "note") && !cJSON_IsString(field_of(json, "note")))
        return afdep_why(why, why_size, "%s: note: is not a string", place);
    cJSON *scenario = scenario_of(all, json);
    int status = scenario ? afdep_scenario_read(scenario, place, &screen->scenario, why, why_size)
                          : afdep_why(why, why_size, "%s: is no scenario", place);
    cJSON_Delete(scenario);
    cJSON_ArrayForEach(arm, arms)
    {
        if (status == 0 && screen->arms == AFDEP_PUBLISHED_ARMS_MAX)
            status = afdep_why(why, why_size, "%s: more than %d arms", place, AFDEP_PUBLISHED_ARMS_MAX);
        if (status == 0)
            status = read_arm(file, arm, screen, &screen->arm[screen->arms++], why, why_size);
    }
    return status;
}

static int check_head(const char *file, const cJSON *json, char *why, size_t why_size)
{
    static const char *const known[] = { "schema", "name",    "unit",    "measure", "model",
                                         "capacity", "num_sms", "screens", NULL };
    static const char *const texts[] = { "schema", "name", "unit", "measure" };
    const cJSON *schema = field_of(json, "schema"), *unit = field_of(json, "unit"), *model = field_of(json, "model");
    char text[64];
    if (!cJSON_IsString(schema) || strcmp(schema->valuestring, SCHEMA) != 0)
        return afdep_why(why, why_size, "%s: schema: %s is not \"" SCHEMA "\"", file,
                         schema ? afdep_json_quote(schema, text, sizeof(text)) : "nothing");
    if (check_fields(file, json, known, why, why_size) != 0)
        return -1;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (field_of(json, texts[i]) && !cJSON_IsString(field_of(json, texts[i])))
            return afdep_why(why, why_size, "%s: %s: %s is not a string", file, texts[i],
                             afdep_json_quote(field_of(json, texts[i]), text, sizeof(text)));
    if (unit && strcmp(unit->valuestring, "us") != 0)
        return afdep_why(why, why_size, "%s: unit: \"%.64s\" is not \"us\"", file, unit->valuestring);
    if (!cJSON_IsObject(model))
        return afdep_why(why, why_size, "%s: model: %s is not an object", file,
                         model ? afdep_json_quote(model, text, sizeof(text)) : "nothing");
    return 0;
}

static int read_tables(const char *file, const cJSON *json, afdep_published_t *out, char *why, size_t why_size)
{
    const cJSON *screens = field_of(json, "screens"), *screen;
    if (check_head(file, json, why, why_size) != 0)
        return -1;
    out->screens = calloc((size_t)cJSON_GetArraySize(screens) + 1, sizeof(*out->screens));
    if (!out->screens)
        return afdep_why(why, why_size, "%s: no memory", file);
    cJSON_ArrayForEach(screen, screens)
    {
        afdep_published_screen_t *one = &out->screens[out->count];
        if (read_screen(file, json, screen, &out->screens[out->count++], why, why_size) != 0)
            return -1;
        /* --hold-out and a cost model's fitted_on tell screens by their names. */
        if (afdep_published_find(out, one->id, strlen(one->id)) != one)
            return afdep_why(why, why_size, "%s: screens: %s is given a second time", file, one->id);
    }
    return out->count > 0 ? 0 : afdep_why(why, why_size, "%s: screens: is empty", file);
}

/* ---- Records ------------------------------------------------------------------------------------------------- */

static int is_on(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(field_of(object, name));
}

/* 1 where the arm's protocol has a model, 0 where not, -1 with a line where the record does not say what was run: a
   toggle that is no boolean is not one that was off. */
static int is_modelled(const char *name, const cJSON *arm, char *why, size_t why_size)
{
    static const char *const said[] = { "stagger", "sparse_dispatch", "sparse_combine", "graph" };
    const cJSON *protocol = field_of(arm, "protocol");
    char text[64];
    if (!cJSON_IsString(protocol))
        return afdep_why(why, why_size, "%s: arm.protocol: %s is not a string", name,
                         protocol ? afdep_json_quote(protocol, text, sizeof(text)) : "nothing");
    if (strcmp(protocol->valuestring, "sparse") != 0 && strcmp(protocol->valuestring, "dense") != 0)
        return 0;
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        const cJSON *value = field_of(arm, said[i]);
        if (!cJSON_IsBool(value))
            return afdep_why(why, why_size, "%s: arm.%s: %s is not true or false", name, said[i],
                             value ? afdep_json_quote(value, text, sizeof(text)) : "nothing");
    }
    return 1;
}

/* One record becomes a screen of one arm. */
static int read_record(const char *file, const cJSON *record, int number, afdep_published_screen_t *screen, char *why,
                       size_t why_size)
{
    char name[512];
    snprintf(name, sizeof(name), "%s: record %d", file, number);
    if (afdep_benchmark_check(record, name, why, why_size) != 0 ||
        afdep_scenario_read(field_of(record, "scenario"), name, &screen->scenario, why, why_size) != 0)
        return -1;
    const cJSON *arm = field_of(record, "arm");
    int modelled = is_modelled(name, arm, why, why_size);
    if (modelled < 0)
        return -1;
    afdep_published_arm_t *out = &screen->arm[screen->arms++];
    snprintf(screen->id, sizeof(screen->id), "%.96s#%d", screen->scenario.name, number);
    (void)afdep_why(out->name, sizeof(out->name), "%s", afdep_benchmark_arm(record)); /* on one line of a table */
    out->stagger = is_on(arm, "stagger");
    out->sparse_dispatch = is_on(arm, "sparse_dispatch");
    out->sparse_combine = is_on(arm, "sparse_combine");
    if (!modelled)
        out->not_modelled = "the protocol of its record is not modelled";
    screen->scenario.graph = is_on(arm, "graph");
    for (int i = 0; i < screen->scenario.token_counts; i++)
        out->us[i] = afdep_cell_number(afdep_benchmark_cell(record, screen->scenario.tokens[i]), "median_us", NULL);
    if (screen->scenario.routing.kind != AFDEP_ROUTING_TRACE)
        return 0;
    screen->trace = afdep_trace_load(screen->scenario.routing.trace_file, &screen->scenario, why, why_size);
    return screen->trace ? 0 : -1;
}

static int read_records(const char *file, const cJSON *json, afdep_published_t *out, char *why, size_t why_size)
{
    const cJSON *records = field_of(json, "records"), *record, *schema = field_of(json, "schema");
    int count = records ? cJSON_GetArraySize(records) : 1;
    if (records && strcmp(schema->valuestring, "afdep-benchmarks/1") != 0)
        return afdep_why(why, why_size, "%s: schema: \"%.64s\" is not \"afdep-benchmarks/1\"", file,
                         schema->valuestring);
    if (records && !cJSON_IsArray(records))
        return afdep_why(why, why_size, "%s: records: is not a list", file);
    out->screens = calloc((size_t)count + 1, sizeof(*out->screens));
    if (!out->screens)
        return afdep_why(why, why_size, "%s: no memory", file);
    if (!records)
        return read_record(file, json, 1, &out->screens[out->count++], why, why_size);
    cJSON_ArrayForEach(record, records)
    {
        int number = out->count + 1;
        if (read_record(file, record, number, &out->screens[out->count++], why, why_size) != 0)
            return -1;
    }
    return out->count > 0 ? 0 : afdep_why(why, why_size, "%s: records: is empty", file);
}

int afdep_published_load(const char *file, afdep_published_t *published, char *why, size_t why_size)
{
    memset(published, 0, sizeof(*published));
    cJSON *json = afdep_json_read(file, AFDEP_JSON_RECORD_BYTES, why, why_size);
    if (!json)
        return -1;
    const cJSON *schema = field_of(json, "schema");
    int status;
    if (cJSON_IsArray(field_of(json, "screens")))
        status = read_tables(file, json, published, why, why_size);
    else if (cJSON_IsString(schema) && strncmp(schema->valuestring, "afdep-benchmark", 15) == 0)
        status = read_records(file, json, published, why, why_size);
    else
        status = afdep_why(why, why_size, "%s: holds neither screens nor records of the bench", file);
    cJSON_Delete(json);
    return status;
}

void afdep_published_free(afdep_published_t *published)
{
    for (int i = 0; i < published->count; i++) {
        if (published->screens[i].trace)
            afdep_trace_free(published->screens[i].trace);
        afdep_scenario_free(&published->screens[i].scenario);
    }
    free(published->screens);
    memset(published, 0, sizeof(*published));
}

afdep_published_screen_t *afdep_published_find(afdep_published_t *published, const char *id, size_t length)
{
    for (int i = 0; i < published->count; i++)
        if (strlen(published->screens[i].id) == length && strncmp(published->screens[i].id, id, length) == 0)
            return &published->screens[i];
    return NULL;
}

/* ---- Predicting ---------------------------------------------------------------------------------------------- */

static int predict_cell(afdep_published_screen_t *screen, afdep_published_arm_t *arm, int token,
                        const afdep_predict_how_t *how, char *why, size_t why_size)
{
    afdep_predict_case_t predict = { .scenario = &screen->scenario,
                                     .cost = how->cost,
                                     .trace = screen->trace,
                                     .stagger = arm->stagger,
                                     .sparse_dispatch = arm->sparse_dispatch,
                                     .sparse_combine = arm->sparse_combine,
                                     .witness = how->witness,
                                     .tokens = screen->scenario.tokens[token],
                                     .free_running = how->free_running,
                                     .warmup = how->warmup,
                                     .iterations = how->iterations,
                                     .seed = screen->scenario.seed };
    afdep_prediction_t prediction;
    if (afdep_predict(&predict, &prediction, why, why_size) != 0)
        return -1;
    arm->predicted[token] = afdep_median(prediction.samples_us, prediction.samples);
    afdep_prediction_free(&prediction);
    return 0;
}

/* An earlier arm of the same protocol: the toggles say nothing in one domain. */
static const afdep_published_arm_t *same_arm(const afdep_published_screen_t *screen, int arm, int token)
{
    const afdep_published_arm_t *b = &screen->arm[arm];
    int one_domain = screen->scenario.ranks_per_domain == afdep_scenario_ranks(&screen->scenario);
    for (int i = 0; i < arm; i++) {
        const afdep_published_arm_t *a = &screen->arm[i];
        int same = a->stagger == b->stagger && a->sparse_dispatch == b->sparse_dispatch &&
                   a->sparse_combine == b->sparse_combine;
        if ((same || one_domain) && !isnan(a->predicted[token]))
            return a;
    }
    return NULL;
}

int afdep_published_predict(afdep_published_screen_t *screen, const afdep_predict_how_t *how, char *why,
                            size_t why_size)
{
    for (int i = 0; i < screen->arms; i++)
        for (int t = 0; t < screen->scenario.token_counts; t++) {
            afdep_published_arm_t *arm = &screen->arm[i];
            arm->predicted[t] = NAN;
            if (arm->not_modelled || isnan(arm->us[t]))
                continue;
            const afdep_published_arm_t *same = same_arm(screen, i, t);
            if (same)
                arm->predicted[t] = same->predicted[t];
            else if (predict_cell(screen, arm, t, how, why, why_size) != 0)
                return -1;
        }
    return 0;
}

/* ---- Judging ------------------------------------------------------------------------------------------------- */

int afdep_published_differ(const afdep_published_arm_t *a, const afdep_published_arm_t *b, int token, int *wrong)
{
    double change = b->us[token] / a->us[token] - 1, predicted = b->predicted[token] - a->predicted[token];
    *wrong = 0;
    if (isnan(predicted) || !(fabs(change) > GAIN))
        return 0;
    *wrong = (change > 0) != (predicted > 0);
    return 1;
}

static void judge_gains(const afdep_published_screen_t *screen, int token, afdep_published_error_t *error)
{
    for (int a = 0; a < screen->arms; a++)
        for (int b = a + 1; b < screen->arms; b++) {
            int wrong;
            error->gains += afdep_published_differ(&screen->arm[a], &screen->arm[b], token, &wrong);
            error->gains_wrong += wrong;
        }
}

static int cells_of(const afdep_published_t *published)
{
    int cells = 0;
    for (int i = 0; i < published->count; i++)
        cells += published->screens[i].arms * published->screens[i].scenario.token_counts;
    return cells;
}

int afdep_published_judge(const afdep_published_t *published, int fitted, afdep_published_error_t *error)
{
    double *errors = malloc(((size_t)cells_of(published) + 1) * sizeof(*errors));
    memset(error, 0, sizeof(*error));
    if (!errors)
        return -1;
    for (int i = 0; i < published->count; i++) {
        const afdep_published_screen_t *screen = &published->screens[i];
        for (int t = 0; screen->fitted == fitted && t < screen->scenario.token_counts; t++) {
            judge_gains(screen, t, error);
            for (int a = 0; a < screen->arms; a++) {
                double off = fabs(screen->arm[a].predicted[t] / screen->arm[a].us[t] - 1);
                if (isnan(off))
                    continue;
                errors[error->cells++] = off;
                if (off < error->largest)
                    continue;
                error->largest = off;
                snprintf(error->worst, sizeof(error->worst), "%s, %s at %d tokens", screen->id, screen->arm[a].name,
                         screen->scenario.tokens[t]);
            }
        }
    }
    error->median = error->cells ? afdep_median(errors, error->cells) : 0;
    free(errors);
    return 0;
}
