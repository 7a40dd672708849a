#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# docs/examples/connector.py exchanges over the shared library of this build and compares with NumPy.
set -u
top=${srcdir:-.}
[ -z "${CFLAGS-}" ] || { echo "skipped: a library with sanitizers does not load into Python"; exit 77; }
for python in "${PYTHON3-}" /usr/bin/python3; do
    [ -n "$python" ] && "$python" -c 'import numpy' 2>/dev/null || continue
    for library in libafdep/.libs/libafdep.so libafdep/.libs/libafdep.dylib; do
        [ -e "$library" ] || continue
        AFDEP_LIBRARY=$(pwd)/$library exec "$python" "$top/docs/examples/connector.py"
    done
    echo "skipped: this build has no shared library"
    exit 77
done
echo "skipped: no Python here has NumPy"
exit 77
