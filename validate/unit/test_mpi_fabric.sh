#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The MPI group and the mpi fabric between 4 processes.
set -u
if [ -z "${MPIRUN-}" ]; then
    echo "skipped: this build has no MPI"
    exit 77
fi
set -- -n 4 ./validate/unit/mpi_fabric
# Open MPI wants to be told of few processors and of root; others do not know these options.
if $MPIRUN --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then
    set -- --oversubscribe "$@"
    [ "$(id -u)" -ne 0 ] || set -- --allow-run-as-root "$@"
fi
exec timeout 120 "$MPIRUN" "$@" </dev/null
