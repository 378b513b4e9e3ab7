"""Runs test cases of the mutated tree: first to learn which mutant each case comes by, then against each mutant."""

import hashlib
import json
import os
import resource
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NUM_BYTES = 8192  # kMaxMutants of mutant_switch.h
MEMORY_BYTES = 4 << 30
GTEST = ["--gtest_brief=1", "--gtest_fail_fast", "--gtest_color=no"]


@dataclass
class Case:
    binary: str
    name: str
    seconds: float
    reached: frozenset


@dataclass
class Verdict:
    status: str        # killed, timeout, survived or not reached
    by: str = ""       # the case (or cases) that saw it
    command: str = ""  # what runs it again
    cases: int = 0     # how many cases come by it


def _limit(cpu_seconds):
    def apply():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return apply


def _run(binary, cases, expected_seconds, **variables):
    """Exit code and output; 'timeout' instead of a code where it did not end. Time is the process's own, so that a busy
    machine makes no difference; a wait that uses none ends by the clock."""
    cpu = int(5 + 10 * expected_seconds)
    command = [str(binary), *GTEST, "--gtest_filter=" + ":".join(cases)]
    process = subprocess.Popen(command, cwd=Path(binary).parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", env={**os.environ, **variables}, preexec_fn=_limit(cpu),
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=6 * cpu)
        return ("timeout" if process.returncode in (-24, -9) else process.returncode), output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "timeout", ""


def list_cases(binary):
    words = subprocess.run([str(binary), "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    names, suite = [], ""
    for line in words.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.strip().endswith(".") or ".  #" in line:
            suite = line.split("#")[0].strip()
    return [name for name in names if "DISABLED_" not in name]


def _record_case(binary, name, folder):
    reached_file = folder / f"reached-{hashlib.md5((str(binary) + name).encode()).hexdigest()}"
    reached_file.write_bytes(bytes(NUM_BYTES))
    start = time.monotonic()
    code, output = _run(binary, [name], 60, CPSCOPE_MUTANT_REACHED=str(reached_file))
    seconds = time.monotonic() - start
    reached = [i for i, byte in enumerate(reached_file.read_bytes()) if byte]
    reached_file.unlink()
    return {"name": name, "seconds": seconds, "reached": reached, "code": code, "output": output[-2000:] if code != 0 else ""}


def record(binaries, folder, jobs):
    """Which mutants each case comes by, without any of them on. Kept for binaries that stay the same."""
    folder.mkdir(parents=True, exist_ok=True)
    cases, broken = [], []
    for binary in binaries:
        digest = hashlib.sha256(Path(binary).read_bytes()).hexdigest()
        kept = folder / f"{Path(binary).name}.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}
        if known.get("binary") != digest:
            with ThreadPoolExecutor(jobs) as pool:
                rows = list(pool.map(lambda name: _record_case(binary, name, folder), list_cases(binary)))
            known = {"binary": digest, "cases": rows}
            kept.write_text(json.dumps(known))
        broken += [f"{row['name']}: {row['code']}\n{row['output']}" for row in known["cases"] if row["code"] != 0]
        cases += [Case(str(binary), row["name"], row["seconds"], frozenset(row["reached"])) for row in known["cases"]]
    return cases, broken


def make_batches(cases):
    """Cases of one binary together, cheap ones first, in batches that grow."""
    batches = []
    for binary in sorted({case.binary for case in cases}):
        limit, batch, seconds = 0.1, [], 0.0
        for case in sorted((c for c in cases if c.binary == binary), key=lambda c: (c.seconds, c.name)):
            if batch and (seconds + case.seconds > limit or len(batch) >= 300):
                batches.append((limit if seconds < limit else seconds, binary, batch))
                limit, batch, seconds = min(limit * 4, 20), [], 0.0
            batch.append(case)
            seconds += case.seconds
        if batch:
            batches.append((seconds, binary, batch))
    return sorted(batches, key=lambda b: (b[0], b[1]))


def first_failure(output, batch):
    for line in output.splitlines():
        if line.startswith("[  FAILED  ]"):
            return line[len("[  FAILED  ]"):].strip().split(" ")[0].rstrip(",")
    return f"{batch[0].name}, or one of the {len(batch) - 1} after it" if len(batch) > 1 else batch[0].name


def judge(number, cases):
    """Runs what comes by mutant `number` until something notices."""
    reaching = [case for case in cases if number in case.reached]
    if not reaching:
        return Verdict("not reached")
    for _, binary, batch in make_batches(reaching):
        names = [case.name for case in batch]
        code, output = _run(binary, names, sum(case.seconds for case in batch), CPSCOPE_MUTANT=str(number))
        if code != 0:
            by = first_failure(output, batch)
            again = by if "," not in by else ":".join(names)
            return Verdict("timeout" if code == "timeout" else "killed", by,
                           f"CPSCOPE_MUTANT={number} {binary} --gtest_filter={again}", len(reaching))
    return Verdict("survived", cases=len(reaching))
