/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which host and which process a rank is in.
 */
#include "fabric/host_id.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The one thing that must be the same for all ranks of a process and differ between processes. A forked child inherits
   it; the pid beside it in afdep_host_id_t tells the two apart. */
static uint8_t process_cookie[16];
static pthread_once_t process_cookie_once = PTHREAD_ONCE_INIT;

static void make_process_cookie(void)
{
    if (getrandom(process_cookie, sizeof(process_cookie), 0) != (ssize_t)sizeof(process_cookie)) {
        /* Only a kernel without the call gets here; address randomization and the pid must do. */
        uint64_t address = (uint64_t)(uintptr_t)&process_cookie;
        memcpy(process_cookie, &address, sizeof(address));
    }
}

static void get_host(char *host, size_t bytes)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = -1;

    memset(host, 0, bytes);
    if (fd >= 0) {
        got = read(fd, host, bytes - 1);
        close(fd);
    }
    if (got <= 0) {
        struct utsname name;

        memset(host, 0, bytes);
        if (uname(&name) == 0)
            memcpy(host, name.nodename, strnlen(name.nodename, bytes - 1));
    }
}

void afdep_host_id_get(afdep_host_id_t *id)
{
    struct stat shm;

    pthread_once(&process_cookie_once, make_process_cookie);
    memset(id, 0, sizeof(*id));
    get_host(id->host, sizeof(id->host));
    if (stat("/dev/shm", &shm) == 0)
        id->shm_dev = (uint64_t)shm.st_dev;
    id->pid = (uint64_t)getpid();
    memcpy(id->process, process_cookie, sizeof(id->process));
}

int afdep_host_id_same_host(const afdep_host_id_t *a, const afdep_host_id_t *b)
{
    return memcmp(a->host, b->host, sizeof(a->host)) == 0 && a->shm_dev == b->shm_dev;
}

int afdep_host_id_same_process(const afdep_host_id_t *a, const afdep_host_id_t *b)
{
    return afdep_host_id_same_host(a, b) && a->pid == b->pid &&
           memcmp(a->process, b->process, sizeof(a->process)) == 0;
}
