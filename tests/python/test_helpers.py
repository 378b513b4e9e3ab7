"""The helper for tests of frameworks, checked keywords, and errors in words of Python."""
import os
import pathlib
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest

import cpscope
from cpscope.testing import assert_cp_right


def test_right_tensors_pass_and_give_their_grade(small):
    answer = small.oracle()
    grade = assert_cp_right(small, answer, require=("out", "lse", "dq", "dk", "dv"))
    assert grade.passed


def test_wrong_tensors_fail_with_verdict_cause_and_places(small):
    answer = small.oracle()
    answer["lse"] = answer["lse"] / np.log(2)
    with pytest.raises(AssertionError) as raised:
        assert_cp_right(small, answer)
    text = str(raised.value)
    lines = text.splitlines()
    assert lines[0] == "FAIL of context-parallel attention"
    assert any(line.startswith("out ") and "<--" not in line for line in lines)
    assert any(line.startswith("lse ") and "<--" in line for line in lines)
    assert "cause: lse_base_2" in text
    rows = small.grade(answer).rows()
    assert f"lse: {len(rows['token'])} wrong rows (rank 0: {(rows['rank'] == 0).sum()}, rank 1: {(rows['rank'] == 1).sum()})" in text
    assert f"rank {rows['rank'][0]}, token {rows['token'][0]} (sequence 0, position {rows['position'][0]}), head {rows['head'][0]}" in text


def test_a_tensor_that_was_left_out_fails_a_test_that_requires_it(small):
    answer = small.oracle()
    assert_cp_right(small, {"out": answer["out"]})
    with pytest.raises(AssertionError, match="not judged, but required: dq"):
        assert_cp_right(small, {"out": answer["out"]}, require=("out", "dq"))


def test_a_blind_verdict_fails(small):
    inputs = small.inputs()
    inputs["v"] = np.zeros_like(inputs["v"])
    with pytest.raises(AssertionError, match="BLIND of context-parallel attention\n  v is zero"):
        assert_cp_right(small, {**inputs, "out": np.zeros_like(small.oracle()["out"])})


def test_a_tensor_whose_exact_numbers_are_all_zero_has_an_infinite_budget():
    alone = cpscope.Scenario.of(heads=2, kv_heads=2, head_dim=8, attn_mask_type="padding_causal", lengths=[1, 1, 1, 1],
                                cp_size=2, dtype="fp32", backward=True)
    answer = alone.oracle()
    with pytest.raises(AssertionError, match=r"dq +0\.000e\+00 +inf"):
        assert_cp_right(alone, {**answer, "out": answer["out"] + 1.0})


def test_nan_is_told_as_such(small):
    out = small.oracle()["out"]
    out[5] = np.nan
    with pytest.raises(AssertionError, match="8 \\* 4|NaN"):
        assert_cp_right(small, {"out": out})


def test_the_failure_stands_where_the_test_calls(small, tmp_path):
    (tmp_path / "test_theirs.py").write_text(textwrap.dedent("""
        import cpscope
        def test_theirs():
            scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[16], cp_size=2, backward=False)
            cpscope.testing.assert_cp_right(scenario, {"out": scenario.oracle()["out"] * 2})
        """))
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "FAIL of context-parallel attention" in done.stdout
    assert "testing.py" not in done.stdout, done.stdout  # its own lines are no part of the traceback


# What a checker of types says.

RIGHT = """
import cpscope
s = cpscope.Scenario.of(heads=8, head_dim=64, lengths=[3, 5], cp_size=2, cp_comm_type="p2p", window_size=(4, 0))
passed: bool = s.grade({"out": 1}).passed
names: dict[str, dict[str, object]] = s.run().tensors
total: float = s.timeline("h200x8").total_us
"""
WRONG = RIGHT + """
cpscope.Scenario.of(headz=8)
cpscope.Scenario.of(heads="eight")
s.grade({"out": 1}).failed
s.timeline()
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Runs mypy --strict over code; gives its lines."""
    pytest.importorskip("mypy", reason="requires mypy: it could not be installed from PyPI")
    folder = tmp_path_factory.mktemp("checked")

    packages = pathlib.Path(cpscope.__file__).parent.parent
    # mypy finds what is installed by itself, and wants it in no path.
    environment = dict(os.environ) if packages.name == "site-packages" else {**os.environ, "MYPYPATH": str(packages)}

    def run(*arguments):
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", folder / "cache", *arguments],
                              capture_output=True, text=True, cwd=folder, env=environment)
        return [line for line in (done.stdout + done.stderr).splitlines() if ": note: " not in line]
    return folder, run


def test_the_package_has_no_error_of_types(checked):
    _, run = checked
    assert run("-p", "cpscope") == []


def test_wrong_keywords_are_errors_of_types(checked):
    folder, run = checked
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    assert run("right.py") == []
    found = run("wrong.py")
    assert len(found) == 4, found
    for line, words in zip(found, ('Unexpected keyword argument "headz"', 'expected "int"', 'has no attribute "failed"', 'Missing positional argument "cluster"')):
        assert words in line


# Errors.

KEYS = {"heads": 4, "head_dim": 16, "lengths": [64], "cp_size": 2}


@pytest.mark.parametrize("keys, told", [
    ({"headz": 3}, "a scenario has no key headz; did you mean heads?"),
    ({"cp_size": 0}, "cp_size must be an integer from 1 to 65536: 0; give a value from 1 to 65536"),
    ({"mask": "causal"}, 'mask must be a dict: "causal"; give a dict of its keys'),
    ({"lengths": [63], "pad_between_seqs": False}, "slots[0]: the slot of sequence 0 is not divisible by 4"),
    ({"heads": 2, "cp_size": 4, "cp_comm_type": "a2a"}, "heads: a2a requires heads >= cp_size: heads = 2, cp_size = 4"),
    ({"lengths": None}, "a required key is missing: lengths; give lengths, or batch_size and seqlen, or generator"),
])
def test_errors_of_keywords_name_keywords(keys, told):
    with pytest.raises(cpscope.ScenarioError) as raised:
        cpscope.Scenario.of(**{**KEYS, **keys}).plan()
    assert told in str(raised.value)
    assert "<keys>" not in str(raised.value) and "parallel." not in str(raised.value)


def test_errors_name_no_options_of_the_program():
    with pytest.raises(cpscope.InputError) as raised:
        cpscope.from_usp("basic", cp_size=4)
    assert str(raised.value) == "the batch is missing; give tokens or cu_seqlens"
    with pytest.raises(cpscope.InputError) as raised:
        cpscope.Scenario.of(**KEYS).grade({"attn_output": np.zeros((64, 4, 16))})
    assert "--" not in str(raised.value)
    scenario = cpscope.Scenario.of(**KEYS)
    assert "rows in packed order: the caller" in str(scenario.grade({"out": np.zeros((64, 4, 16))}, order="packed"))


def test_a_warning_is_told_once_at_the_line_of_the_caller():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            cpscope.Scenario.of(**KEYS, stripe=2).with_order([range(32), range(32, 64)])
    assert [str(one.message) for one in told] == ["stripe does not apply to layout dual_chunk and is unused"]
    assert pathlib.Path(told[0].filename).name == "test_helpers.py"


def test_scenarios_are_equal_if_they_ask_for_the_same():
    scenario = cpscope.Scenario.of(**KEYS)
    assert scenario == cpscope.Scenario.of(**KEYS, title="another", cp_comm_type="p2p") and hash(scenario) == hash(cpscope.Scenario.of(**KEYS, title="another"))
    for keys in ({"accumulate": "dtype"}, {"dkv_wire": "fp32"}, {"slots": [72]}, {"seed": 2}, {"backward": False}):
        assert scenario != cpscope.Scenario.of(**{**KEYS, **keys}), keys
    orders = [[range(32), range(32, 64)], [range(32, 64), range(32)]]
    assert scenario.with_order(orders[0]) == scenario.with_order(orders[0]) != scenario.with_order(orders[1])


def test_questions_of_a_probe_may_be_tensors_of_torch(small):
    torch = pytest.importorskip("torch", reason="requires torch")
    asked = []

    def attend(question):
        asked.append(question)
        return question.scenario.oracle(question.inputs)
    small.probe(attend)
    part = asked[0].of_rank(1, torch=True)
    assert part["q"].dtype == torch.float32 and part["q"].numpy().tolist() == asked[0].of_rank(1)["q"].tolist()
    assert asked[0].to_torch()["k"].shape == asked[0].inputs["k"].shape


def test_arrays_of_jax_on_several_devices_are_read_whole():
    class Sharded:  # what JAX's arrays tell of themselves; DLPack refuses them
        def __init__(self, values, is_fully_addressable=True):
            self.values, self.is_fully_addressable = values, is_fully_addressable

        def __array__(self, dtype=None, copy=None):
            return self.values

        def __dlpack__(self, **_):
            raise BufferError("on several devices")
    scenario = cpscope.Scenario.of(**KEYS)
    out = scenario.oracle()["out"]
    assert scenario.grade({"out": Sharded(out)})
    with pytest.raises(cpscope.InputError, match="parts that other processes hold"):
        scenario.grade({"out": Sharded(out, False)})


def test_parts_with_gradients_and_bf16_are_joined():
    torch = pytest.importorskip("torch", reason="requires torch")
    layout = cpscope.Scenario.of(**KEYS).layout()
    whole = torch.arange(64.0, requires_grad=True).reshape(64, 1).to(torch.bfloat16)
    assert layout.join(layout.cut(whole))[:, 0].tolist() == list(range(64))
