"""In whose order? What frameworks deal their tokens by."""
from __future__ import annotations

import json
import os
from typing import Any, Sequence

import numpy as np

from . import _core
from ._arrays import integers
from ._errors import input_error


class Order:
    """A token order: a partition of the packed padded ids. `Scenario.with_order` takes it."""

    def __init__(self, text: str, document: dict[str, Any]):
        self._text = text
        self.document = document  #: as `cpscope import --json`
        self.cp_size: int = document["cp_size"]
        self.ranks = [np.array(ids, np.int64) for ids in document["ranks"]]  #: [rank] token of each local row
        #: the same for keys and values
        self.kv_ranks = [np.array(ids, np.int64) for ids in document.get("kv_ranks", document["ranks"])]
        self.lengths: list[int] = document["lengths"]        #: [sequence] valid tokens; empty where nobody says
        self.slots: list[int] = document["slots"]            #: [sequence] padded slots
        self.kv_lengths: list[int] = document["kv_lengths"]  #: empty when keys follow the queries
        self.kv_slots: list[int] = document["kv_slots"]
        self.notes: list[str] = document["notes"]              #: what was checked against what
        self.differences: list[str] = document["differences"]  #: where lists are not what their source's formula gives
        self.same_layout: str | None = document["same_layout"]  #: a layout of scenarios that deals alike

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an order file: what a scenario names as its indices_file."""
        with open(path, "w", encoding="ascii") as file:
            file.write(self._text)

    def __repr__(self) -> str:
        alike = f", as layout {self.same_layout}" if self.same_layout else ""
        return f"<cpscope.Order of {sum(map(len, self.ranks))} tokens on {self.cp_size} ranks{alike}>"


def _lists(values: Any, name: str) -> list[np.ndarray]:
    """One list, or one for each rank."""
    if isinstance(values, (list, tuple)) and values and not np.isscalar(values[0]) and np.ndim(values[0]) == 1:
        return [integers(one, f"{name}[{rank}]") for rank, one in enumerate(values)]
    if not isinstance(values, (list, tuple)) and getattr(values, "ndim", 1) == 2:
        return [integers(one, f"{name}[{rank}]") for rank, one in enumerate(values)]
    return [integers(values, name)]


def _import(source: str, given: dict[str, Any], *, layout: str = "", cp_size: int | None = None,
            ulysses_degree: int = 1, tokens: int | None = None, cu_seqlens: Any = None) -> Order:
    lists = [(name, _lists(values, name)) for name, values in given.items() if values is not None]
    for name, number in (("cp_size", cp_size), ("ulysses_degree", ulysses_degree), ("tokens", tokens)):
        if number is not None and (not isinstance(number, (int, np.integer)) or number < 1):
            raise input_error(f"{name} must be a whole number above 0: {number!r}")
    bounds = None if cu_seqlens is None else integers(cu_seqlens, "cu_seqlens")
    text, document = _core.import_order(source, layout, cp_size or 0, ulysses_degree, tokens or 0, bounds, lists)
    return Order(text, json.loads(document))


def from_te(cu_seqlens: Any, cu_seqlens_padded: Any = None, indices: Sequence[Any] | None = None, *,
            cp_size: int | None = None, cu_seqlens_kv: Any = None, cu_seqlens_kv_padded: Any = None,
            indices_kv: Sequence[Any] | None = None) -> Order:
    """TransformerEngine's and Megatron's order of a packed batch (thd).

    cu_seqlens, cu_seqlens_padded: [sequences + 1] whole numbers, of all ranks together. indices: what
    thd_get_partitioned_indices gave, a list for each rank; without them its formula, and cp_size is needed.
    """
    return _import("te", {"cu_seqlens": cu_seqlens, "cu_seqlens_padded": cu_seqlens_padded, "indices": indices,
                          "cu_seqlens_kv": cu_seqlens_kv, "cu_seqlens_kv_padded": cu_seqlens_kv_padded,
                          "indices_kv": indices_kv}, cp_size=cp_size)


def from_torch(rearrange: Any = None, restore: Any = None, *, cp_size: int, cu_seqlens: Any = None) -> Order:
    """The order of PyTorch's context parallel load balancers (torchtitan): balanced[i] = original[rearrange[i]], then
    cut contiguously; or its inverse `restore`. [tokens] whole numbers, or [sequences, tokens of one]."""
    return _import("torch", {"rearrange": rearrange, "restore": restore}, cp_size=cp_size, cu_seqlens=cu_seqlens)


def from_ring_flash_attention(layout: str, *, cp_size: int, tokens: int | None = None, cu_seqlens: Any = None) -> Order:
    """ring-flash-attention's ring, zigzag, stripe (each sequence by itself) or llama3 (the packed buffer)."""
    return _import("ring-flash-attention", {}, layout=layout, cp_size=cp_size, tokens=tokens, cu_seqlens=cu_seqlens)


def from_usp(layout: str, *, cp_size: int, ulysses_degree: int = 1, tokens: int | None = None,
             cu_seqlens: Any = None) -> Order:
    """USP's (yunchang) basic, zigzag or strip; rank = ring index * ulysses_degree + ulysses index."""
    return _import("usp", {}, layout=layout, cp_size=cp_size, ulysses_degree=ulysses_degree, tokens=tokens,
                   cu_seqlens=cu_seqlens)


def text_of(order: Any, kv_order: Any = None) -> str:
    """The text of an order file of index lists by rank."""
    if isinstance(order, Order):
        if kv_order is not None:
            raise input_error("an Order has its own kv_ranks", "leave the second argument out")
        return order._text

    def ranks(lists: Any, name: str) -> list[list[int]]:
        if not hasattr(lists, "__iter__"):
            raise input_error(f"{name} is neither an Order nor a list for each rank: {lists!r}")
        return [integers(ids, f"{name}[{rank}]").tolist() for rank, ids in enumerate(lists)]
    lists = ranks(order, "order")
    document: dict[str, Any] = {"cp_size": len(lists), "ranks": lists}
    if kv_order is not None:
        document["kv_ranks"] = ranks(kv_order, "kv_order")
    return json.dumps(document)
