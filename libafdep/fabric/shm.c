/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shm fabric: ranks of one host, as processes or as threads of one process, store straight into each other's
 * segments. A put is a memcpy and a signal a release store, so a lane keeps its order by itself and nothing is ever
 * queued. Ranks of one process share one mapping of each segment: that saves address space, and lets a race detector
 * see that two threads touch the same memory.
 */
#include "fabric/fabric.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/error.h"
#include "fabric/direct.h"
#include "fabric/host_id.h"
#include "fabric/liveness.h"
#include "fabric/pause.h"
#include "fabric/round.h"
#include "fabric/shm_object.h"

/* One mapping of one rank's segment. Lives outside of it, so that counting users touches no page of the segment. */
typedef struct segment {
    atomic_int users;
    unsigned char *base;
    size_t mapped;
} segment_t;

typedef struct shm_fabric {
    afdep_fabric_t super;
    afdep_liveness_t *liveness;
    afdep_shm_object_t object; /* this rank's, while opening */
    uint64_t *peer_bytes;
    segment_t **segments;      /* [size] */
    unsigned char **bases;     /* [size]: where they are mapped, for the fast path */
} shm_fabric_t;

/* Round one: can this rank take part at all? Nothing exists yet, so that the free room seen is everybody's. */
typedef struct hello_record {
    afdep_round_t round;
    afdep_host_id_t host;
    uint64_t bytes;
} hello_record_t;

/* Round two: here is my segment. */
typedef struct segment_record {
    afdep_round_t round;
    afdep_shm_address_t address;
    uint64_t pointer; /* its segment_t, for ranks of the same process */
} segment_record_t;

/* ---- Segments ------------------------------------------------------------------------------------------------ */

/* Whole pages, at least one; 0 when that cannot be counted. */
static uint64_t mapped_bytes(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if (bytes > (uint64_t)INT64_MAX - page)
        return 0;
    return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

static segment_t *segment_map(int fd, uint64_t mapped)
{
    segment_t *segment = malloc(sizeof(*segment));
    void *base;

    if (!segment)
        return NULL;
    base = mmap(NULL, (size_t)mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        free(segment);
        return NULL;
    }
    atomic_init(&segment->users, 1);
    segment->base = base;
    segment->mapped = (size_t)mapped;
    return segment;
}

/* The last user unmaps: a thread rank that closes early leaves the memory to those that may still write to it. */
static void segment_release(segment_t *segment)
{
    if (!segment || atomic_fetch_sub_explicit(&segment->users, 1, memory_order_acq_rel) != 1)
        return;
    munmap(segment->base, segment->mapped);
    free(segment);
}

/* ---- Opening ------------------------------------------------------------------------------------------------- */

static afdep_status_t check_room(const afdep_fabric_args_t *args)
{
    int size = args->group->size;
    struct rlimit limit;
    uint64_t needed = 0, own = mapped_bytes(args->bytes);

    for (int r = 0; r < size; r++) {
        uint64_t one = mapped_bytes(args->peer_bytes[r]);

        if (one == 0 || __builtin_add_overflow(needed, one, &needed))
            return afdep_fail(AFDEP_ERR_MEMORY, "the segments of %d ranks are larger than can be counted (rank %d: "
                              "%llu bytes)", size, r, (unsigned long long)args->peer_bytes[r]);
    }
    /* Growing a file over this limit is not an error but a signal that ends the process. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && own > limit.rlim_cur)
        return afdep_fail(AFDEP_ERR_MEMORY, "the segment needs %llu bytes and this process's file size limit is %llu",
                          (unsigned long long)own, (unsigned long long)limit.rlim_cur);
    return afdep_shm_room(size, needed);
}

static afdep_status_t check_args(const afdep_fabric_args_t *args)
{
    int rank = args->group->rank;

    if (args->bytes != args->peer_bytes[rank])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the segment of rank %d is to have %llu bytes, and %llu by the table of "
                          "all ranks", rank, (unsigned long long)args->bytes,
                          (unsigned long long)args->peer_bytes[rank]);
    return check_room(args);
}

/* Every rank draws the same verdict from the same records, so none needs a round to hear of it. */
static afdep_status_t check_hello(const afdep_fabric_args_t *args, const hello_record_t *all)
{
    for (int r = 1; r < args->group->size; r++) {
        if (!afdep_host_id_same_host(&all[0].host, &all[r].host))
            return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric shm reaches only ranks of one host; rank %d is on another "
                              "than rank 0 (or in a container with a /dev/shm of its own)", r);
    }
    return AFDEP_OK;
}

/* Local; its failure enters the next round. */
static afdep_status_t check_sizes(const afdep_fabric_args_t *args, const hello_record_t *all)
{
    for (int r = 0; r < args->group->size; r++) {
        if (all[r].bytes != args->peer_bytes[r])
            return afdep_fail(AFDEP_ERR_AGREEMENT, "rank %d has a segment of %llu bytes and rank %d expects %llu", r,
                              (unsigned long long)all[r].bytes, args->group->rank,
                              (unsigned long long)args->peer_bytes[r]);
    }
    return AFDEP_OK;
}

static afdep_status_t make_segment(shm_fabric_t *f, const afdep_fabric_args_t *args)
{
    uint64_t mapped = mapped_bytes(args->bytes);
    afdep_status_t status = afdep_shm_object_create(&f->object);
    segment_t *segment;

    if (status != AFDEP_OK)
        return status;
    if (ftruncate(f->object.fd, (off_t)mapped) != 0)
        return afdep_fail(AFDEP_ERR_MEMORY, "cannot give a segment %llu bytes: %s", (unsigned long long)mapped,
                          strerror(errno));
    segment = segment_map(f->object.fd, mapped);
    if (!segment)
        return afdep_fail(AFDEP_ERR_MEMORY, "cannot map a segment of %llu bytes: %s", (unsigned long long)mapped,
                          strerror(errno));
    f->segments[f->super.rank] = segment;
    f->super.base = segment->base;
    if (args->prepare)
        args->prepare(args->prepare_context, segment->base);
    return AFDEP_OK;
}

static afdep_status_t attach_one(shm_fabric_t *f, const segment_record_t *record, int peer, int same_process)
{
    uint64_t mapped = mapped_bytes(f->peer_bytes[peer]);
    afdep_status_t status;
    int fd;

    if (same_process) {
        segment_t *segment = (segment_t *)(uintptr_t)record->pointer;

        /* Its owner holds on to it until the last round is over. */
        atomic_fetch_add_explicit(&segment->users, 1, memory_order_relaxed);
        f->segments[peer] = segment;
        return AFDEP_OK;
    }
    status = afdep_shm_object_attach(&record->address, mapped, peer, &fd);
    if (status != AFDEP_OK)
        return status;
    f->segments[peer] = segment_map(fd, mapped);
    if (!f->segments[peer])
        status = afdep_fail(AFDEP_ERR_MEMORY, "cannot map the segment of rank %d, %llu bytes: %s", peer,
                            (unsigned long long)mapped, strerror(errno));
    close(fd);
    return status;
}

static afdep_status_t attach_all(shm_fabric_t *f, const hello_record_t *hello, const segment_record_t *records)
{
    int rank = f->super.rank;

    for (int r = 0; r < f->super.size; r++) {
        afdep_status_t status = AFDEP_OK;

        if (r != rank)
            status = attach_one(f, &records[r], r, afdep_host_id_same_process(&hello[r].host, &hello[rank].host));
        if (status != AFDEP_OK)
            return status;
        f->bases[r] = f->segments[r]->base;
    }
    return AFDEP_OK;
}

/* Three rounds on every rank, or fewer where one fails on all. */
static afdep_status_t meet(shm_fabric_t *f, afdep_status_t status, const afdep_fabric_args_t *args,
                           hello_record_t *hello, segment_record_t *records)
{
    const afdep_group_t *group = args->group;
    hello_record_t my_hello;
    segment_record_t mine;
    afdep_round_t attached;

    memset(&my_hello, 0, sizeof(my_hello));
    afdep_host_id_get(&my_hello.host);
    my_hello.bytes = args->bytes;
    if (status == AFDEP_OK)
        status = check_args(args);
    status = afdep_round_gather(group, status, &my_hello, hello, sizeof(my_hello));
    if (status == AFDEP_OK)
        status = check_hello(args, hello);
    if (status != AFDEP_OK)
        return status;

    memset(&mine, 0, sizeof(mine));
    status = check_sizes(args, hello);
    if (status == AFDEP_OK)
        status = make_segment(f, args);
    mine.address = f->object.address;
    mine.pointer = (uint64_t)(uintptr_t)f->segments[group->rank];
    status = afdep_round_gather(group, status, &mine, records, sizeof(mine));
    if (status != AFDEP_OK)
        return status;

    status = attach_all(f, hello, records);
    status = afdep_round_gather(group, status, &attached, records, sizeof(attached));
    /* Everybody is in, or nobody will be: no name is needed any more. */
    afdep_shm_object_close(&f->object);
    return status;
}

static const afdep_fabric_ops_t shm_ops;

static void shm_free(shm_fabric_t *f)
{
    if (!f)
        return;
    afdep_shm_object_close(&f->object);
    for (int r = 0; f->segments && r < f->super.size; r++)
        segment_release(f->segments[r]);
    afdep_liveness_close(f->liveness);
    free(f->bases);
    free(f->segments);
    free(f->peer_bytes);
    free(f->super.counters);
    free(f);
}

static shm_fabric_t *shm_new(const afdep_fabric_args_t *args)
{
    size_t size = (size_t)args->group->size;
    shm_fabric_t *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->object.fd = -1;
    f->super.ops = &shm_ops;
    f->super.rank = args->group->rank;
    f->super.size = args->group->size;
    f->super.spins = afdep_idle_spins(args->group->size);
    f->super.lanes = args->lanes;
    f->super.bytes = args->bytes;
    f->super.counters = calloc(size, sizeof(*f->super.counters));
    f->peer_bytes = malloc(size * sizeof(*f->peer_bytes));
    f->segments = calloc(size, sizeof(segment_t *));
    f->bases = calloc(size, sizeof(unsigned char *));
    if (!f->super.counters || !f->peer_bytes || !f->segments || !f->bases) {
        shm_free(f);
        return NULL;
    }
    memcpy(f->peer_bytes, args->peer_bytes, size * sizeof(*f->peer_bytes));
    f->super.peer_bytes = f->peer_bytes;
    return f;
}

static afdep_status_t shm_open_fabric(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                      afdep_fabric_t **fabric)
{
    (void)self;
    size_t size = (size_t)args->group->size;
    shm_fabric_t *f = shm_new(args);
    hello_record_t *hello = f ? calloc(size, sizeof(*hello)) : NULL;
    segment_record_t *records = f ? calloc(size, sizeof(*records)) : NULL;
    afdep_status_t status = AFDEP_OK;

    if (!f || !hello || !records)
        status = afdep_fail(AFDEP_ERR_MEMORY, "no memory for the tables of fabric shm with %d ranks",
                            args->group->size);
    status = meet(f, status, args, hello, records);
    if (status == AFDEP_OK)
        status = afdep_liveness_open(args->group, &f->liveness);
    free(records);
    free(hello);
    if (status != AFDEP_OK) {
        shm_free(f);
        return status;
    }
    *fabric = &f->super;
    return AFDEP_OK;
}

/* ---- Moving -------------------------------------------------------------------------------------------------- */

static shm_fabric_t *shm_of(afdep_fabric_t *fabric)
{
    return (shm_fabric_t *)fabric; /* its first member */
}

static void *shm_window(afdep_fabric_t *fabric, int peer, uint64_t offset, size_t bytes)
{
    return afdep_direct_reaches(fabric, peer, offset, bytes) ? shm_of(fabric)->bases[peer] + offset : NULL;
}

static afdep_status_t shm_put(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                              size_t bytes)
{
    (void)lane;
    if (!afdep_direct_reaches(fabric, peer, offset, bytes))
        return afdep_direct_refuse(fabric, "put", peer, offset, bytes);
    afdep_direct_put(shm_of(fabric)->bases[peer], offset, src, bytes);
    return AFDEP_OK;
}

static afdep_status_t shm_signal(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, uint64_t old_value,
                                 uint64_t new_value)
{
    (void)lane;
    (void)old_value;
    if (!afdep_direct_reaches_word(fabric, peer, offset))
        return afdep_direct_refuse(fabric, "signal", peer, offset, sizeof(uint64_t));
    afdep_direct_signal(shm_of(fabric)->bases[peer], offset, new_value);
    return AFDEP_OK;
}

static afdep_status_t shm_put_signal(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                                     size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value)
{
    afdep_status_t status = shm_put(fabric, lane, peer, offset, src, bytes);

    return status != AFDEP_OK ? status : shm_signal(fabric, lane, peer, word, old_value, new_value);
}

static uint64_t shm_read(afdep_fabric_t *fabric, uint64_t offset)
{
    return afdep_direct_read(fabric, offset);
}

static afdep_status_t shm_flush(afdep_fabric_t *fabric)
{
    (void)fabric;
    return AFDEP_OK;
}

static afdep_status_t shm_progress(afdep_fabric_t *fabric)
{
    (void)fabric;
    return AFDEP_OK;
}

static uint64_t shm_now(afdep_fabric_t *fabric)
{
    (void)fabric;
    return afdep_monotonic_ns();
}

static void shm_idle(afdep_fabric_t *fabric, unsigned rounds)
{
    afdep_idle(rounds, fabric->spins);
}

static int shm_alive(afdep_fabric_t *fabric, int peer)
{
    return afdep_liveness_alive(shm_of(fabric)->liveness, peer);
}

/* In order or not: the peers' mappings are their own, and threads hold this one until they close too. */
static void shm_close(afdep_fabric_t *fabric, int in_order)
{
    (void)in_order;
    shm_free(shm_of(fabric));
}

static const afdep_fabric_ops_t shm_ops = {
    .name = "shm",
    .window = shm_window,
    .put = shm_put,
    .signal = shm_signal,
    .put_signal = shm_put_signal,
    .read = shm_read,
    .flush = shm_flush,
    .progress = shm_progress,
    .now = shm_now,
    .idle = shm_idle,
    .alive = shm_alive,
    .close = shm_close,
};

const afdep_fabric_provider_t afdep_fabric_shm = { "shm", shm_open_fabric, NULL };
