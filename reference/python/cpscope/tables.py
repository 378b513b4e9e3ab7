"""Columns as numpy arrays, and data frames where pandas is installed."""
from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from ._arrays import Array
from ._errors import Complaint, UnavailableError

#: The kinds of items by their numbers in _core.
_KINDS = np.array(["transfer", "reorder", "compute", "merge", "finish"])


def frame(columns: Mapping[str, Any]) -> Any:
    """A pandas.DataFrame; UnavailableError without pandas."""
    try:
        import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise UnavailableError([Complaint("data frames need pandas, which is not installed", "",
                                          "pip install pandas, or use the numpy columns")]) from error
    return pandas.DataFrame(dict(columns))


def items_of(columns: Mapping[str, Any]) -> dict[str, Array]:
    """The columns of all items of a plan, passes and kinds by their names."""
    names = {"pass": np.array(["forward", "backward"]), "kind": _KINDS}
    order = ("pass", "step", "kind", "item", "rank", "to", "bytes", "pairs")
    numbers = {name: columns.get(name, np.zeros(0, np.int64)) for name in order}
    return {name: names[name][values] if name in names else values for name, values in numbers.items()}
