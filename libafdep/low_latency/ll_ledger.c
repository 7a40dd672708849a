/* SPDX-License-Identifier: Apache-2.0 */
#include "low_latency/ll_ledger.h"

#include <string.h>

#include "core/error.h"

#define MAGIC 0x6c6f776c6174u /* "lowlat" */

void afdep_ll_ledger_start(afdep_ll_ledger_t *l, const void *of, uint64_t opened_at)
{
    memset(l, 0, sizeof(*l));
    l->seal = (uint64_t)(uintptr_t)of ^ MAGIC << 8;
    l->opened_at = l->started = l->combined = opened_at;
}

afdep_status_t afdep_ll_may_dispatch(const afdep_ll_ledger_t *l)
{
    int plane = afdep_ll_plane_index(l->started + 1);
    if (l->stage[plane] == AFDEP_LL_FREE)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_ORDER, "ll_dispatch: exchange %llu %s: two exchanges at most are under way",
                      (unsigned long long)l->exchange[plane],
                      l->stage[plane] == AFDEP_LL_RETURNED ? "was combined and its hook or event is not done"
                                                           : "is not combined yet");
}

uint64_t afdep_ll_start_exchange(afdep_ll_ledger_t *l)
{
    l->started++;
    l->exchange[afdep_ll_plane_index(l->started)] = l->started;
    return l->started;
}

afdep_ll_handle_t afdep_ll_handle_of(const afdep_ll_ledger_t *l, uint64_t exchange)
{
    return (afdep_ll_handle_t){ { l->seal + AFDEP_LL_DISPATCH, exchange, 0, 0 } };
}

void afdep_ll_name_half(const afdep_ll_ledger_t *l, uint64_t exchange, afdep_ll_half_t half, uint64_t opaque[2])
{
    opaque[0] = l->seal + (uint64_t)half;
    opaque[1] = exchange;
}

afdep_status_t afdep_ll_find_handle(const afdep_ll_ledger_t *l, const afdep_ll_handle_t *handle, const char *call,
                                    uint64_t *exchange)
{
    uint64_t n = handle->opaque[1];
    int plane = afdep_ll_plane_index(n);
    if (handle->opaque[0] != l->seal + AFDEP_LL_DISPATCH || handle->opaque[2] || handle->opaque[3])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: the handle is not one of this buffer's dispatches", call);
    if (l->exchange[plane] != n || (l->stage[plane] != AFDEP_LL_SENT && l->stage[plane] != AFDEP_LL_RECEIVED))
        return afdep_fail(AFDEP_ERR_ORDER, "%s: exchange %llu was combined before", call, (unsigned long long)n);
    *exchange = n;
    return AFDEP_OK;
}

afdep_status_t afdep_ll_find_combine(const afdep_ll_ledger_t *l, const afdep_ll_handle_t *handle, uint64_t *exchange)
{
    uint64_t n = 0;
    afdep_status_t status = afdep_ll_find_handle(l, handle, "ll_combine", &n);
    if (status != AFDEP_OK)
        return status;
    if (l->stage[afdep_ll_plane_index(n)] == AFDEP_LL_SENT)
        return afdep_fail(AFDEP_ERR_ORDER, "ll_combine: exchange %llu has not received: its hook or event comes first",
                          (unsigned long long)n);
    if (n != l->combined + 1)
        return afdep_fail(AFDEP_ERR_ORDER, "ll_combine: exchange %llu comes before exchange %llu",
                          (unsigned long long)l->combined + 1, (unsigned long long)n);
    *exchange = n;
    return AFDEP_OK;
}

afdep_status_t afdep_ll_find_half(const afdep_ll_ledger_t *l, const uint64_t opaque[2], const char *call,
                                  uint64_t *exchange, afdep_ll_half_t *half, int *done)
{
    uint64_t n = opaque[1];
    int plane = afdep_ll_plane_index(n);
    *half = opaque[0] == l->seal + AFDEP_LL_DISPATCH ? AFDEP_LL_DISPATCH : AFDEP_LL_COMBINE;
    if (opaque[0] != l->seal + (uint64_t)*half || n <= l->opened_at || n > l->started)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: not one that this buffer gave", call);
    *exchange = n;
    *done =
        l->exchange[plane] != n || l->stage[plane] != (*half == AFDEP_LL_DISPATCH ? AFDEP_LL_SENT : AFDEP_LL_RETURNED);
    return AFDEP_OK;
}

afdep_status_t afdep_ll_may_close(const afdep_ll_ledger_t *l, int rank)
{
    for (int g = 0; g < AFDEP_LL_PLANES; g++)
        if (l->stage[g] != AFDEP_LL_FREE)
            return afdep_fail(AFDEP_ERR_ORDER, "ll_buffer_close: rank %d has exchange %llu unfinished", rank,
                              (unsigned long long)l->exchange[g]);
    return AFDEP_OK;
}
