/* SPDX-License-Identifier: Apache-2.0 */
/* The lock, the scratch folder, and the tries. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/screen_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/lib/why.h"

/* Enough that a file system with room for names but none for contents shows. */
#define AFDEP_TRIED_BYTES (256 * 1024)

static char *join(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

static int make_folders(const char *path)
{
    char *part = strdup(path);
    int failed = !part;
    for (char *slash = part; !failed && slash && (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        failed = mkdir(part, 0777) < 0 && errno != EEXIST;
        *slash = '/';
    }
    if (!failed)
        failed = mkdir(path, 0777) < 0 && errno != EEXIST;
    int saved = errno;
    free(part);
    errno = saved;
    return failed ? -1 : 0;
}

/* Whether the open lock still is the file of its name: its owner before may have removed it in between. */
static int still_named(int fd, const char *name)
{
    struct stat open, named;
    return fstat(fd, &open) == 0 && stat(name, &named) == 0 && open.st_ino == named.st_ino &&
           open.st_dev == named.st_dev;
}

static int take_lock(afdep_screen_folder_t *folder, const char *path, char *why, size_t why_size)
{
    for (;;) {
        int fd = open(folder->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return afdep_why(why, why_size, "%s: cannot be written: %s", path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int failed = errno;
            close(fd);
            return failed == EWOULDBLOCK
                       ? afdep_why(why, why_size, "%s: another screen is running there", path)
                       : afdep_why(why, why_size, "%s: cannot be locked: %s", folder->lock, strerror(failed));
        }
        if (still_named(fd, folder->lock)) {
            folder->fd = fd;
            return 0;
        }
        close(fd);
    }
}

/* A whole file of some size, made and removed. */
static int try_writing(const afdep_screen_folder_t *folder)
{
    char *bytes = calloc(1, AFDEP_TRIED_BYTES), *name = join(folder->scratch, "try");
    int fd = bytes && name ? open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    int failed = fd < 0;
    for (size_t done = 0; !failed && done < AFDEP_TRIED_BYTES;) {
        ssize_t put = write(fd, bytes + done, AFDEP_TRIED_BYTES - done);
        if (put > 0)
            done += (size_t)put;
        else
            failed = put == 0 || errno != EINTR;
    }
    failed = failed || fsync(fd) < 0;
    int saved = errno;
    if (fd >= 0) {
        close(fd);
        unlink(name);
    }
    free(name);
    free(bytes);
    errno = saved;
    return failed ? -1 : 0;
}

static int prepare(const char *path, int force, afdep_screen_folder_t *folder, char *why, size_t why_size)
{
    if (access(folder->results, F_OK) == 0 && !force)
        return afdep_why(why, why_size, "%s: holds the results of an earlier screen (--force replaces them)", path);
    afdep_screen_folder_sweep(folder);
    if ((mkdir(folder->scratch, 0777) < 0 && errno != EEXIST) || try_writing(folder) < 0)
        return afdep_why(why, why_size, "%s: cannot be written: %s", path, strerror(errno));
    if (unlink(folder->results) < 0 && errno != ENOENT)
        return afdep_why(why, why_size, "%s: cannot be replaced: %s", folder->results, strerror(errno));
    return 0;
}

int afdep_screen_folder_name(const char *path, afdep_screen_folder_t *folder)
{
    *folder = (afdep_screen_folder_t){ .fd = -1 };
    folder->results = join(path, AFDEP_SCREEN_RESULTS);
    folder->scratch = join(path, ".run");
    folder->record = join(path, ".run/record.json");
    folder->lock = join(path, ".lock");
    return folder->results && folder->scratch && folder->record && folder->lock ? 0 : -1;
}

int afdep_screen_folder_open(const char *path, int force, afdep_screen_folder_t *folder, char *why, size_t why_size)
{
    int status = 0;
    if (afdep_screen_folder_name(path, folder) < 0)
        status = afdep_why(why, why_size, "%s: no memory for its name", path);
    else if (make_folders(path) < 0)
        status = afdep_why(why, why_size, "%s: cannot be made: %s", path, strerror(errno));
    else
        status = take_lock(folder, path, why, why_size);
    if (status == 0)
        status = prepare(path, force, folder, why, why_size);
    if (status < 0)
        afdep_screen_folder_close(folder);
    return status;
}

void afdep_screen_folder_sweep(const afdep_screen_folder_t *folder)
{
    DIR *scratch = opendir(folder->scratch);
    for (struct dirent *entry; scratch && (entry = readdir(scratch));)
        unlinkat(dirfd(scratch), entry->d_name, 0);
    if (scratch)
        closedir(scratch);
}

void afdep_screen_folder_close(afdep_screen_folder_t *folder)
{
    /* Only its owner cleans up; the lock's name goes while it is still held. */
    if (folder->fd >= 0) {
        afdep_screen_folder_sweep(folder);
        rmdir(folder->scratch);
        unlink(folder->lock);
        close(folder->fd);
    }
    free(folder->lock);
    free(folder->record);
    free(folder->scratch);
    free(folder->results);
    *folder = (afdep_screen_folder_t){ .fd = -1 };
}
