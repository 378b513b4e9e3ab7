"""README's five lines check a real run, and the manual's lines are right."""
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parent


def five_lines():
    text = (FOLDER.parents[1] / "README.md").read_text()
    block = text.split("<!-- five lines:begin -->\n```python\n")[1].split("```\n<!-- five lines:end -->")[0]
    return block


def test_the_lines_of_the_manual_run():
    text = (FOLDER.parents[1] / "sim" / "app" / "README.md").read_text()
    names = {}
    exec(text.split("<!-- python:begin -->\n```python\n")[1].split("```\n<!-- python:end -->")[0], names)
    assert names["run"].passed and names["grade"].passed and names["same"].equal and names["caught"].passed
    assert len(names["wrong"]["token"]) == 0 and "<svg" in names["picture"].svg and "<svg" in names["mask"].svg


def test_they_are_five():
    assert len(five_lines().splitlines()) == 5


def test_they_check_a_real_run(tmp_path):
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    if not torch.distributed.is_available():
        pytest.skip("requires torch: this one is without torch.distributed")
    ranks = [subprocess.Popen([sys.executable, FOLDER / "ring_of_two.py", str(rank), tmp_path / "rendezvous", five_lines()],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        said, complaints = rank.communicate(timeout=300)
        assert rank.returncode == 0, complaints
        right, wrong = said.split("-- exchanged\n")
        assert right.startswith("PASS") and "judged against the record's" in right, said
        assert wrong.startswith("FAIL"), said
        # Rows 2 and 3 of rank 1 are tokens 8 and 9 (slot [0, 24) in chunks of six).
        assert any(f"rank 1 token {token} " in wrong for token in (8, 9)), said
