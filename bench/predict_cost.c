/* SPDX-License-Identifier: Apache-2.0 */
/* Cost files, read strictly: every parameter of the table, nothing else, each with the table's unit. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_cost.h"

#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"
#include "bench/predict_default.h"

#define SCHEMA "afdep-cost/1"

#define NS_MOST 1e9
#define GBS_LEAST 1e-3
#define GBS_MOST 1e6

const afdep_cost_info_t afdep_cost_table[AFDEP_COSTS] = {
    { "nic_bandwidth", "GB/s", GBS_LEAST, GBS_MOST, "bytes that a NIC moves per second, each way" },
    { "nic_put", "ns", 0, NS_MOST, "a NIC's service of one put at either end, beside its bytes" },
    { "nic_signal_send", "ns", 0, NS_MOST, "a sending NIC's service of one signal" },
    { "nic_signal_receive", "ns", 0, NS_MOST, "a receiving NIC's service of one signal, an atomic update of memory" },
    { "nic_latency", "ns", 0, NS_MOST,
      "from the posting of a message to its head at the receiving NIC when nothing queues, and from there to the "
      "reader" },
    { "nics_per_rank", "1", 0.015625, 64, "NICs of a rank; below 1, a NIC is shared by that part of a domain's ranks" },
    { "nvlink_bandwidth", "GB/s", GBS_LEAST, GBS_MOST, "bytes that a rank's NVLink port moves per second, each way" },
    { "nvlink_latency", "ns", 0, NS_MOST, "from a store to its sight by a peer of the domain" },
    { "warp_send_row", "ns", 0, NS_MOST, "a source's warp, from taking up a row to having it posted" },
    { "warp_issue", "ns", 0, NS_MOST, "a warp's posting of one signal that rides on no row" },
    { "warp_poll", "ns", 0, NS_MOST, "from a word's landing to a polling warp's acting on it, for each 32 sources" },
    { "warp_forward_row", "ns", 0, NS_MOST, "a forward warp, one row from the rail inbox to the ranks of the domain" },
    { "warp_sum_row", "ns", 0, NS_MOST, "a warp's sum of one token's rows on an FFN rank" },
    { "warp_back_row", "ns", 0, NS_MOST, "a forward warp's sum of one token's partials, staged and posted" },
    { "warp_collect_row", "ns", 0, NS_MOST, "a source's warp, the sum of one token's replies" },
    { "sm_row", "ns", 0, NS_MOST,
      "an SM's own service of a row that crosses domains, beside its bytes: its warps share it" },
    { "sm_load", "GB/s", GBS_LEAST, GBS_MOST, "bytes that one SM loads, sums and stores locally per second" },
    { "sm_store", "GB/s", GBS_LEAST, GBS_MOST, "bytes that one SM stores to peers of the domain per second" },
    { "memory_bandwidth", "GB/s", GBS_LEAST, GBS_MOST,
      "bytes read and written per second while rows are laid out by expert" },
    { "kernel_launch", "ns", 0, NS_MOST, "between two kernels of a rank, launched one by one" },
    { "kernel_graph_gap", "ns", 0, NS_MOST, "between two kernels of a rank inside a graph" },
    { "kernel_prologue", "ns", 0, NS_MOST, "a kernel's own beginning, until its warps take up their first work" },
    { "kernel_layout", "ns", 0, NS_MOST, "laying out rows by expert, beside their bytes" },
    { "kernel_bookkeeping", "ns", 0, NS_MOST,
      "across domains, from the last source's start until its counts by expert are on their way, beside the rows" },
};

static const char *const origins[] = { "fitted", "measured", "specified", "assumed", NULL };

int afdep_cost_find(const char *name)
{
    for (int i = 0; i < AFDEP_COSTS; i++)
        if (strcmp(afdep_cost_table[i].name, name) == 0)
            return i;
    return -1;
}

static int refuse(const char *file, const char *field, const cJSON *value, const char *rule, char *why, size_t why_size)
{
    char text[64];
    if (!value)
        return afdep_why(why, why_size, "%s: %s: is missing", file, field);
    return afdep_why(why, why_size, "%s: %s: %s %s", file, field, afdep_json_quote(value, text, sizeof(text)), rule);
}

static const cJSON *field_of(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static int read_parameter(const char *file, const cJSON *object, int id, afdep_cost_t *cost, char *why, size_t why_size)
{
    const afdep_cost_info_t *info = &afdep_cost_table[id];
    const cJSON *value = field_of(object, "value"), *unit = field_of(object, "unit");
    const cJSON *origin = field_of(object, "origin"), *from = field_of(object, "from"), *field;
    const cJSON *meaning = field_of(object, "meaning");
    char name[96], rule[96];
    snprintf(name, sizeof(name), "parameters.%s", info->name);
    if (!cJSON_IsObject(object))
        return refuse(file, name, object, "is not an object", why, why_size);
    cJSON_ArrayForEach(field, object)
    {
        static const char *const known[] = { "value", "unit", "origin", "from", "meaning" };
        int found = 0;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            found |= strcmp(field->string, known[i]) == 0;
        snprintf(name, sizeof(name), "parameters.%s.%.40s", info->name, field->string);
        if (!found)
            return refuse(file, name, field, "is not a field of a parameter", why, why_size);
    }
    snprintf(name, sizeof(name), "parameters.%s.value", info->name);
    snprintf(rule, sizeof(rule), "is not a number in %g .. %g", info->low, info->high);
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= info->low && value->valuedouble <= info->high))
        return refuse(file, name, value, rule, why, why_size);
    snprintf(name, sizeof(name), "parameters.%s.unit", info->name);
    snprintf(rule, sizeof(rule), "is not \"%s\"", info->unit);
    if (!cJSON_IsString(unit) || strcmp(unit->valuestring, info->unit) != 0)
        return refuse(file, name, unit, rule, why, why_size);
    snprintf(name, sizeof(name), "parameters.%s.origin", info->name);
    cost->value[id] = value->valuedouble;
    int which = 0;
    while (origins[which] && !(cJSON_IsString(origin) && strcmp(origin->valuestring, origins[which]) == 0))
        which++;
    if (!origins[which])
        return refuse(file, name, origin, "is none of fitted, measured, specified, assumed", why, why_size);
    cost->origin[id] = (afdep_cost_origin_t)which;
    snprintf(name, sizeof(name), "parameters.%s.from", info->name);
    if (!cJSON_IsString(from))
        return refuse(file, name, from, "is not a string", why, why_size);
    snprintf(name, sizeof(name), "parameters.%s.meaning", info->name);
    if (meaning && !cJSON_IsString(meaning))
        return refuse(file, name, meaning, "is not a string", why, why_size);
    cost->from[id] = strdup(from->valuestring);
    return cost->from[id] ? 0 : afdep_why(why, why_size, "%s: no memory", file);
}

/* NICs come whole, or whole ranks share one. */
static int check_nics(const char *file, const afdep_cost_t *cost, char *why, size_t why_size)
{
    double value = cost->value[AFDEP_COST_NICS_PER_RANK], whole = value >= 1 ? value : 1 / value;
    if (whole == (double)(int)whole)
        return 0;
    return afdep_why(why, why_size,
                     "%s: parameters.nics_per_rank.value: %g is neither a whole number nor one part of 1", file, value);
}

static int read_fitted_on(const char *file, const cJSON *list, afdep_cost_t *cost, char *why, size_t why_size)
{
    const char *screens[AFDEP_COST_SCREENS_MAX];
    const cJSON *one;
    int count = 0;
    if (list && (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > AFDEP_COST_SCREENS_MAX))
        return refuse(file, "fitted_on", list, "is not a list of at most 32 screens", why, why_size);
    cJSON_ArrayForEach(one, list)
    {
        if (!cJSON_IsString(one))
            return refuse(file, "fitted_on", one, "is not a screen's name", why, why_size);
        screens[count++] = one->valuestring;
    }
    return afdep_cost_set_fitted_on(cost, screens, count) == 0 ? 0 : afdep_why(why, why_size, "%s: no memory", file);
}

static int read_parameters(const char *file, const cJSON *parameters, afdep_cost_t *cost, char *why, size_t why_size)
{
    const cJSON *field;
    if (!cJSON_IsObject(parameters))
        return refuse(file, "parameters", parameters, "is not an object", why, why_size);
    cJSON_ArrayForEach(field, parameters)
    {
        if (afdep_cost_find(field->string) < 0)
            return refuse(file, field->string, field, "is not a parameter of " SCHEMA, why, why_size);
    }
    for (int id = 0; id < AFDEP_COSTS; id++) {
        const cJSON *parameter = field_of(parameters, afdep_cost_table[id].name);
        if (!parameter)
            return afdep_why(why, why_size, "%s: parameters.%s: is missing", file, afdep_cost_table[id].name);
        if (read_parameter(file, parameter, id, cost, why, why_size) != 0)
            return -1;
    }
    return check_nics(file, cost, why, why_size);
}

static int read_all(const char *file, const cJSON *json, afdep_cost_t *cost, char *why, size_t why_size)
{
    const cJSON *schema = field_of(json, "schema"), *name = field_of(json, "name"), *note = field_of(json, "note");
    const cJSON *parameters = field_of(json, "parameters"), *fitted_on = field_of(json, "fitted_on"), *field;
    if (!cJSON_IsObject(json))
        return afdep_why(why, why_size, "%s: is not an object", file);
    if (!cJSON_IsString(schema) || strcmp(schema->valuestring, SCHEMA) != 0)
        return refuse(file, "schema", schema, "is not \"" SCHEMA "\"", why, why_size);
    cJSON_ArrayForEach(field, json)
    {
        if (field != schema && field != name && field != note && field != parameters && field != fitted_on)
            return refuse(file, field->string, field, "is not a field of " SCHEMA, why, why_size);
    }
    if (!cJSON_IsString(name) || !name->valuestring[0])
        return refuse(file, "name", name, "is not a name", why, why_size);
    if (note && !cJSON_IsString(note))
        return refuse(file, "note", note, "is not a string", why, why_size);
    cost->name = strdup(name->valuestring);
    cost->note = strdup(note ? note->valuestring : "");
    if (!cost->name || !cost->note)
        return afdep_why(why, why_size, "%s: no memory", file);
    if (read_fitted_on(file, fitted_on, cost, why, why_size) != 0)
        return -1;
    return read_parameters(file, parameters, cost, why, why_size);
}

static int take(const char *file, cJSON *json, afdep_cost_t *cost, char *why, size_t why_size)
{
    int status = json ? read_all(file, json, cost, why, why_size) : -1;
    cJSON_Delete(json);
    if (status != 0)
        afdep_cost_free(cost);
    return status;
}

int afdep_cost_load(const char *file, afdep_cost_t *cost, char *why, size_t why_size)
{
    memset(cost, 0, sizeof(*cost));
    return take(file, afdep_json_read(file, AFDEP_JSON_CONFIG_BYTES, why, why_size), cost, why, why_size);
}

int afdep_cost_builtin(afdep_cost_t *cost, char *why, size_t why_size)
{
    memset(cost, 0, sizeof(*cost));
    afdep_why(why, why_size, "the built-in cost model is not JSON");
    return take("the built-in cost model", cJSON_Parse(afdep_predict_default), cost, why, why_size);
}

int afdep_cost_fitted_on(const afdep_cost_t *cost, const char *screen)
{
    for (int i = 0; i < cost->fitted_on_count; i++)
        if (strcmp(cost->fitted_on[i], screen) == 0)
            return 1;
    return 0;
}

int afdep_cost_set_fitted_on(afdep_cost_t *cost, const char *const *screens, int count)
{
    for (int i = 0; i < cost->fitted_on_count; i++)
        free(cost->fitted_on[i]);
    cost->fitted_on_count = 0;
    for (int i = 0; i < count; i++) {
        cost->fitted_on[i] = strdup(screens[i]);
        if (!cost->fitted_on[i])
            return -1;
        cost->fitted_on_count++;
    }
    return 0;
}

cJSON *afdep_cost_json(const afdep_cost_t *cost)
{
    cJSON *json = cJSON_CreateObject(), *parameters = NULL, *fitted_on = NULL;
    int done = cJSON_AddStringToObject(json, "schema", SCHEMA) && cJSON_AddStringToObject(json, "name", cost->name) &&
               cJSON_AddStringToObject(json, "note", cost->note) &&
               (fitted_on = cJSON_AddArrayToObject(json, "fitted_on")) != NULL &&
               (parameters = cJSON_AddObjectToObject(json, "parameters")) != NULL;
    for (int i = 0; done && i < cost->fitted_on_count; i++)
        done = cJSON_AddItemToArray(fitted_on, cJSON_CreateString(cost->fitted_on[i]));
    for (int id = 0; done && id < AFDEP_COSTS; id++) {
        const afdep_cost_info_t *info = &afdep_cost_table[id];
        cJSON *one = cJSON_AddObjectToObject(parameters, info->name);
        done = cJSON_AddNumberToObject(one, "value", cost->value[id]) &&
               cJSON_AddStringToObject(one, "unit", info->unit) &&
               cJSON_AddStringToObject(one, "origin", origins[cost->origin[id]]) &&
               cJSON_AddStringToObject(one, "from", cost->from[id]) &&
               cJSON_AddStringToObject(one, "meaning", info->meaning);
    }
    if (done)
        return json;
    cJSON_Delete(json);
    return NULL;
}

void afdep_cost_free(afdep_cost_t *cost)
{
    (void)afdep_cost_set_fitted_on(cost, NULL, 0);
    free(cost->name);
    free(cost->note);
    for (int id = 0; id < AFDEP_COSTS; id++)
        free(cost->from[id]);
    memset(cost, 0, sizeof(*cost));
}
