"""Records: .safetensors files of inputs and answers, read and written without another package."""
from __future__ import annotations

import json
import os
from typing import Any, Iterator, Mapping

import numpy as np

from . import _core
from ._arrays import Array, ArrayLike, records
from ._errors import input_error

_NUMPY_TYPES = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": np.float32}


class Record(Mapping[str, Array]):
    """Tensors by name, as numpy arrays: bf16 as float32, which holds its values; whole numbers as int64.

    A record of a run also has scenario_text, plan_hash, executor, machine, version, and with a clock its events.
    """

    def __init__(self, core: _core.Record):
        self._core = core
        self._integers: dict[str, Any] = core.integers()
        self._names: list[str] = [*core.names(), *self._integers]

    def __getitem__(self, name: str) -> Array:
        if name in self._integers:
            values, shape = self._integers[name]
            return np.asarray(values).reshape(shape)
        values, stored = self._core.tensor(name)
        return np.asarray(values, dtype=_NUMPY_TYPES[stored])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def stored_type(self, name: str) -> str:
        """bf16, fp16, fp32, fp64 or int: the numbers in the file."""
        if name in self._integers:
            return "int"
        return str(self._core.tensor(name)[1])

    @property
    def scenario_text(self) -> str:
        """The TOML text of the scenario that was run; empty if the file does not say."""
        return str(self._core.scenario_text)

    @property
    def plan_hash(self) -> str:
        return str(self._core.plan_hash)

    @property
    def executor(self) -> str:
        return str(self._core.executor)

    @property
    def machine(self) -> str:
        return str(self._core.machine)

    @property
    def version(self) -> str:
        return str(self._core.version)

    @property
    def metadata(self) -> dict[str, str]:
        """All metadata of the file."""
        return dict(self._core.metadata)

    @property
    def budgets(self) -> dict[str, float]:
        """rel_l2 that each judged tensor of a run may be off."""
        return dict(self._core.budgets())

    @property
    def events(self) -> list[dict[str, Any]]:
        """When each item ran: pass, kind, item, rank, step, start_ns, end_ns; empty for an executor without a clock."""
        names = ("pass", "kind", "item", "rank", "step", "start_ns", "end_ns")
        return [dict(zip(names, event)) for event in self._core.events()]

    @property
    def skipped(self) -> dict[str, str]:
        """Tensors of types that are not read (fp8, bool), by name."""
        return dict(self._core.skipped)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a .safetensors file, completely or not at all."""
        self._core.save(_file_name(path))

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {list(self[name].shape)}" for name in self._names[:8])
        more = f" and {len(self) - 8} more" if len(self) > 8 else ""
        return f"<cpscope.Record: {told}{more}>"


def _file_name(path: str | os.PathLike[str]) -> str:
    return os.fsdecode(path)


def read_record(path: str | os.PathLike[str]) -> Record:
    """Reads any .safetensors file of F64, F32, F16, BF16 and whole numbers; InputError names what does not fit."""
    return Record(_core.read_record(_file_name(path)))


def write_record(path: str | os.PathLike[str], tensors: Mapping[str, ArrayLike], *, scenario: Any = None,
                 executor: str = "") -> None:
    """Writes tensors by name (numpy, torch, jax; in packed order, as `cpscope grade` reads them) to a .safetensors file,
    in their own types: float64, float32, float16, bfloat16 (torch). scenario: whose text goes into the metadata."""
    if not isinstance(tensors, Mapping) or not tensors:
        raise input_error("a record needs tensors by name", 'a dict like {"out": array}')
    absent = [name for name, array in tensors.items() if array is None]
    if absent:
        raise input_error(f"{absent[0]} was given without a tensor")
    for name in tensors:
        if str(name) in ("", "__metadata__"):
            raise input_error(f"a tensor of a record cannot have this name: {name!r}")
    text = "" if scenario is None else scenario.text
    _core.make_record(records(tensors), text, "", executor).save(_file_name(path))


class Difference:
    """How two records differ, tensor by tensor. True when they are equal; str() is the text of `cpscope diff`."""

    def __init__(self, document: str, text: str):
        self.document: dict[str, Any] = json.loads(document)  #: the document of `cpscope diff --json`
        self.text = text

    @property
    def equal(self) -> bool:
        return bool(self.document["equal"])

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """By name: equal, different, max_abs, rel_l2, worst (token, head, left, right), shape_mismatch."""
        return {tensor["name"]: tensor for tensor in self.document["tensors"]}

    @property
    def first_item(self) -> dict[str, Any] | None:
        """The first item of the plan that diverges, if both records hold the results of items."""
        found: dict[str, Any] | None = self.document["first_item"]
        return found

    def __bool__(self) -> bool:
        return self.equal

    def __repr__(self) -> str:
        return self.text.rstrip("\n")


def _core_record(given: Any, name: str) -> _core.Record:
    if isinstance(given, Record):
        return given._core
    if hasattr(given, "record") and isinstance(given.record, Record):
        return given.record._core
    if isinstance(given, (str, os.PathLike)):
        return read_record(given)._core
    if isinstance(given, Mapping):
        return _core.make_record(records(given), "", "", "")
    raise input_error(f"{name} is no record: {type(given).__name__}", "a Record, a Run, a file name, or tensors by name")


def diff(a: Any, b: Any, *, earned: bool = False, tolerance: float = 0.0) -> Difference:
    """Compares two records (Record, Run, file name, or tensors by name): bit by bit, up to a relative error `tolerance`,
    or, for two runs of one scenario, up to what the budgets of both explain (`earned`)."""
    if earned and tolerance:
        raise input_error("earned and tolerance exclude each other", "give one of them")
    if not 0 <= tolerance < float("inf"):
        raise input_error(f"tolerance must be a finite number of at least 0: {tolerance}")
    return Difference(*_core.diff(_core_record(a, "a"), _core_record(b, "b"), earned, float(tolerance)))
