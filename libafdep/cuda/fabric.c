/* SPDX-License-Identifier: Apache-2.0 */
/* What the device fabrics share. */
#include "cuda/fabric.h"

#include "core/error.h"
#include "cuda/driver.h"

afdep_status_t afdep_device_tell(afdep_device_fabric_t *f, uint64_t offset, uint64_t value)
{
    cudaError_t error = cudaSuccess;
    for (int peer = 0; error == cudaSuccess && peer < f->size; peer++)
        if (peer != f->rank && f->segments[peer])
            error = cudaMemcpyAsync(f->segments[peer] + offset, &value, sizeof(value), cudaMemcpyDefault, f->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(f->stream);
    return afdep_cuda_check(error, AFDEP_ERR_TRANSPORT, "device fabric: writing words");
}

afdep_status_t afdep_device_read_words(afdep_device_fabric_t *f, uint64_t offset, uint64_t *words, int count)
{
    cudaError_t error = cudaMemcpyAsync(words, f->base + offset, (size_t)count * sizeof(*words), cudaMemcpyDefault,
                                        f->stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(f->stream);
    return afdep_cuda_check(error, AFDEP_ERR_TRANSPORT, "device fabric: reading words");
}

afdep_status_t afdep_device_prepare(const afdep_device_fabric_args_t *args, void *base, cudaStream_t stream)
{
    afdep_status_t status = afdep_cuda_check(cudaMemsetAsync(base, 0, args->bytes, stream), AFDEP_ERR_MEMORY,
                                             "device fabric: clearing the segment");
    if (status == AFDEP_OK)
        status = args->prepare(args->prepare_context, base, stream);
    return status == AFDEP_OK ? afdep_cuda_check(cudaStreamSynchronize(stream), AFDEP_ERR_SYSTEM,
                                                 "device fabric: preparing the segment")
                              : status;
}

afdep_status_t afdep_device_gpu(void)
{
    int devices = 0, driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess && devices > 0)
        return AFDEP_OK;
    if (error != cudaErrorInsufficientDriver)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "no GPU can be used: %s",
                          error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 || cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        return afdep_fail(AFDEP_ERR_UNSUPPORTED, "no GPU can be used: no CUDA driver is installed");
    return afdep_fail(AFDEP_ERR_UNSUPPORTED, "no GPU can be used: the driver is for CUDA %d.%d, this was built with %d.%d",
                      driver / 1000, driver / 10 % 100, runtime / 1000, runtime / 10 % 100);
}

afdep_status_t afdep_device_refuse_host(const afdep_fabric_provider_t *self, const afdep_fabric_args_t *args,
                                        afdep_fabric_t **fabric)
{
    (void)args, (void)fabric;
    return afdep_fail(AFDEP_ERR_UNSUPPORTED, "fabric is \"%s\": backend \"cuda\" is wanted with it", self->name);
}
