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

/* What a fabric that maps no segment of another domain is asked for, and has. */
typedef struct afdep_rail_gin {
    int num_qps, type, traffic_class; /* as settings: asked for */
    int signals;                      /* of a rank, the same on all */
    int alone;                        /* asked for though there is one domain: to see what NCCL gives */
    int contexts, found_type;         /* had: contexts that are used; NCCL's number */
    int loopback;                     /* NCCL is told to load the plugin that stands in for a network on one host */
    char why[160];                    /* that it is this type and as many contexts */
    const void *host, *device;        /* what kernels are given */
} afdep_rail_gin_t;

typedef struct afdep_device_fabric_args {
    const afdep_group_t *group;
    int device;
    int timeout_ms;
    uint64_t bytes; /* of this rank's segment; zero-filled at open */
    int ranks_per_domain;
    afdep_rail_gin_t gin; /* of several domains: as asked for */
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
    unsigned char **segments; /* [size]: every rank's, as mapped here; NULL where it is not */
    int *same_device;         /* [size]: the rank's segment stands on this rank's device */
    int *reached;             /* [size]: the rank is one that this one writes to, or that writes here */
    afdep_rail_gin_t gin;     /* host NULL: all segments are mapped */
    /* Writes a word to the same place of every reached rank's segment. `offset` is a word that only this rank writes; in its
       own segment nobody reads it. */
    afdep_status_t (*tell)(afdep_device_fabric_t *fabric, uint64_t offset, uint64_t value);
    afdep_status_t (*read_words)(afdep_device_fabric_t *fabric, uint64_t offset, uint64_t *words, int count);
    int (*alive)(afdep_device_fabric_t *fabric, int peer);
    /* Local. Not in order: peers may still write; their writes land in memory that stays valid. Frees `fabric`. */
    void (*close)(afdep_device_fabric_t *fabric, int in_order);
};

extern const afdep_device_provider_t afdep_device_peer;
extern const afdep_device_provider_t afdep_device_nccl; /* where AFDEP_HAVE_NCCL says that it is built */

/* What device fabrics share. A host side's words, as members of afdep_device_fabric_t. */
afdep_status_t afdep_device_tell(afdep_device_fabric_t *fabric, uint64_t offset, uint64_t value); /* what is mapped */
afdep_status_t afdep_device_read_words(afdep_device_fabric_t *fabric, uint64_t offset, uint64_t *words, int count);

/* Fills a fresh segment and waits until it is. */
afdep_status_t afdep_device_prepare(const afdep_device_fabric_args_t *args, void *base, cudaStream_t stream);

/* OK where this process can use a GPU, else UNSUPPORTED with CUDA's reason. */
afdep_status_t afdep_device_gpu(void);

/* `super.open`: only the CUDA backend can use segments in device memory. */
afdep_status_t afdep_device_refuse_host(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                        afdep_fabric_t **fabric);

#endif
