/*
 * afdep/group.h - how ranks find each other before there is a buffer.
 *
 * A group is four callbacks. The library uses them only while a buffer is opened (never during exchanges), from the
 * thread that opens it, in the same order on every rank. Three makers are ready: threads of one process, TCP, and MPI
 * (afdep/mpi.h, in a library of its own). An engine with a bootstrap of its own fills the struct in itself.
 */
#ifndef AFDEP_GROUP_H
#define AFDEP_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct afdep_fabric_provider;

/*
 * One rank's view of a group. The struct is copied by afdep_buffer_open(); what `context` points to must live until
 * the last buffer opened on the group is closed. Several buffers may be opened on one group, one after the other, in
 * the same order on all ranks.
 */
typedef struct afdep_group {
    size_t struct_size; /* sizeof(afdep_group_t); AFDEP_GROUP_INIT sets it */
    int rank;           /* 0 .. size-1 */
    int size;           /* number of ranks */
    void *context;      /* passed to the callbacks */

    /*
     * Collective. Gathers `bytes` bytes at `send` from every rank into `recv` ([size][bytes], in rank order); `bytes`
     * is the same everywhere. Returns AFDEP_OK or an error that leaves the group unusable; must not hang for ever when
     * a rank is missing.
     */
    afdep_status_t (*allgather)(void *context, const void *send, void *recv, size_t bytes);

    /* Collective. Returns once every rank has entered. Same returns as allgather. */
    afdep_status_t (*barrier)(void *context);

    /* Frees what the maker allocated; NULL where there is nothing to free. Called by afdep_group_destroy() only. */
    void (*destroy)(void *context);

    /* Fabrics that come with the group's maker (libafdep-mpi brings "mpi"); NULL for none. */
    const struct afdep_fabric_provider *fabrics;
} afdep_group_t;

#define AFDEP_GROUP_INIT { sizeof(afdep_group_t), 0, 0, 0, 0, 0, 0, 0 }

/*
 * Makes the groups of `size` ranks that are threads of this process: groups[r] is rank r's, to be used by one thread
 * at a time. Local. The ranks share one allocation, freed when the last of the groups is destroyed.
 * timeout_ms bounds every callback (0: 60000): when a rank does not come, the callers get AFDEP_ERR_BOOTSTRAP naming
 * the missing ranks.
 * Errors: ARGUMENT (size < 1, groups NULL), MEMORY.
 */
AFDEP_EXPORT afdep_status_t afdep_group_threads_create(int size, int timeout_ms, afdep_group_t *groups);

/*
 * What a TCP group needs: what launchers such as torchrun export. Zero-initialize through AFDEP_TCP_INIT.
 */
typedef struct afdep_tcp {
    size_t struct_size;  /* sizeof(afdep_tcp_t) */
    const char *address; /* numeric IPv4 or IPv6 address (or host name) of rank 0; NULL: $MASTER_ADDR */
    int port;            /* rank 0's port; 0: $MASTER_PORT */
    int rank;            /* this rank; -1: $RANK */
    int size;            /* number of ranks; 0: $WORLD_SIZE */
    const char *token;   /* the job's secret, shared by all ranks, at least 16 characters; NULL: the content of the
                            file named by $AFDEP_JOB_TOKEN_FILE, or $AFDEP_JOB_TOKEN; never sent over the wire */
    int timeout_ms;      /* bounds meeting, and each callback; 0: 60000 */
} afdep_tcp_t;

#define AFDEP_TCP_INIT { sizeof(afdep_tcp_t), 0, 0, -1, 0, 0, 0 }

/*
 * Collective. Meets the other ranks at rank 0's address. Rank 0 binds exactly that address (never a wildcard). Every
 * connection proves that it knows the token by a keyed challenge (HMAC-SHA256 over fresh nonces, both ways); messages
 * are bounded; a stranger, a second claimant of a rank or a garbled greeting is dropped without disturbing the job.
 * `group` is set on success only and is freed by afdep_group_destroy().
 * Errors: ARGUMENT, MEMORY, SYSTEM (bind or connect refused: address, port and reason), BOOTSTRAP (the deadline
 * passed: which ranks are missing).
 */
AFDEP_EXPORT afdep_status_t afdep_group_tcp_create(const afdep_tcp_t *tcp, afdep_group_t *group);

/* Local. Frees what a maker made; harmless on a group without `destroy`. Destroy after closing its buffers. */
AFDEP_EXPORT void afdep_group_destroy(afdep_group_t *group);

#ifdef __cplusplus
}
#endif
#endif
