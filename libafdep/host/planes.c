/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bookkeeping of a rank: one arena, carved once at open, so that exchanges allocate nothing. The arena is mapped,
 * not touched: what an exchange does not use costs no memory.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/arena.h"
#include "core/error.h"
#include "host/host.h"

static uint64_t combine_channels(const afdep_shape_t *s)
{
    return (uint64_t)afdep_combine_channels(s);
}

static void carve_source(afdep_plane_t *p, afdep_carver_t *c, const afdep_shape_t *s, const afdep_layout_t *l)
{
    uint64_t capacity = (uint64_t)s->capacity, targets = (uint64_t)afdep_targets(s);
    uint64_t lanes = targets * combine_channels(s);
    uint64_t kt = targets < (uint64_t)s->top_k ? targets : (uint64_t)s->top_k;
    p->ids = afdep_carve(c, capacity * (uint64_t)s->top_k, sizeof(*p->ids));
    p->targets = afdep_carve(c, capacity * kt, sizeof(*p->targets));
    p->target_count = afdep_carve(c, capacity, sizeof(*p->target_count));
    p->sent = afdep_carve(c, lanes, sizeof(*p->sent));
    p->placed = afdep_carve(c, lanes, sizeof(*p->placed));
    p->finish_tails = afdep_carve(c, lanes, sizeof(*p->finish_tails));
    p->count_words = afdep_carve(c, targets, sizeof(*p->count_words));
    p->combine_shadow = afdep_carve(c, lanes, sizeof(*p->combine_shadow));
    p->staging = afdep_carve(c, capacity, l->row.stride);
    p->staged = afdep_carve(c, capacity, sizeof(*p->staged));
}

static void carve_forwarder(afdep_plane_t *p, afdep_carver_t *c, const afdep_shape_t *s, const afdep_layout_t *l)
{
    uint64_t sources = (uint64_t)s->attention_domains, channels = (uint64_t)s->channels;
    uint64_t d = (uint64_t)s->ranks_per_domain, slots = sources * channels * l->slots;
    uint64_t kd = d < (uint64_t)s->top_k ? d : (uint64_t)s->top_k;
    p->finish_shadow = afdep_carve(c, sources * channels, sizeof(*p->finish_shadow));
    p->taken = afdep_carve(c, sources * channels, sizeof(*p->taken));
    p->open = afdep_carve(c, sources * channels, sizeof(*p->open));
    p->pending = afdep_carve(c, channels, sizeof(*p->pending));
    p->source_tokens = afdep_carve(c, sources, sizeof(*p->source_tokens));
    p->record_token = afdep_carve(c, slots, sizeof(*p->record_token));
    p->record_count = afdep_carve(c, slots, sizeof(*p->record_count));
    p->record_rails = afdep_carve(c, slots * kd, sizeof(*p->record_rails));
    p->own = afdep_carve(c, sources * (uint64_t)s->capacity, sizeof(*p->own));
    p->extents = afdep_carve(c, d * l->extent_stride, sizeof(*p->extents));
    p->forwarded = afdep_carve(c, d, sizeof(*p->forwarded));
    p->forward_words = afdep_carve(c, 2 * d, sizeof(*p->forward_words));
}

static void carve_worker(afdep_plane_t *p, afdep_carver_t *c, const afdep_shape_t *s)
{
    uint64_t tokens = (uint64_t)s->attention_ranks * (uint64_t)s->capacity, d = (uint64_t)s->ranks_per_domain;
    uint64_t k = (uint64_t)(s->top_k < s->experts_per_rank ? s->top_k : s->experts_per_rank);
    if (s->protocol != AFDEP_PROTOCOL_DIRECT) {
        p->arrived = afdep_carve(c, d, sizeof(*p->arrived));
        p->reply_words = afdep_carve(c, d, sizeof(*p->reply_words));
    }
    p->arrivals = afdep_carve(c, tokens, sizeof(*p->arrivals));
    p->positions = afdep_carve(c, tokens * k, sizeof(*p->positions));
    p->weights = afdep_carve(c, tokens * k, sizeof(*p->weights));
    p->choices = afdep_carve(c, tokens * k, sizeof(*p->choices));
    p->counts = afdep_carve(c, (uint64_t)s->experts_per_rank, sizeof(*p->counts));
    p->ends = afdep_carve(c, (uint64_t)s->experts_per_rank, sizeof(*p->ends));
}

/* What a rank like `rank` keeps of one plane. */
static void carve_plane(afdep_plane_t *p, afdep_carver_t *c, const afdep_settings_t *settings, int rank)
{
    const afdep_shape_t *s = &settings->shape;
    const afdep_layout_t *l = &settings->layout;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT, worker = afdep_is_worker(s, rank);
    uint64_t sources = (uint64_t)(direct ? s->attention_ranks : s->attention_domains);
    if (afdep_is_source(s, rank))
        carve_source(p, c, s, l);
    if (afdep_is_forwarder(s, rank))
        carve_forwarder(p, c, s, l);
    if (worker)
        carve_worker(p, c, s);
    if (direct ? worker : afdep_is_forwarder(s, rank))
        p->combine_tails = afdep_carve(c, sources * combine_channels(s), sizeof(*p->combine_tails));
    if (worker || afdep_is_forwarder(s, rank))
        p->reply_staging = afdep_carve(c, (uint64_t)(worker ? s->attention_ranks : s->attention_domains) *
                                        (uint64_t)s->capacity, l->row.reply_stride);
}

/* The most actors of one call: of a symmetric rank, all duties at once. */
static int actor_limit(const afdep_shape_t *s)
{
    int targets = afdep_targets(s);
    return 2 * (s->channels > targets ? s->channels : targets) + 8;
}

/* Of a rank like `rank`. */
static uint64_t carve_all(afdep_host_t *h, afdep_carver_t *c, const afdep_settings_t *settings, int rank)
{
    afdep_plane_t unused[4];
    afdep_plane_t *planes = h ? h->planes : unused;
    for (int g = 0; g < settings->shape.in_flight; g++)
        carve_plane(&planes[g], c, settings, rank);
    afdep_actor_t *actors = afdep_carve(c, (uint64_t)actor_limit(&settings->shape), sizeof(*actors));
    uint16_t *leaving = afdep_carve(c, settings->shape.fp8_combine ? (uint64_t)settings->shape.hidden : 0,
                              sizeof(*leaving));
    if (h) {
        h->actors = actors;
        h->leaving = leaving;
    }
    return c->at;
}

uint64_t afdep_host_private_bytes(const afdep_settings_t *settings, int ffn)
{
    afdep_carver_t measure = { NULL, 0 };
    return carve_all(NULL, &measure, settings, ffn ? 0 : settings->shape.ffn_ranks) + sizeof(afdep_host_t);
}

/* The first exchange after opening that uses plane `g`. */
static uint64_t first_on_plane(const afdep_host_t *h, int g)
{
    uint64_t n = h->opened_at + 1;
    while (afdep_plane_index(h->shape, n) != g)
        n++;
    return n;
}

/* A tail as it stands at open: both halves at the number of exchanges that count as done, so that tests of the wrap
   wrap both. */
static uint64_t first_tail(const afdep_host_t *h)
{
    return afdep_word((uint32_t)h->opened_at, (uint32_t)h->opened_at);
}

static void fill(uint64_t *words, uint64_t count, uint64_t value)
{
    for (uint64_t i = 0; words && value && i < count; i++)
        words[i] = value;
}

/* The two entries of a forward word before its first exchange: each as the exchange two uses ago left it. */
static void first_forward_words(const afdep_host_t *h, int g, uint64_t *words, uint64_t pairs)
{
    uint64_t n = first_on_plane(h, g), step = (uint64_t)h->shape->in_flight;
    uint64_t back = AFDEP_PLANTED(ONE_FORWARD_WORD) ? 1 : 2;
    int parity = afdep_plane_parity(h->shape, n);
    for (uint64_t i = 0; i < pairs; i++) {
        words[2 * i + (uint64_t)parity] = afdep_word((uint32_t)(n - back * step), 0);
        words[2 * i + (uint64_t)!parity] = afdep_word((uint32_t)(n - step), 0);
    }
}

static void fill_at(unsigned char *plane, uint64_t region, uint64_t count, uint64_t value)
{
    fill((uint64_t *)(void *)(plane + region), count, value);
}

void afdep_host_prepare_segment(void *host, void *base)
{
    const afdep_host_t *h = host;
    const afdep_shape_t *s = h->shape;
    const afdep_plane_layout_t *l = afdep_plane_of(h->layout, s, h->rank);
    uint64_t lanes = (uint64_t)h->targets * h->combine_channels, d = (uint64_t)s->ranks_per_domain;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    for (int g = 0; g < s->in_flight; g++) {
        unsigned char *plane = (unsigned char *)base + h->planes[g].base;
        uint64_t tag = afdep_word((uint32_t)(first_on_plane(h, g) - (uint64_t)s->in_flight), 0);
        if (h->source) {
            fill_at(plane, l->witness_words, h->targets, tag);
            fill_at(plane, l->combine_tails, lanes, first_tail(h));
        }
        if (direct ? h->worker : h->forwarder)
            fill_at(plane, l->count_words, h->sources, tag);
        if (h->forwarder) {
            fill_at(plane, l->finish_tails, (uint64_t)h->sources * (uint32_t)s->channels, first_tail(h));
            fill_at(plane, l->reply_words, d, tag);
            fill_at(plane, l->rail_answers, afdep_has_shared_domains(s) ? d : 0, tag);
        }
        if (h->worker && !direct)
            first_forward_words(h, g, (uint64_t *)(void *)(plane + l->forward_words), d);
        fill_at(plane, l->barrier_words, s->entry_barrier ? d + (uint64_t)s->attention_domains : 0, tag);
    }
}

/* What this rank's own copies of words start from: the same values its peers' segments were prepared with. */
static void start_copies(afdep_host_t *h, int g)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = &h->planes[g];
    uint64_t lanes = (uint64_t)h->targets * h->combine_channels, d = (uint64_t)s->ranks_per_domain;
    uint64_t tag = afdep_word((uint32_t)(first_on_plane(h, g) - (uint64_t)s->in_flight), 0);
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    if (h->source) {
        fill(p->finish_tails, lanes, first_tail(h));
        fill(p->count_words, h->targets, tag);
        fill(p->combine_shadow, lanes, first_tail(h));
    }
    if (direct ? h->worker : h->forwarder)
        fill(p->combine_tails, (uint64_t)h->sources * h->combine_channels, first_tail(h));
    if (h->forwarder) {
        fill(p->finish_shadow, (uint64_t)h->sources * (uint32_t)s->channels, first_tail(h));
        first_forward_words(h, g, p->forward_words, d);
    }
    if (h->worker && !direct)
        fill(p->reply_words, d, tag);
}

afdep_status_t afdep_host_planes_open(afdep_host_t *h)
{
    afdep_carver_t measure = { NULL, 0 };
    h->arena_bytes = carve_all(NULL, &measure, h->settings, h->rank);
    h->arena = mmap(NULL, h->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (h->arena == MAP_FAILED) {
        h->arena = NULL;
        return afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for %llu bytes of bookkeeping: %s", h->rank,
                          (unsigned long long)h->arena_bytes, strerror(errno));
    }
    afdep_carver_t cut = { h->arena, 0 };
    (void)carve_all(h, &cut, h->settings, h->rank);
    h->actor_limit = actor_limit(h->shape);
    for (int g = 0; g < h->shape->in_flight; g++) {
        afdep_plane_t *p = &h->planes[g];
        p->base = afdep_plane_start(h->layout, afdep_plane_of(h->layout, h->shape, h->rank), g);
        p->peer_worker = afdep_plane_start(h->layout, h->at_worker, g);
        p->peer_forwarder = afdep_plane_start(h->layout, h->at_forwarder, g);
        p->peer_source = afdep_plane_start(h->layout, h->at_source, g);
        start_copies(h, g);
    }
    return AFDEP_OK;
}

void afdep_host_planes_restart(afdep_host_t *h)
{
    AFDEP_ARENA_OPEN(h->arena, h->arena_bytes);
    memset(h->arena, 0, h->arena_bytes);
    afdep_carver_t cut = { h->arena, 0 };
    (void)carve_all(h, &cut, h->settings, h->rank); /* to the same places */
    for (int g = 0; g < h->shape->in_flight; g++) {
        h->planes[g].routing = 0;
        start_copies(h, g);
    }
}

void afdep_host_planes_close(afdep_host_t *h)
{
    if (h->arena) {
        AFDEP_ARENA_OPEN(h->arena, h->arena_bytes);
        munmap(h->arena, h->arena_bytes);
    }
    h->arena = NULL;
}
