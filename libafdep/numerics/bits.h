/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of an FP32 value and back, for C and for CUDA; no arithmetic, so NaN payloads and denormals stay as they
   are. */
#ifndef AFDEP_NUMERICS_BITS_H
#define AFDEP_NUMERICS_BITS_H

#include <string.h>

#include "numerics/numerics.h"

AFDEP_HD uint32_t afdep_f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

AFDEP_HD float afdep_f32_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

#endif
