/* SPDX-License-Identifier: Apache-2.0 */
/* The downhill simplex over the fitted parameters, each scaled by where it starts. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/predict_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/lib/why.h"

#define STEP 0.25    /* of a parameter's start, to the simplex's other corners */
#define RESTARTS 4   /* a simplex that has shrunk is spread anew around its best corner */
#define SHRUNK 0.002 /* relative difference of the corners' errors that counts as shrunk */

typedef struct corner {
    double at[AFDEP_COSTS];
    double error; /* sum of squared relative errors */
} corner_t;

typedef struct search {
    afdep_fit_t *fit;
    int ids[AFDEP_COSTS], count; /* the free parameters */
    double start[AFDEP_COSTS];
    int evaluation, cells;
    corner_t corners[AFDEP_COSTS + 1];
    double best;
    char *why;
    size_t why_size;
} search_t;

static double clamped(int id, double value)
{
    const afdep_cost_info_t *info = &afdep_cost_table[id];
    return value < info->low ? info->low : value > info->high ? info->high : value;
}

static int add_errors(search_t *s, const afdep_published_screen_t *screen, double *sum)
{
    for (int a = 0; a < screen->arms; a++)
        for (int t = 0; t < screen->scenario.token_counts; t++) {
            double off = screen->arm[a].predicted[t] / screen->arm[a].us[t] - 1;
            if (isnan(off))
                continue;
            *sum += off * off;
            s->cells++;
        }
    return 0;
}

/* The error at a corner. -1 with a line where a prediction fails. */
static int evaluate(search_t *s, corner_t *corner)
{
    afdep_fit_t *fit = s->fit;
    afdep_predict_how_t how = fit->how;
    double outside = 0;
    for (int i = 0; i < s->count; i++) {
        double value = corner->at[i] * s->start[i];
        fit->cost->value[s->ids[i]] = clamped(s->ids[i], value);
        if (fit->cost->value[s->ids[i]] != value)
            outside += 1; /* corners beyond a parameter's range are pushed back */
    }
    how.cost = fit->cost;
    corner->error = outside;
    s->cells = 0;
    for (int i = 0; i < fit->published->count; i++) {
        afdep_published_screen_t *screen = &fit->published->screens[i];
        if (!screen->fitted)
            continue;
        if (afdep_published_predict(screen, &how, s->why, s->why_size) != 0)
            return -1;
        add_errors(s, screen, &corner->error);
    }
    s->evaluation++;
    if (s->evaluation == 1 || corner->error < s->best)
        s->best = corner->error;
    if (fit->tick)
        fit->tick(fit->context, s->evaluation, sqrt(s->best / (s->cells > 0 ? s->cells : 1)));
    return 0;
}

/* Corners in order of their errors; equal ones stay as they are. */
static void sort(search_t *s)
{
    for (int i = 1; i <= s->count; i++) {
        corner_t moved = s->corners[i];
        int at = i;
        for (; at > 0 && s->corners[at - 1].error > moved.error; at--)
            s->corners[at] = s->corners[at - 1];
        s->corners[at] = moved;
    }
}

static int spread(search_t *s, double step)
{
    for (int i = 1; i <= s->count; i++) {
        s->corners[i] = s->corners[0];
        s->corners[i].at[i - 1] *= 1 + step;
        if (evaluate(s, &s->corners[i]) != 0)
            return -1;
    }
    sort(s);
    return 0;
}

/* The corner that lies `factor` times as far from the middle of the others as the worst does. */
static int reflect(search_t *s, double factor, corner_t *out)
{
    for (int i = 0; i < s->count; i++) {
        double middle = 0;
        for (int k = 0; k < s->count; k++)
            middle += s->corners[k].at[i];
        middle /= s->count;
        out->at[i] = middle + factor * (s->corners[s->count].at[i] - middle);
    }
    return evaluate(s, out);
}

static int shrink(search_t *s)
{
    for (int k = 1; k <= s->count; k++) {
        for (int i = 0; i < s->count; i++)
            s->corners[k].at[i] = (s->corners[k].at[i] + s->corners[0].at[i]) / 2;
        if (evaluate(s, &s->corners[k]) != 0)
            return -1;
    }
    return 0;
}

static int step(search_t *s)
{
    corner_t *worst = &s->corners[s->count], tried = *worst, further = *worst;
    if (reflect(s, -1, &tried) != 0)
        return -1;
    if (tried.error < s->corners[0].error) {
        if (reflect(s, -2, &further) != 0)
            return -1;
        *worst = further.error < tried.error ? further : tried;
    } else if (tried.error < s->corners[s->count - 1].error) {
        *worst = tried;
    } else {
        if (reflect(s, tried.error < worst->error ? -0.5 : 0.5, &further) != 0)
            return -1;
        if (further.error < worst->error && further.error < tried.error)
            *worst = further;
        else if (shrink(s) != 0)
            return -1;
    }
    sort(s);
    return 0;
}

static int search(search_t *s)
{
    if (evaluate(s, &s->corners[0]) != 0)
        return -1;
    if (s->cells == 0)
        return afdep_why(s->why, s->why_size, "the screens to fit on hold no time that the model has a prediction for");
    for (int restart = 0; restart < RESTARTS; restart++) {
        if (spread(s, restart % 2 ? -STEP : STEP) != 0)
            return -1;
        while (s->evaluation < s->fit->evaluations &&
               s->corners[s->count].error - s->corners[0].error > SHRUNK * s->corners[0].error)
            if (step(s) != 0)
                return -1;
        if (s->evaluation >= s->fit->evaluations)
            break;
    }
    return evaluate(s, &s->corners[0]); /* leaves the best values in the model */
}

int afdep_fit_run(afdep_fit_t *fit, char *why, size_t why_size)
{
    search_t *s = calloc(1, sizeof(*s));
    if (!s)
        return afdep_why(why, why_size, "no memory for the fit");
    s->fit = fit;
    s->why = why;
    s->why_size = why_size;
    for (int id = 0; id < AFDEP_COSTS; id++) {
        if (fit->cost->origin[id] != AFDEP_COST_FITTED)
            continue;
        s->ids[s->count] = id;
        s->start[s->count] = fit->cost->value[id] > 0 ? fit->cost->value[id] : 1;
        s->corners[0].at[s->count] = fit->cost->value[id] > 0 ? 1 : 0;
        s->count++;
    }
    int status = s->count == 0 ? afdep_why(why, why_size, "cost model %s marks no parameter as fitted", fit->cost->name)
                               : search(s);
    free(s);
    return status;
}
