/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mpi fabric: MPI-3 one-sided windows. The ranks of a domain share memory (MPI_Win_allocate_shared) and store into
 * it as the shm fabric does; the same memory is exposed to the world through a second window, and rows and words for
 * ranks of other domains go through that (outbox.h).
 *
 * Liveness: ranks of this host are told by the lock that the kernel drops with their process. There is no heartbeat
 * between hosts: a rank of another host counts as living, so its death shows as a timeout, or by the launcher ending
 * the job. MPI_Win_flush may itself wait for a rank that is gone; MPI offers no completion that does not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/error.h"
#include "fabric/direct.h"
#include "fabric/liveness.h"
#include "fabric/pause.h"
#include "fabric/round.h"
#include "fabric/shm_object.h"
#include "mpi/group_mpi.h"
#include "mpi/outbox.h"

#define ALIGNMENT 64 /* of every segment; MPI promises none */

typedef struct mpi_fabric {
    afdep_fabric_t super;
    afdep_group_mpi_t *group;
    afdep_liveness_t *liveness;
    int timeout_ms;
    int place;              /* this rank's domain */
    int *peers, count;      /* the ranks of this domain, ascending */
    MPI_Comm domain;
    MPI_Win shared, world;
    uint64_t *peer_bytes;
    unsigned char **bases;  /* [size]: segments of this domain; NULL elsewhere */
    afdep_outbox_t **boxes; /* [size]: of other domains; NULL in this one */
    int *dirty;             /* ranks whose outbox has something pending, in the order they got it */
    int dirty_count;
} mpi_fabric_t;

/* Every round's record: what is compared in the first, and nothing in the others. */
typedef struct mpi_record {
    afdep_round_t round;
    uint64_t bytes;
    int64_t ranks_per_domain;
    int64_t lanes;
} mpi_record_t;

/* ---- Opening ------------------------------------------------------------------------------------------------- */

static int domain_of(const afdep_fabric_args_t *args, int rank)
{
    return args->domains ? args->domains[rank] : rank / args->ranks_per_domain;
}

/* MPI takes a domain's memory from /dev/shm, and some ranks would hang in the allocation where others find it full. */
static afdep_status_t check_room(const afdep_fabric_args_t *args)
{
    uint64_t needed = 0;

    for (int r = 0; r < args->group->size; r++)
        needed += domain_of(args, r) == domain_of(args, args->group->rank) ? args->peer_bytes[r] : 0;
    return afdep_shm_room(args->ranks_per_domain, needed);
}

static afdep_status_t check_args(const afdep_fabric_args_t *args)
{
    int rank = args->group->rank, size = args->group->size;

    if (!afdep_group_mpi_of(args->group))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric mpi needs a group made by afdep_group_mpi_create");
    if (args->ranks_per_domain < 1 || size % args->ranks_per_domain != 0)
        return afdep_fail(AFDEP_ERR_ARGUMENT, "ranks_per_domain is %d, which does not divide the %d ranks",
                          args->ranks_per_domain, size);
    if (args->bytes != args->peer_bytes[rank])
        return afdep_fail(AFDEP_ERR_ARGUMENT, "the segment of rank %d is to have %llu bytes, and %llu by the table of "
                          "all ranks", rank, (unsigned long long)args->bytes,
                          (unsigned long long)args->peer_bytes[rank]);
    if (args->bytes > (uint64_t)PTRDIFF_MAX - (1u << 20))
        return afdep_fail(AFDEP_ERR_MEMORY, "a segment of %llu bytes cannot be addressed",
                          (unsigned long long)args->bytes);
    return check_room(args);
}

/* Local; its failure enters the next round. */
static afdep_status_t check_records(const afdep_fabric_args_t *args, const mpi_record_t *all)
{
    for (int r = 0; r < args->group->size; r++) {
        if (all[r].bytes != args->peer_bytes[r])
            return afdep_fail(AFDEP_ERR_AGREEMENT, "rank %d has a segment of %llu bytes and rank %d expects %llu", r,
                              (unsigned long long)all[r].bytes, args->group->rank,
                              (unsigned long long)args->peer_bytes[r]);
        if (all[r].ranks_per_domain != args->ranks_per_domain || all[r].lanes != args->lanes)
            return afdep_fail(AFDEP_ERR_AGREEMENT, "rank %d has %lld ranks per domain and %lld lanes, rank %d has %d "
                              "and %d", r, (long long)all[r].ranks_per_domain, (long long)all[r].lanes,
                              args->group->rank, args->ranks_per_domain, args->lanes);
    }
    return AFDEP_OK;
}

/* A domain stores straight into its memory, so it cannot reach over hosts. */
static afdep_status_t make_domain(mpi_fabric_t *f)
{
    MPI_Comm host = MPI_COMM_NULL;
    int on_host = 0;
    afdep_status_t status = afdep_mpi_check(MPI_Comm_split(f->group->comm, f->place, f->super.rank, &f->domain),
                                            "MPI_Comm_split");

    if (status == AFDEP_OK)
        MPI_Comm_set_errhandler(f->domain, MPI_ERRORS_RETURN);
    if (status == AFDEP_OK)
        status = afdep_mpi_check(MPI_Comm_split_type(f->domain, MPI_COMM_TYPE_SHARED, f->super.rank, MPI_INFO_NULL,
                                                     &host), "MPI_Comm_split_type");
    if (status != AFDEP_OK)
        return status;
    MPI_Comm_size(host, &on_host);
    MPI_Comm_free(&host);
    if (on_host != f->count)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "the %d ranks %d to %d form a domain%s, and only %d of them are on "
                          "the host of rank %d", f->count, f->peers[0], f->peers[f->count - 1],
                          f->peers[f->count - 1] - f->peers[0] == f->count - 1 ? "" : ", not all between them", on_host,
                          f->super.rank);
    return AFDEP_OK;
}

static unsigned char *aligned(void *address)
{
    return (unsigned char *)(((uintptr_t)address + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

/* MPI does not promise zeroes. Punching out whole pages gives them without making the segment resident; what is no
   shared mapping, and the ends, are written. */
static void zero(unsigned char *base, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char *from = (unsigned char *)(((uintptr_t)base + page - 1) / page * page);
    unsigned char *to = (unsigned char *)(((uintptr_t)base + bytes) / page * page);

    if (from >= to || madvise(from, (size_t)(to - from), MADV_REMOVE) != 0) {
        memset(base, 0, bytes);
        return;
    }
    memset(base, 0, (size_t)(from - base));
    memset(to, 0, (size_t)(base + bytes - to));
}

static afdep_status_t check_unified(MPI_Win window)
{
    int *model = NULL, found = 0;

    MPI_Win_get_attr(window, MPI_WIN_MODEL, &model, &found);
    if (!found || *model != MPI_WIN_UNIFIED)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric mpi needs windows of the unified memory model, which this MPI "
                          "does not have here");
    return AFDEP_OK;
}

static afdep_status_t map_domain(mpi_fabric_t *f)
{
    for (int i = 0; i < f->count; i++) {
        int peer = f->peers[i], unit;
        void *base = NULL;
        MPI_Aint bytes;
        afdep_status_t status = afdep_mpi_check(MPI_Win_shared_query(f->shared, i, &bytes, &unit, &base),
                                                "MPI_Win_shared_query");

        if (status != AFDEP_OK)
            return status;
        /* Mappings start at pages, so that rounding up means the same place in all of them. */
        f->bases[peer] = aligned(base);
        if (f->bases[peer] + f->peer_bytes[peer] > (unsigned char *)base + bytes)
            return afdep_fail(AFDEP_ERR_SYSTEM, "MPI gave the segment of rank %d %lld bytes, %llu are needed", peer,
                              (long long)bytes, (unsigned long long)f->peer_bytes[peer]);
    }
    return AFDEP_OK;
}

static afdep_status_t make_shared(mpi_fabric_t *f, const afdep_fabric_args_t *args)
{
    /* Whole pages: without the hint below segments lie end to end, and would share lines. */
    MPI_Aint bytes = (MPI_Aint)((args->bytes + ALIGNMENT + 4095) / 4096 * 4096);
    void *base = NULL;
    MPI_Info info;
    afdep_status_t status;

    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    status = afdep_mpi_check(MPI_Win_allocate_shared(bytes, 1, info, f->domain, &base, &f->shared),
                             "MPI_Win_allocate_shared");
    MPI_Info_free(&info);
    if (status != AFDEP_OK)
        return status;
    MPI_Win_set_errhandler(f->shared, MPI_ERRORS_RETURN);
    status = map_domain(f);
    if (status == AFDEP_OK)
        status = check_unified(f->shared);
    if (status == AFDEP_OK)
        status = afdep_mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, f->shared), "MPI_Win_lock_all");
    if (status != AFDEP_OK)
        return status;
    f->super.base = f->bases[f->super.rank];
    zero(f->super.base, args->bytes);
    if (args->prepare)
        args->prepare(args->prepare_context, f->super.base);
    return AFDEP_OK;
}

static afdep_status_t make_world(mpi_fabric_t *f)
{
    afdep_status_t status = afdep_mpi_check(MPI_Win_create(f->super.base, (MPI_Aint)f->super.bytes, 1, MPI_INFO_NULL,
                                                           f->group->comm, &f->world), "MPI_Win_create");

    if (status != AFDEP_OK) {
        char why[MPI_MAX_ERROR_STRING + 32];

        /* MPI's text does not say what to do about it. */
        snprintf(why, sizeof(why), "%s", afdep_last_error());
        return afdep_fail(status, "%s (in Open MPI: no one-sided component that is allowed serves these ranks; "
                          "\"--mca osc ^ucx\" also allows osc/pt2pt)", why);
    }
    MPI_Win_set_errhandler(f->world, MPI_ERRORS_RETURN);
    status = check_unified(f->world);
    if (status == AFDEP_OK)
        status = afdep_mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, f->world), "MPI_Win_lock_all");
    for (int r = 0; status == AFDEP_OK && r < f->super.size; r++) {
        if (f->bases[r])
            continue;
        f->boxes[r] = afdep_outbox_new(f->world, r, f->super.lanes);
        if (!f->boxes[r])
            status = afdep_fail(AFDEP_ERR_MEMORY, "no memory for what waits to be sent to rank %d", r);
    }
    return status;
}

static afdep_status_t round_of(const afdep_fabric_args_t *args, afdep_status_t status, mpi_record_t *all)
{
    mpi_record_t mine;

    memset(&mine, 0, sizeof(mine));
    mine.bytes = args->bytes;
    mine.ranks_per_domain = args->ranks_per_domain;
    mine.lanes = args->lanes;
    return afdep_round_gather(args->group, status, &mine, all, sizeof(mine));
}

/* MPI's own collectives stand between the rounds: each round ends with all ranks going on, or none. */
static afdep_status_t meet(mpi_fabric_t *f, afdep_status_t status, const afdep_fabric_args_t *args, mpi_record_t *all)
{
    if (status == AFDEP_OK)
        status = check_args(args);
    status = round_of(args, status, all);
    if (status != AFDEP_OK)
        return status;
    status = round_of(args, check_records(args, all), all);
    if (status != AFDEP_OK)
        return status;
    f->group = afdep_group_mpi_of(args->group);
    f->place = domain_of(args, f->super.rank);
    for (int r = 0; r < f->super.size; r++)
        if (domain_of(args, r) == f->place)
            f->peers[f->count++] = r;
    status = round_of(args, make_domain(f), all);
    if (status == AFDEP_OK)
        status = round_of(args, make_shared(f, args), all);
    if (status == AFDEP_OK)
        status = round_of(args, make_world(f), all);
    if (status == AFDEP_OK)
        status = afdep_liveness_open(args->group, &f->liveness);
    return status;
}

static const afdep_fabric_ops_t mpi_ops;

/* All but what MPI holds. */
static void mpi_free(mpi_fabric_t *f)
{
    if (!f)
        return;
    afdep_liveness_close(f->liveness);
    for (int r = 0; f->boxes && r < f->super.size; r++)
        free(f->boxes[r]);
    free(f->peers);
    free(f->dirty);
    free(f->boxes);
    free(f->bases);
    free(f->peer_bytes);
    free(f->super.counters);
    free(f);
}

static mpi_fabric_t *mpi_new(const afdep_fabric_args_t *args)
{
    size_t size = (size_t)args->group->size;
    mpi_fabric_t *f = calloc(1, sizeof(*f));

    if (!f)
        return NULL;
    f->super.ops = &mpi_ops;
    f->super.rank = args->group->rank;
    f->super.size = args->group->size;
    f->super.spins = afdep_idle_spins(args->group->size);
    f->super.lanes = args->lanes;
    f->super.bytes = args->bytes;
    f->timeout_ms = args->timeout_ms;
    f->domain = MPI_COMM_NULL;
    f->shared = f->world = MPI_WIN_NULL;
    f->super.counters = calloc(size, sizeof(*f->super.counters));
    f->peer_bytes = malloc(size * sizeof(*f->peer_bytes));
    f->bases = calloc(size, sizeof(unsigned char *));
    f->boxes = calloc(size, sizeof(afdep_outbox_t *));
    f->dirty = calloc(size, sizeof(*f->dirty));
    f->peers = calloc(size, sizeof(*f->peers));
    if (!f->super.counters || !f->peer_bytes || !f->bases || !f->boxes || !f->dirty || !f->peers) {
        mpi_free(f);
        return NULL;
    }
    memcpy(f->peer_bytes, args->peer_bytes, size * sizeof(*f->peer_bytes));
    f->super.peer_bytes = f->peer_bytes;
    return f;
}

static afdep_status_t mpi_open(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                      afdep_fabric_t **fabric)
{
    (void)self;
    mpi_fabric_t *f = mpi_new(args);
    mpi_record_t *all = calloc((size_t)args->group->size, sizeof(*all));
    afdep_status_t status = AFDEP_OK;

    if (!f || !all)
        status = afdep_fail(AFDEP_ERR_MEMORY, "no memory for the tables of fabric mpi with %d ranks",
                            args->group->size);
    status = meet(f, status, args, all);
    free(all);
    if (status != AFDEP_OK) {
        /* Windows stay where a rank may have none: freeing them is collective, and would wait for it. */
        mpi_free(f);
        return status;
    }
    *fabric = &f->super;
    return AFDEP_OK;
}

/* ---- Moving -------------------------------------------------------------------------------------------------- */

static mpi_fabric_t *mpi_of(afdep_fabric_t *fabric)
{
    return (mpi_fabric_t *)fabric; /* its first member */
}

/* The peer's outbox, noted for the next flush. */
static afdep_outbox_t *box_of(mpi_fabric_t *f, int peer)
{
    afdep_outbox_t *box = f->boxes[peer];

    if (!box->listed)
        f->dirty[f->dirty_count++] = peer;
    box->listed = 1;
    return box;
}

static void *mpi_window(afdep_fabric_t *fabric, int peer, uint64_t offset, size_t bytes)
{
    mpi_fabric_t *f = mpi_of(fabric);

    if (!afdep_direct_reaches(fabric, peer, offset, bytes) || !f->bases[peer])
        return NULL;
    return f->bases[peer] + offset;
}

static afdep_status_t mpi_put(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                              size_t bytes)
{
    mpi_fabric_t *f = mpi_of(fabric);

    (void)lane;
    if (!afdep_direct_reaches(fabric, peer, offset, bytes))
        return afdep_direct_refuse(fabric, "put", peer, offset, bytes);
    if (!f->bases[peer])
        return afdep_outbox_put(box_of(f, peer), offset, src, bytes);
    afdep_direct_put(f->bases[peer], offset, src, bytes);
    return AFDEP_OK;
}

static afdep_status_t mpi_signal(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, uint64_t old_value,
                                 uint64_t new_value)
{
    mpi_fabric_t *f = mpi_of(fabric);

    (void)old_value;
    if (!afdep_direct_reaches_word(fabric, peer, offset))
        return afdep_direct_refuse(fabric, "signal", peer, offset, sizeof(uint64_t));
    if (lane < 0 || lane >= fabric->lanes)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "a signal on lane %d, where there are %d lanes", lane, fabric->lanes);
    if (!f->bases[peer])
        return afdep_outbox_signal(box_of(f, peer), lane, offset, new_value);
    afdep_direct_signal(f->bases[peer], offset, new_value);
    return AFDEP_OK;
}

static afdep_status_t mpi_put_signal(afdep_fabric_t *fabric, int lane, int peer, uint64_t offset, const void *src,
                                     size_t bytes, uint64_t word, uint64_t old_value, uint64_t new_value)
{
    afdep_status_t status = mpi_put(fabric, lane, peer, offset, src, bytes);

    return status != AFDEP_OK ? status : mpi_signal(fabric, lane, peer, word, old_value, new_value);
}

static uint64_t mpi_read(afdep_fabric_t *fabric, uint64_t offset)
{
    return afdep_direct_read(fabric, offset);
}

static afdep_status_t each_dirty(mpi_fabric_t *f, afdep_status_t (*step)(afdep_outbox_t *box))
{
    afdep_status_t status = AFDEP_OK;

    for (int i = 0; status == AFDEP_OK && i < f->dirty_count; i++)
        status = step(f->boxes[f->dirty[i]]);
    return status;
}

static afdep_status_t mpi_flush(afdep_fabric_t *fabric)
{
    mpi_fabric_t *f = mpi_of(fabric);
    afdep_status_t status;

    if (f->dirty_count == 0)
        return AFDEP_OK;
    status = each_dirty(f, afdep_outbox_complete_rows);
    if (status == AFDEP_OK)
        status = each_dirty(f, afdep_outbox_start_words);
    if (status == AFDEP_OK)
        status = each_dirty(f, afdep_outbox_complete_words);
    if (status != AFDEP_OK)
        return status;
    while (f->dirty_count > 0)
        f->boxes[f->dirty[--f->dirty_count]]->listed = 0;
    return AFDEP_OK;
}

/* The first makes what has landed visible; the second is what makes MPI look after transfers that need this rank. */
static afdep_status_t mpi_progress(afdep_fabric_t *fabric)
{
    mpi_fabric_t *f = mpi_of(fabric);
    int found;
    afdep_status_t status = afdep_mpi_check(MPI_Win_sync(f->world), "MPI_Win_sync");

    if (status != AFDEP_OK)
        return status;
    return afdep_mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, f->group->comm, &found, MPI_STATUS_IGNORE),
                           "MPI_Iprobe");
}

static uint64_t mpi_now(afdep_fabric_t *fabric)
{
    (void)fabric;
    return afdep_monotonic_ns();
}

static void mpi_idle(afdep_fabric_t *fabric, unsigned rounds)
{
    afdep_idle(rounds, fabric->spins);
}

static int mpi_alive(afdep_fabric_t *fabric, int peer)
{
    return afdep_liveness_alive(mpi_of(fabric)->liveness, peer);
}

/* Freeing windows is collective. Ranks part in order after a barrier over the fabric, so all come here; one that failed
   in that very barrier would not, hence a barrier with a deadline before the calls that have none. */
static void free_windows(mpi_fabric_t *f)
{
    MPI_Request request;
    int finalized = 0;

    MPI_Finalized(&finalized);
    if (finalized || f->group->broken)
        return;
    if (afdep_mpi_check(MPI_Ibarrier(f->group->comm, &request), "MPI_Ibarrier") != AFDEP_OK ||
        afdep_mpi_wait(&request, f->timeout_ms, "MPI_Ibarrier") != AFDEP_OK) {
        f->group->broken = 1;
        return;
    }
    MPI_Win_unlock_all(f->world);
    MPI_Win_free(&f->world);
    MPI_Win_unlock_all(f->shared);
    MPI_Win_free(&f->shared);
    MPI_Comm_free(&f->domain);
}

/* Out of order the windows stay allocated, and with them the memory that peers may still write to: freeing them would
   wait for ranks that do not come. The program ends with MPI_Abort then. */
static void mpi_close(afdep_fabric_t *fabric, int in_order)
{
    mpi_fabric_t *f = mpi_of(fabric);

    if (in_order)
        free_windows(f);
    else
        f->group->broken = 1; /* MPI_Comm_free may wait for them too */
    mpi_free(f);
}

static const afdep_fabric_ops_t mpi_ops = {
    .name = "mpi",
    .window = mpi_window,
    .put = mpi_put,
    .signal = mpi_signal,
    .put_signal = mpi_put_signal,
    .read = mpi_read,
    .flush = mpi_flush,
    .progress = mpi_progress,
    .now = mpi_now,
    .idle = mpi_idle,
    .alive = mpi_alive,
    .close = mpi_close,
};

const afdep_fabric_provider_t afdep_fabric_mpi = { "mpi", mpi_open, NULL };
