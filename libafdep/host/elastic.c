/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of a symmetric rank, which is source, worker and, across domains, forwarder at once: the actors of the role
 * calls in one call each, over one segment that holds all regions. And the barrier that its dispatch may begin with.
 *
 * The duties share no word and no place, so each keeps its own argument of reuse (dispatch.c, forward.c, reply.c); a
 * call that is several duties only adds order, since it ends when all of them are done.
 */
#include "core/error.h"
#include "host/host.h"

/* ---- Entry barrier ------------------------------------------------------------------------------------------- */

/* Tells each rank of the domain or of the rail that this one is here (actor->j: the next), then waits for all of theirs
   (actor->i). */
static afdep_status_t meet(afdep_host_t *h, afdep_actor_t *actor, int on_rail)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    int count = on_rail ? s->attention_domains : s->ranks_per_domain, self = on_rail ? h->domain : h->rail;
    uint32_t step = (uint32_t)s->in_flight;
    uint64_t value = afdep_word((uint32_t)h->exchange, 0), before = afdep_word((uint32_t)h->exchange - step, 0);
    for (; actor->j < count; actor->j++) {
        if (actor->j == self)
            continue;
        int peer = on_rail ? afdep_ffn_rank(s, actor->j, h->rail) : afdep_ffn_rank(s, h->domain, actor->j);
        uint64_t word = p->peer_source + (on_rail ? afdep_at_rail_barrier(h->at_source, s, self)
                                                  : afdep_at_domain_barrier(h->at_source, self));
        afdep_status_t status =
            afdep_fabric_signal(h->fabric, AFDEP_SIGNAL_WITNESS, h->lane_control, peer, word, before, value);
        if (status != AFDEP_OK)
            return status == AFDEP_AGAIN ? afdep_host_wait(actor, peer, "room in its queue") : status;
    }
    for (; actor->i < count; actor->i++) {
        if (actor->i == self || AFDEP_PLANTED(NO_BARRIER_WAIT) || (on_rail && AFDEP_PLANTED(BARRIER_IN_DOMAIN)))
            continue;
        int peer = on_rail ? afdep_ffn_rank(s, actor->i, h->rail) : afdep_ffn_rank(s, h->domain, actor->i);
        uint64_t word =
            afdep_fabric_read(h->fabric, p->base + (on_rail ? afdep_at_rail_barrier(h->at_source, s, actor->i)
                                                            : afdep_at_domain_barrier(h->at_source, actor->i)));
        afdep_word_state_t state = afdep_tag_state(word, (uint32_t)h->exchange, step);
        if (state == AFDEP_WORD_WAIT)
            return afdep_host_wait(actor, peer, "the barrier word");
        if (state == AFDEP_WORD_BROKEN)
            return afdep_host_broken(h, actor, peer, "the barrier word", word);
    }
    return AFDEP_DONE;
}

/*
 * entry: first the ranks of a domain meet, then those of a rail, so that whoever has met its rail knows that every
 * domain was complete. A rank comes here after its combine of exchange n - G.
 *
 * Its words are written again in exchange n + G, after this rank's dispatch of n is over. For that it needed what the
 * peer sends only once past its own barrier of n (its counts or tails, and inside a domain its forward word, which
 * follows them), so that the peer has read the word of n.
 */
afdep_status_t afdep_host_entry_step(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    for (; actor->rows < 2; actor->rows++, actor->i = actor->j = 0) {
        int on_rail = actor->rows == 1;
        if (on_rail && s->protocol == AFDEP_PROTOCOL_DIRECT)
            continue; /* one domain */
        afdep_status_t status = meet(h, actor, on_rail);
        if (status != AFDEP_DONE)
            return status;
    }
    h->entered = 1;
    return AFDEP_DONE;
}

/* ---- The calls ----------------------------------------------------------------------------------------------- */

afdep_status_t afdep_host_begin_elastic_dispatch(afdep_host_t *h, const afdep_dispatch_t *dispatch,
                                                 afdep_receive_t *receive, afdep_stream_t stream)
{
    h->call_name = "elastic_dispatch";
    int again = h->receive_stage != AFDEP_RECEIVE_IDLE; /* with room for rows that have come already */
    afdep_status_t status = afdep_host_check(h);
    if (status == AFDEP_OK && !again)
        status = afdep_host_check_dispatch(h, dispatch, stream);
    if (status == AFDEP_OK)
        status = afdep_host_check_receive(h, receive, stream);
    if (status == AFDEP_OK && dispatch->bucket != receive->bucket)
        status = afdep_fail(AFDEP_ERR_ARGUMENT, "elastic_dispatch: bucket is %d in dispatch and %d in receive",
                            dispatch->bucket, receive->bucket);
    if (status == AFDEP_OK && dispatch->cached != receive->cached)
        status = afdep_fail(AFDEP_ERR_ARGUMENT, "elastic_dispatch: cached is %d in dispatch and %d in receive",
                            dispatch->cached, receive->cached);
    if (status != AFDEP_OK)
        return status;
    if (again) {
        h->receive = receive;
        afdep_host_begin(h, h->call_name, h->started, afdep_host_counted);
        return AFDEP_OK;
    }
    afdep_host_begin(h, h->call_name, ++h->started, afdep_host_counted);
    afdep_host_start_dispatch(h, dispatch);
    afdep_host_start_receive(h, receive);
    return AFDEP_OK;
}

afdep_status_t afdep_host_begin_elastic_combine(afdep_host_t *h, const afdep_reply_t *reply, afdep_collect_t *collect,
                                                afdep_stream_t stream)
{
    h->call_name = "elastic_combine";
    afdep_status_t status = afdep_host_check(h);
    if (status == AFDEP_OK)
        status = afdep_host_check_reply(h, reply, stream);
    if (status == AFDEP_OK)
        status = afdep_host_check_collect(h, collect, stream);
    if (status != AFDEP_OK)
        return status;
    afdep_host_begin(h, h->call_name, h->finished + 1, afdep_host_collected);
    afdep_host_start_reply(h, reply);
    afdep_host_start_collect(h, collect);
    return AFDEP_OK;
}
