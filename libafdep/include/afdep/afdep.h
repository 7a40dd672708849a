/*
 * afdep/afdep.h - the exchange of Attention-FFN disaggregated (AFD) inference.
 *
 * Ranks 0 .. F-1 are FFN ranks, each owning E/F consecutive experts; the other A ranks are Attention ranks (sources).
 * One exchange is
 *
 *     Attention rank                         FFN rank
 *     afdep_source_dispatch()   - rows ->    afdep_worker_receive()
 *     afdep_source_collect()    <- rows -    afdep_worker_reply()
 *
 * With ffn_ranks 0 the buffer is symmetric instead: every rank has tokens and owns experts, and one exchange is
 * afdep_elastic_dispatch() and afdep_elastic_combine() at each of them.
 *
 * Shapes are in brackets, row-major unless a stride is named: T tokens of a source, H hidden, K choices per token, E
 * experts, F FFN ranks, R received rows. Every rank makes its calls in the same order with the same bucket; with
 * several exchanges in flight that includes how first halves (dispatch, receive) and second halves (collect, reply)
 * follow each other: a call waits for its peers' calls, so two ranks in different orders wait for each other until the
 * deadline.
 *
 * Threads: a buffer is used by one thread at a time. Host backend: calls return when their part is done; pointers
 * handed in may be reused once the call returns, `stream` is NULL. CUDA backend: a role call puts a kernel on `stream`
 * and returns; tensors are device memory, and stay as they are until the stream has passed the call. Role calls may be
 * captured into graphs, but for a receive with read_host_counts, which waits for the GPU; opening and closing may not.
 * What a kernel finds out is told by afdep_buffer_error() and by the next call. Nothing is allocated between opening
 * and closing.
 * `rows` and `out` tensors are 16-byte aligned. Segments are backed as they are first touched.
 * Nothing prints, exits or aborts; errno is preserved.
 */
#ifndef AFDEP_AFDEP_H
#define AFDEP_AFDEP_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/group.h>
#include <afdep/status.h>
#include <afdep/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Library ------------------------------------------------------------------------------------------------- */

/* The library's version as it runs, such as "0.1.0". Static storage. */
AFDEP_EXPORT const char *afdep_version(void);

/* The native tree: the git tree id of the library's source as built, 40 hexadecimal digits. Static storage. */
AFDEP_EXPORT const char *afdep_native_tree(void);

/* Nonzero when the library was built from a work tree with uncommitted changes under libafdep/. */
AFDEP_EXPORT int afdep_native_tree_dirty(void);

typedef enum afdep_log_level {
    AFDEP_LOG_ERROR = 0,
    AFDEP_LOG_WARN = 1,
    AFDEP_LOG_INFO = 2,
    AFDEP_LOG_DEBUG = 3
} afdep_log_level_t;

/*
 * Sends log lines of `level` and more severe to `write(context, level, line)`; `line` has no newline. NULL `write`
 * restores the default: standard error, level from AFDEP_LOG (default: error, which prints nothing by itself, since
 * errors are returned). Process-wide; call it before other threads use the library.
 */
AFDEP_EXPORT void afdep_log_set(void (*write)(void *context, afdep_log_level_t level, const char *line), void *context,
                                afdep_log_level_t level);

/* ---- Configuration ------------------------------------------------------------------------------------------- */

typedef enum afdep_dtype {
    AFDEP_DTYPE_BF16 = 0,
    AFDEP_DTYPE_FP8 = 1 /* e4m3fn with one FP32 scale per 128 elements */
} afdep_dtype_t;

typedef enum afdep_toggle {
    AFDEP_DEFAULT = 0, /* the environment's value, else the documented default */
    AFDEP_OFF = 1,
    AFDEP_ON = 2
} afdep_toggle_t;

/* Flags of afdep_config_t. */
#define AFDEP_FLAG_APPLY_WEIGHTS 1u /* worker_reply multiplies each row by its routing weight; rows come unweighted */
#define AFDEP_FLAG_UNION_BUFFERS 2u /* every rank's segment holds both roles' regions (AFDEP_UNION_BUFFERS=1) */
#define AFDEP_FLAG_MIXED_HYBRID 4u  /* the mixed-role protocol where domains hold both roles (AFDEP_MIXED_HYBRID=1) */
#define AFDEP_FLAG_ENTRY_BARRIER 8u /* symmetric: each dispatch begins with a barrier (AFDEP_ENTRY_BARRIER=1) */
#define AFDEP_FLAG_SURVIVE_SOURCES 16u /* an Attention rank that dies, gives up or stalls is masked, and the others go
                                          on; see afdep_buffer_lost() (AFDEP_SURVIVE_SOURCES=1) */

/*
 * What a group of ranks agrees on. Identical on every rank (opening compares the resolved values). Start from
 * AFDEP_CONFIG_INIT; 0 means the default where one is named. A field may be overridden by the environment variable
 * that docs/configuration.md names for it only where the field is left at its default.
 */
typedef struct afdep_config {
    size_t struct_size;         /* sizeof(afdep_config_t); AFDEP_CONFIG_INIT sets it */
    int32_t ffn_ranks;          /* F, 1 .. size-1; 0: symmetric */
    int32_t ranks_per_domain;   /* D: ranks that reach each other by load/store; 0: all ranks, one domain. D divides
                                   the world. Across domains either D divides F: every domain holds one role, and
                                   domain d is the ranks d*D .. d*D+D-1. Or the number of domains divides F: every
                                   domain holds f = F/domains FFN ranks, and domain d is the FFN ranks d*f .. d*f+f-1
                                   and the Attention ranks F+d*(D-f) .. F+(d+1)*(D-f)-1 */
    int32_t num_experts;        /* E, a multiple of F (symmetric: of the ranks) */
    int32_t top_k;              /* K, 1 .. min(32, E) */
    int32_t hidden;             /* H, a multiple of 256 */
    afdep_dtype_t dtype;        /* of dispatched rows; replies are BF16 */
    int32_t capacity;           /* the largest bucket, tokens per source, at least 1 */
    int32_t num_sms;            /* C = 8 * num_sms channels, SMs that communicate; 0: 24 (of 132) */
    int32_t expert_alignment;   /* expert rows start at multiples of it; 0: 1 */
    int32_t in_flight;          /* G: dispatches that may be unmatched at once, 1 .. 4; 0: 1 */
    int32_t timeout_ms;         /* deadline of every wait inside a call; 0: 60000 */
    afdep_toggle_t stagger;         /* sources start on different channels; default on */
    afdep_toggle_t sparse_dispatch; /* finish tails only from channels that carry tokens; default on */
    afdep_toggle_t sparse_combine;  /* combine signals only on channels replied on, and a done witness; default on */
    uint32_t flags;             /* AFDEP_FLAG_... */
    const char *backend;        /* "host" or "cuda"; NULL: "host" */
    const char *fabric;         /* host: "shm", "mpi"; NULL: the group's own fabric, else "shm". cuda: "peer", "nccl";
                                   NULL: "peer" */
    afdep_toggle_t fp8_combine; /* across domains of one role: each FFN domain's sum of a token leaves as e4m3 with a
                                   power-of-two scale per 128 elements; lossy; default off, elsewhere always off */
    int32_t fp8_combine_min_bucket; /* exchanges of smaller buckets keep BF16 replies; 0 or less: none do */
} afdep_config_t;

#define AFDEP_CONFIG_INIT { sizeof(afdep_config_t), 0, 0, 0, 0, 0, AFDEP_DTYPE_BF16, 0, 0, 0, 0, 0, AFDEP_DEFAULT, \
                            AFDEP_DEFAULT, AFDEP_DEFAULT, 0, 0, 0, AFDEP_DEFAULT, 0 }

/*
 * Memory of a configuration, in bytes, before anything is opened. Segments, rows and tensors are exact on the fabrics
 * shm and mpi, which size segments by role; bookkeeping leaves out the tables of the fabric (a few KB per peer).
 */
typedef struct afdep_memory {
    size_t struct_size;
    uint64_t ffn_segment;       /* registered segment of an FFN rank (symmetric: of any rank) */
    uint64_t attention_segment; /* registered segment of an Attention rank */
    uint64_t ffn_private;       /* bookkeeping an FFN rank allocates at open */
    uint64_t attention_private; /* the same at an Attention rank */
    int64_t receive_rows;       /* R at most, for `bucket`: rows that worker_receive may be handed room for */
    uint64_t receive_bytes;     /* rows, scales, weights and sources of that many rows */
    uint64_t reply_bytes;       /* the BF16 reply tensor of that many rows */
} afdep_memory_t;

/*
 * Local. Resolves `config` for a world of `size` ranks as opening would (environment included) and fills `memory`
 * (whose struct_size must be set) for exchanges of `bucket` tokens (0: capacity).
 * Errors: ARGUMENT, CONFIG (the first illegal field, its value and the legal range), UNSUPPORTED.
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_bytes(const afdep_config_t *config, int size, int32_t bucket,
                                               afdep_memory_t *memory);

/* ---- Buffer -------------------------------------------------------------------------------------------------- */

typedef struct afdep_buffer afdep_buffer_t;
typedef void *afdep_stream_t; /* cudaStream_t on the CUDA backend, NULL on the host backend */

/*
 * Collective. Opens a buffer for the ranks of `group`. `*buffer` is set on success only. Every rank returns: when one
 * rank's settings are refused or differ, all get an error.
 * Errors: ARGUMENT, CONFIG, UNSUPPORTED, AGREEMENT (the field, and which ranks say what), MEMORY, SYSTEM, BOOTSTRAP.
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_open(const afdep_group_t *group, const afdep_config_t *config,
                                              afdep_buffer_t **buffer);

/*
 * Collective on a healthy buffer: waits for the last witnesses, passes a barrier over the fabric, and frees. Several
 * buffers are closed in the same order on all ranks. Local after a fatal error. A buffer belongs to the process that
 * opened it: a child that was forked and did not exec must not touch it. Always frees; NULL is allowed. Returns OK, or
 * what kept the ranks from parting in order (ORDER: a dispatch was left unmatched; TIMEOUT, PEER).
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_close(afdep_buffer_t *buffer);

/*
 * Local. The async error query: OK on a healthy buffer, or the status that poisoned it (its sentence becomes
 * afdep_last_error()). CUDA: ROUTE on a healthy buffer whose last invalid choice no call has told of yet. Never waits.
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_error(afdep_buffer_t *buffer);

/*
 * With AFDEP_FLAG_SURVIVE_SOURCES: an Attention rank whose process is gone, whose buffer failed, or from which nothing
 * came within timeout_ms where an FFN rank waited for it (and others had come), is masked. FFN ranks take it for a
 * source without tokens (in a cached receive its rows are as padding), the other Attention ranks go on with exact
 * results, and the rank itself, where it lives, gets AFDEP_ERR_PEER from its next wait. Waits for FFN ranks may last
 * three times timeout_ms; the loss of an FFN rank is an error for all, as ever. Not on the CUDA backend, not over MPI,
 * not where Attention ranks forward or own experts.
 *
 * Local. Says which ranks are masked, as far as this rank knows: FFN ranks when they mask, the others soon after. Fills
 * `ranks` with the lowest `room` of them (NULL with room 0) and sets `*count` to their number; 0 without the flag.
 * Never waits. Errors: ARGUMENT.
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_lost(afdep_buffer_t *buffer, int32_t *ranks, int32_t room, int32_t *count);

/*
 * Collective over `group`, at a quiet point: every rank's last exchange is finished on both sides, or its buffer has
 * failed. Lets masked ranks in again: all ranks open their buffer's transport anew over `group`, whose ranks have the
 * same numbers as before; it may be the group that the buffer was opened on, where all processes live. A process that
 * takes the place of a dead one calls afdep_buffer_open() with the same configuration instead. Afterwards nobody is
 * masked, and the buffer is as newly opened: exchanges, counters and load statistics start again. What went wrong
 * leaves the buffer as it was. Errors: ARGUMENT, ORDER, UNSUPPORTED (without the flag), and those of
 * afdep_buffer_open().
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_readmit(afdep_buffer_t *buffer, const afdep_group_t *group);

/* What a buffer resolved to. Strings are static or live as long as the buffer. */
typedef struct afdep_buffer_info {
    size_t struct_size;
    int rank, size;
    int32_t ffn_ranks, attention_ranks, ranks_per_domain, ffn_domains, attention_domains;
    int32_t channels;             /* C */
    int32_t num_sms, capacity, in_flight, timeout_ms, expert_alignment;
    int32_t stagger, sparse_dispatch, sparse_combine; /* 0 or 1 */
    int32_t source_view;          /* 1 when collect can return a view */
    uint32_t flags;
    afdep_dtype_t dtype;
    uint32_t reserved;            /* 0; stands where padding would */
    const char *protocol;         /* "direct" (one domain), "directional" (domains of one role), "union" or "mixed"
                                     (domains of both), "symmetric" or "symmetric-hybrid" (ffn_ranks 0; one domain,
                                     several) */
    const char *backend, *fabric;
    uint64_t segment_bytes, private_bytes; /* of this rank */
    uint64_t exchanges;           /* exchanges this rank has started */
    int32_t fp8_combine;          /* 1: replies of buckets from fp8_combine_min_bucket on are FP8; else both are 0 */
    int32_t fp8_combine_min_bucket;
    /* Where rows cross domains by NCCL's GPU-initiated networking (fabric "nccl"); elsewhere 0 and NULL. */
    int32_t gin_contexts;         /* that channels are spread over */
    int32_t gin_type;             /* NCCL's number: 2 its proxy, 3 GDAKI */
    int32_t gin_traffic_class;    /* -1: NCCL's own */
    int32_t gin_loopback;         /* 1: NCCL is told to load the plugin that stands in for a network on one host */
    const char *gin_why;          /* what was chosen and who said so; lives as long as the buffer */
} afdep_buffer_info_t;

/* Local. Fills `info`, whose struct_size must be set. Errors: ARGUMENT. */
AFDEP_EXPORT afdep_status_t afdep_buffer_info(const afdep_buffer_t *buffer, afdep_buffer_info_t *info);

/*
 * What this rank has sent to one peer since the buffer opened. Exact. A finish tail that rides on a put counts as one
 * put and one finish tail.
 */
typedef struct afdep_counters {
    size_t struct_size;
    uint64_t puts;          /* rows (and extents of rows, inside an FFN domain) written to the peer */
    uint64_t put_bytes;     /* bytes of those rows as one put each, in whatever form GPUs pass them on */
    uint64_t finish_tails;
    uint64_t count_words;
    uint64_t progress_tails;
    uint64_t combines;
    uint64_t witnesses;
    uint64_t domain_words;  /* words inside a domain with FFN ranks: rows forwarded, partials ready, rail answers */
    uint64_t control_words; /* opening, closing, liveness, failure */
} afdep_counters_t;

/* Local. Fills `counters` (struct_size set) for `peer`, 0 .. size-1. Errors: ARGUMENT. */
AFDEP_EXPORT afdep_status_t afdep_buffer_counters(const afdep_buffer_t *buffer, int peer, afdep_counters_t *counters);

/*
 * Load statistics of this rank since the buffer opened. An Attention rank counts its own tokens as it dispatches them,
 * an FFN rank those that it receives, each for its own experts.
 */
typedef struct afdep_load {
    size_t struct_size;
    uint64_t exchanges;      /* out: exchanges counted */
    uint64_t *expert_tokens; /* in: room for [E], or NULL; gets the tokens of every expert (times chosen) */
    uint64_t *source_tokens; /* in: room for [A], or NULL; gets the tokens of every Attention rank, in rank order */
} afdep_load_t;

#define AFDEP_LOAD_INIT { sizeof(afdep_load_t), 0, 0, 0 }

/*
 * Local. Fills `load`. May be called from any thread at any time between opening and closing, also while another thread
 * is in a role call, which does not wait for it (but not during afdep_buffer_readmit()): what is read is as some
 * exchange left it, never a part of one. CUDA: the kernels go on; exchanges count when their dispatch or receive is
 * over on the GPU, replayed ones too. Errors: ARGUMENT; CUDA also MEMORY, TRANSPORT.
 */
AFDEP_EXPORT afdep_status_t afdep_buffer_load(const afdep_buffer_t *buffer, afdep_load_t *load);

/* ---- Attention ranks ----------------------------------------------------------------------------------------- */

typedef struct afdep_dispatch {
    size_t struct_size;
    int32_t tokens;        /* T, 0 .. bucket */
    int32_t bucket;        /* 1 .. capacity, the same on all ranks of this exchange */
    const void *x;         /* [T, H], contiguous: BF16 bits (uint16_t) or e4m3 codes (uint8_t) */
    const float *x_scale;  /* [T, H/128], FP8 only */
    int64_t x_scale_token_stride; /* elements between tokens; 0: H/128 */
    int64_t x_scale_block_stride; /* elements between blocks; 0: 1 */
    const int32_t *ids;    /* [T, K]: expert ids, unique in a token, or -1 */
    const float *weights;  /* [T, K] */
    int32_t cached;        /* 1: the ids are those of the exchange `in_flight` before (the one before, as a rule):
                              `ids` is not read and nothing is planned or counted anew; x, x_scale and weights are new.
                              tokens and bucket are the same, and every FFN rank receives with `cached` too */
    int32_t send_only;     /* 1: sends what can be sent without waiting (CUDA: all of it or nothing), and returns; x,
                              x_scale and weights (CUDA: ids too) stay unchanged until
                              afdep_source_dispatch_complete(), which has to follow */
} afdep_dispatch_t;

#define AFDEP_DISPATCH_INIT { sizeof(afdep_dispatch_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/*
 * Attention rank. Sends this rank's tokens to the FFN ranks that own their experts. Waits only for the witnesses of the
 * exchange `in_flight` ago; where domains hold both roles it also forwards what the ranks of its rail in the other
 * domains send, and so waits for their dispatch. At most `in_flight` dispatches may be without their collect. Returns
 * ROUTE when an id was invalid or repeated: the exchange is under way all the same, with that id as -1, and is
 * collected as usual; afdep_last_error() names token and slot (CUDA: of an exchange before this one). Errors that
 * change nothing: ARGUMENT, ROLE, ORDER, UNSUPPORTED (cached or send_only on a backend without them). Fatal: TIMEOUT,
 * PEER, PROTOCOL, TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_source_dispatch(afdep_buffer_t *buffer, const afdep_dispatch_t *dispatch,
                                                  afdep_stream_t stream);

/*
 * Attention rank. Completes a send-only dispatch: waits for the witnesses that it still needs, sends the rest, and
 * returns what the dispatch would have returned (ROUTE included). OK at once where none is under way. Until it was
 * called the buffer takes no other role call (ORDER). CUDA: puts a kernel on the dispatch's stream, which waits in its
 * place; the tensors stay unchanged until the stream has passed it. Fatal errors as for the dispatch.
 */
AFDEP_EXPORT afdep_status_t afdep_source_dispatch_complete(afdep_buffer_t *buffer);

typedef struct afdep_collect {
    size_t struct_size;
    void *out;            /* in: [T, H] BF16, contiguous; may be NULL where a view is asked for and can be had */
    int32_t view;         /* in: 1 asks for a view; it can be had with one FFN rank in one domain, elsewhere the
                             ordinary result goes to `out` */
    const void *result;   /* out: `out`, or the registered inbox itself: read-only, valid until this rank's next
                             dispatch on the buffer that reuses the plane (the next one when in_flight is 1) */
    int64_t result_stride; /* out: elements between tokens of `result` */
    int32_t tokens;       /* out: T of the exchange collected */
} afdep_collect_t;

#define AFDEP_COLLECT_INIT { sizeof(afdep_collect_t), 0, 0, 0, 0, 0 }

/*
 * Attention rank. Waits for the replies to the oldest dispatch not yet collected and sums them: [T, H] BF16 in token
 * order. A token none of whose choices were served is +0.
 * Errors that change nothing: ARGUMENT, ROLE, ORDER. Fatal: TIMEOUT, PEER, PROTOCOL, TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_source_collect(afdep_buffer_t *buffer, afdep_collect_t *collect,
                                                 afdep_stream_t stream);

/* ---- FFN ranks ----------------------------------------------------------------------------------------------- */

/* What a reply needs to know of its receive. Opaque: keep it unchanged until the reply. */
typedef struct afdep_receipt {
    uint64_t opaque[4];
} afdep_receipt_t;

typedef struct afdep_receive {
    size_t struct_size;
    int32_t bucket;           /* in: as the sources' */
    int32_t read_host_counts; /* in: 1 waits for the counts, fills host_counts and calls `allocate` if given */
    /* in: the caller's tensors, room for `rows_capacity` rows each. Without read_host_counts rows_capacity must be at
       least afdep_memory_t.receive_rows for this bucket; with it, what the counts need. */
    void *rows;               /* [R, H]: BF16 bits or e4m3 codes */
    float *row_scale;         /* [R, H/128], FP8 only */
    float *row_weight;        /* [R] */
    int32_t *row_source;      /* [R, 2]: source rank and token, -1 and -1 in padding; may be NULL */
    int32_t *ends;            /* [E/F] (symmetric: E over the ranks): expert e holds rows
                                 [align_up(ends[e-1], expert_alignment), ends[e]) */
    int64_t rows_capacity;
    int32_t *host_counts;     /* [E/F], with read_host_counts: aligned per-expert counts; may be NULL */
    /* With read_host_counts, called with the number of rows R once it is known, to set the five tensor fields and
       rows_capacity of the struct that it is given: the library's copy, valid during the call; the fields come back in
       the caller's own. A status other than OK, which must not be a fatal one, is returned from worker_receive, which
       may be called again. */
    afdep_status_t (*allocate)(void *context, int64_t rows, struct afdep_receive *receive);
    void *allocate_context;
    /* out */
    int64_t row_count;        /* R: the sum of the aligned per-expert counts, so padding is included. CUDA without
                                 read_host_counts: the bound, receive_rows of this bucket; `ends` says what came */
    afdep_receipt_t receipt;
    int32_t cached;           /* in: 1 where every source dispatches with `cached`: rows, ends and counts stand as in
                                 the exchange `in_flight` before, uncounted; another routing is PROTOCOL */
    int32_t reserved;         /* 0 */
} afdep_receive_t;

#define AFDEP_RECEIVE_INIT { sizeof(afdep_receive_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { { 0, 0, 0, 0 } }, 0, 0 }

/*
 * FFN rank. Receives the rows of the next exchange: expert-major, inside an expert by source rank, then token. On an
 * FFN rank of several domains it forwards rows to the other ranks of its domain too, so every FFN rank must call it
 * for every exchange. Padding rows are unspecified but for row_weight, which is +0 there.
 * Errors that change nothing: ARGUMENT, ROLE, ORDER, UNSUPPORTED (cached on a backend without it). CAPACITY: row_count
 * says how many rows have come; call again with room for them. Fatal: TIMEOUT, PEER, PROTOCOL (also where the ranks
 * were given different buckets), TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_worker_receive(afdep_buffer_t *buffer, afdep_receive_t *receive,
                                                 afdep_stream_t stream);

typedef struct afdep_reply {
    size_t struct_size;
    const void *rows;        /* [R, H] BF16, contiguous: in place of the received rows, already multiplied by
                                row_weight exactly once unless AFDEP_FLAG_APPLY_WEIGHTS; may be NULL when R is 0 */
    afdep_receipt_t receipt; /* of the receive that is answered; receives are answered in their order */
} afdep_reply_t;

#define AFDEP_REPLY_INIT { sizeof(afdep_reply_t), 0, { { 0, 0, 0, 0 } } }

/*
 * FFN rank. Sums, per token, the rows of this rank's experts and sends the sums on their way back. Called for every
 * exchange, also when no row was received.
 * Errors that change nothing: ARGUMENT (a receipt that is not the next one's), ROLE, ORDER. Fatal: TIMEOUT, PEER,
 * PROTOCOL, TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_worker_reply(afdep_buffer_t *buffer, const afdep_reply_t *reply,
                                               afdep_stream_t stream);

/* ---- Symmetric ranks (ffn_ranks 0) --------------------------------------------------------------------------- */

/*
 * Every rank. Dispatch and receive in one call: sends this rank's tokens to the ranks that own their experts (rank r
 * owns experts r*E/size .. (r+1)*E/size-1) and receives what all ranks sent it. Both structs are filled as for
 * afdep_source_dispatch() and afdep_worker_receive(), with the same bucket. Host backend only. Returns ROUTE as
 * afdep_source_dispatch() does, with everything received. CAPACITY: call again with room; `dispatch` is under way and
 * is not looked at again. Errors that change nothing: ARGUMENT, ROLE (a buffer with roles), ORDER. Fatal: TIMEOUT,
 * PEER, PROTOCOL, TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_elastic_dispatch(afdep_buffer_t *buffer, const afdep_dispatch_t *dispatch,
                                                   afdep_receive_t *receive, afdep_stream_t stream);

/*
 * Every rank. Reply and collect in one call, for the oldest exchange not yet combined: sends back the sums of this
 * rank's rows and gathers those of its own tokens. As afdep_worker_reply() and afdep_source_collect(); there is no
 * view. Errors that change nothing: ARGUMENT, ROLE, ORDER. Fatal: TIMEOUT, PEER, PROTOCOL, TRANSPORT, POISONED.
 */
AFDEP_EXPORT afdep_status_t afdep_elastic_combine(afdep_buffer_t *buffer, const afdep_reply_t *reply,
                                                  afdep_collect_t *collect, afdep_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
