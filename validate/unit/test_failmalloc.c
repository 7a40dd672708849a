/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that cannot be had: opening with the n-th allocation failing, for every n, at one rank and at all of them.
 * Always a status at every rank, none that hangs, nothing left behind. And no allocation at all between opening and
 * closing. The same of the loopback plugin's links. The allocator's functions are wrapped when this program is linked
 * (-Wl,--wrap=...), and fail on demand in the thread that asks for it.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#include <afdep/low_latency.h>

#include "fabric/gin-loopback/link.h"
#include "validate/unit/crowd.h"
#include "validate/unit/rig.h"

/* ---- The allocator ------------------------------------------------------------------------------------------- */

static atomic_long live;               /* blocks and mappings that are not freed */
static _Thread_local int counting;     /* this thread is inside of the library */
static _Thread_local long asked, fail; /* allocations while counting; the one that fails, 0: none */

static int refuse(void)
{
    if (!counting || ++asked != fail)
        return 0;
    errno = ENOMEM;
    return 1;
}

static void *kept(void *block)
{
    if (block)
        atomic_fetch_add(&live, 1);
    return block;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void __real_free(void *block);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void __wrap_free(void *block);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return refuse() ? NULL : kept(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : kept(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *block, size_t bytes)
{
    if (refuse())
        return NULL;
    return block ? __real_realloc(block, bytes) : kept(__real_realloc(block, bytes));
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return refuse() ? NULL : kept(__real_aligned_alloc(align, bytes));
}

void __wrap_free(void *block)
{
    if (block)
        atomic_fetch_sub(&live, 1);
    __real_free(block);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (refuse())
        return MAP_FAILED;
    void *mapped = __real_mmap(at, bytes, protection, flags, fd, offset);
    return mapped == MAP_FAILED ? mapped : kept(mapped);
}

int __wrap_munmap(void *at, size_t bytes)
{
    atomic_fetch_sub(&live, 1);
    return __real_munmap(at, bytes);
}

/* ---- The ranks ----------------------------------------------------------------------------------------------- */

typedef struct fail_case {
    int ffn, ranks, per_domain;
    int low_latency; /* 1: that API's buffer in place of the role API's */
    int victim; /* -1: every rank */
    long nth;
    long asked_at_open;  /* the victim's (rank 0's), when nothing failed */
    atomic_int opened, failed, wrong_sentence;
} fail_case_t;

static const char *exchange_and_close(rig_t *rig)
{
    const char *failed = NULL;
    counting = 1;
    asked = fail = 0;
    for (int n = 0; n < 3 && !failed; n++) {
        afdep_status_t status = rig_first(rig, RIG_CAPACITY, n == 1 ? 0 : RIG_CAPACITY);
        status = status == AFDEP_OK ? rig_second(rig) : status;
        if (status != AFDEP_OK)
            failed = crowd_say("exchange: %s", afdep_last_error());
        else if (!rig->ffn && n != 1 && rig_wrong_token(rig, RIG_CAPACITY) >= 0)
            failed = crowd_say("a result is wrong");
    }
    if (!failed && rig->ffn && rig_second(rig) != AFDEP_ERR_ORDER) /* errors allocate nothing either */
        failed = crowd_say("a reply too many was taken");
    if (!failed && asked > 0)
        failed = crowd_say("%ld allocations during exchanges", asked);
    afdep_status_t status = afdep_buffer_close(rig->buffer);
    if (!failed && asked > 0)
        failed = crowd_say("%ld allocations while closing", asked);
    counting = 0;
    return failed ? failed : status == AFDEP_OK ? NULL : crowd_say("close: %s", afdep_last_error());
}

/* This thread's, where the case wants one. */
static _Thread_local afdep_ll_buffer_t *ll_buffer;

static afdep_status_t ll_exchange(rig_t *rig)
{
    int64_t ids[RIG_CAPACITY][RIG_TOP_K], count[RIG_EXPERTS];
    afdep_ll_dispatch_t d = AFDEP_LL_DISPATCH_INIT;
    afdep_ll_combine_t c = AFDEP_LL_COMBINE_INIT;
    for (int t = 0; t < RIG_CAPACITY; t++)
        for (int k = 0; k < RIG_TOP_K; k++)
            ids[t][k] = rig->ids[t][k];
    d.format = AFDEP_LL_BF16;
    d.x = rig->x;
    d.topk_idx = ids[0];
    d.tokens = RIG_CAPACITY;
    d.recv_x = rig->rows;
    d.recv_count = count;
    d.return_recv_hook = 1;
    afdep_status_t status = afdep_ll_dispatch(ll_buffer, &d);
    if (status == AFDEP_OK)
        status = afdep_ll_hook_call(ll_buffer, &d.hook);
    c.x = rig->rows;
    c.topk_idx = ids[0];
    c.topk_weights = rig->weights[0];
    c.tokens = RIG_CAPACITY;
    c.handle = d.handle;
    c.out = rig->out;
    return status == AFDEP_OK ? afdep_ll_combine(ll_buffer, &c) : status;
}

static const char *ll_exchange_and_close(rig_t *rig)
{
    const char *failed = NULL;
    counting = 1;
    asked = fail = 0;
    for (int n = 0; n < 3 && !failed; n++) {
        if (ll_exchange(rig) != AFDEP_OK)
            failed = crowd_say("exchange: %s", afdep_last_error());
        else if (rig_wrong_token(rig, RIG_CAPACITY) >= 0)
            failed = crowd_say("a result is wrong");
    }
    afdep_status_t status = afdep_ll_buffer_close(ll_buffer);
    if (!failed && asked > 0)
        failed = crowd_say("%ld allocations after opening", asked);
    counting = 0;
    ll_buffer = NULL;
    return failed ? failed : status == AFDEP_OK ? NULL : crowd_say("close: %s", afdep_last_error());
}

static const char *finish(const fail_case_t *c, rig_t *rig)
{
    return c->low_latency ? ll_exchange_and_close(rig) : exchange_and_close(rig);
}

static afdep_status_t open_either(const afdep_group_t *group, const fail_case_t *c, rig_t *rig)
{
    afdep_config_t config = rig_config(c->ffn, c->per_domain, 20000);
    afdep_ll_config_t ll = AFDEP_LL_CONFIG_INIT;
    ll.num_max_dispatch_tokens_per_rank = RIG_CAPACITY;
    ll.hidden = RIG_HIDDEN;
    ll.num_topk = RIG_TOP_K;
    ll.num_experts = RIG_EXPERTS;
    ll.timeout_ms = 20000;
    return c->low_latency ? afdep_ll_buffer_open(group, &ll, &ll_buffer)
                          : afdep_buffer_open(group, &config, &rig->buffer);
}

static afdep_status_t try_open(const afdep_group_t *group, const fail_case_t *c, rig_t *rig, long nth)
{
    counting = 1;
    asked = 0;
    fail = nth;
    afdep_status_t status = open_either(group, c, rig);
    counting = 0;
    return status;
}

static const char *fail_rank(const afdep_group_t *group, void *context)
{
    fail_case_t *c = context;
    int hit = c->victim < 0 || group->rank == c->victim;
    rig_t *rig = rig_new(group->rank, group->rank < c->ffn);
    const char *failed = NULL;
    afdep_status_t status = try_open(group, c, rig, hit ? c->nth : 0);
    if (group->rank == (c->victim < 0 ? 0 : c->victim))
        c->asked_at_open = asked;
    if (status == AFDEP_OK) {
        atomic_fetch_add(&c->opened, 1);
        failed = finish(c, rig);
    } else {
        atomic_fetch_add(&c->failed, 1);
        /* Memory, or what the others tell of it; never a deadline. */
        if (!strstr(afdep_last_error(), "memory") && !strstr(afdep_last_error(), "map a segment"))
            failed = crowd_say("%s: %s", afdep_status_string(status), afdep_last_error());
        if (rig->buffer || ll_buffer)
            failed = crowd_say("a buffer was set");
        /* The group stands, or is broken for all: nobody waits for anybody. */
        status = failed ? status : try_open(group, c, rig, 0);
        if (status == AFDEP_OK)
            failed = finish(c, rig);
    }
    free(rig);
    return failed;
}

static int count_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* Nonzero while the n-th allocation was asked for. */
static int run_one(fail_case_t *c)
{
    long before = atomic_load(&live);
    int descriptors = count_descriptors();
    time_t start = time(NULL);
    atomic_store(&c->opened, 0);
    atomic_store(&c->failed, 0);
    const char *failed = crowd_run(c->ranks, fail_rank, c);
    if (failed)
        fail_msg("%d ranks, %d per domain, allocation %ld of rank %d: %s", c->ranks, c->per_domain, c->nth, c->victim,
                 failed);
    if (atomic_load(&c->opened) != 0 && atomic_load(&c->failed) != 0)
        fail_msg("allocation %ld of rank %d: %d ranks opened, %d failed", c->nth, c->victim, atomic_load(&c->opened),
                 atomic_load(&c->failed));
    if (atomic_load(&live) != before)
        fail_msg("allocation %ld of rank %d: %ld blocks or mappings are left", c->nth, c->victim,
                 atomic_load(&live) - before);
    assert_int_equal(count_descriptors(), descriptors);
    assert_true(time(NULL) - start < 8);
    return atomic_load(&c->failed) > 0;
}

static void run_all(int ffn, int ranks, int per_domain, int low_latency)
{
    for (int victim = -1; victim < ranks; victim++) {
        fail_case_t c = { .ffn = ffn, .ranks = ranks, .per_domain = per_domain, .low_latency = low_latency,
                          .victim = victim, .nth = 1 };
        /* Which rank allocates for the group differs from run to run: one more failure-free n is no end yet. */
        for (int fine = 0; fine < 3; c.nth++)
            fine = run_one(&c) ? 0 : fine + 1;
        assert_in_range(c.nth, 10, 100); /* opening allocates: the wrapping works */
        assert_true(c.asked_at_open >= 6);
    }
}

static void test_one_domain(void **state)
{
    (void)state;
    run_all(1, 2, 0, 0);
}

static void test_across_domains(void **state)
{
    (void)state;
    run_all(2, 4, 2, 0);
}

static void test_low_latency(void **state)
{
    (void)state;
    run_all(0, 2, 0, 1);
}

/* The maker of the group itself. */
static void test_thread_groups(void **state)
{
    (void)state;
    for (long nth = 1, made = 0; !made; nth++) {
        afdep_group_t groups[3];
        long before = atomic_load(&live);
        counting = 1;
        asked = 0;
        fail = nth;
        afdep_status_t status = afdep_group_threads_create(3, 1000, groups);
        counting = 0;
        if (status != AFDEP_OK)
            assert_int_equal(status, AFDEP_ERR_MEMORY);
        made = status == AFDEP_OK;
        for (int r = 0; made && r < 3; r++)
            afdep_group_destroy(&groups[r]);
        assert_int_equal(atomic_load(&live), before);
        assert_true(nth < 10);
    }
}

/* A link of the loopback plugin, of one rank, which sends a word and a signal to itself. */
static afdep_status_t use_link(void)
{
    afdep_gin_listener_t *listener = NULL;
    afdep_gin_handle_t handle;
    const afdep_gin_handle_t *handles[1] = { &handle };
    afdep_gin_link_t *link = NULL;
    afdep_gin_region_t *region = NULL;
    afdep_gin_request_t *request = NULL;
    uint64_t memory[3] = { 7, 0, 0 };
    int done = 0;
    afdep_status_t status = afdep_gin_listen(&listener, &handle);
    if (status == AFDEP_OK)
        status = afdep_gin_connect(listener, handles, 1, 0, 1000, afdep_gin_memory_open, &link);
    afdep_gin_stop_listening(listener);
    if (status == AFDEP_OK)
        status = afdep_gin_register(link, memory, sizeof(memory), 0, &region);
    if (status == AFDEP_OK) {
        afdep_gin_put_t put = { .from = region, .to = region, .to_offset = 8, .bytes = 8, .signal = region,
                                .signal_offset = 16, .signal_add = 2 };
        status = afdep_gin_put(link, &put, &request);
    }
    if (status == AFDEP_OK) {
        long before = asked;
        for (int i = 0; i < 5 && status == AFDEP_OK; i++)
            status = afdep_gin_progress(link);
        if (asked != before || afdep_gin_test(link, request, &done) != AFDEP_OK || !done || memory[1] != 7 ||
            memory[2] != 2)
            status = AFDEP_ERR_CONFIG; /* allocations in progress, or a wrong value: nothing that these calls return */
    }
    afdep_gin_close(link);
    return status;
}

static void test_loopback_link(void **state)
{
    (void)state;
    for (long nth = 1, made = 0; !made; nth++) {
        long before = atomic_load(&live);
        int descriptors = count_descriptors();
        counting = 1;
        asked = 0;
        fail = nth;
        afdep_status_t status = use_link();
        counting = 0;
        if (status != AFDEP_OK) {
            assert_int_equal(status, AFDEP_ERR_MEMORY);
            assert_non_null(strstr(afdep_last_error(), "memory") ? afdep_last_error()
                                                                 : strstr(afdep_last_error(), "map"));
        }
        made = status == AFDEP_OK;
        assert_int_equal(atomic_load(&live), before);
        assert_int_equal(count_descriptors(), descriptors);
        assert_true(nth < 20);
        assert_true(!made || nth > 8); /* the wrapping works */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_domain),
        cmocka_unit_test(test_across_domains),
        cmocka_unit_test(test_low_latency),
        cmocka_unit_test(test_thread_groups),
        cmocka_unit_test(test_loopback_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
