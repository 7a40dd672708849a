/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16: the upper half of an FP32. Integer operations only, so the results depend neither on the rounding mode nor on
 * FTZ and DAZ, and are the same on host and device.
 */
#ifndef AFDEP_NUMERICS_BF16_H
#define AFDEP_NUMERICS_BF16_H

#include "numerics/bits.h"

#define AFDEP_BF16_NAN 0x7FFFu /* what every NaN that a conversion meets becomes */

/* Exact; a NaN keeps its bits. */
AFDEP_HD float afdep_bf16_to_f32(uint16_t bf16)
{
    return afdep_f32_of_bits((uint32_t)bf16 << 16);
}

/* Rounds to nearest even; NaN becomes 0x7FFF, overflow infinity, denormals are kept. */
AFDEP_HD uint16_t afdep_bf16_from_f32(float value)
{
    uint32_t bits = afdep_f32_bits(value);

    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
        return AFDEP_BF16_NAN;
    }
    /* Half a unit less one, plus the last kept bit: a tie carries only into an odd value. The carry may run through
       the exponent, which is how the largest values become infinity; infinity itself has no low bits to carry. */
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#endif
