/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row loops in AVX2 and FMA: rows_avx512.c with registers of half the width, and so blocks of 64 columns in eight
 * registers. The same even and odd columns, the same rounding in integers.
 */
#include "numerics/rows.h"

#if AFDEP_ROWS_X86

#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { LANES = 16, BLOCK = 4 * LANES }; /* columns of a register of BF16, and of a block */

typedef struct columns {
    __m256 even0, odd0, even1, odd1, even2, odd2, even3, odd3;
} columns_t;

INLINE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

INLINE void store(void *to, __m256i value)
{
    _mm256_storeu_si256((__m256i *)to, value);
}

INLINE __m256 even_columns(__m256i bf16)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(bf16, 16));
}

INLINE __m256 odd_columns(__m256i bf16)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bf16, _mm256_set1_epi32((int)0xFFFF0000u)));
}

/* BF16 in the upper halves; the lower halves hold what is left of the rounding. */
INLINE __m256i rounded(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), last);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7FFF0000), nan);
}

INLINE void store_rounded(uint16_t *dst, __m256 even, __m256 odd)
{
    store(dst, _mm256_blend_epi16(_mm256_srli_epi32(rounded(even), 16), rounded(odd), 0xAA));
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
    __m256i a = load(row);
    __m256i b = load(row + LANES);
    __m256i c = load(row + 2 * LANES);
    __m256i d = load(row + 3 * LANES);
    columns_t columns = { even_columns(a), odd_columns(a), even_columns(b), odd_columns(b),
                          even_columns(c), odd_columns(c), even_columns(d), odd_columns(d) };

    return columns;
}

INLINE void add_columns(columns_t *acc, const uint16_t *row)
{
    columns_t r = load_columns(row);

    acc->even0 = _mm256_add_ps(acc->even0, r.even0);
    acc->odd0 = _mm256_add_ps(acc->odd0, r.odd0);
    acc->even1 = _mm256_add_ps(acc->even1, r.even1);
    acc->odd1 = _mm256_add_ps(acc->odd1, r.odd1);
    acc->even2 = _mm256_add_ps(acc->even2, r.even2);
    acc->odd2 = _mm256_add_ps(acc->odd2, r.odd2);
    acc->even3 = _mm256_add_ps(acc->even3, r.even3);
    acc->odd3 = _mm256_add_ps(acc->odd3, r.odd3);
}

INLINE columns_t multiply_columns(const uint16_t *row, float weight)
{
    __m256 w = _mm256_set1_ps(weight);
    columns_t r = load_columns(row);
    columns_t product = { _mm256_mul_ps(w, r.even0), _mm256_mul_ps(w, r.odd0), _mm256_mul_ps(w, r.even1),
                          _mm256_mul_ps(w, r.odd1), _mm256_mul_ps(w, r.even2), _mm256_mul_ps(w, r.odd2),
                          _mm256_mul_ps(w, r.even3), _mm256_mul_ps(w, r.odd3) };

    return product;
}

INLINE void fma_columns(columns_t *acc, const uint16_t *row, float weight)
{
    __m256 w = _mm256_set1_ps(weight);
    columns_t r = load_columns(row);

    acc->even0 = _mm256_fmadd_ps(w, r.even0, acc->even0);
    acc->odd0 = _mm256_fmadd_ps(w, r.odd0, acc->odd0);
    acc->even1 = _mm256_fmadd_ps(w, r.even1, acc->even1);
    acc->odd1 = _mm256_fmadd_ps(w, r.odd1, acc->odd1);
    acc->even2 = _mm256_fmadd_ps(w, r.even2, acc->even2);
    acc->odd2 = _mm256_fmadd_ps(w, r.odd2, acc->odd2);
    acc->even3 = _mm256_fmadd_ps(w, r.even3, acc->even3);
    acc->odd3 = _mm256_fmadd_ps(w, r.odd3, acc->odd3);
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

TARGET static void fan_out(void *const *dst, int count, const void *src, size_t bytes)
{
    const unsigned char *from = src;
    size_t at = 0;

    for (; at + 128 <= bytes; at += 128) {
        __m256i a = load(from + at);
        __m256i b = load(from + at + 32);
        __m256i c = load(from + at + 64);
        __m256i d = load(from + at + 96);

        for (int k = 0; k < count; k++) {
            unsigned char *to = (unsigned char *)dst[k] + at;

            store(to, a);
            store(to + 32, b);
            store(to + 64, c);
            store(to + 96, d);
        }
    }
    for (; at + 16 <= bytes; at += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(from + at));

        for (int k = 0; k < count; k++) {
            _mm_storeu_si128((__m128i *)(void *)((unsigned char *)dst[k] + at), a);
        }
    }
}

const afdep_row_ops_t afdep_row_ops_avx2 = { "avx2", sum, weighted_sum, fan_out, afdep_pack_avx2,
                                              afdep_packed_sum_avx2 };

#endif
