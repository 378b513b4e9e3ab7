"""Scenarios: what is computed, on which batch, split how, in which number formats."""
from __future__ import annotations

import difflib
import html
import json
import math
import os
import pathlib
import re
import warnings
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from . import _core
from ._arrays import Array, ArrayLike, Tensors, integers, on_host, records
from ._errors import Complaint, Error, InputError, ScenarioError, in_words_of_keywords, input_error
from .grade import Grade
from .html import Picture, table
from ._keys import ScenarioKeys
from .layout import Layout, Plan
from .order import Order, boundaries_of, text_of
from .presets import Presets
from .probe import ProbeReport, Question
from .runs import Comparison, Forecast, Run, Timeline, WaysForecast, cluster_of, compare, forecast_arguments, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SHIPPED = pathlib.Path(__file__).parent / "scenarios"

# TransformerEngine's names of boundaries, and the scenario keys that they set.
_BOUNDARIES = {"cu_seqlens": "lengths", "cu_seqlens_q": "lengths", "cu_seqlens_padded": "slots",
               "cu_seqlens_q_padded": "slots", "cu_seqlens_kv": "kv_lengths", "cu_seqlens_kv_padded": "kv_slots"}

# Sizes in PackedSeqParams that follow from its boundaries.
_FOLLOW = ("max_seqlen", "max_seqlen_q", "max_seqlen_kv", "total_tokens")

# What says how long the sequences are; an order does where none of these is given.
_SAY_LENGTHS = ("lengths", "batch_size", "seqlen", "generator", "packed_seq_params", *_BOUNDARIES)

# Names of an order that users try, and how it is given.
_TRIED = {"indices": "order=[token ids of rank 0, of rank 1, ...]",
          "owners": "order=[token ids of rank 0, of rank 1, ...]: [np.flatnonzero(owners == rank) for rank in range(cp_size)]"}

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}

# An array of more values is not shown in a message.
_SHOWN_VALUES = 100_000

_ANSWERS = ("out", "lse", "max_logit", "dq", "dk", "dv", "d_sink", "dbias")


def shipped() -> list[str]:
    """The names of the scenarios that come with the package."""
    return sorted(file.stem for file in _SHIPPED.glob("*.toml"))


def _name_of_dtype(value: Any) -> Any:
    """"bf16" for bfloat16 of torch, jax or ml_dtypes, likewise numpy's types; "int8" and similar for other types of numbers;
    anything else unchanged."""
    if isinstance(value, (str, int, float, list, tuple, Mapping)) or (hasattr(value, "tolist") and not isinstance(value, type)):
        return value
    name = str(getattr(value, "name", None) or getattr(value, "__name__", None) or value).removeprefix("torch.")
    is_number_type = re.fullmatch(r"u?int\d+|b?float\d+(_\w+)?|bool|complex\d+", name)
    return _DTYPES.get(name, name) if is_number_type else value


def _explain(key: str, value: Any) -> str | None:
    """What to write for a key of another framework."""
    try:
        is_short = isinstance(value, type) or math.prod(getattr(value, "shape", ())) <= _SHOWN_VALUES
        text = _toml(_name_of_dtype(value)) if is_short else ""
    except Exception:  # a value of any type: the key alone is explained
        text = ""
    hint = _core.explain_key(key, text)
    return hint and re.sub(r"\b(true|false)\b", lambda found: found[1].title(), hint)


def _toml(value: Any) -> str:
    """A value as TOML text."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, str):
        escapes = {'"': '\\"', "\\": "\\\\"}
        return '"' + "".join(escapes.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in value) + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if hasattr(value, "tolist"):
        return _toml(on_host(value).tolist())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise input_error(f"a scenario holds no value of this type: {type(value).__name__}",
                      "numbers, words, True and False, lists of them")


def _lengths_of(bounds: Any, name: str) -> list[int]:
    bounds = integers(bounds, name)
    if len(bounds) < 2 or bounds[0] != 0:
        raise input_error(f"{name} must begin with 0 and have one more entry than there are sequences: "
                          f"{bounds[:4].tolist()}")
    lengths = np.diff(bounds)
    if (lengths < 0).any():
        at = int(np.argmax(lengths < 0))
        raise input_error(f"{name} must not fall: {bounds[at]}, then {bounds[at + 1]}")
    return [int(length) for length in lengths]


def _without_twins(keys: dict[str, Any]) -> dict[str, Any]:
    """Drops boundaries of keys that equal those of the queries."""
    for kv, q in (("cu_seqlens_kv", ("cu_seqlens_q", "cu_seqlens")), ("cu_seqlens_kv_padded", ("cu_seqlens_q_padded", "cu_seqlens_padded"))):
        given = next((keys[name] for name in q if keys.get(name) is not None), None)
        if given is not None and keys.get(kv) is not None and np.array_equal(integers(given, q[0]), integers(keys[kv], kv)):
            keys = {name: value for name, value in keys.items() if name != kv}
    return keys


def _text_of_keys(keys: dict[str, Any]) -> str:
    """TOML of keys without their tables."""
    known = _core.known_keys()
    tables: dict[str, list[str]] = {"": ["schema = 1"], "attention": [], "batch": [], "parallel": [], "numerics": [], "fp8": []}
    given: dict[str, str] = {}
    unknown: list[Complaint] = []
    keys = dict(keys)
    if (packed := keys.pop("packed_seq_params", None)) is not None:
        keys = {**boundaries_of(packed), **keys}
    for name, value in _without_twins(keys).items():
        key = _BOUNDARIES.get(name, name)
        if value is None or name == "schema" or name in _FOLLOW:
            continue
        if key in given:
            raise input_error(f"{given[key]} and {name} say the same", "give one of them")
        given[key] = name
        if name in _BOUNDARIES:
            value = _lengths_of(value, name)
        table = known.get(key)
        if table is None and (hint := _TRIED.get(key) or _explain(key, value)) is not None:
            unknown.append(Complaint(f"a scenario has no key {key}", "", hint))
            continue
        if table is None:
            # In the table of the most similar key, so that the complaint names that key.
            near = difflib.get_close_matches(key, known, 1)
            table = known[near[0]] if near else "attention"
        try:
            tables[table].append(f"{key} = {_toml(_name_of_dtype(value))}")
        except InputError as error:
            raise InputError([Complaint(f"{name}: {one.what}", one.where, one.hint) for one in error.complaints]) from None
    if unknown:
        raise ScenarioError(unknown)
    lines = tables.pop("")
    for table, content in tables.items():
        if content or table not in ("numerics", "fp8"):
            lines += [f"[{table}]", *content]
    return "\n".join(lines) + "\n"


def _parse_keys(keys: dict[str, Any]) -> _core.Scenario:
    try:
        return _core.parse(_text_of_keys(keys), "<keys>")
    except ScenarioError as error:  # places in a generated text are meaningless
        raise type(error)([Complaint(in_words_of_keywords(one.what), "", in_words_of_keywords(one.hint)) for one in error.complaints]) from None


def _fit_order(keys: Mapping[str, Any], order: Order | list[ArrayLike], kv_order: list[ArrayLike] | None) -> dict[str, Any]:
    """The keys without a layout, and what the order tells: cp_size, and lengths and slots where no key says how long sequences are."""
    for name in ("layout", "indices_file"):
        if keys.get(name) not in (None, "indices"):
            raise input_error(f"order and {name} say the same", "give one of them")
    text_of(order, kv_order)  # an error if they are none
    ranks = order.ranks if isinstance(order, Order) else order
    told: dict[str, Any] = {"cp_size": len(ranks)}
    if keys.get("cp_size") not in (None, len(ranks)):
        raise input_error(f"order is of {len(ranks)} ranks, cp_size is {keys['cp_size']}", "a list for each rank; cp_size may be left out")
    if all(keys.get(name) is None for name in _SAY_LENGTHS):
        if isinstance(order, Order) and order.lengths:
            told |= {name: getattr(order, name) or None for name in ("lengths", "slots", "kv_lengths", "kv_slots")}
        else:
            told["lengths"] = [_count_tokens(ranks, "order")]
            told["kv_lengths"] = None if kv_order is None else [_count_tokens(kv_order, "kv_order")]
    return {**told, **{name: value for name, value in keys.items() if name != "layout" and value is not None}}


def _count_tokens(ranks: list[ArrayLike], name: str) -> int:
    return sum(len(integers(ids, f"{name}[{rank}]")) for rank, ids in enumerate(ranks))


class Scenario(Presets):
    """One scenario: what is computed, on which batch, split how, in which number formats. Immutable.

    from_te, from_megatron, from_torch_cp, from_titan, from_magi, from_deepspeed, from_usp and from_ring_flash_attention make one of what
    the users of a framework hold.

    text: TOML (the format of `scenarios/`); folder: the base of relative file names in it. ScenarioError gives line
    and column of every error in it.
    """

    def __init__(self, text: str, folder: str | os.PathLike[str] | None = None):
        if not isinstance(text, str):
            raise TypeError(f"the text of a scenario is a str, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ScenarioError([Complaint(f"the text is no Unicode: {error.reason} at {error.start}", "<text>", "")]) from None
        path = "<text>" if folder is None else os.path.join(os.fspath(folder), "<text>")
        self._take(_core.parse(text, path))

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> Scenario:
        """A scenario file, a plan document, which is proved at once, or a shipped scenario by its name
        (`cpscope.shipped()`)."""
        path = os.fsdecode(name)
        if not os.path.exists(path) and os.sep not in path:
            stem = path[:-5] if path.endswith(".toml") else path
            if (_SHIPPED / f"{stem}.toml").exists():
                path = str(_SHIPPED / f"{stem}.toml")
            elif not path.endswith(".toml"):
                near = difflib.get_close_matches(stem, shipped(), 1)
                raise ScenarioError([Complaint(f"no file and no shipped scenario has this name: {path}", "",
                                               f"did you mean {near[0]}?" if near else "cpscope.shipped() lists them")])
        return cls._of_core(_core.load(path))

    @classmethod
    def of(cls, **keys: Unpack[ScenarioKeys]) -> Scenario:
        """A scenario of the format's own keys without their tables: heads, kv_heads, head_dim, attn_mask_type, slices,
        mask (a dict), window_size, lengths, slots, cp_size, cp_comm_type, layout, dtype, ...

        cu_seqlens, cu_seqlens_padded, cu_seqlens_kv, cu_seqlens_kv_padded (numbers, arrays or tensors, of all ranks
        together, as TransformerEngine takes them) replace lengths, slots, kv_lengths, kv_slots;
        packed_seq_params, Megatron's object of them or vars() of it, replaces all at once, and sets cp_size if it has a
        local_cp_size. dtype may be torch's or numpy's.

        order (and kv_order), in place of layout: an imported Order, or the packed padded token ids of each rank, as `with_order` takes
        them. It tells cp_size, and where no key tells lengths also those: an Order's own, of lists one sequence of all tokens.
        """
        rest: dict[str, Any] = dict(keys)
        order, kv_order = rest.pop("order", None), rest.pop("kv_order", None)
        if order is None:
            if kv_order is not None:
                raise input_error("kv_order without order", "order=: the token ids of each rank's queries")
            return cls._of_core(_parse_keys(rest))
        rest = _fit_order(rest, order, kv_order)
        made = cls._of_core(_parse_keys({**rest, "layout": "contiguous"}))
        try:
            return made.with_order(order, kv_order)
        except Error as error:
            # All layouts but lpt refuse sequences that they may not pad and cannot cut.
            try:
                return cls._of_core(_parse_keys({**rest, "layout": "lpt", "dispatch_chunk": 1}), made._core.warnings).with_order(order, kv_order)
            except Error:
                raise error from None

    @classmethod
    def _of_core(cls, core: _core.Scenario, told: Sequence[str] = ()) -> Scenario:
        made = cls.__new__(cls)
        made._take(core, told)
        return made

    def _take(self, core: _core.Scenario, told: Sequence[str] = ()) -> None:
        """`told`: warnings that the caller already has."""
        self._core = core
        self._settings: dict[str, Any] = core.settings
        self._orders: tuple[tuple[Any, Any], ...] = ()  # orders applied since
        for warning in core.warnings:
            if warning not in told:
                warnings.warn(in_words_of_keywords(_without_place(warning)) if core.path == "<keys>" else _without_place(warning),
                              stacklevel=4)

    def __reduce__(self) -> Any:
        if self._core.is_document:
            return _restore_plan, (str(self.plan()._core.whole()), self._core.path)
        return _restore, (self._core.text, self._core.path, self._orders, self._inferred, self._format)

    def __eq__(self, other: object) -> bool:
        """True if both describe the same scenario; file names, comments and titles do not count."""
        if not isinstance(other, Scenario):
            return NotImplemented
        return bool(self._core.same_as(other._core))

    def __hash__(self) -> int:
        return hash(repr([value for key, value in self._settings.items() if key not in ("title", "question", "mask")]))

    # Its content.

    @property
    def text(self) -> str:
        """The TOML text that it was made from."""
        return self._core.text

    def to_toml(self) -> str:
        """TOML that loads as an equal scenario, defaults left out. A token order is in a file that the text names (`save`)."""
        return self._core.to_toml()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that loads as an equal scenario: to_toml(), and a token order next to it, in NAME.order.json. Files that
        are there are replaced. RefusedError where an order's scenario has no layout."""
        text, path = self.to_toml(), pathlib.Path(path)
        if self._settings["layout"] == "indices":
            layout, order = self.layout(), path.with_suffix(".order.json")
            queries, keys = ([ids.tolist() for ids in side] for side in (layout.q_index, layout.kv_index))
            order.write_text(text_of(queries, None if keys == queries else keys), encoding="ascii")
            named = f"indices_file = {json.dumps(order.name, ensure_ascii=False)}"
            text = re.sub("^indices_file *=.*$", lambda _: named, text, flags=re.MULTILINE)
        path.write_text(text, encoding="utf-8")

    @property
    def settings(self) -> dict[str, Any]:
        """Every key of the format with its value, defaults filled in."""
        return dict(self._settings)

    @property
    def cp_size(self) -> int:
        return int(self._settings["cp_size"])

    @property
    def heads(self) -> int:
        return int(self._settings["heads"])

    @property
    def kv_heads(self) -> int:
        return int(self._settings["kv_heads"])

    @property
    def head_dim_qk(self) -> int:
        return int(self._settings["head_dim_qk"])

    @property
    def head_dim_v(self) -> int:
        return int(self._settings["head_dim_v"])

    @property
    def softmax_scale(self) -> float:
        return float(self._settings["softmax_scale"])

    @property
    def dtype(self) -> str:
        return str(self._settings["dtype"])

    @property
    def backward(self) -> bool:
        return bool(self._settings["backward"])

    # Results computed from it.

    def layout(self) -> Layout:
        """The owner of each token. RefusedError names the rule that forbids the scenario."""
        return Layout(self._core.layout())

    def plan(self) -> Plan:
        """Every step, proved before it is returned."""
        return Plan(self._core.plan())

    def with_order(self, order: Order | list[ArrayLike], kv_order: list[ArrayLike] | None = None) -> Scenario:
        """The same over the same slots with another token order: an imported Order, or lists of packed padded ids, one
        for each rank (int arrays [local rows]); kv_order if keys have a different order. The ids may also, as those of an indices_file,
        be of the slots as they were given, without the padding that the layout adds to divide them."""
        try:
            made = Scenario._of_core(self._core.with_order(text_of(order, kv_order)), self._core.warnings)
        except Error as error:  # the text of an order file is generated here
            told = [one._replace(where="order", hint="a list for each rank, with every packed padded id once") if one.where.startswith("order:")
                    else one._replace(where=_without_place(one.where)) for one in error.complaints]
            raise type(error)(told) from None
        made._orders = (*self._orders, (order, kv_order))
        made._inferred, made._format = self._inferred, self._format
        return made

    def inputs(self, rank: int | None = None, torch: bool = False, poison: bool = False) -> dict[str, Any]:
        """The scenario's own inputs: q [tokens, heads, head_dim_qk], k [kv_tokens, kv_heads, head_dim_qk],
        v [kv_tokens, kv_heads, head_dim_v] (not with latent_dim; with latent_nope_dim k has latent_dim + head_dim_qk -
        latent_nope_dim elements, and w_k, w_v [heads, latent_nope_dim or head_dim_v, latent_dim] expand it),
        d_out [tokens, heads, head_dim_v] if it has a backward, sink [heads] if it is learnable, bias [sequences or 1, heads or 1, longest queries, longest keys] if it
        has one. Functions of seed, sequence, position, head and element, so the same for every layout.

        In packed order, or the rows of one rank as its local buffer holds them. float64 that holds values of the
        scenario's dtype; `torch`: tensors of that dtype instead. `poison` fills padding rows with NaN.
        """
        inputs = _core.inputs(self._core, poison)
        if rank is not None:
            inputs = self._of_rank(inputs, rank)
        return self._to_torch(inputs) if torch else inputs

    def oracle(self, tensors: Tensors | None = None, *, order: str | None = None,
               format: str | None = None) -> dict[str, Array]:
        """The exact attention, in double precision: out [tokens, heads, head_dim_v], lse [tokens, heads] (natural log,
        -inf where no key is visible), max_logit [heads] and, with a backward, dq, dk, dv (and d_sink, dbias), shaped as their inputs.
        With latent_dim v is a part of k: neither v nor dv exists, and dk is the gradient of both.

        tensors: your own q, k, v (and d_out for gradients, sink if it is learnable, bias if it has one), as `grade` takes them; else the
        scenario's. Their values are used unrounded. The answer is in packed order.
        """
        answer: dict[str, Array] = self._read(
            lambda format: _core.oracle(self._core, [] if tensors is None else records(tensors), order, format), format)
        return answer

    def grade(self, tensors: Tensors, *, order: str | None = None, format: str | None = None,
              lse_layout: str | None = None, ignore_padding: bool = False, sample: int = 0,
              budgets: Mapping[str, float] | None = None, names: Mapping[str, str] | None = None,
              progress: Callable[[float], object] | None = None) -> Grade:
        """Judges tensors that other software computed: any of out, lse, dq, dk, dv, max_logit, d_sink, dbias. If q, k, v,
        d_out, sink, bias are among them, those are the inputs, else the scenario's own.

        tensors: a dict by name, whole tensors in packed order (order="rank": all ranks' local buffers one after
        another) or a list of parts for each rank; or a list of such dicts, one for each rank. Where ranks own heads of all
        queries (q_owner), a part is [tokens, heads of the rank, head_dim], of lse [tokens, heads of the rank]; q with
        "heads_replicated" is whole on every rank. Shapes are thd, bshd,
        sbhd or bhsd (`format`, if shapes are ambiguous), lse_layout is tokens_heads or heads_tokens.
        float64, float32, float16, bfloat16, any strides, numpy or torch; tensors of a GPU are copied to the host.
        ignore_padding: padding rows may hold anything. sample: compare only about this many query rows, and keys, and
        scan all others. budgets: rel_l2 by name, for tensors that may have larger errors than the earned budget.
        names: what tensors are called if not as here: {"out": "attn_output"}. progress: called with the share of the
        work that is done, 0 to 1, from any thread; what it raises ends the grading.
        A name with None for its tensor, and inputs for which wrong answers look right, make the verdict "blind", not passed.

        InputError names what does not fit.
        """
        if not isinstance(sample, (int, np.integer)) or sample < 0:
            raise input_error(f"sample must be a whole number of rows: {sample!r}")
        theirs = [(str(name), str(their)) for name, their in (names or {}).items()]
        widened = _budget_pairs(budgets)
        return Grade(*self._read(lambda format: _core.grade(self._core, records(tensors), order, format, lse_layout, ignore_padding, int(sample), widened, theirs,
                                                           progress),
                                 format))

    def probe(self, attend: Callable[[Question], Tensors] | None = None, *, executor: str = "cpu", order: str | None = None, format: str | None = None,
              lse_layout: str | None = None) -> ProbeReport:
        """Tests which keys each row of an attention function has seen, exactly: integers, no tolerance.

        attend: gets one Question after the other and returns out and lse (and dq, dk, dv if required) in the form
        of `grade`. Without lse keys are not counted, without gradients they are not probed; the report says so.
        All ranks of a real run may call this at the same time: the questions are the same on every rank.
        Without attend the plan is executed, as by `cpscope probe`.
        """
        if attend is None:
            return ProbeReport(*_core.probe_executor(self._core, executor))
        def ask(question: tuple[str, _core.Scenario, dict[str, Array]]) -> Any:
            return records(attend(Question(*question)))
        return ProbeReport(*self._read(lambda format: _core.probe(self._core, ask, order, format, lse_layout), format))

    def _read(self, call: Callable[[str | None], Any], format: str | None) -> Any:
        """call(format); if shapes are ambiguous without one, with that of the preset's framework."""
        try:
            return call(format)
        except InputError as error:
            if format is not None or self._format is None or "in several ways" not in str(error):
                raise
            return call(self._format)

    # What cpscope computes itself.

    def run(self, executor: str = "cpu", *, poison: bool = False, sample: int = 0, budgets: Mapping[str, float] | None = None,
            items: bool = False) -> Run:
        """Executes the plan and compares the answer with the oracle, as `cpscope run` does. Inputs and answer are in `.record`.

        executor: cpu, the only one of this package. poison: padding rows and buffers begin as NaN. sample, budgets: as in `grade`.
        items: the record also holds what every compute and finish item has written.
        """
        if not isinstance(sample, (int, np.integer)) or sample < 0:
            raise input_error(f"sample must be a whole number of rows: {sample!r}")
        return run(self._core, executor, poison, int(sample), _budget_pairs(budgets), items)

    def timeline(self, cluster: str | os.PathLike[str], stack: str = "") -> Timeline:
        """Predicted times of every item on a cluster: a name of cpscope.clusters(), or a file."""
        return Timeline(*_core.timeline(self._core, *cluster_of(cluster), stack, None))

    def compare(self, cluster: str | os.PathLike[str], stack: str = "", dispatch_chunks: Sequence[int] = (), *, memory: float | None = None,
                search: float | None = None, tries: int | None = None, seed: int = 1, reshards: int = 0,
                crossover: bool = False) -> Comparison:
        """All communication types and layouts for this batch on a cluster, predicted, fastest first.

        memory: GiB that attention may use on one GPU; None: the cluster's. search: seconds for a search that also tries
        every choice of the types' keys, and moves chunks of tokens between ranks (`cpscope compare --search`); None: no
        search. tries: ends it after so many plans, which are the same on every machine. seed: of the chunks drawn.
        reshards: changes between the way's order and consecutive tokens in the forward of a layer, up to 64, for layers
        that need tokens in order. crossover: also finds from how many queries on sending keys is faster than sending queries,
        for the batch's keys (`Comparison.crossover`).
        """
        return compare(self._core, cluster, stack, dispatch_chunks, memory, search, tries, seed, reshards, crossover)

    def forecast(self, cluster: str | os.PathLike[str], stack: str = "", *, windows: int = 256, replicas: int | None = None,
                 microbatches: int = 1, seed: int | None = None) -> Forecast:
        """Step times over many packed windows, and what data-parallel replicas lose by waiting for the slowest, predicted.

        The batch must come from a generator that draws. windows: how many are drawn, with generator seeds counted up from
        `seed` (None: the scenario's). replicas: of cp_size ranks each; None: 64, or as many as the cluster holds.
        microbatches: windows that each replica works on before it waits. RefusedError: a batch that no seed changes, more
        ranks than GPUs, a window that cannot be planned; UnavailableError: no times for these heads.
        """
        return Forecast(*_core.forecast(self._core, *forecast_arguments(cluster, stack, windows, replicas, microbatches, seed), False, False))

    def forecast_ways(self, cluster: str | os.PathLike[str], stack: str = "", *, windows: int = 256, replicas: int | None = None,
                      microbatches: int = 1, seed: int | None = None, published: bool = False) -> WaysForecast:
        """Which CP sizes pay for these lengths, predicted: all ranks for each sequence, one size for all (fixed CP N),
        Megatron's hybrid, FlexSP, ByteScale, or group_cast with lpt_local.

        Arguments as of `forecast`; a rank holds at most max_tokens_per_rank tokens of the scenario, without it twice its share.
        published: for the published distributions of lengths (prolong, wlb, byted, wiki, magi) in place of the scenario's.
        """
        return WaysForecast(*_core.forecast(self._core, *forecast_arguments(cluster, stack, windows, replicas, microbatches, seed),
                                            True, bool(published)))

    def _of_rank(self, tensors: dict[str, Array], rank: int) -> dict[str, Array]:
        layout = self.layout()
        if not 0 <= rank < layout.cp_size:
            raise input_error(f"there is no such rank: {rank}", f"0 to {layout.cp_size - 1}")
        rows = {"q": layout.q_index, "d_out": layout.q_index, "k": layout.kv_index, "v": layout.kv_index}
        own = {name: tensor[rows[name][rank]] if name in rows else tensor for name, tensor in tensors.items()}
        if layout.q_heads is not None and self._settings["q_owner"] == "heads":
            begin, end = layout.q_heads[rank]
            own["q"] = own["q"][:, begin:end]
        return own

    def _to_torch(self, tensors: dict[str, Array]) -> dict[str, Any]:
        import torch  # type: ignore[import-not-found,unused-ignore]
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}[self.dtype]
        sink = torch.float64 if self.dtype == "fp64" else torch.float32
        return {name: torch.from_numpy(tensor).to(sink if name == "sink" else dtype)
                for name, tensor in tensors.items()}

    def _repr_html_(self) -> str:
        said = self._settings
        rows = [(name, said[name]) for name in ("attn_mask_type", "heads", "kv_heads", "head_dim_qk", "head_dim_v", "dtype", "backward",
                                                "qkv_format", "cp_size", "cp_comm_type", "layout")]
        lengths = said["lengths"]
        rows.insert(0, ("lengths", f"{', '.join(map(str, lengths[:12]))}{', ...' if len(lengths) > 12 else ''}: {len(lengths)} sequences, "
                                   f"{sum(lengths)} tokens"))
        told = table((), rows, f"<b>{html.escape(said['title'] or 'Scenario')}</b>")
        # A notebook shows this after every cell that ends with a scenario: it takes no seconds.
        if sum(lengths) > 1 << 19 or self.cp_size * len(lengths) > 1 << 16:
            return told + table((), [("A batch of this size is drawn by layout().picture().",)])
        try:
            return told + self.layout().picture().svg
        except Error as error:  # a scenario that no rank can own is shown with the reason
            return told + table((), [(str(error),)])

    def __repr__(self) -> str:
        s = self._settings
        return (f"<cpscope.Scenario {s['title'] or 'without a title'!r}: {sum(s['lengths'])} tokens, "
                f"{s['attn_mask_type']}, {s['cp_size']} ranks, {s['cp_comm_type']}, {s['layout']}, {s['dtype']}>"
                + ("\n" + self.inferred_text() if self._inferred else ""))


def mask_picture(scenario: Scenario | None = None, *, theme: str = "auto", size: tuple[float, float] = (520, 560),
                 **keys: Unpack[ScenarioKeys]) -> Picture:
    """The visible (query, key) pairs of a scenario, or of the mask that keywords describe (as `Scenario.of` takes them; without
    heads, head_dim and cp_size one of each): mask_picture(lengths=[300, 200], window_size=(64, 0)). With several ranks the cells
    name the step that computes them."""
    if scenario is None:
        plain: dict[str, Any] = {"heads": 1, "head_dim": 8, "backward": False}
        if "order" not in keys:
            plain["cp_size"] = 1
        scenario = Scenario.of(**{**plain, **keys})
    elif keys:
        raise input_error(f"a scenario has its mask: {', '.join(keys)}", "give a scenario or keywords")
    return scenario.plan().picture("mask", theme=theme, size=size, bare=True)


def _budget_pairs(budgets: Mapping[str, float] | None) -> list[tuple[str, float]]:
    widened = [(name, float(budget)) for name, budget in (budgets or {}).items()]
    for name, budget in widened:
        if name not in _ANSWERS or not 0 <= budget < math.inf:
            raise input_error(f"invalid budget: {name}={budget}", f"a finite number for one of {', '.join(_ANSWERS)}")
    return widened


def _without_place(text: str) -> str:
    """Removes places: in a generated text they are meaningless."""
    return re.sub(r"^(<keys>|order)(:\d+)*(: )?", "", text)


def _restore_plan(text: str, path: str) -> Scenario:
    return Scenario._of_core(_core.parse_plan(text, path))


def _restore(text: str, path: str, orders: tuple[tuple[Any, Any], ...], inferred: dict[str, Any] = {}, format: str | None = None) -> Scenario:
    """A scenario from a pickle."""
    scenario = Scenario._of_core(_core.parse(text, path))
    scenario._inferred, scenario._format = inferred, format
    for order, kv_order in orders:
        scenario = scenario.with_order(order, kv_order)
    return scenario


def gather(group: Any = None, /, **tensors: Any) -> list[dict[str, Any]]:
    """Every rank's tensors, on every rank of a torch.distributed group (None: all), in the form that `Scenario.grade` takes.

    Each rank gives its local tensors by name (q, k, v, out, ...); they are copied to the host.
    """
    import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
    ranks: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(ranks, {name: on_host(tensor) for name, tensor in tensors.items()}, group=group)  # type: ignore[no-untyped-call,unused-ignore]
    return ranks
