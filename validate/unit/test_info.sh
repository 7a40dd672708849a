#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# afdep-info as a user meets it: text, JSON that fits its schema (to standard output and to a file), the settings table,
# and one line with exit 2 for what it does not know. Run from the build tree; AFDEP_INFO names another program.
srcdir=${srcdir:-.}
info=${AFDEP_INFO:-bench/afdep-info}
python3=${PYTHON3:-python3}
if ! "$python3" -c '' 2>/dev/null; then
    echo "skipped: no Python 3, which reads the schemas"
    exit 77
fi
folder=$(mktemp -d) || exit 99
trap 'rm -rf "$folder"' EXIT
failed=0

fail() {
    echo "FAILED $*"
    failed=1
}

fits() {
    "$python3" "$srcdir/scripts/validate-json" "$srcdir/docs/schema/${3:-info}.schema.json" "$1" || fail "$2: does not fit"
}

"$info" >"$folder/text" || fail "no options: exit $?"
for word in 'native tree' backends fabrics processor kernel GPUs 'RDMA NICs'; do
    grep -q "^$word" "$folder/text" || fail "the text has no line '$word'"
done

"$info" --json >"$folder/bare.json" || fail "--json: exit $?"
fits "$folder/bare.json" "--json"
"$info" --json --config >"$folder/both.json" || fail "--json --config: exit $?"
fits "$folder/both.json" "--json --config"
"$info" --json "$folder/file.json" >"$folder/out" || fail "--json FILE: exit $?"
fits "$folder/file.json" "--json FILE"
test -s "$folder/out" && fail "--json FILE also prints"

# Every fabric is listed, and what cannot be had says why: not built, or why not on this machine.
"$python3" - "$folder/bare.json" <<'end' || fail "the fabrics"
import json, shutil, sys
info = json.load(open(sys.argv[1]))
fabrics = {f["name"]: f for f in info["fabrics"]}
assert set(fabrics) == {"shm", "mpi", "peer", "nccl"}, fabrics
assert fabrics["nccl"]["built"] == ("nccl" in info["build"]["features"]), fabrics
for part in info["fabrics"] + info["backends"]:
    assert part["built"] or part["why"].startswith("not built"), part
if not shutil.which("nvidia-smi"):
    for name in "peer", "nccl":
        assert fabrics[name]["why"], fabrics[name]
end

# On a machine that lacks something fatal it exits with 1 and says how many; whatever it has, these lines are there.
scenario=$srcdir/scenarios/11to1-12x2-fp8-h2048.json
"$info" --preflight --scenario "$scenario" >"$folder/text"
unmet=$?
for word in mpi gpus nvlink nics gpudirect nccl-runtime gin; do
    grep -q "^$word  *fatal" "$folder/text" || fail "--preflight has no fatal line '$word'"
done
case $unmet in
0) grep -q '^0 fatal ' "$folder/text" || fail "--preflight: exit 0, and something fatal is not met" ;;
1) grep -q '^[1-9][0-9]* fatal ' "$folder/text" || fail "--preflight: exit 1, and nothing fatal is not met" ;;
*) fail "--preflight: exit $unmet" ;;
esac
"$info" --preflight --json >"$folder/preflight.json"
fits "$folder/preflight.json" "--preflight --json" preflight
NCCL_GIN_TYPE=$(printf '2\n3') "$info" --preflight >"$folder/text"
grep -q '^gin-type .*NCCL_GIN_TYPE 2?3' "$folder/text" || fail "--preflight: a variable of two lines is not told in one"
# A job of another size than the scenario is fatal anywhere.
env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE SLURM_NTASKS=23 SLURM_NTASKS_PER_NODE=2 "$info" --preflight --scenario "$scenario" >"$folder/text"
test $? = 1 || fail "--preflight: 23 tasks for 24 ranks passed"
grep -q '^world  *fatal  *NOT MET  *SLURM_NTASKS is 23 (needed: 24 tasks)' "$folder/text" || fail "--preflight does not name SLURM_NTASKS"

AFDEP_NUM_SMS=3 "$info" --config | grep -q '^num_sms  *AFDEP_NUM_SMS  *3  *environment' ||
    fail "--config does not show a variable's value and where it comes from"

"$info" --version | grep -q '^afdep-info (afdep) ' || fail "--version"
"$info" --help | grep -q '^Usage: afdep-info' || fail "--help"

# What is refused: the arguments, the exit status, a word of the one line.
refuses() {
    status=$1 word=$2
    shift 2
    "$info" "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    test "$got" = "$status" || fail "$*: exit $got, wanted $status"
    test "$(wc -l <"$folder/err")" = 1 || fail "$*: more or less than one line"
    grep -q -e "$word" "$folder/err" || fail "$*: no '$word' in: $(cat "$folder/err")"
}
refuses 2 frobnicate --frobnicate
refuses 2 positional positional
refuses 2 conf --conf
refuses 2 preflight --scenario "$srcdir/scenarios/tiny-2f4a-3x2-fp8.json"
refuses 2 nonexistent.json --preflight --scenario nonexistent.json
refuses 2 /nonexistent/file.json --json /nonexistent/file.json
refuses 2 /nonexistent/file.json --preflight --json /nonexistent/file.json
refuses 2 config --preflight --config

test "$failed" = 0 && echo "passed"
exit "$failed"
