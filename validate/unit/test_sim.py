#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""afdep-sim: what it predicts is near what was published, the same each time, and counted as the protocol counts; what it
writes fits its schemas; what it cannot do it refuses in one line. Run from the build tree."""
import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from screening import TOP, check, end, fits, read, run, write  # noqa: E402

SIM = os.path.abspath(os.environ.get("AFDEP_SIM", "bench/afdep-sim"))
SCENARIOS = os.path.join(TOP, "scenarios")
PUBLISHED = os.path.join(SCENARIOS, "published", "h200-infiniband.json")
COST = os.path.join(SCENARIOS, "cost", "h200-infiniband.json")
ONCE = ("--iterations", "1", "--warmup", "0")


def scenario(name):
    return os.path.join(SCENARIOS, name + ".json")


def fitting(name, schema, file):
    good, why = fits(schema, file)
    check(f"{name} fits its schema", good, why)


def predict(folder, *arguments):
    out = os.path.join(folder, "record.json")
    code, _, err = run(SIM, *arguments, "--json", out, timeout=300)
    check(f"runs: {' '.join(arguments)}", code == 0, err)
    return read(out)


def test_record(folder):
    one = predict(folder, "--scenario", scenario("11to1-12x2-fp8-h2048"), "--tokens", "1,128", *ONCE)
    fitting("a prediction", "benchmark", os.path.join(folder, "record.json"))
    check("emulated", one["arm"]["emulated"] is True and one["arm"]["fabric"] == "sim" and one["witness"] == "dispatch")
    signals = [{k: c["signals_per_exchange"][k] for k in ("finish_tail", "count_word", "combine", "witness")}
               for c in one["cells"]]
    check("sparse counts", signals == [
        {"finish_tail": 11, "count_word": 11, "combine": 11, "witness": 11},
        {"finish_tail": 1408, "count_word": 11, "combine": 1408, "witness": 11}], str(signals))
    dense = predict(folder, "--scenario", scenario("11to1-12x2-fp8-h2048"), "--protocol", "dense", "--tokens", "1", *ONCE)
    counted = dense["cells"][0]["signals_per_exchange"]
    check("dense counts", counted["finish_tail"] == 2112 and counted["combine"] == 2112 and counted["witness"] == 0,
          str(counted))
    check("dense is slower", dense["cells"][0]["median_us"] > 2 * one["cells"][0]["median_us"])
    again = predict(folder, "--scenario", scenario("11to1-12x2-fp8-h2048"), "--tokens", "1,128", *ONCE)
    check("the same each time", again["cells"] == one["cells"])
    other = predict(folder, "--scenario", scenario("11to1-12x2-fp8-h2048"), "--tokens", "128", "--seed", "2", *ONCE)
    check("a seed is other routes", other["cells"][0]["median_us"] != one["cells"][1]["median_us"])
    late = predict(folder, "--scenario", scenario("5to1-6x4-fp8-h2048"), "--tokens", "0", "--witness", "collect", *ONCE)
    soon = predict(folder, "--scenario", scenario("5to1-6x4-fp8-h2048"), "--tokens", "0", *ONCE)
    check("who sent nothing waits for its witness in collect, as published", late["cells"][0]["median_us"] > soon["cells"][0]["median_us"])
    free = predict(folder, "--scenario", scenario("11to1-12x2-fp8-h2048"), "--tokens", "8", "--starts", "free")
    check("ranks that run freely drift apart", free["cells"][0]["skew_us"] > 0)


def test_published(folder):
    """The committed model's own claim: fitted on two screens, it predicts the others."""
    one = predict(folder, "--compare", PUBLISHED, *ONCE)
    fitting("a comparison", "comparison", os.path.join(folder, "record.json"))
    fitted = {a["screen"] for a in one["arms"] if a["fitted"]}
    check("fitted on two screens", fitted == {"11to1-dispatch-parts", "7a1f-1x8"}, str(fitted))
    check("all ten screens", len({a["screen"] for a in one["arms"]}) == 10)
    left_out = {a["arm"] for a in one["arms"] if a["not_modelled"]}
    check("not modelled", left_out == {"m2n", "sparse_unsafe_witness", "sparse_stagger_le48"}, str(left_out))
    error = one["predicted"]
    check("cells", error["cells"] == 105, str(error))
    check("median error at most 6%", error["median_pct"] <= 6, str(error))
    check("largest error at most 20%", error["largest_pct"] <= 20, str(error))
    check("signs and orders", error["differences"] > 40 and error["differences_wrong"] == 0, str(error))
    _, said, _ = run(SIM, "--compare", PUBLISHED, "--witness", "collect", *ONCE, timeout=300)
    check("says whose witness", "in collect, as published" in said and "not modelled: " in said)


def test_records_compared(folder):
    """A prediction beside itself is without error."""
    record = os.path.join(folder, "own.json")
    code, _, err = run(SIM, "--scenario", scenario("tiny-2f4a-3x2-fp8"), *ONCE, "--json", record)
    check("own record", code == 0, err)
    one = predict(folder, "--compare", record, *ONCE)
    for field, value in {"protocol": 3, "stagger": None, "sparse_combine": "on", "graph": 1}.items():
        own = read(record)
        own["arm"][field] = value
        refused(f"a record's arm.{field}", f"arm.{field}", "--compare", write(own, folder, "r.json"))
    del own["arm"]["sparse_dispatch"], own["arm"]["graph"]
    refused("a record without a toggle", "arm.sparse_dispatch", "--compare", write(own, folder, "r.json"))
    check("no error against itself", one["predicted"]["largest_pct"] == 0 and one["predicted"]["cells"] == 4, str(one["predicted"]))


def staged(us, arms=("dense", "sparse")):
    return {"schema": "afdep-published/1", "model": {"num_experts": 8, "top_k": 2}, "capacity": 16, "num_sms": 1, "screens": [
        {"id": name, "topology": {"ffn_ranks": 2, "attention_ranks": 4, "ranks_per_domain": 2}, "dtype": "fp8",
         "hidden": 256, "tokens": [1, 8], "arms": {arm: [us, us] for arm in arms}} for name in ("seen", "held")]}


def test_fit(folder):
    """From twice its value a parameter finds back to the one that made the times."""
    made = read(COST)
    for name, one in made["parameters"].items():
        one["origin"] = "fitted" if name == "nic_latency" else "assumed"
    truth = made["parameters"]["nic_latency"]["value"]
    cost = write(made, folder, "made.json")
    times = staged(1.0)
    got = predict(folder, "--compare", write(times, folder, "times.json"), "--cost", cost, *ONCE)
    for arm in got["arms"]:
        screen = next(s for s in times["screens"] if s["id"] == arm["screen"])
        screen["arms"][arm["arm"]] = [c["predicted_us"] for c in arm["cells"]]
    made["parameters"]["nic_latency"]["value"] = 2 * truth
    start, out = write(made, folder, "start.json"), os.path.join(folder, "fitted.json")
    one = predict(folder, "--fit", write(times, folder, "times.json"), "--cost", start, "--hold-out", "held", "--cost-out", out)
    fitting("a fitted model", "cost", out)
    fitted = read(out)
    check("finds back", abs(fitted["parameters"]["nic_latency"]["value"] / truth - 1) < 0.01,
          str(fitted["parameters"]["nic_latency"]))
    check("says what it saw", fitted["fitted_on"] == ["seen"], str(fitted["fitted_on"]))
    check("held out apart", one["fitted"]["cells"] == 4 and one["predicted"]["cells"] == 4)


def test_trace(folder):
    out = os.path.join(folder, "trace.json")
    code, _, err = run(SIM, "--scenario", scenario("tiny-2f4a-3x2-fp8"), "--trace", out)
    check("traces", code == 0, err)
    events = read(out)["traceEvents"]
    named = {e["pid"] for e in events if e["name"] == "process_name"}
    check("a process for each rank", named == set(range(6)), str(named))
    rows = {}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for e in events:
        if e["ph"] == "X":
            check("spans have a length", e["dur"] >= 0)
            rows.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    check("rows for NICs and warps", {n.rstrip(" 0123456789") for n in threads.values()} >= {
        "NIC send", "NIC receive", "NVLink out", "SM", "warp", "exchange", "memory"}, str(set(threads.values())))
    for row, spans in rows.items():
        if threads[row].startswith("NIC"):
            spans.sort()
            check("a NIC serves one message at a time", all(b[0] >= a[1] - 1e-6 for a, b in zip(spans, spans[1:])))


def test_tables(folder):
    one = predict(folder, "--scenario", scenario("11to1-12x2-fp8-h2048"), "--sweep", "domains=2,64 channels=64,192 tokens=1,8", *ONCE)
    fitting("a sweep", "prediction", os.path.join(folder, "record.json"))
    check("every shape", len(one["rows"]) == 8)
    at = {(r["attention_domains"], r["channels"], r["tokens"]): r["median_us"] for r in one["rows"]}
    check("domains cost", at[64, 192, 8] > at[2, 192, 8])
    plan = read(SCENARIOS, "plans", "qwen3-235b-1ffn-8.json")
    plan.update(attention_domains=[1, 2, 32], nics_per_rank=[0.5, 1])
    pictures = shutil.which("gnuplot") is not None
    out = os.path.join(folder, "page")
    more = ("--out", out) if pictures else ()
    one = predict(folder, "--plan", write(plan, folder, "plan.json"), *more, *ONCE)
    fitting("a plan's record", "prediction", os.path.join(folder, "record.json"))
    check("rows of a plan", len(one["rows"]) == 6 and all(r["budget_us"] > 0 for r in one["rows"]))
    half, whole = one["rows"][2]["median_us"], one["rows"][5]["median_us"]
    check("half the NICs take longer", half > 1.2 * whole, f"{half} {whole}")
    if not pictures:
        print("skipped: pictures of a plan: gnuplot is not installed")
        return
    with open(os.path.join(out, "index.md"), encoding="utf-8") as file:
        text = file.read()
    check("a page", "saturated from" in text and "round\\-trip" in text or "round-trip.svg" in text, text[:400])
    check("pictures", all(os.path.getsize(os.path.join(out, n)) > 1000 for n in ("round-trip.png", "busy.svg")))


def refused(name, word, *arguments):
    code, _, err = run(SIM, *arguments)
    lines = err.splitlines()
    check(f"refused: {name}", code == 2 and len(lines) == 1 and lines[0].startswith("afdep-sim: ") and word in lines[0],
          f"exit {code}: {err}")


def test_refusals(folder):
    tiny = scenario("tiny-2f4a-3x2-fp8")
    refused("nothing asked", "--scenario")
    refused("a protocol without a model", "m2n", "--scenario", tiny, "--protocol", "m2n")
    refused("another fabric", "--fabric", "--scenario", tiny, "--fabric", "shm")
    refused("two modes", "--sweep", "--compare", PUBLISHED, "--sweep", "tokens=1", "--scenario", tiny)
    refused("a scenario beside a plan", "--compare", "--compare", PUBLISHED, "--scenario", tiny)
    refused("hold-out alone", "--hold-out", "--scenario", tiny, "--hold-out", "x")
    refused("an unknown screen", "nobody", "--fit", PUBLISHED, "--hold-out", "nobody")
    refused("nothing to fit on", "no screen", "--fit", write(staged(9), folder, "t.json"), "--hold-out", "seen,held")
    refused("a sweep of one domain", "one domain", "--scenario", scenario("7a1f-1x8-bf16-h2048"), "--sweep", "domains=2")
    refused("a sweep of nothing known", "hidden", "--scenario", tiny, "--sweep", "hidden=1")
    refused("odd channels", "multiple of 8", "--scenario", tiny, "--sweep", "channels=9")
    refused("no list", "tokens", "--scenario", tiny, "--sweep", "tokens=1,x")
    refused("too many domains", "65536", "--scenario", tiny, "--sweep", "domains=99999")
    refused("a record nowhere", "/nowhere", "--scenario", tiny, "--json", "/nowhere/x.json")
    refused("a trace nowhere", "/nowhere", "--scenario", tiny, "--trace", "/nowhere/x.json")
    refused("no file", "cannot be opened", "--compare", os.path.join(folder, "none.json"))
    refused("neither screens nor records", "holds neither", "--compare", tiny)
    for name, change in {"schema": "afdep-cost/9", "extra": 1, "name": "", "fitted_on": "x"}.items():
        refused(f"cost {name}", name, "--scenario", tiny, "--cost", write(dict(read(COST), **{name: change}), folder, "c.json"))
    for name, value in {"value": -1, "unit": "s", "origin": "dreamt", "from": 3, "extra": 1}.items():
        cost = read(COST)
        cost["parameters"]["nic_put"][name] = value
        refused(f"cost parameter {name}", f"nic_put.{name}", "--scenario", tiny, "--cost", write(cost, folder, "c.json"))
    cost = read(COST)
    cost["parameters"]["nics_per_rank"]["value"] = 1.5
    refused("one NIC and a half", "nics_per_rank", "--scenario", tiny, "--cost", write(cost, folder, "c.json"))
    del cost["parameters"]["nic_put"]
    refused("a parameter less", "nic_put: is missing", "--scenario", tiny, "--cost", write(cost, folder, "c.json"))
    for name, value in {"layers": 0, "tokens": 1.5, "attention_domains": [2, 2], "nics_per_rank": [0.4], "extra": 1, "model": {},
                        "dtype": "int4", "ffn_domains": 3, "communication_share": 2}.items():
        plan = read(SCENARIOS, "plans", "qwen3-235b-1ffn-8.json")
        plan[name] = value
        refused(f"plan {name}", "num_experts" if name in ("model", "ffn_domains") else name, "--plan", write(plan, folder, "p.json"))
    table = staged(9)
    table["screens"][0]["arms"]["dense"] = [1]
    refused("times that are missing", "dense", "--compare", write(table, folder, "t.json"))
    table["screens"][0]["topology"]["ffn_ranks"] = 3
    refused("a topology that cannot be", "seen", "--compare", write(table, folder, "t.json"))


def text(words, folder, name):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(words)
    return os.path.join(folder, name)


def test_twice(folder):
    """A key that an object holds twice is refused wherever it stands: a reader would see only one of the values."""
    tiny = scenario("tiny-2f4a-3x2-fp8")
    for name, words, key, arguments in (
            ("a parameter", json.dumps(read(COST)), "nic_put", ("--scenario", tiny, "--cost")),
            ("a parameter's value", json.dumps(read(COST)), "value", ("--scenario", tiny, "--cost")),
            ("an arm", json.dumps(staged(9)), "dense", ("--compare",)),
            ("a model's field", json.dumps(read(SCENARIOS, "plans", "qwen3-235b-1ffn-8.json")), "top_k", ("--plan",))):
        twice = words.replace(f'"{key}": ', f'"{key}": 1, "{key}": ', 1)
        refused(f"{name} twice", "second time", *arguments, text(twice, folder, "twice.json"))
    table = staged(9)
    table["screens"][1]["id"] = "seen"
    refused("a screen twice", "second time", "--compare", write(table, folder, "t.json"))
    refused("an axis twice", "second time", "--scenario", tiny, "--sweep", "tokens=1 tokens=2")
    out = os.path.join(folder, "same.json")
    refused("a file twice", "same file", "--scenario", tiny, "--json", out, "--trace", out)


def test_published_strictly(folder):
    """Tables are read as strictly as all files that people write."""
    for name, value in {"schema": "afdep-published/9", "unit": "ms", "extra": 1, "name": 3, "model": 5, "capacity": None}.items():
        refused(f"tables' {name}", name, "--compare", write(dict(staged(9), **{name: value}), folder, "t.json"))
    for name in ("schema", "model"):
        table = staged(9)
        del table[name]
        refused(f"tables without {name}", name, "--compare", write(table, folder, "t.json"))
    for name in ("topology", "hidden", "dtype", "tokens"):
        table = staged(9)
        del table["screens"][0][name]
        refused(f"a screen without {name}", f"{name}: is missing", "--compare", write(table, folder, "t.json"))
    for name, value in {"id": "x y", "note": 3, "extra": 1}.items():
        table = staged(9)
        table["screens"][0][name] = value
        refused(f"a screen's {name}", "x y" if name == "id" else name, "--compare", write(table, folder, "t.json"))
    for name in ("", "dense\n", "x" * 96):
        refused(f"an arm {name!r:.16}", "is not a name", "--compare", write(staged(9, (name,)), folder, "t.json"))
    endless = json.dumps(staged(9)).replace("[9, 9]", "[9, 1e999]", 1)
    refused("an endless time", "finite", "--compare", text(endless, folder, "t.json"))
    refused("records of later days", "afdep-benchmarks/9", "--compare",
            write({"schema": "afdep-benchmarks/9", "records": [{}]}, folder, "t.json"))
    refused("nothing that is modelled", "no time", "--fit", write(staged(9, ("m2n",)), folder, "t.json"))


def test_without_use(folder):
    """What a mode has no use for is refused, and what cannot be written before anything is predicted."""
    tiny, plan = scenario("tiny-2f4a-3x2-fp8"), os.path.join(SCENARIOS, "plans", "qwen3-235b-1ffn-8.json")
    for option, value in {"protocol": "dense", "stagger": "off", "tokens": "1", "hidden": "512", "dtype": "bf16", "graph": "on",
                          "routing": "hot:1", "seed": "2", "num-sms": "4", "attention-ranks": "4"}.items():
        word = "topology" if option == "attention-ranks" else f"--{option}"
        refused(f"{option} beside tables", word, "--compare", PUBLISHED, f"--{option}", value)
        if option not in ("protocol", "stagger"):
            refused(f"{option} beside a plan", word, "--plan", plan, f"--{option}", value)
    refused("evaluations alone", "--evaluations", "--scenario", tiny, "--evaluations", "5")
    refused("no Attention domains", "domains: 0", "--scenario", tiny, "--sweep", "domains=0")
    refused("a sweep of one domain, later", "one domain", "--scenario", scenario("7a1f-1x8-bf16-h2048"), "--sweep", "domains=0,2")
    refused("a page nowhere", "/nowhere", "--scenario", tiny, "--sweep", "tokens=1", "--out", "/nowhere/a/b")
    refused("a page in a file", "--out", "--plan", plan, "--out", tiny)
    for name, change in {"meaning": 3}.items():
        cost = read(COST)
        cost["parameters"]["nic_put"][name] = change
        refused(f"cost parameter {name}", f"nic_put.{name}", "--scenario", tiny, "--cost", write(cost, folder, "c.json"))
    deployment = read(plan)
    deployment["model"]["extra"] = 1
    refused("a plan's model", "extra", "--plan", write(deployment, folder, "p.json"))


def test_clock(folder):
    """Virtual time has an end, and says so; before it, columns stay apart."""
    cost = read(COST)
    for one in cost["parameters"].values():
        one["value"] = {"ns": 1e9, "GB/s": 1e-3}.get(one["unit"], one["value"])
    slow = write(cost, folder, "slow.json")
    code, said, err = run(SIM, "--scenario", scenario("tiny-2f4a-3x2-fp8"), "--cost", slow, *ONCE)
    rows = [line.split() for line in said.splitlines() if not line.startswith("#")]
    check("slow, and in columns", code == 0 and rows and all(float(v) >= 0 for row in rows for v in row[:9]), said + err)
    # One domain: the rows' bytes; several: a NIC that idle signals queue at.
    refused("bytes beyond the clock", "26 days", "--ffn-ranks", "1", "--attention-ranks", "3", "--tokens", "100000", "--hidden", "1048576",
            "--num-sms", "1", "--iterations", "12", "--cost", slow)
    refused("signals beyond the clock", "26 days", "--ffn-ranks", "1", "--attention-ranks", "31", "--ranks-per-domain", "1", "--num-sms",
            "1024", "--tokens", "1", "--protocol", "dense", "--iterations", "12", "--cost", slow)


def main():
    for test in (test_record, test_published, test_records_compared, test_fit, test_trace, test_tables, test_refusals,
                 test_twice, test_published_strictly, test_without_use, test_clock):
        folder = tempfile.mkdtemp()
        try:
            test(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return end()


sys.exit(main())
