/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that part with an exchange open, that live and do not come, or that are given another bucket: every other rank
 * ends with an error that names the right one, before long, and none hangs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "validate/unit/erring.h"

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

static void sleep_ms(int ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

/* Waits, outside of the library, until `ranks` ranks are through. */
static void await(error_case_t *c, int ranks)
{
    while (atomic_load(&c->done) < ranks)
        sleep_ms(1);
}

/* ---- Parting out of order ------------------------------------------------------------------------------------ */

static const char *unmatched_rank(const afdep_group_t *group, void *context)
{
    const error_case_t *c = context;
    rig_t *rig = open_case(group, context);
    char want[64];
    uint64_t start = now_ms();
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->rank == c->absent)
        if (rig_first(rig, 8, rig->ffn ? 0 : 5) != AFDEP_OK)
            return crowd_say("first: %s", afdep_last_error());
    if (c->absent < c->ffn && !rig->ffn && rig_first(rig, 8, 5) != AFDEP_OK)
        return crowd_say("dispatch: %s", afdep_last_error());
    if (c->absent < c->ffn && rig->ffn && rig->rank != c->absent)
        if (rig_first(rig, 8, 0) != AFDEP_OK)
            return crowd_say("receive: %s", afdep_last_error());
    afdep_status_t status = AFDEP_OK;
    snprintf(want, sizeof(want), "rank %d gave up with AFDEP_ERR_ORDER", c->absent);
    if (rig->rank != c->absent && c->absent < c->ffn) { /* they wait in the exchange, not in close */
        /* An FFN rank that has all it needs replies before it hears of it. */
        status = rig_second(rig);
        if (status != AFDEP_OK && (status != AFDEP_ERR_PEER || !strstr(afdep_last_error(), want)))
            return expect(status, AFDEP_ERR_PEER, want, "second half");
    }
    afdep_status_t closed = rig_close(rig);
    if (now_ms() - start > 8000)
        return crowd_say("it took a deadline");
    if (group->rank == c->absent)
        return expect(closed, AFDEP_ERR_ORDER, "has exchange 1 unfinished", "close");
    return status == AFDEP_OK ? expect(closed, AFDEP_ERR_PEER, want, "close") : NULL;
}

static void test_closing_with_an_exchange_open(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS_OF_ONE_ROLE; i++)
        for (int ffn = 0; ffn < 2; ffn++) {
            error_case_t c;
            memcpy(&c, &layouts[i], sizeof(c));
            c.absent = ffn ? 0 : c.ffn + 1;
            run(&c, unmatched_rank);
        }
}

/* ---- Ranks that live and do not come ------------------------------------------------------------------------- */

/* What everything after a fatal error says: the first sentence again. */
static const char *check_poisoned(rig_t *rig, afdep_status_t status)
{
    char first[700];
    snprintf(first, sizeof(first), "%s", afdep_last_error());
    EXPECT(rig_first(rig, 8, 1), AFDEP_ERR_POISONED, first);
    EXPECT(rig_second(rig), AFDEP_ERR_POISONED, first);
    EXPECT(afdep_buffer_error(rig->buffer), status, first);
    if (strcmp(first, afdep_last_error()) != 0)
        return crowd_say("the error query says: %s", afdep_last_error());
    return NULL;
}

#define SHORT_MS 250

/* One rank of two never calls; the other's sentence must name it, the word, and the channel where there is one. */
static const char *lonely_rank(const afdep_group_t *group, void *context)
{
    error_case_t *c = context;
    rig_t *rig = open_case(group, context);
    const char *failed = NULL;
    char want[96];
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->rank == c->absent) {
        await(c, 1);
        snprintf(want, sizeof(want), "rank %d gave up with AFDEP_ERR_TIMEOUT about rank %d", !rig->rank, rig->rank);
        failed = expect(afdep_buffer_error(rig->buffer), AFDEP_ERR_PEER, want, "error query");
        if (!failed)
            failed = check_poisoned(rig, AFDEP_ERR_PEER);
    } else {
        uint64_t start = now_ms();
        afdep_status_t status = rig_first(rig, 8, 3);
        if (!rig->ffn)
            status = status == AFDEP_OK ? rig_collect(rig) : status;
        uint64_t took = now_ms() - start;
        const char *word = rig->ffn              ? "the count word of rank 1"
                           : c->per_domain == 0 ? "collect waited for the combine signal of rank 0"
                                                : "channel 0 waited for the combine signal of rank 0";
        failed = expect(status, AFDEP_ERR_TIMEOUT, word, "the waiter");
        snprintf(want, sizeof(want), "nothing came in %d ms though all ranks live: rank %d in ", SHORT_MS, rig->rank);
        if (!failed && (!strstr(afdep_last_error(), want) || !strstr(afdep_last_error(), "of exchange 1")))
            failed = crowd_say("%s", afdep_last_error());
        if (!failed && (took < SHORT_MS || took > SHORT_MS + 5000))
            failed = crowd_say("it took %llu ms", (unsigned long long)took);
        if (!failed)
            failed = check_poisoned(rig, AFDEP_ERR_TIMEOUT);
        atomic_fetch_add(&c->done, 1);
    }
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close, which is local now");
}

static void test_a_rank_that_never_calls_of_two(void **state)
{
    (void)state;
    for (int absent = 0; absent < 2; absent++)
        for (int per_domain = 0; per_domain < 2; per_domain++) {
            error_case_t c = { .ffn = 1, .attention = 1, .per_domain = per_domain, .timeout_ms = SHORT_MS,
                               .absent = absent };
            run(&c, lonely_rank);
        }
}

/* One of six: some wait for it, some for a neighbour that waits for it. All come back, at least one with TIMEOUT. */
static const char *crowded_rank(const afdep_group_t *group, void *context)
{
    error_case_t *c = context;
    rig_t *rig = open_case(group, context);
    const char *failed = NULL;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->rank == c->absent) {
        await(c, c->ffn + c->attention - 1);
        failed = expect(afdep_buffer_error(rig->buffer), AFDEP_ERR_PEER, "gave up with AFDEP_ERR_TIMEOUT about rank",
                        "error query");
    } else {
        uint64_t start = now_ms();
        afdep_status_t status = rig_first(rig, 8, 8);
        status = status == AFDEP_OK ? rig_second(rig) : status;
        if (status == AFDEP_OK && rig->ffn) /* served its part; it hears of it in the next */
            status = rig_first(rig, 8, 8);
        if (status == AFDEP_ERR_TIMEOUT)
            atomic_fetch_add(&c->timeouts, 1);
        failed = status == AFDEP_ERR_TIMEOUT
                     ? expect(status, status, "of rank ", "a waiter")
                     : expect(status, AFDEP_ERR_PEER, "gave up with AFDEP_ERR_TIMEOUT about rank", "a waiter");
        if (!failed && now_ms() - start > SHORT_MS * 3 + 5000)
            failed = crowd_say("it took %llu ms", (unsigned long long)(now_ms() - start));
        if (!failed)
            failed = check_poisoned(rig, status);
        atomic_fetch_add(&c->done, 1);
    }
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close, which is local now");
}

static void test_a_rank_that_never_calls_of_six(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; i++)
        for (int ffn = 0; ffn < 2; ffn++) {
            error_case_t c;
            memcpy(&c, &layouts[i], sizeof(c));
            c.timeout_ms = SHORT_MS;
            c.absent = ffn ? 1 : c.ffn;
            run(&c, crowded_rank);
            assert_true(atomic_load(&c.timeouts) >= 1);
        }
}

/* ---- Buckets that differ ------------------------------------------------------------------------------------- */

static const char *bucket_rank(const afdep_group_t *group, void *context)
{
    error_case_t *c = context;
    rig_t *rig = open_case(group, context);
    const char *failed = NULL;
    int bucket = c->bucket[group->rank];
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    afdep_status_t status = rig_first(rig, bucket, bucket < 12 ? bucket : 12);
    status = status == AFDEP_OK ? rig_second(rig) : status;
    if (status == AFDEP_ERR_PROTOCOL) {
        atomic_fetch_add(&c->protocols, 1);
        failed = expect(status, status, "all ranks of an exchange must be given the same bucket", "exchange");
    } else if (status != AFDEP_OK) {
        failed = expect(status, AFDEP_ERR_PEER, "gave up with AFDEP_ERR_PROTOCOL", "exchange");
    } else if (!rig->ffn && rig_wrong_token(rig, bucket < 12 ? bucket : 12) >= 0) {
        failed = crowd_say("token %d is wrong", rig_wrong_token(rig, 12));
    }
    status = rig_close(rig);
    if (!failed && status != AFDEP_OK)
        failed = expect(status, AFDEP_ERR_PEER, "gave up with AFDEP_ERR_PROTOCOL", "close");
    return failed;
}

/* Buckets by role and rank; an FFN rank whose bucket is below what comes says so, everything else works. */
static void run_buckets(int ffn0, int ffn1, int attention, int names_it)
{
    for (int i = 0; i < LAYOUTS; i++) {
        error_case_t c;
        memcpy(&c, &layouts[i], sizeof(c));
        for (int r = 0; r < 8; r++)
            c.bucket[r] = r == 0 ? ffn0 : r < c.ffn ? ffn1 : attention;
        run(&c, bucket_rank);
        assert_int_equal(atomic_load(&c.protocols) > 0, names_it);
    }
}

static void test_buckets_that_differ(void **state)
{
    (void)state;
    run_buckets(16, 16, 16, 0);
    run_buckets(16, 13, 12, 0); /* larger than needed: harmless */
    run_buckets(4, 4, 12, 1);
    run_buckets(16, 4, 12, 1); /* one FFN rank alone */
    run_buckets(1, 16, 16, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closing_with_an_exchange_open),
        cmocka_unit_test(test_a_rank_that_never_calls_of_two),
        cmocka_unit_test(test_a_rank_that_never_calls_of_six),
        cmocka_unit_test(test_buckets_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
