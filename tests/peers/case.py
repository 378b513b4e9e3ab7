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
    cause: str = ""  # of a FAIL: "this and that", the widest first; the layout of other_layout behind it
    explained: float = 0.0  # the smallest share of recomputed wrong rows that a cause explains


@dataclass(frozen=True)
class Case:
    configuration: str
    ranks: int
    judge: Callable[[int], Verdict | None]  # judge(rank) in every rank; rank 0's is the verdict
    expected: str = "PASS"  # several, where chance decides: "this or that"
    because: str = ""  # why a verdict that is not PASS or same is the right one
    cause: str = ""  # that must be named for a FAIL, and no other; "this and that"; empty: no known cause

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
    causes = dict.fromkeys(f"{cause['cause']} {cause.get('layout') or ''}".rstrip() for cause in grade.causes)
    return Verdict(said, max(ratios, default=None), str(grade), " and ".join(causes), min((c["explained"] for c in grade.causes), default=0.0))


#: What a rank computes with: a scenario, mostly that of a preset, and the peer's answer to its q, k, v, d_out as [tokens, heads, dim].
Answer = Callable[[Tensors], Mapping[str, Any]]
Prepare = Callable[[int], tuple[cpscope.Scenario, Answer]]


def graded(prepare: Prepare, **options: Any) -> Callable[[int], Verdict | None]:
    """prepare(rank): the rank's scenario and answer, whose tensors may be in any format that grade knows."""
    def judge(rank: int) -> Verdict | None:
        scenario, answer = prepare(rank)
        ranks = cpscope.gather(None, **answer(scenario.inputs(rank, torch=True)))
        return said(scenario.grade(ranks, **options)) if rank == 0 else None
    return judge


def probed(prepare: Prepare) -> Callable[[int], Verdict | None]:
    """The same peer, asked the integer questions of probe."""
    def judge(rank: int) -> Verdict | None:
        scenario, answer = prepare(rank)

        def attend(question: cpscope.Question) -> Any:
            parts = {name: torch.from_numpy(part).to(TYPES[scenario.dtype]) for name, part in question.of_rank(rank).items()}
            parts.setdefault("d_out", torch.zeros(parts["q"].shape[0], parts["q"].shape[1], parts["v"].shape[2], dtype=parts["q"].dtype))
            tensors = answer(parts)
            return cpscope.gather(None, **{name: tensors[name] for name in NAMES if name in tensors and (question.backward or name in "out lse")})
        report = scenario.probe(attend)
        return Verdict("PASS" if report.passed else "FAIL", text=str(report)) if rank == 0 else None
    return judge


def like(dtype: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Tensors of these shapes without numbers, for a preset."""
    return [torch.empty(shape, dtype=TYPES[dtype], device="meta") for shape in shapes]


def same_order(prepare: Callable[[int], tuple[cpscope.Scenario, Any]]) -> Callable[[int], Verdict | None]:
    """prepare(rank): a scenario and the tokens that the peer gives the rank, in its order; "same" where the scenario's layout says so too."""
    def judge(rank: int) -> Verdict | None:
        scenario, ids = prepare(rank)
        lists: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lists, [int(token) for token in ids])
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

