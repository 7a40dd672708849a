/*
 * How bytes and words move. One ops table per fabric; no fabric knows the protocol, and no caller knows the fabric.
 *
 * Every rank has one segment. Peers write into it (put, signal); only its owner reads it. Offsets are in bytes from the
 * segment's start. Promises, which the protocol relies on and the simulator does not exceed:
 *
 * - A lane is (sender, target, lane number). A signal becomes visible after every put and signal issued before it on
 *   its lane. Between lanes nothing is ordered.
 * - A signalled word is seen whole: old or new.
 * - Once flush has returned OK, the sources of earlier puts may be reused, and everything issued is on its
 *   way without further calls.
 * - Nothing blocks. Back-pressure shows as AFDEP_AGAIN, and the caller's step is tried again after progress.
 *
 * No real time, threads or process boundaries are assumed: time is now(), waiting is idle().
 */
#ifndef AFDEP_FABRIC_FABRIC_H
#define AFDEP_FABRIC_FABRIC_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/afdep.h>

/* Lanes: 0 .. C-1 are the channels; the two below follow them (a fabric gets their number at open). */
#define AFDEP_LANE_CONTROL(channels) (channels)    /* words that publish no row */
#define AFDEP_LANE_DOMAIN(channels) ((channels) + 1) /* rows and words inside a domain */
#define AFDEP_LANE_COUNT(channels) ((channels) + 2)

/* Positive statuses never leave the library. */
#define AFDEP_AGAIN ((afdep_status_t)1)
#define AFDEP_DONE ((afdep_status_t)2)

typedef enum afdep_signal_kind {
    AFDEP_SIGNAL_FINISH_TAIL,
    AFDEP_SIGNAL_COUNT_WORD,
    AFDEP_SIGNAL_PROGRESS_TAIL,
    AFDEP_SIGNAL_COMBINE,
    AFDEP_SIGNAL_WITNESS,
    AFDEP_SIGNAL_DOMAIN_WORD,
    AFDEP_SIGNAL_CONTROL,
    AFDEP_SIGNAL_KINDS
} afdep_signal_kind_t;

typedef struct afdep_peer_counters {
    uint64_t puts, put_bytes;
    uint64_t signals[AFDEP_SIGNAL_KINDS];
} afdep_peer_counters_t;

typedef struct afdep_fabric afdep_fabric_t;

typedef struct afdep_fabric_ops {
    const char *name;

    /*
     * A place where `bytes` bytes bound for `peer` at `offset` may be built and then need no copy: the peer's own
     * memory where it is mapped, else NULL. What is built there counts as put when put() is called with src equal to
     * it.
     */
    void *(*window)(afdep_fabric_t *fabric, int peer, uint64_t offset, size_t bytes);

    /* One-sided write of a row. src stays unchanged until flush. */
    afdep_status_t (*put)(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src, size_t bytes);

    /*
     * One-sided update of the 8-byte word at `offset`, which has this rank as its only writer and holds old_value.
     * Fabrics that store write new_value, fabrics that add add new_value - old_value.
     */
    afdep_status_t (*signal)(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, uint64_t old_value,
                             uint64_t new_value);

    /* put, then signal on the same lane, as one message where the fabric has such. */
    afdep_status_t (*put_signal)(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                                 size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value);

    /* The word at `offset` of this rank's own segment, with acquire semantics. */
    uint64_t (*read)(afdep_fabric_t *fabric, uint64_t offset);

    /* Starts what is queued; AFDEP_OK once it is all on its way, AFDEP_AGAIN when to be called again. */
    afdep_status_t (*flush)(afdep_fabric_t *fabric);

    /* Lets the transport work and makes peers' writes visible to read(). Called between rounds of steps. */
    afdep_status_t (*progress)(afdep_fabric_t *fabric);

    /* Monotonic nanoseconds; virtual in the simulator. */
    uint64_t (*now)(afdep_fabric_t *fabric);

    /* Optional: an actor is about to be stepped, in the exchange-th exchange since opening (0: none yet). Decorators
       that slow actors down have it, others leave it NULL. */
    void (*before_step)(afdep_fabric_t *fabric, uint64_t exchange, const char *duty, int channel);

    /* This rank found nothing to do `rounds` times in a row: spin, yield or step others. */
    void (*idle)(afdep_fabric_t *fabric, unsigned rounds);

    /* 1: lives; 0: dead. Cheap enough for every rank a few times a second. */
    int (*alive)(afdep_fabric_t *fabric, int peer);

    /* Local. After an orderly parting (in_order) or an error; peers may still write: their writes must land in memory
       that stays valid or nowhere. Frees `fabric`. */
    void (*close)(afdep_fabric_t *fabric, int in_order);
} afdep_fabric_ops_t;

struct afdep_fabric {
    const afdep_fabric_ops_t *ops;
    int rank, size;
    int lanes;                       /* AFDEP_LANE_COUNT(C) */
    unsigned char *base;             /* this rank's segment */
    uint64_t bytes;                  /* its size */
    const uint64_t *peer_bytes;      /* [size]: every rank's segment size, exchanged and checked at open */
    afdep_peer_counters_t *counters; /* [size]: what this rank sent to each */
    afdep_signal_kind_t kind;        /* of the signal being issued, for decorators that choose by it */
    unsigned spins;                  /* rounds that idle() spins before it gives the processor away */
    int issued;                      /* something was issued since whoever flushes last looked */
};

typedef struct afdep_fabric_args {
    const afdep_group_t *group;
    int lanes;
    int ranks_per_domain;
    const int *domains; /* [size]: the domain of each rank; NULL: rank / ranks_per_domain */
    int timeout_ms;
    uint64_t bytes;             /* of this rank's segment; zero-filled at open */
    const uint64_t *peer_bytes; /* [size]: what each rank's segment must be */
    /* Called once the own segment exists and before any peer can reach it, to set words to their starting values. */
    void (*prepare)(void *context, void *base);
    void *prepare_context;
} afdep_fabric_args_t;

/* A fabric that can be opened by name. */
typedef struct afdep_fabric_provider {
    const char *name;
    /* Collective; allgathers through args->group the same number of times on every rank, failing or not, so that a rank
       that cannot go on takes the others along. */
    afdep_status_t (*open)(const struct afdep_fabric_provider *self, const afdep_fabric_args_t *args,
                           afdep_fabric_t **fabric);
    const void *context; /* the provider's own; a decorator keeps there what it wraps */
} afdep_fabric_provider_t;

extern const afdep_fabric_provider_t afdep_fabric_shm;

/* ---- What callers use: counts, then the op ------------------------------------------------------------------- */

static inline void *afdep_fabric_window(afdep_fabric_t *f, int peer, uint64_t offset, size_t bytes)
{
    return f->ops->window(f, peer, offset, bytes);
}

static inline afdep_status_t afdep_fabric_put(afdep_fabric_t *f, int lane, int peer, uint64_t offset, const void *src,
                                              size_t bytes)
{
    afdep_status_t status = f->ops->put(f, lane, peer, offset, src, bytes);
    if (status == AFDEP_OK) {
        f->counters[peer].puts++;
        f->counters[peer].put_bytes += bytes;
        f->issued = 1;
    }
    return status;
}

static inline afdep_status_t afdep_fabric_signal(afdep_fabric_t *f, afdep_signal_kind_t kind, int lane, int peer,
                                                 uint64_t offset, uint64_t old_value, uint64_t new_value)
{
    f->kind = kind;
    afdep_status_t status = f->ops->signal(f, lane, peer, offset, old_value, new_value);
    if (status == AFDEP_OK) {
        f->counters[peer].signals[kind]++;
        f->issued = 1;
    }
    return status;
}

static inline afdep_status_t afdep_fabric_put_signal(afdep_fabric_t *f, afdep_signal_kind_t kind, int lane, int peer,
                                                     uint64_t offset, const void *src, size_t bytes, uint64_t word,
                                                     uint64_t old_value, uint64_t new_value)
{
    f->kind = kind;
    afdep_status_t status = f->ops->put_signal(f, lane, peer, offset, src, bytes, word, old_value, new_value);
    if (status == AFDEP_OK) {
        f->counters[peer].puts++;
        f->counters[peer].put_bytes += bytes;
        f->counters[peer].signals[kind]++;
        f->issued = 1;
    }
    return status;
}

static inline uint64_t afdep_fabric_read(afdep_fabric_t *f, uint64_t offset)
{
    return f->ops->read(f, offset);
}

#endif
