/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What wrong calls and routes get: a status and a sentence, nothing changed where that is promised (every such test
 * goes on to a right exchange), and exchanges that complete everywhere in spite of bad routes.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "validate/unit/erring.h"

/* ---- Arguments, roles, order --------------------------------------------------------------------------------- */

static const char *bad_dispatches(rig_t *rig)
{
    afdep_buffer_t *b = rig->buffer;
    const afdep_dispatch_t good = rig_dispatch_args(rig, 8, 5);
    afdep_dispatch_t d = good;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    c.out = rig->out;
    BAD(afdep_source_dispatch(NULL, &d, NULL), "buffer is NULL");
    BAD(afdep_source_dispatch(b, NULL, NULL), "struct is NULL");
    BAD(afdep_source_dispatch(b, &d, (afdep_stream_t)(uintptr_t)64), "stream is not NULL");
    d.bucket = 0;
    BAD(afdep_source_dispatch(b, &d, NULL), "bucket is 0: 1 to capacity, 16");
    d.bucket = 17;
    BAD(afdep_source_dispatch(b, &d, NULL), "bucket is 17: 1 to capacity, 16");
    d = good, d.tokens = 9;
    BAD(afdep_source_dispatch(b, &d, NULL), "tokens is 9: 0 to bucket, 8");
    d.tokens = -1;
    BAD(afdep_source_dispatch(b, &d, NULL), "tokens is -1");
    d = good, d.x = NULL;
    BAD(afdep_source_dispatch(b, &d, NULL), "x is NULL with 5 tokens");
    d = good, d.ids = NULL;
    BAD(afdep_source_dispatch(b, &d, NULL), "ids is NULL");
    d = good, d.weights = NULL;
    BAD(afdep_source_dispatch(b, &d, NULL), "weights is NULL");
    d = good, d.struct_size = offsetof(afdep_dispatch_t, weights); /* less than any version has */
    BAD(afdep_source_dispatch(b, &d, NULL), "struct_size");
    EXPECT(afdep_source_collect(b, &c, NULL), AFDEP_ERR_ORDER, "no dispatch is uncollected");
    return NULL;
}

static const char *bad_collects(rig_t *rig)
{
    afdep_buffer_t *b = rig->buffer;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    c.out = NULL;
    BAD(afdep_source_collect(b, &c, NULL), "out is NULL with 5 tokens");
    c.view = 1;
    BAD(afdep_source_collect(b, &c, NULL), "no view");
    c.view = 0;
    c.out = (char *)rig->out + 8;
    BAD(afdep_source_collect(b, &c, NULL), "a multiple of 16 is wanted");
    c.out = rig->out;
    BAD(afdep_source_collect(NULL, &c, NULL), "buffer is NULL");
    BAD(afdep_source_collect(b, NULL, NULL), "struct is NULL");
    BAD(afdep_source_collect(b, &c, (afdep_stream_t)(uintptr_t)64), "stream is not NULL");
    return NULL;
}

static const char *bad_source(rig_t *rig)
{
    const char *failed = bad_dispatches(rig);
    afdep_receive_t r = rig_receive_args(rig, 8);
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    if (failed)
        return failed;
    EXPECT(afdep_worker_receive(rig->buffer, &r, NULL), AFDEP_ERR_ROLE, "an Attention rank");
    EXPECT(afdep_worker_reply(rig->buffer, &reply, NULL), AFDEP_ERR_ROLE, "an Attention rank");
    FINE(rig_dispatch(rig, 8, 5));
    EXPECT(rig_dispatch(rig, 8, 5), AFDEP_ERR_ORDER, "exchange 1 is not collected yet, and in_flight is 1");
    if ((failed = bad_collects(rig)) != NULL)
        return failed;
    FINE(rig_collect(rig));
    if (rig_wrong_token(rig, 5) >= 0)
        return crowd_say("token %d is wrong", rig_wrong_token(rig, 5));
    EXPECT(rig_collect(rig), AFDEP_ERR_ORDER, "exchange 1 was the last");
    /* A second exchange, so that the FFN ranks meet stale receipts. */
    FINE(rig_dispatch(rig, 16, 16));
    FINE(rig_collect(rig));
    return rig_wrong_token(rig, 16) < 0 ? NULL : crowd_say("token %d is wrong", rig_wrong_token(rig, 16));
}

static const char *bad_receives(rig_t *rig)
{
    afdep_buffer_t *b = rig->buffer;
    const afdep_receive_t good = rig_receive_args(rig, 8);
    afdep_receive_t r = good;
    BAD(afdep_worker_receive(NULL, &r, NULL), "buffer is NULL");
    BAD(afdep_worker_receive(b, NULL, NULL), "struct is NULL");
    BAD(afdep_worker_receive(b, &r, (afdep_stream_t)(uintptr_t)64), "stream is not NULL");
    r.bucket = 0;
    BAD(afdep_worker_receive(b, &r, NULL), "bucket is 0: 1 to capacity, 16");
    r.bucket = -5;
    BAD(afdep_worker_receive(b, &r, NULL), "bucket is -5");
    r.bucket = 17;
    BAD(afdep_worker_receive(b, &r, NULL), "bucket is 17");
    r = good, r.rows = NULL;
    BAD(afdep_worker_receive(b, &r, NULL), "rows is NULL");
    r = good, r.row_weight = NULL;
    BAD(afdep_worker_receive(b, &r, NULL), "row_weight is NULL");
    r = good, r.ends = NULL;
    BAD(afdep_worker_receive(b, &r, NULL), "ends is NULL");
    r = good, r.rows = (char *)rig->rows + 2;
    BAD(afdep_worker_receive(b, &r, NULL), "a multiple of 16 is wanted");
    r = good, r.rows_capacity = 1;
    BAD(afdep_worker_receive(b, &r, NULL), "rows_capacity is 1: bucket 8 needs");
    r.rows_capacity = -1;
    BAD(afdep_worker_receive(b, &r, NULL), "rows_capacity is -1");
    r = good, r.struct_size = 16;
    BAD(afdep_worker_receive(b, &r, NULL), "struct_size is 16");
    return NULL;
}

static const char *bad_replies(rig_t *rig)
{
    afdep_buffer_t *b = rig->buffer;
    afdep_reply_t good = AFDEP_REPLY_INIT, r;
    good.rows = rig->rows;
    good.receipt = rig->receipt;
    BAD(afdep_worker_reply(NULL, &good, NULL), "buffer is NULL");
    BAD(afdep_worker_reply(b, NULL, NULL), "struct is NULL");
    BAD(afdep_worker_reply(b, &good, (afdep_stream_t)(uintptr_t)64), "stream is not NULL");
    for (int word = 0; word < 4; word++)
        for (uint64_t change = 1; change <= 3; change++) {
            r = good;
            r.receipt.opaque[word] ^= change;
            BAD(afdep_worker_reply(b, &r, NULL), "the receipt");
            r.rows = NULL; /* an altered row count must not make this look right */
            BAD(afdep_worker_reply(b, &r, NULL), "the receipt");
        }
    r = good;
    r.receipt.opaque[3] = 0;
    r.rows = NULL;
    BAD(afdep_worker_reply(b, &r, NULL), "the receipt was altered");
    memset(&r.receipt, 0, sizeof(r.receipt));
    BAD(afdep_worker_reply(b, &r, NULL), "not one of this buffer's");
    r = good, r.rows = NULL;
    BAD(afdep_worker_reply(b, &r, NULL), "rows is NULL with");
    r = good, r.rows = (char *)rig->rows + 4;
    BAD(afdep_worker_reply(b, &r, NULL), "a multiple of 16 is wanted");
    return NULL;
}

static const char *bad_worker(rig_t *rig)
{
    const char *failed = bad_receives(rig);
    afdep_dispatch_t d = rig_dispatch_args(rig, 8, 5);
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    afdep_receipt_t stale;
    if (failed)
        return failed;
    EXPECT(afdep_source_dispatch(rig->buffer, &d, NULL), AFDEP_ERR_ROLE, "an FFN rank");
    EXPECT(afdep_source_collect(rig->buffer, &c, NULL), AFDEP_ERR_ROLE, "an FFN rank");
    EXPECT(rig_reply(rig), AFDEP_ERR_ORDER, "no receive is unanswered");
    FINE(rig_receive(rig, 8));
    EXPECT(rig_receive(rig, 8), AFDEP_ERR_ORDER, "exchange 1 is not replied to yet, and in_flight is 1");
    if ((failed = bad_replies(rig)) != NULL)
        return failed;
    FINE(rig_reply(rig));
    EXPECT(rig_reply(rig), AFDEP_ERR_ORDER, "no receive is unanswered; exchange 1 was the last");
    stale = rig->receipt;
    FINE(rig_receive(rig, 16));
    afdep_receipt_t next = rig->receipt;
    rig->receipt = stale;
    BAD(rig_reply(rig), "the receipt is of exchange 1: 2 is answered next");
    rig->receipt = next;
    FINE(rig_reply(rig));
    return NULL;
}

static const char *bad_calls_rank(const afdep_group_t *group, void *context)
{
    rig_t *rig = open_case(group, context);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    const char *failed = rig->ffn ? bad_worker(rig) : bad_source(rig);
    if (!failed)
        failed = expect(afdep_buffer_error(rig->buffer), AFDEP_OK, "", "error query of a healthy buffer");
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close");
}

static void test_bad_calls_change_nothing(void **state)
{
    (void)state;
    run_layouts(bad_calls_rank);
}

static const char *fp8_rank(const afdep_group_t *group, void *context)
{
    rig_t *rig = open_case(group, context);
    const char *failed;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->ffn)
        failed = expect(rig_receive(rig, 4), AFDEP_ERR_ARGUMENT, "row_scale is NULL", "receive");
    else
        failed = expect(rig_dispatch(rig, 4, 4), AFDEP_ERR_ARGUMENT, "x_scale is NULL with 4 tokens", "dispatch");
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close");
}

static void test_fp8_wants_scales(void **state)
{
    (void)state;
    error_case_t c = { .ffn = 1, .attention = 1, .per_domain = 1, .fp8 = 1 };
    run(&c, fp8_rank);
}

/* ---- Tensors that do not suffice ----------------------------------------------------------------------------- */

static afdep_status_t offer(void *context, int64_t rows, struct afdep_receive *r)
{
    int *calls = context;
    if ((*calls)++ < 2)
        return AFDEP_ERR_MEMORY; /* passed through as it is */
    r->rows_capacity = rows;
    return AFDEP_OK;
}

/* What no callback may return: internal numbers and what would read as the buffer's own failure. */
static afdep_status_t offer_nonsense(void *context, int64_t rows, struct afdep_receive *r)
{
    (void)rows, (void)r;
    const int *answer = context;
    return (afdep_status_t)*answer;
}

/* Exchange 1: too little room, then enough. Exchange 2: `allocate` refuses twice, and thrice in ways it may not. */
static const char *retry_worker(rig_t *rig)
{
    afdep_receive_t r = rig_receive_args(rig, 8);
    int calls = 0, counted = 0;
    r.read_host_counts = 1;
    r.host_counts = rig->host_counts;
    r.rows_capacity = 0;
    EXPECT(afdep_worker_receive(rig->buffer, &r, NULL), AFDEP_ERR_CAPACITY, "rows_capacity is 0:");
    for (int e = 0; e < RIG_EXPERTS / 2; e++)
        counted += rig->host_counts[e];
    if (r.row_count != counted || counted < 1)
        return crowd_say("row_count is %lld, host_counts sum to %d", (long long)r.row_count, counted);
    EXPECT(rig_reply(rig), AFDEP_ERR_ORDER, "has not returned its rows yet");
    r.bucket = 7;
    BAD(afdep_worker_receive(rig->buffer, &r, NULL), "bucket is 7, and it was 8 when this receive began");
    r.bucket = 8;
    r.rows_capacity = counted - 1;
    EXPECT(afdep_worker_receive(rig->buffer, &r, NULL), AFDEP_ERR_CAPACITY, "rows have come");
    r.rows_capacity = counted;
    r.ends = NULL;
    BAD(afdep_worker_receive(rig->buffer, &r, NULL), "ends is NULL");
    r.ends = rig->ends;
    FINE(afdep_worker_receive(rig->buffer, &r, NULL));
    rig->receipt = r.receipt;
    FINE(rig_reply(rig));
    r = rig_receive_args(rig, 16);
    r.read_host_counts = 1;
    r.allocate = offer;
    r.allocate_context = &calls;
    for (int i = 0; i < 2; i++)
        if (afdep_worker_receive(rig->buffer, &r, NULL) != AFDEP_ERR_MEMORY)
            return crowd_say("allocate's refusal was not passed on");
    static const int nonsense[] = { 1, 2, AFDEP_ERR_TIMEOUT };
    for (int i = 0; i < 3; i++) {
        int answer = nonsense[i];
        r.allocate = offer_nonsense;
        r.allocate_context = &answer;
        BAD(afdep_worker_receive(rig->buffer, &r, NULL), "which is no status that it may return");
    }
    r.allocate = offer;
    r.allocate_context = &calls;
    FINE(afdep_worker_receive(rig->buffer, &r, NULL));
    rig->receipt = r.receipt;
    FINE(rig_reply(rig));
    return NULL;
}

static const char *retry_rank(const afdep_group_t *group, void *context)
{
    rig_t *rig = open_case(group, context);
    const char *failed = NULL;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (rig->ffn)
        failed = retry_worker(rig);
    for (int n = 0; n < 2 && !rig->ffn && !failed; n++) {
        int tokens = n ? 16 : 8;
        failed = expect(rig_dispatch(rig, tokens, tokens), AFDEP_OK, "", "dispatch");
        if (!failed)
            failed = expect(rig_collect(rig), AFDEP_OK, "", "collect");
        if (!failed && rig_wrong_token(rig, tokens) >= 0)
            failed = crowd_say("token %d is wrong", rig_wrong_token(rig, tokens));
    }
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close");
}

static void test_receive_may_be_called_again(void **state)
{
    (void)state;
    run_layouts(retry_rank);
}

/* ---- Several buffers and exchanges --------------------------------------------------------------------------- */

static const char *foreign_receipt_rank(const afdep_group_t *group, void *context)
{
    rig_t *one = open_case(group, context), *two = open_case(group, context);
    const char *failed = NULL;
    if (!one || !two)
        return crowd_say("open: %s", afdep_last_error());
    failed = expect(rig_first(one, 8, 3), AFDEP_OK, "", "first of one");
    if (!failed)
        failed = expect(rig_first(two, 8, 4), AFDEP_OK, "", "first of two");
    if (!failed && one->ffn) {
        afdep_receipt_t own = one->receipt;
        one->receipt = two->receipt;
        failed = expect(rig_reply(one), AFDEP_ERR_ARGUMENT, "not one of this buffer's", "a foreign receipt");
        one->receipt = own;
    }
    if (!failed)
        failed = expect(rig_second(two), AFDEP_OK, "", "second of two");
    if (!failed)
        failed = expect(rig_second(one), AFDEP_OK, "", "second of one");
    if (!failed && !one->ffn && (rig_wrong_token(one, 3) >= 0 || rig_wrong_token(two, 4) >= 0))
        failed = crowd_say("a result is wrong");
    afdep_status_t first = rig_close(one), second = rig_close(two);
    return failed ? failed : expect(first != AFDEP_OK ? first : second, AFDEP_OK, "", "close");
}

static void test_foreign_receipts(void **state)
{
    (void)state;
    run_layouts(foreign_receipt_rank);
}

static const char *in_flight_rank(const afdep_group_t *group, void *context)
{
    rig_t *rig = open_case(group, context);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    const char *failed = expect(rig_first(rig, 8, 3), AFDEP_OK, "", "first");
    afdep_receipt_t receipt = rig->receipt;
    if (!failed)
        failed = expect(rig_first(rig, 8, 8), AFDEP_OK, "", "second in flight");
    if (!failed)
        failed = expect(rig_first(rig, 8, 8), AFDEP_ERR_ORDER, "and in_flight is 2", "third in flight");
    if (!failed && rig->ffn)
        failed = expect(rig_reply(rig), AFDEP_ERR_ARGUMENT, "of exchange 2: 1 is answered next", "replies reordered");
    for (int n = 0; n < 2 && !failed; n++) {
        afdep_receipt_t next = rig->receipt;
        rig->receipt = n ? next : receipt;
        failed = expect(rig_second(rig), AFDEP_OK, "", "second half");
        rig->receipt = next;
    }
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close");
}

static void test_in_flight_limit(void **state)
{
    (void)state;
    for (int i = 0; i < LAYOUTS; i++) {
        error_case_t c;
        memcpy(&c, &layouts[i], sizeof(c));
        c.in_flight = 2;
        run(&c, in_flight_rank);
    }
}

/* ---- Routes -------------------------------------------------------------------------------------------------- */

static const char *bad_route(rig_t *rig, int token, int slot, int id, const char *said)
{
    int kept = rig->ids[token][slot];
    char where[32];
    rig->ids[token][slot] = id;
    snprintf(where, sizeof(where), "token %d, slot %d: ", token, slot);
    EXPECT(rig_dispatch(rig, 16, 16), AFDEP_ERR_ROUTE, where);
    if (!strstr(afdep_last_error(), said))
        return crowd_say("\"%s\" is not in: %s", said, afdep_last_error());
    FINE(afdep_buffer_error(rig->buffer));
    FINE(rig_collect(rig));
    if (rig_wrong_token(rig, 16) >= 0)
        return crowd_say("with id %d, token %d is wrong", id, rig_wrong_token(rig, 16));
    rig->ids[token][slot] = kept;
    return NULL;
}

#define ROUTE_EXCHANGES 8

static const char *bad_routes(rig_t *rig)
{
    const char *failed;
    int third = rig->ids[3][0];
    char repeated[32];
    snprintf(repeated, sizeof(repeated), "expert %d is repeated", third);
    if ((failed = bad_route(rig, 0, 0, RIG_EXPERTS, "expert 8 is outside 0 to 7")) != NULL ||
        (failed = bad_route(rig, 15, 1, -2, "expert -2 is outside")) != NULL ||
        (failed = bad_route(rig, 7, 0, INT_MIN, "expert -2147483648 is outside")) != NULL ||
        (failed = bad_route(rig, 8, 1, INT_MAX, "expert 2147483647 is outside")) != NULL ||
        (failed = bad_route(rig, 3, 1, third, repeated)) != NULL)
        return failed;
    /* Several: the first is named. All of a token: it is +0. */
    rig->ids[5][0] = 100;
    rig->ids[5][1] = -100;
    if ((failed = bad_route(rig, 2, 1, 1 << 30, "expert 1073741824")) != NULL)
        return failed;
    for (int t = 0; t < RIG_CAPACITY; t++)
        rig->ids[t][0] = rig->ids[t][1] = 1000 + t;
    if ((failed = bad_route(rig, 0, 0, 1000, "expert 1000")) != NULL)
        return failed;
    for (int t = 0; t < RIG_CAPACITY; t++)
        rig->ids[t][0] = t % RIG_EXPERTS, rig->ids[t][1] = -1;
    FINE(rig_dispatch(rig, 16, 16));
    FINE(rig_collect(rig));
    return rig_wrong_token(rig, 16) < 0 ? NULL : crowd_say("token %d is wrong", rig_wrong_token(rig, 16));
}

static const char *route_rank(const afdep_group_t *group, void *context)
{
    rig_t *rig = open_case(group, context);
    const char *failed = NULL;
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    if (!rig->ffn && rig->rank % 2 == 0)
        failed = bad_routes(rig);
    else /* FFN ranks and the other sources see nothing of it */
        for (int n = 0; n < ROUTE_EXCHANGES && !failed; n++) {
            failed = expect(rig_first(rig, 16, 16), AFDEP_OK, "", "first");
            if (!failed)
                failed = expect(rig_second(rig), AFDEP_OK, "", "second");
            if (!failed && !rig->ffn && rig_wrong_token(rig, 16) >= 0)
                failed = crowd_say("token %d is wrong", rig_wrong_token(rig, 16));
        }
    afdep_status_t status = rig_close(rig);
    return failed ? failed : expect(status, AFDEP_OK, "", "close");
}

static void test_bad_routes_complete_everywhere(void **state)
{
    (void)state;
    run_layouts(route_rank);
}

/* ---- Statuses ------------------------------------------------------------------------------------------------ */

static void test_statuses(void **state)
{
    (void)state;
    static const struct {
        afdep_status_t status;
        const char *name;
        int fatal;
    } known[] = {
        { AFDEP_OK, "AFDEP_OK", 0 },
        { AFDEP_ERR_ARGUMENT, "AFDEP_ERR_ARGUMENT", 0 },
        { AFDEP_ERR_CONFIG, "AFDEP_ERR_CONFIG", 0 },
        { AFDEP_ERR_ROLE, "AFDEP_ERR_ROLE", 0 },
        { AFDEP_ERR_ORDER, "AFDEP_ERR_ORDER", 0 },
        { AFDEP_ERR_UNSUPPORTED, "AFDEP_ERR_UNSUPPORTED", 0 },
        { AFDEP_ERR_CAPACITY, "AFDEP_ERR_CAPACITY", 0 },
        { AFDEP_ERR_MEMORY, "AFDEP_ERR_MEMORY", 0 },
        { AFDEP_ERR_SYSTEM, "AFDEP_ERR_SYSTEM", 0 },
        { AFDEP_ERR_BOOTSTRAP, "AFDEP_ERR_BOOTSTRAP", 0 },
        { AFDEP_ERR_AGREEMENT, "AFDEP_ERR_AGREEMENT", 0 },
        { AFDEP_ERR_ROUTE, "AFDEP_ERR_ROUTE", 0 },
        { AFDEP_ERR_TIMEOUT, "AFDEP_ERR_TIMEOUT", 1 },
        { AFDEP_ERR_PEER, "AFDEP_ERR_PEER", 1 },
        { AFDEP_ERR_PROTOCOL, "AFDEP_ERR_PROTOCOL", 1 },
        { AFDEP_ERR_POISONED, "AFDEP_ERR_POISONED", 1 },
        { AFDEP_ERR_TRANSPORT, "AFDEP_ERR_TRANSPORT", 1 },
    };
    const int count = (int)(sizeof(known) / sizeof(known[0]));
    for (int number = -200; number <= 50; number++) {
        int at = 0;
        while (at < count && (int)known[at].status != number)
            at++;
        const char *name = at < count ? known[at].name : "unknown status";
        assert_string_equal(afdep_status_string((afdep_status_t)number), name);
        assert_int_equal(afdep_status_is_fatal((afdep_status_t)number) != 0, at < count && known[at].fatal);
    }
    assert_int_equal(afdep_buffer_close(NULL), AFDEP_OK);
    assert_int_equal(afdep_buffer_error(NULL), AFDEP_ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_bad_calls_change_nothing),
        cmocka_unit_test(test_fp8_wants_scales),
        cmocka_unit_test(test_receive_may_be_called_again),
        cmocka_unit_test(test_foreign_receipts),
        cmocka_unit_test(test_in_flight_limit),
        cmocka_unit_test(test_bad_routes_complete_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
