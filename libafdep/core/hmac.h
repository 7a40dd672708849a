/* SPDX-License-Identifier: Apache-2.0 */
/* The little cryptography that the TCP bootstrap needs, from libcrypto and the kernel. */
#ifndef AFDEP_CORE_HMAC_H
#define AFDEP_CORE_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define AFDEP_HMAC_BYTES 32

/* HMAC-SHA256 under `key` over `count` parts, one after the other. Returns false when libcrypto fails (no memory, or
   a policy that forbids the algorithm); `mac` is then all zeros. */
bool afdep_hmac_sha256(const void *key, size_t key_bytes, const struct iovec *parts, int count,
                       uint8_t mac[AFDEP_HMAC_BYTES]);

/* Compares in a time that does not depend on where the two differ. */
bool afdep_hmac_equal(const uint8_t a[AFDEP_HMAC_BYTES], const uint8_t b[AFDEP_HMAC_BYTES]);

/* Fills `bytes` from getrandom(). Returns false when the kernel refuses. */
bool afdep_random_bytes(void *bytes, size_t count);

/* Erases a secret in a way that the compiler does not drop. */
void afdep_wipe(void *bytes, size_t count);

#endif
