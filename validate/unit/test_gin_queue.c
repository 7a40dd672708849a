/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loopback's queues by themselves: messages of every size around a ring many times, rings that are full, and every
 * header that no correct source writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/gin-loopback/queue.h"
#include "validate/unit/gin_rig.h"

#define RANKS 40 /* the smallest rings */

static unsigned char *inbox_new(int ranks)
{
    unsigned char *inbox = aligned_alloc(4096, (afdep_gin_inbox_bytes(ranks) + 4095) / 4096 * 4096);
    assert_non_null(inbox);
    memset(inbox, 0, afdep_gin_inbox_bytes(ranks));
    return inbox;
}

/* Queues of different sources do not touch, and lie within what was asked for. */
static void test_places(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 6, 24, 40, 64, 1024 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int ranks = sizes[i];
        uint64_t ring = afdep_gin_queue_bytes(ranks);
        unsigned char *base = (unsigned char *)(uintptr_t)4096, *last = NULL;
        assert_true((ring & (ring - 1)) == 0 && ring >= 16384 && ring <= 1048576);
        assert_true(afdep_gin_inbox_bytes(ranks) <= AFDEP_GIN_OBJECT_BYTES);
        /* The longest message and the pad before it fit an empty ring wherever they begin. */
        assert_true(2 * (afdep_gin_payload_most(ranks) + AFDEP_GIN_UNIT) <= ring);
        for (int source = 0; source < ranks; source++) {
            afdep_gin_sender_t sender;
            afdep_gin_sender_init(&sender, base, ranks, source);
            unsigned char *positions = (unsigned char *)sender.positions;
            assert_true(positions >= base + sizeof(afdep_gin_inbox_t));
            assert_true(positions + sizeof(*sender.positions) <= sender.ring);
            assert_true(sender.ring + ring <= base + afdep_gin_inbox_bytes(ranks));
            assert_true(!last || sender.ring >= last + ring);
            last = sender.ring;
        }
    }
    assert_true(24 * afdep_gin_inbox_bytes(24) < 40u << 20); /* all of a 24-rank job, in a small container */
}

static size_t size_of(uint64_t *seed, uint64_t most)
{
    uint32_t kind = gin_random(seed) % 8;
    if (kind == 0)
        return (size_t)most;
    if (kind == 1)
        return gin_random(seed) % 3;
    return gin_random(seed) % (kind < 5 ? 500 : (uint32_t)most + 1);
}

/* Whatever the sizes, messages arrive whole and in order, and room is found again. */
static void test_round_and_round(void **state)
{
    (void)state;
    unsigned char *inbox = inbox_new(RANKS);
    uint64_t seed = 5, most = afdep_gin_payload_most(RANKS), sent = 0, taken = 0, full = 0;
    size_t sizes[20000] = { 0 };
    afdep_gin_sender_t sender;
    afdep_gin_receiver_t receiver;
    afdep_gin_sender_init(&sender, inbox, RANKS, 7);
    afdep_gin_receiver_init(&receiver, inbox, RANKS, 7);
    while (taken < 20000) {
        afdep_status_t status;
        if (sent < 20000 && gin_random(&seed) % 3 != 0) {
            unsigned char *slot;
            uint64_t number, end;
            if (sizes[sent] == 0)
                sizes[sent] = 1 + size_of(&seed, most - 1);
            if (!afdep_gin_reserve(&sender, sizes[sent], &slot, &number, &end, &status)) {
                assert_int_equal(status, AFDEP_OK);
                full++;
            } else {
                afdep_gin_header_t header = { .kind = AFDEP_GIN_MESSAGE, .bytes = (uint32_t)sizes[sent],
                                              .number = number, .put_region = 1, .put_offset = sent };
                memcpy(slot, &header, sizeof(header));
                memset(slot + sizeof(header), (int)(sent % 251), sizes[sent]);
                afdep_gin_publish(&sender, end);
                sent++;
            }
        } else {
            afdep_gin_header_t header;
            const unsigned char *payload;
            int got = afdep_gin_next(&receiver, 7, &header, &payload, &status);
            if (status != AFDEP_OK)
                fail_msg("message %d: %s", (int)taken, afdep_last_error());
            assert_int_equal(got, taken < sent);
            if (!got)
                continue;
            assert_int_equal(header.put_offset, taken);
            assert_int_equal(header.bytes, sizes[taken]);
            for (size_t i = 0; i < header.bytes; i++)
                assert_int_equal(payload[i], taken % 251);
            afdep_gin_take(&receiver, &header);
            taken++;
        }
    }
    assert_true(full > 10); /* else nothing was tested */
    free(inbox);
}

/* Nothing is seen before it is published, however much was claimed. */
static void test_unpublished(void **state)
{
    (void)state;
    unsigned char *inbox = inbox_new(RANKS), *slot;
    afdep_gin_sender_t sender;
    afdep_gin_receiver_t receiver;
    afdep_gin_header_t header;
    const unsigned char *payload;
    afdep_status_t status;
    uint64_t number, first, second;
    afdep_gin_sender_init(&sender, inbox, RANKS, 0);
    afdep_gin_receiver_init(&receiver, inbox, RANKS, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(afdep_gin_reserve(&sender, 100, &slot, &number, i ? &second : &first, &status), 1);
        header = (afdep_gin_header_t){ .kind = AFDEP_GIN_MESSAGE, .bytes = 100, .number = number, .put_region = 1 };
        memcpy(slot, &header, sizeof(header));
        assert_int_equal(afdep_gin_next(&receiver, 0, &header, &payload, &status), 0);
    }
    afdep_gin_publish(&sender, first);
    assert_int_equal(afdep_gin_next(&receiver, 0, &header, &payload, &status), 1);
    afdep_gin_take(&receiver, &header);
    assert_int_equal(afdep_gin_next(&receiver, 0, &header, &payload, &status), 0);
    afdep_gin_publish(&sender, second);
    assert_int_equal(afdep_gin_next(&receiver, 0, &header, &payload, &status), 1);
    free(inbox);
}

/* ---- What no correct source writes ------------------------------------------------------------------------------ */

#define GOOD                                                                                                          \
    { .kind = AFDEP_GIN_MESSAGE, .bytes = 100, .number = 4, .put_region = 1, .signal_region = 2, .signal_add = 9 }

static void test_headers(void **state)
{
    (void)state;
    const afdep_gin_header_t good[] = {
        GOOD,
        { .kind = AFDEP_GIN_MESSAGE, .bytes = 4096, .number = 4, .put_region = 1 },
        { .kind = AFDEP_GIN_MESSAGE, .number = 4, .signal_region = 1 },
        { .kind = AFDEP_GIN_PAD, .bytes = 8192, .number = 4 },
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(afdep_gin_check(&good[i], 3, 4, 8192, 8192, 4096), AFDEP_OK);
    for (int what = 0; what < 18; what++) {
        afdep_gin_header_t h = GOOD;
        uint64_t room = 8192, published = 8192;
        switch (what) {
        case 0: h.kind = 0; break;
        case 1: h.kind = 3; break;
        case 2: h.number = 3; break;
        case 3: h.number = 5; break;
        case 4: h.bytes = 4097; break;
        case 5: h.bytes = UINT32_MAX; break;
        case 6: room = 128; break;      /* would run over the ring's end */
        case 7: published = 128; break; /* runs over what was published */
        case 8: h.put_region = 0; break;
        case 9: h.bytes = 0; break;
        case 10: h.signal_offset = 4; break;
        case 11: h.zero[0] = 1; break;
        case 12: h.zero[1] = 1u << 31; break;
        case 13: h = (afdep_gin_header_t){ .kind = AFDEP_GIN_MESSAGE, .number = 4 }; break;
        case 14: h = (afdep_gin_header_t){ .kind = AFDEP_GIN_PAD, .bytes = 4096, .number = 4 }; break;
        case 15: h = (afdep_gin_header_t){ .kind = AFDEP_GIN_PAD, .bytes = 0, .number = 4 }; break;
        case 16: h = (afdep_gin_header_t){ .kind = AFDEP_GIN_PAD, .bytes = 8192, .number = 4, .put_region = 1 }; break;
        default: /* a pad beyond what was published */
            h = (afdep_gin_header_t){ .kind = AFDEP_GIN_PAD, .bytes = 8192, .number = 4 };
            published = 4096;
        }
        if (afdep_gin_check(&h, 3, 4, room, published, 4096) != AFDEP_ERR_PROTOCOL)
            fail_msg("header %d was taken", what);
        assert_non_null(strstr(afdep_last_error(), "rank 3 sent a message whose"));
    }
}

static void test_positions(void **state)
{
    (void)state;
    unsigned char *inbox = inbox_new(RANKS), *slot;
    afdep_gin_sender_t sender;
    afdep_gin_receiver_t receiver;
    afdep_gin_header_t header;
    const unsigned char *payload;
    afdep_status_t status;
    uint64_t number, end;
    static const uint64_t tails[] = { 1, 32, 65, UINT64_MAX, (16u << 10) + 64, 1u << 20 };
    static const uint64_t heads[] = { 64, 1, 1u << 20, UINT64_MAX };
    afdep_gin_sender_init(&sender, inbox, RANKS, 2);
    afdep_gin_receiver_init(&receiver, inbox, RANKS, 2);
    assert_int_equal(receiver.ring_bytes, 16u << 10);
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        atomic_store(&receiver.positions->tail, tails[i]);
        assert_int_equal(afdep_gin_next(&receiver, 2, &header, &payload, &status), 0);
        assert_int_equal(status, AFDEP_ERR_PROTOCOL);
    }
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        atomic_store(&sender.positions->head, heads[i]); /* nothing was sent yet */
        assert_int_equal(afdep_gin_reserve(&sender, 8, &slot, &number, &end, &status), 0);
        assert_int_equal(status, AFDEP_ERR_PROTOCOL);
    }
    free(inbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_round_and_round),
        cmocka_unit_test(test_unpublished),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
