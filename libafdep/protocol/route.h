/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets what: the targets and rails of a token's choices, for the host and the predictor alike; and, for the
 * predictor, which channels signal although they carried no row: validate/unit/test_predict_actors.c holds it to what
 * the host's actors send, message by message.
 */
#ifndef AFDEP_PROTOCOL_ROUTE_H
#define AFDEP_PROTOCOL_ROUTE_H

#include "protocol/channel.h"

/* Where a token is sent, ascending: FFN ranks (direct) or FFN domains (directional). `ids` [K] are valid or -1;
   `targets` has room for min(K, targets). Returns how many. */
AFDEP_HD int afdep_token_targets(const afdep_shape_t *s, const int32_t *ids, int32_t *targets)
{
    int count = 0;
    for (int k = 0; k < s->top_k; k++) {
        if (ids[k] < 0)
            continue;
        int32_t target = afdep_expert_target(s, ids[k]);
        int at = count;
        while (at > 0 && targets[at - 1] > target)
            at--;
        if (at > 0 && targets[at - 1] == target)
            continue;
        for (int i = count++; i > at; i--)
            targets[i] = targets[i - 1];
        targets[at] = target;
    }
    return count;
}

/* The rails of FFN domain `domain` that own experts of a token, ascending. `ids` as above; `rails` has room for
   min(K, D). */
AFDEP_HD int afdep_token_rails(const afdep_shape_t *s, int domain, const int32_t *ids, uint16_t *rails)
{
    int count = 0;
    for (int k = 0; k < s->top_k; k++) {
        if (ids[k] < 0)
            continue;
        int owner = afdep_expert_owner(s, ids[k]);
        if (afdep_domain_of(s, owner) != domain)
            continue;
        uint16_t rail = (uint16_t)afdep_rail_of(s, owner);
        int at = count;
        while (at > 0 && rails[at - 1] > rail)
            at--;
        if (at > 0 && rails[at - 1] == rail)
            continue;
        for (int i = count++; i > at; i--)
            rails[i] = rails[i - 1];
        rails[at] = rail;
    }
    return count;
}

/* Whether a source with T tokens ends channel `c` with a finish tail at every target, also where it sent no row: always
   in the dense protocol; in the sparse one where tokens are assigned to the channel, which the receiver knows from T.
 */
AFDEP_HD int afdep_channel_finishes(const afdep_shape_t *s, int source_domain, int tokens, int c)
{
    return !s->sparse_dispatch || afdep_channel_tokens(s, source_domain, tokens, c) > 0;
}

/* Whether a target answers on a channel that brought it `rows` rows: the source collects exactly those answers. */
AFDEP_HD int afdep_channel_answers(const afdep_shape_t *s, uint32_t rows)
{
    return rows > 0 || afdep_combines_everywhere(s);
}

/* Whether a dispatch waits for the witnesses (direct: answers) of the exchange that used its plane before. Without
   sparse combine nothing is awaited: that exchange's collect has seen a combine signal on all channels of every rail
   peer. */
AFDEP_HD int afdep_dispatch_awaits_witness(const afdep_shape_t *s)
{
    return afdep_has_witnesses(s);
}

#endif
