/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed rows in AVX2: group.h for eight columns at a time, in integers but for two exact or correctly rounded FP32
 * operations. Even and odd columns apart, as in rows_avx2.c.
 */
#include "numerics/rows.h"

#if AFDEP_ROWS_X86

#include <immintrin.h>
#include <string.h>

#include "numerics/group.h"

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE TARGET static inline __attribute__((always_inline))

enum { LANES = 16 }; /* columns of a register of BF16 */

INLINE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

/* ---- Packing --------------------------------------------------------------------------------------------------- */

/* The largest magnitude that is not NaN. */
INLINE uint32_t largest_of(const uint16_t *row)
{
    __m256i most = _mm256_setzero_si256(), infinity = _mm256_set1_epi16(0x7F80);
    uint16_t each[LANES];
    uint32_t largest = 0;

    for (int i = 0; i < AFDEP_GROUP; i += LANES) {
        __m256i magnitude = _mm256_and_si256(load(row + i), _mm256_set1_epi16(0x7FFF));

        most = _mm256_max_epi16(most, _mm256_andnot_si256(_mm256_cmpgt_epi16(magnitude, infinity), magnitude));
    }
    _mm256_storeu_si256((__m256i *)(void *)each, most);
    for (int i = 0; i < LANES; i++) {
        largest = each[i] > largest ? each[i] : largest;
    }
    return largest;
}

/* Codes of eight FP32 that hold BF16 values, in the low bytes. */
INLINE __m256i codes_of(__m256i bits, __m256 inverse, __m256i limit)
{
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), inverse);
    __m256i of = _mm256_castps_si256(scaled);
    /* From 2^-6 on: drop 20 mantissa bits, nearest even, and rebias. */
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(of, 20), _mm256_set1_epi32(1));
    __m256i normal = _mm256_add_epi32(_mm256_add_epi32(of, _mm256_set1_epi32(0x7FFFF)), last);
    normal = _mm256_sub_epi32(_mm256_srli_epi32(normal, 20), _mm256_set1_epi32(120 << 3));
    /* Below: the addition rounds to a multiple of 2^-9, the last mantissa bit of 2^14. */
    __m256i shifted = _mm256_castps_si256(_mm256_add_ps(scaled, _mm256_set1_ps(16384.0f)));
    __m256i tiny = _mm256_sub_epi32(shifted, _mm256_castps_si256(_mm256_set1_ps(16384.0f)));
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), of);
    __m256i code = _mm256_min_epi32(_mm256_blendv_epi8(normal, tiny, small), limit);
    __m256i infinite = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));

    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(AFDEP_E4M3_MAX), infinite);
    return _mm256_blendv_epi8(_mm256_or_si256(code, sign), _mm256_set1_epi32(AFDEP_E4M3_NAN), nan);
}

/* Codes of 16 BF16 values: two bytes in the lower half of each of eight lanes. */
INLINE __m256i pairs_of(__m256i bf16, __m256 inverse, __m256i limit)
{
    __m256i even = codes_of(_mm256_slli_epi32(bf16, 16), inverse, limit);
    __m256i odd = codes_of(_mm256_and_si256(bf16, _mm256_set1_epi32((int)0xFFFF0000u)), inverse, limit);

    return _mm256_or_si256(even, _mm256_slli_epi32(odd, 8));
}

TARGET void afdep_pack_avx2(uint8_t *codes, uint8_t *scales, const uint16_t *row, size_t n)
{
    for (size_t at = 0; at < n; at += AFDEP_GROUP) {
        uint32_t scale = afdep_group_scale(largest_of(row + at));
        __m256 inverse = _mm256_set1_ps(afdep_group_power(127 - (int)scale));
        __m256i limit = _mm256_set1_epi32((int)afdep_group_limit(scale));

        scales[at / AFDEP_GROUP] = (uint8_t)scale;
        for (size_t i = 0; i < AFDEP_GROUP; i += 2 * LANES) {
            __m256i a = pairs_of(load(row + at + i), inverse, limit);
            __m256i b = pairs_of(load(row + at + i + LANES), inverse, limit);
            __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);

            _mm256_storeu_si256((__m256i *)(void *)(codes + at + i), packed);
        }
    }
}

/* ---- Sums ------------------------------------------------------------------------------------------------------ */

/* Eight codes as FP32, scaled. */
INLINE __m256 values_of(const uint8_t *codes, __m256 scale)
{
    __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
    __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
    __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
    __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(AFDEP_E4M3_NAN));
    __m256i bits = _mm256_blendv_epi8(normal, _mm256_castps_si256(tiny), small);

    bits = _mm256_or_si256(_mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7FFFFFFF), nan), sign);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), scale);
}

/* BF16 bits in the low halves. */
INLINE __m256i rounded(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), last);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));

    return _mm256_srli_epi32(_mm256_blendv_epi8(sum, _mm256_set1_epi32(0x7FFF0000), nan), 16);
}

TARGET void afdep_packed_sum_avx2(uint16_t *dst, const afdep_packed_term_t *terms, int count, size_t n)
{
    if (count <= 0) {
        memset(dst, 0, n * sizeof(*dst));
        return;
    }
    for (size_t at = 0; at < n; at += LANES) {
        __m256 low = _mm256_setzero_ps(), high = low;

        for (int k = 0; k < count; k++) {
            uint32_t exponent = terms[k].scales[at / AFDEP_GROUP];
            __m256 scale = _mm256_set1_ps(afdep_group_power((int)exponent - 127));
            __m256 a = values_of(terms[k].codes + at, scale), b = values_of(terms[k].codes + at + 8, scale);

            low = k == 0 ? a : _mm256_add_ps(low, a);
            high = k == 0 ? b : _mm256_add_ps(high, b);
        }
        _mm256_storeu_si256((__m256i *)(void *)(dst + at),
                            _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(low), rounded(high)), 0xD8));
    }
}

#endif
