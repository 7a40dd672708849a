/* SPDX-License-Identifier: Apache-2.0 */
/* ll_reduce: joins the words of all ranks, then sums the rows of each of this rank's tokens, in slot order. */
#include <string.h>

#include "core/error.h"
#include "low_latency/ll.h"

/* The next rank's word: it says how many rows that rank sent, which is how many of its experts were chosen here. */
static afdep_status_t join(afdep_ll_rank_t *b, afdep_actor_t *actor)
{
    afdep_ll_plane_t *p = b->plane;
    int owner = p->next_owner;
    uint64_t word = afdep_fabric_read(b->host.fabric, p->base + afdep_ll_at_combine_word(&b->settings.layout, owner));
    afdep_word_state_t state = afdep_tag_state(word, (uint32_t)p->exchange, AFDEP_LL_PLANES);
    if (AFDEP_PLANTED(SILENT_NOT_AWAITED) && p->chosen[owner] == 0)
        state = AFDEP_WORD_READY, word = 0;
    if (state == AFDEP_WORD_WAIT)
        return afdep_host_wait(actor, owner, "the combine word");
    if (state == AFDEP_WORD_BROKEN || afdep_word_low(word) != p->chosen[owner])
        return afdep_host_broken(&b->host, actor, owner, "the combine word", word);
    p->next_owner++;
    return AFDEP_OK;
}

static afdep_status_t sum_token(afdep_ll_rank_t *b, afdep_actor_t *actor, int token)
{
    afdep_ll_plane_t *p = b->plane;
    size_t hidden = (size_t)p->shape.hidden, padded = (hidden + 127) / 128 * 128, choices = (size_t)token;
    afdep_term_t terms[AFDEP_LL_TOPK_MOST];
    int count = 0;
    choices *= (size_t)b->settings.shape.top_k;
    for (int slot = 0; slot < p->shape.top_k; slot++) {
        if (p->ids[choices + (size_t)slot] < 0)
            continue;
        const unsigned char *row = afdep_host_own(&b->host, p->base + afdep_ll_at_combine_row(
                                                                          &b->settings.layout, &b->settings.shape,
                                                                          (uint32_t)token, (uint32_t)slot));
        afdep_row_tag_t tag;
        memcpy(&tag, row, sizeof(tag));
        if (!afdep_tag_is(&tag, p->exchange, (uint32_t)token, b->host.rank) || afdep_row_age(&tag) != (uint32_t)slot)
            return afdep_host_broken(&b->host, actor, p->ids[choices + (size_t)slot] / p->local, "a combine row's tag",
                                     afdep_word(tag.exchange, tag.token));
        terms[count].row = (const uint16_t *)(const void *)(row + AFDEP_LL_COMBINE_HEAD);
        terms[count++].weight = p->weights[choices + (size_t)slot];
    }
    uint16_t *out = (uint16_t *)p->combine.combined_x + (size_t)token * hidden;
    b->host.ops->weighted_sum(padded == hidden ? out : b->sum, terms, count, padded);
    if (padded != hidden)
        memcpy(out, b->sum, hidden * sizeof(*out));
    return AFDEP_OK;
}

static afdep_status_t reduce_step(afdep_host_t *h, afdep_actor_t *actor)
{
    afdep_ll_rank_t *b = afdep_ll_of(h);
    afdep_ll_plane_t *p = b->plane;
    if (p->next_owner < p->shape.ranks)
        return join(b, actor);
    for (int t = 0; t < p->tokens; t++) {
        afdep_status_t status = sum_token(b, actor, t);
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_DONE;
}

void afdep_ll_begin_reduce(afdep_ll_rank_t *b, afdep_ll_plane_t *p)
{
    b->plane = p;
    afdep_host_begin(&b->host, "ll_combine's receive", p->exchange, NULL);
    afdep_host_add(&b->host, reduce_step, "ll_reduce", -1);
}

void afdep_ll_end_reduce(afdep_ll_rank_t *b, afdep_ll_plane_t *p)
{
    afdep_ll_set_stage(&b->ledger, p->exchange, AFDEP_LL_FREE);
}
