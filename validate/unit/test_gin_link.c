/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loopback's links on memory whose copies are late: signals after the puts they follow, full queues that are waited
 * for, registrations that come late or never, resets, many pairs at once, peers that leave, break the rules or die.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "validate/unit/gin_rig.h"

#define OK(call) assert_int_equal(call, AFDEP_OK)

static afdep_gin_link_t *link_of(gin_world_t *w, int rank)
{
    if (!w->ranks[rank].link)
        fail_msg("rank %d: %s", rank, w->ranks[rank].why);
    return w->ranks[rank].link;
}

static void run_all(gin_world_t *w, int turns)
{
    for (int i = 0; i < turns; i++)
        for (int r = 0; r < w->size; r++)
            OK(gin_step(link_of(w, r)));
}

/* ---- Order ------------------------------------------------------------------------------------------------------ */

#define SLOTS 64

/* What a rank has: one row of `bytes` per slot and source, and one signal per source. */
typedef struct board {
    unsigned char *rows, *source;
    uint64_t signals[GIN_RANKS_MOST];
    afdep_gin_region_t *rows_region, *source_region, *signals_region;
} board_t;

static void board_make(board_t *b, afdep_gin_link_t *link, int ranks, size_t bytes)
{
    size_t all = (size_t)ranks * SLOTS * bytes;
    memset(b, 0, sizeof(*b));
    b->rows = calloc(1, all);
    b->source = calloc(1, SLOTS * bytes);
    assert_true(b->rows && b->source);
    OK(afdep_gin_register(link, b->rows, all, 1, &b->rows_region));
    OK(afdep_gin_register(link, b->source, SLOTS * bytes, 1, &b->source_region));
    OK(afdep_gin_register(link, b->signals, sizeof(b->signals), 1, &b->signals_region));
}

static void board_free(board_t *b)
{
    free(b->rows);
    free(b->source);
}

static unsigned char value_of(int source, int target, int n, size_t byte)
{
    return (unsigned char)(17 * source + 5 * target + 31 * n + (int)byte * 7 + 1);
}

/* Row `n` of one pair: a put, then a signal of its own every third time, else one that rides on it. */
static int send_row(gin_world_t *w, board_t *boards, int s, int t, int n, size_t bytes, afdep_gin_request_t **requests)
{
    int count = 0;
    board_t *from = &boards[s], *to = &boards[t];
    afdep_gin_put_t put = { .rank = t, .from = from->source_region, .to = from->rows_region,
                            .from_offset = (uint64_t)(n % SLOTS) * bytes,
                            .to_offset = ((uint64_t)s * SLOTS + (uint64_t)(n % SLOTS)) * bytes, .bytes = bytes };
    (void)to;
    for (size_t i = 0; i < bytes; i++)
        from->source[(size_t)(n % SLOTS) * bytes + i] = value_of(s, t, n, i);
    if (n % 3 != 0) {
        put.signal = from->signals_region;
        put.signal_offset = (uint64_t)s * sizeof(uint64_t);
        put.signal_add = 1;
    }
    OK(afdep_gin_put(link_of(w, s), &put, &requests[count++]));
    if (n % 3 == 0) {
        afdep_gin_put_t signal = { .rank = t, .signal = from->signals_region,
                                   .signal_offset = (uint64_t)s * sizeof(uint64_t), .signal_add = 1 };
        OK(afdep_gin_put(link_of(w, s), &signal, &requests[count++]));
    }
    return count;
}

/* Whether every row that the signal of `s` at `t` covers is there, byte by byte. */
static void check_rows(board_t *boards, int s, int t, int seen, int upto, size_t bytes)
{
    for (int n = seen; n < upto; n++)
        for (size_t i = 0; i < bytes; i++) {
            unsigned char got = boards[t].rows[((size_t)s * SLOTS + (size_t)(n % SLOTS)) * bytes + i];
            if (got != value_of(s, t, n, i))
                fail_msg("row %d from %d to %d, byte %zu: %d, not %d, and its signal is there", n, s, t, i, got,
                         value_of(s, t, n, i));
        }
}

/* Rows from every rank to its right neighbour, in any interleaving; a source row is overwritten as soon as its request
   is done, and a target row only after it was checked, which the test knows. */
static void order_case(int ranks, size_t bytes, int pace, uint64_t seed, int rows)
{
    gin_world_t w;
    board_t *boards = calloc((size_t)ranks, sizeof(*boards));
    afdep_gin_request_t *open[GIN_RANKS_MOST][2] = { { NULL } };
    int sent[GIN_RANKS_MOST] = { 0 }, seen[GIN_RANKS_MOST] = { 0 }, waiting[GIN_RANKS_MOST] = { 0 }, left = ranks;
    gin_late_pace = pace;
    gin_world_open(&w, ranks, gin_late_open);
    for (int r = 0; r < ranks; r++)
        board_make(&boards[r], link_of(&w, r), ranks, bytes);
    for (long turn = 0; left > 0; turn++) {
        int r = (int)(gin_random(&seed) % (uint32_t)ranks), t = (r + 1) % ranks, before = (r + ranks - 1) % ranks;
        assert_true(turn < 20000000);
        if (gin_random(&seed) % 2)
            gin_device(link_of(&w, r));
        else
            OK(afdep_gin_progress(link_of(&w, r)));
        for (int i = 0; i < waiting[r]; i++) {
            int done = 0;
            OK(afdep_gin_test(link_of(&w, r), open[r][i], &done));
            if (done)
                open[r][i--] = open[r][--waiting[r]];
        }
        if (waiting[r] == 0 && sent[r] < rows && sent[r] < seen[t] + SLOTS) {
            waiting[r] = send_row(&w, boards, r, t, sent[r], bytes, open[r]);
            sent[r]++;
        }
        int now = (int)boards[r].signals[before];
        check_rows(boards, before, r, seen[r], now, bytes);
        if (seen[r] < rows && now == rows)
            left--;
        seen[r] = now;
    }
    run_all(&w, 20);
    for (int r = 0; r < ranks; r++)
        for (int s = 0; s < ranks; s++) /* exactly as many as were sent, and nowhere else */
            assert_int_equal(boards[r].signals[s], s == (r + ranks - 1) % ranks ? rows : 0);
    gin_world_close(&w);
    for (int r = 0; r < ranks; r++)
        board_free(&boards[r]);
    free(boards);
}

static void test_order(void **state)
{
    (void)state;
    order_case(2, 64, 1, 1, 300);
    order_case(2, 1, 3, 2, 300);
    order_case(3, 1000, 1, 3, 200);
    order_case(3, 4096, 2, 4, 100);
    order_case(1, 100, 1, 5, 100); /* to itself */
}

/* More than staging and the flights hold, to peers that all have room, while no copy happens for a long time. */
static void test_staging(void **state)
{
    (void)state;
    for (int small = 0; small < 2; small++) {
        gin_world_t w;
        board_t boards[4];
        size_t bytes = small ? 16 : 65536;
        int rows = small ? 600 : 14, count = 0;
        static afdep_gin_request_t *requests[2 * 3 * 600];
        gin_late_pace = 0;
        gin_world_open(&w, 4, gin_late_open);
        for (int r = 0; r < 4; r++)
            board_make(&boards[r], link_of(&w, r), 4, bytes);
        for (int n = 0; n < rows; n++)
            for (int t = 1; t < 4; t++) {
                afdep_gin_put_t put = { .rank = t, .from = boards[0].source_region, .to = boards[0].rows_region,
                                        .from_offset = (uint64_t)(n % SLOTS) * bytes,
                                        .to_offset = (uint64_t)(n % SLOTS) * bytes, .bytes = bytes,
                                        .signal = boards[0].signals_region, .signal_add = 1 };
                memset(boards[0].source + (size_t)(n % SLOTS) * bytes, n % SLOTS + 1, bytes);
                OK(afdep_gin_put(link_of(&w, 0), &put, &requests[count++]));
            }
        run_all(&w, 50);
        for (int t = 1; t < 4; t++)
            assert_int_equal(boards[t].signals[0], 0);
        gin_late_pace = 64;
        run_all(&w, 300);
        for (int i = 0; i < count; i++) {
            int done = 0;
            OK(afdep_gin_test(link_of(&w, 0), requests[i], &done));
            assert_true(done);
        }
        for (int t = 1; t < 4; t++) {
            assert_int_equal(boards[t].signals[0], rows);
            for (int n = 0; n < rows && n < SLOTS; n++)
                for (size_t i = 0; i < bytes; i += 15)
                    assert_int_equal(boards[t].rows[(size_t)n * bytes + i], n + 1);
        }
        gin_world_close(&w);
        for (int r = 0; r < 4; r++)
            board_free(&boards[r]);
    }
}

/* Rows larger than a message, and than all staging. */
static void test_large(void **state)
{
    (void)state;
    order_case(2, afdep_gin_payload_most(2) + 1, 2, 6, 5);
    order_case(2, 3u << 20, 50, 7, 2);
}

/* ---- Back-pressure ---------------------------------------------------------------------------------------------- */

#define BURST 600

/* Rank 1 does nothing while rank 0 sends it more than its queue and all staging hold: nothing is dropped, nothing is
   done that was not published, and rank 2 is served meanwhile. */
static void test_full_queue(void **state)
{
    (void)state;
    gin_world_t w;
    board_t boards[3];
    static afdep_gin_request_t *requests[BURST];
    const size_t bytes = 8192;
    int done_early = 0;
    gin_late_pace = 8;
    gin_world_open(&w, 3, gin_late_open);
    for (int r = 0; r < 3; r++)
        board_make(&boards[r], link_of(&w, r), 3, bytes);
    for (int n = 0; n < BURST; n++) {
        for (size_t i = 0; n < SLOTS && i < bytes; i++)
            boards[0].source[(size_t)n * bytes + i] = value_of(0, 1, n, i);
        afdep_gin_put_t put = { .rank = 1, .from = boards[0].source_region, .to = boards[0].rows_region,
                                .from_offset = (uint64_t)(n % SLOTS) * bytes,
                                .to_offset = (uint64_t)(n % SLOTS) * bytes, .bytes = bytes,
                                .signal = boards[0].signals_region, .signal_offset = 0, .signal_add = 1u << (n % 3) };
        OK(afdep_gin_put(link_of(&w, 0), &put, &requests[n]));
    }
    for (int i = 0; i < 4000; i++)
        OK(gin_step(link_of(&w, 0)));
    int done[BURST] = { 0 };
    for (int n = 0; n < BURST; n++) {
        OK(afdep_gin_test(link_of(&w, 0), requests[n], &done[n]));
        if (n > 0 && !done[n - 1])
            assert_false(done[n]); /* in order */
        done_early += done[n];
    }
    /* The queue is full, neither less nor more. */
    assert_true((uint64_t)done_early * bytes < afdep_gin_queue_bytes(3));
    assert_true((uint64_t)(done_early + 2) * (bytes + AFDEP_GIN_UNIT) > afdep_gin_queue_bytes(3));
    /* Others are not held up. */
    afdep_gin_put_t other = { .rank = 2, .from = boards[0].source_region, .to = boards[0].rows_region, .bytes = bytes,
                              .signal = boards[0].signals_region, .signal_add = 7 };
    afdep_gin_request_t *request = NULL;
    int finished = 0;
    OK(afdep_gin_put(link_of(&w, 0), &other, &request));
    for (int i = 0; i < 100; i++) {
        OK(gin_step(link_of(&w, 0)));
        OK(gin_step(link_of(&w, 2)));
    }
    OK(afdep_gin_test(link_of(&w, 0), request, &finished));
    assert_true(finished);
    assert_int_equal(boards[2].signals[0], 7);
    assert_int_equal(boards[1].signals[0], 0);
    /* And then it reads. */
    uint64_t sum = 0;
    for (int n = 0; n < BURST; n++)
        sum += 1u << (n % 3);
    for (int i = 0; i < 20000 && boards[1].signals[0] < sum; i++)
        run_all(&w, 1);
    assert_int_equal(boards[1].signals[0], sum);
    for (int n = 0; n < BURST; n++) {
        if (!done[n])
            OK(afdep_gin_test(link_of(&w, 0), requests[n], &done[n]));
        assert_true(done[n]);
    }
    for (int n = 0; n < SLOTS; n++)
        check_rows(boards, 0, 1, n, n + 1, bytes);
    gin_world_close(&w);
    for (int r = 0; r < 3; r++)
        board_free(&boards[r]);
}

/* ---- Registrations ---------------------------------------------------------------------------------------------- */

static void test_late_registration(void **state)
{
    (void)state;
    gin_world_t w;
    uint64_t source = 42, there = 0, signal[2] = { 0, 0 };
    afdep_gin_region_t *a[2], *b[2];
    afdep_gin_request_t *request;
    gin_late_pace = 4;
    gin_world_open(&w, 2, gin_late_open);
    OK(afdep_gin_register(link_of(&w, 0), &source, sizeof(source), 1, &a[0]));
    OK(afdep_gin_register(link_of(&w, 0), &signal[0], sizeof(signal[0]), 1, &a[1]));
    afdep_gin_put_t put = { .rank = 1, .from = a[0], .to = a[0], .bytes = 8, .signal = a[1], .signal_add = 3 };
    OK(afdep_gin_put(link_of(&w, 0), &put, &request));
    run_all(&w, 10); /* rank 1 has registered nothing yet: the message waits */
    OK(afdep_gin_register(link_of(&w, 1), &there, sizeof(there), 1, &b[0]));
    run_all(&w, 10); /* its signal's memory is not there */
    assert_int_equal(there, 0);
    OK(afdep_gin_register(link_of(&w, 1), &signal[1], sizeof(signal[1]), 1, &b[1]));
    run_all(&w, 10);
    assert_int_equal(there, 42);
    assert_int_equal(signal[1], 3);
    gin_world_close(&w);
}

/* What `put` from rank 0 does to rank 1, which must refuse it with a sentence that has `want` in it; rank 2 goes on. */
static void refused_case(int deregister, uint64_t to_offset, uint64_t signal_offset, const char *want)
{
    gin_world_t w;
    uint64_t memory[3][8] = { { 0 } };
    afdep_gin_region_t *regions[3];
    afdep_gin_request_t *request;
    gin_late_pace = 4;
    gin_world_open(&w, 3, gin_late_open);
    for (int r = 0; r < 3; r++)
        OK(afdep_gin_register(link_of(&w, r), memory[r], sizeof(memory[r]), 1, &regions[r]));
    if (deregister)
        OK(afdep_gin_deregister(link_of(&w, 1), regions[1]));
    afdep_gin_put_t put = { .rank = 1, .from = regions[0], .to = regions[0], .to_offset = to_offset, .bytes = 16,
                            .signal = regions[0], .signal_offset = signal_offset, .signal_add = 1 };
    OK(afdep_gin_put(link_of(&w, 0), &put, &request));
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; i < 10; i++) {
        OK(gin_step(link_of(&w, 0)));
        status = gin_step(link_of(&w, 1));
    }
    assert_int_equal(status, AFDEP_ERR_PROTOCOL);
    if (!strstr(afdep_last_error(), want))
        fail_msg("'%s' says nothing of '%s'", afdep_last_error(), want);
    assert_int_equal(afdep_gin_failure(link_of(&w, 1)), AFDEP_ERR_PROTOCOL);
    for (int i = 0; i < 8; i++)
        assert_int_equal(memory[1][i], 0);
    /* Nothing is sent to rank 0 any more, but rank 2 is served. */
    memory[1][0] = 9;
    put = (afdep_gin_put_t){ .rank = 0, .signal = regions[1], .signal_add = 1 };
    assert_int_equal(afdep_gin_put(link_of(&w, 1), &put, &request), AFDEP_ERR_PROTOCOL);
    if (!deregister) {
        put = (afdep_gin_put_t){ .rank = 2, .from = regions[1], .to = regions[1], .bytes = 8, .signal = regions[1],
                                 .signal_offset = 8, .signal_add = 5 };
        OK(afdep_gin_put(link_of(&w, 1), &put, &request));
        for (int i = 0; i < 10; i++) {
            (void)gin_step(link_of(&w, 1));
            OK(gin_step(link_of(&w, 2)));
        }
        assert_int_equal(memory[2][0], 9);
        assert_int_equal(memory[2][1], 5);
    }
    gin_world_close(&w);
}

static void test_refused(void **state)
{
    (void)state;
    refused_case(1, 0, 0, "rank 0 writes to registration 1, which rank 1 does not have");
    refused_case(0, 56, 0, "rank 0 writes 16 bytes at offset 56 of registration 1, which has 64");
    refused_case(0, UINT64_MAX - 7, 0, "of registration 1, which has 64");
    refused_case(0, 0, 64, "rank 0 writes 8 bytes at offset 64");
}

static void test_arguments(void **state)
{
    (void)state;
    gin_world_t w;
    uint64_t memory[2][4] = { { 0 } };
    afdep_gin_region_t *own, *foreign, *none;
    afdep_gin_request_t *request = NULL;
    int done = 0;
    gin_world_open(&w, 2, gin_late_open);
    OK(afdep_gin_register(link_of(&w, 0), memory[0], 32, 1, &own));
    OK(afdep_gin_register(link_of(&w, 1), memory[1], 32, 1, &foreign));
    assert_int_equal(afdep_gin_register(link_of(&w, 0), NULL, 8, 1, &none), AFDEP_ERR_ARGUMENT);
    assert_int_equal(afdep_gin_register(link_of(&w, 0), memory, 0, 1, &none), AFDEP_ERR_ARGUMENT);
    const afdep_gin_put_t wrong[] = {
        { .rank = 2, .signal = own },
        { .rank = -1, .signal = own },
        { .rank = 1, .from = own, .bytes = 8 },
        { .rank = 1, .to = own, .bytes = 8 },
        { .rank = 1, .from = own, .to = own, .bytes = 33 },
        { .rank = 1, .from = own, .to = own, .bytes = 8, .from_offset = 25 },
        { .rank = 1, .from = own, .to = own, .bytes = 8, .from_offset = UINT64_MAX - 3 },
        { .rank = 1, .from = foreign, .to = own, .bytes = 8 },
        { .rank = 1, .signal = foreign },
        { .rank = 1, .signal = own, .signal_offset = 4 },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (afdep_gin_put(link_of(&w, 0), &wrong[i], &request) != AFDEP_ERR_ARGUMENT)
            fail_msg("put %zu was taken", i);
    assert_int_equal(afdep_gin_deregister(link_of(&w, 0), foreign), AFDEP_ERR_ARGUMENT);
    /* Nothing at all is done at once. */
    afdep_gin_put_t nothing = { .rank = 1 };
    OK(afdep_gin_put(link_of(&w, 0), &nothing, &request));
    OK(afdep_gin_test(link_of(&w, 0), request, &done));
    assert_true(done);
    gin_world_close(&w);
    /* Memory of a GPU without one. */
    gin_world_open(&w, 1, afdep_gin_memory_open_host);
    assert_int_equal(afdep_gin_register(link_of(&w, 0), memory, 8, 1, &none), AFDEP_ERR_ARGUMENT);
    gin_world_close(&w);
}

/* A signal that the program sets back to zero goes on from there: no copy of its value is kept. */
static void test_reset(void **state)
{
    (void)state;
    gin_world_t w;
    uint64_t signals[2] = { 0, 0 };
    afdep_gin_region_t *regions[2];
    afdep_gin_request_t *request;
    for (int on_device = 0; on_device < 2; on_device++) {
        gin_late_pace = 4;
        gin_world_open(&w, 2, gin_late_open);
        for (int r = 0; r < 2; r++)
            OK(afdep_gin_register(link_of(&w, r), &signals[r], 8, on_device, &regions[r]));
        for (int n = 1; n < 20; n++) {
            afdep_gin_put_t put = { .rank = 1, .signal = regions[0], .signal_add = (uint64_t)n };
            OK(afdep_gin_put(link_of(&w, 0), &put, &request));
            run_all(&w, 6);
            assert_int_equal(signals[1], n);
            signals[1] = 0;
        }
        gin_world_close(&w);
    }
}

/* Memory that goes away while a round is under way: its copies are over when deregister returns. */
static void test_deregister_settles(void **state)
{
    (void)state;
    for (int turns = 1; turns < 8; turns++) {
        gin_world_t w;
        uint64_t own[2] = { 5, 0 }, *gone = calloc(2, sizeof(*gone));
        afdep_gin_region_t *a, *b;
        afdep_gin_request_t *request;
        assert_non_null(gone);
        gin_late_pace = 1;
        gin_world_open(&w, 2, gin_late_open);
        OK(afdep_gin_register(link_of(&w, 0), own, sizeof(own), 1, &a));
        OK(afdep_gin_register(link_of(&w, 1), gone, 2 * sizeof(*gone), 1, &b));
        afdep_gin_put_t put = { .rank = 1, .from = a, .to = a, .bytes = 8, .signal = a, .signal_offset = 8,
                                .signal_add = 1 };
        OK(afdep_gin_put(link_of(&w, 0), &put, &request));
        for (int i = 0; i < 6; i++)
            OK(gin_step(link_of(&w, 0)));
        for (int i = 0; i < turns; i++)
            OK(gin_step(link_of(&w, 1)));
        OK(afdep_gin_deregister(link_of(&w, 1), b));
        assert_int_equal(gone[1], gone[0] / 5); /* both or none */
        free(gone); /* a late copy would be found by the sanitizers */
        for (int i = 0; i < 20; i++)
            (void)gin_step(link_of(&w, 1));
        gin_world_close(&w);
    }
}

/* A copy that fails breaks the link, once, with its sentence everywhere. */
static void test_failing_copy(void **state)
{
    (void)state;
    for (int which = 1; which < 5; which++) {
        gin_world_t w;
        uint64_t memory[2][2] = { { 1, 0 }, { 0, 0 } };
        afdep_gin_region_t *regions[2];
        afdep_gin_request_t *request;
        int broken = 0;
        gin_late_pace = 4;
        gin_world_open(&w, 2, gin_late_open);
        for (int r = 0; r < 2; r++)
            OK(afdep_gin_register(link_of(&w, r), memory[r], 16, 1, &regions[r]));
        gin_late_fail_in = which; /* the source's read, the payload, the word's read, its write */
        afdep_gin_put_t put = { .rank = 1, .from = regions[0], .to = regions[0], .bytes = 8, .signal = regions[0],
                                .signal_offset = 8, .signal_add = 1 };
        OK(afdep_gin_put(link_of(&w, 0), &put, &request));
        for (int i = 0; i < 20; i++)
            for (int r = 0; r < 2; r++)
                broken |= gin_step(link_of(&w, r)) == AFDEP_ERR_TRANSPORT ? 1 << r : 0;
        assert_int_equal(gin_late_fail_in, 0);
        assert_int_equal(broken, which == 1 ? 1 : 2);
        assert_int_equal(memory[1][1], 0);
        assert_int_equal(afdep_gin_failure(link_of(&w, which == 1 ? 0 : 1)), AFDEP_ERR_TRANSPORT);
        assert_string_equal(afdep_last_error(), "a copy failed");
        gin_world_close(&w);
    }
}

/* ---- Many pairs ------------------------------------------------------------------------------------------------- */

/* 24 ranks, all to all, over two communicators at once. */
static void test_many_pairs(void **state)
{
    (void)state;
    enum { RANKS = 24, ROUNDS = 4, BYTES = 512 };
    static gin_world_t w[2];
    static board_t boards[2][RANKS];
    uint64_t seed = 11;
    gin_late_pace = 64;
    for (int c = 0; c < 2; c++) {
        gin_world_open(&w[c], RANKS, gin_late_open);
        for (int r = 0; r < RANKS; r++)
            board_make(&boards[c][r], link_of(&w[c], r), RANKS, BYTES);
    }
    for (int n = 0; n < ROUNDS; n++) {
        for (int c = 0; c < 2; c++)
            for (int s = 0; s < RANKS; s++)
                for (int t = 0; t < RANKS; t++) {
                    afdep_gin_request_t *requests[2];
                    int slot = n * 2 + c; /* its own source row: all of them are under way together */
                    for (size_t i = 0; i < BYTES; i++)
                        boards[c][s].source[(size_t)slot * BYTES + i] = value_of(s, 0, slot, i);
                    afdep_gin_put_t put = { .rank = t, .from = boards[c][s].source_region,
                                            .to = boards[c][s].rows_region, .from_offset = (uint64_t)slot * BYTES,
                                            .to_offset = ((uint64_t)s * SLOTS + (uint64_t)slot) * BYTES,
                                            .bytes = BYTES, .signal = boards[c][s].signals_region,
                                            .signal_offset = (uint64_t)s * 8, .signal_add = 1 };
                    OK(afdep_gin_put(link_of(&w[c], s), &put, &requests[0]));
                }
        for (int i = 0; i < 6000; i++) {
            int c = (int)(gin_random(&seed) % 2);
            OK(gin_step(link_of(&w[c], (int)(gin_random(&seed) % RANKS))));
        }
    }
    for (int i = 0; i < 100; i++)
        for (int c = 0; c < 2; c++)
            run_all(&w[c], 1);
    for (int c = 0; c < 2; c++)
        for (int t = 0; t < RANKS; t++)
            for (int s = 0; s < RANKS; s++) {
                assert_int_equal(boards[c][t].signals[s], ROUNDS);
                for (int n = 0; n < ROUNDS; n++)
                    for (size_t i = 0; i < BYTES; i++) {
                        int slot = n * 2 + c;
                        assert_int_equal(boards[c][t].rows[((size_t)s * SLOTS + (size_t)slot) * BYTES + i],
                                         value_of(s, 0, slot, i));
                    }
            }
    for (int c = 0; c < 2; c++) {
        gin_world_close(&w[c]);
        for (int r = 0; r < RANKS; r++)
            board_free(&boards[c][r]);
    }
}

/* ---- Leaving, dying, lying -------------------------------------------------------------------------------------- */

static int is_named(const afdep_gin_handle_t *handle)
{
    char path[80];
    snprintf(path, sizeof(path), "/dev/shm%s", handle->inbox.name);
    return access(path, F_OK) == 0;
}

static void sleep_ms(int ms)
{
    struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&time, NULL);
}

static void test_leaving_is_no_death(void **state)
{
    (void)state;
    gin_world_t w;
    uint64_t memory[2][1024] = { { 0 } };
    afdep_gin_region_t *regions[2];
    afdep_gin_request_t *request = NULL;
    int done = 0;
    gin_late_pace = 4;
    gin_world_open(&w, 2, gin_late_open);
    for (int r = 0; r < 2; r++)
        OK(afdep_gin_register(link_of(&w, r), memory[r], sizeof(memory[r]), 1, &regions[r]));
    afdep_gin_close(w.ranks[1].link);
    w.ranks[1].link = NULL;
    sleep_ms(150);
    OK(gin_step(link_of(&w, 0)));
    /* What still finds room is nobody's loss; what waits for room that will never come is told so. */
    afdep_status_t status = AFDEP_OK;
    for (int i = 0; i < 400 && status == AFDEP_OK; i++) {
        afdep_gin_put_t put = { .rank = 1, .from = regions[0], .to = regions[0], .bytes = 8192 };
        status = afdep_gin_put(link_of(&w, 0), &put, &request);
        for (int k = 0; k < 4; k++)
            (void)gin_step(link_of(&w, 0));
    }
    sleep_ms(150);
    assert_int_equal(gin_step(link_of(&w, 0)), AFDEP_ERR_PEER);
    assert_non_null(strstr(afdep_last_error(), "rank 1 has left"));
    assert_int_equal(afdep_gin_test(link_of(&w, 0), request, &done), AFDEP_ERR_PEER);
    gin_world_close(&w);
}

/* Handles and steps of ranks that are processes. */
typedef struct stage {
    afdep_gin_handle_t handles[3];
    _Atomic int listening, connected, killed, told;
} stage_t;

static int process_rank(stage_t *stage, int rank, int ranks, int victim, int dies_connecting)
{
    afdep_gin_listener_t *listener = NULL;
    afdep_gin_link_t *link = NULL;
    const afdep_gin_handle_t *pointers[3] = { &stage->handles[0], &stage->handles[1], &stage->handles[2] };
    uint64_t memory[2] = { 0, 0 };
    afdep_gin_region_t *region;
    afdep_gin_request_t *request = NULL;
    afdep_status_t status;
    char want[32];
    int done = 0;

    alarm(40);
    if (afdep_gin_listen(&listener, &stage->handles[rank]) != AFDEP_OK)
        return 1;
    atomic_fetch_add(&stage->listening, 1);
    while (atomic_load(&stage->listening) < ranks)
        sleep_ms(1);
    if (rank == victim && dies_connecting)
        raise(SIGKILL);
    snprintf(want, sizeof(want), "rank %d", victim);
    if (dies_connecting && rank == ranks - 1)
        sleep_ms(200); /* comes when the other has given up, and its inbox has no name any more */
    status = afdep_gin_connect(listener, pointers, ranks, rank, 20000, afdep_gin_memory_open_host, &link);
    afdep_gin_stop_listening(listener);
    if (dies_connecting)
        return status == AFDEP_ERR_PEER ? 0 : 2;
    if (status != AFDEP_OK || afdep_gin_register(link, memory, sizeof(memory), 0, &region) != AFDEP_OK)
        return 3;
    atomic_fetch_add(&stage->connected, 1);
    while (atomic_load(&stage->connected) < ranks)
        sleep_ms(1);
    if (rank == victim) {
        if (fork() == 0) { /* a child that keeps all its descriptors must not pass for it */
            while (atomic_load(&stage->told) < ranks - 1)
                sleep_ms(1);
            _exit(0);
        }
        atomic_store(&stage->killed, 1);
        raise(SIGKILL);
    }
    while (!atomic_load(&stage->killed))
        sleep_ms(1);
    for (int i = 0; i < 5000 && (status = afdep_gin_progress(link)) == AFDEP_OK; i++)
        sleep_ms(1);
    if (status != AFDEP_ERR_PEER || !strstr(afdep_last_error(), want) || !strstr(afdep_last_error(), "dead"))
        return 4;
    afdep_gin_put_t put = { .rank = victim, .signal = region, .signal_add = 1 };
    if (afdep_gin_put(link, &put, &request) != AFDEP_ERR_PEER)
        return 5;
    /* The living are still served. */
    int other = 3 - rank - victim;
    put.rank = other;
    if (afdep_gin_put(link, &put, &request) != AFDEP_OK)
        return 6;
    for (int i = 0; i < 5000 && (!done || atomic_load_explicit((_Atomic uint64_t *)(void *)memory,
                                                               memory_order_acquire) == 0); i++) {
        (void)afdep_gin_progress(link);
        if (!done && afdep_gin_test(link, request, &done) != AFDEP_OK)
            return 7;
        sleep_ms(1);
    }
    atomic_fetch_add(&stage->told, 1);
    while (atomic_load(&stage->told) < ranks - 1)
        sleep_ms(1);
    afdep_gin_close(link);
    return done && memory[0] == 1 ? 0 : 8;
}

static void death_case(int victim, int dies_connecting)
{
    stage_t *stage = mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[3];
    assert_true(stage != MAP_FAILED);
    for (int r = 0; r < 3; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(process_rank(stage, r, 3, victim, dies_connecting));
        }
    }
    for (int r = 0; r < 3; r++) {
        int status = 0;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        if (r == victim ? !WIFSIGNALED(status) : !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("victim %d (%s), rank %d ended with %x", victim, dies_connecting ? "connecting" : "connected", r,
                     status);
    }
    /* Once connected nobody has a name any more; one that died before goes with the next object that is made. */
    afdep_shm_sweep();
    for (int r = 0; r < 3; r++)
        assert_false(is_named(&stage->handles[r]));
    munmap(stage, sizeof(*stage));
}

static void test_death(void **state)
{
    (void)state;
    death_case(0, 0);
    death_case(2, 0);
    death_case(1, 1);
}

static void test_names_go_early(void **state)
{
    (void)state;
    gin_world_t w;
    gin_world_open(&w, 3, afdep_gin_memory_open_host);
    for (int r = 0; r < 3; r++) {
        (void)link_of(&w, r);
        assert_false(is_named(&w.handles[r]));
    }
    gin_world_close(&w);
}

/* Another version, another host, a stranger's name, a rank that never comes. */
static void test_connect_refuses(void **state)
{
    (void)state;
    for (int what = 0; what < 5; what++) {
        afdep_gin_listener_t *listeners[2];
        afdep_gin_handle_t handles[2];
        const afdep_gin_handle_t *pointers[2] = { &handles[0], &handles[1] };
        afdep_gin_link_t *link = NULL;
        for (int r = 0; r < 2; r++)
            OK(afdep_gin_listen(&listeners[r], &handles[r]));
        const char *want = "rank 1 is on another host";
        afdep_status_t status = AFDEP_ERR_UNSUPPORTED;
        if (what == 0) {
            handles[1].host++;
        } else if (what == 1) {
            handles[1].version++;
            want = "rank 1 speaks version 2";
        } else if (what == 2) {
            snprintf(handles[1].inbox.name, sizeof(handles[1].inbox.name), "/../../etc/passwd");
            want = "none of afdep's";
            status = AFDEP_ERR_PROTOCOL;
        } else if (what == 3) {
            handles[1].inbox.ino++;
            want = "is not the one it announced";
            status = AFDEP_ERR_SYSTEM;
        } else {
            want = "rank 1 has not connected in time";
            status = AFDEP_ERR_TIMEOUT;
        }
        assert_int_equal(afdep_gin_connect(listeners[0], pointers, 2, 0, 50, afdep_gin_memory_open_host, &link),
                         status);
        if (!strstr(afdep_last_error(), want))
            fail_msg("'%s' says nothing of '%s'", afdep_last_error(), want);
        for (int r = 0; r < 2; r++)
            afdep_gin_stop_listening(listeners[r]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_staging),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_late_registration),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_deregister_settles),
        cmocka_unit_test(test_failing_copy),
        cmocka_unit_test(test_many_pairs),
        cmocka_unit_test(test_leaving_is_no_death),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_names_go_early),
        cmocka_unit_test(test_connect_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
