/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault fabric message by message, around the simulator's, where nothing lands and no time passes unless the test
 * says so: what each kind does to a lane and to the others, when a rule fires, and what flush says meanwhile. Would
 * catch a lane whose order a fault breaks, a message that is lost or sent twice unasked, a held row that changes
 * with its source, and a flush that lets a call return over held messages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/fault.h"
#include "fabric/sim.h"

#define RANKS 3
#define CHANNELS 2
#define LANES AFDEP_LANE_COUNT(CHANNELS)
#define BYTES 4096

typedef struct bed {
    afdep_sim_t *sim;
    afdep_fault_t rules[4];
    afdep_faults_t faults;
    afdep_fabric_t *f; /* rank 0's */
} bed_t;

static bed_t *lay(int count, const afdep_fault_t *rules)
{
    static const uint64_t bytes[RANKS] = { BYTES, BYTES, BYTES };
    bed_t *b = calloc(1, sizeof(*b));
    assert_non_null(b);
    assert_int_equal(afdep_sim_create(RANKS, LANES, bytes, &b->sim), AFDEP_OK);
    memcpy(b->rules, rules, (size_t)count * sizeof(*rules));
    b->faults = (afdep_faults_t){ b->rules, count, 1 };
    assert_int_equal(afdep_fault_wrap(afdep_sim_fabric(b->sim, 0), &b->faults, &b->f), AFDEP_OK);
    return b;
}

static void lift(bed_t *b)
{
    b->f->ops->close(b->f, 1);
    afdep_sim_destroy(b->sim);
    free(b);
}

static void word(bed_t *b, afdep_signal_kind_t kind, int lane, int peer, uint64_t at, uint64_t value)
{
    assert_int_equal(afdep_fabric_signal(b->f, kind, lane, peer, at, value - 1, value), AFDEP_OK);
}

static afdep_status_t flush(bed_t *b)
{
    return b->f->ops->flush(b->f);
}

/* What would land next on a lane of rank 0's to a peer: the value of a word, or a row's first byte; 0: nothing. */
static uint64_t next(bed_t *b, int lane, int peer)
{
    for (int i = 0; i < afdep_sim_pending(b->sim); i++) {
        afdep_sim_message_t m;
        afdep_sim_head(b->sim, i, &m);
        if (m.sender != 0 || m.lane != lane || m.target != peer)
            continue;
        uint64_t value = m.is_signal ? m.value : *(const unsigned char *)m.data;
        afdep_sim_drop(b->sim, i);
        return value;
    }
    return 0;
}

#define COUNT AFDEP_SIGNAL_COUNT_WORD
#define TAIL AFDEP_SIGNAL_FINISH_TAIL

static afdep_fault_t rule(afdep_fault_kind_t kind)
{
    return (afdep_fault_t)AFDEP_FAULT_INIT(kind);
}

static void test_delay(void **state)
{
    (void)state;
    afdep_fault_t r = rule(AFDEP_FAULT_DELAY);
    r.what = COUNT;
    r.amount_us = 100;
    bed_t *b = lay(1, &r);
    word(b, TAIL, 0, 1, 8, 1);
    word(b, COUNT, 0, 1, 16, 2);
    word(b, TAIL, 0, 1, 8, 3); /* no rule names it, and it may not pass */
    word(b, TAIL, 1, 1, 24, 4);
    word(b, TAIL, 0, 2, 8, 5);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    assert_int_equal(next(b, 0, 1), 1);
    assert_int_equal(next(b, 0, 1), 0);
    assert_int_equal(next(b, 1, 1), 4);
    assert_int_equal(next(b, 0, 2), 5);
    afdep_sim_advance(b->sim, 99000);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    assert_int_equal(next(b, 0, 1), 0);
    afdep_sim_advance(b->sim, 2000);
    assert_int_equal(b->f->ops->progress(b->f), AFDEP_OK);
    assert_int_equal(next(b, 0, 1), 2);
    assert_int_equal(next(b, 0, 1), 3);
    assert_int_equal(flush(b), AFDEP_OK);
    word(b, TAIL, 0, 1, 8, 6); /* the lane is free again */
    assert_int_equal(next(b, 0, 1), 6);
    lift(b);
}

/* A row that is held is the row that was put, whatever its place holds later. */
static void test_held_rows(void **state)
{
    (void)state;
    unsigned char row[64];
    afdep_fault_t r = rule(AFDEP_FAULT_DELAY);
    r.amount_us = 10;
    r.count = 1;
    bed_t *b = lay(1, &r);
    memset(row, 7, sizeof(row));
    assert_null(afdep_fabric_window(b->f, 1, 0, 64));
    assert_int_equal(afdep_fabric_put_signal(b->f, TAIL, 0, 1, 256, row, sizeof(row), 8, 0, 9), AFDEP_OK);
    memset(row, 8, sizeof(row));
    assert_int_equal(afdep_fabric_put_signal(b->f, TAIL, 0, 1, 512, row, sizeof(row), 8, 9, 10), AFDEP_OK);
    assert_int_equal(next(b, 0, 1), 0); /* neither may the next, which no rule names, pass it */
    afdep_sim_advance(b->sim, 20000);
    assert_int_equal(flush(b), AFDEP_OK);
    assert_int_equal(next(b, 0, 1), 7);
    assert_int_equal(next(b, 0, 1), 9);
    assert_int_equal(next(b, 0, 1), 8);
    assert_int_equal(next(b, 0, 1), 10);
    assert_int_equal(b->f->counters[1].puts, 2);
    assert_int_equal(b->f->counters[1].put_bytes, 128);
    assert_int_equal(b->f->counters[1].signals[TAIL], 2);
    lift(b);
}

static void test_reorder(void **state)
{
    (void)state;
    afdep_fault_t r = rule(AFDEP_FAULT_REORDER);
    r.lane = 0;
    r.count = 1;
    r.overtake = 2;
    r.amount_us = 1000;
    bed_t *b = lay(1, &r);
    word(b, TAIL, 0, 1, 8, 1);
    word(b, TAIL, 0, 1, 8, 2);
    word(b, TAIL, 1, 1, 16, 3);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    assert_int_equal(next(b, 0, 1), 0);
    word(b, TAIL, 1, 2, 16, 4);
    assert_int_equal(flush(b), AFDEP_OK); /* two have gone ahead */
    assert_int_equal(next(b, 0, 1), 1);
    assert_int_equal(next(b, 0, 1), 2);
    lift(b);
    b = lay(1, &r);
    word(b, TAIL, 0, 1, 8, 1);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    afdep_sim_advance(b->sim, 1001000); /* nobody came to overtake */
    assert_int_equal(flush(b), AFDEP_OK);
    assert_int_equal(next(b, 0, 1), 1);
    lift(b);
}

static void test_drop_and_stall(void **state)
{
    (void)state;
    afdep_fault_t r = rule(AFDEP_FAULT_DROP);
    r.what = COUNT;
    r.after = 1;
    r.count = 1;
    bed_t *b = lay(1, &r);
    for (uint64_t v = 1; v <= 3; v++)
        word(b, COUNT, AFDEP_LANE_CONTROL(CHANNELS), 1, 8, v);
    assert_int_equal(flush(b), AFDEP_OK);
    assert_int_equal(next(b, AFDEP_LANE_CONTROL(CHANNELS), 1), 1);
    assert_int_equal(next(b, AFDEP_LANE_CONTROL(CHANNELS), 1), 3);
    assert_int_equal(next(b, AFDEP_LANE_CONTROL(CHANNELS), 1), 0);
    assert_int_equal(b->f->counters[1].signals[COUNT], 3); /* what was issued, not what came */
    lift(b);
    r.kind = AFDEP_FAULT_STALL;
    r.what = AFDEP_FAULT_ANY;
    r.peer = 1;
    b = lay(1, &r);
    for (uint64_t v = 1; v <= 3; v++) {
        word(b, TAIL, 0, 1, 8, v);
        word(b, TAIL, 0, 2, 8, v + 10);
        word(b, TAIL, 1, 1, 16, v + 20);
    }
    assert_int_equal(flush(b), AFDEP_OK);
    assert_int_equal(next(b, 1, 1), 0); /* the second match was this lane's first message */
    for (uint64_t v = 1; v <= 3; v++) {
        assert_int_equal(next(b, 0, 1), v);
        assert_int_equal(next(b, 0, 2), v + 10);
    }
    lift(b);
}

static void test_duplicate(void **state)
{
    (void)state;
    afdep_fault_t r = rule(AFDEP_FAULT_DUPLICATE);
    r.what = TAIL;
    bed_t *b = lay(1, &r);
    static const uint64_t want[] = { 1, 101, 2, 1, 3, 2, 0 };
    word(b, TAIL, 0, 1, 8, 1);
    word(b, COUNT, 0, 1, 16, 101); /* another place: no echo */
    word(b, TAIL, 0, 1, 8, 2);
    word(b, TAIL, 0, 1, 8, 3); /* the echo of 1 is no reason for one of 2 */
    assert_int_equal(flush(b), AFDEP_OK);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        assert_int_equal(next(b, 0, 1), want[i]);
    lift(b);
    unsigned char row[16];
    r.what = AFDEP_FAULT_PUT;
    r.count = 1;
    b = lay(1, &r);
    for (int v = 1; v <= 2; v++) {
        memset(row, v, sizeof(row));
        assert_int_equal(afdep_fabric_put_signal(b->f, TAIL, 0, 1, 256, row, sizeof(row), 8, 0, 50 + (uint64_t)v),
                         AFDEP_OK);
    }
    static const uint64_t rows[] = { 1, 51, 2, 1, 52, 0 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(next(b, 0, 1), rows[i]);
    lift(b);
}

static void test_corrupt(void **state)
{
    (void)state;
    unsigned char row[16] = { 3 };
    afdep_fault_t r[2] = { rule(AFDEP_FAULT_CORRUPT), rule(AFDEP_FAULT_CORRUPT) };
    r[0].what = AFDEP_FAULT_SIGNAL;
    r[0].bit = 33;
    r[1].what = AFDEP_FAULT_PUT;
    r[1].bit = -127; /* bit 1 of the first byte */
    bed_t *b = lay(2, r);
    word(b, TAIL, 0, 1, 8, 5);
    assert_int_equal(afdep_fabric_put(b->f, 0, 1, 256, row, sizeof(row)), AFDEP_OK);
    assert_int_equal(flush(b), AFDEP_OK);
    assert_int_equal(next(b, 0, 1), 5 + (UINT64_C(1) << 33));
    assert_int_equal(next(b, 0, 1), 1);
    assert_int_equal(row[0], 3); /* the source is the caller's */
    lift(b);
}

/* Which messages a rule means, and how often. */
static void test_when(void **state)
{
    (void)state;
    afdep_fault_t r[3] = { rule(AFDEP_FAULT_DROP), rule(AFDEP_FAULT_DROP), rule(AFDEP_FAULT_DROP) };
    r[0].exchange = 2;
    r[1].lane = AFDEP_FAULT_LANE_DOMAIN;
    r[1].count = 1;
    r[2].rank = 1; /* not this one */
    bed_t *b = lay(3, r);
    for (uint64_t n = 1; n <= 3; n++) {
        b->f->ops->before_step(b->f, n, "forward", 0);
        word(b, TAIL, 0, 1, 8, n);
    }
    assert_int_equal(next(b, 0, 1), 1);
    assert_int_equal(next(b, 0, 1), 3);
    word(b, TAIL, AFDEP_LANE_DOMAIN(CHANNELS), 1, 8, 7);
    word(b, TAIL, AFDEP_LANE_DOMAIN(CHANNELS), 1, 8, 8);
    word(b, TAIL, AFDEP_LANE_CONTROL(CHANNELS), 1, 8, 9);
    assert_int_equal(next(b, AFDEP_LANE_DOMAIN(CHANNELS), 1), 8);
    assert_int_equal(next(b, AFDEP_LANE_CONTROL(CHANNELS), 1), 9);
    lift(b);
    r[0] = rule(AFDEP_FAULT_DROP);
    r[0].probability = 0.25;
    b = lay(1, r);
    int came = 0, again = 0;
    for (uint64_t n = 1; n <= 1000; n++)
        word(b, TAIL, 0, 1, 8, n);
    while (next(b, 0, 1))
        came++;
    assert_in_range(came, 700, 800);
    lift(b);
    b = lay(1, r);
    for (uint64_t n = 1; n <= 1000; n++)
        word(b, TAIL, 0, 1, 8, n);
    while (next(b, 0, 1))
        again++;
    assert_int_equal(again, came); /* the seed decides */
    lift(b);
}

static void test_slow_actor(void **state)
{
    (void)state;
    afdep_fault_t r = rule(AFDEP_FAULT_SLOW_ACTOR);
    r.duty = "forward";
    r.lane = 1;
    r.amount_us = 200;
    bed_t *b = lay(1, &r);
    afdep_fabric_t *f = b->f;
    uint64_t start = f->ops->now(f);
    f->ops->before_step(f, 1, "forward", 0);
    f->ops->before_step(f, 1, "reply_forward", 1);
    assert_int_equal(f->ops->now(f), start);
    f->ops->before_step(f, 1, "forward", 1);
    assert_in_range(f->ops->now(f) - start, 200000, 210000);
    assert_null(f->ops->window(f, 1, 0, 8)); /* the simulator's answer */
    lift(b);
}

static void test_refusals(void **state)
{
    (void)state;
    afdep_fault_t r[2] = { rule(AFDEP_FAULT_DELAY), rule(AFDEP_FAULT_KILL) };
    r[0].amount_us = 1;
    bed_t *b = lay(1, r);
    afdep_fabric_t *other = NULL;
    const afdep_faults_t deadly = { r, 2, 1 };
    assert_int_equal(afdep_fault_wrap(afdep_sim_fabric(b->sim, 1), &deadly, &other), AFDEP_ERR_UNSUPPORTED);
    assert_null(other);
    assert_string_equal(b->f->ops->name, "sim");
    /* What leads nowhere is refused by the inner fabric and counted nowhere. */
    assert_int_equal(afdep_fabric_signal(b->f, TAIL, LANES, 1, 8, 0, 1), AFDEP_ERR_PROTOCOL);
    assert_int_equal(afdep_fabric_put(b->f, 0, RANKS, 0, r, 8), AFDEP_ERR_PROTOCOL);
    assert_int_equal(b->f->counters[1].signals[TAIL], 0);
    lift(b);
}

/* An inner fabric that takes only so many messages, says AFDEP_AGAIN to the rest, and looks at a put's source as late
   as it may: in flush. */
static int room;
static const unsigned char *late;

static afdep_status_t tight_put(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src, size_t bytes)
{
    const afdep_fabric_ops_t *sim = f->ops + 1;
    if (room-- <= 0)
        return AFDEP_AGAIN;
    late = src;
    return sim->put(f, lane, peer, offset, src, bytes);
}

static afdep_status_t tight_flush(afdep_fabric_t *f)
{
    (void)f;
    if (late && *late != 50)
        return AFDEP_ERR_PROTOCOL;
    late = NULL;
    return AFDEP_OK;
}

static afdep_status_t tight_signal(afdep_fabric_t *f, int lane, int peer, uint64_t offset, uint64_t old_value,
                                   uint64_t new_value)
{
    const afdep_fabric_ops_t *sim = f->ops + 1;
    return room-- > 0 ? sim->signal(f, lane, peer, offset, old_value, new_value) : AFDEP_AGAIN;
}

static afdep_status_t tight_put_signal(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src,
                                       size_t bytes, uint64_t at, uint64_t old_value, uint64_t new_value)
{
    (void)f, (void)lane, (void)peer, (void)offset, (void)src, (void)bytes, (void)at, (void)old_value, (void)new_value;
    return AFDEP_AGAIN;
}

/* Back-pressure: what finds no room waits in its lane, was judged once, and goes in order. */
static void test_no_room(void **state)
{
    (void)state;
    unsigned char row[16] = { 50 };
    afdep_fault_t r = rule(AFDEP_FAULT_DROP);
    r.what = TAIL;
    r.after = 4;
    r.count = 1;
    bed_t *b = lay(1, &r);
    afdep_fabric_t *inner = afdep_sim_fabric(b->sim, 0);
    afdep_fabric_ops_t ops[2] = { *inner->ops, *inner->ops };
    ops[0].put = tight_put;
    ops[0].signal = tight_signal;
    ops[0].put_signal = tight_put_signal;
    ops[0].flush = tight_flush;
    const afdep_fabric_ops_t *before = inner->ops;
    inner->ops = ops;
    room = 1;
    word(b, TAIL, 0, 1, 8, 1);
    word(b, TAIL, 0, 1, 8, 2);
    assert_int_equal(afdep_fabric_put_signal(b->f, TAIL, 0, 1, 256, row, sizeof(row), 8, 2, 3), AFDEP_OK);
    assert_int_equal(afdep_fabric_put_signal(b->f, TAIL, 1, 1, 256, row, sizeof(row), 8, 0, 6), AFDEP_OK);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    room = 100;
    word(b, TAIL, 0, 1, 8, 4); /* the fifth */
    word(b, TAIL, 0, 1, 8, 5);
    assert_int_equal(flush(b), AFDEP_OK);
    static const uint64_t want[] = { 1, 2, 50, 3, 5, 0 };
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
        assert_int_equal(next(b, 0, 1), want[i]);
    assert_int_equal(next(b, 1, 1), 50);
    assert_int_equal(next(b, 1, 1), 6);
    inner->ops = before;
    lift(b);
}

/* Closing with messages held, echoes due and copies sent: nothing leaks (under a sanitizer), nothing goes. */
static void test_close_while_holding(void **state)
{
    (void)state;
    unsigned char row[16] = { 1 };
    afdep_fault_t r[2] = { rule(AFDEP_FAULT_DELAY), rule(AFDEP_FAULT_DUPLICATE) };
    r[0].amount_us = 1000000;
    r[0].lane = 1;
    bed_t *b = lay(2, r);
    assert_int_equal(afdep_fabric_put(b->f, 1, 1, 256, row, sizeof(row)), AFDEP_OK);
    word(b, TAIL, 1, 2, 8, 1);
    word(b, TAIL, 0, 1, 8, 1);
    word(b, TAIL, 0, 1, 8, 2);
    assert_int_equal(flush(b), AFDEP_AGAIN);
    b->f->ops->close(b->f, 0);
    assert_int_equal(next(b, 1, 1), 0);
    assert_int_equal(next(b, 1, 2), 0);
    afdep_sim_destroy(b->sim);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delay),      cmocka_unit_test(test_held_rows), cmocka_unit_test(test_reorder),
        cmocka_unit_test(test_drop_and_stall), cmocka_unit_test(test_duplicate), cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_when),       cmocka_unit_test(test_slow_actor), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_room),    cmocka_unit_test(test_close_while_holding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
