/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/verdict.h"

#include <string.h>
#include <time.h>

#include "validate/rig.h"

const afdep_fabric_provider_t *afdep_verdict_inner_fabric(const afdep_validation_t *v)
{
    const afdep_fabric_provider_t *own = v->world->group.fabrics;
    return own && strcmp(own->name, v->fabric) == 0 ? own : &afdep_fabric_shm;
}

int64_t afdep_verdict_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void afdep_verdict(const afdep_validation_t *v, afdep_expect_t expect, afdep_status_t named, int timeout_ms,
                   const afdep_ended_t *mine, const char *why, afdep_outcome_t *outcome)
{
    afdep_ended_t all[AFDEP_RIG_SOURCES];
    int fatal = 0, said = 0;
    afdep_world_allgather(v->world, mine, all, sizeof(*mine));
    for (int r = 0; r < v->world->size; r++) {
        fatal += afdep_status_is_fatal(all[r].status);
        said += all[r].status == named;
    }
    if (mine->status != AFDEP_OK && !afdep_status_is_fatal(mine->status))
        afdep_outcome_set(outcome, AFDEP_FAILED, "%s: %s", afdep_status_string(mine->status), why);
    else if (expect == AFDEP_EXPECT_ABSORBED && mine->status != AFDEP_OK)
        afdep_outcome_set(outcome, AFDEP_FAILED, "was not absorbed: %s: %s", afdep_status_string(mine->status), why);
    else if (expect != AFDEP_EXPECT_ABSORBED && fatal > 0 && fatal < v->world->size)
        afdep_outcome_set(outcome, AFDEP_FAILED, "only %d of %d ranks were told", fatal, v->world->size);
    else if (expect == AFDEP_EXPECT_NAMED && said == 0)
        afdep_outcome_set(outcome, AFDEP_FAILED, "no rank says %s; this one says %s: %s",
                          afdep_status_string(named), afdep_status_string(mine->status), why);
    else if (timeout_ms && mine->last_call_ms > timeout_ms + 1000)
        afdep_outcome_set(outcome, AFDEP_FAILED, "the failing call took %lld ms, with a deadline of %d",
                          (long long)mine->last_call_ms, timeout_ms);
}
