#!/usr/bin/env python3
"""Builds the tests, runs them with ctest, and sums up. ./cpscope test calls it.

A case that passed before with the same program, data and packages is reported as passed "unchanged" and not run again, but for
--all and CI=true. What a case reads is its command and its property REQUIRED_FILES; a case without that property always runs.
What passed is written to FOLDER/.cpscope/passed-*.json while the tests run, so a run that was stopped goes on where it was.
A skip whose reason begins with "requires X:" is a failure where the variable CPSCOPE_REQUIRE names X.
Exit codes: 0 something passed and nothing failed, 1 something failed, 2 packages are missing or a build failed.
"""

import argparse
import collections
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = tuple(re.search(r"set\(CPSCOPE_ROOMS ([\w ]+)\)", (ROOT / "tests/CMakeLists.txt").read_text()).group(1).split())
# The prefix of a test's name belongs to the room of that name but for these.
ROOM_OF = {"emulated": "kernels", "gpu": "kernels", "mutation": "house", "gui_monkey_long": "gui"}
OF_THE_LAUNCHER = ("CPSCOPE_JOBS", "CPSCOPE_SKIP_PACKAGES", "CPSCOPE_REQUIRE")  # variables that no test sees
MOST_CPU_SECONDS = 1500  # of the default command, from a fresh clone
RESULT = re.compile(r"\s*(\d+)/(\d+) Test\s+#\d+: (.+?) \.*\s*(Passed|[\w ]*?\*\*\*[\w :]*?)\s+([\d.]+) sec")
LINES_OF_A_FAILURE = 30
SLOWEST = 50


def say(*words):
    print("cpscope:", *words, file=sys.stderr, flush=True)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Hashes:
    """Of files and folders, each read once."""

    def __init__(self):
        self.known = {}

    def of(self, path):
        path = str(path)
        if path not in self.known:
            self.known[path] = self.read(Path(path))
        return self.known[path]

    def read(self, path):
        if path.is_dir():
            names = sorted(p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
            return "".join(f"{name}:{self.of(name)}" for name in names)
        with open(path, "rb") as file:
            digest = hashlib.blake2b(digest_size=16)
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()


def machine_state():
    """What tests see of a machine beside files: packages, devices, the variables that are ours."""
    state = {name: value for name, value in os.environ.items() if name.startswith("CPSCOPE_") and name not in OF_THE_LAUNCHER}
    for path in ("/var/lib/dpkg/status", "/dev/nvidiactl"):
        try:
            status = os.stat(path)
            state[path] = [status.st_size, status.st_mtime_ns]
        except OSError:
            state[path] = None
    return json.dumps(state, sort_keys=True)


class Case:
    """One test as ctest describes it."""

    def __init__(self, number, description):
        self.number = number
        self.name = description["name"]
        self.command = description.get("command", [])
        self.properties = {p["name"]: p["value"] for p in description.get("properties", [])}

    @property
    def labels(self):
        return self.properties.get("LABELS", [])

    @property
    def room(self):
        prefix = self.name.split(".")[0]
        return ROOM_OF.get(prefix, prefix)

    @property
    def program(self):
        """What a table calls the program it belongs to."""
        binary = Path(self.command[0]).name if self.command else ""
        return binary if binary.endswith("_tests") else ".".join(self.name.split(".")[:2])

    def key(self, hashes, machine):
        """Changes with anything that the case reads; None where that is not known."""
        data = self.properties.get("REQUIRED_FILES")
        if not data:
            return None
        files = [word for word in self.command if os.path.isfile(word)] + list(data)
        if not all(os.path.exists(file) for file in files):
            return None
        parts = [machine, json.dumps(self.command), json.dumps(self.properties.get("ENVIRONMENT", []))]
        parts += [f"{file}={hashes.of(file)}" for file in files]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def list_cases(folder):
    words = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], capture_output=True, text=True, check=True).stdout
    return [Case(i, description) for i, description in enumerate(json.loads(words)["tests"], 1)]


class Passed:
    """Which cases passed with which key, in a file that is written as they do."""

    def __init__(self, path):
        self.path = path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.keys = json.loads(self.path.read_text())
        except (OSError, ValueError):
            self.keys = {}
        self.written = time.monotonic()

    def holds(self, name, key):
        return key is not None and self.keys.get(name) == key

    def note(self, name, key):
        if key is None:
            self.keys.pop(name, None)
        else:
            self.keys[name] = key
        if time.monotonic() - self.written > 5:
            self.write()

    def write(self):
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.keys))
        part.replace(self.path)
        self.written = time.monotonic()


class Progress:
    """One line that changes on a terminal, a line now and then elsewhere; a failure is named when it happens."""

    def __init__(self):
        self.is_terminal = sys.stderr.isatty()
        self.failed = 0
        self.shown = time.monotonic()

    def show(self, done, total, name, status):
        if status not in ("Passed", "Skipped"):
            self.failed += 1
            self.end()
            print(f"failed: {name}: {status}; its output follows at the end", file=sys.stderr, flush=True)
        failures = f", {self.failed} failed" if self.failed else ""
        if self.is_terminal:
            print(f"\r\033[Ktests {done}/{total}{failures} {name}"[:110], end="", file=sys.stderr, flush=True)
        elif done == total or time.monotonic() - self.shown > 20:
            self.shown = time.monotonic()
            print(f"tests {done}/{total}{failures}", file=sys.stderr, flush=True)

    def end(self):
        if self.is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def run_ctest(folder, cases, keys, passed):
    """Runs the cases: ctest's exit code, {name: (status, seconds)} and where its report is."""
    state = Path(folder) / ".cpscope"
    numbers, report = state / "numbers", state / "ctest.xml"
    numbers.write_text(",".join(["0,0,0"] + [str(case.number) for case in cases]) + ",")  # ctest drops a number without a comma
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", folder, "-I", str(numbers), "-j", str(os.cpu_count() or 1), "--no-tests=error",
               "--test-output-size-passed", "65536", "--test-output-size-failed", "65536", "--output-junit", str(report)]
    finished = {}
    progress = Progress()
    with open(state / "ctest.log", "w") as log, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as ctest:
        try:
            for line in ctest.stdout:
                log.write(line)
                match = RESULT.match(line)
                if not match:
                    continue
                done, total, name, status, seconds = match.groups()
                status = status.replace("***", " ").strip(" :")
                finished[name] = (status, float(seconds))
                passed.note(name, keys.get(name) if status == "Passed" else None)
                progress.show(int(done), int(total), name, status)
        finally:
            progress.end()
            passed.write()
    return ctest.returncode, finished, report


def read_report(report):
    """{name: output} of ctest's JUnit file."""
    if not report.exists():
        return {}
    text = re.sub("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", report.read_text(errors="replace"))
    outputs = {}
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        outputs[case.get("name")] = case.findtext("system-out") or ""
    return outputs


def reason_of_skip(output):
    """Why a case was skipped, in its own words."""
    if match := re.search(r"requires [a-z0-9_]+:.*", output):
        return match.group(0)
    after = output.partition(": Skipped\n")[2]
    lines = [line for line in after.splitlines() if line.strip() and not line.lstrip().startswith("[")]
    return lines[0] if lines else "no reason given"


def is_chosen(case, rooms, without, label, only):
    """In one of the rooms, with none of the labels `without`, with the label, and with a name that the expression `only` finds."""
    if case.properties.get("DISABLED") or (rooms and case.room not in rooms):
        return False
    if any(one in case.labels for one in without) or (label and label not in case.labels):
        return False
    return re.search(only, case.name) is not None


class Run:
    """One call of the command: what it is asked for and what it has found."""

    def __init__(self, options):
        self.rooms = options.rooms
        self.runs_all = options.all or os.environ.get("CI") == "true"
        self.required = set(os.environ.get("CPSCOPE_REQUIRE", "").split(","))
        self.passed = self.unchanged = 0
        self.failures = []  # [name, why, the end of its output]
        self.skips = []  # [name, why]
        self.times = []  # [folder, program, name, seconds]
        self.phases = []  # [name, CPU seconds, seconds on the wall]
        self.folders = []
        self.is_built = True
        self.began = time.time()

    def time(self, name, action):
        start, cpu = time.monotonic(), cpu_seconds()
        result = action()
        self.phases.append([name, cpu_seconds() - cpu, time.monotonic() - start])
        return result

    def launch(self, name, *words):
        """Calls the launcher's inner commands; False when it failed, which it has said itself."""
        return self.time(name, lambda: subprocess.run([ROOT / "cpscope", *words], check=False).returncode) == 0

    def build(self, preset, folder, minutes, *targets):
        """`minutes` of one core are what a build from nothing takes."""
        folder = ROOT / folder
        self.folders.append(folder)
        if not self.launch(f"build {preset}", "--build", folder, preset, "ON", str(minutes), *targets):
            self.is_built = False
            return None
        return folder

    def test(self, folder, without=(), label="", only="", sweeps="usual"):
        """sweeps: "usual", or "wide" for as many random cases as there are (tests/support/sweep.h)."""
        if folder is not None:
            os.environ["CPSCOPE_SWEEPS"] = sweeps
            name = f"tests of {folder.name}" + (f", {sweeps}" if sweeps != "usual" else "") + (f", {label}" if label else "")
            self.time(name, lambda: self.run_suite(folder, without, label, only, f"passed-{sweeps}.json"))

    def run_suite(self, folder, without, label, only, kept):
        passed, hashes, machine = Passed(folder / ".cpscope" / kept), Hashes(), machine_state()
        cases = [case for case in list_cases(folder) if is_chosen(case, self.rooms, without, label, only)]
        keys = {case.name: case.key(hashes, machine) for case in cases}
        left = [case for case in cases if self.runs_all or not passed.holds(case.name, keys[case.name])]
        self.unchanged += len(cases) - len(left)
        self.passed += len(cases) - len(left)
        known = f", {len(cases) - len(left)} of them passed before and are unchanged" if len(left) < len(cases) else ""
        say(f"{len(cases)} tests in {folder.name}{known}")
        code, finished, report = run_ctest(folder, left, keys, passed) if left else (0, {}, folder / "none")
        outputs = read_report(report)
        num_failures = len(self.failures)
        for case in left:
            status, seconds = finished.get(case.name, ("did not run", 0.0))
            self.times.append([folder.name, case.program, case.name, seconds])
            self.judge(case.name, status, outputs.get(case.name, ""))
        # ctest can fail without naming a test: it was killed, or found none.
        if code != 0 and len(self.failures) == num_failures:
            self.failures.append([f"ctest in {folder.name}", f"ended with code {code}", ""])
        if not cases and not self.rooms:
            self.failures.append([f"tests in {folder.name}", "there is none", ""])

    def judge(self, name, status, output):
        if status == "Passed":
            self.passed += 1
        elif status == "Skipped":
            reason = reason_of_skip(output)
            kind = re.match(r"requires ([a-z0-9_]+):", reason)
            if kind and kind.group(1) in self.required:
                self.failures.append([name, reason, ""])
            else:
                self.skips.append([name, reason])
        else:
            self.failures.append([name, status, "\n".join(output.splitlines()[-LINES_OF_A_FAILURE:])])

    def sum_up(self):
        """Prints skips and failures, then the summary; the exit code."""
        for name, reason in self.skips:
            print(f"skipped: {name}: {reason}", file=sys.stderr)
        for name, why, output in self.failures:
            print(f"failed: {name}: {why}", file=sys.stderr)
            for line in output.splitlines():
                print(f"  | {line}", file=sys.stderr)
        note = f" ({self.unchanged} of them unchanged since they last did)" if self.unchanged else ""
        print(f"{self.passed} passed{note}, {len(self.failures)} failed, {len(self.skips)} skipped", flush=True)
        if not self.is_built:
            return 2
        return 0 if self.passed and not self.failures else 1


def compile_times(folder, since):
    """{target: [steps, seconds]} of what ninja did since then; a step's seconds are its own time on the wall."""
    targets = collections.defaultdict(lambda: [0, 0.0])
    log = folder / ".ninja_log"
    seen = {}
    for line in log.read_text().splitlines()[1:] if log.exists() else []:
        begin, end, stamp, output = line.split("\t")[:4]
        if int(stamp) > since * 1e9:
            seen[(begin, end)] = (int(end) - int(begin), output)
    for duration, output in seen.values():
        match = re.search(r"CMakeFiles/(\w+)\.dir/", output)
        kind = match.group(1) if match else "links, archives, lists of tests"
        if output.endswith(".cu.o") and "emulated" not in kind:
            kind += " (nvcc)"
        targets[kind][0] += 1
        targets[kind][1] += duration / 1000
    return targets


def print_times(run):
    print("\n| step | CPU s | wall s |\n| --- | --- | --- |", file=sys.stderr)
    for name, cpu, wall in run.phases:
        print(f"| {name} | {cpu:.0f} | {wall:.0f} |", file=sys.stderr)
    print("\n| compiled | steps | s of one core |\n| --- | --- | --- |", file=sys.stderr)
    for folder in dict.fromkeys(run.folders):
        for target, (steps, seconds) in sorted(compile_times(folder, run.began).items(), key=lambda item: -item[1][1]):
            print(f"| {folder.name}: {target} | {steps} | {seconds:.1f} |", file=sys.stderr)
    programs = collections.defaultdict(lambda: [0, 0.0])
    for folder, program, _, seconds in run.times:
        programs[f"{folder}: {program}"][0] += 1
        programs[f"{folder}: {program}"][1] += seconds
    print("\n| suite | cases run | s of one core |\n| --- | --- | --- |", file=sys.stderr)
    for program, (count, seconds) in sorted(programs.items(), key=lambda item: -item[1][1]):
        print(f"| {program} | {count} | {seconds:.1f} |", file=sys.stderr)
    print(f"\n| the {SLOWEST} slowest cases | s |\n| --- | --- |", file=sys.stderr)
    for seconds, name in sorted(((t[3], t[2]) for t in run.times), reverse=True)[:SLOWEST]:
        print(f"| {name} | {seconds:.2f} |", file=sys.stderr)
    print(file=sys.stderr)


def run_long_tests(run, targets):
    """What takes too long for every change."""
    run.launch("packages of --long", "--prepare", "long")
    folder = run.build("release", "build", 5, "long_tests")
    run.test(folder, without=("long",), sweeps="wide")
    run.test(folder, label="long")
    run.test(run.build("asan", "build-asan", 20, *targets), without=("long", "no_sanitizer"))
    # Where threads are: loops over ranks and heads, what the window does in the background, groups of processes.
    run.test(run.build("tsan", "build-tsan", 12, "reference_tests", "kernels_tests", "gui_tests"),
             without=("long", "no_sanitizer"), only=r"^(reference|kernels|gui)\.")
    # Every file alone, without a precompiled header, and kernels for every device.
    run.test(run.build("plain", "build-plain", 30), only=r"^kernels\.Ptxas")


def main():
    parser = argparse.ArgumentParser(
        prog="cpscope test", description="Builds and runs the tests that this machine can run.",
        epilog="Example: ./cpscope test sim kernels")
    parser.add_argument("rooms", metavar="ROOM", nargs="*", help=f"only these: {', '.join(ROOMS)}")
    parser.add_argument("--long", action="store_true", help="also all under the sanitizers, the page in a browser, fuzzing, mutation, the "
                        "whole matrix, every file compiled alone: an hour on two cores; a run that was stopped goes on where it was")
    parser.add_argument("--all", action="store_true", help="run also what passed before and has not changed (CI=true does)")
    parser.add_argument("--times", action="store_true", help="print what took how long, as Markdown tables on stderr")
    options = parser.parse_args()
    for room in options.rooms:
        if room not in ROOMS:
            parser.error(f"no room is called {room}; {', '.join(ROOMS)}")
    run = Run(options)
    targets = [f"test_{room}" for room in options.rooms]
    if not run.launch("packages", "--prepare", "test"):
        return 2
    preset = "ci" if os.environ.get("CI") == "true" else "release"
    run.test(run.build(preset, "build", 17, *targets), without=("long",))
    cpu = sum(phase[1] for phase in run.phases)
    if options.long:
        run_long_tests(run, targets)
    if options.times:
        print_times(run)
    if cpu > MOST_CPU_SECONDS:
        say(f"warning: the default tests took {cpu:.0f} CPU seconds, more than the {MOST_CPU_SECONDS} that they may; --times says what took them")
    return run.sum_up()


if __name__ == "__main__":
    sys.exit(main())
