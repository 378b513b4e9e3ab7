"""The program reads what numpy and torch write."""
import json
import os
import subprocess

import numpy as np
import pytest

import cpscope

SCENARIO = """schema = 1
[attention]
heads = 4
kv_heads = 2
head_dim = 8
[batch]
lengths = [13, 0, 6]
[parallel]
cp_size = 2
[numerics]
dtype = "fp32"
"""


@pytest.fixture
def grade(tmp_path):
    """Runs `cpscope grade` in a folder with scenario.toml; returns the exit code and the document."""
    path = os.environ.get("CPSCOPE_PROGRAM")
    if not path:
        pytest.skip("requires program: CPSCOPE_PROGRAM names none")
    (tmp_path / "scenario.toml").write_text(SCENARIO)

    def run(*arguments):
        done = subprocess.run([path, "grade", "scenario.toml", *arguments, "--json"], capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, json.loads(done.stdout)
    return run


@pytest.fixture
def answer():
    """Right answers in fp32, and the layout."""
    scenario = cpscope.Scenario(SCENARIO)
    return {name: tensor.astype(np.float32) for name, tensor in scenario.oracle().items()}, scenario.layout()


def of_rank(tensors, layout, rank):
    return {name: tensor if tensor.ndim < 2 else layout.cut(tensor, kv=name in ("dk", "dv"))[rank]
            for name, tensor in tensors.items()}


def test_archives_of_numpy(grade, answer, tmp_path):
    tensors, layout = answer
    np.savez(tmp_path / "all.npz", **{name: np.asfortranarray(tensor) for name, tensor in tensors.items()})
    assert grade("all.npz")[0] == 0
    for rank in range(2):  # their names have the other order
        np.savez(tmp_path / f"part{1 - rank}.npz", rank=rank, **of_rank(tensors, layout, rank))
    assert grade("part0.npz", "part1.npz")[0] == 0
    for name, tensor in tensors.items():
        np.save(tmp_path / f"{name}.npy", tensor)
    code, document = grade("out.npy", "lse.npy")
    assert code == 0 and document["graded"] == ["out", "lse"]
    np.savez_compressed(tmp_path / "small.npz", **tensors)
    code, document = grade("small.npz")
    assert code == 2 and "numpy.savez_compressed" in document["error"]["hint"]


def test_bfloat16_of_ml_dtypes(grade, answer, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    np.savez(tmp_path / "narrow.npz", out=answer[0]["out"].astype(ml_dtypes.bfloat16))
    code, document = grade("narrow.npz")
    assert code == 1 and document["read"]["out"].startswith("BF16")
    assert document["tensors"][0]["rel_l2"] < 4e-3


def test_files_of_torch(grade, answer, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(tensor) for name, tensor in answer[0].items()}
    layout = answer[1]
    torch.save({"step": 3, "layer": {"attn_output": tensors["out"].requires_grad_(), "words": ["a"], "loss": 0.5},
                "softmax_lse": tensors["lse"].T.contiguous().T}, tmp_path / "theirs.pt")
    code, document = grade("theirs.pt")
    assert code == 2 and document["error"]["hint"] == "did you mean --map out=layer.attn_output --map lse=softmax_lse?"
    assert grade("theirs.pt", "--map", "out=layer.attn_output", "--map", "lse=softmax_lse")[0] == 0
    parts = [{name: torch.as_tensor(tensor) for name, tensor in of_rank(answer[0], layout, rank).items()} for rank in range(2)]
    torch.save(parts, tmp_path / "list.pt")
    assert grade("list.pt")[0] == 0
    for rank in range(2):
        torch.save({**parts[rank], "rank": rank}, tmp_path / f"file{1 - rank}.pt")
    assert grade("file0.pt", "file1.pt")[0] == 0
    torch.save({name: torch.nn.Parameter(tensor.detach()) for name, tensor in tensors.items()}, tmp_path / "parameters.pt")
    assert grade("parameters.pt")[0] == 0
    torch.save({"out": tensors["out"].detach(), "grade": cpscope.Grade}, tmp_path / "code.pt")
    code, document = grade("code.pt")
    assert code == 2 and "the file holds code: cpscope.grade.Grade" in document["error"]["message"]
    torch.save({"out": tensors["out"].detach()}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    code, document = grade("old.pt")
    assert code == 2 and "before 1.6" in document["error"]["message"]


def test_distributed_tensors_of_torch(grade, answer, tmp_path):
    torch = pytest.importorskip("torch")
    distributed = pytest.importorskip("torch.distributed.tensor")
    from torch.distributed.device_mesh import init_device_mesh
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for rank in range(2):
            part = of_rank(answer[0], answer[1], rank)
            torch.save({name: distributed.DTensor.from_local(torch.from_numpy(np.ascontiguousarray(tensor)), mesh,
                                                             [distributed.Shard(0)])
                        for name, tensor in part.items()}, tmp_path / f"sharded{rank}.pt")
        sums = distributed.DTensor.from_local(torch.zeros(4), mesh, [distributed.Partial()])
        torch.save({"out": sums}, tmp_path / "sums.pt")
    finally:
        torch.distributed.destroy_process_group()
    assert grade("sharded0.pt", "sharded1.pt")[0] == 0
    code, document = grade("sharded1.pt")
    assert code == 2 and "one rank's part of a DTensor" in document["error"]["message"]
    code, document = grade("sums.pt")
    assert code == 2 and "not added up yet" in document["error"]["message"]
