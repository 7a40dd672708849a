/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: every row of the table by default, by environment and by field, and what is refused, with name, value and
 * range in the sentence; rules that join several settings; structs of older and newer callers; and the document that
 * users read, checked against the table.
 */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/config.h"
#include "validate/unit/crowd.h"
#include "validate/unit/rig.h"

/* Across domains, legal, everything optional left alone. */
static afdep_config_t plain(void)
{
    afdep_config_t c = AFDEP_CONFIG_INIT;
    c.ffn_ranks = 2;
    c.ranks_per_domain = 2;
    c.num_experts = 8;
    c.top_k = 2;
    c.hidden = 256;
    c.capacity = 8;
    return c;
}

#define WORLD 6

static int clear_environment(void **state)
{
    (void)state;
    for (const afdep_setting_t *row = afdep_settings_table; row->name; row++)
        if (row->environment)
            unsetenv(row->environment);
    return 0;
}

static const afdep_setting_t *row_of(const char *name)
{
    const afdep_setting_t *row = afdep_settings_table;
    while (row->name && strcmp(row->name, name) != 0)
        row++;
    assert_non_null(row->name);
    return row;
}

static int64_t value_of(const char *name, const afdep_config_t *config, afdep_origin_t origin)
{
    int64_t value = INT64_MIN;
    const char *text = NULL;
    afdep_origin_t from;
    if (afdep_setting_value(row_of(name), config, &value, &text, &from) != AFDEP_OK)
        fail_msg("%s: %s", name, afdep_last_error());
    assert_int_equal(from, origin);
    return value;
}

#define REFUSED(config, size, status, ...) refused(__LINE__, config, size, status, __VA_ARGS__, NULL)

/* Resolving gives `status` and a sentence with all the given parts. */
static void refused(int line, const afdep_config_t *config, int size, afdep_status_t status, ...)
{
    afdep_settings_t settings, before;
    memset(&settings, 0x5A, sizeof(settings));
    before = settings;
    afdep_status_t got = afdep_settings_resolve(config, size, &settings);
    va_list parts;
    if (got != status)
        fail_msg("line %d: %s, wanted %s: %s", line, afdep_status_string(got), afdep_status_string(status),
                 afdep_last_error());
    va_start(parts, status);
    for (const char *part = va_arg(parts, const char *); part; part = va_arg(parts, const char *))
        if (!strstr(afdep_last_error(), part))
            fail_msg("line %d: \"%s\" is not in: %s", line, part, afdep_last_error());
    va_end(parts);
    assert_memory_equal(&settings, &before, sizeof(settings)); /* set on success only */
}

static afdep_settings_t resolved(const afdep_config_t *config)
{
    afdep_settings_t settings;
    if (afdep_settings_resolve(config, WORLD, &settings) != AFDEP_OK)
        fail_msg("%s", afdep_last_error());
    return settings;
}

/* ---- The table ----------------------------------------------------------------------------------------------- */

static void test_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t value;
    } wanted[] = { { "num_sms", 24 },      { "expert_alignment", 1 },      { "in_flight", 1 },
                   { "timeout_ms", 60000 }, { "stagger", 1 },               { "sparse_dispatch", 1 },
                   { "sparse_combine", 1 }, { "apply_weights", 0 },         { "union_buffers", 0 },
                   { "dtype", 0 },          { "first_exchange", 0 },        { "fp8_combine", 0 },
                   { "fp8_combine_min_bucket", 0 }, { "shared_hybrid_forward", 0 }, { "shared_hybrid_collect", 0 } };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_int_equal(value_of(wanted[i].name, NULL, AFDEP_FROM_DEFAULT), wanted[i].value);
    afdep_config_t c = plain();
    afdep_settings_t s = resolved(&c);
    assert_int_equal(s.shape.channels, 192);
    assert_int_equal(s.shape.num_sms, 24);
    assert_int_equal(s.shape.expert_alignment, 1);
    assert_int_equal(s.shape.in_flight, 1);
    assert_int_equal(s.timeout_ms, 60000);
    assert_true(s.shape.stagger && s.shape.sparse_dispatch && s.shape.sparse_combine);
    assert_false(s.shape.fp8 || s.shape.apply_weights || s.shape.union_buffers || s.flags);
    assert_string_equal(s.backend, "host");
    assert_string_equal(s.fabric, "");
    assert_true(s.first_exchange == 0);
    c.ranks_per_domain = 0;
    s = resolved(&c);
    assert_int_equal(s.shape.ranks_per_domain, WORLD);
    assert_int_equal(s.shape.protocol, AFDEP_PROTOCOL_DIRECT);
}

/* A legal value that is not the default, for a number's row. */
static int64_t other_value(const afdep_setting_t *row)
{
    return row->fallback != row->high ? row->high : row->low;
}

static void test_environment_and_field(void **state)
{
    (void)state;
    for (const afdep_setting_t *row = afdep_settings_table; row->name; row++) {
        if (!row->environment || row->type == AFDEP_SETTING_TEXT)
            continue;
        char text[32];
        afdep_config_t c = AFDEP_CONFIG_INIT;
        int64_t other = other_value(row);
        snprintf(text, sizeof(text), "%lld", (long long)other);
        setenv(row->environment, text, 1);
        assert_int_equal(value_of(row->name, NULL, AFDEP_FROM_ENVIRONMENT), other);
        assert_int_equal(value_of(row->name, &c, AFDEP_FROM_ENVIRONMENT), other);
        setenv(row->environment, "", 1); /* empty is unset */
        assert_int_equal(value_of(row->name, &c, AFDEP_FROM_DEFAULT), row->fallback);
        if (row->offset == AFDEP_SETTING_NO_FIELD)
            continue;
        /* The field wins over the variable, also when it says the default. */
        setenv(row->environment, row->type == AFDEP_SETTING_FLAG ? "0" : text, 1);
        if (row->type == AFDEP_SETTING_FLAG) {
            c.flags = row->flag;
            assert_int_equal(value_of(row->name, &c, AFDEP_FROM_CONFIG), 1);
        } else {
            int toggle = row->type == AFDEP_SETTING_TOGGLE;
            /* a number's 0 asks for the default */
            int32_t value = row->fallback || toggle ? (int32_t)row->fallback : 1;
            int32_t field = value + (toggle ? AFDEP_OFF : 0);
            memcpy((char *)&c + row->offset, &field, sizeof(field));
            assert_int_equal(value_of(row->name, &c, AFDEP_FROM_CONFIG), value);
        }
        unsetenv(row->environment);
    }
}

static void test_environment_reaches_the_settings(void **state)
{
    (void)state;
    afdep_config_t c = plain();
    setenv("AFDEP_NUM_SMS", "2", 1);
    setenv("AFDEP_IN_FLIGHT", "3", 1);
    setenv("AFDEP_TIMEOUT_MS", "1234", 1);
    setenv("AFDEP_STAGGER", "off", 1);
    setenv("AFDEP_SPARSE_DISPATCH", "0", 1);
    setenv("AFDEP_UNION_BUFFERS", "on", 1);
    setenv("AFDEP_TEST_FIRST_EXCHANGE", "4294967290", 1);
    setenv("AFDEP_FABRIC", "shm", 1);
    setenv("AFDEP_BACKEND", "host", 1);
    setenv("AFDEP_ROW_OPS", "scalar", 1);
    afdep_settings_t s = resolved(&c);
    assert_int_equal(s.shape.channels, 16);
    assert_int_equal(s.shape.in_flight, 3);
    assert_int_equal(s.timeout_ms, 1234);
    assert_int_equal(s.shape.stagger, 0);
    assert_int_equal(s.shape.sparse_dispatch, 0);
    assert_int_equal(s.shape.sparse_combine, 1);
    assert_int_equal(s.shape.union_buffers, 1);
    assert_int_equal(s.flags, AFDEP_FLAG_UNION_BUFFERS);
    assert_true(s.first_exchange == 4294967290u);
    assert_string_equal(s.fabric, "shm");
    assert_string_equal(s.row_ops, "scalar");
    c.fabric = "mpi";
    c.stagger = AFDEP_ON;
    s = resolved(&c);
    assert_string_equal(s.fabric, "mpi");
    assert_int_equal(s.shape.stagger, 1);
}

static void test_bad_environment(void **state)
{
    (void)state;
    afdep_config_t c = plain();
    static const char *const numbers[] = { "x",  "1x", "1.5", "99999999999999999999999", "-99999999999999999999999",
                                           "-1" };
    for (const afdep_setting_t *row = afdep_settings_table; row->name; row++) {
        if (!row->environment || row->type == AFDEP_SETTING_TEXT)
            continue;
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            if (row->low < 0 && strcmp(numbers[i], "-1") == 0)
                continue;
            setenv(row->environment, numbers[i], 1);
            REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, row->environment, numbers[i], "wanted");
        }
        if (row->type == AFDEP_SETTING_INT) {
            char high[32], range[64], value[32];
            snprintf(high, sizeof(high), "%lld", (long long)row->high + 1);
            snprintf(range, sizeof(range), "from %lld to %lld", (long long)row->low, (long long)row->high);
            setenv(row->environment, high, 1);
            REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, row->environment, high, range);
            snprintf(value, sizeof(value), "%lld", (long long)row->low - 1);
            setenv(row->environment, value, 1);
            REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, row->environment, value, range);
        } else {
            setenv(row->environment, "2", 1);
            REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, row->environment, "\"2\"", "0, 1, on or off");
        }
        unsetenv(row->environment);
    }
    setenv("AFDEP_BACKEND", "abacus", 1);
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "backend is \"abacus\"", "host or cuda");
    setenv("AFDEP_BACKEND", "cuda", 1);
    afdep_settings_t cuda;
    if (afdep_settings_resolve(&c, WORLD, &cuda) != AFDEP_OK) /* a build that has it opens where there is a GPU */
        REFUSED(&c, WORLD, AFDEP_ERR_UNSUPPORTED, "backend is \"cuda\"");
    setenv("AFDEP_BACKEND", "host", 1);
    setenv("AFDEP_FABRIC", "a name longer than any fabric has", 1);
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "fabric is \"a name longer");
    unsetenv("AFDEP_FABRIC");
    setenv("AFDEP_SHARED_ROLE_KERNELS", "1", 1);
    REFUSED(&c, WORLD, AFDEP_ERR_UNSUPPORTED, "AFDEP_SHARED_ROLE_KERNELS is 1");
}

static void test_bad_fields(void **state)
{
    (void)state;
    for (const afdep_setting_t *row = afdep_settings_table; row->name; row++) {
        if (row->offset == AFDEP_SETTING_NO_FIELD || row->type == AFDEP_SETTING_TEXT ||
            row->type == AFDEP_SETTING_FLAG)
            continue;
        int64_t bad[] = { row->low - 1, row->high + 1, INT32_MIN, INT32_MAX, -1 };
        for (int i = 0; i < 5; i++) {
            afdep_config_t c = plain();
            int toggle = row->type == AFDEP_SETTING_TOGGLE;
            int64_t field = bad[i] + (i < 2 && toggle ? AFDEP_OFF : 0);
            char said[64], range[64];
            int legal = !toggle && bad[i] >= row->low && bad[i] <= row->high;
            if (field == 0 || field < INT32_MIN || field > INT32_MAX || legal)
                continue; /* 0 asks for the default */
            int32_t value = (int32_t)field;
            memcpy((char *)&c + row->offset, &value, sizeof(value));
            snprintf(said, sizeof(said), "%s is %d: ", row->name, value);
            snprintf(range, sizeof(range), "%lld to %lld", (long long)row->low, (long long)row->high);
            REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, said, toggle ? "AFDEP_OFF (1) or AFDEP_ON (2)" : range);
        }
    }
    afdep_config_t c = plain();
    c.flags = 32;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "flags is 0x20", "0x1f");
    c.flags = 0x80000001u;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "flags is 0x80000001");
}

/* ---- Rules over several settings ----------------------------------------------------------------------------- */

static void test_ranks(void **state)
{
    (void)state;
    afdep_config_t c = plain();
    REFUSED(NULL, WORLD, AFDEP_ERR_ARGUMENT, "config is NULL");
    c.ffn_ranks = 0;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "num_experts is 8", "the number of ranks, 6");
    c.ffn_ranks = WORLD;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "ffn_ranks is 6", "fewer than the 6 ranks");
    c.ffn_ranks = 2;
    REFUSED(&c, 0, AFDEP_ERR_CONFIG, "ffn_ranks is 2", "the 0 ranks");
    REFUSED(&c, -3, AFDEP_ERR_CONFIG, "ffn_ranks is 2", "the -3 ranks");
    c.ranks_per_domain = 4;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "ranks_per_domain is 4", "the 6 ranks");
    c.ranks_per_domain = 12;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "ranks_per_domain is 12");
    c.ranks_per_domain = 3;
    assert_int_equal(resolved(&c).shape.protocol, AFDEP_PROTOCOL_UNION);
    c.ffn_ranks = 1; /* two domains cannot share one FFN rank */
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "ffn_ranks is 1", "2 domains of 3", "a multiple of 3", "or of 2");
    c.ffn_ranks = 4;
    c.ranks_per_domain = 3;
    assert_int_equal(resolved(&c).shape.protocol, AFDEP_PROTOCOL_UNION);
    c.ffn_ranks = 1;
    c.ranks_per_domain = 2;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "ffn_ranks is 1", "3 domains of 2");
    c.ranks_per_domain = WORLD; /* one domain may hold both */
    assert_int_equal(resolved(&c).shape.protocol, AFDEP_PROTOCOL_DIRECT);
    c = plain();
    afdep_settings_t s = resolved(&c);
    assert_int_equal(s.shape.protocol, AFDEP_PROTOCOL_DIRECTIONAL);
    assert_int_equal(s.shape.ffn_domains, 1);
    assert_int_equal(s.shape.attention_domains, 2);
    assert_int_equal(s.shape.experts_per_rank, 4);
}

/* Which protocol a topology gets, and what asks for another. */
static void test_protocols(void **state)
{
    (void)state;
    afdep_config_t c = plain();
    c.ranks_per_domain = 3;
    c.flags = AFDEP_FLAG_MIXED_HYBRID;
    afdep_settings_t s = resolved(&c);
    assert_int_equal(s.shape.protocol, AFDEP_PROTOCOL_MIXED);
    assert_int_equal(s.shape.ffn_domains, 2);
    assert_int_equal(s.shape.attention_domains, 2);
    assert_true(s.flags == AFDEP_FLAG_MIXED_HYBRID);
    c.flags = 0;
    setenv("AFDEP_MIXED_HYBRID", "1", 1);
    assert_int_equal(resolved(&c).shape.protocol, AFDEP_PROTOCOL_MIXED);
    c.ranks_per_domain = 2; /* every domain holds one role: nothing to mix */
    assert_int_equal(resolved(&c).shape.protocol, AFDEP_PROTOCOL_DIRECTIONAL);
    unsetenv("AFDEP_MIXED_HYBRID");
    c.flags = AFDEP_FLAG_ENTRY_BARRIER;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "entry_barrier is 1 and ffn_ranks is 2");
    c.ffn_ranks = 0;
    c.num_experts = 12;
    s = resolved(&c);
    assert_int_equal(s.shape.protocol, AFDEP_PROTOCOL_UNION);
    assert_int_equal(s.shape.attention_ranks, WORLD);
    assert_int_equal(s.shape.experts_per_rank, 2);
    assert_int_equal(s.shape.entry_barrier, 1);
    assert_string_equal(afdep_protocol_name(&s.shape), "symmetric-hybrid");
    assert_true(s.layout.ffn_bytes == s.layout.attention_bytes);
    c.ranks_per_domain = 0;
    s = resolved(&c);
    assert_int_equal(s.shape.protocol, AFDEP_PROTOCOL_DIRECT);
    assert_string_equal(afdep_protocol_name(&s.shape), "symmetric");
}

static void test_model(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        const char *said;
    } unset[] = { { offsetof(afdep_config_t, num_experts), "num_experts is 0" },
                  { offsetof(afdep_config_t, top_k), "top_k is 0" },
                  { offsetof(afdep_config_t, hidden), "hidden is 0" },
                  { offsetof(afdep_config_t, capacity), "capacity is 0" } };
    afdep_config_t c;
    for (size_t i = 0; i < 4; i++) {
        c = plain();
        memset((char *)&c + unset[i].offset, 0, 4);
        REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, unset[i].said, "positive");
    }
    c = plain(), c.num_experts = 9;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "num_experts is 9", "a multiple of ffn_ranks, 2");
    c = plain(), c.hidden = 300;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "hidden is 300", "a multiple of 256");
    c = plain(), c.hidden = 384;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "hidden is 384");
    c = plain(), c.top_k = 9;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "top_k is 9", "at most num_experts, 8");
    c = plain(), c.num_experts = 64, c.top_k = 33;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "top_k is 33", "1 to 32");
    c = plain(), c.num_experts = 64, c.top_k = 32, c.capacity = 1 << 24;
    REFUSED(&c, WORLD, AFDEP_ERR_CONFIG, "capacity is 16777216", "4 sources", "32 choices", "2147483648 rows");
    c.capacity = (1 << 24) - 1;
    (void)resolved(&c);
}

static void test_ablation(void **state)
{
    (void)state;
    static const struct {
        const char *ablation, *own;
        size_t field;
    } arms[] = { { "AFDEP_SHARED_HYBRID_FORWARD", "AFDEP_SPARSE_DISPATCH", offsetof(afdep_config_t, sparse_dispatch) },
                 { "AFDEP_SHARED_HYBRID_COLLECT", "AFDEP_SPARSE_COMBINE", offsetof(afdep_config_t, sparse_combine) } };
    for (int i = 0; i < 2; i++) {
        afdep_config_t c = plain();
        afdep_toggle_t on = AFDEP_ON;
        setenv(arms[i].ablation, "1", 1);
        afdep_settings_t s = resolved(&c);
        assert_int_equal(s.shape.sparse_dispatch, i != 0);
        assert_int_equal(s.shape.sparse_combine, i != 1);
        setenv(arms[i].own, "1", 1); /* whoever names the toggle means it */
        s = resolved(&c);
        assert_true(s.shape.sparse_dispatch && s.shape.sparse_combine);
        unsetenv(arms[i].own);
        memcpy((char *)&c + arms[i].field, &on, sizeof(on));
        s = resolved(&c);
        assert_true(s.shape.sparse_dispatch && s.shape.sparse_combine);
        c = plain();
        setenv(arms[i].ablation, "0", 1);
        s = resolved(&c);
        assert_true(s.shape.sparse_dispatch && s.shape.sparse_combine);
        unsetenv(arms[i].ablation);
    }
}

static void test_fp8_combine(void **state)
{
    (void)state;
    afdep_config_t c = plain();
    setenv("AFDEP_HYBRID_FP8_COMBINE_MIN_BUCKET", "16", 1);
    afdep_settings_t s = resolved(&c);
    assert_int_equal(s.shape.fp8_combine, 0);
    assert_int_equal(s.shape.fp8_combine_min_bucket, 0); /* reported only where it has a meaning */
    setenv("AFDEP_HYBRID_FP8_COMBINE", "1", 1);
    s = resolved(&c);
    assert_int_equal(s.shape.fp8_combine, 1);
    assert_int_equal(s.shape.fp8_combine_min_bucket, 16);
    assert_false(afdep_packs_replies(&s.shape, 15));
    assert_true(afdep_packs_replies(&s.shape, 16));
    setenv("AFDEP_HYBRID_FP8_COMBINE_MIN_BUCKET", "-5", 1);
    s = resolved(&c);
    assert_int_equal(s.shape.fp8_combine_min_bucket, 0);
    assert_true(afdep_packs_replies(&s.shape, 1));
    c.fp8_combine_min_bucket = 3;
    assert_int_equal(resolved(&c).shape.fp8_combine_min_bucket, 3);
    c.fp8_combine = AFDEP_OFF;
    assert_int_equal(resolved(&c).shape.fp8_combine_min_bucket, 0);
    c.fp8_combine = AFDEP_ON;
    c.ranks_per_domain = WORLD; /* one domain: no sum leaves it */
    s = resolved(&c);
    assert_int_equal(s.shape.fp8_combine, 0);
    assert_int_equal(s.shape.fp8_combine_min_bucket, 0);
}

/* ---- Structs of other versions ------------------------------------------------------------------------------- */

static void test_config_struct(void **state)
{
    (void)state;
    struct {
        afdep_config_t known;
        unsigned char tail[64];
    } future;
    memset(&future, 0, sizeof(future));
    future.known = plain();
    future.known.num_sms = 3;
    future.known.struct_size = sizeof(future);
    assert_int_equal(resolved(&future.known).shape.num_sms, 3);
    for (size_t i = 0; i < sizeof(future.tail); i++) {
        char byte[32];
        future.tail[i] = 1;
        snprintf(byte, sizeof(byte), "byte %zu is set", sizeof(afdep_config_t) + i);
        REFUSED(&future.known, WORLD, AFDEP_ERR_ARGUMENT, "afdep_config_t.struct_size is", byte);
        future.tail[i] = 0;
    }
    /* An older caller's struct ends before num_sms: what lies behind it is not read. */
    afdep_config_t old = plain();
    old.num_sms = -77;
    old.flags = 0xFFFF;
    old.struct_size = offsetof(afdep_config_t, num_sms);
    assert_int_equal(resolved(&old).shape.num_sms, 24);
    old.struct_size--;
    REFUSED(&old, WORLD, AFDEP_ERR_ARGUMENT, "smaller than any version's");
    old.struct_size = 0;
    REFUSED(&old, WORLD, AFDEP_ERR_ARGUMENT, "struct_size is 0");
    old.struct_size = SIZE_MAX; /* never set: must not be read that far */
    REFUSED(&old, WORLD, AFDEP_ERR_ARGUMENT, "which no version has");
    /* One that ends inside a pointer must not have it taken for a whole one. */
    old = plain();
    old.backend = "host";
    for (old.struct_size = offsetof(afdep_config_t, backend) + 1;
         old.struct_size < offsetof(afdep_config_t, backend) + sizeof(old.backend); old.struct_size++)
        REFUSED(&old, WORLD, AFDEP_ERR_ARGUMENT, "which no version has");
}

#define TAIL 32

/* A struct of `known` bytes followed by a tail, as a newer caller has it. */
typedef union future {
    afdep_memory_t memory;
    afdep_buffer_info_t info;
    afdep_counters_t counters;
    afdep_dispatch_t dispatch;
    afdep_collect_t collect;
    afdep_receive_t receive;
    afdep_reply_t reply;
    unsigned char bytes[sizeof(afdep_receive_t) + sizeof(afdep_buffer_info_t) + TAIL];
} future_t;

typedef afdep_status_t (*fill_fn)(afdep_buffer_t *buffer, future_t *f);

static afdep_status_t fill_memory(afdep_buffer_t *buffer, future_t *f)
{
    afdep_config_t c = plain();
    (void)buffer;
    return afdep_buffer_bytes(&c, WORLD, 0, &f->memory);
}

static afdep_status_t fill_info(afdep_buffer_t *buffer, future_t *f)
{
    return afdep_buffer_info(buffer, &f->info);
}

static afdep_status_t fill_counters(afdep_buffer_t *buffer, future_t *f)
{
    return afdep_buffer_counters(buffer, 0, &f->counters);
}

/* Structs that the library fills: an older one up to its size, a newer one with zeros behind what is known. */
static const char *check_filled(afdep_buffer_t *buffer, fill_fn fill, size_t size, size_t least)
{
    future_t f, whole;
    memset(&whole, 0x77, sizeof(whole));
    memcpy(&whole, &size, sizeof(size));
    if (fill(buffer, &whole) != AFDEP_OK)
        return crowd_say("%s", afdep_last_error());
    for (size_t i = size; i < sizeof(whole); i++)
        if (whole.bytes[i] != 0x77)
            return crowd_say("%zu bytes: byte %zu was written", size, i);
    for (size_t given = least; given <= size; given += 8) {
        memset(&f, 0x77, sizeof(f));
        memcpy(&f, &given, sizeof(given));
        if (fill(buffer, &f) != AFDEP_OK)
            return crowd_say("%zu of %zu bytes: %s", given, size, afdep_last_error());
        if (memcmp(f.bytes + 8, whole.bytes + 8, given - 8) != 0 || memcmp(f.bytes, &given, 8) != 0)
            return crowd_say("%zu of %zu bytes are filled differently", given, size);
        for (size_t i = given; i < sizeof(f); i++)
            if (f.bytes[i] != 0x77)
                return crowd_say("%zu of %zu bytes: byte %zu was written", given, size, i);
    }
    size_t larger = size + TAIL, broken[] = { 0, least - 1, SIZE_MAX };
    memset(&f, 0x77, sizeof(f));
    memcpy(&f, &larger, sizeof(larger));
    if (fill(buffer, &f) != AFDEP_OK)
        return crowd_say("%zu bytes: %s", larger, afdep_last_error());
    for (size_t i = size; i < sizeof(f); i++)
        if (f.bytes[i] != (i < larger ? 0 : 0x77))
            return crowd_say("%zu bytes: byte %zu is %d", larger, i, f.bytes[i]);
    for (int i = 0; i < 3; i++) {
        memcpy(&f, &broken[i], 8);
        if (fill(buffer, &f) != AFDEP_ERR_ARGUMENT || !strstr(afdep_last_error(), "struct_size"))
            return crowd_say("struct_size %zu: %s", broken[i], afdep_last_error());
    }
    return NULL;
}

typedef afdep_status_t (*call_fn)(afdep_buffer_t *buffer, future_t *f);

static afdep_status_t call_dispatch(afdep_buffer_t *buffer, future_t *f)
{
    return afdep_source_dispatch(buffer, &f->dispatch, NULL);
}

static afdep_status_t call_collect(afdep_buffer_t *buffer, future_t *f)
{
    return afdep_source_collect(buffer, &f->collect, NULL);
}

static afdep_status_t call_receive(afdep_buffer_t *buffer, future_t *f)
{
    return afdep_worker_receive(buffer, &f->receive, NULL);
}

static afdep_status_t call_reply(afdep_buffer_t *buffer, future_t *f)
{
    return afdep_worker_reply(buffer, &f->reply, NULL);
}

/* Structs that the caller fills: a set tail is refused, a zero one accepted, and what comes back keeps its size. `less`
   bytes are fewer than any version has. */
static const char *check_call(afdep_buffer_t *buffer, call_fn call, future_t *f, size_t size, size_t less)
{
    size_t broken[] = { 0, less, SIZE_MAX }, larger = size + TAIL;
    for (int i = 0; i < 3; i++) {
        memcpy(f, &broken[i], 8);
        if (call(buffer, f) != AFDEP_ERR_ARGUMENT || !strstr(afdep_last_error(), "struct_size"))
            return crowd_say("struct_size %zu: %s", broken[i], afdep_last_error());
    }
    memcpy(f, &larger, sizeof(larger));
    for (size_t i = size; i < larger; i += 7) {
        f->bytes[i] = 1;
        if (call(buffer, f) != AFDEP_ERR_ARGUMENT || !strstr(afdep_last_error(), "is set"))
            return crowd_say("byte %zu of %zu set: %s", i, size, afdep_last_error());
        f->bytes[i] = 0;
    }
    if (call(buffer, f) != AFDEP_OK)
        return crowd_say("%zu bytes: %s", larger, afdep_last_error());
    return memcmp(f, &larger, 8) == 0 ? NULL : crowd_say("struct_size was changed");
}

static const char *check_source(rig_t *rig)
{
    future_t f;
    memset(&f, 0, sizeof(f));
    f.dispatch = rig_dispatch_args(rig, 8, 5);
    const char *failed = check_call(rig->buffer, call_dispatch, &f, sizeof(f.dispatch),
                                    offsetof(afdep_dispatch_t, weights));
    if (failed)
        return failed;
    memset(&f, 0, sizeof(f));
    f.collect.out = rig->out;
    if ((failed = check_call(rig->buffer, call_collect, &f, sizeof(f.collect), sizeof(f.collect) - 8)) != NULL)
        return failed;
    return f.collect.tokens == 5 && rig_wrong_token(rig, 5) < 0 ? NULL : crowd_say("the result is wrong");
}

static const char *check_worker(rig_t *rig)
{
    future_t f;
    memset(&f, 0, sizeof(f));
    f.receive = rig_receive_args(rig, 8);
    const char *failed = check_call(rig->buffer, call_receive, &f, sizeof(f.receive),
                                    offsetof(afdep_receive_t, receipt));
    if (failed)
        return failed;
    rig->receipt = f.receive.receipt;
    memset(&f, 0, sizeof(f));
    f.reply.rows = rig->rows;
    f.reply.receipt = rig->receipt;
    return check_call(rig->buffer, call_reply, &f, sizeof(f.reply), sizeof(f.reply) - 8);
}

static const char *struct_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = rig_config(1, 0, 20000);
    afdep_status_t status;
    (void)context;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig)
        return crowd_say("open: %s", afdep_last_error());
    const char *failed = check_filled(rig->buffer, fill_info, sizeof(afdep_buffer_info_t),
                                      offsetof(afdep_buffer_info_t, channels));
    if (!failed)
        failed = check_filled(rig->buffer, fill_counters, sizeof(afdep_counters_t),
                              offsetof(afdep_counters_t, finish_tails));
    if (!failed)
        failed = check_filled(NULL, fill_memory, sizeof(afdep_memory_t), offsetof(afdep_memory_t, receive_rows));
    if (!failed)
        failed = rig->ffn ? check_worker(rig) : check_source(rig);
    status = rig_close(rig);
    return failed ? failed : status == AFDEP_OK ? NULL : crowd_say("close: %s", afdep_last_error());
}

static void test_other_structs(void **state)
{
    (void)state;
    const char *failed = crowd_run(2, struct_rank, NULL);
    if (failed)
        fail_msg("%s", failed);
}

/* ---- What is said before opening ----------------------------------------------------------------------------- */

static const char *sized_rank(const afdep_group_t *group, void *context)
{
    afdep_config_t config = rig_config(2, 2, 20000);
    afdep_memory_t m = { .struct_size = sizeof(m) };
    afdep_buffer_info_t info = { .struct_size = sizeof(info) };
    afdep_status_t status;
    config.flags = *(const uint32_t *)context;
    rig_t *rig = rig_open(group, &config, &status);
    if (!rig || afdep_buffer_bytes(&config, group->size, 0, &m) != AFDEP_OK ||
        afdep_buffer_info(rig->buffer, &info) != AFDEP_OK)
        return crowd_say("%s", afdep_last_error());
    int right = info.segment_bytes == (rig->ffn ? m.ffn_segment : m.attention_segment) &&
                info.private_bytes == (rig->ffn ? m.ffn_private : m.attention_private) && info.flags == config.flags;
    right &= strcmp(info.protocol, "directional") == 0 && strcmp(info.backend, "host") == 0 &&
             strcmp(info.fabric, "shm") == 0 && info.channels == 8 && info.exchanges == 0 && info.rank == group->rank;
    return rig_close(rig) == AFDEP_OK && right ? NULL : crowd_say("the buffer is not as it was said");
}

static void test_sizes(void **state)
{
    (void)state;
    afdep_config_t c = plain();
    afdep_memory_t m = { .struct_size = sizeof(m) }, united = m, small = m;
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, 0, &m), AFDEP_OK);
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, 3, &small), AFDEP_OK);
    assert_int_equal(m.receive_rows, 4 * 8 * 2);
    assert_int_equal(small.receive_rows, 4 * 3 * 2);
    assert_true(m.reply_bytes == 64 * 512 && m.receive_bytes == 64 * (512 + 4 + 8));
    assert_true(small.ffn_segment == m.ffn_segment); /* of capacity, not of the bucket */
    c.flags = AFDEP_FLAG_UNION_BUFFERS;
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, 0, &united), AFDEP_OK);
    assert_true(united.ffn_segment == united.attention_segment);
    assert_true(united.ffn_segment > m.ffn_segment && united.ffn_segment > m.attention_segment);
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, 9, &m), AFDEP_ERR_ARGUMENT);
    assert_non_null(strstr(afdep_last_error(), "bucket is 9: 0 to capacity, 8"));
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, -1, &m), AFDEP_ERR_ARGUMENT);
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, 0, NULL), AFDEP_ERR_ARGUMENT);
    assert_int_equal(afdep_buffer_bytes(NULL, WORLD, 0, &m), AFDEP_ERR_ARGUMENT);
    c.hidden = 1;
    assert_int_equal(afdep_buffer_bytes(&c, WORLD, 0, &m), AFDEP_ERR_CONFIG);
    for (uint32_t flags = 0; flags < 4; flags++) {
        const char *failed = crowd_run(WORLD, sized_rank, &flags);
        if (failed)
            fail_msg("%s", failed);
    }
}

/* ---- The document -------------------------------------------------------------------------------------------- */

static char *read_document(void)
{
    const char *top = getenv("srcdir");
    char path[4096];
    snprintf(path, sizeof(path), "%s/docs/configuration.md", top ? top : ".");
    FILE *file = fopen(path, "r");
    if (!file) {
        print_message("%s: %s\n", path, strerror(errno));
        return NULL;
    }
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t got = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    text[got] = '\0';
    return text;
}

/* Cell `n` (from 0) of the table line at `line`, without surrounding blanks. */
static void cell_of(const char *line, int n, char *out, size_t size)
{
    const char *at = line + 1;
    for (; n > 0; n--)
        at = strchr(at, '|') + 1;
    size_t length = strcspn(at, "|\n");
    while (length > 0 && *at == ' ')
        at++, length--;
    while (length > 0 && at[length - 1] == ' ')
        length--;
    snprintf(out, size, "%.*s", (int)length, at);
}

/* Every row of the table has its line, with its variable, default and bounds; no line speaks of what is not there. */
static void test_document(void **state)
{
    (void)state;
    char *text = read_document(), want[128], cell[512];
    if (!text)
        skip();
    int lines = 0, rows = 0;
    for (const afdep_setting_t *row = afdep_settings_table; row->name; row++, rows++) {
        snprintf(want, sizeof(want), "\n| `%s` |", row->name);
        const char *line = strstr(text, want);
        if (!line)
            fail_msg("docs/configuration.md has no line for %s", row->name);
        cell_of(line + 1, 1, cell, sizeof(cell));
        snprintf(want, sizeof(want), row->environment ? "`%s`" : "-", row->environment);
        if (strcmp(cell, want) != 0)
            fail_msg("docs/configuration.md, %s: variable \"%s\", the table has \"%s\"", row->name, cell, want);
        if (row->type != AFDEP_SETTING_INT)
            continue;
        cell_of(line + 1, 2, cell, sizeof(cell));
        snprintf(want, sizeof(want), "%lld", (long long)row->fallback);
        if (row->fallback >= row->low && !strstr(cell, want))
            fail_msg("docs/configuration.md, %s: default \"%s\", the table has %s", row->name, cell, want);
        cell_of(line + 1, 3, cell, sizeof(cell));
        snprintf(want, sizeof(want), "%lld", (long long)row->high);
        if (!strstr(cell, want) && !strstr(cell, "size"))
            fail_msg("docs/configuration.md, %s: range \"%s\", the table goes up to %s", row->name, cell, want);
    }
    const char *section = strstr(text, "## Settings"), *first = section ? strstr(section, "\n| `") : NULL;
    const char *end = first ? strstr(first, "\n\n") : NULL; /* of that table; others repeat some of its rows */
    assert_non_null(end);
    for (const char *at = section; (at = strstr(at, "\n| `")) != NULL && at < end; at++)
        lines++;
    assert_int_equal(lines, rows);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_defaults, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_environment_and_field, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_environment_reaches_the_settings, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_bad_environment, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_bad_fields, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_ranks, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_protocols, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_model, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_ablation, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_fp8_combine, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_config_struct, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_other_structs, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(test_sizes, clear_environment, clear_environment),
        cmocka_unit_test(test_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
