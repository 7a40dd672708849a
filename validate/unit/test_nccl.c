/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the nccl fabric stands on, without a GPU: which versions go together, and calls that may never return: their
 * result, a deadline, a peer's death; who owns what afterwards.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <afdep/afdep.h>

#include "core/error.h"
#include "cuda/nccl.h"
#include "cuda/patience.h"

static void test_versions_that_fit(void **state)
{
    (void)state;
    static const struct {
        int header, runtime, fits;
    } pairs[] = {
        { 22809, 22809, 1 }, { 22809, 22803, 0 }, { 22809, 22907, 0 }, { 22809, 23007, 0 }, { 22902, 22902, 1 },
        { 22902, 23203, 1 }, { 23007, 23004, 0 }, { 23007, 23007, 1 }, { 23203, 30000, 0 }, { 23203, 22809, 0 },
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        assert_int_equal(afdep_nccl_fits(pairs[i].header, pairs[i].runtime), pairs[i].fits);
}

/* Either it can be used, or the sentence says what to do. */
static void test_loading(void **state)
{
    (void)state;
    const afdep_nccl_t *nccl = NULL;
    afdep_status_t status = afdep_nccl_load(&nccl);
    if (status == AFDEP_OK) {
        int version = 0;
        assert_int_equal(nccl->get_version(&version), ncclSuccess);
        assert_int_not_equal(afdep_nccl_fits(NCCL_VERSION_CODE, version), 0);
        assert_int_equal(afdep_nccl_check(nccl, ncclInvalidArgument, AFDEP_ERR_PEER, "a call"), AFDEP_ERR_PEER);
        assert_memory_equal(afdep_last_error(), "a call: invalid argument", 24);
        return;
    }
    assert_int_equal(status, AFDEP_ERR_UNSUPPORTED);
    assert_true(strstr(afdep_last_error(), "libnccl.so.2") || strstr(afdep_last_error(), "NCCL"));
    assert_int_equal(afdep_nccl_load(&nccl), AFDEP_ERR_UNSUPPORTED); /* and says it again */
}

/* ---- Patience ------------------------------------------------------------------------------------------------- */

typedef struct work {
    atomic_int go, ended, looks;
    afdep_status_t status, over;
    int endless;
} work_t;

static void sleep_ms(int ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static afdep_status_t do_work(void *context)
{
    work_t *w = context;
    while (w->endless && !atomic_load(&w->go))
        sleep_ms(1);
    atomic_store(&w->ended, 1);
    return w->status == AFDEP_OK ? AFDEP_OK : afdep_fail(w->status, "the work's own words");
}

static afdep_status_t look(void *context)
{
    work_t *w = context;
    return atomic_fetch_add(&w->looks, 1) < 3 || w->over == AFDEP_OK ? AFDEP_OK : afdep_fail(w->over, "rank 3 is dead");
}

static afdep_status_t call(work_t *w, int timeout_ms, int *left)
{
    afdep_patience_call_t call = { do_work, w, look, timeout_ms, "the work" };
    *left = -1;
    return afdep_call_with_patience(&call, left);
}

static void test_results_come_back(void **state)
{
    (void)state;
    int left;
    work_t fine = { .status = AFDEP_OK };
    assert_int_equal(call(&fine, 60000, &left), AFDEP_OK);
    assert_int_equal(left, 0);
    work_t failing = { .status = AFDEP_ERR_UNSUPPORTED };
    assert_int_equal(call(&failing, 60000, &left), AFDEP_ERR_UNSUPPORTED);
    assert_int_equal(left, 0);
    assert_string_equal(afdep_last_error(), "the work's own words");
}

/* What was left goes on with its own context, and nobody else touches it. */
static void let_it_end(work_t *w)
{
    assert_int_equal(atomic_load(&w->ended), 0);
    atomic_store(&w->go, 1);
    while (!atomic_load(&w->ended))
        sleep_ms(1);
}

static void test_a_deadline(void **state)
{
    (void)state;
    int left;
    static work_t w = { .endless = 1 };
    assert_int_equal(call(&w, 50, &left), AFDEP_ERR_TIMEOUT);
    assert_int_equal(left, 1);
    assert_string_equal(afdep_last_error(), "the work: not done in 50 ms though all ranks live");
    let_it_end(&w);
}

static void test_a_death(void **state)
{
    (void)state;
    int left;
    static work_t w = { .endless = 1, .over = AFDEP_ERR_PEER };
    assert_int_equal(call(&w, 60000, &left), AFDEP_ERR_PEER);
    assert_int_equal(left, 1);
    assert_string_equal(afdep_last_error(), "rank 3 is dead");
    assert_int_equal(atomic_load(&w.looks), 4);
    let_it_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_that_fit), cmocka_unit_test(test_loading),
        cmocka_unit_test(test_results_come_back), cmocka_unit_test(test_a_deadline),
        cmocka_unit_test(test_a_death),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
