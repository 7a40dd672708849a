/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The elastic calls through the public API: who may make them, what is refused and changes nothing, a receive that
 * comes back for room while its dispatch is under way, and invalid routes that are named once everything has been
 * received. In one domain and across domains, with and without the entry barrier.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "validate/unit/erring.h"

#define RANKS 4

typedef struct elastic_case {
    int per_domain, barrier, dense;
} elastic_case_t;

static const elastic_case_t cases[] = { { 0, 0, 0 }, { 0, 1, 1 }, { 2, 0, 0 }, { 2, 1, 1 }, { 1, 0, 1 }, { 2, 1, 0 } };

static rig_t *open_elastic(const afdep_group_t *group, const elastic_case_t *c)
{
    afdep_config_t config = rig_config(0, c->per_domain, 20000);
    afdep_status_t status;
    config.flags = c->barrier ? AFDEP_FLAG_ENTRY_BARRIER : 0;
    if (c->dense)
        config.stagger = config.sparse_dispatch = config.sparse_combine = AFDEP_OFF;
    return rig_open(group, &config, &status);
}

/* An exchange of `tokens`; its rows go back as they came. */
static const char *exchange(rig_t *rig, int tokens, afdep_status_t want, const char *text)
{
    afdep_dispatch_t d = rig_dispatch_args(rig, RIG_CAPACITY, tokens);
    afdep_receive_t r = rig_receive_args(rig, RIG_CAPACITY);
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    EXPECT(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL), want, text);
    reply.rows = rig->rows;
    reply.receipt = r.receipt;
    c.out = rig->out;
    memset(rig->out, 0xA5, sizeof(rig->out));
    FINE(afdep_elastic_combine(rig->buffer, &reply, &c, NULL));
    if (c.tokens != tokens || c.result != rig->out)
        return crowd_say("combine says %d tokens", c.tokens);
    return rig_wrong_token(rig, tokens) < 0 ? NULL : crowd_say("token %d is wrong", rig_wrong_token(rig, tokens));
}

static const char *bad_calls(rig_t *rig)
{
    afdep_buffer_t *b = rig->buffer;
    afdep_dispatch_t d = rig_dispatch_args(rig, 8, 5);
    afdep_receive_t r = rig_receive_args(rig, 8);
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    EXPECT(afdep_source_dispatch(b, &d, NULL), AFDEP_ERR_ROLE, "a symmetric rank");
    EXPECT(afdep_source_collect(b, &c, NULL), AFDEP_ERR_ROLE, "a symmetric rank");
    EXPECT(afdep_worker_receive(b, &r, NULL), AFDEP_ERR_ROLE, "a symmetric rank");
    EXPECT(afdep_worker_reply(b, &reply, NULL), AFDEP_ERR_ROLE, "a symmetric rank");
    BAD(afdep_elastic_dispatch(NULL, &d, &r, NULL), "buffer is NULL");
    BAD(afdep_elastic_dispatch(b, NULL, &r, NULL), "struct is NULL");
    BAD(afdep_elastic_dispatch(b, &d, NULL, NULL), "struct is NULL");
    BAD(afdep_elastic_dispatch(b, &d, &r, (afdep_stream_t)(uintptr_t)64), "elastic_dispatch: stream is not NULL");
    r.bucket = 7;
    BAD(afdep_elastic_dispatch(b, &d, &r, NULL), "bucket is 8 in dispatch and 7 in receive");
    r = rig_receive_args(rig, 8), r.rows = NULL;
    BAD(afdep_elastic_dispatch(b, &d, &r, NULL), "elastic_dispatch: rows is NULL");
    r = rig_receive_args(rig, 8), d.x = NULL;
    BAD(afdep_elastic_dispatch(b, &d, &r, NULL), "elastic_dispatch: x is NULL with 5 tokens");
    EXPECT(afdep_elastic_combine(b, &reply, &c, NULL), AFDEP_ERR_ORDER, "elastic_combine: no receive is unanswered");
    return NULL;
}

/* A second dispatch before the combine is out of order; the combine checks receipt and output first. */
static const char *bad_halves(rig_t *rig)
{
    afdep_dispatch_t d = rig_dispatch_args(rig, 8, 5);
    afdep_receive_t r = rig_receive_args(rig, 8);
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    FINE(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL));
    EXPECT(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL), AFDEP_ERR_ORDER, "exchange 1 is not combined yet");
    reply.rows = rig->rows;
    reply.receipt = r.receipt;
    BAD(afdep_elastic_combine(rig->buffer, &reply, &c, NULL), "elastic_combine: out is NULL with 5 tokens");
    c.out = rig->out;
    reply.receipt.opaque[2]++;
    BAD(afdep_elastic_combine(rig->buffer, &reply, &c, NULL), "the receipt is of exchange 2");
    reply.receipt = r.receipt;
    FINE(afdep_elastic_combine(rig->buffer, &reply, &c, NULL));
    return rig_wrong_token(rig, 5) < 0 ? NULL : crowd_say("token %d is wrong", rig_wrong_token(rig, 5));
}

/* Room for one row fewer than have come, then for all. The dispatch's arguments are gone by then. */
static const char *comes_back(rig_t *rig)
{
    afdep_dispatch_t d = rig_dispatch_args(rig, 8, 8);
    afdep_receive_t r = rig_receive_args(rig, 8);
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    r.read_host_counts = 1;
    r.rows_capacity = 0;
    EXPECT(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL), AFDEP_ERR_CAPACITY, "rows have come");
    int64_t rows = r.row_count;
    r.rows_capacity = rows - 1;
    EXPECT(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL), AFDEP_ERR_CAPACITY, "rows have come");
    memset(&d, 0, sizeof(d));
    d.struct_size = sizeof(d);
    d.bucket = 8;
    r.rows_capacity = rows;
    FINE(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL));
    reply.rows = rig->rows;
    reply.receipt = r.receipt;
    c.out = rig->out;
    FINE(afdep_elastic_combine(rig->buffer, &reply, &c, NULL));
    return rig_wrong_token(rig, 8) < 0 ? NULL : crowd_say("token %d is wrong", rig_wrong_token(rig, 8));
}

static const char *elastic_rank(const afdep_group_t *group, void *context)
{
    rig_t *rig = open_elastic(group, context);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    const char *failed = bad_calls(rig);
    if (!failed)
        failed = bad_halves(rig);
    if (!failed)
        failed = comes_back(rig);
    if (!failed)
        failed = exchange(rig, rig->rank == 2 ? 0 : RIG_CAPACITY, AFDEP_OK, "");
    if (!failed && rig->rank == 1) {
        rig->ids[3][1] = RIG_EXPERTS;
        failed = exchange(rig, 6, AFDEP_ERR_ROUTE, "elastic_dispatch: token 3, slot 1: expert 8 is outside 0 to 7");
        rig->ids[3][1] = 0;
    } else if (!failed) {
        failed = exchange(rig, 6, AFDEP_OK, "");
    }
    afdep_status_t status = rig_close(rig);
    return failed ? failed : status == AFDEP_OK ? NULL : crowd_say("close: %s", afdep_last_error());
}

static void test_elastic_calls(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        elastic_case_t c = cases[i];
        const char *failed = crowd_run(RANKS, elastic_rank, &c);
        if (failed)
            fail_msg("%d per domain, barrier %d, dense %d: %s", c.per_domain, c.barrier, c.dense, failed);
    }
}

static const char *role_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = rig_config(1, 0, 20000);
    afdep_status_t status;
    (void)context;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    afdep_dispatch_t d = rig_dispatch_args(rig, 8, 5);
    afdep_receive_t r = rig_receive_args(rig, 8);
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    afdep_collect_t c = AFDEP_COLLECT_INIT;
    const char *who = rig->ffn ? "an FFN rank" : "an Attention rank";
    EXPECT(afdep_elastic_dispatch(rig->buffer, &d, &r, NULL), AFDEP_ERR_ROLE, who);
    EXPECT(afdep_elastic_combine(rig->buffer, &reply, &c, NULL), AFDEP_ERR_ROLE, who);
    return rig_close(rig) == AFDEP_OK ? NULL : crowd_say("close: %s", afdep_last_error());
}

static void test_roles_have_their_own_calls(void **state)
{
    (void)state;
    const char *failed = crowd_run(2, role_rank, NULL);
    if (failed)
        fail_msg("%s", failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elastic_calls),
        cmocka_unit_test(test_roles_have_their_own_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
