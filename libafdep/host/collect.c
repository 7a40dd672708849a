/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source's second half: waits for the channels that it expects replies on, and sums each token's rows of targets.
 *
 * Sparse combine: a channel is expected from a target exactly when a row went there on it. Otherwise all channels of
 * all rail peers are awaited, as the dense protocol signals them all (and as it relies on for reuse, see dispatch.c).
 */
#include <string.h>

#include "core/error.h"
#include "host/host.h"

#define ROWS_A_STEP 32

/* Consumes the combine tails of one channel (actor->i: the next target). AFDEP_DONE: all there. */
static afdep_status_t join_channel(afdep_host_t *h, afdep_actor_t *actor, int channel)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT;
    for (; actor->i < (int)h->targets; actor->i++) {
        uint64_t lane = afdep_combine_index(h, actor->i, channel);
        if (p->sent[lane] == 0 && !afdep_combines_everywhere(s))
            continue;
        if (AFDEP_PLANTED(COLLECT_CHANNEL_0) && channel != 0) {
            p->combine_shadow[lane] = afdep_tail_advance(p->combine_shadow[lane], 1, p->sent[lane]);
            continue;
        }
        int peer = direct ? actor->i : afdep_ffn_rank(s, actor->i, h->rail);
        uint64_t tail = afdep_fabric_read(h->fabric,
                                          p->base + afdep_at_combine_tail(h->at_source, s, actor->i, channel));
        uint32_t finishes = afdep_tail_finishes(p->combine_shadow[lane], tail);
        uint32_t rows = afdep_tail_tokens(p->combine_shadow[lane], tail);
        if (finishes == 0 && rows == 0)
            return afdep_host_wait(actor, peer, "the combine signal");
        if (finishes != 1 || rows != p->sent[lane])
            return afdep_host_broken(h, actor, peer, "the combine tail", tail);
        p->combine_shadow[lane] = tail;
    }
    return AFDEP_DONE;
}

/* The combine inbox rows of a token. 0: one of them is not there; `peer` says whose. */
static int gather(const afdep_host_t *h, int token, unsigned char **rows, int *count, int *peer)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = h->plane;
    int stride = h->targets < (uint32_t)s->top_k ? (int)h->targets : s->top_k;
    const int32_t *targets = p->targets + (size_t)token * (size_t)stride;
    uint32_t tag = afdep_host_packs(h) ? h->layout->row.packed_tag_offset : h->layout->row.reply_tag_offset;
    *count = p->target_count[token];
    for (int k = 0; k < *count; k++) {
        unsigned char *row = afdep_host_own(h, p->base + afdep_at_combine_row(h->at_source, h->layout, s,
                                                                              targets[k], token));
        *peer = s->protocol == AFDEP_PROTOCOL_DIRECT ? targets[k] : afdep_ffn_rank(s, targets[k], h->rail);
        if (!afdep_tag_is(afdep_tag_at(row, tag), h->exchange, (uint32_t)token, *peer))
            return 0;
        rows[k] = row;
    }
    return 1;
}

static int is_view(const afdep_host_t *h)
{
    return h->collect->view && h->shape->protocol == AFDEP_PROTOCOL_DIRECT && h->shape->ffn_ranks == 1;
}

static void sum_rows(const afdep_host_t *h, uint16_t *out, unsigned char *const *rows, int count)
{
    size_t hidden = (size_t)h->shape->hidden;
    if (afdep_host_packs(h)) {
        afdep_packed_term_t terms[32];
        for (int k = 0; k < count; k++)
            terms[k] = (afdep_packed_term_t){ rows[k], rows[k] + h->layout->row.packed_scale_offset };
        h->ops->packed_sum(out, terms, count, hidden);
        return;
    }
    afdep_term_t terms[32];
    for (int k = 0; k < count; k++)
        terms[k] = (afdep_term_t){ (const uint16_t *)(const void *)rows[k], 1 };
    h->ops->sum(out, terms, count, hidden);
}

static afdep_status_t sum_token(afdep_host_t *h, int token)
{
    unsigned char *rows[32];
    int count, peer = -1;
    if (!gather(h, token, rows, &count, &peer))
        return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d in %s of exchange %llu: the reply of rank %d for token %d is "
                          "not there", h->rank, h->call_name, (unsigned long long)h->exchange, peer, token);
    size_t hidden = (size_t)h->shape->hidden;
    if (!is_view(h)) {
        sum_rows(h, (uint16_t *)h->collect->out + (size_t)token * hidden, rows, count);
        return AFDEP_OK;
    }
    /* The only reply row is the result; a token without one gets its +0 here, where no peer writes. */
    if (count == 0)
        memset(afdep_host_own(h, h->plane->base + afdep_at_combine_row(h->at_source, h->layout, h->shape, 0,
                                                                       token)),
               0, hidden * 2);
    return AFDEP_OK;
}

/* collect: one channel (direct: all tokens). actor->j: the next token, once the channel is joined (actor->left). */
static afdep_status_t collect_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    int direct = s->protocol == AFDEP_PROTOCOL_DIRECT, step = direct ? 1 : s->channels;
    if (!actor->left) {
        afdep_status_t status = join_channel(h, actor, direct ? 0 : actor->channel);
        if (status != AFDEP_DONE)
            return status;
        actor->left = 1;
    }
    for (int budget = ROWS_A_STEP; actor->j < h->plane->tokens; actor->j += step, budget--) {
        if (budget == 0)
            return AFDEP_OK;
        afdep_status_t status = sum_token(h, actor->j);
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_DONE;
}

afdep_status_t afdep_host_check_collect(afdep_host_t *h, const afdep_collect_t *c, afdep_stream_t stream)
{
    if (stream)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: stream is not NULL on the host backend", h->call_name);
    afdep_status_t status = afdep_host_check_complete(h);
    if (status != AFDEP_OK)
        return status;
    if (h->finished == h->started)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: no dispatch is uncollected; exchange %llu was the last", h->call_name,
                          (unsigned long long)h->finished);
    const afdep_plane_t *p = afdep_host_plane(h, h->finished + 1);
    int view = c->view && h->shape->protocol == AFDEP_PROTOCOL_DIRECT && h->shape->ffn_ranks == 1;
    if (!c->out && !view && p->tokens > 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: out is NULL with %d tokens%s", h->call_name, p->tokens,
                          c->view ? ", and this layout has no view" : "");
    if ((uintptr_t)c->out % 16 != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: out is %p: a multiple of 16 is wanted", h->call_name, c->out);
    return AFDEP_OK;
}

/* The end of the call: says where the result stands. */
afdep_status_t afdep_host_collected(afdep_host_t *h)
{
    const afdep_plane_t *p = h->plane;
    afdep_collect_t *c = h->collect;
    c->tokens = p->tokens;
    c->result = c->out;
    c->result_stride = h->shape->hidden;
    if (is_view(h)) {
        c->result = afdep_host_own(h, p->base + afdep_at_combine_row(h->at_source, h->layout, h->shape, 0, 0));
        c->result_stride = (int64_t)(h->layout->row.reply_stride / 2);
    }
    h->finished++;
    return AFDEP_OK;
}

void afdep_host_start_collect(afdep_host_t *h, afdep_collect_t *collect)
{
    const afdep_shape_t *s = h->shape;
    h->collect = collect;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT) {
        afdep_host_add(h, collect_step, "collect", -1);
        return;
    }
    if (h->forwarder && !h->worker) { /* whose reply would be the call that forwards */
        h->gate = 0;
        afdep_host_add_reply_forward(h);
    }
    for (int c = 0; c < s->channels; c++) {
        if (s->sparse_combine && afdep_channel_tokens(s, h->source_domain, h->plane->tokens, c) == 0)
            continue;
        afdep_host_add(h, collect_step, "collect", c)->j = afdep_channel_first(s, h->source_domain, c);
    }
}

afdep_status_t afdep_host_begin_collect(afdep_host_t *h, afdep_collect_t *collect, afdep_stream_t stream)
{
    h->call_name = "source_collect";
    afdep_status_t status = afdep_host_check(h);
    if (status == AFDEP_OK)
        status = afdep_host_check_collect(h, collect, stream);
    if (status != AFDEP_OK)
        return status;
    afdep_host_begin(h, h->call_name, h->finished + 1, afdep_host_collected);
    afdep_host_start_collect(h, collect);
    return AFDEP_OK;
}
