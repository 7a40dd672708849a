/* SPDX-License-Identifier: Apache-2.0 */
/* What the page says of a set: what changed, how sure that is, arms, builds, exchange, machine, signals, failures. */
#ifndef AFDEP_BENCH_REPORT_TEXT_H
#define AFDEP_BENCH_REPORT_TEXT_H

#include "bench/report_page.h"
#include "bench/report_set.h"

void afdep_text_changes(afdep_page_t *page, const afdep_report_set_t *set);
void afdep_text_details(afdep_page_t *page, const afdep_report_set_t *set);

#endif
