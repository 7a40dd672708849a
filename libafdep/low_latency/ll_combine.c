/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ll_combine: sends each expert's rows back to where their tokens came from, every one to the place of its token and
 * slot, so that no rank needs to know what others send. Then every rank, owed rows or not, gets the word.
 */
#include <stdint.h>
#include <string.h>

#include "core/error.h"
#include "low_latency/ll.h"

/* ---- Checking ------------------------------------------------------------------------------------------------ */

/* The caller's choices are those that were sent. */
static afdep_status_t check_ids(const afdep_ll_rank_t *b, const afdep_ll_plane_t *p, const afdep_ll_combine_t *c)
{
    for (int t = 0; t < p->tokens; t++)
        for (int k = 0; k < p->shape.top_k; k++) {
            int64_t id = c->topk_idx[(int64_t)t * p->shape.top_k + k];
            int32_t sent = p->ids[(int64_t)t * b->settings.shape.top_k + k];
            /* What was repaired at dispatch may be passed as it was then. */
            if (id != sent && sent != -1)
                return afdep_fail(AFDEP_ERR_ARGUMENT,
                                  "ll_combine: token %d, slot %d: expert %lld, and %d was dispatched", t, k,
                                  (long long)id, sent);
        }
    return AFDEP_OK;
}

static afdep_status_t check(const afdep_ll_rank_t *b, const afdep_ll_plane_t *p, const afdep_ll_combine_t *c)
{
    uint64_t rows = 0;
    for (int e = 0; e < p->local; e++)
        rows += p->counts[e];
    afdep_status_t status = afdep_ll_check_combine(c, p->tokens, &p->shape, p->combine_buffer, rows > 0);
    return status == AFDEP_OK ? check_ids(b, p, c) : status;
}

/* ---- Sending ------------------------------------------------------------------------------------------------- */

/* One row: one put where the peer's memory can be built in; else one for the tag and one for the elements, which leave
   from x. actor->left: 1 once the first of the two is put. */
static afdep_status_t put_row(afdep_ll_rank_t *b, afdep_actor_t *actor, const afdep_ll_plane_t *p, size_t at)
{
    const afdep_row_tag_t *tag = &p->places[at]; /* unchanged until the plane is used again */
    size_t bytes = 2 * (size_t)p->shape.hidden;
    int rank = (int)tag->source;
    uint64_t offset =
        p->base + afdep_ll_at_combine_row(&b->settings.layout, &b->settings.shape, tag->token, afdep_row_age(tag));
    const unsigned char *x = (const unsigned char *)p->combine.x + at * bytes;
    unsigned char *window = afdep_fabric_window(b->host.fabric, rank, offset, AFDEP_LL_COMBINE_HEAD + bytes);
    if (window) {
        memcpy(window, tag, sizeof(*tag));
        memcpy(window + AFDEP_LL_COMBINE_HEAD, x, bytes);
        return afdep_fabric_put(b->host.fabric, 0, rank, offset, window, AFDEP_LL_COMBINE_HEAD + bytes);
    }
    if (!actor->left) {
        afdep_status_t status = afdep_fabric_put(b->host.fabric, 0, rank, offset, tag, sizeof(*tag));
        if (status != AFDEP_OK)
            return status;
        actor->left = 1;
    }
    afdep_status_t status = afdep_fabric_put(b->host.fabric, 0, rank, offset + AFDEP_LL_COMBINE_HEAD, x, bytes);
    if (status == AFDEP_OK)
        actor->left = 0;
    return status;
}

/* actor->i: local expert; actor->rows: its next row. */
static afdep_status_t send_rows(afdep_ll_rank_t *b, afdep_actor_t *actor)
{
    const afdep_ll_plane_t *p = b->plane;
    for (; actor->i < p->local; actor->i++, actor->rows = 0)
        for (; actor->rows < p->counts[actor->i]; actor->rows++) {
            size_t at = afdep_ll_row_index(p, actor->i, actor->rows);
            afdep_status_t status = put_row(b, actor, p, at);
            if (status != AFDEP_OK)
                return status == AFDEP_AGAIN ? afdep_host_wait(actor, (int)p->places[at].source, "room in its queue")
                                             : status;
        }
    return AFDEP_DONE;
}

/* actor->j: ranks that have their word, from the right neighbour on. */
static afdep_status_t send_words(afdep_ll_rank_t *b, afdep_actor_t *actor)
{
    afdep_ll_plane_t *p = b->plane;
    int ranks = p->shape.ranks, me = b->host.rank;
    for (; actor->j < ranks; actor->j++) {
        int rank = (me + 1 + actor->j) % ranks;
        uint64_t word = afdep_word((uint32_t)p->exchange, p->owed[rank]);
        afdep_status_t status = afdep_fabric_signal(b->host.fabric, AFDEP_SIGNAL_COMBINE, 0, rank,
                                                    p->base + afdep_ll_at_combine_word(&b->settings.layout, me),
                                                    p->combine_words[rank], word);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, rank, "room in its queue") : status;
        p->combine_words[rank] = word;
    }
    return AFDEP_DONE;
}

static afdep_status_t combine_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_ll_rank_t *b = afdep_ll_of(h);
    afdep_status_t status = send_rows(b, actor);
    return status == AFDEP_DONE ? send_words(b, actor) : status;
}

afdep_status_t afdep_ll_begin_combine(afdep_ll_rank_t *b, const afdep_ll_combine_t *combine)
{
    afdep_ll_plane_t *p = b->plane;
    size_t k = (size_t)p->shape.top_k, stride = (size_t)b->settings.shape.top_k;
    afdep_status_t status = check(b, p, combine);
    if (status != AFDEP_OK)
        return status;
    p->combine = *combine;
    if (combine->zero_copy)
        p->combine.x = p->combine_buffer;
    p->combine.combined_x = combine->out ? combine->out : p->result;
    p->next_owner = 0;
    for (int t = 0; t < p->tokens; t++)
        memcpy(p->weights + (size_t)t * stride, combine->topk_weights + (size_t)t * k, k * sizeof(float));
    afdep_host_begin(&b->host, "ll_combine", p->exchange, NULL);
    afdep_host_add(&b->host, combine_step, "ll_combine", -1);
    return AFDEP_OK;
}
