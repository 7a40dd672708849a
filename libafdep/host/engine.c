/* SPDX-License-Identifier: Apache-2.0 */
/* What engines ask for beside the exchange itself: load statistics, and dispatches that are completed later. */
#include "core/error.h"
#include "host/host.h"

/* ---- Load statistics ----------------------------------------------------------------------------------------- */

void afdep_host_count_sent(afdep_host_t *h)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = h->plane;
    int64_t choices = (int64_t)p->tokens * s->top_k;
    if (h->worker)
        return; /* a symmetric rank counts what its experts get */
    afdep_load_begin(h->load);
    for (int64_t i = 0; i < choices; i++)
        if (p->ids[i] >= 0)
            afdep_load_expert(h->load, p->ids[i], 1);
    afdep_load_source(h->load, h->rank - s->ffn_ranks, (uint64_t)p->tokens);
    afdep_load_end(h->load);
}

void afdep_host_count_received(afdep_host_t *h)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = h->plane;
    afdep_load_begin(h->load);
    for (int e = 0; e < s->experts_per_rank; e++) {
        int64_t before = e ? p->ends[e - 1] : 0, align = s->expert_alignment;
        int64_t start = (before + align - 1) / align * align;
        afdep_load_expert(h->load, h->rank * s->experts_per_rank + e, (uint64_t)(p->ends[e] - start));
    }
    for (uint32_t i = 0; i < p->arrival_count; i++) {
        const afdep_arrival_t *arrival = &p->arrivals[i];
        afdep_load_source(h->load, afdep_host_source(h, arrival->source_domain, arrival->rail) - s->ffn_ranks, 1);
    }
    afdep_load_end(h->load);
}

/* ---- Send-only dispatch -------------------------------------------------------------------------------------- */

afdep_status_t afdep_host_check_complete(const afdep_host_t *h)
{
    if (!h->incomplete)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_ORDER, "%s: the send-only dispatch of exchange %llu is not completed yet", h->call_name,
                      (unsigned long long)h->started);
}

afdep_status_t afdep_host_send(afdep_host_t *h)
{
    h->incomplete = 1;
    return afdep_host_advance(h);
}

afdep_status_t afdep_host_complete(afdep_host_t *h)
{
    if (!h->incomplete)
        return AFDEP_OK;
    h->incomplete = 0;
    afdep_status_t status = afdep_host_check(h);
    return status == AFDEP_OK ? afdep_host_run(h) : status;
}
