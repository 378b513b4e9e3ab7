"""Token orders: how frameworks distribute tokens to ranks."""
from __future__ import annotations

import json
import os
from typing import Any, Mapping, Sequence

import numpy as np

from . import _core
from ._arrays import Array, integers
from ._errors import input_error


class Order:
    """A token order: a partition of the packed padded ids. `Scenario.with_order` takes it."""

    def __init__(self, text: str, document: dict[str, Any]):
        self._text = text
        self.document = document  #: the document of `cpscope import --json`
        self.cp_size: int = document["cp_size"]
        self.ranks = [np.array(ids, np.int64) for ids in document["ranks"]]  #: [rank] token of each local row
        #: the same for keys and values
        self.kv_ranks = [np.array(ids, np.int64) for ids in document.get("kv_ranks", document["ranks"])]
        self.lengths: list[int] = document["lengths"]        #: [sequence] valid tokens; empty if unknown
        self.slots: list[int] = document["slots"]            #: [sequence] padded slots
        self.kv_lengths: list[int] = document["kv_lengths"]  #: empty when keys equal the queries
        self.kv_slots: list[int] = document["kv_slots"]
        self.notes: list[str] = document["notes"]              #: which checks were made
        self.differences: list[str] = document["differences"]  #: where lists differ from their source's formula
        self.ignored: list[str] = document["ignored"]          #: names of lists that the source does not have
        #: from_vllm: [first, last] of the interleaves that explain all keys; last is None where all larger ones do
        self.interleaves: list[tuple[int, int | None]] = [tuple(one) for one in document.get("interleaves", [])]
        self.same_layout: str | None = document["same_layout"]  #: a cpscope layout with the same order

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an order file, for a scenario's indices_file."""
        with open(path, "w", encoding="ascii") as file:
            file.write(self._text)

    def __repr__(self) -> str:
        alike = f", as layout {self.same_layout}" if self.same_layout else ""
        return f"<cpscope.Order of {sum(map(len, self.ranks))} tokens on {self.cp_size} ranks{alike}>"


def _lists(values: Any, name: str) -> list[Array]:
    """One list, or one for each rank; each of them may have the shape [1, n]."""
    is_list = isinstance(values, (list, tuple))
    if (is_list and values and np.ndim(values[0]) in (1, 2)) or (not is_list and getattr(values, "ndim", 1) in (2, 3)):
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


def from_te(cu_seqlens: Any = None, cu_seqlens_padded: Any = None, indices: Sequence[Any] | None = None, *,
            cp_size: int | None = None, cu_seqlens_kv: Any = None, cu_seqlens_kv_padded: Any = None,
            indices_kv: Sequence[Any] | None = None, position_ids: Any = None) -> Order:
    """TransformerEngine's and Megatron's order of a packed batch (thd).

    cu_seqlens, cu_seqlens_padded: [sequences + 1] whole numbers, of all ranks together. indices: the
    result of thd_get_partitioned_indices, a list for each rank; without them its formula is used, and cp_size is needed.
    position_ids: [tokens], in place of cu_seqlens (None): a document begins where they do not continue by 1. Every
    list may have the shape [1, n].
    """
    if isinstance(indices, (int, np.integer)):
        raise input_error(f"indices must be a list for each rank: {indices}", f"the number of ranks has a name: cp_size={indices}")
    return _import("te", {"cu_seqlens": cu_seqlens, "cu_seqlens_padded": cu_seqlens_padded, "indices": indices,
                          "cu_seqlens_kv": cu_seqlens_kv, "cu_seqlens_kv_padded": cu_seqlens_kv_padded,
                          "indices_kv": indices_kv, "position_ids": position_ids}, cp_size=cp_size)


def _field(packed: Any, name: str) -> Any:
    return packed.get(name) if isinstance(packed, Mapping) else getattr(packed, name, None)


def boundaries_of(packed: Any) -> dict[str, Any]:
    """What Megatron's PackedSeqParams, or a dict or an object with its names, says of a batch, by the keys of `Scenario.of`."""
    names = ("cu_seqlens", "cu_seqlens_padded", "cu_seqlens_q", "cu_seqlens_q_padded", "cu_seqlens_kv", "cu_seqlens_kv_padded")
    found = {name: _field(packed, name) for name in names if _field(packed, name) is not None}
    if not found:
        raise input_error(f"packed_seq_params has no boundaries: {type(packed).__name__}", "cu_seqlens_q, cu_seqlens_q_padded, ...")
    return found if _field(packed, "local_cp_size") is None else {**found, "cp_size": _field(packed, "local_cp_size")}


def from_megatron(packed_seq_params: Any, *, cp_size: int | None = None) -> Order:
    """Megatron's order of a packed batch: its PackedSeqParams, or vars() of it. cp_size: unless its local_cp_size says so.
    A max_seqlen below the longest sequence is among the differences."""
    given = boundaries_of(packed_seq_params)
    own_size = given.pop("cp_size", None)
    for name in ("max_seqlen_q", "max_seqlen_kv"):
        if (longest := _field(packed_seq_params, name)) is not None:
            given[name] = [int(longest)]
    return _import("megatron", given, cp_size=own_size if cp_size is None else cp_size)


def from_torch(rearrange: Any = None, restore: Any = None, *, cp_size: int, cu_seqlens: Any = None) -> Order:
    """The order of PyTorch's context parallel load balancers (torchtitan): balanced[i] = original[rearrange[i]], then
    cut contiguously; or its inverse `restore`. [tokens] whole numbers, or [sequences, tokens of one]; for a batch of equal
    sequences (cu_seqlens) [1, tokens of one] is repeated for all, as in PyTorch."""
    given = {name: _repeat(lists, cu_seqlens) for name, lists in (("rearrange", rearrange), ("restore", restore))}
    return _import("torch", given, cp_size=cp_size, cu_seqlens=cu_seqlens)


def _repeat(lists: Any, cu_seqlens: Any) -> Any:
    """[1, tokens of one] as many times as there are sequences."""
    if lists is None or cu_seqlens is None or getattr(lists, "ndim", 1) != 2 or lists.shape[0] != 1:
        return lists
    lengths = np.diff(integers(cu_seqlens, "cu_seqlens"))
    row = integers(lists[0], "indices")
    return np.tile(row, (len(lengths), 1)) if (lengths == len(row)).all() else lists


def from_ring_flash_attention(layout: str, *, cp_size: int, tokens: int | None = None, cu_seqlens: Any = None,
                              position_ids: Any = None) -> Order:
    """ring-flash-attention's ring, zigzag, stripe (each sequence by itself) or llama3 (the packed buffer). position_ids:
    as in from_te."""
    return _import("ring-flash-attention", {"position_ids": position_ids}, layout=layout, cp_size=cp_size, tokens=tokens, cu_seqlens=cu_seqlens)


def from_usp(layout: str, *, cp_size: int, ulysses_degree: int = 1, tokens: int | None = None,
             cu_seqlens: Any = None, position_ids: Any = None, use_ulysses_low: bool = True) -> Order:
    """USP's (yunchang) basic, zigzag or strip, cut as in its EXTRACT_FUNC_DICT; basic_pytorch and similar names are cut as basic.

    use_ulysses_low as given to set_seq_parallel_pg: rank = ring index * ulysses_degree + ulysses index, or the other way
    round. basic and strip are cut by the rank alone, so if use_ulysses_low is False and both degrees are above 1,
    USP 0.6.4 computes attention over another order than theirs.
    """
    low = _import("usp", {"position_ids": position_ids}, layout="basic" if layout.startswith("basic_") else layout, cp_size=cp_size,
                  ulysses_degree=ulysses_degree, tokens=tokens, cu_seqlens=cu_seqlens)
    if use_ulysses_low or layout != "zigzag":
        return low
    degree = cp_size // ulysses_degree
    ranks = [low.ranks[rank % degree * ulysses_degree + rank // degree] for rank in range(cp_size)]
    text = json.dumps({**json.loads(low._text), "ranks": [ids.tolist() for ids in ranks]})
    return Order(text, {**low.document, "ranks": [ids.tolist() for ids in ranks], "same_layout": None})


def from_magi(position_ids: Sequence[Any], *, cu_seqlens: Any = None) -> Order:
    """MagiAttention's order: what get_position_ids returns on each rank, a list for each rank; cu_seqlens: boundaries of
    the documents, without padding (default: one sequence).

    Padding behind the last token repeats its id there; those rows are numbered as padding of the last sequence.
    """
    return _import("magi", {"position_ids": position_ids}, cu_seqlens=cu_seqlens)


def from_vllm(slot_mapping: Sequence[Any] | None = None, query_start_loc: Any = None, *, block_table: Any = None, block_size: int | None = None,
              seq_lens: Any = None, num_computed_tokens: Any = None, positions: Any = None, cp_kv_cache_interleave_size: int | None = None,
              dcp_local_seq_lens: Sequence[Any] | None = None, cp_size: int | None = None) -> Order:
    """A step of vLLM under decode context parallelism, of which each rank's cache holds a part: `cpscope import --from vllm`.

    slot_mapping: a list for each rank, [new tokens] each, -1: another rank has the token's key. query_start_loc: [requests + 1],
    boundaries of the new tokens; None: one request. block_table: [requests, blocks], of which each has block_size slots on a rank;
    a table alone needs the interleave and cp_size. seq_lens: [requests] all tokens, or num_computed_tokens: those before the new
    ones, or positions: [new tokens]. dcp_local_seq_lens: a list for each rank, [requests], which also tells interleaves apart.

    `differences` name request and position of keys that no interleave explains, of slots that the table does not give them, or
    that are used twice; `interleaves` are those that explain all keys. kv_ranks are of all tokens. InputError: lists that do not
    fit each other, keys in no cache or in two.
    """
    given = {"slot_mapping": slot_mapping, "query_start_loc": query_start_loc, "seq_lens": seq_lens,
             "num_computed_tokens": num_computed_tokens, "positions": positions, "block_table": None if block_table is None else list(block_table),
             "dcp_local_seq_lens": dcp_local_seq_lens}
    for name, number in (("block_size", block_size), ("cp_kv_cache_interleave_size", cp_kv_cache_interleave_size)):
        if number is not None:
            if not isinstance(number, (int, np.integer)):
                raise input_error(f"{name} must be a whole number: {number!r}")
            given[name] = [int(number)]
    return _import("vllm", given, cp_size=cp_size)


def text_of(order: Any, kv_order: Any = None) -> str:
    """The text of an order file of index lists by rank."""
    if isinstance(order, Order):
        if kv_order is not None:
            raise input_error("an Order has its own kv_ranks", "leave the second argument out")
        return order._text

    def ranks(lists: Any, name: str) -> list[list[int]]:
        if not hasattr(lists, "__iter__") or not hasattr(lists, "__len__"):  # an iterator could be read only once
            raise input_error(f"{name} is neither an Order nor a list for each rank: {lists!r}")
        if len(lists) == 0:
            raise input_error(f"{name} has no rank: {lists!r}", "a list of token ids for each rank, an empty one for a rank without tokens")
        return [integers(ids, f"{name}[{rank}]").tolist() for rank, ids in enumerate(lists)]
    lists = ranks(order, "order")
    document: dict[str, Any] = {"cp_size": len(lists), "ranks": lists}
    if kv_order is not None:
        document["kv_ranks"] = ranks(kv_order, "kv_order")
    return json.dumps(document)
