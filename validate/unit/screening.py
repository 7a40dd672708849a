# SPDX-License-Identifier: Apache-2.0
"""What test_screen.py and test_report.py share: the programs, good records, a program that plays an arm, counting."""
import copy
import json
import os
import subprocess
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCREEN = os.path.abspath(os.environ.get("AFDEP_SCREEN", "bench/afdep-screen"))
REPORT = os.path.abspath(os.environ.get("AFDEP_REPORT", "bench/afdep-report"))
TREE = "0123456789abcdef0123456789abcdef01234567"
SCENARIO = os.path.abspath(os.path.join(TOP, "scenarios", "tiny-2f4a-3x2-fp8.json"))

MACHINE = {
    "cpu": "a processor", "cores": 2, "cores_allowed": 2, "memory_bytes": 8589934592, "shared_memory_bytes": 67108864,
    "kernel": "Linux 6.1 x86_64", "distribution": None, "gpus": [], "driver": None, "mps": False, "cuda": None,
    "nccl": None, "mpi": "Open MPI", "nics": [], "ranks_per_host": 6, "ranks_per_gpu": None}
SIGNALS = {"finish_tail": 16, "count_word": 0, "progress_tail": 0, "combine": 16, "witness": 4, "total": 36}

failures = []
checks = 0


def check(name, good, why=""):
    global checks
    checks += 1
    if not good:
        failures.append(name)
        print(f"FAILED {name}: {why}", flush=True)


def end():
    print(f"{checks - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


def cell(tokens, median):
    return {"tokens": tokens, "iterations": 20, "min_us": median * 0.9, "median_us": median, "mean_us": median * 1.1,
            "p99_us": median * 2, "skew_us": 0.5, "samples_us": [median], "bytes_per_exchange": 1000,
            "signals_per_exchange": SIGNALS, "puts_per_exchange": 8, "mismatches": 0,
            "signals_by_rank": [{"rank": r, "in": 36 if r < 2 else 18, "out": 9} for r in range(6)]}


def record(medians, protocol="dense"):
    """A good record; `medians` by token count."""
    with open(SCENARIO, encoding="utf-8") as file:
        scenario = json.load(file)
    on = protocol != "dense"
    return copy.deepcopy({
        "schema": "afdep-benchmark/1", "created": "2025-01-02T03:04:05Z", "command": "afdep-bench", "environment": {},
        "scenario": scenario, "native_tree": TREE, "machine": MACHINE, "ranks": 6,
        "arm": {"name": protocol, "protocol": protocol, "stagger": on, "sparse_dispatch": on, "sparse_combine": on,
                "dtype": "fp8", "backend": "host", "fabric": "shm", "emulated": False, "graph": False,
                "domains": "declared"},
        "build": {"version": "0.1.0", "compiler": "gcc", "flags": "", "features": ["host"], "dirty": False},
        "cells": [cell(tokens, median) for tokens, median in medians.items()]})


def run(*arguments, env=None, timeout=60):
    """(exit status, standard output, standard error)"""
    done = subprocess.run(list(arguments), capture_output=True, text=True, timeout=timeout, check=False,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, done.stdout, done.stderr


def fits(schema, file):
    code, out, err = run(sys.executable, os.path.join(TOP, "scripts", "validate-json"),
                         os.path.join(TOP, "docs", "schema", f"{schema}.schema.json"), file)
    return code == 0, out + err


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


def write(value, *parts):
    name = os.path.join(*parts)
    with open(name, "w", encoding="utf-8") as file:
        json.dump(value, file)
    return name
