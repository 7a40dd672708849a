/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves a caller's configuration and the environment into settings, and refuses what cannot be. */
#ifdef HAVE_CONFIG_H
#include <config.h> /* of the build, not the one beside this file */
#endif

#include "core/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/env.h"
#include "core/error.h"

#define ALL_FLAGS                                                                                                      \
    (AFDEP_FLAG_APPLY_WEIGHTS | AFDEP_FLAG_UNION_BUFFERS | AFDEP_FLAG_MIXED_HYBRID | AFDEP_FLAG_ENTRY_BARRIER | \
     AFDEP_FLAG_SURVIVE_SOURCES)

afdep_status_t afdep_struct_copy(void *known, size_t known_size, const void *given, size_t given_size, size_t least,
                                 const char *what)
{
    if (given_size < least)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s.struct_size is %zu, smaller than any version's %zu bytes", what,
                          given_size, least);
    /* Structs end at a multiple of their pointers' size: another size would end inside a field. */
    if (given_size > AFDEP_STRUCT_MOST(known_size) || (given_size > least && given_size % sizeof(void *) != 0))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s.struct_size is %zu, which no version has; start from its _INIT", what,
                          given_size);
    memset(known, 0, known_size);
    memcpy(known, given, given_size < known_size ? given_size : known_size);
    for (size_t i = known_size; i < given_size; i++)
        if (((const unsigned char *)given)[i] != 0)
            return afdep_fail(AFDEP_ERR_ARGUMENT,
                              "%s.struct_size is %zu and byte %zu is set: this library knows only %zu bytes of it",
                              what, given_size, i, known_size);
    return AFDEP_OK;
}

afdep_status_t afdep_struct_give(void *out, size_t out_size, size_t least, const void *known, size_t known_size,
                           const char *what)
{
    if (out_size < least)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s.struct_size is %zu, smaller than any version's %zu bytes", what,
                          out_size, least);
    if (out_size > AFDEP_STRUCT_MOST(known_size))
        return afdep_fail(AFDEP_ERR_ARGUMENT, "%s.struct_size is %zu, which no version has; set it to its sizeof", what,
                          out_size);
    size_t head = sizeof(size_t), bytes = out_size < known_size ? out_size : known_size;
    memcpy((char *)out + head, (const char *)known + head, bytes - head);
    if (out_size > known_size)
        memset((char *)out + known_size, 0, out_size - known_size);
    return AFDEP_OK;
}

/* Parses an environment variable's whole text as a number in the setting's range. */
static afdep_status_t parse_number(const afdep_setting_t *setting, const char *text, int64_t *value)
{
    if (setting->type != AFDEP_SETTING_INT) {
        if (strcmp(text, "1") == 0 || strcmp(text, "on") == 0) {
            *value = 1;
            return AFDEP_OK;
        }
        if (strcmp(text, "0") == 0 || strcmp(text, "off") == 0) {
            *value = 0;
            return AFDEP_OK;
        }
        return afdep_fail(AFDEP_ERR_CONFIG, "environment variable %s is \"%.40s\": 0, 1, on or off is wanted",
                          setting->environment, text);
    }
    int saved = errno;
    char *end = NULL;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    int bad = errno != 0 || end == text || *end != '\0' || parsed < setting->low || parsed > setting->high;
    errno = saved;
    if (bad)
        return afdep_fail(AFDEP_ERR_CONFIG, "environment variable %s is \"%.40s\": a whole number from %lld to %lld is "
                          "wanted", setting->environment, text, (long long)setting->low, (long long)setting->high);
    *value = parsed;
    return AFDEP_OK;
}

static const char *environment_of(const afdep_setting_t *setting)
{
    const char *text = setting->environment ? afdep_env(setting->environment) : NULL;
    return text && *text ? text : NULL;
}

static afdep_status_t text_value(const afdep_setting_t *setting, const afdep_config_t *config, const char **text,
                                 afdep_origin_t *origin)
{
    *text = NULL;
    *origin = AFDEP_FROM_DEFAULT;
    if (config && setting->offset != AFDEP_SETTING_NO_FIELD)
        memcpy(text, (const char *)config + setting->offset, sizeof(*text));
    if (*text) {
        *origin = AFDEP_FROM_CONFIG;
        return AFDEP_OK;
    }
    *text = environment_of(setting);
    if (*text)
        *origin = AFDEP_FROM_ENVIRONMENT;
    return AFDEP_OK;
}

/* The field's own value; nonzero when the caller set it. */
static int field_value(const afdep_setting_t *setting, const afdep_config_t *config, int64_t *value)
{
    if (!config || setting->offset == AFDEP_SETTING_NO_FIELD)
        return 0;
    if (setting->type == AFDEP_SETTING_FLAG) {
        *value = 1;
        return (config->flags & setting->flag) != 0;
    }
    int32_t field;
    memcpy(&field, (const char *)config + setting->offset, sizeof(field));
    *value = setting->type == AFDEP_SETTING_TOGGLE ? (int64_t)field - AFDEP_OFF : field;
    return field != 0;
}

afdep_status_t afdep_setting_value(const afdep_setting_t *setting, const afdep_config_t *config, int64_t *value,
                                   const char **text, afdep_origin_t *origin)
{
    if (setting->type == AFDEP_SETTING_TEXT)
        return text_value(setting, config, text, origin);
    if (field_value(setting, config, value)) {
        *origin = AFDEP_FROM_CONFIG;
        int outside = *value < setting->low || *value > setting->high;
        if (outside && setting->type == AFDEP_SETTING_TOGGLE)
            return afdep_fail(AFDEP_ERR_CONFIG, "%s is %lld: AFDEP_DEFAULT (0), AFDEP_OFF (1) or AFDEP_ON (2) is "
                              "wanted", setting->name, (long long)*value + AFDEP_OFF);
        if (outside)
            return afdep_fail(AFDEP_ERR_CONFIG, "%s is %lld: %lld to %lld is wanted", setting->name, (long long)*value,
                              (long long)setting->low, (long long)setting->high);
        return AFDEP_OK;
    }
    const char *variable = environment_of(setting);
    if (variable) {
        *origin = AFDEP_FROM_ENVIRONMENT;
        return parse_number(setting, variable, value);
    }
    *origin = AFDEP_FROM_DEFAULT;
    *value = setting->fallback;
    return AFDEP_OK;
}

/* The resolved table. */
typedef struct values {
    const afdep_config_t *config;
    int64_t number[AFDEP_SETTINGS_MOST];
    afdep_origin_t origin[AFDEP_SETTINGS_MOST];
    const char *text[AFDEP_SETTINGS_MOST];
} values_t;

static int index_of(const char *name)
{
    int i = 0;
    while (strcmp(afdep_settings_table[i].name, name) != 0)
        i++;
    return i;
}

static int32_t number(const values_t *v, const char *name)
{
    return (int32_t)v->number[index_of(name)];
}

static afdep_status_t resolve_table(values_t *v)
{
    for (int i = 0; afdep_settings_table[i].name; i++) {
        afdep_status_t status =
            afdep_setting_value(&afdep_settings_table[i], v->config, &v->number[i], &v->text[i], &v->origin[i]);
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_OK;
}

static afdep_status_t want(const char *name, int64_t value, const char *rule)
{
    return afdep_fail(AFDEP_ERR_CONFIG, "%s is %lld: %s", name, (long long)value, rule);
}

/* Several domains: each of one role, or each of the same number of FFN ranks; symmetric ranks are all alike. */
static afdep_status_t check_domains(afdep_shape_t *s, int mixed)
{
    int domains = s->ranks / s->ranks_per_domain;
    if (afdep_is_symmetric(s)) {
        s->protocol = AFDEP_PROTOCOL_UNION;
        s->ffn_domains = s->attention_domains = domains;
        return AFDEP_OK;
    }
    if (s->ffn_ranks % s->ranks_per_domain == 0) {
        s->protocol = AFDEP_PROTOCOL_DIRECTIONAL;
        s->ffn_domains = s->ffn_ranks / s->ranks_per_domain;
        s->attention_domains = s->attention_ranks / s->ranks_per_domain;
        return AFDEP_OK;
    }
    if (s->ffn_ranks % domains != 0)
        return afdep_fail(AFDEP_ERR_CONFIG,
                          "ffn_ranks is %d: with %d domains of %d ranks a multiple of %d (every domain holds one role) "
                          "or of %d (every domain holds as many FFN ranks as the others) is wanted",
                          s->ffn_ranks, domains, s->ranks_per_domain, s->ranks_per_domain, domains);
    s->protocol = mixed ? AFDEP_PROTOCOL_MIXED : AFDEP_PROTOCOL_UNION;
    s->ffn_domains = s->attention_domains = domains;
    return AFDEP_OK;
}

static afdep_status_t check_ranks(afdep_shape_t *s, int size, int mixed)
{
    if (s->ffn_ranks >= size)
        return afdep_fail(AFDEP_ERR_CONFIG, "ffn_ranks is %d: fewer than the %d ranks of the group are wanted",
                          s->ffn_ranks, size);
    s->ranks = size;
    s->attention_ranks = size - s->ffn_ranks;
    if (s->ranks_per_domain == 0)
        s->ranks_per_domain = size;
    if (size % s->ranks_per_domain != 0)
        return afdep_fail(AFDEP_ERR_CONFIG, "ranks_per_domain is %d: it does not divide the %d ranks of the group",
                          s->ranks_per_domain, size);
    if (s->entry_barrier && !afdep_is_symmetric(s))
        return afdep_fail(AFDEP_ERR_CONFIG, "entry_barrier is 1 and ffn_ranks is %d: only a symmetric buffer, "
                          "ffn_ranks 0, has an entry barrier", s->ffn_ranks);
    if (s->ranks_per_domain != size)
        return check_domains(s, mixed);
    s->protocol = AFDEP_PROTOCOL_DIRECT;
    s->ffn_domains = s->attention_domains = 1;
    return AFDEP_OK;
}

static afdep_status_t check_model(afdep_shape_t *s)
{
    static const struct {
        const char *name;
        size_t offset;
    } required[] = { { "num_experts", offsetof(afdep_shape_t, num_experts) },
                     { "top_k", offsetof(afdep_shape_t, top_k) },
                     { "hidden", offsetof(afdep_shape_t, hidden) },
                     { "capacity", offsetof(afdep_shape_t, capacity) } };
    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++) {
        int32_t value;
        memcpy(&value, (const char *)s + required[i].offset, sizeof(value));
        if (value < 1)
            return want(required[i].name, value, "a positive number is wanted");
    }
    if (s->num_experts % afdep_workers(s) != 0)
        return afdep_fail(AFDEP_ERR_CONFIG, "num_experts is %d: a multiple of %s, %d, is wanted", s->num_experts,
                          afdep_is_symmetric(s) ? "the number of ranks" : "ffn_ranks", afdep_workers(s));
    s->experts_per_rank = s->num_experts / afdep_workers(s);
    if (s->top_k > s->num_experts)
        return afdep_fail(AFDEP_ERR_CONFIG, "top_k is %d: at most num_experts, %d, is wanted", s->top_k,
                          s->num_experts);
    if (s->hidden % 256 != 0)
        return want("hidden", s->hidden, "a multiple of 256 is wanted");
    if (afdep_receive_rows(s, s->capacity) > INT32_MAX)
        return afdep_fail(AFDEP_ERR_CONFIG,
                          "capacity is %d: %d sources with %d choices would give %lld rows at one FFN rank, more than "
                          "2147483647",
                          s->capacity, s->attention_ranks, s->top_k, (long long)afdep_receive_rows(s, s->capacity));
    return AFDEP_OK;
}

static afdep_status_t set_text(const values_t *v, const char *name, char *out, size_t size)
{
    const char *text = v->text[index_of(name)];
    if (text && strlen(text) >= size)
        return afdep_fail(AFDEP_ERR_CONFIG, "%s is \"%.60s\": no such name is known", name, text);
    strcpy(out, text ? text : "");
    return AFDEP_OK;
}

static afdep_status_t set_backend(const values_t *v, afdep_settings_t *out)
{
    const char *name = v->text[index_of("backend")];
    if (!name || strcmp(name, "host") == 0) {
        out->backend = "host";
        return AFDEP_OK;
    }
    if (strcmp(name, "cuda") == 0) {
#ifdef AFDEP_HAVE_CUDA
        out->backend = "cuda";
        return AFDEP_OK;
#else
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "backend is \"cuda\": this build has no CUDA backend");
#endif
    }
    return afdep_fail(AFDEP_ERR_CONFIG, "backend is \"%.60s\": host or cuda is wanted", name);
}

/* A toggle that nobody set may be turned off by the ablation variable of the role API. */
static int32_t ablated(const values_t *v, const char *toggle, const char *ablation)
{
    int i = index_of(toggle);
    if (v->origin[i] == AFDEP_FROM_DEFAULT && number(v, ablation))
        return 0;
    return (int32_t)v->number[i];
}

/* Switches of the role API whose part is not built: refused, never ignored. */
static afdep_status_t refuse_unbuilt(const values_t *v)
{
    static const char *const switches[] = { "shared_role_kernels" };
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
        if (number(v, switches[i]))
            return afdep_fail(AFDEP_ERR_UNSUPPORTED, "%s is 1: that is not built yet",
                              afdep_settings_table[index_of(switches[i])].environment);
    return AFDEP_OK;
}

/* What the CUDA backend has no kernels for. */
static afdep_status_t refuse_on_cuda(const afdep_settings_t *settings)
{
    const afdep_shape_t *s = &settings->shape;
    if (strcmp(settings->backend, "cuda") != 0 || (!afdep_is_symmetric(s) && !afdep_has_shared_domains(s)))
        return AFDEP_OK;
    return afdep_fail(AFDEP_ERR_UNSUPPORTED, "ffn_ranks is %d: the CUDA backend has no %s protocol, so far",
                      s->ffn_ranks, afdep_protocol_name(s));
}

/* A source that forwards for others, or owns experts, is nothing that the others can do without. */
static afdep_status_t check_survival(const afdep_settings_t *settings)
{
    const afdep_shape_t *s = &settings->shape;
    if (!s->survive_sources)
        return AFDEP_OK;
    if (afdep_is_symmetric(s) || afdep_has_shared_domains(s))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED,
                          "survive_sources is 1: in the %s protocol others need what a source does",
                          afdep_protocol_name(s));
    if (strcmp(settings->backend, "host") != 0)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "survive_sources is 1: backend \"%s\" does not have it",
                          settings->backend);
    return AFDEP_OK;
}

static void set_nic(const values_t *v, afdep_nic_t *nic)
{
    nic->send_ps = v->number[index_of("nic_send_ps")];
    nic->receive_ps = v->number[index_of("nic_receive_ps")];
    nic->signal_ps = v->number[index_of("nic_signal_ps")];
    nic->byte_ps = v->number[index_of("nic_byte_ps")];
    nic->latency_ps = v->number[index_of("nic_latency_ps")];
}

static void set_gin(const values_t *v, afdep_gin_settings_t *gin)
{
    gin->num_qps = number(v, "num_qps");
    gin->type = number(v, "gin_type");
    gin->traffic_class = number(v, "traffic_class");
}

static void set_shape(const values_t *v, afdep_shape_t *s)
{
    s->ffn_ranks = number(v, "ffn_ranks");
    s->ranks_per_domain = number(v, "ranks_per_domain");
    s->num_experts = number(v, "num_experts");
    s->top_k = number(v, "top_k");
    s->hidden = number(v, "hidden");
    s->fp8 = number(v, "dtype") == AFDEP_DTYPE_FP8;
    s->capacity = number(v, "capacity");
    s->num_sms = number(v, "num_sms");
    s->channels = 8 * s->num_sms;
    s->expert_alignment = number(v, "expert_alignment");
    s->in_flight = number(v, "in_flight");
    s->stagger = number(v, "stagger");
    s->sparse_dispatch = ablated(v, "sparse_dispatch", "shared_hybrid_forward");
    s->sparse_combine = ablated(v, "sparse_combine", "shared_hybrid_collect");
    s->entry_barrier = number(v, "entry_barrier");
    s->apply_weights = number(v, "apply_weights");
    s->union_buffers = number(v, "union_buffers");
    s->survive_sources = number(v, "survive_sources");
}

/* After the protocol is known: packed replies exist where one FFN domain's sum leaves for another domain. */
static void set_fp8_combine(const values_t *v, afdep_shape_t *s)
{
    int32_t least = number(v, "fp8_combine_min_bucket");
    s->fp8_combine = s->protocol == AFDEP_PROTOCOL_DIRECTIONAL && number(v, "fp8_combine");
    s->fp8_combine_min_bucket = s->fp8_combine && least > 0 ? least : 0;
}

afdep_status_t afdep_settings_resolve(const afdep_config_t *given, int size, afdep_settings_t *settings)
{
    afdep_config_t config;
    if (!given)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "config is NULL");
    afdep_status_t status = afdep_struct_copy(&config, sizeof(config), given, given->struct_size,
                                              offsetof(afdep_config_t, num_sms), "afdep_config_t");
    if (status != AFDEP_OK)
        return status;
    if (config.flags & ~ALL_FLAGS)
        return afdep_fail(AFDEP_ERR_CONFIG, "flags is 0x%x: this library knows only the bits 0x%x", config.flags,
                          ALL_FLAGS);
    values_t values = { .config = &config };
    afdep_settings_t out;
    memset(&out, 0, sizeof(out));
    if ((status = resolve_table(&values)) != AFDEP_OK || (status = set_backend(&values, &out)) != AFDEP_OK ||
        (status = set_text(&values, "fabric", out.fabric, sizeof(out.fabric))) != AFDEP_OK ||
        (status = set_text(&values, "row_ops", out.row_ops, sizeof(out.row_ops))) != AFDEP_OK)
        return status;
    if ((status = refuse_unbuilt(&values)) != AFDEP_OK)
        return status;
    set_shape(&values, &out.shape);
    if ((status = check_ranks(&out.shape, size, number(&values, "mixed_hybrid"))) != AFDEP_OK ||
        (status = check_model(&out.shape)) != AFDEP_OK || (status = refuse_on_cuda(&out)) != AFDEP_OK ||
        (status = check_survival(&out)) != AFDEP_OK)
        return status;
    set_fp8_combine(&values, &out.shape);
    set_nic(&values, &out.nic);
    set_gin(&values, &out.gin);
    out.slow_forward_us = number(&values, "slow_forward_us");
    if (afdep_layout_init(&out.layout, &out.shape))
        return afdep_fail(AFDEP_ERR_CONFIG, "capacity is %d: the segment would exceed 63 bits", out.shape.capacity);
    out.timeout_ms = number(&values, "timeout_ms");
    out.default_sms = values.origin[index_of("num_sms")] == AFDEP_FROM_DEFAULT;
    out.first_exchange = (uint64_t)values.number[index_of("first_exchange")];
    out.flags = (out.shape.apply_weights ? AFDEP_FLAG_APPLY_WEIGHTS : 0) |
                (out.shape.union_buffers ? AFDEP_FLAG_UNION_BUFFERS : 0) |
                (number(&values, "mixed_hybrid") ? AFDEP_FLAG_MIXED_HYBRID : 0) |
                (out.shape.entry_barrier ? AFDEP_FLAG_ENTRY_BARRIER : 0) |
                (out.shape.survive_sources ? AFDEP_FLAG_SURVIVE_SOURCES : 0);
    *settings = out;
    return AFDEP_OK;
}
