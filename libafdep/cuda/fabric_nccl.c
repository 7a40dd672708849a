/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nccl fabric: segments are symmetric windows of an NCCL communicator, one rank per GPU. Kernels get plain pointers,
 * asked for once, to the windows of NCCL's load/store team, so that they are the same kernels as on any other fabric.
 *
 * NCCL's collective calls wait for every rank, and for ever where one has died. They are made on a thread that this rank
 * leaves behind, with everything that it uses, when a peer is dead or the deadline has passed.
 */
#include <stdlib.h>
#include <string.h>

#include "core/agreement.h"
#include "core/env.h"
#include "core/error.h"
#include "core/group.h"
#include "cuda/driver.h"
#include "cuda/fabric.h"
#include "cuda/nccl.h"
#include "cuda/nccl_team.h"
#include "cuda/patience.h"
#include "fabric/liveness.h"

#define CLOSE_MS 5000 /* of tearing down after an error, at most */

/* What a rank tells the others. */
typedef struct claim {
    ncclUniqueId id; /* rank 0's counts */
    uint64_t bytes;
    char uuid[16];
} claim_t;

typedef struct nccl_fabric {
    afdep_device_fabric_t super;
    const afdep_nccl_t *api;
    afdep_liveness_t *liveness;
    claim_t *claims; /* [size] */
    ncclComm_t comm;
    afdep_nccl_team_t *team;
    ncclWindow_t window;
    void *memory;
    uint64_t bytes; /* of every rank's window: the largest segment's */
    int device, timeout_ms, in_order;
} nccl_fabric_t;

static nccl_fabric_t *nccl_of(afdep_device_fabric_t *fabric)
{
    return (nccl_fabric_t *)fabric;
}

static int alive(afdep_device_fabric_t *f, int peer)
{
    return afdep_liveness_alive(nccl_of(f)->liveness, peer);
}

/* ---- Calls that wait for the other ranks ----------------------------------------------------------------------- */

static afdep_status_t look_for_dead(void *context)
{
    nccl_fabric_t *n = context;
    for (int peer = 0; peer < n->super.size; peer++)
        if (peer != n->super.rank && !afdep_liveness_alive(n->liveness, peer))
            return afdep_fail(AFDEP_ERR_PEER, "rank %d is dead: rank %d waited in NCCL for all ranks", peer, n->super.rank);
    return AFDEP_OK;
}

static afdep_status_t check(const nccl_fabric_t *n, ncclResult_t result, const char *what)
{
    return afdep_nccl_check(n->api, result, result == ncclRemoteError ? AFDEP_ERR_PEER : AFDEP_ERR_UNSUPPORTED, what);
}

/* The device communicator comes first: it is refused where there is no symmetric memory, while a window is then given all
   the same, of another kind. */
static afdep_status_t connect_ranks(void *context)
{
    nccl_fabric_t *n = context;
    afdep_device_fabric_t *f = &n->super;
    afdep_status_t status = afdep_cuda_check(cudaSetDevice(n->device), AFDEP_ERR_SYSTEM, "nccl fabric: cudaSetDevice");
    if (status == AFDEP_OK)
        status = check(n, n->api->comm_init_rank(&n->comm, f->size, n->claims[0].id, f->rank),
                       "nccl fabric: ncclCommInitRank");
    if (status == AFDEP_OK)
        status = check(n, afdep_nccl_team_create(n->api, n->comm, &n->team),
                       "nccl fabric: ncclDevCommCreate (symmetric memory wants direct access between all GPUs, and neither "
                       "NCCL_CUMEM_ENABLE=0 nor NCCL_WIN_ENABLE=0)");
    if (status == AFDEP_OK)
        status = check(n, n->api->window_register(n->comm, n->memory, n->bytes, &n->window, NCCL_WIN_COLL_SYMMETRIC),
                       "nccl fabric: ncclCommWindowRegister");
    if (status == AFDEP_OK && !n->window)
        status = afdep_fail(AFDEP_ERR_UNSUPPORTED,
                            "nccl fabric: ncclCommWindowRegister gave no window: this communicator has no symmetric memory "
                            "(direct access between all GPUs is wanted, and neither NCCL_CUMEM_ENABLE=0 nor NCCL_WIN_ENABLE=0)");
    return status;
}

static afdep_status_t disconnect(void *context)
{
    nccl_fabric_t *n = context;
    (void)cudaSetDevice(n->device);
    if (n->window)
        (void)n->api->window_deregister(n->comm, n->window);
    if (n->team)
        afdep_nccl_team_destroy(n->api, n->comm, n->team);
    if (n->comm)
        (void)(n->in_order ? n->api->comm_destroy(n->comm) : n->api->comm_abort(n->comm));
    if (n->memory)
        (void)n->api->mem_free(n->memory); /* a peer's mapping keeps the memory */
    return AFDEP_OK;
}

/* ---- Opening --------------------------------------------------------------------------------------------------- */

static afdep_status_t make(nccl_fabric_t *n, claim_t *claim)
{
    struct cudaDeviceProp properties;
    afdep_status_t status = afdep_nccl_load(&n->api);
    if (status == AFDEP_OK)
        status = afdep_cuda_check(cudaStreamCreateWithFlags(&n->super.stream, cudaStreamNonBlocking), AFDEP_ERR_SYSTEM,
                                  "nccl fabric: a stream of its own");
    if (status == AFDEP_OK)
        status = afdep_cuda_check(cudaGetDeviceProperties(&properties, n->device), AFDEP_ERR_SYSTEM,
                                  "nccl fabric: cudaGetDeviceProperties");
    if (status == AFDEP_OK && n->super.rank == 0)
        status = check(n, n->api->get_unique_id(&claim->id), "nccl fabric: ncclGetUniqueId");
    if (status == AFDEP_OK)
        memcpy(claim->uuid, &properties.uuid, sizeof(claim->uuid));
    return status;
}

/* Which ranks share this one's GPU: NCCL wants one rank for each, or its word that it may be otherwise. */
static afdep_status_t check_devices(nccl_fabric_t *n)
{
    const char *shared = afdep_env("NCCL_MULTI_RANK_GPU_ENABLE");
    int allowed = shared && strcmp(shared, "0") != 0 && NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0);
    afdep_device_fabric_t *f = &n->super;
    for (int r = 0; r < f->size; r++) {
        f->same_device[r] = memcmp(n->claims[r].uuid, n->claims[f->rank].uuid, sizeof(n->claims[r].uuid)) == 0;
        if (r != f->rank && f->same_device[r] && !allowed)
            return afdep_fail(AFDEP_ERR_UNSUPPORTED,
                              "nccl fabric: rank %d and rank %d are on one GPU: NCCL takes one rank per GPU (from 2.30 on more, "
                              "with NCCL_MULTI_RANK_GPU_ENABLE=1); fabric \"peer\" takes any number",
                              f->rank < r ? f->rank : r, f->rank < r ? r : f->rank);
    }
    return AFDEP_OK;
}

static afdep_status_t allocate(nccl_fabric_t *n, const afdep_device_fabric_args_t *args)
{
    /* NCCL finds a window at a peer where it stands here, and so wants them all of one size. */
    for (int r = 0; r < n->super.size; r++)
        n->bytes = n->claims[r].bytes > n->bytes ? n->claims[r].bytes : n->bytes;
    afdep_status_t status = afdep_nccl_check(n->api, n->api->mem_alloc(&n->memory, n->bytes), AFDEP_ERR_MEMORY,
                                             "nccl fabric: ncclMemAlloc of the segment");
    return status == AFDEP_OK ? afdep_device_prepare(args, n->memory, n->super.stream) : status;
}

static afdep_status_t find_segments(nccl_fabric_t *n)
{
    afdep_device_fabric_t *f = &n->super;
    int rank, ranks;
    afdep_nccl_team_place(n->team, &rank, &ranks);
    if (ranks != f->size || rank != f->rank)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "nccl fabric: NCCL's load/store team has %d of the %d ranks of this domain",
                          ranks, f->size);
    afdep_status_t status = afdep_cuda_check(afdep_nccl_team_addresses(n->window, f->size, (void **)f->segments, f->stream),
                                             AFDEP_ERR_SYSTEM, "nccl fabric: addresses of the windows");
    if (status == AFDEP_OK)
        f->base = f->segments[f->rank];
    return status;
}

static void free_fabric(nccl_fabric_t *n)
{
    if (n->super.stream)
        (void)cudaStreamDestroy(n->super.stream);
    afdep_liveness_close(n->liveness);
    free(n->claims);
    free(n->super.same_device);
    free(n->super.segments);
    free(n);
}

static void close_nccl(afdep_device_fabric_t *f, int in_order)
{
    nccl_fabric_t *n = nccl_of(f);
    int left = 0;
    n->in_order = in_order;
    if (n->comm || n->memory) {
        /* Not in order the dead are why it is left: nobody asks for them. */
        afdep_patience_call_t call = { disconnect, n, in_order ? look_for_dead : NULL, in_order ? n->timeout_ms : CLOSE_MS,
                                       "nccl fabric: leaving the communicator" };
        (void)afdep_call_with_patience(&call, &left);
    }
    if (!left)
        free_fabric(n);
}

static nccl_fabric_t *create(const afdep_device_fabric_args_t *args)
{
    size_t size = (size_t)args->group->size;
    nccl_fabric_t *n = calloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->device = args->device;
    n->timeout_ms = args->timeout_ms;
    n->super = (afdep_device_fabric_t){ .rank = args->group->rank,
                                        .size = args->group->size,
                                        .segments = calloc(size, sizeof(*n->super.segments)),
                                        .same_device = calloc(size, sizeof(*n->super.same_device)),
                                        .write_word = afdep_device_write_word,
                                        .read_words = afdep_device_read_words,
                                        .alive = alive,
                                        .close = close_nccl };
    n->claims = calloc(size, sizeof(*n->claims));
    if (n->super.segments && n->super.same_device && n->claims)
        return n;
    free_fabric(n);
    return NULL;
}

/* Everything between the first agreement and the last: each step only where all ranks have made the one before. */
static afdep_status_t meet(nccl_fabric_t *n, const afdep_device_fabric_args_t *args, const claim_t *claim, int *left)
{
    const afdep_group_t *group = args->group;
    afdep_status_t status = afdep_group_allgather(group, claim, n->claims, sizeof(*claim));
    if (status == AFDEP_OK)
        status = afdep_liveness_open(group, &n->liveness);
    if (status != AFDEP_OK)
        return status;
    status = check_devices(n);
    if (status == AFDEP_OK)
        status = allocate(n, args);
    status = afdep_agree_status(group, status, "make its segment for NCCL");
    if (status != AFDEP_OK)
        return status;
    afdep_patience_call_t call = { connect_ranks, n, look_for_dead, n->timeout_ms, "nccl fabric: making the communicator" };
    status = afdep_call_with_patience(&call, left);
    if (status == AFDEP_OK)
        status = find_segments(n);
    return afdep_agree_status(group, status, "make its NCCL communicator");
}

static afdep_status_t open_nccl(const afdep_device_fabric_args_t *args, afdep_device_fabric_t **fabric)
{
    claim_t claim;
    int left = 0;
    memset(&claim, 0, sizeof(claim));
    claim.bytes = args->bytes;
    nccl_fabric_t *n = create(args);
    afdep_status_t status = n ? make(n, &claim) : afdep_fail(AFDEP_ERR_MEMORY, "nccl fabric: no memory");
    status = afdep_agree_status(args->group, status, "get ready for NCCL");
    if (status == AFDEP_OK)
        status = meet(n, args, &claim, &left);
    if (status == AFDEP_OK) {
        *fabric = &n->super;
        return AFDEP_OK;
    }
    if (n && !left)
        close_nccl(&n->super, 0);
    return status;
}

static afdep_status_t available(void)
{
    const afdep_nccl_t *api;
    afdep_status_t status = afdep_nccl_load(&api);
    return status == AFDEP_OK ? afdep_device_gpu() : status;
}

const afdep_device_provider_t afdep_device_nccl = {
    .super = { .name = "nccl", .open = afdep_device_refuse_host },
    .open = open_nccl,
    .available = available,
};
