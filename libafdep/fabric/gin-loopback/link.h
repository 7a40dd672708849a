/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One communicator of the loopback: the ranks of one host, and puts and signals between each pair of them in order.
 *
 * A put is read from its owner's memory into staging, written as messages into the target's inbox, and applied by the
 * target itself, since only the process that made a signal's memory can write it. A request is done once its source may
 * be overwritten, as with a network; a full queue only makes that later. Signals are added after every put that the
 * same rank issued before to the same target, whatever its context.
 *
 * All calls on one link may come from any thread. None of them waits for a peer, but connect.
 */
#ifndef AFDEP_GIN_LOOPBACK_LINK_H
#define AFDEP_GIN_LOOPBACK_LINK_H

#include <stddef.h>
#include <stdint.h>

#include <afdep/status.h>

#include "fabric/gin-loopback/memory.h"
#include "fabric/process.h"
#include "fabric/shm_object.h"

typedef struct afdep_gin_listener afdep_gin_listener_t;
typedef struct afdep_gin_link afdep_gin_link_t;
typedef struct afdep_gin_region afdep_gin_region_t;
typedef struct afdep_gin_request afdep_gin_request_t;

/* What a rank tells the others before they connect; without pointers, so that any transport can carry it. */
typedef struct afdep_gin_handle {
    uint32_t magic, version;
    uint64_t host; /* a digest: ranks of other hosts are refused by name */
    afdep_shm_address_t inbox;
    afdep_process_t process;
} afdep_gin_handle_t;

/* Makes this rank's inbox and says where it is. Errors: SYSTEM, MEMORY. */
afdep_status_t afdep_gin_listen(afdep_gin_listener_t **listener, afdep_gin_handle_t *handle);

/* Before or after connect, which takes the inbox along when it succeeds. */
void afdep_gin_stop_listening(afdep_gin_listener_t *listener);

/*
 * Collective: all `ranks` call it, with the same handles in the same order. Waits `timeout_ms` for the others at most.
 * Errors: ARGUMENT, UNSUPPORTED (another host, another version), PEER (a rank died or gave up), TIMEOUT (names the
 * missing), SYSTEM, MEMORY, TRANSPORT.
 */
afdep_status_t afdep_gin_connect(afdep_gin_listener_t *listener, const afdep_gin_handle_t *const handles[], int ranks,
                                 int rank, int timeout_ms, afdep_gin_memory_open_t open_memory,
                                 afdep_gin_link_t **link);

/* Local. Waits for this rank's own copies; what peers sent and was not applied yet is dropped. */
void afdep_gin_close(afdep_gin_link_t *link);

/*
 * Registers memory; every rank registers the same regions in the same order, and that order is how a region of another
 * rank is named. `on_device`: memory of the GPU. The region is both the local and the remote handle.
 */
afdep_status_t afdep_gin_register(afdep_gin_link_t *link, void *data, size_t bytes, int on_device,
                                  afdep_gin_region_t **region);
afdep_status_t afdep_gin_deregister(afdep_gin_link_t *link, afdep_gin_region_t *region);

typedef struct afdep_gin_put {
    int rank;
    const afdep_gin_region_t *from, *to; /* NULL with bytes 0 */
    uint64_t from_offset, to_offset;
    size_t bytes;
    const afdep_gin_region_t *signal; /* NULL: none */
    uint64_t signal_offset, signal_add;
} afdep_gin_put_t;

/* Issues a put, then its signal; does not wait. Errors: ARGUMENT, MEMORY, and whatever has failed before. */
afdep_status_t afdep_gin_put(afdep_gin_link_t *link, const afdep_gin_put_t *put, afdep_gin_request_t **request);

/* Sets `*done`, and forgets the request when it is 1 or an error. */
afdep_status_t afdep_gin_test(afdep_gin_link_t *link, afdep_gin_request_t *request, int *done);

/* Does what can be done now, in both directions. Returns the first failure that concerns the link or a peer of it. */
afdep_status_t afdep_gin_progress(afdep_gin_link_t *link);

/* The first failure so far, with its sentence as the thread's last error; OK where there is none. */
afdep_status_t afdep_gin_failure(afdep_gin_link_t *link);

#endif
