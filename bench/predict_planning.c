/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --plan: a deployment (afdep-plan/1): model, token rate, range of Attention domains for the FFN domains, NICs of a
 * rank. Each Attention rank decodes `tokens` tokens a step, and `tokens_per_second` in all, so that a layer has tokens
 * / tokens_per_second / layers; exchanges may take `communication_share` of that. Where they take more, the ratio
 * saturates.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/json.h"
#include "bench/lib/why.h"
#include "bench/predict_rows.h"

#define SCHEMA "afdep-plan/1"
#define LIST_MAX 32

typedef struct deployment {
    const char *file;
    char *name; /* owned */
    int num_experts, top_k, hidden, num_sms, layers, ranks_per_domain, ffn_domains, tokens, fp8;
    double tokens_per_second, share;
    int domains[LIST_MAX], domain_count;
    double nics[LIST_MAX];
    int nic_count;
} deployment_t;

typedef struct reading {
    const char *file;
    char *why;
    size_t why_size;
} reading_t;

static const cJSON *field_of(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static int refuse(const reading_t *r, const char *name, const cJSON *value, const char *rule)
{
    char text[64];
    if (!value)
        return afdep_why(r->why, r->why_size, "%s: %s: is missing", r->file, name);
    return afdep_why(r->why, r->why_size, "%s: %s: %s %s", r->file, name, afdep_json_quote(value, text, sizeof(text)),
                     rule);
}

static int read_number(const reading_t *r, const cJSON *object, const char *name, double low, double high, double *out)
{
    const cJSON *value = field_of(object, name);
    char rule[96];
    snprintf(rule, sizeof(rule), "is not a number in %g .. %g", low, high);
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= low && value->valuedouble <= high))
        return refuse(r, name, value, rule);
    *out = value->valuedouble;
    return 0;
}

static int read_int(const reading_t *r, const cJSON *object, const char *name, int high, int *out)
{
    double value;
    if (read_number(r, object, name, 1, high, &value) != 0)
        return -1;
    *out = (int)value;
    return value == floor(value) ? 0 : refuse(r, name, field_of(object, name), "is not an integer");
}

/* A list of numbers, ascending. */
static int read_list(const reading_t *r, const cJSON *object, const char *name, double low, double high, double *out,
                     int *count)
{
    const cJSON *list = field_of(object, name), *one;
    char rule[96];
    snprintf(rule, sizeof(rule), "is not an ascending list of 1 to %d numbers in %g .. %g", LIST_MAX, low, high);
    *count = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) < 1 || cJSON_GetArraySize(list) > LIST_MAX)
        return refuse(r, name, list, rule);
    cJSON_ArrayForEach(one, list)
    {
        double value = cJSON_IsNumber(one) ? one->valuedouble : NAN;
        if (!(value >= low && value <= high) || (*count > 0 && value <= out[*count - 1]))
            return refuse(r, name, list, rule);
        out[(*count)++] = value;
    }
    return 0;
}

static int read_nics(const reading_t *r, const cJSON *json, deployment_t *d)
{
    if (read_list(r, json, "nics_per_rank", 1.0 / 64, 64, d->nics, &d->nic_count) != 0)
        return -1;
    for (int i = 0; i < d->nic_count; i++) {
        double whole = d->nics[i] >= 1 ? d->nics[i] : 1 / d->nics[i];
        if (whole != floor(whole))
            return refuse(r, "nics_per_rank", field_of(json, "nics_per_rank"),
                          "holds neither whole NICs nor one part of 1");
    }
    return 0;
}

static int read_domains(const reading_t *r, const cJSON *json, deployment_t *d)
{
    double values[LIST_MAX];
    if (read_list(r, json, "attention_domains", 1, 65536, values, &d->domain_count) != 0)
        return -1;
    for (int i = 0; i < d->domain_count; i++) {
        d->domains[i] = (int)values[i];
        if (values[i] != floor(values[i]) || values[i] * d->ranks_per_domain > 65536)
            return refuse(r, "attention_domains", field_of(json, "attention_domains"),
                          "holds more than 65536 ranks, or a part of a domain");
    }
    return 0;
}

static int check_known(const reading_t *r, const cJSON *object, const char *const *known)
{
    const cJSON *field;
    cJSON_ArrayForEach(field, object)
    {
        int i = 0;
        while (known[i] && strcmp(field->string, known[i]) != 0)
            i++;
        if (!known[i])
            return refuse(r, field->string, field, "is not a field of " SCHEMA);
    }
    return 0;
}

static int read_fields(const reading_t *r, const cJSON *json, deployment_t *d)
{
    static const char *const known[] = { "schema", "name", "model", "dtype", "num_sms", "layers", "ranks_per_domain",
                                         "ffn_domains", "attention_domains", "nics_per_rank", "tokens",
                                         "tokens_per_second", "communication_share", NULL };
    static const char *const of_model[] = { "num_experts", "top_k", "hidden", NULL };
    const cJSON *model = field_of(json, "model"), *dtype = field_of(json, "dtype"), *name = field_of(json, "name");
    const cJSON *schema = field_of(json, "schema");
    if (!cJSON_IsString(schema) || strcmp(schema->valuestring, SCHEMA) != 0)
        return refuse(r, "schema", schema, "is not \"" SCHEMA "\"");
    if (check_known(r, json, known) != 0)
        return -1;
    if (!cJSON_IsString(name) || !name->valuestring[0])
        return refuse(r, "name", name, "is not a name");
    if (!cJSON_IsObject(model))
        return refuse(r, "model", model, "is not an object");
    if (check_known(r, model, of_model) != 0)
        return -1;
    if (!cJSON_IsString(dtype) || (strcmp(dtype->valuestring, "fp8") != 0 && strcmp(dtype->valuestring, "bf16") != 0))
        return refuse(r, "dtype", dtype, "is neither \"bf16\" nor \"fp8\"");
    d->fp8 = strcmp(dtype->valuestring, "fp8") == 0;
    d->name = strdup(name->valuestring);
    if (!d->name)
        return afdep_why(r->why, r->why_size, "%s: no memory", r->file);
    if (read_int(r, model, "num_experts", 1 << 20, &d->num_experts) != 0 ||
        read_int(r, model, "top_k", 32, &d->top_k) != 0 || read_int(r, model, "hidden", 1 << 20, &d->hidden) != 0 ||
        read_int(r, json, "num_sms", 1024, &d->num_sms) != 0 || read_int(r, json, "layers", 1 << 20, &d->layers) != 0 ||
        read_int(r, json, "ranks_per_domain", 65536, &d->ranks_per_domain) != 0 ||
        read_int(r, json, "ffn_domains", 65536, &d->ffn_domains) != 0 ||
        read_int(r, json, "tokens", 1 << 24, &d->tokens) != 0 ||
        read_number(r, json, "tokens_per_second", 1e-3, 1e12, &d->tokens_per_second) != 0 ||
        read_number(r, json, "communication_share", 1e-6, 1, &d->share) != 0)
        return -1;
    return read_domains(r, json, d) != 0 ? -1 : read_nics(r, json, d);
}

static int load(deployment_t *d, const char *file, char *why, size_t why_size)
{
    reading_t r = { file, why, why_size };
    memset(d, 0, sizeof(*d));
    d->file = file;
    cJSON *json = afdep_json_read(file, AFDEP_JSON_CONFIG_BYTES, why, why_size);
    if (!json)
        return -1;
    int status = read_fields(&r, json, d);
    cJSON_Delete(json);
    return status;
}

/* ---- Predicting ---------------------------------------------------------------------------------------------- */

/* Strings stay the plan's own. */
static int scenario_of(const deployment_t *d, const afdep_predict_plan_t *plan, int domains, afdep_scenario_t *s,
                       char *why, size_t why_size)
{
    char what[512];
    *s = plan->scenario;
    s->ranks_per_domain = d->ranks_per_domain;
    if ((int64_t)d->ffn_domains * d->ranks_per_domain > 65536)
        return afdep_why(why, why_size, "%s: ffn_domains: %d of %d are more than 65536 ranks", d->file, d->ffn_domains,
                         d->ranks_per_domain);
    s->ffn_ranks = d->ffn_domains * d->ranks_per_domain;
    s->attention_ranks = domains * d->ranks_per_domain;
    s->num_experts = d->num_experts;
    s->top_k = d->top_k;
    s->hidden = d->hidden;
    s->dtype = d->fp8 ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16;
    s->num_sms = d->num_sms;
    s->tokens[0] = d->tokens;
    s->token_counts = 1;
    s->capacity = d->tokens;
    s->graph = 1;
    if (afdep_scenario_check(s, what, sizeof(what)) == 0)
        return 0;
    return afdep_why(why, why_size, "%s: %s", d->file, what);
}

/* What a saturated ratio is told in: the first whose round trip exceeds the budget, of the rows [from, to). */
static void say(const deployment_t *d, const afdep_predict_row_t *rows, int count, char *text, size_t size)
{
    const afdep_predict_row_t *first = NULL, *before = NULL;
    for (int i = 0; i < count && !first; i++) {
        if (rows[i].us > rows[i].budget_us)
            first = &rows[i];
        else
            before = &rows[i];
    }
    if (!first) {
        snprintf(text, size,
                 "%g NICs per rank: no ratio up to %g:1 saturates; there the busiest is %s, serving %.0f%% of "
                 "the time.",
                 rows[0].nics_per_rank, (double)rows[count - 1].domains / d->ffn_domains,
                 afdep_resource_name(rows[count - 1].busiest),
                 100 * rows[count - 1].load[rows[count - 1].busiest].share);
        return;
    }
    snprintf(text, size,
             "%g NICs per rank: saturated from %g:1 (%.1f us against %.1f us), by %s, serving %.0f%% of the time%s",
             first->nics_per_rank, (double)first->domains / d->ffn_domains, first->us, first->budget_us,
             afdep_resource_name(first->busiest), 100 * first->load[first->busiest].share,
             before ? "" : "; no ratio fits.");
    if (before) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "; %g:1 fits with %.1f us.", (double)before->domains / d->ffn_domains,
                 before->us);
    }
}

static int run(const afdep_predict_plan_t *plan, const deployment_t *d, afdep_predict_rows_t *rows, char *why,
               size_t why_size)
{
    double budget_us = d->tokens / d->tokens_per_second / d->layers * d->share * 1e6;
    afdep_cost_t cost = plan->cost; /* with another number of NICs; strings stay the plan's own */
    for (int n = 0; n < d->nic_count; n++) {
        cost.value[AFDEP_COST_NICS_PER_RANK] = d->nics[n];
        for (int i = 0; i < d->domain_count; i++) {
            afdep_scenario_t scenario;
            if (scenario_of(d, plan, d->domains[i], &scenario, why, why_size) != 0 ||
                afdep_predict_rows_add(rows, plan, &scenario, &cost, budget_us, why, why_size) != 0)
                return 2;
        }
    }
    return 0;
}

static int finish(const afdep_predict_plan_t *plan, const deployment_t *d, const afdep_predict_rows_t *rows, char *why,
                  size_t why_size)
{
    char text[LIST_MAX + 1][512], title[256];
    const char *said[LIST_MAX + 1];
    snprintf(text[0], sizeof(text[0]),
             "%d layers, %d tokens a step and %g tokens per second at each Attention rank; exchanges "
             "may take %g of a layer's time, which is %.1f us. Ratios are Attention to FFN domains, %d of %d ranks.",
             d->layers, d->tokens, d->tokens_per_second, d->share, rows->rows[0].budget_us, d->ffn_domains,
             d->ranks_per_domain);
    for (int n = 0; n < d->nic_count; n++)
        say(d, rows->rows + n * d->domain_count, d->domain_count, text[n + 1], sizeof(text[n + 1]));
    for (int i = 0; i <= d->nic_count; i++) {
        said[i] = text[i];
        printf("# %s\n", text[i]);
    }
    snprintf(title, sizeof(title), "Predicted: %.200s", d->name);
    if (afdep_predict_rows_record(rows, plan, why, why_size) != 0)
        return 1;
    if (plan->out && afdep_predict_rows_page(rows, plan, title, said, d->nic_count + 1, why, why_size) != 0)
        return 1;
    return 0;
}

int afdep_predict_planning(afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    deployment_t d;
    afdep_predict_rows_t rows = { 0 };
    int status = load(&d, plan->plan, why, why_size) == 0 ? 0 : 2;
    afdep_scenario_t first; /* what a record's head shows */
    if (status == 0 && scenario_of(&d, plan, d.domains[0], &first, why, why_size) != 0)
        status = 2;
    if (status == 0)
        plan->scenario = first;
    if (status == 0 && afdep_predict_rows_folder(plan, why, why_size) != 0)
        status = 2;
    if (status == 0) {
        afdep_predict_rows_head(plan, d.name);
        status = run(plan, &d, &rows, why, why_size);
    }
    if (status == 0)
        status = finish(plan, &d, &rows, why, why_size);
    afdep_predict_rows_free(&rows);
    free(d.name);
    return status;
}
