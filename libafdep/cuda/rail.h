/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directional protocol on GPUs: what the host side and the kernels share. Segments are laid out as on the host
 * (protocol/layout.h); what a rank keeps to itself is here, and all of it is device memory.
 *
 * An FFN rank's warps, all of them, serve channels of sources, as actors do on the host; a warp that serves several
 * takes them one after the other. That blocks nobody: what a channel of exchange n waits for is sent by ranks that wait
 * for nothing of exchange n.
 */
#ifndef AFDEP_CUDA_RAIL_H
#define AFDEP_CUDA_RAIL_H

#include "cuda/state.h"
#include "protocol/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef AFDEP_RAIL_THREADS
#define AFDEP_RAIL_THREADS 512 /* of every CTA, ... */
#define AFDEP_RAIL_FEW_SOURCE_THREADS 768  /* ... but with few tokens */
#define AFDEP_RAIL_FEW_RECEIVE_THREADS 640 /* (an SM, and nothing spills) */
#else
#define AFDEP_RAIL_FEW_SOURCE_THREADS AFDEP_RAIL_THREADS
#define AFDEP_RAIL_FEW_RECEIVE_THREADS AFDEP_RAIL_THREADS
#endif
#define AFDEP_RAIL_WARPS (AFDEP_RAIL_THREADS / 32)

/* Domains of either role that a warp's lanes or the bits of a word can name. */
#define AFDEP_RAIL_TARGETS 32 /* FFN domains */
#define AFDEP_RAIL_RAILS 32   /* ranks per domain */

#define AFDEP_RAIL_NEAR 32 /* peers whose segments are found without a load */

/* Signals that are counted; those inside a domain cross no rail, but are signals of the fabric too. */
typedef enum afdep_rail_signal {
    AFDEP_RAIL_FINISH_TAIL,
    AFDEP_RAIL_COUNT_WORD,
    AFDEP_RAIL_COMBINE,
    AFDEP_RAIL_WITNESS,
    AFDEP_RAIL_DOMAIN_WORD,
    AFDEP_RAIL_SIGNALS
} afdep_rail_signal_t;

typedef struct afdep_rail_counter {
    unsigned long long puts, put_bytes, signals[AFDEP_RAIL_SIGNALS];
} afdep_rail_counter_t;

/* A row that was forwarded: its token, and the rails of this domain that got it, one bit each. */
typedef struct afdep_rail_record {
    uint32_t token, rails;
} afdep_rail_record_t;

#define AFDEP_RAIL_PRESENT 0x80000000u

/* Where CTAs of a reply meet: how many have come, with their sums for the other rails, and for their own. */
typedef enum afdep_rail_meeting {
    AFDEP_RAIL_SUMMED_OTHERS,
    AFDEP_RAIL_SUMMED_OWN,
    AFDEP_RAIL_MEETINGS
} afdep_rail_meeting_t;

/*
 * A modelled NIC of every rank, on a rail that has none: a clock in the segment, behind the planes, which says until when
 * the NIC is busy, and for each signal word of the planes when the signal arrives and what the word held before. A reader
 * sees what it held until then.
 */
typedef struct afdep_rail_nic {
    int32_t modelled;
    uint32_t send_ps, receive_ps, signal_ps, byte_ps;
    uint64_t latency_ns;
    uint64_t clock, peer_clock;       /* offsets, in this rank's segment and in those of its links */
    uint64_t arrivals, peer_arrivals; /* the same: [G][words of a plane] pairs */
    uint64_t words, peer_words;       /* bytes of a plane in which signal words lie */
} afdep_rail_nic_t;

/* Everything that stays the same while a buffer is open; passed by value. Sizes in brackets, G planes first. */
typedef struct afdep_rail_rank {
    afdep_cuda_rank_t c;
    afdep_layout_t layout;
    int32_t domain, rail, source_domain; /* source_domain: of an Attention rank */
    uint32_t plane_signals;   /* GIN rail: signals of a plane, the same of all ranks */
    const void *gin;          /* GIN rail: its afdep_gin_t, in host memory */
    uint32_t slow_forward_ns; /* tests: how long every eighth channel's forward warp waits first */
    afdep_rail_nic_t nic;
    unsigned char *links[AFDEP_RAIL_NEAR];  /* the rail peers: FFN domain m's, or Attention domain s's */
    unsigned char *domain_near[AFDEP_RAIL_NEAR]; /* the ranks of this domain, by rail */
    afdep_rail_counter_t *counters;         /* [ranks] */
    uint32_t *met;                          /* [AFDEP_RAIL_MEETINGS] */

    /* Attention */
    uint64_t *finish_tails;  /* [G][M][C]: as last written */
    uint64_t *combine_tails; /* [G][M][C]: as they will be when the exchange under way is answered */
    uint64_t *count_words;   /* [G][M]: as last written */
    uint32_t *targets;       /* [G][capacity]: FFN domains of a token, one bit each */
    unsigned char *staging;  /* [G][capacity] rows, in the segment, where the rail maps no peer; else NULL */

    /* FFN. Channels first, so that the lanes of a channel's warp, which are its sources, read what lies side by side. */
    uint64_t *finish_shadow;      /* [G][C][S] */
    uint32_t *taken;              /* [G][C][S]: rows that came in the exchange under way */
    uint64_t *sent_tails;         /* [G][C][S]: combine tails as last written */
    afdep_rail_record_t *records; /* [G][S][C][slots] */
    unsigned char *own_rows;      /* [G][capacity][S] rows: of those of its own rail, the ones that this rank is to lay out */
    uint64_t *forwarding;         /* [D]: CTAs that have forwarded << 32 | their rows to each rail */
    uint32_t *forwarded, *arrived; /* [G][D]: rows to, and from, each rail */
    uint64_t *joined;              /* exchange << 32 | rows: this rank has forwarded all rows for itself */
    uint64_t *summed;              /* exchange: this rank has summed all rows of its own rail */
    unsigned char *own_partials;   /* [capacity][S] rows of BF16: sums for this rank's own rail */
    unsigned char *reply_staging;  /* [G][S][capacity] reply rows, as `staging` */
    uint64_t *counts;              /* [CTAs][E/F + D]: exchange << 32 | choices, and rows, that a CTA counted */

    /* Few tokens, whose rows travel in lines (rail_few.cuh); c.own and c.peer are the layouts of that area */
    int32_t few_tokens;  /* the largest bucket that does; 0: none */
    int32_t few_ctas;    /* of a kernel that the next one may overlap, at most */
    uint64_t *few_rails; /* FFN: [2 G][S][few]: exchange << 32 | AFDEP_RAIL_PRESENT, where there is such a token |
                            rails of this domain that own its experts */
} afdep_rail_rank_t;

/* The launchers of the kernels over one rail, and what loads the kernels. */
#define AFDEP_RAIL_KERNELS(rail)                                                                                            \
    cudaError_t rail##_launch_dispatch(const afdep_rail_rank_t *rank, const afdep_cuda_dispatch_t *call, int grid,          \
                                       cudaStream_t stream);                                                                \
    cudaError_t rail##_launch_receive(const afdep_rail_rank_t *rank, const afdep_cuda_receive_t *call, int grid,            \
                                      cudaStream_t stream);                                                                 \
    cudaError_t rail##_launch_reply(const afdep_rail_rank_t *rank, const afdep_cuda_reply_t *call, int grid,                \
                                    cudaStream_t stream);                                                                   \
    cudaError_t rail##_launch_collect(const afdep_rail_rank_t *rank, const afdep_cuda_collect_t *call, int grid,            \
                                      cudaStream_t stream);                                                                 \
    cudaError_t rail##_prepare_dispatch(const afdep_shape_t *shape);                                                        \
    cudaError_t rail##_prepare_receive(const afdep_shape_t *shape);                                                         \
    cudaError_t rail##_prepare_reply(const afdep_shape_t *shape);                                                           \
    cudaError_t rail##_prepare_collect(const afdep_shape_t *shape);

AFDEP_RAIL_KERNELS(afdep_rail)
AFDEP_RAIL_KERNELS(afdep_rail_gin) /* where the GIN rail is built */

/* Of few tokens there are such only over the peer rail. */
cudaError_t afdep_rail_launch_dispatch_few(const afdep_rail_rank_t *rank, const afdep_cuda_dispatch_t *call, int grid,
                                           cudaStream_t stream);
cudaError_t afdep_rail_launch_receive_few(const afdep_rail_rank_t *rank, const afdep_cuda_receive_t *call, int grid,
                                          cudaStream_t stream);
cudaError_t afdep_rail_launch_reply_few(const afdep_rail_rank_t *rank, const afdep_cuda_reply_t *call, int grid,
                                        cudaStream_t stream);
cudaError_t afdep_rail_launch_collect_few(const afdep_rail_rank_t *rank, const afdep_cuda_collect_t *call, int grid,
                                          cudaStream_t stream);
cudaError_t afdep_rail_prepare_few_source(const afdep_shape_t *shape);
cudaError_t afdep_rail_prepare_few_worker(const afdep_shape_t *shape);

#ifdef __cplusplus
}
#endif
#endif
