/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario files, read strictly: one table says which fields an object has and how each is read, a second which range
 * each integer has; the rules that tie fields together stand in afdep_scenario_check(), which also judges scenarios
 * that a command line has changed.
 */
#include "bench/lib/scenario.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"

#define AFDEP_SCENARIO_SCHEMA "afdep-scenario/1"
#define AFDEP_RANKS_MAX 65536
#define AFDEP_CAPACITY_MAX (1 << 24)
#define AFDEP_TOP_K_MAX 32
#define AFDEP_NAME_MAX 128
#define AFDEP_ZIPF_MAX 100.0
#define AFDEP_SEED_MAX 9007199254740991.0 /* 2^53 - 1: the largest integer that every JSON reader keeps */

/* ---- Ranges of the integer fields ------------------------------------------------------------------------------ */

typedef struct afdep_range {
    const char *name;
    size_t offset;
    int min, max;
} afdep_range_t;

#define RANGE(field, min, max) { #field, offsetof(afdep_scenario_t, field), min, max }

/* The library's own ranges, so that a file is blamed before a buffer is opened. */
static const afdep_range_t ranges[] = {
    RANGE(ffn_ranks, 0, AFDEP_RANKS_MAX),
    RANGE(attention_ranks, 1, AFDEP_RANKS_MAX),
    RANGE(ranks_per_domain, 1, AFDEP_RANKS_MAX),
    RANGE(num_experts, 1, 1 << 20),
    RANGE(top_k, 1, AFDEP_TOP_K_MAX),
    RANGE(hidden, 256, 1 << 20),
    RANGE(capacity, 1, AFDEP_CAPACITY_MAX),
    RANGE(num_sms, 1, 1024),
    RANGE(expert_alignment, 1, 1 << 16),
};

#define RANGES (sizeof ranges / sizeof ranges[0])

static int *int_field(const afdep_range_t *range, const afdep_scenario_t *scenario)
{
    return (int *)((char *)(uintptr_t)scenario + range->offset);
}

static int check_range(const char *file, const char *name, int value, int min, int max, char *why, size_t why_size)
{
    if (value >= min && value <= max)
        return 0;
    return afdep_why(why, why_size, "%s: %s: %d is not in %d .. %d", file, name, value, min, max);
}

/* ---- Reading one value ----------------------------------------------------------------------------------------- */

/* What a reader needs: where the value belongs, and whom to blame. */
typedef struct afdep_reading {
    afdep_scenario_t *scenario;
    const char *name; /* of the field being read */
    char *why;
    size_t why_size;
} afdep_reading_t;

static int refuse(const afdep_reading_t *r, const cJSON *value, const char *rule)
{
    char text[64];
    return afdep_why(r->why, r->why_size, "%s: %s: %s %s", r->scenario->file, r->name,
                     afdep_json_quote(value, text, sizeof text), rule);
}

/* An integer exactly: not 1.5, not 1e99, not "1". */
static int read_number(const afdep_reading_t *r, const cJSON *value, double min, double max, double *number)
{
    char rule[96];
    if (!cJSON_IsNumber(value) || value->valuedouble != floor(value->valuedouble))
        return refuse(r, value, "is not an integer");
    if (value->valuedouble < min || value->valuedouble > max) {
        snprintf(rule, sizeof rule, "is not in %.0f .. %.0f", min, max);
        return refuse(r, value, rule);
    }
    *number = value->valuedouble;
    return 0;
}

static int read_int(const afdep_reading_t *r, const cJSON *value)
{
    for (size_t i = 0; i < RANGES; i++) {
        double number;
        if (strcmp(ranges[i].name, r->name) != 0)
            continue;
        if (read_number(r, value, ranges[i].min, ranges[i].max, &number) < 0)
            return -1;
        *int_field(&ranges[i], r->scenario) = (int)number;
        return 0;
    }
    return refuse(r, value, "has no range"); /* unreachable: every integer field is in the table */
}

static int read_seed(const afdep_reading_t *r, const cJSON *value)
{
    double number;
    if (read_number(r, value, 0, AFDEP_SEED_MAX, &number) < 0)
        return -1;
    r->scenario->seed = (uint64_t)number;
    return 0;
}

static int read_schema(const afdep_reading_t *r, const cJSON *value)
{
    if (!cJSON_IsString(value) || strcmp(value->valuestring, AFDEP_SCENARIO_SCHEMA) != 0)
        return refuse(r, value, "is not \"" AFDEP_SCENARIO_SCHEMA "\"");
    return 0;
}

static int read_name(const afdep_reading_t *r, const cJSON *value)
{
    if (!cJSON_IsString(value))
        return refuse(r, value, "is not a string");
    r->scenario->name = strdup(value->valuestring);
    return r->scenario->name ? 0 : refuse(r, value, "does not fit into memory");
}

static int read_dtype(const afdep_reading_t *r, const cJSON *value)
{
    const char *text = cJSON_IsString(value) ? value->valuestring : "";
    if (strcmp(text, "bf16") != 0 && strcmp(text, "fp8") != 0)
        return refuse(r, value, "is not \"bf16\" or \"fp8\"");
    r->scenario->dtype = text[0] == 'b' ? AFDEP_DTYPE_BF16 : AFDEP_DTYPE_FP8;
    return 0;
}

static int read_graph(const afdep_reading_t *r, const cJSON *value)
{
    if (!cJSON_IsBool(value))
        return refuse(r, value, "is not true or false");
    r->scenario->graph = cJSON_IsTrue(value);
    return 0;
}

static int read_tokens(const afdep_reading_t *r, const cJSON *value)
{
    if (!cJSON_IsArray(value) || !value->child)
        return refuse(r, value, "is not a list of token counts");
    r->scenario->token_counts = 0;
    for (const cJSON *item = value->child; item; item = item->next) {
        double number;
        if (r->scenario->token_counts == AFDEP_SCENARIO_TOKENS_MAX)
            return afdep_why(r->why, r->why_size, "%s: %s: more than %d token counts", r->scenario->file, r->name,
                             AFDEP_SCENARIO_TOKENS_MAX);
        if (read_number(r, item, 0, AFDEP_CAPACITY_MAX, &number) < 0)
            return -1;
        r->scenario->tokens[r->scenario->token_counts++] = (int)number;
    }
    return 0;
}

/* ---- Reading objects ------------------------------------------------------------------------------------------- */

typedef struct afdep_field {
    const char *name;
    int (*read)(const afdep_reading_t *r, const cJSON *value);
    int required;
} afdep_field_t;

static const afdep_field_t *find_field(const afdep_field_t *fields, const char *name)
{
    for (; fields->name; fields++)
        if (strcmp(fields->name, name) == 0)
            return fields;
    return NULL;
}

/* Stops at the first key that is unknown or seen before, so that hostile files cost no more than their length. */
static int read_object(const afdep_reading_t *r, const cJSON *object, const afdep_field_t *fields)
{
    unsigned seen = 0;
    if (!cJSON_IsObject(object))
        return refuse(r, object, "is not an object");
    for (const cJSON *value = object->child; value; value = value->next) {
        const afdep_field_t *field = find_field(fields, value->string);
        afdep_reading_t inner = *r;
        inner.name = field ? field->name : value->string;
        if (!field)
            return refuse(&inner, value, "belongs to no known field");
        seen |= 1u << (field - fields);
        if (field->read(&inner, value) < 0)
            return -1;
    }
    for (const afdep_field_t *field = fields; field->name; field++)
        if (field->required && !(seen & 1u << (field - fields)))
            return afdep_why(r->why, r->why_size, "%s: %s: is missing", r->scenario->file, field->name);
    return 0;
}

static int read_topology(const afdep_reading_t *r, const cJSON *value)
{
    static const afdep_field_t fields[] = {
        { "ffn_ranks", read_int, 1 }, { "attention_ranks", read_int, 1 }, { "ranks_per_domain", read_int, 1 }, { 0 }
    };
    return read_object(r, value, fields);
}

static int read_model(const afdep_reading_t *r, const cJSON *value)
{
    static const afdep_field_t fields[] = {
        { "num_experts", read_int, 1 }, { "top_k", read_int, 1 }, { "hidden", read_int, 1 }, { 0 }
    };
    return read_object(r, value, fields);
}

static int read_routing_kind(const afdep_reading_t *r, const cJSON *value)
{
    static const char *const kinds[] = { "uniform", "zipf", "hot", "trace" };
    for (int kind = 0; kind < 4; kind++)
        if (cJSON_IsString(value) && strcmp(value->valuestring, kinds[kind]) == 0) {
            r->scenario->routing.kind = (afdep_routing_kind_t)kind;
            return 0;
        }
    return refuse(r, value, "is not \"uniform\", \"zipf\", \"hot\" or \"trace\"");
}

static int read_routing_s(const afdep_reading_t *r, const cJSON *value)
{
    if (!cJSON_IsNumber(value))
        return refuse(r, value, "is not a number");
    r->scenario->routing.zipf_s = value->valuedouble;
    return 0;
}

static int read_routing_expert(const afdep_reading_t *r, const cJSON *value)
{
    double number;
    if (read_number(r, value, 0, INT_MAX, &number) < 0)
        return -1;
    r->scenario->routing.hot_expert = (int)number;
    return 0;
}

/* A relative trace is looked for beside the scenario that names it. */
static int read_routing_file(const afdep_reading_t *r, const cJSON *value)
{
    if (!cJSON_IsString(value) || value->valuestring[0] == 0)
        return refuse(r, value, "is not a file name");
    const char *slash = strrchr(r->scenario->file, '/');
    int folder = value->valuestring[0] == '/' || !slash ? 0 : (int)(slash - r->scenario->file) + 1;
    size_t size = (size_t)folder + strlen(value->valuestring) + 1;
    char *file = malloc(size);
    if (!file)
        return refuse(r, value, "does not fit into memory");
    snprintf(file, size, "%.*s%s", folder, r->scenario->file, value->valuestring);
    r->scenario->routing.trace_file = file;
    return 0;
}

/* The kind says which other field there must be, and there may be no other. */
static int read_routing(const afdep_reading_t *r, const cJSON *value)
{
    static const afdep_field_t kind_only[] = { { "kind", read_routing_kind, 1 }, { 0 } };
    static const afdep_field_t zipf[] = { { "kind", read_routing_kind, 1 }, { "s", read_routing_s, 1 }, { 0 } };
    static const afdep_field_t hot[] = {
        { "kind", read_routing_kind, 1 }, { "expert", read_routing_expert, 1 }, { 0 }
    };
    static const afdep_field_t trace[] = { { "kind", read_routing_kind, 1 }, { "file", read_routing_file, 1 }, { 0 } };
    static const afdep_field_t *const by_kind[] = { kind_only, zipf, hot, trace };
    if (!cJSON_IsObject(value))
        return refuse(r, value, "is not an object");
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(value, "kind");
    afdep_reading_t inner = *r;
    inner.name = "kind";
    if (!kind)
        return afdep_why(r->why, r->why_size, "%s: kind: is missing", r->scenario->file);
    if (read_routing_kind(&inner, kind) < 0)
        return -1;
    return read_object(r, value, by_kind[r->scenario->routing.kind]);
}

static int read_scenario(const afdep_reading_t *r, const cJSON *json)
{
    static const afdep_field_t fields[] = {
        { "schema", read_schema, 1 },
        { "name", read_name, 1 },
        { "topology", read_topology, 1 },
        { "model", read_model, 1 },
        { "dtype", read_dtype, 1 },
        { "capacity", read_int, 1 },
        { "num_sms", read_int, 1 },
        { "expert_alignment", read_int, 0 },
        { "tokens", read_tokens, 1 },
        { "graph", read_graph, 0 },
        { "routing", read_routing, 0 },
        { "seed", read_seed, 0 },
        { 0 }
    };
    /* The schema first: a file of a later version should be refused for that, not for the fields it adds. */
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(json, "schema");
    afdep_reading_t inner = *r;
    inner.name = "schema";
    if (schema && read_schema(&inner, schema) < 0)
        return -1;
    return read_object(r, json, fields);
}

int afdep_scenario_read(const cJSON *json, const char *file, afdep_scenario_t *scenario, char *why, size_t why_size)
{
    memset(scenario, 0, sizeof *scenario);
    scenario->expert_alignment = 1;
    scenario->seed = 1;
    scenario->file = strdup(file);
    afdep_reading_t reading = { scenario, "scenario", why, why_size };
    int status = scenario->file ? read_scenario(&reading, json) : afdep_why(why, why_size, "%s: no memory", file);
    if (status == 0)
        status = afdep_scenario_check(scenario, why, why_size);
    if (status < 0)
        afdep_scenario_free(scenario);
    return status;
}

int afdep_scenario_load(const char *file, afdep_scenario_t *scenario, char *why, size_t why_size)
{
    memset(scenario, 0, sizeof *scenario);
    cJSON *json = afdep_json_read(file, AFDEP_JSON_CONFIG_BYTES, why, why_size);
    if (!json)
        return -1;
    int status = afdep_scenario_read(json, file, scenario, why, why_size);
    cJSON_Delete(json);
    return status;
}

/* ---- What a command line makes --------------------------------------------------------------------------------- */

void afdep_scenario_default(afdep_scenario_t *scenario)
{
    static const int tokens[] = { 1, 8, 32, 128 };
    memset(scenario, 0, sizeof *scenario);
    scenario->file = strdup("command line");
    scenario->name = strdup("command-line");
    scenario->num_experts = 128;
    scenario->top_k = 8;
    scenario->hidden = 2048;
    scenario->dtype = AFDEP_DTYPE_BF16;
    scenario->num_sms = 24;
    scenario->expert_alignment = 1;
    scenario->token_counts = 4;
    memcpy(scenario->tokens, tokens, sizeof tokens);
    scenario->seed = 1;
}

static int parse_routing_argument(const char *text, const char *argument, afdep_routing_t *routing, char *why,
                                  size_t why_size)
{
    char *end = NULL;
    if (routing->kind == AFDEP_ROUTING_ZIPF) {
        routing->zipf_s = strtod(argument, &end);
        if (argument[0] == 0 || strspn(argument, "0123456789.eE+-") != strlen(argument) || *end != 0)
            return afdep_why(why, why_size, "routing: \"%s\": the exponent is not a number", text);
    } else if (routing->kind == AFDEP_ROUTING_HOT) {
        if (argument[0] == 0 || strspn(argument, "0123456789") != strlen(argument) || strlen(argument) > 9)
            return afdep_why(why, why_size, "routing: \"%s\": the expert is not an integer from 0 on", text);
        routing->hot_expert = atoi(argument);
    } else {
        routing->trace_file = argument[0] ? strdup(argument) : NULL;
        if (!routing->trace_file)
            return afdep_why(why, why_size, "routing: \"%s\": the trace's file name is missing", text);
    }
    return 0;
}

int afdep_routing_parse(const char *text, afdep_routing_t *routing, char *why, size_t why_size)
{
    static const char *const prefixes[] = { "uniform", "zipf:", "hot:", "trace:" };
    afdep_routing_t parsed = { AFDEP_ROUTING_UNIFORM, 0, 0, NULL };
    int kind = strcmp(text, prefixes[0]) == 0 ? 0 : 1;
    while (kind > 0 && kind < 4 && strncmp(text, prefixes[kind], strlen(prefixes[kind])) != 0)
        kind++;
    if (kind == 4)
        return afdep_why(why, why_size, "routing: \"%s\" is not uniform, zipf:S, hot:E or trace:FILE", text);
    parsed.kind = (afdep_routing_kind_t)kind;
    if (kind > 0 && parse_routing_argument(text, text + strlen(prefixes[kind]), &parsed, why, why_size) < 0)
        return -1;
    free(routing->trace_file);
    *routing = parsed;
    return 0;
}

/* ---- Rules ----------------------------------------------------------------------------------------------------- */

static int check_name(const afdep_scenario_t *s, char *why, size_t why_size)
{
    /* The name becomes part of file names (validation-NAME.json) and of tables. */
    static const char *const legal = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = s->name ? strlen(s->name) : 0;
    if (length == 0 || length > AFDEP_NAME_MAX || strspn(s->name, legal) != length || s->name[0] == '.')
        return afdep_why(why, why_size, "%s: name: \"%.64s\" is not 1 to %d letters, digits, dots, dashes and "
                         "underscores", s->file, s->name ? s->name : "", AFDEP_NAME_MAX);
    return 0;
}

static int check_topology(const afdep_scenario_t *s, char *why, size_t why_size)
{
    int ranks = afdep_scenario_ranks(s);
    if (ranks > AFDEP_RANKS_MAX)
        return afdep_why(why, why_size, "%s: attention_ranks: %d and ffn_ranks %d are more than %d ranks", s->file,
                         s->attention_ranks, s->ffn_ranks, AFDEP_RANKS_MAX);
    if (ranks % s->ranks_per_domain != 0)
        return afdep_why(why, why_size, "%s: ranks_per_domain: %d does not divide the %d ranks (%d FFN, %d Attention)",
                         s->file, s->ranks_per_domain, ranks, s->ffn_ranks, s->attention_ranks);
    int domains = ranks / s->ranks_per_domain;
    if (afdep_scenario_shares_domains(s) && s->ffn_ranks % domains != 0)
        return afdep_why(why, why_size, "%s: ranks_per_domain: %d gives %d domains, which cannot hold one role each "
                         "(%d does not divide ffn_ranks %d) nor as many FFN ranks each (%d does not divide it)",
                         s->file, s->ranks_per_domain, domains, s->ranks_per_domain, s->ffn_ranks, domains);
    return 0;
}

static int check_model(const afdep_scenario_t *s, char *why, size_t why_size)
{
    if (s->num_experts % afdep_scenario_workers(s) != 0)
        return afdep_why(why, why_size, "%s: num_experts: %d is not a multiple of %s %d", s->file, s->num_experts,
                         s->ffn_ranks ? "ffn_ranks" : "attention_ranks", afdep_scenario_workers(s));
    if (s->hidden % 256 != 0)
        return afdep_why(why, why_size, "%s: hidden: %d is not a multiple of 256", s->file, s->hidden);
    if (s->top_k > s->num_experts)
        return afdep_why(why, why_size, "%s: top_k: %d is larger than num_experts %d", s->file, s->top_k,
                         s->num_experts);
    if (s->dtype != AFDEP_DTYPE_BF16 && s->dtype != AFDEP_DTYPE_FP8)
        return afdep_why(why, why_size, "%s: dtype: %d is not bf16 or fp8", s->file, (int)s->dtype);
    return 0;
}

static int check_tokens(const afdep_scenario_t *s, char *why, size_t why_size)
{
    if (s->token_counts < 1 || s->token_counts > AFDEP_SCENARIO_TOKENS_MAX)
        return afdep_why(why, why_size, "%s: tokens: %d token counts are not 1 to %d", s->file, s->token_counts,
                         AFDEP_SCENARIO_TOKENS_MAX);
    for (int i = 0; i < s->token_counts; i++) {
        /* 0 is an exchange all the same: every source says that it has nothing. */
        if (check_range(s->file, "tokens", s->tokens[i], 0, AFDEP_CAPACITY_MAX, why, why_size) < 0)
            return -1;
        if (s->tokens[i] > s->capacity)
            return afdep_why(why, why_size, "%s: tokens: %d is larger than capacity %d", s->file, s->tokens[i],
                             s->capacity);
    }
    return 0;
}

static int check_routing(const afdep_scenario_t *s, char *why, size_t why_size)
{
    const afdep_routing_t *routing = &s->routing;
    if (routing->kind == AFDEP_ROUTING_ZIPF && !(routing->zipf_s >= 0 && routing->zipf_s <= AFDEP_ZIPF_MAX))
        return afdep_why(why, why_size, "%s: routing: zipf exponent %g is not in 0 .. %g", s->file, routing->zipf_s,
                         AFDEP_ZIPF_MAX);
    if (routing->kind == AFDEP_ROUTING_HOT && (routing->hot_expert < 0 || routing->hot_expert >= s->num_experts))
        return afdep_why(why, why_size, "%s: routing: hot expert %d is not in 0 .. %d", s->file, routing->hot_expert,
                         s->num_experts - 1);
    if (routing->kind == AFDEP_ROUTING_TRACE && !routing->trace_file)
        return afdep_why(why, why_size, "%s: routing: a trace without a file", s->file);
    return 0;
}

int afdep_scenario_check(const afdep_scenario_t *scenario, char *why, size_t why_size)
{
    for (size_t i = 0; i < RANGES; i++)
        if (check_range(scenario->file, ranges[i].name, *int_field(&ranges[i], scenario), ranges[i].min, ranges[i].max,
                        why, why_size) < 0)
            return -1;
    if (check_name(scenario, why, why_size) < 0 || check_topology(scenario, why, why_size) < 0 ||
        check_model(scenario, why, why_size) < 0 || check_tokens(scenario, why, why_size) < 0 ||
        check_routing(scenario, why, why_size) < 0)
        return -1;
    if (scenario->seed > (uint64_t)AFDEP_SEED_MAX)
        return afdep_why(why, why_size, "%s: seed: %llu is not in 0 .. %.0f", scenario->file,
                         (unsigned long long)scenario->seed, AFDEP_SEED_MAX);
    return 0;
}

/* ---- Back to JSON ---------------------------------------------------------------------------------------------- */

static cJSON *routing_json(const afdep_routing_t *routing)
{
    static const char *const kinds[] = { "uniform", "zipf", "hot", "trace" };
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "kind", kinds[routing->kind]);
    if (routing->kind == AFDEP_ROUTING_ZIPF)
        cJSON_AddNumberToObject(json, "s", routing->zipf_s);
    else if (routing->kind == AFDEP_ROUTING_HOT)
        cJSON_AddNumberToObject(json, "expert", routing->hot_expert);
    else if (routing->kind == AFDEP_ROUTING_TRACE)
        cJSON_AddItemToObject(json, "file", afdep_json_string(routing->trace_file));
    return json;
}

/* cJSON prints 15 digits where it finds the difference small, which for an integer of 16 is another integer. */
static cJSON *seed_json(uint64_t seed)
{
    char text[24];
    if (seed < 1000000000000000)
        return cJSON_CreateNumber((double)seed);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    return cJSON_CreateRaw(text);
}

cJSON *afdep_scenario_json(const afdep_scenario_t *scenario)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "schema", AFDEP_SCENARIO_SCHEMA);
    cJSON_AddItemToObject(json, "name", afdep_json_string(scenario->name));
    cJSON *topology = cJSON_AddObjectToObject(json, "topology");
    cJSON_AddNumberToObject(topology, "ffn_ranks", scenario->ffn_ranks);
    cJSON_AddNumberToObject(topology, "attention_ranks", scenario->attention_ranks);
    cJSON_AddNumberToObject(topology, "ranks_per_domain", scenario->ranks_per_domain);
    cJSON *model = cJSON_AddObjectToObject(json, "model");
    cJSON_AddNumberToObject(model, "num_experts", scenario->num_experts);
    cJSON_AddNumberToObject(model, "top_k", scenario->top_k);
    cJSON_AddNumberToObject(model, "hidden", scenario->hidden);
    cJSON_AddStringToObject(json, "dtype", scenario->dtype == AFDEP_DTYPE_FP8 ? "fp8" : "bf16");
    cJSON_AddNumberToObject(json, "capacity", scenario->capacity);
    cJSON_AddNumberToObject(json, "num_sms", scenario->num_sms);
    cJSON_AddNumberToObject(json, "expert_alignment", scenario->expert_alignment);
    cJSON_AddItemToObject(json, "tokens", cJSON_CreateIntArray(scenario->tokens, scenario->token_counts));
    cJSON_AddBoolToObject(json, "graph", scenario->graph);
    cJSON_AddItemToObject(json, "routing", routing_json(&scenario->routing));
    cJSON_AddItemToObject(json, "seed", seed_json(scenario->seed));
    return json;
}

void afdep_scenario_free(afdep_scenario_t *scenario)
{
    free(scenario->routing.trace_file);
    free(scenario->name);
    free(scenario->file);
    memset(scenario, 0, sizeof *scenario);
}
