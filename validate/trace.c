/* SPDX-License-Identifier: Apache-2.0 */
/* Routing traces: loaded strictly, every refusal one line naming file, field, value and rule. */
#include "validate/trace.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"

struct afdep_trace {
    int rows, top_k;
    int32_t *ids;   /* [rows, K] */
    float *weights; /* [rows, K] or NULL */
};

/* Where refusals go. */
typedef struct loader {
    const char *file;
    const afdep_scenario_t *scenario;
    char *why;
    size_t why_size;
} loader_t;

static int refuse(const loader_t *loader, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int refuse(const loader_t *loader, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return afdep_why(loader->why, loader->why_size, "%s: %s", loader->file, text);
}

static int check_number(const loader_t *loader, const cJSON *root, const char *field, int want)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, field);

    if (!cJSON_IsNumber(item))
        return refuse(loader, "%s: missing or not a number", field);
    if (item->valuedouble != want)
        return refuse(loader, "%s: %.9g: the scenario says %d", field, item->valuedouble, want);
    return 0;
}

static int check_head(const loader_t *loader, const cJSON *root)
{
    static const char *const fields[] = { "schema", "top_k", "num_experts", "ids", "weights" };
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(root, "schema");
    const cJSON *item;

    if (!cJSON_IsObject(root))
        return refuse(loader, "must be a JSON object");
    cJSON_ArrayForEach(item, root)
    {
        int known = 0;
        for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
            known |= strcmp(item->string, fields[i]) == 0;
        if (!known)
            return refuse(loader, "%s: no such field in a trace", item->string);
    }
    if (!cJSON_IsString(schema) || strcmp(schema->valuestring, "afdep-trace/1") != 0)
        return refuse(loader, "schema: must be \"afdep-trace/1\"");
    if (check_number(loader, root, "top_k", loader->scenario->top_k) != 0)
        return -1;
    return check_number(loader, root, "num_experts", loader->scenario->num_experts);
}

/* One row of ids; -1 may repeat, experts may not. */
static int load_ids(const loader_t *loader, const cJSON *row, int index, int32_t *ids)
{
    int experts = loader->scenario->num_experts;
    int slot = 0;
    const cJSON *item;

    cJSON_ArrayForEach(item, row)
    {
        double value = item->valuedouble;
        if (!cJSON_IsNumber(item))
            return refuse(loader, "ids[%d][%d]: not a number", index, slot);
        if (value != floor(value) || value < -1 || value >= experts)
            return refuse(loader, "ids[%d][%d]: %.9g: must be -1 or an expert, 0 .. %d", index, slot, value,
                          experts - 1);
        ids[slot] = (int32_t)value;
        for (int earlier = 0; earlier < slot && ids[slot] >= 0; earlier++) {
            if (ids[earlier] == ids[slot])
                return refuse(loader, "ids[%d][%d]: %d: repeats slot %d", index, slot, (int)ids[slot], earlier);
        }
        slot++;
    }
    return 0;
}

static int load_weights(const loader_t *loader, const cJSON *row, int index, float *weights)
{
    int slot = 0;
    const cJSON *item;

    cJSON_ArrayForEach(item, row)
    {
        if (!cJSON_IsNumber(item))
            return refuse(loader, "weights[%d][%d]: not a number", index, slot);
        weights[slot] = (float)item->valuedouble;
        if (!(weights[slot] > 0) || isinf(weights[slot]))
            return refuse(loader, "weights[%d][%d]: %.9g: must be positive and finite as FP32", index, slot,
                          item->valuedouble);
        slot++;
    }
    return 0;
}

static int load_rows(const loader_t *loader, const cJSON *ids, const cJSON *weights, afdep_trace_t *trace)
{
    const cJSON *ids_row = ids->child;
    const cJSON *weights_row = weights != NULL ? weights->child : NULL;

    for (int i = 0; i < trace->rows; i++) {
        size_t first = (size_t)i * (size_t)trace->top_k;
        if (!cJSON_IsArray(ids_row) || cJSON_GetArraySize(ids_row) != trace->top_k)
            return refuse(loader, "ids[%d]: must be an array of %d ids", i, trace->top_k);
        if (load_ids(loader, ids_row, i, trace->ids + first) != 0)
            return -1;
        ids_row = ids_row->next;
        if (weights == NULL)
            continue;
        if (!cJSON_IsArray(weights_row) || cJSON_GetArraySize(weights_row) != trace->top_k)
            return refuse(loader, "weights[%d]: must be an array of %d weights", i, trace->top_k);
        if (load_weights(loader, weights_row, i, trace->weights + first) != 0)
            return -1;
        weights_row = weights_row->next;
    }
    return 0;
}

static int load_tables(const loader_t *loader, const cJSON *root, afdep_trace_t *trace)
{
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(root, "ids");
    const cJSON *weights = cJSON_GetObjectItemCaseSensitive(root, "weights");

    if (!cJSON_IsArray(ids) || ids->child == NULL)
        return refuse(loader, "ids: must be an array of at least one row");
    trace->rows = cJSON_GetArraySize(ids);
    trace->top_k = loader->scenario->top_k;
    if (weights != NULL && (!cJSON_IsArray(weights) || cJSON_GetArraySize(weights) != trace->rows))
        return refuse(loader, "weights: must be an array of %d rows, as ids is", trace->rows);

    size_t choices = (size_t)trace->rows * (size_t)trace->top_k;
    trace->ids = malloc(choices * sizeof(*trace->ids));
    trace->weights = weights != NULL ? malloc(choices * sizeof(*trace->weights)) : NULL;
    if (trace->ids == NULL || (weights != NULL && trace->weights == NULL))
        return refuse(loader, "no memory for %d rows", trace->rows);
    return load_rows(loader, ids, weights, trace);
}

afdep_trace_t *afdep_trace_load(const char *file, const afdep_scenario_t *scenario, char *why, size_t why_size)
{
    loader_t loader = { file, scenario, why, why_size };
    cJSON *root = afdep_json_read(file, AFDEP_JSON_RECORD_BYTES, why, why_size);
    afdep_trace_t *trace = NULL;

    if (root == NULL)
        return NULL;
    if (check_head(&loader, root) != 0)
        goto done;
    trace = calloc(1, sizeof(*trace));
    if (trace == NULL) {
        refuse(&loader, "no memory");
        goto done;
    }
    if (load_tables(&loader, root, trace) != 0) {
        afdep_trace_free(trace);
        trace = NULL;
    }

done:
    cJSON_Delete(root);
    return trace;
}

void afdep_trace_free(afdep_trace_t *trace)
{
    if (trace != NULL) {
        free(trace->weights);
        free(trace->ids);
        free(trace);
    }
}

void afdep_trace_read(const afdep_trace_t *trace, uint64_t place, int32_t *ids, float *weights)
{
    size_t top_k = (size_t)trace->top_k;
    size_t first = (size_t)(place % (uint64_t)trace->rows) * top_k;

    memcpy(ids, trace->ids + first, top_k * sizeof(*ids));
    if (trace->weights != NULL)
        memcpy(weights, trace->weights + first, top_k * sizeof(*weights));
}
