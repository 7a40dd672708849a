/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of what engines ask for beside the exchange itself. */
#ifndef AFDEP_VALIDATE_ENGINE_H
#define AFDEP_VALIDATE_ENGINE_H

#include "validate/cases.h"

/* Load statistics, read all along by a thread of their own; the argument is an afdep_rig_plan_t. */
void afdep_run_load(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome);

/* Dispatches that are completed later, while the workers still have the exchange before; the argument is an
   afdep_rig_plan_t. */
void afdep_run_send_only(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome);

#endif
