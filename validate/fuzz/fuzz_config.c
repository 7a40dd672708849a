/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment and a caller's configuration. Input: a byte for the world's size, a byte for how much of the struct
 * is given, the struct's fields, then lines of environment, each one byte for the variable and its value.
 */
#include <stdlib.h>

#include <afdep/afdep.h>
#include <afdep/group.h>

#include "core/config.h"
#include "host/host.h"
#include "validate/fuzz/lib/input.h"

static const char *const others[] = { "RANK", "WORLD_SIZE", "MASTER_PORT", "AFDEP_JOB_TOKEN", "AFDEP_LOG" };

enum { OTHERS = sizeof(others) / sizeof(others[0]) };

/* The n-th variable that the library reads, modulo their number. */
static const char *variable(unsigned n)
{
    const char *names[64];
    unsigned count = 0;
    for (const afdep_setting_t *setting = afdep_settings_table; setting->name; setting++)
        if (setting->environment)
            names[count++] = setting->environment;
    for (unsigned i = 0; i < OTHERS; i++)
        names[count++] = others[i];
    return names[n % count];
}

static void set_environment(afdep_fuzz_input_t *input)
{
    for (unsigned n = 0; n < 64; n++)
        unsetenv(variable(n));
    while (input->left > 0) {
        char value[64];
        size_t length = 0;
        const char *name = variable(afdep_fuzz_u8(input));
        while (input->left > 0 && length < sizeof(value) - 1) {
            char c = (char)afdep_fuzz_u8(input);
            if (c == '\n' || c == 0)
                break;
            value[length++] = c;
        }
        value[length] = 0;
        AFDEP_FUZZ_EXPECT(setenv(name, value, 1) == 0);
    }
    /* Groups of many ranks are slow to allocate, and never get further than the address. */
    const char *size = getenv("WORLD_SIZE");
    if (size && strlen(size) > 3)
        unsetenv("WORLD_SIZE");
    setenv("MASTER_ADDR", "0.0.0.0", 1); /* a wildcard, which is refused before anything is sent */
}

/* What afdep_shape_t promises to everybody behind it. */
static void expect_shape(const afdep_settings_t *settings, int size)
{
    const afdep_shape_t *s = &settings->shape;
    AFDEP_FUZZ_EXPECT(s->ranks == size && s->ffn_ranks >= 1 && s->attention_ranks >= 1);
    AFDEP_FUZZ_EXPECT(s->ranks_per_domain >= 1 && size % s->ranks_per_domain == 0);
    AFDEP_FUZZ_EXPECT(s->experts_per_rank >= 1 && s->experts_per_rank * s->ffn_ranks == s->num_experts);
    AFDEP_FUZZ_EXPECT(s->top_k >= 1 && s->top_k <= 32 && s->hidden >= 256 && s->hidden % 256 == 0);
    AFDEP_FUZZ_EXPECT(s->capacity >= 1 && s->channels >= 8 && s->in_flight >= 1 && s->in_flight <= 4);
    AFDEP_FUZZ_EXPECT((s->stagger | s->sparse_dispatch | s->sparse_combine | s->apply_weights) <= 1);
    AFDEP_FUZZ_EXPECT(settings->timeout_ms >= 1 && settings->backend);
    for (int rank = 0; rank < size; rank += s->ffn_ranks)
        AFDEP_FUZZ_EXPECT(afdep_segment_bytes(&settings->layout, s, rank) > 0);
    AFDEP_FUZZ_EXPECT(afdep_host_private_bytes(settings, 0) > 0 && afdep_host_private_bytes(settings, 1) > 0);
}

static void make_group(void)
{
    afdep_tcp_t tcp = AFDEP_TCP_INIT;
    afdep_group_t group = AFDEP_GROUP_INIT;
    tcp.timeout_ms = 1;
    if (afdep_group_tcp_create(&tcp, &group) == AFDEP_OK) {
        AFDEP_FUZZ_EXPECT(group.size == 1 && group.rank == 0);
        afdep_group_destroy(&group);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const texts[] = { NULL, "host", "cuda", "shm", "sim", "", "a name longer than any" };
    afdep_fuzz_input_t input = { data, size };
    struct {
        afdep_config_t config;
        unsigned char future[64]; /* what a later version may have added */
    } given;
    afdep_settings_t settings;
    int ranks = afdep_fuzz_u8(&input);
    uint8_t how = afdep_fuzz_u8(&input);
    memset(&given, 0, sizeof(given));
    (void)afdep_fuzz_take(&input, (char *)&given.config + sizeof(size_t),
                          offsetof(afdep_config_t, backend) - sizeof(size_t));
    given.config.struct_size = how & 0x80 ? how & 0x7f : sizeof(given.config) + (how & 0x40 ? sizeof(given.future) : 0);
    given.config.backend = texts[how % 7];
    given.config.fabric = texts[how / 8 % 7];
    given.future[sizeof(given.future) - 1] = (how & 0x20) != 0;
    set_environment(&input);
    if (afdep_settings_resolve(how == 1 ? NULL : &given.config, ranks, &settings) == AFDEP_OK) {
        afdep_memory_t memory = { .struct_size = sizeof(memory) };
        expect_shape(&settings, ranks);
        AFDEP_FUZZ_EXPECT(afdep_buffer_bytes(&given.config, ranks, 0, &memory) == AFDEP_OK);
        AFDEP_FUZZ_EXPECT(memory.receive_rows > 0 && memory.ffn_segment > 0 && memory.attention_segment > 0);
    }
    make_group();
    return 0;
}
