/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers and tensors of cases. */
#include "validate/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/device.h"

static int either(int value, int fallback)
{
    return value ? value : fallback;
}

int afdep_rig_beyond_lines(const afdep_scenario_t *scenario)
{
    return AFDEP_FEW_INDICES / scenario->attention_ranks + 2;
}

void afdep_rig_shape(const afdep_validation_t *v, const afdep_rig_plan_t *p, afdep_rig_t *rig)
{
    memset(rig, 0, sizeof(*rig));
    rig->v = v;
    rig->scenario = *v->scenario;
    afdep_scenario_t *s = &rig->scenario;
    s->capacity = either(p->capacity, AFDEP_RIG_CAPACITY);
    s->num_sms = either(p->num_sms, 1);
    s->hidden = either(p->hidden, s->hidden > 512 ? 512 : s->hidden);
    if (p->num_experts_per_rank)
        s->num_experts = p->num_experts_per_rank * afdep_scenario_workers(s);
    s->top_k = either(p->top_k, s->top_k);
    s->expert_alignment = either(p->alignment, s->expert_alignment);
    if (p->other_dtype)
        s->dtype = s->dtype == AFDEP_DTYPE_FP8 ? AFDEP_DTYPE_BF16 : AFDEP_DTYPE_FP8;
    s->routing = (afdep_routing_t){ .kind = p->routing, .zipf_s = p->zipf_s };
    s->seed = v->seed;
    rig->in_flight = either(p->in_flight, 1);
    rig->apart = v->world->rank < (s->ffn_ranks ? s->ffn_ranks : 1);
    rig->config = afdep_exchanger_config(s);
    rig->config.in_flight = rig->in_flight;
    rig->config.stagger = p->stagger;
    rig->config.sparse_dispatch = p->sparse_dispatch;
    rig->config.sparse_combine = p->sparse_combine;
    rig->config.fp8_combine = p->fp8_combine;
    rig->config.fp8_combine_min_bucket = p->fp8_combine_min_bucket;
    rig->config.timeout_ms = v->timeout_ms;
    rig->config.fabric = v->fabric;
    rig->config.backend = v->backend;
    rig->config.flags = (p->apply_weights ? AFDEP_FLAG_APPLY_WEIGHTS : 0) |
                        (p->union_buffers ? AFDEP_FLAG_UNION_BUFFERS : 0) |
                        (p->mixed_hybrid ? AFDEP_FLAG_MIXED_HYBRID : 0) |
                        (p->entry_barrier ? AFDEP_FLAG_ENTRY_BARRIER : 0);
}

int afdep_rig_open(const afdep_validation_t *v, const afdep_rig_plan_t *plan, afdep_rig_t *rig,
                   afdep_outcome_t *outcome)
{
    afdep_rig_shape(v, plan, rig);
    rig->tokens = calloc(4 * (size_t)rig->scenario.attention_ranks, sizeof(*rig->tokens));
    if (v->backend && strcmp(v->backend, "cuda") == 0)
        afdep_staged_use_device(v->world->rank);
    if (afdep_buffer_open(&v->world->group, &rig->config, &rig->buffer) != AFDEP_OK) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "open: %s", afdep_last_error());
        free(rig->tokens);
        return -1;
    }
    if (v->gin && !v->gin->contexts)
        afdep_gin_note_take(v->gin, rig->buffer);
    for (int g = 0; g < rig->in_flight; g++)
        if (!rig->tokens || afdep_exchanger_init(&rig->x[g], &rig->scenario, rig->buffer, v->seed) != 0) {
            afdep_outcome_set(outcome, AFDEP_FAILED, "no memory for tensors");
            afdep_rig_close(rig, outcome);
            return -1;
        }
    afdep_rig_settle(rig);
    return 0;
}

/* The setting is an environment variable so that the library needs no switch for it; all ranks set it between two collective
   calls. */
int afdep_rig_open_after(const afdep_validation_t *v, const afdep_rig_plan_t *plan, uint64_t done, afdep_rig_t *rig,
                         afdep_outcome_t *outcome)
{
    int sets = v->world->rank == 0 || !v->world->threads;
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)done);
    afdep_world_barrier(v->world);
    if (sets)
        setenv("AFDEP_TEST_FIRST_EXCHANGE", text, 1);
    afdep_world_barrier(v->world);
    int status = afdep_rig_open(v, plan, rig, outcome);
    afdep_world_barrier(v->world);
    if (sets)
        unsetenv("AFDEP_TEST_FIRST_EXCHANGE");
    afdep_world_barrier(v->world);
    return status;
}

void afdep_rig_settle(afdep_rig_t *rig)
{
    if (rig->v->backend && strcmp(rig->v->backend, "cuda") == 0)
        afdep_world_barrier(rig->v->world);
}

void afdep_rig_close(afdep_rig_t *rig, afdep_outcome_t *outcome)
{
    afdep_rig_settle(rig);
    for (int g = 0; g < rig->in_flight; g++)
        if (rig->x[g].scenario)
            afdep_exchanger_free(&rig->x[g]);
    if (afdep_buffer_close(rig->buffer) != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "close: %s", afdep_last_error());
    rig->buffer = NULL;
    free(rig->tokens);
    rig->tokens = NULL;
}

void afdep_rig_tokens(afdep_rig_t *rig, int tokens)
{
    for (int a = 0; a < rig->scenario.attention_ranks; a++)
        rig->tokens[a] = tokens;
}

afdep_exchange_plan_t afdep_rig_plain(afdep_rig_t *rig)
{
    int most = 1;
    for (int a = 0; a < rig->scenario.attention_ranks; a++)
        most = rig->tokens[a] > most ? rig->tokens[a] : most;
    return (afdep_exchange_plan_t){ .number = rig->number++, .bucket = most, .tokens = rig->tokens };
}

int afdep_rig_exchange(afdep_rig_t *rig, afdep_exchange_plan_t *plan, afdep_outcome_t *outcome)
{
    afdep_exchanger_t *x = &rig->x[0];
    if (afdep_exchanger_first(x, plan) != AFDEP_OK || afdep_exchanger_second(x, plan) != AFDEP_OK) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "exchange %llu: %s", (unsigned long long)plan->number, x->why);
        return -1;
    }
    outcome->exchanges++;
    return 0;
}
