/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a rank of the low-latency API on a GPU. */
#include <stdlib.h>
#include <string.h>

#include "core/agreement.h"
#include "core/backend.h"
#include "core/env.h"
#include "core/error.h"
#include "cuda/ll_rank.h"
#include "protocol/layout.h"

#define ARENA_ALIGN 256u
/* CTAs that send rows of many tokens, with as many SMs left to sum: in two rounds at 128 tokens of hidden 7168.
   With fewer, rounds are what takes the time. */
#define SENDERS 64

/* ---- Device memory besides the segment --------------------------------------------------------------------------- */

typedef struct carver {
    unsigned char *base; /* NULL: only measures */
    uint64_t at;
} carver_t;

static void *carve(carver_t *c, uint64_t count, uint64_t bytes)
{
    uint64_t start = c->at;
    c->at = (start + count * bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return c->base ? c->base + start : NULL;
}

static void carve_all(afdep_ll_cuda_t *b, carver_t *c, const afdep_ll_shape_t *s)
{
    uint64_t ranks = (uint64_t)s->ranks, tokens = (uint64_t)s->max_tokens, choices = tokens * (uint64_t)s->top_k;
    uint64_t row = 2 * (uint64_t)s->hidden;
    afdep_ll_device_t *d = &b->params;
    d->c.state = carve(c, 1, sizeof(*d->c.state));
    d->c.segments = carve(c, ranks, sizeof(void *));
    d->numbers = carve(c, 1, sizeof(*d->numbers));
    d->counters = carve(c, ranks, sizeof(*d->counters));
    d->live_ids = carve(c, AFDEP_LL_PLANES * choices, sizeof(*d->live_ids));
    d->positions = carve(c, AFDEP_LL_PLANES * ranks * choices, sizeof(*d->positions));
    d->tokens = carve(c, AFDEP_LL_PLANES * ranks, sizeof(*d->tokens));
    for (int g = 0; g < AFDEP_LL_PLANES; g++) {
        b->planes[g].result = carve(c, tokens, row);
        b->planes[g].combine_buffer = carve(c, (uint64_t)s->experts * tokens, row); /* L * R * M */
    }
}

static uint64_t arena_bytes(const afdep_ll_shape_t *s)
{
    afdep_ll_cuda_t unused;
    carver_t measure = { NULL, 0 };
    carve_all(&unused, &measure, s);
    return measure.at;
}

static uint64_t private_bytes(const afdep_ll_settings_t *settings)
{
    return arena_bytes(&settings->shape) + sizeof(afdep_ll_cuda_t) + sizeof(afdep_cuda_record_t);
}

static uint64_t segment_bytes(const afdep_ll_settings_t *settings)
{
    afdep_ll_device_layout_t layout;
    return afdep_ll_device_layout_init(&layout, &settings->shape) ? UINT64_MAX : layout.bytes;
}

static afdep_status_t open_arena(afdep_ll_cuda_t *b)
{
    afdep_cuda_t *c = &b->c;
    afdep_ll_device_t *d = &b->params;
    carver_t cut = { NULL, 0 };
    afdep_cuda_state_t state = { .bad_route = AFDEP_CUDA_NO_ROUTE };
    afdep_ll_numbers_t numbers = { c->opened_at, c->opened_at };
    cudaError_t error = cudaMalloc((void **)&c->arena, arena_bytes(&b->settings.shape));
    if (error != cudaSuccess)
        return afdep_cuda_check(error, AFDEP_ERR_MEMORY, "no device memory for a low-latency buffer");
    cut.base = c->arena;
    carve_all(b, &cut, &b->settings.shape);
    /* Not what callers write to: the combine buffers and the results. */
    error = cudaMemset(c->arena, 0, (size_t)((unsigned char *)b->planes[0].result - c->arena));
    if (error == cudaSuccess)
        error = cudaMemcpy(d->c.state, &state, sizeof(state), cudaMemcpyHostToDevice);
    if (error == cudaSuccess)
        error = cudaMemcpy(d->numbers, &numbers, sizeof(numbers), cudaMemcpyHostToDevice);
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&c->record, sizeof(*c->record), cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) {
        memset(c->record, 0, sizeof(*c->record));
        error = cudaHostGetDevicePointer((void **)&d->c.record, c->record, 0);
    }
    return afdep_cuda_check(error, AFDEP_ERR_MEMORY, "a low-latency buffer's bookkeeping");
}

static afdep_status_t open_streams(afdep_ll_cuda_t *b)
{
    cudaError_t error = cudaStreamCreateWithFlags(&b->own_stream, cudaStreamNonBlocking);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&b->order, cudaEventDisableTiming);
    for (int i = 0; error == cudaSuccess && i < 2 * AFDEP_LL_PLANES; i++)
        error = cudaEventCreateWithFlags(&b->planes[i / 2].event[i % 2], cudaEventDisableTiming);
    return afdep_cuda_check(error, AFDEP_ERR_SYSTEM, "a low-latency buffer's stream and events");
}

/* Words of a fresh segment hold the number of an exchange that is over. */
static afdep_status_t prepare_segment(void *context, void *base, cudaStream_t stream)
{
    const afdep_ll_cuda_t *b = context;
    const afdep_ll_device_layout_t *l = &b->params.l;
    cudaError_t error = cudaSuccess;
    for (int g = 0; error == cudaSuccess && g < AFDEP_LL_PLANES; g++) {
        unsigned char *plane = (unsigned char *)base + l->control_bytes + (uint64_t)g * l->plane_bytes;
        error =
            afdep_cuda_fill32((uint32_t *)(void *)plane, l->rows / sizeof(uint32_t), (uint32_t)b->c.opened_at, stream);
    }
    return afdep_cuda_check(error, AFDEP_ERR_SYSTEM, "the words of the segment");
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static afdep_status_t check_supported(const afdep_ll_settings_t *settings)
{
    const afdep_ll_shape_t *s = &settings->shape;
    if (afdep_ll_staged_bytes(s->hidden) > AFDEP_LL_STAGED_BYTES)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "hidden is %d: the CUDA backend encodes rows of at most %d bytes",
                          s->hidden, AFDEP_LL_STAGED_BYTES);
    if (afdep_ll_chosen_bytes(s->ranks, s->max_tokens, s->experts / s->ranks) > AFDEP_LL_CHOSEN_BYTES)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED,
                          "num_max_dispatch_tokens_per_rank is %d with %d experts: the CUDA backend notes "
                          "at most %d bits of choices",
                          s->max_tokens, s->experts, 8 * AFDEP_LL_CHOSEN_BYTES);
    return AFDEP_OK;
}

/* What of a role API's rank the shared parts look at. */
static afdep_status_t set_identity(afdep_ll_cuda_t *b, const afdep_ll_settings_t *settings, int rank)
{
    afdep_cuda_t *c = &b->c;
    afdep_ll_device_t *d = &b->params;
    afdep_shape_t *s = &b->host_settings.shape;
    b->settings = *settings;
    s->ranks = settings->shape.ranks;
    s->num_experts = settings->shape.experts;
    s->in_flight = AFDEP_LL_PLANES;
    b->host_settings.timeout_ms = settings->timeout_ms;
    c->settings = &b->host_settings;
    c->shape = s;
    c->rank = rank;
    c->low_latency = 1;
    c->opened_at = settings->first_exchange;
    afdep_ll_ledger_start(&b->ledger, b, c->opened_at);
    d->ranks = settings->shape.ranks;
    d->max_tokens = settings->shape.max_tokens;
    d->top_k = settings->shape.top_k;
    d->c.shape = *s;
    d->c.rank = rank;
    d->c.timeout_ns = (uint64_t)settings->timeout_ms * 1000000u;
    const char *trap = afdep_env("AFDEP_CUDA_TRAP");
    d->c.trap = trap && strcmp(trap, "1") == 0;
    if (afdep_ll_device_layout_init(&d->l, &settings->shape))
        return afdep_fail(AFDEP_ERR_CONFIG, "num_max_dispatch_tokens_per_rank is %d: the segment would exceed 62 bits",
                          d->max_tokens);
    return AFDEP_OK;
}

static void destroy(afdep_ll_cuda_t *b)
{
    if (!b)
        return;
    for (int i = 0; i < 2 * AFDEP_LL_PLANES; i++)
        if (b->planes[i / 2].event[i % 2])
            (void)cudaEventDestroy(b->planes[i / 2].event[i % 2]);
    if (b->order)
        (void)cudaEventDestroy(b->order);
    if (b->own_stream)
        (void)cudaStreamDestroy(b->own_stream);
    if (b->c.record)
        (void)cudaFreeHost(b->c.record);
    if (b->c.arena)
        (void)cudaFree(b->c.arena);
    free(b);
}

static afdep_status_t make(const afdep_ll_settings_t *settings, int rank, const afdep_device_provider_t *provider,
                           afdep_ll_cuda_t **out)
{
    afdep_status_t status = check_supported(settings);
    if (status == AFDEP_OK)
        status = provider->available();
    if (status != AFDEP_OK)
        return status;
    afdep_ll_cuda_t *b = calloc(1, sizeof(*b));
    *out = b;
    if (!b)
        return afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for a low-latency buffer", rank);
    status = set_identity(b, settings, rank);
    if (status == AFDEP_OK)
        status = afdep_cuda_check(cudaGetDevice(&b->c.device), AFDEP_ERR_UNSUPPORTED, "no GPU can be used");
    if (status == AFDEP_OK)
        status = open_arena(b);
    return status == AFDEP_OK ? open_streams(b) : status;
}

/* As share_device() of backend.c: the ranks of a GPU share its SMs, and of a rank that is not alone two kernels
   count. */
static afdep_status_t share_device(afdep_ll_cuda_t *b)
{
    int sms = 0, ranks = 0;
    cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, b->c.device);
    if (error == cudaSuccess)
        error = afdep_ll_prepare_kernels(&b->settings.shape);
    afdep_status_t status = afdep_cuda_check(error, AFDEP_ERR_UNSUPPORTED, "the low-latency kernels do not load");
    if (status != AFDEP_OK)
        return status;
    for (int r = 0; r < b->params.ranks; r++)
        ranks += b->c.fabric->same_device[r];
    b->grid = ranks == 1 ? sms : sms / (2 * ranks);
    if (b->grid < 1)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED,
                          "%d ranks on one GPU: it has %d SMs, and every rank needs one for each of two "
                          "kernels at once",
                          ranks, sms);
    b->senders = b->grid / 2 < SENDERS ? (b->grid + 1) / 2 : SENDERS;
    return AFDEP_OK;
}

static afdep_status_t connect(afdep_ll_cuda_t *b)
{
    afdep_cuda_rank_t *p = &b->params.c;
    p->base = b->c.fabric->base;
    for (int r = 0; r < b->params.ranks && r < AFDEP_CUDA_NEAR; r++)
        p->near[r] = b->c.fabric->segments[r];
    return afdep_cuda_check(cudaMemcpy((void *)(uintptr_t)p->segments, b->c.fabric->segments,
                                       (size_t)b->params.ranks * sizeof(void *), cudaMemcpyHostToDevice),
                            AFDEP_ERR_SYSTEM, "the peers' segments");
}

static afdep_status_t ll_open(const afdep_ll_settings_t *settings, const afdep_group_t *group,
                              const afdep_fabric_provider_t *fabric, void **rank)
{
    const afdep_device_provider_t *provider = (const afdep_device_provider_t *)fabric;
    afdep_ll_cuda_t *b = NULL;
    afdep_status_t status =
        afdep_agree_status(group, make(settings, group->rank, provider, &b), "make its bookkeeping");
    if (status != AFDEP_OK)
        goto destroy;
    afdep_device_fabric_args_t args = { .group = group,
                                        .device = b->c.device,
                                        .timeout_ms = settings->timeout_ms,
                                        .bytes = b->params.l.bytes,
                                        .ranks_per_domain = group->size, /* kernels want every segment mapped */
                                        .gin = { .traffic_class = -1 },
                                        .prepare = prepare_segment,
                                        .prepare_context = b };
    status = provider->open(&args, &b->c.fabric);
    if (status != AFDEP_OK)
        goto destroy;
    status = share_device(b);
    if (status == AFDEP_OK)
        status = connect(b);
    /* Nobody starts before everybody's kernels are loaded: loading waits for running kernels. */
    status = afdep_agree_status(group, status, "load its kernels");
    if (status != AFDEP_OK)
        goto close_fabric;
    *rank = b;
    return AFDEP_OK;

close_fabric:
    b->c.fabric->close(b->c.fabric, 0);
destroy:
    destroy(b);
    return status;
}

/* ---- Closing ----------------------------------------------------------------------------------------------------- */

static afdep_status_t ll_close(void *rank)
{
    afdep_ll_cuda_t *b = rank;
    afdep_cuda_t *c = &b->c;
    afdep_status_t status = AFDEP_OK, found = afdep_cuda_look(c);
    if (found == AFDEP_OK && (status = afdep_ll_may_close(&b->ledger, c->rank)) != AFDEP_OK)
        status = afdep_cuda_give_up(c, status, c->rank);
    cudaError_t error = cudaDeviceSynchronize(); /* also kernels of graphs, of which only the device knows */
    if (status == AFDEP_OK && found == AFDEP_OK && error != cudaSuccess)
        status =
            afdep_cuda_poison(c, afdep_cuda_check(error, AFDEP_ERR_TRANSPORT, "ll_buffer_close: waiting for kernels"));
    if (status == AFDEP_OK && found == AFDEP_OK)
        found = afdep_cuda_look(c);
    if (status == AFDEP_OK && found == AFDEP_OK)
        status = afdep_cuda_part(c);
    c->fabric->close(c->fabric, status == AFDEP_OK && found == AFDEP_OK);
    destroy(b);
    return status;
}

/* ---- What a rank says of itself ---------------------------------------------------------------------------------- */

static afdep_status_t ll_error(void *rank)
{
    afdep_ll_cuda_t *b = rank;
    afdep_status_t status = afdep_cuda_look(&b->c);
    return status == AFDEP_OK ? afdep_cuda_look_route(&b->c) : status;
}

/* As the kernels that are over have counted. */
static afdep_status_t ll_counters(void *rank, int peer, afdep_counters_t *counters)
{
    afdep_ll_cuda_t *b = rank;
    afdep_ll_counter_t read;
    cudaError_t error =
        cudaMemcpyAsync(&read, &b->params.counters[peer], sizeof(read), cudaMemcpyDefault, b->c.fabric->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(b->c.fabric->stream);
    if (error != cudaSuccess)
        return afdep_cuda_check(error, AFDEP_ERR_TRANSPORT, "ll_buffer_counters");
    afdep_peer_counters_t known = { .puts = read.puts, .put_bytes = read.put_bytes };
    known.signals[AFDEP_SIGNAL_COUNT_WORD] = read.count_words;
    known.signals[AFDEP_SIGNAL_COMBINE] = read.combines;
    return afdep_counters_give(&known, counters);
}

const afdep_ll_backend_t afdep_ll_backend_cuda = {
    .name = "cuda",
    .open = ll_open,
    .close = ll_close,
    .error = ll_error,
    .counters = ll_counters,
    .dispatch = afdep_ll_cuda_dispatch,
    .combine = afdep_ll_cuda_combine,
    .next_combine_buffer = afdep_ll_cuda_combine_buffer,
    .hook_call = afdep_ll_cuda_call_hook,
    .event_wait = afdep_ll_cuda_wait_event,
    .event_query = afdep_ll_cuda_query_event,
    .segment_bytes = segment_bytes,
    .private_bytes = private_bytes,
};
