/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of the directional protocol keeps on its GPU: made, brought to its first values, shared out, read. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "cuda/rail_open.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "protocol/word.h"

#define ARENA_ALIGN 256u
#define AFDEP_RAIL_CLOCK_BYTES 256u /* a line of its own */

/* Entries of the arrays of one plane. */
static uint64_t lanes_of(const afdep_shape_t *s, int ffn)
{
    return (uint64_t)(ffn ? s->attention_domains : s->ffn_domains) * (uint64_t)s->channels;
}

/* ---- GIN ----------------------------------------------------------------------------------------------------- */

#define GIN_SIGNALS_MOST 65536u /* NCCL's proxy has 16 bits for the name of one, and NCCL makes as many */

/* Whether links are reached by NCCL's GIN, and not mapped. */
static int uses_gin(const afdep_settings_t *settings)
{
    return strcmp(settings->fabric, "nccl") == 0;
}

/* Signals of a plane: of its words side by side, from the first to the last, of the role that has more. */
static uint64_t plane_signals(const afdep_settings_t *settings)
{
    const afdep_layout_t *l = &settings->layout;
    const afdep_shape_t *s = &settings->shape;
    uint64_t ffn = l->ffn.finish_tails - l->ffn.count_words + 8u * lanes_of(s, 1);
    uint64_t attention = l->attention.combine_tails - l->attention.witness_words + 8u * lanes_of(s, 0);
    return (ffn > attention ? ffn : attention) / 8u;
}

int afdep_rail_signals(const afdep_settings_t *settings)
{
    return settings->shape.protocol == AFDEP_PROTOCOL_DIRECTIONAL ? (int)plane_signals(settings) * settings->shape.in_flight : 0;
}

/* Rows that wait to be put, in the segment, as a put's source must be. */
static uint64_t staging_bytes(const afdep_settings_t *settings, int ffn)
{
    const afdep_shape_t *s = &settings->shape;
    uint64_t rows = (uint64_t)s->in_flight * (uint64_t)s->capacity;
    if (!uses_gin(settings))
        return 0;
    return ffn ? rows * (uint64_t)s->attention_domains * settings->layout.row.reply_stride : rows * settings->layout.row.stride;
}

/* ---- Limits -------------------------------------------------------------------------------------------------- */

afdep_status_t afdep_rail_check(const afdep_settings_t *settings)
{
    const afdep_shape_t *s = &settings->shape;
    if (s->ranks_per_domain > AFDEP_RAIL_RAILS)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "ranks_per_domain is %d: across domains the CUDA backend has at most %d",
                          s->ranks_per_domain, AFDEP_RAIL_RAILS);
    if (s->ffn_domains > AFDEP_RAIL_TARGETS)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "ffn_ranks is %d: that makes %d FFN domains, and the CUDA backend has at "
                          "most %d", s->ffn_ranks, s->ffn_domains, AFDEP_RAIL_TARGETS);
    if (uses_gin(settings) && afdep_nic_modelled(&settings->nic))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"nccl\": a modelled NIC (AFDEP_NIC_...) is only to be had with fabric "
                          "\"peer\"");
    if (uses_gin(settings) && plane_signals(settings) > GIN_SIGNALS_MOST / (uint64_t)s->in_flight)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "num_sms is %d: with %d FFN domains, %d Attention domains and %d in flight a rank "
                          "has more than the %u signals that GIN can name", s->num_sms, s->ffn_domains, s->attention_domains,
                          s->in_flight, GIN_SIGNALS_MOST);
    if ((uint64_t)s->attention_domains * (uint64_t)s->channels * settings->layout.slots > UINT32_MAX)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "capacity is %d: the CUDA backend counts places of the rail inbox in 32 bits",
                          s->capacity);
    return AFDEP_OK;
}

/* ---- Few tokens ------------------------------------------------------------------------------------------------- */

/* The largest bucket that travels in lines. They carry the whole sparse protocol, but no packed reply, and no modelled NIC
   delays them; a network does not deliver 16-byte words whole. */
static int few_tokens(const afdep_settings_t *settings)
{
    const afdep_shape_t *s = &settings->shape;
    int fits = s->sparse_dispatch && s->sparse_combine && s->ranks_per_domain < AFDEP_RAIL_RAILS && !uses_gin(settings);
    int few = fits && !afdep_nic_modelled(&settings->nic) ? afdep_few_tokens(s) : 0;
    while (few > 0 && afdep_packs_replies(s, few))
        few--;
    return few;
}

/* Their area stands behind a segment's planes. */
static int few_layout(afdep_device_layout_t *few, const afdep_settings_t *settings, int ffn)
{
    uint64_t planes = ffn ? settings->layout.ffn_bytes : settings->layout.attention_bytes;
    return afdep_few_layout_init(few, &settings->shape, ffn, (planes + AFDEP_LINE_BYTES - 1) / AFDEP_LINE_BYTES * AFDEP_LINE_BYTES);
}

/* Lines and choice words that hold a number that is over. */
static cudaError_t prepare_few(const afdep_settings_t *settings, int ffn, void *base, cudaStream_t stream)
{
    afdep_device_layout_t few;
    if (!few_tokens(settings))
        return cudaSuccess;
    if (few_layout(&few, settings, ffn))
        return cudaErrorInvalidValue;
    cudaError_t error = cudaSuccess;
    for (int g = 0; error == cudaSuccess && g < few.planes; g++) {
        unsigned char *plane = (unsigned char *)base + few.control_bytes + (uint64_t)g * few.plane_bytes;
        uint64_t lines = ffn ? few.row_lines : few.combine_lines; /* the rest of the plane */
        error = afdep_cuda_fill32((uint32_t *)(void *)(plane + lines), (few.plane_bytes - lines) / 4,
                                  (uint32_t)settings->first_exchange, stream);
    }
    return error;
}

/* ---- The modelled NIC ------------------------------------------------------------------------------------------ */

/* Bytes of a plane in which signal words lie: they come before its rows. */
static uint64_t word_bytes(const afdep_layout_t *l, int ffn)
{
    return ffn ? l->ffn.inbox : l->attention.combine_rows;
}

uint64_t afdep_rail_segment_bytes(const afdep_settings_t *settings, int ffn)
{
    const afdep_layout_t *l = &settings->layout;
    afdep_device_layout_t few;
    uint64_t bytes = (ffn ? l->ffn_bytes : l->attention_bytes) + staging_bytes(settings, ffn);
    if (afdep_nic_modelled(&settings->nic))
        bytes += AFDEP_RAIL_CLOCK_BYTES + 2 * (uint64_t)settings->shape.in_flight * word_bytes(l, ffn);
    if (few_tokens(settings))
        bytes = few_layout(&few, settings, ffn) ? UINT64_MAX : few.bytes;
    return bytes;
}

static void set_nic(afdep_rail_nic_t *nic, const afdep_settings_t *settings, int ffn)
{
    const afdep_layout_t *l = &settings->layout;
    const afdep_nic_t *n = &settings->nic;
    *nic = (afdep_rail_nic_t){ .modelled = afdep_nic_modelled(n),
                               .send_ps = (uint32_t)n->send_ps,
                               .receive_ps = (uint32_t)n->receive_ps,
                               .signal_ps = (uint32_t)n->signal_ps,
                               .byte_ps = (uint32_t)n->byte_ps,
                               .latency_ns = (uint64_t)n->latency_ps / 1000u,
                               .clock = ffn ? l->ffn_bytes : l->attention_bytes,
                               .peer_clock = ffn ? l->attention_bytes : l->ffn_bytes,
                               .words = word_bytes(l, ffn),
                               .peer_words = word_bytes(l, !ffn) };
    nic->arrivals = nic->clock + AFDEP_RAIL_CLOCK_BYTES;
    nic->peer_arrivals = nic->peer_clock + AFDEP_RAIL_CLOCK_BYTES;
}

/* ---- Bookkeeping ----------------------------------------------------------------------------------------------- */

/* Carves arrays off device memory; with a NULL base it only measures. */
typedef struct carver {
    unsigned char *base;
    uint64_t at;
} carver_t;

static void *carve(carver_t *c, uint64_t count, uint64_t bytes)
{
    uint64_t start = c->at;
    c->at = (start + count * bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return c->base ? c->base + start : NULL;
}

static void carve_attention(afdep_rail_rank_t *r, carver_t *c, const afdep_shape_t *s)
{
    uint64_t planes = (uint64_t)s->in_flight, lanes = planes * lanes_of(s, 0);
    r->finish_tails = carve(c, lanes, sizeof(*r->finish_tails));
    r->combine_tails = carve(c, lanes, sizeof(*r->combine_tails));
    r->count_words = carve(c, planes * (uint64_t)s->ffn_domains, sizeof(*r->count_words));
    r->targets = carve(c, planes * (uint64_t)s->capacity, sizeof(*r->targets));
}

static void carve_ffn(afdep_rail_rank_t *r, carver_t *c, const afdep_shape_t *s, const afdep_layout_t *l, int ctas)
{
    uint64_t planes = (uint64_t)s->in_flight, lanes = planes * lanes_of(s, 1), d = (uint64_t)s->ranks_per_domain;
    uint64_t tokens = (uint64_t)s->attention_domains * (uint64_t)s->capacity;
    r->finish_shadow = carve(c, lanes, sizeof(*r->finish_shadow));
    r->taken = carve(c, lanes, sizeof(*r->taken));
    r->sent_tails = carve(c, lanes, sizeof(*r->sent_tails));
    r->records = carve(c, lanes * l->slots, sizeof(*r->records));
    r->own_rows = carve(c, planes * tokens, l->row.stride);
    r->forwarding = carve(c, d, sizeof(*r->forwarding));
    r->forwarded = carve(c, planes * d, sizeof(*r->forwarded));
    r->arrived = carve(c, planes * d, sizeof(*r->arrived));
    r->joined = carve(c, 1, sizeof(*r->joined));
    r->summed = carve(c, 1, sizeof(*r->summed));
    r->own_partials = carve(c, tokens, 2u * (uint64_t)s->hidden);
    r->counts = carve(c, (uint64_t)ctas * ((uint64_t)s->experts_per_rank + d), sizeof(*r->counts));
    r->few_rails = carve(c, 2 * planes * (uint64_t)s->attention_domains * (uint64_t)afdep_few_tokens(s), sizeof(*r->few_rails));
}

static uint64_t carve_all(afdep_rail_rank_t *r, carver_t *c, const afdep_settings_t *settings, int ffn, int ctas)
{
    const afdep_shape_t *s = &settings->shape;
    r->counters = carve(c, (uint64_t)s->ranks, sizeof(*r->counters));
    r->met = carve(c, AFDEP_RAIL_MEETINGS, sizeof(*r->met));
    if (ffn)
        carve_ffn(r, c, s, &settings->layout, ctas);
    else
        carve_attention(r, c, s);
    return c->at;
}

/* The first exchange after opening that uses plane `g`. */
static uint64_t first_on_plane(const afdep_settings_t *settings, int g)
{
    uint64_t n = settings->first_exchange + 1;
    while (afdep_plane_index(&settings->shape, n) != g)
        n++;
    return n;
}

/* Words as the exchanges before the first left them: the same values as on the host (host/planes.c). */
static uint64_t first_tag(const afdep_settings_t *settings, int g)
{
    return afdep_word((uint32_t)(first_on_plane(settings, g) - (uint64_t)settings->shape.in_flight), 0);
}

static uint64_t first_tail(const afdep_settings_t *settings)
{
    return afdep_word((uint32_t)settings->first_exchange, (uint32_t)settings->first_exchange);
}

static cudaError_t fill_copies(const afdep_rail_rank_t *r, const afdep_settings_t *settings, int ffn, uint64_t counts)
{
    const afdep_shape_t *s = &settings->shape;
    uint64_t tail = first_tail(settings), lanes = (uint64_t)s->in_flight * lanes_of(s, ffn);
    cudaError_t error = afdep_cuda_fill64(ffn ? r->finish_shadow : r->finish_tails, lanes, tail, 0);
    if (error == cudaSuccess)
        error = afdep_cuda_fill64(ffn ? r->sent_tails : r->combine_tails, lanes, tail, 0);
    for (int g = 0; error == cudaSuccess && !ffn && g < s->in_flight; g++)
        error = afdep_cuda_fill64(r->count_words + g * s->ffn_domains, (uint64_t)s->ffn_domains, first_tag(settings, g), 0);
    if (error == cudaSuccess && ffn)
        error = afdep_cuda_fill64(r->joined, 1, afdep_word((uint32_t)settings->first_exchange, 0), 0);
    if (error == cudaSuccess && ffn) /* words that no exchange has written yet are of one that is over */
        error = afdep_cuda_fill64(r->counts, counts, afdep_word((uint32_t)settings->first_exchange, 0), 0);
    if (error == cudaSuccess && ffn)
        error = afdep_cuda_fill64(r->few_rails,
                                  2 * (uint64_t)s->in_flight * (uint64_t)s->attention_domains * (uint64_t)afdep_few_tokens(s),
                                  afdep_word((uint32_t)settings->first_exchange, 0), 0);
    return error;
}

uint64_t afdep_rail_private_bytes(const afdep_settings_t *settings, int ffn)
{
    afdep_rail_rank_t unused;
    carver_t measure = { NULL, 0 };
    return carve_all(&unused, &measure, settings, ffn, AFDEP_RAIL_MOST_CTAS);
}

afdep_status_t afdep_rail_open_arena(afdep_rail_t *rail, const afdep_settings_t *settings, int ffn)
{
    const afdep_shape_t *s = &settings->shape;
    carver_t measure = { NULL, 0 };
    uint64_t bytes = carve_all(&rail->params, &measure, settings, ffn, AFDEP_RAIL_MOST_CTAS);
    rail->params.layout = settings->layout;
    set_nic(&rail->params.nic, settings, ffn);
    rail->params.plane_signals = (uint32_t)plane_signals(settings);
    rail->params.slow_forward_ns = 1000u * (uint32_t)settings->slow_forward_us;
    cudaError_t error = cudaMalloc((void **)&rail->arena, bytes);
    if (error == cudaSuccess)
        error = cudaMemset(rail->arena, 0, bytes);
    if (error == cudaSuccess) {
        carver_t cut = { rail->arena, 0 };
        (void)carve_all(&rail->params, &cut, settings, ffn, AFDEP_RAIL_MOST_CTAS);
        uint64_t counts = (uint64_t)AFDEP_RAIL_MOST_CTAS * (uint64_t)(s->experts_per_rank + s->ranks_per_domain);
        error = fill_copies(&rail->params, settings, ffn, counts);
    }
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    return afdep_cuda_check(error, AFDEP_ERR_MEMORY, "the CUDA backend's bookkeeping across domains");
}

/* ---- Words of a fresh segment ----------------------------------------------------------------------------------- */

/* The two entries of each forward word before its first exchange: each as the exchange two uses ago left it. */
static cudaError_t prepare_forward_words(const afdep_settings_t *settings, int g, uint64_t *words, cudaStream_t stream)
{
    const afdep_shape_t *s = &settings->shape;
    uint64_t n = first_on_plane(settings, g), step = (uint64_t)s->in_flight, pair[2];
    int parity = afdep_plane_parity(s, n);
    pair[parity] = afdep_word((uint32_t)(n - 2 * step), 0);
    pair[!parity] = afdep_word((uint32_t)(n - step), 0);
    cudaError_t error = cudaSuccess;
    for (int q = 0; error == cudaSuccess && q < s->ranks_per_domain; q++)
        error = cudaMemcpyAsync(words + 2 * q, pair, sizeof(pair), cudaMemcpyHostToDevice, stream);
    return error == cudaSuccess ? cudaStreamSynchronize(stream) : error; /* `pair` is on the stack */
}

static cudaError_t prepare_plane(const afdep_settings_t *settings, int ffn, int g, unsigned char *plane, cudaStream_t stream)
{
    const afdep_shape_t *s = &settings->shape;
    const afdep_plane_layout_t *l = ffn ? &settings->layout.ffn : &settings->layout.attention;
    uint64_t tag = first_tag(settings, g), tail = first_tail(settings);
    const struct {
        uint64_t at, count, value;
    } attention[] = { { l->witness_words, (uint64_t)s->ffn_domains, tag }, { l->combine_tails, lanes_of(s, 0), tail } },
      workers[] = { { l->count_words, (uint64_t)s->attention_domains, tag },
                    { l->finish_tails, lanes_of(s, 1), tail },
                    { l->reply_words, (uint64_t)s->ranks_per_domain, tag } },
      *regions = ffn ? workers : attention;
    cudaError_t error = cudaSuccess;
    for (int i = 0; error == cudaSuccess && i < (ffn ? 3 : 2); i++)
        error = afdep_cuda_fill64((uint64_t *)(void *)(plane + regions[i].at), regions[i].count, regions[i].value, stream);
    if (error == cudaSuccess && ffn)
        error = prepare_forward_words(settings, g, (uint64_t *)(void *)(plane + l->forward_words), stream);
    return error;
}

afdep_status_t afdep_rail_prepare_segment(const afdep_settings_t *settings, int ffn, void *base, cudaStream_t stream)
{
    const afdep_plane_layout_t *l = ffn ? &settings->layout.ffn : &settings->layout.attention;
    cudaError_t error = cudaSuccess;
    for (int g = 0; error == cudaSuccess && g < settings->shape.in_flight; g++)
        error = prepare_plane(settings, ffn, g, (unsigned char *)base + afdep_plane_start(&settings->layout, l, g), stream);
    if (error == cudaSuccess)
        error = prepare_few(settings, ffn, base, stream);
    return afdep_cuda_check(error, AFDEP_ERR_SYSTEM, "the words of the segment");
}

/* ---- Kernels that wait for each other must run at once ------------------------------------------------------------ */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/*
 * Over GIN one SM stays free, for what the host side sends while kernels wait.
 *
 * A GPU's SMs are shared out among the ranks on it, and a CTA is counted as a whole SM. Kernels do not overlap at their
 * edges beyond that (rail_few.cuh), so one kernel of a rank counts. Attention ranks move and sum a row per token and FFN
 * domain; FFN ranks place and sum every row several times, and there are few of them: half of the SMs are the Attention
 * ranks', as far as they can use them, and the rest the FFN ranks'.
 */
static afdep_status_t share_sms(const afdep_shape_t *s, const int *same_device, int sms, int ffn, int *share)
{
    int workers = 0, sources = 0;
    for (int r = 0; r < s->ranks; r++) {
        workers += same_device[r] && afdep_is_ffn(s, r);
        sources += same_device[r] && !afdep_is_ffn(s, r);
    }
    int left = sms, source_share = 0;
    if (sources > 0)
        source_share = least((workers ? sms / 2 : sms) / sources, s->num_sms);
    left -= sources * source_share;
    int worker_share = workers ? least(left / workers, AFDEP_RAIL_MOST_CTAS) : 0;
    if ((sources && source_share < 1) || (workers && worker_share < 1))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "%d FFN ranks and %d Attention ranks on one GPU: it has %d SMs, and every rank "
                          "needs one of its own, as its kernels wait for those of the others", workers, sources, sms);
    *share = ffn ? worker_share : source_share;
    return AFDEP_OK;
}

static const afdep_rail_launchers_t peer_launchers = {
    afdep_rail_launch_dispatch,  afdep_rail_launch_receive,  afdep_rail_launch_reply,  afdep_rail_launch_collect,
    afdep_rail_prepare_dispatch, afdep_rail_prepare_receive, afdep_rail_prepare_reply, afdep_rail_prepare_collect,
};
#ifdef AFDEP_HAVE_GIN
static const afdep_rail_launchers_t gin_launchers = {
    afdep_rail_gin_launch_dispatch,  afdep_rail_gin_launch_receive,  afdep_rail_gin_launch_reply,  afdep_rail_gin_launch_collect,
    afdep_rail_gin_prepare_dispatch, afdep_rail_gin_prepare_receive, afdep_rail_gin_prepare_reply, afdep_rail_gin_prepare_collect,
};
#endif

static const afdep_rail_launchers_t *launchers_of(const afdep_device_fabric_t *fabric)
{
#ifdef AFDEP_HAVE_GIN
    if (fabric->gin.host)
        return &gin_launchers;
#else
    (void)fabric;
#endif
    return &peer_launchers;
}

static cudaError_t load_kernels(const afdep_rail_launchers_t *l, const afdep_shape_t *s)
{
    cudaError_t error = l->prepare_dispatch(s);
    if (error == cudaSuccess)
        error = l->prepare_receive(s);
    if (error == cudaSuccess)
        error = l->prepare_reply(s);
    if (error == cudaSuccess && l == &peer_launchers)
        error = afdep_rail_prepare_few_source(s);
    if (error == cudaSuccess && l == &peer_launchers)
        error = afdep_rail_prepare_few_worker(s);
    return error == cudaSuccess ? l->prepare_collect(s) : error;
}

afdep_status_t afdep_rail_share(const afdep_settings_t *settings, const afdep_device_fabric_t *fabric, int device,
                                afdep_cuda_grids_t *grids)
{
    const afdep_shape_t *s = &settings->shape;
    int sms = 0, share = 0, ffn = afdep_is_ffn(s, fabric->rank);
    cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = load_kernels(launchers_of(fabric), s);
    afdep_status_t status = afdep_cuda_check(error, AFDEP_ERR_UNSUPPORTED, "the CUDA backend's kernels do not load");
    if (status == AFDEP_OK)
        status = share_sms(s, fabric->same_device, fabric->gin.host ? sms - 1 : sms, ffn, &share);
    if (status != AFDEP_OK)
        return status;
    grids->local = share;
    grids->communicating = least(share, s->num_sms);
    return AFDEP_OK;
}

/* ---- Who is who ---------------------------------------------------------------------------------------------------- */

/* Behind the planes. */
static void set_staging(afdep_rail_rank_t *p, unsigned char *base, int ffn)
{
    if (ffn)
        p->reply_staging = base + p->layout.ffn_bytes;
    else
        p->staging = base + p->layout.attention_bytes;
}

void afdep_rail_connect(afdep_rail_t *rail, const afdep_settings_t *settings, const afdep_cuda_rank_t *common,
                        const afdep_device_fabric_t *fabric, const afdep_cuda_grids_t *grids)
{
    const afdep_shape_t *s = &common->shape;
    afdep_rail_rank_t *p = &rail->params;
    int ffn = afdep_is_ffn(s, common->rank), links = ffn ? s->attention_domains : s->ffn_domains;
    p->c = *common;
    p->few_tokens = few_tokens(settings);
    p->few_ctas = grids->local / 2;
    (void)few_layout(&p->c.own, settings, ffn); /* which fits, as the segment does */
    (void)few_layout(&p->c.peer, settings, !ffn);
    p->domain = afdep_domain_of(s, common->rank);
    p->rail = afdep_rail_of(s, common->rank);
    p->gin = fabric->gin.host;
    rail->launch = launchers_of(fabric);
    p->source_domain = ffn ? -1 : afdep_source_domain(s, common->rank);
    for (int i = 0; i < links && i < AFDEP_RAIL_NEAR; i++)
        p->links[i] = fabric->segments[ffn ? afdep_source_rank(s, i, p->rail) : afdep_ffn_rank(s, i, p->rail)];
    if (p->gin)
        set_staging(p, fabric->base, ffn);
    for (int q = 0; q < s->ranks_per_domain && q < AFDEP_RAIL_NEAR; q++)
        p->domain_near[q] = fabric->segments[p->domain * s->ranks_per_domain + q];
}

void afdep_rail_read_counters(const afdep_rail_t *rail, cudaStream_t stream, afdep_peer_counters_t *to)
{
    static const afdep_signal_kind_t kinds[AFDEP_RAIL_SIGNALS] = {
        [AFDEP_RAIL_FINISH_TAIL] = AFDEP_SIGNAL_FINISH_TAIL, [AFDEP_RAIL_COUNT_WORD] = AFDEP_SIGNAL_COUNT_WORD,
        [AFDEP_RAIL_COMBINE] = AFDEP_SIGNAL_COMBINE, [AFDEP_RAIL_WITNESS] = AFDEP_SIGNAL_WITNESS,
        [AFDEP_RAIL_DOMAIN_WORD] = AFDEP_SIGNAL_DOMAIN_WORD };
    size_t ranks = (size_t)rail->params.c.shape.ranks;
    afdep_rail_counter_t *read = calloc(ranks, sizeof(*read));
    if (read && cudaMemcpyAsync(read, rail->params.counters, ranks * sizeof(*read), cudaMemcpyDefault, stream) == cudaSuccess &&
        cudaStreamSynchronize(stream) == cudaSuccess)
        for (size_t r = 0; r < ranks; r++) {
            to[r].puts = read[r].puts;
            to[r].put_bytes = read[r].put_bytes;
            for (int kind = 0; kind < AFDEP_RAIL_SIGNALS; kind++)
                to[r].signals[kinds[kind]] = read[r].signals[kind];
        }
    free(read);
}

void afdep_rail_close(afdep_rail_t *rail)
{
    if (rail->arena)
        (void)cudaFree(rail->arena);
}
