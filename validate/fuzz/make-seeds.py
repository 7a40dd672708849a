#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets below validate/fuzz/seeds/ anew: small, and one for each way in that a fuzzer
would take long to find. The formats of binary inputs are described at the head of each target."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
SCENARIOS = HERE.parent.parent / "scenarios"


def seed(target, name, content):
    folder = HERE / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def files():
    seed("json", "values", '{"a":[1,-2.5e3,true,false,null,"\\u00e9\\n\\ud83d\\ude00"],"b":{"c":[]}}')
    seed("json", "deep", "[" * 60 + "]" * 60)
    seed("json", "tail", '{"a":1} x')
    tiny = json.loads((SCENARIOS / "tiny-2f4a-3x2-fp8.json").read_text())
    for kind in ({"kind": "uniform"}, {"kind": "zipf", "s": 1.1}, {"kind": "hot", "expert": 3},
                 {"kind": "trace", "file": "t.json"}):
        seed("scenario", kind["kind"], compact({**tiny, "routing": kind}))
    for file in sorted((SCENARIOS / "faults").glob("*.json")):
        seed("fault", file.stem, compact(json.loads(file.read_text())))
    arm = {"name": "dense", "launcher": ["mpirun", "-n", "2"], "program": "p", "env": {"A": "b"}, "flags": ["--x"]}
    screen = {"schema": "afdep-screen/1", "name": "s", "scenario": "s", "tokens": [1, 8], "repeats": 2,
              "baseline": "dense", "arms": [arm, {**arm, "name": "sparse", "native_tree": "0123456789abcdef"}]}
    seed("screen", "two-arms", compact(screen))
    seed("screen", "all-fields", compact({**screen, "description": "d", "clean": True, "deadline_s": 5,
                                          "may_differ": ["dtype", "seed"]}))
    trace = {"schema": "afdep-trace/1", "top_k": 2, "num_experts": 8, "ids": [[0, 7], [-1, -1], [3, -1]]}
    seed("trace", "ids", compact(trace))
    seed("trace", "weights", compact({**trace, "weights": [[0.5, 0.5], [1, 1e-30], [2, 3]]}))
    cell = {"tokens": 1, "median_us": 10.5, "min_us": 1, "skew_us": 0.5}
    record = {"schema": "afdep-benchmark/1", "scenario": {"name": "s", "seed": 1}, "arm": {"name": "a"}, "build": {},
              "machine": {"cpu": "c"}, "native_tree": "t", "ranks": 6, "cells": [cell, {**cell, "tokens": 8}],
              "run": {"arm": "a", "repeat": 0}, "may_differ": ["seed"]}
    other = {**record, "arm": {"name": "b"}, "run": {"arm": "b", "repeat": 0}}
    seed("record", "two-arms", compact([record, other]))
    seed("record", "repeats", compact([record, other, {**record, "run": {"arm": "a", "repeat": 1}},
                                       {**other, "run": {"arm": "b", "repeat": 1}}]))


def messages():
    # One byte says what the header has: 1 a payload (its bytes and offset follow), 2 a signal (offset, addition).
    seed("gin", "put-signal", bytes([3, 16, 8, 16]) + struct.pack("<Q", 5) + bytes(8))
    seed("gin", "signal-pad-put", bytes([2, 8]) + struct.pack("<Q", 1 << 32 | 3) + bytes([4, 1, 4, 0]) + b"abcd")
    seed("gin", "one-byte-off", bytes([9, 8, 0, 16, 9]) + bytes(8))
    seed("gin", "far-offsets", bytes([17, 8, 0]) + struct.pack("<Q", 2**64 - 8) + bytes([32]) + struct.pack("<Q", 96))


def words():
    seed("options", "every-type", "--int=3\n--double\n1.5\n--on=on\n--choice=bc\n--list=1,2,3\n--text=t\n--json=f\n--seed\n7")
    seed("options", "routing", "uniform\nzipf:1.2\nhot:3\ntrace:f")
    seed("options", "topology", "--ffn-ranks=2\n--attention-ranks=4\n--ranks-per-domain=2\n--tokens=1,8\n--hidden=256\n"
         "--num-experts=8\n--top-k=2\n--routing=hot:1\n--capacity=16\n--num-sms=1")
    seed("options", "each-source", "--ffn-ranks\n1\n--attention-ranks\n2\n--tokens-per-source\n3,0\n--protocol=dense\n"
         "--dtype=fp8\n--stagger=off\n--in-flight=2\n--graph=off\n--check=off\n--warmup=1\n--iterations=3")
    # struct: ffn, per domain, experts, top_k, hidden, dtype, capacity, num_sms, alignment, in_flight, timeout,
    # toggles, flags
    fields = struct.pack("<15iI", 2, 2, 8, 2, 256, 1, 16, 1, 1, 1, 0, 0, 2, 1, 1, 1)
    fields = fields[:60]
    seed("config", "directional", bytes([6, 0]) + fields)
    seed("config", "direct", bytes([3, 65]) + struct.pack("<15i", 1, 0, 4, 2, 512, 0, 8, *[0] * 8))
    lines = b"".join(bytes([n]) + value + b"\n" for n, value in enumerate(
        [b"4", b"2", b"500", b"off", b"on", b"0", b"1", b"host", b"shm", b"scalar", b"1", b"0", b"0", b"4294967290",
         b"0", b"1", b"29500", b"0123456789abcdef0123456789abcdef", b"debug"]))
    seed("config", "environment", bytes([6, 0]) + struct.pack("<15i", 2, 2, 8, 2, 256, 0, 16, *[0] * 8) + lines)


def bootstrap():
    seed("agreement", "agree", bytes([2]))
    seed("agreement", "another-value", bytes([3, 1, 0]) + struct.pack("<H", 520 + 10) + bytes([1]) + b"9")
    seed("agreement", "failed", bytes([0x83, 1, 0]) + struct.pack("<H", 4) + bytes([10]) + struct.pack("<i", -2) + b"reason")
    seed("agreement", "ended", bytes([2, 1, 1]) + struct.pack("<H", 560) + bytes([0]))
    # root: guests that greet and prove rightly (rank << 4), then a DATA message (kind 1) of each in collectives 1 and 2
    guests = bytes([4 | 4 << 3]) + bytes(rank << 4 for rank in (1, 2, 3, 4))
    said = b"".join(bytes([rank, 1 | operation << 3, 4]) + b"data" for operation in (1, 2) for rank in (1, 2, 3, 4))
    seed("tcp_root", "two-collectives", guests + said)
    seed("tcp_root", "expired", guests + bytes([1 | 0x40, 3 | 0x80, 4, 0, 0, 0, 9]))
    seed("tcp_root", "bad-messages", guests + bytes([0x81, 3]) + b"xyz" + bytes([2, 2, 4]) + b"data")
    seed("tcp_root", "strangers", bytes([3, 1, 5]) + b"GET /" + bytes([0x12, 4]) + b"abcd" + bytes([0x18, 9, 0, 0, 0]))
    # peer: the meeting's result (kind 1, operation 0), then two collectives of 11 ranks
    seed("tcp_peer", "two-collectives", bytes([0, 4, 1, 0, 1 | 8, 44]) + bytes(44) + bytes([1 | 16, 44]) + bytes(44))
    notice = struct.pack(">II", 1, 50) + bytes([0x12, 0])
    seed("tcp_peer", "notice", bytes([0, 4, 1, 0, 2 | 8 | 0xC0, 0]) + notice)
    seed("tcp_peer", "refused", bytes([4 << 4, 0]))
    seed("tcp_peer", "stranger", bytes([1, 0, 20]) + b"HTTP/1.1 400 Bad Req")


def word(kind, place, high, low):
    return struct.pack("BBBbb", 1, kind, place, high, low)


def row(kind, place, token, source, ids=()):
    return struct.pack("BBBbbb", 2, kind, place, token, source, 0) + struct.pack(f"{len(ids)}b", *ids)


BEGIN, LOOK, RUN, SWEEP = 4, 5, 6, 7
FIRST, SECOND = 11, 0x80  # of BEGIN: a receive for 12 tokens, a second half


def ffn():
    """Rank 1 (rail 1) has the second half of the experts, from `own` on; its rail's sources are 3 and 5, those of a direct
    rank 2 to 5. Source 5's first token rides channel 4, on lane 12; without stagger channel 0, lane 8."""
    def directional(exchange, own, lane):
        arrivals = word(0, 0, 0, 1) + word(0, 1, 0, 1) + word(1, 0, 1, 1) + word(1, lane, 1, 1)
        arrivals += row(0, 0, 0, 3, (own, -1, -1, -1)) + row(0, 2 * lane, 0, 5, (0, own + 1, -1, -1))
        arrivals += word(3, 2 * (exchange % 2 == 0), 0, 1) + word(5, 0, 0, 1) + row(1, 0, 0, 2, (own, -1, own + 1, -1))
        return arrivals + bytes([SWEEP, BEGIN, SECOND]) + word(4, 0, 0, 1) + row(2, 12, 0, 0) + bytes([SWEEP])

    def direct():
        counts = b"".join(word(0, a, 0, a % 2) for a in range(4))
        rows = row(0, 12, 2, 3, (2, 3, -1, -1)) + row(0, 36, 0, 5, (3, 0, 1, -1))
        return counts + rows + bytes([SWEEP, BEGIN, SECOND, SWEEP])

    for name, bits, pressure, own, lane in (("sparse", 1, 0, 2, 12), ("aligned", 1 | 8 | 16 | 32, 9, 4, 8),
                                            ("wrap", 129, 0, 2, 12)):
        seed("ffn", name, bytes([bits, pressure, FIRST]) + directional(1, own, lane) + bytes([BEGIN, FIRST]) +
             directional(2, own, lane))
    dense = b"".join(word(1, lane, 1, 0) for lane in range(16)) + word(3, 0, 0, 0) + bytes([SWEEP, BEGIN, SECOND, SWEEP])
    seed("ffn", "dense", bytes([7, 0, FIRST]) + dense)
    seed("ffn", "direct", bytes([0, 0, FIRST]) + direct() + bytes([BEGIN, FIRST]) + direct())
    seed("ffn", "direct-no-room", bytes([32, 5, FIRST | 32]) + direct() + bytes([BEGIN, 16, SWEEP, BEGIN, SECOND, SWEEP]))
    for name, culprit, status in (("failure", 2, 61), ("failure-no-status", 0x80000000, 0x80000000)):
        seed("ffn", name, bytes([1, 0, FIRST, 1, 0x86, 0]) + struct.pack("<II", culprit, status) + bytes([LOOK, RUN]))
    # What bounds must stop: an expert several times in rows that fill the bucket; more rows on a channel than slots.
    repeated = b"".join(word(0, a, 0, 1) + row(0, 12 * a, 0, 2 + a, (2, 3, 2, 3)) for a in range(4))
    seed("ffn", "repeated-expert", bytes([0, 0, 16]) + repeated + bytes([SWEEP]))
    rows = row(0, 30, 3, 5, (2, -1, -1, -1)) + row(0, 31, 11, 5, (2, -1, -1, -1)) + row(1, 0, 3, 5, (2, -1, -1, -1))
    for name, tokens in (("beyond-bucket", 20), ("beyond-slots", 12)):
        seed("ffn", name, bytes([1, 0, FIRST]) + word(0, 0, 0, 0) + word(0, 1, 0, tokens) + word(1, 15, 1, 3) + rows +
             bytes([SWEEP]))


def attention():
    """Rank 3 (rail 1, first source domain). Its two tokens go to its only FFN domain, or each to both direct ranks."""
    for name, bits, pressure in (("sparse", 1, 0), ("fp8", 1 | 16 | 32, 9), ("wrap", 129, 0), ("direct", 0, 0)):
        tails = word(1, 0, 1, 1) + word(1, 1, 1, 1)
        rows = row(0, 0, 0, 1) + row(0, 1, 1, 1)
        if name == "direct":
            tails = word(1, 0, 1, 2) + word(1, 1, 1, 2)
            rows = row(0, 0, 0, 0) + row(0, 1, 1, 0) + row(0, 12, 0, 1) + row(0, 13, 1, 1)
        one = bytes([SWEEP, BEGIN, SECOND]) + tails + rows + bytes([SWEEP]) + word(0, 0, 0, 0) + word(0, 1, 0, 0)
        seed("attention", name, bytes([bits, pressure, 0x22]) + one + bytes([BEGIN, 0x22]) + one)
    dense = b"".join(word(1, lane, 1, 0) for lane in range(8))
    seed("attention", "dense", bytes([7, 0, 0, SWEEP, BEGIN, SECOND]) + dense + bytes([SWEEP]))
    seed("attention", "failure", bytes([1, 0, 0x22, SWEEP, BEGIN, SECOND, 1, 0x86, 2]) + struct.pack("<II", 0, 60) + bytes([RUN]))


def low_latency():
    """Rank 1 of 3 owns the experts 2 and 3. Rank 0 sends it one row, rank 2 none; its own tokens choose its own experts."""
    ids = struct.pack("12b", 2, 3, -1, 2, -1, -1, *[-1] * 6)
    send, receive, back, add = bytes([0, 0, 2]), bytes(4), bytes([0, 0, 2]), bytes([6, 0, 22, 0]) + bytes(5)
    peers = bytes([4, 255, 3, 1, 5, 0, 0]) + struct.pack("3b", 2, -1, -1) + bytes([20, 255, 19, 0])
    for name, settings in (("bf16", 16), ("mxfp4", 4), ("wrap", 8)):
        seed("low_latency", name, bytes([settings, 2]) + ids + 2 * (send + peers + receive + back + add))
    # What must be told apart: a header of another hidden size, a row of no such token, a combine row of another slot.
    seed("low_latency", "header", bytes([0, 0]) + ids + send + bytes([4, 12, 64, 3, 0]) + receive)
    seed("low_latency", "row", bytes([0, 0]) + ids + send + bytes([4, 255, 3, 1, 5, 0, 200]) + bytes([2, 2, 2]) + receive)
    seed("low_latency", "combine-tag", bytes([0, 2]) + ids + send + peers + receive + back + bytes([7, 0, 1, 12, 1]) + add)


if __name__ == "__main__":
    ffn()
    attention()
    low_latency()
    files()
    words()
    messages()
    bootstrap()
