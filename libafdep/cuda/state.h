/* SPDX-License-Identifier: Apache-2.0 */
/* What the host side of the CUDA backend and its kernels share: plain structs, and the launchers. */
#ifndef AFDEP_CUDA_STATE_H
#define AFDEP_CUDA_STATE_H

#include <cuda_runtime_api.h>

#include "protocol/device.h"
#include "protocol/shape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum afdep_cuda_call {
    AFDEP_CUDA_DISPATCH,
    AFDEP_CUDA_RECEIVE,
    AFDEP_CUDA_REPLY,
    AFDEP_CUDA_COLLECT,
    AFDEP_CUDA_CALLS, /* of the role API, that count their exchanges */
    AFDEP_CUDA_LL_DISPATCH = AFDEP_CUDA_CALLS,
    AFDEP_CUDA_LL_COMBINE
} afdep_cuda_call_t;

/* Words that a kernel waits for, for the sentence that a deadline ends in. */
typedef enum afdep_cuda_word {
    AFDEP_CUDA_WORD_ANSWER,
    AFDEP_CUDA_WORD_ROUTE,
    AFDEP_CUDA_WORD_ROW,
    AFDEP_CUDA_WORD_POSITION,
    AFDEP_CUDA_WORD_COMBINE,
    AFDEP_CUDA_WORD_FAILURE,
    /* Across domains: words and rows of channels; a record's piece is the channel. */
    AFDEP_CUDA_WORD_WITNESS,
    AFDEP_CUDA_WORD_COUNT,
    AFDEP_CUDA_WORD_FINISH,
    AFDEP_CUDA_WORD_FORWARD,
    AFDEP_CUDA_WORD_REPLY,
    AFDEP_CUDA_WORD_TAIL,
    AFDEP_CUDA_WORD_TAG,   /* a row that is not there: `seen` is its place's exchange << 32 | token */
    AFDEP_CUDA_WORD_ROWS,  /* `expected` rows were sent, `seen` are there */
    AFDEP_CUDA_WORD_BUCKET, /* `seen` holds more than the bucket here */
    AFDEP_CUDA_WORD_CACHED, /* ids are said to be used again at one end only */
    /* The low-latency API's; a record's piece is the field of a header that differs, or a weight's slot. */
    AFDEP_CUDA_WORD_HEADER,
    AFDEP_CUDA_WORD_WEIGHT
} afdep_cuda_word_t;

/* No invalid choice yet; otherwise token << 39 | slot << 33 | repeated << 32 | id, so that the first one is the least. */
#define AFDEP_CUDA_NO_ROUTE UINT64_MAX

/* A rank's running state, in device memory: a captured graph replays with new exchange numbers. */
typedef struct afdep_cuda_state {
    uint64_t count[AFDEP_CUDA_CALLS]; /* exchanges that each call has finished, since (and with) first_exchange */
    uint32_t done[AFDEP_CUDA_CALLS];  /* CTAs that have left the call under way */
    uint32_t poisoned;                /* nonzero: every kernel leaves at once */
    uint32_t reserved;
    uint64_t bad_route; /* of the dispatch under way */
    uint64_t decided;   /* send-only: exchange << 1 | whether it was sent without waiting */
} afdep_cuda_state_t;

/* The first failure and the last invalid choice, in host memory that kernels write. */
typedef struct afdep_cuda_record {
    uint32_t ready; /* written last */
    uint32_t status; /* negated */
    uint32_t call, word;
    int32_t peer, token; /* -1: none */
    int32_t piece, reserved;
    uint64_t exchange, expected, seen;
    uint64_t route_exchange; /* 0: no invalid choice; written after route */
    uint64_t route;
} afdep_cuda_record_t;

/*
 * Load statistics, in device memory: a ring of the last exchanges, so that whoever reads finds one that is over and that
 * nobody writes yet (load.cuh). Experts first, then sources: an FFN rank's own experts and all sources, an Attention
 * rank's tokens for all experts and itself.
 */
#define AFDEP_CUDA_LOADS 8

typedef struct afdep_cuda_load {
    uint64_t *before; /* [AFDEP_CUDA_LOADS][experts + sources]: tokens of all exchanges before */
    uint32_t *more;   /* [AFDEP_CUDA_LOADS][experts + sources]: of the exchange itself */
    int32_t experts, sources;
} afdep_cuda_load_t;

/* What a rank has sent to a peer, in device memory. */
typedef struct afdep_cuda_counter {
    unsigned long long rows, signals;
} afdep_cuda_counter_t;

#define AFDEP_CUDA_NEAR 16

/* Everything that stays the same while a buffer is open; passed by value. */
typedef struct afdep_cuda_rank {
    afdep_shape_t shape;
    afdep_device_layout_t own, peer; /* of this rank's segment, and of those of the other role */
    int32_t rank;
    int32_t role_index; /* Attention index, or the FFN rank */
    uint64_t timeout_ns;
    unsigned char *base;
    unsigned char *const *segments; /* [ranks], device memory: every rank's segment as mapped here */
    unsigned char *near[AFDEP_CUDA_NEAR]; /* the first of them, where no load is needed */
    afdep_cuda_state_t *state;
    afdep_cuda_record_t *record;
    afdep_cuda_counter_t *counters; /* [ranks] */
    afdep_cuda_load_t load;
    int32_t *live_ids;    /* Attention: [G][capacity][K], the choices as sent */
    uint64_t *positions;  /* FFN: [G][A * capacity][K], exchange << 32 | row + 1; 0 rows: not this rank's */
    int32_t *ends;        /* FFN: [G][E/F] */
    uint32_t *served; /* FFN: [G][A], nonzero: the source sent this rank rows */
    unsigned char *partials; /* FFN: [A * capacity] rows of BF16, where sums stand before they are sent */
    uint32_t *partial_words; /* FFN: [A * capacity][parts], the exchange that a part of a partial is of */
    unsigned char *partial_lines; /* FFN: [A * few][lines of a reply], the same of few tokens */
    int32_t trap;         /* debugging: a failure traps */
    const void *gin;      /* across domains whose segments are not mapped: the afdep_gin_t, in device memory; else NULL */
} afdep_cuda_rank_t;

/* A dispatch as a whole, or in two kernels: one that sends if nothing has to be waited for, and one that makes up for it. */
typedef enum afdep_cuda_stage { AFDEP_CUDA_SEND, AFDEP_CUDA_SEND_NOW, AFDEP_CUDA_SEND_LATE } afdep_cuda_stage_t;

typedef struct afdep_cuda_dispatch {
    const void *x;
    const float *x_scale;
    int64_t scale_token_stride, scale_block_stride;
    const int32_t *ids;
    const float *weights;
    int32_t tokens, bucket;
    int32_t stage;  /* afdep_cuda_stage_t */
    int32_t cached; /* the ids are those of the exchange before on the plane, as they were taken */
} afdep_cuda_dispatch_t;

/* Receive in one kernel, or (with read_host_counts) in two with the host between them. */
#define AFDEP_CUDA_RECEIVE_COUNT 1
#define AFDEP_CUDA_RECEIVE_PLACE 2

typedef struct afdep_cuda_receive {
    void *rows;
    float *row_scale, *row_weight;
    int32_t *row_source; /* may be NULL */
    int32_t *ends;       /* the caller's; NULL while only counting */
    int32_t bucket;
    int32_t parts;  /* AFDEP_CUDA_RECEIVE_... */
    int32_t cached; /* rows stand where they stood in the exchange before on the plane */
} afdep_cuda_receive_t;

typedef struct afdep_cuda_reply {
    const void *rows;
    int32_t bucket;
    int32_t senders; /* CTAs that send what the others sum; 0: every CTA sends what it sums */
} afdep_cuda_reply_t;

typedef struct afdep_cuda_collect {
    void *out; /* NULL: a view */
    int32_t tokens, bucket;
} afdep_cuda_collect_t;

/* CTAs that a kernel may have. */
typedef struct afdep_cuda_grids {
    int communicating; /* at most num_sms */
    int local;         /* of kernels that write local memory only */
} afdep_cuda_grids_t;

cudaError_t afdep_cuda_launch_dispatch(const afdep_cuda_rank_t *rank, const afdep_cuda_dispatch_t *call, int grid,
                                       cudaStream_t stream);
cudaError_t afdep_cuda_launch_receive(const afdep_cuda_rank_t *rank, const afdep_cuda_receive_t *call, int grid,
                                      cudaStream_t stream);
cudaError_t afdep_cuda_launch_reply(const afdep_cuda_rank_t *rank, const afdep_cuda_reply_t *call, int grid,
                                    cudaStream_t stream);
cudaError_t afdep_cuda_launch_collect(const afdep_cuda_rank_t *rank, const afdep_cuda_collect_t *call, int grid,
                                      cudaStream_t stream);

/* The kernel of a receive whose rows come in lines. */
cudaError_t afdep_cuda_launch_receive_few(const afdep_cuda_rank_t *rank, const afdep_cuda_receive_t *call, int grid,
                                          cudaStream_t stream);
cudaError_t afdep_cuda_prepare_receive_few(const afdep_shape_t *shape);

/* Loads every kernel of the call and says how many threads its largest CTA has. With ranks that are threads a module must
   not be loaded lazily: that waits for kernels which wait for this rank. */
cudaError_t afdep_cuda_prepare_dispatch(const afdep_shape_t *shape, int *threads);
cudaError_t afdep_cuda_prepare_receive(const afdep_shape_t *shape, int *threads);
cudaError_t afdep_cuda_prepare_reply(const afdep_shape_t *shape, int *threads);
cudaError_t afdep_cuda_prepare_collect(const afdep_shape_t *shape, int *threads);

/* Sets `count` 32-bit or 64-bit words of device memory. */
cudaError_t afdep_cuda_fill32(uint32_t *words, uint64_t count, uint32_t value, cudaStream_t stream);
cudaError_t afdep_cuda_fill64(uint64_t *words, uint64_t count, uint64_t value, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
