/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL, looked up at run time: programs start, and host exchanges run, on machines without it, and in a process that has
 * an NCCL already it is that one. And the sentence for one of its errors.
 */
#ifndef AFDEP_CUDA_NCCL_H
#define AFDEP_CUDA_NCCL_H

#include <nccl.h>

#include <afdep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* GPU-initiated networking: its device interface came with 2.28.7, and works in what is tested here from 2.28.9. */
#define AFDEP_NCCL_HAS_GIN (NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 9))

/* What is used of it: member, and NCCL's name. The types are its header's own. */
#define AFDEP_NCCL_SYMBOLS(use)                      \
    use(get_version, ncclGetVersion)                 \
    use(get_error_string, ncclGetErrorString)        \
    use(get_last_error, ncclGetLastError)            \
    use(get_unique_id, ncclGetUniqueId)              \
    use(comm_init_rank, ncclCommInitRank)            \
    use(comm_destroy, ncclCommDestroy)               \
    use(comm_abort, ncclCommAbort)                   \
    use(comm_register, ncclCommRegister)             \
    use(comm_deregister, ncclCommDeregister)         \
    use(window_register, ncclCommWindowRegister)     \
    use(window_deregister, ncclCommWindowDeregister) \
    use(mem_alloc, ncclMemAlloc)                     \
    use(mem_free, ncclMemFree)                       \
    use(group_start, ncclGroupStart)                 \
    use(group_end, ncclGroupEnd)                     \
    use(send, ncclSend)                              \
    use(recv, ncclRecv)

#define AFDEP_NCCL_MEMBER(member, name) __typeof__(&name) member;
typedef struct afdep_nccl {
    AFDEP_NCCL_SYMBOLS(AFDEP_NCCL_MEMBER)
    /* Of the device communicator, whose types C cannot read everywhere: nccl_team.cu calls them by those. */
    void (*dev_comm_create)(void);
    void (*dev_comm_destroy)(void);
} afdep_nccl_t;

/*
 * Loads libnccl.so.2 once per process, and keeps it. UNSUPPORTED where it is not there, lacks one of the symbols, or has
 * another version than the header that this was built with can work with; the sentence then holds both.
 */
afdep_status_t afdep_nccl_load(const afdep_nccl_t **nccl);

/* Whether code built with NCCL `header` may run with NCCL `runtime` (both as ncclGetVersion gives them). */
int afdep_nccl_fits(int header, int runtime);

/* OK, or `status` with a sentence that names what was tried, NCCL's error and its last words on it. */
afdep_status_t afdep_nccl_check(const afdep_nccl_t *nccl, ncclResult_t result, afdep_status_t status, const char *what);

#ifdef __cplusplus
}
#endif
#endif
