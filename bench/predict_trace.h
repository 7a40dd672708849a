/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated exchange in the Chrome trace format: a process for each rank, in it a row for its calls, each of its
 * NICs' directions, NVLink ports, SMs and warps. Opens in Perfetto and chrome://tracing.
 */
#ifndef AFDEP_BENCH_PREDICT_TRACE_H
#define AFDEP_BENCH_PREDICT_TRACE_H

#include "bench/predict.h"

typedef struct afdep_chrome afdep_chrome_t;

/* Writes spans of `exchange` only. NULL with one line where `file` cannot be written. */
afdep_chrome_t *afdep_chrome_begin(const char *file, const afdep_scenario_t *scenario, uint64_t exchange, char *why,
                                   size_t why_size);
const afdep_predict_watch_t *afdep_chrome_watch(afdep_chrome_t *chrome);

/* Closes and frees. 0, or -1 with one line where the file is not whole; it is then gone. */
int afdep_chrome_end(afdep_chrome_t *chrome, char *why, size_t why_size);

#endif
