/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits to be sent to one rank through an MPI window, and the order in which it goes.
 *
 * Puts are unordered in MPI and a put of 8 bytes may be seen in halves. So rows leave by MPI_Put at once, words are
 * queued, and a flush completes the rows at the target before the words follow as accumulates, which are atomic. One
 * completion per peer serves all its lanes: with 24 ranks on 2 processors, dense signals both ways cost 187 ms with a
 * completion per put and signal, and 3.7 ms so.
 *
 * Accumulates are ordered at one word only. A lane that has written one word and now writes another needs a completion
 * between the two; `sent` knows which word each lane wrote since the last. Words without such an order leave as a wave,
 * sorted, one accumulate for each run of adjacent words.
 */
#ifndef AFDEP_MPI_OUTBOX_H
#define AFDEP_MPI_OUTBOX_H

#include <mpi.h>
#include <stdint.h>

#include <afdep/status.h>

#define AFDEP_OUTBOX_WORDS 256 /* queued at most; the next one sends them */

typedef struct afdep_outbox_word {
    uint64_t offset, value;
    int lane;
} afdep_outbox_word_t;

typedef struct afdep_outbox_lane {
    uint64_t completion; /* number of completions when the lane last wrote a word, plus one; 0: never */
    uint64_t offset;     /* that word */
} afdep_outbox_lane_t;

typedef struct afdep_outbox {
    MPI_Win window;
    int peer;
    int listed;            /* the fabric has it among those to flush */
    int puts;              /* rows since the last completion */
    int count;             /* words queued */
    uint64_t completions;  /* MPI_Win_flush calls so far */
    afdep_outbox_word_t words[AFDEP_OUTBOX_WORDS];
    uint64_t values[AFDEP_OUTBOX_WORDS]; /* of the accumulates that are not complete here yet */
    afdep_outbox_lane_t sent[]; /* [lanes] */
} afdep_outbox_t;

/* NULL without memory; freed by free(). */
afdep_outbox_t *afdep_outbox_new(MPI_Win window, int peer, int lanes);

/* All return OK or SYSTEM with MPI's text. */
afdep_status_t afdep_outbox_put(afdep_outbox_t *box, uint64_t offset, const void *src, size_t bytes);
afdep_status_t afdep_outbox_signal(afdep_outbox_t *box, int lane, uint64_t offset, uint64_t value);

/* The three steps of a flush, each made for all peers before the next, so that their round trips overlap with other
   ranks' work: complete the rows, start the words, complete the words here. */
afdep_status_t afdep_outbox_complete_rows(afdep_outbox_t *box);
afdep_status_t afdep_outbox_start_words(afdep_outbox_t *box);
afdep_status_t afdep_outbox_complete_words(afdep_outbox_t *box);

#endif
