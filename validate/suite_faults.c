/* SPDX-License-Identifier: Apache-2.0 */
/* faults: what is injected, and what must come of it: absorbed with exact results, or a named error at every rank. */
#include "validate/child.h"

const afdep_case_t afdep_cases_faults[] = {
    { "killed_attention_rank", AFDEP_SUITE_FAULTS, afdep_run_kills,
      &(const afdep_kill_t){ 2, 4, 2, 3, 5, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "killed_ffn_rank", AFDEP_SUITE_FAULTS, afdep_run_kills,
      &(const afdep_kill_t){ 2, 4, 2, 3, 1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "killed_in_one_domain", AFDEP_SUITE_FAULTS, afdep_run_kills,
      &(const afdep_kill_t){ 1, 3, 4, 3, -1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "killed_while_opening", AFDEP_SUITE_FAULTS, afdep_run_kills,
      &(const afdep_kill_t){ 2, 2, 2, 2, -1, AFDEP_KILL_OPENING }, 1, "kill" },
    { NULL, AFDEP_SUITE_FAULTS, NULL, NULL, 0, NULL },
};
