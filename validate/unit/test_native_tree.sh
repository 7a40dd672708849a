#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/native-tree against git itself: clean and changed checkouts, archives, releases, and folders inside other
# checkouts.
set -u
script=$(cd "$(dirname "$0")/../../scripts" && pwd)/native-tree
for tool in git python3; do
    command -v $tool >/dev/null 2>&1 || { echo "skipped: $tool is not installed"; exit 77; }
done
scratch=$(mktemp -d) || exit 99
trap 'rm -rf "$scratch"' EXIT
HOME=$scratch
export HOME
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
failed=0

expect() { # expect WHAT GOT WANTED
    if [ "$2" = "$3" ]; then echo "ok $1"; else echo "FAILED $1: got '$2', wanted '$3'"; failed=1; fi
}
in_repo() { git -C "$repo" -c user.name=t -c user.email=t@example.org -c safe.directory='*' "$@"; }
native() { "$1/scripts/native-tree"; }

# Names whose order depends on folders sorting as if they ended in a slash; an executable; a link; something ignored.
repo=$scratch/repo
mkdir -p "$repo/scripts" "$repo/libafdep/a" "$repo/libafdep/core"
cp "$script" "$repo/scripts/native-tree"
for file in a.c a0 a/inner core/x.c "with space"; do echo "$file" >"$repo/libafdep/$file"; done
echo '#!/bin/sh' >"$repo/libafdep/run"
chmod +x "$repo/libafdep/run"
ln -s a.c "$repo/libafdep/link"
echo '*.o' >"$repo/.gitignore"
in_repo init -q
in_repo add -A
before=$(in_repo write-tree --prefix=libafdep/)
expect "no commit yet" "$(native "$repo")" "$before 1"
in_repo commit -q -m one
committed=$(in_repo rev-parse HEAD:libafdep)
expect "clean" "$(native "$repo")" "$committed 0"
echo object >"$repo/libafdep/a.o"
expect "ignored file" "$(native "$repo")" "$committed 0"

cp -R "$repo" "$scratch/archive"
rm -rf "$scratch/archive/.git"
expect "archive" "$(native "$scratch/archive")" "$committed 0"
expect "files alone" "$("$repo/scripts/native-tree" --files)" "$committed"
cp -R "$scratch/archive" "$scratch/other"
echo other >>"$scratch/other/libafdep/a.c"
cp -R "$scratch/other" "$repo/nested"
expect "archive inside another checkout" "$(native "$repo/nested")" "$(native "$scratch/other")"
rm -rf "$repo/nested"
echo "$committed 0" >"$scratch/archive/.native-tree"
expect "release" "$(native "$scratch/archive")" "$committed 0"

echo more >>"$repo/libafdep/core/x.c"
echo new >"$repo/libafdep/new.c"
index=$(git hash-object "$repo/.git/index")
got=$(native "$repo")
expect "checkout left alone" "$(git hash-object "$repo/.git/index")" "$index"
in_repo add -A
changed=$(in_repo write-tree --prefix=libafdep/)
expect "changed" "$got" "$changed 1"
[ "$changed" != "$committed" ] || { echo "FAILED: the change changed nothing"; failed=1; }
echo more >>"$scratch/archive/libafdep/core/x.c"
echo new >"$scratch/archive/libafdep/new.c"
expect "changed release" "$(native "$scratch/archive")" "$changed 1"

if [ "$(id -u)" -eq 0 ] && chown -R 12345 "$repo" 2>/dev/null; then
    expect "somebody else's checkout" "$(native "$repo")" "$changed 1"
fi
exit $failed
