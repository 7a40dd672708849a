/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep-sim: exchanges predicted in virtual time. The parts: predict_plan (command line), predict (one case), predict_
 * queue, links, source, receive and reply (how time passes in it), predict_cost (cost models), predict_published and
 * predict_fit (times to be set beside predictions), predict_cells, compare, sweep, planning (what the program says).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <stdio.h>
#include <stdlib.h>

#include "bench/predict_plan.h"

static int run(afdep_predict_plan_t *plan, char *why, size_t why_size)
{
    switch (plan->mode) {
    case AFDEP_PREDICT_COMPARE:
        return afdep_predict_compare(plan, why, why_size);
    case AFDEP_PREDICT_SWEEP:
        return afdep_predict_sweep(plan, why, why_size);
    case AFDEP_PREDICT_FIT:
        return afdep_predict_fit(plan, why, why_size);
    case AFDEP_PREDICT_PLAN:
        return afdep_predict_planning(plan, why, why_size);
    default:
        return afdep_predict_cells(plan, why, why_size);
    }
}

int main(int argc, char **argv)
{
    char why[1024] = "";
    afdep_predict_plan_t *plan = calloc(1, sizeof(*plan));
    if (!plan) {
        fprintf(stderr, "afdep-sim: no memory\n");
        return 1;
    }
    int asked = afdep_predict_plan_parse(plan, argc, argv, why, sizeof(why)), status = asked < 0 ? 2 : 0;
    if (asked == 0 && plan->common.json && afdep_record_probe(plan->common.json, why, sizeof(why)) != 0)
        status = 2;
    else if (asked == 0)
        status = run(plan, why, sizeof(why));
    if (status != 0 && why[0])
        fprintf(stderr, "afdep-sim: %s\n", why);
    afdep_predict_plan_free(plan);
    free(plan);
    return afdep_options_finish("afdep-sim", status);
}
