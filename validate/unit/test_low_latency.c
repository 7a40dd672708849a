/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency API's calls, line by line of the document that it follows: what every call refuses and with what
 * sentence, and that a refused call changed nothing.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "low_latency/ll.h"
#include "validate/ll_exchanger.h"
#include "validate/unit/ll_expect.h"
#include "validate/unit/ranks.h"

/* ---- Calls --------------------------------------------------------------------------------------------------- */

enum { TOKENS = 4, HIDDEN = 64, TOP_K = 2, RANKS = 2, EXPERTS = 4, ROWS = RANKS * TOKENS };

typedef struct desk {
    afdep_ll_buffer_t *buffer;
    _Alignas(64) uint16_t x[TOKENS][HIDDEN];
    _Alignas(64) uint16_t recv_x[EXPERTS][ROWS][HIDDEN];
    _Alignas(64) uint16_t out[TOKENS][HIDDEN];
    int64_t ids[TOKENS][TOP_K], count[EXPERTS];
    float weights[TOKENS][TOP_K];
    afdep_ll_dispatch_t dispatch;
    afdep_ll_combine_t combine;
} desk_t;

static desk_t *open_desk(const afdep_group_t *group)
{
    desk_t *d = aligned_alloc(64, (sizeof(*d) + 63) / 64 * 64);
    afdep_ll_config_t c = config_of(AFDEP_LL_NATIVE, TOKENS, HIDDEN, TOP_K, EXPERTS);
    if (!d)
        abort();
    memset(d, 0, sizeof(*d));
    c.timeout_ms = 5000;
    if (afdep_ll_buffer_open(group, &c, &d->buffer) != AFDEP_OK) {
        fprintf(stderr, "%s\n", afdep_last_error());
        abort();
    }
    for (int t = 0; t < TOKENS; t++)
        for (int k = 0; k < TOP_K; k++) {
            d->ids[t][k] = (t + 2 * k) % EXPERTS;
            d->weights[t][k] = 0.5f;
        }
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HIDDEN; h++)
            d->x[t][h] = (uint16_t)(0x3F80 + 16 * t);
    d->dispatch = (afdep_ll_dispatch_t)AFDEP_LL_DISPATCH_INIT;
    d->dispatch.format = AFDEP_LL_BF16;
    d->dispatch.x = d->x;
    d->dispatch.tokens = TOKENS;
    d->dispatch.topk_idx = d->ids[0];
    d->dispatch.recv_x = d->recv_x;
    d->dispatch.recv_count = d->count;
    d->combine = (afdep_ll_combine_t)AFDEP_LL_COMBINE_INIT;
    d->combine.x = d->recv_x;
    d->combine.tokens = TOKENS;
    d->combine.topk_idx = d->ids[0];
    d->combine.topk_weights = d->weights[0];
    d->combine.out = d->out;
    return d;
}

static void close_desk(desk_t *d, afdep_status_t want)
{
    EXPECT(afdep_ll_buffer_close(d->buffer), want, "");
    free(d);
}

/* One rank: its calls need nobody else. */
static desk_t *open_alone(afdep_group_t *group)
{
    assert_int_equal(afdep_group_threads_create(1, 5000, group), AFDEP_OK);
    return open_desk(group);
}

#define REFUSED(call, field, value, status, word)                                                                     \
    do {                                                                                                              \
        afdep_ll_##call##_t bad = d->call;                                                                            \
        bad.field = value;                                                                                            \
        EXPECT(afdep_ll_##call(d->buffer, &bad), status, word);                                                       \
    } while (0)

static void test_dispatch_refuses(void **state)
{
    afdep_group_t group;
    desk_t *d = open_alone(&group);
    float weights[EXPERTS * ROWS];
    (void)state;
    EXPECT(afdep_ll_dispatch(NULL, &d->dispatch), AFDEP_ERR_ARGUMENT, "buffer is NULL");
    EXPECT(afdep_ll_dispatch(d->buffer, NULL), AFDEP_ERR_ARGUMENT, "is NULL");
    REFUSED(dispatch, struct_size, 8, AFDEP_ERR_ARGUMENT, "struct_size");
    REFUSED(dispatch, x, NULL, AFDEP_ERR_ARGUMENT, "x is NULL");
    REFUSED(dispatch, x, (char *)d->x + 8, AFDEP_ERR_ARGUMENT, "16-byte aligned");
    REFUSED(dispatch, topk_idx, NULL, AFDEP_ERR_ARGUMENT, "topk_idx is NULL");
    REFUSED(dispatch, recv_x, NULL, AFDEP_ERR_ARGUMENT, "recv_x is NULL");
    REFUSED(dispatch, recv_count, NULL, AFDEP_ERR_ARGUMENT, "recv_count is NULL");
    REFUSED(dispatch, format, AFDEP_LL_MXFP8, AFDEP_ERR_ARGUMENT, "recv_x_scales is NULL");
    REFUSED(dispatch, recv_topk_weights, weights, AFDEP_ERR_ARGUMENT, "topk_weights is NULL");
    REFUSED(dispatch, tokens, TOKENS + 1, AFDEP_ERR_CONFIG, "tokens is 5");
    REFUSED(dispatch, tokens, -1, AFDEP_ERR_CONFIG, "tokens is -1");
    REFUSED(dispatch, hidden, HIDDEN + 32, AFDEP_ERR_ARGUMENT, "hidden is 96: the buffer was opened for at most 64");
    REFUSED(dispatch, hidden, 40, AFDEP_ERR_CONFIG, "multiple of 32");
    REFUSED(dispatch, num_topk, TOP_K + 1, AFDEP_ERR_ARGUMENT, "num_topk is 3");
    REFUSED(dispatch, num_experts, EXPERTS + 1, AFDEP_ERR_ARGUMENT, "num_experts is 5");
    REFUSED(dispatch, num_max_dispatch_tokens_per_rank, 5, AFDEP_ERR_ARGUMENT, "per_rank is 5");
    REFUSED(dispatch, num_max_dispatch_tokens_per_rank, 3, AFDEP_ERR_CONFIG, "tokens is 4: 0 to 3");
    REFUSED(dispatch, format, AFDEP_LL_FP8_BLOCK, AFDEP_ERR_ARGUMENT, "multiple of 128");
    REFUSED(dispatch, format, 8, AFDEP_ERR_ARGUMENT, "format is 8");
    d->dispatch.async_finish = 1;
    REFUSED(dispatch, return_recv_hook, 1, AFDEP_ERR_ARGUMENT, "both set");
    d->dispatch.async_finish = 0;
    /* Nothing of that was sent. */
    afdep_counters_t counters = { .struct_size = sizeof(counters) };
    EXPECT_OK(afdep_ll_buffer_counters(d->buffer, 0, &counters));
    assert_int_equal(counters.puts + counters.count_words, 0);
    EXPECT(afdep_ll_buffer_counters(d->buffer, 1, &counters), AFDEP_ERR_ARGUMENT, "peer is 1");
    close_desk(d, AFDEP_OK);
    afdep_group_destroy(&group);
}

static void test_combine_refuses(void **state)
{
    afdep_group_t group;
    desk_t *d = open_alone(&group);
    void *x;
    (void)state;
    EXPECT(afdep_ll_combine(d->buffer, &d->combine), AFDEP_ERR_ARGUMENT, "not one of this buffer's dispatches");
    EXPECT_OK(afdep_ll_dispatch(d->buffer, &d->dispatch));
    d->combine.handle = d->dispatch.handle;
    REFUSED(combine, x, NULL, AFDEP_ERR_ARGUMENT, "x is NULL");
    REFUSED(combine, tokens, 3, AFDEP_ERR_ARGUMENT, "tokens is 3, and 4 were dispatched");
    REFUSED(combine, num_topk, 1, AFDEP_ERR_ARGUMENT, "num_topk is 1");
    REFUSED(combine, topk_idx, NULL, AFDEP_ERR_ARGUMENT, "topk_idx is NULL");
    REFUSED(combine, topk_weights, NULL, AFDEP_ERR_ARGUMENT, "topk_weights is NULL");
    REFUSED(combine, out, (char *)d->out + 8, AFDEP_ERR_ARGUMENT, "out is not 16-byte aligned");
    REFUSED(combine, zero_copy, 1, AFDEP_ERR_ARGUMENT, "not the next combine buffer");
    d->ids[1][1] ^= 1;
    EXPECT(afdep_ll_combine(d->buffer, &d->combine), AFDEP_ERR_ARGUMENT, "token 1, slot 1: expert");
    d->ids[1][1] ^= 1;
    d->combine.async_finish = 1;
    REFUSED(combine, return_recv_hook, 1, AFDEP_ERR_ARGUMENT, "both set");
    d->combine.async_finish = 0;
    afdep_ll_handle_t handle = d->dispatch.handle;
    handle.opaque[1]++;
    EXPECT(afdep_ll_next_combine_buffer(d->buffer, &handle, &x), AFDEP_ERR_ORDER, "was combined before");
    handle.opaque[0]++;
    EXPECT(afdep_ll_next_combine_buffer(d->buffer, &handle, &x), AFDEP_ERR_ARGUMENT, "not one of this buffer's");
    EXPECT_OK(afdep_ll_next_combine_buffer(d->buffer, &d->dispatch.handle, &x));
    EXPECT_OK(afdep_ll_combine(d->buffer, &d->combine));
    EXPECT(afdep_ll_combine(d->buffer, &d->combine), AFDEP_ERR_ORDER, "was combined before");
    assert_memory_equal(d->out, d->x, sizeof(d->x)); /* halves of each row, twice */
    afdep_counters_t counters = { .struct_size = sizeof(counters) };
    EXPECT_OK(afdep_ll_buffer_counters(d->buffer, 0, &counters));
    /* One row per token, whatever its choices, and one header; one combine row per choice. */
    assert_int_equal(counters.puts, TOKENS + 1 + TOKENS * TOP_K);
    assert_int_equal(counters.count_words, 1);
    assert_int_equal(counters.combines, 1);
    close_desk(d, AFDEP_OK);
    afdep_group_destroy(&group);
}

static void test_order(void **state)
{
    afdep_group_t group;
    desk_t *d = open_alone(&group);
    afdep_ll_dispatch_t second = d->dispatch, third = d->dispatch;
    int done = 7;
    (void)state;
    d->dispatch.return_recv_hook = 1;
    EXPECT_OK(afdep_ll_dispatch(d->buffer, &d->dispatch));
    d->combine.handle = d->dispatch.handle;
    EXPECT(afdep_ll_combine(d->buffer, &d->combine), AFDEP_ERR_ORDER, "has not received");
    second.async_finish = 1;
    EXPECT_OK(afdep_ll_dispatch(d->buffer, &second));
    EXPECT(afdep_ll_dispatch(d->buffer, &third), AFDEP_ERR_ORDER, "two exchanges at most");
    EXPECT(afdep_ll_hook_call(d->buffer, (const afdep_ll_hook_t *)&d->dispatch.event), AFDEP_ERR_ARGUMENT,
           "not one that");
    EXPECT_OK(afdep_ll_event_query(d->buffer, &second.event, &done));
    assert_int_equal(done, 1);
    EXPECT_OK(afdep_ll_event_wait(d->buffer, &second.event)); /* again is nothing */
    d->combine.handle = second.handle;
    EXPECT(afdep_ll_combine(d->buffer, &d->combine), AFDEP_ERR_ORDER, "exchange 1 comes before exchange 2");
    EXPECT_OK(afdep_ll_hook_call(d->buffer, &d->dispatch.hook));
    EXPECT(afdep_ll_hook_call(d->buffer, &d->dispatch.hook), AFDEP_ERR_ORDER, "was called before");
    d->combine.handle = d->dispatch.handle;
    d->combine.return_recv_hook = 1;
    EXPECT_OK(afdep_ll_combine(d->buffer, &d->combine));
    EXPECT(afdep_ll_dispatch(d->buffer, &third), AFDEP_ERR_ORDER, "its hook or event is not done");
    EXPECT_OK(afdep_ll_hook_call(d->buffer, &d->combine.hook));
    EXPECT(afdep_ll_hook_call(d->buffer, &d->combine.hook), AFDEP_ERR_ORDER, "was called before");
    EXPECT_OK(afdep_ll_dispatch(d->buffer, &third));
    EXPECT(afdep_ll_hook_call(d->buffer, &d->dispatch.hook), AFDEP_ERR_ORDER, "was called before");
    /* Two are left: closing says so. */
    close_desk(d, AFDEP_ERR_ORDER);
    afdep_group_destroy(&group);
}

/* Routes that are none: the exchange goes on without them, and the sentence names the first. */
static void test_routes(void **state)
{
    static const struct {
        int64_t id;
        const char *word;
    } bad[] = { { EXPERTS, "token 2, slot 1: expert 4 does not exist" },
                { -2, "expert -2 does not exist" },
                { INT64_MAX, "does not exist" },
                { 2, "token 2, slot 1: expert 2 is chosen twice" } };
    afdep_group_t group;
    desk_t *d = open_alone(&group);
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int64_t rows = 0;
        d->ids[2][1] = bad[i].id;
        EXPECT(afdep_ll_dispatch(d->buffer, &d->dispatch), AFDEP_ERR_ROUTE, bad[i].word);
        for (int e = 0; e < EXPERTS; e++)
            rows += d->count[e];
        assert_int_equal(rows, TOKENS * TOP_K - 1);
        d->combine.handle = d->dispatch.handle;
        EXPECT_OK(afdep_ll_combine(d->buffer, &d->combine));
        assert_int_equal(d->out[2][0], d->x[2][0] - 0x80); /* half of it */
        assert_int_equal(d->out[3][5], d->x[3][5]);
    }
    close_desk(d, AFDEP_OK);
    afdep_group_destroy(&group);
}

/* A configured size that is too small: both sizes are named, on every rank. */
static int too_small(const afdep_group_t *group, void *context)
{
    afdep_ll_config_t c = config_of(AFDEP_LL_A5, 128, 7168, 8, 64);
    afdep_ll_buffer_t *buffer = NULL;
    char want[128];
    (void)context;
    c.buffer_bytes = 50 * MIB;
    /* (128 * 2 * 8 * 7168 * 2 + 2 MiB) * 2 */
    snprintf(want, sizeof(want), "configured with %llu bytes, of which 1 MiB holds state, and profile a5 requires %llu",
             (unsigned long long)c.buffer_bytes, (128ull * 2 * 8 * 7168 * 2 + 2 * MIB) * 2);
    if (afdep_ll_buffer_open(group, &c, &buffer) != AFDEP_OK && strstr(afdep_last_error(), want))
        return 0;
    fprintf(stderr, "%s\n", afdep_last_error());
    return __LINE__;
}

/* Exactly enough, and one byte less. */
static int just_enough(const afdep_group_t *group, void *context)
{
    afdep_ll_config_t c = config_of(AFDEP_LL_A5, 9, 64, 2, 8);
    afdep_ll_buffer_t *buffer = NULL;
    (void)context;
    c.buffer_bytes = (9 * 2 * 2 * 128 + 2 * MIB) * 2 + MIB;
    if (afdep_ll_buffer_open(group, &c, &buffer) != AFDEP_OK || afdep_ll_buffer_close(buffer) != AFDEP_OK)
        return __LINE__;
    c.buffer_bytes--;
    return afdep_ll_buffer_open(group, &c, &buffer) == AFDEP_ERR_CONFIG ? 0 : __LINE__;
}

static void test_too_small(void **state)
{
    (void)state;
    assert_int_equal(run_thread_ranks(2, too_small, NULL), 0);
    assert_int_equal(run_thread_ranks(2, just_enough, NULL), 0);
}

/* One rank passes something else: a named error on both, no hang. */
typedef struct other {
    size_t offset;
    int32_t value;
    const char *word;
} other_t;

static int differing(const afdep_group_t *group, void *context)
{
    const other_t *other = context;
    desk_t *d = open_desk(group);
    if (group->rank == 1)
        memcpy((char *)&d->dispatch + other->offset, &other->value, sizeof(other->value));
    d->dispatch.tokens = 2;
    afdep_status_t status = afdep_ll_dispatch(d->buffer, &d->dispatch);
    int named = status == AFDEP_ERR_PEER ||
                (status == AFDEP_ERR_PROTOCOL && strstr(afdep_last_error(), other->word) != NULL);
    if (!named)
        fprintf(stderr, "%s: %s\n", afdep_status_string(status), afdep_last_error());
    (void)afdep_ll_buffer_close(d->buffer);
    free(d);
    return named ? 0 : __LINE__;
}

static void test_ranks_differ(void **state)
{
    static const other_t others[] = {
        { offsetof(afdep_ll_dispatch_t, num_max_dispatch_tokens_per_rank), 3, "num_max_dispatch_tokens_per_rank" },
        { offsetof(afdep_ll_dispatch_t, num_experts), 2, "num_experts" },
        { offsetof(afdep_ll_dispatch_t, hidden), 32, "hidden" },
        { offsetof(afdep_ll_dispatch_t, num_topk), 1, "num_topk" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        other_t other = others[i];
        assert_int_equal(run_thread_ranks(2, differing, &other), 0);
    }
}

static int differing_format(const afdep_group_t *group, void *context)
{
    desk_t *d = open_desk(group);
    float scales[EXPERTS * ROWS];
    (void)context;
    d->dispatch.format = group->rank ? AFDEP_LL_INT8 : AFDEP_LL_FP8_TOKEN;
    d->dispatch.recv_x_scales = scales;
    afdep_status_t status = afdep_ll_dispatch(d->buffer, &d->dispatch);
    int named = status == AFDEP_ERR_PEER || (status == AFDEP_ERR_PROTOCOL && strstr(afdep_last_error(), "format"));
    int poisoned = afdep_ll_buffer_error(d->buffer) == status;
    afdep_status_t after = afdep_ll_dispatch(d->buffer, &d->dispatch);
    (void)afdep_ll_buffer_close(d->buffer);
    free(d);
    return named && poisoned && after == AFDEP_ERR_POISONED ? 0 : __LINE__;
}

static void test_formats_differ(void **state)
{
    (void)state;
    assert_int_equal(run_thread_ranks(2, differing_format, NULL), 0);
}

/* A rank that asks for what another does not send. */
static int without_weights(const afdep_group_t *group, void *context)
{
    desk_t *d = open_desk(group);
    float weights[EXPERTS * ROWS];
    (void)context;
    if (group->rank == 1) {
        d->dispatch.topk_weights = d->weights[0];
        d->dispatch.recv_topk_weights = weights;
    }
    afdep_status_t status = afdep_ll_dispatch(d->buffer, &d->dispatch);
    int right =
        group->rank == 0 || (status == AFDEP_ERR_PROTOCOL && strstr(afdep_last_error(), "without topk_weights"));
    (void)afdep_ll_buffer_close(d->buffer);
    free(d);
    return right ? 0 : __LINE__;
}

static void test_weights_missing(void **state)
{
    (void)state;
    assert_int_equal(run_thread_ranks(2, without_weights, NULL), 0);
}

/* What no correct peer writes, put into the segment between sending and receiving: a named error each time. */
typedef enum place { DISPATCH_WORD, HEADER, ROW, COMBINE_WORD, COMBINE_ROW } place_t;

static unsigned char *find_place(const desk_t *d, place_t place)
{
    const afdep_ll_rank_t *b = afdep_ll_rank_of(d->buffer);
    const afdep_ll_layout_t *l = &b->settings.layout;
    unsigned char *plane = b->host.fabric->base + b->planes[0].base;
    switch (place) {
    case DISPATCH_WORD:
        return plane + afdep_ll_at_dispatch_word(l, 0);
    case HEADER:
        return plane + afdep_ll_at_header(l, 0);
    case ROW:
        return plane + afdep_ll_at_row(l, &b->settings.shape, 0, 1);
    case COMBINE_WORD:
        return plane + afdep_ll_at_combine_word(l, 0);
    default:
        return plane + afdep_ll_at_combine_row(l, &b->settings.shape, 2, 1);
    }
}

static void test_damaged_memory(void **state)
{
    static const struct {
        place_t place;
        size_t offset;
        int32_t value;
        const char *word;
    } damages[] = {
        { DISPATCH_WORD, 4, 7, "the dispatch word of rank 0" },
        { DISPATCH_WORD, 0, TOKENS + 1, "the dispatch word of rank 0" },
        { HEADER, offsetof(afdep_ll_header_t, exchange), 2, "the header of rank 0 is of exchange 2" },
        { HEADER, offsetof(afdep_ll_header_t, hidden), 32, "with hidden 32" },
        { ROW, offsetof(afdep_row_tag_t, exchange), 2, "a row's tag" },
        { ROW, offsetof(afdep_row_tag_t, token), 0, "a row's tag" }, /* as the row before it */
        { ROW, offsetof(afdep_row_tag_t, token), TOKENS, "a row's tag" },
        { ROW, offsetof(afdep_row_tag_t, source), 1, "a row's tag" },
        { ROW, sizeof(afdep_row_tag_t), -1, "" }, /* the token chose two: one is left, and combine misses the other */
        { COMBINE_WORD, 4, 3, "the combine word of rank 0" },
        { COMBINE_WORD, 0, 1, "the combine word of rank 0" },
        { COMBINE_ROW, offsetof(afdep_row_tag_t, exchange), 3, "a combine row's tag" },
        { COMBINE_ROW, offsetof(afdep_row_tag_t, token), 1, "a combine row's tag" },
        { COMBINE_ROW, offsetof(afdep_row_tag_t, source), 1, "a combine row's tag" },
        { COMBINE_ROW, offsetof(afdep_row_tag_t, mark), AFDEP_ROW_MARK, "a combine row's tag" }, /* of slot 0 */
        { COMBINE_ROW, offsetof(afdep_row_tag_t, mark), 0, "a combine row's tag" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        afdep_group_t group;
        desk_t *d = open_alone(&group);
        d->dispatch.return_recv_hook = d->combine.return_recv_hook = 1;
        EXPECT_OK(afdep_ll_dispatch(d->buffer, &d->dispatch));
        int early = damages[i].place < COMBINE_WORD, half = damages[i].word[0] == '\0';
        if (early)
            memcpy(find_place(d, damages[i].place) + damages[i].offset, &damages[i].value, 4);
        afdep_status_t status = afdep_ll_hook_call(d->buffer, &d->dispatch.hook);
        if (!early || half) {
            EXPECT_OK(status);
            d->combine.handle = d->dispatch.handle;
            EXPECT_OK(afdep_ll_combine(d->buffer, &d->combine));
            if (!early)
                memcpy(find_place(d, damages[i].place) + damages[i].offset, &damages[i].value, 4);
            status = afdep_ll_hook_call(d->buffer, &d->combine.hook);
        }
        EXPECT(status, AFDEP_ERR_PROTOCOL, half ? "the combine word" : damages[i].word);
        EXPECT(afdep_ll_buffer_error(d->buffer), AFDEP_ERR_PROTOCOL, "");
        close_desk(d, AFDEP_OK);
        afdep_group_destroy(&group);
    }
}

/* Rows that together choose one expert more often than there are tokens. */
static void test_too_many_choices(void **state)
{
    afdep_group_t group;
    desk_t *d = open_alone(&group);
    const int32_t twice[TOP_K] = { 0, 0 };
    (void)state;
    d->dispatch.return_recv_hook = 1;
    EXPECT_OK(afdep_ll_dispatch(d->buffer, &d->dispatch));
    uint32_t stride = ((afdep_ll_rank_t *)afdep_ll_rank_of(d->buffer))->settings.layout.row_stride;
    for (int t = 0; t < TOKENS; t++)
        memcpy(find_place(d, ROW) + (t - 1) * (ptrdiff_t)stride + sizeof(afdep_row_tag_t), twice, sizeof(twice));
    EXPECT(afdep_ll_hook_call(d->buffer, &d->dispatch.hook), AFDEP_ERR_PROTOCOL, "a row's choices");
    close_desk(d, AFDEP_OK);
    afdep_group_destroy(&group);
}

/* A rank that never comes: the others' calls end at the deadline and name it. */
static int absent(const afdep_group_t *group, void *context)
{
    afdep_ll_config_t c = config_of(AFDEP_LL_NATIVE, TOKENS, HIDDEN, TOP_K, EXPERTS);
    desk_t *d = open_desk(group);
    (void)context;
    EXPECT_OK(afdep_ll_buffer_close(d->buffer));
    c.timeout_ms = 200;
    EXPECT_OK(afdep_ll_buffer_open(group, &c, &d->buffer));
    afdep_status_t status = AFDEP_ERR_PEER;
    if (group->rank == 0) {
        int done = 1;
        d->dispatch.async_finish = 1;
        EXPECT_OK(afdep_ll_dispatch(d->buffer, &d->dispatch));
        EXPECT_OK(afdep_ll_event_query(d->buffer, &d->dispatch.event, &done));
        assert_int_equal(done, 0);
        status = afdep_ll_event_wait(d->buffer, &d->dispatch.event);
        EXPECT(status, AFDEP_ERR_TIMEOUT, "the dispatch word of rank 1");
        EXPECT(afdep_ll_event_query(d->buffer, &d->dispatch.event, &done), AFDEP_ERR_POISONED, "failed before");
    } else {
        while ((status = afdep_ll_buffer_error(d->buffer)) == AFDEP_OK)
            sched_yield();
    }
    (void)afdep_ll_buffer_close(d->buffer);
    free(d);
    return afdep_status_is_fatal(status) ? 0 : __LINE__;
}

static void test_absent_rank(void **state)
{
    (void)state;
    assert_int_equal(run_thread_ranks(2, absent, NULL), 0);
}

/* A rank whose process dies between its dispatch and its combine: the others' calls name it. */
static int killed(const afdep_group_t *group, void *context)
{
    desk_t *d = open_desk(group);
    (void)context;
    if (group->rank == 1) {
        d->dispatch.return_recv_hook = 1;
        (void)afdep_ll_dispatch(d->buffer, &d->dispatch);
        raise(SIGKILL);
    }
    afdep_status_t status = afdep_ll_dispatch(d->buffer, &d->dispatch);
    d->combine.handle = d->dispatch.handle;
    if (status == AFDEP_OK)
        status = afdep_ll_combine(d->buffer, &d->combine);
    int named = status == AFDEP_ERR_PEER && strstr(afdep_last_error(), "rank 1 is dead");
    if (!named)
        fprintf(stderr, "%s: %s\n", afdep_status_string(status), afdep_last_error());
    (void)afdep_ll_buffer_close(d->buffer);
    free(d);
    return named ? 0 : __LINE__;
}

static void test_killed_rank(void **state)
{
    (void)state;
    assert_int_equal(run_fork_ranks(2, killed, NULL, 1), 0);
}

static void test_open_refuses(void **state)
{
    afdep_group_t group;
    afdep_ll_buffer_t *buffer = NULL;
    afdep_ll_config_t c = config_of(AFDEP_LL_NATIVE, 4, 64, 2, 4);
    (void)state;
    assert_int_equal(afdep_group_threads_create(1, 5000, &group), AFDEP_OK);
    EXPECT(afdep_ll_buffer_open(&group, NULL, &buffer), AFDEP_ERR_ARGUMENT, "config is NULL");
    EXPECT(afdep_ll_buffer_open(&group, &c, NULL), AFDEP_ERR_ARGUMENT, "buffer is NULL");
    c.backend = "cuda"; /* not in this build, or not over that fabric */
    c.fabric = "shm";
    EXPECT(afdep_ll_buffer_open(&group, &c, &buffer), AFDEP_ERR_UNSUPPORTED, "\"cuda\"");
    c.fabric = NULL;
    c.backend = "abacus";
    EXPECT(afdep_ll_buffer_open(&group, &c, &buffer), AFDEP_ERR_CONFIG, "abacus");
    c.backend = "host";
    c.fabric = "pigeons";
    EXPECT(afdep_ll_buffer_open(&group, &c, &buffer), AFDEP_ERR_CONFIG, "pigeons");
    c.fabric = NULL;
    c.timeout_ms = -1;
    EXPECT(afdep_ll_buffer_open(&group, &c, &buffer), AFDEP_ERR_CONFIG, "timeout_ms is -1");
    c.timeout_ms = 0;
    c.buffer_bytes = 4096;
    EXPECT(afdep_ll_buffer_open(&group, &c, &buffer), AFDEP_ERR_CONFIG,
           "configured with 4096 bytes and profile native requires");
    assert_null(buffer);
    EXPECT_OK(afdep_ll_buffer_close(NULL));
    EXPECT(afdep_ll_buffer_error(NULL), AFDEP_ERR_ARGUMENT, "NULL");
    afdep_group_destroy(&group);
}

/* Errors and results leave errno and the caller's floating-point environment alone, whatever it is. */
static void test_exact_in_any_environment(void **state)
{
    afdep_group_t group;
    desk_t *d = open_alone(&group);
    (void)state;
    for (int h = 0; h < HIDDEN; h++)
        d->x[0][h] = (uint16_t)(1 + h); /* denormals */
#if defined(__x86_64__)
    unsigned saved = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(saved | 0x8040 | 0x6000); /* FTZ, DAZ, towards zero */
#endif
    errno = 4711;
    afdep_status_t first = afdep_ll_dispatch(d->buffer, &d->dispatch);
    d->combine.handle = d->dispatch.handle;
    afdep_status_t second = afdep_ll_combine(d->buffer, &d->combine);
    int kept = errno;
#if defined(__x86_64__)
    unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(saved);
    assert_int_equal(after & 0xFFC0, (saved | 0x8040 | 0x6000) & 0xFFC0);
#endif
    assert_int_equal(first | second, AFDEP_OK);
    assert_int_equal(kept, 4711);
    assert_memory_equal(d->out, d->x, sizeof(d->x));
    close_desk(d, AFDEP_OK);
    afdep_group_destroy(&group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatch_refuses),
        cmocka_unit_test(test_combine_refuses),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_ranks_differ),
        cmocka_unit_test(test_formats_differ),
        cmocka_unit_test(test_weights_missing),
        cmocka_unit_test(test_damaged_memory),
        cmocka_unit_test(test_too_many_choices),
        cmocka_unit_test(test_absent_rank),
        cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_exact_in_any_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
