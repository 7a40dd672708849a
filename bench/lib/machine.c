/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine part of records and afdep-info: processor, memory, kernel, GPUs, driver, library versions, NICs. Nothing
 * here names the host or a device's serial number, since records are committed and passed around. GPUs are asked for
 * through nvidia-smi, else read from the driver's files; only whether the library can use one is CUDA's word.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "bench/lib/machine.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifdef AFDEP_HAVE_MPI
#include <mpi.h>
#endif

#include "bench/lib/command.h"
#include "bench/lib/json.h"
#include "bench/lib/nics.h"
#include "bench/lib/record.h"
#ifdef AFDEP_HAVE_CUDA
#include "cuda/fabric.h"
#endif

#define AFDEP_TOOL_TIMEOUT_MS 10000
#define AFDEP_CPUS_MAX 8192

/* ---- Processor, memory, kernel --------------------------------------------------------------------------------- */

static cJSON *cpu_json(void)
{
    char model[128];
    char *text = afdep_file_text("/proc/cpuinfo");
    const char *name = text ? afdep_text_value(text, "model name", model, sizeof model) : NULL;
    struct utsname system;
    cJSON *json = afdep_json_string(name ? name : uname(&system) == 0 ? system.machine : NULL);
    free(text);
    return json;
}

/* Processors this process may run on: a launcher that pins shows here. */
static cJSON *allowed_json(void)
{
    cpu_set_t *set = CPU_ALLOC(AFDEP_CPUS_MAX);
    size_t size = CPU_ALLOC_SIZE(AFDEP_CPUS_MAX);
    cJSON *json = set && sched_getaffinity(0, size, set) == 0 ? cJSON_CreateNumber(CPU_COUNT_S(size, set))
                                                              : cJSON_CreateNull();
    if (set)
        CPU_FREE(set);
    return json;
}

static cJSON *kernel_json(void)
{
    struct utsname system;
    char text[3 * sizeof system.release];
    if (uname(&system) < 0)
        return cJSON_CreateNull();
    snprintf(text, sizeof text, "%s %s %s", system.sysname, system.release, system.machine);
    return afdep_json_string(text);
}

/* PRETTY_NAME="Debian GNU/Linux 12 (bookworm)" */
static cJSON *distribution_json(void)
{
    static const char key[] = "PRETTY_NAME=";
    char *text = afdep_file_text("/etc/os-release");
    char *value = text ? strstr(text, key) : NULL;
    if (value) {
        value += sizeof key - 1;
        value += *value == '"';
        value[strcspn(value, "\"\n")] = 0;
    }
    cJSON *json = afdep_json_string(value);
    free(text);
    return json;
}

/* Size of the file system that shared-memory segments live in: containers are often given 64 MiB. */
static cJSON *shared_memory_json(void)
{
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs) < 0)
        return cJSON_CreateNull();
    return cJSON_CreateNumber((double)fs.f_blocks * (double)fs.f_frsize);
}

/* ---- GPUs ------------------------------------------------------------------------------------------------------ */

static cJSON *gpu_json(const char *name, double mebibytes, const char *compute, const char *pci, const char *mig)
{
    cJSON *gpu = cJSON_CreateObject();
    cJSON_AddItemToObject(gpu, "name", afdep_json_string(name));
    cJSON_AddItemToObject(gpu, "memory_bytes",
                          mebibytes > 0 ? cJSON_CreateNumber(mebibytes * 1048576) : cJSON_CreateNull());
    cJSON_AddItemToObject(gpu, "compute", afdep_json_string(compute));
    cJSON_AddItemToObject(gpu, "pci", afdep_json_string(pci));
    cJSON_AddItemToObject(gpu, "mig", mig ? cJSON_CreateBool(strcmp(mig, "Enabled") == 0) : cJSON_CreateNull());
    cJSON_AddNullToObject(gpu, "nvlinks");
    cJSON_AddNullToObject(gpu, "nvlink_gbytes_per_s");
    return gpu;
}

/* Splits one line of comma-separated values in place. Returns the number of columns, at most `max`. */
static int split(char *line, char **columns, int max)
{
    int count = 0;
    for (char *next; line && count < max; line = next) {
        next = strchr(line, ',');
        if (next)
            *next++ = 0;
        line += strspn(line, " ");
        for (char *end = line + strlen(line); end > line && (end[-1] == ' ' || end[-1] == '\r'); end--)
            end[-1] = 0;
        columns[count++] = line;
    }
    return count;
}

cJSON *afdep_machine_parse_gpus(const char *text, char *driver, size_t size)
{
    cJSON *gpus = cJSON_CreateArray();
    driver[0] = 0;
    char *copy = strdup(text), *rest = copy, *line, *columns[7];
    while (copy && (line = strsep(&rest, "\n")) != NULL)
        if (split(line, columns, 7) == 6) {
            cJSON_AddItemToArray(gpus, gpu_json(columns[0], strtod(columns[1], NULL), columns[2], columns[3],
                                                columns[4]));
            snprintf(driver, size, "%s", columns[5]);
        }
    free(copy);
    return gpus;
}

void afdep_machine_parse_nvlinks(const char *text, cJSON *gpus)
{
    cJSON *gpu = NULL;
    int links = 0, index;
    double rate, total = 0;
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL) {
        line += strspn(line, " \t");
        if (sscanf(line, "GPU %d:", &index) == 1) {
            gpu = cJSON_GetArrayItem(gpus, index);
            links = 0;
            total = 0;
        } else if (gpu && sscanf(line, "Link %*d: %lf GB/s", &rate) == 1) {
            cJSON_ReplaceItemInObject(gpu, "nvlinks", cJSON_CreateNumber(++links));
            cJSON_ReplaceItemInObject(gpu, "nvlink_gbytes_per_s", cJSON_CreateNumber(total += rate));
        }
    }
}

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...": the first word made of
   digits and dots, since what stands before it differs between drivers. */
void afdep_machine_parse_driver(const char *text, char *driver, size_t size)
{
    const char *word = strstr(text, "NVRM version:");
    driver[0] = 0;
    while (word && *word && *word != '\n') {
        size_t length = strcspn(word, " \t\n");
        if (length > 0 && strspn(word, "0123456789.") == length && memchr(word, '.', length)) {
            snprintf(driver, size, "%.*s", (int)length, word);
            return;
        }
        word += length;
        word += strspn(word, " \t");
    }
}

/* Names only, where the driver is loaded and nvidia-smi is not installed. */
static cJSON *gpus_from_files(char *driver, size_t size)
{
    static const char folder[] = "/proc/driver/nvidia/gpus";
    cJSON *gpus = cJSON_CreateArray();
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char file[sizeof folder + 300], name[128];
        snprintf(file, sizeof file, "%s/%s/information", folder, entries[i]->d_name);
        char *text = entries[i]->d_name[0] == '.' ? NULL : afdep_file_text(file);
        if (text && afdep_text_value(text, "Model", name, sizeof name))
            cJSON_AddItemToArray(gpus, gpu_json(name, 0, NULL, entries[i]->d_name, NULL));
        free(text);
        free(entries[i]);
    }
    free(entries);
    char *text = afdep_file_text("/proc/driver/nvidia/version");
    if (text)
        afdep_machine_parse_driver(text, driver, size);
    free(text);
    return gpus;
}

static cJSON *gpus_json(char *driver, size_t size)
{
    static const char *const query[] = { "nvidia-smi", "--query-gpu=" AFDEP_GPU_QUERY,
                                         "--format=csv,noheader,nounits", NULL };
    static const char *const links[] = { "nvidia-smi", "nvlink", "--status", NULL };
    driver[0] = 0;
    /* Without the driver's device there is no GPU, and no reason to start a program. */
    if (access("/dev/nvidiactl", F_OK) < 0 && access("/proc/driver/nvidia/version", F_OK) < 0)
        return cJSON_CreateArray();
    char *text = afdep_command_output(query, AFDEP_TOOL_TIMEOUT_MS);
    cJSON *gpus = text ? afdep_machine_parse_gpus(text, driver, size) : gpus_from_files(driver, size);
    free(text);
    text = cJSON_GetArraySize(gpus) > 0 ? afdep_command_output(links, AFDEP_TOOL_TIMEOUT_MS) : NULL;
    if (text)
        afdep_machine_parse_nvlinks(text, gpus);
    free(text);
    return gpus;
}

/* Whether a CUDA MPS control daemon listens where CUDA programs would look for it. */
static int mps_present(void)
{
    char file[4096];
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(file, sizeof file, "%s/control", folder && folder[0] ? folder : "/tmp/nvidia-mps");
    return access(file, F_OK) == 0;
}

int afdep_machine_gpus(const cJSON *machine)
{
    return cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(machine, "gpus"));
}

/* ---- Libraries ------------------------------------------------------------------------------------------------- */

static cJSON *mpi_json(void)
{
#ifdef AFDEP_HAVE_MPI
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    /* Allowed before MPI_Init and after MPI_Finalize. */
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return cJSON_CreateNull();
    /* Up to the first comma or line end: the rest names the builder and the build machine. */
    text[strcspn(text, ",\n")] = 0;
    return afdep_json_string(text);
#else
    return cJSON_CreateNull();
#endif
}

static cJSON *cuda_json(void)
{
#ifdef AFDEP_HAVE_CUDA_VERSION
    return afdep_json_string(AFDEP_HAVE_CUDA_VERSION);
#else
    return cJSON_CreateNull();
#endif
}

static cJSON *nccl_json(void)
{
#ifdef AFDEP_HAVE_NCCL_VERSION
    return afdep_json_string(AFDEP_HAVE_NCCL_VERSION);
#else
    return cJSON_CreateNull();
#endif
}

cJSON *afdep_record_machine(void)
{
    char driver[64];
    cJSON *json = cJSON_CreateObject();
    cJSON_AddItemToObject(json, "cpu", cpu_json());
    cJSON_AddNumberToObject(json, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    cJSON_AddItemToObject(json, "cores_allowed", allowed_json());
    cJSON_AddNumberToObject(json, "memory_bytes", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE));
    cJSON_AddItemToObject(json, "shared_memory_bytes", shared_memory_json());
    cJSON_AddItemToObject(json, "kernel", kernel_json());
    cJSON_AddItemToObject(json, "distribution", distribution_json());
    cJSON_AddItemToObject(json, "gpus", gpus_json(driver, sizeof driver));
    cJSON_AddItemToObject(json, "driver", afdep_json_string(driver[0] ? driver : NULL));
    cJSON_AddBoolToObject(json, "mps", mps_present());
    cJSON_AddItemToObject(json, "cuda", cuda_json());
    cJSON_AddItemToObject(json, "nccl", nccl_json());
    cJSON_AddItemToObject(json, "mpi", mpi_json());
    cJSON_AddItemToObject(json, "nics", afdep_nics(""));
    return json;
}

/* ---- What this build has --------------------------------------------------------------------------------------- */

static void add_part(cJSON *list, const char *name, int built, const char *why)
{
    cJSON *part = cJSON_CreateObject();
    cJSON_AddStringToObject(part, "name", name);
    cJSON_AddBoolToObject(part, "built", built);
    cJSON_AddItemToObject(part, "why", afdep_json_string(why));
    cJSON_AddItemToArray(list, part);
}

#ifdef AFDEP_HAVE_CUDA
/* What is built, and why it cannot be had on this machine where it cannot. */
static void add_device_part(cJSON *list, const char *name, afdep_status_t (*available)(void))
{
    add_part(list, name, 1, available() == AFDEP_OK ? NULL : afdep_last_error());
}
#endif

cJSON *afdep_machine_backends(void)
{
    cJSON *list = cJSON_CreateArray();
    add_part(list, "host", 1, NULL);
#ifdef AFDEP_HAVE_CUDA
    add_device_part(list, "cuda", afdep_device_gpu);
#else
    add_part(list, "cuda", 0, "not built: configured without CUDA");
#endif
    return list;
}

cJSON *afdep_machine_fabrics(void)
{
    cJSON *list = cJSON_CreateArray();
    add_part(list, "shm", 1, NULL);
#ifdef AFDEP_HAVE_MPI
    add_part(list, "mpi", 1, NULL);
#else
    add_part(list, "mpi", 0, "not built: configured without MPI");
#endif
#ifdef AFDEP_HAVE_CUDA
    add_device_part(list, "peer", afdep_device_peer.available);
#else
    add_part(list, "peer", 0, "not built: configured without CUDA");
#endif
#ifdef AFDEP_HAVE_NCCL
    add_device_part(list, "nccl", afdep_device_nccl.available);
#else
    add_part(list, "nccl", 0, "not built: configured without NCCL");
#endif
    return list;
}
