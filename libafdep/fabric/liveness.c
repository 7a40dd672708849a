/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the other ranks of this host live. Every rank holds the lock (flock) of an empty shared memory object, and
 * the kernel drops it with the process; a peer tries a shared lock through a descriptor of its own. An owner that
 * leaves by afdep_liveness_close() gives its object a size first: it went in order, which is not death.
 *
 * The lock belongs to the open file description, so a child that a rank forks without exec keeps it. Where a peer's
 * process can be seen, it is looked at as well: gone, or a zombie, is dead, whoever holds the lock.
 */
#include "fabric/liveness.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "fabric/host_id.h"
#include "fabric/process.h"
#include "fabric/round.h"
#include "fabric/shm_object.h"

#define LEFT_IN_ORDER 1 /* the object's size once its owner has closed */

struct afdep_liveness {
    int size;
    afdep_shm_object_t own;
    struct peer {
        int fd; /* of the peer's object; -1 where this rank cannot tell */
        afdep_process_t process;
    } peers[];          /* [size] */
};

typedef struct mark_record {
    afdep_round_t round;
    afdep_host_id_t host;
    afdep_shm_address_t address;
    afdep_process_t process;
} mark_record_t;

static afdep_liveness_t *liveness_new(int size)
{
    afdep_liveness_t *l = calloc(1, sizeof(*l) + (size_t)size * sizeof(l->peers[0]));

    if (!l)
        return NULL;
    l->size = size;
    l->own.fd = -1;
    for (int r = 0; r < size; r++)
        l->peers[r].fd = -1;
    return l;
}

static afdep_status_t attach_peers(afdep_liveness_t *l, const mark_record_t *all, int rank)
{
    for (int r = 0; r < l->size; r++) {
        afdep_status_t status;

        if (r == rank || afdep_host_id_same_process(&all[r].host, &all[rank].host) ||
            !afdep_host_id_same_host(&all[r].host, &all[rank].host))
            continue;
        status = afdep_shm_object_attach(&all[r].address, 0, r, &l->peers[r].fd);
        if (status != AFDEP_OK)
            return status;
        l->peers[r].process = afdep_process_seen(all[r].process);
    }
    return AFDEP_OK;
}

/* Two rounds on every rank, or one where it fails on all. */
static afdep_status_t meet(const afdep_group_t *group, afdep_status_t status, afdep_liveness_t *l, mark_record_t *all)
{
    mark_record_t mine;
    afdep_round_t attached;

    memset(&mine, 0, sizeof(mine));
    if (status == AFDEP_OK)
        status = afdep_shm_object_create(&l->own);
    if (status == AFDEP_OK)
        mine.address = l->own.address;
    afdep_host_id_get(&mine.host);
    mine.process = afdep_process_self();
    status = afdep_round_gather(group, status, &mine, all, sizeof(mine));
    if (status != AFDEP_OK)
        return status;
    status = attach_peers(l, all, group->rank);
    /* The first round's records are done with, and they are larger: their room holds this round's too. */
    status = afdep_round_gather(group, status, &attached, all, sizeof(attached));
    afdep_shm_object_unlink(&l->own);
    return status;
}

afdep_status_t afdep_liveness_open(const afdep_group_t *group, afdep_liveness_t **liveness)
{
    afdep_liveness_t *l = liveness_new(group->size);
    mark_record_t *all = calloc((size_t)group->size, sizeof(*all));
    afdep_status_t status = AFDEP_OK;

    if (!l || !all)
        status = afdep_fail(AFDEP_ERR_MEMORY, "no memory for the liveness marks of %d ranks", group->size);
    status = meet(group, status, l, all);
    free(all);
    if (status != AFDEP_OK) {
        afdep_liveness_close(l);
        return status;
    }
    *liveness = l;
    return AFDEP_OK;
}

int afdep_liveness_tells(const afdep_liveness_t *liveness, int peer)
{
    return peer >= 0 && peer < liveness->size && liveness->peers[peer].fd >= 0;
}

int afdep_liveness_alive(afdep_liveness_t *liveness, int peer)
{
    int saved = errno;
    struct stat st;
    int alive = 1;
    int fd;

    if (!afdep_liveness_tells(liveness, peer))
        return 1;
    fd = liveness->peers[peer].fd;
    /* Shared, so that two ranks that ask at the same moment do not take each other for the owner. */
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        alive = fstat(fd, &st) != 0 || st.st_size == LEFT_IN_ORDER;
        flock(fd, LOCK_UN);
    } else if (afdep_process_gone(liveness->peers[peer].process)) {
        alive = fstat(fd, &st) != 0 || st.st_size == LEFT_IN_ORDER; /* a child of the dead holds the lock */
    }
    errno = saved;
    return alive;
}

void afdep_liveness_close(afdep_liveness_t *liveness)
{
    if (!liveness)
        return;
    for (int r = 0; r < liveness->size; r++) {
        if (liveness->peers[r].fd >= 0)
            close(liveness->peers[r].fd);
    }
    if (liveness->own.fd >= 0 && ftruncate(liveness->own.fd, LEFT_IN_ORDER) != 0) {
        /* Nothing can be done: peers that still wait will take this rank for dead. */
    }
    afdep_shm_object_close(&liveness->own);
    free(liveness);
}
