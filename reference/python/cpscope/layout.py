"""The owner of each token, and the steps of the plan."""
from __future__ import annotations

import json
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arrays import as_numpy
from ._errors import input_error


class Sequence(NamedTuple):
    """The position of one sequence in the packed padded buffers."""

    q_begin: int
    q_valid: int
    q_slot: int
    kv_begin: int
    kv_valid: int
    kv_slot: int
    q_valid_begin: int   #: the id of its first valid query: q_begin, or later if pad_side is "left"
    kv_valid_begin: int  #: the same for keys and values


class Layout:
    """The owner of each token. Lists are by rank, in the order of that rank's local buffer.

    Token ids are packed padded ids: they count the slots of all sequences one after another, padding included.
    """

    def __init__(self, core: _core.Layout):
        self._core = core
        head = json.loads(core.document(False))
        self.cp_size: int = head["cp_size"]
        self.tokens: int = head["tokens"]        #: packed padded query ids
        self.kv_tokens: int = head["kv_tokens"]  #: packed padded key ids
        self.sequences = [Sequence(**one) for one in head["sequences"]]

    @cached_property
    def q_index(self) -> list[np.ndarray]:
        """[rank] int64 [local rows]: the token of each row."""
        return self._ids(False)

    @cached_property
    def kv_index(self) -> list[np.ndarray]:
        """The same for keys and values."""
        return self._ids(True)

    @property
    def q_sequence(self) -> list[np.ndarray]:
        """[rank] int64 [local rows]: the sequence of each row, -1 for padding."""
        return [sequence for sequence, _ in self._q_places]

    @property
    def q_position(self) -> list[np.ndarray]:
        """[rank] int64 [local rows]: the position inside the sequence (for RoPE), -1 for padding."""
        return [position for _, position in self._q_places]

    @property
    def q_valid(self) -> list[np.ndarray]:
        """[rank] bool [local rows]: False marks padding."""
        return [sequence >= 0 for sequence, _ in self._q_places]

    @property
    def kv_sequence(self) -> list[np.ndarray]:
        return [sequence for sequence, _ in self._kv_places]

    @property
    def kv_position(self) -> list[np.ndarray]:
        return [position for _, position in self._kv_places]

    @property
    def kv_valid(self) -> list[np.ndarray]:
        return [sequence >= 0 for sequence, _ in self._kv_places]

    def cut(self, tensor: Any, kv: bool = False) -> list[Any]:
        """Every rank's rows of a tensor [tokens, ...] in packed order; numpy or torch, copies."""
        tokens = self.kv_tokens if kv else self.tokens
        if tensor.shape[0] != tokens:
            raise input_error(f"the tensor has another number of rows than there are tokens: {tensor.shape[0]}",
                              str(tokens))
        return [tensor[index] for index in (self.kv_index if kv else self.q_index)]

    def join(self, parts: list[Any], kv: bool = False) -> np.ndarray:
        """The numpy tensor in packed order from every rank's rows; the reverse of `cut`. Types that numpy lacks
        (bfloat16) become float32."""
        index = self.kv_index if kv else self.q_index
        if [len(part) for part in parts] != [len(rows) for rows in index]:
            raise input_error(f"the parts have other rows than the ranks: {[len(part) for part in parts]}",
                              str([len(rows) for rows in index]))
        parts = [as_numpy(part) for part in parts]
        whole = np.empty((self.kv_tokens if kv else self.tokens, *parts[0].shape[1:]), parts[0].dtype)
        for rows, part in zip(index, parts):
            whole[rows] = part
        return whole

    def to_dict(self, full: bool = False) -> dict[str, Any]:
        """The document of `cpscope layout --json`; with `full`, that of `--full`."""
        return json.loads(self._core.document(full))

    def __repr__(self) -> str:
        return f"<cpscope.Layout of {self.tokens} tokens on {self.cp_size} ranks>"

    def _ids(self, is_kv: bool) -> list[np.ndarray]:
        return [self._core.ids(rank, is_kv) for rank in range(self.cp_size)]

    @cached_property
    def _q_places(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._core.places(rank, False) for rank in range(self.cp_size)]

    @cached_property
    def _kv_places(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self._core.places(rank, True) for rank in range(self.cp_size)]


class Plan:
    """Every step of a scenario, proved: the computes, transfers, merges and reorders of each rank."""

    def __init__(self, core: _core.Plan):
        self._core = core

    @property
    def hash(self) -> str:
        """16 hex digits: two plans with the same hash are the same."""
        return self._core.hash

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The document of `cpscope plan --json --summary`: steps, pairs, balance, bytes, proofs."""
        return json.loads(self._core.document(True))

    def to_dict(self) -> dict[str, Any]:
        """The document of `cpscope plan --json`: all buffers, computes with their slices, transfers, merges."""
        return json.loads(self.to_json())

    def to_json(self) -> str:
        """The same as text."""
        return self._core.document(False)

    def te(self) -> dict[str, Any]:
        """The document of `cpscope plan --te --json`: the arguments that TransformerEngine passes to its kernels.
        RefusedError for plans that it does not support."""
        return json.loads(self._core.te(False))

    def te_text(self) -> str:
        """The same as lines for people."""
        return self._core.te(True)

    def text(self, lines: int = 0) -> str:
        """The text of `cpscope plan --text`, at most `max_lines` lines; 0 is all."""
        if lines < 0:
            raise input_error(f"lines must be 0 or more: {lines}")
        return self._core.text(lines)

    def __repr__(self) -> str:
        return f"<cpscope.Plan {self.hash}, {self.summary['steps']} steps>"
