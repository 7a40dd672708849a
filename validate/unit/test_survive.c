/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Surviving a source that stalls: it is masked at all ranks, the others' results stay exact (also with cached
 * routing), it is told, and it is let in again. Deaths are in afdep-validate's suites, which can kill.
 *
 * Would catch: an FFN rank that gives up or waits for ever, a surviving source whose patience ends first, a reply or a
 * witness that is still sent to the masked rank and lets it run on, values that change when a source goes, a rank that
 * is not told, words that are not as new after readmission.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "validate/unit/crowd.h"
#include "validate/unit/rig.h"

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != AFDEP_OK)                                                                                        \
            return crowd_say("line %d: %s: %s", __LINE__, #call, afdep_last_error());                                  \
    } while (0)

/* Long enough that a rank that has to share its processor with many is not taken for one that stalls. The cases run at
   the same time, since each of them waits for a deadline. */
#define TIMEOUT_MS 1500

typedef struct stall_case {
    int ffn, attention, per_domain, in_flight, cached, dense;
    int victim, from; /* the first exchange that the victim does not come to */
    int half;         /* 1: it dispatches that one, and does not collect */
    atomic_int through; /* ranks that are through with the exchanges */
    pthread_t thread;
    char failed[512];
} stall_case_t;

#define EXCHANGES 7 /* before readmission, and 3 after it */
#define TOKENS 5

static void nap(void)
{
    nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
}

/* 0: they are not through after several deadlines. */
static int await_others(stall_case_t *c, int ranks)
{
    for (int ms = 0; ms < 8 * TIMEOUT_MS && atomic_load(&c->through) < ranks - 1; ms += 2)
        nap();
    return atomic_load(&c->through) == ranks - 1;
}

static afdep_status_t first(rig_t *rig, int cached)
{
    afdep_dispatch_t d = rig_dispatch_args(rig, TOKENS, TOKENS);
    afdep_receive_t r = rig_receive_args(rig, TOKENS);
    d.cached = r.cached = cached;
    if (!rig->ffn)
        return afdep_source_dispatch(rig->buffer, &d, NULL);
    afdep_status_t status = afdep_worker_receive(rig->buffer, &r, NULL);
    rig->receipt = r.receipt;
    return status;
}

static const char *exchange(rig_t *rig, int n, int cached)
{
    if (first(rig, cached) != AFDEP_OK)
        return crowd_say("exchange %d: %s", n, afdep_last_error());
    if (rig_second(rig) != AFDEP_OK)
        return crowd_say("exchange %d: %s", n, afdep_last_error());
    int wrong = rig->ffn ? -1 : rig_wrong_token(rig, TOKENS);
    return wrong < 0 ? NULL : crowd_say("exchange %d: token %d is wrong", n, wrong);
}

/* Who is masked, as this rank knows: waits a while for the word of it. */
static const char *check_lost(rig_t *rig, int victim)
{
    int32_t ranks[2] = { -1, -1 }, count = 0;
    for (int tries = 0; tries < 1000 && count == 0; tries++, nap())
        MUST(afdep_buffer_lost(rig->buffer, ranks, 2, &count));
    if (count != 1 || ranks[0] != victim)
        return crowd_say("%d ranks are masked, the first is %d", count, ranks[0]);
    return NULL;
}

static const char *stall(rig_t *rig, stall_case_t *c, int ranks)
{
    if (c->half)
        MUST(first(rig, 0));
    if (!await_others(c, ranks))
        return crowd_say("the others are not through without the masked rank");
    if (c->half) { /* what it had sent was served before it was missed */
        MUST(rig_second(rig));
        if (rig_wrong_token(rig, TOKENS) >= 0)
            return crowd_say("the masked rank's last exchange is wrong");
    }
    /* Late, and told so: by the first wait at the latest. */
    afdep_status_t status = first(rig, 0);
    if (status == AFDEP_OK)
        status = rig_second(rig);
    if (status != AFDEP_ERR_PEER || !strstr(afdep_last_error(), "this one, is masked"))
        return crowd_say("the masked rank gets %s: %s", afdep_status_string(status), afdep_last_error());
    return NULL;
}

static const char *stall_rank(const afdep_group_t *group, void *context)
{
    stall_case_t *c = context;
    afdep_config_t config = rig_config(c->ffn, c->per_domain, TIMEOUT_MS);
    afdep_status_t status;
    const char *failed;
    config.flags = AFDEP_FLAG_SURVIVE_SOURCES;
    config.in_flight = c->in_flight;
    config.stagger = config.sparse_dispatch = config.sparse_combine = c->dense ? AFDEP_OFF : AFDEP_ON;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    int32_t count = -1;
    MUST(afdep_buffer_lost(rig->buffer, NULL, 0, &count));
    if (count != 0)
        return crowd_say("%d ranks are masked at first", count);
    for (int n = 0; n < EXCHANGES; n++) {
        if (rig->rank == c->victim && n == c->from) {
            if ((failed = stall(rig, c, group->size)) != NULL)
                return failed;
            break;
        }
        for (int ms = 0; rig->ffn && n == c->from && ms < TIMEOUT_MS / 2; ms += 2)
            nap(); /* so that the other sources wait for longer than FFN ranks wait for the victim */
        if ((failed = exchange(rig, n, c->cached && n > 1)) != NULL)
            return failed;
    }
    atomic_fetch_add(&c->through, 1);
    if (rig->rank != c->victim && (failed = check_lost(rig, c->victim)) != NULL)
        return failed;
    MUST(afdep_buffer_readmit(rig->buffer, group));
    MUST(afdep_buffer_lost(rig->buffer, NULL, 0, &count));
    if (count != 0)
        return crowd_say("%d ranks are masked after readmission", count);
    for (int n = 0; n < 3; n++)
        if ((failed = exchange(rig, 100 + n, c->cached && n > 0)) != NULL)
            return failed;
    MUST(rig_close(rig));
    return NULL;
}

static const char *ffn_rank(const afdep_group_t *group, void *context);

static void *run_case(void *context)
{
    stall_case_t *c = context;
    const char *failed = crowd_run(c->ffn + c->attention, c->victim < c->ffn ? ffn_rank : stall_rank, c);
    if (failed)
        memcpy(c->failed, failed, sizeof(c->failed));
    return NULL;
}

static void test_stalls(void **state)
{
    static stall_case_t cases[] = {
        { .ffn = 2, .attention = 3, .per_domain = 5, .victim = 3, .from = 3 }, /* one domain */
        { .ffn = 2, .attention = 3, .per_domain = 5, .victim = 4, .from = 3, .cached = 1 },
        { .ffn = 1, .attention = 2, .per_domain = 3, .victim = 2, .from = 2, .half = 1 }, /* one FFN rank */
        { .ffn = 2, .attention = 4, .per_domain = 2, .victim = 4, .from = 3 }, /* across domains */
        { .ffn = 2, .attention = 4, .per_domain = 2, .victim = 3, .from = 3, .cached = 1 },
        { .ffn = 2, .attention = 4, .per_domain = 2, .victim = 5, .from = 2, .dense = 1 },
        { .ffn = 4, .attention = 2, .per_domain = 2, .victim = 5, .from = 4, .half = 1 }, /* two FFN domains */
        { .ffn = 2, .attention = 4, .per_domain = 2, .victim = 1 }, /* an FFN rank: not survived */
        { .ffn = 2, .attention = 4, .per_domain = 6, .victim = 1 },
    };
    enum { CASES = sizeof(cases) / sizeof(cases[0]) };
    (void)state;
    for (int i = 0; i < CASES; i++)
        assert_int_equal(pthread_create(&cases[i].thread, NULL, run_case, &cases[i]), 0);
    for (int i = 0; i < CASES; i++)
        pthread_join(cases[i].thread, NULL);
    for (int i = 0; i < CASES; i++)
        if (cases[i].failed[0])
            fail_msg("case %d: %s", i, cases[i].failed);
}

/* ---- What it does not forgive --------------------------------------------------------------------------------- */

/* An FFN rank that does not come: a deadline for everybody, as ever. */
static const char *ffn_rank(const afdep_group_t *group, void *context)
{
    stall_case_t *c = context;
    afdep_config_t config = rig_config(c->ffn, c->per_domain, TIMEOUT_MS);
    afdep_status_t status;
    config.flags = AFDEP_FLAG_SURVIVE_SOURCES;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->rank != c->victim) {
        /* In one domain another FFN rank has no part in it, until the sources do not come. */
        for (int n = 0; n < 4 && status == AFDEP_OK; n++) {
            for (int ms = 0; rig->ffn && n == 1 && ms < TIMEOUT_MS / 2; ms += 2)
                nap(); /* so that the sources give up before this rank does */
            status = first(rig, 0);
            if (status == AFDEP_OK)
                status = rig_second(rig);
        }
        if (status != AFDEP_ERR_TIMEOUT && status != AFDEP_ERR_PEER)
            return crowd_say("%s: %s", afdep_status_string(status), afdep_last_error());
        atomic_fetch_add(&c->through, 1);
    }
    if (!await_others(c, group->size))
        return crowd_say("the others did not end");
    (void)rig_close(rig);
    return NULL;
}

static const char *refusals_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = rig_config(1, 0, 20000);
    afdep_status_t status;
    int32_t count = 7;
    (void)context;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    MUST(afdep_buffer_lost(rig->buffer, NULL, 0, &count));
    if (count != 0)
        return crowd_say("%d ranks are masked without the flag", count);
    if (afdep_buffer_lost(rig->buffer, NULL, 1, &count) != AFDEP_ERR_ARGUMENT)
        return crowd_say("ranks may be NULL with room for one");
    if (afdep_buffer_readmit(rig->buffer, group) != AFDEP_ERR_UNSUPPORTED)
        return crowd_say("readmit without the flag: %s", afdep_last_error());
    MUST(rig_close(rig));
    /* With an exchange open at one rank nobody is let in, and everything is as before. */
    config.flags = AFDEP_FLAG_SURVIVE_SOURCES;
    rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->rank == 1)
        MUST(first(rig, 0));
    status = afdep_buffer_readmit(rig->buffer, group);
    if (status != (rig->rank == 1 ? AFDEP_ERR_ORDER : AFDEP_ERR_AGREEMENT) || !strstr(afdep_last_error(), "exchange 1"))
        return crowd_say("%s: %s", afdep_status_string(status), afdep_last_error());
    if (rig->rank != 1)
        MUST(first(rig, 0));
    MUST(rig_second(rig));
    if (!rig->ffn && rig_wrong_token(rig, TOKENS) >= 0)
        return crowd_say("a wrong value");
    MUST(rig_close(rig));
    return NULL;
}

static void test_refusals(void **state)
{
    (void)state;
    const char *failed = crowd_run(3, refusals_rank, NULL);
    if (failed)
        fail_msg("%s", failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
