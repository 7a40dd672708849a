/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records: the head that every one of them has, and files that are whole or not there. A record leaves this machine, so
 * it holds no host name and, of the environment, only this project's own variables.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/lib/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <afdep/afdep.h>

#include "bench/lib/json.h"
#include "bench/lib/machine.h"
#include "bench/lib/why.h"

extern char **environ;

/* ---- The head -------------------------------------------------------------------------------------------------- */

static cJSON *created_json(void)
{
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return cJSON_CreateString(text);
}

/* Appends `word` as a shell would need it: bare where that is safe, else in single quotes ('\'' for a quote). */
static char *append_word(char *out, const char *word)
{
    static const char *const safe =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    if (word[0] && strspn(word, safe) == strlen(word))
        return stpcpy(out, word);
    *out++ = '\'';
    for (; *word; word++) {
        if (*word == '\'')
            out = stpcpy(out, "'\\'");
        *out++ = *word;
    }
    return stpcpy(out, "'");
}

char *afdep_command_line(int argc, char *const *argv)
{
    size_t size = 1;
    for (int i = 0; i < argc; i++)
        size += 4 * strlen(argv[i]) + 3;
    char *text = malloc(size), *out = text;
    if (!text)
        return NULL;
    *out = 0;
    for (int i = 0; i < argc; i++) {
        if (i > 0)
            *out++ = ' ';
        out = append_word(out, argv[i]);
    }
    return text;
}

static cJSON *command_json(int argc, char **argv)
{
    char *text = afdep_command_line(argc, argv);
    cJSON *json = afdep_json_string(text);
    free(text);
    return json;
}

/* Only this project's variables, and of those never the job's secret nor where it is kept. */
static int recorded_variable(const char *entry)
{
    static const char ours[] = "AFDEP_", secret[] = "AFDEP_JOB_TOKEN";
    return strncmp(entry, ours, sizeof ours - 1) == 0 && strncmp(entry, secret, sizeof secret - 1) != 0;
}

static cJSON *environment_json(void)
{
    cJSON *json = cJSON_CreateObject();
    for (char **entry = environ; entry && *entry; entry++) {
        char name[128];
        size_t length = strcspn(*entry, "=");
        if (!recorded_variable(*entry) || (*entry)[length] == 0 || length >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length, *entry);
        cJSON_AddItemToObject(json, name, afdep_json_string(*entry + length + 1));
    }
    return json;
}

static cJSON *arm_json(const afdep_arm_t *arm)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToObject(json, "name", afdep_json_string(arm->name));
    cJSON_AddItemToObject(json, "protocol", afdep_json_string(arm->protocol));
    if (arm->library_protocol)
        cJSON_AddItemToObject(json, "library_protocol", afdep_json_string(arm->library_protocol));
    cJSON_AddBoolToObject(json, "stagger", arm->stagger);
    cJSON_AddBoolToObject(json, "sparse_dispatch", arm->sparse_dispatch);
    cJSON_AddBoolToObject(json, "sparse_combine", arm->sparse_combine);
    if (arm->fp8_combine)
        cJSON_AddTrueToObject(json, "fp8_combine");
    cJSON_AddItemToObject(json, "dtype", afdep_json_string(arm->dtype));
    cJSON_AddItemToObject(json, "backend", afdep_json_string(arm->backend));
    cJSON_AddItemToObject(json, "fabric", afdep_json_string(arm->fabric));
    cJSON_AddBoolToObject(json, "emulated", arm->emulated);
    cJSON_AddBoolToObject(json, "graph", arm->graph);
    cJSON_AddItemToObject(json, "domains", afdep_json_string(arm->domains));
    if (arm->pinned)
        cJSON_AddBoolToObject(json, "pinned", 1);
    if (arm->nic)
        cJSON_AddItemToObject(json, "nic", cJSON_Duplicate(arm->nic, 1));
    if (arm->fault)
        cJSON_AddItemToObject(json, "fault", cJSON_Duplicate(arm->fault, 1));
    cJSON *gin = arm->gin ? afdep_gin_note_json(arm->gin) : NULL;
    if (gin)
        cJSON_AddItemToObject(json, "gin", gin);
    return json;
}

cJSON *afdep_record_build(void)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "version", afdep_version());
#ifdef __clang__
    cJSON_AddStringToObject(json, "compiler", __VERSION__);
#else
    cJSON_AddStringToObject(json, "compiler", "gcc " __VERSION__);
#endif
#ifdef AFDEP_BUILD_FLAGS
    cJSON_AddStringToObject(json, "flags", AFDEP_BUILD_FLAGS);
#else
    cJSON_AddStringToObject(json, "flags", "");
#endif
    cJSON *features = cJSON_AddArrayToObject(json, "features");
    cJSON_AddItemToArray(features, cJSON_CreateString("host"));
    cJSON_AddItemToArray(features, cJSON_CreateString("shm"));
#ifdef AFDEP_HAVE_MPI
    cJSON_AddItemToArray(features, cJSON_CreateString("mpi"));
#endif
#ifdef AFDEP_HAVE_CUDA
    cJSON_AddItemToArray(features, cJSON_CreateString("cuda"));
    cJSON_AddItemToArray(features, cJSON_CreateString("peer"));
#endif
#ifdef AFDEP_HAVE_NCCL
    cJSON_AddItemToArray(features, cJSON_CreateString("nccl"));
#endif
#ifdef AFDEP_HAVE_VERBS
    cJSON_AddItemToArray(features, cJSON_CreateString("verbs"));
#endif
    cJSON_AddBoolToObject(json, "dirty", afdep_native_tree_dirty());
    return json;
}

cJSON *afdep_record_begin(const char *schema, int argc, char **argv, const afdep_scenario_t *scenario,
                          const afdep_arm_t *arm, int ranks, int ranks_per_host)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "schema", schema);
    cJSON_AddItemToObject(json, "created", created_json());
    cJSON_AddItemToObject(json, "command", command_json(argc, argv));
    cJSON_AddItemToObject(json, "environment", environment_json());
    cJSON_AddItemToObject(json, "scenario", afdep_scenario_json(scenario));
    cJSON_AddItemToObject(json, "arm", arm_json(arm));
    cJSON_AddStringToObject(json, "native_tree", afdep_native_tree());
    cJSON_AddItemToObject(json, "build", afdep_record_build());
    cJSON *machine = afdep_record_machine();
    cJSON_AddNumberToObject(machine, "ranks_per_host", ranks_per_host);
    int gpus = afdep_machine_gpus(machine), on_gpus = arm->backend && strcmp(arm->backend, "cuda") == 0;
    cJSON_AddItemToObject(machine, "ranks_per_gpu",
                          on_gpus && gpus > 0 ? cJSON_CreateNumber((double)ranks_per_host / gpus) : cJSON_CreateNull());
    cJSON_AddItemToObject(json, "machine", machine);
    cJSON_AddNumberToObject(json, "ranks", ranks);
    return json;
}

cJSON *afdep_record_number(double value)
{
    return isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static int write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t put = write(fd, bytes, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        bytes += put;
        size -= (size_t)put;
    }
    return 0;
}

/* For what cannot be replaced by a rename: pipes, terminals, /dev/stdout. */
static int write_through(const char *file, const char *bytes, size_t size, char *why, size_t why_size)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return afdep_why(why, why_size, "%s: cannot be opened: %s", file, strerror(errno));
    int failed = write_all(fd, bytes, size) < 0 ? errno : 0;
    if (close(fd) < 0 && !failed)
        failed = errno;
    return failed ? afdep_why(why, why_size, "%s: cannot be written: %s", file, strerror(failed)) : 0;
}

/* Creates a file of its own beside `file`; the name is free for the caller's rename. */
static int open_beside(const char *file, char *name, size_t size)
{
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        if (snprintf(name, size, "%s.%ld.%u.tmp", file, (long)getpid(), attempt) >= (int)size) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* So that the rename itself survives a power cut. Not every file system can; the record is whole either way. */
static void sync_folder(const char *file)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(file, '/');
    int length = slash == file ? 1 : slash ? (int)(slash - file) : 0;
    snprintf(folder, sizeof folder, "%.*s", length ? length : 1, length ? file : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

static int write_replacing(const char *file, const char *bytes, size_t size, char *why, size_t why_size)
{
    char name[PATH_MAX];
    int fd = open_beside(file, name, sizeof name);
    if (fd < 0)
        return afdep_why(why, why_size, "%s: cannot be created: %s", file, strerror(errno));
    int failed = write_all(fd, bytes, size) < 0 || fsync(fd) < 0 ? errno : 0;
    if (close(fd) < 0 && !failed)
        failed = errno;
    if (!failed && rename(name, file) < 0)
        failed = errno;
    if (failed) {
        unlink(name);
        return afdep_why(why, why_size, "%s: cannot be written: %s", file, strerror(failed));
    }
    sync_folder(file);
    return 0;
}

int afdep_file_write(const char *file, const char *bytes, size_t size, char *why, size_t why_size)
{
    struct stat status;
    char target[PATH_MAX];
    int exists = stat(file, &status) == 0;
    if (exists && S_ISDIR(status.st_mode))
        return afdep_why(why, why_size, "%s: cannot be written: it is a directory", file);
    if (strncmp(file, "/dev/", 5) == 0 || (exists && !S_ISREG(status.st_mode)))
        return write_through(file, bytes, size, why, why_size);
    /* A symbolic link keeps pointing where it does: what it points at is replaced. */
    return write_replacing(exists && realpath(file, target) ? target : file, bytes, size, why, why_size);
}

int afdep_record_write(const char *file, const cJSON *record, char *why, size_t why_size)
{
    char *printed = cJSON_Print(record);
    size_t size = printed ? strlen(printed) : 0;
    char *text = printed ? realloc(printed, size + 2) : NULL;
    if (!text) {
        free(printed);
        return afdep_why(why, why_size, "%s: no memory to write it", file);
    }
    memcpy(text + size, "\n", 2);
    int status = afdep_file_write(file, text, size + 1, why, why_size);
    free(text);
    return status;
}

int afdep_record_probe(const char *file, char *why, size_t why_size)
{
    struct stat st;
    int there = stat(file, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return afdep_why(why, why_size, "%s: is a directory", file);
    if (there && !S_ISREG(st.st_mode)) /* a device or a pipe is written through */
        return access(file, W_OK) == 0 ? 0 : afdep_why(why, why_size, "%s: %s", file, strerror(errno));
    size_t size = strlen(file) + 32;
    char *name = malloc(size);
    if (!name)
        return afdep_why(why, why_size, "%s: no memory to write it", file);
    snprintf(name, size, "%s.%ld.probe", file, (long)getpid());
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), saved = errno;
    if (fd >= 0) {
        close(fd);
        unlink(name);
    }
    free(name);
    return fd >= 0 ? 0 : afdep_why(why, why_size, "%s: %s", file, strerror(saved));
}

cJSON *afdep_record_read(const char *file, char *why, size_t why_size)
{
    return afdep_json_read(file, AFDEP_JSON_RECORD_BYTES, why, why_size);
}
