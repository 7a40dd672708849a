#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""afdep-report: the page answers what a reader asks, its pictures are there, it needs nothing from outside, hostile text
stays text, and what cannot stand in one table does not. Run from the build tree."""
import os
import re
import shutil
import struct
import sys
import tempfile
from html.parser import HTMLParser

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from screening import REPORT, TREE, check, end, record, run, write  # noqa: E402


def results(**fields):
    """A screen of two arms and three repeats: half the time at 1 token, no difference at 8."""
    records = []
    for repeat, (dense, sparse, drift) in enumerate([(100, 50, 8), (110, 54, -9), (90, 46, 2)], 1):
        for arm, medians in (("dense", {1: dense, 8: 200}), ("sparse", {1: sparse, 8: 200 + drift})):
            one = record(medians, arm)
            one["run"] = {"arm": arm, "repeat": repeat, "seconds": 1.0, "command": f"mpirun afdep-bench --protocol {arm}"}
            records.append(one)
    screen = {"schema": "afdep-screen/1", "name": "staged", "description": "Half as many.", "baseline": "dense"}
    return dict({"schema": "afdep-benchmarks/1", "screen": screen, "records": records, "pairs": [], "complete": True,
                 "failures": []}, **fields)


def report(folder, *files, more=(), env=None):
    out = os.path.join(folder, "out")
    shutil.rmtree(out, ignore_errors=True)
    return run(REPORT, "--in", *files, "--out", out, *more, env=env), out


def text(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


class Outside(HTMLParser):
    """Collects everything that a page would fetch or run, and checks that its elements nest."""

    def __init__(self):
        super().__init__()
        self.fetched, self.open, self.wrong = [], [], []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("data:"):
                self.fetched.append(value)
            if name.startswith("on"):
                self.fetched.append(name)
        if tag in ("script", "link", "iframe", "object"):
            self.fetched.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_page(folder):
    (code, out, err), where = report(folder, write(results(), folder, "a.json"))
    check("a report", code == 0 and not err, f"exit {code}: {out}{err}")
    wanted = [f"{name}.{kind}" for name in ("latency", "change", "signals", "ranks") for kind in ("svg", "png")]
    check("all files", set(os.listdir(where)) == set(wanted + ["index.md", "index.html"]), str(os.listdir(where)))
    for name in wanted:
        with open(os.path.join(where, name), "rb") as file:
            begin = file.read(400)
        if name.endswith("png"):
            good = begin[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">I", begin[16:20])[0] == 800
        else:
            good = b"<svg" in begin
        check(f"{name} is a picture, 800 pixels wide", good, str(begin[:60]))
    page, markdown = text(where, "index.html"), text(where, "index.md")
    for word in (TREE, "a processor", "sparse against dense", "faster at 1 tokens", "no difference seen at 8 tokens",
                 "Half as many.", "baseline", "mpirun afdep-bench --protocol sparse", "2 FFN ranks and 4 Attention ranks",
                 "none was wrong"):
        check(f"the page says {word}", word in page and word in markdown.replace("\\", ""), "")
    check("the repeats", "<td>3</td>" in page)
    check("the change", "-50.0 (" in page or "-49.9 (" in page, "")
    outside = Outside()
    outside.feed(page)
    check("nothing from outside", not outside.fetched, str(outside.fetched))
    check("elements nest", not outside.wrong and not outside.open, str((outside.wrong, outside.open)))
    check("four pictures inside", page.count("data:image/svg+xml;base64,") == 4)
    shown = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", markdown)
    check("Markdown shows files that are there", len(shown) == 4 and all(os.path.exists(os.path.join(where, f)) for f in shown),
          str(shown))


def test_hostile(folder):
    """Names from a stranger's record reach HTML, Markdown and gnuplot."""
    bad = "'\"`touch x`<script>alert(1)</script>|$(x) @ % \\"
    evil = results()
    for one in evil["records"]:
        one["machine"]["cpu"] = one["scenario"]["name"] = bad
        if one["run"]["arm"] == "sparse":
            one["run"]["arm"] = one["run"]["command"] = bad
    (code, _, err), where = report(folder, write(evil, folder, "a.json"), more=("--title", bad))
    check("hostile text", code == 0, f"exit {code}: {err}")
    outside = Outside()
    outside.feed(text(where, "index.html"))
    check("hostile text stays text", not outside.fetched and not outside.wrong, str(outside.fetched))
    check("nothing was run", not os.path.exists("x"))
    rows = [line for line in text(where, "index.md").splitlines() if line.startswith("| 1 ")]
    check("rows keep their columns", all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows), str(rows))


def test_sets(folder):
    """A screen and single records: of one machine in one table, emulated ones in another."""
    emulated = record({1: 5.0}, "sparse")
    emulated["arm"]["emulated"] = True
    files = [write(results(), folder, "a.json"), write(record({1: 100.0}), folder, "b.json"),
             write(record({1: 60.0}, "sparse"), folder, "c.json"), write(emulated, folder, "d.json")]
    (code, _, err), where = report(folder, *files)
    check("several files", code == 0, f"exit {code}: {err}")
    markdown = text(where, "index.md")
    tables = re.findall(r"^\| tokens \|.*\|$", markdown, re.M)
    check("tables", [t.count("|") for t in tables] == [5, 4, 3], str(tables))
    check("emulated is said", markdown.count("(emulated)") == 1, "")
    check("pictures have names of their own", sum(f.endswith("latency.svg") for f in os.listdir(where)) == 3,
          str(os.listdir(where)))
    (code, _, err), _ = report(folder, files[0], more=("--in=" + files[1], "--in", files[2]))
    check("--in in its forms", code == 0, f"exit {code}: {err}")


def test_unfinished(folder):
    failure = {"arm": "sparse", "repeat": 1, "seconds": 1, "command": "x", "why": "exit 3: out of luck"}
    (code, _, err), where = report(folder, write(results(records=[], failures=[failure], complete=False), folder, "a.json"))
    check("nothing measured", code == 0 and "out of luck" in text(where, "index.html"), f"exit {code}: {err}")
    part = results(complete=False)
    part["records"] = part["records"][:1]
    (code, _, err), where = report(folder, write(part, folder, "a.json"))
    check("one record only", code == 0 and "did not end" in text(where, "index.md"), f"exit {code}: {err}")
    one = results()
    one["records"] = one["records"][:2]
    (code, _, err), where = report(folder, write(one, folder, "a.json"))
    check("one repeat only", code == 0 and "one repeat" in text(where, "index.md"), f"exit {code}: {err}")


def test_refusals(folder):
    def refused(name, value, *words, status=2):
        (code, _, err), where = report(folder, write(value, folder, "a.json"))
        check(name, code == status and len(err.splitlines()) == 1 and all(word in err for word in words),
              f"exit {code}: {err}")
        check(f"{name}: no page", not os.path.exists(os.path.join(where, "index.html")))

    refused("another schema", {"schema": "afdep-validation/1"}, "a.json", "afdep-validation/1")
    refused("no records", results(records=1), "records")
    for key in ("arm", "cells", "native_tree", "machine"):
        broken = results()
        del broken["records"][2][key]
        refused(f"without {key}", broken, "records[2]", key)
    mixed = results()
    mixed["records"][3]["machine"]["cpu"] = "another"
    refused("two machines in one table", mixed, "records[3]", "machine.cpu")
    wrong = results()
    wrong["records"][0]["cells"][0]["median_us"] = None
    refused("no median", wrong, "median_us: null")
    for arguments, word in (((), "--in"), (("--in",), "--in"), (("--in", "/nonexistent.json"), "--out"),
                            (("--in", "/nonexistent.json", "--out", folder), "/nonexistent.json"),
                            (("stray", "--out", folder), "stray")):
        code, _, err = run(REPORT, *arguments)
        check(f"refused: {arguments}", code == 2 and len(err.splitlines()) == 1 and word in err, f"exit {code}: {err}")


def test_without_gnuplot(folder):
    (code, _, err), where = report(folder, write(results(), folder, "a.json"), env={"PATH": folder})
    check("without gnuplot", code == 1 and "gnuplot" in err and len(err.splitlines()) == 1, f"exit {code}: {err}")
    check("without gnuplot: no page", not os.path.exists(os.path.join(where, "index.html")))


def main():
    tests = [test_refusals, test_without_gnuplot]
    if shutil.which("gnuplot"):
        tests += [test_page, test_hostile, test_sets, test_unfinished]
    else:
        print("skipped: pictures and pages: gnuplot is not installed")
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    return end()


if __name__ == "__main__":
    sys.exit(main())
