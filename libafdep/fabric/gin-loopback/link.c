/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links: how ranks find each other's inboxes, what is registered, who lives, and how it ends.
 */
#include "fabric/gin-loopback/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/error.h"
#include "fabric/gin-loopback/link_state.h"
#include "fabric/host_id.h"

#define LOOK_MS 100 /* how often the peers' lives are looked at */

struct afdep_gin_listener {
    afdep_shm_object_t object;
};

/* ---- Failures --------------------------------------------------------------------------------------------------- */

afdep_status_t afdep_gin_link_fail(afdep_gin_link_t *link, afdep_status_t status, int broken)
{
    /* What ends the link counts more than a peer that was lost before. */
    if (link->failed == AFDEP_OK || (broken && !link->broken)) {
        link->failed = status;
        snprintf(link->why, sizeof(link->why), "%s", afdep_last_error());
    }
    if (broken)
        link->broken = 1;
    return status;
}

afdep_status_t afdep_gin_peer_fail(afdep_gin_link_t *link, int peer, afdep_status_t status)
{
    link->peers[peer].failed = status;
    return afdep_gin_link_fail(link, status, 0);
}

afdep_status_t afdep_gin_failure(afdep_gin_link_t *link)
{
    afdep_status_t status;

    pthread_mutex_lock(&link->lock);
    status = link->failed == AFDEP_OK ? AFDEP_OK : afdep_fail(link->failed, "%s", link->why);
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* Whether the owner of the inbox behind `fd` lives; it holds that inbox's lock as long as it does. */
static int lives(int fd, afdep_process_t process)
{
    int saved = errno;
    int alive = 1;

    /* Shared, so that two ranks that ask at the same moment do not take each other for the owner. */
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        flock(fd, LOCK_UN);
        alive = 0;
    } else if (afdep_process_gone(process)) {
        alive = 0; /* a child of the dead holds the lock */
    }
    errno = saved;
    return alive;
}

static void look_at_peers(afdep_gin_link_t *link)
{
    int64_t now = afdep_now_ms();

    if (now - link->looked_ms < LOOK_MS)
        return;
    link->looked_ms = now;
    for (int p = 0; p < link->ranks; p++) {
        afdep_gin_peer_t *peer = &link->peers[p];

        if (peer->fd < 0 || peer->failed != AFDEP_OK)
            continue;
        if (atomic_load_explicit(&peer->inbox->closed, memory_order_acquire)) {
            /* Nobody reads what is still to be sent; what was published before is the peer's to drop. */
            if (peer->first)
                afdep_gin_peer_fail(link, p, afdep_fail(AFDEP_ERR_PEER, "rank %d has left, and a put for it was still "
                                                        "waiting for room", p));
        } else if (!lives(peer->fd, peer->process)) {
            /* It may have left in order between the two looks: it says so before its lock goes. */
            if (!atomic_load_explicit(&peer->inbox->closed, memory_order_acquire))
                afdep_gin_peer_fail(link, p, afdep_fail(AFDEP_ERR_PEER, "rank %d is dead", p));
        }
    }
}

/* ---- Listening -------------------------------------------------------------------------------------------------- */

static uint64_t host_digest(void)
{
    afdep_host_id_t id;
    uint64_t digest = 14695981039346656037u; /* FNV-1a */

    afdep_host_id_get(&id);
    for (size_t i = 0; i < sizeof(id.host); i++)
        digest = (digest ^ (unsigned char)id.host[i]) * 1099511628211u;
    return (digest ^ id.shm_dev) * 1099511628211u;
}

afdep_status_t afdep_gin_listen(afdep_gin_listener_t **listener, afdep_gin_handle_t *handle)
{
    afdep_gin_listener_t *l = malloc(sizeof(*l));
    afdep_status_t status;

    if (!l)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for an inbox");
    l->object = (afdep_shm_object_t)AFDEP_SHM_OBJECT_INIT;
    status = afdep_shm_object_create(&l->object);
    if (status == AFDEP_OK && ftruncate(l->object.fd, AFDEP_GIN_OBJECT_BYTES) != 0)
        status = afdep_fail(AFDEP_ERR_SYSTEM, "cannot size an inbox: %s", strerror(errno));
    if (status != AFDEP_OK) {
        afdep_gin_stop_listening(l);
        return status;
    }
    memset(handle, 0, sizeof(*handle));
    handle->magic = AFDEP_GIN_MAGIC;
    handle->version = AFDEP_GIN_VERSION;
    handle->host = host_digest();
    handle->inbox = l->object.address;
    handle->process = afdep_process_self();
    *listener = l;
    return AFDEP_OK;
}

void afdep_gin_stop_listening(afdep_gin_listener_t *listener)
{
    if (!listener)
        return;
    afdep_shm_object_close(&listener->object);
    free(listener);
}

/* ---- Connecting ------------------------------------------------------------------------------------------------- */

static afdep_status_t check_handle(const afdep_gin_handle_t *handle, int peer, uint64_t host)
{
    if (handle->magic != AFDEP_GIN_MAGIC || handle->version != AFDEP_GIN_VERSION)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "rank %d speaks version %u of the loopback (mark %08x), not "
                          "version %u", peer, handle->version, handle->magic, AFDEP_GIN_VERSION);
    if (handle->host != host)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "rank %d is on another host, and the loopback joins ranks of one",
                          peer);
    return AFDEP_OK;
}

static afdep_status_t map_inbox(int fd, uint64_t bytes, int rank, afdep_gin_inbox_t **inbox)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED)
        return afdep_fail(AFDEP_ERR_MEMORY, "cannot map the %llu bytes of rank %d's inbox: %s",
                          (unsigned long long)bytes, rank, strerror(errno));
    *inbox = at;
    return AFDEP_OK;
}

static afdep_status_t make_own(afdep_gin_link_t *link)
{
    afdep_status_t status;
    /* Its memory is taken now: a write to a full /dev/shm later would kill the process that makes it. */
    int error = posix_fallocate(link->own.fd, 0, (off_t)link->inbox_bytes);

    if (error != 0)
        return afdep_fail(AFDEP_ERR_MEMORY, "no room for an inbox of %llu bytes in /dev/shm: %s",
                          (unsigned long long)link->inbox_bytes, strerror(error));
    status = map_inbox(link->own.fd, link->inbox_bytes, link->rank, &link->inbox);
    if (status != AFDEP_OK)
        return status;
    link->inbox->magic = AFDEP_GIN_MAGIC;
    link->inbox->version = AFDEP_GIN_VERSION;
    link->inbox->ranks = (uint32_t)link->ranks;
    link->inbox->rank = (uint32_t)link->rank;
    atomic_store_explicit(&link->inbox->ready, 1, memory_order_release);
    return AFDEP_OK;
}

static void nap(void)
{
    struct timespec time = { 0, 200000 };
    nanosleep(&time, NULL);
}

/* Waits until the peer's inbox has memory. Read by call, not mapped: nothing is there before. */
static afdep_status_t await_ready(afdep_gin_link_t *link, int p, int64_t deadline)
{
    afdep_gin_peer_t *peer = &link->peers[p];
    afdep_gin_inbox_t head;

    for (;;) {
        if (pread(peer->fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
            return afdep_fail(AFDEP_ERR_SYSTEM, "cannot read the inbox of rank %d: %s", p, strerror(errno));
        if (head.closed)
            return afdep_fail(AFDEP_ERR_PEER, "rank %d gave up connecting", p);
        if (head.ready)
            break;
        if (!lives(peer->fd, peer->process))
            return afdep_fail(AFDEP_ERR_PEER, "rank %d died or gave up before it connected", p);
        if (afdep_ms_left(deadline) == 0)
            return afdep_fail(AFDEP_ERR_TIMEOUT, "rank %d has not connected in time", p);
        nap();
    }
    if (head.magic != AFDEP_GIN_MAGIC || head.version != AFDEP_GIN_VERSION || head.ranks != (uint32_t)link->ranks ||
        head.rank != (uint32_t)p)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "the inbox of rank %d says that it is rank %u of %u", p, head.rank,
                          head.ranks);
    return AFDEP_OK;
}

static afdep_status_t attach_peer(afdep_gin_link_t *link, const afdep_gin_handle_t *handle, int p, int64_t deadline)
{
    afdep_gin_peer_t *peer = &link->peers[p];
    afdep_status_t status = AFDEP_OK;

    if (p != link->rank) {
        status = afdep_shm_object_attach(&handle->inbox, AFDEP_GIN_OBJECT_BYTES, p, &peer->fd);
        /* A rank that gives up takes its inbox's name along, and one that died loses it to whoever sweeps. */
        if (status == AFDEP_ERR_SYSTEM && errno == ENOENT)
            status = afdep_fail(AFDEP_ERR_PEER, "rank %d died or gave up before its inbox was found", p);
        if (status == AFDEP_OK) {
            peer->process = afdep_process_seen(handle->process);
            status = await_ready(link, p, deadline);
        }
        if (status == AFDEP_OK)
            status = map_inbox(peer->fd, link->inbox_bytes, p, &peer->inbox);
        if (status != AFDEP_OK)
            return status;
        atomic_fetch_add_explicit(&peer->inbox->attached, 1, memory_order_release);
    } else {
        peer->inbox = link->inbox;
    }
    afdep_gin_sender_init(&peer->sender, peer->inbox, link->ranks, link->rank);
    afdep_gin_receiver_init(&peer->receiver, link->inbox, link->ranks, p);
    return AFDEP_OK;
}

/* Until every peer has this rank's inbox mapped; then its name can go, and no crash leaves it behind. */
static afdep_status_t await_attached(afdep_gin_link_t *link, int64_t deadline)
{
    uint32_t wanted = (uint32_t)link->ranks - 1;
    uint32_t attached;

    while ((attached = atomic_load_explicit(&link->inbox->attached, memory_order_acquire)) < wanted) {
        for (int p = 0; p < link->ranks; p++) {
            afdep_gin_peer_t *peer = &link->peers[p];
            if (peer->fd >= 0 && (atomic_load_explicit(&peer->inbox->closed, memory_order_acquire) ||
                                  !lives(peer->fd, peer->process)))
                return afdep_fail(AFDEP_ERR_PEER, "rank %d died or gave up while connecting", p);
        }
        if (afdep_ms_left(deadline) == 0)
            return afdep_fail(AFDEP_ERR_TIMEOUT, "only %u of %u peers have found rank %d's inbox in time", attached,
                              wanted, link->rank);
        nap();
    }
    return AFDEP_OK;
}

static afdep_status_t open_lane(afdep_gin_lane_t *lane, afdep_gin_memory_open_t open_memory)
{
    afdep_status_t status = open_memory(&lane->memory);

    if (status != AFDEP_OK)
        return status;
    status = lane->memory->enter(lane->memory);
    if (status != AFDEP_OK)
        return status;
    lane->staging = lane->memory->make_staging(lane->memory, AFDEP_GIN_STAGING_BYTES);
    lane->memory->leave(lane->memory);
    return lane->staging ? AFDEP_OK : AFDEP_ERR_MEMORY;
}

static afdep_status_t open_lanes(afdep_gin_link_t *link, afdep_gin_memory_open_t open_memory)
{
    afdep_status_t status = open_lane(&link->out, open_memory);

    if (status == AFDEP_OK)
        status = open_lane(&link->in, open_memory);
    if (status != AFDEP_OK)
        return status;
    for (int i = 0; i < 2; i++) {
        afdep_gin_round_t *round = &link->rounds[i];
        round->staging = link->in.staging + (size_t)i * (AFDEP_GIN_STAGING_BYTES / 2);
        round->values = (uint64_t *)(void *)(round->staging + AFDEP_GIN_STAGING_BYTES / 2) - AFDEP_GIN_ROUND_MESSAGES;
    }
    return AFDEP_OK;
}

static afdep_gin_link_t *link_new(int ranks, int rank)
{
    afdep_gin_link_t *link = calloc(1, sizeof(*link) + (size_t)ranks * sizeof(link->peers[0]));

    if (!link)
        return NULL;
    if (pthread_mutex_init(&link->lock, NULL) != 0) {
        free(link);
        return NULL;
    }
    link->ranks = ranks;
    link->rank = rank;
    link->inbox_bytes = afdep_gin_inbox_bytes(ranks);
    link->own = (afdep_shm_object_t)AFDEP_SHM_OBJECT_INIT;
    for (int p = 0; p < ranks; p++)
        link->peers[p].fd = -1;
    return link;
}

static afdep_status_t meet(afdep_gin_link_t *link, const afdep_gin_handle_t *const handles[], int64_t deadline)
{
    afdep_status_t status = make_own(link);

    for (int p = 0; p < link->ranks && status == AFDEP_OK; p++)
        status = attach_peer(link, handles[p], p, deadline);
    if (status == AFDEP_OK)
        status = await_attached(link, deadline);
    if (status == AFDEP_OK)
        afdep_shm_object_unlink(&link->own);
    return status;
}

afdep_status_t afdep_gin_connect(afdep_gin_listener_t *listener, const afdep_gin_handle_t *const handles[], int ranks,
                                 int rank, int timeout_ms, afdep_gin_memory_open_t open_memory, afdep_gin_link_t **link)
{
    int64_t deadline = afdep_now_ms() + timeout_ms;
    uint64_t host = host_digest();
    afdep_status_t status = AFDEP_OK;
    afdep_gin_link_t *l;

    if (ranks < 1 || ranks > AFDEP_GIN_RANKS_MOST || rank < 0 || rank >= ranks)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "rank %d of %d: the loopback joins 1 to %d ranks", rank, ranks,
                          AFDEP_GIN_RANKS_MOST);
    if (listener->object.fd < 0)
        return afdep_fail(AFDEP_ERR_ORDER, "an inbox that was connected already");
    for (int p = 0; p < ranks && status == AFDEP_OK; p++)
        status = check_handle(handles[p], p, host);
    if (status != AFDEP_OK)
        return status;
    l = link_new(ranks, rank);
    if (!l)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a communicator of %d ranks", ranks);
    l->own = listener->object;
    listener->object = (afdep_shm_object_t)AFDEP_SHM_OBJECT_INIT;
    /* The lanes first: a rank that cannot open them gives up before its peers rely on it. */
    status = open_lanes(l, open_memory);
    if (status == AFDEP_OK)
        status = meet(l, handles, deadline);
    if (status != AFDEP_OK) {
        afdep_gin_close(l);
        return status;
    }
    l->looked_ms = afdep_now_ms();
    *link = l;
    return AFDEP_OK;
}

/* ---- Closing ---------------------------------------------------------------------------------------------------- */

static void close_lane(afdep_gin_lane_t *lane)
{
    if (!lane->memory)
        return;
    if (lane->memory->enter(lane->memory) == AFDEP_OK) {
        lane->memory->free_staging(lane->memory, lane->staging);
        lane->memory->leave(lane->memory);
    }
    lane->memory->close(lane->memory);
}

/* Every copy is done, and what was read is published. */
static void settle(afdep_gin_link_t *link)
{
    if (link->broken || !link->out.memory || !link->in.memory || link->out.memory->enter(link->out.memory) != AFDEP_OK)
        return;
    if (link->out.memory->drain(link->out.memory) == AFDEP_OK && afdep_gin_look(&link->out) == AFDEP_OK)
        afdep_gin_send_land(link);
    link->in.memory->drain(link->in.memory);
    link->out.memory->leave(link->out.memory);
}

void afdep_gin_close(afdep_gin_link_t *link)
{
    if (!link)
        return;
    settle(link);
    close_lane(&link->out);
    close_lane(&link->in);
    for (int p = 0; p < link->ranks; p++) {
        afdep_gin_peer_t *peer = &link->peers[p];
        if (peer->fd < 0)
            continue;
        if (peer->inbox)
            munmap(peer->inbox, link->inbox_bytes);
        close(peer->fd);
    }
    if (link->inbox) {
        /* Before the lock goes, so that peers do not take this for a death. */
        atomic_store_explicit(&link->inbox->closed, 1, memory_order_release);
        munmap(link->inbox, link->inbox_bytes);
    }
    afdep_shm_object_close(&link->own);
    for (uint32_t i = 0; i < link->region_count; i++)
        free(link->regions[i]);
    free(link->regions);
    afdep_gin_free_requests(link);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

/* ---- Registrations ---------------------------------------------------------------------------------------------- */

static afdep_status_t add_region(afdep_gin_link_t *link, afdep_gin_region_t *region)
{
    if (link->region_count == link->region_room) {
        uint32_t room = link->region_room ? 2 * link->region_room : 16;
        afdep_gin_region_t **more = realloc(link->regions, room * sizeof(*more));
        if (!more)
            return afdep_fail(AFDEP_ERR_MEMORY, "no memory for registration %u", link->region_count + 1);
        link->regions = more;
        link->region_room = room;
    }
    /* The same number on every rank, since all register in the same order; never used again, so that a late message
       cannot reach what took the place of memory that is gone. */
    region->id = link->region_count + 1;
    link->regions[link->region_count++] = region;
    return AFDEP_OK;
}

afdep_status_t afdep_gin_register(afdep_gin_link_t *link, void *data, size_t bytes, int on_device,
                                  afdep_gin_region_t **region)
{
    afdep_gin_region_t *r;
    afdep_status_t status;

    if (!data || bytes == 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a registration of %zu bytes at %p", bytes, data);
    if (on_device && !link->in.memory->has_device)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "memory of a GPU was registered, and no CUDA context was current in the "
                          "thread that connected");
    r = malloc(sizeof(*r));
    if (!r)
        return afdep_fail(AFDEP_ERR_MEMORY, "no memory for a registration");
    *r = (afdep_gin_region_t){ link, data, bytes, 0, on_device };
    pthread_mutex_lock(&link->lock);
    status = add_region(link, r);
    pthread_mutex_unlock(&link->lock);
    if (status != AFDEP_OK) {
        free(r);
        return status;
    }
    *region = r;
    return AFDEP_OK;
}

/* A round whose words are being read is finished, and all copies are waited for: then nothing touches any region. */
static afdep_status_t quiesce(afdep_gin_link_t *link)
{
    afdep_status_t status = link->broken ? AFDEP_OK : link->in.memory->enter(link->in.memory);

    if (link->broken || status != AFDEP_OK)
        return status;
    status = link->out.memory->drain(link->out.memory);
    if (status == AFDEP_OK)
        status = link->in.memory->drain(link->in.memory);
    if (status == AFDEP_OK && link->reading)
        status = afdep_gin_apply_finish(link);
    if (status == AFDEP_OK)
        status = link->in.memory->drain(link->in.memory);
    link->in.memory->leave(link->in.memory);
    return status;
}

afdep_status_t afdep_gin_deregister(afdep_gin_link_t *link, afdep_gin_region_t *region)
{
    afdep_status_t status;

    if (region->link != link)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "a registration of another communicator");
    pthread_mutex_lock(&link->lock);
    status = quiesce(link);
    if (status != AFDEP_OK)
        afdep_gin_link_fail(link, status, 1);
    /* The record stays, empty: requests that were not issued yet may name it, and fail then. */
    region->data = NULL;
    region->bytes = 0;
    pthread_mutex_unlock(&link->lock);
    return status;
}

/* ---- Progress --------------------------------------------------------------------------------------------------- */

static afdep_status_t steps(afdep_gin_link_t *link)
{
    afdep_status_t status;

    if (afdep_gin_send_idle(link) && afdep_gin_apply_idle(link))
        return AFDEP_OK;
    status = link->in.memory->enter(link->in.memory);
    if (status != AFDEP_OK)
        return status;
    status = afdep_gin_send_step(link);
    if (status == AFDEP_OK)
        status = afdep_gin_apply_step(link);
    link->in.memory->leave(link->in.memory);
    return status;
}

afdep_status_t afdep_gin_progress(afdep_gin_link_t *link)
{
    afdep_status_t status;

    pthread_mutex_lock(&link->lock);
    if (!link->broken) {
        status = steps(link);
        if (status != AFDEP_OK)
            afdep_gin_link_fail(link, status, 1);
        look_at_peers(link);
    }
    status = link->failed == AFDEP_OK ? AFDEP_OK : afdep_fail(link->failed, "%s", link->why);
    pthread_mutex_unlock(&link->lock);
    return status;
}
