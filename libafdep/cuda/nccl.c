/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, looked up at run time. */
#include "cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static afdep_nccl_t loaded;
static char refusal[512]; /* "": it is loaded */

int afdep_nccl_fits(int header, int runtime)
{
    /* From 2.29 on the structs of the device communicator say which version they are of, and a newer library takes an
       older one's; before, one patch level does not know another's. */
    if (header < NCCL_VERSION(2, 29, 0))
        return header == runtime;
    return runtime >= header && runtime / 10000 == header / 10000;
}

static void write_version(char *text, size_t size, int code)
{
    snprintf(text, size, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
}

static void check_version(void)
{
    char header[32], runtime[32];
    int code = 0;
    if (loaded.get_version(&code) != ncclSuccess) {
        snprintf(refusal, sizeof(refusal), "libnccl.so.2 does not tell its version");
        return;
    }
    const char *wanted = NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? "that very version" : "that version or newer";
    write_version(header, sizeof(header), NCCL_VERSION_CODE);
    write_version(runtime, sizeof(runtime), code);
    if (!afdep_nccl_fits(NCCL_VERSION_CODE, code))
        snprintf(refusal, sizeof(refusal), "built with the header of NCCL %s, and libnccl.so.2 is NCCL %s: %s is wanted",
                 header, runtime, wanted);
}

#define FIND(member, name)                                                                  \
    if (!(found = dlsym(library, #name))) {                                                 \
        snprintf(refusal, sizeof(refusal), "libnccl.so.2 has no %s: it is too old", #name); \
        return;                                                                             \
    }                                                                                       \
    memcpy(&loaded.member, &found, sizeof(found));

static void load(void)
{
    void *found, *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(refusal, sizeof(refusal), "NCCL cannot be loaded: %s", dlerror());
        return;
    }
    AFDEP_NCCL_SYMBOLS(FIND)
    FIND(dev_comm_create, ncclDevCommCreate)
    FIND(dev_comm_destroy, ncclDevCommDestroy)
    check_version();
}

afdep_status_t afdep_nccl_load(const afdep_nccl_t **nccl)
{
    (void)pthread_once(&once, load);
    if (refusal[0])
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "%s", refusal);
    *nccl = &loaded;
    return AFDEP_OK;
}

afdep_status_t afdep_nccl_check(const afdep_nccl_t *nccl, ncclResult_t result, afdep_status_t status, const char *what)
{
    if (result == ncclSuccess)
        return AFDEP_OK;
    const char *words = nccl->get_last_error(NULL);
    int length = words ? (int)strcspn(words, "\n") : 0;
    return afdep_fail(status, "%s: %s%s%.*s", what, nccl->get_error_string(result), length ? ": " : "", length,
                      words ? words : "");
}
