/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings; docs/configuration.md is checked against it. */
#include <limits.h>
#include <stddef.h>

#include "core/config.h"

#define FIELD(field) offsetof(afdep_config_t, field)

const afdep_setting_t afdep_settings_table[] = {
    { "ffn_ranks", NULL, AFDEP_SETTING_INT, 1, INT_MAX, 0, FIELD(ffn_ranks), 0,
      "FFN ranks; they come first; 0: symmetric, every rank is both" },
    { "ranks_per_domain", NULL, AFDEP_SETTING_INT, 1, INT_MAX, 0, FIELD(ranks_per_domain), 0,
      "ranks of one load/store domain; 0: all ranks" },
    { "num_experts", NULL, AFDEP_SETTING_INT, 1, 1 << 20, 0, FIELD(num_experts), 0,
      "experts, a multiple of ffn_ranks (symmetric: of all ranks)" },
    { "top_k", NULL, AFDEP_SETTING_INT, 1, 32, 0, FIELD(top_k), 0, "choices per token, at most num_experts" },
    { "hidden", NULL, AFDEP_SETTING_INT, 256, 1 << 20, 0, FIELD(hidden), 0, "elements of a row, a multiple of 256" },
    { "dtype", NULL, AFDEP_SETTING_INT, 0, 1, 0, FIELD(dtype), 0, "dispatched rows: 0 BF16, 1 FP8" },
    { "capacity", NULL, AFDEP_SETTING_INT, 1, 1 << 24, 0, FIELD(capacity), 0, "largest bucket, tokens per source" },
    { "num_sms", "AFDEP_NUM_SMS", AFDEP_SETTING_INT, 1, 1024, 24, FIELD(num_sms), 0, "channels / 8" },
    { "expert_alignment", NULL, AFDEP_SETTING_INT, 1, 1 << 16, 1, FIELD(expert_alignment), 0,
      "expert rows start at multiples of it" },
    { "in_flight", "AFDEP_IN_FLIGHT", AFDEP_SETTING_INT, 1, 4, 1, FIELD(in_flight), 0,
      "dispatches that may be unmatched at once" },
    { "timeout_ms", "AFDEP_TIMEOUT_MS", AFDEP_SETTING_INT, 1, INT_MAX, 60000, FIELD(timeout_ms), 0,
      "deadline of every wait, milliseconds" },
    { "stagger", "AFDEP_STAGGER", AFDEP_SETTING_TOGGLE, 0, 1, 1, FIELD(stagger), 0,
      "sources start on different channels (across domains)" },
    { "sparse_dispatch", "AFDEP_SPARSE_DISPATCH", AFDEP_SETTING_TOGGLE, 0, 1, 1, FIELD(sparse_dispatch), 0,
      "finish tails only from channels that carry tokens (across domains)" },
    { "sparse_combine", "AFDEP_SPARSE_COMBINE", AFDEP_SETTING_TOGGLE, 0, 1, 1, FIELD(sparse_combine), 0,
      "combine signals only on channels replied on, and a done witness (across domains)" },
    { "apply_weights", NULL, AFDEP_SETTING_FLAG, 0, 1, 0, FIELD(flags), AFDEP_FLAG_APPLY_WEIGHTS,
      "worker_reply multiplies rows by their routing weights" },
    { "union_buffers", "AFDEP_UNION_BUFFERS", AFDEP_SETTING_FLAG, 0, 1, 0, FIELD(flags), AFDEP_FLAG_UNION_BUFFERS,
      "every rank registers both roles' regions (a measurement control)" },
    { "mixed_hybrid", "AFDEP_MIXED_HYBRID", AFDEP_SETTING_FLAG, 0, 1, 0, FIELD(flags), AFDEP_FLAG_MIXED_HYBRID,
      "the mixed-role protocol where domains hold both roles" },
    { "entry_barrier", "AFDEP_ENTRY_BARRIER", AFDEP_SETTING_FLAG, 0, 1, 0, FIELD(flags), AFDEP_FLAG_ENTRY_BARRIER,
      "a dispatch begins with a barrier, in place of witnesses (symmetric only)" },
    { "survive_sources", "AFDEP_SURVIVE_SOURCES", AFDEP_SETTING_FLAG, 0, 1, 0, FIELD(flags), AFDEP_FLAG_SURVIVE_SOURCES,
      "an Attention rank that dies or stalls past the deadline is masked, and the others go on" },
    { "backend", "AFDEP_BACKEND", AFDEP_SETTING_TEXT, 0, 0, 0, FIELD(backend), 0, "host or cuda (default host)" },
    { "fabric", "AFDEP_FABRIC", AFDEP_SETTING_TEXT, 0, 0, 0, FIELD(fabric), 0,
      "what moves bytes (default: the group's own, else shm)" },
    { "row_ops", "AFDEP_ROW_OPS", AFDEP_SETTING_TEXT, 0, 0, 0, AFDEP_SETTING_NO_FIELD, 0,
      "vector version of the row loops: auto, scalar, avx2, avx512; results are the same" },
    { "shared_hybrid_forward", "AFDEP_SHARED_HYBRID_FORWARD", AFDEP_SETTING_INT, 0, 1, 0, AFDEP_SETTING_NO_FIELD, 0,
      "1: ablation, sparse_dispatch off unless the configuration sets it" },
    { "shared_hybrid_collect", "AFDEP_SHARED_HYBRID_COLLECT", AFDEP_SETTING_INT, 0, 1, 0, AFDEP_SETTING_NO_FIELD, 0,
      "1: ablation, sparse_combine off unless the configuration sets it" },
    { "fp8_combine", "AFDEP_HYBRID_FP8_COMBINE", AFDEP_SETTING_TOGGLE, 0, 1, 0, FIELD(fp8_combine), 0,
      "replies leave FFN domains as FP8, which is lossy (across domains of one role; elsewhere off)" },
    { "fp8_combine_min_bucket", "AFDEP_HYBRID_FP8_COMBINE_MIN_BUCKET", AFDEP_SETTING_INT, INT_MIN, INT_MAX, 0,
      FIELD(fp8_combine_min_bucket), 0, "smallest bucket with FP8 replies; negative: 0, every bucket" },
    { "shared_role_kernels", "AFDEP_SHARED_ROLE_KERNELS", AFDEP_SETTING_INT, 0, 1, 0, AFDEP_SETTING_NO_FIELD, 0,
      "1: one kernel for both roles, an ablation of the CUDA backend; refused on the host backend" },
    { "first_exchange", "AFDEP_TEST_FIRST_EXCHANGE", AFDEP_SETTING_INT, 0, INT64_MAX / 2, 0, AFDEP_SETTING_NO_FIELD, 0,
      "tests only: exchanges that count as done at open, so that words wrap soon" },
    { NULL, NULL, AFDEP_SETTING_INT, 0, 0, 0, 0, 0, NULL },
};

_Static_assert(sizeof(afdep_settings_table) / sizeof(afdep_settings_table[0]) - 1 <= AFDEP_SETTINGS_MOST,
               "a resolved configuration has room for AFDEP_SETTINGS_MOST values");
