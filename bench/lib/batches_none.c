/* SPDX-License-Identifier: Apache-2.0 */
/* Micro-batches on a GPU, in a build without CUDA: there are none. */
#include "bench/lib/batches.h"

afdep_status_t afdep_batches_create(const afdep_batches_plan_t *plan, afdep_batches_t **batches)
{
    (void)plan, (void)batches;
    return AFDEP_ERR_UNSUPPORTED;
}

void afdep_batches_destroy(afdep_batches_t *batches)
{
    (void)batches;
}

afdep_status_t afdep_batches_run(afdep_batches_t *batches, double *us)
{
    (void)batches, (void)us;
    return AFDEP_ERR_UNSUPPORTED;
}
