"""The owner of each token, and the steps of the plan."""
from __future__ import annotations

import json
import os
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._arrays import Array, as_numpy
from ._errors import input_error
from .html import Picture, layout_picture, table, themed
from .tables import frame, items_of


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


class Group(NamedTuple):
    """Consecutive ranks that share some sequences (cp_sizes)."""

    first_rank: int
    size: int
    sequences: tuple[int, ...]


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
        #: [rank] the query heads [begin, end) that a rank owns of all queries (q_owner); None where ranks own rows with all heads
        self.q_heads: list[tuple[int, int]] | None = [tuple(one["q_heads"]) for one in head["ranks"]] if "q_heads" in head["ranks"][0] else None
        #: of cp_sizes: the groups of each round, by first rank; none if every sequence is on all ranks
        self.rounds = [[Group(group["first_rank"], group["size"], tuple(group["sequences"])) for group in one["groups"]]
                       for one in head.get("rounds", [])]

    @cached_property
    def q_index(self) -> list[Array]:
        """[rank] int64 [local rows]: the token of each row."""
        return self._ids(False)

    @cached_property
    def kv_index(self) -> list[Array]:
        """The same for keys and values."""
        return self._ids(True)

    @property
    def q_sequence(self) -> list[Array]:
        """[rank] int64 [local rows]: the sequence of each row, -1 for padding."""
        return [sequence for sequence, _ in self._q_places]

    @property
    def q_position(self) -> list[Array]:
        """[rank] int64 [local rows]: the position inside the sequence (for RoPE), -1 for padding."""
        return [position for _, position in self._q_places]

    @property
    def q_valid(self) -> list[Array]:
        """[rank] bool [local rows]: False marks padding."""
        return [sequence >= 0 for sequence, _ in self._q_places]

    @property
    def kv_sequence(self) -> list[Array]:
        return [sequence for sequence, _ in self._kv_places]

    @property
    def kv_position(self) -> list[Array]:
        return [position for _, position in self._kv_places]

    @property
    def kv_valid(self) -> list[Array]:
        return [sequence >= 0 for sequence, _ in self._kv_places]

    def cut(self, tensor: Any, kv: bool = False) -> list[Any]:
        """Every rank's rows of a tensor [tokens, ...] in packed order; numpy or torch, copies. Where ranks own heads of all
        queries (`q_heads`), the tensor is [tokens, heads, ...] and each gets its heads."""
        tokens = self.kv_tokens if kv else self.tokens
        if tensor.shape[0] != tokens:
            raise input_error(f"the tensor has another number of rows than there are tokens: {tensor.shape[0]}",
                              str(tokens))
        if self.q_heads is not None and not kv:
            heads = self.q_heads[-1][1]
            if tensor.ndim < 2 or tensor.shape[1] != heads:
                raise input_error(f"ranks own heads, and the tensor has no such: {tuple(tensor.shape)}", f"[tokens, {heads}, ...]")
            return [tensor[index][:, begin:end] for index, (begin, end) in zip(self.q_index, self.q_heads)]
        return [tensor[index] for index in (self.kv_index if kv else self.q_index)]

    def join(self, parts: list[Any], kv: bool = False) -> Array:
        """The numpy tensor in packed order from every rank's rows; the reverse of `cut`. Types that numpy lacks
        (bfloat16) become float32."""
        index = self.kv_index if kv else self.q_index
        if [len(part) for part in parts] != [len(rows) for rows in index]:
            raise input_error(f"the parts have other rows than the ranks: {[len(part) for part in parts]}",
                              str([len(rows) for rows in index]))
        parts = [as_numpy(part) for part in parts]
        if self.q_heads is not None and not kv:
            shares = [end - begin for begin, end in self.q_heads]
            if [part.shape[1] if part.ndim > 1 else 0 for part in parts] != shares:
                raise input_error(f"the parts have other heads than the ranks: {[part.shape[1:2] for part in parts]}", str(shares))
            return np.concatenate(parts, axis=1)
        whole = np.empty((self.kv_tokens if kv else self.tokens, *parts[0].shape[1:]), parts[0].dtype)
        for rows, part in zip(index, parts):
            whole[rows] = part
        return whole

    def local_keys(self) -> dict[str, Array]:
        """How many keys of each rank every valid query sees: the local lengths of a decoder, one for each draft. Columns by
        name, int64 [queries]: sequence and query (in its sequence, from 0); keys is [queries, ranks]. A key counts on the rank
        that owns it; its copies on others (kv_replicated) do not. RefusedError for more than 2**22 counts."""
        return self._with_keys(self._core.local_keys(), "sequence", "query")

    def decode_steps(self, steps: int) -> dict[str, Array]:
        """The next `steps` tokens of every sequence of a decoder. Columns by name, int64 [steps * sequences], by step: step
        (from 1), sequence, position of the token, rank that stores its key, row (place among the rank's keys of the
        sequence); keys is [steps * sequences, ranks], of the sequence after the step, without copies (kv_replicated).
        RefusedError for layouts in which a cache that grows does not stay where it is: it does in stripes, each sequence for
        itself."""
        if not isinstance(steps, (int, np.integer)) or not 1 <= steps <= 1 << 22:
            raise input_error(f"steps must be a whole number from 1 to {1 << 22}: {steps!r}")
        return self._with_keys(self._core.decode_steps(int(steps)), "step", "sequence", "position", "rank", "row")

    def _with_keys(self, columns: dict[str, Array], *names: str) -> dict[str, Array]:
        return {**{name: columns[name] for name in names}, "keys": columns["keys"].reshape(-1, self.cp_size)}

    def to_dict(self, full: bool = False) -> dict[str, Any]:
        """The document of `cpscope layout --json`; with `full`, that of `--full`."""
        document: dict[str, Any] = json.loads(self._core.document(full))
        return document

    def to_pandas(self, kv: bool = False) -> Any:
        """A pandas.DataFrame with a line for each local row: rank, row, token, sequence, position (-1: padding); kv: of keys."""
        index, sequence, position = ((self.kv_index, self.kv_sequence, self.kv_position) if kv
                                     else (self.q_index, self.q_sequence, self.q_position))
        sizes = [len(rows) for rows in index]
        return frame({"rank": np.repeat(np.arange(self.cp_size), sizes), "row": np.concatenate([np.arange(size) for size in sizes]),
                      "token": np.concatenate(index), "sequence": np.concatenate(sequence), "position": np.concatenate(position)})

    def picture(self) -> Picture:
        """Which rank owns which token of the packed, padded batch."""
        return layout_picture(self.q_index, self.tokens, [(one.q_begin, one.q_valid, one.q_slot) for one in self.sequences])

    def _repr_html_(self) -> str:
        return self.picture().svg

    def __repr__(self) -> str:
        return f"<cpscope.Layout of {self.tokens} tokens on {self.cp_size} ranks>"

    def _ids(self, is_kv: bool) -> list[Array]:
        return [self._core.ids(rank, is_kv) for rank in range(self.cp_size)]

    @cached_property
    def _q_places(self) -> list[tuple[Array, Array]]:
        return [self._core.places(rank, False) for rank in range(self.cp_size)]

    @cached_property
    def _kv_places(self) -> list[tuple[Array, Array]]:
        return [self._core.places(rank, True) for rank in range(self.cp_size)]


class Plan:
    """Every step of a scenario, proved: the computes, transfers, merges and reorders of each rank."""

    def __init__(self, core: _core.Plan):
        self._core = core

    @property
    def hash(self) -> str:
        """16 hex digits: two plans with the same hash are the same."""
        return str(self._core.hash)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The document of `cpscope plan --json --summary`: steps, pairs, balance, bytes, proofs."""
        summary: dict[str, Any] = json.loads(self._core.document(True))
        return summary

    def to_dict(self) -> dict[str, Any]:
        """The document of `cpscope plan --json`: all buffers, computes with their slices, transfers, merges."""
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def to_json(self) -> str:
        """The same as text."""
        return str(self._core.document(False))

    def te(self) -> dict[str, Any]:
        """The document of `cpscope plan --te --json`: the arguments that TransformerEngine passes to its kernels.
        RefusedError for plans that it does not support."""
        document: dict[str, Any] = json.loads(self._core.te(False))
        return document

    def te_text(self) -> str:
        """The same as lines for people."""
        return str(self._core.te(True))

    def text(self, lines: int = 0) -> str:
        """The text of `cpscope plan --text`, at most `lines` lines; 0 is all."""
        if lines < 0:
            raise input_error(f"lines must be 0 or more: {lines}")
        return str(self._core.text(lines))

    def items(self) -> dict[str, Array]:
        """Every item in plan order, one numpy array a column: pass (forward, backward), step, kind (transfer, reorder, compute,
        merge, finish), item (its number of that kind and pass), rank (a transfer's sender), to (its receiver, else -1), bytes
        (of transfers) and pairs (visible (query, key, head) triples of computes)."""
        return items_of(self._core.items())

    def to_pandas(self) -> Any:
        """`items` as a pandas.DataFrame."""
        return frame(self.items())

    def picture(self, view: str = "mask", step: int | None = None, *, rank: int | None = None, cluster: str | os.PathLike[str] | None = None,
                stack: str = "", theme: str = "auto", size: tuple[float, float] | None = None, bare: bool = False) -> Picture:
        """A picture of the plan at one step, as `cpscope render` draws it.

        view: layout, mask, traffic, timeline, balance, or all of them; step: forward steps first, then backward ones, counted from 0;
        rank: whose caption; cluster, stack: whose predicted times the timeline shows; theme: dark, light, print, or auto, which
        follows the page; size: in pixels; bare: the view without title, steps and caption.
        """
        from .runs import cluster_of
        name, folder = cluster_of(cluster) if cluster is not None else (None, "")
        return themed(lambda one, prefix: str(_core.draw_plan(self._core, view, one, step, rank, name, folder, stack, size, bare, prefix)),
                      theme)

    def _repr_html_(self) -> str:
        summary = self.summary
        balance, kv = summary["imbalance"], summary["kv_bytes"]
        rows = [("steps", summary["steps"]), ("visible pairs", f"{summary['visible_pairs']:,}"),
                ("busiest rank over mean", f"{balance['rank_max_over_mean']:.3f}"),
                ("critical path over ideal", f"{balance['critical_path_over_ideal']:.3f}"),
                ("KV bytes moved, necessary", f"{kv['moved']:,}, {kv['necessary']:,}"),
                *((f"proved: {check['name']}", check["detail"]) for check in summary["checks"])]
        return table((), rows, f"plan {self.hash}") + self.picture("balance", size=(640, 360), bare=True).svg

    def __repr__(self) -> str:
        return f"<cpscope.Plan {self.hash}, {self.summary['steps']} steps>"
