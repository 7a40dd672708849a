/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer fabric: segments in device memory that every GPU of the host can address. A segment is one VMM allocation.
 * Ranks that are threads of one process use its address as it is; another process gets the allocation's file descriptor
 * (through pidfd_getfd, which the owner allows while the fabric opens) and maps it for itself.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/agreement.h"
#include "core/error.h"
#include "core/group.h"
#include "cuda/driver.h"
#include "cuda/fabric.h"
#include "fabric/host_id.h"
#include "fabric/liveness.h"

/* What a rank tells the others of its segment. */
typedef struct claim {
    afdep_host_id_t id;
    uint64_t address, mapped_bytes;
    int32_t fd, device;
    char uuid[16];
} claim_t;

typedef struct peer {
    afdep_device_fabric_t super;
    afdep_driver_t driver;
    afdep_liveness_t *liveness;
    CUmemGenericAllocationHandle handle;
    uint64_t mapped_bytes;  /* of the own segment */
    uint64_t *peer_mapped;  /* [size]: bytes mapped here for a rank of another process; 0: not mapped here */
    claim_t *claims;        /* [size] */
    int device, fd, devices;
    int has_handle;
} peer_t;

static peer_t *peer_of(afdep_device_fabric_t *fabric)
{
    return (peer_t *)fabric;
}

/* ---- Memory -------------------------------------------------------------------------------------------------- */

static CUmemAllocationProp properties(int device)
{
    CUmemAllocationProp p;
    memset(&p, 0, sizeof(p));
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = device;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return p;
}

/* Maps an allocation, open to this rank's device and, with `all`, to every device that can reach it. */
static afdep_status_t map(peer_t *p, CUmemGenericAllocationHandle handle, int owner, uint64_t bytes, int all,
                          unsigned char **at)
{
    CUdeviceptr address = 0;
    afdep_status_t status = afdep_driver_check(&p->driver, p->driver.mem_address_reserve(&address, bytes, 0, 0, 0),
                                               AFDEP_ERR_MEMORY, "peer fabric: cuMemAddressReserve");
    if (status != AFDEP_OK)
        return status;
    status = afdep_driver_check(&p->driver, p->driver.mem_map(address, bytes, 0, handle, 0), AFDEP_ERR_MEMORY,
                                "peer fabric: cuMemMap");
    if (status != AFDEP_OK)
        goto free_address;
    for (int d = 0; d < p->devices; d++) {
        int reaches = d == owner;
        if (d != p->device && d != owner && !all)
            continue;
        if (!reaches && cudaDeviceCanAccessPeer(&reaches, d, owner) != cudaSuccess)
            reaches = 0;
        if (!reaches && d != p->device)
            continue;
        CUmemAccessDesc access;
        memset(&access, 0, sizeof(access));
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = d;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        status = afdep_driver_check(&p->driver, p->driver.mem_set_access(address, bytes, &access, 1),
                                    AFDEP_ERR_UNSUPPORTED, "peer fabric: cuMemSetAccess");
        if (status != AFDEP_OK)
            goto unmap;
    }
    *at = (unsigned char *)(uintptr_t)address;
    return AFDEP_OK;

unmap:
    (void)p->driver.mem_unmap(address, bytes);
free_address:
    (void)p->driver.mem_address_free(address, bytes);
    return status;
}

static void unmap(peer_t *p, unsigned char *at, uint64_t bytes)
{
    (void)p->driver.mem_unmap((CUdeviceptr)(uintptr_t)at, bytes);
    (void)p->driver.mem_address_free((CUdeviceptr)(uintptr_t)at, bytes);
}

static afdep_status_t allocate(peer_t *p, const afdep_device_fabric_args_t *args)
{
    CUmemAllocationProp prop = properties(args->device);
    size_t granularity = 0;
    afdep_status_t status = afdep_driver_check(
        &p->driver, p->driver.mem_get_granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        AFDEP_ERR_UNSUPPORTED, "peer fabric: cuMemGetAllocationGranularity");
    if (status != AFDEP_OK)
        return status;
    p->mapped_bytes = (args->bytes + granularity - 1) / granularity * granularity;
    status = afdep_driver_check(&p->driver, p->driver.mem_create(&p->handle, p->mapped_bytes, &prop, 0),
                                AFDEP_ERR_MEMORY, "peer fabric: cuMemCreate of the segment");
    if (status != AFDEP_OK)
        return status;
    p->has_handle = 1;
    status = map(p, p->handle, args->device, p->mapped_bytes, 1, &p->super.base);
    if (status != AFDEP_OK)
        return status;
    status = afdep_driver_check(
        &p->driver, p->driver.mem_export(&p->fd, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        AFDEP_ERR_UNSUPPORTED, "peer fabric: cuMemExportToShareableHandle");
    if (status != AFDEP_OK)
        return status;
    return afdep_device_prepare(args, p->super.base, p->super.stream);
}

/* ---- Meeting ------------------------------------------------------------------------------------------------- */

static afdep_status_t make_claim(peer_t *p, claim_t *claim)
{
    struct cudaDeviceProp properties_;
    afdep_status_t status = afdep_cuda_check(cudaGetDeviceProperties(&properties_, p->device), AFDEP_ERR_SYSTEM,
                                             "peer fabric: cudaGetDeviceProperties");
    afdep_host_id_get(&claim->id);
    claim->address = (uint64_t)(uintptr_t)p->super.base;
    claim->mapped_bytes = p->mapped_bytes;
    claim->fd = p->fd;
    claim->device = p->device;
    memcpy(claim->uuid, &properties_.uuid, sizeof(claim->uuid));
    return status;
}

/* A copy of another process's file descriptor; -1 with errno. */
static int take_fd(uint64_t process, int fd)
{
    int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)process, 0);
    if (pidfd < 0)
        return -1;
    int copy = (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
    int saved = errno;
    close(pidfd);
    errno = saved;
    return copy;
}

/* This process's number for the device of a rank of another process; -1: it does not see it. */
static int device_of(const peer_t *p, const claim_t *claim)
{
    for (int d = 0; d < p->devices; d++) {
        struct cudaDeviceProp properties_;
        if (cudaGetDeviceProperties(&properties_, d) == cudaSuccess &&
            memcmp(&properties_.uuid, claim->uuid, sizeof(claim->uuid)) == 0)
            return d;
    }
    return -1;
}

static afdep_status_t import(peer_t *p, int rank)
{
    const claim_t *claim = &p->claims[rank];
    CUmemGenericAllocationHandle handle;
    int fd = take_fd(claim->id.pid, claim->fd);
    if (fd < 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "peer fabric: the segment of rank %d (process %llu) cannot be taken over: %s",
                          rank, (unsigned long long)claim->id.pid, strerror(errno));
    afdep_status_t status = afdep_driver_check(
        &p->driver,
        p->driver.mem_import(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        AFDEP_ERR_SYSTEM, "peer fabric: cuMemImportFromShareableHandle");
    close(fd);
    if (status != AFDEP_OK)
        return status;
    int owner = device_of(p, claim);
    status = map(p, handle, owner < 0 ? p->device : owner, claim->mapped_bytes, 0, &p->super.segments[rank]);
    (void)p->driver.mem_release(handle); /* the mapping keeps the memory */
    if (status == AFDEP_OK)
        p->peer_mapped[rank] = claim->mapped_bytes;
    return status;
}

static afdep_status_t meet(peer_t *p, const afdep_group_t *group)
{
    const claim_t *own = &p->claims[group->rank];
    for (int r = 0; r < group->size; r++) {
        const claim_t *claim = &p->claims[r];
        if (!afdep_host_id_same_host(&claim->id, &own->id))
            return afdep_fail(AFDEP_ERR_UNSUPPORTED, "peer fabric: rank %d is on another host than rank %d", r,
                              group->rank);
        p->super.reached[r] = 1;
        p->super.same_device[r] = memcmp(claim->uuid, own->uuid, sizeof(own->uuid)) == 0;
        afdep_status_t status = AFDEP_OK;
        int reaches = p->super.same_device[r];
        if (!afdep_host_id_same_process(&claim->id, &own->id))
            status = import(p, r);
        else if (!reaches && (cudaDeviceCanAccessPeer(&reaches, p->device, claim->device) != cudaSuccess || !reaches))
            status = afdep_fail(AFDEP_ERR_UNSUPPORTED, "peer fabric: device %d cannot reach device %d of rank %d",
                                p->device, claim->device, r);
        else
            p->super.segments[r] = (unsigned char *)(uintptr_t)claim->address;
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_OK;
}

static int alive(afdep_device_fabric_t *f, int peer)
{
    return afdep_liveness_alive(peer_of(f)->liveness, peer);
}

/* ---- Opening and closing ------------------------------------------------------------------------------------- */

static void close_peer(afdep_device_fabric_t *f, int in_order)
{
    peer_t *p = peer_of(f);
    for (int r = 0; p->peer_mapped && r < f->size; r++)
        if (p->peer_mapped[r])
            unmap(p, f->segments[r], p->peer_mapped[r]);
    /* Another process's mapping keeps the memory alive; a thread of this one uses this very mapping, so after an error it
       stays for as long as the process. */
    int shared = 0;
    for (int r = 0; p->claims && r < f->size; r++)
        shared |= r != f->rank && p->claims[r].address && afdep_host_id_same_process(&p->claims[r].id, &p->claims[f->rank].id);
    if (f->base && (in_order || !shared))
        unmap(p, f->base, p->mapped_bytes);
    if (p->has_handle)
        (void)p->driver.mem_release(p->handle);
    if (p->fd >= 0)
        close(p->fd);
    afdep_liveness_close(p->liveness);
    if (f->stream)
        (void)cudaStreamDestroy(f->stream);
    free(p->claims);
    free(p->peer_mapped);
    free(f->reached);
    free(f->same_device);
    free(f->segments);
    free(p);
}

static afdep_status_t make(peer_t *p, const afdep_device_fabric_args_t *args)
{
    afdep_status_t status = afdep_driver_load(&p->driver);
    if (status == AFDEP_OK)
        status = afdep_cuda_check(cudaStreamCreateWithFlags(&p->super.stream, cudaStreamNonBlocking), AFDEP_ERR_SYSTEM,
                                  "peer fabric: a stream of its own");
    if (status == AFDEP_OK)
        status = afdep_cuda_check(cudaGetDeviceCount(&p->devices), AFDEP_ERR_SYSTEM, "peer fabric: cudaGetDeviceCount");
    return status == AFDEP_OK ? allocate(p, args) : status;
}

static peer_t *create(const afdep_device_fabric_args_t *args)
{
    size_t size = (size_t)args->group->size;
    peer_t *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->device = args->device;
    p->fd = -1;
    p->super = (afdep_device_fabric_t){ .rank = args->group->rank,
                                        .size = args->group->size,
                                        .segments = calloc(size, sizeof(*p->super.segments)),
                                        .same_device = calloc(size, sizeof(*p->super.same_device)),
                                        .reached = calloc(size, sizeof(*p->super.reached)),
                                        .tell = afdep_device_tell,
                                        .read_words = afdep_device_read_words,
                                        .alive = alive,
                                        .close = close_peer };
    p->claims = calloc(size, sizeof(*p->claims));
    p->peer_mapped = calloc(size, sizeof(*p->peer_mapped));
    if (p->super.segments && p->super.same_device && p->super.reached && p->claims && p->peer_mapped)
        return p;
    free(p->peer_mapped);
    free(p->claims);
    free(p->super.reached);
    free(p->super.same_device);
    free(p->super.segments);
    free(p);
    return NULL;
}

static afdep_status_t open_peer(const afdep_device_fabric_args_t *args, afdep_device_fabric_t **fabric)
{
    const afdep_group_t *group = args->group;
    claim_t claim;
    memset(&claim, 0, sizeof(claim));
    peer_t *p = create(args);
    afdep_status_t status = p ? make(p, args) : afdep_fail(AFDEP_ERR_MEMORY, "peer fabric: no memory");
    if (status == AFDEP_OK)
        status = make_claim(p, &claim);
    status = afdep_agree_status(group, status, "make its segment in device memory");
    if (status == AFDEP_OK)
        status = afdep_group_allgather(group, &claim, p->claims, sizeof(claim));
    if (status == AFDEP_OK) {
        /* Others may take the descriptor while they are here, where the system asks for the owner's word. */
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        status = meet(p, group);
        status = afdep_agree_status(group, status, "map its peers' segments");
        (void)prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    }
    if (status == AFDEP_OK)
        status = afdep_liveness_open(group, &p->liveness);
    if (status != AFDEP_OK) {
        if (p)
            close_peer(&p->super, 0);
        return status;
    }
    *fabric = &p->super;
    return AFDEP_OK;
}

static afdep_status_t available(void)
{
    afdep_driver_t driver;
    afdep_status_t status = afdep_device_gpu();
    return status == AFDEP_OK ? afdep_driver_load(&driver) : status;
}

const afdep_device_provider_t afdep_device_peer = {
    .super = { .name = "peer", .open = afdep_device_refuse_host },
    .open = open_peer,
    .available = available,
};
