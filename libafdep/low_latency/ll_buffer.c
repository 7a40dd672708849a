/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a rank of the host backend. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/agreement.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/group.h"
#include "low_latency/ll.h"


/* ---- Bookkeeping --------------------------------------------------------------------------------------------- */

static void carve_plane(afdep_ll_plane_t *p, afdep_carver_t *c, const afdep_ll_settings_t *s)
{
    uint64_t ranks = (uint64_t)s->shape.ranks, tokens = (uint64_t)s->shape.max_tokens, k = (uint64_t)s->shape.top_k;
    uint64_t experts = (uint64_t)s->shape.experts, hidden = (uint64_t)s->shape.hidden;
    p->header = afdep_carve(c, 1, sizeof(*p->header));
    p->ids = afdep_carve(c, tokens * k, sizeof(*p->ids));
    p->weights = afdep_carve(c, tokens * k, sizeof(*p->weights));
    p->sent = afdep_carve(c, ranks, sizeof(*p->sent));
    p->chosen = afdep_carve(c, ranks, sizeof(*p->chosen));
    p->dispatch_words = afdep_carve(c, ranks, sizeof(*p->dispatch_words));
    p->staging = afdep_carve(c, tokens, s->layout.row_stride);
    p->result = afdep_carve(c, tokens * hidden, sizeof(*p->result));
    p->counts = afdep_carve(c, experts / ranks, sizeof(*p->counts));
    p->places = afdep_carve(c, experts * tokens, sizeof(*p->places)); /* L * R * M */
    p->owed = afdep_carve(c, ranks, sizeof(*p->owed));
    p->combine_words = afdep_carve(c, ranks, sizeof(*p->combine_words));
    p->combine_buffer = afdep_carve(c, experts * tokens * hidden, sizeof(*p->combine_buffer));
}

static uint64_t carve_all(afdep_ll_rank_t *b, afdep_carver_t *c, const afdep_ll_settings_t *s)
{
    afdep_ll_plane_t unused;
    for (int g = 0; g < AFDEP_LL_PLANES; g++)
        carve_plane(b ? &b->planes[g] : &unused, c, s);
    void *mark = afdep_carve(c, (uint64_t)s->shape.ranks, sizeof(uint64_t));
    void *sum = afdep_carve(c, ((uint64_t)s->shape.hidden + 127) / 128 * 128, sizeof(uint16_t));
    void *actors = afdep_carve(c, 1, sizeof(afdep_actor_t));
    if (b) {
        b->mark = mark;
        b->sum = sum;
        b->host.actors = actors;
        b->host.actor_limit = 1;
    }
    return c->at;
}

uint64_t afdep_ll_private_bytes(const afdep_ll_settings_t *settings)
{
    afdep_carver_t measure = { NULL, 0 };
    return carve_all(NULL, &measure, settings) + sizeof(afdep_ll_rank_t);
}

/* A plane's words before its first exchange, n: as exchange n - 2 would have left them. */
static uint64_t first_word(const afdep_ll_rank_t *b, int plane)
{
    uint64_t n = b->host.opened_at + 1;
    while (afdep_ll_plane_index(n) != plane)
        n++;
    return afdep_word((uint32_t)(n - AFDEP_LL_PLANES), 0);
}

void afdep_ll_prepare_segment(void *buffer, void *base)
{
    const afdep_ll_rank_t *b = buffer;
    const afdep_ll_layout_t *l = &b->settings.layout;
    for (int g = 0; g < AFDEP_LL_PLANES; g++) {
        unsigned char *plane = (unsigned char *)base + afdep_ll_plane_start(l, g);
        for (int r = 0; r < b->settings.shape.ranks; r++) {
            uint64_t word = first_word(b, g);
            memcpy(plane + afdep_ll_at_dispatch_word(l, r), &word, sizeof(word));
            memcpy(plane + afdep_ll_at_combine_word(l, r), &word, sizeof(word));
        }
    }
}

static void start_planes(afdep_ll_rank_t *b)
{
    for (int g = 0; g < AFDEP_LL_PLANES; g++) {
        afdep_ll_plane_t *p = &b->planes[g];
        p->base = afdep_ll_plane_start(&b->settings.layout, AFDEP_PLANTED(ONE_PLANE) ? 0 : g);
        p->exchange = 0;
        for (int r = 0; r < b->settings.shape.ranks; r++)
            p->dispatch_words[r] = p->combine_words[r] = first_word(b, g);
    }
}

/* What of a role API's rank the host's executor looks at. */
static void set_host(afdep_ll_rank_t *b, int rank)
{
    afdep_host_t *h = &b->host;
    afdep_shape_t *s = &b->host_settings.shape;
    s->ranks = b->settings.shape.ranks;
    s->ranks_per_domain = b->settings.ranks_per_domain;
    s->in_flight = 1;
    s->channels = 1;
    b->host_settings.timeout_ms = b->settings.timeout_ms;
    h->settings = &b->host_settings;
    h->shape = s;
    h->rank = rank;
    h->lane_control = AFDEP_LANE_CONTROL(1);
    h->lane_domain = AFDEP_LANE_DOMAIN(1);
    h->opened_at = h->started = b->settings.first_exchange;
    afdep_ll_ledger_start(&b->ledger, b, h->opened_at);
}

afdep_status_t afdep_ll_create(const afdep_ll_settings_t *settings, int rank, afdep_ll_rank_t **buffer)
{
    afdep_ll_rank_t *b = calloc(1, sizeof(*b));
    if (!b)
        return afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for a low-latency buffer", rank);
    b->settings = *settings;
    set_host(b, rank);
    b->host.ops = afdep_row_ops(*settings->row_ops ? settings->row_ops : NULL);
    if (!b->host.ops) {
        free(b);
        return afdep_fail(AFDEP_ERR_CONFIG, "AFDEP_ROW_OPS is \"%s\": this machine has no such row loops",
                          settings->row_ops);
    }
    b->quant = afdep_quant_ops(b->host.ops);
    afdep_carver_t measure = { NULL, 0 }, cut = { NULL, 0 };
    b->host.arena_bytes = carve_all(NULL, &measure, settings);
    cut.base = mmap(NULL, b->host.arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                    0);
    if (cut.base == MAP_FAILED) {
        afdep_status_t status = afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for %llu bytes of bookkeeping: %s",
                                           rank, (unsigned long long)b->host.arena_bytes, strerror(errno));
        free(b);
        return status;
    }
    b->host.arena = cut.base;
    (void)carve_all(b, &cut, settings);
    start_planes(b);
    *buffer = b;
    return AFDEP_OK;
}

void afdep_ll_restart(afdep_ll_rank_t *b)
{
    start_planes(b);
    b->host.started = b->host.opened_at;
    afdep_ll_ledger_start(&b->ledger, b, b->host.opened_at);
    b->host.actor_count = 0;
    b->host.poison = AFDEP_OK;
}

void afdep_ll_destroy(afdep_ll_rank_t *b)
{
    if (!b)
        return;
    AFDEP_ARENA_OPEN(b->host.arena, b->host.arena_bytes);
    munmap(b->host.arena, b->host.arena_bytes);
    free(b);
}

void afdep_ll_attach(afdep_ll_rank_t *b)
{
    b->mapped = 1;
    for (int r = 0; r < b->settings.shape.ranks; r++)
        b->mapped &= afdep_fabric_window(b->host.fabric, r, b->planes[0].base, AFDEP_LL_HEADER_BYTES) != NULL;
}

/* ---- Opening ------------------------------------------------------------------------------------------------- */

static afdep_status_t open_fabric(afdep_ll_rank_t *b, const afdep_group_t *group,
                                  const afdep_fabric_provider_t *fabric)
{
    uint64_t *peer_bytes = calloc((size_t)group->size, sizeof(*peer_bytes));
    afdep_status_t status = peer_bytes ? AFDEP_OK : afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for the sizes of "
                                                               "%d segments", group->rank, group->size);
    for (int r = 0; peer_bytes && r < group->size; r++)
        peer_bytes[r] = b->settings.layout.bytes;
    status = afdep_agree_status(group, status, "open the fabric");
    if (status == AFDEP_OK) {
        afdep_fabric_args_t arguments = {
            .group = group,
            .lanes = AFDEP_LANE_COUNT(1),
            .ranks_per_domain = b->settings.ranks_per_domain,
            .timeout_ms = b->settings.timeout_ms,
            .bytes = b->settings.layout.bytes,
            .peer_bytes = peer_bytes,
            .prepare = afdep_ll_prepare_segment,
            .prepare_context = b,
        };
        status = fabric->open(fabric, &arguments, &b->host.fabric);
    }
    free(peer_bytes);
    return status;
}

static afdep_status_t host_open(const afdep_ll_settings_t *settings, const afdep_group_t *group,
                                const afdep_fabric_provider_t *fabric, void **rank)
{
    afdep_ll_rank_t *b = NULL;
    afdep_status_t status =
        afdep_agree_status(group, afdep_ll_create(settings, group->rank, &b), "make its bookkeeping");
    if (status == AFDEP_OK)
        status = open_fabric(b, group, fabric);
    if (status != AFDEP_OK) {
        afdep_ll_destroy(b);
        return status;
    }
    afdep_ll_attach(b);
    *rank = b;
    return AFDEP_OK;
}

/* ---- Closing ------------------------------------------------------------------------------------------------- */

/* The last combine joined the words of all ranks, so nothing is on its way to this rank but closing words. */
static afdep_status_t part(afdep_ll_rank_t *b)
{
    afdep_status_t status = afdep_ll_may_close(&b->ledger, b->host.rank);
    return status == AFDEP_OK ? afdep_host_part(&b->host) : afdep_host_poison(&b->host, status, b->host.rank);
}

static afdep_status_t host_close(void *rank)
{
    afdep_ll_rank_t *b = rank;
    afdep_status_t status = b->host.poison == AFDEP_OK ? part(b) : AFDEP_OK;
    b->host.fabric->ops->close(b->host.fabric, status == AFDEP_OK && b->host.poison == AFDEP_OK);
    afdep_ll_destroy(b);
    return status;
}

/* ---- What a rank says of itself -------------------------------------------------------------------------------- */

static afdep_status_t host_error(void *rank)
{
    afdep_ll_rank_t *b = rank;
    if (b->host.poison != AFDEP_OK)
        return afdep_fail(b->host.poison, "%s", b->host.poison_why);
    (void)b->host.fabric->ops->progress(b->host.fabric);
    return afdep_host_look(&b->host);
}

static afdep_status_t host_counters(void *rank, int peer, afdep_counters_t *counters)
{
    const afdep_ll_rank_t *b = rank;
    return afdep_counters_give(&b->host.fabric->counters[peer], counters);
}

static uint64_t host_segment_bytes(const afdep_ll_settings_t *settings)
{
    return settings->layout.bytes;
}

const afdep_ll_backend_t afdep_ll_backend_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .error = host_error,
    .counters = host_counters,
    .dispatch = afdep_ll_dispatch_now,
    .combine = afdep_ll_combine_now,
    .next_combine_buffer = afdep_ll_combine_buffer,
    .hook_call = afdep_ll_call_hook,
    .event_wait = afdep_ll_wait_event,
    .event_query = afdep_ll_query_event,
    .segment_bytes = host_segment_bytes,
    .private_bytes = afdep_ll_private_bytes,
};
