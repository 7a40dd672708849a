/* SPDX-License-Identifier: Apache-2.0 */
/* Opening compares what every rank resolved; any difference is refused on every rank, naming the field and who. */
#ifndef AFDEP_CORE_AGREEMENT_H
#define AFDEP_CORE_AGREEMENT_H

#include "core/config.h"

/*
 * Collective: one allgather on every rank, also where `own` is an error (`settings` is then ignored), so that no rank
 * waits for one that has already given up. Returns `own` where that is an error; AGREEMENT where another rank failed or
 * differs; OK where all agree. `fabric` is the fabric's resolved name.
 */
afdep_status_t afdep_agree(const afdep_group_t *group, afdep_status_t own, const afdep_settings_t *settings,
                           const char *fabric);

/* The same for any text of "name=value" lines, in the same order at every rank. */
afdep_status_t afdep_agree_lines(const afdep_group_t *group, afdep_status_t own, const char *lines);

/* Collective: one allgather. OK when `own` is OK on all ranks; `own` where it is not; else AGREEMENT naming the first
   rank that failed and its sentence. `what` is what was tried, for the message. */
afdep_status_t afdep_agree_status(const afdep_group_t *group, afdep_status_t own, const char *what);

#endif
