/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How segments in device memory are made and mapped. A device fabric gives kernels plain pointers to every rank's
 * segment; what they store there follows CUDA's memory model at system scope. The host side needs a word now and then
 * (parting), which goes over a stream of the fabric's own, never over one that a waiting kernel could hold up.
 */
#ifndef AFDEP_CUDA_FABRIC_H
#define AFDEP_CUDA_FABRIC_H

#include <cuda_runtime_api.h>

#include "fabric/fabric.h"

typedef struct afdep_device_fabric afdep_device_fabric_t;

typedef struct afdep_device_fabric_args {
    const afdep_group_t *group;
    int device;
    int timeout_ms;
    uint64_t bytes; /* of this rank's segment; zero-filled at open */
    /* Sets words to their starting values, before any peer can reach the segment. */
    afdep_status_t (*prepare)(void *context, void *base, cudaStream_t stream);
    void *prepare_context;
} afdep_device_fabric_args_t;

/* A device fabric that can be opened by name. `super` is its place among the fabrics; only the CUDA backend opens it. */
typedef struct afdep_device_provider {
    afdep_fabric_provider_t super;
    /* Collective; the same number of allgathers on every rank, failing or not. */
    afdep_status_t (*open)(const afdep_device_fabric_args_t *args, afdep_device_fabric_t **fabric);
    /* Local. UNSUPPORTED with a reason where it cannot be had on this machine. */
    afdep_status_t (*available)(void);
} afdep_device_provider_t;

struct afdep_device_fabric {
    int rank, size;
    cudaStream_t stream;      /* of the host side's own copies and words */
    unsigned char *base;      /* this rank's segment */
    unsigned char **segments; /* [size]: every rank's, as mapped here */
    int *same_device;         /* [size]: the rank's segment stands on this rank's device */
    afdep_status_t (*write_word)(afdep_device_fabric_t *fabric, int peer, uint64_t offset, uint64_t value);
    afdep_status_t (*read_words)(afdep_device_fabric_t *fabric, uint64_t offset, uint64_t *words, int count);
    int (*alive)(afdep_device_fabric_t *fabric, int peer);
    /* Local. Not in order: peers may still write; their writes land in memory that stays valid. Frees `fabric`. */
    void (*close)(afdep_device_fabric_t *fabric, int in_order);
};

extern const afdep_device_provider_t afdep_device_peer;
extern const afdep_device_provider_t afdep_device_nccl; /* where AFDEP_HAVE_NCCL says that it is built */

/* What device fabrics share. A host side's words, as members of afdep_device_fabric_t. */
afdep_status_t afdep_device_write_word(afdep_device_fabric_t *fabric, int peer, uint64_t offset, uint64_t value);
afdep_status_t afdep_device_read_words(afdep_device_fabric_t *fabric, uint64_t offset, uint64_t *words, int count);

/* Fills a fresh segment and waits until it is. */
afdep_status_t afdep_device_prepare(const afdep_device_fabric_args_t *args, void *base, cudaStream_t stream);

/* OK where this process can use a GPU, else UNSUPPORTED with CUDA's reason. */
afdep_status_t afdep_device_gpu(void);

/* `super.open`: only the CUDA backend can use segments in device memory. */
afdep_status_t afdep_device_refuse_host(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                        afdep_fabric_t **fabric);

#endif
