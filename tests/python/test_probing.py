"""Probes ask somebody else's attention which keys it has seen."""
import numpy as np
import pytest

import cpscope
from conftest import plain_attention


def attend(question, **keys):
    return plain_attention(question.scenario, **question.inputs, **keys)


def test_a_right_attention_passes_every_probe(small):
    asked = []

    def answer(question):
        asked.append(question.probes)
        assert question.backward == ("d_out" in question.inputs)
        return attend(question)
    report = small.probe(answer)
    assert report, report
    assert set(report.probes) == {"count", "keys", "head", "query", "dq", "dk", "dv"}
    assert all(probe["rows"] > 0 for probe in report.probes.values())
    assert {("count", "keys", "head"), ("query",), ("dq",), ("dk", "dv")} == set(asked)
    assert report.first is None and repr(report).startswith("PASS")


def test_one_key_left_out_is_caught(small):
    report = small.probe(lambda question: attend(question, is_visible=lambda i, j, s: j <= i and (i, j) != (7, 2)))
    assert not report
    first = report.probes["count"]["first"]
    # Query 7 sees 8 keys. It is in chunk 1 of four, which rank 1 owns.
    assert (first["token"], first["rank"], first["expected"]) == (7, 1, 8) and round(first["seen"]) == 7
    assert report.document["wrong_count_rows"] == small.heads
    assert report.probes["keys"]["wrong_rows"] == small.heads and "like 2" in report.probes["keys"]["first"]["text"]


def test_one_key_taken_for_another_is_caught(small):
    def swap(question):
        inputs = dict(question.inputs)
        for name in "kv":
            inputs[name] = inputs[name].copy()
            inputs[name][[1, 2]] = inputs[name][[2, 1]]
        return plain_attention(question.scenario, **inputs)
    report = small.probe(swap)
    assert report.probes["count"]["wrong_rows"] == 0 and report.probes["keys"]["wrong_rows"] > 0


def test_a_wrong_head_is_caught(small):
    report = small.probe(lambda question: attend(question) | {"out": attend(question)["out"][:, ::-1]})
    assert report.probes["head"]["wrong_rows"] > 0 and report.probes["query"]["wrong_rows"] > 0


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
def test_a_lost_share_of_a_gradient_is_caught(small, name):
    def lose(question):
        answer = attend(question)
        if question.backward:
            answer[name] = answer[name].copy()
            answer[name][4] *= 0.5
        return answer
    report = small.probe(lose)
    wrong = {probe for probe, tally in report.probes.items() if tally["wrong_rows"]}
    assert wrong == {name} and report.probes[name]["first"]["token"] == 4


def test_a_wrong_position_is_caught():
    scenario = cpscope.Scenario.of(heads=2, head_dim=64, lengths=[12], cp_size=2, dtype="fp32", rope_theta=100.0)

    def rotated(tensor, positions, theta):
        half = tensor.shape[2] // 2
        angles = positions[:, None] * theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        x, y = tensor[..., :half], tensor[..., half:]
        return np.concatenate([x * cos - y * sin, y * cos + x * sin], -1)

    def answer(shift):
        def attend_rotated(question):
            q, k, v = (question.inputs[name] for name in "qkv")
            theta = question.scenario.settings["rope_theta"]
            if theta:
                places = np.arange(12)
                q, k = rotated(q, places + shift, theta), rotated(k, places, theta)
            return plain_attention(question.scenario, q, k, v)
        return attend_rotated
    assert scenario.probe(answer(0)), scenario.probe(answer(0))
    report = scenario.probe(answer(np.arange(12) >= 6))
    assert {name for name, tally in report.probes.items() if tally["wrong_rows"]} == {"position"}


def test_what_an_attention_does_not_give_is_not_judged(small):
    report = small.probe(lambda question: {"out": attend(question)["out"]})
    assert report
    assert report.probes["count"]["rows"] == 0 and report.probes["count"]["why_not"] == "the answer has no lse"
    assert {report.probes[name]["why_not"] for name in ("dq", "dk", "dv")} == \
        {f"the answer has no {name}" for name in ("dq", "dk", "dv")}
    assert report.probes["keys"]["rows"] > 0
    left_out = lambda question: {"out": attend(question, is_visible=lambda i, j, s: j < i or i == 0)["out"]}  # noqa: E731
    assert small.probe(left_out).first["probe"] == "keys"


def test_ranks_answer_with_their_own_rows(small):
    """What each rank of a real run would do: its own inputs, its own rows of the answer."""
    def answer(question):
        ranks = [question.of_rank(rank) for rank in range(2)]
        layout = question.scenario.layout()
        whole = {name: layout.join([rank[name] for rank in ranks], kv=name in "kv") for name in question.inputs}
        tensors = plain_attention(question.scenario, **whole)
        return [{name: layout.cut(tensor, kv=name in ("dk", "dv"))[rank] for name, tensor in tensors.items()}
                for rank in range(2)]
    assert small.probe(answer)


def test_what_the_attention_raises_comes_back(small):
    class Stop(Exception):
        pass

    def stop(question):
        raise Stop("here")
    with pytest.raises(Stop, match="here"):
        small.probe(stop)

    def stop_in_backward(question):
        if question.backward:
            raise Stop("later")
        return attend(question)
    with pytest.raises(Stop, match="later"):
        small.probe(stop_in_backward)
    with pytest.raises(cpscope.InputError, match='no "out"'):
        small.probe(lambda question: {"lse": attend(question)["lse"]})
    with pytest.raises(cpscope.InputError, match="by name: NoneType"):
        small.probe(lambda question: None)
    with pytest.raises(cpscope.InputError, match="fits nothing"):
        small.probe(lambda question: {"out": np.zeros((1, 2, 3))})


@pytest.mark.parametrize("cp_size, layout", [(2, "dual_chunk"), (4, "contiguous"), (8, "striped")])
def test_partial_results_in_sixteen_bits_are_no_false_alarm(cp_size, layout):
    """What flash attention does at every step of a ring: its block's output is bf16, and so is the running sum."""
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    scenario = cpscope.Scenario.of(heads=2, head_dim=64, lengths=[512], cp_size=cp_size, layout=layout, dtype="bf16",
                                   backward=False)

    def attend(question, lost=None):
        q, k, v = (torch.from_numpy(question.inputs[name]).float().transpose(0, 1) for name in "qkv")
        logits = (q @ k.transpose(1, 2)) * 64 ** -0.5
        logits = logits.masked_fill(torch.ones(512, 512, dtype=torch.bool).triu(1), -torch.inf)
        if lost is not None:
            logits[:, lost, 3] = -torch.inf
        parts = [(logits[..., keys].logsumexp(-1), keys) for keys in
                 (slice(n * 512 // cp_size, (n + 1) * 512 // cp_size) for n in range(cp_size))]
        total = torch.stack([lse for lse, _ in parts]).logsumexp(0)
        out = torch.zeros(2, 512, 64)
        for lse, keys in parts:
            weights = torch.nan_to_num(torch.exp(logits[..., keys] - lse[..., None]))
            part = (weights @ v[:, keys]).bfloat16().float() * torch.exp(lse - total)[..., None]
            out = (out + part).bfloat16().float()
        return {"out": out.bfloat16().transpose(0, 1), "lse": total.transpose(0, 1)}

    assert scenario.probe(attend), scenario.probe(attend)
    report = scenario.probe(lambda question: attend(question, lost=400))
    assert not report and report.document["first"]["token"] == 400
