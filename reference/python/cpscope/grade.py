"""Grades of tensors that other software computed."""
from __future__ import annotations

import json
import math
from typing import Any

from ._errors import _in_words_of_python


class Grade:
    """The verdict on tensors that other software computed. True when it passed; str() is the text of `cpscope grade`."""

    def __init__(self, document: str, text: str):
        self.document: dict[str, Any] = json.loads(document)  #: the document of `cpscope grade --json`
        self.text: str = _in_words_of_python(text)
        for name in ("hints", "common"):
            self.document[name] = [_in_words_of_python(sentence) for sentence in self.document[name]]

    @property
    def passed(self) -> bool:
        return self.document["passed"]

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """By name: passed, rel_l2, budget, worst_row_rel_l2, max_abs, nan, and worst: the rank, step, token and head
        with the largest error, with the expected and seen values. Errors of tensors with NaN are NaN (null in JSON)."""
        numbers = ("rel_l2", "worst_row_rel_l2", "max_abs")
        return {tensor["name"]: {name: math.nan if value is None and name in numbers else value for name, value in tensor.items()}
                for tensor in self.document["tensors"]}

    @property
    def causes(self) -> list[dict[str, Any]]:
        """Known mistakes that explain the wrong rows, the widest first: cause (a word, as "documents_ignored"), text, tensors,
        rows (how many are wrong) and explained (share of the recomputed ones); layout for "other_layout"."""
        return self.document["causes"]

    @property
    def hints(self) -> list[str]:
        """Causes, and what wrong rows without one have in common, as sentences."""
        return self.document["hints"]

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text.rstrip("\n")
