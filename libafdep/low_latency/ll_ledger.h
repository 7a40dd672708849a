/* SPDX-License-Identifier: Apache-2.0 */
/* Who may make which call when, and what handles, hooks and events name: the same on every backend. */
#ifndef AFDEP_LOW_LATENCY_LL_LEDGER_H
#define AFDEP_LOW_LATENCY_LL_LEDGER_H

#include <afdep/low_latency.h>

#include "low_latency/ll_layout.h"

/* What hooks and events name: a half of an exchange of a buffer. */
typedef enum afdep_ll_half {
    AFDEP_LL_DISPATCH = 1,
    AFDEP_LL_COMBINE = 2
} afdep_ll_half_t;

/* Where an exchange is at this rank. */
typedef enum afdep_ll_stage {
    AFDEP_LL_FREE,
    AFDEP_LL_SENT,     /* dispatched, not received */
    AFDEP_LL_RECEIVED, /* its combine is awaited */
    AFDEP_LL_RETURNED  /* combine sent, not received */
} afdep_ll_stage_t;

typedef struct afdep_ll_ledger {
    uint64_t seal;                         /* of this buffer's handles, hooks and events */
    uint64_t opened_at, started, combined; /* the exchange before the first; the last that was dispatched, combined */
    uint64_t exchange[AFDEP_LL_PLANES];
    afdep_ll_stage_t stage[AFDEP_LL_PLANES];
} afdep_ll_ledger_t;

/* `of` is what the seal is made of: an address that no other buffer has. */
void afdep_ll_ledger_start(afdep_ll_ledger_t *ledger, const void *of, uint64_t opened_at);

/* ORDER where two exchanges are under way; and the exchange that is dispatched now. */
afdep_status_t afdep_ll_may_dispatch(const afdep_ll_ledger_t *ledger);
uint64_t afdep_ll_start_exchange(afdep_ll_ledger_t *ledger);

static inline void afdep_ll_set_stage(afdep_ll_ledger_t *ledger, uint64_t exchange, afdep_ll_stage_t stage)
{
    ledger->stage[afdep_ll_plane_index(exchange)] = stage;
}

/* The handle of an exchange, and what a hook or an event of one of its halves holds. */
afdep_ll_handle_t afdep_ll_handle_of(const afdep_ll_ledger_t *ledger, uint64_t exchange);
void afdep_ll_name_half(const afdep_ll_ledger_t *ledger, uint64_t exchange, afdep_ll_half_t half, uint64_t opaque[2]);

/* The exchange of a handle: not combined yet; and the one that a combine is of: received, and the oldest. `call` is for
   the sentence. ARGUMENT, ORDER. */
afdep_status_t afdep_ll_find_handle(const afdep_ll_ledger_t *ledger, const afdep_ll_handle_t *handle, const char *call,
                                    uint64_t *exchange);
afdep_status_t afdep_ll_find_combine(const afdep_ll_ledger_t *ledger, const afdep_ll_handle_t *handle,
                                     uint64_t *exchange);

/* The half behind what a call gave, and whether that has completed. ARGUMENT. */
afdep_status_t afdep_ll_find_half(const afdep_ll_ledger_t *ledger, const uint64_t opaque[2], const char *call,
                                  uint64_t *exchange, afdep_ll_half_t *half, int *done);

/* ORDER, with the sentence of a close, where an exchange is unfinished. */
afdep_status_t afdep_ll_may_close(const afdep_ll_ledger_t *ledger, int rank);

#endif
