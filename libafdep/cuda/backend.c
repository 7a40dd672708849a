/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a rank of the CUDA backend, and its place in the table of backends. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/agreement.h"
#include "core/env.h"
#include "core/error.h"
#include "core/group.h"
#include "cuda/cuda.h"
#include "protocol/layout.h"
#include "protocol/word.h"

#define ARENA_ALIGN 256u
#define DEFAULT_SHARE 24 /* SMs that communicate, of as many, where nobody asks for another number */
#define DEFAULT_SHARE_OF 132

/* ---- Device memory besides the segment ------------------------------------------------------------------------ */

static uint64_t carve(uint64_t *at, uint64_t count, uint64_t bytes)
{
    uint64_t start = *at;
    *at = (start + count * bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return start;
}

typedef struct arena {
    uint64_t state, segments, counters, load_before, load_more, live_ids, positions, ends, served, partials, partial_words,
        partial_lines, bytes;
    uint64_t position_count, partial_count, line_words;
    int32_t load_experts, load_sources;
} arena_t;

static arena_t arena_of(const afdep_shape_t *s, int ffn)
{
    arena_t a;
    memset(&a, 0, sizeof(a));
    int across = afdep_cuda_across(s);
    uint64_t planes = (uint64_t)s->in_flight, capacity = (uint64_t)s->capacity, k = (uint64_t)s->top_k;
    a.state = carve(&a.bytes, 1, sizeof(afdep_cuda_state_t));
    a.segments = carve(&a.bytes, (uint64_t)s->ranks, sizeof(void *));
    a.counters = carve(&a.bytes, (uint64_t)s->ranks, sizeof(afdep_cuda_counter_t));
    a.load_experts = ffn ? s->experts_per_rank : s->num_experts;
    a.load_sources = ffn ? s->attention_ranks : 1;
    uint64_t loads = AFDEP_CUDA_LOADS * ((uint64_t)a.load_experts + (uint64_t)a.load_sources);
    a.load_before = carve(&a.bytes, loads, sizeof(uint64_t));
    a.load_more = carve(&a.bytes, loads, sizeof(uint32_t));
    if (ffn) {
        a.position_count = planes * (uint64_t)s->attention_ranks * capacity * k;
        a.positions = carve(&a.bytes, a.position_count, sizeof(uint64_t));
        a.ends = carve(&a.bytes, planes * (uint64_t)s->experts_per_rank, sizeof(int32_t));
    } else {
        a.live_ids = carve(&a.bytes, planes * capacity * k, sizeof(int32_t));
    }
    if (across)
        return a; /* the rest is in rail_open.c */
    if (ffn) {
        a.served = carve(&a.bytes, planes * (uint64_t)s->attention_ranks, sizeof(uint32_t));
        a.partials = carve(&a.bytes, (uint64_t)s->attention_ranks * capacity, 2u * (uint64_t)s->hidden);
        a.partial_count = (uint64_t)s->attention_ranks * capacity * (uint64_t)afdep_pieces(s, AFDEP_PART);
        a.partial_words = carve(&a.bytes, a.partial_count, sizeof(uint32_t));
        a.line_words = (uint64_t)s->attention_ranks * (uint64_t)afdep_few_tokens(s) *
                       (uint64_t)afdep_lines(afdep_reply_vectors(s)) * (AFDEP_LINE_BYTES / sizeof(uint32_t));
        a.partial_lines = carve(&a.bytes, a.line_words, sizeof(uint32_t));
    }
    return a;
}

static uint64_t segment_bytes(const afdep_settings_t *settings, int ffn)
{
    afdep_device_layout_t layout;
    if (afdep_cuda_across(&settings->shape))
        return afdep_rail_segment_bytes(settings, ffn);
    return afdep_device_layout_init(&layout, &settings->shape, ffn) ? UINT64_MAX : layout.bytes;
}

static uint64_t private_bytes(const afdep_settings_t *settings, int ffn)
{
    uint64_t rail = afdep_cuda_across(&settings->shape) ? afdep_rail_private_bytes(settings, ffn) : 0;
    return rail + arena_of(&settings->shape, ffn).bytes + sizeof(afdep_cuda_t) + sizeof(afdep_cuda_record_t);
}

static afdep_status_t open_arena(afdep_cuda_t *c)
{
    arena_t a = arena_of(c->shape, c->ffn);
    afdep_status_t status = afdep_cuda_check(cudaMalloc((void **)&c->arena, a.bytes), AFDEP_ERR_MEMORY,
                                             "no device memory for the CUDA backend's bookkeeping");
    if (status != AFDEP_OK)
        return status;
    afdep_cuda_rank_t *p = &c->params;
    p->state = (afdep_cuda_state_t *)(void *)(c->arena + a.state);
    p->segments = (unsigned char *const *)(void *)(c->arena + a.segments);
    p->counters = (afdep_cuda_counter_t *)(void *)(c->arena + a.counters);
    p->load = (afdep_cuda_load_t){ (uint64_t *)(void *)(c->arena + a.load_before),
                                   (uint32_t *)(void *)(c->arena + a.load_more), a.load_experts, a.load_sources };
    p->live_ids = (int32_t *)(void *)(c->arena + a.live_ids);
    p->positions = (uint64_t *)(void *)(c->arena + a.positions);
    p->ends = (int32_t *)(void *)(c->arena + a.ends);
    p->served = (uint32_t *)(void *)(c->arena + a.served);
    p->partials = c->arena + a.partials;
    p->partial_words = (uint32_t *)(void *)(c->arena + a.partial_words);
    p->partial_lines = c->arena + a.partial_lines;
    afdep_cuda_state_t first;
    memset(&first, 0, sizeof(first));
    for (int call = 0; call < AFDEP_CUDA_CALLS; call++)
        first.count[call] = c->opened_at;
    first.bad_route = AFDEP_CUDA_NO_ROUTE;
    /* A position that no exchange has written yet holds the number of one that is over. */
    cudaError_t error = cudaMemset(c->arena, 0, a.bytes);
    if (error == cudaSuccess && a.partial_count)
        error = afdep_cuda_fill32(p->partial_words, a.partial_count, (uint32_t)c->opened_at, 0);
    if (error == cudaSuccess && a.line_words)
        error = afdep_cuda_fill32((uint32_t *)(void *)p->partial_lines, a.line_words, (uint32_t)c->opened_at, 0);
    if (error == cudaSuccess)
        error = cudaMemcpy(p->state, &first, sizeof(first), cudaMemcpyHostToDevice);
    if (error == cudaSuccess && c->ffn)
        error = afdep_cuda_fill64(p->positions, a.position_count, afdep_word((uint32_t)c->opened_at, 0), 0);
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&c->record, sizeof(*c->record), cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) {
        memset(c->record, 0, sizeof(*c->record));
        error = cudaHostGetDevicePointer((void **)&p->record, c->record, 0);
    }
    if (error == cudaSuccess && c->ffn)
        error = cudaHostAlloc((void **)&c->host_ends, (size_t)c->shape->experts_per_rank * sizeof(int32_t), 0);
    return afdep_cuda_check(error, AFDEP_ERR_MEMORY, "the CUDA backend's bookkeeping");
}

/* Words of a fresh segment: as the exchange before the first left them. */
static afdep_status_t prepare_segment(void *context, void *base, cudaStream_t stream)
{
    afdep_cuda_t *c = context;
    const afdep_shape_t *s = c->shape;
    if (afdep_cuda_across(s))
        return afdep_rail_prepare_segment(c->settings, c->ffn, base, stream);
    const afdep_device_layout_t *l = &c->params.own;
    uint64_t tagged = afdep_word((uint32_t)c->opened_at, 0);
    cudaError_t error = cudaSuccess;
    for (int g = 0; error == cudaSuccess && g < s->in_flight; g++) {
        unsigned char *plane = (unsigned char *)base + l->control_bytes + (uint64_t)g * l->plane_bytes;
        uint64_t tokens = (uint64_t)s->capacity * l->pieces, few = (uint64_t)afdep_few_tokens(s) * (AFDEP_LINE_BYTES / 4);
        if (c->ffn) {
            error = afdep_cuda_fill64((uint64_t *)(void *)(plane + l->route_words),
                                      (uint64_t)s->attention_ranks * (uint64_t)s->capacity * (uint64_t)s->top_k, tagged,
                                      stream);
            if (error == cudaSuccess)
                error = afdep_cuda_fill32((uint32_t *)(void *)(plane + l->row_words),
                                          (uint64_t)s->attention_ranks * tokens, (uint32_t)c->opened_at, stream);
            if (error == cudaSuccess)
                error = afdep_cuda_fill32((uint32_t *)(void *)(plane + l->row_lines),
                                          (uint64_t)s->attention_ranks * few * (uint64_t)afdep_row_lines(s),
                                          (uint32_t)c->opened_at, stream);
            continue;
        }
        error = afdep_cuda_fill64((uint64_t *)(void *)(plane + l->answers), (uint64_t)s->ffn_ranks, tagged, stream);
        if (error == cudaSuccess)
            error = afdep_cuda_fill32((uint32_t *)(void *)(plane + l->combine_words), (uint64_t)s->ffn_ranks * tokens,
                                      (uint32_t)c->opened_at, stream);
        if (error == cudaSuccess)
            error = afdep_cuda_fill32((uint32_t *)(void *)(plane + l->combine_lines),
                                      (uint64_t)s->ffn_ranks * few * (uint64_t)afdep_lines(afdep_reply_vectors(s)),
                                      (uint32_t)c->opened_at, stream);
    }
    return afdep_cuda_check(error, AFDEP_ERR_SYSTEM, "the words of the segment");
}

/* ---- Kernels that wait for each other must run at once ---------------------------------------------------------- */

/*
 * Shares this device's SMs evenly among the ranks on it. A CTA of up to 1,024 threads is counted as a whole SM, whatever
 * else would fit beside it. Of a rank that is not alone two kernels count, as the next one may have started (device.cuh)
 * while another rank's first one wants to run; of one that is alone the running one is resident whole by then.
 */
static afdep_status_t share_device(afdep_cuda_t *c)
{
    const afdep_shape_t *s = c->shape;
    int sms = 0, threads = 0, ranks = 0;
    if (afdep_cuda_across(s))
        return afdep_rail_share(c->settings, c->fabric, c->device, &c->grids);
    cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, c->device);
    if (error == cudaSuccess)
        error = afdep_cuda_prepare_dispatch(s, &threads);
    if (error == cudaSuccess)
        error = afdep_cuda_prepare_receive(s, &threads);
    if (error == cudaSuccess)
        error = afdep_cuda_prepare_reply(s, &threads);
    if (error == cudaSuccess)
        error = afdep_cuda_prepare_collect(s, &threads);
    afdep_status_t status = afdep_cuda_check(error, AFDEP_ERR_UNSUPPORTED, "the CUDA backend's kernels do not load");
    if (status != AFDEP_OK)
        return status;
    for (int r = 0; r < s->ranks; r++)
        ranks += c->fabric->same_device[r];
    int share = ranks == 1 ? sms : sms / (2 * ranks);
    if (share < 2) /* one CTA of a reply sends what another one sums */
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "%d ranks on one GPU: it has %d SMs, and every rank needs two for each of two "
                          "kernels at once", ranks, sms);
    int wanted = c->settings->default_sms ? (sms * DEFAULT_SHARE + DEFAULT_SHARE_OF / 2) / DEFAULT_SHARE_OF : s->num_sms;
    c->grids.local = share;
    c->grids.communicating = share < wanted ? share : wanted < 1 ? 1 : wanted;
    return AFDEP_OK;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static afdep_status_t check_supported(const afdep_settings_t *settings)
{
    const afdep_shape_t *s = &settings->shape;
    if (s->experts_per_rank > 2048)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "num_experts is %d: the CUDA backend counts at most 2048 of one FFN rank",
                          s->num_experts);
    if ((int64_t)s->attention_ranks * s->capacity > INT32_MAX / s->top_k)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "capacity is %d: the CUDA backend counts choices in 31 bits", s->capacity);
    return afdep_cuda_across(s) ? afdep_rail_check(settings) : AFDEP_OK;
}

static afdep_status_t set_identity(afdep_cuda_t *c, const afdep_settings_t *settings, int rank)
{
    const afdep_shape_t *s = &settings->shape;
    c->settings = settings;
    c->shape = s;
    c->rank = rank;
    c->ffn = afdep_is_ffn(s, rank);
    c->opened_at = c->started = c->finished = settings->first_exchange;
    afdep_cuda_rank_t *p = &c->params;
    p->shape = *s;
    p->rank = rank;
    p->role_index = c->ffn ? rank : rank - s->ffn_ranks;
    p->timeout_ns = (uint64_t)settings->timeout_ms * 1000000u;
    const char *trap = afdep_env("AFDEP_CUDA_TRAP");
    p->trap = trap && strcmp(trap, "1") == 0;
    if (afdep_device_layout_init(&p->own, s, c->ffn) || afdep_device_layout_init(&p->peer, s, !c->ffn))
        return afdep_fail(AFDEP_ERR_CONFIG, "capacity is %d: the segment would exceed 63 bits", s->capacity);
    return AFDEP_OK;
}

static void destroy(afdep_cuda_t *c)
{
    if (!c)
        return;
    if (c->host_ends)
        (void)cudaFreeHost(c->host_ends);
    if (c->record)
        (void)cudaFreeHost(c->record);
    afdep_rail_close(&c->rail);
    if (c->arena)
        (void)cudaFree(c->arena);
    free(c->counters);
    free(c);
}

static afdep_status_t make(const afdep_settings_t *settings, int rank, const afdep_device_provider_t *provider,
                           afdep_cuda_t **out)
{
    afdep_status_t status = check_supported(settings);
    if (status == AFDEP_OK)
        status = provider->available();
    if (status != AFDEP_OK)
        return status;
    afdep_cuda_t *c = calloc(1, sizeof(*c));
    *out = c;
    if (!c || !(c->counters = calloc((size_t)settings->shape.ranks, sizeof(*c->counters))))
        return afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for the CUDA backend", rank);
    status = afdep_cuda_check(cudaGetDevice(&c->device), AFDEP_ERR_UNSUPPORTED, "no GPU can be used");
    if (status == AFDEP_OK)
        status = set_identity(c, settings, rank);
    if (status == AFDEP_OK)
        status = open_arena(c);
    if (status == AFDEP_OK && afdep_cuda_across(c->shape))
        status = afdep_rail_open_arena(&c->rail, settings, c->ffn);
    return status;
}

static afdep_status_t cuda_open(const afdep_settings_t *settings, const afdep_group_t *group,
                                const afdep_fabric_provider_t *fabric, void **state)
{
    const afdep_device_provider_t *provider = (const afdep_device_provider_t *)fabric;
    afdep_cuda_t *c = NULL;
    afdep_status_t status = make(settings, group->rank, provider, &c);
    status = afdep_agree_status(group, status, "make its bookkeeping");
    if (status != AFDEP_OK) {
        destroy(c);
        return status;
    }
    afdep_device_fabric_args_t args = { .group = group,
                                        .device = c->device,
                                        .timeout_ms = settings->timeout_ms,
                                        .bytes = segment_bytes(settings, c->ffn),
                                        .ranks_per_domain = settings->shape.ranks_per_domain,
                                        .gin = { .num_qps = settings->gin.num_qps,
                                                 .type = settings->gin.type,
                                                 .traffic_class = settings->gin.traffic_class,
                                                 .signals = afdep_rail_signals(settings) },
                                        .prepare = prepare_segment,
                                        .prepare_context = c };
    status = provider->open(&args, &c->fabric);
    if (status != AFDEP_OK) {
        destroy(c);
        return status;
    }
    c->params.base = c->fabric->base;
    c->params.gin = c->fabric->gin.device;
    for (int r = 0; r < settings->shape.ranks && r < AFDEP_CUDA_NEAR; r++)
        c->params.near[r] = c->fabric->segments[r];
    status = share_device(c);
    if (afdep_cuda_across(c->shape))
        afdep_rail_connect(&c->rail, settings, &c->params, c->fabric, &c->grids);
    if (status == AFDEP_OK)
        status = afdep_cuda_check(cudaMemcpy((void *)(uintptr_t)c->params.segments, c->fabric->segments,
                                             (size_t)settings->shape.ranks * sizeof(void *), cudaMemcpyHostToDevice),
                                  AFDEP_ERR_SYSTEM, "the peers' segments");
    /* Nobody starts before everybody's kernels are loaded: loading waits for running kernels. */
    status = afdep_agree_status(group, status, "load its kernels");
    if (status != AFDEP_OK) {
        c->fabric->close(c->fabric, 0);
        destroy(c);
        return status;
    }
    *state = c;
    return AFDEP_OK;
}

/* ---- Closing ----------------------------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* A rank says its farewell once its kernels are over, so that the last of them means that nobody writes any more: over GIN the
   farewell follows the last done witness on the same context. */
afdep_status_t afdep_cuda_part(afdep_cuda_t *c)
{
    const afdep_shape_t *s = c->shape;
    uint64_t *words = calloc((size_t)s->ranks, 2 * sizeof(*words)), deadline = now_ms() + (uint64_t)c->settings->timeout_ms;
    afdep_status_t status = words ? AFDEP_OK : afdep_fail(AFDEP_ERR_MEMORY, "buffer_close: no memory");
    if (status == AFDEP_OK)
        status = c->fabric->tell(c->fabric, afdep_closing_word(c->rank), 1);
    for (int peer = 0; status == AFDEP_OK && peer < s->ranks;) {
        status = c->fabric->read_words(c->fabric, afdep_closing_word(0), words, 2 * s->ranks);
        while (peer < s->ranks && (peer == c->rank || !c->fabric->reached[peer] || words[2 * peer]))
            peer++;
        if (status != AFDEP_OK || peer == s->ranks)
            break;
        if (words[2 * peer + 1] != 0)
            status = afdep_fail(AFDEP_ERR_PEER, "rank %d gave up with %s", peer,
                                afdep_status_string((afdep_status_t)-(int)afdep_word_high(words[2 * peer + 1])));
        else if (!c->fabric->alive(c->fabric, peer))
            status = afdep_fail(AFDEP_ERR_PEER, "rank %d is dead: rank %d in buffer_close waited for its closing word", peer,
                                c->rank);
        else if (now_ms() > deadline)
            status = afdep_fail(AFDEP_ERR_TIMEOUT, "nothing came in %d ms though all ranks live: rank %d in buffer_close "
                                "waited for the closing word of rank %d", c->settings->timeout_ms, c->rank, peer);
        struct timespec pause = { 0, 200000 };
        nanosleep(&pause, NULL);
    }
    free(words);
    return status;
}

afdep_status_t afdep_cuda_give_up(afdep_cuda_t *c, afdep_status_t status, int culprit)
{
    (void)afdep_cuda_poison(c, status);
    (void)c->fabric->tell(c->fabric, afdep_failure_word(c->rank), afdep_word((uint32_t)-status, (uint32_t)(culprit + 1)));
    return afdep_fail(status, "%s", c->poison_why);
}

static afdep_status_t cuda_close(void *state)
{
    afdep_cuda_t *c = state;
    afdep_status_t status = AFDEP_OK, found = AFDEP_OK;
    if (c->started != c->finished || c->counting)
        status = afdep_cuda_give_up(c, afdep_fail(AFDEP_ERR_ORDER, "buffer_close: rank %d has exchange %llu unfinished",
                                                  c->rank, (unsigned long long)c->finished + 1), c->rank);
    cudaError_t error = cudaDeviceSynchronize(); /* also kernels of graphs, of which only the device knows */
    if (status == AFDEP_OK && error != cudaSuccess)
        status = afdep_cuda_poison(c, afdep_cuda_check(error, AFDEP_ERR_TRANSPORT, "buffer_close: waiting for kernels"));
    if (status == AFDEP_OK)
        found = afdep_cuda_look(c);
    if (status == AFDEP_OK && found == AFDEP_OK)
        status = afdep_cuda_part(c);
    c->fabric->close(c->fabric, status == AFDEP_OK && found == AFDEP_OK);
    destroy(c);
    return status;
}

/* ---- What a buffer says of itself ----------------------------------------------------------------------------------- */

static afdep_status_t cuda_error(void *state)
{
    afdep_status_t status = afdep_cuda_look(state);
    return status == AFDEP_OK ? afdep_cuda_look_route(state) : status;
}

static uint64_t cuda_exchanges(const void *state)
{
    const afdep_cuda_t *c = state;
    uint64_t count = 0;
    const uint64_t *at = &c->params.state->count[c->ffn ? AFDEP_CUDA_RECEIVE : AFDEP_CUDA_DISPATCH];
    if (cudaMemcpyAsync(&count, at, sizeof(count), cudaMemcpyDefault, c->fabric->stream) != cudaSuccess ||
        cudaStreamSynchronize(c->fabric->stream) != cudaSuccess)
        return c->started - c->opened_at;
    return count - c->opened_at;
}

/* As the kernels that are over have counted. A readiness word is part of its row. */
static const afdep_peer_counters_t *cuda_counters(const void *state)
{
    const afdep_cuda_t *c = state;
    const afdep_shape_t *s = c->shape;
    size_t ranks = (size_t)s->ranks;
    if (afdep_cuda_across(s)) {
        afdep_rail_read_counters(&c->rail, c->fabric->stream, c->counters);
        return c->counters;
    }
    afdep_cuda_counter_t *read = calloc(ranks, sizeof(*read));
    if (read && cudaMemcpyAsync(read, c->params.counters, ranks * sizeof(*read), cudaMemcpyDefault, c->fabric->stream) ==
                    cudaSuccess &&
        cudaStreamSynchronize(c->fabric->stream) == cudaSuccess) {
        uint64_t row = c->ffn ? 2u * (uint64_t)s->hidden + 4u
                              : c->settings->layout.row.payload_bytes + c->settings->layout.row.scale_bytes + 4u +
                                    8u * (uint64_t)s->top_k;
        for (int r = 0; r < s->ranks; r++) {
            afdep_peer_counters_t *to = &c->counters[r];
            to->puts = read[r].rows;
            to->put_bytes = read[r].rows * row;
            to->signals[c->ffn ? AFDEP_SIGNAL_WITNESS : AFDEP_SIGNAL_COUNT_WORD] = read[r].signals;
        }
    }
    free(read);
    return c->counters;
}

static void cuda_gin(const void *state, afdep_buffer_info_t *info)
{
    const afdep_rail_gin_t *g = &((const afdep_cuda_t *)state)->fabric->gin;
    if (!g->host)
        return;
    info->gin_contexts = g->contexts;
    info->gin_type = g->found_type;
    info->gin_traffic_class = g->traffic_class;
    info->gin_loopback = g->loopback;
    info->gin_why = g->why;
}

const afdep_backend_t afdep_backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .dispatch = afdep_cuda_dispatch,
    .receive = afdep_cuda_receive,
    .reply = afdep_cuda_reply,
    .collect = afdep_cuda_collect,
    .complete = afdep_cuda_complete,
    .load = afdep_cuda_read_load,
    .error = cuda_error,
    .exchanges = cuda_exchanges,
    .counters = cuda_counters,
    .gin = cuda_gin,
    .segment_bytes = segment_bytes,
    .private_bytes = private_bytes,
};
