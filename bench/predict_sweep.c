/* SPDX-License-Identifier: Apache-2.0 */
/* --sweep: a scenario varied in Attention domains, channels and tokens. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/why.h"
#include "bench/predict_rows.h"

#define VALUES_MAX 64

typedef struct axis {
    const char *name;
    int values[VALUES_MAX], count, given;
} axis_t;

enum {
    DOMAINS,
    CHANNELS,
    TOKENS,
    AXES
};

/* "1,8,32" up to a space; returns what follows, or NULL with a line. */
static const char *parse_values(axis_t *axis, const char *at, char *why, size_t why_size)
{
    axis->count = 0;
    for (;;) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != ' ' && *end != '\0') || value < 0 || value > INT_MAX) {
            afdep_why(why, why_size, "--sweep: %s: \"%.32s\" is not a list of numbers", axis->name, at);
            return NULL;
        }
        if (axis->count == VALUES_MAX) {
            afdep_why(why, why_size, "--sweep: %s: more than %d values", axis->name, VALUES_MAX);
            return NULL;
        }
        axis->values[axis->count++] = (int)value;
        at = end + (*end == ',');
        if (*end != ',')
            return at;
    }
}

static int parse(axis_t *axes, const char *text, char *why, size_t why_size)
{
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, "=");
        int i = 0;
        while (i < AXES && !(strlen(axes[i].name) == length && strncmp(axes[i].name, at, length) == 0))
            i++;
        if (i == AXES || at[length] != '=')
            return afdep_why(why, why_size, "--sweep: \"%.32s\" is none of domains=, channels=, tokens=", at);
        if (axes[i].given++)
            return afdep_why(why, why_size, "--sweep: %s: is given a second time", axes[i].name);
        at = parse_values(&axes[i], at + length + 1, why, why_size);
        if (!at)
            return -1;
    }
    return 0;
}

static int check(const axis_t *axes, const afdep_scenario_t *s, char *why, size_t why_size)
{
    if (s->ranks_per_domain == afdep_scenario_ranks(s) && axes[DOMAINS].given)
        return afdep_why(why, why_size, "--sweep: domains: the scenario is one domain");
    for (int i = 0; axes[DOMAINS].given && i < axes[DOMAINS].count; i++)
        if (axes[DOMAINS].values[i] == 0)
            return afdep_why(why, why_size, "--sweep: domains: 0 is no number of Attention domains");
    for (int i = 0; i < axes[CHANNELS].count; i++)
        if (axes[CHANNELS].values[i] < 8 || axes[CHANNELS].values[i] % 8 != 0)
            return afdep_why(why, why_size, "--sweep: channels: %d is not a multiple of 8", axes[CHANNELS].values[i]);
    return 0;
}

/* The scenario with its axes set; strings are shared. */
static int vary(const afdep_scenario_t *base, int domains, int channels, int tokens, afdep_scenario_t *out, char *why,
                size_t why_size)
{
    *out = *base;
    if (domains > 0 && (int64_t)domains * base->ranks_per_domain > 65536)
        return afdep_why(why, why_size, "--sweep: domains: %d of %d are more than 65536 ranks", domains,
                         base->ranks_per_domain);
    if (domains > 0)
        out->attention_ranks = domains * base->ranks_per_domain;
    out->num_sms = channels / 8;
    out->tokens[0] = tokens;
    out->token_counts = 1;
    out->capacity = tokens > out->capacity ? tokens : out->capacity;
    return afdep_scenario_check(out, why, why_size);
}

static int run(const afdep_predict_plan_t *plan, const axis_t *axes, afdep_predict_rows_t *rows, char *why,
               size_t why_size)
{
    for (int d = 0; d < axes[DOMAINS].count; d++)
        for (int c = 0; c < axes[CHANNELS].count; c++)
            for (int t = 0; t < axes[TOKENS].count; t++) {
                afdep_scenario_t scenario;
                if (vary(&plan->scenario, axes[DOMAINS].values[d], axes[CHANNELS].values[c], axes[TOKENS].values[t],
                         &scenario, why, why_size) != 0 ||
                    afdep_predict_rows_add(rows, plan, &scenario, &plan->cost, NAN, why, why_size) != 0)
                    return 2;
            }
    return 0;
}

int afdep_predict_sweep(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    /* Without an axis the scenario's own values; domains 0: as it is. */
    axis_t axes[AXES] = { { "domains", { 0 }, 1, 0 },
                          { "channels", { 8 * plan->scenario.num_sms }, 1, 0 },
                          { "tokens", { 0 }, plan->scenario.token_counts, 0 } };
    afdep_predict_rows_t rows = { 0 };
    memcpy(axes[TOKENS].values, plan->scenario.tokens, (size_t)plan->scenario.token_counts * sizeof(int));
    if (parse(axes, plan->sweep, why, why_size) != 0 || check(axes, &plan->scenario, why, why_size) != 0 ||
        afdep_predict_rows_folder(plan, why, why_size) != 0)
        return 2;
    afdep_predict_rows_head(plan, plan->sweep);
    int status = run(plan, axes, &rows, why, why_size);
    char title[256];
    snprintf(title, sizeof(title), "Predicted: %.120s, %.100s", plan->scenario.name, plan->sweep);
    if (status == 0 && (afdep_predict_rows_record(&rows, plan, why, why_size) != 0 ||
                        (plan->out && afdep_predict_rows_page(&rows, plan, title, NULL, 0, why, why_size) != 0)))
        status = 1;
    afdep_predict_rows_free(&rows);
    return status;
}
