/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of what tcp_wire.h describes. Pure functions over bytes. */
#include "core/tcp_wire.h"

#include <string.h>

static const char hello_tag[AFDEP_TCP_TAG_BYTES + 1] = "AFDEP.HI";
static const char challenge_tag[AFDEP_TCP_TAG_BYTES + 1] = "AFDEP.CH";
static const char header_tag[5] = "AFDM";

void afdep_tcp_put32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

uint32_t afdep_tcp_get32(const uint8_t *bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value = value << 8 | bytes[i];
    return value;
}

static void put64(uint8_t *bytes, uint64_t value)
{
    afdep_tcp_put32(bytes, (uint32_t)(value >> 32));
    afdep_tcp_put32(bytes + 4, (uint32_t)value);
}

static uint64_t get64(const uint8_t *bytes)
{
    return (uint64_t)afdep_tcp_get32(bytes) << 32 | afdep_tcp_get32(bytes + 4);
}

static void put_start(uint8_t *bytes, const char *tag)
{
    memcpy(bytes, tag, AFDEP_TCP_TAG_BYTES);
    afdep_tcp_put32(bytes + AFDEP_TCP_TAG_BYTES, AFDEP_TCP_VERSION);
}

void afdep_tcp_encode_hello(const afdep_tcp_transcript_t *transcript, uint8_t bytes[AFDEP_TCP_HELLO_BYTES])
{
    put_start(bytes, hello_tag);
    afdep_tcp_put32(bytes + 12, transcript->rank);
    afdep_tcp_put32(bytes + 16, transcript->size);
    memcpy(bytes + 20, transcript->nonce, AFDEP_TCP_NONCE_BYTES);
}

bool afdep_tcp_hello_begins(const uint8_t *bytes, size_t count)
{
    uint8_t start[AFDEP_TCP_TAG_BYTES + 4];
    put_start(start, hello_tag);
    return memcmp(bytes, start, count < sizeof start ? count : sizeof start) == 0;
}

void afdep_tcp_decode_hello(const uint8_t bytes[AFDEP_TCP_HELLO_BYTES], afdep_tcp_transcript_t *transcript)
{
    transcript->rank = afdep_tcp_get32(bytes + 12);
    transcript->size = afdep_tcp_get32(bytes + 16);
    memcpy(transcript->nonce, bytes + 20, AFDEP_TCP_NONCE_BYTES);
}

void afdep_tcp_encode_challenge(const afdep_tcp_transcript_t *transcript, uint8_t bytes[AFDEP_TCP_CHALLENGE_BYTES])
{
    put_start(bytes, challenge_tag);
    afdep_tcp_put32(bytes + 12, transcript->root_size);
    memcpy(bytes + 16, transcript->root_nonce, AFDEP_TCP_NONCE_BYTES);
}

bool afdep_tcp_decode_challenge(const uint8_t bytes[AFDEP_TCP_CHALLENGE_BYTES], afdep_tcp_transcript_t *transcript)
{
    uint8_t start[AFDEP_TCP_TAG_BYTES + 4];
    put_start(start, challenge_tag);
    if (memcmp(bytes, start, sizeof start) != 0)
        return false;
    transcript->root_size = afdep_tcp_get32(bytes + 12);
    memcpy(transcript->root_nonce, bytes + 16, AFDEP_TCP_NONCE_BYTES);
    return true;
}

bool afdep_tcp_job_key(const char *token, uint8_t key[AFDEP_TCP_KEY_BYTES])
{
    static const char label[] = "afdep tcp 1: job key";
    const struct iovec part = { .iov_base = (void *)label, .iov_len = sizeof label };
    return afdep_hmac_sha256(token, strlen(token), &part, 1, key);
}

bool afdep_tcp_derive(const uint8_t key[AFDEP_TCP_KEY_BYTES], const char *label, uint32_t code,
                      const afdep_tcp_transcript_t *transcript, uint8_t out[AFDEP_HMAC_BYTES])
{
    uint8_t said[20 + 2 * AFDEP_TCP_NONCE_BYTES];
    afdep_tcp_put32(said, code);
    afdep_tcp_put32(said + 4, AFDEP_TCP_VERSION);
    afdep_tcp_put32(said + 8, transcript->rank);
    afdep_tcp_put32(said + 12, transcript->size);
    afdep_tcp_put32(said + 16, transcript->root_size);
    memcpy(said + 20, transcript->nonce, AFDEP_TCP_NONCE_BYTES);
    memcpy(said + 20 + AFDEP_TCP_NONCE_BYTES, transcript->root_nonce, AFDEP_TCP_NONCE_BYTES);
    /* The label goes in with its terminator, so that no label is the beginning of another one's input. */
    const struct iovec parts[2] = { { .iov_base = (void *)label, .iov_len = strlen(label) + 1 },
                                    { .iov_base = said, .iov_len = sizeof said } };
    return afdep_hmac_sha256(key, AFDEP_TCP_KEY_BYTES, parts, 2, out);
}

void afdep_tcp_encode_header(const afdep_tcp_header_t *header, uint8_t bytes[AFDEP_TCP_HEADER_BYTES])
{
    memcpy(bytes, header_tag, 4);
    afdep_tcp_put32(bytes + 4, header->kind);
    put64(bytes + 8, header->operation);
    put64(bytes + 16, header->length);
    put64(bytes + 24, header->sequence);
}

bool afdep_tcp_decode_header(const uint8_t bytes[AFDEP_TCP_HEADER_BYTES], afdep_tcp_header_t *header)
{
    header->kind = afdep_tcp_get32(bytes + 4);
    header->operation = get64(bytes + 8);
    header->length = get64(bytes + 16);
    header->sequence = get64(bytes + 24);
    return memcmp(bytes, header_tag, 4) == 0;
}
