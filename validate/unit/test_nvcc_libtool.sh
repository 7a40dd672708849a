#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A .cu file goes through libtool: scripts/nvcc-libtool hands libtool's -fPIC to the host compiler, both to a stand-in
# that refuses it bare as nvcc does, and to nvcc where there is one.
set -u
wrapper=$(cd "$(dirname "$0")/../../scripts" && pwd)/nvcc-libtool
LIBTOOL=${LIBTOOL:-./libtool}
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
failed=0

check() { # check WHAT COMMAND...
    what=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then echo "ok $what"; else echo "FAILED $what"; cat "$scratch/log"; failed=1; fi
}

cat >"$scratch/standin" <<'EOF'
#!/bin/sh
# Takes what nvcc takes: host flags only behind -Xcompiler. Compiles the file as C.
set -e
host= output= source=
while [ $# -gt 0 ]; do
    case $1 in
    -Xcompiler) host="$host $2"; shift ;;
    -fPIC | -fpic | -pthread) echo "nvcc fatal : Unknown option '$1'" >&2; exit 1 ;;
    -o) output=$2; shift ;;
    *.cu) source=$1 ;;
    '-DTEXT=a b') seen=1 ;;
    esac
    shift
done
[ "$seen" = 1 ]
case $host in *-fPIC*) ;; *) echo "no -fPIC reached the host compiler" >&2; exit 1 ;; esac
exec ${CC:-cc} $host -x c -c "$source" -o "$output"
EOF
chmod +x "$scratch/standin"
printf 'int afdep_test_value = 7;\nint afdep_test(void) { return afdep_test_value; }\n' >"$scratch/plain.cu"
# shellcheck disable=SC2086
check "stand-in compiles" $LIBTOOL --silent --tag=CC --mode=compile sh "$wrapper" "$scratch/standin" '-DTEXT=a b' -c -o "$scratch/plain.lo" "$scratch/plain.cu"
# shellcheck disable=SC2086
check "stand-in's object links into a shared library" $LIBTOOL --silent --tag=CC --mode=link ${CC:-cc} -shared -module -avoid-version -rpath /nowhere -o "$scratch/plain.la" "$scratch/plain.lo"

if [ -n "${NVCC-}" ]; then
    cat >"$scratch/kernel.cu" <<'EOF'
__global__ void afdep_test_kernel(int *out) { *out = 7; }
extern "C" int afdep_test_launch(int *out)
{
    afdep_test_kernel<<<1, 1>>>(out);
    return (int)cudaGetLastError();
}
EOF
    root=$(cd "$(dirname "$(readlink -f "$NVCC")")/.." && pwd)
    # shellcheck disable=SC2086
    check "nvcc compiles" $LIBTOOL --silent --tag=CC --mode=compile sh "$wrapper" "$NVCC" -c -o "$scratch/kernel.lo" "$scratch/kernel.cu"
    # shellcheck disable=SC2086
    check "nvcc's object links into a shared library" $LIBTOOL --silent --tag=CC --mode=link ${CC:-cc} -shared -module -avoid-version -rpath /nowhere \
        -o "$scratch/kernel.la" "$scratch/kernel.lo" -L"$root/lib64" -L"$root/lib" -lcudart -lstdc++
else
    echo "# no nvcc: tried with a stand-in only"
fi
exit $failed
