/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver API, looked up at run time: programs start on machines without libcuda. And the sentence for a CUDA error.
 */
#ifndef AFDEP_CUDA_DRIVER_H
#define AFDEP_CUDA_DRIVER_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <afdep/status.h>

typedef struct afdep_driver {
    CUresult (*get_error_name)(CUresult error, const char **name);
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*device_get_attribute)(int *value, CUdevice_attribute attribute, CUdevice device);
    CUresult (*mem_create)(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                           unsigned long long flags);
    CUresult (*mem_release)(CUmemGenericAllocationHandle handle);
    CUresult (*mem_address_reserve)(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr address,
                                    unsigned long long flags);
    CUresult (*mem_address_free)(CUdeviceptr at, size_t size);
    CUresult (*mem_map)(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                        unsigned long long flags);
    CUresult (*mem_unmap)(CUdeviceptr at, size_t size);
    CUresult (*mem_set_access)(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count);
    CUresult (*mem_get_granularity)(size_t *granularity, const CUmemAllocationProp *prop,
                                    CUmemAllocationGranularity_flags option);
    CUresult (*mem_export)(void *handle, CUmemGenericAllocationHandle allocation, CUmemAllocationHandleType type,
                           unsigned long long flags);
    CUresult (*mem_import)(CUmemGenericAllocationHandle *allocation, void *handle, CUmemAllocationHandleType type);
} afdep_driver_t;

/* Fills `driver`. UNSUPPORTED, with the reason, where there is no driver or it lacks one of these. */
afdep_status_t afdep_driver_load(afdep_driver_t *driver);

/* OK, or `status` with a sentence that names what was tried and the error. */
afdep_status_t afdep_driver_check(const afdep_driver_t *driver, CUresult result, afdep_status_t status, const char *what);
afdep_status_t afdep_cuda_check(cudaError_t error, afdep_status_t status, const char *what);

#endif
