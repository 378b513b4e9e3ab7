"""Memory of grading a sample, and its progress."""
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import cpscope

FOLDER = pathlib.Path(__file__).resolve().parent

# Prints the bytes of memory that grading takes at its peak beyond the tensors, and those that cpscope.watch would reckon with.
GRADING = """
import numpy as np, cpscope
from cpscope._watch_judge import HandedOver, bytes_of_kv_head
tokens, heads, width = {tokens}, 4, 64
scenario = cpscope.Scenario.of(heads=heads, kv_heads=1, head_dim=width, lengths=[tokens], cp_size=2, dtype="fp16")
numbers = np.random.default_rng(1)
def tensor(heads, width=width):
    return numbers.standard_normal((tokens // 2, heads, width), np.float32).astype(np.float16)
ranks = [dict(q=tensor(heads), k=tensor(1), v=tensor(1), d_out=tensor(heads), out=tensor(heads), dq=tensor(heads), dk=tensor(1), dv=tensor(1),
              lse=tensor(heads, 1)[..., 0].astype(np.float32) + 9) for _ in range(2)]
def peak():
    return next(1024 * int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
open("/proc/self/clear_refs", "w").write("5")
before = peak()
own = sum(part.nbytes for rank in ranks for part in rank.values())
ranks = [HandedOver(rank) for rank in ranks]
scenario.grade(ranks, sample=16, lse_layout="tokens_heads")
print(peak() - before, bytes_of_kv_head(scenario, tokens, tokens) - own)
"""


def test_a_sample_is_graded_in_the_memory_that_a_watch_reckons_with():
    if not pathlib.Path("/proc/self/clear_refs").exists():
        pytest.skip("requires Linux: /proc/self/clear_refs")
    done = subprocess.run([sys.executable, "-c", GRADING.format(tokens=16384)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken, reckoned = map(int, done.stdout.split())
    assert taken <= 1.1 * reckoned, f"{taken >> 20} MiB taken, {reckoned >> 20} MiB reckoned with"


def test_progress_ends_at_1_and_what_it_raises_ends_the_grading(small):
    answer, shares = small.oracle(), []
    assert small.grade({"out": answer["out"]}, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0

    class Enough(Exception):
        pass

    def stop(share):
        raise Enough
    with pytest.raises(Enough):
        small.grade({"out": answer["out"]}, progress=stop)
    assert small.grade({"out": np.asarray(answer["out"])})
