/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the model of a NIC. */
#include "bench/lib/emulation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"

#define NIC_SCHEMA "afdep-nic/1"

/* In nanoseconds in the file, where people write them; whole picoseconds in the settings. */
static const struct {
    const char *name, *variable;
    double most_ns;
} fields[] = {
    { "send_ns", "AFDEP_NIC_SEND_PS", 1e6 },     { "receive_ns", "AFDEP_NIC_RECEIVE_PS", 1e6 },
    { "signal_ns", "AFDEP_NIC_SIGNAL_PS", 1e6 }, { "byte_ns", "AFDEP_NIC_BYTE_PS", 1e3 },
    { "latency_ns", "AFDEP_NIC_LATENCY_PS", 1e6 },
};

#define FIELDS (sizeof(fields) / sizeof(fields[0]))

static int refuse(const char *file, const char *name, const cJSON *value, const char *rule, char *why, size_t why_size)
{
    char text[64];
    return afdep_why(why, why_size, "%s: %s: %s %s", file, name, afdep_json_quote(value, text, sizeof(text)), rule);
}

/* The place of a key among the fields, FIELDS for schema, name and description, -1 for others. */
static int place_of(const char *key)
{
    for (size_t i = 0; i < FIELDS; i++)
        if (strcmp(key, fields[i].name) == 0)
            return (int)i;
    return strcmp(key, "schema") == 0 || strcmp(key, "name") == 0 || strcmp(key, "description") == 0 ? (int)FIELDS : -1;
}

static int check_value(const char *file, const cJSON *value, int place, char *why, size_t why_size)
{
    char rule[64];
    if (place == (int)FIELDS) {
        if (!cJSON_IsString(value))
            return refuse(file, value->string, value, "is not a string", why, why_size);
        if (strcmp(value->string, "schema") == 0 && strcmp(value->valuestring, NIC_SCHEMA) != 0)
            return refuse(file, "schema", value, "is not \"" NIC_SCHEMA "\"", why, why_size);
        return 0;
    }
    snprintf(rule, sizeof(rule), "is not a number in 0 .. %.0f", fields[place].most_ns);
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 0 && value->valuedouble <= fields[place].most_ns))
        return refuse(file, value->string, value, rule, why, why_size);
    return 0;
}

static int check_document(const char *file, const cJSON *json, char *why, size_t why_size)
{
    int seen[FIELDS] = { 0 };
    if (!cJSON_IsObject(json))
        return afdep_why(why, why_size, "%s: is not an object", file);
    for (const cJSON *value = json->child; value; value = value->next) {
        int place = place_of(value->string);
        if (place < 0)
            return refuse(file, value->string, value, "belongs to no known field", why, why_size);
        if (place < (int)FIELDS)
            seen[place] = 1;
        if (check_value(file, value, place, why, why_size) != 0)
            return -1;
    }
    if (!cJSON_GetObjectItemCaseSensitive(json, "schema"))
        return afdep_why(why, why_size, "%s: schema: is missing", file);
    for (size_t i = 0; i < FIELDS; i++)
        if (!seen[i])
            return afdep_why(why, why_size, "%s: %s: is missing", file, fields[i].name);
    return 0;
}

cJSON *afdep_emulation_load(const char *file, char *why, size_t why_size)
{
    cJSON *json = afdep_json_read(file, AFDEP_JSON_CONFIG_BYTES, why, why_size);
    if (json && check_document(file, json, why, why_size) != 0) {
        cJSON_Delete(json);
        return NULL;
    }
    for (size_t i = 0; json && i < FIELDS; i++) {
        char text[32];
        double ns = cJSON_GetObjectItemCaseSensitive(json, fields[i].name)->valuedouble;
        snprintf(text, sizeof(text), "%.0f", round(ns * 1000));
        setenv(fields[i].variable, text, 1);
    }
    return json;
}

const char *afdep_emulation_set(void)
{
    for (size_t i = 0; i < FIELDS; i++) {
        const char *value = getenv(fields[i].variable);
        if (value && value[0] && strcmp(value, "0") != 0)
            return fields[i].variable;
    }
    return NULL;
}
