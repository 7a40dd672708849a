#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The C that README.md and docs/low-latency.md show stands in docs/examples/, word for word, where the compiler sees it.
set -u
top=${srcdir:-.}
[ -n "${PYTHON3-}" ] || { echo "skipped: python3 is not installed"; exit 77; }
exec "$PYTHON3" - "$top/README.md" "$top/docs/examples/hello.c" "$top/docs/low-latency.md" \
    "$top/docs/examples/low_latency.c" <<'PYTHON'
import re, sys

for page, example in zip(sys.argv[1::2], sys.argv[2::2]):
    blocks = re.findall(r"^```c\n(.*?)^```$", open(page, encoding="utf-8").read(), re.M | re.S)
    if not blocks:
        sys.exit(f"{page} shows no C")
    code = [line.strip() for line in open(example, encoding="utf-8")]
    for block in blocks:
        shown = [line.strip() for line in block.rstrip().splitlines()]
        if not any(code[i:i + len(shown)] == shown for i in range(len(code))):
            sys.exit(f"{page} shows C that is not in {example}:\n{block}")
    print(f"{page}: {len(blocks)} block(s) found in {example}")
PYTHON
