/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a rank of the host backend, and its place in the table of backends. */
#include "host/host.h"

#include <stdlib.h>
#include <string.h>

#include "core/agreement.h"
#include "core/error.h"
#include "core/group.h"

static void set_identity(afdep_host_t *h, const afdep_settings_t *settings, int rank)
{
    const afdep_shape_t *s = &settings->shape;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    h->settings = settings;
    h->shape = s;
    h->layout = &settings->layout;
    h->rank = rank;
    h->source = afdep_is_source(s, rank);
    h->forwarder = afdep_is_forwarder(s, rank);
    h->worker = afdep_is_worker(s, rank);
    h->at_worker = afdep_worker_plane(h->layout);
    h->at_forwarder = afdep_forwarder_plane(h->layout, s);
    h->at_source = afdep_source_plane(h->layout);
    h->domain = afdep_domain_of(s, rank);
    h->rail = afdep_rail_of(s, rank);
    h->source_domain = !h->source ? -1 : direct ? rank - s->ffn_ranks : afdep_source_domain(s, rank);
    h->targets = (uint32_t)afdep_targets(s);
    h->sources = (uint32_t)(direct ? s->attention_ranks : s->attention_domains);
    h->combine_channels = (uint32_t)afdep_combine_channels(s);
    h->lane_control = AFDEP_LANE_CONTROL(s->channels);
    h->lane_domain = AFDEP_LANE_DOMAIN(s->channels);
    h->opened_at = h->started = h->finished = h->read_rail = h->read_rows = settings->first_exchange;
}

static afdep_status_t open_fabric(afdep_host_t *h, const afdep_group_t *group, const afdep_fabric_provider_t *fabric,
                                  const uint64_t *peer_bytes, const int *domains)
{
    afdep_fabric_args_t arguments = {
        .group = group,
        .lanes = AFDEP_LANE_COUNT(h->shape->channels),
        .ranks_per_domain = h->shape->ranks_per_domain,
        .domains = domains,
        .timeout_ms = h->settings->timeout_ms,
        .bytes = afdep_segment_bytes(h->layout, h->shape, h->rank),
        .peer_bytes = peer_bytes,
        .prepare = afdep_host_prepare_segment,
        .prepare_context = h,
    };
    return fabric->open(fabric, &arguments, &h->fabric);
}

afdep_status_t afdep_host_create(const afdep_settings_t *settings, int rank, afdep_host_t **host)
{
    afdep_host_t *h = calloc(1, sizeof(*h));
    if (!h)
        return afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for the host backend", rank);
    set_identity(h, settings, rank);
    h->ops = afdep_row_ops(*settings->row_ops ? settings->row_ops : NULL);
    h->load = afdep_load_create(&settings->shape);
    h->lost = settings->shape.survive_sources ? calloc((size_t)settings->shape.ranks, sizeof(*h->lost)) : NULL;
    afdep_status_t status = h->load && (h->lost || !settings->shape.survive_sources)
                                ? afdep_host_planes_open(h)
                                : afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for its counts", rank);
    if (status != AFDEP_OK) {
        free(h->lost);
        free(h->load);
        free(h);
        return status;
    }
    *host = h;
    return AFDEP_OK;
}

void afdep_host_restart(afdep_host_t *h)
{
    afdep_host_planes_restart(h);
    h->started = h->finished = h->read_rail = h->read_rows = h->opened_at;
    h->receive_stage = AFDEP_RECEIVE_IDLE;
    h->actor_count = h->incomplete = 0;
    h->poison = AFDEP_OK;
    afdep_load_restart(h->load);
}

void afdep_host_destroy(afdep_host_t *h)
{
    if (!h)
        return;
    afdep_host_planes_close(h);
    free(h->lost);
    free(h->load);
    free(h);
}

static afdep_status_t host_open(const afdep_settings_t *settings, const afdep_group_t *group,
                                const afdep_fabric_provider_t *fabric, void **state)
{
    const afdep_shape_t *s = &settings->shape;
    afdep_host_t *h = NULL;
    uint64_t *peer_bytes = calloc((size_t)s->ranks, sizeof(*peer_bytes));
    int *domains = calloc((size_t)s->ranks, sizeof(*domains));
    afdep_status_t status = peer_bytes && domains
                                ? afdep_host_create(settings, group->rank, &h)
                                : afdep_fail(AFDEP_ERR_MEMORY, "rank %d: no memory for the host backend", group->rank);
    for (int r = 0; peer_bytes && domains && r < s->ranks; r++) {
        peer_bytes[r] = afdep_segment_bytes(&settings->layout, s, r);
        domains[r] = afdep_domain_of(s, r);
    }
    status = afdep_agree_status(group, status, "make its bookkeeping");
    if (status == AFDEP_OK)
        status = open_fabric(h, group, fabric, peer_bytes, domains);
    free(domains);
    free(peer_bytes);
    if (status != AFDEP_OK) {
        afdep_host_destroy(h);
        return status;
    }
    *state = h;
    return AFDEP_OK;
}

/* One word that a later dispatch on the plane would have waited for. */
static afdep_status_t drain_word(afdep_host_t *h, afdep_actor_t *actor, uint64_t at, uint64_t exchange, int peer,
                                 const char *name)
{
    uint64_t word = afdep_fabric_read(h->fabric, at);
    afdep_word_state_t state = afdep_tag_state(word, (uint32_t)exchange, (uint32_t)h->shape->in_flight);
    if (state == AFDEP_WORD_BROKEN)
        return afdep_host_broken(h, actor, peer, name, word);
    return state == AFDEP_WORD_WAIT ? afdep_host_wait(actor, peer, name) : AFDEP_DONE;
}

/* The witnesses of exchange `exchange` (actor->j: the next target), then the answers of its domain (actor->left). */
static afdep_status_t drain_plane(afdep_host_t *h, afdep_actor_t *actor, uint64_t exchange)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = &h->planes[afdep_plane_index(s, exchange)];
    int targets = h->source && afdep_has_witnesses(s) ? (int)h->targets : 0;
    uint32_t rails = h->forwarder && !h->worker ? (uint32_t)afdep_worker_rails(s) : 0;
    for (; actor->j < targets; actor->j++) {
        int peer = s->protocol == AFDEP_PROTOCOL_DIRECT ? actor->j : afdep_ffn_rank(s, actor->j, h->rail);
        if (afdep_host_is_own_domain(h, actor->j))
            continue;
        afdep_status_t status = drain_word(h, actor, p->base + afdep_at_witness(h->at_source, actor->j), exchange, peer,
                                           "the last done witness");
        if (status != AFDEP_DONE)
            return status;
    }
    for (; actor->left < rails; actor->left++) {
        afdep_status_t status = drain_word(h, actor, p->base + afdep_at_rail_answer(h->at_forwarder, (int)actor->left),
                                           exchange, afdep_ffn_rank(s, h->domain, (int)actor->left),
                                           "the last rail answer");
        if (status != AFDEP_DONE)
            return status;
    }
    return AFDEP_DONE;
}

/* The last exchange on a plane: no later dispatch waited for its words, so parting does. actor->i: plane. */
static afdep_status_t drain_step(afdep_host_t *h, afdep_actor_t *actor)
{
    for (; actor->i < h->shape->in_flight; actor->i++, actor->j = 0, actor->left = 0) {
        if ((uint64_t)actor->i >= h->started - h->opened_at)
            continue;
        afdep_status_t status = drain_plane(h, actor, h->started - (uint64_t)actor->i); /* the last G exchanges */
        if (status != AFDEP_DONE)
            return status;
    }
    return AFDEP_DONE;
}

static afdep_status_t drain(afdep_host_t *h)
{
    afdep_host_begin(h, "buffer_close", h->started, NULL);
    afdep_host_add(h, drain_step, "drain", -1);
    return afdep_host_run(h);
}

static afdep_status_t part(afdep_host_t *h)
{
    if (h->started != h->finished || h->receive_stage != AFDEP_RECEIVE_IDLE)
        return afdep_host_poison(h, afdep_fail(AFDEP_ERR_ORDER,
                                               "buffer_close: rank %d has exchange %llu unfinished", h->rank,
                                               (unsigned long long)h->finished + 1),
                                 h->rank);
    afdep_status_t status = drain(h);
    return status == AFDEP_OK ? afdep_host_part(h) : status;
}

static afdep_status_t host_close(void *state)
{
    afdep_host_t *h = state;
    afdep_status_t status = h->poison == AFDEP_OK ? part(h) : AFDEP_OK;
    h->fabric->ops->close(h->fabric, status == AFDEP_OK && h->poison == AFDEP_OK);
    afdep_host_destroy(h);
    return status;
}

static afdep_status_t host_error(void *state)
{
    afdep_host_t *h = state;
    if (h->poison != AFDEP_OK)
        return afdep_fail(h->poison, "%s", h->poison_why);
    (void)h->fabric->ops->progress(h->fabric);
    return afdep_host_look(h);
}

static uint64_t host_segment_bytes(const afdep_settings_t *settings, int ffn)
{
    return ffn ? settings->layout.ffn_bytes : settings->layout.attention_bytes;
}

static uint64_t host_exchanges(const void *state)
{
    const afdep_host_t *h = state;
    return h->started - h->opened_at;
}

static const afdep_peer_counters_t *host_counters(const void *state)
{
    const afdep_host_t *h = state;
    return h->fabric->counters;
}

/* The role calls: begin, then run to the end. Row loops need the default floating-point environment, whatever the
   caller's is. */
static afdep_status_t run_begun(afdep_host_t *h, afdep_status_t begun)
{
    if (begun != AFDEP_OK)
        return begun;
    afdep_fp_state_t fp = afdep_fp_enter();
    afdep_status_t status = afdep_host_run(h);
    afdep_fp_leave(fp);
    return status;
}

static afdep_status_t host_dispatch(void *state, const afdep_dispatch_t *dispatch, afdep_stream_t stream)
{
    afdep_status_t status = afdep_host_begin_dispatch(state, dispatch, stream);
    if (status == AFDEP_OK && dispatch->send_only)
        return afdep_host_send(state); /* copies rows, computes nothing */
    return run_begun(state, status);
}

static afdep_status_t host_complete(void *state)
{
    return afdep_host_complete(state);
}

static int32_t host_lost(void *state, int32_t *ranks, int32_t room)
{
    return afdep_host_list_lost(state, ranks, room);
}

static afdep_status_t host_quiet(void *state)
{
    const afdep_host_t *h = state;
    if (h->poison != AFDEP_OK || (h->started == h->finished && h->receive_stage == AFDEP_RECEIVE_IDLE))
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_ORDER, "rank %d has exchange %llu unfinished", h->rank,
                      (unsigned long long)h->finished + 1);
}

static void host_abandon(void *state)
{
    afdep_host_t *h = state;
    h->fabric->ops->close(h->fabric, 0);
    afdep_host_destroy(h);
}

static afdep_status_t host_load(const void *state, afdep_load_t *out)
{
    const afdep_host_t *h = state;
    afdep_load_read(h->load, out);
    return AFDEP_OK;
}

static afdep_status_t host_receive(void *state, afdep_receive_t *receive, afdep_stream_t stream)
{
    return run_begun(state, afdep_host_begin_receive(state, receive, stream));
}

static afdep_status_t host_reply(void *state, const afdep_reply_t *reply, afdep_stream_t stream)
{
    return run_begun(state, afdep_host_begin_reply(state, reply, stream));
}

static afdep_status_t host_collect(void *state, afdep_collect_t *collect, afdep_stream_t stream)
{
    return run_begun(state, afdep_host_begin_collect(state, collect, stream));
}

static afdep_status_t host_elastic_dispatch(void *state, const afdep_dispatch_t *dispatch, afdep_receive_t *receive,
                                            afdep_stream_t stream)
{
    return run_begun(state, afdep_host_begin_elastic_dispatch(state, dispatch, receive, stream));
}

static afdep_status_t host_elastic_combine(void *state, const afdep_reply_t *reply, afdep_collect_t *collect,
                                           afdep_stream_t stream)
{
    return run_begun(state, afdep_host_begin_elastic_combine(state, reply, collect, stream));
}

const afdep_backend_t afdep_backend_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .dispatch = host_dispatch,
    .receive = host_receive,
    .reply = host_reply,
    .collect = host_collect,
    .elastic_dispatch = host_elastic_dispatch,
    .elastic_combine = host_elastic_combine,
    .complete = host_complete,
    .load = host_load,
    .lost = host_lost,
    .quiet = host_quiet,
    .abandon = host_abandon,
    .error = host_error,
    .exchanges = host_exchanges,
    .counters = host_counters,
    .segment_bytes = host_segment_bytes,
    .private_bytes = afdep_host_private_bytes,
};
