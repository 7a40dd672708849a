/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA256 by libcrypto's EVP interface, which is the same in OpenSSL 1.1.1 and 3. */
#include "core/hmac.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

static bool digest(EVP_MD_CTX *context, EVP_PKEY *key, const struct iovec *parts, int count, uint8_t *mac)
{
    if (EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) != 1)
        return false;
    for (int i = 0; i < count; i++) {
        if (parts[i].iov_len > 0 && EVP_DigestSignUpdate(context, parts[i].iov_base, parts[i].iov_len) != 1)
            return false;
    }
    size_t length = AFDEP_HMAC_BYTES;
    return EVP_DigestSignFinal(context, mac, &length) == 1 && length == AFDEP_HMAC_BYTES;
}

bool afdep_hmac_sha256(const void *key, size_t key_bytes, const struct iovec *parts, int count,
                       uint8_t mac[AFDEP_HMAC_BYTES])
{
    bool done = false;
    memset(mac, 0, AFDEP_HMAC_BYTES);
    EVP_PKEY *handle = EVP_PKEY_new_raw_private_key(EVP_PKEY_HMAC, NULL, key, key_bytes);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (handle != NULL && context != NULL)
        done = digest(context, handle, parts, count, mac);
    if (!done)
        memset(mac, 0, AFDEP_HMAC_BYTES);
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(handle);
    return done;
}

bool afdep_hmac_equal(const uint8_t a[AFDEP_HMAC_BYTES], const uint8_t b[AFDEP_HMAC_BYTES])
{
    return CRYPTO_memcmp(a, b, AFDEP_HMAC_BYTES) == 0;
}

bool afdep_random_bytes(void *bytes, size_t count)
{
    unsigned char *next = bytes;
    while (count > 0) {
        ssize_t got = getrandom(next, count, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        next += got;
        count -= (size_t)got;
    }
    return true;
}

void afdep_wipe(void *bytes, size_t count)
{
    OPENSSL_cleanse(bytes, count);
}
