/* SPDX-License-Identifier: Apache-2.0 */
/* The tables behind formats and profiles. */
#include "low_latency/ll_mode.h"

#include "core/error.h"
#include "numerics/quant.h"

#define MIB ((uint64_t)1 << 20)
#define BIT(format) (1u << (format))

static const struct {
    const char *name;
    int code_bits;     /* of an element */
    int block;         /* elements under one scale; 0: no scale, -1: the row */
    int scale_bytes;
} formats[] = {
    [AFDEP_LL_AUTO] = { "auto", 0, 0, 0 },
    [AFDEP_LL_BF16] = { "bf16", 16, 0, 0 },
    [AFDEP_LL_INT8] = { "int8", 8, -1, 4 },
    [AFDEP_LL_FP8_TOKEN] = { "fp8-token", 8, -1, 4 },
    [AFDEP_LL_MXFP8] = { "mxfp8", 8, AFDEP_MX_BLOCK, 1 },
    [AFDEP_LL_MXFP4] = { "mxfp4", 4, AFDEP_MX_BLOCK, 1 },
    [AFDEP_LL_FP8_BLOCK] = { "fp8-block", 8, AFDEP_FP8_BLOCK, 4 },
    [AFDEP_LL_FP8_BLOCK_UE8M0] = { "fp8-block-ue8m0", 8, AFDEP_FP8_BLOCK, 1 },
};
#define FORMATS ((int)(sizeof(formats) / sizeof(formats[0])))

/* Limits of 0 are none of the profile's own. */
static const struct {
    const char *name;
    unsigned has;                  /* bits of the formats it implements */
    afdep_ll_format_t fp8, mxfp8, mxfp4; /* what the flags become */
    int32_t tokens, hidden, top_k, experts;
    int below;                     /* 1: T < M is wanted, not T <= M */
    uint64_t state_bytes;          /* of the configured size, that hold no rows */
} profiles[] = {
    [AFDEP_LL_NATIVE] = { "native", ~BIT(AFDEP_LL_AUTO), AFDEP_LL_FP8_BLOCK, AFDEP_LL_MXFP8, AFDEP_LL_MXFP4, 0, 0, 0, 0,
                          0, 0 },
    [AFDEP_LL_A2] = { "a2", BIT(AFDEP_LL_BF16) | BIT(AFDEP_LL_INT8), AFDEP_LL_INT8, AFDEP_LL_MXFP8, AFDEP_LL_MXFP4, 512,
                      7168, 16, 512, 1, 0 },
    [AFDEP_LL_A3] = { "a3", BIT(AFDEP_LL_BF16) | BIT(AFDEP_LL_INT8), AFDEP_LL_INT8, AFDEP_LL_MXFP8, AFDEP_LL_MXFP4, 512,
                      0, 16, 512, 1, 0 },
    [AFDEP_LL_A5] = { "a5",
                      BIT(AFDEP_LL_BF16) | BIT(AFDEP_LL_INT8) | BIT(AFDEP_LL_FP8_TOKEN) | BIT(AFDEP_LL_MXFP8) |
                          BIT(AFDEP_LL_MXFP4),
                      AFDEP_LL_FP8_TOKEN, AFDEP_LL_MXFP8, AFDEP_LL_MXFP4, 512, 0, 0, 512, 1, MIB },
};
#define PROFILES ((int)(sizeof(profiles) / sizeof(profiles[0])))

const char *afdep_ll_format_name(afdep_ll_format_t format)
{
    return (int)format >= 0 && (int)format < FORMATS ? formats[format].name : "unknown format";
}

const char *afdep_ll_profile_name(afdep_ll_profile_t profile)
{
    return (int)profile >= 0 && (int)profile < PROFILES ? profiles[profile].name : "unknown profile";
}

size_t afdep_ll_code_bytes(afdep_ll_format_t format, int32_t hidden)
{
    return (size_t)hidden * (size_t)formats[format].code_bits / 8;
}

size_t afdep_ll_scale_bytes(afdep_ll_format_t format, int32_t hidden)
{
    int block = formats[format].block;
    size_t scales = block == 0 ? 0 : block < 0 ? 1 : (size_t)hidden / (size_t)block;
    return scales * (size_t)formats[format].scale_bytes;
}

afdep_status_t afdep_ll_format_bytes(afdep_ll_format_t format, int32_t hidden, size_t *code_bytes, size_t *scale_bytes)
{
    if ((int)format <= AFDEP_LL_AUTO || (int)format >= FORMATS)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "format is %d: 1 to %d is wanted", (int)format, FORMATS - 1);
    int multiple = formats[format].block == AFDEP_FP8_BLOCK ? AFDEP_FP8_BLOCK : AFDEP_MX_BLOCK;
    if (hidden < 1 || hidden % multiple != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "hidden is %d: format %s wants a positive multiple of %d", hidden,
                          formats[format].name, multiple);
    if (code_bytes)
        *code_bytes = afdep_ll_code_bytes(format, hidden);
    if (scale_bytes)
        *scale_bytes = afdep_ll_scale_bytes(format, hidden);
    return AFDEP_OK;
}

static afdep_ll_format_t by_flags(afdep_ll_profile_t profile, const afdep_ll_request_t *r, int int8_fallback)
{
    if (r->use_mxfp4)
        return profiles[profile].mxfp4;
    if (r->use_mxfp8 || (r->use_fp8 && r->use_ue8m0))
        return profiles[profile].mxfp8;
    if (r->use_fp8)
        return profiles[profile].fp8;
    return int8_fallback ? AFDEP_LL_INT8 : AFDEP_LL_BF16;
}

static afdep_status_t check_profile(afdep_ll_profile_t profile)
{
    if ((int)profile < 0 || (int)profile >= PROFILES)
        return afdep_fail(AFDEP_ERR_CONFIG, "profile is %d: 0 to %d is wanted", (int)profile, PROFILES - 1);
    return AFDEP_OK;
}

afdep_status_t afdep_ll_choose_format(afdep_ll_profile_t profile, const afdep_ll_request_t *request, int int8_fallback,
                                      afdep_ll_format_t *format)
{
    afdep_status_t status = check_profile(profile);
    if (status != AFDEP_OK)
        return status;
    if ((int)request->format < 0 || (int)request->format >= FORMATS)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "format is %d: 0 to %d is wanted", (int)request->format, FORMATS - 1);
    afdep_ll_format_t chosen =
        request->format != AFDEP_LL_AUTO ? request->format : by_flags(profile, request, int8_fallback);
    if (!(profiles[profile].has & BIT(chosen)))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "format %s is not implemented on profile %s", formats[chosen].name,
                          profiles[profile].name);
    *format = chosen;
    return AFDEP_OK;
}

static afdep_status_t check_range(afdep_ll_profile_t profile, const char *name, int32_t value, int32_t low,
                                  int32_t high)
{
    if (value >= low && value <= high)
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_CONFIG, "%s is %d: %d to %d is wanted on profile %s", name, value, low, high,
                      profiles[profile].name);
}

/* The profile's limit, or the library's. */
static int32_t limit(int32_t own, int32_t library)
{
    return own ? own : library;
}

afdep_status_t afdep_ll_check_limits(afdep_ll_profile_t profile, const afdep_ll_shape_t *s, int hosts)
{
    afdep_status_t status = check_profile(profile);
    int32_t fewest = profile == AFDEP_LL_A2 && hosts > 1 ? 2 : 1;
    if (status == AFDEP_OK)
        status = check_range(profile, "num_max_dispatch_tokens_per_rank", s->max_tokens, 1, 1 << 20);
    if (status == AFDEP_OK)
        status = check_range(profile, "hidden", s->hidden, 1, limit(profiles[profile].hidden, 1 << 20));
    if (status == AFDEP_OK && s->hidden % 32 != 0)
        status = afdep_fail(AFDEP_ERR_CONFIG, "hidden is %d: a multiple of 32 is wanted", s->hidden);
    if (status == AFDEP_OK)
        status = check_range(profile, "num_topk", s->top_k, fewest, limit(profiles[profile].top_k, AFDEP_LL_TOPK_MOST));
    if (status == AFDEP_OK)
        status = check_range(profile, "num_experts", s->experts, 1, limit(profiles[profile].experts, 1 << 20));
    if (status == AFDEP_OK && s->experts % s->ranks != 0)
        status = afdep_fail(AFDEP_ERR_CONFIG, "num_experts is %d: a multiple of the %d ranks is wanted", s->experts,
                            s->ranks);
    if (status == AFDEP_OK && s->top_k > s->experts)
        status = afdep_fail(AFDEP_ERR_CONFIG, "num_topk is %d: at most num_experts, %d, is wanted", s->top_k,
                            s->experts);
    if (status == AFDEP_OK && profile == AFDEP_LL_A2 && hosts > 2)
        status = afdep_fail(AFDEP_ERR_UNSUPPORTED, "the ranks are spread over %d hosts: profile a2 has rules for two",
                            hosts);
    return status;
}

afdep_status_t afdep_ll_check_tokens(afdep_ll_profile_t profile, int32_t tokens, int32_t max_tokens)
{
    int32_t most = max_tokens - profiles[profile].below, own = limit(profiles[profile].tokens, most);
    if (tokens < 0 || tokens > most)
        return afdep_fail(AFDEP_ERR_CONFIG, "tokens is %d: 0 to %d is wanted on profile %s, where "
                          "num_max_dispatch_tokens_per_rank is %d", tokens, most, profiles[profile].name, max_tokens);
    return check_range(profile, "tokens", tokens, 0, own);
}

uint64_t afdep_ll_required_bytes(afdep_ll_profile_t profile, const afdep_ll_shape_t *s, int hosts)
{
    uint64_t tokens = (uint64_t)s->max_tokens, row = 2 * (uint64_t)s->hidden, k = (uint64_t)s->top_k;
    uint64_t local = (uint64_t)(s->experts / s->ranks);
    if (profile == AFDEP_LL_A2 && hosts == 2) /* layered: a row with its choices for every expert, and fixed areas */
        return (uint64_t)s->experts * tokens * (row + 4 * k * 4) + 4 * MIB + 800 * MIB;
    return (tokens * (uint64_t)s->ranks * (local < k ? local : k) * row + 2 * MIB) * 2;
}

uint64_t afdep_ll_available_bytes(afdep_ll_profile_t profile, uint64_t configured)
{
    uint64_t state = profiles[profile].state_bytes;
    return configured > state ? configured - state : 0;
}

afdep_status_t afdep_ll_check_bytes(afdep_ll_profile_t profile, const afdep_ll_shape_t *s, int hosts, uint64_t required,
                                    uint64_t configured)
{
    uint64_t state = profiles[profile].state_bytes;
    if (required <= afdep_ll_available_bytes(profile, configured))
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_CONFIG,
                      "the buffer is configured with %llu bytes%s and profile %s requires %llu (%d ranks, "
                      "num_max_dispatch_tokens_per_rank %d, num_experts %d, num_topk %d, hidden %d, %s)",
                      (unsigned long long)configured, state ? ", of which 1 MiB holds state," : "",
                      profiles[profile].name, (unsigned long long)required, s->ranks, s->max_tokens, s->experts,
                      s->top_k, s->hidden, profile == AFDEP_LL_A2 && hosts == 2 ? "layered" : "not layered");
}
