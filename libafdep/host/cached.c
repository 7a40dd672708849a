/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cached routing: an exchange with the ids of the last one on its plane that was counted, and new payloads and weights.
 * The source plans nothing, forwarders look up no owners, and a receive keeps arrivals, prefix sums and rows: it only
 * makes sure that the same rows have come again.
 *
 * Every row says how old its ids are: by how many exchanges they were planned before. A receive that was told that the
 * ids are the old ones, by a caller who is wrong, finds another number there, or another number of rows, and says so:
 * it never lays rows out by a plan that is not theirs.
 */
#include <string.h>

#include "core/error.h"
#include "host/host.h"

static afdep_status_t routing_changed(const afdep_host_t *h, const afdep_actor_t *actor, int rank, const char *what)
{
    return afdep_fail(AFDEP_ERR_PROTOCOL,
                      "rank %d in %s of exchange %llu, %s: %s of rank %d is not that of exchange %llu, whose ids were "
                      "said to be used again", h->rank, h->call_name, (unsigned long long)h->exchange, actor->duty,
                      what, rank, (unsigned long long)h->plane->routing);
}

afdep_status_t afdep_host_check_cached(const afdep_host_t *h, int32_t bucket)
{
    const afdep_plane_t *p = &h->planes[afdep_plane_index(h->shape, h->started + 1)];
    if (p->routing == 0)
        return afdep_fail(AFDEP_ERR_ORDER, "%s: cached is set and exchange %llu is the first that uses its plane",
                          h->call_name,
                          (unsigned long long)h->started + 1);
    if (bucket != p->bucket)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s: bucket is %d: cached is set, and it was %d with these ids",
                          h->call_name, bucket, p->bucket);
    return AFDEP_OK;
}

/* Whether the row of a recorded arrival was published again: what its source wrote and no word told of is not looked
   at. */
static int was_published(const afdep_host_t *h, const afdep_arrival_t *arrival, int rank)
{
    const afdep_shape_t *s = h->shape;
    if (s->protocol == AFDEP_PROTOCOL_DIRECT)
        return !afdep_host_is_lost(h, rank);
    if (arrival->rail != h->rail)
        return 1; /* its word is joined */
    uint64_t place = (uint64_t)arrival->source_domain * (uint32_t)s->capacity + arrival->token;
    return h->plane->own[place].exchange == (uint32_t)h->exchange;
}

/* Whether the row has come again; takes its weights. That of a source that is lost may be absent: its rank in the
   domain may know of the loss before this one, and then the number of rows still agrees. */
static int has_come_again(const afdep_host_t *h, afdep_arrival_t *arrival, int rank)
{
    const afdep_plane_t *p = h->plane;
    unsigned char *row = afdep_host_arrival_row(h, arrival);
    const afdep_row_tag_t *tag = afdep_tag_at(row, h->layout->row.tag_offset);
    const float *weights = (const float *)(const void *)(row + h->layout->row.weights_offset);
    arrival->absent = !was_published(h, arrival, rank) || !afdep_tag_is(tag, h->exchange, arrival->token, rank) ||
                      afdep_row_age(tag) != (uint32_t)(h->exchange - p->routing);
    for (uint32_t k = arrival->first; k < arrival->first + arrival->rows; k++)
        p->weights[k] = arrival->absent ? 0 : weights[p->choices[k]];
    return !arrival->absent;
}

/* Direct: source after source, as their count words come (actor->i: the next, actor->rows: its first arrival). */
static afdep_status_t relist_direct(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    for (; actor->i < s->attention_ranks; actor->i++) {
        uint64_t word;
        int rank = afdep_host_source(h, actor->i, 0);
        uint32_t end = actor->rows, came = 0;
        afdep_status_t status = afdep_host_read_count(h, actor, &word);
        if (status != AFDEP_OK)
            return status;
        while (end < p->arrival_count && p->arrivals[end].source_domain == actor->i)
            end++;
        for (; actor->rows < end; actor->rows++) {
            int again = has_come_again(h, &p->arrivals[actor->rows], rank);
            if (!again && !h->lost)
                return routing_changed(h, actor, rank, "a row");
            came += (uint32_t)again;
        }
        if (afdep_word_low(word) != came)
            return routing_changed(h, actor, rank, "the number of rows");
    }
    return AFDEP_DONE;
}

/* Across domains, once the words of all rails are joined. */
static afdep_status_t relist_rails(afdep_host_t *h, afdep_actor_t *actor)
{
    const afdep_shape_t *s = h->shape;
    afdep_plane_t *p = h->plane;
    uint32_t found[s->ranks_per_domain];
    memset(found, 0, sizeof(found));
    for (uint32_t i = 0; i < p->arrival_count; i++) {
        afdep_arrival_t *arrival = &p->arrivals[i];
        int rank = afdep_source_rank(s, arrival->source_domain, arrival->rail);
        int again = has_come_again(h, arrival, rank);
        if (!again && !h->lost)
            return routing_changed(h, actor, rank, "a row");
        found[arrival->rail] += (uint32_t)again;
    }
    for (int rail = 0; rail < s->ranks_per_domain; rail++)
        if (found[rail] != p->arrived[rail])
            return routing_changed(h, actor, afdep_ffn_rank(s, h->domain, rail), "the number of rows");
    return AFDEP_DONE;
}

afdep_status_t afdep_host_relist(afdep_host_t *h, afdep_actor_t *actor)
{
    if (h->shape->protocol == AFDEP_PROTOCOL_DIRECT)
        return relist_direct(h, actor);
    return relist_rails(h, actor);
}

afdep_status_t afdep_host_check_recorded(const afdep_host_t *h, const afdep_actor_t *actor, uint64_t slot, int rank,
                                         const afdep_row_tag_t *tag)
{
    const afdep_plane_t *p = h->plane;
    if (p->record_token[slot] == tag->token && afdep_row_age(tag) == (uint32_t)(h->exchange - p->routing))
        return AFDEP_OK;
    return routing_changed(h, actor, rank, "a row");
}
