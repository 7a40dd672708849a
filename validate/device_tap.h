/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on the CUDA backend. A tap is a device fabric with nothing changed, that keeps the fabric of the buffer which
 * this thread opened: a rank can then change its own segment between a peer's stores and its own kernel, which to the
 * kernel is a store that was lost, late, doubled or garbled on the way.
 */
#ifndef AFDEP_VALIDATE_DEVICE_TAP_H
#define AFDEP_VALIDATE_DEVICE_TAP_H

#include "cuda/fabric.h"
#include "protocol/device.h"
#include "protocol/layout.h"
#include "validate/rig.h"

/* Words of this rank's segment, each one of many that are alike: of the tap's token, where a token's is meant. */
typedef enum afdep_tap_word {
    AFDEP_TAP_NONE,
    /* One domain: a choice of the first source's token; the first FFN rank's answer */
    AFDEP_TAP_ROUTE,
    AFDEP_TAP_ANSWER,
    /* Across domains, at an FFN rank: of the first source domain (and the token's channel), or of the second rail */
    AFDEP_TAP_COUNT,
    AFDEP_TAP_FINISH,
    AFDEP_TAP_ROW_TAG,
    AFDEP_TAP_FORWARD,
    AFDEP_TAP_REPLY,
    /* and at a source: of the first FFN domain */
    AFDEP_TAP_WITNESS,
    AFDEP_TAP_COMBINE,
    AFDEP_TAP_REPLY_TAG,
    /* The same of few tokens (cuda/rail_few.cuh). A word of a line has 16 bytes: meant are the last eight, the exchange's
       number in their upper half. At an FFN rank: a row's first line, and the one with its choices, from the first source
       domain; choices and a row's first line over the second rail; a line of a partial from there */
    AFDEP_TAP_RAIL_LINE,
    AFDEP_TAP_RAIL_TAIL,
    AFDEP_TAP_CHOICES,
    AFDEP_TAP_DOMAIN_LINE,
    AFDEP_TAP_PARTIAL_LINE,
    /* and at a source: a line of the first FFN domain's sum */
    AFDEP_TAP_COMBINE_LINE
} afdep_tap_word_t;

typedef struct afdep_tap {
    afdep_device_provider_t provider; /* for afdep_group_t.fabrics */
    afdep_device_fabric_t *fabric;    /* of the buffer that is open */
    afdep_shape_t shape;
    afdep_device_layout_t direct; /* of this rank's segment in one domain, */
    afdep_layout_t layout;        /* or across domains, */
    afdep_device_layout_t few;    /* with the area of few tokens behind it, where there is one */
    uint64_t bytes;
    int ffn, token;
    unsigned char *image; /* of the segment, as it was when taken */
} afdep_tap_t;

/* Around the device fabric named `fabric`. 0, or -1: it is not built. */
int afdep_tap_init(afdep_tap_t *tap, const char *fabric);

/* Once the rig's buffer is open, and before it closes. 0, or -1 without memory. */
int afdep_tap_connect(afdep_tap_t *tap, const afdep_rig_t *rig);
void afdep_tap_disconnect(afdep_tap_t *tap);

/* The same around a segment of that size, of which nothing else is known. */
int afdep_tap_connect_segment(afdep_tap_t *tap, uint64_t bytes);

/* Whether a word is of a line; whether another rank of the domain sends it, in its own call. */
int afdep_tap_of_few(afdep_tap_word_t word);
int afdep_tap_of_domain(afdep_tap_word_t word);

/* Where a word stands in this rank's segment, of the only plane, in an exchange (counted from 1). */
uint64_t afdep_tap_place(const afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange);

/* Keeps the segment as it is now; puts back the rows that words like this one publish, or are of (in one domain everything
   but the words), so that those that came since were never sent. */
int afdep_tap_take(afdep_tap_t *tap);
int afdep_tap_put_back(afdep_tap_t *tap, afdep_tap_word_t word, uint64_t exchange);
int afdep_tap_put_back_range(afdep_tap_t *tap, uint64_t from, uint64_t bytes);

uint64_t afdep_tap_taken(const afdep_tap_t *tap, uint64_t at); /* a word of what was kept */

/* Of all words of lines that are ever looked at, as kept: by how much the oldest number is older than `now`. */
uint32_t afdep_tap_oldest_line(const afdep_tap_t *tap, uint32_t now);
int afdep_tap_read(afdep_tap_t *tap, uint64_t at, uint64_t *word);
int afdep_tap_write(afdep_tap_t *tap, uint64_t at, uint64_t word);

/* The same after `ms`, on a thread of its own, to be waited for by the second. 0, or -1. */
typedef struct afdep_tap_later afdep_tap_later_t;
afdep_tap_later_t *afdep_tap_write_later(afdep_tap_t *tap, uint64_t at, uint64_t word, int ms);
int afdep_tap_wait(afdep_tap_later_t *later);

#endif
