/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the sources send: payloads, routes and weights, the same on every rank for the same seed, so that any rank can
 * say what any other rank sent. Independent of the library's protocol code.
 *
 * Every value is a function of (scenario, seed, exchange, source, token) alone. Routes and payload come from separate
 * streams, so that a rank may ask for all sources' routes and for just the payload rows it needs.
 */
#ifndef AFDEP_VALIDATE_WORKLOAD_H
#define AFDEP_VALIDATE_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "bench/lib/scenario.h"

/* Expert popularity of a scenario with zipf routing. */
typedef struct afdep_popularity afdep_popularity_t;

/* One source's tokens of one exchange. Owned by the caller of afdep_workload_source(). */
typedef struct afdep_source_tokens {
    int source;     /* Attention index 0 .. A-1; its rank is F + source */
    int tokens;     /* T of this source */
    void *x;        /* [T, H]: BF16 bits or e4m3 codes, 64-byte aligned; NULL where only routes are held */
    float *x_scale; /* [T, H/128] or NULL */
    int32_t *ids;   /* [T, K] */
    float *weights; /* [T, K], positive, summing to about 1 */
    afdep_popularity_t *popularity; /* zipf routing only, else NULL */
} afdep_source_tokens_t;

/* Routing traces: {"schema": "afdep-trace/1", "top_k", "num_experts", "ids": [[...]], "weights": [[...]]?}; token i of
   source s in exchange n takes row (n + s * 131 + i) modulo the number of rows. */
typedef struct afdep_trace afdep_trace_t;

/* Loads a trace for the scenario; NULL with a line. */
afdep_trace_t *afdep_trace_load(const char *file, const afdep_scenario_t *scenario, char *why, size_t why_size);
void afdep_trace_free(afdep_trace_t *trace);

/*
 * Allocates the arrays of `tokens` for at most `max_tokens` tokens: all of them, or ids and weights only
 * (afdep_workload_alloc_routes: enough for afdep_workload_routes, not for afdep_workload_source). 0, or -1 without
 * memory; `tokens` then holds nothing.
 */
int afdep_workload_alloc(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, int max_tokens);
int afdep_workload_alloc_routes(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, int max_tokens);
void afdep_workload_free(afdep_source_tokens_t *tokens);

/*
 * Fills `tokens` with source `source`'s `count` tokens of exchange `exchange`: finite values of mixed magnitude and
 * sign, denormals, zeros and repeated values among them, never NaN; for FP8 all finite codes, scales that are not
 * powers of two among them. `trace` is read for trace routing only.
 */
void afdep_workload_source(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, const afdep_trace_t *trace,
                           uint64_t seed, uint64_t exchange, int source, int count);

/* The same, ids and weights only: what any rank needs to know of what a source sends where. */
void afdep_workload_routes(afdep_source_tokens_t *tokens, const afdep_scenario_t *scenario, const afdep_trace_t *trace,
                           uint64_t seed, uint64_t exchange, int source, int count);

/* One token's payload alone: x_row [H] (8-byte aligned) and, for FP8, scale_row [H/128]; as afdep_workload_source()
   writes it. */
void afdep_workload_row(void *x_row, float *scale_row, const afdep_scenario_t *scenario, uint64_t seed,
                        uint64_t exchange, int source, int token);

/* The expert stand-in of checked exchanges: writes the BF16 reply row (weight not applied when `apply_weights`, i.e.
   when the library applies it) for a received row; depends on the row, its scales, its weight and its expert. */
void afdep_workload_expert(uint16_t *reply, const void *row, const float *row_scale, float weight, int expert,
                           const afdep_scenario_t *scenario, int apply_weights);

#endif
