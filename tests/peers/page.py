"""The lines of reference/python/frameworks.md, run in every rank."""
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist

from case import Verdict, said

PAGE = Path(__file__).resolve().parents[2] / "reference/python/frameworks.md"


def lines(heading: str) -> str:
    """The code below a heading of the page."""
    _, found, rest = PAGE.read_text().partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"{PAGE} has no heading {heading}")
    return rest.partition("\n## ")[0].partition("```python\n")[2].partition("```")[0]


def told(heading: str, shapes: list[torch.Tensor], names: Callable[[int], dict[str, Any]] = lambda _: {},
         out_shape: tuple[int, ...] = ()) -> Callable[[int], Verdict | None]:
    """The page's lines with random q, k, v of these shapes, d_out of out's, and what names(rank) adds. They set `grade`."""
    def judge(rank: int) -> Verdict | None:
        generator = torch.Generator().manual_seed(100 + rank)
        q, k, v = (torch.randn(shape.shape, generator=generator).to(shape.dtype).requires_grad_() for shape in shapes)
        scope = dict(q=q, k=k, v=v, dist=dist, print=lambda *_: None,
                     d_out=torch.randn(out_shape or (*q.shape[:-1], v.shape[-1]), generator=generator).to(q.dtype), **names(rank))
        exec(compile(lines(heading), f"{PAGE.name}, {heading}", "exec"), scope)
        return said(scope["grade"]) if rank == 0 else None
    return judge
