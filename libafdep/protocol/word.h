/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words: 64 bits, one writer each, never cleared. Tails carry (finishes << 32 | tokens) since the buffer opened, the
 * others (exchange << 32 | value). Halves wrap by themselves; readers take uint32 differences.
 */
#ifndef AFDEP_PROTOCOL_WORD_H
#define AFDEP_PROTOCOL_WORD_H

#include "protocol/planted.h"
#include "protocol/shape.h"

AFDEP_HD uint64_t afdep_word(uint32_t high, uint32_t low)
{
    return (uint64_t)high << 32 | low;
}

AFDEP_HD uint32_t afdep_word_high(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

AFDEP_HD uint32_t afdep_word_low(uint64_t word)
{
    return (uint32_t)word;
}

/* A tail after `finishes` more finishes and `tokens` more tokens. The halves are added apart: a carry out of the token
   half would read as a finish. */
AFDEP_HD uint64_t afdep_tail_advance(uint64_t tail, uint32_t finishes, uint32_t tokens)
{
    if (AFDEP_PLANTED(TAIL_CARRIES))
        return tail + afdep_word(finishes, tokens);
    return afdep_word(afdep_word_high(tail) + finishes, afdep_word_low(tail) + tokens);
}

AFDEP_HD uint32_t afdep_tail_finishes(uint64_t shadow, uint64_t tail)
{
    return afdep_word_high(tail) - afdep_word_high(shadow);
}

AFDEP_HD uint32_t afdep_tail_tokens(uint64_t shadow, uint64_t tail)
{
    return afdep_word_low(tail) - afdep_word_low(shadow);
}

typedef enum afdep_word_state {
    AFDEP_WORD_WAIT,  /* still the previous exchange's */
    AFDEP_WORD_READY, /* this exchange's */
    AFDEP_WORD_BROKEN /* neither: no correct peer writes that */
} afdep_word_state_t;

/* A tagged word when exchange `exchange` is awaited and `step` exchanges lie between two writes of the word (1, or 2
   for the entries that alternate by parity). */
AFDEP_HD afdep_word_state_t afdep_tag_state(uint64_t word, uint32_t exchange, uint32_t step)
{
    uint32_t tag = afdep_word_high(word);
    if (tag == exchange)
        return AFDEP_WORD_READY;
    return tag == exchange - step ? AFDEP_WORD_WAIT : AFDEP_WORD_BROKEN;
}

#endif
