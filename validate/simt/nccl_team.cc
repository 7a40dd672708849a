/* SPDX-License-Identifier: Apache-2.0 */
/* In place of libafdep/cuda/nccl_team.cu, whose kernel needs NCCL's device functions: only GPUs have its fabric. */
#include <cuda_runtime.h>

extern "C" {

int afdep_nccl_team_create()
{
    return 1; /* ncclUnhandledCudaError */
}

void afdep_nccl_team_destroy()
{
}

void afdep_nccl_team_place()
{
}

cudaError_t afdep_nccl_team_addresses()
{
    return cudaErrorNotSupported;
}
}
