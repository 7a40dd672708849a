/* SPDX-License-Identifier: Apache-2.0 */
/* Socket pairs, messages with right MACs, and groups made by hand. */
#include "validate/fuzz/lib/tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

const uint8_t afdep_fuzz_key[AFDEP_TCP_KEY_BYTES] = { 1, 2, 3 };

bool afdep_fuzz_random_bytes(void *bytes, size_t count)
{
    memset(bytes, 7, count);
    return true;
}

void afdep_fuzz_pair(int ends[2])
{
    AFDEP_FUZZ_EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
}

void afdep_fuzz_send_raw(int fd, afdep_fuzz_input_t *input, size_t bytes)
{
    size_t count = bytes < input->left ? bytes : input->left;
    if (count > 0)
        (void)!send(fd, input->at, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    input->at += count;
    input->left -= count;
}

void afdep_fuzz_send_signed(afdep_tcp_link_t *link, afdep_fuzz_input_t *input, const afdep_tcp_group_t *group)
{
    uint8_t payload[256], how = afdep_fuzz_u8(input);
    uint64_t length = afdep_fuzz_u8(input);
    /* Lengths that fit are rare among all: the ones of a notice and of a call for one have a name. */
    if (how & 0x80)
        length = how & 0x40 ? group->fault_bytes : AFDEP_TCP_EXPIRED_BYTES;
    (void)afdep_fuzz_take(input, payload, (size_t)length);
    if (afdep_tcp_link_begin(link, how & 7, how >> 3 & 7, payload, length) == AFDEP_TCP_DONE)
        (void)afdep_tcp_link_send(link);
    link->out_busy = false;
}

afdep_tcp_group_t *afdep_fuzz_group(int rank, int size)
{
    afdep_tcp_group_t *group = calloc(1, sizeof(*group));
    size_t links = rank == 0 ? (size_t)size : 1, polls = links + AFDEP_TCP_MAX_GUESTS;
    AFDEP_FUZZ_EXPECT(group);
    group->rank = rank;
    group->size = size;
    group->timeout_ms = 1;
    snprintf(group->address.place, sizeof(group->address.place), "127.0.0.1:29500");
    group->fault_bytes = AFDEP_TCP_NOTICE_PREFIX + afdep_rank_set_bytes(size);
    group->fault = calloc(1, group->fault_bytes);
    group->links = calloc(links, sizeof(*group->links));
    group->have = calloc(1, afdep_rank_set_bytes(size));
    group->polls = calloc(polls, sizeof(*group->polls));
    group->poll_ranks = calloc(polls, sizeof(*group->poll_ranks));
    AFDEP_FUZZ_EXPECT(group->fault && group->links && group->have && group->polls && group->poll_ranks);
    for (size_t i = 0; i < links; i++)
        afdep_tcp_link_clear(&group->links[i]);
    return group;
}

void afdep_fuzz_group_free(afdep_tcp_group_t *group)
{
    for (int i = 0; i < (group->rank == 0 ? group->size : 1); i++)
        afdep_tcp_link_close(&group->links[i]);
    free(group->poll_ranks);
    free(group->polls);
    free(group->have);
    free(group->links);
    free(group->fault);
    free(group);
}
