#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""afdep-screen with programs that play arms: what it pairs, what it refuses, and how it ends when an arm fails, hangs,
is killed or is another build, when the disk is full or the folder taken. Run from the build tree."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from screening import SCENARIO, SCREEN, TOP, TREE, check, end, fits, read, record, run, write  # noqa: E402

# Plays an arm: FAKE_PLAN is a JSON object of what to do. Each of its runs is noted in FOLDER/log.
FAKE = r'''
import json, os, signal, subprocess, sys, time
plan = json.loads(os.environ["FAKE_PLAN"])
folder = os.environ["FAKE_FOLDER"]
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.path.join(folder, "log"), "a+") as log:
    log.seek(0)
    turn = sum(line.split()[0] == plan["name"] for line in log)
    log.write(f"{plan['name']} {os.getpid()}\n")
def of(key):
    value = plan.get(key)
    return value[min(turn, len(value) - 1)] if isinstance(value, list) else value
if of("say"):
    sys.stderr.write(of("say"))
    sys.stderr.flush()
if of("orphan"):
    child = subprocess.Popen(["sleep", "300"], start_new_session=True, stdin=subprocess.DEVNULL)
    open(os.path.join(folder, "orphan"), "w").write(str(child.pid))
if of("hang"):
    if of("hang") == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
if of("sleep"):
    time.sleep(of("sleep"))
if of("exit"):
    sys.exit(of("exit"))
if of("kill"):
    os.kill(os.getpid(), signal.SIGKILL)
if of("silent"):
    sys.exit(0)
with open(os.environ["FAKE_RECORD"]) as file:
    text = file.read()
record = json.loads(text)
record["arm"]["name"] = plan.get("calls", plan["name"])
record["native_tree"] = of("tree") or record["native_tree"]
record["build"]["dirty"] = bool(of("dirty"))
record["machine"].update(of("machine") or {})
record["scenario"].update(of("scenario") or {})
counts = [int(n) for n in words["--tokens"].split(",")]
one = record["cells"][0]
record["cells"] = [dict(one, tokens=n, median_us=of("us") * n, samples_us=[]) for n in counts[:of("cells")]]
with open(words["--json"], "w") as file:
    json.dump(record, file)
if of("fill"):
    try:
        with open(os.path.join(os.path.dirname(words["--json"]), "..", "fill"), "wb") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
    except OSError:
        pass
'''


class Stage:
    """A folder with a screen of arms that are played by FAKE."""

    def __init__(self, folder, *plans, out=None, **fields):
        self.folder = folder
        for name in ("log", "orphan"):
            if os.path.exists(os.path.join(folder, name)):
                os.remove(os.path.join(folder, name))
        self.out = out or os.path.join(folder, "out")
        if not out:
            shutil.rmtree(self.out, ignore_errors=True)
        fake = os.path.join(folder, "fake")
        with open(fake, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\n{FAKE}")
        os.chmod(fake, 0o755)
        base = write(record({1: 100.0}), folder, "record.json")
        arms = []
        for plan in plans:
            arm = {"name": plan["name"], "launcher": ["env"], "program": fake, "flags": ["--protocol", "x"],
                   "env": {"FAKE_PLAN": json.dumps(plan), "FAKE_FOLDER": folder, "FAKE_RECORD": base}}
            arm.update(plan.get("arm", {}))
            arms.append(arm)
        screen = {"schema": "afdep-screen/1", "name": "staged", "scenario": SCENARIO, "tokens": [1, 8], "repeats": 3,
                  "baseline": plans[0]["name"], "arms": arms}
        screen.update(fields)
        self.screen = write(screen, folder, "screen.json")

    def command(self, *more):
        return [SCREEN, "--screen", self.screen, "--out", self.out, *more]

    def play(self, *more, timeout=60):
        return run(*self.command(*more), timeout=timeout)

    def results(self):
        return read(self.out, "benchmarks.json")

    def order(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as file:
            return [line.split()[0] for line in file]

    def pids(self):
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as file:
            return [int(line.split()[1]) for line in file]


def complaint(err):
    """The lines that are not progress."""
    return [line for line in err.splitlines() if not line.startswith(("[", "=="))]


def one_line(name, result, status, *words):
    code, _, err = result
    lines = complaint(err)
    check(name, code == status and len(lines) == 1 and all(word in lines[0] for word in words), f"exit {code}: {err}")


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def check_saved(name, stage, records, failed, complete=False):
    """benchmarks.json is whole, fits, and holds so much; nothing else was left in the folder."""
    results = stage.results()
    good, why = fits("benchmarks", os.path.join(stage.out, "benchmarks.json"))
    check(f"{name}: fits its schema", good, why)
    check(f"{name}: what is saved", (len(results["records"]), len(results["failures"]), results["complete"]) ==
          (records, failed, complete), str([len(results["records"]), results["failures"], results["complete"]])[:400])
    left = sorted(set(os.listdir(stage.out)) - {"benchmarks.json", "fill"})
    check(f"{name}: nothing is left behind", not left, str(left))


A = {"name": "dense", "us": [100.0, 110.0, 90.0]}
B = {"name": "sparse", "us": [50.0, 54.0, 46.0]}

# ---- What it does


def test_pairs(folder):
    stage = Stage(folder, A, B)
    code, out, err = stage.play()
    check("a good screen", code == 0 and not complaint(err), f"exit {code}: {err}")
    check("arms alternate", stage.order() == ["dense", "sparse"] * 3, str(stage.order()))
    check_saved("a good screen", stage, 6, 0, True)
    results = stage.results()
    pair = results["pairs"][0]
    check("the change", abs(pair["change_pct"] + 50) < 1 and pair["change_high_pct"] < 0 and pair["repeats"] == 3
          and pair["verdict"] == "faster" and pair["baseline_us"] == 100, str(pair))
    check("one pair for each token count", [p["tokens"] for p in results["pairs"]] == [1, 8], str(results["pairs"]))
    check("raw records are kept", all(r["run"]["arm"] == r["arm"]["name"] and "samples_us" in r["cells"][0]
                                      for r in results["records"]), "")
    check("the table", "| 8 | 800.0 | 400.0 | -49.9 (-52.4 .. -47.4) |" in out, out)
    check("progress", "[6/6] sparse, repeat 3 of 3" in err and "left" in err, err)

    one_line("results are not replaced unasked", stage.play(), 2, stage.out, "--force")
    code, out, err = stage.play("--force", "--repeats", "1")
    check("--force, one repeat", code == 0 and "(one repeat)" in out, f"exit {code}: {out}{err}")
    check_saved("one repeat", stage, 2, 0, True)
    check("one repeat: no interval", stage.results()["pairs"][0]["change_low_pct"] is None, "")


def test_no_difference(folder):
    stage = Stage(folder, A, {"name": "sparse", "us": [110.0, 90.0, 101.0]})
    _, out, _ = stage.play()
    check("no difference is said", out.count("no difference seen") == 2, out)
    check("no difference is recorded", stage.results()["pairs"][0]["verdict"] == "no difference seen", "")


def test_own_names(folder):
    """Two builds whose programs call their arm the same are told apart by the screen's names."""
    stage = Stage(folder, {"name": "old", "us": 100.0, "calls": "sparse"}, {"name": "new", "us": 90.0, "calls": "sparse"})
    stage.play("--repeats", "2")
    results = stage.results()
    check("arms by the screen's names", [r["run"]["arm"] for r in results["records"]] == ["old", "new"] * 2
          and results["records"][0]["arm"]["name"] == "sparse", str(results["records"])[:200])
    check("and paired so", [p["candidate"] for p in results["pairs"]] == ["new", "new"], str(results["pairs"]))


def test_dry_run(folder):
    stage = Stage(folder, A, B)
    code, out, err = stage.play("--dry-run", "--seed", "7", "--fabric", "mpi")
    lines = out.splitlines()
    check("a dry run prints every command line", code == 0 and len(lines) == 6 and not err, f"exit {code}: {out}{err}")
    check("a command line", all(word in lines[1] for word in ("env ", "FAKE_PLAN=", "--scenario", "--tokens 1,8",
          "--fabric mpi --seed 7", "--protocol x", f"--json {stage.out}")), lines[1])
    check("a dry run runs nothing", not os.path.exists(stage.out) and not os.path.exists(os.path.join(folder, "log")))


def test_root_launcher(folder):
    launcher = {"arm": {"launcher": ["mpirun", "-n", "6"]}}
    stage = Stage(folder, dict(A, **launcher), B)
    _, out, _ = stage.play("--dry-run")
    first, second = out.splitlines()[:2]
    check("Open MPI is told that root is meant, as root only",
          first.startswith("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ") == (os.geteuid() == 0), first)
    check("other launchers are not", "OMPI_" not in second, second)


def test_gate(folder):
    stage = Stage(folder, A, {"name": "candidate", "us": [110.0, 121.0, 99.0]}, dict(B, us=200.0))
    one = stage.play("--gate", "5")
    check("a gate that fails", one[0] == 1 and len(complaint(one[2])) == 2 and "candidate against dense at 1 tokens" in one[2],
          f"exit {one[0]}: {one[2]}")
    check_saved("a gate that fails", stage, 9, 0, True)
    two = stage.play("--gate", "15", "--force")
    check("a gate that passes looks at candidate only", two[0] == 0, f"exit {two[0]}: {two[2]}")
    stage = Stage(folder, A, dict(B, us=200.0))
    check("without a candidate every arm counts", stage.play("--gate", "15")[0] == 1)


# ---- Arms that do not end well


def test_fails(folder):
    say = "fake: rank 3: collect: a peer is gone\n-----\nmpirun noticed something\n-----\n"
    stage = Stage(folder, A, dict(B, exit=[0, 3], say=say))
    one_line("an arm that fails", stage.play(), 1, "arm sparse, repeat 2: exit 3: fake: rank 3: collect: a peer is gone",
             "3 of 6 runs are in", "benchmarks.json")
    check_saved("an arm that fails", stage, 3, 1)
    failure = stage.results()["failures"][0]
    check("the failure", failure["arm"] == "sparse" and failure["repeat"] == 2 and "exit 3" in failure["why"]
          and "mpirun noticed" in failure["said"], str(failure))


def test_dies(folder):
    stage = Stage(folder, A, dict(B, kill=True))
    one_line("an arm that is killed", stage.play(), 1, "arm sparse, repeat 1: killed by signal 9", "1 of 6")
    check_saved("an arm that is killed", stage, 1, 1)


def test_first_fails(folder):
    stage = Stage(folder, dict(A, exit=1), B)
    one_line("the first arm fails", stage.play(), 1, "arm dense, repeat 1: exit 1", "0 of 6")
    check_saved("the first arm fails", stage, 0, 1)


def test_no_record(folder):
    stage = Stage(folder, dict(A, silent=True), B)
    one_line("an arm without a record", stage.play(), 1, "arm dense, repeat 1: left no record")
    stage = Stage(folder, dict(A, cells=1), B)
    one_line("a token count is missing", stage.play(), 2, "cells: none has 8 tokens")
    stage = Stage(folder, dict(A, us=0.0), B)
    one_line("a time of nothing", stage.play(), 2, "median_us")


def test_hangs(folder):
    """The arm ignores SIGTERM and has a child in a session of its own, as launchers' ranks are."""
    stage = Stage(folder, A, dict(B, hang="deaf", orphan=True), deadline_s=1)
    start = time.time()
    one_line("an arm that hangs", stage.play(), 1, "arm sparse, repeat 1: no end after 1 s, killed", "1 of 6")
    check("the deadline holds", time.time() - start < 20, str(time.time() - start))
    check_saved("an arm that hangs", stage, 1, 1)
    with open(os.path.join(folder, "orphan"), encoding="utf-8") as file:
        orphan = int(file.read())
    check("nothing of it lives on", not alive(stage.pids()[-1]) and not alive(orphan), "")
    if alive(orphan):
        os.kill(orphan, signal.SIGKILL)


def test_leftovers(folder):
    """What a run leaves running would disturb the next."""
    stage = Stage(folder, dict(A, orphan=True), B)
    code, _, err = stage.play("--repeats", "1")
    with open(os.path.join(folder, "orphan"), encoding="utf-8") as file:
        orphan = int(file.read())
    check("a background process ends with its arm", code == 0 and not alive(orphan), f"exit {code}: {err}")
    if alive(orphan):
        os.kill(orphan, signal.SIGKILL)


def wait_for(condition):
    limit = time.time() + 20
    while not condition() and time.time() < limit:
        time.sleep(0.02)
    return condition()


def test_interrupted(folder):
    stage = Stage(folder, A, dict(B, hang=True))
    process = subprocess.Popen(stage.command(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for(lambda: os.path.exists(os.path.join(folder, "log")) and len(stage.order()) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    one_line("a screen that is interrupted", (process.returncode, "", err), 1, "repeat 1: interrupted by signal 2", "1 of 6")
    check_saved("a screen that is interrupted", stage, 1, 1)
    check("its arm is gone", not alive(stage.pids()[-1]), "")


# ---- What it refuses


def test_builds(folder):
    other = "fedcba9876543210fedcba9876543210fedcba98"
    stage = Stage(folder, A, dict(B, arm={"native_tree": other[:12]}))
    one_line("a wrong tree", stage.play(), 2, "arm sparse, repeat 1", f'"{TREE}"', f'demands "{other[:12]}"', "1 of 6")
    check_saved("a wrong tree", stage, 1, 1)
    stage = Stage(folder, dict(A, arm={"native_tree": TREE}), dict(B, tree=other, arm={"native_tree": other[:8]}))
    code, _, err = stage.play()
    check("two builds of two trees", code == 0, f"exit {code}: {err}")
    stage = Stage(folder, A, dict(B, tree=[TREE, other]))
    one_line("a tree that changes", stage.play(), 2, "arm sparse, repeat 2", "in an earlier repeat")
    stage = Stage(folder, A, dict(B, dirty=True), clean=True)
    one_line("a dirty build", stage.play(), 2, "arm sparse, repeat 1", "uncommitted")
    stage = Stage(folder, A, dict(B, dirty=True))
    code, _, err = stage.play("--repeats", "1")
    check("a dirty build that nobody minds", code == 0, f"exit {code}: {err}")


def test_unlike(folder):
    stage = Stage(folder, A, dict(B, machine={"cpu": "another"}))
    one_line("another machine", stage.play(), 2, "cannot be paired", "machine.cpu", "another")
    check_saved("another machine", stage, 1, 1)
    stage = Stage(folder, A, dict(B, machine={"nics": None, "mpi": "another"}))
    check("another MPI is another build", stage.play("--repeats", "1")[0] == 0)
    stage = Stage(folder, A, dict(B, scenario={"seed": 2}))
    one_line("another scenario", stage.play(), 2, "scenario.seed", "2 against 1")
    stage = Stage(folder, A, dict(B, scenario={"seed": 2}), may_differ=["seed"])
    code, _, err = stage.play("--repeats", "1")
    check("a difference that is meant", code == 0, f"exit {code}: {err}")


DROP = object()
BAD = [
    (["schema"], "afdep-screen/9", "schema"), (["extra"], 1, "extra"), (["repeats"], DROP, "repeats: is missing"),
    (["repeats"], 0, "repeats: 0"), (["repeats"], 1.5, "repeats: 1.5"), (["repeats"], "3", 'repeats: "3"'),
    (["tokens"], [], "tokens"), (["tokens"], [0], "tokens[0]: 0"), (["tokens"], [8, 8], "tokens[1]: 8"),
    (["name"], "a/b", "name"), (["baseline"], "other", 'baseline: "other"'), (["arms"], [], "arms"),
    (["scenario"], "/nonexistent.json", "/nonexistent.json"), (["scenario"], 1, "scenario: 1"),
    (["clean"], 1, "clean: 1"), (["deadline_s"], 0, "deadline_s: 0"), (["may_differ"], ["topology"], "may_differ[0]"),
    (["arms", 1, "name"], "dense", 'arms[1].name: "dense"'), (["arms", 1, "name"], "a b", "arms[1].name"),
    (["arms", 0, "launcher"], "mpirun", "arms[0].launcher"), (["arms", 0, "launcher"], [1], "arms[0].launcher[0]: 1"),
    (["arms", 0, "launcher"], ["nonexistent-launcher"], "nonexistent-launcher"),
    (["arms", 0, "flags"], DROP, "arms[0].flags: is missing"), (["arms", 0, "flag"], [], "arms[0].flag"),
    (["arms", 0, "program"], "nonexistent-program", "nonexistent-program"), (["arms", 0, "program"], "", "arms[0].program"),
    (["arms", 0, "env"], {"A B": "1"}, "arms[0].env.A B"), (["arms", 0, "env"], {"A": 1}, "arms[0].env.A: 1"),
    (["arms", 0, "native_tree"], "xyz", "arms[0].native_tree"),
]


def test_bad_screens(folder):
    stage = Stage(folder, A, B)
    good = read(stage.screen)
    for path, value, word in BAD:
        bad = json.loads(json.dumps(good))
        target = bad
        for step in path[:-1]:
            target = target[step]
        if value is DROP:
            del target[path[-1]]
        else:
            target[path[-1]] = value
        write(bad, stage.screen)
        one_line(f"refused: {path} {value!r}", stage.play(), 2, "afdep-screen: ", word)
    for text in ("", "{", "[]", "{} {}"):
        with open(stage.screen, "w", encoding="utf-8") as file:
            file.write(text)
        one_line(f"refused: {text!r}", stage.play(), 2, "screen.json")
    check("nothing was run", not os.path.exists(os.path.join(folder, "log")))
    one_line("refused: a missing file", run(SCREEN, "--screen", "/nonexistent.json", "--out", folder), 2, "/nonexistent.json")
    one_line("refused: no folder", run(SCREEN, "--screen", stage.screen), 2, "--out")
    one_line("refused: no repeats", stage.play("--repeats", "0"), 2, "--repeats")


def test_committed(_):
    """The screens of this tree load, fit their schema, and start as many ranks as their scenarios have."""
    screens = sorted(glob.glob(os.path.join(TOP, "scenarios", "screens", "*.json")))
    check("screens are there", len(screens) >= 10, str(screens))
    for name in screens:
        screen = read(name)
        topology = read(os.path.dirname(name), screen["scenario"])["topology"]
        code, out, err = run(SCREEN, "--screen", name, "--dry-run", "--repeats", "1")
        check(f"{name} loads", code == 0 and len(out.splitlines()) == len(screen["arms"]), f"exit {code}: {err}")
        good, why = fits("screen", name)
        check(f"{name} fits its schema", good, why)
        check(f"{name} is named so inside", screen["name"] == os.path.basename(name)[:-len(".json")])
        ranks = str(topology["ffn_ranks"] + topology["attention_ranks"])
        check(f"{name} starts its ranks", all(not arm["launcher"] or arm["launcher"][-2:] == ["-n", ranks]
                                              for arm in screen["arms"]), "")


# ---- Where results go


def test_two_at_once(folder):
    stage = Stage(folder, dict(A, sleep=1), B, repeats=1)
    first = subprocess.Popen(stage.command(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    wait_for(lambda: os.path.exists(os.path.join(folder, "log")))
    one_line("a second screen in the folder", stage.play("--force"), 2, stage.out, "another screen is running")
    _, err = first.communicate(timeout=30)
    check("the first one goes on", first.returncode == 0, err)
    check_saved("the first one goes on", stage, 2, 0, True)
    check("only the first one ran", stage.order() == ["dense", "sparse"], str(stage.order()))


def test_unwritable(folder):
    stage = Stage(folder, A, B, out="/proc/nonexistent/out")
    one_line("a folder that cannot be made", stage.play(), 2, "/proc/nonexistent")
    if os.geteuid() == 0:
        return  # no folder's mode stops root: see the read-only file system below
    stage = Stage(folder, A, B)
    os.mkdir(stage.out, 0o555)
    one_line("a folder that is read-only", stage.play(), 2, stage.out, "Permission denied")
    os.chmod(stage.out, 0o755)


# In a mount namespace of its own, where this process can have one: a small file system at OUT, made as ARGUMENT says.
MOUNTED = r'''
mount -t tmpfs -o size=400k none "$1" || exit 77
case $2 in
full) head -c 10000000 /dev/zero >"$1/fill" 2>/dev/null ;;
read-only) mount -o remount,ro "$1" || exit 77 ;;
esac
shift 2
"$@"
status=$?
cp -r "$KEPT_FROM/." "$KEPT" 2>/dev/null
exit $status
'''


def play_mounted(stage, how):
    """The screen's exit status, output and errors; its folder is copied to FOLDER/kept."""
    kept = os.path.join(stage.folder, "kept")
    shutil.rmtree(kept, ignore_errors=True)
    os.mkdir(kept)
    os.makedirs(stage.out, exist_ok=True)
    spaces = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
    result = run(*spaces, "sh", "-c", MOUNTED, "sh", stage.out, how, *stage.command(),
                 env={"KEPT": kept, "KEPT_FROM": stage.out})
    stage.out = kept
    return result


def test_full_disk(folder):
    if not shutil.which("unshare"):
        print("skipped: full and read-only file systems: unshare is not installed")
        return
    result = play_mounted(Stage(folder, A, B), "read-only")
    if result[0] == 77 or "unshare:" in result[2]:
        print(f"skipped: full and read-only file systems: no mounts for this user: {result[2].strip()}")
        return
    one_line("a read-only file system", result, 2, "Read-only file system")
    one_line("a full disk at the beginning", play_mounted(Stage(folder, A, B), "full"), 2, "No space left on device")
    stage = Stage(folder, A, dict(B, fill=[False, True]))
    result = play_mounted(stage, "empty")
    one_line("a disk that becomes full", result, 1, "after arm sparse, repeat 2", "No space left on device")
    check_saved("a disk that becomes full", stage, 3, 0)


TESTS = [test_pairs, test_no_difference, test_own_names, test_dry_run, test_root_launcher, test_gate, test_fails,
         test_dies, test_first_fails, test_no_record, test_hangs, test_leftovers, test_interrupted, test_builds,
         test_unlike, test_bad_screens, test_committed,
         test_two_at_once, test_unwritable, test_full_disk]


def main():
    for test in TESTS:
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    return end()


if __name__ == "__main__":
    sys.exit(main())
