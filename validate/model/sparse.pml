/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why every place of the sparse directional protocol may be written again, as a model for spin: sparse dispatch,
 * sparse combine, the done witness and the words inside an FFN domain. Two rails with one source each, one FFN domain
 * of two ranks, C channels of one slot (so token i of an exchange rides channel i), one plane. This file holds lanes,
 * places and the network, ranks.pml the ranks. scripts/model runs it; docs/protocol.md says what it showed.
 *
 *   C      channels, 1 or 2
 *   N      exchanges, 1 to 3; 0: for ever
 *   FINE   does not merge steps (see Steps)
 *
 * What an exchange brings is chosen freely: each source has 0 to C tokens, and each token needs its rail's FFN rank,
 * the other one, both, or none of this domain. No choice is left out for symmetry.
 *
 * Places. A place (slot or word) holds the number of the exchange that was written into it, and 0 once its reader is
 * done with it. So "not 0" is "unread", whatever lands on that is a violation, and all stale values are one value.
 * Readers in the code can tell no more apart: they compare a tag with their own exchange, and read a cumulative tail
 * as its difference to a shadow. Row counts and extents are sets of tokens here.
 *
 * Lanes. What is sent enters the queue of its lane, and the network lands the lanes' heads in any order. A queue
 * holds what a right protocol can have under way; spin reports a send that finds it full.
 *
 * For ever. With N = 0 numbers repeat after four exchanges, so that the states are finite. The numbers are
 * unambiguous as long as no two ranks of a rail or domain are more than one exchange apart, which is asserted, and
 * they keep the parity.
 *
 * Steps. A rank learns from others by reading a word and tells others by sending. Three reductions keep the states
 * few:
 * 1. A send belongs to the step before it. Being sent late and landing late look alike to everybody else.
 * 2. A read that unlocks no send belongs to the step after it. What could land on its place in between can also land
 *    before the moved read, and is a violation then, because the place still counts as unread.
 * 3. A row lands together with the word that publishes it, and rows for the other rank are sent at the end of
 *    forwarding. Nobody reads a row before its word; and from where a row could land on an unread place, its word can
 *    be sent and land without a step of that place's reader (the tails that forwarding still waits for left the
 *    source together with the row), so the violation stays within reach.
 * So a step waits for words, reads and sends, as one d_step: it has one outcome and never blocks behind its first
 * statement. FINE takes 2 and 3 back; scripts/model runs it too.
 *
 * Not modelled: several slots per channel, several domains, several planes, progress tails, the arithmetic of tails,
 * the dense arm, failures.
 */

#ifndef C
#define C 1
#endif
#ifndef N
#define N 3
#endif

#if N == 0
#define AFTER(n) ((n) % 4 + 1)
#define END 9
#else
#define AFTER(n) ((n) + 1)
#define END (N + 1)
#endif

#ifdef FINE
#define CUT }; d_step {
#define TOGETHER
#else
#define CUT
#define TOGETHER atomic
#endif

#define AT(rail, tok) ((rail) * C + (tok))
#define OWN 1   /* a token needs the FFN rank on its rail */
#define OTHER 2 /* a token needs the other FFN rank */
#define NEEDS(all, tok) (((all) >> (2 * (tok))) & (OWN | OTHER))
#define TO_OTHER(all) (((all) >> 1 & 1) + ((all) >> 2 & 2)) /* the set of tokens that need the other rank */

/* ---- Wrong variants, and rules that could be spared ---- */

#ifdef ONE_FORWARD_ENTRY
#define ENTRY(rail, n) (2 * (rail))
#else
#define ENTRY(rail, n) (2 * (rail) + (n) % 2)
#endif

/* buffer_close waits for the last witness in any case. */
#if defined(NO_WITNESS)
#define WITNESS_AWAITED false
#elif defined(SILENT_NOT_AWAITED)
#define WITNESS_AWAITED (needs != 0 || AFTER(NOW) == END)
#elif defined(ONLY_SILENT_AWAITED)
#define WITNESS_AWAITED (needs == 0 || AFTER(NOW) == END)
#else
#define WITNESS_AWAITED true
#define WITNESS_READ /* each witness is read before the next is due */
#endif

#if defined(UNTAGGED_COUNT) /* takes the word as it stands */
#define COUNT_CAME true
#elif defined(UNTAGGED_COUNT_CHANGE) /* takes the word once it changes */
#define COUNT_CAME (count_tokens[rail] != last_tokens)
#else
#define COUNT_CAME (count_word[rail] != 0)
#endif

#ifdef REPLY_NOT_AWAITED
#define REPLIED true
#else
#define REPLIED (reply_word[rail] != 0 || TO_OTHER(record) == 0)
#endif

#ifdef COLLECT_CHANNEL_0
#define COLLECT_AWAITS(tok) ((tok) == 0 && NEEDS(needs, tok) != 0)
#else
#define COLLECT_AWAITS(tok) (NEEDS(needs, tok) != 0)
#endif

/* ---- Lanes, each [rail] or [rail and channel] ---- */

mtype = { ROW, WORD, PARTIAL, REPLY };
chan count_lane[2] = [2] of { byte, byte };                 /* to the FFN rank: exchange, T */
chan rail_lane[2 * C] = [4] of { mtype, byte, byte };       /* ROW: exchange, needs; WORD, the finish tail: rows */
chan domain_lane[2] = [4 * C + 4] of { mtype, byte, byte }; /* to the FFN rank, from the other: exchange, token(s) */
chan witness_lane[2] = [3] of { byte };                     /* to the source: exchange */
chan reply_lane[2 * C] = [2] of { mtype, byte, byte };      /* ROW: exchange, ranks summed; WORD, the combine tail */

/* ---- Places at the FFN rank [rail] ---- */

byte count_word[2], count_tokens[2];
byte finish_tail[2 * C], finish_rows[2 * C];
byte slot[2 * C], slot_needs[2 * C];         /* rail inbox; a row for this rank stays until it is laid out */
byte domain_slot[2 * C];                     /* domain inbox: rows that came over the other rail */
byte forward_word[4], forward_rows[4];       /* of the other rail, two entries */
byte extents[2];
byte partial[2 * C];                         /* the other rank's, for rows that came over this rail */
byte reply_word[2], reply_rows[2];

/* ---- Places at the source [rail] ---- */

byte witness[2];
byte combine_slot[2 * C], combine_ranks[2 * C];
byte combine_tail[2 * C];

/* ---- Not of the protocol ---- */

byte source_at[2], ffn_at[2]; /* which exchange each rank is in */
byte ended;                   /* ranks that went through all of them */
hidden byte e, v, leftover;   /* scratch within a d_step */
hidden mtype k;

/* ---- The network. Every place is asserted to be free of unread contents when something lands on it ---- */

/* Whether a landing ends with this kind. */
#ifdef FINE
#define LANDED(kind) true
#else
#define LANDED(kind) (kind) != ROW && (kind) != PARTIAL
#endif

inline land_count(rail)
{
    d_step {
        count_lane[rail] ? e, v;
        assert(count_word[rail] == 0);
        count_word[rail] = e;
        count_tokens[rail] = v
    }
}

inline land_rail(lane)
{
    d_step {
        do
        :: rail_lane[lane] ? k, e, v;
           if
           :: k == ROW ->
               assert(slot[lane] == 0);
               slot[lane] = e;
               slot_needs[lane] = v
           :: else ->
               assert(finish_tail[lane] == 0);
               finish_tail[lane] = e;
               finish_rows[lane] = v
           fi;
           if
           :: LANDED(k) -> break
           :: else
           fi
        od;
        e = 0 /* spin wants something behind a loop */
    }
}

inline land_domain(rail)
{
    d_step {
        do
        :: domain_lane[rail] ? k, e, v;
           if
           :: k == ROW ->
               assert(domain_slot[AT(rail, v)] == 0);
               domain_slot[AT(rail, v)] = e
           :: k == WORD ->
               if
               :: v != 0 ->
                   assert(extents[rail] == 0);
                   extents[rail] = e
               :: else
               fi;
               assert(forward_word[ENTRY(rail, e)] == 0);
               forward_word[ENTRY(rail, e)] = e;
               forward_rows[ENTRY(rail, e)] = v
           :: k == PARTIAL ->
               assert(partial[AT(rail, v)] == 0);
               partial[AT(rail, v)] = e
           :: else ->
               assert(reply_word[rail] == 0);
               reply_word[rail] = e;
               reply_rows[rail] = v
           fi;
           if
           :: LANDED(k) -> break
           :: else
           fi
        od;
        e = 0 /* spin wants something behind a loop */
    }
}

inline land_witness(rail)
{
    d_step {
        witness_lane[rail] ? e;
#ifdef WITNESS_READ
        assert(witness[rail] == 0);
#endif
        witness[rail] = e
    }
}

inline land_reply(lane)
{
    d_step {
        do
        :: reply_lane[lane] ? k, e, v;
           if
           :: k == ROW ->
               assert(combine_slot[lane] == 0);
               combine_slot[lane] = e;
               combine_ranks[lane] = v
           :: else ->
               assert(combine_tail[lane] == 0);
               combine_tail[lane] = e
           fi;
           if
           :: LANDED(k) -> break
           :: else
           fi
        od;
        e = 0 /* spin wants something behind a loop */
    }
}

active proctype network()
{
end: /* may rest */
    do
    :: land_count(0)
    :: land_count(1)
    :: land_rail(0)
    :: land_rail(1)
    :: land_domain(0)
    :: land_domain(1)
    :: land_witness(0)
    :: land_witness(1)
    :: land_reply(0)
    :: land_reply(1)
#if C == 2
    :: land_rail(2)
    :: land_rail(3)
    :: land_reply(2)
    :: land_reply(3)
#endif
    od
}


#include "ranks.pml"
