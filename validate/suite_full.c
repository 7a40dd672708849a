/* SPDX-License-Identifier: Apache-2.0 */
/* full: the long runs. Everything of quick, then a soak of random shapes, and kills at random points. */
#include <string.h>

#include "validate/child.h"
#include "validate/recording.h"
#include "validate/rig.h"

typedef struct soak {
    int buffers, exchanges; /* exchanges of each buffer */
} soak_t;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static afdep_toggle_t random_toggle(uint64_t *state)
{
    return next_random(state) % 4 ? AFDEP_ON : AFDEP_OFF;
}

/* Buffers of random settings, exchanges of random shapes; the same on all ranks, since the seed is. */
static void run_soak(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    const soak_t *soak = c->argument;
    uint64_t state = v->seed;
    for (int b = 0; b < soak->buffers && outcome->verdict == AFDEP_PASSED; b++) {
        afdep_rig_plan_t plan = { .capacity = 1 + (int)(next_random(&state) % 24),
                                  .num_sms = 1 + (int)(next_random(&state) % 3),
                                  .hidden = 256,
                                  .alignment = 1 + (int)(next_random(&state) % 9),
                                  .other_dtype = (int)(next_random(&state) % 2),
                                  .apply_weights = (int)(next_random(&state) % 2),
                                  .union_buffers = next_random(&state) % 8 == 0,
                                  .mixed_hybrid = (int)(next_random(&state) % 2),
                                  .entry_barrier = v->scenario->ffn_ranks == 0 && next_random(&state) % 4 == 0,
                                  .stagger = random_toggle(&state),
                                  .sparse_dispatch = random_toggle(&state),
                                  .sparse_combine = random_toggle(&state),
                                  .fp8_combine = next_random(&state) % 4 ? AFDEP_OFF : AFDEP_ON,
                                  .fp8_combine_min_bucket = (int)(next_random(&state) % 8) - 1 };
        afdep_rig_t rig;
        if (afdep_rig_open(v, &plan, &rig, outcome) != 0)
            return;
        for (int n = 0; n < soak->exchanges; n++) {
            for (int a = 0; a < rig.scenario.attention_ranks; a++) {
                uint64_t r = next_random(&state);
                rig.tokens[a] = r % 4 == 0 ? 0 : (int)(r >> 8) % (rig.scenario.capacity + 1);
                rig.tokens[a] = rig.tokens[a] < 0 ? 0 : r % 3 ? rig.tokens[a] % 4 : rig.tokens[a];
                if (rig.tokens[a] > rig.scenario.capacity)
                    rig.tokens[a] = rig.scenario.capacity;
            }
            afdep_exchange_plan_t exchange = afdep_rig_plain(&rig);
            uint64_t r = next_random(&state);
            exchange.inactive_percent = r % 8 == 0 ? 100 : r % 8 < 3 ? 30 : 0;
            exchange.read_host_counts = r >> 8 & 1;
            exchange.view = r >> 9 & 1;
            exchange.strided_scales = r >> 10 & 1;
            if (afdep_rig_exchange(&rig, &exchange, outcome) != 0)
                break;
        }
        afdep_rig_close(&rig, outcome);
    }
}

const afdep_case_t afdep_cases_full[] = {
    { "soak", AFDEP_SUITE_FULL, run_soak, &(const soak_t){ 50, 2000 }, 0, NULL },
    { "recorded_soak", AFDEP_SUITE_FULL, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 280, .pairs = 26 }, 0, NULL },
    { "recorded_delayed", AFDEP_SUITE_FULL, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 28, .pairs = 26, .delay_replies = 1, .delay_dispatches = 1 }, 0, NULL },
    { "kills_across_domains", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 2, 4, 2, 350, -1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "kills_in_one_domain", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 1, 3, 4, 150, -1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "kills_in_shared_domains", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 2, 4, 3, 100, -1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "kills_of_symmetric_ranks", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 0, 4, 2, 50, -1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "survived_sources_across_domains", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 2, 4, 2, 300, -1, AFDEP_KILL_SURVIVED }, 1, "kill" },
    { "survived_sources_of_two_ffn_domains", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 4, 4, 2, 50, -1, AFDEP_KILL_SURVIVED }, 1, "kill" },
    { "survived_sources_in_one_domain", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 2, 3, 5, 150, -1, AFDEP_KILL_SURVIVED }, 1, "kill" },
    { "kills_while_opening", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 2, 2, 2, 20, -1, AFDEP_KILL_OPENING }, 1, "kill" },
    { NULL, AFDEP_SUITE_FULL, NULL, NULL, 0, NULL },
};

/* On GPUs a death is noticed at a deadline, so kills are few. */
const afdep_case_t afdep_cases_device_full[] = {
    { "soak", AFDEP_SUITE_FULL, run_soak, &(const soak_t){ 8, 150 }, 0, NULL },
    { "recorded_soak", AFDEP_SUITE_FULL, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 112, .pairs = 26 }, 0, NULL },
    { "recorded_delayed", AFDEP_SUITE_FULL, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 28, .pairs = 26, .delay_replies = 1, .delay_dispatches = 1 }, 0, NULL },
    { "recorded_alternating", AFDEP_SUITE_FULL, afdep_run_replays,
      &(const afdep_replays_t){ .replays = 28, .pairs = 27, .alternate = 1, .whole = 1 }, 0, NULL },
    { "kills", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 1, 1, 2, 4, -1, AFDEP_KILL_EXCHANGING }, 1, "kill" },
    { "kills_while_opening", AFDEP_SUITE_FULL, afdep_run_kills,
      &(const afdep_kill_t){ 1, 1, 2, 3, -1, AFDEP_KILL_OPENING }, 1, "kill" },
    { NULL, AFDEP_SUITE_FULL, NULL, NULL, 0, NULL },
};
