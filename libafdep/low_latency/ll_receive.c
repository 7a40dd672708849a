/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ll_receive: joins the words of all ranks and lays their rows out by expert, in the order (source rank, token). Every
 * value that a peer wrote is checked before it is used as an index.
 */
#include <string.h>

#include "core/error.h"
#include "low_latency/ll.h"

static afdep_status_t differ(const afdep_ll_rank_t *b, int source, const char *name, int32_t theirs, int32_t mine)
{
    return afdep_fail(AFDEP_ERR_PROTOCOL,
                      "exchange %llu: rank %d dispatched with %s %d and rank %d with %d: all ranks of "
                      "an exchange must be given the same",
                      (unsigned long long)b->plane->exchange, source, name, theirs, b->host.rank, mine);
}

static afdep_status_t check_header(const afdep_ll_rank_t *b, const afdep_ll_plane_t *p, int source)
{
    afdep_ll_header_t theirs;
    memcpy(&theirs, afdep_host_own(&b->host, p->base + afdep_ll_at_header(&b->settings.layout, source)),
           sizeof(theirs));
    const struct {
        const char *name;
        int32_t theirs, mine;
    } fields[] = {
        { "num_max_dispatch_tokens_per_rank", theirs.max_tokens, p->shape.max_tokens },
        { "num_experts", theirs.experts, p->shape.experts },
        { "hidden", theirs.hidden, p->shape.hidden },
        { "num_topk", theirs.top_k, p->shape.top_k },
        { "format", theirs.format, (int32_t)p->format },
    };
    if (theirs.exchange != (uint32_t)p->exchange)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "exchange %llu: the header of rank %d is of exchange %u",
                          (unsigned long long)p->exchange, source, theirs.exchange);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        if (fields[i].theirs != fields[i].mine)
            return differ(b, source, fields[i].name, fields[i].theirs, fields[i].mine);
    if (theirs.tokens > 0 && !theirs.weights && p->dispatch.recv_topk_weights)
        return afdep_fail(AFDEP_ERR_PROTOCOL,
                          "exchange %llu: rank %d dispatched without topk_weights and rank %d wants to "
                          "receive them",
                          (unsigned long long)p->exchange, source, b->host.rank);
    return AFDEP_OK;
}

/* Row `i` of local expert `e` to the caller. */
static void lay_out(const afdep_ll_plane_t *p, int e, uint32_t i, const unsigned char *codes, float weight,
                    const afdep_row_tag_t *place)
{
    const afdep_ll_dispatch_t *d = &p->dispatch;
    size_t at = afdep_ll_row_index(p, e, i);
    memcpy((unsigned char *)d->recv_x + at * p->code_bytes, codes, p->code_bytes);
    if (p->scale_bytes)
        memcpy((unsigned char *)d->recv_x_scales + at * p->scale_bytes, codes + p->code_bytes, p->scale_bytes);
    if (d->recv_topk_weights)
        d->recv_topk_weights[at] = weight;
    if (d->recv_source) {
        d->recv_source[2 * at] = (int32_t)place->source;
        d->recv_source[2 * at + 1] = (int32_t)place->token;
    }
    p->places[at] = *place;
}

/* One row of `source`. Its tag names exchange, token and source, and tokens ascend: a row that was lost, or came twice,
   does not pass. */
static afdep_status_t take_row(afdep_ll_rank_t *b, afdep_actor_t *actor, int source, uint32_t position,
                               int64_t *token)
{
    afdep_ll_plane_t *p = b->plane;
    const afdep_ll_layout_t *l = &b->settings.layout;
    const unsigned char *row =
        afdep_host_own(&b->host, p->base + afdep_ll_at_row(l, &b->settings.shape, source, position));
    int32_t ids[AFDEP_LL_TOPK_MOST], first = b->host.rank * p->local;
    float weights[AFDEP_LL_TOPK_MOST] = { 0 };
    afdep_row_tag_t tag;
    size_t k = (size_t)b->settings.shape.top_k;
    memcpy(&tag, row, sizeof(tag));
    if (tag.exchange != (uint32_t)p->exchange || tag.source != (uint32_t)source || (int64_t)tag.token <= *token ||
        tag.token >= (uint32_t)p->shape.max_tokens)
        return afdep_host_broken(&b->host, actor, source, "a row's tag", afdep_word(tag.exchange, tag.token));
    *token = tag.token;
    memcpy(ids, row + sizeof(tag), (size_t)p->shape.top_k * sizeof(*ids));
    if (p->dispatch.recv_topk_weights)
        memcpy(weights, row + sizeof(tag) + 4 * k, (size_t)p->shape.top_k * sizeof(*weights));
    int taken = 0;
    for (int slot = 0; slot < p->shape.top_k; slot++) {
        int e = ids[slot] - first;
        if (ids[slot] < first || e >= p->local)
            continue;
        if (p->counts[e] >= (uint32_t)p->shape.ranks * (uint32_t)p->shape.max_tokens)
            return afdep_host_broken(&b->host, actor, source, "a row's choices", (uint64_t)(uint32_t)ids[slot]);
        const afdep_row_tag_t place = { tag.exchange, tag.token, tag.source, AFDEP_ROW_MARK + (uint32_t)slot };
        lay_out(p, e, p->counts[e]++, row + l->meta_bytes, weights[slot], &place);
        p->owed[source]++;
        taken++;
    }
    return taken ? AFDEP_OK : afdep_host_broken(&b->host, actor, source, "a row without choices here", tag.token);
}

static afdep_status_t receive_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_ll_rank_t *b = afdep_ll_of(h);
    afdep_ll_plane_t *p = b->plane;
    if (p->next_source == p->shape.ranks)
        return AFDEP_DONE;
    int source = p->next_source;
    uint64_t word = afdep_fabric_read(h->fabric, p->base + afdep_ll_at_dispatch_word(&b->settings.layout, source));
    afdep_word_state_t state = afdep_tag_state(word, (uint32_t)p->exchange, AFDEP_LL_PLANES);
    if (state == AFDEP_WORD_WAIT)
        return afdep_host_wait(actor, source, "the dispatch word");
    if (state == AFDEP_WORD_BROKEN || afdep_word_low(word) > (uint32_t)b->settings.shape.max_tokens)
        return afdep_host_broken(h, actor, source, "the dispatch word", word);
    afdep_status_t status = check_header(b, p, source);
    int64_t token = -1;
    for (uint32_t i = 0; status == AFDEP_OK && i < afdep_word_low(word); i++)
        status = take_row(b, actor, source, i, &token);
    if (status != AFDEP_OK)
        return status;
    p->next_source++;
    return p->next_source == p->shape.ranks ? AFDEP_DONE : AFDEP_OK;
}

void afdep_ll_begin_receive(afdep_ll_rank_t *b, afdep_ll_plane_t *p)
{
    b->plane = p;
    afdep_host_begin(&b->host, "ll_dispatch's receive", p->exchange, NULL);
    afdep_host_add(&b->host, receive_step, "ll_receive", -1);
}

void afdep_ll_end_receive(afdep_ll_rank_t *b, afdep_ll_plane_t *p)
{
    int32_t *statistics = p->dispatch.cumulative_local_expert_recv_stats;
    for (int e = 0; e < p->local; e++) {
        p->dispatch.recv_count[e] = p->counts[e];
        if (statistics) /* wraps rather than overflows */
            statistics[e] = (int32_t)((uint32_t)statistics[e] + p->counts[e]);
    }
    afdep_ll_set_stage(&b->ledger, p->exchange, AFDEP_LL_RECEIVED);
}
