/* SPDX-License-Identifier: Apache-2.0 */
/* What the workload needs of a routing trace; afdep_trace_load() and afdep_trace_free() are in workload.h. */
#ifndef AFDEP_VALIDATE_TRACE_H
#define AFDEP_VALIDATE_TRACE_H

#include "validate/workload.h"

/* Copies row `place` modulo the number of rows: ids [K], and weights [K] where the trace has them (else left alone). */
void afdep_trace_read(const afdep_trace_t *trace, uint64_t place, int32_t *ids, float *weights);

#endif
