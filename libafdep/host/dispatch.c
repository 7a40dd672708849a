/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source's part of dispatch: each token goes once to every target that owns one of its experts. Targets are the
 * workers of the domain (direct), or the domains with workers, each through the rank on this source's rail.
 *
 * Reuse. An inbox of exchange n - G holds rows until its readers are finished with them. Direct: each worker answers
 * every source once its receive has read count and rows, and this dispatch waits for all answers, also from ranks that
 * got no row (their count word would be overwritten unread). Across domains with sparse combine: it waits for the done
 * witness of every rail peer, also when it sent nothing. Without sparse combine nothing is awaited: the collect of
 * n - G has seen a combine signal on all C channels of every rail peer, each sent after that channel's rows and words
 * were read. With an entry barrier (symmetric) nothing else is awaited: every rank enters exchange n after its combine
 * of n - G, so that whoever has passed the barrier knows that all ranks are finished with all that they read in n - G.
 *
 * Shared domains: an Attention rank also writes rows and words into the workers of its own domain, its own tokens' and
 * those that it forwards. A worker that got no row owes it no reply, so each worker answers each forwarder of its
 * domain once per exchange (receive.c), and nothing is written there before the answers of n - G have come.
 */
#include <string.h>

#include "core/error.h"
#include "host/host.h"

#define ROWS_A_STEP 64

/* ---- What is sent where -------------------------------------------------------------------------------------- */

static void note_bad(afdep_host_t *h, int token, int slot, int id, int repeated)
{
    if (h->bad_route.found)
        return;
    h->bad_route.found = 1;
    h->bad_route.token = token;
    h->bad_route.slot = slot;
    h->bad_route.id = id;
    h->bad_route.repeated = repeated;
}

/* Copies a token's choices to `ids`, invalid and repeated ones as -1, and its targets, ascending, to `targets`. */
static int take_token(afdep_host_t *h, const int32_t *given, int token, int32_t *ids, int32_t *targets)
{
    const afdep_shape_t *s = h->shape;
    for (int k = 0; k < s->top_k; k++) {
        int32_t id = given[k];
        ids[k] = id;
        if (id == -1)
            continue;
        int repeated = 0;
        for (int j = 0; j < k; j++)
            repeated |= ids[j] == id;
        if (id < 0 || id >= s->num_experts || repeated) {
            ids[k] = -1;
            note_bad(h, token, k, id, repeated);
        }
    }
    return afdep_token_targets(s, ids, targets);
}

static int targets_stride(const afdep_host_t *h)
{
    return h->targets < (uint32_t)h->shape->top_k ? (int)h->targets : h->shape->top_k;
}

/* Fills the plane's routes and the number of rows for every target and channel. */
static void plan(afdep_host_t *h, const afdep_dispatch_t *d)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    size_t lanes = (size_t)h->targets * h->combine_channels;
    int stride = targets_stride(h);
    memset(p->sent, 0, lanes * sizeof(*p->sent));
    memset(p->placed, 0, lanes * sizeof(*p->placed));
    for (int i = 0; i < d->tokens; i++) {
        int32_t *targets = p->targets + (size_t)i * (size_t)stride;
        size_t at = (size_t)i * (size_t)s->top_k;
        int count = take_token(h, d->ids + at, i, p->ids + at, targets);
        int channel = s->protocol == AFDEP_PROTOCOL_DIRECT ? 0 : afdep_channel_of(s, h->source_domain, i);
        p->target_count[i] = (uint8_t)count;
        for (int j = 0; j < count; j++)
            p->sent[afdep_combine_index(h, targets[j], channel)]++;
    }
}

/* Planted variants only: whether a target got rows in the exchange before, on this plane. */
static int was_served(const afdep_host_t *h, int target)
{
#ifdef AFDEP_PLANT
    return (h->plane->served_before >> target & 1) != 0;
#else
    (void)h, (void)target;
    return 1;
#endif
}

/* ---- Rows ---------------------------------------------------------------------------------------------------- */

static void build_row(const afdep_host_t *h, unsigned char *row, int token)
{
    const afdep_dispatch_t *d = &h->dispatch;
    const afdep_row_format_t *f = &h->layout->row;
    size_t k = (size_t)h->shape->top_k, blocks = f->scale_bytes / 4;
    memcpy(row, (const char *)d->x + (size_t)token * f->payload_bytes, f->payload_bytes);
    if (blocks && d->x_scale_block_stride == 1)
        memcpy(row + f->scale_offset, d->x_scale + token * d->x_scale_token_stride, f->scale_bytes);
    else
        for (size_t b = 0; b < blocks; b++)
            memcpy(row + f->scale_offset + 4 * b,
                   d->x_scale + token * d->x_scale_token_stride + (int64_t)b * d->x_scale_block_stride, 4);
    afdep_row_tag_t tag = afdep_row_tag(h->exchange, (uint32_t)token, h->rank);
    tag.mark += (uint32_t)(h->exchange - h->plane->routing);
    memcpy(row + f->tag_offset, &tag, sizeof(tag));
    memcpy(row + f->ids_offset, h->plane->ids + (size_t)token * k, 4 * k);
    memcpy(row + f->weights_offset, d->weights + (size_t)token * k, 4 * k);
}

/* The row of `token` ready to be put at `offset` of `peer`: in place where the peer is mapped, else staged, once for
   all peers that are not. */
const void *afdep_host_ready_row(afdep_host_t *h, int peer, uint64_t offset, int token)
{
    const afdep_row_format_t *f = &h->layout->row;
    unsigned char *place = afdep_fabric_window(h->fabric, peer, offset, f->bytes);
    if (place) {
        build_row(h, place, token);
        return place;
    }
    unsigned char *staged = h->plane->staging + (size_t)token * f->stride;
    if (!h->plane->staged[token]) {
        build_row(h, staged, token);
        h->plane->staged[token] = 1;
    }
    return staged;
}

/* ---- Direct -------------------------------------------------------------------------------------------------- */

/* Channel of the actor: the worker. actor->i: next token, actor->rows: rows placed. */
static afdep_status_t direct_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_plane_t *p = h->plane;
    int target = actor->channel, stride = targets_stride(h), budget = ROWS_A_STEP;
    if (AFDEP_PLANTED(SILENT_NOT_AWAITED) && !was_served(h, target))
        actor->left = 1;
    if (!actor->left && h->shape->entry_barrier) {
        if (!h->entered)
            return afdep_host_wait(actor, -1, "the entry barrier");
        actor->left = 1;
    }
    if (!actor->left) {
        uint64_t at = p->base + afdep_at_witness(h->at_source, target);
        uint64_t answer = afdep_fabric_read(h->fabric, at);
        uint32_t step = (uint32_t)h->shape->in_flight;
        afdep_word_state_t state = afdep_tag_state(answer, (uint32_t)h->exchange - step, step);
        if (state == AFDEP_WORD_WAIT)
            return afdep_host_wait(actor, target, "the answer to an earlier exchange");
        if (state == AFDEP_WORD_BROKEN)
            return afdep_host_broken(h, actor, target, "the answer word", answer);
        actor->left = 1; /* the plane at this rank may be overwritten */
    }
    uint32_t rows = p->sent[target];
    uint64_t word = p->peer_worker + afdep_at_count_word(h->at_worker, h->source_domain);
    uint64_t old_count = p->count_words[target], new_count = afdep_word((uint32_t)h->exchange, rows);
    afdep_status_t status = AFDEP_OK;
    for (; actor->i < p->tokens && actor->rows < rows && budget > 0; actor->i++) {
        const int32_t *targets = p->targets + (size_t)actor->i * (size_t)stride;
        int j = 0;
        while (j < p->target_count[actor->i] && targets[j] != target)
            j++;
        if (j == p->target_count[actor->i])
            continue;
        uint64_t offset = p->peer_worker + afdep_at_direct_row(h->at_worker, h->layout, h->shape, h->source_domain,
                                                               (int)actor->rows);
        const void *row = afdep_host_ready_row(h, target, offset, actor->i);
        if (actor->rows + 1 == rows)
            status = afdep_fabric_put_signal(h->fabric, AFDEP_SIGNAL_COUNT_WORD, h->lane_domain, target, offset, row,
                                             h->layout->row.bytes, word, old_count, new_count);
        else
            status = afdep_fabric_put(h->fabric, h->lane_domain, target, offset, row, h->layout->row.bytes);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, target, "room in its queue") : status;
        actor->rows++;
        budget--;
    }
    if (actor->rows < rows)
        return AFDEP_OK;
    if (rows == 0) {
        status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_COUNT_WORD, h->lane_domain, target, word, old_count,
                                     new_count);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, target, "room in its queue") : status;
    }
    p->count_words[target] = new_count;
    return AFDEP_DONE;
}

/* ---- Across domains --------------------------------------------------------------------------------------------- */

static int rail_peer(const afdep_host_t *h, int target)
{
    return afdep_ffn_rank(h->shape, target, h->rail);
}

/* Waits for the done witness of every rail peer (actor->i: the next). */
static afdep_status_t await_witnesses(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    uint32_t step = (uint32_t)s->in_flight;
    for (; afdep_has_witnesses(s) && actor->i < (int)h->targets; actor->i++) {
        if (AFDEP_PLANTED(NO_WITNESS) || (AFDEP_PLANTED(WITNESS_SERVED) && !was_served(h, actor->i)) ||
            afdep_host_is_own_domain(h, actor->i))
            continue;
        uint64_t witness = afdep_fabric_read(h->fabric, h->plane->base + afdep_at_witness(h->at_source, actor->i));
        afdep_word_state_t state = afdep_tag_state(witness, (uint32_t)h->exchange - step, step);
        if (AFDEP_PLANTED(WITNESS_SERVED) && state == AFDEP_WORD_BROKEN)
            state = AFDEP_WORD_WAIT; /* its words skip exchanges */
        if (state == AFDEP_WORD_WAIT)
            return afdep_host_wait(actor, rail_peer(h, actor->i), "the done witness of an earlier exchange");
        if (state == AFDEP_WORD_BROKEN)
            return afdep_host_broken(h, actor, rail_peer(h, actor->i), "the done witness", witness);
    }
    return AFDEP_DONE;
}

/* Shared domains: waits for the answer of every worker of this domain (actor->left: the next). */
static afdep_status_t await_answers(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    uint32_t step = (uint32_t)s->in_flight, rails = h->worker ? 0 : (uint32_t)afdep_worker_rails(s);
    for (; h->forwarder && !AFDEP_PLANTED(NO_RAIL_ANSWER) && actor->left < rails; actor->left++) {
        int peer = afdep_ffn_rank(s, h->domain, (int)actor->left);
        uint64_t word = afdep_fabric_read(h->fabric,
                                          h->plane->base + afdep_at_rail_answer(h->at_forwarder, (int)actor->left));
        afdep_word_state_t state = afdep_tag_state(word, (uint32_t)h->exchange - step, step);
        if (state == AFDEP_WORD_WAIT)
            return afdep_host_wait(actor, peer, "the rail answer to an earlier exchange");
        if (state == AFDEP_WORD_BROKEN)
            return afdep_host_broken(h, actor, peer, "the rail answer", word);
    }
    return AFDEP_DONE;
}

/* count: waits for all that must come before the peers' planes are written to, then sends the count words (actor->j:
   the next target). */
static afdep_status_t count_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    afdep_status_t status = await_witnesses(h, actor);
    if (status == AFDEP_DONE)
        status = await_answers(h, actor);
    if (status != AFDEP_DONE)
        return status;
    if (s->entry_barrier && !h->entered)
        return afdep_host_wait(actor, -1, "the entry barrier");
    h->gate = 1;
    for (; s->sparse_dispatch && actor->j < (int)h->targets; actor->j++) {
        if (afdep_host_is_own_domain(h, actor->j))
            continue;
        uint64_t word = p->peer_forwarder + afdep_at_count_word(h->at_forwarder, h->source_domain);
        uint64_t value = afdep_word((uint32_t)h->exchange, (uint32_t)p->tokens);
        status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_COUNT_WORD, h->lane_control, rail_peer(h, actor->j), word,
                                     p->count_words[actor->j], value);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, rail_peer(h, actor->j), "room in its queue") : status;
        p->count_words[actor->j] = value;
    }
    return AFDEP_DONE;
}

/* Puts one token's row for one target; the last of its channel carries the finish tail. */
static afdep_status_t put_rail_row(afdep_host_t *h, int channel, int token, int target)
{
    afdep_plane_t *p = h->plane;
    uint64_t lane = afdep_combine_index(h, target, channel);
    uint32_t position = p->placed[lane];
    int peer = rail_peer(h, target);
    uint64_t offset = p->peer_forwarder + afdep_at_rail_row(h->at_forwarder, h->layout, h->shape, h->source_domain,
                                                            channel, (int)position);
    const void *row = afdep_host_ready_row(h, peer, offset, token);
    afdep_status_t status;
    if (position + 1 == p->sent[lane]) {
        uint64_t word = p->peer_forwarder +
                        afdep_at_finish_tail(h->at_forwarder, h->shape, h->source_domain, channel);
        uint64_t tail = afdep_tail_advance(p->finish_tails[lane], 1, p->sent[lane]);
        status = afdep_fabric_put_signal(h->fabric, AFDEP_SIGNAL_FINISH_TAIL, channel, peer, offset, row,
                                         h->layout->row.bytes, word, p->finish_tails[lane], tail);
        if (status == AFDEP_OK)
            p->finish_tails[lane] = tail;
    } else {
        status = afdep_fabric_put(h->fabric, channel, peer, offset, row, h->layout->row.bytes);
    }
    if (status == AFDEP_OK)
        p->placed[lane]++;
    return status;
}

/* A channel that carries no row to this target still finishes there: in the dense protocol always, in the sparse one
   when it was assigned a token (the receiver knows that from T). */
static afdep_status_t finish_without_rows(afdep_host_t *h, int channel, int target)
{
    afdep_plane_t *p = h->plane;
    uint64_t lane = afdep_combine_index(h, target, channel);
    uint64_t word = p->peer_forwarder +
                        afdep_at_finish_tail(h->at_forwarder, h->shape, h->source_domain, channel);
    uint64_t tail = afdep_tail_advance(p->finish_tails[lane], 1, 0);
    afdep_status_t status = afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_FINISH_TAIL, channel, rail_peer(h, target),
                                                word, p->finish_tails[lane], tail);
    if (status == AFDEP_OK)
        p->finish_tails[lane] = tail;
    return status;
}

/* actor->i: next token of the channel, then (negative) -1 - next target to finish; actor->j: its next target. */
static afdep_status_t rail_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int channel = actor->channel, stride = targets_stride(h), budget = ROWS_A_STEP;
    if (!h->gate)
        return afdep_host_wait(actor, -1, "the done witnesses");
    while (actor->i >= 0 && actor->i < p->tokens) {
        const int32_t *targets = p->targets + (size_t)actor->i * (size_t)stride;
        for (; actor->j < p->target_count[actor->i]; actor->j++) {
            int target = targets[actor->j];
            afdep_status_t status = afdep_host_is_own_domain(h, target)
                                        ? afdep_host_forward_own(h, actor, actor->i)
                                        : put_rail_row(h, channel, actor->i, target);
            if (status != AFDEP_OK)
                return status == AFDEP_AGAIN ? afdep_host_wait(actor, rail_peer(h, target), "room in its queue")
                                             : status;
            budget--;
        }
        actor->i += s->channels;
        actor->j = 0;
        if (budget <= 0)
            return AFDEP_OK;
    }
    if (actor->i >= 0)
        actor->i = -1;
    for (int target = -1 - actor->i; target < (int)h->targets; target++, actor->i--) {
        if (p->sent[afdep_combine_index(h, target, channel)] > 0 || afdep_host_is_own_domain(h, target))
            continue;
        afdep_status_t status = finish_without_rows(h, channel, target);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, rail_peer(h, target), "room in its queue") : status;
    }
    if (s->protocol == AFDEP_PROTOCOL_MIXED)
        afdep_host_retire_own(h, channel);
    return AFDEP_DONE;
}

/* ---- The call ------------------------------------------------------------------------------------------------ */

afdep_status_t afdep_host_check_dispatch(const afdep_host_t *h, const afdep_dispatch_t *d, afdep_stream_t stream)
{
    const afdep_shape_t *s = h->shape;
    const char *missing = NULL;
    if (stream)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: stream is not NULL on the host backend", h->call_name);
    if (d->bucket < 1 || d->bucket > s->capacity)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: bucket is %d: 1 to capacity, %d, is wanted", h->call_name, d->bucket,
                          s->capacity);
    if (d->tokens < 0 || d->tokens > d->bucket)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: tokens is %d: 0 to bucket, %d, is wanted", h->call_name, d->tokens,
                          d->bucket);
    if (d->tokens > 0)
        missing = !d->x                   ? "x"
                  : !d->ids && !d->cached ? "ids"
                  : !d->weights           ? "weights"
                  : s->fp8 && !d->x_scale ? "x_scale"
                                          : NULL;
    if (missing)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: %s is NULL with %d tokens", h->call_name, missing, d->tokens);
    if (h->started - h->finished >= (uint64_t)s->in_flight)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: exchange %llu is not %s yet, and in_flight is %d", h->call_name,
                          (unsigned long long)h->finished + 1, h->worker ? "combined" : "collected", s->in_flight);
    afdep_status_t status = afdep_host_check_complete(h);
    if (status == AFDEP_OK && d->cached)
        status = afdep_host_check_cached(h, d->bucket);
    const afdep_plane_t *p = &h->planes[afdep_plane_index(s, h->started + 1)];
    if (status == AFDEP_OK && d->cached && d->tokens != p->tokens)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: tokens is %d: cached is set, and there were %d of these ids",
                          h->call_name, d->tokens, p->tokens);
    return status;
}

/* The end of the call: the exchange is under way, also where a choice was invalid. */
afdep_status_t afdep_host_dispatched(afdep_host_t *h)
{
    if (!h->bad_route.found)
        return AFDEP_OK;
    if (h->bad_route.repeated)
        return afdep_fail(AFDEP_ERR_ROUTE, "%s: token %d, slot %d: expert %d is repeated; taken as -1", h->call_name,
                          h->bad_route.token, h->bad_route.slot, h->bad_route.id);
    return afdep_fail(AFDEP_ERR_ROUTE, "%s: token %d, slot %d: expert %d is outside 0 to %d; taken as -1",
                      h->call_name, h->bad_route.token, h->bad_route.slot, h->bad_route.id, h->shape->num_experts - 1);
}

static void add_actors(afdep_host_t *h)
{
    const afdep_shape_t *s = h->shape;
    int tokens = h->plane->tokens;
    if (s->entry_barrier)
        afdep_host_add(h, afdep_host_entry_step, "entry", -1);
    if (s->protocol == AFDEP_PROTOCOL_DIRECT) {
        for (uint32_t f = 0; f < h->targets; f++)
            afdep_host_add(h, direct_step, "source_dispatch", (int)f);
        return;
    }
    afdep_host_add(h, count_step, "count", -1);
    for (int c = 0; c < s->channels; c++) {
        if (s->sparse_dispatch && afdep_channel_tokens(s, h->source_domain, tokens, c) == 0)
            continue;
        afdep_host_add(h, rail_step, "source_dispatch", c)->i = afdep_channel_first(s, h->source_domain, c);
    }
}

void afdep_host_start_dispatch(afdep_host_t *h, const afdep_dispatch_t *dispatch)
{
    h->dispatch = *dispatch;
    if (h->dispatch.x_scale_token_stride == 0)
        h->dispatch.x_scale_token_stride = h->shape->hidden / AFDEP_SCALE_BLOCK;
    if (h->dispatch.x_scale_block_stride == 0)
        h->dispatch.x_scale_block_stride = 1;
    h->plane->bucket = dispatch->bucket;
    h->plane->tokens = dispatch->tokens;
    h->gate = h->entered = 0;
    h->bad_route.found = 0;
    h->cached = dispatch->cached;
    memset(h->plane->staged, 0, (size_t)dispatch->tokens);
    if (h->cached) {
        memset(h->plane->placed, 0, (size_t)h->targets * h->combine_channels * sizeof(*h->plane->placed));
    } else {
        h->plane->routing = h->exchange;
        plan(h, dispatch);
    }
    afdep_host_count_sent(h);
#ifdef AFDEP_PLANT
    h->plane->served_before = h->plane->served;
    h->plane->served = 0;
    for (uint32_t lane = 0; lane < h->targets * h->combine_channels; lane++)
        h->plane->served |= (uint64_t)(h->plane->sent[lane] > 0) << lane / h->combine_channels;
#endif
    if (h->forwarder)
        afdep_host_add_forward(h);
    add_actors(h);
}

afdep_status_t afdep_host_begin_dispatch(afdep_host_t *h, const afdep_dispatch_t *dispatch, afdep_stream_t stream)
{
    h->call_name = "source_dispatch";
    afdep_status_t status = afdep_host_check(h);
    if (status == AFDEP_OK)
        status = afdep_host_check_dispatch(h, dispatch, stream);
    if (status != AFDEP_OK)
        return status;
    afdep_host_begin(h, h->call_name, ++h->started, afdep_host_dispatched);
    afdep_host_start_dispatch(h, dispatch);
    return AFDEP_OK;
}
