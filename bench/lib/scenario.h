/*
 * Scenario files: what is exchanged, between whom. Loaded strictly: an unknown or missing field, a wrong type or an
 * impossible value is refused in one line naming file, field and value.
 */
#ifndef AFDEP_BENCH_SCENARIO_H
#define AFDEP_BENCH_SCENARIO_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include <afdep/afdep.h>

#define AFDEP_SCENARIO_TOKENS_MAX 64

typedef enum afdep_routing_kind {
    AFDEP_ROUTING_UNIFORM, /* K distinct experts, uniformly */
    AFDEP_ROUTING_ZIPF,    /* expert popularity ~ 1/rank^s over a seeded permutation, K distinct */
    AFDEP_ROUTING_HOT,     /* every token chooses expert `hot`, the other K-1 uniformly */
    AFDEP_ROUTING_TRACE    /* ids and weights from a file */
} afdep_routing_kind_t;

typedef struct afdep_routing {
    afdep_routing_kind_t kind;
    double zipf_s;
    int hot_expert;
    char *trace_file; /* owned */
} afdep_routing_t;

typedef struct afdep_scenario {
    char *file; /* what to blame in messages: the file's name, or "command line"; owned */
    char *name; /* owned */
    int ffn_ranks, attention_ranks, ranks_per_domain;
    int num_experts, top_k, hidden;
    afdep_dtype_t dtype;
    int capacity, num_sms, expert_alignment;
    int tokens[AFDEP_SCENARIO_TOKENS_MAX], token_counts;
    int graph;
    afdep_routing_t routing;
    uint64_t seed;
} afdep_scenario_t;

/* Reads and checks `file`. On failure writes one line to `why` and returns -1; `scenario` then holds nothing. */
int afdep_scenario_load(const char *file, afdep_scenario_t *scenario, char *why, size_t why_size);

/* The same of an object that stands in `file`, as in a record. */
int afdep_scenario_read(const cJSON *json, const char *file, afdep_scenario_t *scenario, char *why, size_t why_size);

/* Defaults of the contract for a topology given on the command line (128 experts, top-8, hidden 2048, bf16, num_sms 24,
   alignment 1, tokens {1, 8, 32, 128}, capacity 0: afterwards the largest token count). */
void afdep_scenario_default(afdep_scenario_t *scenario);

/* Checks every field of a scenario, as loaded or as overridden: ranges, E % F, H % 256, K <= min(32,E), tokens <=
   capacity, ranks filling domains, which hold one role each or as many FFN ranks each (ffn_ranks 0: symmetric). 0, or
   -1 with one line in `why` ("FILE: field: value: rule"). */
int afdep_scenario_check(const afdep_scenario_t *scenario, char *why, size_t why_size);

/* "uniform", "zipf:1.2", "hot:3", "trace:FILE" into `routing`. 0, or -1 with a line. */
int afdep_routing_parse(const char *text, afdep_routing_t *routing, char *why, size_t why_size);

/* The whole scenario as JSON (schema afdep-scenario/1), as records hold it. The caller owns it. */
cJSON *afdep_scenario_json(const afdep_scenario_t *scenario);

/* Number of ranks. */
static inline int afdep_scenario_ranks(const afdep_scenario_t *s) { return s->ffn_ranks + s->attention_ranks; }

/* Who owns experts, and who has tokens: with ffn_ranks 0 (symmetric) every rank, which is one of attention_ranks. */
static inline int afdep_scenario_workers(const afdep_scenario_t *s)
{
    return s->ffn_ranks ? s->ffn_ranks : s->attention_ranks;
}

static inline int afdep_scenario_is_worker(const afdep_scenario_t *s, int rank)
{
    return rank < afdep_scenario_workers(s);
}

static inline int afdep_scenario_is_source(const afdep_scenario_t *s, int rank)
{
    return rank >= s->ffn_ranks;
}

/* Experts of a worker. */
static inline int afdep_scenario_experts(const afdep_scenario_t *s)
{
    return s->num_experts / afdep_scenario_workers(s);
}

/* Whether domains hold both roles. */
static inline int afdep_scenario_shares_domains(const afdep_scenario_t *s)
{
    return s->ffn_ranks > 0 && s->ranks_per_domain < afdep_scenario_ranks(s) && s->ffn_ranks % s->ranks_per_domain != 0;
}

/* Workers of a domain that has any: the first so many workers are the first such domain's, and so on. */
static inline int afdep_scenario_domain_workers(const afdep_scenario_t *s)
{
    return afdep_scenario_shares_domains(s) ? s->ffn_ranks / (afdep_scenario_ranks(s) / s->ranks_per_domain)
                                            : s->ranks_per_domain;
}

void afdep_scenario_free(afdep_scenario_t *scenario);

#endif
