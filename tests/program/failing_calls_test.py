"""What a command leaves when the machine fails it: memory, threads, writes and renames, at the N-th call or from it on.

    failing_calls_test.py PROGRAM LIBRARY WORK_FOLDER [CASE]

Whichever call fails, the program says so and ends with one of its exit codes (or did without what it asked for, and gives
the whole answer), and every file that it leaves is a whole one. CPSCOPE_SWEEPS=wide: more calls of each.
"""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import unittest

PROGRAM, LIBRARY, WORK = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
ROOT = pathlib.Path(__file__).resolve().parents[2]
IS_WIDE = os.environ.get("CPSCOPE_SWEEPS") == "wide"
SCENARIO = """schema = 1
title = "A small ring"
question = "What if a call fails?"
[attention]
heads = 2
kv_heads = 1
head_dim = 8
[batch]
lengths = [30, 17]
[parallel]
cp_size = 2
[numerics]
dtype = "bf16"
"""
# Every command; {work} has the scenario, {out} is a folder of its own.
COMMANDS = {
    "layout": "layout {work}/s.toml --json --full",
    "plan": "plan {work}/s.toml --json",
    "plan, TransformerEngine's arguments": "plan {work}/s.toml --te",
    "run with a record": "run {work}/s.toml --record {out}/a.safetensors --json",
    "run with a report": "run {work}/s.toml --report {out}/a.html --junit {out}/a.xml",
    "run, sampled": "run {work}/s.toml --sample 16",
    "diff": "diff {work}/right.safetensors {work}/right.safetensors --json",
    "grade": "grade {work}/s.toml {work}/right.safetensors --json",
    "import": "import --from usp --layout zigzag --cp-size 4 --ulysses-degree 2 --tokens 64 --out {out}/order.json",
    "timeline": "timeline {work}/s.toml --cluster h200x8 --json",
    "timeline with files": "timeline {work}/s.toml --cluster h200x8 --trace {out}/trace.json --csv {out}/items.csv --chakra {out}/chakra",
    "compare": "compare {work}/s.toml --cluster h200x8 --json",
    "forecast": "forecast {work}/g.toml --cluster h200x8 --windows 3 --replicas 2 --csv {out}/windows.csv",
    "validate": "validate --out {out}/page.md",
    "verify": "verify {work}/folder --json --report {out}/v.html",
    "probe": "probe {work}/s.toml --json",
    "fuzz": "fuzz --count 2 --seed 5 --json",
    "faults": "faults --list --json",
    "bench": "bench {work}/s.toml --repeats 1",
    "render": "render {work}/s.toml --view mask --out {out}/mask.png",
    "render as SVG": "render {work}/s.toml --view layout --out {out}/layout.svg",
    "window's picture": "gui {work}/s.toml --screenshot {out}/window.png",
}
EXIT_CODES = (0, 1, 2, 3)
SECONDS = 120


def run(command, name, failing=None):
    """Exit code, stdout, stderr, {file: bytes} of what it wrote, and how often the failing call was made."""
    out = WORK / "out" / re.sub(r"\W+", "_", name)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    environment = dict(os.environ, CPSCOPE_THREADS="2", SOURCE_DATE_EPOCH="1700000000")
    environment.pop("CPSCOPE_FAILING", None)
    calls = WORK / "calls"
    calls.unlink(missing_ok=True)
    if failing:
        environment.update(LD_PRELOAD=str(LIBRARY), CPSCOPE_FAILING=failing, CPSCOPE_CALLS=str(calls))
    words = command.replace("{out}", str(out)).replace("{work}", str(WORK)).split()
    done = subprocess.run([PROGRAM, *words], cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS)
    files = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
    count = int(calls.read_text()) if calls.exists() else 0
    return done.returncode, done.stdout, done.stderr.decode(errors="replace"), files, count


def chosen(count):
    """Numbers of calls to fail: all of few, of many the first, the last and some between."""
    most = 60 if IS_WIDE else 4
    if count <= most:
        return list(range(1, count + 1))
    between = random.Random(count).sample(range(2, count), most - 2)
    return sorted({1, count, *between})


class FailingCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        (WORK / "folder").mkdir(parents=True)
        (WORK / "s.toml").write_text(SCENARIO)
        (WORK / "folder" / "s.toml").write_text(SCENARIO)
        (WORK / "g.toml").write_text(SCENARIO.replace("lengths = [30, 17]", 'generator = { name = "wlb", tokens = 4096 }'))
        code, _, err, _, _ = run("run {work}/s.toml --record {work}/right.safetensors", "record")
        assert code == 0, err

    def sweep(self, call):
        for name, command in COMMANDS.items():
            right = run(command, name)
            self.assertIn(right[0], (0, 1), f"{name}: {right[2]}")
            count = run(command, name, f"{call}:0:0")[4]
            for number in chosen(count):
                for last in (number, 10 ** 9):
                    with self.subTest(command=name, call=f"{call} {number} of {count}", more=last > number):
                        seen = run(command, name, f"{call}:{number}:{last}")
                        self.hold(right, seen, call)

    def hold(self, right, seen, call):
        code, out, err, files, _ = seen
        self.assertIn(code, EXIT_CODES, err[-600:])
        if code != right[0] and call != "write":  # a full disk may hold stderr too
            self.assertNotEqual(err + out.decode(errors="replace"), "", "it says nothing")
        for name, content in files.items():
            self.assertIn(name, list(right[3]), "a file that nobody asked for")
            if call != "memory" or name.endswith((".safetensors", ".json", ".csv")):  # others may say what there was no memory for
                self.assertEqual(len(content), len(right[3][name]), f"{name} is not whole")
        if code == 0:
            self.assertEqual(sorted(files), sorted(right[3]), "a file is missing")

    def testMemoryThatDoesNotComeIsSaid(self):
        self.sweep("memory")

    def testThreadsThatDoNotStartAreDoneWithout(self):
        self.sweep("thread")

    def testAFullDiskLeavesNoPartOfAFile(self):
        self.sweep("write")

    def testANameThatCannotBeGivenLeavesNoFile(self):
        self.sweep("rename")


if __name__ == "__main__":
    WORK = WORK / (sys.argv[4] if len(sys.argv) > 4 else "all")
    unittest.main(argv=[sys.argv[0]] + [f"FailingCalls.{case}" for case in sys.argv[4:]], verbosity=2)
