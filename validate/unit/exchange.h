/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rank sends rows to every rank on every lane, one at a time, and checks each byte of what it receives once the
 * word says that it is there. Would catch a word that passes its row, a wrong peer, offset or length, a missing release
 * (under a race detector), and a word that never comes.
 */
#ifndef AFDEP_VALIDATE_UNIT_EXCHANGE_H
#define AFDEP_VALIDATE_UNIT_EXCHANGE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "fabric/fabric.h"

#define EXCHANGE_RANKS 4 /* at most */
#define EXCHANGE_LANES 3
#define EXCHANGE_ROUNDS 400
#define EXCHANGE_ROW_BYTES 1000
#define EXCHANGE_WAIT_S 30

/* A segment: a row for every (sender, lane), a word for each, and an answer word for each (target, lane). */
#define CELL(rank, lane) ((uint64_t)((rank) * EXCHANGE_LANES + (lane)))
#define CELLS ((uint64_t)EXCHANGE_RANKS * EXCHANGE_LANES)
#define ROW_AT(rank, lane) (CELL(rank, lane) * 1024)
#define WORD_AT(rank, lane) (CELLS * 1024 + CELL(rank, lane) * 8)
#define ANSWER_AT(rank, lane) (CELLS * 1032 + CELL(rank, lane) * 8)
#define SEGMENT_BYTES (CELLS * 1040)

/* Where a rank finds something wrong: assertions of the test framework work in the test's own thread only. */
#define RANK_REQUIRE(condition)                                                                            \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, afdep_last_error());       \
            return __LINE__;                                                                               \
        }                                                                                                  \
    } while (0)

static inline unsigned char pattern(int from, int to, int lane, uint64_t n, size_t i)
{
    return (unsigned char)((size_t)from * 31 + (size_t)to * 17 + (size_t)lane * 7 + n * 13 + i * 3 + (i >> 8));
}

static inline int send_cell(afdep_fabric_t *f, int to, int lane, uint64_t n, unsigned char *row)
{
    uint64_t at = ROW_AT(f->rank, lane);
    void *window = afdep_fabric_window(f, to, at, EXCHANGE_ROW_BYTES);
    unsigned char *src = n % 3 == 0 && window ? window : row; /* every third is built in place, where that can be */

    for (size_t i = 0; i < EXCHANGE_ROW_BYTES; i++)
        src[i] = pattern(f->rank, to, lane, n, i);
    if (n % 2 == 0) {
        RANK_REQUIRE(afdep_fabric_put_signal(f, AFDEP_SIGNAL_FINISH_TAIL, lane, to, at, src, EXCHANGE_ROW_BYTES,
                                             WORD_AT(f->rank, lane), n - 1, n) == AFDEP_OK);
        return 0;
    }
    RANK_REQUIRE(afdep_fabric_put(f, lane, to, at, src, EXCHANGE_ROW_BYTES) == AFDEP_OK);
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_FINISH_TAIL, lane, to, WORD_AT(f->rank, lane), n - 1, n) ==
                 AFDEP_OK);
    return 0;
}

static inline int check_cell(afdep_fabric_t *f, int from, int lane, uint64_t n)
{
    const unsigned char *row = f->base + ROW_AT(from, lane);

    for (size_t i = 0; i < EXCHANGE_ROW_BYTES; i++)
        RANK_REQUIRE(row[i] == pattern(from, f->rank, lane, n, i));
    RANK_REQUIRE(afdep_fabric_signal(f, AFDEP_SIGNAL_CONTROL, lane, from, ANSWER_AT(f->rank, lane), n - 1, n) ==
                 AFDEP_OK);
    return 0;
}

typedef struct exchange_state {
    uint64_t sent[EXCHANGE_RANKS][EXCHANGE_LANES], received[EXCHANGE_RANKS][EXCHANGE_LANES];
    unsigned char rows[EXCHANGE_RANKS][EXCHANGE_LANES][EXCHANGE_ROW_BYTES];
    int left; /* cells that have more to send, and that have more to take */
} exchange_state_t;

/* Sends the next row to `peer` if the last was answered, and takes the peer's if it has come. */
static inline int step_cell(afdep_fabric_t *f, exchange_state_t *s, int peer, int lane, int *moved)
{
    uint64_t *sent = &s->sent[peer][lane], *received = &s->received[peer][lane];

    if (*sent < EXCHANGE_ROUNDS && afdep_fabric_read(f, ANSWER_AT(peer, lane)) == *sent) {
        RANK_REQUIRE(send_cell(f, peer, lane, ++*sent, s->rows[peer][lane]) == 0);
        s->left -= *sent == EXCHANGE_ROUNDS;
        *moved = 1;
    }
    if (afdep_fabric_read(f, WORD_AT(peer, lane)) == *received + 1) {
        RANK_REQUIRE(check_cell(f, peer, lane, ++*received) == 0);
        s->left -= *received == EXCHANGE_ROUNDS;
        *moved = 1;
    }
    return 0;
}

static inline int exchange(afdep_fabric_t *f)
{
    exchange_state_t *s = calloc(1, sizeof(*s));
    uint64_t deadline = f->ops->now(f) + (uint64_t)EXCHANGE_WAIT_S * 1000000000u;
    unsigned idle = 0;
    int result = 0;

    RANK_REQUIRE(s != NULL);
    s->left = 2 * f->size * EXCHANGE_LANES;
    while (result == 0 && s->left > 0) {
        int moved = 0;

        for (int peer = 0; result == 0 && peer < f->size; peer++) {
            for (int lane = 0; result == 0 && lane < EXCHANGE_LANES; lane++)
                result = step_cell(f, s, peer, lane, &moved);
        }
        if (result == 0 && (f->ops->flush(f) != AFDEP_OK || f->ops->progress(f) != AFDEP_OK))
            result = __LINE__;
        idle = moved ? 0 : idle + 1;
        if (!moved)
            f->ops->idle(f, idle);
        if (f->ops->now(f) > deadline)
            result = __LINE__;
    }
    free(s);
    return result;
}

#endif
