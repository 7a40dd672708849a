/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph: recorded exchanges in every combination of capacity, rows, channels and protocol, replayed with new payloads
 * and choices. A plain case replays 840 exchanges; a delayed one fewer, with late dispatches and late replies, and slow
 * forward warps where there are any.
 */
#include <afdep/afdep.h>

#include "validate/recording.h"

#define REPLAYS(...) AFDEP_SUITE_GRAPH, afdep_run_replays, &(const afdep_replays_t){ .replays = 28, __VA_ARGS__ }, 0
#define PLAIN(...) REPLAYS(.pairs = 30, __VA_ARGS__), NULL
#define DELAYED(...)                                                                                                  \
    REPLAYS(.pairs = 6, .delay_replies = 1, .delay_dispatches = 1, .slow_forward = AFDEP_SLOW_FORWARD, __VA_ARGS__),   \
        "delay: dispatches and replies, up to 400 us; slow-actor: forward, 200 us"

#define BOTH(name, ...) { name, PLAIN(__VA_ARGS__) }, { name "_delayed", DELAYED(__VA_ARGS__) }
#define CHANNELS(name, ...)                                                                                           \
    BOTH(name "_1_sm", .num_sms = 1, __VA_ARGS__), BOTH(name "_24_sms", .num_sms = 24, __VA_ARGS__)
#define ROWS(name, ...)                                                                                               \
    CHANNELS(name "_fp8", .dtype = AFDEP_DTYPE_FP8 + 1, __VA_ARGS__),                                                  \
        CHANNELS(name "_bf16", .dtype = AFDEP_DTYPE_BF16 + 1, __VA_ARGS__)
#define CAPACITIES(name, ...)                                                                                         \
    ROWS(name "_capacity_8", .capacity = 8, __VA_ARGS__), ROWS(name "_capacity_64", .capacity = 64, __VA_ARGS__),      \
        ROWS(name "_capacity_2048", .capacity = 2048, __VA_ARGS__)

const afdep_case_t afdep_cases_graph[] = {
    CAPACITIES("sparse"),
    CAPACITIES("dense", .dense = 1),
    { NULL, AFDEP_SUITE_GRAPH, NULL, NULL, 0, NULL },
};
