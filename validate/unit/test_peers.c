/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of the host backend, alone: every word and row that peers would write into its segment is written by the
 * test, right in all but one respect. Each wrong one must end in the error that names it, whatever its value, and never
 * in a read or write elsewhere (under a sanitizer), a hang or a result. Time is the simulator's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/error.h"
#include "fabric/sim.h"
#include "host/host.h"
#include "validate/unit/rig.h"

#define BUCKET 8
#define FFN 2
#define RANKS 6
#define MOST 0xFFFFFFFFu

/* What the peers of a rank write; `right` is what they should. The rank under test is 0 or 2; its first source (or
   target) sends it one token, the other rail of its domain another. */
typedef struct play {
    uint32_t count_tag, count;                 /* the first source's count word */
    uint32_t idle_tag, idle_count;             /* the other sources' */
    uint32_t finishes, finished_rows;          /* the finish tail of the channel of its token */
    uint32_t row_exchange, row_token, row_source;
    int32_t ids[2];
    int32_t second_token;                      /* direct: of another row; -1: none */
    uint32_t forward_tag, forward_rows;        /* the other rail's forward word */
    uint32_t extent;                           /* of the first source domain */
    uint32_t far_exchange, far_token, far_source; /* tag of its row, which stands at the place of token 2 */
    int32_t far_ids[2];
    int32_t far_extra;                         /* token of another row that stands there; -1: none */
    uint32_t reply_tag, reply_rows;            /* its reply word */
    uint32_t partial_exchange, partial_token, partial_source;
    /* To a source */
    uint32_t witness_tag, last_witness_tag;    /* before dispatch, before closing; direct: answers */
    uint32_t combine_finishes, combine_rows;
    uint32_t combine_exchange, combine_token, combine_source;
} play_t;

static const play_t right = {
    .count_tag = 1, .count = 1, .idle_tag = 1, .finishes = 1, .finished_rows = 1, .row_exchange = 1, .row_source = 2,
    .ids = { 0, 4 }, .second_token = -1, .forward_tag = 1, .forward_rows = 1, .extent = 3, .far_exchange = 1,
    .far_token = 2, .far_source = 3, .far_ids = { 1, -1 }, .far_extra = -1, .reply_tag = 1, .reply_rows = 1,
    .partial_exchange = 1, .partial_source = 1, .last_witness_tag = 1, .combine_finishes = 1, .combine_rows = 1,
    .combine_exchange = 1,
};

/* The rank under test. */
typedef struct bed {
    afdep_settings_t settings;
    afdep_sim_t *sim;
    afdep_host_t *h;
    rig_t *rig;
    afdep_receive_t receive;
    afdep_collect_t collect;
} bed_t;

static bed_t *lay_planes(int rank, int per_domain, int dense, int experts, int in_flight)
{
    uint64_t bytes[RANKS];
    bed_t *b = calloc(1, sizeof(*b));
    afdep_config_t c = rig_config(FFN, per_domain, 5);
    c.num_experts = experts;
    c.in_flight = in_flight;
    c.stagger = c.sparse_dispatch = c.sparse_combine = dense ? AFDEP_OFF : AFDEP_ON;
    assert_non_null(b);
    assert_int_equal(afdep_settings_resolve(&c, RANKS, &b->settings), AFDEP_OK);
    for (int r = 0; r < RANKS; r++)
        bytes[r] = afdep_segment_bytes(&b->settings.layout, &b->settings.shape, r);
    int lanes = AFDEP_LANE_COUNT(b->settings.shape.channels);
    assert_int_equal(afdep_sim_create(RANKS, lanes, bytes, &b->sim), AFDEP_OK);
    assert_int_equal(afdep_host_create(&b->settings, rank, &b->h), AFDEP_OK);
    b->h->fabric = afdep_sim_fabric(b->sim, rank);
    afdep_host_prepare_segment(b->h, b->h->fabric->base);
    b->rig = rig_new(rank, rank < FFN);
    return b;
}

static bed_t *lay(int rank, int per_domain, int dense, int experts)
{
    return lay_planes(rank, per_domain, dense, experts, 1);
}

/* After a call of the host's own close, which frees the rank. */
static void lift_closed(bed_t *b)
{
    afdep_sim_destroy(b->sim);
    free(b->rig);
    free(b);
}

static void lift(bed_t *b)
{
    afdep_host_destroy(b->h);
    lift_closed(b);
}

/* ---- What peers write ---------------------------------------------------------------------------------------- */

static void write_word(bed_t *b, uint64_t at, uint32_t high, uint32_t low)
{
    uint64_t word = afdep_word(high, low);
    memcpy(b->h->fabric->base + b->h->planes[0].base + at, &word, sizeof(word));
}

static void write_row(bed_t *b, uint64_t at, uint32_t exchange, uint32_t token, uint32_t source, const int32_t *ids)
{
    const afdep_row_format_t *f = &b->settings.layout.row;
    unsigned char *row = b->h->fabric->base + b->h->planes[0].base + at;
    const afdep_row_tag_t tag = { exchange, token, source, AFDEP_ROW_MARK };
    const float weights[2] = { 1, 1 };
    memcpy(row + f->tag_offset, &tag, sizeof(tag));
    memcpy(row + f->ids_offset, ids, 2 * sizeof(*ids));
    memcpy(row + f->weights_offset, weights, sizeof(weights));
}

static void write_reply_row(bed_t *b, uint64_t at, uint32_t exchange, uint32_t token, uint32_t source)
{
    const afdep_row_tag_t tag = { exchange, token, source, AFDEP_ROW_MARK };
    memcpy(b->h->fabric->base + b->h->planes[0].base + at + b->settings.layout.row.reply_tag_offset, &tag, sizeof(tag));
}

static void write_direct(bed_t *b, const play_t *p)
{
    const afdep_shape_t *s = &b->settings.shape;
    const afdep_layout_t *l = &b->settings.layout;
    for (int a = 0; a < s->attention_ranks; a++)
        write_word(b, afdep_at_count_word(&l->ffn, a), a ? p->idle_tag : p->count_tag, a ? p->idle_count : p->count);
    write_row(b, afdep_at_direct_row(&l->ffn, l, s, 0, 0), p->row_exchange, p->row_token, p->row_source, p->ids);
    if (p->second_token >= 0)
        write_row(b, afdep_at_direct_row(&l->ffn, l, s, 0, 1), 1, (uint32_t)p->second_token, 2, p->ids);
}

static void write_directional(bed_t *b, const play_t *p)
{
    const afdep_shape_t *s = &b->settings.shape;
    const afdep_layout_t *l = &b->settings.layout;
    int channel = afdep_channel_of(s, 0, 0);
    write_word(b, afdep_at_count_word(&l->ffn, 0), p->count_tag, p->count);
    write_word(b, afdep_at_count_word(&l->ffn, 1), p->idle_tag, p->idle_count);
    for (int source = 0; source < s->attention_domains && !s->sparse_dispatch; source++)
        for (int c = 0; c < s->channels; c++)
            write_word(b, afdep_at_finish_tail(&l->ffn, s, source, c), 1, 0);
    write_word(b, afdep_at_finish_tail(&l->ffn, s, 0, channel), p->finishes, p->finished_rows);
    write_row(b, afdep_at_rail_row(&l->ffn, l, s, 0, channel, 0), p->row_exchange, p->row_token, p->row_source, p->ids);
    write_word(b, afdep_at_forward_word(&l->ffn, 1, 0), p->forward_tag, p->forward_rows);
    memcpy(b->h->fabric->base + b->h->planes[0].base + afdep_at_extents(&l->ffn, l, 1), &p->extent, sizeof(p->extent));
    write_row(b, afdep_at_domain_row(&l->ffn, l, s, 1, 0, 2), p->far_exchange, p->far_token, p->far_source, p->far_ids);
    if (p->far_extra >= 0)
        write_row(b, afdep_at_domain_row(&l->ffn, l, s, 1, 0, p->far_extra), 1, (uint32_t)p->far_extra, 3, p->far_ids);
    write_word(b, afdep_at_reply_word(&l->ffn, 1), p->reply_tag, p->reply_rows);
    write_reply_row(b, afdep_at_partial(&l->ffn, l, s, 1, 0, 0), p->partial_exchange, p->partial_token,
                    p->partial_source);
}

static void write_replies(bed_t *b, const play_t *p)
{
    const afdep_shape_t *s = &b->settings.shape;
    const afdep_layout_t *l = &b->settings.layout;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT, channel = direct ? 0 : afdep_channel_of(s, 0, 0);
    for (int c = 0; c < s->channels && !direct && !s->sparse_combine; c++)
        write_word(b, afdep_at_combine_tail(&l->attention, s, 0, c), 1, 0);
    write_word(b, afdep_at_combine_tail(&l->attention, s, 0, channel), p->combine_finishes, p->combine_rows);
    write_reply_row(b, afdep_at_combine_row(&l->attention, l, s, 0, 0), p->combine_exchange, p->combine_token,
                    p->combine_source);
}

static void write_witnesses(bed_t *b, uint32_t tag)
{
    write_word(b, afdep_at_witness(&b->settings.layout.attention, 0), tag, 0);
    if (b->settings.shape.protocol == AFDEP_PROTOCOL_DIRECT)
        write_word(b, afdep_at_witness(&b->settings.layout.attention, 1), tag, 0);
}

/* ---- The rank's part ----------------------------------------------------------------------------------------- */

static afdep_status_t run_begun(bed_t *b, afdep_status_t begun)
{
    return begun == AFDEP_OK ? afdep_host_run(b->h) : begun;
}

static afdep_status_t play_worker(bed_t *b, const play_t *p)
{
    afdep_reply_t reply = AFDEP_REPLY_INIT;
    if (b->settings.shape.protocol == AFDEP_PROTOCOL_DIRECT)
        write_direct(b, p);
    else
        write_directional(b, p);
    b->receive = rig_receive_args(b->rig, BUCKET);
    afdep_status_t status = run_begun(b, afdep_host_begin_receive(b->h, &b->receive, NULL));
    if (status != AFDEP_OK)
        return status;
    reply.rows = b->rig->rows;
    reply.receipt = b->receive.receipt;
    return run_begun(b, afdep_host_begin_reply(b->h, &reply, NULL));
}

/* To the end of closing, where every peer has parted. */
static afdep_status_t play_source(bed_t *b, const play_t *p, int *closed)
{
    b->rig->ids[0][0] = p->ids[0];
    b->rig->ids[0][1] = p->ids[1];
    write_witnesses(b, p->witness_tag);
    const afdep_dispatch_t d = rig_dispatch_args(b->rig, BUCKET, 1);
    afdep_status_t status = run_begun(b, afdep_host_begin_dispatch(b->h, &d, NULL));
    if (status != AFDEP_OK)
        return status;
    write_replies(b, p);
    b->collect = (afdep_collect_t)AFDEP_COLLECT_INIT;
    b->collect.out = b->rig->out;
    status = run_begun(b, afdep_host_begin_collect(b->h, &b->collect, NULL));
    if (status != AFDEP_OK)
        return status;
    write_witnesses(b, p->last_witness_tag);
    for (int r = 0; r < RANKS; r++)
        b->h->fabric->base[afdep_closing_word(r)] = 1;
    *closed = 1;
    return afdep_backend_host.close(b->h);
}

/* ---- Cases --------------------------------------------------------------------------------------------------- */

typedef struct wrong {
    size_t field;
    uint32_t value;
    afdep_status_t status;
    const char *sentence;
} wrong_t;

#define BROKEN(field, value, sentence) { offsetof(play_t, field), (uint32_t)(value), AFDEP_ERR_PROTOCOL, sentence }
#define WAITS(field, value, sentence) { offsetof(play_t, field), (uint32_t)(value), AFDEP_ERR_TIMEOUT, sentence }
#define GOOD(field, value) { offsetof(play_t, field), (uint32_t)(value), AFDEP_OK, "" }

static void run_wrong(int rank, int per_domain, int dense, const play_t *base, const wrong_t *w)
{
    play_t p = *base;
    if (w)
        memcpy((char *)&p + w->field, &w->value, sizeof(w->value));
    bed_t *b = lay(rank, per_domain, dense, RIG_EXPERTS);
    int closed = 0;
    afdep_status_t status = rank < FFN ? play_worker(b, &p) : play_source(b, &p, &closed);
    afdep_status_t want = w ? w->status : AFDEP_OK;
    if (status != want || (want != AFDEP_OK && !strstr(afdep_last_error(), w->sentence)))
        fail_msg("rank %d, %d per domain%s, %s (0x%x): %s, wanted %s: %s", rank, per_domain, dense ? ", dense" : "",
                 w ? w->sentence : "all right", w ? w->value : 0, afdep_status_string(status),
                 afdep_status_string(want), status == AFDEP_OK ? "" : afdep_last_error());
    /* The others were told, once. */
    for (int r = 0; r < RANKS && !closed; r++)
        assert_int_equal(b->h->fabric->counters[r].signals[AFDEP_SIGNAL_CONTROL], r != rank && want != AFDEP_OK);
    if (closed)
        lift_closed(b);
    else
        lift(b);
}

static void run_all(int rank, int per_domain, int dense, const play_t *base, const wrong_t *wrongs, size_t count)
{
    run_wrong(rank, per_domain, dense, base, NULL);
    for (size_t i = 0; i < count; i++)
        run_wrong(rank, per_domain, dense, base, &wrongs[i]);
}

#define RUN_ALL(rank, per_domain, dense, base, wrongs)                                                                \
    run_all(rank, per_domain, dense, base, wrongs, sizeof(wrongs) / sizeof((wrongs)[0]))

static const wrong_t row_wrongs[] = {
    BROKEN(row_exchange, 0, "row 0 of rank 2 is not there"),
    BROKEN(row_exchange, 2, "row 0 of rank 2 is not there"),
    BROKEN(row_source, 4, "row 0 of rank 2 is not there"),
    BROKEN(row_source, MOST, "row 0 of rank 2 is not there"),
    BROKEN(row_token, 1, "row 0 of rank 2 is not there"), /* rides another channel */
    BROKEN(row_token, BUCKET, "rank 2 sent token 8 and the bucket here is 8"),
    BROKEN(row_token, RIG_CAPACITY, "rank 2 sent token 16 and the bucket here is 8"),
    BROKEN(row_token, 0xFFFFFFF8u, "rank 2 sent token 4294967288"),
    BROKEN(row_token, 0x80000000u, "rank 2 sent token 2147483648"),
    BROKEN(ids[0], RIG_EXPERTS, "row 0 of rank 2 is not there"),
    BROKEN(ids[0], 0x7FFFFFFF, "row 0 of rank 2 is not there"),
    BROKEN(ids[1], -2, "row 0 of rank 2 is not there"),
    BROKEN(ids[1], 0x80000000u, "row 0 of rank 2 is not there"),
};

static const wrong_t tail_wrongs[] = {
    BROKEN(finishes, 2, "the finish tail of rank 2 holds 0x0000000200000001"),
    BROKEN(finishes, MOST, "the finish tail of rank 2"),
    BROKEN(finished_rows, 3, "the finish tail of rank 2"),
    BROKEN(finished_rows, MOST, "the finish tail of rank 2"),
    WAITS(finishes, 0, "waited for the finish tail of rank 2"),
};

static const wrong_t join_wrongs[] = {
    BROKEN(forward_tag, 0, "the forward word of rank 1"), /* the other parity's entry */
    BROKEN(forward_tag, 2, "the forward word of rank 1"),
    WAITS(forward_tag, MOST, "waited for the forward word of rank 1"),
    BROKEN(forward_rows, 2, "rank 1 sent 2 rows, 1 are there"),
    BROKEN(forward_rows, MOST, "rank 1 sent 4294967295 rows, 1 are there"),
    BROKEN(extent, 2, "rank 1 sent 1 rows, 0 are there"),
    BROKEN(extent, BUCKET + 1, "rank 1 sent tokens up to 8 and the bucket here is 8"),
    BROKEN(extent, MOST, "rank 1 sent tokens up to 4294967294"),
    GOOD(extent, BUCKET),
    BROKEN(far_exchange, 0, "rank 1 sent 1 rows, 0 are there"),
    BROKEN(far_token, 1, "rank 1 sent 1 rows, 0 are there"),
    BROKEN(far_source, 2, "rank 1 sent 1 rows, 0 are there"),
    BROKEN(far_ids[0], 5, "a row of rank 3, token 2, was not meant for this rank"),
    BROKEN(far_ids[0], -1, "a row of rank 3, token 2, was not meant for this rank"),
    BROKEN(far_ids[0], 0x80000000u, "a row of rank 3, token 2, was not meant for this rank"),
    BROKEN(far_ids[0], 0x7FFFFFFF, "a row of rank 3, token 2, was not meant for this rank"),
    BROKEN(far_extra, 0, "a row of rank 3, token 2, was not meant for this rank"),
    BROKEN(far_extra, 1, "a row of rank 3, token 2, was not meant for this rank"),
    WAITS(reply_tag, 0, "waited for the reply word of rank 1"),
    BROKEN(reply_rows, 0, "the reply word of rank 1 holds 0x0000000100000000"),
    BROKEN(reply_rows, 2, "the reply word of rank 1"),
    BROKEN(partial_exchange, 0, "a partial of token 0 of rank 2 is not there"),
    BROKEN(partial_token, 1, "a partial of token 0 of rank 2 is not there"),
    BROKEN(partial_source, 0, "a partial of token 0 of rank 2 is not there"),
};

static void test_words_and_rows_at_a_worker(void **state)
{
    (void)state;
    static const wrong_t sparse_wrongs[] = {
        BROKEN(count_tag, 2, "the count word of rank 2 holds 0x0000000200000001"),
        BROKEN(count_tag, MOST, "the count word of rank 2"),
        WAITS(count_tag, 0, "waited for the count word of rank 2"),
        WAITS(idle_tag, 0, "waited for the count word of rank 4"),
        BROKEN(count, BUCKET + 1, "rank 2 sent a token count of 9 and the bucket here is 8"),
        BROKEN(count, 0x80000000u, "rank 2 sent a token count of 2147483648"),
        BROKEN(count, MOST, "rank 2 sent a token count of 4294967295"),
        WAITS(idle_count, 1, "waited for the finish tail of rank 4"),
        BROKEN(finished_rows, 2, "the finish tail of rank 2"),
    };
    static const wrong_t dense_wrongs[] = {
        BROKEN(finished_rows, 2, "rank 2 sent a row count on one channel of 2 and the bucket here is 8"),
    };
    for (int dense = 0; dense < 2; dense++) {
        RUN_ALL(0, 2, dense, &right, row_wrongs);
        RUN_ALL(0, 2, dense, &right, tail_wrongs);
        RUN_ALL(0, 2, dense, &right, join_wrongs);
    }
    RUN_ALL(0, 2, 0, &right, sparse_wrongs);
    RUN_ALL(0, 2, 1, &right, dense_wrongs);
    /* A row that no rank of the domain is meant to have. */
    static const wrong_t nobodys[] = { BROKEN(ids[0], -1, "row 0 of rank 2 is not there") };
    play_t p = right;
    p.ids[1] = -1;
    p.reply_tag = 0; /* nothing goes to the other rail, and nothing is awaited from it */
    RUN_ALL(0, 2, 0, &p, nobodys);
}

static void test_words_and_rows_at_a_direct_worker(void **state)
{
    (void)state;
    static const wrong_t wrongs[] = {
        BROKEN(count_tag, 2, "the count word of rank 2 holds 0x0000000200000001"),
        BROKEN(count_tag, MOST, "the count word of rank 2"),
        WAITS(count_tag, 0, "waited for the count word of rank 2"),
        WAITS(idle_tag, 0, "waited for the count word of rank 3"),
        BROKEN(count, BUCKET + 1, "rank 2 sent a row count of 9 and the bucket here is 8"),
        BROKEN(count, MOST, "rank 2 sent a row count of 4294967295"),
        BROKEN(count, 2, "rank 2 sent 2 rows, 1 are there"),
        BROKEN(idle_count, 1, "rank 3 sent 1 rows, 0 are there"),
        BROKEN(row_exchange, 0, "rank 2 sent 1 rows, 0 are there"),
        BROKEN(row_source, 3, "rank 2 sent 1 rows, 0 are there"),
        GOOD(row_token, BUCKET - 1),
        BROKEN(row_token, BUCKET, "rank 2 sent token 8 and the bucket here is 8"),
        BROKEN(row_token, MOST, "rank 2 sent token 4294967295"),
        BROKEN(ids[0], 4, "rank 2 sent 1 rows, 0 are there"),
        BROKEN(ids[0], RIG_EXPERTS, "rank 2 sent 1 rows, 0 are there"),
        BROKEN(ids[0], 0x80000000u, "rank 2 sent 1 rows, 0 are there"),
    };
    RUN_ALL(0, 0, 0, &right, wrongs);
    /* Two rows: their tokens ascend. */
    static const wrong_t two[] = {
        BROKEN(second_token, 4, "rank 2 sent 2 rows, 1 are there"),
        BROKEN(second_token, 3, "rank 2 sent 2 rows, 1 are there"),
        GOOD(second_token, 7),
    };
    play_t p = right;
    p.count = 2;
    p.row_token = 4;
    p.second_token = 5;
    RUN_ALL(0, 0, 0, &p, two);
}

/* An expert twice in a row is more rows than a rank has room for where it owns fewer experts than K. */
static void test_an_expert_twice(void **state)
{
    (void)state;
    for (int per_domain = 0; per_domain <= 2; per_domain += 2) {
        bed_t *b = lay(0, per_domain, 0, 2);
        play_t p = right;
        p.ids[0] = p.ids[1] = 0;
        p.forward_rows = 0;
        assert_int_equal(play_worker(b, &p), AFDEP_ERR_PROTOCOL);
        assert_non_null(strstr(afdep_last_error(), per_domain ? "a row of rank 2, token 0, was not meant for this rank"
                                                              : "rank 2 sent 1 rows, 0 are there"));
        lift(b);
    }
}

/* Rows may come before their channel finishes; what has come is not taken back. */
static void test_a_tail_that_goes_back(void **state)
{
    (void)state;
    bed_t *b = lay(0, 2, 1, RIG_EXPERTS);
    const afdep_shape_t *s = &b->settings.shape;
    const afdep_plane_layout_t *l = &b->settings.layout.ffn;
    afdep_status_t result = AFDEP_OK;
    write_directional(b, &right);
    write_word(b, afdep_at_finish_tail(l, s, 0, 0), 0, 1);
    b->receive = rig_receive_args(b->rig, BUCKET);
    assert_int_equal(afdep_host_begin_receive(b->h, &b->receive, NULL), AFDEP_OK);
    int actor = 0;
    while (b->h->actors[actor].channel != 0)
        actor++;
    assert_int_equal(afdep_host_step(b->h, actor, &result), AFDEP_OK);
    assert_int_equal(b->h->planes[0].taken[0], 1);
    write_word(b, afdep_at_finish_tail(l, s, 0, 0), 1, 0);
    assert_int_equal(afdep_host_step(b->h, actor, &result), AFDEP_DONE);
    assert_int_equal(result, AFDEP_ERR_PROTOCOL);
    assert_non_null(strstr(afdep_last_error(), "channel 0: the finish tail of rank 2 holds 0x0000000100000000"));
    lift(b);
}

static const wrong_t source_wrongs[] = {
    BROKEN(combine_finishes, 2, "the combine tail of rank 0 holds 0x0000000200000001"),
    BROKEN(combine_finishes, 0, "the combine tail of rank 0"),
    BROKEN(combine_rows, 0, "the combine tail of rank 0"),
    BROKEN(combine_rows, 2, "the combine tail of rank 0"),
    BROKEN(combine_rows, MOST, "the combine tail of rank 0"),
    BROKEN(combine_exchange, 0, "the reply of rank 0 for token 0 is not there"),
    BROKEN(combine_token, 1, "the reply of rank 0 for token 0 is not there"),
    BROKEN(combine_source, 1, "the reply of rank 0 for token 0 is not there"),
};

static const wrong_t witness_wrongs[] = {
    BROKEN(witness_tag, 1, "of rank 0 holds 0x0000000100000000"),
    BROKEN(witness_tag, MOST - 1, "of rank 0 holds 0xfffffffe00000000"),
    BROKEN(last_witness_tag, 2, "the last done witness of rank 0"),
    WAITS(last_witness_tag, 0, "waited for the last done witness of rank 0"),
};

static void test_words_and_rows_at_a_source(void **state)
{
    (void)state;
    play_t none = right, direct = right;
    none.combine_finishes = none.combine_rows = 0;
    direct.ids[1] = 1; /* the same rank's */
    static const wrong_t silence[] = { WAITS(combine_rows, 0, "waited for the combine signal of rank 0") };
    static const wrong_t witness[] = {
        WAITS(witness_tag, MOST, "waited for the done witness of an earlier exchange of rank 0"),
    };
    static const wrong_t answer[] = {
        WAITS(witness_tag, MOST, "waited for the answer to an earlier exchange of rank 0"),
    };
    for (int per_domain = 0; per_domain <= 2; per_domain += 2) {
        const play_t *base = per_domain ? &right : &direct;
        RUN_ALL(2, per_domain, 0, base, source_wrongs);
        RUN_ALL(2, per_domain, 0, base, witness_wrongs);
        none.ids[1] = base->ids[1];
        run_wrong(2, per_domain, 0, &none, silence);
    }
    run_wrong(2, 2, 0, &right, witness);
    run_wrong(2, 0, 0, &direct, answer);
    RUN_ALL(2, 2, 1, &right, source_wrongs);
}

/* Closing waits for the last witness of every plane and target; `late` is the plane whose last one has not come. */
static void run_drain(int per_domain, int late)
{
    bed_t *b = lay_planes(2, per_domain, 0, RIG_EXPERTS, 2);
    const afdep_plane_layout_t *l = &b->settings.layout.attention;
    const afdep_dispatch_t d = rig_dispatch_args(b->rig, BUCKET, 0);
    for (int n = 0; n < 2; n++)
        assert_int_equal(run_begun(b, afdep_host_begin_dispatch(b->h, &d, NULL)), AFDEP_OK);
    for (int n = 0; n < 2; n++) {
        b->collect = (afdep_collect_t)AFDEP_COLLECT_INIT;
        assert_int_equal(run_begun(b, afdep_host_begin_collect(b->h, &b->collect, NULL)), AFDEP_OK);
    }
    int targets = (int)b->h->targets;
    for (int g = 0; g < 2; g++)
        for (int target = 0; target < targets; target++) {
            uint64_t word = afdep_word(g == late && target == targets - 1 ? (uint32_t)g - 1 : (uint32_t)g + 1, 0);
            memcpy(b->h->fabric->base + b->h->planes[g].base + afdep_at_witness(l, target), &word, sizeof(word));
        }
    for (int r = 0; r < RANKS; r++)
        b->h->fabric->base[afdep_closing_word(r)] = 1;
    assert_int_equal(afdep_backend_host.close(b->h), late < 0 ? AFDEP_OK : AFDEP_ERR_TIMEOUT);
    if (late >= 0)
        assert_non_null(strstr(afdep_last_error(), per_domain ? "waited for the last done witness of rank 0"
                                                              : "waited for the last done witness of rank 1"));
    lift_closed(b);
}

static void test_closing_drains_every_plane(void **state)
{
    (void)state;
    for (int late = -1; late < 2; late++) {
        run_drain(0, late);
        run_drain(2, late);
    }
}

/* ---- Failures and death -------------------------------------------------------------------------------------- */

static uint64_t failure(int status, int culprit)
{
    return afdep_word((uint32_t)-status, (uint32_t)(culprit + 1));
}

/* Rank 0 waits for everybody; rank 3 has written `word` as its failure. */
static void run_failure(uint64_t word, const char *sentence)
{
    bed_t *b = lay(0, 2, 0, RIG_EXPERTS);
    memcpy(b->h->fabric->base + afdep_failure_word(3), &word, sizeof(word));
    memcpy(b->h->fabric->base + afdep_failure_word(0), &word, sizeof(word)); /* nobody writes that: not looked at */
    b->receive = rig_receive_args(b->rig, BUCKET);
    assert_int_equal(run_begun(b, afdep_host_begin_receive(b->h, &b->receive, NULL)), AFDEP_ERR_PEER);
    assert_string_equal(afdep_last_error(), sentence);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(b->h->fabric->counters[r].signals[AFDEP_SIGNAL_CONTROL], 0);
    /* The first error stays, whatever comes after it. */
    assert_int_equal(afdep_host_begin_receive(b->h, &b->receive, NULL), AFDEP_ERR_POISONED);
    word = failure(AFDEP_ERR_TIMEOUT, 5);
    memcpy(b->h->fabric->base + afdep_failure_word(1), &word, sizeof(word));
    (void)afdep_host_look(b->h);
    assert_int_equal(afdep_backend_host.error(b->h), AFDEP_ERR_PEER);
    assert_string_equal(afdep_last_error(), sentence);
    lift(b);
}

static void test_failure_words(void **state)
{
    (void)state;
    run_failure(failure(AFDEP_ERR_TIMEOUT, 1), "rank 3 gave up with AFDEP_ERR_TIMEOUT about rank 1");
    run_failure(failure(AFDEP_ERR_PROTOCOL, -1), "rank 3 gave up with AFDEP_ERR_PROTOCOL");
    run_failure(failure(AFDEP_ERR_PEER, 5), "rank 5 is dead, says rank 3");
    run_failure(failure(AFDEP_ERR_PEER, 0), "rank 0 is dead, says rank 3");
    run_failure(UINT64_MAX, "rank 3 gave up with unknown status about rank 2147483646");
}

/* Rank 4 is dead, with or without having parted, while all wait for rank 2. */
static void run_dead(int parted)
{
    bed_t *b = lay(0, 2, 0, RIG_EXPERTS);
    afdep_sim_message_t m;
    afdep_sim_kill(b->sim, 4);
    b->settings.timeout_ms = 300;
    b->h->fabric->base[afdep_closing_word(4)] = (unsigned char)parted;
    write_word(b, afdep_at_count_word(&b->settings.layout.ffn, 1), 1, 0);
    b->receive = rig_receive_args(b->rig, BUCKET);
    afdep_status_t status = run_begun(b, afdep_host_begin_receive(b->h, &b->receive, NULL));
    assert_int_equal(status, parted ? AFDEP_ERR_TIMEOUT : AFDEP_ERR_PEER);
    assert_non_null(strstr(afdep_last_error(), parted ? "nothing came in 300 ms though all ranks live: rank 0 in "
                                                        "worker_receive of exchange 1, count waited for the count word "
                                                        "of rank 2"
                                                      : "rank 4 is dead: rank 0 in worker_receive of exchange 1"));
    uint64_t now = b->h->fabric->ops->now(b->h->fabric);
    assert_in_range(now, parted ? 300000000 : 100000000, parted ? 310000000 : 200000000);
    assert_int_equal(afdep_sim_pending(b->sim), RANKS - 2); /* the living others */
    while (afdep_sim_pending(b->sim) > 0) {
        afdep_sim_land(b->sim, 0, &m);
        assert_int_not_equal(m.target, 4);
        assert_int_equal(m.offset, afdep_failure_word(0));
        assert_int_equal(m.value, parted ? failure(AFDEP_ERR_TIMEOUT, 2) : failure(AFDEP_ERR_PEER, 4));
    }
    lift(b);
}

static void test_death_and_parting(void **state)
{
    (void)state;
    run_dead(0);
    run_dead(1);
}

/* Rank 4 dies while rank 0 has waited for a while already: it is found at the next look, not at the deadline. */
static afdep_sim_t *mortal;
static const afdep_fabric_ops_t *mortal_ops;

static void idle_until_death(afdep_fabric_t *f, unsigned rounds)
{
    mortal_ops->idle(f, rounds);
    if (mortal_ops->now(f) > 450000000)
        afdep_sim_kill(mortal, 4);
}

static void test_a_late_death(void **state)
{
    (void)state;
    bed_t *b = lay(0, 2, 0, RIG_EXPERTS);
    mortal = b->sim;
    mortal_ops = b->h->fabric->ops;
    afdep_fabric_ops_t ops = *mortal_ops;
    ops.idle = idle_until_death;
    b->h->fabric->ops = &ops;
    b->settings.timeout_ms = 2000;
    b->receive = rig_receive_args(b->rig, BUCKET);
    assert_int_equal(run_begun(b, afdep_host_begin_receive(b->h, &b->receive, NULL)), AFDEP_ERR_PEER);
    assert_non_null(strstr(afdep_last_error(), "rank 4 is dead"));
    assert_in_range(mortal_ops->now(b->h->fabric), 450000000, 650000000);
    b->h->fabric->ops = mortal_ops;
    lift(b);
}

/* Rank 4's last word is on its way when it is found gone: it is seen before anybody is called dead. */
static int gone;
static uint64_t last_word_at, last_word;

static int alive_until_asked(afdep_fabric_t *f, int peer)
{
    gone |= peer == 4;
    return mortal_ops->alive(f, peer) && peer != 4;
}

static afdep_status_t progress_with_last_word(afdep_fabric_t *f)
{
    if (gone)
        memcpy(f->base + last_word_at, &last_word, sizeof(last_word));
    return mortal_ops->progress(f);
}

static void run_last_word(uint64_t at, uint64_t word, afdep_status_t status, const char *sentence)
{
    bed_t *b = lay(0, 2, 0, RIG_EXPERTS);
    mortal_ops = b->h->fabric->ops;
    afdep_fabric_ops_t ops = *mortal_ops;
    ops.alive = alive_until_asked;
    ops.progress = progress_with_last_word;
    b->h->fabric->ops = &ops;
    b->settings.timeout_ms = 300;
    gone = 0;
    last_word_at = at;
    last_word = word;
    b->receive = rig_receive_args(b->rig, BUCKET);
    assert_int_equal(run_begun(b, afdep_host_begin_receive(b->h, &b->receive, NULL)), status);
    assert_non_null(strstr(afdep_last_error(), sentence));
    b->h->fabric->ops = mortal_ops;
    lift(b);
}

static void test_a_last_word_on_its_way(void **state)
{
    (void)state;
    run_last_word(afdep_closing_word(4), 1, AFDEP_ERR_TIMEOUT, "though all ranks live");
    run_last_word(afdep_failure_word(4), failure(AFDEP_ERR_PROTOCOL, -1), AFDEP_ERR_PEER,
                  "rank 4 gave up with AFDEP_ERR_PROTOCOL");
}

/* What a transport says while an exchange is half done is fatal, whatever it is. */
static afdep_status_t flush_says;

static afdep_status_t failing_flush(afdep_fabric_t *f)
{
    (void)f;
    return afdep_fail(flush_says, "the cable is out");
}

static void test_errors_of_the_transport(void **state)
{
    (void)state;
    static const afdep_status_t says[][2] = { { AFDEP_ERR_SYSTEM, AFDEP_ERR_TRANSPORT },
                                              { AFDEP_ERR_MEMORY, AFDEP_ERR_TRANSPORT },
                                              { AFDEP_ERR_PROTOCOL, AFDEP_ERR_PROTOCOL } };
    for (int i = 0; i < 3; i++) {
        bed_t *b = lay(2, 2, 0, RIG_EXPERTS);
        const afdep_fabric_ops_t *before = b->h->fabric->ops;
        const afdep_dispatch_t d = rig_dispatch_args(b->rig, BUCKET, 1);
        afdep_fabric_ops_t ops = *before;
        ops.flush = failing_flush;
        flush_says = says[i][0];
        b->h->fabric->ops = &ops;
        assert_int_equal(run_begun(b, afdep_host_begin_dispatch(b->h, &d, NULL)), says[i][1]);
        assert_string_equal(afdep_last_error(), "the cable is out");
        assert_int_equal(afdep_host_begin_dispatch(b->h, &d, NULL), AFDEP_ERR_POISONED);
        b->h->fabric->ops = before;
        lift(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_and_rows_at_a_worker),
        cmocka_unit_test(test_words_and_rows_at_a_direct_worker),
        cmocka_unit_test(test_an_expert_twice),
        cmocka_unit_test(test_a_tail_that_goes_back),
        cmocka_unit_test(test_words_and_rows_at_a_source),
        cmocka_unit_test(test_closing_drains_every_plane),
        cmocka_unit_test(test_failure_words),
        cmocka_unit_test(test_death_and_parting),
        cmocka_unit_test(test_a_late_death),
        cmocka_unit_test(test_a_last_word_on_its_way),
        cmocka_unit_test(test_errors_of_the_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
