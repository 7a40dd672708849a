/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault files, read strictly: one table for each object says which fields it has and how each is read; which of them a
 * kind of fault may have, and must have, is checked once all are read.
 */
#include "bench/lib/faults.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"

#define AFDEP_FAULT_SCHEMA "afdep-fault/1"
#define RANK_MAX 65535
#define CHANNEL_MAX 8191        /* of 1024 num_sms, eight each */
#define COUNT_MAX 9007199254740991.0 /* 2^53 - 1: the largest integer that every JSON reader keeps */
#define AMOUNT_US_MAX 3600000000.0   /* an hour */
#define BIT_MAX 134217727

/* What a reader needs: where the value belongs, and whom to blame. */
typedef struct reading {
    afdep_fault_file_t *out;
    afdep_fault_t *rule;
    unsigned given; /* of the rule: 1 << field_t */
    char path[64];  /* of the object being read, ending in a dot; empty at the top */
    char *why;
    size_t why_size;
} reading_t;

/* The fields that only some kinds have. */
typedef enum field { AMOUNT, OVERTAKE, BIT, DUTY, PEER, WHAT, CHANNEL, LANE } field_t;

typedef struct entry {
    const char *name;
    int (*read)(reading_t *r, const char *name, const cJSON *value);
    int required;
} entry_t;

static int refuse(const reading_t *r, const char *name, const cJSON *value, const char *rule)
{
    char text[64];
    return afdep_why(r->why, r->why_size, "%s: %s%s: %s %s", r->out->file, r->path, name,
                     afdep_json_quote(value, text, sizeof text), rule);
}

/* An integer exactly: not 1.5, not 1e99, not "1". */
static int read_number(const reading_t *r, const char *name, const cJSON *value, double min, double max, double *number)
{
    char rule[96];
    if (!cJSON_IsNumber(value) || value->valuedouble != floor(value->valuedouble))
        return refuse(r, name, value, "is not an integer");
    if (value->valuedouble < min || value->valuedouble > max) {
        snprintf(rule, sizeof rule, "is not in %.0f .. %.0f", min, max);
        return refuse(r, name, value, rule);
    }
    *number = value->valuedouble;
    return 0;
}

/* Stops at the first key that is unknown or seen before, so that hostile files cost no more than their length. */
static int read_object(reading_t *r, const char *name, const cJSON *object, const entry_t *entries)
{
    unsigned seen = 0;
    if (!cJSON_IsObject(object))
        return refuse(r, name, object, "is not an object");
    for (const cJSON *value = object->child; value; value = value->next) {
        const entry_t *entry = entries;
        while (entry->name && strcmp(entry->name, value->string) != 0)
            entry++;
        if (!entry->name)
            return refuse(r, value->string, value, "belongs to no known field");
        seen |= 1u << (entry - entries);
        if (entry->read(r, entry->name, value) < 0)
            return -1;
    }
    for (const entry_t *entry = entries; entry->name; entry++)
        if (entry->required && !(seen & 1u << (entry - entries)))
            return afdep_why(r->why, r->why_size, "%s: %s%s: is missing", r->out->file, r->path, entry->name);
    return 0;
}

/* The same one level down, with the object's name in front of its fields'. */
static int read_inner(reading_t *r, const char *name, const cJSON *object, const entry_t *entries)
{
    size_t length = strlen(r->path);
    if (!cJSON_IsObject(object))
        return refuse(r, name, object, "is not an object");
    snprintf(r->path + length, sizeof r->path - length, "%s.", name);
    int status = read_object(r, name, object, entries);
    r->path[length] = '\0';
    return status;
}

/* The place of `value` in a list of names that NULL or `count` ends, or -1 after a refusal that lists them. */
static int read_name_of(const reading_t *r, const char *name, const cJSON *value, const char *const *names, int count)
{
    char rule[256] = "is none of";
    for (int i = 0; i < count && names[i]; i++) {
        size_t used = strlen(rule);
        if (cJSON_IsString(value) && strcmp(value->valuestring, names[i]) == 0)
            return i;
        snprintf(rule + used, sizeof rule - used, "%s %s", i ? "," : "", names[i]);
    }
    return refuse(r, name, value, rule);
}

/* ---- Where ----------------------------------------------------------------------------------------------------- */

static int read_rank(reading_t *r, const char *name, const cJSON *value)
{
    double number;
    if (read_number(r, name, value, 0, RANK_MAX, &number) < 0)
        return -1;
    r->rule->rank = (int)number;
    return 0;
}

static int read_peer(reading_t *r, const char *name, const cJSON *value)
{
    double number;
    if (read_number(r, name, value, 0, RANK_MAX, &number) < 0)
        return -1;
    r->rule->peer = (int)number;
    r->given |= 1u << PEER;
    return 0;
}

static int read_channel(reading_t *r, const char *name, const cJSON *value)
{
    double number;
    if (r->given & 1u << LANE)
        return refuse(r, name, value, "stands beside a lane: one of the two is enough");
    if (read_number(r, name, value, 0, CHANNEL_MAX, &number) < 0)
        return -1;
    r->rule->lane = (int)number;
    r->given |= 1u << CHANNEL;
    return 0;
}

static int read_lane(reading_t *r, const char *name, const cJSON *value)
{
    static const char *const lanes[] = { "control", "domain", NULL };
    if (r->given & 1u << CHANNEL)
        return refuse(r, name, value, "stands beside a channel: one of the two is enough");
    int lane = read_name_of(r, name, value, lanes, 2);
    if (lane < 0)
        return -1;
    r->rule->lane = lane ? AFDEP_FAULT_LANE_DOMAIN : AFDEP_FAULT_LANE_CONTROL;
    r->given |= 1u << LANE;
    return 0;
}

static int read_what(reading_t *r, const char *name, const cJSON *value)
{
    const char *names[AFDEP_SIGNAL_KINDS + 2];
    memcpy(names, afdep_signal_kind_names, sizeof afdep_signal_kind_names);
    names[AFDEP_SIGNAL_KINDS] = "put";
    names[AFDEP_SIGNAL_KINDS + 1] = "signal";
    int what = read_name_of(r, name, value, names, AFDEP_SIGNAL_KINDS + 2);
    if (what < 0)
        return -1;
    r->rule->what = what == AFDEP_SIGNAL_KINDS       ? AFDEP_FAULT_PUT
                    : what == AFDEP_SIGNAL_KINDS + 1 ? AFDEP_FAULT_SIGNAL
                                                     : what;
    r->given |= 1u << WHAT;
    return 0;
}

static int read_duty(reading_t *r, const char *name, const cJSON *value)
{
    int duty = read_name_of(r, name, value, afdep_fault_duties, AFDEP_FAULTS_MAX);
    if (duty < 0)
        return -1;
    r->rule->duty = afdep_fault_duties[duty];
    r->given |= 1u << DUTY;
    return 0;
}

static int read_where(reading_t *r, const char *name, const cJSON *value)
{
    static const entry_t entries[] = {
        { "rank", read_rank, 0 }, { "peer", read_peer, 0 }, { "channel", read_channel, 0 },
        { "lane", read_lane, 0 }, { "what", read_what, 0 }, { "duty", read_duty, 0 },
        { 0 }
    };
    return read_inner(r, name, value, entries);
}

/* ---- When ------------------------------------------------------------------------------------------------------ */

static int read_count_into(const reading_t *r, const char *name, const cJSON *value, double min, uint64_t *count)
{
    double number;
    if (read_number(r, name, value, min, COUNT_MAX, &number) < 0)
        return -1;
    *count = (uint64_t)number;
    return 0;
}

static int read_exchange(reading_t *r, const char *name, const cJSON *value)
{
    return read_count_into(r, name, value, 1, &r->rule->exchange);
}

static int read_after(reading_t *r, const char *name, const cJSON *value)
{
    return read_count_into(r, name, value, 0, &r->rule->after);
}

static int read_count(reading_t *r, const char *name, const cJSON *value)
{
    return read_count_into(r, name, value, 1, &r->rule->count);
}

static int read_probability(reading_t *r, const char *name, const cJSON *value)
{
    if (!cJSON_IsNumber(value) || !(value->valuedouble > 0 && value->valuedouble <= 1))
        return refuse(r, name, value, "is not a number above 0 and up to 1");
    r->rule->probability = value->valuedouble;
    return 0;
}

static int read_when(reading_t *r, const char *name, const cJSON *value)
{
    static const entry_t entries[] = {
        { "exchange", read_exchange, 0 }, { "after", read_after, 0 }, { "count", read_count, 0 },
        { "probability", read_probability, 0 }, { 0 }
    };
    return read_inner(r, name, value, entries);
}

/* ---- How ------------------------------------------------------------------------------------------------------- */

static int read_kind(reading_t *r, const char *name, const cJSON *value)
{
    int kind = read_name_of(r, name, value, afdep_fault_kind_names, AFDEP_FAULT_KINDS);
    if (kind < 0)
        return -1;
    r->rule->kind = (afdep_fault_kind_t)kind;
    return 0;
}

static int read_amount(reading_t *r, const char *name, const cJSON *value)
{
    double number;
    if (read_number(r, name, value, 1, AMOUNT_US_MAX, &number) < 0)
        return -1;
    r->rule->amount_us = (uint32_t)number;
    r->given |= 1u << AMOUNT;
    return 0;
}

static int read_overtake(reading_t *r, const char *name, const cJSON *value)
{
    double number;
    if (read_number(r, name, value, 1, 1000000, &number) < 0)
        return -1;
    r->rule->overtake = (uint32_t)number;
    r->given |= 1u << OVERTAKE;
    return 0;
}

static int read_bit(reading_t *r, const char *name, const cJSON *value)
{
    double number;
    if (read_number(r, name, value, -BIT_MAX, BIT_MAX, &number) < 0)
        return -1;
    r->rule->bit = (int)number;
    r->given |= 1u << BIT;
    return 0;
}

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

/* Fields that a kind must not have, in the order of field_t. */
static int check_fields(const reading_t *r)
{
    static const char *const names[] = { "amount_us", "overtake", "bit", "where.duty", "where.peer", "where.what",
                                         "where.channel", "where.lane" };
    const afdep_fault_t *rule = r->rule;
    int steps = rule->kind == AFDEP_FAULT_SLOW_ACTOR || rule->duty != NULL;
    int needs_amount = rule->kind == AFDEP_FAULT_DELAY || rule->kind == AFDEP_FAULT_SLOW_ACTOR;
    unsigned may = 1u << CHANNEL;
    if (needs_amount || rule->kind == AFDEP_FAULT_REORDER)
        may |= 1u << AMOUNT;
    if (rule->kind == AFDEP_FAULT_REORDER)
        may |= 1u << OVERTAKE;
    if (rule->kind == AFDEP_FAULT_CORRUPT)
        may |= 1u << BIT;
    if (rule->kind == AFDEP_FAULT_SLOW_ACTOR || rule->kind == AFDEP_FAULT_KILL)
        may |= 1u << DUTY;
    if (!steps)
        may |= 1u << PEER | 1u << WHAT | 1u << LANE;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (r->given & ~may & 1u << i)
            return afdep_why(r->why, r->why_size, "%s: %s%s: a %s rule%s has no such field", r->out->file, r->path,
                             names[i], afdep_fault_kind_names[rule->kind],
                             steps && (may & 1u << DUTY) ? " for steps" : "");
    if (needs_amount && !(r->given & 1u << AMOUNT))
        return afdep_why(r->why, r->why_size, "%s: %samount_us: is missing", r->out->file, r->path);
    return 0;
}

static int read_rule(reading_t *r, const char *name, const cJSON *value)
{
    static const entry_t entries[] = {
        { "kind", read_kind, 1 },       { "where", read_where, 0 },       { "when", read_when, 0 },
        { "amount_us", read_amount, 0 }, { "overtake", read_overtake, 0 }, { "bit", read_bit, 0 },
        { 0 }
    };
    *r->rule = (afdep_fault_t)AFDEP_FAULT_INIT(AFDEP_FAULT_DELAY);
    r->given = 0;
    if (read_inner(r, name, value, entries) < 0)
        return -1;
    snprintf(r->path, sizeof r->path, "%s.", name);
    int status = check_fields(r);
    r->path[0] = '\0';
    if (r->rule->kind == AFDEP_FAULT_REORDER && !(r->given & 1u << AMOUNT))
        r->rule->amount_us = AFDEP_FAULT_REORDER_US;
    return status;
}

static int read_faults(reading_t *r, const char *name, const cJSON *value)
{
    if (!cJSON_IsArray(value) || !value->child)
        return refuse(r, name, value, "is not a list of faults");
    for (const cJSON *item = value->child; item; item = item->next) {
        char each[32];
        if (r->out->faults.count == AFDEP_FAULTS_MAX)
            return afdep_why(r->why, r->why_size, "%s: %s: more than %d faults", r->out->file, name, AFDEP_FAULTS_MAX);
        snprintf(each, sizeof each, "%s[%d]", name, r->out->faults.count);
        r->rule = &r->out->rules[r->out->faults.count];
        if (read_rule(r, each, item) < 0)
            return -1;
        r->out->faults.count++;
    }
    return 0;
}

/* ---- The file -------------------------------------------------------------------------------------------------- */

static int read_schema(reading_t *r, const char *name, const cJSON *value)
{
    if (!cJSON_IsString(value) || strcmp(value->valuestring, AFDEP_FAULT_SCHEMA) != 0)
        return refuse(r, name, value, "is not \"" AFDEP_FAULT_SCHEMA "\"");
    return 0;
}

static int read_file_name(reading_t *r, const char *name, const cJSON *value)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    const char *text = cJSON_IsString(value) ? value->valuestring : "";
    size_t length = strlen(text);
    if (length == 0 || length > 128 || text[0] == '.' || strspn(text, allowed) != length)
        return refuse(r, name, value, "is not a name of 1 to 128 letters, digits, '.', '_' and '-'");
    return 0;
}

static int read_seed(reading_t *r, const char *name, const cJSON *value)
{
    return read_count_into(r, name, value, 0, &r->out->faults.seed);
}

static int read_file(reading_t *r, const cJSON *json)
{
    static const entry_t entries[] = {
        { "schema", read_schema, 1 }, { "name", read_file_name, 0 }, { "seed", read_seed, 0 },
        { "faults", read_faults, 1 }, { 0 }
    };
    /* The schema first: a file of a later version should be refused for that, not for the fields it adds. */
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(json, "schema");
    if (schema && read_schema(r, "schema", schema) < 0)
        return -1;
    return read_object(r, "faults", json, entries);
}

int afdep_fault_file_load(const char *file, afdep_fault_file_t *faults, char *why, size_t why_size)
{
    memset(faults, 0, sizeof *faults);
    reading_t reading = { .out = faults, .why = why, .why_size = why_size };
    faults->faults.rules = faults->rules;
    faults->faults.seed = 1;
    faults->json = afdep_json_read(file, AFDEP_JSON_CONFIG_BYTES, why, why_size);
    if (!faults->json)
        return -1;
    faults->file = strdup(file);
    int status = faults->file ? read_file(&reading, faults->json) : afdep_why(why, why_size, "%s: no memory", file);
    if (status < 0)
        afdep_fault_file_free(faults);
    return status;
}

int afdep_fault_file_check(const afdep_fault_file_t *faults, int ranks, int channels, char *why, size_t why_size)
{
    for (int i = 0; i < faults->faults.count; i++) {
        const afdep_fault_t *rule = &faults->rules[i];
        if (rule->rank >= ranks || rule->peer >= ranks)
            return afdep_why(why, why_size, "%s: faults[%d].where.%s: %d: there are ranks 0 .. %d", faults->file, i,
                             rule->rank >= ranks ? "rank" : "peer", rule->rank >= ranks ? rule->rank : rule->peer,
                             ranks - 1);
        if (rule->lane >= channels)
            return afdep_why(why, why_size, "%s: faults[%d].where.channel: %d: there are channels 0 .. %d",
                             faults->file, i, rule->lane, channels - 1);
    }
    return 0;
}

void afdep_fault_file_free(afdep_fault_file_t *faults)
{
    cJSON_Delete(faults->json);
    free(faults->file);
    memset(faults, 0, sizeof *faults);
}
