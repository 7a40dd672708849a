#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The C that README.md shows stands in docs/examples/hello.c, word for word, where the compiler sees it.
set -u
top=${srcdir:-.}
[ -n "${PYTHON3-}" ] || { echo "skipped: python3 is not installed"; exit 77; }
exec "$PYTHON3" - "$top/README.md" "$top/docs/examples/hello.c" <<'PYTHON'
import re, sys

readme, example = (open(name, encoding="utf-8").read() for name in sys.argv[1:])
blocks = re.findall(r"^```c\n(.*?)^```$", readme, re.M | re.S)
if not blocks:
    sys.exit("README.md shows no C")
code = [line.strip() for line in example.splitlines()]
for block in blocks:
    shown = [line.strip() for line in block.rstrip().splitlines()]
    if not any(code[i:i + len(shown)] == shown for i in range(len(code))):
        sys.exit("README.md shows C that is not in docs/examples/hello.c:\n" + block)
print(f"{len(blocks)} block(s) found in the example")
PYTHON
