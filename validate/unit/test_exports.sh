#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library shows the functions that the public headers declare, and what the MPI library borrows; no more.
set -u
top=${srcdir:-.}
library=libafdep/.libs/libafdep.so
if [ ! -f $library ]; then
    echo "skipped: $library was not built (--disable-shared, or another name on this system)"
    exit 77
fi
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
# What libafdep-mpi takes from libafdep beyond the public headers.
borrowed="afdep_fail afdep_liveness_alive afdep_liveness_close afdep_liveness_open afdep_round_gather afdep_shm_room"

cat "$top"/libafdep/include/afdep/afdep.h "$top"/libafdep/include/afdep/group.h "$top"/libafdep/include/afdep/low_latency.h \
    "$top"/libafdep/include/afdep/status.h |
    sed -n 's/^AFDEP_EXPORT .*[ *]\(afdep_[a-z_0-9]*\)(.*/\1/p' | sort >"$scratch/declared"
${NM:-nm} -D --defined-only $library | sed 's/.* //; s/@.*//' | sort >"$scratch/exported"
failed=0
for name in $(comm -23 "$scratch/declared" "$scratch/exported"); do
    echo "FAILED: $name is declared but not exported"
    failed=1
done
for name in $(comm -13 "$scratch/declared" "$scratch/exported"); do
    case " $borrowed " in *" $name "*) continue ;; esac
    case $name in __*san_* | __odr_asan* | _init | _fini) continue ;; esac
    echo "FAILED: $name is exported but in no public header"
    failed=1
done
echo "$(wc -l <"$scratch/declared") functions declared"
[ -s "$scratch/declared" ] || failed=1
exit $failed
