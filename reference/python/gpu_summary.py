#!/usr/bin/env python3
"""Prints the results of the steps of tests/gpu/run as one small JSON document.

    reference/python/gpu_summary.py LOGS ROOT

Date, sources, a hash of the kernels, devices, each step's exit code and time; the number of test cases, and those failed or skipped;
TFLOP/s [forward, backward] by shape and by executor or peer; the speed relative to each peer in the same run, and missed goals;
the same for exchanges between GPUs.
"""
import json
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as tree


def text(*command, folder="."):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=folder).stdout.strip()
    except OSError:
        return ""


def case_counts(file, root):
    cases = list(tree.parse(file).getroot().iter("testcase"))

    def named(*kinds):
        return [case.get("name").removeprefix(f"{root}/") for case in cases
                if any(case.find(kind) is not None for kind in kinds)]
    return {"cases": len(cases), "failed": named("failure", "error"), "skipped": named("skipped")}


def kernels_hash(root):
    """A hash of all code that runs on a GPU; tests/house/tree_rules.h defines it."""
    value = 14695981039346656037
    files = [f for f in (root / "kernels").rglob("*") if f.suffix in (".cu", ".h", ".cpp") and "emulator" not in f.parts]
    for path, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        for byte in f"{path}\n{file.read_text()}".encode():
            value = (value ^ byte) * 1099511628211 & 0xffffffffffffffff
    return f"{value:016x}"


def speeds(logs):
    """{shape: {executor or peer: [forward, backward]}}, TFLOP/s of the kernels alone."""
    table = {}
    for row in ratio_rows(logs / "ratios.json"):
        table[row["shape"]] = {system: [round(given[name]["tflops"]) for name in ("forward", "backward")]
                               for system, given in row["systems"].items() if "backward" in given}
    for file in sorted(logs.glob("bench-*.json")):
        try:
            rows = json.loads(file.read_text())["rows"]
        except (ValueError, KeyError):
            continue  # the step stopped early; its exit code shows it
        for row in rows:
            if "forward_tflops" not in row:
                continue
            shape = row.get("shape") or pathlib.Path(row["file"]).stem
            rates = [round(row["forward_tflops"]), round(row["backward_tflops"])]
            table.setdefault(shape, {})[row["executor"]] = rates
    return table


def ratio_rows(file):
    """Shapes that tests/bench/peers measured; empty when it did not run or stopped at once."""
    try:
        return json.loads(file.read_text())["shapes"]
    except (OSError, ValueError, KeyError):
        return []


def ratios(file):
    """{shape: {pass: {peer: our speed / peer's speed}}}, medians, and the measured values of missed goals."""
    table, missed = {}, {}
    for row in ratio_rows(file):
        rounded = {name: {peer: round(given["median"], 2) for peer, given in peers.items()}
                   for name, peers in row.get("ratios", {}).items() if peers}
        if rounded:
            table[row["shape"]] = rounded
        for goal in row.get("goals", []):
            if goal["is_reached"] is False:
                missed.setdefault(row["shape"], []).append([goal["pass"], goal["of"], goal["at_least"], round(goal["seen"], 2)])
    return {**table, "below": missed} if table else {}


def exchanges(logs):
    """{scenario: rates in TFLOP/s per GPU [forward, backward], and the share of transfer time that overlaps computes}."""
    file = logs / "exchange.json"
    if not file.exists():
        return {}
    return {pathlib.Path(row["file"]).stem: {
        "pass": [round(row["forward_pass_tflops"]), round(row["backward_pass_tflops"])],
        "kernels": [round(row["forward_tflops"]), round(row["backward_tflops"])],
        "hidden": round(row["hidden_fraction"], 2)} for row in json.loads(file.read_text() or '{"rows": []}')["rows"]}


def indented(value, depth=0):
    """JSON with one line per leaf list or flat object, so that a table stays readable."""
    inner = json.dumps(value)
    if len(inner) <= 100 or not value or not isinstance(value, (dict, list)):
        return inner
    space = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{space}{json.dumps(key)}: {indented(one, depth + 1)}" for key, one in value.items()]
    else:
        parts = [space + indented(one, depth + 1) for one in value]
    brackets = "{}" if isinstance(value, dict) else "[]"
    return brackets[0] + "\n" + ",\n".join(parts) + "\n" + " " * depth + brackets[1]


def main():
    logs, root = map(pathlib.Path, sys.argv[1:3])
    devices = text("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()
    commit = os.environ.get("CPSCOPE_COMMIT") or text("git", "describe", "--always", "--dirty", folder=root)
    steps = [json.loads(line) for line in (logs / "steps.jsonl").read_text().splitlines()]
    summary = {"date": time.strftime("%Y-%m-%d"), "commit": commit, "kernels_hash": kernels_hash(root),
               "devices": devices, "steps": steps}
    for file in sorted(logs.glob("*.xml")):
        summary[file.stem] = case_counts(file, root)
    if table := speeds(logs):
        summary["tflops"] = table
    for name in ("ratios", "exchange_ratios"):
        if table := ratios(logs / f"{name}.json"):
            summary[name] = table
    if table := exchanges(logs):
        summary["exchange"] = table
    print(indented(summary))
    slug = devices[0].split(",")[0].lower().replace(" ", "-") if devices else "no-device"
    count = f"-x{len(devices)}" if len(devices) > 1 else ""
    print(f"gpu: worth keeping? tests/gpu/evidence/{summary['date']}-{slug}{count}.json", file=sys.stderr)


if __name__ == "__main__":
    main()
