/* SPDX-License-Identifier: Apache-2.0 */
/* One admitted connection of the TCP bootstrap: authenticated messages over a non-blocking socket, a step at a time. */
#ifndef AFDEP_CORE_TCP_LINK_H
#define AFDEP_CORE_TCP_LINK_H

#include "core/tcp_wire.h"

typedef enum afdep_tcp_step {
    AFDEP_TCP_AGAIN,  /* the socket has no more to give or to take now */
    AFDEP_TCP_DONE,   /* one whole message went through */
    AFDEP_TCP_CLOSED, /* the other side is gone */
    AFDEP_TCP_GARBLED /* the message is not what the other side may send now; the link's complaint says why */
} afdep_tcp_step_t;

/* What may arrive now. A message that does not fit is refused by its header, before any of its payload is read. */
typedef struct afdep_tcp_expect {
    uint64_t operation; /* the collective under way */
    bool data;          /* a DATA message of this operation may come, of exactly `length` bytes, into `payload` */
    void *payload;
    uint64_t length;
    uint32_t note_kind; /* NOTICE or EXPIRED, which may come as well, of exactly `note_length` bytes, into `note` */
    void *note;
    uint64_t note_length;
} afdep_tcp_expect_t;

typedef struct afdep_tcp_link {
    int fd; /* -1: no connection */
    uint8_t key_in[AFDEP_TCP_KEY_BYTES];
    uint8_t key_out[AFDEP_TCP_KEY_BYTES];
    uint64_t sequence_in;
    uint64_t sequence_out;

    /* The message that is arriving, and once it is there, its header. */
    uint8_t in_bytes[AFDEP_TCP_HEADER_BYTES];
    uint8_t in_mac[AFDEP_HMAC_BYTES];
    uint64_t in_got; /* bytes of header, payload and MAC so far */
    uint8_t *in_payload;
    afdep_tcp_header_t in;

    /* The message that is leaving. */
    uint8_t out_bytes[AFDEP_TCP_HEADER_BYTES];
    uint8_t out_mac[AFDEP_HMAC_BYTES];
    const uint8_t *out_payload;
    uint64_t out_length;
    uint64_t out_sent;
    bool out_busy;

    uint8_t note[AFDEP_TCP_EXPIRED_BYTES]; /* room for a small payload in either direction */
    char complaint[96];
} afdep_tcp_link_t;

/* A link without a connection. */
void afdep_tcp_link_clear(afdep_tcp_link_t *link);

/* Takes over `fd`, which has just passed the challenge, and derives the session keys. Returns false when libcrypto
   fails; `fd` is then still the caller's. */
bool afdep_tcp_link_open(afdep_tcp_link_t *link, int fd, bool root, const uint8_t job_key[AFDEP_TCP_KEY_BYTES],
                         const afdep_tcp_transcript_t *transcript);

/* Closes the connection if there is one and wipes its keys; the complaint stays. */
void afdep_tcp_link_close(afdep_tcp_link_t *link);

/* Whether the other side has neither closed nor broken the connection, as far as this host knows. */
bool afdep_tcp_link_alive(const afdep_tcp_link_t *link);

/* Reads what has arrived, up to the end of one message. After DONE `in` tells what it was, and the next call begins
   another message. `expect` must stay the same, but for `data`, while a message is arriving. */
afdep_tcp_step_t afdep_tcp_link_receive(afdep_tcp_link_t *link, const afdep_tcp_expect_t *expect);

/* Begins a message; `payload` must stay as it is until it is sent. Nothing may be leaving. Returns DONE, or GARBLED
   when libcrypto failed. */
afdep_tcp_step_t afdep_tcp_link_begin(afdep_tcp_link_t *link, uint32_t kind, uint64_t operation, const void *payload,
                                      uint64_t length);

/* Sends what the socket takes. */
afdep_tcp_step_t afdep_tcp_link_send(afdep_tcp_link_t *link);

#endif
