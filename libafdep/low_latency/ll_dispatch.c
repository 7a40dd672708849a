/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ll_dispatch: sends this rank's tokens. A token is encoded once, whatever the number of ranks that own its experts,
 * and its row is stored to all of them in one pass over it. Then every rank, served or not, gets the header and the
 * word.
 */
#include <stdint.h>
#include <string.h>

#include "core/error.h"
#include "low_latency/ll.h"
#include "numerics/e8m0.h"

/* ---- Beginning ----------------------------------------------------------------------------------------------- */

static int chosen_before(const int32_t *ids, int k)
{
    for (int i = 0; i < k; i++)
        if (ids[i] == ids[k])
            return 1;
    return 0;
}

/* A token's choices as they are sent, and how many rows come back for them from each rank. */
static void take_ids(afdep_ll_rank_t *b, afdep_ll_plane_t *p, int token)
{
    afdep_host_t *h = &b->host;
    int32_t *ids = p->ids + (size_t)token * (size_t)b->settings.shape.top_k;
    for (int k = 0; k < p->shape.top_k; k++) {
        int64_t id = p->dispatch.topk_idx[(int64_t)token * p->shape.top_k + k];
        int known = id >= 0 && id < p->shape.experts;
        ids[k] = known ? (int32_t)id : -1;
        int repeated = known && chosen_before(ids, k);
        if (repeated)
            ids[k] = -1;
        if (ids[k] >= 0)
            p->chosen[ids[k] / p->local]++;
        if (h->bad_route.found || (known ? !repeated : id == -1))
            continue;
        h->bad_route.found = 1;
        h->bad_route.token = token;
        h->bad_route.slot = k;
        h->bad_route.id = id > INT32_MAX ? INT32_MAX : id < INT32_MIN ? INT32_MIN : (int)id;
        h->bad_route.repeated = repeated;
    }
}

afdep_status_t afdep_ll_route_status(const afdep_ll_rank_t *b)
{
    const afdep_host_t *h = &b->host;
    if (!h->bad_route.found)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_ROUTE, "ll_dispatch: token %d, slot %d: expert %d %s; it was treated as -1",
                      h->bad_route.token, h->bad_route.slot, h->bad_route.id,
                      h->bad_route.repeated ? "is chosen twice" : "does not exist");
}

static void set_plane(afdep_ll_rank_t *b, afdep_ll_plane_t *p, const afdep_ll_dispatch_t *d,
                      const afdep_ll_shape_t *shape, afdep_ll_format_t format)
{
    size_t ranks = (size_t)shape->ranks;
    p->exchange = b->ledger.started;
    p->shape = *shape;
    p->local = shape->experts / shape->ranks;
    p->tokens = d->tokens;
    p->format = format;
    p->code_bytes = afdep_ll_code_bytes(format, shape->hidden);
    p->scale_bytes = afdep_ll_scale_bytes(format, shape->hidden);
    p->dispatch = *d;
    p->next_source = 0;
    memset(p->sent, 0, ranks * sizeof(*p->sent));
    memset(p->chosen, 0, ranks * sizeof(*p->chosen));
    memset(p->owed, 0, ranks * sizeof(*p->owed));
    memset(p->counts, 0, (size_t)p->local * sizeof(*p->counts));
    *p->header = (afdep_ll_header_t){ .exchange = (uint32_t)p->exchange,
                                      .max_tokens = shape->max_tokens,
                                      .experts = shape->experts,
                                      .hidden = shape->hidden,
                                      .top_k = shape->top_k,
                                      .format = (int32_t)format,
                                      .weights = d->topk_weights != NULL,
                                      .tokens = d->tokens };
}

/* ---- Sending ------------------------------------------------------------------------------------------------- */

/* The row's codes, where they are not the elements themselves, and its scales behind them. */
static void encode(const afdep_ll_rank_t *b, const afdep_ll_plane_t *p, const uint16_t *x, unsigned char *codes)
{
    size_t n = (size_t)p->shape.hidden;
    unsigned char *scales = codes + p->code_bytes; /* a multiple of 16 */
    float powers[AFDEP_LL_BLOCKS_AT_ONCE];
    switch (p->format) {
    case AFDEP_LL_INT8:
        b->quant->int8((int8_t *)codes, (float *)(void *)scales, x, n, p->dispatch.round_scale);
        break;
    case AFDEP_LL_FP8_TOKEN:
        b->quant->e4m3(codes, (float *)(void *)scales, x, n, n, p->dispatch.round_scale);
        break;
    case AFDEP_LL_FP8_BLOCK:
        b->quant->e4m3(codes, (float *)(void *)scales, x, n, AFDEP_FP8_BLOCK, p->dispatch.round_scale);
        break;
    case AFDEP_LL_FP8_BLOCK_UE8M0:
        for (size_t at = 0; at < n; at += AFDEP_LL_BLOCKS_AT_ONCE * AFDEP_FP8_BLOCK) {
            size_t part = n - at < AFDEP_LL_BLOCKS_AT_ONCE * AFDEP_FP8_BLOCK ? n - at
                                                                            : AFDEP_LL_BLOCKS_AT_ONCE * AFDEP_FP8_BLOCK;
            b->quant->e4m3(codes + at, powers, x + at, part, AFDEP_FP8_BLOCK, 1);
            for (size_t i = 0; i < part / AFDEP_FP8_BLOCK; i++)
                scales[at / AFDEP_FP8_BLOCK + i] = afdep_e8m0_of_power(powers[i]);
        }
        break;
    case AFDEP_LL_MXFP8:
        b->quant->mxfp8(codes, scales, x, n);
        break;
    case AFDEP_LL_MXFP4:
        b->quant->mxfp4(codes, scales, x, n);
        break;
    default: /* BF16 rows leave from where they are */
        break;
    }
}

/* The ranks that own the token's experts, each with the place of its next row there. */
static void find_targets(afdep_ll_rank_t *b, afdep_ll_plane_t *p, int token)
{
    const int32_t *ids = p->ids + (size_t)token * (size_t)b->settings.shape.top_k;
    b->stamp++;
    b->targets = 0;
    for (int k = 0; k < p->shape.top_k; k++) {
        int rank = ids[k] < 0 ? -1 : ids[k] / p->local;
        if (rank < 0 || b->mark[rank] == b->stamp)
            continue;
        b->mark[rank] = b->stamp;
        b->target[b->targets] = rank;
        b->target_offset[b->targets++] =
            p->base + afdep_ll_at_row(&b->settings.layout, &b->settings.shape, b->host.rank, p->sent[rank]++);
    }
}

static unsigned char *staged(const afdep_ll_rank_t *b, const afdep_ll_plane_t *p, int token)
{
    return p->staging + (b->mapped ? 0 : (size_t)token) * b->settings.layout.row_stride;
}

static const uint16_t *elements(const afdep_ll_plane_t *p, int token)
{
    return (const uint16_t *)p->dispatch.x + (size_t)token * (size_t)p->shape.hidden;
}

/* Builds the token's row, and stores it wherever a peer's memory can be built in. */
static void build(afdep_ll_rank_t *b, afdep_ll_plane_t *p, int token)
{
    size_t k = (size_t)b->settings.shape.top_k, meta = b->settings.layout.meta_bytes;
    size_t bytes = afdep_ll_row_bytes(b, p), head = p->format == AFDEP_LL_BF16 ? meta : bytes;
    unsigned char *row = staged(b, p, token);
    void *heads[AFDEP_LL_TOPK_MOST], *bodies[AFDEP_LL_TOPK_MOST];
    int windows = 0;
    const afdep_row_tag_t tag = { (uint32_t)p->exchange, (uint32_t)token, (uint32_t)b->host.rank, AFDEP_ROW_MARK };
    memcpy(row, &tag, sizeof(tag));
    memcpy(row + sizeof(tag), p->ids + (size_t)token * k, k * sizeof(*p->ids));
    if (p->dispatch.topk_weights)
        memcpy(row + sizeof(tag) + 4 * k, p->dispatch.topk_weights + (size_t)token * (size_t)p->shape.top_k,
               (size_t)p->shape.top_k * sizeof(float));
    encode(b, p, elements(p, token), row + meta);
    for (int i = 0; i < b->targets; i++) {
        unsigned char *window = afdep_fabric_window(b->host.fabric, b->target[i], b->target_offset[i], bytes);
        if (!window)
            continue;
        heads[windows] = window;
        bodies[windows++] = window + meta;
    }
    b->host.ops->fan_out(heads, windows, row, head);
    if (head < bytes)
        b->host.ops->fan_out(bodies, windows, elements(p, token), bytes - head);
}

/* One target's row: one put, or two where its elements leave from the caller's memory. actor->left: 1 once the first
   of them is put. */
static afdep_status_t put_row(afdep_ll_rank_t *b, afdep_actor_t *actor, const afdep_ll_plane_t *p, int token, int i)
{
    size_t bytes = afdep_ll_row_bytes(b, p), meta = b->settings.layout.meta_bytes;
    size_t head = p->format == AFDEP_LL_BF16 ? meta : bytes;
    int rank = b->target[i];
    void *window = afdep_fabric_window(b->host.fabric, rank, b->target_offset[i], bytes);
    if (window)
        return afdep_fabric_put(b->host.fabric, 0, rank, b->target_offset[i], window, bytes);
    if (!actor->left) {
        afdep_status_t status =
            afdep_fabric_put(b->host.fabric, 0, rank, b->target_offset[i], staged(b, p, token), head);
        if (status != AFDEP_OK || head == bytes)
            return status;
        actor->left = 1;
    }
    afdep_status_t status = afdep_fabric_put(b->host.fabric, 0, rank, b->target_offset[i] + meta, elements(p, token),
                                             bytes - head);
    if (status == AFDEP_OK)
        actor->left = 0;
    return status;
}

/* actor->i: token; actor->j: its next target; actor->rows: 1 once its row is built. */
static afdep_status_t send_tokens(afdep_ll_rank_t *b, afdep_actor_t *actor)
{
    afdep_ll_plane_t *p = b->plane;
    for (; actor->i < p->tokens; actor->i++, actor->j = 0, actor->rows = 0) {
        if (!actor->rows) {
            find_targets(b, p, actor->i);
            build(b, p, actor->i);
            actor->rows = 1;
        }
        for (; actor->j < b->targets; actor->j++) {
            afdep_status_t status = put_row(b, actor, p, actor->i, actor->j);
            if (status != AFDEP_OK)
                return status == AFDEP_AGAIN ? afdep_host_wait(actor, b->target[actor->j], "room in its queue")
                                             : status;
        }
    }
    return AFDEP_DONE;
}

/* The header and the word, on the lane of the rows, so that they come after them. Ranks start with their right
   neighbour. */
static afdep_status_t send_words(afdep_ll_rank_t *b, afdep_actor_t *actor)
{
    afdep_ll_plane_t *p = b->plane;
    const afdep_ll_layout_t *l = &b->settings.layout;
    int ranks = p->shape.ranks, me = b->host.rank;
    for (; actor->j < ranks; actor->j++) {
        int rank = (me + 1 + actor->j) % ranks;
        uint64_t word = afdep_word((uint32_t)p->exchange, p->sent[rank]);
        afdep_status_t status = afdep_fabric_put_signal(b->host.fabric, AFDEP_SIGNAL_COUNT_WORD, 0, rank,
                                                        p->base + afdep_ll_at_header(l, me), p->header,
                                                        sizeof(*p->header), p->base + afdep_ll_at_dispatch_word(l, me),
                                                        p->dispatch_words[rank], word);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, rank, "room in its queue") : status;
        p->dispatch_words[rank] = word;
    }
    return AFDEP_DONE;
}

static afdep_status_t dispatch_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_ll_rank_t *b = afdep_ll_of(h);
    afdep_status_t status = send_tokens(b, actor);
    return status == AFDEP_DONE ? send_words(b, actor) : status;
}

afdep_status_t afdep_ll_begin_dispatch(afdep_ll_rank_t *b, const afdep_ll_dispatch_t *dispatch)
{
    afdep_ll_shape_t shape;
    afdep_ll_format_t format;
    afdep_status_t status = afdep_ll_check_dispatch(&b->settings, dispatch, &shape, &format);
    if (status == AFDEP_OK)
        status = afdep_ll_may_dispatch(&b->ledger);
    if (status != AFDEP_OK)
        return status;
    b->host.started = afdep_ll_start_exchange(&b->ledger);
    b->plane = afdep_ll_plane_of(b, b->host.started);
    set_plane(b, b->plane, dispatch, &shape, format);
    b->host.bad_route.found = 0;
    for (int t = 0; t < dispatch->tokens; t++)
        take_ids(b, b->plane, t);
    afdep_host_begin(&b->host, "ll_dispatch", b->host.started, NULL);
    afdep_host_add(&b->host, dispatch_step, "ll_dispatch", -1);
    return AFDEP_OK;
}
