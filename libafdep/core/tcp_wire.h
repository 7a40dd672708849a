/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the TCP bootstrap says on the wire. All numbers are big-endian and all parts have a fixed length.
 *
 *     rank r                                                    rank 0
 *       hello      "AFDEP.HI" version rank size nonce      ->
 *                                                          <-   challenge  "AFDEP.CH" version size nonce
 *       proof      HMAC(job key, "rank" ...)               ->
 *                                                          <-   verdict    code, HMAC(job key, "root" code ...)
 *       messages   header, payload, HMAC(session key)      <->  messages
 *
 * Both proofs cover the whole transcript: version, the rank claimed, the size that each side believes in, and both
 * nonces. The rank proves first, so that a stranger who only connects learns nothing that it could test guesses of
 * the token against. Each direction then has a session key of its own, and every message its number, so that nothing
 * can be replayed, reflected, reordered or left out.
 */
#ifndef AFDEP_CORE_TCP_WIRE_H
#define AFDEP_CORE_TCP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hmac.h"

#define AFDEP_TCP_VERSION 1u
#define AFDEP_TCP_TAG_BYTES 8
#define AFDEP_TCP_NONCE_BYTES 32
#define AFDEP_TCP_KEY_BYTES AFDEP_HMAC_BYTES
#define AFDEP_TCP_HELLO_BYTES (AFDEP_TCP_TAG_BYTES + 12 + AFDEP_TCP_NONCE_BYTES)
#define AFDEP_TCP_CHALLENGE_BYTES (AFDEP_TCP_TAG_BYTES + 8 + AFDEP_TCP_NONCE_BYTES)
#define AFDEP_TCP_PROOF_BYTES AFDEP_HMAC_BYTES
#define AFDEP_TCP_VERDICT_BYTES (4 + AFDEP_HMAC_BYTES)
#define AFDEP_TCP_HEADER_BYTES 32

/* More ranks than rank 0 can have connections; a bound for what is allocated before anybody is known. */
#define AFDEP_TCP_MAX_RANKS 65535

typedef struct afdep_tcp_transcript {
    uint32_t rank;      /* that the peer claims */
    uint32_t size;      /* of the world, as the peer believes */
    uint32_t root_size; /* as rank 0 believes */
    uint8_t nonce[AFDEP_TCP_NONCE_BYTES];
    uint8_t root_nonce[AFDEP_TCP_NONCE_BYTES];
} afdep_tcp_transcript_t;

typedef enum afdep_tcp_verdict {
    AFDEP_TCP_ADMITTED = 0,
    AFDEP_TCP_WRONG_PROOF = 1, /* the only one without a MAC: rank 0 signs nothing for a stranger */
    AFDEP_TCP_WRONG_SIZE = 2,
    AFDEP_TCP_WRONG_RANK = 3,
    AFDEP_TCP_TAKEN_RANK = 4
} afdep_tcp_verdict_t;

typedef enum afdep_tcp_kind {
    AFDEP_TCP_DATA = 1,   /* a contribution to a collective, or its result */
    AFDEP_TCP_NOTICE = 2, /* rank 0: the group ended; reason (4), milliseconds waited (4), set of ranks */
    AFDEP_TCP_EXPIRED = 3 /* a rank: my deadline passed, tell me who is missing; milliseconds waited (4) */
} afdep_tcp_kind_t;

#define AFDEP_TCP_EXPIRED_BYTES 4
#define AFDEP_TCP_NOTICE_PREFIX 8

typedef struct afdep_tcp_header {
    uint32_t kind;
    uint64_t operation; /* collective; 0 is the meeting itself */
    uint64_t length;    /* of the payload */
    uint64_t sequence;  /* of the message in its direction */
} afdep_tcp_header_t;

void afdep_tcp_put32(uint8_t *bytes, uint32_t value);
uint32_t afdep_tcp_get32(const uint8_t *bytes);

void afdep_tcp_encode_hello(const afdep_tcp_transcript_t *transcript, uint8_t bytes[AFDEP_TCP_HELLO_BYTES]);

/* Whether the first `count` bytes can still become a hello of this version: a stranger is known by its first byte. */
bool afdep_tcp_hello_begins(const uint8_t *bytes, size_t count);

/* Takes rank, size and nonce from a hello that has begun rightly. */
void afdep_tcp_decode_hello(const uint8_t bytes[AFDEP_TCP_HELLO_BYTES], afdep_tcp_transcript_t *transcript);

void afdep_tcp_encode_challenge(const afdep_tcp_transcript_t *transcript, uint8_t bytes[AFDEP_TCP_CHALLENGE_BYTES]);

/* Takes root_size and root_nonce. Returns false when it is no challenge of this version. */
bool afdep_tcp_decode_challenge(const uint8_t bytes[AFDEP_TCP_CHALLENGE_BYTES], afdep_tcp_transcript_t *transcript);

/* The key that stands for a job token; the token itself is then needed no more. */
bool afdep_tcp_job_key(const char *token, uint8_t key[AFDEP_TCP_KEY_BYTES]);

/* Proof or session key over the transcript: HMAC(key, label, code, version and transcript). */
bool afdep_tcp_derive(const uint8_t key[AFDEP_TCP_KEY_BYTES], const char *label, uint32_t code,
                      const afdep_tcp_transcript_t *transcript, uint8_t out[AFDEP_HMAC_BYTES]);

/* Labels of afdep_tcp_derive(). */
#define AFDEP_TCP_LABEL_PROOF "afdep tcp 1: proof of a rank"
#define AFDEP_TCP_LABEL_VERDICT "afdep tcp 1: verdict of rank 0"
#define AFDEP_TCP_LABEL_TO_ROOT "afdep tcp 1: messages to rank 0"
#define AFDEP_TCP_LABEL_FROM_ROOT "afdep tcp 1: messages from rank 0"

void afdep_tcp_encode_header(const afdep_tcp_header_t *header, uint8_t bytes[AFDEP_TCP_HEADER_BYTES]);

/* Returns false when it does not begin as a header does. */
bool afdep_tcp_decode_header(const uint8_t bytes[AFDEP_TCP_HEADER_BYTES], afdep_tcp_header_t *header);

#endif
