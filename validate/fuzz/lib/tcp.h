/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other end of a bootstrap connection: what a stranger, or a rank that knows the token and misbehaves, may send.
 * Bytes wait in the socket before the code under test reads them; nobody else runs.
 */
#ifndef AFDEP_FUZZ_TCP_H
#define AFDEP_FUZZ_TCP_H

#include "core/tcp_group.h"
#include "validate/fuzz/lib/input.h"

/* A connected pair, ends[0] for the code under test. Both take and give without blocking. */
void afdep_fuzz_pair(int ends[2]);

/* Writes up to `bytes` bytes of the input as they are. */
void afdep_fuzz_send_raw(int fd, afdep_fuzz_input_t *input, size_t bytes);

/* One message on a link, its MAC right: kind, operation and payload from the input. */
void afdep_fuzz_send_signed(afdep_tcp_link_t *link, afdep_fuzz_input_t *input, const afdep_tcp_group_t *group);

/* A group in the state before its meeting, as afdep_group_tcp_create() makes it, and its end. */
afdep_tcp_group_t *afdep_fuzz_group(int rank, int size);
void afdep_fuzz_group_free(afdep_tcp_group_t *group);

/* The token's key that everybody has, and nonces that are the same in every run. */
extern const uint8_t afdep_fuzz_key[AFDEP_TCP_KEY_BYTES];
bool afdep_fuzz_random_bytes(void *bytes, size_t count);

#endif
