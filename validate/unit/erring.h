/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread ranks whose calls are to fail in known ways, on layouts in one domain and across domains. Include after
 * cmocka.h.
 */
#ifndef AFDEP_VALIDATE_UNIT_ERRING_H
#define AFDEP_VALIDATE_UNIT_ERRING_H

#include <stdatomic.h>

#include "validate/unit/crowd.h"
#include "validate/unit/rig.h"

typedef struct error_case {
    int ffn, attention, per_domain;
    int dense, fp8, in_flight, timeout_ms;
    int bucket[8];          /* by rank, where buckets differ */
    int absent;             /* the rank that never calls, or that leaves an exchange unfinished */
    atomic_int done;        /* ranks that are through with what they wait in */
    atomic_int timeouts, protocols;
} error_case_t;

static const error_case_t layouts[] = {
    { .ffn = 2, .attention = 4, .per_domain = 0 },
    { .ffn = 2, .attention = 4, .per_domain = 2 },
    { .ffn = 2, .attention = 2, .per_domain = 1 },
    { .ffn = 2, .attention = 4, .per_domain = 2, .dense = 1 },
    { .ffn = 2, .attention = 4, .per_domain = 3 }, /* both roles in each domain */
};
#define LAYOUTS ((int)(sizeof(layouts) / sizeof(layouts[0])))
#define LAYOUTS_OF_ONE_ROLE (LAYOUTS - 1) /* the first ones: a dispatch forwards for nobody, and waits for nobody's */

/* NULL when a call returned `want` and said `text`; else what it did. */
static inline const char *expect(afdep_status_t got, afdep_status_t want, const char *text, const char *what)
{
    const char *said = afdep_last_error();
    if (got == want && (got == AFDEP_OK || strstr(said, text)))
        return NULL;
    return crowd_say("%s: %s, wanted %s with \"%s\": %s", what, afdep_status_string(got), afdep_status_string(want),
                     text, said);
}

#define EXPECT(call, status, text)                                                                                    \
    do {                                                                                                              \
        const char *expect_failed = expect((call), (status), (text), #call);                                          \
        if (expect_failed)                                                                                            \
            return expect_failed;                                                                                     \
    } while (0)
#define FINE(call) EXPECT(call, AFDEP_OK, "")
#define BAD(call, text) EXPECT(call, AFDEP_ERR_ARGUMENT, text)

static inline rig_t *open_case(const afdep_group_t *group, const error_case_t *c)
{
    afdep_config_t config = rig_config(c->ffn, c->per_domain, c->timeout_ms ? c->timeout_ms : 20000);
    afdep_status_t status;
    config.dtype = c->fp8 ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16;
    config.in_flight = c->in_flight;
    if (c->dense)
        config.stagger = config.sparse_dispatch = config.sparse_combine = AFDEP_OFF;
    return rig_open(group, &config, &status);
}

static inline void run(error_case_t *c, crowd_rank_fn body)
{
    atomic_store(&c->done, 0);
    const char *failed = crowd_run(c->ffn + c->attention, body, c);
    if (failed)
        fail_msg("%dF:%dA, %d per domain%s: %s", c->ffn, c->attention, c->per_domain, c->dense ? ", dense" : "",
                 failed);
}

static inline void run_layouts(crowd_rank_fn body)
{
    for (int i = 0; i < LAYOUTS; i++) {
        error_case_t c;
        memcpy(&c, &layouts[i], sizeof(c));
        run(&c, body);
    }
}

#endif
