/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives the rank by the input's operations. What must hold: it writes nothing out of its own memory (sanitizers) nor
 * out of a peer's segment (checked here at every put and signal), and every call ends in a status or waits.
 */
#include "validate/fuzz/lib/rank.h"

#include <stdlib.h>

#include "fabric/sim.h"
#include "host/host.h"
#include "validate/fuzz/lib/input.h"

enum { RANKS = 6, TOP_K = 4, HIDDEN = 256, CAPACITY = 12, TENSORS = 5 };

/* A rank with one of the 256 settings, made once and restarted for every input. */
typedef struct subject {
    afdep_settings_t settings;
    afdep_sim_t *sim;
    afdep_host_t *host;
} subject_t;

/* A call under way, and the tensors that it was given: of exactly the size that was asked for. */
typedef struct run {
    subject_t *subject;
    afdep_host_t *host;
    afdep_fuzz_input_t *input;
    int under_way; /* 0: no call, 1: a first half, 2: a second half */
    afdep_dispatch_t dispatch;
    afdep_receive_t receives[4];
    afdep_reply_t reply;
    afdep_collect_t collect;
    void *tensors[4][TENSORS]; /* by exchange modulo in_flight */
    void *rows;                /* of the second half */
} run_t;

/* ---- The fabric: the simulator's, refusing now and then, and trusted with nothing ----------------------------- */

static const afdep_fabric_ops_t *sim_ops;
static afdep_sim_t *network; /* of the input */
static uint32_t pressure;    /* state of the back-pressure; 0: none */

static int refuses(void)
{
    if (pressure == 0)
        return 0;
    pressure = pressure * 1664525u + 1013904223u;
    pressure |= 1;
    return pressure >> 29 == 0;
}

/* The simulator refuses what is out of a peer's reach. On other fabrics that would be an overrun. */
static afdep_status_t within_reach(afdep_status_t status)
{
    AFDEP_FUZZ_EXPECT(status != AFDEP_ERR_PROTOCOL);
    return status;
}

static afdep_status_t fuzz_put(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src, size_t bytes)
{
    return refuses() ? AFDEP_AGAIN : within_reach(sim_ops->put(f, lane, peer, offset, src, bytes));
}

static afdep_status_t fuzz_signal(afdep_fabric_t *f, int lane, int peer, uint64_t offset, uint64_t old_value,
                                  uint64_t new_value)
{
    return refuses() ? AFDEP_AGAIN : within_reach(sim_ops->signal(f, lane, peer, offset, old_value, new_value));
}

static afdep_status_t fuzz_put_signal(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src,
                                      size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value)
{
    return refuses() ? AFDEP_AGAIN
                     : within_reach(sim_ops->put_signal(f, lane, peer, offset, src, bytes, word, old_value, new_value));
}

static uint64_t fuzz_read(afdep_fabric_t *f, uint64_t offset)
{
    AFDEP_FUZZ_EXPECT(offset % 8 == 0 && f->bytes >= 8 && offset <= f->bytes - 8);
    return sim_ops->read(f, offset);
}

/* Deadlines come soon, since nobody else will move. */
static void fuzz_idle(afdep_fabric_t *f, unsigned rounds)
{
    (void)f, (void)rounds;
    afdep_sim_advance(network, 200000);
}

static void take_over(afdep_fabric_t *f)
{
    static afdep_fabric_ops_t ops;
    if (!sim_ops) {
        sim_ops = f->ops;
        ops = *f->ops;
        ops.put = fuzz_put;
        ops.signal = fuzz_signal;
        ops.put_signal = fuzz_put_signal;
        ops.read = fuzz_read;
        ops.idle = fuzz_idle;
    }
    f->ops = &ops;
}

/* ---- Making --------------------------------------------------------------------------------------------------- */

static afdep_toggle_t toggle(int on)
{
    return on ? AFDEP_ON : AFDEP_OFF;
}

/* Direct: 2 FFN and 4 Attention ranks in one domain. Across domains: the same in 3 domains of 2, one of FFN ranks, or
   in 2 domains of both roles. */
static void resolve(afdep_settings_t *settings, uint8_t bits)
{
    afdep_config_t c = AFDEP_CONFIG_INIT;
    c.ffn_ranks = 2;
    c.ranks_per_domain = bits & 1 ? (bits & 16 ? 3 : 2) : 0;
    c.num_experts = bits & 8 ? 8 : 4; /* a rank has as many as a token may choose, or fewer */
    c.top_k = TOP_K;
    c.hidden = HIDDEN;
    c.dtype = bits & 32 ? AFDEP_DTYPE_FP8 : AFDEP_DTYPE_BF16;
    c.capacity = CAPACITY;
    c.num_sms = 1;
    c.expert_alignment = bits & 8 ? 8 : 1;
    c.in_flight = bits & 64 ? 2 : 1;
    c.timeout_ms = 1;
    c.stagger = toggle(!(bits & 8));
    c.sparse_dispatch = toggle(!(bits & 2));
    c.sparse_combine = toggle(!(bits & 4));
    c.flags = (bits & 16 ? AFDEP_FLAG_APPLY_WEIGHTS : 0) | (bits & 8 ? AFDEP_FLAG_MIXED_HYBRID : 0);
    AFDEP_FUZZ_EXPECT(afdep_settings_resolve(&c, RANKS, settings) == AFDEP_OK);
    settings->first_exchange = bits & 128 ? UINT32_MAX - 1 : 0;
}

static void make_subject(subject_t *subject, afdep_fuzz_role_t role, uint8_t bits)
{
    uint64_t bytes[RANKS];
    const afdep_shape_t *s = &subject->settings.shape;
    int rank = role == AFDEP_FUZZ_FFN ? 1 : 3;
    resolve(&subject->settings, bits);
    for (int r = 0; r < RANKS; r++)
        bytes[r] = afdep_segment_bytes(&subject->settings.layout, s, r);
    AFDEP_FUZZ_EXPECT(afdep_sim_create(RANKS, AFDEP_LANE_COUNT(s->channels), bytes, &subject->sim) == AFDEP_OK);
    AFDEP_FUZZ_EXPECT(afdep_host_create(&subject->settings, rank, &subject->host) == AFDEP_OK);
    subject->host->fabric = afdep_sim_fabric(subject->sim, rank);
    take_over(subject->host->fabric);
}

/* As many as inputs name settings; kept for the life of the process, and reachable for the leak check. */
static subject_t *find_subject(afdep_fuzz_role_t role, uint8_t bits)
{
    static subject_t *subjects[256];
    if (!subjects[bits]) {
        subjects[bits] = calloc(1, sizeof(subject_t));
        AFDEP_FUZZ_EXPECT(subjects[bits]);
        make_subject(subjects[bits], role, bits);
    }
    subject_t *subject = subjects[bits];
    network = subject->sim;
    afdep_sim_reset(subject->sim);
    afdep_host_restart(subject->host);
    afdep_host_prepare_segment(subject->host, subject->host->fabric->base);
    return subject;
}

/* ---- What peers write ----------------------------------------------------------------------------------------- */

static void write_segment(run_t *run, uint64_t offset, const void *bytes, size_t count)
{
    afdep_fabric_t *f = run->host->fabric;
    AFDEP_FUZZ_EXPECT(count <= f->bytes && offset <= f->bytes - count);
    memcpy(f->base + offset, bytes, count);
}

/* A word of a source. */
static uint64_t place_of_source_word(const afdep_host_t *h, unsigned kind, int m, int *tail)
{
    int lanes = (int)(h->targets * h->combine_channels);
    *tail = kind & 1;
    return kind & 1 ? h->at_source->combine_tails + 8 * (uint64_t)(m % lanes)
                    : afdep_at_witness(h->at_source, m % (int)h->targets);
}

/* Where the n-th word of a kind stands. `tail`: its halves count, rather than name an exchange. */
static uint64_t place_of_word(const run_t *run, unsigned kind, unsigned n, int *tail)
{
    const afdep_host_t *h = run->host;
    const afdep_shape_t *s = h->shape;
    uint64_t base = h->planes[n % (unsigned)s->in_flight].base;
    int m = (int)(n / (unsigned)s->in_flight), rail = m % s->ranks_per_domain;
    const afdep_plane_layout_t *l = afdep_plane_of(h->layout, s, h->rank);
    *tail = 0;
    if (kind == 6)
        return afdep_failure_word(m % RANKS);
    if (kind == 7)
        return afdep_closing_word(m % RANKS);
    if (!h->worker && (!h->forwarder || kind == 3 || kind == 5))
        return base + place_of_source_word(h, kind == 3 ? 0 : kind, m, tail);
    if (s->protocol == AFDEP_PROTOCOL_DIRECT || (h->forwarder && kind == 0))
        return base + afdep_at_count_word(l, m % (int)h->sources);
    *tail = h->forwarder && kind <= 2;
    if (*tail)
        return base + l->finish_tails + 8 * (uint64_t)(m % (s->attention_domains * s->channels));
    if (h->forwarder && kind == 4)
        return base + (m & 1 && !h->worker ? afdep_at_rail_answer(l, rail) : afdep_at_reply_word(l, rail));
    if (kind != 5)
        return base + afdep_at_forward_word(l, rail, m / 2 % 2);
    return base + afdep_at_extents(l, h->layout, rail); /* two sources' in one word */
}

/* Operands: kind and a flag for any value, place; then the value, or what is added to what a right word would hold. */
static void write_word(run_t *run)
{
    uint8_t kind = afdep_fuzz_u8(run->input), place = afdep_fuzz_u8(run->input);
    int tail;
    uint64_t at = place_of_word(run, kind & 7, place, &tail), value;
    if (kind & 0x80) {
        value = afdep_fuzz_u64(run->input);
    } else {
        int high = afdep_fuzz_i8(run->input), low = afdep_fuzz_i8(run->input);
        memcpy(&value, run->host->fabric->base + at, sizeof(value));
        if ((kind & 7) == 5)
            value = afdep_word((uint32_t)high, (uint32_t)low);
        else if (tail)
            value = afdep_word(afdep_word_high(value) + (uint32_t)high, afdep_word_low(value) + (uint32_t)low);
        else
            value = afdep_word((uint32_t)run->host->exchange + (uint32_t)high, (uint32_t)low);
    }
    write_segment(run, at, &value, sizeof(value));
}

/* Where the n-th slot of the rows of a kind stands. */
static uint64_t place_of_row(const run_t *run, unsigned kind, unsigned n, int *reply)
{
    const afdep_host_t *h = run->host;
    const afdep_shape_t *s = h->shape;
    const afdep_plane_layout_t *l = afdep_plane_of(h->layout, s, h->rank);
    const afdep_row_format_t *f = &h->layout->row;
    uint64_t base = h->planes[n % (unsigned)s->in_flight].base, m = n / (unsigned)s->in_flight;
    uint64_t slots = (uint64_t)s->attention_domains * (uint32_t)s->channels * h->layout->slots;
    uint64_t tokens = (uint64_t)s->ranks_per_domain * (uint32_t)s->attention_domains * CAPACITY;
    *reply = !h->worker;
    if (!h->worker && (!h->forwarder || kind == 1))
        return base + l->combine_rows + m % ((uint64_t)h->targets * CAPACITY) * f->reply_stride;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT)
        return base + l->inbox + m % ((uint64_t)s->attention_ranks * CAPACITY) * f->stride;
    *reply = h->forwarder && kind == 2;
    if (*reply)
        return base + l->partials + m % tokens * f->reply_stride;
    if (h->worker && (kind == 1 || !h->forwarder))
        return base + l->domain_inbox + m % tokens * f->stride;
    return base + l->inbox + m % slots * f->stride;
}

/* Operands: kind, place, token, source and exchange of the tag; then, of a dispatched row, its experts. */
static void write_row(run_t *run)
{
    const afdep_row_format_t *f = &run->host->layout->row;
    uint8_t kind = afdep_fuzz_u8(run->input), place = afdep_fuzz_u8(run->input);
    int reply;
    uint64_t at = place_of_row(run, kind & 3, place, &reply);
    afdep_row_tag_t tag = { .token = (uint32_t)(int32_t)afdep_fuzz_i8(run->input), .mark = AFDEP_ROW_MARK };
    tag.source = (uint32_t)(int32_t)afdep_fuzz_i8(run->input);
    tag.exchange = (uint32_t)run->host->exchange + (uint32_t)(int32_t)afdep_fuzz_i8(run->input);
    write_segment(run, at + (reply ? f->reply_tag_offset : f->tag_offset), &tag, sizeof(tag));
    for (unsigned k = 0; !reply && k < TOP_K; k++) {
        int32_t id = kind & 0x80 ? (int32_t)afdep_fuzz_u32(run->input) : afdep_fuzz_i8(run->input);
        write_segment(run, at + f->ids_offset + 4 * k, &id, sizeof(id));
    }
}

/* Operands: where, how many bytes, the bytes. */
static void write_raw(run_t *run)
{
    uint8_t bytes[255];
    uint32_t at = afdep_fuzz_u32(run->input);
    size_t count = afdep_fuzz_u8(run->input);
    (void)afdep_fuzz_take(run->input, bytes, count);
    write_segment(run, at % (run->host->fabric->bytes - count), bytes, count);
}

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

static unsigned slot_of(const run_t *run, uint64_t exchange)
{
    return (unsigned)(exchange % (uint64_t)run->host->shape->in_flight);
}

static void free_tensors(run_t *run, unsigned slot)
{
    for (int i = 0; i < TENSORS; i++) {
        free(run->tensors[slot][i]);
        run->tensors[slot][i] = NULL;
    }
}

static void *take_tensor(run_t *run, unsigned slot, int which, int64_t count, size_t bytes)
{
    void *tensor = calloc((size_t)count + (count == 0), bytes); /* one of nothing is no tensor */
    AFDEP_FUZZ_EXPECT(tensor);
    free(run->tensors[slot][which]);
    return run->tensors[slot][which] = tensor;
}

static void give_room(run_t *run, afdep_receive_t *r, int64_t rows)
{
    const afdep_shape_t *s = run->host->shape;
    unsigned slot = (unsigned)(r - run->receives);
    r->rows = take_tensor(run, slot, 0, rows, s->fp8 ? HIDDEN : 2 * HIDDEN);
    r->row_scale = s->fp8 ? take_tensor(run, slot, 1, rows, HIDDEN / 128 * sizeof(float)) : NULL;
    r->row_weight = take_tensor(run, slot, 2, rows, sizeof(float));
    r->row_source = take_tensor(run, slot, 3, rows, 2 * sizeof(int32_t));
    r->ends = take_tensor(run, slot, 4, s->experts_per_rank, sizeof(int32_t));
    r->rows_capacity = rows;
}

static afdep_status_t allocate(void *context, int64_t rows, struct afdep_receive *r)
{
    run_t *run = context;
    AFDEP_FUZZ_EXPECT(rows >= 0 && rows <= afdep_receive_rows(run->host->shape, r->bucket));
    give_room(run, r, rows);
    return AFDEP_OK;
}

/* `how`: bits 0..3 the bucket, 4: tensors of the size that came, 5: fewer rows than may come, 6: without row_source. */
static afdep_status_t begin_receive(run_t *run, uint8_t how)
{
    afdep_host_t *h = run->host;
    int again = h->receive_stage != AFDEP_RECEIVE_IDLE; /* there was no room: the same call once more */
    afdep_receive_t *r = &run->receives[slot_of(run, again ? h->started : h->started + 1)];
    int32_t bucket = again ? r->bucket : 1 + (how & 15) % CAPACITY;
    if (!again && h->started - h->finished >= (uint64_t)h->shape->in_flight)
        return AFDEP_ERR_ORDER;
    *r = (afdep_receive_t)AFDEP_RECEIVE_INIT;
    r->bucket = bucket;
    r->read_host_counts = (how & 48) != 0;
    give_room(run, r, how & 32 ? 1 : afdep_receive_rows(h->shape, bucket));
    if (how & 16) {
        r->allocate = allocate;
        r->allocate_context = run;
    }
    if (how & 64)
        r->row_source = NULL;
    return afdep_host_begin_receive(h, r, NULL);
}

static afdep_status_t begin_reply(run_t *run)
{
    afdep_host_t *h = run->host;
    const afdep_receive_t *r = &run->receives[slot_of(run, h->finished + 1)];
    run->reply = (afdep_reply_t)AFDEP_REPLY_INIT;
    run->reply.receipt = r->receipt;
    free(run->rows);
    run->rows = NULL;
    if (h->finished < h->started && r->row_count > 0)
        AFDEP_FUZZ_EXPECT((run->rows = calloc((size_t)r->row_count, 2 * HIDDEN)));
    run->reply.rows = run->rows;
    return afdep_host_begin_reply(h, &run->reply, NULL);
}

/* `how`: the number of tokens. Their experts follow in the input. */
static afdep_status_t begin_dispatch(run_t *run, uint8_t how)
{
    const afdep_shape_t *s = run->host->shape;
    int32_t tokens = (how & 15) % (CAPACITY + 1);
    afdep_dispatch_t *d = &run->dispatch;
    *d = (afdep_dispatch_t)AFDEP_DISPATCH_INIT;
    d->tokens = tokens;
    d->bucket = how & 16 ? CAPACITY : tokens + (tokens == 0);
    d->x = take_tensor(run, 0, 0, tokens, s->fp8 ? HIDDEN : 2 * HIDDEN);
    d->x_scale = s->fp8 ? take_tensor(run, 0, 1, tokens, HIDDEN / 128 * sizeof(float)) : NULL;
    int32_t *ids = take_tensor(run, 0, 2, tokens, TOP_K * sizeof(int32_t));
    for (int i = 0; i < tokens * TOP_K; i++)
        ids[i] = how & 32 ? i % s->num_experts : afdep_fuzz_i8(run->input);
    d->ids = ids;
    d->weights = take_tensor(run, 0, 3, tokens, TOP_K * sizeof(float));
    return afdep_host_begin_dispatch(run->host, d, NULL);
}

static afdep_status_t begin_collect(run_t *run, uint8_t how)
{
    afdep_host_t *h = run->host;
    run->collect = (afdep_collect_t)AFDEP_COLLECT_INIT;
    run->collect.view = how & 1;
    free(run->rows);
    run->rows = calloc((size_t)afdep_host_plane(h, h->finished + 1)->tokens + 1, 2 * HIDDEN);
    AFDEP_FUZZ_EXPECT(run->rows);
    run->collect.out = run->rows;
    return afdep_host_begin_collect(h, &run->collect, NULL);
}

/* A status that callers know, and a sentence where it is an error. */
static void expect_status(afdep_status_t status)
{
    AFDEP_FUZZ_EXPECT(status <= AFDEP_OK && afdep_status_string(status)[0] == 'A');
    AFDEP_FUZZ_EXPECT(status == AFDEP_OK || afdep_last_error()[0]);
}

/* Operand: `how`, bit 7 asks for a second half, where there is one to make. */
static void begin_call(run_t *run)
{
    afdep_host_t *h = run->host;
    uint8_t how = afdep_fuzz_u8(run->input);
    int second = how & 0x80 && h->finished < h->started && h->receive_stage == AFDEP_RECEIVE_IDLE;
    afdep_status_t status;
    if (run->under_way)
        return;
    if (h->worker)
        status = second ? begin_reply(run) : begin_receive(run, how);
    else
        status = second ? begin_collect(run, how) : begin_dispatch(run, how);
    expect_status(status);
    run->under_way = status == AFDEP_OK;
}

static void step(run_t *run, int actor)
{
    afdep_status_t result = AFDEP_OK;
    if (!run->under_way)
        return;
    afdep_status_t status = afdep_host_step(run->host, actor, &result);
    AFDEP_FUZZ_EXPECT(status == AFDEP_OK || status == AFDEP_AGAIN || status == AFDEP_DONE);
    if (status != AFDEP_DONE)
        return;
    expect_status(result);
    run->under_way = 0;
}

/* Steps all actors in turn until the call ends or nobody moves. */
static void sweep(run_t *run)
{
    for (int rounds = 0; rounds < 16; rounds++)
        for (int actor = run->host->actor_count - 1; actor >= 0 && run->under_way; actor--)
            step(run, actor < run->host->actor_count ? actor : 0);
}

/* The executor itself: whoever waits for what nobody will write gets there by its deadline. */
static void run_to_end(run_t *run)
{
    if (!run->under_way)
        return;
    expect_status(afdep_host_run(run->host));
    run->under_way = 0;
}

/* ---- The run -------------------------------------------------------------------------------------------------- */

static void operate(run_t *run)
{
    switch (afdep_fuzz_u8(run->input) & 7) {
    case 0:
        step(run, run->host->actor_count ? afdep_fuzz_u8(run->input) % run->host->actor_count : 0);
        break;
    case 1:
        write_word(run);
        break;
    case 2:
        write_row(run);
        break;
    case 3:
        write_raw(run);
        break;
    case 4:
        begin_call(run);
        break;
    case 5:
        expect_status(afdep_host_look(run->host));
        break;
    case 6:
        run_to_end(run);
        break;
    default:
        sweep(run);
    }
}

int afdep_fuzz_rank(afdep_fuzz_role_t role, const uint8_t *data, size_t size)
{
    afdep_fuzz_input_t input = { data, size };
    run_t run = { .input = &input };
    uint8_t bits = afdep_fuzz_u8(&input);
    pressure = afdep_fuzz_u8(&input);
    run.subject = find_subject(role, bits);
    run.host = run.subject->host;
    afdep_fp_state_t fp = afdep_fp_enter();
    begin_call(&run);
    while (input.left > 0)
        operate(&run);
    sweep(&run);
    run_to_end(&run);
    afdep_fp_leave(fp);
    for (unsigned slot = 0; slot < 4; slot++)
        free_tensors(&run, slot);
    free(run.rows);
    return 0;
}
