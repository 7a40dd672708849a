/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions beside published or measured times; and fits, which are judged the same way. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/lib/why.h"
#include "bench/predict_fit.h"
#include "bench/predict_plan.h"

static void print_head(const afdep_predict_plan_t *plan, const char *file)
{
    printf("# afdep-sim %s, library %s, native tree %s%s\n", AFDEP_VERSION, afdep_version(), afdep_native_tree(),
           afdep_native_tree_dirty() ? " (modified)" : "");
    printf("# emulated: virtual time, cost model %s, beside the times of %s\n", plan->cost.name, file);
    printf("# the witness is awaited %s; cells of screens that the model was fitted on are marked\n",
           plan->witness == AFDEP_WITNESS_COLLECT ? "in collect, as published"
                                                  : "by the next dispatch, as in the library");
    printf("#%-31s %-32s%8s%12s%12s%9s\n", "screen", "arm", "tokens", "published", "predicted", "error");
    printf("#%-31s %-32s%8s%12s%12s%9s\n", "", "", "", "us", "us", "%");
}

static void print_screen(const afdep_published_screen_t *screen)
{
    for (int a = 0; a < screen->arms; a++) {
        const afdep_published_arm_t *arm = &screen->arm[a];
        if (arm->not_modelled)
            printf("%-32s %-32s not modelled: %s\n", screen->id, arm->name, arm->not_modelled);
        for (int t = 0; !arm->not_modelled && t < screen->scenario.token_counts; t++)
            if (!isnan(arm->us[t]))
                printf("%-32s %-32s%8d%12.1f%12.1f%9.1f%s\n", screen->id, arm->name, screen->scenario.tokens[t],
                       arm->us[t], arm->predicted[t], 100 * (arm->predicted[t] / arm->us[t] - 1),
                       screen->fitted ? "  fitted" : "");
    }
}

static void print_wrong(const afdep_published_screen_t *screen)
{
    for (int t = 0; t < screen->scenario.token_counts; t++)
        for (int a = 0; a < screen->arms; a++)
            for (int b = a + 1; b < screen->arms; b++) {
                int wrong;
                if (afdep_published_differ(&screen->arm[a], &screen->arm[b], t, &wrong) && wrong)
                    printf("# wrong order: %s, %s against %s at %d tokens\n", screen->id, screen->arm[b].name,
                           screen->arm[a].name, screen->scenario.tokens[t]);
            }
}

static void print_error(const char *what, const afdep_published_error_t *error)
{
    if (error->cells == 0)
        return;
    printf("# %s: %d cells, median error %.1f%%, largest %.1f%% (%s)\n", what, error->cells, 100 * error->median,
           100 * error->largest, error->worst);
    printf("# %s: %d differences of arms beyond 3%%, %d predicted the other way\n", what, error->gains,
           error->gains_wrong);
}

/* ---- The record ---------------------------------------------------------------------------------------------- */

static int add_arm(cJSON *screens, const afdep_published_screen_t *screen, const afdep_published_arm_t *arm)
{
    cJSON *one = cJSON_CreateObject();
    int done = one && cJSON_AddStringToObject(one, "screen", screen->id) &&
               cJSON_AddStringToObject(one, "arm", arm->name) && cJSON_AddBoolToObject(one, "fitted", screen->fitted) &&
               cJSON_AddItemToObject(one, "not_modelled",
                                     arm->not_modelled ? cJSON_CreateString(arm->not_modelled) : cJSON_CreateNull());
    cJSON *cells = done ? cJSON_AddArrayToObject(one, "cells") : NULL;
    for (int t = 0; cells && t < screen->scenario.token_counts; t++) {
        cJSON *cell = cJSON_CreateObject();
        double predicted = arm->not_modelled ? NAN : arm->predicted[t];
        cJSON_AddNumberToObject(cell, "tokens", screen->scenario.tokens[t]);
        cJSON_AddItemToObject(cell, "published_us", afdep_record_number(arm->us[t]));
        cJSON_AddItemToObject(cell, "predicted_us", afdep_record_number(predicted));
        cJSON_AddItemToObject(cell, "error_pct", afdep_record_number(100 * (predicted / arm->us[t] - 1)));
        cJSON_AddItemToArray(cells, cell);
    }
    if (cells && cJSON_AddItemToArray(screens, one))
        return 0;
    cJSON_Delete(one);
    return -1;
}

static void add_error(cJSON *record, const char *name, const afdep_published_error_t *error)
{
    cJSON *one = cJSON_AddObjectToObject(record, name);
    cJSON_AddNumberToObject(one, "cells", error->cells);
    cJSON_AddItemToObject(one, "median_pct", afdep_record_number(error->cells ? 100 * error->median : NAN));
    cJSON_AddItemToObject(one, "largest_pct", afdep_record_number(error->cells ? 100 * error->largest : NAN));
    cJSON_AddNumberToObject(one, "differences", error->gains);
    cJSON_AddNumberToObject(one, "differences_wrong", error->gains_wrong);
}

static int write_record(const afdep_predict_plan_t *plan, const afdep_published_t *published,
                        const afdep_published_error_t *fitted, const afdep_published_error_t *predicted, char *why,
                        size_t why_size)
{
    cJSON *record = afdep_predict_record(plan, "afdep-comparison/1", "arms");
    cJSON *list = record ? cJSON_GetObjectItemCaseSensitive(record, "arms") : NULL;
    int status = list ? 0 : -1;
    for (int i = 0; status == 0 && i < published->count; i++)
        for (int a = 0; status == 0 && a < published->screens[i].arms; a++)
            status = add_arm(list, &published->screens[i], &published->screens[i].arm[a]);
    if (status == 0) {
        /* Of many scenarios and arms: the head's own say nothing. */
        cJSON_DeleteItemFromObjectCaseSensitive(record, "scenario");
        cJSON_DeleteItemFromObjectCaseSensitive(record, "arm");
        cJSON_DeleteItemFromObjectCaseSensitive(record, "ranks");
        cJSON_AddTrueToObject(record, "emulated");
        add_error(record, "fitted", fitted);
        add_error(record, "predicted", predicted);
        status = afdep_record_write(plan->common.json, record, why, why_size);
    } else {
        afdep_why(why, why_size, "no memory for the record");
    }
    cJSON_Delete(record);
    return status;
}

/* ---- Comparing ----------------------------------------------------------------------------------------------- */

/* Predicts every screen with the plan's model, prints, judges, records. */
static int compare(const afdep_predict_plan_t *plan, afdep_published_t *published, const char *file, char *why,
                   size_t why_size)
{
    afdep_predict_how_t how = { &plan->cost, (afdep_witness_t)plan->witness, plan->free_running, plan->warmup,
                                plan->iterations };
    afdep_published_error_t fitted, predicted;
    print_head(plan, file);
    for (int i = 0; i < published->count; i++) {
        if (afdep_published_predict(&published->screens[i], &how, why, why_size) != 0)
            return 2;
        print_screen(&published->screens[i]);
        fflush(stdout);
    }
    for (int i = 0; i < published->count; i++)
        print_wrong(&published->screens[i]);
    if (afdep_published_judge(published, 1, &fitted) != 0 || afdep_published_judge(published, 0, &predicted) != 0) {
        afdep_why(why, why_size, "no memory to judge the errors");
        return 1;
    }
    print_error("fitted", &fitted);
    print_error("predicted", &predicted);
    if (plan->common.json && write_record(plan, published, &fitted, &predicted, why, why_size) != 0)
        return 1;
    return 0;
}

int afdep_predict_compare(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    afdep_published_t published;
    int status = afdep_published_load(plan->compare, &published, why, why_size) == 0 ? 0 : 2;
    for (int i = 0; status == 0 && i < published.count; i++)
        published.screens[i].fitted = afdep_cost_fitted_on(&plan->cost, published.screens[i].id);
    if (status == 0)
        status = compare(plan, &published, plan->compare, why, why_size);
    afdep_published_free(&published);
    return status;
}

/* ---- Fitting ------------------------------------------------------------------------------------------------- */

/* Every screen is fitted on, but those that are held out. */
static int hold_out(const afdep_predict_plan_t *plan, afdep_published_t *published, char *why, size_t why_size)
{
    int fitted = published->count;
    for (int i = 0; i < published->count; i++)
        published->screens[i].fitted = 1;
    for (const char *at = plan->hold_out ? plan->hold_out : ""; *at;) {
        size_t length = strcspn(at, ",");
        afdep_published_screen_t *screen = afdep_published_find(published, at, length);
        if (!screen)
            return afdep_why(why, why_size, "--hold-out: %.*s: is no screen of %s", (int)length, at, plan->fit);
        fitted -= screen->fitted;
        screen->fitted = 0;
        at += length + (at[length] == ',');
    }
    return fitted > 0 ? 0 : afdep_why(why, why_size, "--hold-out: leaves no screen of %s to fit on", plan->fit);
}

static void tick(void *context, int evaluation, double error)
{
    const afdep_predict_plan_t *plan = context;
    if (evaluation % 50 == 0 || evaluation == plan->evaluations)
        printf("# fit: %d evaluations, root mean square error %.2f%%\n", evaluation, 100 * error);
    fflush(stdout);
}

static int write_cost(const afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    cJSON *json = afdep_cost_json(&plan->cost);
    int status = json ? afdep_record_write(plan->cost_out, json, why, why_size)
                      : afdep_why(why, why_size, "no memory for the cost model");
    cJSON_Delete(json);
    return status;
}

static int fit(afdep_predict_plan_t *plan, afdep_published_t *published, char *why, size_t why_size)
{
    afdep_fit_t run = { .published = published,
                        .cost = &plan->cost,
                        .how = { NULL, (afdep_witness_t)plan->witness, plan->free_running, plan->warmup,
                                 plan->iterations },
                        .evaluations = plan->evaluations,
                        .tick = tick,
                        .context = plan };
    if (plan->cost_out && afdep_record_probe(plan->cost_out, why, why_size) != 0)
        return 2;
    if (afdep_fit_run(&run, why, why_size) != 0)
        return 2;
    const char *ids[AFDEP_COST_SCREENS_MAX];
    int count = 0;
    for (int i = 0; i < published->count && count < AFDEP_COST_SCREENS_MAX; i++)
        if (published->screens[i].fitted)
            ids[count++] = published->screens[i].id;
    if (afdep_cost_set_fitted_on(&plan->cost, ids, count) != 0) {
        afdep_why(why, why_size, "no memory for the cost model");
        return 1;
    }
    for (int id = 0; id < AFDEP_COSTS; id++)
        if (plan->cost.origin[id] == AFDEP_COST_FITTED)
            printf("# fitted: %s = %.6g %s\n", afdep_cost_table[id].name, plan->cost.value[id],
                   afdep_cost_table[id].unit);
    return plan->cost_out && write_cost(plan, why, why_size) != 0 ? 1 : 0;
}

int afdep_predict_fit(afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    afdep_published_t published;
    int status = afdep_published_load(plan->fit, &published, why, why_size) == 0 ? 0 : 2;
    if (status == 0 && hold_out(plan, &published, why, why_size) != 0)
        status = 2;
    if (status == 0)
        status = fit(plan, &published, why, why_size);
    if (status == 0)
        status = compare(plan, &published, plan->fit, why, why_size);
    afdep_published_free(&published);
    return status;
}
