/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of BF16 to the wire's formats by a whole CTA: numerics/quant.h says what every code and scale is, and these
 * are the same bits. A thread takes eight elements at a time, which are one vector of the row; neighbouring lanes are
 * neighbours in it, so that a block's largest magnitude is found by exchanges inside the warp.
 */
#ifndef AFDEP_CUDA_LL_ENCODE_CUH
#define AFDEP_CUDA_LL_ENCODE_CUH

#include <afdep/low_latency.h>

#include "cuda/device.cuh"
#include "cuda/ll_device.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/int8.h"

#define AFDEP_LL_FINITE 0x7F80u /* BF16 magnitudes below it */
#define AFDEP_LL_NAN_SCALE 0x7FFFFFFFu

/* The largest finite magnitude, as BF16 bits, and above it whether there is a NaN: a maximum of both at once. */
#define AFDEP_LL_PEAK_NAN 0x10000u

static __device__ __forceinline__ uint32_t ll_join_peaks(uint32_t a, uint32_t b)
{
    uint32_t nan = (a | b) & AFDEP_LL_PEAK_NAN;
    return nan | max(a & 0xFFFFu, b & 0xFFFFu);
}

static __device__ __noinline__ uint32_t ll_peak_of_vector(uint4 v)
{
    const uint32_t pairs[4] = { v.x, v.y, v.z, v.w };
    uint32_t peak = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t bits = pairs[i / 2] >> 16 * (i % 2) & 0x7FFFu;
        peak = ll_join_peaks(peak, bits < AFDEP_LL_FINITE ? bits : bits > AFDEP_LL_FINITE ? AFDEP_LL_PEAK_NAN : 0u);
    }
    return peak;
}

/* The largest magnitude of eight elements as bits, infinities and NaNs above all numbers. */
static __device__ __forceinline__ uint32_t ll_bits_of_vector(const uint4 &v)
{
    uint32_t pairs = afdep_max_pairs(afdep_max_pairs(v.x & 0x7FFF7FFFu, v.y & 0x7FFF7FFFu),
                                     afdep_max_pairs(v.z & 0x7FFF7FFFu, v.w & 0x7FFF7FFFu));
    return max(pairs & 0xFFFFu, pairs >> 16);
}

/* Over aligned groups of `lanes` lanes, a power of two; the whole warp takes part. What is not finite is rare, and so
   looked for only where there is some. */
static __device__ __forceinline__ uint32_t ll_group_peak(const uint4 &v, int lanes)
{
    uint32_t peak = ll_bits_of_vector(v);
    if (__any_sync(AFDEP_FULL, peak >= AFDEP_LL_FINITE)) {
        peak = ll_peak_of_vector(v);
        for (int step = 1; step < lanes; step *= 2)
            peak = ll_join_peaks(peak, __shfl_sync(AFDEP_FULL, peak, (int)afdep_lane() ^ step));
        return peak;
    }
    for (int step = 1; step < lanes; step *= 2)
        peak = max(peak, __shfl_sync(AFDEP_FULL, peak, (int)afdep_lane() ^ step));
    return peak;
}

/* The largest of all threads' values, in every thread; `warps` is shared, one entry a warp, which nobody reads any
   more. */
static __device__ __forceinline__ uint32_t ll_largest_of_cta(uint32_t value, uint32_t *warps)
{
    value = __reduce_max_sync(AFDEP_FULL, value);
    if (afdep_lane() == 0)
        warps[threadIdx.x / AFDEP_WARP] = value;
    __syncthreads();
    value = (int)afdep_lane() < (AFDEP_LL_DISPATCH_THREADS / AFDEP_WARP) ? warps[afdep_lane()] : 0;
    return __reduce_max_sync(AFDEP_FULL, value);
}

/* Of a row whose first vectors are `v`, one a thread; the same in all threads. */
static __device__ __forceinline__ uint32_t ll_row_peak(const uint4 &v, const uint4 *x, int vectors, uint32_t *warps)
{
    int next = (int)threadIdx.x + AFDEP_LL_DISPATCH_THREADS;
    uint32_t peak = ll_bits_of_vector(v);
    for (int i = next; i < vectors; i += AFDEP_LL_DISPATCH_THREADS)
        peak = max(peak, ll_bits_of_vector(__ldg(x + i)));
    peak = ll_largest_of_cta(peak, warps);
    if (peak < AFDEP_LL_FINITE)
        return peak;
    peak = ll_peak_of_vector(v);
    for (int i = next; i < vectors; i += AFDEP_LL_DISPATCH_THREADS)
        peak = ll_join_peaks(peak, ll_peak_of_vector(__ldg(x + i)));
    __syncthreads();
    uint32_t finite = ll_largest_of_cta(peak & 0xFFFFu, warps);
    __syncthreads();
    return finite | ll_largest_of_cta(peak & AFDEP_LL_PEAK_NAN, warps);
}

/* ---- Scales ------------------------------------------------------------------------------------------------------ */

/* amax / largest as FP32, or 1; with `power` up to a power of two, at least 2^-127. */
static __device__ __forceinline__ float ll_scale_of(uint32_t amax, float largest, int power)
{
    uint32_t bits = __float_as_uint(amax ? __fdiv_rn(__uint_as_float(amax << 16), largest) : 1.0f);
    if (power)
        bits = bits <= 0x00400000u ? 0x00400000u : (bits + 0x7FFFFFu) & 0x7F800000u;
    return __uint_as_float(bits);
}

/* One over an e8m0 scale of a block, a normal number. */
static __device__ __forceinline__ float ll_inverse(uint32_t code)
{
    return __uint_as_float((254u - code) << 23);
}

/* ---- Codes ------------------------------------------------------------------------------------------------------- */

typedef struct ll_eight {
    float of[8];
} ll_eight_t;

static __device__ __forceinline__ ll_eight_t ll_unpack(const uint4 &v)
{
    ll_eight_t e;
    const uint32_t pairs[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        e.of[2 * i] = __uint_as_float(pairs[i] << 16);
        e.of[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000u);
    }
    return e;
}

static __device__ __forceinline__ uint2 ll_codes_e4m3(const ll_eight_t &e)
{
    return make_uint2(afdep_e4m3_pair(e.of[0], e.of[1]) | afdep_e4m3_pair(e.of[2], e.of[3]) << 16,
                      afdep_e4m3_pair(e.of[4], e.of[5]) | afdep_e4m3_pair(e.of[6], e.of[7]) << 16);
}

static __device__ __forceinline__ uint2 ll_codes_int8(const ll_eight_t &e)
{
    uint32_t halves[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < 8; i++)
        halves[i / 4] |= ((uint32_t)afdep_int8_from_f32(e.of[i]) & 0xFFu) << 8 * (i % 4);
    return make_uint2(halves[0], halves[1]);
}

static __device__ __forceinline__ uint32_t ll_codes_e2m1(const ll_eight_t &e)
{
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        codes |= (uint32_t)afdep_e2m1_from_f32(e.of[i]) << 4 * i;
    return codes;
}

/*
 * Quotients as a division rounds them, where they matter. One over the scale, rounded once, gives a quotient that is a
 * unit off at most, and a fused step on what it leaves gives the nearest one: for every BF16 numerator and every scale
 * that one makes, which test_quotients looks through. Scales near the ends of the range, where a step would leave the
 * normal numbers, and elements that are not finite, are divided. Quotients that are too small for any code may differ.
 */
static __device__ __forceinline__ bool ll_scale_is_plain(float scale)
{
    uint32_t exponent = __float_as_uint(scale) >> 23;
    return exponent > 127 - 64 && exponent < 127 + 64;
}

static __device__ __forceinline__ ll_eight_t ll_divided(ll_eight_t e, float scale, bool finite)
{
    if (!finite || !ll_scale_is_plain(scale)) {
#pragma unroll /* a loop that stays one would keep all eight in memory, whichever way is gone */
        for (int i = 0; i < 8; i++)
            e.of[i] = __fdiv_rn(e.of[i], scale);
        return e;
    }
    float inverse = __fdiv_rn(1.0f, scale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float near = __fmul_rn(e.of[i], inverse);
        float left = __fmaf_rn(-near, scale, e.of[i]);
        e.of[i] = __uint_as_float(__float_as_uint(__fmaf_rn(left, inverse, near)) |
                                  (__float_as_uint(e.of[i]) & 0x80000000u)); /* of -0 the step makes 0 */
    }
    return e;
}

static __device__ __forceinline__ ll_eight_t ll_multiplied(ll_eight_t e, float factor)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        e.of[i] = __fmul_rn(e.of[i], factor);
    return e;
}

/* ---- Rows -------------------------------------------------------------------------------------------------------- */

/* Whether all of eight elements are. */
static __device__ __forceinline__ bool ll_finite(const uint4 &v)
{
    return ll_bits_of_vector(v) < AFDEP_LL_FINITE;
}

/* One scale for the row. */
static __device__ __forceinline__ void ll_encode_by_token(const afdep_ll_dispatch_call_t &d, const uint4 *x,
                                                          unsigned char *to, uint32_t *warps)
{
    bool int8 = d.s.format == AFDEP_LL_INT8;
    int vectors = d.s.hidden / 8;
    uint4 v = (int)threadIdx.x < vectors ? __ldg(x + threadIdx.x) : make_uint4(0, 0, 0, 0);
    uint32_t peak = ll_row_peak(v, x, vectors, warps);
    float scale = ll_scale_of(peak & 0xFFFFu, int8 ? 127.0f : 448.0f, d.round_scale);
    for (int i = (int)threadIdx.x; i < vectors; i += AFDEP_LL_DISPATCH_THREADS) {
        if (i != (int)threadIdx.x)
            v = __ldg(x + i);
        ll_eight_t e = ll_divided(ll_unpack(v), scale, ll_finite(v));
        ((uint2 *)to)[i] = int8 ? ll_codes_int8(e) : ll_codes_e4m3(e);
    }
    if (threadIdx.x == 0)
        *(uint32_t *)(to + d.s.code_bytes) =
            int8 && (peak & AFDEP_LL_PEAK_NAN) ? AFDEP_LL_NAN_SCALE : __float_as_uint(scale);
}

/* A scale for each 128 elements, 16 lanes. All lanes of a warp take part in every turn. */
static __device__ __forceinline__ void ll_encode_by_block(const afdep_ll_dispatch_call_t &d, const uint4 *x,
                                                          unsigned char *to)
{
    bool e8m0 = d.s.format == AFDEP_LL_FP8_BLOCK_UE8M0;
    int vectors = d.s.hidden / 8;
    for (int first = 0; first < vectors; first += AFDEP_LL_DISPATCH_THREADS) {
        int i = first + (int)threadIdx.x;
        uint4 v = i < vectors ? __ldg(x + i) : make_uint4(0, 0, 0, 0);
        float scale = ll_scale_of(ll_group_peak(v, 16) & 0xFFFFu, 448.0f, e8m0 || d.round_scale);
        if (i >= vectors)
            continue;
        ((uint2 *)to)[i] = ll_codes_e4m3(ll_divided(ll_unpack(v), scale, ll_finite(v)));
        if (i % 16 == 0 && e8m0)
            to[d.s.code_bytes + i / 16] = afdep_e8m0_of_power(scale);
        else if (i % 16 == 0)
            ((float *)(to + d.s.code_bytes))[i / 16] = scale;
    }
}

/* A scale for each 32 elements, 4 lanes. */
static __device__ __forceinline__ void ll_encode_mx(const afdep_ll_dispatch_call_t &d, const uint4 *x,
                                                    unsigned char *to)
{
    bool four = d.s.format == AFDEP_LL_MXFP4;
    int vectors = d.s.hidden / 8;
    for (int first = 0; first < vectors; first += AFDEP_LL_DISPATCH_THREADS) {
        int i = first + (int)threadIdx.x;
        uint4 v = i < vectors ? __ldg(x + i) : make_uint4(0, 0, 0, 0);
        uint32_t peak = ll_group_peak(v, 4);
        uint32_t scale = afdep_e8m0_of_block((uint16_t)peak, four ? 2u : 8u);
        if (i >= vectors)
            continue;
        ll_eight_t e = ll_multiplied(ll_unpack(v), ll_inverse(scale));
        if (four)
            ((uint32_t *)to)[i] = ll_codes_e2m1(e);
        else
            ((uint2 *)to)[i] = ll_codes_e4m3(e);
        if (i % 4 == 0)
            to[d.s.code_bytes + i / 4] = (uint8_t)(four && (peak & AFDEP_LL_PEAK_NAN) ? AFDEP_E8M0_NAN : scale);
    }
}

/* The row's vectors: codes, then scales, in `staged`, which is shared; BF16 stays where it is. All threads of the
   CTA. */
static __device__ __forceinline__ const uint4 *ll_encode(const afdep_ll_dispatch_call_t &d, int token,
                                                         unsigned char *staged, uint32_t *warps)
{
    const uint4 *x = (const uint4 *)d.x + (int64_t)token * (d.s.hidden / 8);
    if (d.s.format == AFDEP_LL_BF16)
        return x;
    if (token >= (int)gridDim.x)
        __syncthreads(); /* the CTA's last row is read */
    if (d.s.format == AFDEP_LL_INT8 || d.s.format == AFDEP_LL_FP8_TOKEN)
        ll_encode_by_token(d, x, staged, warps);
    else if (d.s.format == AFDEP_LL_MXFP8 || d.s.format == AFDEP_LL_MXFP4)
        ll_encode_mx(d, x, staged);
    else
        ll_encode_by_block(d, x, staged);
    __syncthreads();
    return (const uint4 *)staged;
}

#endif
