"""Exact tests of which keys each row of another attention implementation has seen."""
from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from ._arrays import Array

if TYPE_CHECKING:
    from .scenario import Scenario


class Question:
    """The inputs of one probe. Attention over them has a known answer, in whole numbers."""

    def __init__(self, probes: str, core: _core.Scenario, inputs: dict[str, Array]):
        #: the probes that use the answer: count, keys, head; query; position; dq; dk, dv
        self.probes: tuple[str, ...] = tuple(probes.split())
        #: {"q", "k", "v", and "d_out", "sink" if present}: float64, [tokens, heads, head_dim], packed order
        self.inputs = inputs
        self._core = core

    @cached_property
    def scenario(self) -> "Scenario":
        """The scenario of this question; it differs from the probed one: most probes are without RoPE, softcap or backward."""
        from .scenario import Scenario
        return Scenario._of_core(self._core)

    @property
    def backward(self) -> bool:
        """True if dq, dk, dv are required; d_out is then among the inputs."""
        return "d_out" in self.inputs

    def of_rank(self, rank: int, torch: bool = False) -> dict[str, Any]:
        """The inputs that one rank holds, in the order of its local buffer; sink is complete. torch: as `Scenario.inputs`."""
        inputs = self.scenario._of_rank(self.inputs, rank)
        return self.scenario._to_torch(inputs) if torch else inputs

    def to_torch(self) -> dict[str, Any]:
        """`inputs` as torch tensors of the scenario's dtype."""
        return self.scenario._to_torch(self.inputs)

    def __repr__(self) -> str:
        return f"<cpscope.Question {', '.join(self.probes)}>"


class ProbeReport:
    """The findings of the probes. True when nothing is wrong; str() is the text of `cpscope probe`."""

    def __init__(self, document: str, text: str):
        self.document: dict[str, Any] = json.loads(document)  #: the document of `cpscope probe --json`
        self.text = text

    @property
    def passed(self) -> bool:
        return bool(self.document["passed"])

    @property
    def probes(self) -> dict[str, dict[str, Any]]:
        """By probe: rows (the number tested), wrong_rows, first (rank, step, token, head, expected, seen, text), and
        why_not if none could be tested."""
        return {probe["probe"]: probe for probe in self.document["probes"]}

    @property
    def first(self) -> dict[str, Any] | None:
        """The first finding; None when there is none."""
        first: dict[str, Any] | None = self.document["first"]
        return first

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text.rstrip("\n")
