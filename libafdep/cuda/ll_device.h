/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency API on GPUs: what the host side and the kernels share. Who is sent what is the same as on the host
 * backend; where it stands is not (low_latency/ll_layout.h): a row's place is its token, so that no warp waits for a
 * prefix sum before it stores, and small words say themselves which exchange they are of, so that nothing has to be
 * ordered before them.
 *
 * A segment is a control area and two planes; exchange n uses plane (n - 1) mod 2:
 *
 *   header [R] | route word [R][M][K] | weight word [R][M][K] | combine word [R] | row word [R][M]
 *   | combine row word [M][K][pieces] | row lines [R] | combine lines | rows [R][M] | combine rows [M][K]
 *
 * A header is two words of 16 bytes; a route word is one choice of one token, (exchange << 32 | id + 1), 0 in place
 * of id + 1 where nothing is chosen; they go to every rank, and a receiver that has all of them knows all counts. A
 * token's row goes once to every rank that owns one of its experts: [codes][scales], in vectors of 16 bytes. Combine
 * rows of BF16 go to the place of their token and slot; those of the own rank's experts stay where they are, in the
 * caller's x.
 *
 * Rows of few tokens go in lines (cuda/lines.cuh), which need no fence: how many tokens of a source that are follows
 * from the source's own number of tokens, which its header says, so ranks may differ in it. Other rows have a word
 * behind them (a combine row one for each piece), which a fence orders.
 *
 * Reuse: as low_latency/ll_layout.h argues, from the words of all ranks that the receiving halves join: headers and
 * route words in a dispatch, combine words in a combine.
 */
#ifndef AFDEP_CUDA_LL_DEVICE_H
#define AFDEP_CUDA_LL_DEVICE_H

#include "cuda/state.h"
#include "low_latency/ll_layout.h"
#include "protocol/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef AFDEP_LL_DISPATCH_THREADS
#define AFDEP_LL_DISPATCH_THREADS 896 /* of a CTA: a row of hidden 7168 in one go, and registers enough */
#define AFDEP_LL_COMBINE_THREADS 512
#endif

#define AFDEP_LL_PART_VECTORS 64 /* vectors of a row that a warp places at once */
#ifndef AFDEP_LL_SUM_VECTORS
#define AFDEP_LL_SUM_VECTORS 64 /* vectors of a token's rows that a warp sends or sums at once; a word for each owner */
#endif

/* Rows of a source in an exchange that go in lines, at most; of combine rows also counting those that stay where
   they are. */
#ifndef AFDEP_LL_FEW_BYTES
#define AFDEP_LL_FEW_BYTES (1 << 19)
#define AFDEP_LL_FEW_COMBINE_BYTES (1 << 20)
#endif
#define AFDEP_LL_HEADER_WORDS 2

/* Largest shared arrays of a dispatch: bits of choices, and a row that is encoded. */
#define AFDEP_LL_CHOSEN_BYTES (128 * 1024)
#define AFDEP_LL_STAGED_BYTES (64 * 1024)

typedef struct afdep_ll_device_layout {
    uint64_t control_bytes, plane_bytes, bytes;
    /* From the plane's start. */
    uint64_t headers, routes, weights, combine_words, row_words, piece_words, lines, combine_lines, rows, combine_rows;
    int32_t pieces;                  /* words of a combine row: stride of their array */
    int32_t line_room, combine_room; /* lines of a source's dispatch rows; of this rank's combine rows */
    uint32_t row_stride, combine_stride;
} afdep_ll_device_layout_t;

typedef struct afdep_ll_counter {
    unsigned long long puts, put_bytes, count_words, combines;
} afdep_ll_counter_t;

/* Exchange numbers, in device memory: a captured graph replays with new ones. A dispatch reads the last that was
   combined and writes that it was dispatched, a combine the other way round: so neither changes what its own CTAs
   read. What is between the two is the same in every replay and comes with the call. */
typedef struct afdep_ll_numbers {
    uint64_t dispatched, combined;
} afdep_ll_numbers_t;

/* Everything that stays the same while a buffer is open; passed by value. Sizes in brackets, 2 planes first. */
typedef struct afdep_ll_device {
    afdep_cuda_rank_t c; /* what failures and waits need: ranks, segments, record */
    afdep_ll_device_layout_t l;
    int32_t ranks, max_tokens, top_k; /* strides, of the configuration */
    afdep_ll_numbers_t *numbers;
    afdep_ll_counter_t *counters; /* [ranks] */
    int32_t *live_ids;            /* [2][M][K]: this rank's choices as sent */
    uint32_t *positions; /* [2][R][M][K]: row + 1 of [L, R * M] that a choice became here; 0: not this rank's */
    int32_t *tokens;     /* [2][R]: of each source */
} afdep_ll_device_t;

/* The shape of one exchange, and what follows from it. */
typedef struct afdep_ll_exchange_shape {
    int32_t max_tokens, hidden, top_k, experts, local; /* M, H, K, E, L */
    int32_t format;                                    /* afdep_ll_format_t */
    int32_t code_bytes, scale_bytes;
    int32_t code_vectors, vectors, lines; /* of a dispatch row: vectors of codes, all vectors, lines that they take */
    int32_t few;                          /* tokens of a source, up to which its rows go in lines */
    int32_t combine_vectors, combine_lines, combine_few; /* the same of combine rows */
} afdep_ll_exchange_shape_t;

#define AFDEP_LL_SEND 1
#define AFDEP_LL_RECEIVE 2

typedef struct afdep_ll_dispatch_call {
    afdep_ll_exchange_shape_t s;
    const void *x;
    const int64_t *ids;
    const float *weights; /* NULL: none */
    int32_t tokens, round_scale;
    int32_t parts;    /* AFDEP_LL_SEND, AFDEP_LL_RECEIVE */
    int32_t distance; /* to the last exchange that was combined; of a receive alone: that was dispatched */
    void *recv_x, *recv_scales;
    float *recv_weights; /* may be NULL, as may the next and the last */
    int32_t *recv_source;
    int64_t *recv_count;
    int32_t *statistics;
} afdep_ll_dispatch_call_t;

typedef struct afdep_ll_combine_call {
    afdep_ll_exchange_shape_t s;
    const void *x;
    const float *weights;
    void *out;
    int32_t tokens;
    int32_t parts;
    int32_t distance; /* to the last exchange that was dispatched; of a receive alone: that was combined */
    int32_t senders;  /* CTAs that send rows of many tokens; the others sum */
} afdep_ll_combine_call_t;

/* ll_device.c. Nonzero: a size does not fit into 62 bits. */
int afdep_ll_device_layout_init(afdep_ll_device_layout_t *layout, const afdep_ll_shape_t *shape);

cudaError_t afdep_ll_launch_dispatch(const afdep_ll_device_t *rank, const afdep_ll_dispatch_call_t *call, int grid,
                                     cudaStream_t stream);
cudaError_t afdep_ll_launch_combine(const afdep_ll_device_t *rank, const afdep_ll_combine_call_t *call, int grid,
                                    cudaStream_t stream);

/* Loads the kernels, for exchanges of at most this shape. */
cudaError_t afdep_ll_prepare_kernels(const afdep_ll_shape_t *shape);
cudaError_t afdep_ll_prepare_combine_kernel(void);

/* Bytes of the shared arrays of a dispatch. */
AFDEP_HD uint64_t afdep_ll_chosen_bytes(int ranks, int max_tokens, int local)
{
    return ((uint64_t)ranks * (uint64_t)max_tokens + 31) / 32 * (uint64_t)local * 4;
}

AFDEP_HD uint64_t afdep_ll_staged_bytes(int hidden) /* of no format more: a byte an element, a byte for each 32 */
{
    return ((uint64_t)hidden + (uint64_t)hidden / 32 + 16 + 15) / 16 * 16;
}

#ifdef __cplusplus
}
#endif
#endif
