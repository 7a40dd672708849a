/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile peer can leave in a rank's inbox: positions, headers and payloads, right up to some field or not at
 * all. Each input is one peer's queue, written in steps with progress between them. Either everything in it was right,
 * or the peer is given up with a sentence; nothing outside the registered memory is ever touched, which the sanitizer
 * sees.
 */
#include <stdlib.h>

#include "fabric/gin-loopback/link_state.h"
#include "validate/fuzz/lib/input.h"

enum { REGION_BYTES = 96, STEPS = 24 };

static unsigned char *memory[2];

static afdep_gin_link_t *open_alone(void)
{
    afdep_gin_listener_t *listener = NULL;
    afdep_gin_handle_t handle;
    const afdep_gin_handle_t *handles[1] = { &handle };
    afdep_gin_link_t *link = NULL;
    AFDEP_FUZZ_EXPECT(afdep_gin_listen(&listener, &handle) == AFDEP_OK);
    AFDEP_FUZZ_EXPECT(afdep_gin_connect(listener, handles, 1, 0, 1000, afdep_gin_memory_open_host, &link) == AFDEP_OK);
    afdep_gin_stop_listening(listener);
    for (int i = 0; i < 2; i++) {
        afdep_gin_region_t *region;
        memory[i] = malloc(REGION_BYTES);
        AFDEP_FUZZ_EXPECT(memory[i] && afdep_gin_register(link, memory[i], REGION_BYTES, 0, &region) == AFDEP_OK);
    }
    return link;
}

/* As it was when it was opened: opening anew for each input would be most of the time. */
static afdep_gin_link_t *fresh(void)
{
    static afdep_gin_link_t *link;
    if (!link)
        link = open_alone();
    memset(memory[0], 0, REGION_BYTES);
    memset(memory[1], 0, REGION_BYTES);
    memset(link->peers[0].sender.ring, 0, STEPS * 512);
    afdep_gin_sender_init(&link->peers[0].sender, link->inbox, 1, 0);
    afdep_gin_receiver_init(&link->peers[0].receiver, link->inbox, 1, 0);
    atomic_store(&link->peers[0].sender.positions->tail, 0);
    atomic_store(&link->peers[0].sender.positions->head, 0);
    link->peers[0].failed = link->failed = AFDEP_OK;
    return link;
}

/* A header that is right but for what the input changes in it. */
static afdep_gin_header_t make_header(afdep_fuzz_input_t *input, uint8_t how, uint64_t number, uint64_t room)
{
    afdep_gin_header_t header = { .kind = AFDEP_GIN_MESSAGE, .number = number, .signal_region = 1 + (how >> 7) };
    if (how & 1) {
        header.bytes = afdep_fuzz_u8(input);
        header.put_region = 1 + (header.bytes & 1);
        header.put_offset = afdep_fuzz_u8(input);
    }
    if (how & 2) {
        header.signal_offset = afdep_fuzz_u8(input) & ~7u;
        header.signal_add = afdep_fuzz_u64(input);
    }
    if (how & 4) {
        header = (afdep_gin_header_t){ .kind = AFDEP_GIN_PAD, .bytes = (uint32_t)room, .number = number };
    }
    if (how & 8) { /* any byte of it */
        uint8_t at = afdep_fuzz_u8(input) % sizeof(header);
        ((unsigned char *)&header)[at] = afdep_fuzz_u8(input);
    }
    if (how & 16)
        header.put_offset = afdep_fuzz_u64(input);
    if (how & 32)
        header.signal_offset = afdep_fuzz_u64(input);
    if (how & 64)
        afdep_fuzz_take(input, &header, sizeof(header));
    return header;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    afdep_fuzz_input_t input = { data, size };
    afdep_gin_link_t *link = fresh();
    afdep_gin_peer_t *peer = &link->peers[0];
    uint64_t tail = 0, number = 0;
    afdep_status_t status = AFDEP_OK;
    for (int step = 0; step < STEPS && input.left > 0; step++) {
        uint8_t how = afdep_fuzz_u8(&input);
        uint64_t at = tail % peer->receiver.ring_bytes;
        afdep_gin_header_t header = make_header(&input, how, ++number, peer->receiver.ring_bytes - at);
        unsigned char *slot = peer->sender.ring + at;
        uint64_t payload = header.bytes <= 256 ? header.bytes : 0;
        if (peer->receiver.ring_bytes - at >= sizeof(header) + payload) {
            memcpy(slot, &header, sizeof(header));
            afdep_fuzz_take(&input, slot + sizeof(header), payload & 15);
        }
        tail += header.kind == AFDEP_GIN_PAD ? header.bytes : sizeof(header) + (header.bytes + 63u) / 64 * 64;
        if (how & 64 && step % 3 == 2)
            tail = afdep_fuzz_u64(&input);
        atomic_store(&peer->sender.positions->tail, tail);
        atomic_fetch_add(&link->inbox->bell, 1);
        for (int i = 0; i < 2; i++)
            status = afdep_gin_progress(link);
        AFDEP_FUZZ_EXPECT(status == AFDEP_OK || status == AFDEP_ERR_PROTOCOL);
        AFDEP_FUZZ_EXPECT(status == AFDEP_OK || afdep_last_error()[0]);
        AFDEP_FUZZ_EXPECT((status == AFDEP_OK) == (peer->failed == AFDEP_OK));
    }
    return 0;
}
