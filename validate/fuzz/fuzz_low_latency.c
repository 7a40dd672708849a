/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the low-latency API alone in a simulated network of three: what its peers would write into its segment comes
 * from the input, between the steps of its actors. It must write nothing out of its own memory (sanitizers) nor out of
 * a peer's segment, and every call ends in a status or waits.
 *
 * Input: a byte of settings (bits 0 .. 2: format - 1; 3: opened below the wrap; 4: weights are received), the number of
 * tokens, then operations, each a byte and its operands: see operate().
 */
#include <stdlib.h>

#include "core/error.h"
#include "fabric/sim.h"
#include "low_latency/ll.h"
#include "validate/fuzz/lib/input.h"

enum { RANKS = 3, ME = 1, TOKENS = 4, HIDDEN = 128, TOP_K = 3, EXPERTS = 6, LOCAL = EXPERTS / RANKS,
       ROWS = RANKS * TOKENS, OPERATIONS = 400 };

typedef struct subject {
    afdep_sim_t *sim;
    afdep_ll_rank_t *buffer;
} subject_t;

typedef struct run {
    afdep_ll_rank_t *b;
    afdep_sim_t *sim;
    afdep_fuzz_input_t input;
    int part; /* 0 .. 3: send, receive, return, sum */
    int under_way;
    afdep_ll_dispatch_t dispatch;
    afdep_ll_combine_t combine;
    /* Each of exactly the size that is asked for. */
    uint16_t *x, *y, *out;
    unsigned char *rows, *scales;
    int64_t *ids, *counts;
    float *weights, *row_weights;
} run_t;

static subject_t *find_subject(int wrap)
{
    static subject_t subjects[2];
    subject_t *s = &subjects[wrap];
    if (!s->buffer) {
        afdep_ll_config_t c = AFDEP_LL_CONFIG_INIT;
        afdep_ll_settings_t settings;
        uint64_t bytes[RANKS];
        c.num_max_dispatch_tokens_per_rank = TOKENS;
        c.hidden = HIDDEN;
        c.num_topk = TOP_K;
        c.num_experts = EXPERTS;
        c.timeout_ms = 1;
        AFDEP_FUZZ_EXPECT(afdep_ll_settings_resolve(&c, RANKS, &settings) == AFDEP_OK);
        settings.first_exchange = wrap ? UINT32_MAX - 1 : 0;
        for (int r = 0; r < RANKS; r++)
            bytes[r] = settings.layout.bytes;
        AFDEP_FUZZ_EXPECT(afdep_sim_create(RANKS, AFDEP_LANE_COUNT(1), bytes, &s->sim) == AFDEP_OK);
        AFDEP_FUZZ_EXPECT(afdep_ll_create(&settings, ME, &s->buffer) == AFDEP_OK);
        s->buffer->host.fabric = afdep_sim_fabric(s->sim, ME);
    }
    afdep_sim_reset(s->sim);
    afdep_ll_restart(s->buffer);
    afdep_ll_prepare_segment(s->buffer, s->buffer->host.fabric->base);
    afdep_ll_attach(s->buffer);
    return s;
}

static void *room(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);
    AFDEP_FUZZ_EXPECT(at);
    memset(at, 0x3C, bytes);
    return at;
}

static void begin_run(run_t *run, uint8_t settings, uint8_t tokens)
{
    afdep_ll_format_t format = (afdep_ll_format_t)(1 + settings % 8 % 7);
    int t = tokens % (TOKENS + 1);
    run->x = room(TOKENS * HIDDEN * 2);
    run->y = room(LOCAL * ROWS * HIDDEN * 2);
    run->out = room(TOKENS * HIDDEN * 2);
    run->rows = room(LOCAL * ROWS * afdep_ll_code_bytes(format, HIDDEN));
    run->scales = room(LOCAL * ROWS * (afdep_ll_scale_bytes(format, HIDDEN) + 1));
    run->ids = room(TOKENS * TOP_K * sizeof(*run->ids));
    run->counts = room(LOCAL * sizeof(*run->counts));
    run->weights = room(TOKENS * TOP_K * sizeof(*run->weights));
    run->row_weights = room(LOCAL * ROWS * sizeof(*run->row_weights));
    for (int i = 0; i < TOKENS * TOP_K; i++)
        run->ids[i] = afdep_fuzz_i8(&run->input) % (EXPERTS + 2);
    run->dispatch = (afdep_ll_dispatch_t)AFDEP_LL_DISPATCH_INIT;
    run->dispatch.x = run->x;
    run->dispatch.topk_idx = run->ids;
    run->dispatch.topk_weights = run->weights;
    run->dispatch.tokens = t;
    run->dispatch.format = format;
    run->dispatch.recv_x = run->rows;
    run->dispatch.recv_x_scales = run->scales;
    run->dispatch.recv_topk_weights = settings & 16 ? run->row_weights : NULL;
    run->dispatch.recv_count = run->counts;
    run->combine = (afdep_ll_combine_t)AFDEP_LL_COMBINE_INIT;
    run->combine.x = run->y;
    run->combine.topk_idx = run->ids;
    run->combine.topk_weights = run->weights;
    run->combine.tokens = t;
    run->combine.out = run->out;
}

static void end_run(run_t *run)
{
    void *const all[] = { run->x, run->y, run->out, run->rows, run->scales, run->ids, run->counts, run->weights,
                          run->row_weights };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* ---- The rank's own calls ------------------------------------------------------------------------------------ */

static afdep_status_t begin_part(run_t *run)
{
    run->under_way = 1;
    switch (run->part) {
    case 0:
        return afdep_ll_start_dispatch(run->b, &run->dispatch);
    case 1:
        afdep_ll_begin_receive(run->b, run->b->plane);
        return AFDEP_OK;
    case 2:
        run->combine.handle = run->dispatch.handle;
        return afdep_ll_start_combine(run->b, &run->combine);
    default:
        afdep_ll_begin_reduce(run->b, run->b->plane);
        return AFDEP_OK;
    }
}

static void end_part(run_t *run)
{
    if (run->part == 0)
        afdep_ll_end_dispatch(run->b, &run->dispatch);
    else if (run->part == 1)
        afdep_ll_end_receive(run->b, run->b->plane);
    else if (run->part == 2)
        afdep_ll_end_combine(run->b, &run->combine);
    else
        afdep_ll_end_reduce(run->b, run->b->plane);
    run->part = (run->part + 1) % 4;
    run->under_way = 0;
}

/* 0: the buffer has failed, as it should with such peers. */
static int step(run_t *run)
{
    afdep_status_t result = AFDEP_OK;
    if (!run->under_way)
        return begin_part(run) == AFDEP_OK;
    if (afdep_host_step(&run->b->host, 0, &result) != AFDEP_DONE)
        return 1;
    if (result == AFDEP_OK)
        end_part(run);
    else
        AFDEP_FUZZ_EXPECT(run->part == 1 || run->part == 3); /* sending goes to peers, and never out of their reach */
    return result == AFDEP_OK;
}

/* What it sent to itself arrives; what it sent to others is dropped. */
static void land(run_t *run)
{
    while (afdep_sim_pending(run->sim) > 0) {
        afdep_sim_message_t m;
        afdep_sim_head(run->sim, 0, &m);
        if (m.target == ME)
            afdep_sim_land(run->sim, 0, &m);
        else
            afdep_sim_drop(run->sim, 0);
    }
}

/* ---- What peers write ---------------------------------------------------------------------------------------- */

static void put(run_t *run, uint64_t offset, const void *bytes, size_t size)
{
    memcpy(run->b->host.fabric->base + offset, bytes, size);
}

/* The right word of the exchange under way but for its count, or any. */
static uint64_t word_of(run_t *run)
{
    uint8_t count = afdep_fuzz_u8(&run->input);
    return count < 128 ? afdep_word((uint32_t)run->b->host.started, count) : afdep_fuzz_u64(&run->input);
}

static void put_header(run_t *run, uint64_t base, int source)
{
    const afdep_ll_plane_t *p = &run->b->planes[afdep_ll_plane_index(run->b->host.started)];
    afdep_ll_header_t header = { .exchange = (uint32_t)p->exchange,
                                 .max_tokens = TOKENS,
                                 .experts = EXPERTS,
                                 .hidden = HIDDEN,
                                 .top_k = TOP_K,
                                 .format = (int32_t)p->format,
                                 .weights = 1,
                                 .tokens = TOKENS };
    unsigned char *bytes = (unsigned char *)&header;
    uint8_t at = afdep_fuzz_u8(&run->input);
    if (at < sizeof(header))
        bytes[at] ^= afdep_fuzz_u8(&run->input);
    put(run, base + afdep_ll_at_header(&run->b->settings.layout, source), &header, sizeof(header));
}

static void put_row(run_t *run, uint64_t base, int source)
{
    const afdep_ll_layout_t *l = &run->b->settings.layout;
    uint32_t position = afdep_fuzz_u8(&run->input) % TOKENS;
    afdep_row_tag_t tag = { (uint32_t)run->b->host.started, afdep_fuzz_u8(&run->input), (uint32_t)source, AFDEP_ROW_MARK };
    int32_t ids[TOP_K];
    for (int k = 0; k < TOP_K; k++)
        ids[k] = afdep_fuzz_i8(&run->input);
    uint64_t row = base + afdep_ll_at_row(l, &run->b->settings.shape, source, position);
    put(run, row, &tag, sizeof(tag));
    put(run, row + sizeof(tag), ids, sizeof(ids));
}

static void put_combine_tag(run_t *run, uint64_t base)
{
    uint32_t token = afdep_fuzz_u8(&run->input) % TOKENS, slot = afdep_fuzz_u8(&run->input) % TOP_K;
    afdep_row_tag_t tag = { (uint32_t)run->b->host.started, token, ME, AFDEP_ROW_MARK + slot };
    unsigned char *bytes = (unsigned char *)&tag;
    uint8_t at = afdep_fuzz_u8(&run->input);
    if (at < sizeof(tag))
        bytes[at] ^= afdep_fuzz_u8(&run->input);
    put(run, base + afdep_ll_at_combine_row(&run->b->settings.layout, &run->b->settings.shape, token, slot), &tag,
        sizeof(tag));
}

/* 0, 1: a step; 2: what it sent to itself lands; then peers' doing: 3 a dispatch word, 4 a header, 5 a row, 6 a combine
   word, 7 a combine row's tag. */
static int operate(run_t *run)
{
    uint8_t op = afdep_fuzz_u8(&run->input);
    const afdep_ll_layout_t *l = &run->b->settings.layout;
    uint64_t base = afdep_ll_plane_start(l, run->b->host.started > 0 ? afdep_ll_plane_index(run->b->host.started) : 0);
    uint64_t word;
    int peer = op / 8 % RANKS;
    switch (op % 8) {
    case 0:
    case 1:
        return step(run);
    case 2:
        land(run);
        return 1;
    case 3:
        word = word_of(run);
        put(run, base + afdep_ll_at_dispatch_word(l, peer), &word, sizeof(word));
        return 1;
    case 4:
        put_header(run, base, peer);
        return 1;
    case 5:
        put_row(run, base, peer);
        return 1;
    case 6:
        word = word_of(run);
        put(run, base + afdep_ll_at_combine_word(l, peer), &word, sizeof(word));
        return 1;
    default:
        put_combine_tag(run, base);
        return 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    run_t run = { .input = { data, size } };
    uint8_t settings = afdep_fuzz_u8(&run.input);
    subject_t *subject = find_subject(settings >> 3 & 1);
    run.b = subject->buffer;
    run.sim = subject->sim;
    begin_run(&run, settings, afdep_fuzz_u8(&run.input));
    for (int n = 0; n < OPERATIONS && run.input.left > 0; n++)
        if (!operate(&run))
            break;
    end_run(&run);
    return 0;
}
