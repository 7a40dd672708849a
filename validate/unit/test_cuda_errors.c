/* SPDX-License-Identifier: Apache-2.0 */
/* From what a kernel recorded to a status and a sentence: who, where, which word, what it should hold and does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <afdep/afdep.h>

#include "cuda/cuda.h"
#include "protocol/word.h"

#define RANKS 4
#define SELF 1

typedef struct rank {
    afdep_cuda_t c;
    afdep_settings_t settings;
    afdep_shape_t shape;
    afdep_device_fabric_t fabric;
    afdep_cuda_record_t record;
} rank_t;

static int dead_rank = -1;

static int is_alive(afdep_device_fabric_t *fabric, int peer)
{
    (void)fabric;
    return peer != dead_rank;
}

static afdep_cuda_t *make(rank_t *r, const afdep_cuda_record_t *record)
{
    memset(r, 0, sizeof(*r));
    dead_rank = -1;
    r->settings.timeout_ms = 1500;
    r->shape.ranks = RANKS;
    r->shape.num_experts = 8;
    r->fabric.alive = is_alive;
    r->record = *record;
    r->c.settings = &r->settings;
    r->c.shape = &r->shape;
    r->c.fabric = &r->fabric;
    r->c.record = &r->record;
    r->c.rank = SELF;
    return &r->c;
}

static void says(afdep_cuda_t *c, afdep_status_t status, const char *sentence)
{
    assert_int_equal(afdep_cuda_look(c), status);
    assert_string_equal(afdep_last_error(), sentence);
}

static const afdep_cuda_record_t late_route = { .ready = 1,
                                                .status = (uint32_t)-AFDEP_ERR_TIMEOUT,
                                                .call = AFDEP_CUDA_RECEIVE,
                                                .word = AFDEP_CUDA_WORD_ROUTE,
                                                .peer = 2,
                                                .token = 7,
                                                .piece = 3,
                                                .exchange = 5,
                                                .expected = (uint64_t)5 << 32,
                                                .seen = (uint64_t)4 << 32 | 9 };

static void test_a_deadline(void **state)
{
    (void)state;
    rank_t r;
    says(make(&r, &late_route), AFDEP_ERR_TIMEOUT,
         "nothing came in 1500 ms though all ranks live: rank 1 in worker_receive of exchange 5, token 7, slot 3 "
         "waited for the route word of rank 2, which holds 0x400000009 in place of 0x500000000");
    afdep_cuda_record_t row = late_route;
    row.word = AFDEP_CUDA_WORD_ROW;
    afdep_cuda_t *c = make(&r, &row);
    dead_rank = 3;
    says(c, AFDEP_ERR_PEER,
         "rank 3 is dead: rank 1 in worker_receive of exchange 5, token 7, piece 3 waited for the row word of rank 2, "
         "which holds 0x400000009 in place of 0x500000000");
    afdep_cuda_record_t answer = late_route;
    answer.word = AFDEP_CUDA_WORD_ANSWER;
    answer.call = AFDEP_CUDA_DISPATCH;
    answer.token = answer.piece = -1;
    says(make(&r, &answer), AFDEP_ERR_TIMEOUT,
         "nothing came in 1500 ms though all ranks live: rank 1 in source_dispatch of exchange 5 waited for the answer "
         "to an earlier exchange of rank 2, which holds 0x400000009 in place of 0x500000000");
}

static void test_wrong_words(void **state)
{
    (void)state;
    rank_t r;
    afdep_cuda_record_t wrong = late_route;
    wrong.status = (uint32_t)-AFDEP_ERR_PROTOCOL;
    wrong.seen = (uint64_t)261 << 32 | 9;
    says(make(&r, &wrong), AFDEP_ERR_PROTOCOL,
         "rank 1 in worker_receive of exchange 5, token 7, slot 3: the route word of rank 2 holds 0x0000010500000009");
    wrong.seen = (uint64_t)5 << 32 | 9; /* of this exchange: only its mark of the bucket can be wrong */
    wrong.expected = 16;
    assert_int_equal(afdep_cuda_look(make(&r, &wrong)), AFDEP_ERR_PROTOCOL);
    assert_non_null(strstr(afdep_last_error(), "rank 2 sent for another bucket than the 16 here"));
}

static void test_what_peers_say(void **state)
{
    (void)state;
    rank_t r;
    afdep_cuda_record_t told = {
        .ready = 1, .status = (uint32_t)-AFDEP_ERR_PEER, .word = AFDEP_CUDA_WORD_FAILURE, .peer = 2
    };
    told.seen = afdep_word((uint32_t)-AFDEP_ERR_PEER, 3 + 1);
    says(make(&r, &told), AFDEP_ERR_PEER, "rank 3 is dead, says rank 2");
    told.seen = afdep_word((uint32_t)-AFDEP_ERR_TIMEOUT, 0 + 1);
    says(make(&r, &told), AFDEP_ERR_PEER, "rank 2 gave up with AFDEP_ERR_TIMEOUT about rank 0");
    told.seen = afdep_word((uint32_t)-AFDEP_ERR_ORDER, 0);
    says(make(&r, &told), AFDEP_ERR_PEER, "rank 2 gave up with AFDEP_ERR_ORDER");
}

/* Nothing is said before the record is whole; then the first error stays, and calls are refused with it. */
static void test_the_first_error_stays(void **state)
{
    (void)state;
    rank_t r;
    afdep_cuda_t *c = make(&r, &late_route);
    r.record.ready = 0;
    assert_int_equal(afdep_cuda_look(c), AFDEP_OK);
    assert_int_equal(afdep_cuda_check_call(c), AFDEP_OK);
    r.record.ready = 1;
    assert_int_equal(afdep_cuda_look(c), AFDEP_ERR_TIMEOUT);
    r.record.status = (uint32_t)-AFDEP_ERR_PROTOCOL;
    r.record.peer = 0;
    assert_int_equal(afdep_cuda_look(c), AFDEP_ERR_TIMEOUT);
    assert_int_equal(afdep_cuda_check_call(c), AFDEP_ERR_POISONED);
    assert_non_null(strstr(afdep_last_error(), "the buffer failed before: AFDEP_ERR_TIMEOUT: nothing came"));
    assert_non_null(strstr(afdep_last_error(), "of rank 2, which holds"));
}

static void test_routes(void **state)
{
    (void)state;
    rank_t r;
    afdep_cuda_record_t none = { 0 }, found = { 0 };
    assert_int_equal(afdep_cuda_look_route(make(&r, &none)), AFDEP_OK);
    found.route_exchange = 9;
    found.route = (uint64_t)1234567 << 39 | (uint64_t)31 << 33 | 77;
    afdep_cuda_t *c = make(&r, &found);
    assert_int_equal(afdep_cuda_look_route(c), AFDEP_ERR_ROUTE);
    assert_string_equal(afdep_last_error(), "source_dispatch of exchange 9: token 1234567, slot 31: expert 77 is "
                                            "outside 0 to 7; taken as -1");
    assert_int_equal(afdep_cuda_look(c), AFDEP_OK); /* it poisons nothing */
    c->told_route = 9;
    assert_int_equal(afdep_cuda_look_route(c), AFDEP_OK);
    r.record.route_exchange = 10;
    r.record.route = (uint64_t)2 << 39 | (uint64_t)1 << 33 | (uint64_t)1 << 32 | 5;
    assert_int_equal(afdep_cuda_look_route(c), AFDEP_ERR_ROUTE);
    assert_string_equal(afdep_last_error(),
                        "source_dispatch of exchange 10: token 2, slot 1: expert 5 is repeated; taken as -1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_deadline),
        cmocka_unit_test(test_wrong_words),
        cmocka_unit_test(test_what_peers_say),
        cmocka_unit_test(test_the_first_error_stays),
        cmocka_unit_test(test_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
