/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges across the rounds in which lines are renewed (cuda/rail_few.cuh), of few and of many tokens. Afterwards no word
 * that is ever looked at may hold a number from before those rounds, or it would be taken for what it is not 2^32 exchanges
 * later, which no test can wait for.
 */
#include "validate/device_fault.h"

#include <string.h>

#define ROUNDS (1u << 24)
#define BEFORE 6 /* exchanges of each plane before the end of the rounds that are due, ... */
#define AFTER 3  /* ... and behind it */
#define YOUNG 3  /* rounds that a number is old then, at most */
#define TOKENS 3

/* The last exchange of the rounds that are due. */
static uint64_t last_due(const afdep_renewal_t *renewal)
{
    return renewal->in_flight == 1 ? ROUNDS - 1 : (uint64_t)renewal->in_flight * ROUNDS;
}

static int exchange(afdep_rig_t *rig, const afdep_renewal_t *renewal, uint64_t number, afdep_outcome_t *outcome)
{
    afdep_rig_tokens(rig, (int)(number % (TOKENS + 1))); /* the others' places keep what they hold */
    afdep_exchange_plan_t plan = afdep_rig_plain(rig);
    /* Rounds count from the end of those that are due; a bit of `many` is the round's, the lowest the last one's. */
    int64_t round = ((int64_t)last_due(renewal) - (int64_t)number) / renewal->in_flight;
    plan.bucket = round >= 0 && round < 2 && renewal->many >> round & 1 ? rig->scenario.capacity : TOKENS;
    return afdep_rig_exchange(rig, &plan, outcome);
}

static void run(const afdep_validation_t *v, const afdep_renewal_t *renewal, afdep_tap_t *tap, afdep_outcome_t *outcome)
{
    uint64_t last = last_due(renewal), number = last - (uint64_t)(BEFORE * renewal->in_flight);
    afdep_rig_plan_t plan = { .capacity = afdep_rig_beyond_lines(v->scenario), .in_flight = renewal->in_flight, .hidden = 256 };
    afdep_rig_t rig;
    if (afdep_rig_open_after(v, &plan, number, &rig, outcome) != 0)
        return;
    int failed = afdep_tap_connect(tap, &rig);
    while (number < last && outcome->verdict == AFDEP_PASSED)
        (void)exchange(&rig, renewal, ++number, outcome);
    afdep_world_barrier(v->world); /* nobody stores from here on, ... */
    uint32_t age = 0;
    if (failed || afdep_tap_take(tap) != 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "the segment could not be looked at");
    else if ((age = afdep_tap_oldest_line(tap, (uint32_t)last)) > YOUNG * (uint32_t)renewal->in_flight)
        afdep_outcome_set(outcome, AFDEP_FAILED, "behind exchange %llu a word of a line is %u exchanges old", (unsigned long long)last, age);
    afdep_world_barrier(v->world); /* ... to here */
    while (number < last + (uint64_t)(AFTER * renewal->in_flight) && outcome->verdict == AFDEP_PASSED)
        (void)exchange(&rig, renewal, ++number, outcome);
    afdep_tap_disconnect(tap);
    afdep_rig_close(&rig, outcome);
}

void afdep_run_renewal(const afdep_validation_t *v, const afdep_case_t *c, afdep_outcome_t *outcome)
{
    afdep_validation_t tapped = *v;
    afdep_world_t world = *v->world;
    afdep_tap_t tap;
    tapped.world = &world;
    if (afdep_tap_init(&tap, v->fabric) != 0) {
        afdep_outcome_set(outcome, AFDEP_FAILED, "there is no device fabric \"%s\"", v->fabric);
        return;
    }
    world.group.fabrics = &tap.provider.super;
    run(&tapped, c->argument, &tap, outcome);
}
