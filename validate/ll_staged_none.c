/* SPDX-License-Identifier: Apache-2.0 */
/* Staged low-latency calls of a build without CUDA: there are none. */
#include "validate/ll_staged.h"

#include <stddef.h>

afdep_ll_staged_t *afdep_ll_staged_create(int ranks, int rank, int max_tokens, int hidden, int top_k, int experts)
{
    (void)ranks, (void)rank, (void)max_tokens, (void)hidden, (void)top_k, (void)experts;
    return NULL;
}

void afdep_ll_staged_destroy(afdep_ll_staged_t *staged)
{
    (void)staged;
}

afdep_status_t afdep_ll_staged_dispatch(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer,
                                        afdep_ll_dispatch_t *dispatch)
{
    (void)staged, (void)buffer, (void)dispatch;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_received(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer,
                                        const afdep_ll_dispatch_t *dispatch)
{
    (void)staged, (void)buffer, (void)dispatch;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_combine(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer,
                                       afdep_ll_combine_t *combine)
{
    (void)staged, (void)buffer, (void)combine;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_summed(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer, afdep_ll_combine_t *combine,
                                      void *result)
{
    (void)staged, (void)buffer, (void)combine, (void)result;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_record_halves(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer)
{
    (void)staged, (void)buffer;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_redispatch(afdep_ll_staged_t *staged, const afdep_ll_dispatch_t *dispatch)
{
    (void)staged, (void)dispatch;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_recombine(afdep_ll_staged_t *staged, const afdep_ll_combine_t *combine)
{
    (void)staged, (void)combine;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_record(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer, int pairs)
{
    (void)staged, (void)buffer, (void)pairs;
    return AFDEP_ERR_UNSUPPORTED;
}

afdep_status_t afdep_ll_staged_replay(afdep_ll_staged_t *staged, afdep_ll_buffer_t *buffer, int times,
                                      afdep_ll_staged_times_t *result)
{
    (void)staged, (void)buffer, (void)times, (void)result;
    return AFDEP_ERR_UNSUPPORTED;
}
