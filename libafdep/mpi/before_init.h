/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs of this project, before MPI_Init. Open MPI moves rows between processes of a host by process_vm_writev,
 * and does not notice that a container's seccomp filter forbids it: every put then prints a warning and is lost. Its
 * emulation needs no permission. What the user has set stays.
 */
#ifndef AFDEP_MPI_BEFORE_INIT_H
#define AFDEP_MPI_BEFORE_INIT_H

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static inline void afdep_mpi_before_init(void)
{
    char from = 1, to = 0;
    struct iovec local = { &to, 1 }, remote = { &from, 1 };
    int saved = errno;

    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1)
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "emulated", 0);
    errno = saved;
}

#endif
