/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX shared memory objects: making, finding and sweeping them.
 *
 * The lock is what tells a name whose owner lives from one that was left: the kernel drops it with the owner's last
 * descriptor. A sweeper may come between an owner's open and its lock; then the owner finds the lock taken or its link
 * count zero, and makes another object.
 */
#include "fabric/shm_object.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/error.h"

#define SHM_DIRECTORY "/dev/shm" /* where shm_open keeps its names on Linux */
#define NAME_DIGITS 32
#define CREATE_TRIES 100

/* `name` without the leading slash. */
static int is_ours(const char *name)
{
    size_t prefix = strlen(AFDEP_SHM_PREFIX);

    return strncmp(name, AFDEP_SHM_PREFIX, prefix) == 0 && strlen(name) == prefix + NAME_DIGITS &&
           strspn(name + prefix, "0123456789abcdef") == NAME_DIGITS;
}

static void sweep_one(int directory, const char *name)
{
    struct stat st;
    int fd;

    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
        return;
    fd = openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    /* Closing drops the lock again, after the name is gone. */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(directory, name, 0);
    close(fd);
}

void afdep_shm_sweep(void)
{
    DIR *directory = opendir(SHM_DIRECTORY);
    struct dirent *entry;

    if (!directory)
        return;
    while ((entry = readdir(directory)) != NULL) {
        if (is_ours(entry->d_name))
            sweep_one(dirfd(directory), entry->d_name);
    }
    closedir(directory);
}

static int random_name(char *name)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[NAME_DIGITS / 2];
    char *out = name;

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return -1;
    memcpy(out, "/" AFDEP_SHM_PREFIX, strlen("/" AFDEP_SHM_PREFIX));
    out += strlen("/" AFDEP_SHM_PREFIX);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
    return 0;
}

/* 1: locked and still named; 0: a sweeper was faster, try another name; -1: errno says why not. */
static int claim(afdep_shm_object_t *object)
{
    struct stat st;

    if (flock(object->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? 0 : -1;
    if (fchmod(object->fd, 0600) != 0 || fstat(object->fd, &st) != 0) /* an odd umask takes bits away */
        return -1;
    object->address.dev = (uint64_t)st.st_dev;
    object->address.ino = (uint64_t)st.st_ino;
    return st.st_nlink > 0;
}

afdep_status_t afdep_shm_object_create(afdep_shm_object_t *object)
{
    afdep_shm_sweep();
    for (int i = 0; i < CREATE_TRIES; i++) {
        int claimed;

        memset(&object->address, 0, sizeof(object->address));
        object->fd = -1;
        if (random_name(object->address.name) != 0)
            return afdep_fail(AFDEP_ERR_SYSTEM, "no random bytes for a shared memory name: %s", strerror(errno));
        object->fd = shm_open(object->address.name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (object->fd < 0 && errno == EEXIST)
            continue;
        if (object->fd < 0)
            return afdep_fail(AFDEP_ERR_SYSTEM, "cannot make a shared memory object in " SHM_DIRECTORY ": %s",
                              strerror(errno));
        claimed = claim(object);
        if (claimed > 0)
            return AFDEP_OK;
        if (claimed < 0)
            afdep_fail(AFDEP_ERR_SYSTEM, "cannot lock a shared memory object in " SHM_DIRECTORY ": %s",
                       strerror(errno));
        afdep_shm_object_close(object);
        if (claimed < 0)
            return AFDEP_ERR_SYSTEM;
    }
    return afdep_fail(AFDEP_ERR_SYSTEM, "cannot keep a shared memory object in " SHM_DIRECTORY
                      ": its name was removed %d times", CREATE_TRIES);
}

static afdep_status_t verify(int fd, const afdep_shm_address_t *address, uint64_t bytes, int rank)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "cannot examine the shared memory of rank %d: %s", rank, strerror(errno));
    if ((uint64_t)st.st_dev != address->dev || (uint64_t)st.st_ino != address->ino || !S_ISREG(st.st_mode))
        return afdep_fail(AFDEP_ERR_SYSTEM, "the shared memory found for rank %d is not the one it announced", rank);
    if (st.st_uid != geteuid() || (st.st_mode & 07777) != 0600)
        return afdep_fail(AFDEP_ERR_SYSTEM, "the shared memory of rank %d belongs to user %lu with mode %o, "
                          "not to user %lu with mode 600", rank, (unsigned long)st.st_uid,
                          (unsigned)(st.st_mode & 07777), (unsigned long)geteuid());
    if ((uint64_t)st.st_size != bytes)
        return afdep_fail(AFDEP_ERR_PROTOCOL, "the shared memory of rank %d has %llu bytes, not %llu", rank,
                          (unsigned long long)st.st_size, (unsigned long long)bytes);
    return AFDEP_OK;
}

afdep_status_t afdep_shm_object_attach(const afdep_shm_address_t *address, uint64_t bytes, int rank, int *fd)
{
    afdep_status_t status;
    int opened;

    if (memchr(address->name, '\0', sizeof(address->name)) == NULL || address->name[0] != '/' ||
        !is_ours(address->name + 1))
        return afdep_fail(AFDEP_ERR_PROTOCOL, "rank %d announced a shared memory name that is none of afdep's", rank);
    opened = shm_open(address->name, O_RDWR | O_CLOEXEC, 0);
    if (opened < 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "cannot open the shared memory of rank %d: %s", rank, strerror(errno));
    status = verify(opened, address, bytes, rank);
    if (status != AFDEP_OK) {
        close(opened);
        return status;
    }
    *fd = opened;
    return AFDEP_OK;
}

void afdep_shm_object_unlink(afdep_shm_object_t *object)
{
    if (object->address.name[0] == '\0')
        return;
    shm_unlink(object->address.name);
    object->address.name[0] = '\0';
}

void afdep_shm_object_close(afdep_shm_object_t *object)
{
    if (object->fd < 0)
        return;
    /* The name first: while it is there the lock must be held, or a sweeper may take a peer's open away. */
    afdep_shm_object_unlink(object);
    close(object->fd);
    object->fd = -1;
}

afdep_status_t afdep_shm_room(int ranks, uint64_t needed)
{
    struct statvfs room;
    uint64_t available;

    if (statvfs("/dev/shm", &room) != 0)
        return afdep_fail(AFDEP_ERR_SYSTEM, "cannot examine /dev/shm: %s", strerror(errno));
    /* A tmpfs of unlimited size reports no blocks at all. */
    if (room.f_blocks == 0)
        return AFDEP_OK;
    available = (uint64_t)room.f_bavail * (uint64_t)room.f_frsize;
    if (needed > available)
        return afdep_fail(AFDEP_ERR_MEMORY, "the segments of %d ranks need %llu bytes and /dev/shm has %llu free",
                          ranks, (unsigned long long)needed, (unsigned long long)available);
    return AFDEP_OK;
}
