/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a host says before a cluster run: the machine's part of a record, the launcher's variables, what lets NICs reach
 * GPU memory, and which NCCL a program would load.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/lib/nics.h"
#include "bench/lib/preflight.h"
#include "bench/lib/record.h"

/* ---- The launcher ----------------------------------------------------------------------------------------------- */

static int positive(const char *text)
{
    char *end = NULL;
    long value = text && isdigit((unsigned char)*text) ? strtol(text, &end, 10) : 0;
    /* Slurm writes "2(x12)" for tasks per node: alike on all of them, or this is not enough to go by. */
    return end && (*end == 0 || *end == '(') && value > 0 && value < INT_MAX ? (int)value : 0;
}

void afdep_preflight_launched(const char *(*look_up)(const char *name), afdep_preflight_facts_t *facts)
{
    static const struct {
        const char *all, *local, *launcher;
    } launchers[] = {
        { "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE" },
        { "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_SIZE" },
        { "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS" },
        { "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_NPROCS" },
    };
    facts->launched = facts->local = 0;
    facts->launcher = NULL;
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        facts->launched = positive(look_up(launchers[i].all));
        if (facts->launched == 0)
            continue;
        facts->launcher = launchers[i].launcher;
        facts->local = positive(look_up(launchers[i].local));
        if (facts->local == 0 && strncmp(launchers[i].all, "SLURM", 5) == 0)
            facts->local = positive(look_up("SLURM_TASKS_PER_NODE"));
        return;
    }
}

static const char *environment(const char *name)
{
    return getenv(name);
}

/* ---- NICs and GPU memory ---------------------------------------------------------------------------------------- */

static int exists(const char *root, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, file);
    return access(path, F_OK) == 0;
}

/* Asks the driver of the first GPU. -1: there is none to ask. */
static int dmabuf_supported(void)
{
    enum { DMA_BUF_SUPPORTED = 124 }; /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, since CUDA 11.7 */
    int (*init)(unsigned) = NULL, (*attribute)(int *, int, int) = NULL;
    int value = -1;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return -1;
    void *symbol = dlsym(driver, "cuInit");
    memcpy(&init, &symbol, sizeof init);
    symbol = dlsym(driver, "cuDeviceGetAttribute");
    memcpy(&attribute, &symbol, sizeof attribute);
    if (!init || !attribute || init(0) != 0 || attribute(&value, DMA_BUF_SUPPORTED, 0) != 0)
        value = -1;
    dlclose(driver);
    return value;
}

/* "0000:19:00.0" from what nvidia-smi ("00000000:19:00.0") or the kernel writes. */
static int pci_address(const char *text, char *address, size_t size)
{
    unsigned domain, bus, slot, function;
    if (!text || sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
        return -1;
    snprintf(address, size, "%04x:%02x:%02x.%x", domain, bus, slot, function);
    return 0;
}

static int pci_path(const char *root, const char *device, char *path)
{
    char address[32], link[512];
    if (pci_address(device, address, sizeof address) != 0)
        return -1;
    snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, address);
    return realpath(link, path) ? 0 : -1;
}

int afdep_preflight_near(const char *root, const char *a, const char *b)
{
    char paths[2][PATH_MAX];
    int bridges = 0, complexes = 0;
    if (pci_path(root, a, paths[0]) != 0 || pci_path(root, b, paths[1]) != 0)
        return 0;
    /* Directories that both are below: /sys/devices, the root complex (pci0000:00), then bridges. */
    for (size_t i = 0; paths[0][i] && paths[0][i] == paths[1][i]; i++) {
        const char *name = &paths[0][i] + 1;
        unsigned domain, bus, slot, function;
        if (paths[0][i] != '/')
            continue;
        size_t length = strcspn(name, "/");
        if (strncmp(name, paths[1] + i + 1, length) != 0 || paths[1][i + 1 + length] != '/' || name[length] != '/')
            break;
        complexes += strncmp(name, "pci", 3) == 0;
        bridges += sscanf(name, "%x:%x:%x.%x/", &domain, &bus, &slot, &function) == 4;
    }
    /* One bridge in common is a root port; a switch has a port above and one below. */
    return bridges >= 2 ? 2 : complexes > 0 || bridges > 0 ? 1 : 0;
}

/* ---- NCCL ------------------------------------------------------------------------------------------------------- */

static void ask_nccl(afdep_preflight_facts_t *facts)
{
    int (*get_version)(int *) = NULL;
    int version = 0;
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    void *symbol = nccl ? dlsym(nccl, "ncclGetVersion") : NULL;
    memcpy(&get_version, &symbol, sizeof get_version);
    if (get_version && get_version(&version) == 0)
        snprintf(facts->runtime, sizeof facts->runtime, "%d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
    else
        snprintf(facts->runtime_why, sizeof facts->runtime_why, "%s", nccl ? "it says no version" : dlerror());
    /* It stays loaded: NCCL starts threads that a library which is gone would take along. */
}

static void copy_variable(char *to, size_t size, const char *name)
{
    const char *text = getenv(name);
    snprintf(to, size, "%s", text ? text : "");
}

void afdep_preflight_gather(const char *root, afdep_preflight_facts_t *facts)
{
    struct rlimit limit;
    memset(facts, 0, sizeof *facts);
    facts->root = root;
    facts->machine = afdep_record_machine();
    if (root[0])
        cJSON_ReplaceItemInObjectCaseSensitive(facts->machine, "nics", afdep_nics(root));
    afdep_preflight_launched(environment, facts);
    facts->peermem = exists(root, "/sys/module/nvidia_peermem") || exists(root, "/sys/module/nv_peer_mem");
    facts->dmabuf = dmabuf_supported();
#ifdef AFDEP_HAVE_NCCL_VERSION
    facts->built_nccl = 1;
    snprintf(facts->header, sizeof facts->header, "%s", AFDEP_HAVE_NCCL_VERSION);
#endif
#ifdef AFDEP_HAVE_MPI
    facts->mpi = 1;
#endif
    ask_nccl(facts);
    copy_variable(facts->gin_type, sizeof facts->gin_type, "NCCL_GIN_TYPE");
    copy_variable(facts->gin_enable, sizeof facts->gin_enable, "NCCL_GIN_ENABLE");
    copy_variable(facts->net_plugin, sizeof facts->net_plugin, "NCCL_NET_PLUGIN");
    copy_variable(facts->ib_disable, sizeof facts->ib_disable, "NCCL_IB_DISABLE");
    facts->memlock_bytes = getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY
                               ? -1 : (double)limit.rlim_cur;
}

void afdep_preflight_free(afdep_preflight_facts_t *facts)
{
    cJSON_Delete(facts->machine);
    facts->machine = NULL;
}
