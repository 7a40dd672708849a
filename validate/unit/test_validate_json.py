#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The schemas and their validator: good documents pass, each of many single mistakes is found at its place, and the
scenario files are what their names say."""
import copy
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAM = os.path.join(TOP, "scripts", "validate-json")
SCHEMAS = os.path.join(TOP, "docs", "schema")
SCENARIOS = os.path.join(TOP, "scenarios")
failures = []
checks = 0


def check(name, good, why=""):
    global checks
    checks += 1
    if not good:
        failures.append(name)
        print(f"FAILED {name}: {why}")


def run(schema, text, folder):
    file = os.path.join(folder, "document.json")
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    done = subprocess.run([sys.executable, PROGRAM, schema, file], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def schema_file(name):
    return os.path.join(SCHEMAS, f"{name}.schema.json")


# ---- Good documents

SCENARIO = {
    "schema": "afdep-scenario/1", "name": "x",
    "topology": {"ffn_ranks": 2, "attention_ranks": 4, "ranks_per_domain": 2},
    "model": {"num_experts": 8, "top_k": 2, "hidden": 256}, "dtype": "fp8", "capacity": 16, "num_sms": 1,
    "expert_alignment": 1, "tokens": [1, 16], "graph": True, "routing": {"kind": "uniform"}, "seed": 1}
MACHINE = {
    "cpu": "a processor", "cores": 2, "cores_allowed": 2, "memory_bytes": 8589934592, "shared_memory_bytes": 67108864,
    "kernel": "Linux 6.1 x86_64", "distribution": None, "driver": None, "mps": False, "cuda": None, "nccl": None,
    "mpi": None, "ranks_per_host": 6, "ranks_per_gpu": None,
    "gpus": [{"name": "a GPU", "memory_bytes": 1e9, "compute": "9.0", "pci": None, "mig": False, "nvlinks": 18,
              "nvlink_gbytes_per_s": 478.1}],
    "nics": [{"name": "mlx5_0", "firmware": "1.0", "atomics": "hca",
              "ports": [{"port": 1, "state": "ACTIVE", "link": "infiniband", "rate_gbits_per_s": 400}]}]}
HEAD = {
    "created": "2025-01-02T03:04:05Z", "command": "afdep-bench", "environment": {"AFDEP_NUM_SMS": "2"},
    "scenario": SCENARIO, "native_tree": "0123456789abcdef0123456789abcdef01234567", "machine": MACHINE, "ranks": 6,
    "arm": {"name": "sparse", "protocol": "sparse", "stagger": True, "sparse_dispatch": True, "sparse_combine": True,
            "dtype": "fp8", "backend": "host", "fabric": "shm", "emulated": False, "graph": False,
            "domains": "declared"},
    "build": {"version": "0.1.0", "compiler": "gcc", "flags": "", "features": ["host", "shm"], "dirty": False}}
CELL = {
    "tokens": 1, "iterations": 20, "min_us": 1.5, "median_us": 2, "mean_us": 2.1, "p99_us": None, "skew_us": 0.1,
    "samples_us": [1.5, 2], "bytes_per_exchange": 100, "puts_per_exchange": 2, "mismatches": 0,
    "signals_per_exchange": {"finish_tail": 1, "count_word": 1, "progress_tail": 0, "combine": 1, "witness": 1,
                             "total": 4}}
BENCHMARK = dict(HEAD, schema="afdep-benchmark/1", cells=[CELL])
BENCHMARKS = {
    "schema": "afdep-benchmarks/1", "screen": None, "records": [BENCHMARK],
    "pairs": [{"tokens": 1, "baseline": "dense", "candidate": "sparse", "change_pct": -50.5, "change_low_pct": -60,
               "change_high_pct": -40, "repeats": 3}]}
SCREEN = {
    "schema": "afdep-screen/1", "name": "q", "scenario": "scenarios/x.json", "tokens": [1, 8], "repeats": 3,
    "baseline": "dense", "arms": [{"name": "stagger+sparse_dispatch", "launcher": ["mpirun"], "program": "afdep-bench",
                                   "env": {"AFDEP_NUM_SMS": "1"}, "flags": ["--protocol", "dense"]}]}
VALIDATION = dict(HEAD, schema="afdep-validation/1", summary={"passed": 1, "failed": 0, "skipped": 0}, cases=[
    {"name": "a", "suite": "quick", "result": "passed", "seconds": 0.1, "exchanges": 3, "seed": 1}])
TRACE = {"schema": "afdep-trace/1", "top_k": 2, "num_experts": 8, "ids": [[0, 1], [-1, 7]], "weights": [[0.5, 0.5]]}
FAULT = {
    "schema": "afdep-fault/1", "name": "q", "seed": 1, "faults": [
        {"kind": "delay", "where": {"rank": 0, "what": "combine"}, "when": {"after": 3}, "amount_us": 200},
        {"kind": "slow-actor", "where": {"duty": "forward", "channel": 1}, "amount_us": 200},
        {"kind": "kill", "where": {"duty": "collect"}}, {"kind": "corrupt", "bit": -1}]}
GOOD = {"scenario": SCENARIO, "fault": FAULT, "benchmark": BENCHMARK, "benchmarks": BENCHMARKS, "screen": SCREEN,
        "validation": VALIDATION, "trace": TRACE}
DROP = object()

# (schema, path to what is changed, new value or DROP, place that must be named)
BAD = [
    ("fault", ["schema"], "afdep-fault/2", "$.schema"),
    ("fault", ["faults"], [], "$.faults"),
    ("fault", ["faults", 0, "amount_us"], DROP, "$.faults[0]"),
    ("fault", ["faults", 0, "bit"], 1, "$.faults[0]"),
    ("fault", ["faults", 0, "where", "duty"], "forward", "$.faults[0]"),
    ("fault", ["faults", 0, "where", "what"], "tail", "$.faults[0]"),
    ("fault", ["faults", 1, "where", "duty"], "forwards", "$.faults[1]"),
    ("fault", ["faults", 3, "kind"], "smash", "$.faults[3]"),
    ("scenario", ["schema"], "afdep-scenario/99", "$.schema"),
    ("scenario", ["extra"], 1, "$.extra"),
    ("scenario", ["capacity"], DROP, "$.capacity"),
    ("scenario", ["capacity"], 2**40, "$.capacity"),
    ("scenario", ["capacity"], 1.5, "$.capacity"),
    ("scenario", ["capacity"], "16", "$.capacity"),
    ("scenario", ["capacity"], True, "$.capacity"),
    ("scenario", ["tokens"], [], "$.tokens"),
    ("scenario", ["tokens"], [-1], "$.tokens[0]"),
    ("scenario", ["tokens"], 1, "$.tokens"),
    ("scenario", ["dtype"], "fp7", "$.dtype"),
    ("scenario", ["graph"], 1, "$.graph"),
    ("scenario", ["name"], "a/b", "$.name"),
    ("scenario", ["name"], "x\n", "$.name"),
    ("scenario", ["seed"], 2**53, "$.seed"),
    ("scenario", ["model", "hidden"], 300, "$.model.hidden"),
    ("scenario", ["model", "top_k"], 33, "$.model.top_k"),
    ("scenario", ["topology", "ffn_ranks"], -1, "$.topology.ffn_ranks"),
    ("scenario", ["topology"], None, "$.topology"),
    ("scenario", ["routing"], {"kind": "zipf"}, "$.routing"),
    ("scenario", ["routing"], {"kind": "uniform", "s": 1}, "$.routing"),
    ("benchmark", ["schema"], "afdep-benchmark/2", "$.schema"),
    ("benchmark", ["created"], "yesterday", "$.created"),
    ("benchmark", ["native_tree"], "", "$.native_tree"),
    ("benchmark", ["environment", "HOME"], "/root", "$.environment.HOME"),
    ("benchmark", ["environment", "AFDEP_JOB_TOKEN"], "secret", "$.environment.AFDEP_JOB_TOKEN"),
    ("benchmark", ["arm", "emulated"], "false", "$.arm.emulated"),
    ("benchmark", ["arm", "domains"], DROP, "$.arm.domains"),
    ("benchmark", ["build", "features"], ["shm", "shm"], "$.build.features[1]"),
    ("benchmark", ["build", "dirty"], DROP, "$.build.dirty"),
    ("benchmark", ["scenario", "dtype"], "fp7", "$.scenario.dtype"),
    ("benchmark", ["machine", "nics"], "none", "$.machine.nics"),
    ("benchmark", ["machine", "ranks_per_gpu"], DROP, "$.machine.ranks_per_gpu"),
    ("benchmark", ["machine", "gpus", 0, "memory_bytes"], -1, "$.machine.gpus[0].memory_bytes"),
    ("benchmark", ["cells"], [], "$.cells"),
    ("benchmark", ["cells", 0, "median_us"], "nan", "$.cells[0].median_us"),
    ("benchmark", ["cells", 0, "mismatches"], 0.5, "$.cells[0].mismatches"),
    ("benchmark", ["cells", 0, "signals_per_exchange", "witness"], DROP, "$.cells[0].signals_per_exchange.witness"),
    ("benchmarks", ["records", 0, "cells", 0, "tokens"], -1, "$.records[0].cells[0].tokens"),
    ("benchmarks", ["pairs", 0, "repeats"], 0, "$.pairs[0].repeats"),
    ("benchmarks", ["pairs", 0, "change_pct"], DROP, "$.pairs[0].change_pct"),
    ("screen", ["arms"], [], "$.arms"),
    ("screen", ["arms", 0, "launcher"], "mpirun -n 2", "$.arms[0].launcher"),
    ("screen", ["arms", 0, "env"], {"A B": "1"}, "$.arms[0].env.A B"),
    ("screen", ["arms", 0, "flag"], [], "$.arms[0].flag"),
    ("screen", ["tokens"], [1, 1.0], "$.tokens[1]"),
    ("validation", ["cases", 0, "result"], "ok", "$.cases[0].result"),
    ("validation", ["cases", 0, "result"], "failed", "$.cases[0].why"),
    ("validation", ["summary", "failed"], DROP, "$.summary.failed"),
    ("trace", ["ids", 1, 0], -2, "$.ids[1][0]"),
    ("trace", ["ids"], [], "$.ids"),
]


def changed(document, path, value):
    document = copy.deepcopy(document)
    target = document
    for step in path[:-1]:
        target = target[step]
    if value is DROP:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return document


def test_documents(folder):
    for name, document in GOOD.items():
        code, out, err = run(schema_file(name), json.dumps(document), folder)
        check(f"{name}: the good one passes", code == 0 and not out and not err, f"{code} {out} {err}")
    for name, path, value, place in BAD:
        code, out, err = run(schema_file(name), json.dumps(changed(GOOD[name], path, value)), folder)
        lines = out.splitlines()
        good = code == 1 and not err and any(f"document.json: {place}" in line for line in lines)
        check(f"{name}: {place} {value!r}", good, f"exit {code}: {out}{err}")


# What is not JSON, though Python would read some of it.
NOT_JSON = ["", "{", "[1,]", '{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 100000,
            "{} {}", '{"schema": "a\tb"}']


def test_text(folder):
    for text in NOT_JSON:
        code, out, err = run(schema_file("trace"), text, folder)
        check(f"refuses {text[:20]!r}", code == 1 and "is not JSON" in out and len(out.splitlines()) == 1 and not err,
              f"exit {code}: {out}{err}")
    done = subprocess.run([sys.executable, PROGRAM, schema_file("trace"), os.path.join(folder, "absent")],
                          capture_output=True, text=True, timeout=60)
    check("names a missing file", done.returncode == 1 and "absent" in done.stdout, done.stdout + done.stderr)


def test_schemas(folder):
    """A schema with a word that the validator does not know, or a reference to nowhere, is not passed over."""
    for text in ('{"minimun": 1}', '{"$ref": "#/$defs/absent"}', '{"type": "int"}', "{"):
        schema = os.path.join(folder, "schema.json")
        with open(schema, "w", encoding="utf-8") as out:
            out.write(text)
        code, _, err = run(schema, "1", folder)
        check(f"schema {text}", code == 2 and "schema.json" in err, f"exit {code}: {err}")


def test_one_of(folder):
    """Forms that overlap: one may fit, not two."""
    schema = os.path.join(folder, "schema.json")
    with open(schema, "w", encoding="utf-8") as out:
        out.write('{"oneOf": [{"type": "integer"}, {"minimum": 5}]}')
    for text, wanted in (("1", 0), ("5.5", 0), ("7", 1), ("1.5", 1)):
        code, _, err = run(schema, text, folder)
        check(f"one of two for {text}", code == wanted, f"exit {code}: {err}")


NAMES = {"11to1": (2, 22), "4f20a": (4, 20), "2f6a": (2, 6), "5to1": (4, 20), "8f16a": (8, 16), "6a2f": (2, 6),
         "7a1f": (1, 7), "4a4f": (4, 4), "1a1f": (1, 1), "tiny-2f4a": (2, 4)}


def test_scenarios():
    files = sorted(glob.glob(os.path.join(SCENARIOS, "*.json")))
    check("all scenario files are there", len(files) >= 11, str(files))
    done = subprocess.run([sys.executable, PROGRAM, schema_file("scenario")] + files, capture_output=True, text=True,
                          timeout=60)
    check("scenario files fit their schema", done.returncode == 0, done.stdout + done.stderr)
    faults = glob.glob(os.path.join(SCENARIOS, "faults", "*.json"))
    done = subprocess.run([sys.executable, PROGRAM, schema_file("fault")] + faults, capture_output=True, text=True,
                          timeout=60)
    check("fault files fit their schema", done.returncode == 0 and len(faults) >= 8, done.stdout + done.stderr)
    for file in files:
        name = os.path.basename(file)[:-len(".json")]
        with open(file, encoding="utf-8") as opened:
            scenario = json.load(opened)
        check(f"{name} is named so inside", scenario["name"] == name, scenario["name"])
        parts = re.fullmatch(r"(.+)-(\d+)x(\d+)-(bf16|fp8)(?:-h(\d+))?", name)
        if not parts or parts.group(1) not in NAMES:
            continue
        topology = scenario["topology"]
        ffn, attention = NAMES[parts.group(1)]
        ranks = int(parts.group(2)) * int(parts.group(3))
        check(f"{name}: topology", (topology["ffn_ranks"], topology["attention_ranks"]) == (ffn, attention)
              and ranks == ffn + attention and topology["ranks_per_domain"] == int(parts.group(3)), str(topology))
        check(f"{name}: dtype and hidden", scenario["dtype"] == parts.group(4)
              and scenario["model"]["hidden"] == int(parts.group(5) or 256), str(scenario))


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_documents(folder)
        test_text(folder)
        test_schemas(folder)
        test_one_of(folder)
    test_scenarios()
    print(f"{checks - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
