/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of NCCL's plugin interface that the loopback fills, declared for this project. NCCL looks the tables up by
 * their symbols and calls what stands at fixed places in them, so order and types are a binary contract:
 *
 *   ncclNetPlugin_v11   networks, since NCCL 2.28; 2.30 still takes it
 *   ncclGinPlugin_v11   GPU-initiated networking in 2.28 and 2.29: one context to a communicator
 *   ncclGinPlugin_v13   the same in 2.30.3 and 2.30.4: contexts are made beside the communicator
 *   ncclRmaPlugin_v14   what NCCL's own GIN proxy stands on from 2.30.5: signals say whether they are strong
 *
 * Later tables differ from earlier ones, so each has the number of the interface it belongs to.
 */
#ifndef AFDEP_GIN_LOOPBACK_NCCL_PLUGIN_H
#define AFDEP_GIN_LOOPBACK_NCCL_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Numbers (nccl.h, and the plugin interface of every version above) ------------------------------------------ */

typedef enum afdep_nccl_result {
    AFDEP_NCCL_SUCCESS = 0,
    AFDEP_NCCL_CUDA_ERROR = 1,
    AFDEP_NCCL_SYSTEM_ERROR = 2,
    AFDEP_NCCL_INTERNAL_ERROR = 3,
    AFDEP_NCCL_INVALID_ARGUMENT = 4,
    AFDEP_NCCL_INVALID_USAGE = 5,
    AFDEP_NCCL_REMOTE_ERROR = 6
} afdep_nccl_result_t;

#define AFDEP_NCCL_HANDLE_BYTES 128 /* what one rank may tell the others */

#define AFDEP_NCCL_POINTER_HOST 0x1
#define AFDEP_NCCL_POINTER_CUDA 0x2

#define AFDEP_NCCL_SIGNAL_INC 0x1
#define AFDEP_NCCL_SIGNAL_ADD 0x2

#define AFDEP_NCCL_DEVICE_HOST 0      /* a network that the host drives */
#define AFDEP_NCCL_DEVICE_GIN_PROXY 2 /* NCCL's proxy thread takes requests from the GPU and calls the table */
#define AFDEP_NCCL_GIN_PROXY_VERSION 100

#define AFDEP_NCCL_LOG_WARN 2
#define AFDEP_NCCL_LOG_INFO 3
#define AFDEP_NCCL_LOG_NET 0x10

typedef void (*afdep_nccl_log_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef afdep_nccl_result_t (*afdep_nccl_profiler_t)(void **event, int type, void *parent, int64_t plugin, void *data);

/* ---- What a device is ------------------------------------------------------------------------------------------- */

typedef struct afdep_nccl_virtual_v11 {
    int count;
    int devices[4];
} afdep_nccl_virtual_v11_t;

typedef struct afdep_nccl_properties_v11 {
    char *name;
    char *pci_path; /* NULL: no PCI device, NCCL hangs it below the first processor */
    uint64_t guid;
    int pointers;
    int registration_is_global;
    int force_flush;
    int speed_mbits;
    int port;
    float latency;
    int max_comms;
    int max_receives; /* GIN: 32 of these many requests may be under way to one peer */
    int device_type;
    int device_version;
    afdep_nccl_virtual_v11_t virtual_devices;
    size_t max_p2p_bytes;
    size_t max_collective_bytes;
    int max_multi_request;
} afdep_nccl_properties_v11_t;

typedef struct afdep_nccl_virtual_v12 {
    int count;
    int devices[8];
} afdep_nccl_virtual_v12_t;

typedef struct afdep_nccl_properties_v12 {
    char *name;
    char *pci_path;
    uint64_t guid;
    int pointers;
    int registration_is_global;
    int force_flush;
    int speed_mbits;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int device_type;
    int device_version;
    afdep_nccl_virtual_v12_t virtual_devices;
    size_t max_p2p_bytes;
    size_t max_collective_bytes;
    int max_multi_request;
    int16_t rail_id;  /* -1: says nothing */
    int16_t plane_id; /* -1: says nothing */
} afdep_nccl_properties_v12_t;

typedef struct afdep_nccl_device_handle {
    int device_type;
    int device_version;
    void *handle;
    size_t size;
    int needs_progress;
} afdep_nccl_device_handle_t;

/* ---- ncclNetPlugin_v11 ------------------------------------------------------------------------------------------ */

typedef struct afdep_nccl_net_config_v11 {
    int traffic_class;
} afdep_nccl_net_config_v11_t;

typedef struct afdep_nccl_net_v11 {
    const char *name;
    afdep_nccl_result_t (*init)(void **context, uint64_t comm_id, afdep_nccl_net_config_v11_t *config,
                                afdep_nccl_log_t log, afdep_nccl_profiler_t profiler);
    afdep_nccl_result_t (*devices)(int *count);
    afdep_nccl_result_t (*get_properties)(int device, afdep_nccl_properties_v11_t *properties);
    afdep_nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);
    afdep_nccl_result_t (*connect)(void *context, int device, void *handle, void **sender,
                                   afdep_nccl_device_handle_t **device_handle);
    afdep_nccl_result_t (*accept)(void *listener, void **receiver, afdep_nccl_device_handle_t **device_handle);
    afdep_nccl_result_t (*register_memory)(void *comm, void *data, size_t bytes, int pointer, void **handle);
    afdep_nccl_result_t (*register_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                           void **handle);
    afdep_nccl_result_t (*deregister_memory)(void *comm, void *handle);
    afdep_nccl_result_t (*isend)(void *sender, void *data, size_t bytes, int tag, void *handle, void *profile,
                                 void **request);
    afdep_nccl_result_t (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags, void **handles,
                                 void **profiles, void **request);
    afdep_nccl_result_t (*iflush)(void *receiver, int count, void **data, int *bytes, void **handles, void **request);
    afdep_nccl_result_t (*test)(void *request, int *done, int *bytes);
    afdep_nccl_result_t (*close_send)(void *sender);
    afdep_nccl_result_t (*close_receive)(void *receiver);
    afdep_nccl_result_t (*close_listen)(void *listener);
    afdep_nccl_result_t (*get_device_memory)(void *comm, void *handle, void **device_handle);
    afdep_nccl_result_t (*receive_consumed)(void *receiver, int count, void *request);
    afdep_nccl_result_t (*make_virtual_device)(int *device, afdep_nccl_virtual_v11_t *virtual_device);
    afdep_nccl_result_t (*finalize)(void *context);
    afdep_nccl_result_t (*set_attributes)(void *context, void *attributes);
} afdep_nccl_net_v11_t;

/* ---- ncclGinPlugin_v11 ------------------------------------------------------------------------------------------ */

typedef struct afdep_nccl_gin_v11 {
    const char *name;
    afdep_nccl_result_t (*init)(void **context, uint64_t comm_id, afdep_nccl_log_t log);
    afdep_nccl_result_t (*devices)(int *count);
    afdep_nccl_result_t (*get_properties)(int device, afdep_nccl_properties_v11_t *properties);
    afdep_nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);
    afdep_nccl_result_t (*connect)(void *context, void *handles[], int ranks, int rank, void *listener, void **comm);
    afdep_nccl_result_t (*create_context)(void *comm, int signals, int counters, void **gin,
                                          afdep_nccl_device_handle_t **device_handle);
    afdep_nccl_result_t (*register_memory)(void *comm, void *data, size_t bytes, int pointer, uint64_t flags,
                                           void **handle, void **device_handle);
    afdep_nccl_result_t (*register_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                           uint64_t flags, void **handle, void **device_handle);
    afdep_nccl_result_t (*deregister_memory)(void *comm, void *handle);
    afdep_nccl_result_t (*destroy_context)(void *gin);
    afdep_nccl_result_t (*close_comm)(void *comm);
    afdep_nccl_result_t (*close_listen)(void *listener);
    afdep_nccl_result_t (*iput)(void *comm, uint64_t from_offset, void *from, size_t bytes, uint64_t to_offset,
                                void *to, uint32_t rank, void **request);
    afdep_nccl_result_t (*iput_signal)(void *comm, uint64_t from_offset, void *from, size_t bytes, uint64_t to_offset,
                                       void *to, uint32_t rank, uint64_t signal_offset, void *signal, uint64_t value,
                                       uint32_t op, void **request);
    afdep_nccl_result_t (*test)(void *comm, void *request, int *done);
    afdep_nccl_result_t (*progress)(void *comm);
    afdep_nccl_result_t (*query_error)(void *gin, bool *has_error);
    afdep_nccl_result_t (*finalize)(void *context);
} afdep_nccl_gin_v11_t;

/* ---- ncclGinPlugin_v13 ------------------------------------------------------------------------------------------ */

typedef struct afdep_nccl_gin_config_v13 {
    int signals;
    int counters;
    int contexts;
    int queue_depth;
    int traffic_class;
} afdep_nccl_gin_config_v13_t;

typedef struct afdep_nccl_gin_v13 {
    const char *name;
    afdep_nccl_result_t (*init)(void **context, uint64_t comm_id, afdep_nccl_log_t log);
    afdep_nccl_result_t (*devices)(int *count);
    afdep_nccl_result_t (*get_properties)(int device, afdep_nccl_properties_v12_t *properties);
    afdep_nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);
    afdep_nccl_result_t (*connect)(void *context, void *handles[], int ranks, int rank, void *listener, void **comm);
    afdep_nccl_result_t (*create_context)(void *comm, afdep_nccl_gin_config_v13_t *config, void **gin,
                                          afdep_nccl_device_handle_t **device_handle);
    afdep_nccl_result_t (*register_memory)(void *comm, void *data, size_t bytes, int pointer, uint64_t flags,
                                           void **handle, void **device_handle);
    afdep_nccl_result_t (*register_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                           uint64_t flags, void **handle, void **device_handle);
    afdep_nccl_result_t (*deregister_memory)(void *comm, void *handle);
    afdep_nccl_result_t (*destroy_context)(void *gin);
    afdep_nccl_result_t (*close_comm)(void *comm);
    afdep_nccl_result_t (*close_listen)(void *listener);
    afdep_nccl_result_t (*iput)(void *gin, int context, uint64_t from_offset, void *from, size_t bytes,
                                uint64_t to_offset, void *to, uint32_t rank, void **request);
    afdep_nccl_result_t (*iput_signal)(void *gin, int context, uint64_t from_offset, void *from, size_t bytes,
                                       uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset,
                                       void *signal, uint64_t value, uint32_t op, void **request);
    afdep_nccl_result_t (*iget)(void *gin, int context, uint64_t remote_offset, void *remote, size_t bytes,
                                uint64_t local_offset, void *local, uint32_t rank, void **request);
    afdep_nccl_result_t (*iflush)(void *gin, int context, void *handle, uint32_t rank, void **request);
    afdep_nccl_result_t (*test)(void *comm, void *request, int *done);
    afdep_nccl_result_t (*progress)(void *gin);
    afdep_nccl_result_t (*query_error)(void *gin, bool *has_error);
    afdep_nccl_result_t (*finalize)(void *context);
} afdep_nccl_gin_v13_t;

/* ---- ncclRmaPlugin_v14 ------------------------------------------------------------------------------------------ */

typedef struct afdep_nccl_rma_config_v14 {
    int contexts;
    int traffic_class;
    int rank_stride;
} afdep_nccl_rma_config_v14_t;

typedef struct afdep_nccl_rma_v14 {
    const char *name;
    afdep_nccl_result_t (*init)(void **context, uint64_t comm_id, afdep_nccl_log_t log);
    afdep_nccl_result_t (*devices)(int *count);
    afdep_nccl_result_t (*get_properties)(int device, afdep_nccl_properties_v12_t *properties);
    afdep_nccl_result_t (*listen)(void *context, int device, void *handle, void **listener);
    afdep_nccl_result_t (*connect)(void *context, void *handles[], int ranks, int rank, void *listener, void **comm);
    afdep_nccl_result_t (*create_context)(void *comm, afdep_nccl_rma_config_v14_t *config, void **rma);
    afdep_nccl_result_t (*register_memory)(void *comm, void *data, size_t bytes, int pointer, uint64_t flags,
                                           void **handle);
    afdep_nccl_result_t (*register_dmabuf)(void *comm, void *data, size_t bytes, int pointer, uint64_t offset, int fd,
                                           uint64_t flags, void **handle);
    afdep_nccl_result_t (*deregister_memory)(void *comm, void *handle);
    afdep_nccl_result_t (*destroy_context)(void *rma);
    afdep_nccl_result_t (*close_comm)(void *comm);
    afdep_nccl_result_t (*close_listen)(void *listener);
    afdep_nccl_result_t (*iput)(void *rma, int context, uint64_t from_offset, void *from, size_t bytes,
                                uint64_t to_offset, void *to, uint32_t rank, void **request);
    afdep_nccl_result_t (*iput_signal)(void *rma, int context, uint64_t from_offset, void *from, size_t bytes,
                                       uint64_t to_offset, void *to, uint32_t rank, uint64_t signal_offset,
                                       void *signal, uint64_t value, uint32_t op, bool strong, void **request);
    afdep_nccl_result_t (*iget)(void *rma, int context, uint64_t remote_offset, void *remote, size_t bytes,
                                uint64_t local_offset, void *local, uint32_t rank, void **request);
    afdep_nccl_result_t (*iflush)(void *rma, int context, void *handle, uint32_t rank, void **request);
    afdep_nccl_result_t (*test)(void *comm, void *request, int *done);
    afdep_nccl_result_t (*progress)(void *rma);
    afdep_nccl_result_t (*query_error)(void *rma, bool *has_error);
    afdep_nccl_result_t (*finalize)(void *context);
} afdep_nccl_rma_v14_t;

#endif
