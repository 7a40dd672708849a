/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/ll_rig.h"

#include <stdlib.h>
#include <string.h>

static int either(int value, int fallback)
{
    return value ? value : fallback;
}

static int experts_of(const afdep_ll_rig_plan_t *p, int ranks)
{
    int experts = p->experts ? p->experts / ranks * ranks : ranks * either(p->experts_per_rank, 4);
    return experts ? experts : ranks;
}

static int on_gpu(const afdep_validation_t *v)
{
    return v->backend && strcmp(v->backend, "cuda") == 0;
}

static int make_tensors(afdep_ll_rig_t *rig, const afdep_ll_rig_plan_t *p)
{
    int experts = experts_of(p, rig->ranks), top_k = either(p->top_k, 4);
    rig->tokens = calloc(2 * (size_t)rig->ranks, sizeof(*rig->tokens));
    int failed = !rig->tokens;
    for (int i = 0; !failed && i < either(p->tensors, 1); i++) {
        failed = afdep_ll_exchanger_init(&rig->x[i], rig->ranks, rig->v->world->rank, either(p->max_tokens, 16),
                                         either(p->hidden, 256), top_k < experts ? top_k : experts, experts,
                                         rig->v->seed) != 0;
        rig->tensors += !failed;
        failed = failed || afdep_ll_exchanger_routing(&rig->x[i], &p->routing) != 0 ||
                 (on_gpu(rig->v) && afdep_ll_exchanger_stage(&rig->x[i]) != 0);
    }
    return failed;
}

static void free_tensors(afdep_ll_rig_t *rig)
{
    while (rig->tensors > 0)
        afdep_ll_exchanger_free(&rig->x[--rig->tensors]);
    free(rig->tokens);
}

int afdep_ll_rig_open(const afdep_validation_t *v, const afdep_ll_rig_plan_t *p, afdep_ll_rig_t *rig,
                      afdep_outcome_t *outcome)
{
    memset(rig, 0, sizeof(*rig));
    rig->v = v;
    rig->ranks = v->world->size;
    int failed = make_tensors(rig, p);
    if (failed)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no memory for tensors");
    rig->config = failed ? (afdep_ll_config_t)AFDEP_LL_CONFIG_INIT : afdep_ll_exchanger_config(&rig->x[0]);
    rig->config.profile = p->profile;
    /* Across domains mpi has no memory to build in; profile a2 has rules of its own there, and wants variables; on
       GPUs all ranks are one domain. */
    rig->config.ranks_per_domain = p->profile == AFDEP_LL_A2 || on_gpu(v) ? 0 : v->scenario->ranks_per_domain;
    rig->config.timeout_ms = v->timeout_ms;
    rig->config.fabric = v->fabric;
    rig->config.backend = v->backend;
    rig->config.buffer_bytes = p->buffer_bytes;
    /* A rank without tensors has an illegal configuration, and so takes the others along. */
    if (afdep_ll_buffer_open(&v->world->group, &rig->config, &rig->buffer) == AFDEP_OK)
        return 0;
    afdep_outcome_set(outcome, AFDEP_FAILED, "open: %s", afdep_last_error());
    free_tensors(rig);
    return -1;
}

void afdep_ll_rig_close(afdep_ll_rig_t *rig, afdep_outcome_t *outcome)
{
    if (afdep_ll_buffer_close(rig->buffer) != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "close: %s", afdep_last_error());
    free_tensors(rig);
}

void afdep_ll_rig_tokens(afdep_ll_rig_t *rig, int tokens)
{
    for (int r = 0; r < rig->ranks; r++)
        rig->tokens[r] = tokens;
}

afdep_ll_plan_t afdep_ll_rig_plain(afdep_ll_rig_t *rig, afdep_ll_format_t format)
{
    return (afdep_ll_plan_t){ .number = rig->number++, .tokens = rig->tokens, .format = format };
}

int afdep_ll_rig_exchange(afdep_ll_rig_t *rig, const afdep_ll_plan_t *plan, afdep_outcome_t *outcome)
{
    if (afdep_ll_exchange(&rig->x[0], plan, rig->buffer) != AFDEP_OK) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "exchange %llu, %s: %s", (unsigned long long)plan->number,
                          afdep_ll_format_name(plan->format), rig->x[0].why);
        return -1;
    }
    outcome->exchanges++;
    return 0;
}
