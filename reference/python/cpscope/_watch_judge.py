"""What a watch does away from the training thread: sends the tensors of one call to the judging rank and grades them there."""
from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

from . import _core
from ._errors import Complaint, Error, input_error
from .grade import Grade
from .scenario import Scenario

#: In the order in which they travel.
NAMES = ("q", "k", "v", "sink", "out", "lse", "d_out", "dq", "dk", "dv")
_OF_KEYS = ("k", "v", "dk", "dv")
_GRADIENTS = ("d_out", "dq", "dk", "dv")
_PAUSE = 0.02  # seconds between two looks at the store
_DEVICE_PAUSE = 0.0005  # seconds between two looks at the device
_STAGED = 32 << 20  # bytes of page-locked memory through which a rank copies
_QUICK = 4096  # tokens that are judged whole if nothing else is said


@dataclass
class Record:
    """The tensors of one call on this rank, while they are collected."""

    call: int
    layer: int
    name: str
    turn: int  # how often this layer was graded before
    tensors: dict[str, Any] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)  # of the streams that wrote the copies
    same: list[Any] = field(default_factory=list)  # 0-d bool tensors: the recomputed forward has the same inputs
    waiting: set[str] = field(default_factory=set)  # gradients that backward has yet to give
    recomputes_before: int = -1  # reentrant checkpointing: recomputed forwards to let pass; -1: none is needed
    scenario: Scenario | None = None  # on the judging rank
    reason: str = ""  # why this rank has nothing to give
    hook_seconds: float = 0.0
    kept_bytes: int = 0
    is_sent: bool = False

    @property
    def key(self) -> str:
        return f"{self.layer}.{self.call}"


@dataclass(frozen=True)
class Verdict:
    """What a watch says of one call. True when the call passed; str() is its text."""

    call: int  #: counts the calls of the layer from 1
    layer: int
    name: str  #: of the layer
    status: str  #: "pass", "fail", "blind" (a wrong answer would pass too) or "not judged"
    reason: str = ""  #: why it was not judged, or what was left out
    grade: Grade | None = None
    kv_heads: tuple[int, int] | None = None  #: the KV heads [begin, end) that were judged, with their query heads; None: all
    hook_seconds: float = 0.0  #: on the training thread since the last verdict, of the slowest rank
    wall_seconds: float = 0.0  #: since the last verdict
    kept_bytes: int = 0  #: copied on the device by this call, of the rank with most
    sent_bytes: int = 0  #: from all other ranks to the judging rank
    grade_seconds: float = 0.0  #: in the background, on the judging rank
    text: str = ""  #: of the judging rank, on the other ranks

    def __bool__(self) -> bool:
        return self.status == "pass"

    @property
    def causes(self) -> list[dict[str, Any]]:
        """As Grade.causes."""
        return self.grade.causes if self.grade is not None else []

    def __str__(self) -> str:
        if self.text:
            return self.text
        heads = f", KV heads {self.kv_heads[0]} to {self.kv_heads[1] - 1} (counted from 0 below)" if self.kv_heads else ""
        share = f" of {self.wall_seconds:.1f} s ({100 * self.hook_seconds / self.wall_seconds:.2g} %)" if self.wall_seconds else ""
        text = f"{self.status.upper()}: call {self.call} of {self.name}{heads}"
        text += f": {self.reason}" if self.reason else ""
        text += (f"\noverhead: hooks took {self.hook_seconds:.4f} s{share} of the training thread; {_megabytes(self.kept_bytes)} copied"
                 f" on a rank, {_megabytes(self.sent_bytes)} sent to the judge, graded in {self.grade_seconds:.1f} s in the background")
        return text + (f"\n{self.grade!r}" if self.grade is not None else "")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


class WatchError(Error, RuntimeError):
    """Raised in the training thread of every rank: a watched call was judged wrong. `verdict` says how on the judging
    rank; on the others it has the text alone."""

    def __init__(self, verdict: Verdict):
        super().__init__([Complaint(str(verdict), "", "")])
        self.verdict = verdict


WatchError.__module__ = Verdict.__module__ = "cpscope"  # the public module


@dataclass(frozen=True)
class GradeOptions:
    sample: int | None  # query rows; None: all up to 4096 tokens, 256 of longer batches
    memory: int  # bytes for the tensors that are judged, on the judging rank
    format: str | None
    lse_layout: str | None
    ignore_padding: bool
    budgets: Mapping[str, float] | None


class Link:
    """How the ranks of a watch speak to each other: short notes through the store of torch.distributed, tensors over a gloo
    group of their own, so that nothing waits for the communication of the run, and the run for nothing of this."""

    def __init__(self, group: Any, judge: int, timeout: float, terms: Any):
        """A collective call. InputError if the ranks were given different `terms`."""
        self.rank, self.size, self.judge, self.timeout = 0, 1, judge, timeout
        self._gloo: Any = None
        if group is None and not _is_distributed():
            if judge:
                raise input_error(f"judge={judge}: torch.distributed is not initialised, so there is one rank")
            return
        import datetime

        import torch.distributed  # type: ignore[import-not-found,unused-ignore]
        dist: Any = torch.distributed  # its types differ between versions
        if hasattr(group, "get_group"):  # a DeviceMesh
            group = group.get_group()
        self._ranks: list[int] = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self.rank, self.size = self._ranks.index(dist.get_rank()), len(self._ranks)
        if not 0 <= judge < self.size:
            raise input_error(f"judge={judge}: there is no such rank in the group", f"0 to {self.size - 1}")
        if self.size == 1:
            return
        self._store = dist.distributed_c10d._get_default_store()
        # dist.new_group of PyTorch 2.11 names a group by how many there are: the one after a closed watch reads that one's addresses.
        # This counts how many watches these ranks have made.
        mine = f"cpscope/watch/{'_'.join(map(str, self._ranks))}"
        self._key = f"{mine}/{self._store.add(f'{mine}/{self.rank}', 1)}"
        self.put("made", str(self.rank), json.dumps(terms))
        given = [json.loads(self._store.get(f"{self._key}/made/{rank}")) for rank in range(self.size)]
        for rank, theirs in enumerate(given):
            if theirs != given[0]:
                raise input_error(f"ranks 0 and {rank} watch in different ways: {given[0]}, {theirs}", "give the same on all ranks")
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore(f"{self._key}/gloo", self._store), self.rank, self.size,
                                           datetime.timedelta(seconds=max(timeout, 1.0)))

    @property
    def is_judge(self) -> bool:
        return self.rank == self.judge

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.judge]

    def put(self, call: str, what: str, text: str) -> None:
        self._store.set(f"{self._key}/{call}/{what}", text)

    def find(self, call: str, what: str) -> str | None:
        key = f"{self._key}/{call}/{what}"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def forget(self, call: str, notes: list[str]) -> None:
        for what in notes:
            self._store.delete_key(f"{self._key}/{call}/{what}")

    def send(self, tensor: Any) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]
        self._gloo.send([tensor.contiguous().view(-1).view(torch.uint8)], self.judge, 0).wait()

    def receive(self, rank: int, shape: list[int], dtype: str) -> Any:
        import torch  # type: ignore[import-not-found,unused-ignore]
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        self._gloo.recv([tensor.view(-1).view(torch.uint8)], rank, 0).wait()
        return tensor

    def close(self) -> None:
        self._gloo = None


def _is_distributed() -> bool:
    import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]
    return bool(dist.is_available() and dist.is_initialized())


class Closed(Exception):
    """Ends the work of the thread."""


class Worker(threading.Thread):
    """Sends or judges one record after the other. At most one waits while another is under way."""

    def __init__(self, link: Link, options: GradeOptions, report: Callable[[Verdict], None]):
        super().__init__(name="cpscope.watch", daemon=True)
        self._link, self._options, self._report = link, options, report
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._under_way = 0
        self._is_closed = False
        self._last = time.monotonic()
        self._judged = ""  # key of the last call
        self._staging: Any = None  # page-locked, of _STAGED bytes, from the first copy on

    def submit(self, record: Record) -> None:
        with self._lock:
            if self._under_way >= 2:
                record.tensors.clear()
                record.reason = record.reason or "earlier calls are still being graded: watch less often, or a smaller sample"
            self._under_way += 1
        self._records.put(record)

    def end(self, seconds: float) -> None:
        """Finishes what was submitted, for so many seconds at most."""
        self._records.put(None)
        self.join(seconds)
        self._is_closed = True
        self.join(5.0)

    def run(self) -> None:
        while (record := self._records.get()) is not None:
            try:
                verdict = self._work_on(record)
            except Closed:
                verdict = _not_judged(record, "the watch was closed before the grading ended")
            except Exception as error:  # nothing of this may end the training run
                verdict = _not_judged(record, describe(error))
            with self._lock:
                self._under_way -= 1
            record.tensors.clear()
            self._report(verdict)

    def _work_on(self, record: Record) -> Verdict:
        for event in record.events:
            _wait_for_device(event)
        with _SideStream(record):
            if not all(map(bool, record.same)):
                record.reason = "the recomputed forward had other inputs than the first"
        return self._judge(record) if self._link.is_judge else self._give(record)

    def _wait_for(self, call: str, what: str, seconds: float | None = None) -> str | None:
        """A note; None if it has not come after so many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        while (text := self._link.find(call, what)) is None:
            if self._is_closed:
                raise Closed
            if until is not None and time.monotonic() > until:
                return None
            time.sleep(_PAUSE)
        return text

    def _on_host(self, record: Record, name: str, cut: dict[str, Any] | None) -> Any:
        with _SideStream(record):
            tensor = cut_heads(record.tensors[name], cut)
            return self._staged_copy(tensor) if tensor.device.type == "cuda" else tensor.cpu()

    def _staged_copy(self, tensor: Any) -> Any:
        """A copy in host memory. What is copied straight to pageable memory, or waited for inside the driver, keeps the training
        thread from starting kernels meanwhile."""
        import torch  # type: ignore[import-not-found,unused-ignore]
        if self._staging is None:
            self._staging = torch.empty(_STAGED, dtype=torch.uint8, pin_memory=True)
        cuda: Any = torch.cuda
        there, event = tensor.contiguous().view(-1).view(torch.uint8), cuda.Event()
        here: Any = torch.empty(there.numel(), dtype=torch.uint8)
        for target, source in zip(here.split(_STAGED), there.split(_STAGED)):
            staged = self._staging[:source.numel()]
            staged.copy_(source, non_blocking=True)
            event.record()
            _wait_for_device(event)
            target.copy_(staged)
        return here.view(tensor.dtype).view(tensor.shape)

    # A rank that does not judge.

    def _give(self, record: Record) -> Verdict:
        link = self._link
        shapes = {name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in record.tensors.items()}
        link.put(record.key, str(link.rank), json.dumps(
            {"layer": record.layer, "tensors": shapes, "reason": record.reason, "hook_seconds": record.hook_seconds,
             "kept_bytes": record.kept_bytes}))
        # The judge may still be busy with an earlier call: only the end of the watch ends this.
        go = json.loads(self._wait_for(record.key, "go") or "")
        for name, cut in go.get("send", {}).items():
            link.send(self._on_host(record, name, cut))
        record.tensors.clear()
        verdict = json.loads(self._wait_for(record.key, "verdict") or "")
        return Verdict(record.call, record.layer, record.name, verdict["status"], verdict["reason"], text=verdict["text"])

    # The rank that judges.

    def _judge(self, record: Record) -> Verdict:
        notes = self._collect_notes(record)
        missing = [rank for rank in self._link.others if rank not in notes]
        reasons = {rank: note["reason"] for rank, note in notes.items() if note["reason"]}
        if missing:
            verdict = _not_judged(record, f"rank {_listed(missing)} sent nothing for {self._link.timeout:g} s")
        elif reasons:
            rank = min(reasons)
            verdict = _not_judged(record, f"rank {rank}: {reasons[rank]}")
        else:
            try:
                return self._judge_all(record, notes)
            except Closed:
                raise
            except Exception as error:
                verdict = _not_judged(record, describe(error))
        self._tell(record, notes, {"no": verdict.reason}, verdict)
        return verdict

    def _collect_notes(self, record: Record) -> dict[int, dict[str, Any]]:
        link = self._link
        own = {name: (list(tensor.shape), "") for name, tensor in record.tensors.items()}
        notes: dict[int, dict[str, Any]] = {link.judge: {
            "layer": record.layer, "tensors": own, "reason": record.reason, "hook_seconds": record.hook_seconds, "kept_bytes": record.kept_bytes}}
        until = time.monotonic() + link.timeout
        for rank in link.others:
            text = self._wait_for(record.key, str(rank), max(0.0, until - time.monotonic()))
            if text is not None:
                notes[rank] = json.loads(text)
        return notes

    def _tell(self, record: Record, notes: dict[int, dict[str, Any]], go: dict[str, Any], verdict: Verdict | None) -> None:
        """Writes the notes that the other ranks wait for."""
        link = self._link
        if link.size == 1:
            return
        if verdict is None:
            link.put(record.key, "go", json.dumps(go))
            return
        if link.find(record.key, "go") is None:
            link.put(record.key, "go", json.dumps(go))
        link.put(record.key, "verdict", json.dumps({"status": verdict.status, "reason": verdict.reason, "text": str(verdict)}))

    def _judge_all(self, record: Record, notes: dict[int, dict[str, Any]]) -> Verdict:
        if record.scenario is None:
            raise input_error("there is no scenario for this call")
        scenario, begin, end, cuts = self._choose(record, notes)
        left_out = sorted({name for note in notes.values() for name in note["tensors"]} - set(cuts)) if scenario.backward else []
        self._tell(record, notes, {"send": cuts}, None)
        sent = 0
        ranks: list[dict[str, Any]] = []
        for rank in range(self._link.size):
            if rank == self._link.judge:
                ranks.append({name: self._on_host(record, name, cut) for name, cut in cuts.items()})
                record.tensors.clear()
                continue
            theirs = {}
            for name, cut in cuts.items():
                shape, dtype = notes[rank]["tensors"][name]
                theirs[name] = self._link.receive(rank, cut_shape(shape, cut), dtype)
                sent += theirs[name].numel() * theirs[name].element_size()
            ranks.append(theirs)
        options, began = self._options, time.monotonic()
        sample = options.sample
        if sample is None:
            sample = 0 if scenario.layout().tokens <= _QUICK else 256
        reason = ""
        if sample and "lse" not in cuts and {"dk", "dv"} & set(cuts):
            # Gradients of a few keys are computed from the lse of all queries.
            ranks = [{name: tensor for name, tensor in one.items() if name not in ("dk", "dv")} for one in ranks]
            reason = "dk and dv were not judged: the call returns no lse, and a sample of a long batch needs it"
        elif left_out:
            reason = f"{_listed(left_out)} were not seen on all ranks, so not judged"
        elif scenario.backward and not set(cuts) & {"dq", "dk", "dv"}:
            reason = "no gradients of this call were seen before the next one was due, so none were judged"

        def stop_when_closed(_: float) -> None:
            if self._is_closed:
                raise Closed

        ranks = [HandedOver(one) for one in ranks]
        grade = scenario.grade(ranks, format=options.format, lse_layout=options.lse_layout, ignore_padding=options.ignore_padding,
                               sample=sample, budgets=options.budgets, progress=stop_when_closed)
        grade_seconds = time.monotonic() - began
        status: str = grade.document["verdict"]
        now = time.monotonic()
        wall, self._last = now - self._last, now
        verdict = Verdict(
            record.call, record.layer, record.name, status, reason, grade, (begin, end) if (begin, end) != (0, record.scenario.kv_heads) else None,
            max(note["hook_seconds"] for note in notes.values()), wall, max(note["kept_bytes"] for note in notes.values()), sent, grade_seconds)
        self._tell(record, notes, {}, verdict)
        self._forget(record.key)
        return verdict

    def _forget(self, call: str) -> None:
        """Removes the notes of a call, and the verdict of the one before: all ranks have read it, or they would not have sent
        anything for this call."""
        if self._link.size == 1:
            return
        self._link.forget(call, [*map(str, self._link.others), "go"])
        if self._judged:
            self._link.forget(self._judged, ["verdict"])
        self._judged = call

    def _choose(self, record: Record, notes: dict[int, dict[str, Any]]) -> tuple[Scenario, int, int, dict[str, Any]]:
        """The scenario of the heads to judge, those KV heads, and how every tensor is cut: name: [axis, begin, end, flat]."""
        scenario = record.scenario
        assert scenario is not None
        names = [name for name in NAMES if all(name in note["tensors"] for note in notes.values())]
        if not scenario.backward:
            names = [name for name in names if name not in _GRADIENTS]
        if scenario.cp_size != self._link.size:
            raise input_error(f"the scenario has {scenario.cp_size} ranks, the watched group has {self._link.size}")
        if scenario.settings["softmax_type"] == "learnable" and "sink" not in names:
            raise input_error("softmax_type is learnable and the call's tensors hold no sink", 'give it by tensors=: {"sink": [heads], ...}')
        count = count_kv_heads(scenario, self._options.memory)
        if count == scenario.kv_heads:
            return scenario, 0, count, {name: None for name in names}
        # The next heads at every grading of the layer; the last ones overlap.
        begin = min(record.turn % -(-scenario.kv_heads // count) * count, scenario.kv_heads - count)
        own = notes[self._link.judge]["tensors"]
        cuts = {name: cut_of(name, own[name][0], scenario, begin, begin + count, self._options) for name in names}
        return of_heads(scenario, count), begin, begin + count, cuts


def _not_judged(record: Record, reason: str) -> Verdict:
    return Verdict(record.call, record.layer, record.name, "not judged", reason, hook_seconds=record.hook_seconds, kept_bytes=record.kept_bytes)


def describe(error: Exception) -> str:
    """One line for the text of a verdict."""
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def _listed(what: list[Any]) -> str:
    return ", ".join(map(str, what))


def bytes_of_kv_head(scenario: Scenario, tokens: int, kv_tokens: int) -> int:
    """Memory that grading one KV head and its query heads takes: doubles of what was computed and of what it was computed
    from, the 16-bit tensors that they are read from, and one tensor twice while it is read."""
    queries = tokens * (scenario.heads // scenario.kv_heads)
    widths = scenario.head_dim_qk + scenario.head_dim_v
    doubles = queries * (2 * widths + 2) + kv_tokens * 2 * widths
    return 10 * doubles + 8 * queries * max(scenario.head_dim_qk, scenario.head_dim_v)


def count_kv_heads(scenario: Scenario, memory: int) -> int:
    """How many KV heads fit. InputError if one does not, or if the scenario's schedule needs more."""
    layout, group = scenario.layout(), scenario.heads // scenario.kv_heads
    needed = bytes_of_kv_head(scenario, layout.tokens, layout.kv_tokens)
    settings = scenario.settings
    # a2a gives every rank a head.
    ranks = {"a2a": scenario.cp_size, "a2a+p2p": settings.get("a2a_size", scenario.cp_size)}.get(settings["cp_comm_type"], 1)
    fewest = min(scenario.kv_heads, -(-ranks // group))
    if fewest * needed > memory:
        raise input_error(f"memory={memory} bytes are too little: {fewest} of {scenario.kv_heads} KV heads with {fewest * group} query heads of"
                          f" {layout.tokens} tokens need {fewest * needed}", "a larger memory=, on the judging rank alone")
    return min(scenario.kv_heads, memory // needed)


def of_heads(scenario: Scenario, kv_heads: int) -> Scenario:
    """The same scenario of fewer KV heads and their query heads."""
    text = scenario.text
    for key, value in (("heads", kv_heads * (scenario.heads // scenario.kv_heads)), ("kv_heads", kv_heads)):
        text, replaced = re.subn(rf"(?m)^[ \t]*{key}[ \t]*=[ \t]*\d+", f"{key} = {value}", text)
        if replaced != 1 and not (key == "kv_heads" and scenario.kv_heads == scenario.heads and not replaced):
            raise input_error(f"some heads of this scenario cannot be judged alone: its text has {replaced} lines {key} = NUMBER",
                              "give a larger memory=, so that all heads fit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller has had them
        made = Scenario._of_core(_core.parse(text, scenario._core.path))
        for order, kv_order in scenario._orders:
            made = made.with_order(order, kv_order)
    return made


def cut_of(name: str, shape: list[int], scenario: Scenario, begin: int, end: int, options: GradeOptions) -> dict[str, Any]:
    """How to cut KV heads [begin, end), or their query heads, out of a tensor of this shape: {"axis", "begin", "end",
    "heads": of the whole tensor, "is_flat": heads and head_dim are one dimension}. InputError if the axis of the heads is not clear."""
    group = 1 if name in _OF_KEYS else scenario.heads // scenario.kv_heads
    heads = scenario.kv_heads * group
    cut = {"begin": begin * group, "end": end * group, "heads": heads, "is_flat": False}
    if name == "sink":
        return {**cut, "axis": -1}
    width = scenario.head_dim_v if name in ("v", "dv", "out", "d_out") else scenario.head_dim_qk
    if name == "lse":
        axes = [axis - len(shape) for axis, extent in enumerate(shape) if extent == heads]
        if len(axes) > 1 and options.lse_layout:
            axes = axes[-1:] if options.lse_layout == "tokens_heads" else axes[:1]
    elif shape[-1] == heads * width and (len(shape) < 3 or shape[-2] != heads or width != heads * width):
        return {**cut, "axis": -2, "is_flat": True}
    elif shape[-1] == width:
        axes = [axis for axis in (-2, -3) if len(shape) + axis >= 0 and shape[axis] == heads and (axis == -2 or len(shape) == 4)]
        if len(axes) > 1 and (options.format or scenario.settings["qkv_format"]) != "thd":
            axes = [-3 if options.format == "bhsd" else -2]
    else:
        axes = []
    if len(axes) != 1:
        raise input_error(f"{'no dimension' if not axes else 'more than one dimension'} of {name} {shape} can be its {heads} heads",
                          "give lse_layout=" if name == "lse" else "give format=: thd, bshd, sbhd or bhsd")
    return {**cut, "axis": axes[0]}


def cut_shape(shape: list[int], cut: dict[str, Any] | None) -> list[int]:
    if cut is None:
        return shape
    shape = [*shape[:-1], cut["heads"], shape[-1] // cut["heads"]] if cut["is_flat"] else list(shape)
    shape[cut["axis"]] = cut["end"] - cut["begin"]
    return shape


def cut_heads(tensor: Any, cut: dict[str, Any] | None) -> Any:
    """The heads to judge, a view."""
    if cut is None:
        return tensor
    if cut["is_flat"]:
        tensor = tensor.unflatten(-1, (cut["heads"], -1))
    return tensor.narrow(cut["axis"], cut["begin"], cut["end"] - cut["begin"])


class HandedOver(dict[str, Any]):
    """Tensors that their reader alone holds, so that each is freed once it is read."""

    def items(self) -> Any:
        while self:
            yield self.popitem()


def _wait_for_device(event: Any) -> None:
    """Looks again and again: event.synchronize() would hold what the training thread needs to start kernels."""
    while not event.query():
        time.sleep(_DEVICE_PAUSE)


class _SideStream:
    """Runs device work of this thread on a stream of its own; the copies of the training thread are complete by then."""

    def __init__(self, record: Record):
        self._record = record
        self._contexts = contextlib.ExitStack()

    def __enter__(self) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]
        cuda: Any = torch.cuda
        for device in {tensor.device for tensor in self._record.tensors.values() if tensor.device.type == "cuda"}:
            self._contexts.enter_context(cuda.stream(cuda.Stream(device)))

    def __exit__(self, *_: object) -> None:
        self._contexts.close()
