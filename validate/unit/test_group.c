/* SPDX-License-Identifier: Apache-2.0 */
/* What groups are made of: the check of a caller's group, the wrappers around its callbacks, names of sets of ranks,
   HMAC-SHA256 against RFC 4231, and the encoding of the TCP bootstrap's messages. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <afdep/group.h>

#include "core/error.h"
#include "core/group.h"
#include "core/hmac.h"
#include "core/rank_set.h"
#include "core/tcp_wire.h"

static afdep_status_t own_allgather(void *context, const void *send, void *recv, size_t bytes)
{
    (void)send;
    (void)recv;
    (void)bytes;
    errno = EIO;
    return *(afdep_status_t *)context;
}

static afdep_status_t own_barrier(void *context)
{
    errno = EIO;
    return *(afdep_status_t *)context;
}

static afdep_group_t own_group(afdep_status_t *answer)
{
    afdep_group_t group = AFDEP_GROUP_INIT;
    group.rank = 1;
    group.size = 3;
    group.context = answer;
    group.allgather = own_allgather;
    group.barrier = own_barrier;
    return group;
}

static void refuses(const afdep_group_t *group, const char *word)
{
    assert_int_equal(afdep_group_check(group), AFDEP_ERR_ARGUMENT);
    assert_non_null(strstr(afdep_last_error(), word));
}

static void test_check_names_the_field(void **state)
{
    (void)state;
    afdep_status_t answer = AFDEP_OK;
    afdep_group_t group = own_group(&answer);
    assert_int_equal(afdep_group_check(&group), AFDEP_OK);
    refuses(NULL, "NULL");
    group.struct_size = sizeof group - 1;
    refuses(&group, "struct_size");
    group.struct_size = SIZE_MAX;
    refuses(&group, "struct_size");
    group = own_group(&answer);
    group.size = 0;
    refuses(&group, "size is 0");
    group = own_group(&answer);
    group.rank = 3;
    refuses(&group, "rank is 3");
    group.rank = -1;
    refuses(&group, "rank is -1");
    group = own_group(&answer);
    group.allgather = NULL;
    refuses(&group, "allgather");
    group = own_group(&answer);
    group.barrier = NULL;
    refuses(&group, "barrier");
}

/* A struct of a later version is fine as long as what this version does not know is zero. */
static void test_check_of_a_longer_struct(void **state)
{
    (void)state;
    struct {
        afdep_group_t group;
        unsigned char later[24];
    } future;
    afdep_status_t answer = AFDEP_OK;
    memset(&future, 0, sizeof future);
    future.group = own_group(&answer);
    future.group.struct_size = sizeof future;
    assert_int_equal(afdep_group_check(&future.group), AFDEP_OK);
    future.later[23] = 1;
    refuses(&future.group, "nonzero field");
}

static void test_own_callbacks_get_a_sentence(void **state)
{
    (void)state;
    afdep_status_t answer = AFDEP_OK;
    afdep_group_t group = own_group(&answer);
    (void)afdep_fail(AFDEP_ERR_ARGUMENT, "older");
    errno = EDOM;
    assert_int_equal(afdep_group_allgather(&group, NULL, NULL, 0), AFDEP_OK);
    assert_string_equal(afdep_last_error(), "older");
    assert_int_equal(errno, EDOM);
    answer = AFDEP_ERR_SYSTEM;
    assert_int_equal(afdep_group_barrier(&group), AFDEP_ERR_SYSTEM);
    assert_string_equal(afdep_last_error(), "the group's barrier failed on rank 1 of 3; the error before it: older");
    assert_int_equal(errno, EDOM);
    answer = (afdep_status_t)17;
    assert_int_equal(afdep_group_allgather(&group, NULL, NULL, 0), AFDEP_ERR_BOOTSTRAP);
    assert_non_null(strstr(afdep_last_error(), "the group's allgather failed on rank 1 of 3"));
}

static int destroyed;

static void own_destroy(void *context)
{
    (void)context;
    destroyed++;
}

static void test_destroy_is_harmless(void **state)
{
    (void)state;
    afdep_status_t answer = AFDEP_OK;
    afdep_group_t group = own_group(&answer);
    afdep_group_destroy(NULL);
    afdep_group_destroy(&group);
    group.destroy = own_destroy;
    destroyed = 0;
    afdep_group_destroy(&group);
    afdep_group_destroy(&group);
    assert_int_equal(destroyed, 1);
    refuses(&group, "size is 0");
}

static void test_names_of_sets(void **state)
{
    (void)state;
    char text[AFDEP_RANK_TEXT_BYTES];
    uint8_t set[8192] = { 0 };
    assert_string_equal(afdep_rank_set_text(set, 8, text), "no rank of 8");
    afdep_rank_set_add(set, 2);
    assert_string_equal(afdep_rank_set_text(set, 8, text), "rank 2 of 8");
    afdep_rank_set_add(set, 5);
    assert_string_equal(afdep_rank_set_text(set, 8, text), "ranks 2, 5 of 8");
    memset(set, 0xff, sizeof set);
    memset(set, 0, 5000); /* only names of five digits: the longest text */
    assert_string_equal(afdep_rank_set_text(set, 65535, text),
                        "ranks 40000, 40001, 40002, 40003, 40004, 40005, 40006, 40007, 40008, 40009, 40010, 40011, "
                        "40012, 40013, 40014, 40015 and 25519 more of 65535");
}

static void check_mac(const char *key, size_t key_bytes, const char *first, const char *second, const char *hex)
{
    const struct iovec parts[2] = { { .iov_base = (void *)first, .iov_len = strlen(first) },
                                    { .iov_base = (void *)second, .iov_len = strlen(second) } };
    uint8_t mac[AFDEP_HMAC_BYTES];
    char got[2 * AFDEP_HMAC_BYTES + 1];
    assert_true(afdep_hmac_sha256(key, key_bytes, parts, 2, mac));
    for (int i = 0; i < AFDEP_HMAC_BYTES; i++)
        snprintf(got + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(got, hex);
    assert_true(afdep_hmac_equal(mac, mac));
}

static void test_hmac_of_rfc_4231(void **state)
{
    (void)state;
    char key[131];
    memset(key, 0x0b, 20);
    check_mac(key, 20, "Hi ", "There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_mac("Jefe", 4, "what do ya want", " for nothing?",
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    check_mac(key, sizeof key, "Test Using Larger Than Block-Size Key - ", "Hash Key First",
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_equal_sees_every_byte(void **state)
{
    (void)state;
    uint8_t a[AFDEP_HMAC_BYTES] = { 0 }, b[AFDEP_HMAC_BYTES] = { 0 };
    for (int i = 0; i < AFDEP_HMAC_BYTES; i++) {
        b[i] = 0x80;
        assert_false(afdep_hmac_equal(a, b));
        b[i] = 0;
    }
    assert_true(afdep_hmac_equal(a, b));
}

/* Every field of the transcript must change the proof: one left out could be altered on the way. */
static void test_proof_binds_the_transcript(void **state)
{
    (void)state;
    const uint8_t key[AFDEP_TCP_KEY_BYTES] = { 7 };
    afdep_tcp_transcript_t base = { .rank = 3, .size = 8, .root_size = 8 };
    afdep_tcp_transcript_t other[5] = { base, base, base, base, base };
    uint8_t proof[AFDEP_HMAC_BYTES], changed[AFDEP_HMAC_BYTES];
    other[0].rank = 4;
    other[1].size = 9;
    other[2].root_size = 9;
    other[3].nonce[31] = 1;
    other[4].root_nonce[31] = 1;
    assert_true(afdep_tcp_derive(key, AFDEP_TCP_LABEL_PROOF, 0, &base, proof));
    for (int i = 0; i < 5; i++) {
        assert_true(afdep_tcp_derive(key, AFDEP_TCP_LABEL_PROOF, 0, &other[i], changed));
        assert_memory_not_equal(proof, changed, sizeof proof);
    }
    assert_true(afdep_tcp_derive(key, AFDEP_TCP_LABEL_PROOF, 1, &base, changed));
    assert_memory_not_equal(proof, changed, sizeof proof);
    assert_true(afdep_tcp_derive(key, AFDEP_TCP_LABEL_VERDICT, 0, &base, changed));
    assert_memory_not_equal(proof, changed, sizeof proof);
}

static void test_wire_round_trip(void **state)
{
    (void)state;
    afdep_tcp_transcript_t sent = { .rank = 0x01020304, .size = 0x05060708, .root_size = 0x090a0b0c }, got = { 0 };
    memset(sent.nonce, 0x11, sizeof sent.nonce);
    memset(sent.root_nonce, 0x22, sizeof sent.root_nonce);
    uint8_t hello[AFDEP_TCP_HELLO_BYTES], challenge[AFDEP_TCP_CHALLENGE_BYTES], header[AFDEP_TCP_HEADER_BYTES];
    afdep_tcp_encode_hello(&sent, hello);
    afdep_tcp_encode_challenge(&sent, challenge);
    for (size_t i = 0; i <= sizeof hello; i++)
        assert_true(afdep_tcp_hello_begins(hello, i));
    assert_memory_equal(hello + 12, "\1\2\3\4\5\6\7\10", 8);
    afdep_tcp_decode_hello(hello, &got);
    assert_true(afdep_tcp_decode_challenge(challenge, &got));
    assert_memory_equal(&sent, &got, sizeof sent);
    for (size_t i = 0; i < AFDEP_TCP_TAG_BYTES + 4; i++) {
        hello[i] ^= 1;
        assert_false(afdep_tcp_hello_begins(hello, i + 1));
        hello[i] ^= 1;
        challenge[i] ^= 1;
        assert_false(afdep_tcp_decode_challenge(challenge, &got));
        challenge[i] ^= 1;
    }
    const afdep_tcp_header_t message = { 2, 0x0102030405060708, 0x1112131415161718, 0x2122232425262728 };
    afdep_tcp_header_t read;
    afdep_tcp_encode_header(&message, header);
    assert_true(afdep_tcp_decode_header(header, &read));
    assert_int_equal(read.kind, message.kind);
    assert_int_equal(read.operation, message.operation);
    assert_int_equal(read.length, message.length);
    assert_int_equal(read.sequence, message.sequence);
    header[0] ^= 1;
    assert_false(afdep_tcp_decode_header(header, &read));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_names_the_field),        cmocka_unit_test(test_check_of_a_longer_struct),
        cmocka_unit_test(test_own_callbacks_get_a_sentence), cmocka_unit_test(test_destroy_is_harmless),
        cmocka_unit_test(test_names_of_sets),                cmocka_unit_test(test_hmac_of_rfc_4231),
        cmocka_unit_test(test_equal_sees_every_byte),        cmocka_unit_test(test_proof_binds_the_transcript),
        cmocka_unit_test(test_wire_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
