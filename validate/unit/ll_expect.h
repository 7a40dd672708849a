/* SPDX-License-Identifier: Apache-2.0 */
/* What both programs of the low-latency API's rules use: a status with its sentence, and a config in one line. */
#ifndef AFDEP_VALIDATE_UNIT_LL_EXPECT_H
#define AFDEP_VALIDATE_UNIT_LL_EXPECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include <afdep/low_latency.h>

#define MIB ((uint64_t)1 << 20)

static inline void expect(afdep_status_t got, afdep_status_t want, const char *word, int line)
{
    if (got != want || (want != AFDEP_OK && !strstr(afdep_last_error(), word)))
        fail_msg("line %d: %s \"%s\", not %s with \"%s\"", line, afdep_status_string(got),
                 got == AFDEP_OK ? "" : afdep_last_error(), afdep_status_string(want), word);
}
#define EXPECT(status, want, word) expect(status, want, word, __LINE__)
#define EXPECT_OK(status) expect(status, AFDEP_OK, "", __LINE__)

static inline afdep_ll_config_t config_of(afdep_ll_profile_t profile, int tokens, int hidden, int top_k, int experts)
{
    afdep_ll_config_t c = AFDEP_LL_CONFIG_INIT;
    c.profile = profile;
    c.num_max_dispatch_tokens_per_rank = tokens;
    c.hidden = hidden;
    c.num_topk = top_k;
    c.num_experts = experts;
    return c;
}

#endif
