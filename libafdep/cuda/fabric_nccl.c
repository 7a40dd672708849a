/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nccl fabric: segments are symmetric windows of an NCCL communicator. Kernels get plain pointers, asked for once, to the
 * windows of NCCL's load/store team, which is a domain, so that they are the same kernels as on any other fabric. With
 * several domains the ranks of one rail reach each other by GPU-initiated networking (GIN), and kernels are those of
 * rail_gin.cuh.
 *
 * NCCL's collective calls wait for every rank, and for ever where one has died. They are made on a thread that this rank
 * leaves behind, with everything that it uses, when a peer is dead or the deadline has passed.
 */
#include <stdio.h>
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
#define TELL_MS 1000  /* of a word's way out, at most */
#define CONTEXTS_MOST 4 /* where nobody asks for another number: more are not faster anywhere that is known */

/* What a rank tells the others. */
typedef struct claim {
    ncclUniqueId id; /* rank 0's counts */
    uint64_t bytes;
    char uuid[16];
} claim_t;

/* What NCCL gave a rank, which must be the same on all. */
typedef struct given {
    int contexts, type;
} given_t;

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
    int device, timeout_ms, in_order, ranks_per_domain;
} nccl_fabric_t;

static nccl_fabric_t *nccl_of(afdep_device_fabric_t *fabric)
{
    return (nccl_fabric_t *)fabric;
}

static int alive(afdep_device_fabric_t *f, int peer)
{
    return afdep_liveness_alive(nccl_of(f)->liveness, peer);
}

static int across(const nccl_fabric_t *n)
{
    return n->super.gin.alone || n->ranks_per_domain != n->super.size;
}

static afdep_status_t tell(afdep_device_fabric_t *f, uint64_t offset, uint64_t value)
{
    nccl_fabric_t *n = nccl_of(f);
    afdep_status_t status = afdep_device_tell(f, offset, value);
    if (across(n) && status == AFDEP_OK)
        status = afdep_cuda_check(afdep_nccl_team_tell(n->team, f->base, offset, value, TELL_MS, f->stream), AFDEP_ERR_TRANSPORT,
                                  "nccl fabric: words to the ranks of this rail, over GIN");
    return status;
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

static afdep_status_t create_team(nccl_fabric_t *n)
{
    const afdep_rail_gin_t *g = &n->super.gin;
    afdep_nccl_wanted_t wanted = { .gin = across(n), .contexts = g->num_qps ? g->num_qps : CONTEXTS_MOST, .signals = g->signals,
                                   .traffic_class = g->traffic_class };
    return check(n, afdep_nccl_team_create(n->api, n->comm, &wanted, &n->team),
                 across(n) ? "nccl fabric: ncclDevCommCreate with GIN (an RDMA NIC that it knows or a plugin with GIN is wanted, "
                             "NCCL_GIN_ENABLE not 0, and room in NCCL_GIN_SIGNAL_POOL_SIZE; before 2.30 NCCL loads a plugin once "
                             "in a process, unless NCCL_NET_PLUGIN_REF_COUNT is 1)"
                           : "nccl fabric: ncclDevCommCreate (symmetric memory wants direct access between all GPUs, and neither "
                             "NCCL_CUMEM_ENABLE=0 nor NCCL_WIN_ENABLE=0)");
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
        status = create_team(n);
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

/* ---- GIN --------------------------------------------------------------------------------------------------------- */

static const char *type_name(int type)
{
    static const char *const names[] = { "none", "unpack", "proxy", "GDAKI", "GPI", "EFA" };
    return type >= 0 && type < (int)(sizeof(names) / sizeof(names[0])) ? names[type] : "unknown";
}

/* Before anything is made. */
static afdep_status_t check_gin(const nccl_fabric_t *n)
{
    if (!across(n))
        return AFDEP_OK;
    if (!AFDEP_NCCL_HAS_GIN)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "nccl fabric: %d domains want GIN, and this was built with the header of NCCL "
                          "%d.%d.%d: 2.28.9 or newer is wanted", n->super.size / n->ranks_per_domain, NCCL_MAJOR, NCCL_MINOR,
                          NCCL_PATCH);
    if (n->super.gin.traffic_class >= 0 && NCCL_VERSION_CODE < NCCL_VERSION(2, 30, 3))
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "traffic_class is %d: NCCL takes one for GIN from 2.30.3 on, and this was built "
                          "with %d.%d.%d; its own variable is NCCL_IB_TC", n->super.gin.traffic_class, NCCL_MAJOR, NCCL_MINOR,
                          NCCL_PATCH);
    return AFDEP_OK;
}

/* Takes what NCCL gave where it is what was asked for, and notes why it is that. */
static afdep_status_t take_gin(nccl_fabric_t *n)
{
    afdep_rail_gin_t *g = &n->super.gin;
    afdep_nccl_found_t found;
    afdep_nccl_team_find(n->team, &found);
    if (found.contexts < 1)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "nccl fabric: the device communicator has no GIN context");
    if (g->type && found.gin_type != g->type)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "gin_type is %d (%s): NCCL chose %d (%s); NCCL_GIN_TYPE=%d tells it which",
                          g->type, type_name(g->type), found.gin_type, type_name(found.gin_type), g->type);
    if (found.contexts < g->num_qps)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "num_qps is %d: NCCL gives %d GIN contexts (NCCL_GIN_NCONTEXTS limits them)",
                          g->num_qps, found.contexts);
    int most = g->num_qps ? g->num_qps : CONTEXTS_MOST;
    g->found_type = found.gin_type;
    g->contexts = found.contexts < most ? found.contexts : most;
    const char *said = afdep_env("NCCL_GIN_TYPE"), *plugin = afdep_env("NCCL_NET_PLUGIN");
    g->loopback = plugin && strstr(plugin, "nccl-net-afdep") != NULL;
    snprintf(g->why, sizeof(g->why), "%s %s; %d of %d contexts %s", type_name(g->found_type),
             g->type ? "as gin_type says" : said ? "as NCCL_GIN_TYPE says" : "as NCCL chose", g->contexts, found.contexts,
             g->num_qps ? "as num_qps says" : "by default");
    return AFDEP_OK;
}

/* A signal is read on the context that it was sent on: both ends must work out the same one. */
static afdep_status_t agree_on_gin(nccl_fabric_t *n, const afdep_group_t *group)
{
    afdep_rail_gin_t *g = &n->super.gin;
    given_t mine = { g->contexts, g->found_type };
    given_t *all = calloc((size_t)n->super.size, sizeof(*all));
    afdep_status_t status = all ? AFDEP_OK : afdep_fail(AFDEP_ERR_MEMORY, "nccl fabric: no memory for what all ranks were given");
    status = afdep_agree_status(group, status, "compare what NCCL gave it");
    if (status == AFDEP_OK)
        status = afdep_group_allgather(group, &mine, all, sizeof(mine));
    for (int r = 0; status == AFDEP_OK && r < n->super.size; r++)
        if (all[r].contexts != mine.contexts || all[r].type != mine.type)
            status = afdep_fail(AFDEP_ERR_AGREEMENT, "nccl fabric: rank %d has %d contexts of GIN type %s, rank %d has %d of type "
                                "%s: set NCCL_GIN_TYPE and NCCL_GIN_NCONTEXTS alike on all ranks", n->super.rank, mine.contexts,
                                type_name(mine.type), r, all[r].contexts, type_name(all[r].type));
    free(all);
    if (status == AFDEP_OK)
        status = afdep_cuda_check(afdep_nccl_team_gin(n->team, n->window, g->contexts, n->ranks_per_domain, &g->host, &g->device),
                                  AFDEP_ERR_MEMORY, "nccl fabric: what kernels need for GIN");
    return afdep_agree_status(group, status, "get its GIN ready");
}

/* ---- Opening --------------------------------------------------------------------------------------------------- */

static afdep_status_t make(nccl_fabric_t *n, claim_t *claim)
{
    struct cudaDeviceProp properties;
    afdep_status_t status = check_gin(n);
    if (status == AFDEP_OK)
        status = afdep_nccl_load(&n->api);
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
        int near = r / n->ranks_per_domain == f->rank / n->ranks_per_domain;
        f->reached[r] = near || r % n->ranks_per_domain == f->rank % n->ranks_per_domain;
        f->same_device[r] = memcmp(n->claims[r].uuid, n->claims[f->rank].uuid, sizeof(n->claims[r].uuid)) == 0;
        /* Before 2.30 NCCL knows nothing of ranks on hosts that it takes for others, as NCCL_HOSTID makes domains. */
        if (r != f->rank && f->same_device[r] && !allowed && (near || NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)))
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
    int d = n->ranks_per_domain, first = f->rank / d * d;
    afdep_nccl_found_t found;
    afdep_nccl_team_find(n->team, &found);
    if (found.lsa_ranks != d || found.lsa_rank != f->rank - first)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "nccl fabric: NCCL's load/store team has %d ranks, and ranks_per_domain is %d: "
                          "the ranks of a host with NVLink are a team (NCCL_HOSTID gives hosts other names)", found.lsa_ranks, d);
    afdep_status_t status = afdep_cuda_check(afdep_nccl_team_addresses(n->window, d, (void **)(f->segments + first), f->stream),
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
    free(n->super.reached);
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
    n->ranks_per_domain = args->ranks_per_domain;
    n->super = (afdep_device_fabric_t){ .rank = args->group->rank,
                                        .size = args->group->size,
                                        .segments = calloc(size, sizeof(*n->super.segments)),
                                        .same_device = calloc(size, sizeof(*n->super.same_device)),
                                        .reached = calloc(size, sizeof(*n->super.reached)),
                                        .gin = args->gin,
                                        .tell = tell,
                                        .read_words = afdep_device_read_words,
                                        .alive = alive,
                                        .close = close_nccl };
    n->claims = calloc(size, sizeof(*n->claims));
    if (n->super.segments && n->super.same_device && n->super.reached && n->claims)
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
    if (status == AFDEP_OK && across(n))
        status = take_gin(n);
    status = afdep_agree_status(group, status, "make its NCCL communicator");
    return status == AFDEP_OK && across(n) ? agree_on_gin(n, group) : status;
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
