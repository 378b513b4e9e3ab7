"""Grades of tensors that other software computed."""
from __future__ import annotations

import json
import math
from typing import Any, Mapping

import numpy as np

from ._arrays import Array
from ._errors import _in_words_of_python, input_error
from .html import Picture, grade_picture, pre, table, verdict_word
from .tables import frame

#: The columns of `Grade.rows` and their types.
_ROW_COLUMNS = {"tensor": np.str_, "rank": np.int64, "token": np.int64, "sequence": np.int64, "position": np.int64, "head": np.int64,
                "error": np.float64, "budget": np.float64}


class Grade:
    """The verdict on tensors that other software computed. True when it passed; str() is the text of `cpscope grade`."""

    def __init__(self, document: str, text: str, rows: Mapping[str, Any] | None = None):
        self.document: dict[str, Any] = json.loads(document)  #: the document of `cpscope grade --json`
        self.text: str = _in_words_of_python(text)
        self._rows = rows
        for name in ("hints", "common"):
            self.document[name] = [_in_words_of_python(sentence) for sentence in self.document.get(name, [])]

    @property
    def passed(self) -> bool:
        return bool(self.document["passed"])

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
        causes: list[dict[str, Any]] = self.document["causes"]
        return causes

    @property
    def hints(self) -> list[str]:
        """Causes, and what wrong rows without one have in common, as sentences."""
        hints: list[str] = self.document["hints"]
        return hints

    def rows(self) -> dict[str, Array]:
        """Every judged row whose error is over its budget, one numpy array a column: tensor, rank (owner of the token),
        token (packed padded id), sequence and position in it (-1: padding), head, error (|seen - exact| of the row, infinite
        with a NaN) and budget (what it may be). A tensor can fail as a whole, or in a head, while no row alone does."""
        if self._rows is None:
            raise input_error("this grade holds no rows", "rows() is of Scenario.grade; a run has document[\"worst_rows\"]")
        names = np.array([*self._rows["names"], ""])  # with the empty word the array is one of words, whatever is wrong
        columns: dict[str, Array] = {name: np.array(self._rows[name], dtype=kind) for name, kind in _ROW_COLUMNS.items() if name != "tensor"}
        return {"tensor": names[self._rows["tensor"]], **columns}

    def to_pandas(self) -> Any:
        """`rows` as a pandas.DataFrame."""
        return frame(self.rows())

    def show(self) -> Picture:
        """A picture of the error of each tensor over its budget, and of where the wrong rows are: token by head."""
        rows = self.rows() if self._rows is not None else {name: np.zeros(0, kind) for name, kind in _ROW_COLUMNS.items()}
        tensors = self.document["tensors"]
        heads = {one["name"]: max(1, len(one.get("by_head", []))) for one in tensors}
        tokens = {one["name"]: one["rows"] // heads[one["name"]] for one in tensors}
        return grade_picture(tensors, rows, tokens, heads)

    def _repr_html_(self) -> str:
        rows = []
        for one in self.document["tensors"]:
            verdict = "pass" if one["passed"] else "fail" if one["judged"] else "blind"
            error = "NaN" if one["rel_l2"] is None else f"{one['rel_l2']:.3e}"
            rows.append((one["name"], (one.get("failure") or ("within its budget" if one["passed"] else one.get("why_not", "")), verdict),
                         error, "" if one["budget"] is None else f"{one['budget']:.3e}"))
        told = verdict_word(self.document["verdict"])
        causes = "\n".join([*self.document["blind"], *self.document.get("hints", [])])
        return table(("tensor", "verdict", "rel_l2", "budget"), rows, told) + (pre(causes) if causes else "") + self.show().svg

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text.rstrip("\n")
