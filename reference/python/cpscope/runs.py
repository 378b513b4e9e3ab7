"""What cpscope itself computes of a scenario: runs, predicted times, comparisons, and the fault gallery."""
from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any, Sequence, cast

import numpy as np

from . import _core
from ._errors import Complaint, RefusedError, UnavailableError, input_error
from .grade import Grade
from .html import Picture, pre, table, themed
from .record import Record

if TYPE_CHECKING:
    from .scenario import Scenario

_CLUSTERS = pathlib.Path(__file__).parent / "scenarios" / "clusters"


def clusters() -> list[str]:
    """The names of the shipped clusters, for timeline(), compare() and pictures with predicted times."""
    return sorted(file.stem for file in _CLUSTERS.glob("*.toml"))


def cluster_of(name: str | os.PathLike[str]) -> tuple[str, str]:
    """A cluster's name or file, and the folder of the shipped ones."""
    return os.fsdecode(name), str(_CLUSTERS)


class Run(Grade):
    """A plan that was executed and judged by the oracle. True when it passed; str() is the text of `cpscope run`."""

    def __init__(self, document: str, text: str, core: _core.Record):
        super().__init__(document, text)
        self.record = Record(core)  #: inputs and answers, and with items=True what every item has written

    @property
    def first_wrong(self) -> dict[str, Any] | None:
        """The first item of a failed run that wrote something wrong: pass, step, rank, kind, item, token, head."""
        found: dict[str, Any] | None = self.document.get("first_wrong")
        return found


def run(core: _core.Scenario, executor: str, poison: bool, sample: int, budgets: list[tuple[str, float]],
        items: bool, plan: _core.Plan | None = None) -> Run:
    """`plan`: another one than that of the scenario's communication type."""
    document, text, record = _core.run(core, executor, poison, sample, budgets, items, plan)
    return Run(document, text, record)


class _Prediction:
    """Predicted times as the program prints them."""

    def __init__(self, document: str, text: str, table: str = ""):
        self.document: dict[str, Any] = json.loads(document)  #: the document of the same command with --json
        self.text = text
        self._table = table

    def _repr_html_(self) -> str:
        return pre(self.text)

    def __repr__(self) -> str:
        return self.text.rstrip("\n")


class Timeline(_Prediction):
    """Predicted times of every item on a cluster; str() is the text of `cpscope timeline`."""

    @property
    def total_us(self) -> float:
        """Forward and backward, microseconds."""
        return float(sum(self.document[one]["total_us"] for one in ("forward", "backward") if self.document.get(one)))

    @property
    def items(self) -> list[dict[str, Any]]:
        """Each item that takes time: pass, kind, index, rank, step, start_ns, end_ns."""
        found: list[dict[str, Any]] = self.document["items"]
        return found


class Comparison:
    """All ways to split one batch on a cluster, fastest first, predicted; str() is the text of `cpscope compare`."""

    def __init__(self, core: _core.Comparison, folder: str | None = None):
        self._core = core
        self._folder = folder  # of the files that the scenario names
        self.document: dict[str, Any] = json.loads(core.document())  #: the document of `cpscope compare --json`

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """The possible ways, fastest first, then the refused ones with their reasons."""
        found: list[dict[str, Any]] = self.document["candidates"]
        return found

    @property
    def best(self) -> dict[str, Any] | None:
        """The recommended way; None when there is none."""
        return next((one for one in self.candidates if one.get("is_best")), None)

    @property
    def crossover(self) -> dict[str, Any] | None:
        """keys of the batch; points: queries, queries_travel and keys_travel (name and forward_us of the fastest way of the kind);
        queries: from so many on sending keys is faster (None: never); text. None if it was not looked for."""
        found: dict[str, Any] | None = self.document.get("crossover")
        return found

    def scenario(self) -> Scenario:
        """The scenario split in the best way, with the order of tokens that a search has found; predicted times are
        those of `best`. Raises RefusedError when there is no best way."""
        from .scenario import Scenario
        way = cast("tuple[str, list[Any], list[Any]] | None", self._core.best_way())
        if way is None:
            raise RefusedError([Complaint("no candidate can be recommended", "", "text() says why")])
        text, ranks, kv_ranks = way
        made = Scenario(text, folder=self._folder)
        return made.with_order(ranks, kv_ranks) if ranks else made

    def text(self, full: bool = False) -> str:
        """The table of `cpscope compare`; with `full` every candidate."""
        return str(self._core.text(full))

    def csv(self) -> str:
        """The table of `cpscope compare --csv`."""
        return str(self._core.csv())

    def to_pandas(self) -> Any:
        """The same table as a pandas.DataFrame."""
        import io
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError as error:
            raise UnavailableError([Complaint("data frames need pandas, which is not installed", "",
                                              "pip install pandas, or use csv()")]) from error
        return pandas.read_csv(io.StringIO(self.csv()))

    def picture(self, theme: str = "auto") -> Picture:
        """Time against bytes of every way; theme is auto, light, dark or print."""
        return themed(lambda one, prefix: str(_core.draw_ways(self._core, one, prefix)), theme)

    def _repr_html_(self) -> str:
        # The figures of those that `compare` shows, and the sentence that recommends.
        shown = [one for one in self.candidates if one["status"] == "predicted"][:12]
        rows = [((one["name"], "pass") if one.get("is_best") else one["name"], f"{one['total_us'] / 1e3:.3f}", f"{one['forward_us'] / 1e3:.3f}",
                 f"{one['exposed_us'] / 1e3:.3f}", f"{one['bytes_sent_by_busiest_rank'] / 1e6:.1f}",
                 f"{one['memory_bytes'] / 2**30:.2f}", "the scenario's" if one["is_own"] else "") for one in shown]
        head = ("way", "total ms", "forward ms", "exposed ms", "MB sent", "GiB", "")
        text = self.text().rstrip("\n").splitlines()
        return table(head, rows, f"predicted on {self.document['cluster']}") + pre(text[-1] if text else "")

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


def compare(core: _core.Scenario, cluster: str | os.PathLike[str], stack: str, dispatch_chunks: Sequence[int],
            memory: float | None, search: float | None, tries: int | None, seed: int, reshards: int, crossover: bool) -> Comparison:
    for chunk in dispatch_chunks:
        if not isinstance(chunk, int) or chunk < 1:
            raise input_error(f"dispatch_chunks must be whole numbers above 0: {chunk!r}")
    if memory is not None and not (isinstance(memory, (int, float)) and 0 <= memory < float("inf")):
        raise input_error(f"memory must be GiB of one GPU: {memory!r}")
    if search is not None and not (isinstance(search, (int, float)) and 0 <= search < float("inf")):
        raise input_error(f"search must be seconds: {search!r}")
    if search is None and (tries is not None or seed != 1):
        raise input_error("tries and seed are of a search: search=60 asks for one")
    if tries is not None and (not isinstance(tries, int) or tries < 1):
        raise input_error(f"tries must be a whole number above 0: {tries!r}")
    if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise input_error(f"seed must be a whole number from 0 on: {seed!r}")
    if not isinstance(reshards, (int, np.integer)) or not 0 <= reshards <= 64:
        raise input_error(f"reshards must be a whole number from 0 to 64: {reshards!r}")
    name, folder = cluster_of(cluster)
    found = _core.compare(core, name, folder, stack, list(dispatch_chunks), int(reshards), bool(crossover), None if memory is None else float(memory),
                          None if search is None else (float(search), tries or 0, seed))
    return Comparison(found, os.path.dirname(core.path) or None)


class Forecast(_Prediction):
    """Predicted times of many packed windows, and of replicas that wait for the slowest; str() is the text of `cpscope forecast`."""

    @property
    def windows(self) -> list[dict[str, Any]]:
        """Each window: seed, sequences, longest, forward_us, backward_us, total_us, memory_bytes, ..."""
        found: list[dict[str, Any]] = self.document["windows"]
        return found

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """Steps of 1, 2, 4, ... replicas: replicas, ranks, slowest_us, efficiency (any replica's time over the slowest's), ..."""
        found: list[dict[str, Any]] = self.document["replicas"]
        return found

    def csv(self) -> str:
        """A row for each window, as `cpscope forecast --csv` writes them."""
        return self._table


class WaysForecast(_Prediction):
    """Predicted times of windows with each way to choose CP sizes; str() is the text of `cpscope forecast --ways`."""

    @property
    def distributions(self) -> list[dict[str, Any]]:
        """For each distribution of lengths: generator, ways (fastest first), best (an index of ways), explanation."""
        found: list[dict[str, Any]] = self.document["distributions"]
        return found

    def markdown(self) -> str:
        """The table of ways and distributions, as `cpscope forecast --markdown` writes it."""
        return self._table


def forecast_arguments(cluster: str | os.PathLike[str], stack: str, windows: int, replicas: int | None, microbatches: int,
                       seed: int | None) -> tuple[str, str, str, int, int, int, int | None]:
    """What both kinds of forecast are given, checked."""
    for name, number, most in (("windows", windows, 1 << 20), ("replicas", replicas, 1 << 18), ("microbatches", microbatches, 1 << 18)):
        if number is not None and (not isinstance(number, (int, np.integer)) or not 1 <= number <= most):
            raise input_error(f"{name} must be a whole number from 1 to {most}: {number!r}")
    if seed is not None and (not isinstance(seed, (int, np.integer)) or not 0 <= seed < 1 << 63):
        raise input_error(f"seed must be a whole number from 0 on: {seed!r}")
    return (*cluster_of(cluster), stack, int(windows), int(replicas or 0), int(microbatches), None if seed is None else int(seed))


class FaultReport:
    """Known faults, planted one by one, and what noticed them. True when every one was caught and placed without a false
    alarm; str() is the text of `cpscope faults`."""

    def __init__(self, document: str, text: str):
        self.document: dict[str, Any] = json.loads(document)  #: the document of `cpscope faults --json`
        self.text = text

    @property
    def passed(self) -> bool:
        return bool(self.document["passed"])

    @property
    def faults(self) -> dict[str, dict[str, Any]]:
        """By name: source, caught, detector, where (rank, step, item), causes, planted_fault."""
        return {one["name"]: one for one in self.document["faults"]}

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.text.rstrip("\n")


def faults(*names: str) -> FaultReport:
    """Plants the named faults (all: about five seconds) in small runs, and tells what caught them and where."""
    return FaultReport(*_core.faults(list(names)))


def fault_list() -> list[dict[str, Any]]:
    """The known faults: name, source, class, expected_detector, scenario. Nothing is run."""
    found: list[dict[str, Any]] = json.loads(_core.fault_list())["faults"]
    return found
