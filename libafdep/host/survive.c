/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Surviving a lost source (AFDEP_FLAG_SURVIVE_SOURCES). An Attention rank that dies, gives up, or is not heard of past
 * the deadline is masked: FFN ranks take it for one that sends nothing, and send it nothing.
 *
 * Why the others stay exact. Sources share no word and no row: what a source writes stands in places of its own at
 * every FFN rank, and a token's sum has only rows of its own source in it. So each FFN rank may mask at a moment of its
 * own.
 * - What it has taken of the exchange under way was published by a word that followed the row, so it is whole; it goes
 *   its way through the domain, counted as any row, and only the last step, to the source, is left out.
 * - A source that was only late may go on writing. Of the exchange in which it is masked it can write what was not
 *   taken, and it cannot write into a later one on the plane: that needs the witness of this one, which it is not sent.
 * - A rank that does not know yet waits for that source at its own deadline, so masks travel: whoever masks tells all
 *   ranks in a word per victim (any writer writes the same 1). The victim finds its own word and gives up.
 *
 * Where none of several sources has come, nobody is masked: the fault is elsewhere, and the ordinary errors say so.
 *
 * An FFN rank waits for a source until nothing has come for one deadline, and for all sources of a call two deadlines
 * at most; everybody else waits three, so that nobody's patience ends before the mask has come.
 */
#include "core/error.h"
#include "core/log.h"
#include "host/host.h"

static int may_lose(const afdep_host_t *h, int rank)
{
    return h->lost && afdep_is_source(h->shape, rank) && rank != h->rank;
}

void afdep_host_lose(afdep_host_t *h, int rank, const char *why)
{
    if (h->lost[rank])
        return;
    h->lost[rank] = 1;
    afdep_log(AFDEP_LOG_WARN, "rank %d: rank %d is masked: %s", h->rank, rank, why);
    for (int peer = 0; h->worker && peer < h->shape->ranks; peer++)
        afdep_host_tell(h, peer, afdep_lost_word(h->shape, rank), 1);
}

afdep_status_t afdep_host_hear(afdep_host_t *h)
{
    for (int rank = h->shape->ffn_ranks; h->lost && rank < h->shape->ranks; rank++) {
        if (h->lost[rank] || afdep_fabric_read(h->fabric, afdep_lost_word(h->shape, rank)) == 0)
            continue;
        if (rank == h->rank)
            return afdep_fail(AFDEP_ERR_PEER, "rank %d, this one, is masked by the FFN ranks: they lost it", rank);
        h->lost[rank] = 1;
    }
    return AFDEP_OK;
}

int afdep_host_forgives(afdep_host_t *h, int rank, const char *why)
{
    if (!may_lose(h, rank))
        return 0;
    afdep_host_lose(h, rank, why);
    return 1;
}

/* Whether the receive under way still waits for a source (direct: Attention index, else its domain). */
static int is_missing(const afdep_host_t *h, int source)
{
    const afdep_shape_t *s = h->shape;
    const afdep_plane_t *p = h->plane;
    int missing = 0;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT) {
        uint64_t word = afdep_fabric_read(h->fabric, p->base + afdep_at_count_word(h->at_worker, source));
        return afdep_tag_state(word, (uint32_t)h->exchange, (uint32_t)s->in_flight) == AFDEP_WORD_WAIT;
    }
    for (int c = 0; c < s->channels; c++)
        missing |= p->open[source * s->channels + c];
    return missing;
}

static int source_rank(const afdep_host_t *h, int source)
{
    return h->shape->protocol == AFDEP_PROTOCOL_DIRECT ? h->shape->ffn_ranks + source
                                                       : afdep_source_rank(h->shape, source, h->rail);
}

/* Masks the sources that the receive under way still waits for. Where none of several has come it is not they who are
   late: they may all wait for another FFN rank, and that is an error for all. */
static int lose_missing(afdep_host_t *h)
{
    int missing = 0, come = 0;
    for (int source = 0; source < (int)h->sources; source++)
        if (!h->lost[source_rank(h, source)])
            *(is_missing(h, source) ? &missing : &come) += 1;
    if (missing == 0 || (come == 0 && missing > 1))
        return 0;
    for (int source = 0; source < (int)h->sources; source++)
        if (!h->lost[source_rank(h, source)] && is_missing(h, source))
            afdep_host_lose(h, source_rank(h, source), "it did not do its part before the deadline");
    return 1;
}

int afdep_host_lose_awaited(afdep_host_t *h)
{
    int lost = 0;
    if (!h->worker)
        return 0;
    if (h->receive_stage == AFDEP_RECEIVE_JOIN)
        return lose_missing(h);
    for (int i = 0; i < h->actor_count; i++) {
        int peer = h->actors[i].wait.peer;
        if (peer >= 0 && may_lose(h, peer) && !h->lost[peer]) {
            afdep_host_lose(h, peer, "it did not do its part before the deadline");
            lost = 1;
        }
    }
    return lost;
}

int32_t afdep_host_list_lost(afdep_host_t *h, int32_t *ranks, int32_t room)
{
    int32_t count = 0;
    (void)h->fabric->ops->progress(h->fabric);
    (void)afdep_host_look(h);
    for (int rank = 0; h->lost && rank < h->shape->ranks; rank++) {
        if (!h->lost[rank])
            continue;
        if (count < room)
            ranks[count] = rank;
        count++;
    }
    return count;
}
