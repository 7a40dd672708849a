#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every installed header compiles alone, as strict C11 and as C++, with all warnings as errors.
set -u
top=${srcdir:-.}
CC=${CC:-cc}
failed=0
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT

compile() { # compile LANGUAGE HEADER COMMAND...
    language=$1 header=$2
    shift 2
    # Twice: a header that lacks its guard fails.
    printf '#include <afdep/%s>\n#include <afdep/%s>\nint main(void) { return 0; }\n' "$header" "$header" >"$scratch/alone.$language"
    if "$@" -Wall -Wextra -Werror -pedantic -Ilibafdep/include -I"$top/libafdep/include" -c "$scratch/alone.$language" -o "$scratch/alone.o"; then
        echo "ok $language $header"
    else
        echo "FAILED: $header does not compile alone as $language"
        failed=1
    fi
}

# The C++ bindings that some mpi.h bring along are not ours to compile without warnings.
mpi_flags=$(echo "${MPI_CFLAGS-}" | sed 's/\(^\| \)-I */ -isystem /g')
for header in afdep.h group.h low_latency.h status.h version.h mpi.h; do
    flags=
    if [ "$header" = mpi.h ]; then
        [ -n "${MPIRUN-}" ] || continue
        flags="$mpi_flags -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX"
    fi
    # shellcheck disable=SC2086
    compile c "$header" $CC -std=c11 $flags
    # shellcheck disable=SC2086
    [ -n "${CXX-}" ] && compile cc "$header" $CXX -std=c++11 $flags
done
[ -n "${CXX-}" ] || echo "# no C++ compiler was found: headers were compiled as C only"
exit $failed
