/* SPDX-License-Identifier: Apache-2.0 */
/* The driver API, looked up at run time. */
#include "cuda/driver.h"

#include <stddef.h>
#include <string.h>

#include "core/error.h"

static afdep_status_t look_up(const char *name, void *slot)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !found)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "the CUDA driver has no %s: %s", name,
                          error != cudaSuccess ? cudaGetErrorString(error) : "it is not installed or too old");
    memcpy(slot, &found, sizeof(found));
    return AFDEP_OK;
}

afdep_status_t afdep_driver_load(afdep_driver_t *driver)
{
    const struct {
        const char *name;
        void *slot;
    } entries[] = {
        { "cuGetErrorName", &driver->get_error_name },
        { "cuDeviceGet", &driver->device_get },
        { "cuDeviceGetAttribute", &driver->device_get_attribute },
        { "cuMemCreate", &driver->mem_create },
        { "cuMemRelease", &driver->mem_release },
        { "cuMemAddressReserve", &driver->mem_address_reserve },
        { "cuMemAddressFree", &driver->mem_address_free },
        { "cuMemMap", &driver->mem_map },
        { "cuMemUnmap", &driver->mem_unmap },
        { "cuMemSetAccess", &driver->mem_set_access },
        { "cuMemGetAllocationGranularity", &driver->mem_get_granularity },
        { "cuMemExportToShareableHandle", &driver->mem_export },
        { "cuMemImportFromShareableHandle", &driver->mem_import },
    };
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        afdep_status_t status = look_up(entries[i].name, entries[i].slot);
        if (status != AFDEP_OK)
            return status;
    }
    return AFDEP_OK;
}

afdep_status_t afdep_driver_check(const afdep_driver_t *driver, CUresult result, afdep_status_t status, const char *what)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return AFDEP_OK;
    if (driver->get_error_name(result, &name) != CUDA_SUCCESS || !name)
        name = "unknown error";
    return afdep_fail(status, "%s: %s (%d)", what, name, (int)result);
}

afdep_status_t afdep_cuda_check(cudaError_t error, afdep_status_t status, const char *what)
{
    if (error == cudaSuccess)
        return AFDEP_OK;
    return afdep_fail(status, "%s: %s", what, cudaGetErrorString(error));
}
