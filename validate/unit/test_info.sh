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
    "$python3" "$srcdir/scripts/validate-json" "$srcdir/docs/schema/info.schema.json" "$1" || fail "$2: does not fit"
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
refuses 1 /nonexistent/file.json --json /nonexistent/file.json

test "$failed" = 0 && echo "passed"
exit "$failed"
