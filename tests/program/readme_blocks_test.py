"""What the READMEs tell people to type, typed: two to three minutes of one core.

    readme_blocks_test.py PROGRAM WRONG_PLUGIN WORK_FOLDER [CASE]

Every command of every README that starts with ./cpscope runs, and where lines stand below it they are what it prints: "..." is
any lines, and decimals may differ. Left out, and counted: what needs a GPU, and what the launcher does itself.
"""

import difflib
import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys
import unittest

PROGRAM, PLUGIN, WORK = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
ROOT = pathlib.Path(__file__).resolve().parents[2]
READMES = ("README.md", *(f"{room}/README.md" for room in ("scenarios", "sim", "sim/app", "reference", "kernels", "gui", "tests", "tests/bench")))
OF_THE_LAUNCHER = ("demo", "gui", "test", "web", "wheel")
NEEDS_A_GPU = ("--executor cuda", "--executor nccl", "cuda.safetensors")
SECONDS = 300


class Block:
    """One command and the lines that a README shows below it."""

    def __init__(self, place, command):
        self.place, self.command, self.shown = place, command, []


def blocks_of(path):
    blocks, is_fenced, block = [], False, None
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        indented = re.match(r"    (\./cpscope .*?)(?:   +.*)?$", line)
        if line.startswith("```"):
            is_fenced, block = not is_fenced, None
        elif is_fenced and line.startswith("$ ./cpscope"):
            block = Block(f"{path}:{number}", line[2:])
            blocks.append(block)
        elif block is not None:
            block.shown.append(line)
        elif indented and not is_fenced:
            blocks.append(Block(f"{path}:{number}", indented.group(1)))
    return blocks


def exchange_ranks(path, name, target):
    """A copy of a record in which the rows of ranks 1 and 2 of one tensor stand in each other's places."""
    blob = path.read_bytes()
    size = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + size])
    begin, end = header[name]["data_offsets"]
    body = blob[8 + size:]
    layout = json.loads(subprocess.run([PROGRAM, "layout", ROOT / "scenarios/thd_padding_p2p.toml", "--json", "--full"], capture_output=True,
                                       check=True).stdout)
    ids = [rank["q_index"] for rank in layout["ranks"]]
    values = bytearray(body[begin:end])
    row = len(values) // header[name]["shape"][0]
    for a, b in zip(ids[1], ids[2]):
        values[a * row:(a + 1) * row], values[b * row:(b + 1) * row] = values[b * row:(b + 1) * row], values[a * row:(a + 1) * row]
    kept = {name: {**header[name], "data_offsets": [0, end - begin]}}
    text = json.dumps(kept).encode()
    target.write_bytes(struct.pack("<Q", len(text)) + text + values)


def same(shown, printed):
    """Are the shown lines what was printed, decimals aside?"""
    def plain(line):
        return re.sub(r"-?\d+\.\d+(e[+-]\d+)?|\b\d+e[+-]\d+", "#", re.sub(r"\s+", " ", line)).strip()

    pattern = "".join(".*?" if line == "..." else re.escape(plain(line)).replace(r"\.\.\.", ".*?") + "\n" for line in shown)
    return re.fullmatch("(?s)" + pattern + ".*", "\n".join(map(plain, printed)) + "\n") is not None


class Readmes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        for name in ("scenarios", "tests", "kernels"):
            (WORK / name).symlink_to(ROOT / name)
        (WORK / "cpscope").symlink_to(PROGRAM)
        for name in ("naive.so", "mine.so"):
            (WORK / name).symlink_to(PLUGIN)
        subprocess.run([PROGRAM, "run", ROOT / "scenarios/thd_padding_p2p.toml", "--record", WORK / "right.safetensors"], capture_output=True, check=True)
        exchange_ranks(WORK / "right.safetensors", "out", WORK / "theirs.safetensors")
        (WORK / "megatron.json").write_text(json.dumps({
            "cu_seqlens": [0, 7, 10], "cu_seqlens_padded": [0, 8, 12], "indices": [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]}))
        (WORK / "topk.json").write_text(json.dumps({"keys": [[0], [0, 1], [0, 2], [3, 1]]}))
        (WORK / "tokens.json").write_text(json.dumps({"attention_mask": [[0] * 3 + [1] * 5, [1] * 8]}))
        text = (ROOT / "scenarios/thd_padding_p2p.toml").read_text()
        (WORK / "typo.toml").write_text(text.replace("cp_comm_type", "cp_com_type"))

    def testAreRightAboutWhatCommandsPrint(self):
        ran, left_out = 0, []
        for block in (block for path in READMES for block in blocks_of(path)):
            if any(words in block.command for words in NEEDS_A_GPU) or block.command.split()[1] in OF_THE_LAUNCHER:
                left_out.append(block.command)
                continue
            with self.subTest(place=block.place, command=block.command):
                wrong = {"CPSCOPE_WRONG": "item out 1 2 40"} if "mine.so" in block.command else {}
                done = subprocess.run(["bash", "-c", block.command], cwd=WORK, capture_output=True, text=True, timeout=SECONDS,
                                      env=dict(os.environ, **wrong))
                ran += 1
                printed = (done.stdout + done.stderr).splitlines()
                expected = (1,) if any(line.startswith("FAIL") or line.startswith("first diverging") for line in printed) else (0, 1, 2)
                self.assertIn(done.returncode, expected, done.stderr[-800:])
                if block.shown:
                    self.assertTrue(same(block.shown, printed), "\n".join(difflib.unified_diff(block.shown, printed, "README", "printed", lineterm=""))[:3000])
                else:
                    self.assertEqual(done.returncode, 0, done.stderr[-800:])
        print(f"{ran} commands ran, {len(left_out)} left out: {left_out}")
        self.assertGreater(ran, 10)


if __name__ == "__main__":
    WORK = WORK / (sys.argv[4] if len(sys.argv) > 4 else "all")
    unittest.main(argv=[sys.argv[0]] + [f"Readmes.{case}" for case in sys.argv[4:]], verbosity=2)
