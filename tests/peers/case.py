"""One configuration of a peer: what it is asked, and what must be said of its answer."""
from dataclasses import dataclass
from typing import Any, Callable, Mapping

import torch
import torch.distributed as dist

import cpscope
from processes import run_ranks

Tensors = dict[str, torch.Tensor]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NAMES = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Verdict:
    said: str  # PASS; FAIL and the tensors that failed; raises and the type; same or differs, of an order
    ratio: float | None = None  # the largest of error over budget, of all tensors
    text: str = ""


@dataclass(frozen=True)
class Case:
    configuration: str
    ranks: int
    judge: Callable[[int], Verdict | None]  # judge(rank) in every rank; rank 0's is the verdict
    expected: str = "PASS"  # several, where chance decides: "this or that"
    because: str = ""  # why a verdict that is not PASS or same is the right one

    def verdict(self) -> Verdict:
        try:
            return run_ranks(self.ranks, self.judge)
        except RuntimeError as error:
            lines = str(error).strip().splitlines()
            return Verdict("raises " + lines[-1].partition(":")[0].rpartition(".")[2], text="\n".join(lines[-12:]))


def said(grade: cpscope.Grade) -> Verdict:
    wrong = [name for name in NAMES if name in grade.tensors and not grade.tensors[name]["passed"]]
    ratios = [tensor["rel_l2"] / tensor["budget"] for tensor in grade.tensors.values() if tensor["rel_l2"] is not None and tensor["budget"]]
    said = "PASS" if grade.passed else "FAIL " + " ".join(wrong) if wrong else "BLIND"
    return Verdict(said, max(ratios, default=None), str(grade))


def graded(scenario: cpscope.Scenario, answer: Callable[[int, Tensors], Mapping[str, Any]], **options: Any) -> Callable[[int], Verdict | None]:
    """answer(rank, its q, k, v, d_out as [tokens, heads, dim]): what it computed, in any format that grade knows."""
    def judge(rank: int) -> Verdict | None:
        tensors = answer(rank, scenario.inputs(rank, torch=True))
        ranks = cpscope.gather(None, **tensors)
        return said(scenario.grade(ranks, **options)) if rank == 0 else None
    return judge


def probed(scenario: cpscope.Scenario, answer: Callable[[int, Tensors], Mapping[str, Any]]) -> Callable[[int], Verdict | None]:
    """The same peer, asked the integer questions of probe."""
    def judge(rank: int) -> Verdict | None:
        def attend(question: cpscope.Question) -> Any:
            parts = {name: torch.from_numpy(part).to(TYPES[scenario.dtype]) for name, part in question.of_rank(rank).items()}
            parts.setdefault("d_out", torch.zeros(parts["q"].shape[0], parts["q"].shape[1], parts["v"].shape[2], dtype=parts["q"].dtype))
            tensors = answer(rank, parts)
            return cpscope.gather(None, **{name: tensors[name] for name in NAMES if name in tensors and (question.backward or name in "out lse")})
        report = scenario.probe(attend)
        return Verdict("PASS" if report.passed else "FAIL", text=str(report)) if rank == 0 else None
    return judge


def watched(scenario: cpscope.Scenario, attend: Callable[..., Any], call: Callable[[int, Callable[..., Any], Tensors], torch.Tensor],
            shape: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int], Verdict | None]:
    """Three steps of call(rank, the watched attend, its q, k, v), of which the first and the last are judged: PASS, or FAIL and the causes."""
    def judge(rank: int) -> Verdict | None:
        tensors, verdicts, plain = scenario.inputs(rank, torch=True), [], leaves(scenario.inputs(rank, torch=True), shape)
        out = call(rank, attend, plain)
        out.backward(plain["d_out"].reshape(out.shape))
        with cpscope.watch(attend, None, scenario=scenario, every=2, on_verdict=verdicts.append) as watch:
            for _ in range(3):
                leaf = leaves(tensors, shape)
                out = call(rank, watch, leaf)
                out.backward(leaf["d_out"].reshape(out.shape))
                watch.wait(120)
                same = all(torch.equal(leaf[name].grad, plain[name].grad) for name in "qkv")
                assert same, "watching has changed the gradients"
        causes = sorted({cause["cause"] for verdict in verdicts for cause in verdict.causes})
        statuses = {verdict.status for verdict in verdicts} if len(verdicts) == 2 else {f"{len(verdicts)} verdicts"}
        text = "\n".join(map(str, verdicts))
        return Verdict("PASS" if statuses == {"pass"} else " ".join([*sorted(statuses), *causes]).replace("fail", "FAIL"), text=text)
    return judge


def same_order(scenario: cpscope.Scenario, ids: Callable[[int], Any]) -> Callable[[int], Verdict | None]:
    """ids(rank): the tokens that the peer gives the rank, in its order; "same" where the scenario's layout says so too."""
    def judge(rank: int) -> Verdict | None:
        lists: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lists, [int(token) for token in ids(rank)])
        ours = [part.tolist() for part in scenario.layout().q_index]
        different = [r for r in range(len(lists)) if lists[r] != ours[r]]
        return Verdict("differs" if different else "same", text=f"ranks {different}: {lists} against {ours}" if different else "")
    return judge


def leaves(tensors: Tensors, shape: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
    """In the peer's shape, with gradients."""
    return {name: shape(tensor).contiguous().detach().requires_grad_(name != "d_out") for name, tensor in tensors.items()}


def with_gradients(leaf: Tensors, out: torch.Tensor, **more: torch.Tensor) -> dict[str, Any]:
    """Runs the backward pass, unless d_out has another shape, and puts together what there is to judge."""
    out.backward(leaf["d_out"].reshape(out.shape))
    return {**{name: tensor.detach() for name, tensor in leaf.items()}, **more, "out": out.detach(), "dq": leaf["q"].grad, "dk": leaf["k"].grad,
            "dv": leaf["v"].grad}

