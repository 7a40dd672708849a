/* SPDX-License-Identifier: Apache-2.0 */
/* The row loops in plain C: what every vector version must equal bit for bit, and what runs where none of them can. */
#include <math.h>
#include <string.h>

#include "numerics/group.h"
#include "numerics/rows.h"

#ifdef __FAST_MATH__
#error "the row loops are exact: build without -ffast-math"
#endif

/* Columns whose accumulators stay in the nearest cache, over all rows. A constant, which lets compilers vectorize. */
enum { BLOCK = 128 };

static void store_block(uint16_t *restrict dst, const float *restrict acc)
{
    for (int i = 0; i < BLOCK; i++) {
        dst[i] = afdep_bf16_from_f32(acc[i]);
    }
}

static void sum(uint16_t *dst, const afdep_term_t *terms, int count, size_t n)
{
    float acc[BLOCK];

    if (count <= 0) {
        memset(dst, 0, n * sizeof(*dst));
        return;
    }
    if (count == 1) {
        memcpy(dst, terms[0].row, n * sizeof(*dst));
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            acc[i] = afdep_bf16_to_f32(terms[0].row[at + (size_t)i]);
        }
        for (int k = 1; k < count; k++) {
            const uint16_t *row = terms[k].row + at;

            for (int i = 0; i < BLOCK; i++) {
                acc[i] += afdep_bf16_to_f32(row[i]);
            }
        }
        store_block(dst + at, acc);
    }
}

static void weighted_sum(uint16_t *dst, const afdep_term_t *terms, int count, size_t n)
{
    float acc[BLOCK];

    if (count <= 0) {
        memset(dst, 0, n * sizeof(*dst));
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            acc[i] = terms[0].weight * afdep_bf16_to_f32(terms[0].row[at + (size_t)i]);
        }
        for (int k = 1; k < count; k++) {
            const uint16_t *row = terms[k].row + at;
            float weight = terms[k].weight;

            for (int i = 0; i < BLOCK; i++) {
                acc[i] = fmaf(weight, afdep_bf16_to_f32(row[i]), acc[i]);
            }
        }
        store_block(dst + at, acc);
    }
}

/* In blocks that stay in the nearest cache while they are stored to every destination. */
static void fan_out(void *const *dst, int count, const void *src, size_t bytes)
{
    const size_t block = 4096;

    for (size_t at = 0; at < bytes; at += block) {
        size_t size = bytes - at < block ? bytes - at : block;

        for (int d = 0; d < count; d++) {
            memcpy((unsigned char *)dst[d] + at, (const unsigned char *)src + at, size);
        }
    }
}

static void pack(uint8_t *codes, uint8_t *scales, const uint16_t *row, size_t n)
{
    for (size_t at = 0; at < n; at += AFDEP_GROUP) {
        uint32_t largest = 0, scale;

        for (int i = 0; i < AFDEP_GROUP; i++) {
            uint32_t magnitude = row[at + (size_t)i] & 0x7FFFu;

            largest = magnitude <= 0x7F80u && magnitude > largest ? magnitude : largest;
        }
        scale = afdep_group_scale(largest);
        scales[at / AFDEP_GROUP] = (uint8_t)scale;
        for (int i = 0; i < AFDEP_GROUP; i++) {
            codes[at + (size_t)i] = afdep_group_code(row[at + (size_t)i], scale);
        }
    }
}

static void packed_sum(uint16_t *dst, const afdep_packed_term_t *terms, int count, size_t n)
{
    float acc[BLOCK];

    if (count <= 0) {
        memset(dst, 0, n * sizeof(*dst));
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        for (int k = 0; k < count; k++) {
            const uint8_t *codes = terms[k].codes + at;
            uint32_t scale = terms[k].scales[at / AFDEP_GROUP];

            for (int i = 0; i < BLOCK; i++) {
                float value = afdep_group_value(codes[i], scale);

                acc[i] = k == 0 ? value : acc[i] + value;
            }
        }
        store_block(dst + at, acc);
    }
}

const afdep_row_ops_t afdep_row_ops_scalar = { "scalar", sum, weighted_sum, fan_out, pack, packed_sum };
