/* SPDX-License-Identifier: Apache-2.0 */
/* The group of threads: exact contents at many sizes, and a named rank for everybody when one does not come. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <afdep/group.h>

#include "core/group.h"

enum { MOST_RANKS = 9, ROUNDS = 40 };

/* One rank's thread: what it does, and what came of it. Threads only record; the test's thread asserts. */
typedef struct runner {
    afdep_group_t *group;
    void (*body)(struct runner *self);
    size_t bytes;
    int delay_ms;
    afdep_status_t status;
    int wrong;
    char error[256];
    pthread_t thread;
} runner_t;

static void *run(void *argument)
{
    runner_t *self = argument;
    if (self->delay_ms > 0) {
        const struct timespec pause = { .tv_sec = 0, .tv_nsec = self->delay_ms * 1000000L };
        nanosleep(&pause, NULL);
    }
    self->body(self);
    snprintf(self->error, sizeof self->error, "%.255s", afdep_last_error());
    return NULL;
}

static void start(runner_t *runners, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_create(&runners[i].thread, NULL, run, &runners[i]), 0);
}

static void join(runner_t *runners, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_join(runners[i].thread, NULL), 0);
}

static uint8_t pattern(int rank, int round, size_t i)
{
    return (uint8_t)(31 * rank + 7 * round + (int)(i % 251) + 1);
}

static int count_wrong(const uint8_t *all, int size, int round, size_t bytes)
{
    int wrong = 0;
    for (int rank = 0; rank < size; rank++) {
        for (size_t i = 0; i < bytes; i++)
            wrong += all[(size_t)rank * bytes + i] != pattern(rank, round, i);
    }
    return wrong;
}

/* The contribution is overwritten as soon as the call is back: no rank may still be reading it. */
static afdep_status_t one_round(runner_t *self, int round, uint8_t *mine, uint8_t *all)
{
    for (size_t i = 0; i < self->bytes; i++)
        mine[i] = pattern(self->group->rank, round, i);
    afdep_status_t status = afdep_group_allgather(self->group, mine, all, self->bytes);
    if (self->bytes > 0)
        memset(mine, 0xee, self->bytes);
    if (status == AFDEP_OK)
        self->wrong += count_wrong(all, self->group->size, round, self->bytes);
    return status;
}

static void gather_body(runner_t *self)
{
    size_t total = self->bytes * (size_t)self->group->size;
    uint8_t *mine = malloc(self->bytes + 1), *all = malloc(total + 1);
    int rounds = self->bytes > 4096 ? 2 : ROUNDS;
    for (int round = 0; round < rounds && self->status == AFDEP_OK; round++) {
        memset(all, 0xdd, total + 1);
        self->status = one_round(self, round, mine, all);
        self->wrong += all[total] != 0xdd;
        if (self->status == AFDEP_OK && round % 3 == 0)
            self->status = afdep_group_barrier(self->group);
    }
    free(all);
    free(mine);
}

static void test_contents(void **state)
{
    (void)state;
    const size_t sizes[] = { 0, 1, 8, 1000, 1 << 20 };
    for (int size = 1; size <= MOST_RANKS; size++) {
        afdep_group_t groups[MOST_RANKS];
        assert_int_equal(afdep_group_threads_create(size, 0, groups), AFDEP_OK);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            if (sizes[s] > 4096 && size != 1 && size != 3)
                continue;
            runner_t runners[MOST_RANKS];
            memset(runners, 0, sizeof runners);
            for (int r = 0; r < size; r++) {
                assert_int_equal(groups[r].rank, r);
                assert_int_equal(groups[r].size, size);
                runners[r] = (runner_t){ .group = &groups[r], .body = gather_body, .bytes = sizes[s] };
            }
            start(runners, size);
            join(runners, size);
            for (int r = 0; r < size; r++) {
                assert_int_equal(runners[r].status, AFDEP_OK);
                assert_int_equal(runners[r].wrong, 0);
            }
        }
        for (int r = 0; r < size; r++)
            afdep_group_destroy(&groups[r]);
    }
}

/* Each rank destroys its group right after its last call, while others may not be out of theirs yet. */
static void destroy_body(runner_t *self)
{
    gather_body(self);
    afdep_group_destroy(self->group);
}

static void test_last_destroy_frees(void **state)
{
    (void)state;
    for (int turn = 0; turn < 30; turn++) {
        afdep_group_t groups[4];
        runner_t runners[4];
        assert_int_equal(afdep_group_threads_create(4, 0, groups), AFDEP_OK);
        for (int r = 0; r < 4; r++)
            runners[r] = (runner_t){ .group = &groups[r], .body = destroy_body, .bytes = 16 };
        start(runners, 4);
        join(runners, 4);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(runners[r].status, AFDEP_OK);
            assert_int_equal(runners[r].wrong, 0);
            assert_null(groups[r].destroy);
        }
    }
}

static void barrier_body(runner_t *self)
{
    self->status = afdep_group_barrier(self->group);
}

static void test_missing_ranks_are_named(void **state)
{
    (void)state;
    static const char sentence[] = "ranks 2, 4 of 5 did not come to collective 1 of the threads group within 600 ms";
    const int come[3] = { 0, 1, 3 };
    afdep_group_t groups[5];
    runner_t runners[3];
    assert_int_equal(afdep_group_threads_create(5, 600, groups), AFDEP_OK);
    for (int i = 0; i < 3; i++)
        runners[i] = (runner_t){ .group = &groups[come[i]], .body = barrier_body, .delay_ms = 5 * i };
    start(runners, 3);
    join(runners, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(runners[i].status, AFDEP_ERR_BOOTSTRAP);
        assert_string_equal(runners[i].error, sentence);
    }
    /* The group is broken for the late ones too, at once and with the same words. */
    for (int r = 2; r <= 4; r += 2) {
        assert_int_equal(afdep_group_barrier(&groups[r]), AFDEP_ERR_BOOTSTRAP);
        assert_non_null(strstr(afdep_last_error(), sentence));
    }
    for (int r = 0; r < 5; r++)
        afdep_group_destroy(&groups[r]);
}

static void test_lengths_that_differ(void **state)
{
    (void)state;
    afdep_group_t groups[2];
    runner_t runners[2];
    assert_int_equal(afdep_group_threads_create(2, 0, groups), AFDEP_OK);
    runners[0] = (runner_t){ .group = &groups[0], .body = gather_body, .bytes = 16 };
    runners[1] = (runner_t){ .group = &groups[1], .body = gather_body, .bytes = 8 };
    start(runners, 2);
    join(runners, 2);
    /* Whoever comes second is the one who differs. */
    const char *words = strstr(runners[0].error, "rank 1 of 2") != NULL
                            ? "rank 1 of 2 gathers 8 bytes where rank 0 gathers 16"
                            : "rank 0 of 2 gathers 16 bytes where rank 1 gathers 8";
    for (int r = 0; r < 2; r++) {
        assert_int_equal(runners[r].status, AFDEP_ERR_BOOTSTRAP);
        assert_non_null(strstr(runners[r].error, words));
        afdep_group_destroy(&groups[r]);
    }
}

/* A rank that destroys its group is missed at once, well before the deadline. */
static void leave_body(runner_t *self)
{
    afdep_group_destroy(self->group);
    self->status = AFDEP_ERR_BOOTSTRAP;
}

static void test_a_rank_that_left(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        afdep_group_t groups[3];
        runner_t runners[3];
        assert_int_equal(afdep_group_threads_create(3, 10000, groups), AFDEP_OK);
        runners[0] = (runner_t){ .group = &groups[0], .body = barrier_body, .delay_ms = late ? 0 : 50 };
        runners[1] = (runner_t){ .group = &groups[1], .body = leave_body, .delay_ms = late ? 50 : 0 };
        runners[2] = (runner_t){ .group = &groups[2], .body = barrier_body, .delay_ms = late ? 0 : 50 };
        start(runners, 3);
        join(runners, 3);
        assert_int_equal(runners[0].status, AFDEP_ERR_BOOTSTRAP);
        assert_int_equal(runners[2].status, AFDEP_ERR_BOOTSTRAP);
        assert_string_equal(runners[0].error, "rank 1 of 3 left the threads group (destroyed it) before collective 1");
        assert_string_equal(runners[2].error, runners[0].error);
        for (int r = 0; r < 3; r++)
            afdep_group_destroy(&groups[r]);
    }
}

static void test_arguments(void **state)
{
    (void)state;
    afdep_group_t group;
    uint8_t byte = 0;
    assert_int_equal(afdep_group_threads_create(0, 0, &group), AFDEP_ERR_ARGUMENT);
    assert_non_null(strstr(afdep_last_error(), "size is 0"));
    assert_int_equal(afdep_group_threads_create(1, 0, NULL), AFDEP_ERR_ARGUMENT);
    assert_int_equal(afdep_group_threads_create(1, -1, &group), AFDEP_ERR_ARGUMENT);
    assert_non_null(strstr(afdep_last_error(), "timeout_ms is -1"));
    assert_int_equal(afdep_group_threads_create(1, 0, &group), AFDEP_OK);
    assert_int_equal(afdep_group_check(&group), AFDEP_OK);
    assert_int_equal(afdep_group_allgather(&group, NULL, &byte, 1), AFDEP_ERR_ARGUMENT);
    /* A refused argument changed nothing. */
    assert_int_equal(afdep_group_barrier(&group), AFDEP_OK);
    afdep_group_destroy(&group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents),
        cmocka_unit_test(test_last_destroy_frees),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_lengths_that_differ),
        cmocka_unit_test(test_a_rank_that_left),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
