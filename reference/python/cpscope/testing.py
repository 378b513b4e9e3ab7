"""For tests of frameworks: `assert_cp_right` fails with what is wrong, where, and why."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

from ._arrays import Array, Tensors
from .grade import Grade

if TYPE_CHECKING:
    from .scenario import Scenario

#: A message lists this many wrong rows of a tensor.
_SHOWN_ROWS = 5


def assert_cp_right(scenario: "Scenario", tensors: Tensors, *, require: Sequence[str] = ("out",), order: str | None = None,
                    format: str | None = None, lse_layout: str | None = None, ignore_padding: bool = False, sample: int = 0,
                    budgets: Mapping[str, float] | None = None, names: Mapping[str, str] | None = None) -> Grade:
    """Judges tensors as `Scenario.grade` does; returns the grade, or raises an AssertionError with the verdict, the cause
    and the places of the wrong rows. A BLIND verdict fails too.

    require: answers that must be among the judged ones, so that a test does not pass because a tensor was left out.
    """
    __tracebackhide__ = True
    grade = scenario.grade(tensors, order=order, format=format, lse_layout=lse_layout, ignore_padding=ignore_padding,
                           sample=sample, budgets=budgets, names=names)
    judged = {name for name, tensor in grade.tensors.items() if tensor["judged"]}
    missing = [name for name in require if name not in judged]
    if missing:
        raise AssertionError(f"not judged, but required: {', '.join(missing)}\n{grade}")
    if not grade.passed:
        raise AssertionError(explain(grade))
    return grade


def explain(grade: Grade) -> str:
    """The verdict table, the causes, and the places of the wrong rows of each failed tensor."""
    lines = [grade.document["verdict"].upper() + " of context-parallel attention"]
    lines += [f"  {reason}" for reason in grade.document["blind"]]
    lines += ["", f"{'tensor':<10}{'rel_l2':>12}{'budget':>12}{'times':>10}"]
    for name, tensor in grade.tensors.items():
        if not tensor["judged"]:
            lines.append(f"{name:<10}not judged: {tensor.get('why_not', '')}")
            continue
        # None: infinite, because all exact numbers are 0.
        error, budget = tensor["rel_l2"], math.inf if tensor["budget"] is None else tensor["budget"]
        times = error / budget if 0 < budget < math.inf else math.nan
        verdict = "" if tensor["passed"] else "  <-- " + (tensor.get("failure") or "FAIL")
        lines.append(f"{name:<10}{error:>12.3e}{budget:>12.3e}{times:>10.3g}{verdict}")
    if grade.hints:
        known = len(grade.causes)
        lines += ["", *(f"cause: {hint}" for hint in grade.hints[:known]), *(f"note: {hint}" for hint in grade.hints[known:])]
    rows = grade.rows()
    for name, tensor in grade.tensors.items():
        lines += _places(name, tensor["worst"], rows)
    return "\n".join(lines)


def _places(name: str, worst: dict[str, Any], rows: Mapping[str, Array]) -> list[str]:
    here = np.flatnonzero(rows["tensor"] == name)
    if not len(here):
        return []
    by_rank = dict(zip(*(values.tolist() for values in np.unique(rows["rank"][here], return_counts=True))))
    told = ", ".join(f"rank {rank}: {count}" for rank, count in list(by_rank.items())[:8])
    lines = ["", f"{name}: {len(here)} wrong rows ({told}{', ...' if len(by_rank) > 8 else ''}); first of them:"]
    for at in here[:_SHOWN_ROWS]:
        where = "padding" if rows["sequence"][at] < 0 else f"sequence {rows['sequence'][at]}, position {rows['position'][at]}"
        lines.append(f"  rank {rows['rank'][at]}, token {rows['token'][at]} ({where}), head {rows['head'][at]}: "
                     f"error {rows['error'][at]:.3e}, allowed {rows['budget'][at]:.3e}")
    if worst.get("expected") is not None:
        lines.append(f"  worst: rank {worst['rank']}, token {worst['token']}, head {worst['head']}: "
                     f"expected {worst['expected']:.6g}, seen {'NaN or infinity' if worst['seen'] is None else format(worst['seen'], '.6g')}")
    return lines
