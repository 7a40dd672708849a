/* SPDX-License-Identifier: Apache-2.0 */
/* Formats, and what a profile makes of them: pure functions of names and numbers. */
#ifndef AFDEP_LOW_LATENCY_LL_MODE_H
#define AFDEP_LOW_LATENCY_LL_MODE_H

#include <afdep/low_latency.h>

#include "low_latency/ll_layout.h"

/* Where a legal `format` and `hidden` are known to be: bytes of a row's codes, and of its scales. */
size_t afdep_ll_code_bytes(afdep_ll_format_t format, int32_t hidden);
size_t afdep_ll_scale_bytes(afdep_ll_format_t format, int32_t hidden);

/* afdep_ll_resolve_format() with the environment's word given. */
afdep_status_t afdep_ll_choose_format(afdep_ll_profile_t profile, const afdep_ll_request_t *request, int int8_fallback,
                                      afdep_ll_format_t *format);

/* CONFIG where the shape of a configuration or of an exchange exceeds the profile's limits; `hosts` as configured. */
afdep_status_t afdep_ll_check_limits(afdep_ll_profile_t profile, const afdep_ll_shape_t *shape, int hosts);

/* CONFIG where T tokens are more than a dispatch takes. */
afdep_status_t afdep_ll_check_tokens(afdep_ll_profile_t profile, int32_t tokens, int32_t max_tokens);

/* What a profile's rule asks of the configured size (not native: that is the segment), and the part of that size which
   counts. */
uint64_t afdep_ll_required_bytes(afdep_ll_profile_t profile, const afdep_ll_shape_t *shape, int hosts);
uint64_t afdep_ll_available_bytes(afdep_ll_profile_t profile, uint64_t configured);

/* CONFIG, naming both sizes, where it is not enough. */
afdep_status_t afdep_ll_check_bytes(afdep_ll_profile_t profile, const afdep_ll_shape_t *shape, int hosts,
                                    uint64_t required, uint64_t configured);

#endif
