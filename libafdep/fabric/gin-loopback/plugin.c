/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnccl-net-afdep.so: the tables that NCCL looks up, over links. The network carries nothing: it has to be there,
 * with one device, for NCCL to look at the rest. GIN runs in proxy mode, so NCCL's own thread takes requests from the
 * GPU and calls iput, iput_signal, test and progress here.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric/gin-loopback/link.h"
#include "fabric/gin-loopback/nccl_plugin.h"

#define NAME "afdep-loopback"
#define CONNECT_MS 60000
/* 32 of these many requests may be under way from one context to one peer: GPU threads wait for room beyond that. */
#define GIN_RECEIVES 16

_Static_assert(sizeof(afdep_gin_handle_t) <= AFDEP_NCCL_HANDLE_BYTES, "a handle fits what NCCL carries");

/* NCCL's log, the same in every communicator of a process. */
static _Atomic(afdep_nccl_log_t) nccl_log;
static int instance; /* its address is the context that NCCL wants to have: there is nothing to keep in one */

static afdep_nccl_result_t result_of(afdep_status_t status)
{
    switch (status) {
    case AFDEP_OK: return AFDEP_NCCL_SUCCESS;
    case AFDEP_ERR_ARGUMENT: return AFDEP_NCCL_INVALID_ARGUMENT;
    case AFDEP_ERR_UNSUPPORTED:
    case AFDEP_ERR_ORDER: return AFDEP_NCCL_INVALID_USAGE;
    case AFDEP_ERR_MEMORY:
    case AFDEP_ERR_SYSTEM: return AFDEP_NCCL_SYSTEM_ERROR;
    case AFDEP_ERR_TRANSPORT: return AFDEP_NCCL_CUDA_ERROR;
    case AFDEP_ERR_PEER:
    case AFDEP_ERR_TIMEOUT: return AFDEP_NCCL_REMOTE_ERROR;
    default: return AFDEP_NCCL_INTERNAL_ERROR;
    }
}

static void say(int level, const char *what, const char *why)
{
    afdep_nccl_log_t log = atomic_load(&nccl_log);
    if (log)
        log(level, AFDEP_NCCL_LOG_NET, __FILE__, __LINE__, NAME ": %s: %s", what, why);
}

static afdep_nccl_result_t answer(afdep_status_t status, const char *what)
{
    if (status != AFDEP_OK)
        say(AFDEP_NCCL_LOG_WARN, what, afdep_last_error());
    return result_of(status);
}

static afdep_nccl_result_t refuse(const char *what)
{
    say(AFDEP_NCCL_LOG_WARN, what, "the loopback does not do this");
    return AFDEP_NCCL_INVALID_USAGE;
}

/* ---- Communicators and contexts --------------------------------------------------------------------------------- */

typedef struct plugin_comm {
    afdep_gin_link_t *link;
    atomic_int told; /* its failure was logged: once is enough, it is asked for all the time */
} plugin_comm_t;

/* A context adds nothing to its communicator: one queue per pair of ranks carries all of them in order, which is more
   than NCCL asks for. The communicator comes first, as in the proxy's own context, which NCCL 2.30.3 and 2.30.4 hand to
   query_error in place of this one. */
typedef struct plugin_context {
    plugin_comm_t *comm;
} plugin_context_t;

static void tell(plugin_comm_t *comm, afdep_status_t status)
{
    if (status != AFDEP_OK && atomic_exchange(&comm->told, 1) == 0)
        say(AFDEP_NCCL_LOG_WARN, "communicator", afdep_last_error());
}

/*
 * Whether a call failed only because its peer is gone: NCCL is told that it succeeded. An error ends the proxy's thread, and with
 * it whatever this rank still sends to the living; GPU threads that then find a queue full wait for ever. So what a lost peer
 * would have got is dropped, once it is said in NCCL's log that it is lost, and to whoever asks query_error.
 */
static int lost(plugin_comm_t *comm, afdep_status_t status)
{
    tell(comm, status);
    return status == AFDEP_ERR_PEER;
}

static afdep_nccl_result_t gin_init(void **context, uint64_t comm_id, afdep_nccl_log_t log)
{
    (void)comm_id;
    atomic_store(&nccl_log, log);
    *context = &instance;
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t one_device(int *count)
{
    *count = 1;
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t gin_finalize(void *context)
{
    (void)context; /* NULL for all but the first communicator in NCCL 2.28 */
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t gin_listen(void *context, int device, void *handle, void **listener)
{
    afdep_gin_handle_t mine;
    afdep_gin_listener_t *made = NULL;
    afdep_status_t status = afdep_gin_listen(&made, &mine);

    (void)context;
    (void)device;
    if (status == AFDEP_OK) {
        memset(handle, 0, AFDEP_NCCL_HANDLE_BYTES);
        memcpy(handle, &mine, sizeof(mine));
        *listener = made;
    }
    return answer(status, "listen");
}

static afdep_nccl_result_t gin_close_listen(void *listener)
{
    afdep_gin_stop_listening(listener);
    return AFDEP_NCCL_SUCCESS;
}

static afdep_status_t connect_comm(void *handles[], int ranks, int rank, afdep_gin_listener_t *listener,
                                   plugin_comm_t *comm)
{
    afdep_gin_handle_t *copies = calloc((size_t)ranks, sizeof(*copies)); /* NCCL's have no alignment to rely on */
    const afdep_gin_handle_t **pointers = calloc((size_t)ranks, sizeof(*pointers));
    afdep_status_t status = AFDEP_ERR_MEMORY;

    if (copies && pointers) {
        for (int r = 0; r < ranks; r++) {
            memcpy(&copies[r], handles[r], sizeof(copies[r]));
            pointers[r] = &copies[r];
        }
        status = afdep_gin_connect(listener, pointers, ranks, rank, CONNECT_MS, afdep_gin_memory_open, &comm->link);
    } else {
        afdep_fail(status, "no memory for the handles of %d ranks", ranks);
    }
    free(copies);
    free(pointers);
    return status;
}

static afdep_nccl_result_t gin_connect(void *context, void *handles[], int ranks, int rank, void *listener, void **comm)
{
    plugin_comm_t *made;
    afdep_status_t status;

    (void)context;
    if (ranks < 1)
        return answer(afdep_fail(AFDEP_ERR_ARGUMENT, "a communicator of %d ranks", ranks), "connect");
    made = calloc(1, sizeof(*made));
    if (!made)
        return answer(afdep_fail(AFDEP_ERR_MEMORY, "no memory for a communicator"), "connect");
    status = connect_comm(handles, ranks, rank, listener, made);
    if (status == AFDEP_OK)
        *comm = made;
    else
        free(made);
    return answer(status, "connect");
}

static afdep_nccl_result_t gin_close_comm(void *comm)
{
    if (comm)
        afdep_gin_close(((plugin_comm_t *)comm)->link);
    free(comm);
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t make_context(void *comm, void **made)
{
    plugin_context_t *context = malloc(sizeof(*context));

    if (!context)
        return answer(afdep_fail(AFDEP_ERR_MEMORY, "no memory for a context"), "context");
    context->comm = comm;
    *made = context;
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t destroy_context(void *context)
{
    free(context);
    return AFDEP_NCCL_SUCCESS;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

static afdep_nccl_result_t register_region(void *comm, void *data, size_t bytes, int pointer, void **handle)
{
    afdep_gin_region_t *region = NULL;
    afdep_status_t status;

    if (pointer != AFDEP_NCCL_POINTER_HOST && pointer != AFDEP_NCCL_POINTER_CUDA)
        status = afdep_fail(AFDEP_ERR_ARGUMENT, "memory of kind %d: host memory is %d, a GPU's %d", pointer,
                            AFDEP_NCCL_POINTER_HOST, AFDEP_NCCL_POINTER_CUDA);
    else
        status = afdep_gin_register(((plugin_comm_t *)comm)->link, data, bytes, pointer == AFDEP_NCCL_POINTER_CUDA,
                                    &region);
    if (status == AFDEP_OK)
        *handle = region;
    return answer(status, "register");
}

static afdep_nccl_result_t gin_register(void *comm, void *data, size_t bytes, int pointer, uint64_t flags,
                                        void **handle, void **device_handle)
{
    afdep_nccl_result_t result = register_region(comm, data, bytes, pointer, handle);

    (void)flags; /* order is kept for all memory */
    if (result == AFDEP_NCCL_SUCCESS)
        *device_handle = *handle;
    return result;
}

static afdep_nccl_result_t gin_register_dmabuf(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                               int fd, uint64_t flags, void **handle, void **device_handle)
{
    (void)comm, (void)data, (void)bytes, (void)pointer, (void)offset, (void)fd, (void)flags, (void)handle;
    (void)device_handle;
    return refuse("registering a DMA-BUF"); /* the properties do not offer it */
}

static afdep_nccl_result_t gin_deregister(void *comm, void *handle)
{
    if (!handle)
        return AFDEP_NCCL_SUCCESS;
    return answer(afdep_gin_deregister(((plugin_comm_t *)comm)->link, handle), "deregister");
}

/* ---- Puts and signals ------------------------------------------------------------------------------------------- */

static afdep_nccl_result_t issue(plugin_comm_t *comm, const afdep_gin_put_t *put, void **request)
{
    afdep_gin_request_t *made = NULL;
    afdep_status_t status = afdep_gin_put(comm->link, put, &made);

    *request = status == AFDEP_OK ? made : NULL;
    return lost(comm, status) ? AFDEP_NCCL_SUCCESS : result_of(status);
}

static afdep_nccl_result_t issue_signal(plugin_comm_t *comm, afdep_gin_put_t *put, const void *signal, uint64_t offset,
                                        uint64_t value, uint32_t op, void **request)
{
    if (!signal || (op != AFDEP_NCCL_SIGNAL_INC && op != AFDEP_NCCL_SIGNAL_ADD)) {
        afdep_status_t status = afdep_fail(AFDEP_ERR_ARGUMENT, "a signal of kind %u%s", op,
                                           signal ? "" : " without registered memory");
        tell(comm, status);
        return result_of(status);
    }
    put->signal = signal;
    put->signal_offset = offset;
    put->signal_add = op == AFDEP_NCCL_SIGNAL_INC ? 1 : value;
    return issue(comm, put, request);
}

static afdep_gin_put_t put_of(uint64_t from_offset, const void *from, size_t bytes, uint64_t to_offset, const void *to,
                              uint32_t rank)
{
    return (afdep_gin_put_t){ .rank = rank > INT32_MAX ? -1 : (int)rank, .from = bytes ? from : NULL,
                              .to = bytes ? to : NULL, .from_offset = from_offset, .to_offset = to_offset,
                              .bytes = bytes };
}

static afdep_nccl_result_t gin_test(void *comm, void *request, int *done)
{
    afdep_status_t status;

    *done = 1;
    if (!request)
        return AFDEP_NCCL_SUCCESS;
    status = afdep_gin_test(((plugin_comm_t *)comm)->link, request, done);
    if (!lost(comm, status))
        return result_of(status);
    *done = 1;
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t progress(plugin_comm_t *comm)
{
    afdep_status_t status = afdep_gin_progress(comm->link);

    return lost(comm, status) ? AFDEP_NCCL_SUCCESS : result_of(status);
}

static afdep_nccl_result_t query_error(plugin_comm_t *comm, bool *has_error)
{
    *has_error = afdep_gin_failure(comm->link) != AFDEP_OK;
    return AFDEP_NCCL_SUCCESS;
}

/* ---- Properties ------------------------------------------------------------------------------------------------- */

static char device_name[] = NAME;

static afdep_nccl_properties_v11_t properties_v11(int gin)
{
    return (afdep_nccl_properties_v11_t){
        .name = device_name, .pci_path = NULL, .guid = 0x6166646570u, /* "afdep" */
        .pointers = AFDEP_NCCL_POINTER_HOST | AFDEP_NCCL_POINTER_CUDA, .speed_mbits = 100000, .port = 1,
        .max_comms = 65536, .max_receives = gin ? GIN_RECEIVES : 1,
        .device_type = gin ? AFDEP_NCCL_DEVICE_GIN_PROXY : AFDEP_NCCL_DEVICE_HOST,
        .device_version = gin ? AFDEP_NCCL_GIN_PROXY_VERSION : 0, .virtual_devices = { .count = 1 },
        .max_p2p_bytes = 1u << 30, .max_collective_bytes = 1u << 30, .max_multi_request = 1
    };
}

static afdep_nccl_result_t gin_properties_v11(int device, afdep_nccl_properties_v11_t *properties)
{
    (void)device;
    *properties = properties_v11(1);
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t gin_properties_v12(int device, afdep_nccl_properties_v12_t *properties)
{
    afdep_nccl_properties_v11_t p = properties_v11(1);

    (void)device;
    *properties = (afdep_nccl_properties_v12_t){
        .name = p.name, .pci_path = p.pci_path, .guid = p.guid, .pointers = p.pointers, .speed_mbits = p.speed_mbits,
        .port = p.port, .max_comms = p.max_comms, .max_receives = p.max_receives, .device_type = p.device_type,
        .device_version = p.device_version, .virtual_devices = { .count = 1 }, .max_p2p_bytes = p.max_p2p_bytes,
        .max_collective_bytes = p.max_collective_bytes, .max_multi_request = p.max_multi_request, .rail_id = -1,
        .plane_id = -1
    };
    return AFDEP_NCCL_SUCCESS;
}

/* ---- ncclGinPlugin_v11 ------------------------------------------------------------------------------------------ */

static afdep_nccl_result_t create_context_v11(void *comm, int signals, int counters, void **gin,
                                              afdep_nccl_device_handle_t **device_handle)
{
    (void)comm, (void)signals, (void)counters, (void)gin, (void)device_handle;
    return refuse("making a context on the device"); /* NCCL does that itself in proxy mode */
}

static afdep_nccl_result_t iput_v11(void *comm, uint64_t from_offset, void *from, size_t bytes, uint64_t to_offset,
                                    void *to, uint32_t rank, void **request)
{
    afdep_gin_put_t put = put_of(from_offset, from, bytes, to_offset, to, rank);
    return issue(comm, &put, request);
}

static afdep_nccl_result_t iput_signal_v11(void *comm, uint64_t from_offset, void *from, size_t bytes,
                                           uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset,
                                           void *signal, uint64_t value, uint32_t op, void **request)
{
    afdep_gin_put_t put = put_of(from_offset, from, bytes, to_offset, to, rank);
    return issue_signal(comm, &put, signal, signal_offset, value, op, request);
}

static afdep_nccl_result_t progress_v11(void *comm)
{
    return progress(comm);
}

/* NCCL asks its own proxy instead; there is no context here that a failure could be asked of. */
static afdep_nccl_result_t query_error_v11(void *gin, bool *has_error)
{
    (void)gin;
    *has_error = false;
    return AFDEP_NCCL_SUCCESS;
}

extern const afdep_nccl_gin_v11_t ncclGinPlugin_v11;
AFDEP_EXPORT const afdep_nccl_gin_v11_t ncclGinPlugin_v11 = {
    .name = NAME, .init = gin_init, .devices = one_device, .get_properties = gin_properties_v11, .listen = gin_listen,
    .connect = gin_connect, .create_context = create_context_v11, .register_memory = gin_register,
    .register_dmabuf = gin_register_dmabuf, .deregister_memory = gin_deregister, .destroy_context = destroy_context,
    .close_comm = gin_close_comm, .close_listen = gin_close_listen, .iput = iput_v11, .iput_signal = iput_signal_v11,
    .test = gin_test, .progress = progress_v11, .query_error = query_error_v11, .finalize = gin_finalize
};

/* ---- ncclGinPlugin_v13 and ncclRmaPlugin_v14 -------------------------------------------------------------------- */

static plugin_comm_t *comm_of(void *context)
{
    return ((plugin_context_t *)context)->comm;
}

static afdep_nccl_result_t create_context_v13(void *comm, afdep_nccl_gin_config_v13_t *config, void **gin,
                                              afdep_nccl_device_handle_t **device_handle)
{
    (void)config;
    if (device_handle) /* NCCL's proxy asks for none: it makes its own */
        *device_handle = NULL;
    return make_context(comm, gin);
}

static afdep_nccl_result_t create_context_v14(void *comm, afdep_nccl_rma_config_v14_t *config, void **rma)
{
    (void)config;
    return make_context(comm, rma);
}

static afdep_nccl_result_t register_v14(void *comm, void *data, size_t bytes, int pointer, uint64_t flags,
                                        void **handle)
{
    (void)flags;
    return register_region(comm, data, bytes, pointer, handle);
}

static afdep_nccl_result_t register_dmabuf_v14(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                               int fd, uint64_t flags, void **handle)
{
    void *device_handle;
    return gin_register_dmabuf(comm, data, bytes, pointer, offset, fd, flags, handle, &device_handle);
}

static afdep_nccl_result_t iput_v13(void *gin, int context, uint64_t from_offset, void *from, size_t bytes,
                                    uint64_t to_offset, void *to, uint32_t rank, void **request)
{
    afdep_gin_put_t put = put_of(from_offset, from, bytes, to_offset, to, rank);
    (void)context;
    return issue(comm_of(gin), &put, request);
}

static afdep_nccl_result_t iput_signal_v13(void *gin, int context, uint64_t from_offset, void *from, size_t bytes,
                                           uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset,
                                           void *signal, uint64_t value, uint32_t op, void **request)
{
    afdep_gin_put_t put = put_of(from_offset, from, bytes, to_offset, to, rank);
    (void)context;
    return issue_signal(comm_of(gin), &put, signal, signal_offset, value, op, request);
}

static afdep_nccl_result_t iput_signal_v14(void *rma, int context, uint64_t from_offset, void *from, size_t bytes,
                                           uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset,
                                           void *signal, uint64_t value, uint32_t op, bool strong, void **request)
{
    (void)strong; /* every signal is: it follows all earlier puts of its pair */
    return iput_signal_v13(rma, context, from_offset, from, bytes, to_offset, to, rank, signal_offset, signal, value,
                           op, request);
}

/* A flush makes what gets have brought visible, and there are no gets: done at once. */
static afdep_nccl_result_t iflush_v13(void *gin, int context, void *handle, uint32_t rank, void **request)
{
    (void)gin, (void)context, (void)handle, (void)rank;
    *request = NULL;
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t progress_v13(void *gin)
{
    return progress(comm_of(gin));
}

static afdep_nccl_result_t query_error_v13(void *gin, bool *has_error)
{
    return query_error(comm_of(gin), has_error);
}

extern const afdep_nccl_gin_v13_t ncclGinPlugin_v13;
AFDEP_EXPORT const afdep_nccl_gin_v13_t ncclGinPlugin_v13 = {
    .name = NAME, .init = gin_init, .devices = one_device, .get_properties = gin_properties_v12, .listen = gin_listen,
    .connect = gin_connect, .create_context = create_context_v13, .register_memory = gin_register,
    .register_dmabuf = gin_register_dmabuf, .deregister_memory = gin_deregister, .destroy_context = destroy_context,
    .close_comm = gin_close_comm, .close_listen = gin_close_listen, .iput = iput_v13, .iput_signal = iput_signal_v13,
    .iget = NULL /* NCCL says itself that gets are not supported */, .iflush = iflush_v13, .test = gin_test,
    .progress = progress_v13, .query_error = query_error_v13, .finalize = gin_finalize
};

extern const afdep_nccl_rma_v14_t ncclRmaPlugin_v14;
AFDEP_EXPORT const afdep_nccl_rma_v14_t ncclRmaPlugin_v14 = {
    .name = NAME, .init = gin_init, .devices = one_device, .get_properties = gin_properties_v12, .listen = gin_listen,
    .connect = gin_connect, .create_context = create_context_v14, .register_memory = register_v14,
    .register_dmabuf = register_dmabuf_v14, .deregister_memory = gin_deregister, .destroy_context = destroy_context,
    .close_comm = gin_close_comm, .close_listen = gin_close_listen, .iput = iput_v13, .iput_signal = iput_signal_v14,
    .iget = NULL, .iflush = iflush_v13, .test = gin_test, .progress = progress_v13, .query_error = query_error_v13,
    .finalize = gin_finalize
};

/* ---- ncclNetPlugin_v11 ------------------------------------------------------------------------------------------ */

static afdep_nccl_result_t net_init(void **context, uint64_t comm_id, afdep_nccl_net_config_v11_t *config,
                                    afdep_nccl_log_t log, afdep_nccl_profiler_t profiler)
{
    (void)config;
    (void)profiler;
    return gin_init(context, comm_id, log);
}

static afdep_nccl_result_t net_properties(int device, afdep_nccl_properties_v11_t *properties)
{
    (void)device;
    *properties = properties_v11(0);
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t net_listen(void *context, int device, void *handle, void **listener)
{
    (void)context, (void)device, (void)handle, (void)listener;
    return refuse("a collective or send/receive between hosts");
}

static afdep_nccl_result_t net_connect(void *context, int device, void *handle, void **sender,
                                       afdep_nccl_device_handle_t **device_handle)
{
    (void)context, (void)device, (void)handle, (void)sender, (void)device_handle;
    return refuse("a collective or send/receive between hosts");
}

static afdep_nccl_result_t net_accept(void *listener, void **receiver, afdep_nccl_device_handle_t **device_handle)
{
    (void)listener, (void)receiver, (void)device_handle;
    return refuse("a collective or send/receive between hosts");
}

static afdep_nccl_result_t net_register(void *comm, void *data, size_t bytes, int pointer, void **handle)
{
    (void)comm, (void)data, (void)bytes, (void)pointer, (void)handle;
    return refuse("registering memory with the network");
}

static afdep_nccl_result_t net_register_dmabuf(void *comm, void *data, size_t bytes, int pointer, uint64_t offset,
                                               int fd, void **handle)
{
    (void)offset, (void)fd;
    return net_register(comm, data, bytes, pointer, handle);
}

static afdep_nccl_result_t net_deregister(void *comm, void *handle)
{
    (void)comm, (void)handle;
    return AFDEP_NCCL_SUCCESS;
}

static afdep_nccl_result_t net_isend(void *sender, void *data, size_t bytes, int tag, void *handle, void *profile,
                                     void **request)
{
    (void)sender, (void)data, (void)bytes, (void)tag, (void)handle, (void)profile, (void)request;
    return refuse("a send");
}

static afdep_nccl_result_t net_irecv(void *receiver, int count, void **data, size_t *bytes, int *tags, void **handles,
                                     void **profiles, void **request)
{
    (void)receiver, (void)count, (void)data, (void)bytes, (void)tags, (void)handles, (void)profiles, (void)request;
    return refuse("a receive");
}

static afdep_nccl_result_t net_iflush(void *receiver, int count, void **data, int *bytes, void **handles,
                                      void **request)
{
    (void)receiver, (void)count, (void)data, (void)bytes, (void)handles, (void)request;
    return refuse("a flush");
}

static afdep_nccl_result_t net_test(void *request, int *done, int *bytes)
{
    (void)request, (void)done, (void)bytes;
    return refuse("a test");
}

static afdep_nccl_result_t net_close(void *comm)
{
    (void)comm;
    return AFDEP_NCCL_SUCCESS;
}

extern const afdep_nccl_net_v11_t ncclNetPlugin_v11;
AFDEP_EXPORT const afdep_nccl_net_v11_t ncclNetPlugin_v11 = {
    .name = NAME, .init = net_init, .devices = one_device, .get_properties = net_properties, .listen = net_listen,
    .connect = net_connect, .accept = net_accept, .register_memory = net_register,
    .register_dmabuf = net_register_dmabuf, .deregister_memory = net_deregister, .isend = net_isend,
    .irecv = net_irecv, .iflush = net_iflush, .test = net_test, .close_send = net_close, .close_receive = net_close,
    .close_listen = net_close, .finalize = gin_finalize
};
