/* SPDX-License-Identifier: Apache-2.0 */
/*
 * afdep/low_latency.h - symmetric dispatch and combine for decode: every rank is a source of tokens and an owner of
 * experts. Rank r of R owns the experts r*E/R .. (r+1)*E/R - 1.
 *
 *     afdep_ll_dispatch()   each token's row to the ranks that own its K experts, in one of seven wire formats
 *     (the experts run on [E/R, R * M, H])
 *     afdep_ll_combine()    each expert's row back to the token's rank, and their weighted sum there
 *
 * Shapes are in brackets, row-major: T tokens of this rank, M the per-rank maximum of an exchange, H hidden, K
 * choices per token, E experts, R ranks, L = E/R local experts.
 *
 * Every rank makes its calls in the same order. At most two dispatches may be without their combine, so that two
 * batches overlap; a third is refused (ORDER) until the oldest is combined. A buffer is used by one thread at a time.
 * Nothing is allocated between opening and closing, nothing prints, exits or aborts, errno is preserved.
 *
 * Host backend: pointers handed in are free again when the call that completes returns: the dispatch or combine itself,
 * or with a hook or an event the call that completes it (x, ids and weights already when the first call returns).
 *
 * CUDA backend: calls put kernels on the stream that they are given, and return. Tensors, ids, weights, counts and
 * statistics are device memory, and stay as they are until the stream has passed the call that completes. The kernels of
 * a buffer run in the order of its calls, whatever streams these name; a stream lives until the buffer's next call or
 * its closing. Whole exchanges may be captured into graphs; between calls that are captured and such that are not the
 * order is the caller's, and events are not queried in a capture. A hook puts the receiving kernel on the stream of its
 * call. With async_finish the kernel runs on a stream of the buffer's own, behind what the call's stream holds; waiting
 * for the event makes the call's stream wait. What a kernel finds out, invalid choices too, is told by
 * afdep_ll_buffer_error() and by the next dispatch. A combine goes by the choices as dispatched: topk_idx is not read.
 */
#ifndef AFDEP_LOW_LATENCY_H
#define AFDEP_LOW_LATENCY_H

#include <afdep/afdep.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Formats and profiles ---------------------------------------------------------------------------------------- */

/* What dispatched rows look like on the wire and in recv_x. Combine rows are BF16 always. */
typedef enum afdep_ll_format {
    AFDEP_LL_AUTO = 0,           /* as the flags say */
    AFDEP_LL_BF16 = 1,           /* uint16_t [.., H], no scales */
    AFDEP_LL_INT8 = 2,           /* int8_t [.., H], one float scale per token */
    AFDEP_LL_FP8_TOKEN = 3,      /* e4m3 [.., H], one float scale per token */
    AFDEP_LL_MXFP8 = 4,          /* e4m3 [.., H], e8m0 scales [.., H/32] */
    AFDEP_LL_MXFP4 = 5,          /* e2m1 pairs [.., H/2], the lower index in the low half; e8m0 scales [.., H/32] */
    AFDEP_LL_FP8_BLOCK = 6,      /* e4m3 [.., H], float scales [.., H/128]; H a multiple of 128 */
    AFDEP_LL_FP8_BLOCK_UE8M0 = 7 /* the same with e8m0 scales [.., H/128], rounded up to powers of two */
} afdep_ll_format_t;

/* Whose limits and formats hold. */
typedef enum afdep_ll_profile {
    AFDEP_LL_NATIVE = 0, /* this library's own: every format, the buffer as large as needed */
    AFDEP_LL_A2 = 1,     /* T <= 512, T < M, H <= 7168, K <= 16 (between hosts 2 .. 16), E <= 512; BF16, INT8 */
    AFDEP_LL_A3 = 2,     /* T <= 512, T < M, K <= 16, E <= 512; BF16, INT8 */
    AFDEP_LL_A5 = 3      /* T <= 512, T < M, E <= 512; BF16, INT8, FP8 per token, MXFP8, MXFP4 */
} afdep_ll_profile_t;

/* Static storage: "bf16", "int8", "fp8-token", "mxfp8", "mxfp4", "fp8-block", "fp8-block-ue8m0"; "native", "a2", ... */
AFDEP_EXPORT const char *afdep_ll_format_name(afdep_ll_format_t format);
AFDEP_EXPORT const char *afdep_ll_profile_name(afdep_ll_profile_t profile);

/* Local. Bytes of one row's codes and of its scales. Errors: ARGUMENT (no such format, or not of that `hidden`). */
AFDEP_EXPORT afdep_status_t afdep_ll_format_bytes(afdep_ll_format_t format, int32_t hidden, size_t *code_bytes,
                                                  size_t *scale_bytes);

/* What a caller asks for. */
typedef struct afdep_ll_request {
    afdep_ll_format_t format; /* a format by name; AUTO: the flags */
    int32_t use_fp8, use_ue8m0, use_mxfp8, use_mxfp4;
} afdep_ll_request_t;

/*
 * Local. The format that a request resolves to: `format` where it is not AUTO; else use_mxfp4, then use_mxfp8 (or
 * use_fp8 with use_ue8m0, its older spelling), then use_fp8 (a2, a3: INT8; a5: FP8 per token; native: FP8 in blocks of
 * 128); else INT8 where the environment has DEEP_NORMAL_MODE_USE_INT8_QUANT=1 (deprecated); else BF16.
 * Errors: UNSUPPORTED (the profile does not implement it), ARGUMENT, CONFIG (the environment variable).
 */
AFDEP_EXPORT afdep_status_t afdep_ll_resolve_format(afdep_ll_profile_t profile, const afdep_ll_request_t *request,
                                                    afdep_ll_format_t *format);

/* ---- Buffer ------------------------------------------------------------------------------------------------------ */

/* Start from AFDEP_LL_CONFIG_INIT. The same on all ranks. */
typedef struct afdep_ll_config {
    size_t struct_size;
    int32_t num_max_dispatch_tokens_per_rank; /* the largest M of any exchange */
    int32_t hidden;                           /* the largest H, a multiple of 32 */
    int32_t num_topk;                         /* the largest K */
    int32_t num_experts;                      /* the largest E, a multiple of R */
    afdep_ll_profile_t profile;
    int32_t ranks_per_domain; /* ranks of one host (one load/store domain); 0: all R. a2: two hosts at most */
    int32_t timeout_ms;    /* 0: AFDEP_TIMEOUT_MS, else 60000 */
    uint64_t buffer_bytes; /* the configured size. 0: HCCL_BUFFSIZE (in MiB), else 200 MiB; native: as needed */
    const char *backend;   /* NULL or "host"; "cuda" */
    const char *fabric;    /* as afdep_config_t; of the CUDA backend: peer, nccl */
} afdep_ll_config_t;

#define AFDEP_LL_CONFIG_INIT { sizeof(afdep_ll_config_t), 0, 0, 0, 0, AFDEP_LL_NATIVE, 0, 0, 0, 0, 0 }

/*
 * Sizes of a configuration, in bytes. `required` is what the profile's rule asks of the configured size:
 *   not layered:              (M * R * min(L, K) * H * 2 + 2 MiB) * 2
 *   layered (a2, two hosts):  E * M * (H * 2 + 4 * K * 4) + 4 MiB + 800 MiB
 *   native:                   segment_bytes
 * and `available` what of the configured size counts: a5 keeps 1 MiB of it for its state.
 */
typedef struct afdep_ll_memory {
    size_t struct_size;
    uint64_t required, configured, available;
    uint64_t segment_bytes;        /* registered by this library at every rank */
    uint64_t private_bytes;        /* mapped besides, most of it for combine buffers, and touched only where used */
    uint64_t combine_buffer_bytes; /* of one next combine buffer: [L, R * M, H] BF16 */
} afdep_ll_memory_t;

/*
 * Local. Fills `memory` (struct_size set) for `ranks` ranks, whether or not the configured size is enough.
 * Errors: ARGUMENT, CONFIG (a limit of the profile: the field, its value, the limit), UNSUPPORTED.
 */
AFDEP_EXPORT afdep_status_t afdep_ll_buffer_bytes(const afdep_ll_config_t *config, int ranks,
                                                  afdep_ll_memory_t *memory);

typedef struct afdep_ll_buffer afdep_ll_buffer_t;

/*
 * Collective. Every rank returns: what one rank refuses, or says differently, all refuse.
 * Errors: ARGUMENT, CONFIG (also where the configured size is below the required one: both are named), UNSUPPORTED,
 * AGREEMENT, MEMORY, SYSTEM, BOOTSTRAP.
 */
AFDEP_EXPORT afdep_status_t afdep_ll_buffer_open(const afdep_group_t *group, const afdep_ll_config_t *config,
                                                 afdep_ll_buffer_t **buffer);

/* Collective on a healthy buffer, local after a fatal error; as afdep_buffer_close(). NULL is allowed. */
AFDEP_EXPORT afdep_status_t afdep_ll_buffer_close(afdep_ll_buffer_t *buffer);

/* Local. OK, or the status that poisoned the buffer; as afdep_buffer_error(), ROUTE included. */
AFDEP_EXPORT afdep_status_t afdep_ll_buffer_error(afdep_ll_buffer_t *buffer);

/* Local. What this rank sent to `peer` since opening: puts are rows and headers, count_words dispatch words, combines
   combine words. Errors: ARGUMENT. */
AFDEP_EXPORT afdep_status_t afdep_ll_buffer_counters(const afdep_ll_buffer_t *buffer, int peer,
                                                     afdep_counters_t *counters);

/* ---- Completing later -------------------------------------------------------------------------------------------- */

/* Names an exchange from its dispatch to its combine. Opaque: pass it on unchanged. */
typedef struct afdep_ll_handle {
    uint64_t opaque[4];
} afdep_ll_handle_t;

/* What return_recv_hook gives: the call has sent, and receives when the hook is called. All zero: no hook. */
typedef struct afdep_ll_hook {
    uint64_t opaque[2];
} afdep_ll_hook_t;

/* What async_finish gives: the call has sent; whoever needs its results waits for the event. All zero: no event. */
typedef struct afdep_ll_event {
    uint64_t opaque[2];
} afdep_ll_event_t;

/*
 * Receives; every hook is called once. Until then the outputs hold nothing, and must stay. The calls of two exchanges
 * complete in any order. Errors that change nothing: ARGUMENT (not a hook of this buffer), ORDER (called before).
 * Fatal: TIMEOUT, PEER, PROTOCOL, TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_ll_hook_call(afdep_ll_buffer_t *buffer, const afdep_ll_hook_t *hook);

/* The same for an event; waiting for what has completed returns at once. */
AFDEP_EXPORT afdep_status_t afdep_ll_event_wait(afdep_ll_buffer_t *buffer, const afdep_ll_event_t *event);

/* Receives what has come, without waiting; *done says whether that was all. Errors as afdep_ll_event_wait(), but for
   TIMEOUT: only waiting has a deadline. */
AFDEP_EXPORT afdep_status_t afdep_ll_event_query(afdep_ll_buffer_t *buffer, const afdep_ll_event_t *event, int *done);

/* ---- Dispatch ---------------------------------------------------------------------------------------------------- */

/* Start from AFDEP_LL_DISPATCH_INIT, in which use_fp8 is 1. */
typedef struct afdep_ll_dispatch {
    size_t struct_size;
    /* in */
    const void *x;             /* [T, H] BF16, 16-byte aligned */
    const int64_t *topk_idx;   /* [T, K]: experts, unique in a token, or -1 */
    const float *topk_weights; /* [T, K], or NULL; on all ranks or on none */
    int32_t tokens;            /* T, 0 .. M (below M in profiles a2, a3, a5) */
    int32_t hidden;            /* H; 0: the configuration's. The same on all ranks, as are the next three */
    int32_t num_topk;          /* K; 0: the configuration's */
    int32_t num_max_dispatch_tokens_per_rank; /* M; 0: the configuration's */
    int32_t num_experts;                      /* E; 0: the configuration's */
    int32_t use_fp8, round_scale, use_ue8m0, use_mxfp4, use_mxfp8; /* round_scale: float scales become powers of two */
    afdep_ll_format_t format;  /* the same on all ranks, as resolved */
    int32_t async_finish;      /* 1: return once sent, and give an event */
    int32_t return_recv_hook;  /* 1: return once sent, and give a hook; not both */
    int32_t *cumulative_local_expert_recv_stats; /* [L]: receives are added to it; may be NULL */
    /* out: memory of the caller's */
    void *recv_x;              /* [L, R * M, code bytes]: expert by expert, valid rows first, by source, then token;
                                  what follows them is left as it was */
    void *recv_x_scales;       /* [L, R * M, scale bytes]; NULL for BF16. CUDA: 4-byte aligned, recv_x 16,
                                  recv_source 8 */
    float *recv_topk_weights;  /* [L, R * M]: each row's weight; NULL, or topk_weights is given */
    int32_t *recv_source;      /* [L, R * M, 2]: each row's source rank and token; may be NULL */
    int64_t *recv_count;       /* [L] */
    /* out */
    afdep_ll_format_t resolved;
    afdep_ll_handle_t handle;
    afdep_ll_event_t event;
    afdep_ll_hook_t hook;
    afdep_stream_t stream;     /* in. CUDA backend: where the call goes; NULL on the host backend */
} afdep_ll_dispatch_t;

#define AFDEP_LL_DISPATCH_INIT { sizeof(afdep_ll_dispatch_t), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, AFDEP_LL_AUTO, 0, \
                                 0, 0, 0, 0, 0, 0, 0, AFDEP_LL_AUTO, { { 0, 0, 0, 0 } }, { { 0, 0 } }, { { 0, 0 } }, 0 }

/*
 * Sends this rank's tokens, and receives those of all ranks for its experts (now, or by the hook or event).
 * Returns ROUTE when an id was outside [0, E) or repeated: the exchange is under way all the same, with that id as -1,
 * and everything is as after OK. afdep_last_error() names token and slot (CUDA: of an exchange before this one).
 * Errors that change nothing: ARGUMENT, CONFIG (a limit of the profile), UNSUPPORTED (a format of another profile),
 * ORDER. Fatal: TIMEOUT, PEER, PROTOCOL (ranks that differ in M, E, H, K or format, among others), TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_ll_dispatch(afdep_ll_buffer_t *buffer, afdep_ll_dispatch_t *dispatch);

/* ---- Combine ----------------------------------------------------------------------------------------------------- */

/*
 * Local. The memory [L, R * M, H] BF16 that the combine of `handle` may take its x from with zero_copy: an expert that
 * writes there needs no tensor of its own. Valid until that combine returns, and again for the exchange after the next.
 * Errors: ARGUMENT, ORDER (the handle is not that of an exchange awaiting its combine).
 */
AFDEP_EXPORT afdep_status_t afdep_ll_next_combine_buffer(afdep_ll_buffer_t *buffer, const afdep_ll_handle_t *handle,
                                                         void **x);

typedef struct afdep_ll_combine {
    size_t struct_size;
    const void *x;             /* [L, R * M, H] BF16: the valid rows in place of those received, unweighted */
    const int64_t *topk_idx;   /* [T, K]: as dispatched */
    const float *topk_weights; /* [T, K] */
    int32_t tokens;            /* T, as dispatched */
    int32_t num_topk;          /* K, as dispatched; 0: that */
    afdep_ll_handle_t handle;  /* of the dispatch, unchanged */
    int32_t zero_copy;         /* 1: x is the next combine buffer (may be NULL, meaning just that) */
    int32_t async_finish;
    int32_t return_recv_hook;
    void *out;                 /* [T, H] BF16, 16-byte aligned; NULL: the library's own memory */
    /* out */
    void *combined_x;          /* `out`, or the library's memory: valid until the second next dispatch */
    afdep_ll_event_t event;
    afdep_ll_hook_t hook;
    afdep_stream_t stream;     /* in; as of a dispatch */
} afdep_ll_combine_t;

#define AFDEP_LL_COMBINE_INIT { sizeof(afdep_ll_combine_t), 0, 0, 0, 0, 0, { { 0, 0, 0, 0 } }, 0, 0, 0, 0, 0, \
                                { { 0, 0 } }, { { 0, 0 } }, 0 }

/*
 * Sends the experts' rows back, and sums those of this rank's tokens: in FP32, in slot order, weight * row first and
 * fused multiply-adds after, rounded once to BF16. A token without a choice is +0. Exchanges are combined in the order
 * of their dispatches, each after its dispatch has received.
 * Errors that change nothing: ARGUMENT (among others ids that were not dispatched), ORDER. Fatal: as
 * afdep_ll_dispatch().
 */
AFDEP_EXPORT afdep_status_t afdep_ll_combine(afdep_ll_buffer_t *buffer, afdep_ll_combine_t *combine);

#ifdef __cplusplus
}
#endif
#endif
