"""Inputs, oracle and grading, on numpy arrays and torch tensors."""
import numpy as np
import pytest

import cpscope
from conftest import plain_attention


def windowed(i, j, s):
    return i + s.kv_valid - s.q_valid - 3 <= j <= i


@pytest.mark.parametrize("keys, is_visible", [
    ({"attn_mask_type": "causal", "lengths": [11]}, lambda i, j, s: j <= i),
    ({"attn_mask_type": "no_mask", "lengths": [5, 8]}, lambda i, j, s: True),
    ({"attn_mask_type": "causal", "window_size": [3, 0], "lengths": [17, 2]}, windowed),
    ({"attn_mask_type": "padding_causal", "kv_heads": 2, "lengths": [9, 0, 4], "slots": [16, 8, 8]},
     lambda i, j, s: j <= i),
    ({"attn_mask_type": "padding_causal", "qkv_format": "bshd", "lengths": [9, 0, 4], "seqlen": 10, "pad_side": "left"},
     lambda i, j, s: j <= i),
    ({"attn_mask_type": "causal_bottom_right", "lengths": [4, 9], "kv_lengths": [9, 4], "head_dim_qk": 6,
      "head_dim_v": 3, "head_dim": None}, lambda i, j, s: j <= i + s.kv_valid - s.q_valid),
])
def test_the_oracle_is_plain_softmax_attention(keys, is_visible):
    scenario = cpscope.Scenario.of(**{"heads": 4, "head_dim": 8, "cp_size": 2, "dtype": "fp64", "backward": True, **keys})
    inputs = scenario.inputs()
    mine = plain_attention(scenario, **inputs, is_visible=is_visible)
    for tensors in (None, inputs):
        exact = scenario.oracle(tensors)
        assert set(exact) == {*mine, "max_logit"}
        for name, tensor in mine.items():
            assert exact[name].dtype == np.float64 and exact[name].shape == tensor.shape
            np.testing.assert_allclose(exact[name], tensor, rtol=0, atol=1e-12, err_msg=name)


def test_the_oracle_takes_tensors_of_ones_own(small):
    random = np.random.default_rng(7)
    inputs = {name: random.standard_normal(tensor.shape) for name, tensor in small.inputs().items()}
    for name, tensor in plain_attention(small, **inputs).items():
        np.testing.assert_allclose(small.oracle(inputs)[name], tensor, atol=1e-12)
    forward = small.oracle({name: inputs[name] for name in "qkv"})
    assert set(forward) == {"out", "lse", "max_logit"}
    parts = {name: small.layout().cut(tensor, kv=name in "kv") for name, tensor in inputs.items()}
    for name, tensor in small.oracle(inputs).items():
        assert (small.oracle(parts)[name] == tensor).all()
    with pytest.raises(cpscope.InputError, match='needs "k"'):
        small.oracle({"q": inputs["q"]})


def test_inputs_of_a_rank_are_its_rows_of_the_whole(small):
    whole, layout = small.inputs(), small.layout()
    for rank in range(2):
        part = small.inputs(rank)
        assert (part["q"] == whole["q"][layout.q_index[rank]]).all()
        assert (part["v"] == whole["v"][layout.kv_index[rank]]).all()
    poisoned = small.inputs(poison=True)["q"]
    assert np.isnan(poisoned[13:16]).all() and (poisoned[:13] == whole["q"][:13]).all()


def test_arrays_are_handed_out_without_a_copy(small):
    inputs = small.inputs()
    # One owner each, which is what keeps the memory; libraries that take it see the same address.
    for array in (inputs["q"], small.oracle()["dk"]):
        assert not array.flags.owndata and array.flags.c_contiguous and array.flags.writeable
        assert np.from_dlpack(array).ctypes.data == array.ctypes.data
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    assert torch.from_numpy(inputs["q"]).data_ptr() == inputs["q"].ctypes.data
    assert torch.from_dlpack(inputs["k"]).data_ptr() == inputs["k"].ctypes.data
    del small
    assert np.isfinite(inputs["q"]).all()


def right_answer(scenario):
    return plain_attention(scenario, **scenario.inputs())


def test_a_right_tensor_passes(small):
    grade = small.grade(right_answer(small))
    assert grade and grade.passed and set(grade.tensors) == {"out", "lse", "dq", "dk", "dv"}
    assert repr(grade).startswith("PASS") and grade.document["missing"] == ["max_logit"]


def test_a_wrong_tensor_fails_with_rank_token_and_head(small):
    answer = right_answer(small)
    answer["out"][5, 2] += 1.0
    answer["dk"][17, 1, 3] = np.nan
    grade = small.grade(answer)
    assert not grade
    # Token 5 is in chunk 1 of slot [0, 16) in chunks of 4, which rank 1 owns; token 17 stands in slot [16, 24).
    worst = grade.tensors["out"]["worst"]
    assert (worst["rank"], worst["token"], worst["head"]) == (1, 5, 2)
    assert not grade.tensors["out"]["passed"] and grade.tensors["lse"]["passed"]
    assert grade.tensors["dk"]["nan"] == 1
    assert "rank 1 token 5 head 2" in repr(grade) and repr(grade).startswith("FAIL")


def test_the_document_is_that_of_the_program(program, tmp_path):
    scenario = cpscope.Scenario.load("zigzag")
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    record = tmp_path / "zigzag.safetensors"
    program("run", "scenarios/zigzag.toml", "--record", record)
    theirs = program("grade", "scenarios/zigzag.toml", record)
    tensors = read_safetensors(torch, record)
    mine = scenario.grade(tensors, order="packed", lse_layout="tokens_heads").document
    assert mine["tensors"] == theirs["tensors"] and mine["read"] == theirs["read"]


def read_safetensors(torch, path):
    """The format by hand: 8 bytes of length, a JSON header, the bytes."""
    import json
    import struct
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    types = {"F32": torch.float32, "BF16": torch.bfloat16, "F64": torch.float64, "F16": torch.float16}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in types and name != "events":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]),
                                             dtype=types[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def test_whole_tensors_parts_and_ranks_are_the_same_question(small):
    answer, layout = right_answer(small), small.layout()
    rows = {"out": False, "lse": False, "dq": False, "dk": True, "dv": True}
    parts = {name: layout.cut(tensor, kv=rows[name]) for name, tensor in answer.items()}
    by_rank = [{name: tensors[rank] for name, tensors in parts.items()} for rank in range(2)]
    joined = {name: np.concatenate(tensors) for name, tensors in parts.items()}
    reference = small.grade(answer).document["tensors"]
    for tensors, order in ((parts, None), (by_rank, None), (joined, "rank")):
        assert small.grade(tensors, order=order).document["tensors"] == reference
    assert not small.grade(joined)


def test_ones_own_inputs_become_the_question(small):
    random = np.random.default_rng(3)
    inputs = {name: random.standard_normal(tensor.shape).astype(np.float32) for name, tensor in small.inputs().items()}
    answer = plain_attention(small, **{name: tensor.astype(float) for name, tensor in inputs.items()})
    grade = small.grade({**inputs, **answer})
    assert grade and grade.document["truth"] == "record"
    assert not small.grade(answer)


@pytest.mark.parametrize("change", [
    lambda a: np.asfortranarray(a), lambda a: a[::-1].copy()[::-1], lambda a: np.repeat(a, 2, axis=0)[::2],
    lambda a: a.astype(np.float32), lambda a: a.astype(">f8"), lambda a: a.tolist(),
    lambda a: np.moveaxis(np.moveaxis(a, 0, -1).copy(), -1, 0), lambda a: a.reshape(1, *a.shape)],
    ids=["fortran", "negative", "strided", "float32", "big_endian", "list", "transposed", "batch_of_one"])
def test_any_strides_and_types_are_read(small, change):
    reference = small.grade({"out": right_answer(small)["out"].astype(np.float32).astype(float)})
    grade = small.grade({"out": change(right_answer(small)["out"].astype(np.float32).astype(float))},
                        format="thd" if change(np.zeros((2, 2, 2))) is not None and np.ndim(change(np.zeros((2, 2, 2)))) == 3
                        else None)
    assert grade.tensors["out"] == reference.tensors["out"]


def test_read_only_and_unaligned_arrays_are_read(small):
    out = right_answer(small)["out"]
    locked = out.copy()
    locked.flags.writeable = False
    odd = np.frombuffer(b"x" + out.tobytes(), np.uint8)[1:].view(np.float64).reshape(out.shape)
    for array in (locked, odd):
        assert small.grade({"out": array}).tensors == small.grade({"out": out}).tensors


@pytest.mark.parametrize("tensors, words", [
    ({"out": np.zeros((3, 2))}, r'tensor "out" has a shape that fits nothing: \[3, 2\]'),
    ({"out": np.zeros((0, 4, 8))}, r"shape that fits nothing: \[0, 4, 8\]"),
    ({"out": np.zeros(())}, "shape that fits nothing"),
    ({"out": np.zeros((24, 4, 8), int)}, "type that is not read: int64; float64, float32, float16 or bfloat16"),
    ({"out": np.zeros((24, 4, 8), complex)}, "type that is not read: complex128"),
    ({"out": np.zeros((24, 4, 8), bool)}, "type that is not read: bool"),
    ({"out": np.zeros((24, 4, 8), np.longdouble)}, "type that is not read: float128"),
    ({"out": np.array(["a"])}, "type that is not read: <U1"),
    ({"out": np.array([[1.0], [1.0, 2.0]], object)}, "array of Python objects"),
    ({"out": "here"}, '"out" is not a readable array: str'),
    ({"output": np.zeros((24, 4, 8))}, "no answer that could be graded"),
    ({}, "no answer that could be graded"),
    (np.zeros((24, 4, 8)), "tensors must be given by name: ndarray"),
    ([{"out": np.zeros((12, 4, 8))}] * 3, "one record, or one for each rank: 3 files, 2 ranks"),
    ([{"out": np.zeros((12, 4, 8))}, {}], "the part of rank 1 is missing"),
    ([{"out": np.zeros((12, 4, 8))}, {"out": np.zeros((11, 4, 8))}], "shape that fits nothing"),
    ({"out": np.zeros((24, 4, 8)), "q": np.full((24, 4, 8), np.inf)}, "input q of the record is not finite"),
])
def test_tensors_that_do_not_fit_are_named(small, tensors, words):
    with pytest.raises(cpscope.InputError, match=words):
        small.grade(tensors)


def test_rows_in_rank_order_taken_for_packed_are_noticed(small):
    layout, inputs = small.layout(), small.inputs()
    moved = {"q": np.concatenate(layout.cut(inputs["q"])), "out": np.concatenate(layout.cut(right_answer(small)["out"]))}
    with pytest.raises(cpscope.InputError, match='order="rank"'):
        small.grade(moved)
    assert small.grade(moved, order="rank")


def test_padding_can_be_ignored(small):
    answer = right_answer(small)
    answer["out"][14] = 7.0
    assert not small.grade(answer)
    assert small.grade(answer, ignore_padding=True)


def test_a_sample_of_rows_can_be_judged(small):
    grade = small.grade(right_answer(small), sample=4)
    assert grade and not grade.document["judged"]["whole"]
    with pytest.raises(cpscope.InputError, match="sample must be a whole number"):
        small.grade(right_answer(small), sample=-1)


def test_bf16_tensors_of_torch_are_read():
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    scenario = cpscope.Scenario.of(heads=2, head_dim=16, lengths=[32], cp_size=2)
    inputs = scenario.inputs(torch=True)
    assert inputs["q"].dtype == torch.bfloat16
    assert (inputs["q"].double().numpy() == scenario.inputs()["q"]).all()
    q, k, v = (inputs[name].double().transpose(0, 1) for name in "qkv")
    mask = torch.ones(32, 32, dtype=torch.bool).tril()
    weights = (q @ k.transpose(1, 2) / 4).masked_fill(~mask, -torch.inf).softmax(-1)
    out = (weights @ v).transpose(0, 1).to(torch.bfloat16)
    inputs["q"].requires_grad_()
    assert scenario.grade({**inputs, "out": out.requires_grad_()})
    assert scenario.grade({"out": out.detach().half()})
    wrong = out.detach().clone()
    wrong[31, 1] = wrong[30, 1]
    assert scenario.grade({"out": wrong}).tensors["out"]["worst"]["token"] == 31


def test_a_ring_of_plain_torch_in_zigzag_passes():
    """Ranks with local halves r and 2P-1-r compute partial results against every rank's keys, and merge them."""
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    scenario = cpscope.Scenario.of(heads=4, kv_heads=2, head_dim=16, lengths=[64], cp_size=4, dtype="fp32")
    chunk = 64 // 8
    places = [torch.cat([torch.arange(c * chunk, (c + 1) * chunk) for c in (r, 7 - r)]) for r in range(4)]
    assert [rows.tolist() for rows in places] == [rows.tolist() for rows in scenario.layout().q_index]
    local = [scenario.inputs(rank, torch=True) for rank in range(4)]
    answers = []
    for r in range(4):
        q = local[r]["q"].transpose(0, 1)
        out, lse = torch.zeros(16, 4, 16).transpose(0, 1), torch.full((4, 16), -torch.inf)
        for step in range(4):
            source = (r - step) % 4
            k, v = (local[source][name].transpose(0, 1).repeat_interleave(2, 0) for name in "kv")
            logits = (q @ k.transpose(1, 2) / 4).masked_fill(places[source][None, :] > places[r][:, None], -torch.inf)
            new = torch.logsumexp(logits, -1)
            part = torch.nan_to_num(torch.softmax(logits, -1)) @ v
            total = torch.logaddexp(lse, new)
            out = out * (lse - total).exp()[..., None] + part * (new - total).exp()[..., None]
            lse = total
        answers.append({"out": out.transpose(0, 1), "lse": lse.transpose(0, 1)})
    assert scenario.grade(answers), scenario.grade(answers)
    answers[1], answers[2] = answers[2], answers[1]
    swapped = scenario.grade(answers)
    assert not swapped and "rank" in " ".join(swapped.hints)


def test_long_work_leaves_python_running():
    """Another thread goes on while the oracle works: it does not hold Python's lock."""
    import threading
    import time
    scenario = cpscope.Scenario.of(heads=8, head_dim=32, lengths=[1024], cp_size=2)
    beats, done = [], threading.Event()

    def beat():
        while not done.is_set():
            beats.append(time.monotonic())
            time.sleep(0.001)
    thread = threading.Thread(target=beat)
    thread.start()
    began = time.monotonic()
    scenario.oracle()
    ended = time.monotonic()
    done.set()
    thread.join()
    assert ended - began > 0.02 and sum(began + 0.005 < at < ended - 0.005 for at in beats) >= 3


def test_ctrl_c_stops_long_work():
    import signal
    import threading
    import time
    scenario = cpscope.Scenario.of(heads=24, head_dim=64, lengths=[2048], cp_size=2)
    began = time.monotonic()
    scenario.oracle()
    whole = time.monotonic() - began
    stopped = []
    for _ in range(3):  # the machine may have other things to do at times
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(whole / 20, lambda: signal.raise_signal(signal.SIGINT)).start()
            scenario.oracle()
        stopped.append(time.monotonic() - began)
    assert min(stopped) < whole * 0.8, (stopped, whole)


def test_the_tensors_of_torch_in_batches_are_read():
    """As torchtitan has them: [batch, heads, local tokens, lanes] on every rank, head-tail balanced."""
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, batch_size=1, seqlen=32, qkv_format="bshd", cp_size=4, dtype="fp32")
    answer = plain_attention(scenario, **{name: scenario.inputs()[name] for name in "qkv"})
    ranks = [{name: answer[name][rows][None].swapaxes(1, 2) for name in ("out", "lse")}
             for rows in scenario.layout().q_index]
    assert scenario.grade(ranks, format="bhsd"), scenario.grade(ranks, format="bhsd")
    rearrange = np.concatenate([np.r_[c * 4:c * 4 + 4] for r in range(4) for c in (7 - r, r)])
    ordered = scenario.with_order(cpscope.from_torch(rearrange, cp_size=4))
    assert not ordered.grade(ranks, format="bhsd")
    assert ordered.grade([{"out": answer["out"][rows]} for rows in rearrange.reshape(4, 8)], format="thd")


def test_slices_and_dispatched_tokens_are_graded():
    """As MagiAttention has them: slices of the mask, and lists of the tokens of each rank."""
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[24], cp_size=2, dtype="fp32", layout="contiguous",
                                   attn_mask_type="slices", slices=[[0, 16, 0, 16, "causal"], [16, 24, 0, 8, "full"]])
    answer = plain_attention(scenario, **{name: scenario.inputs()[name] for name in "qkv"},
                             is_visible=lambda i, j, s: j <= i if i < 16 else j < 8)
    ids = [np.r_[0:4, 20:24, 8:12], np.r_[4:8, 12:20]]
    tensors = {name: [answer[name][rows] for rows in ids] for name in ("out", "lse")}
    assert scenario.with_order(ids).grade(tensors)
    assert not scenario.grade(tensors)
    with pytest.raises(cpscope.InputError, match="order"):
        scenario.with_order([ids[0], ids[0]])


def test_tensors_of_a_gpu_are_copied_to_the_host(small):
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")

    class Far:
        """Stands for a tensor of another device; only its copy can be read."""
        device = torch.device("cuda", 1)
        shape = (24, 4, 8)

        def detach(self):
            return self

        def cpu(self):
            return torch.from_numpy(right_answer(small)["out"])
    assert small.grade({"out": Far()})
    with pytest.raises(cpscope.InputError, match="a tensor of meta cannot be copied to the host"):
        small.grade({"out": torch.empty(24, 4, 8, device="meta")})


def test_the_tensors_of_transformer_engine_that_are_not_packed_are_read():
    """sbhd: [local positions, sequences, heads * lanes] on every rank, both halves of each sequence."""
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, batch_size=3, seqlen=16, qkv_format="sbhd", cp_size=2, dtype="fp32")
    answer = plain_attention(scenario, **{name: scenario.inputs()[name] for name in "qkv"})
    by_sequence = answer["out"].reshape(3, 16, 2, 8)
    ranks = [{"out": by_sequence[:, np.r_[first], :].swapaxes(0, 1).reshape(8, 3, 16)}
             for first in (np.r_[0:4, 12:16], np.r_[4:12])]
    assert scenario.grade(ranks), scenario.grade(ranks)
    assert not scenario.grade(ranks[::-1])


def test_says_which_names_have_no_tensor():
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[32], cp_size=2)
    right = scenario.oracle()
    assert scenario.grade(right)
    grade = scenario.grade({**right, "dq": None})
    assert not grade and grade.document["verdict"] == "blind"
    assert "dq was given without a tensor" in grade.document["blind"][0]
    assert grade.text.startswith("BLIND")


def test_reads_tensors_under_the_names_that_it_is_told():
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[32], cp_size=2, backward=False)
    right = scenario.oracle()
    theirs = {"attn_output": right["out"], "softmax_lse": right["lse"]}
    with pytest.raises(cpscope.InputError, match='did you mean names={"out": "attn_output", "lse": "softmax_lse"}'):
        scenario.grade(theirs)
    assert scenario.grade(theirs, names={"out": "attn_output", "lse": "softmax_lse"})
    parts = [{"attn_output": part} for part in scenario.layout().cut(right["out"])]
    assert scenario.grade(parts, names={"out": "attn_output"})
    blind = scenario.grade({"out": right["out"], "softmax_lse": right["lse"]})
    assert not blind and 'or with names={"lse": "softmax_lse"}' in blind.text
    for names in ({"out": "output"}, {"output": "attn_output"}):
        with pytest.raises(cpscope.InputError, match="names={"):
            scenario.grade(theirs, names=names)


def test_widens_a_budget_that_it_is_told():
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[32], cp_size=2, backward=False)
    right = scenario.oracle()
    off = {**right, "lse": right["lse"] * 1.001}
    assert not scenario.grade(off)
    assert scenario.grade(off, budgets={"lse": 1e-2}).tensors["lse"]["widened"]
    for budgets in ({"lse": float("nan")}, {"lse": -1}, {"lsee": 1}):
        with pytest.raises(cpscope.InputError, match="invalid budget"):
            scenario.grade(off, budgets=budgets)


def test_reads_what_a_tensor_subclass_holds_or_says_that_it_holds_nothing():
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[32], cp_size=2, backward=False)
    right = {name: torch.from_numpy(tensor) for name, tensor in scenario.oracle().items()}

    class Named(torch.Tensor):
        pass

    class Wrapper(torch.Tensor):
        """As quantised tensors are made: a shape, and the numbers somewhere else."""
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    assert scenario.grade({**right, "out": right["out"].as_subclass(Named)})
    assert scenario.grade({**right, "out": torch.nn.Parameter(right["out"])})
    with pytest.raises(cpscope.InputError, match="Wrapper|meta"):
        scenario.grade({**right, "out": Wrapper(right["out"])})
    with pytest.raises(cpscope.InputError, match="meta cannot be copied to the host"):
        scenario.grade({**right, "out": right["out"].to("meta")})


def test_takes_the_rows_that_a_distributed_tensor_has_here():
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")

    class Placement:
        def __init__(self, partial):
            self.partial = partial

        def is_partial(self):
            return self.partial

    class Distributed(torch.Tensor):
        placements = (Placement(False),)

        def to_local(self):
            return self.as_subclass(torch.Tensor)

    class Later(torch.Tensor):
        def trigger_wait(self):
            return self.as_subclass(torch.Tensor)

    whole = torch.arange(12.0).reshape(4, 3).bfloat16().requires_grad_()
    layout = cpscope.Scenario.of(heads=1, head_dim=4, lengths=[4], cp_size=2).layout()
    assert (layout.join(layout.cut(whole)) == whole.detach().float().numpy()).all()

    from cpscope._arrays import on_host
    plain = torch.arange(6.0)
    assert type(on_host(plain.as_subclass(Distributed))) is torch.Tensor
    assert type(on_host(plain.as_subclass(Later))) is torch.Tensor
    Distributed.placements = (Placement(True),)
    with pytest.raises(cpscope.InputError, match="not added up yet"):
        on_host(plain.as_subclass(Distributed))


def test_packed_documents_may_be_a_batch_of_one_in_any_format():
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[24, 40], cp_size=2)
    right = scenario.oracle()
    names = ("out", "dq", "dk", "dv")
    for change in (lambda x: x[None], lambda x: x[:, None], lambda x: x[None].swapaxes(1, 2)):
        grade = scenario.grade({name: change(right[name]) for name in names} | {"lse": right["lse"].T[None]})
        assert grade, grade
    flex = {name: right[name][None].swapaxes(1, 2) for name in names}
    assert scenario.grade(flex, format="bhsd")
    flex["out"] = flex["out"][:, :, ::-1]
    assert not scenario.grade(flex, format="bhsd")


def test_a_bias_of_ones_own_is_the_question_and_its_gradient_an_answer():
    keys = dict(heads=2, kv_heads=1, head_dim=8, alibi=True, dropout=0.25, lengths=[9, 14], cp_size=2, dtype="fp32")
    biased = cpscope.Scenario.of(bias="1hss", **keys)
    tensors = biased.inputs()
    assert tensors["bias"].shape == (1, 2, 14, 14)
    tensors["bias"] = np.float32(0.5 * tensors["bias"]).astype(np.float64)
    answers = biased.oracle(tensors)
    grade = biased.grade({**tensors, **answers})
    assert grade.passed, repr(grade)
    assert answers["dbias"].shape == (1, 2, 14, 14) and not np.triu(answers["dbias"][0, 0], 1).any()
    answers["dbias"][0, 1, 13, 5] += 0.1
    failed = biased.grade({**tensors, **answers})
    assert [name for name, tensor in failed.tensors.items() if not tensor["passed"]] == ["dbias"]
    worst = failed.tensors["dbias"]["worst"]
    assert (worst["token"], worst["head"]) == (biased.layout().sequences[1].q_valid_begin + 13, 1)
    with pytest.raises(cpscope.InputError, match=r'"bias" has a shape that fits nothing'):
        biased.grade({**tensors, **answers, "bias": tensors["bias"][0, 0]})
    with pytest.raises(cpscope.InputError, match="the scenario has no bias"):
        cpscope.Scenario.of(**keys).grade({**tensors, **answers})
