/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an exchange must give, bit for bit: straight loops over the routing, written from the numeric rules alone.
 * Shares no code with libafdep/ (its own conversions included).
 *
 * An id outside [0, E), or one that an earlier slot of the token already chose, counts as -1 everywhere here.
 */
#ifndef AFDEP_VALIDATE_ORACLE_H
#define AFDEP_VALIDATE_ORACLE_H

#include "validate/workload.h"

/*
 * The received tensors of FFN rank `rank` in an exchange of all sources' tokens (`sources`: [A], of which ids and
 * weights are read: afdep_workload_routes() is enough).
 * Arrays are allocated by the oracle and freed by afdep_oracle_received_free(). 0, or -1 without memory.
 */
typedef struct afdep_oracle_received {
    int64_t rows;        /* R: the sum of `counts`, so padding after the last expert's rows is included */
    int32_t *ends;       /* [E/F] */
    int32_t *counts;     /* [E/F], aligned */
    int32_t *row_source; /* [R, 2]: source rank, token; -1, -1 in padding */
    float *row_weight;   /* [R], +0 in padding */
} afdep_oracle_received_t;

int afdep_oracle_received(afdep_oracle_received_t *received, const afdep_scenario_t *scenario,
                          const afdep_source_tokens_t *sources, int rank);
void afdep_oracle_received_free(afdep_oracle_received_t *received);

/* Number of wrong values in what worker_receive wrote (every live row's payload, scales, weight and source, padding's
   weight and source, ends; host_counts and row_source where not NULL); the first wrong one described in `why`. Payload
   rows are generated anew from `seed` and `exchange`, one at a time. */
int64_t afdep_oracle_check_received(const afdep_oracle_received_t *want, const afdep_scenario_t *scenario,
                                    uint64_t seed, uint64_t exchange, int rank, const void *rows,
                                    const float *row_scale, const float *row_weight, const int32_t *row_source,
                                    const int32_t *ends, const int32_t *host_counts, int64_t row_count, char *why,
                                    size_t why_size);

/* What collect must give token `token` of `source` ([H] BF16), when every FFN rank replied afdep_workload_expert().
   Numerics as in the design: per rank FP32 in slot order from the first contributor (fma with apply_weights), BF16; per
   domain FP32 over its ranks in rank order, BF16; the source over domains in FP32; one contributor passes through; none
   is +0; arithmetic NaN is 0x7FFF. `rules` says what the buffer was opened with. `scratch` has
   afdep_oracle_scratch(scenario) bytes, aligned for float. */
#define AFDEP_ORACLE_APPLY_WEIGHTS 1u /* AFDEP_FLAG_APPLY_WEIGHTS */
#define AFDEP_ORACLE_FP8_COMBINE 2u   /* the exchange's domain sums travel as e4m3: afdep_oracle_pack() */
size_t afdep_oracle_scratch(const afdep_scenario_t *scenario);
void afdep_oracle_token(uint16_t *out, const afdep_scenario_t *scenario, const afdep_source_tokens_t *source, int token,
                        unsigned rules, void *scratch);

/* The same for any replies: `reply(context, row, slot)` writes the BF16 row [H] that the rank owning the token's choice
   in `slot` replied with. ids and weights are the token's [K]. */
typedef void (*afdep_oracle_reply_fn)(void *context, uint16_t *row, int slot);
void afdep_oracle_sum(uint16_t *out, const afdep_scenario_t *scenario, const int32_t *ids, const float *weights,
                      unsigned rules, afdep_oracle_reply_fn reply, void *context, void *scratch);

/*
 * What a row of BF16 is after it has travelled as e4m3, in place: the smallest power of two with the largest finite
 * magnitude of 128 elements within 448 of it (2^-127 at least) is their scale, 2^127 where one of them is infinite;
 * each is rounded to the nearest multiple that e4m3 has, ties to even; finite elements stay finite, infinities and NaN
 * (as 0x7FFF) stay what they are.
 */
void afdep_oracle_pack(uint16_t *row, size_t hidden);

#endif
