/* SPDX-License-Identifier: Apache-2.0 */
/* INT8 codes: -127 .. 127, so that codes and their negatives are alike; -128 is never written. */
#ifndef AFDEP_NUMERICS_INT8_H
#define AFDEP_NUMERICS_INT8_H

#include "numerics/bits.h"

/* Rounds to nearest even; beyond 127, infinities included, saturates with the sign; NaN becomes 0 (whoever encodes a
   row says so in its scale). */
AFDEP_HD int8_t afdep_int8_from_f32(float value)
{
    float clamped = value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value;

    /* 1.5 * 2^23, whose unit is 1: the sum's own rounding is the one that is wanted. */
    return (int8_t)(clamped == clamped ? (int32_t)(afdep_f32_bits(clamped + 12582912.0f) - 0x4B400000u) : 0);
}

#endif
