/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known wrong variants of the protocol, for the negative controls. They exist only in objects compiled with AFDEP_PLANT
 * (the test build's own); everywhere else AFDEP_PLANTED() is the constant 0 and nothing of them is left.
 */
#ifndef AFDEP_PROTOCOL_PLANTED_H
#define AFDEP_PROTOCOL_PLANTED_H

typedef enum afdep_plant {
    AFDEP_PLANT_NOTHING,
    AFDEP_PLANT_NO_WITNESS,            /* dispatch does not wait for the done witness */
    AFDEP_PLANT_WITNESS_CHANNEL_0,     /* the witness goes out when channel 0 alone is forwarded */
    AFDEP_PLANT_WITNESS_SERVED,        /* only sources that sent rows get, and wait for, a witness */
    AFDEP_PLANT_COLLECT_CHANNEL_0,     /* collect waits for channel 0 only */
    AFDEP_PLANT_ONE_FORWARD_WORD,      /* one forward-word entry in place of two */
    AFDEP_PLANT_UNTAGGED_COUNT,        /* a count word is taken for this exchange's, whatever its tag */
    AFDEP_PLANT_EARLIER_COUNT,         /* forward trusts the count word of the exchange before */
    AFDEP_PLANT_SILENT_NOT_AWAITED,    /* a source does not wait for the FFN ranks it sent nothing to */
    AFDEP_PLANT_TAIL_CARRIES,          /* a tail is one 64-bit sum, and its token half carries into its finishes */
    AFDEP_PLANT_ONE_PLANE,             /* exchanges in flight share a plane */
    AFDEP_PLANT_NO_RAIL_ANSWER,        /* shared domains: a forwarder does not wait for its domain's workers */
    AFDEP_PLANT_WORD_BEFORE_ANSWER,    /* shared domains: forward words go out without waiting for rail answers */
    AFDEP_PLANT_NO_BARRIER_WAIT,       /* symmetric: nobody waits in the entry barrier */
    AFDEP_PLANT_BARRIER_IN_DOMAIN      /* symmetric: only the ranks of a domain wait for each other */
} afdep_plant_t;

#ifdef AFDEP_PLANT
extern afdep_plant_t afdep_planted;
#define AFDEP_PLANTED(name) (afdep_planted == AFDEP_PLANT_##name)
#else
#define AFDEP_PLANTED(name) 0
#endif

#endif
