"""The items of two plans, side by side."""
from __future__ import annotations

from collections import Counter

import numpy as np

from ._arrays import Array
from .layout import Plan

#: What two items must share: not their numbers and buffers.
_COLUMNS = ("step", "rank", "to", "bytes", "pairs")


class ItemComparison:
    """What two plans share. True if all items that do something are equal: pass, kind, step, rank, receiver, bytes on the wire and
    (query, key, head) triples. Computes without work and copies within a rank do nothing."""

    def __init__(self, name: str, is_same_plan: bool, counts: dict[tuple[str, str], tuple[int, int, int]], first: str):
        self.name = name                  #: the other plan
        self.is_same_plan = is_same_plan  #: the two have the same hash: buffers and order are equal too
        self.counts = counts              #: (pass, kind) -> (items here, items there, items that are equal)
        self._first = first

    def equal(self, pass_: str, kind: str) -> bool:
        """True if the items of a pass (forward, backward) and kind (transfer, compute, merge, reorder, finish) are equal."""
        here, there, shared = self.counts.get((pass_, kind), (0, 0, 0))
        return here == there == shared

    def __bool__(self) -> bool:
        return all(self.equal(*key) for key in self.counts)

    def __repr__(self) -> str:
        lines = [f"{'':9}{'':10}{'here':>8}{'there':>8}{'equal':>8}"]
        lines += [f"{one:9}{kind:10}{here:8}{there:8}{shared:8}" for (one, kind), (here, there, shared) in self.counts.items()]
        word = "the same plan as" if self.is_same_plan else "equal to" if self else "not equal to"
        return "\n".join([f"{word} {self.name}", *lines, *([self._first] if self._first else [])])


def compare_items(mine: Plan, theirs: Plan, name: str) -> ItemComparison:
    here, there = _busy_items(mine), _busy_items(theirs)
    counts: dict[tuple[str, str], tuple[int, int, int]] = {}
    first = ""
    for key in sorted({(one[0], one[1]) for one in (*here, *there)}, key=lambda one: (one[0] != "forward", one[1])):
        a, b = (Counter({one: count for one, count in all_.items() if (one[0], one[1]) == key}) for all_ in (here, there))
        counts[key] = (sum(a.values()), sum(b.values()), sum((a & b).values()))
        for extra, place in ((a - b, "here"), (b - a, "there")):
            if extra and not first:
                first = f"only {place}: " + _words(min(extra))
    return ItemComparison(name, mine.hash == theirs.hash, counts, first)


#: Pass and kind, then _COLUMNS.
_Item = tuple[str, str, int, int, int, int, int]


def _busy_items(plan: Plan) -> Counter[_Item]:
    items = plan.items()
    kind = items["kind"]
    works = ((kind != "compute") | (items["pairs"] > 0)) & ((kind != "transfer") | (items["rank"] != items["to"]))
    columns: list[Array] = [items[name][works] for name in ("pass", "kind", *_COLUMNS)]
    return Counter(zip(*(np.asarray(column).tolist() for column in columns)))


def _words(item: _Item) -> str:
    pass_, kind, step, rank, to, size, pairs = item
    what = {"transfer": f" to rank {to}, {size} bytes", "compute": f", {pairs} pairs"}.get(kind, "")
    return f"{pass_}, step {step + 1}, {kind} of rank {rank}{what}"
