/* SPDX-License-Identifier: Apache-2.0 */
/* One table of fields for the screen, one for an arm; each field is read by one small function. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/screen_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"

#define AFDEP_SCREEN_SCHEMA "afdep-screen/1"
#define AFDEP_SCREEN_TOKENS_MAX (1 << 24)
#define AFDEP_SCREEN_REPEATS_MAX 10000
#define AFDEP_SCREEN_DEADLINE_DEFAULT 600
#define AFDEP_SCREEN_DEADLINE_MAX (24 * 3600)
#define AFDEP_NAME_MAX 128

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";

typedef struct reading {
    afdep_screen_t *screen;
    afdep_screen_arm_t *arm; /* whose fields are read; NULL: the screen's */
    char place[96];          /* "repeats", "arms[1].env.PATH" */
    char *why;
    size_t why_size;
} reading_t;

typedef struct field {
    const char *name;
    int (*read)(reading_t *r, const cJSON *value);
    int required;
} field_t;

static int refuse(const reading_t *r, const cJSON *value, const char *rule)
{
    char text[64];
    return afdep_why(r->why, r->why_size, "%s: %s: %s %s", r->screen->file, r->place[0] ? r->place : "screen",
                     afdep_json_quote(value, text, sizeof(text)), rule);
}

/* The reading of what lies below: a field's name, or a list's index. */
static reading_t below(const reading_t *r, const char *name, int index)
{
    reading_t inner = *r;
    if (!name)
        snprintf(inner.place, sizeof(inner.place), "%.80s[%d]", r->place, index);
    else
        snprintf(inner.place, sizeof(inner.place), "%.60s%s%.32s", r->place, r->place[0] ? "." : "", name);
    return inner;
}

/* ---- Values ---------------------------------------------------------------------------------------------------- */

static int read_int(reading_t *r, const cJSON *value, int low, int high, int *number)
{
    char rule[64];
    if (!cJSON_IsNumber(value) || value->valuedouble != floor(value->valuedouble))
        return refuse(r, value, "is not an integer");
    if (value->valuedouble < low || value->valuedouble > high) {
        snprintf(rule, sizeof(rule), "is not in %d .. %d", low, high);
        return refuse(r, value, rule);
    }
    *number = (int)value->valuedouble;
    return 0;
}

static int read_text(reading_t *r, const cJSON *value, const char **text)
{
    if (!cJSON_IsString(value) || value->valuestring[0] == 0)
        return refuse(r, value, "is not a text");
    *text = value->valuestring;
    return 0;
}

/* A name that files and command lines take as it is. `more`: characters allowed after the first besides letters. */
static int read_name_of(reading_t *r, const cJSON *value, const char *first, const char *more, const char **name)
{
    if (read_text(r, value, name) < 0)
        return -1;
    size_t length = strlen(*name), good = 1;
    while (good < length && (strchr(letters, (*name)[good]) || strchr(more, (*name)[good])))
        good++;
    if (length > AFDEP_NAME_MAX || !(strchr(letters, (*name)[0]) || strchr(first, (*name)[0])) || good < length)
        return refuse(r, value, "is not a name (letters, digits, _ . - and, for arms, +)");
    return 0;
}

static int read_words(reading_t *r, const cJSON *value, const cJSON **words)
{
    int index = 0;
    if (!cJSON_IsArray(value))
        return refuse(r, value, "is not a list of words");
    for (const cJSON *word = value->child; word; word = word->next, index++) {
        reading_t inner = below(r, NULL, index);
        if (!cJSON_IsString(word))
            return refuse(&inner, word, "is not a text");
    }
    *words = value;
    return 0;
}

/* ---- Objects --------------------------------------------------------------------------------------------------- */

static int read_object(reading_t *r, const cJSON *object, const field_t *fields)
{
    unsigned seen = 0;
    if (!cJSON_IsObject(object))
        return refuse(r, object, "is not an object");
    for (const cJSON *value = object->child; value; value = value->next) {
        reading_t inner = below(r, value->string, 0);
        int at = 0;
        while (fields[at].name && strcmp(fields[at].name, value->string) != 0)
            at++;
        if (!fields[at].name)
            return refuse(&inner, value, "belongs to no known field");
        seen |= 1u << at;
        if (fields[at].read(&inner, value) < 0)
            return -1;
    }
    for (int at = 0; fields[at].name; at++)
        if (fields[at].required && !(seen & 1u << at)) {
            reading_t inner = below(r, fields[at].name, 0);
            return afdep_why(r->why, r->why_size, "%s: %s: is missing", r->screen->file, inner.place);
        }
    return 0;
}

/* ---- An arm's fields ------------------------------------------------------------------------------------------- */

static int read_arm_name(reading_t *r, const cJSON *value)
{
    return read_name_of(r, value, "", ".+-", &r->arm->name);
}

static int read_launcher(reading_t *r, const cJSON *value)
{
    return read_words(r, value, &r->arm->launcher);
}

static int read_flags(reading_t *r, const cJSON *value)
{
    return read_words(r, value, &r->arm->flags);
}

static int read_program(reading_t *r, const cJSON *value)
{
    return read_text(r, value, &r->arm->program);
}

static int read_env(reading_t *r, const cJSON *value)
{
    if (!cJSON_IsObject(value))
        return refuse(r, value, "is not an object");
    for (const cJSON *item = value->child; item; item = item->next) {
        reading_t inner = below(r, item->string, 0);
        const char *name = item->string;
        if (name[0] == 0 || strspn(name, letters) != strlen(name) || (name[0] >= '0' && name[0] <= '9'))
            return refuse(&inner, item, "belongs to no possible variable");
        if (!cJSON_IsString(item))
            return refuse(&inner, item, "is not a text");
    }
    r->arm->env = value;
    return 0;
}

static int read_native_tree(reading_t *r, const cJSON *value)
{
    if (read_text(r, value, &r->arm->native_tree) < 0)
        return -1;
    size_t length = strlen(r->arm->native_tree);
    if (length < 8 || length > 64 || strspn(r->arm->native_tree, "0123456789abcdef") != length)
        return refuse(r, value, "is not a tree id of 8 to 64 hexadecimal digits");
    return 0;
}

static int read_arm(reading_t *r, const cJSON *value)
{
    static const field_t fields[] = {
        { "name", read_arm_name, 1 },
        { "launcher", read_launcher, 1 },
        { "program", read_program, 1 },
        { "env", read_env, 1 },
        { "flags", read_flags, 1 },
        { "native_tree", read_native_tree, 0 },
        { 0 },
    };
    if (read_object(r, value, fields) < 0)
        return -1;
    for (const afdep_screen_arm_t *other = r->screen->arms; other < r->arm; other++)
        if (strcmp(other->name, r->arm->name) == 0) {
            reading_t inner = below(r, "name", 0);
            return refuse(&inner, cJSON_GetObjectItemCaseSensitive(value, "name"), "names an earlier arm too");
        }
    return 0;
}

/* ---- The screen's fields --------------------------------------------------------------------------------------- */

static int read_schema(reading_t *r, const cJSON *value)
{
    if (!cJSON_IsString(value) || strcmp(value->valuestring, AFDEP_SCREEN_SCHEMA) != 0)
        return refuse(r, value, "is not \"" AFDEP_SCREEN_SCHEMA "\"");
    return 0;
}

static int read_name(reading_t *r, const cJSON *value)
{
    return read_name_of(r, value, "-", ".-", &r->screen->name);
}

/* Beside the screen that names it, else from the working directory. */
static int read_scenario(reading_t *r, const cJSON *value)
{
    const char *name = NULL, *slash = strrchr(r->screen->file, '/');
    if (read_text(r, value, &name) < 0)
        return -1;
    int folder = name[0] == '/' || !slash ? 0 : (int)(slash - r->screen->file) + 1;
    size_t size = (size_t)folder + strlen(name) + 1;
    r->screen->scenario_file = malloc(size);
    if (!r->screen->scenario_file)
        return refuse(r, value, "does not fit into memory");
    snprintf(r->screen->scenario_file, size, "%.*s%s", folder, r->screen->file, name);
    if (access(r->screen->scenario_file, R_OK) != 0 && access(name, R_OK) == 0)
        snprintf(r->screen->scenario_file, size, "%s", name);
    return afdep_scenario_load(r->screen->scenario_file, &r->screen->scenario, r->why, r->why_size);
}

static int read_tokens(reading_t *r, const cJSON *value)
{
    afdep_screen_t *screen = r->screen;
    if (!cJSON_IsArray(value) || !value->child)
        return refuse(r, value, "is not a list of token counts");
    for (const cJSON *item = value->child; item; item = item->next) {
        reading_t inner = below(r, NULL, screen->token_counts);
        int tokens;
        if (screen->token_counts == AFDEP_SCENARIO_TOKENS_MAX)
            return afdep_why(r->why, r->why_size, "%s: %s: more than %d token counts", screen->file, r->place,
                             AFDEP_SCENARIO_TOKENS_MAX);
        if (read_int(&inner, item, 1, AFDEP_SCREEN_TOKENS_MAX, &tokens) < 0)
            return -1;
        for (int i = 0; i < screen->token_counts; i++)
            if (screen->tokens[i] == tokens)
                return refuse(&inner, item, "is there twice");
        screen->tokens[screen->token_counts++] = tokens;
    }
    return 0;
}

static int read_repeats(reading_t *r, const cJSON *value)
{
    return read_int(r, value, 1, AFDEP_SCREEN_REPEATS_MAX, &r->screen->repeats);
}

static int read_deadline(reading_t *r, const cJSON *value)
{
    return read_int(r, value, 1, AFDEP_SCREEN_DEADLINE_MAX, &r->screen->deadline_s);
}

static int read_clean(reading_t *r, const cJSON *value)
{
    if (!cJSON_IsBool(value))
        return refuse(r, value, "is not true or false");
    r->screen->clean = cJSON_IsTrue(value);
    return 0;
}

static int read_may_differ(reading_t *r, const cJSON *value)
{
    static const char *const allowed[] = { "model",   "dtype", "capacity", "num_sms", "expert_alignment",
                                           "routing", "graph", "seed" };
    int index = 0;
    if (read_words(r, value, &r->screen->may_differ) < 0)
        return -1;
    for (const cJSON *item = value->child; item; item = item->next, index++) {
        reading_t inner = below(r, NULL, index);
        size_t at = 0;
        while (at < sizeof(allowed) / sizeof(allowed[0]) && strcmp(allowed[at], item->valuestring) != 0)
            at++;
        if (at == sizeof(allowed) / sizeof(allowed[0]))
            return refuse(&inner, item, "is no field of a scenario that arms may differ in");
    }
    return 0;
}

/* Looked up once all arms are known. */
static int read_baseline(reading_t *r, const cJSON *value)
{
    const char *text;
    return read_text(r, value, &text);
}

static int read_description(reading_t *r, const cJSON *value)
{
    const char *text;
    return read_text(r, value, &text);
}

static int read_arms(reading_t *r, const cJSON *value)
{
    if (!cJSON_IsArray(value) || !value->child)
        return refuse(r, value, "is not a list of arms");
    for (const cJSON *item = value->child; item; item = item->next) {
        reading_t inner = below(r, NULL, r->screen->arm_count);
        if (r->screen->arm_count == AFDEP_SCREEN_ARMS_MAX)
            return afdep_why(r->why, r->why_size, "%s: %s: more than %d arms", r->screen->file, r->place,
                             AFDEP_SCREEN_ARMS_MAX);
        inner.arm = &r->screen->arms[r->screen->arm_count];
        if (read_arm(&inner, item) < 0)
            return -1;
        r->screen->arm_count++;
    }
    return 0;
}

static int find_baseline(reading_t *r)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(r->screen->json, "baseline");
    reading_t inner = below(r, "baseline", 0);
    for (int arm = 0; arm < r->screen->arm_count; arm++)
        if (strcmp(r->screen->arms[arm].name, value->valuestring) == 0) {
            r->screen->baseline = arm;
            return 0;
        }
    return refuse(&inner, value, "names no arm");
}

static int read_screen(reading_t *r)
{
    static const field_t fields[] = {
        { "schema", read_schema, 1 },     { "name", read_name, 1 },           { "description", read_description, 0 },
        { "scenario", read_scenario, 1 }, { "tokens", read_tokens, 1 },       { "repeats", read_repeats, 1 },
        { "clean", read_clean, 0 },       { "deadline_s", read_deadline, 0 }, { "may_differ", read_may_differ, 0 },
        { "baseline", read_baseline, 1 }, { "arms", read_arms, 1 },           { 0 },
    };
    /* The schema first: a file of a later version should be refused for that, not for the fields it adds. */
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(r->screen->json, "schema");
    reading_t inner = below(r, "schema", 0);
    if (schema && read_schema(&inner, schema) < 0)
        return -1;
    return read_object(r, r->screen->json, fields) < 0 ? -1 : find_baseline(r);
}

int afdep_screen_load(const char *file, afdep_screen_t *screen, char *why, size_t why_size)
{
    memset(screen, 0, sizeof(*screen));
    screen->json = afdep_json_read(file, AFDEP_JSON_CONFIG_BYTES, why, why_size);
    if (!screen->json)
        return -1;
    screen->deadline_s = AFDEP_SCREEN_DEADLINE_DEFAULT;
    screen->file = strdup(file);
    reading_t reading = { .screen = screen, .why = why, .why_size = why_size };
    int status = screen->file ? read_screen(&reading) : afdep_why(why, why_size, "%s: no memory", file);
    if (status < 0)
        afdep_screen_free(screen);
    return status;
}

void afdep_screen_free(afdep_screen_t *screen)
{
    afdep_scenario_free(&screen->scenario);
    free(screen->scenario_file);
    free(screen->file);
    cJSON_Delete(screen->json);
    memset(screen, 0, sizeof(*screen));
}
