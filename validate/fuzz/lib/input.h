/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target's input, taken from the front a piece at a time. Past its end everything reads as zero, so that no
 * target needs to say what happens there, and a shorter input is a simpler one.
 */
#ifndef AFDEP_FUZZ_INPUT_H
#define AFDEP_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct afdep_fuzz_input {
    const uint8_t *at;
    size_t left;
} afdep_fuzz_input_t;

/* Up to `bytes` bytes into `out`; what the input does not have is zero. Returns how many it had. */
static inline size_t afdep_fuzz_take(afdep_fuzz_input_t *input, void *out, size_t bytes)
{
    size_t had = bytes < input->left ? bytes : input->left;
    if (bytes > had)
        memset((uint8_t *)out + had, 0, bytes - had);
    if (had > 0)
        memcpy(out, input->at, had);
    input->at += had;
    input->left -= had;
    return had;
}

static inline uint8_t afdep_fuzz_u8(afdep_fuzz_input_t *input)
{
    uint8_t value;
    (void)afdep_fuzz_take(input, &value, sizeof(value));
    return value;
}

static inline int8_t afdep_fuzz_i8(afdep_fuzz_input_t *input)
{
    return (int8_t)afdep_fuzz_u8(input);
}

static inline uint32_t afdep_fuzz_u32(afdep_fuzz_input_t *input)
{
    uint32_t value;
    (void)afdep_fuzz_take(input, &value, sizeof(value));
    return value;
}

static inline uint64_t afdep_fuzz_u64(afdep_fuzz_input_t *input)
{
    uint64_t value;
    (void)afdep_fuzz_take(input, &value, sizeof(value));
    return value;
}

/* What every target defines; libFuzzer calls it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the run as a finding: `what` must hold, and does not. */
#define AFDEP_FUZZ_EXPECT(what)                                                                                       \
    do {                                                                                                              \
        if (!(what))                                                                                                  \
            __builtin_trap();                                                                                         \
    } while (0)

#endif
