/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which host and which process a rank is in, in a form that ranks can hand each other and compare.
 */
#ifndef AFDEP_FABRIC_HOST_ID_H
#define AFDEP_FABRIC_HOST_ID_H

#include <stdint.h>

typedef struct afdep_host_id {
    char host[64];     /* the kernel's boot id, else the node name; NUL-padded */
    uint64_t shm_dev;  /* device of /dev/shm: containers of one host that do not share it count as different hosts */
    uint64_t pid;
    uint8_t process[16]; /* random per process, since a pid means nothing across pid namespaces */
} afdep_host_id_t;

/* Fills `id`, padding included. */
void afdep_host_id_get(afdep_host_id_t *id);

/* 1 when objects of one rank's /dev/shm are the other's. */
int afdep_host_id_same_host(const afdep_host_id_t *a, const afdep_host_id_t *b);

/* 1 when a pointer of one rank means the same to the other. */
int afdep_host_id_same_process(const afdep_host_id_t *a, const afdep_host_id_t *b);

#endif
