/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which token rides which channel. Sender and receiver both compute this, so that a channel without tokens needs no
 * signal.
 *
 * Token i of source domain s rides channel (base_s + i) mod C. The stagger spreads the bases over the channels, so that
 * the sources' first tokens meet different forward actors.
 */
#ifndef AFDEP_PROTOCOL_CHANNEL_H
#define AFDEP_PROTOCOL_CHANNEL_H

#include "protocol/shape.h"

AFDEP_HD int afdep_channel_base(const afdep_shape_t *s, int source_domain)
{
    return s->stagger ? (int)((int64_t)source_domain * s->channels / s->attention_domains) : 0;
}

AFDEP_HD int afdep_channel_of(const afdep_shape_t *s, int source_domain, int token)
{
    return (int)(((int64_t)afdep_channel_base(s, source_domain) + token) % s->channels);
}

/* The first token of a source on channel `c` (it may lie beyond T); the next ones follow every C. */
AFDEP_HD int afdep_channel_first(const afdep_shape_t *s, int source_domain, int c)
{
    int first = c - afdep_channel_base(s, source_domain);
    return first < 0 ? first + s->channels : first;
}

/* How many of a source's T tokens ride channel `c`: at most ceil(T/C). */
AFDEP_HD int afdep_channel_tokens(const afdep_shape_t *s, int source_domain, int tokens, int c)
{
    int first = afdep_channel_first(s, source_domain, c);
    return first < tokens ? (tokens - first - 1) / s->channels + 1 : 0;
}

/* Inbox slots of one channel of one source. From capacity, never from the bucket, so that no exchange's slots overlap
   another's differently. */
AFDEP_HD int afdep_channel_slots(const afdep_shape_t *s)
{
    return (s->capacity - 1) / s->channels + 1;
}

#endif
