/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's configuration and the environment, resolved. */
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "low_latency/ll_backend.h"

#define MIB ((uint64_t)1 << 20)
#define NO_FIELD AFDEP_SETTING_NO_FIELD

/* Variables of the engines that this API is at home in. They are read here and nowhere else, so that a value of theirs
   never keeps another part of the library from opening. */
const afdep_setting_t afdep_ll_settings_table[] = {
    { "ll_buffer_mib", "HCCL_BUFFSIZE", AFDEP_SETTING_INT, 1, 1 << 24, 200, NO_FIELD, 0, "low-latency API: configured size in MiB on profiles a2, a3, a5" },
    { "ll_int8_fallback", "DEEP_NORMAL_MODE_USE_INT8_QUANT", AFDEP_SETTING_INT, 0, 1, 0, NO_FIELD, 0,
      "low-latency API: INT8 where no flag chooses a format (deprecated)" },
    { "ll_intra_pcie", "HCCL_INTRA_PCIE_ENABLE", AFDEP_SETTING_INT, 0, 1, 0, NO_FIELD, 0,
      "low-latency API: profile a2 between hosts wants 1" },
    { "ll_intra_roce", "HCCL_INTRA_ROCE_ENABLE", AFDEP_SETTING_INT, 0, 1, 0, NO_FIELD, 0,
      "low-latency API: profile a2 between hosts wants 0" },
    { NULL, NULL, AFDEP_SETTING_INT, 0, 0, 0, 0, 0, NULL },
};
enum { BUFFER_BYTES, INT8_FALLBACK, INTRA_PCIE, INTRA_ROCE };

static afdep_status_t look_up(const afdep_setting_t *setting, int64_t *value, const char **text)
{
    afdep_origin_t origin;
    return afdep_setting_value(setting, NULL, value, text, &origin);
}

/* A setting of the role API's table that holds here too. */
static afdep_status_t shared(const char *name, int64_t *value, const char **text)
{
    int i = 0;
    while (strcmp(afdep_settings_table[i].name, name) != 0)
        i++;
    return look_up(&afdep_settings_table[i], value, text);
}

static afdep_status_t shared_text(const char *name, const char *given, char *out, size_t size)
{
    int64_t unused;
    const char *text = given;
    afdep_status_t status = given ? AFDEP_OK : shared(name, &unused, &text);
    if (status != AFDEP_OK)
        return status;
    if (text && strlen(text) >= size)
        return afdep_fail(AFDEP_ERR_CONFIG, "%s is \"%.60s\": no such name is known", name, text);
    strcpy(out, text ? text : "");
    return AFDEP_OK;
}

static afdep_status_t set_shape(const afdep_ll_config_t *c, int ranks, afdep_ll_settings_t *s)
{
    s->shape = (afdep_ll_shape_t){ ranks, c->num_max_dispatch_tokens_per_rank, c->hidden, c->num_topk, c->num_experts };
    s->profile = c->profile;
    s->ranks_per_domain = c->ranks_per_domain ? c->ranks_per_domain : ranks;
    if (ranks < 1)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "there are %d ranks: at least one is wanted", ranks);
    if (s->ranks_per_domain < 1 || ranks % s->ranks_per_domain != 0)
        return afdep_fail(AFDEP_ERR_CONFIG, "ranks_per_domain is %d: it does not divide the %d ranks of the group",
                          s->ranks_per_domain, ranks);
    s->hosts = ranks / s->ranks_per_domain;
    afdep_status_t status = afdep_ll_check_limits(s->profile, &s->shape, s->hosts);
    if (status != AFDEP_OK)
        return status;
    /* Counts of rows are 32 bits wide. */
    if ((int64_t)ranks * s->shape.max_tokens > INT32_MAX / AFDEP_LL_TOPK_MOST)
        return afdep_fail(AFDEP_ERR_CONFIG,
                          "num_max_dispatch_tokens_per_rank is %d: with %d ranks at most %d is wanted",
                          s->shape.max_tokens, ranks, INT32_MAX / AFDEP_LL_TOPK_MOST / ranks);
    if (afdep_ll_layout_init(&s->layout, &s->shape))
        return afdep_fail(AFDEP_ERR_CONFIG, "num_max_dispatch_tokens_per_rank is %d: the segment would exceed 62 bits",
                          s->shape.max_tokens);
    return AFDEP_OK;
}

static afdep_status_t set_sizes(const afdep_ll_config_t *c, afdep_ll_settings_t *s)
{
    int64_t mib = 0;
    if (s->profile == AFDEP_LL_NATIVE) {
        s->required = s->backend->segment_bytes(s);
        s->configured = c->buffer_bytes ? c->buffer_bytes : s->required;
        return AFDEP_OK;
    }
    s->required = afdep_ll_required_bytes(s->profile, &s->shape, s->hosts);
    s->configured = c->buffer_bytes;
    if (s->configured)
        return AFDEP_OK;
    afdep_status_t status = look_up(&afdep_ll_settings_table[BUFFER_BYTES], &mib, NULL);
    s->configured = (uint64_t)mib * MIB;
    return status;
}

/* Profile a2 between hosts goes over PCIe and not over RoCE inside of them. */
static afdep_status_t check_intra(const afdep_ll_settings_t *s)
{
    int64_t pcie = 0, roce = 0;
    if (s->profile != AFDEP_LL_A2 || s->hosts == 1)
        return AFDEP_OK;
    afdep_status_t status = look_up(&afdep_ll_settings_table[INTRA_PCIE], &pcie, NULL);
    if (status == AFDEP_OK)
        status = look_up(&afdep_ll_settings_table[INTRA_ROCE], &roce, NULL);
    if (status == AFDEP_OK && (pcie != 1 || roce != 0))
        status = afdep_fail(AFDEP_ERR_CONFIG, "HCCL_INTRA_PCIE_ENABLE is %d and HCCL_INTRA_ROCE_ENABLE %d: profile a2 "
                            "between hosts wants 1 and 0", (int)pcie, (int)roce);
    return status;
}

static afdep_status_t set_rest(const afdep_ll_config_t *c, afdep_ll_settings_t *s)
{
    int64_t timeout = c->timeout_ms, fallback = 0, first = 0;
    afdep_status_t status = AFDEP_OK;
    if (c->timeout_ms < 0)
        return afdep_fail(AFDEP_ERR_CONFIG, "timeout_ms is %d: 1 to %d is wanted", c->timeout_ms, INT_MAX);
    if (timeout == 0)
        status = shared("timeout_ms", &timeout, NULL);
    if (status == AFDEP_OK)
        status = shared("first_exchange", &first, NULL);
    if (status == AFDEP_OK)
        status = look_up(&afdep_ll_settings_table[INT8_FALLBACK], &fallback, NULL);
    if (status == AFDEP_OK)
        status = shared_text("fabric", c->fabric, s->fabric, sizeof(s->fabric));
    if (status == AFDEP_OK)
        status = shared_text("row_ops", NULL, s->row_ops, sizeof(s->row_ops));
    s->timeout_ms = (int)timeout;
    s->first_exchange = (uint64_t)first;
    s->int8_fallback = (int)fallback;
    return status;
}

afdep_status_t afdep_ll_settings_resolve(const afdep_ll_config_t *given, int ranks, afdep_ll_settings_t *settings)
{
    afdep_ll_config_t config;
    afdep_ll_settings_t out;
    memset(&out, 0, sizeof(out));
    if (!given)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "config is NULL");
    afdep_status_t status = afdep_struct_copy(&config, sizeof(config), given, given->struct_size, sizeof(config),
                                              "afdep_ll_config_t");
    if (status == AFDEP_OK)
        status = set_shape(&config, ranks, &out);
    if (status == AFDEP_OK)
        status = afdep_ll_find_backend(config.backend, &out.backend);
    if (status == AFDEP_OK && out.backend->segment_bytes(&out) == UINT64_MAX)
        status =
            afdep_fail(AFDEP_ERR_CONFIG, "num_max_dispatch_tokens_per_rank is %d: the segment would exceed 62 bits",
                       out.shape.max_tokens);
    if (status == AFDEP_OK)
        status = set_sizes(&config, &out);
    if (status == AFDEP_OK)
        status = check_intra(&out);
    if (status == AFDEP_OK)
        status = set_rest(&config, &out);
    if (status == AFDEP_OK)
        *settings = out;
    return status;
}

afdep_status_t afdep_ll_resolve_format(afdep_ll_profile_t profile, const afdep_ll_request_t *request,
                                       afdep_ll_format_t *format)
{
    int64_t fallback = 0;
    if (!request || !format)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s is NULL", request ? "format" : "request");
    afdep_status_t status = look_up(&afdep_ll_settings_table[INT8_FALLBACK], &fallback, NULL);
    return status == AFDEP_OK ? afdep_ll_choose_format(profile, request, (int)fallback, format) : status;
}

afdep_status_t afdep_ll_buffer_bytes(const afdep_ll_config_t *config, int ranks, afdep_ll_memory_t *memory)
{
    afdep_ll_settings_t s;
    if (!memory)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "memory is NULL");
    afdep_status_t status = afdep_ll_settings_resolve(config, ranks, &s);
    if (status != AFDEP_OK)
        return status;
    afdep_ll_memory_t m = {
        .struct_size = sizeof(m),
        .required = s.required,
        .configured = s.configured,
        .available = afdep_ll_available_bytes(s.profile, s.configured),
        .segment_bytes = s.backend->segment_bytes(&s),
        .private_bytes = s.backend->private_bytes(&s),
        .combine_buffer_bytes = (uint64_t)s.shape.experts * (uint64_t)s.shape.max_tokens * 2 * (uint64_t)s.shape.hidden,
    };
    return afdep_struct_give(memory, memory->struct_size, sizeof(m), &m, sizeof(m), "afdep_ll_memory_t");
}
