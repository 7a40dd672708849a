/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row loops in AVX-512F. A block of 128 columns stays in eight registers over all rows and is rounded once.
 *
 * A 512-bit load of BF16 holds 16 pairs; shifting left by 16 gives the FP32 of the even columns, clearing the lower
 * halves gives that of the odd ones, and the two are put together again after rounding: no shuffles. Rounding is done
 * in integers as in bf16.h (the processor's own conversion flushes denormals and keeps NaN payloads).
 */
#include "numerics/rows.h"

#if AFDEP_ROWS_X86

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx512f")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { LANES = 32, BLOCK = 4 * LANES }; /* columns of a register of BF16, and of a block */

typedef struct columns {
    __m512 even0, odd0, even1, odd1, even2, odd2, even3, odd3;
} columns_t;

INLINE __m512 even_columns(__m512i bf16)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(bf16, 16));
}

INLINE __m512 odd_columns(__m512i bf16)
{
    return _mm512_castsi512_ps(_mm512_and_si512(bf16, _mm512_set1_epi32((int)0xFFFF0000u)));
}

/* BF16 in the upper halves; the lower halves hold what is left of the rounding. */
INLINE __m512i rounded(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);

    return _mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7FFF0000));
}

INLINE void store_rounded(uint16_t *dst, __m512 even, __m512 odd)
{
    /* (odd & mask) | even: 0xEA over (mask, odd, even) is a & b | c. */
    _mm512_storeu_si512(dst, _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)0xFFFF0000u), rounded(odd),
                                                       _mm512_srli_epi32(rounded(even), 16), 0xEA));
}

INLINE void store_columns(uint16_t *dst, const columns_t *acc)
{
    store_rounded(dst, acc->even0, acc->odd0);
    store_rounded(dst + LANES, acc->even1, acc->odd1);
    store_rounded(dst + 2 * LANES, acc->even2, acc->odd2);
    store_rounded(dst + 3 * LANES, acc->even3, acc->odd3);
}

INLINE columns_t load_columns(const uint16_t *row)
{
    __m512i a = _mm512_loadu_si512(row);
    __m512i b = _mm512_loadu_si512(row + LANES);
    __m512i c = _mm512_loadu_si512(row + 2 * LANES);
    __m512i d = _mm512_loadu_si512(row + 3 * LANES);
    columns_t columns = { even_columns(a), odd_columns(a), even_columns(b), odd_columns(b),
                          even_columns(c), odd_columns(c), even_columns(d), odd_columns(d) };

    return columns;
}

INLINE void add_columns(columns_t *acc, const uint16_t *row)
{
    columns_t r = load_columns(row);

    acc->even0 = _mm512_add_ps(acc->even0, r.even0);
    acc->odd0 = _mm512_add_ps(acc->odd0, r.odd0);
    acc->even1 = _mm512_add_ps(acc->even1, r.even1);
    acc->odd1 = _mm512_add_ps(acc->odd1, r.odd1);
    acc->even2 = _mm512_add_ps(acc->even2, r.even2);
    acc->odd2 = _mm512_add_ps(acc->odd2, r.odd2);
    acc->even3 = _mm512_add_ps(acc->even3, r.even3);
    acc->odd3 = _mm512_add_ps(acc->odd3, r.odd3);
}

INLINE columns_t multiply_columns(const uint16_t *row, float weight)
{
    __m512 w = _mm512_set1_ps(weight);
    columns_t r = load_columns(row);
    columns_t product = { _mm512_mul_ps(w, r.even0), _mm512_mul_ps(w, r.odd0), _mm512_mul_ps(w, r.even1),
                          _mm512_mul_ps(w, r.odd1), _mm512_mul_ps(w, r.even2), _mm512_mul_ps(w, r.odd2),
                          _mm512_mul_ps(w, r.even3), _mm512_mul_ps(w, r.odd3) };

    return product;
}

INLINE void fma_columns(columns_t *acc, const uint16_t *row, float weight)
{
    __m512 w = _mm512_set1_ps(weight);
    columns_t r = load_columns(row);

    acc->even0 = _mm512_fmadd_ps(w, r.even0, acc->even0);
    acc->odd0 = _mm512_fmadd_ps(w, r.odd0, acc->odd0);
    acc->even1 = _mm512_fmadd_ps(w, r.even1, acc->even1);
    acc->odd1 = _mm512_fmadd_ps(w, r.odd1, acc->odd1);
    acc->even2 = _mm512_fmadd_ps(w, r.even2, acc->even2);
    acc->odd2 = _mm512_fmadd_ps(w, r.odd2, acc->odd2);
    acc->even3 = _mm512_fmadd_ps(w, r.even3, acc->even3);
    acc->odd3 = _mm512_fmadd_ps(w, r.odd3, acc->odd3);
}

TARGET static void sum_two(uint16_t *dst, const uint16_t *a, const uint16_t *b, size_t n)
{
    for (size_t i = 0; i < n; i += BLOCK) {
        columns_t acc = load_columns(a + i);

        add_columns(&acc, b + i);
        store_columns(dst + i, &acc);
    }
}

TARGET static void sum(uint16_t *dst, const afdep_term_t *terms, int count, size_t n)
{
    if (count <= 0) {
        memset(dst, 0, n * sizeof(*dst));
        return;
    }
    if (count == 1) {
        memcpy(dst, terms[0].row, n * sizeof(*dst));
        return;
    }
    if (count == 2) {
        sum_two(dst, terms[0].row, terms[1].row, n);
        return;
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        columns_t acc = load_columns(terms[0].row + i);

        for (int k = 1; k < count; k++) {
            add_columns(&acc, terms[k].row + i);
        }
        store_columns(dst + i, &acc);
    }
}

TARGET static void weighted_sum(uint16_t *dst, const afdep_term_t *terms, int count, size_t n)
{
    if (count <= 0) {
        memset(dst, 0, n * sizeof(*dst));
        return;
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        columns_t acc = multiply_columns(terms[0].row + i, terms[0].weight);

        for (int k = 1; k < count; k++) {
            fma_columns(&acc, terms[k].row + i, terms[k].weight);
        }
        store_columns(dst + i, &acc);
    }
}

/* Ordinary stores: a row is read again soon, by its receiver. Non-temporal ones, measured with 2 MiB of L2, were
   about four times slower for rows of 1 MiB in all, even at 8 MiB, and faster only from 64 MiB on. */
TARGET static void fan_out(void *const *dst, int count, const void *src, size_t bytes)
{
    const unsigned char *from = src;
    size_t at = 0;

    for (; at + 256 <= bytes; at += 256) {
        __m512i a = _mm512_loadu_si512(from + at);
        __m512i b = _mm512_loadu_si512(from + at + 64);
        __m512i c = _mm512_loadu_si512(from + at + 128);
        __m512i d = _mm512_loadu_si512(from + at + 192);

        for (int k = 0; k < count; k++) {
            unsigned char *to = (unsigned char *)dst[k] + at;

            _mm512_storeu_si512(to, a);
            _mm512_storeu_si512(to + 64, b);
            _mm512_storeu_si512(to + 128, c);
            _mm512_storeu_si512(to + 192, d);
        }
    }
    for (; at + 16 <= bytes; at += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + at));

        for (int k = 0; k < count; k++) {
            _mm_storeu_si128((__m128i *)(void *)((unsigned char *)dst[k] + at), a);
        }
    }
}

const afdep_row_ops_t afdep_row_ops_avx512 = { "avx512", sum, weighted_sum, fan_out, afdep_pack_avx2,
                                                afdep_packed_sum_avx2 };

#endif
