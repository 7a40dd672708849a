#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/gin-loopback: which domain a rank is in, under each launcher's variables, what it sets and what it keeps, and
# what it refuses; and that the plugin shows NCCL's tables, nothing else, and needs no CUDA to be loaded.
set -u
script=${srcdir:-.}/scripts/gin-loopback
plugin=libafdep/.libs/libnccl-net-afdep.so
if ! command -v bash >/dev/null || [ ! -f $plugin ]; then
    echo "skipped: no bash, or $plugin was not built (--disable-shared)"
    exit 77
fi
folder=$(mktemp -d) || exit 99
trap 'rm -rf "$folder"' EXIT
failed=0
fail() {
    echo "FAILED $*"
    failed=1
}
clean() { # clean VARIABLE=VALUE... COMMAND...: no launcher's variables but these
    env -u OMPI_COMM_WORLD_RANK -u PMIX_RANK -u PMI_RANK -u SLURM_PROCID -u RANK -u NCCL_HOSTID -u NCCL_GIN_NCONTEXTS \
        -u NCCL_SOCKET_IFNAME "$@"
}
has() { # has LINE WHAT
    grep -qxF -e "$1" "$folder/out" || fail "$2: no line '$1'"
}

clean OMPI_COMM_WORLD_RANK=5 bash "$script" --print >"$folder/out" || fail "--print: exit $?"
has "NCCL_HOSTID=afdep-domain-2" "rank 5 of domains of two"
has "NCCL_NET_PLUGIN=$(readlink -f $plugin)" "the plugin of this build tree"
has NCCL_GIN_TYPE=2 "the proxy and nothing in its place"
has NCCL_GIN_NCONTEXTS=1 "contexts"
has NCCL_NET_PLUGIN_REF_COUNT=1 "a plugin that the second communicator of a process finds, too"
clean SLURM_PROCID=7 NCCL_GIN_NCONTEXTS=4 bash "$script" --ranks-per-domain 4 --print >"$folder/out" || fail "Slurm: exit $?"
has "NCCL_HOSTID=afdep-domain-1" "rank 7 of domains of four"
has NCCL_GIN_NCONTEXTS=4 "a setting that is there"
clean OMPI_COMM_WORLD_RANK=0 SLURM_PROCID=9 bash "$script" --ranks-per-domain=1 --print >"$folder/out"
has "NCCL_HOSTID=afdep-domain-0" "mpirun within a Slurm job"
clean bash "$script" --print >"$folder/out"
grep -q NCCL_HOSTID "$folder/out" && fail "no launcher: NCCL_HOSTID is set"

clean PMI_RANK=3 bash "$script" sh -c 'echo "$NCCL_HOSTID $NCCL_NET_PLUGIN $1"; exit 7' sh 'a b' >"$folder/out"
test $? = 7 || fail "the command's exit status is lost"
has "afdep-domain-1 $(readlink -f $plugin) a b" "a command's environment and arguments"

refuses() { # refuses WORD ARGUMENT...
    word=$1
    shift
    clean bash "$script" "$@" >"$folder/out" 2>"$folder/err"
    test $? = 2 || fail "$*: not exit 2"
    test "$(wc -l <"$folder/err")" = 1 || fail "$*: more or less than one line"
    grep -q -e "$word" "$folder/err" || fail "$*: no '$word' in: $(cat "$folder/err")"
}
refuses 'command is needed'
refuses frobnicate --frobnicate true
refuses "'x'" --ranks-per-domain x true
refuses "'0'" --ranks-per-domain 0 true
refuses nowhere.so --plugin nowhere.so true

for name in ncclGinPlugin_v11 ncclGinPlugin_v13 ncclNetPlugin_v11 ncclRmaPlugin_v14; do echo $name; done >"$folder/wanted"
${NM:-nm} -D --defined-only $plugin | sed 's/.* //; s/@.*//' | grep -v -e '^__.*san' -e '^_init$' -e '^_fini$' | sort >"$folder/shown"
cmp -s "$folder/wanted" "$folder/shown" || fail "the plugin shows: $(tr '\n' ' ' <"$folder/shown")"
ldd $plugin 2>/dev/null | grep -e libcuda -e libnccl && fail "the plugin is linked with what its user loads"

test "$failed" = 0 && echo passed
exit "$failed"
