"""Watches the attention of a live training run: some calls are copied, and graded in the background."""
from __future__ import annotations

import atexit
import inspect
import logging
import pydoc
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Literal, Mapping, Sequence

from ._arrays import local_part
from ._errors import input_error
from ._watch_judge import GradeOptions, Link, Record, Verdict, WatchError, Worker, describe
from .scenario import Scenario

_ANSWERS = ("dq", "dk", "dv")
_SPELLINGS = {"q": ("q", "query", "query_layer", "query_states", "xq"), "k": ("k", "key", "key_layer", "key_states", "xk"),
              "v": ("v", "value", "value_layer", "value_states", "xv")}


@dataclass
class Call:
    """One call of a watched attention, as `scenario=` and `tensors=` get it. Do not keep it: it holds the tensors."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any  #: what the attention returned
    number: int  #: counts the calls of the layer from 1
    layer: int
    module: Any  #: the module that was called; None for a function
    rank: int
    cp_size: int
    tensors: dict[str, Any] = field(default_factory=dict)  #: q, k, v, out, lse if it was returned

    @property
    def arguments(self) -> dict[str, Any]:
        """args and kwargs by their names in the signature of the attention; kwargs alone if it has none."""
        return {**self._named, **self.kwargs}

    _named: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Layer:
    index: int
    name: str
    module: Any = None
    function: Any = None
    calls: int = 0
    unrecomputed: int = 0  # calls without a graph that a reentrant checkpoint may repeat in backward
    began: Any = None  # (record, inputs before the call) between the two hooks of a module
    handles: list[Any] = field(default_factory=list)  # of the hooks of a module
    holder: Any = None  # where a function is replaced
    attribute: str = ""


class _Hook:
    """A hook of a module. Copies of the module, and what is saved of it, have none."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __deepcopy__(self, _: Any) -> Callable[..., None]:
        return _no_hook

    def __reduce__(self) -> Any:
        return _make_no_hook, ()


def _make_no_hook() -> Callable[..., None]:
    return _no_hook


def _no_hook(*_: Any) -> None:
    pass


class Watch:
    """What `watch` returns: call it in place of a watched function; close() or the end of a `with` ends it."""

    def __init__(self, targets: list[Any], group: Any, scenario: Scenario | Callable[[Call], Scenario], every: int, judge: int, timeout: float,
                 options: GradeOptions, tensors: Callable[[Call], Mapping[str, Any]] | None, gradients: bool, keep: str,
                 on_verdict: Callable[[Verdict], object] | None, logger: logging.Logger | None, on_fail: str):
        import torch  # type: ignore[import-not-found,unused-ignore]
        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 1):
            raise input_error(f"cpscope.watch needs PyTorch 2.1 or later: {torch.__version__}")
        self._torch: Any = torch
        import torch.utils._python_dispatch as dispatch  # type: ignore[import-not-found,unused-ignore]
        self._without_modes: Any = getattr(dispatch, "_disable_current_modes")
        self._scenario, self._find, self._every, self._gradients = scenario, tensors, every, gradients
        self._keep_on_cpu, self._on_verdict, self._logger, self._raises = keep == "cpu", on_verdict, logger, on_fail == "raise"
        #: The latest verdicts, oldest first. On ranks that do not judge they have status and text alone.
        self.verdicts: list[Verdict] = []
        self._lock = threading.Lock()
        self._seconds = 0.0  # of hooks since the last record
        self._pending: Record | None = None
        self._closed = False
        self._news = threading.Condition()
        self._submitted = 0
        self._failure: Verdict | None = None
        self._layers = [self._resolve(index, target) for index, target in enumerate(targets)]
        self._link = Link(group, judge, timeout, {"every": every, "layers": len(targets), "judge": judge, "on_fail": on_fail})
        self._worker = Worker(self._link, options, self._report)
        self._worker.start()
        # A compiled graph ends before each call, also of calls that are not graded, so that nothing is compiled twice. What the
        # attention itself compiles stays compiled.
        self._before, self._after = (_outside_of_graphs(torch, function) for function in (self._begin_call, self._end_call))
        self._attend = _outside_of_graphs(torch, self._call_function, recursive=False)
        for layer in self._layers:
            if layer.module is not None:
                self._hook(layer)
            elif layer.holder is not None:
                self._replace(layer)
        atexit.register(_close_at_exit, weakref.ref(self))

    # Setting up.

    def _resolve(self, index: int, target: Any) -> _Layer:
        if isinstance(target, str):
            parent, _, name = target.rpartition(".")
            holder = pydoc.locate(parent) if parent else None
            if holder is None or not callable(getattr(holder, name, None)):
                raise input_error(f"there is no function of this name: {target}", 'as "torch.nn.functional.scaled_dot_product_attention"')
            return _Layer(index, target, function=getattr(holder, name), holder=holder, attribute=name)
        if isinstance(target, self._torch.nn.Module):
            return _Layer(index, f"layer {index} ({type(target).__name__})", module=target)
        if not callable(target):
            raise input_error(f"neither a module nor a function can be watched: {type(target).__name__}")
        return _Layer(index, str(getattr(target, "__name__", type(target).__name__)), function=target)

    def _hook(self, layer: _Layer) -> None:
        def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if module is layer.module:
                self._before(layer, args, kwargs)

        def after(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if module is layer.module:
                self._after(layer, args, kwargs, result)

        layer.handles = [layer.module.register_forward_pre_hook(_Hook(_outside_of_graphs(self._torch, before)), with_kwargs=True),
                         layer.module.register_forward_hook(_Hook(_outside_of_graphs(self._torch, after)), with_kwargs=True)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the watched function."""
        if len(self._layers) != 1 or self._layers[0].function is None:
            raise TypeError("only the watch of one function is called; modules are called themselves")
        return self._attend(self._layers[0], args, kwargs)

    def _replace(self, layer: _Layer) -> None:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return self._attend(layer, args, kwargs)
        setattr(layer.holder, layer.attribute, replacement)

    def _call_function(self, layer: _Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._before(layer, args, kwargs)
        result = layer.function(*args, **kwargs)
        self._after(layer, args, kwargs, result)
        return result

    # On the training thread.

    def _begin_call(self, layer: _Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Counts the call and, if it is due, copies its inputs."""
        began = time.perf_counter()
        layer.began = None
        if self._closed:
            return
        if self._is_in_backward():
            self._begin_recompute(layer, args, kwargs)
        else:
            layer.calls += 1
            has_graph = self._torch.is_grad_enabled()
            if self._is_due(layer):
                self._hand_over()
                self._raise_failure()
                record = Record(layer.calls, layer.index, layer.name, (layer.calls - 1) // self._every // len(self._layers))
                if not has_graph and self._may_be_repeated(layer):
                    record.recomputes_before = layer.unrecomputed
                self._guard(record, lambda: self._copy_inputs(layer, record, args, kwargs))
                layer.began = record
            if not has_graph and self._may_be_repeated(layer):
                layer.unrecomputed += 1
        self._count(began)

    def _end_call(self, layer: _Layer, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if layer.began is None:
            return
        record: Record = layer.began
        layer.began = None
        began = time.perf_counter()
        if record is self._pending:  # its forward was repeated in backward
            self._guard(record, lambda: self._hook_gradients(record, *self._inputs_of(layer, args, kwargs), self._answers_of(result)))
        else:
            self._pending = record
            self._guard(record, lambda: self._copy_answers(layer, record, args, kwargs, result))
        self._count(began)
        if not record.waiting and record.recomputes_before < 0:
            self._hand_over()

    def _is_due(self, layer: _Layer) -> bool:
        """A function of the number of the call alone, so the same on all ranks."""
        if self._every == 0:
            return False
        turn, rest = divmod(layer.calls - 1, self._every)
        return rest == 0 and turn % len(self._layers) == layer.index

    def _is_in_backward(self) -> bool:
        return bool(self._torch._C._current_graph_task_id() != -1)

    def _may_be_repeated(self, layer: _Layer) -> bool:
        """Whether a call without a graph may be the first pass of a reentrant checkpoint."""
        return self._gradients and not self._torch.is_inference_mode_enabled() and (layer.module is None or layer.module.training)

    def _begin_recompute(self, layer: _Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward inside backward repeats an earlier one, which was counted. Only where that had no graph, this one has the
        gradients."""
        if not self._torch.is_grad_enabled():
            return
        layer.unrecomputed = max(0, layer.unrecomputed - 1)
        record = self._pending
        if record is None or record.layer != layer.index or record.recomputes_before < 0 or record.reason:
            return
        if record.recomputes_before > 0:
            record.recomputes_before -= 1
            return
        record.recomputes_before = -1

        def compare() -> None:
            for name, tensor in zip("qkv", self._inputs_of(layer, args, kwargs)):
                first, again = record.tensors[name], local_part(tensor.detach()).contiguous()
                first, again = first.to(again.device, non_blocking=True), again.to(first.dtype)
                record.same.append((first.view(self._torch.uint8) == again.view(self._torch.uint8)).all())
            self._mark(record)
        self._guard(record, compare)
        layer.began = record

    def _guard(self, record: Record, work: Callable[[], None]) -> None:
        """What goes wrong here is the watch's, and told in its verdict; the run goes on."""
        if record.reason:
            return
        try:
            with self._without_modes():  # selective checkpointing counts operations
                work()
        except Exception as error:
            record.reason = describe(error)
            record.tensors.clear()
            record.waiting.clear()
            record.recomputes_before = -1

    def _refuse(self) -> None:
        torch = self._torch
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise input_error("a call that is captured in a CUDA graph runs no Python when it is replayed", "watch a run without CUDA graphs")

    def _copy_inputs(self, layer: _Layer, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._refuse()
        if self._find is None:
            # Before the call, which may overwrite them.
            for name, tensor in zip("qkv", self._inputs_of(layer, args, kwargs)):
                self._keep(record, name, tensor)

    def _copy_answers(self, layer: _Layer, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        call = Call(args, kwargs, result, record.call, record.layer, layer.module, self._link.rank, self._link.size)
        call._named = _bound(layer, args, kwargs)
        if self._find is None:
            q, k, v = self._inputs_of(layer, args, kwargs)
            call.tensors = {"q": q, "k": k, "v": v, **self._answers_of(result)}
        else:
            call.tensors = {name: tensor for name, tensor in self._find(call).items() if tensor is not None}
            if not {"q", "k", "v", "out"} <= call.tensors.keys():
                raise input_error(f"tensors= gave {', '.join(call.tensors) or 'nothing'}", 'a dict of "q", "k", "v", "out", and "lse", "sink"')
            for name in set(call.tensors) - {"out", "lse"}:
                self._keep(record, name, call.tensors[name])
        for name in {"out", "lse"} & call.tensors.keys():
            self._keep(record, name, call.tensors[name])
        self._round_as_autocast(record)
        if self._link.is_judge:
            record.scenario = self._scenario(call) if callable(self._scenario) else self._scenario
            if not isinstance(record.scenario, Scenario):
                raise input_error(f"scenario= gave a {type(record.scenario).__name__}", "a cpscope.Scenario")
        self._mark(record)
        if record.recomputes_before < 0:
            tensors = call.tensors
            self._hook_gradients(record, tensors["q"], tensors["k"], tensors["v"], tensors)

    def _inputs_of(self, layer: _Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """q, k and v: by their names, else the first three tensors."""
        if self._find is not None:
            raise input_error("a call found by tensors= cannot be followed through a reentrant checkpoint", "use_reentrant=False")
        torch, named = self._torch, {**_bound(layer, args, kwargs), **kwargs}
        found = [next((named[name] for name in names if isinstance(named.get(name), torch.Tensor)), None) for names in _SPELLINGS.values()]
        if any(tensor is None for tensor in found):
            given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
            if len(given) == 1 and 3 in given[0].shape[1:-1]:
                raise input_error(f"the call takes q, k and v in one packed tensor {list(given[0].shape)}, whose gradients cannot be told apart",
                                  "watch the function that it calls with q, k and v, or unpack them before the call")
            found = given[:3]
        if len(found) < 3:
            raise input_error(f"no q, k and v among the arguments of {layer.name}", "name them by tensors=")
        return found[0], found[1], found[2]

    def _answers_of(self, result: Any) -> dict[str, Any]:
        """out, and lse if there is a second tensor in fp32."""
        torch = self._torch
        if isinstance(result, torch.Tensor):
            return {"out": result}
        parts = list(result) if isinstance(result, (tuple, list)) else []
        if not parts or not isinstance(parts[0], torch.Tensor):
            raise input_error(f"the attention returned a {type(result).__name__}, not a tensor or a tuple that begins with one", "name them by tensors=")
        answers = {"out": parts[0]}
        if len(parts) > 1:
            lse = getattr(parts[1], "lse", parts[1])  # of flex_attention's AuxOutput
            if isinstance(lse, torch.Tensor) and lse.dtype == torch.float32 and lse.numel() > 0 and parts[0].numel() % lse.numel() == 0:
                answers["lse"] = lse
        return answers

    def _as_kept(self, record: Record, name: str, tensor: Any) -> Any:
        """A copy: what is called later may overwrite the tensor."""
        plain = local_part(tensor.detach())
        if self._torch._C._functorch.is_functorch_wrapped_tensor(plain):
            raise input_error(f"{name} is a tensor inside a torch.func transform", "watch the call outside of it")
        if plain.dtype not in (self._torch.bfloat16, self._torch.float16, self._torch.float32, self._torch.float64):
            raise input_error(f"{name} has a type that is not graded: {plain.dtype}")
        if self._keep_on_cpu and plain.device.type == "cuda":
            kept = self._torch.empty(plain.shape, dtype=plain.dtype, pin_memory=True)
            return kept.copy_(plain, non_blocking=True)
        return plain.clone(memory_format=self._torch.contiguous_format)

    def _keep(self, record: Record, name: str, tensor: Any) -> None:
        record.tensors[name] = kept = self._as_kept(record, name, tensor)
        record.kept_bytes += kept.numel() * kept.element_size()

    def _mark(self, record: Record) -> None:
        """Notes where the device is, so that the copies are read when they are complete."""
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            event = self._torch.cuda.Event()
            event.record()
            record.events.append(event)

    def _round_as_autocast(self, record: Record) -> None:
        """Under autocast a kernel reads q, k and v in 16 bits, whatever the caller gives."""
        kept, narrow = record.tensors, (self._torch.bfloat16, self._torch.float16)
        if kept["out"].dtype in narrow and kept["q"].dtype == self._torch.float32:
            for name in "qkv":
                kept[name] = kept[name].to(kept["out"].dtype)

    # Gradients.

    def _hook_gradients(self, record: Record, q: Any, k: Any, v: Any, answers: Mapping[str, Any]) -> None:
        if not self._gradients or not answers["out"].requires_grad:
            return
        if q is k or k is v or q is v:
            raise input_error("two of q, k and v are the same tensor, whose gradient is their sum", "pass views of it, or gradients=False")
        watched = {"d_out": answers["out"], **{name: tensor for name, tensor in zip(_ANSWERS, (q, k, v)) if tensor.requires_grad}}
        record.waiting = set(watched)
        for name, tensor in watched.items():
            tensor.register_hook(_outside_of_graphs(self._torch, self._gradient_hook(record, name)))

    def _gradient_hook(self, record: Record, name: str) -> Callable[[Any], None]:
        this = weakref.ref(self)

        def hook(gradient: Any) -> None:
            watch = this()
            if watch is not None:
                watch._take_gradient(record, name, gradient)
        return hook

    def _take_gradient(self, record: Record, name: str, gradient: Any) -> None:
        began = time.perf_counter()
        with self._lock:
            if name not in record.waiting:
                return
            record.waiting.discard(name)
        self._guard(record, lambda: self._keep(record, name, gradient))
        self._guard(record, lambda: self._mark(record))
        self._count(began)
        if not record.waiting and record is self._pending:
            self._hand_over()

    # Handing over and reporting.

    def _count(self, began: float) -> None:
        seconds = time.perf_counter() - began
        with self._lock:
            self._seconds += seconds

    def _hand_over(self) -> None:
        """Gives the pending record, complete or not, to the thread in the background."""
        with self._lock:
            record, self._pending = self._pending, None
            if record is None or record.is_sent:
                return
            record.is_sent = True
            record.waiting = set()  # gradients that come later are not taken
            record.hook_seconds, self._seconds = self._seconds, 0.0
        self._submitted += 1
        self._worker.submit(record)

    def _report(self, verdict: Verdict) -> None:
        """Called by the thread in the background."""
        with self._news:
            self.verdicts = [*self.verdicts[-99:], verdict]
            if verdict.status == "fail":
                self._failure = verdict
            self._submitted -= 1
            self._news.notify_all()
        if not self._link.is_judge:
            return
        if self._on_verdict is not None:
            try:
                self._on_verdict(verdict)
            except Exception:
                logging.getLogger("cpscope").exception("the callback of cpscope.watch has raised")
        if self._logger is not None:
            self._logger.log(logging.INFO if verdict else logging.ERROR if verdict.status == "fail" else logging.WARNING, "%s", verdict)

    def _raise_failure(self) -> None:
        """Raises on all ranks before the same call: the next one that is due."""
        if not self._raises:
            return
        with self._news:
            self._news.wait_for(lambda: self._submitted == 0, self._link.timeout)
            failure, self._failure = self._failure, None
        if failure is not None:
            self.close(0.0)
            raise WatchError(failure)

    def wait(self, seconds: float | None = None) -> list[Verdict]:
        """Waits until every complete call is graded; the verdicts."""
        with self._news:
            self._news.wait_for(lambda: self._submitted == 0, seconds)
            return self.verdicts

    def close(self, seconds: float | None = None) -> None:
        """Ends the watch: hooks are removed, calls that were copied are still graded, for so many seconds at most (default:
        twice the time-out). Every rank closes its watch."""
        if self._closed:
            return
        for layer in self._layers:
            for handle in layer.handles:
                handle.remove()
            if layer.holder is not None:
                setattr(layer.holder, layer.attribute, layer.function)
        self._hand_over()
        self._closed = True
        self._worker.end(2 * self._link.timeout if seconds is None else seconds)
        self._link.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.close(None if error is None else 0.0)


def _close_at_exit(watch: weakref.ref[Watch]) -> None:
    """A thread that still runs C++ code when Python ends could crash it."""
    if (alive := watch()) is not None:
        alive.close(0.0)


def _outside_of_graphs(torch: Any, function: Callable[..., Any], recursive: bool = True) -> Callable[..., Any]:
    """The function, which torch.compile neither traces nor, if recursive, what it calls."""
    disable, reason = torch.compiler.disable, "cpscope.watch runs outside of compiled graphs"
    if "reason" in inspect.signature(disable).parameters:  # from PyTorch 2.7
        return disable(function, recursive=recursive, reason=reason)  # type: ignore[no-any-return]
    return disable(function, recursive=recursive)  # type: ignore[no-any-return]


def _bound(layer: _Layer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the signature; empty if there is none."""
    try:
        signature = inspect.signature(layer.module.forward if layer.module is not None else layer.function)
        return dict(signature.bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {}


def watch(target: Any, group: Any = None, *, scenario: Scenario | Callable[[Call], Scenario], every: int = 100, sample: int | None = None,
          judge: int = 0, memory: int = 4 << 30, tensors: Callable[[Call], Mapping[str, Any]] | None = None, gradients: bool = True,
          keep: Literal["device", "cpu"] = "device", on_verdict: Callable[[Verdict], object] | None = None, logger: logging.Logger | None = None,
          on_fail: Literal["report", "raise"] = "report", timeout: float = 120.0, format: str | None = None, lse_layout: str | None = None,
          ignore_padding: bool = False, budgets: Mapping[str, float] | None = None) -> Watch:
    """Grades the attention of a live training run: the first call of every `every` is copied, forward and backward, and judged in a thread
    of one rank while the run goes on. Its results stay what they are, bit for bit. A collective call for the ranks of `group`.

    target: a module (TransformerEngine's DotProductAttention, one of your own), or a list of modules, of which one after the other
    is graded; a function, in whose place the returned Watch is then called; or its full name
    ("torch.nn.functional.scaled_dot_product_attention"), where it is replaced until close().
    group: the context-parallel ranks, a process group or DeviceMesh; None: all ranks, or one without torch.distributed.
    scenario: a Scenario, or a function of a Call that returns it, for batches that change; it runs on the judging rank alone.
    every: 0 grades nothing. Whether a call is graded follows from its number alone, on all ranks: repeated forwards of activation
    checkpointing do not count.
    sample: judge about so many query rows, and as many keys; None: all rows up to 4096 tokens, 256 of longer batches; 0: all.
    judge: the rank of the group that judges. memory: bytes that this takes at most on it: where not all heads fit, some KV heads
    with their query heads are judged, the next ones the next time.
    tensors: a function of a Call that returns {"q", "k", "v", "out"} and perhaps "lse" (natural log) and "sink", of this rank, where
    they are not arguments of usual names, or the first three tensors, and what is returned. q, k, v must be tensors of the
    autograd graph that nothing but the attention uses, or their gradients are not its own. gradients=False: forward alone.
    keep: "cpu" copies to pinned host memory at once; by default the copies, of one call, stay on the device until they are sent.
    on_verdict: called with every Verdict on the judging rank, in the background. logger: gets INFO, WARNING (not judged, blind) and
    ERROR (FAIL); if neither is given, logging.getLogger("cpscope"). on_fail="raise": every rank raises WatchError before the same call,
    the next one that is due, which waits for the verdict.
    timeout: seconds after which a rank that gave nothing is named and its call not judged; the run itself never waits for one.
    format, lse_layout, ignore_padding, budgets: as in Scenario.grade.

    Not judged, with the reason in the verdict: packed qkv in one tensor, CUDA graphs, torch.func transforms, tensor subclasses without
    memory, gradients of one tensor that is q, k and v. A compiled caller must be compiled after this call; its graph ends at the attention.
    InputError: options that do not fit, or differ between ranks.
    """
    targets = list(target) if isinstance(target, (list, tuple)) or type(target).__name__ == "ModuleList" else [target]
    if not targets:
        raise input_error("there is nothing to watch: an empty list")
    if not callable(scenario) and not isinstance(scenario, Scenario):
        raise input_error(f"scenario= is neither a Scenario nor a function that returns one: {type(scenario).__name__}")
    for name, value in (("every", every), ("judge", judge), ("sample", sample or 0), ("memory", memory)):
        if not isinstance(value, int) or value < 0:
            raise input_error(f"{name} must be a whole number, 0 or more: {value!r}")
    if keep not in ("device", "cpu") or on_fail not in ("report", "raise"):
        raise input_error(f"keep={keep!r}, on_fail={on_fail!r}", 'keep is "device" or "cpu", on_fail is "report" or "raise"')
    if not timeout > 0:
        raise input_error(f"timeout must be a number of seconds: {timeout!r}")
    if logger is None and on_verdict is None:
        logger = logging.getLogger("cpscope")
    options = GradeOptions(sample, memory, format, lse_layout, ignore_padding, budgets)
    return Watch(targets, group, scenario, every, judge, timeout, options, tensors, gradients, keep, on_verdict, logger, on_fail)
