/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX shared memory objects that strangers cannot guess or enter and that no crash leaves behind: mode 0600, made
 * exclusively under a random name, locked by their owner's process, their name removed as soon as the peers are in. The
 * name of an owner that was killed before that is removed by whichever afdep process makes an object next.
 */
#ifndef AFDEP_FABRIC_SHM_OBJECT_H
#define AFDEP_FABRIC_SHM_OBJECT_H

#include <stdint.h>

#include <afdep/status.h>

#define AFDEP_SHM_PREFIX "afdep-"
#define AFDEP_SHM_NAME_BYTES 40 /* "/afdep-", 32 hexadecimal digits, NUL */

/* How a peer finds an object, and knows that it is the one that was meant. Travels over the group. */
typedef struct afdep_shm_address {
    char name[AFDEP_SHM_NAME_BYTES];
    uint64_t dev, ino;
} afdep_shm_address_t;

typedef struct afdep_shm_object {
    afdep_shm_address_t address; /* the name is "" once it is removed */
    int fd;                      /* -1: none; holds the owner's lock (flock) until it is closed */
} afdep_shm_object_t;

#define AFDEP_SHM_OBJECT_INIT { { { 0 }, 0, 0 }, -1 }

/* Removes the names of objects whose owner died between making and removing them. Only this user's; never an object
   whose owner lives. */
void afdep_shm_sweep(void);

/* Sweeps, then makes an empty object and takes its lock. Errors: SYSTEM. */
afdep_status_t afdep_shm_object_create(afdep_shm_object_t *object);

/*
 * Opens rank `rank`'s object read-write and verifies that it is the one announced: device, inode, type, owner, mode,
 * and `bytes` as its size. `*fd` is set on success only and is the caller's to close. Errors: SYSTEM, PROTOCOL.
 */
afdep_status_t afdep_shm_object_attach(const afdep_shm_address_t *address, uint64_t bytes, int rank, int *fd);

/* Removes the name; the object lives on with its descriptors and mappings. Harmless when done before. */
void afdep_shm_object_unlink(afdep_shm_object_t *object);

/* Removes the name where it is still there, and drops the lock. Harmless on an object that was never made. */
void afdep_shm_object_close(afdep_shm_object_t *object);

/* MEMORY, with both numbers, where /dev/shm has less than `needed` bytes free for the segments of `ranks` ranks. */
AFDEP_EXPORT afdep_status_t afdep_shm_room(int ranks, uint64_t needed);

#endif
