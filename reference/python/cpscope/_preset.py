"""What a preset of a framework collects: keys of a scenario, each with the argument from which it follows."""
from __future__ import annotations

import difflib
import math
import sys
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from . import _core
from ._arrays import Array, integers
from ._errors import Error, RefusedError, input_error
from .order import Order

if TYPE_CHECKING:
    from .scenario import Scenario

_TABLES = ("", "schema", "attention", "batch", "parallel", "numerics", "fp8")

# Boundaries, and the keys that they set.
_SET_BY = {"cu_seqlens": "lengths", "cu_seqlens_q": "lengths", "cu_seqlens_padded": "slots", "cu_seqlens_q_padded": "slots",
           "cu_seqlens_kv": "kv_lengths", "cu_seqlens_kv_padded": "kv_slots"}

_LAYOUTS = ("dual_chunk", "contiguous", "dual_chunk_packed", "striped")

#: The value of a call's argument that was not given, where None is a value.
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "..."})()


class Inferred(NamedTuple):
    """One key that a preset has set."""

    value: Any   #: as `Scenario.settings` has it
    source: str  #: the argument, attribute or rule from which it follows

    def __str__(self) -> str:
        return f"{self.value!r} from {self.source}"


class Preset:
    """The keys of a scenario that a preset infers. The first value of a key stays: those that the caller gives come first."""

    def __init__(self, name: str, given: Mapping[str, Any]):
        self.name = name
        self.found: dict[str, Inferred] = {}
        self.order: Order | list[Array] | None = None
        self.format: str | None = None      # of the tensors, if their shapes are ambiguous
        self.hints: dict[str, str] = {}     # by key: what to give if it is not found
        self._order_source = ""
        known = [key for key, table in _core.known_keys().items() if table not in _TABLES[:2] or key in ("title", "question")]
        for key, value in given.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise self.error(f"no argument and no key of a scenario: {key}", f"did you mean {near[0]}?" if near else "")
            if value is not None:
                self.found[key] = Inferred(value, f"{key}=")

    def error(self, what: str, hint: str = "") -> Error:
        return input_error(f"{self.name}: {what}", hint)

    def reject(self, argument: str, value: Any, reason: str, hint: str = "") -> None:
        """An error for a value that is in use: anything but None, False, 0 and empty lists."""
        if value is None or (isinstance(value, (bool, int, float, str, list, tuple, dict)) and not value):
            return
        shown = f" = {value}" if isinstance(value, (bool, int, float, str)) else ""
        raise self.error(f"{argument}{shown} is not supported: {reason}", hint)

    def reject_dropout(self, argument: str, rate: Any) -> None:
        self.reject(argument, rate and float(rate), "the framework's random weights cannot be computed again", "set it to 0 for the run to be checked")

    def say(self, key: str, value: Any, source: str) -> None:
        """Sets a key, unless it has a value or this one is None."""
        if value is not None and not self.has(key, _SET_BY.get(key, key)):
            self.found[key] = Inferred(value, source)

    def has(self, *keys: str) -> bool:
        """Is one of the keys set?"""
        return any(key in self.found for key in keys)

    def value(self, key: str, hint: str = "") -> Any:
        """The value of a key; an error if it has none."""
        if key not in self.found:
            raise self.error(f"nothing says {key}", self.hints.get(key, hint or f"give {key}="))
        return self.found[key].value

    def say_heads(self, heads: int, kv_heads: int, head_dim_qk: int, head_dim_v: int, source: str) -> None:
        """Sets what counts heads and their elements, in the grouped convention: query head h reads KV head h // (heads / kv_heads)."""
        self.say("heads", heads, source)
        self.say("kv_heads", kv_heads, source)
        if not self.has("head_dim", "head_dim_qk") and head_dim_qk == head_dim_v:
            self.say("head_dim", head_dim_qk, source)
        elif not self.has("head_dim"):
            self.say("head_dim_qk", head_dim_qk, source)
            self.say("head_dim_v", head_dim_v, source)

    def say_tensors(self, tensors: Mapping[str, Any], axes: str) -> dict[str, int] | None:
        """Sets heads, head_dim and dtype by the local q, k and v under the caller's names for them, where q is not None. `axes` has a
        letter for each dimension: b, s, t, h, d. Extents of q by axis, and of k's s or t as "keys"."""
        (q_name, q), (k_name, k), (v_name, v) = tensors.items()
        if q is None:
            return None
        q_shape = self.shape(q, q_name, axes)
        k_shape = q_shape if k is None else self.shape(k, k_name, axes)
        v_shape = k_shape if v is None else self.shape(v, v_name, axes)
        tokens = "s" if "s" in axes else "t"
        for extent in {"b", tokens} & set(axes):
            if k_shape[extent] != v_shape[extent] or (extent == "b" and k_shape[extent] != q_shape[extent]):
                raise self.error(f"{q_name}, {k_name} and {v_name} do not fit: {list(q_shape.values())}, {list(k_shape.values())}, "
                                 f"{list(v_shape.values())}", f"dimensions are [{', '.join(axes)}]")
        if k_shape["d"] != q_shape["d"] or k_shape["h"] != v_shape["h"]:
            raise self.error(f"{q_name}, {k_name} and {v_name} have other heads: {list(q_shape.values())}, {list(k_shape.values())}, "
                             f"{list(v_shape.values())}", f"dimensions are [{', '.join(axes)}]")
        self.say_heads(q_shape["h"], k_shape["h"], q_shape["d"], v_shape["d"], f"{q_name}, {k_name} and {v_name}")
        self.say("dtype", getattr(q, "dtype", None), f"{q_name}.dtype")
        return {**q_shape, "keys": k_shape[tokens]}

    def shape(self, tensor: Any, name: str, axes: str) -> dict[str, int]:
        """Extents by axis of the part of a tensor that this rank has."""
        local = tensor.to_local() if hasattr(tensor, "placements") and hasattr(tensor, "to_local") else tensor
        if not hasattr(local, "shape"):
            raise self.error(f"{name} is no tensor: {type(tensor).__name__}")
        shape = [int(extent) for extent in local.shape]
        if len(shape) != len(axes):
            raise self.error(f"{name} has {len(shape)} dimensions: {shape}", f"[{', '.join(axes)}]")
        if 0 in shape:
            raise self.error(f"{name} has no elements: {shape}")
        return dict(zip(axes, shape))

    def say_batch(self, format: str, extents: Mapping[str, int], source: str) -> None:
        """Sets the batch of sequences of equal slots whose local parts have these extents."""
        ranks = self.value("cp_size")
        self.say("qkv_format", format, source)
        if self.has("lengths", "seqlen"):
            return
        self.say("batch_size", extents["b"], source)
        self.say("seqlen", extents["s"] * ranks, f"{source}, {ranks} ranks")
        if extents.get("keys", extents["s"]) != extents["s"]:
            self.say("kv_seqlen", extents["keys"] * ranks, f"{source}, {ranks} ranks")

    def say_mask(self, causal: bool, is_packed: bool, source: str) -> None:
        self.say("attn_mask_type", {(True, True): "padding_causal", (True, False): "causal", (False, True): "padding",
                                    (False, False): "no_mask"}[bool(causal), is_packed], source)

    def say_window(self, window: Any, source: str) -> None:
        """Sets a window (left, right), -1 unbounded; a window that bounds nothing is none."""
        if window is None:
            return
        sides = [window, window] if isinstance(window, (int, np.integer)) else list(window)
        if len(sides) != 2 or not all(isinstance(side, (int, np.integer)) for side in sides):
            raise self.error(f"{source} must be two whole numbers, left and right: {window}")
        left, right = (int(side) for side in sides)
        is_causal = "causal" in str(self.value("attn_mask_type"))
        if left >= 0 or (right >= 0 and not (right == 0 and is_causal)):
            self.say("window_size", [left, right], source)

    def say_flash(self, call: Mapping[str, Any], is_packed: bool) -> None:
        """Sets what the arguments of FlashAttention's calls say: causal (False if it is not given), window_size, softmax_scale, softcap."""
        self.reject_dropout("dropout_p", call.get("dropout_p"))
        self.reject("alibi_slopes", call.get("alibi_slopes"), "cpscope has no ALiBi for slopes of one's own")
        self.say_mask(bool(call.get("causal", False)), is_packed, "causal" if "causal" in call else "causal, whose default is False")
        self.say_window(call.get("window_size"), "window_size")
        self.say("softmax_scale", call.get("softmax_scale"), "softmax_scale")
        self.say("softcap", call.get("softcap") or None, "softcap")

    def say_order(self, order: Order | list[Array], source: str) -> None:
        """Sets the token order, unless the caller has named a layout."""
        if not self.has("layout"):
            self.order, self._order_source = order, source

    def size_of_group(self, group: Any, name: str) -> int:
        """Ranks of a process group or of a device mesh of one dimension; a number of ranks is one too. None is the group of all ranks."""
        size: Any = group
        if group is None:
            distributed: Any = sys.modules.get("torch.distributed")
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                raise self.error(f"{name} is None, all ranks, but there is no process group", f"give {name}=, a group or its size, or cp_size=")
            size = distributed.get_world_size()
        elif not isinstance(group, (int, np.integer)):
            if not callable(getattr(group, "size", None)):
                raise self.error(f"{name} is no process group and no number of ranks: {type(group).__name__}")
            size = group.size()
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise self.error(f"{name} has no ranks: {size}", "a process group that this rank is in, or its size")
        return int(size)

    def build(self, of: Callable[..., Scenario]) -> Scenario:
        """The scenario; an error names a key that nothing says."""
        for key in ("heads", "head_dim", "cp_size", "dtype", "lengths"):
            instead = {"head_dim": ("head_dim_qk",), "lengths": ("seqlen", "generator", "cu_seqlens", "cu_seqlens_q")}.get(key, ())
            if not self.has(key, *instead):
                self.value(key)
        keys = {key: one.value for key, one in self.found.items() if key != "layout" or self.order is None}
        if self.order is None:
            scenario = of(**keys)
        else:
            scenario = self._layout_as(of, keys) or self._in_order(of, keys)
        settings, inferred = scenario.settings, {}
        for key, one in self.found.items():
            kept = np.diff(integers(one.value, key)).tolist() if key in _SET_BY else one.value
            inferred[_SET_BY.get(key, key)] = Inferred(settings.get(_SET_BY.get(key, key), kept), one.source)
        scenario._inferred, scenario._format = inferred, self.format
        return scenario

    def _in_order(self, of: Callable[..., Scenario], keys: dict[str, Any]) -> Scenario:
        """The scenario in an order that no layout has."""
        assert self.order is not None
        self.found["layout"] = Inferred("indices", self._order_source)
        return of(**keys, order=self.order)

    def _layout_as(self, of: Callable[..., Scenario], keys: dict[str, Any]) -> Scenario | None:
        """The scenario with the layout whose order is the given one, if there is such a layout."""
        assert self.order is not None
        ranks = self.order.ranks if isinstance(self.order, Order) else self.order
        kv_ranks = self.order.kv_ranks if isinstance(self.order, Order) else self.order
        for layout in _LAYOUTS:
            try:
                scenario = of(**keys, layout=layout)
                found = scenario.layout()
            except RefusedError:
                continue
            if len(ranks) == found.cp_size and all(map(np.array_equal, found.q_index, ranks)) and all(map(np.array_equal, found.kv_index, kv_ranks)):
                self.found["layout"] = Inferred(layout, self._order_source)
                return scenario
        return None


class Held:
    """An object that the user holds, or a dict with its names; `name` is its name in messages."""

    def __init__(self, preset: Preset, thing: Any, name: str):
        self._preset, self._thing, self.name = preset, thing, name
        if thing is None or isinstance(thing, (str, int, float)):
            raise preset.error(f"{name} is no object of the framework: {thing!r}")

    def get(self, attribute: str, default: Any = UNSET, hint: str = "") -> Any:
        """An attribute; without a default, an error that names it where it is missing."""
        if isinstance(self._thing, Mapping):
            found = self._thing.get(attribute, UNSET)
        else:
            found = getattr(self._thing, attribute, UNSET)
        if found is not UNSET:
            return found
        if default is UNSET:
            raise self._preset.error(f"{self.name} has no attribute {attribute}: {type(self._thing).__name__}", hint)
        return default

    def number(self, attribute: str, default: Any = UNSET, hint: str = "") -> int:
        """An attribute that counts something."""
        found = self.get(attribute, default, hint)
        if isinstance(found, bool) or not isinstance(found, (int, np.integer)) or found < 1:
            raise self._preset.error(f"{self.name}.{attribute} must be a whole number above 0: {found!r}", hint)
        return int(found)

    def sub(self, attribute: str) -> Held:
        """An attribute that is an object itself."""
        return Held(self._preset, self.get(attribute), f"{self.name}.{attribute}")


def bind(preset: Preset, names: Sequence[str], positional: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; they are taken out of `keywords`."""
    if len(positional) > len(names):
        raise preset.error(f"{len(positional)} arguments, the call has {len(names)}", ", ".join(names))
    call = dict(zip(names, positional))
    for name in names:
        if name in keywords:
            if name in call:
                raise preset.error(f"{name} is given twice")
            call[name] = keywords.pop(name)
    return call


def name_of(value: Any) -> str:
    """The name of a member of an enumeration; a word as it is."""
    return str(getattr(value, "name", value))


def default_scale(head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim)
