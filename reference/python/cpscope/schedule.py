"""Schedules that a caller writes: step by step, which rows go from rank to rank, and which queries meet which keys."""
from __future__ import annotations

import os
import sys
from array import array
from types import TracebackType
from typing import Any, Iterable, Mapping, NamedTuple, Sequence, Union

import numpy as np

from . import _core
from ._arrays import Array
from ._errors import Complaint, ScheduleError, input_error
from ._schedule_items import ItemComparison, compare_items
from .html import Picture
from .layout import Layout, Plan
from .runs import Run, Timeline, cluster_of, run
from .scenario import Scenario, _budget_pairs

#: Which rows of a rank's buffer, or which heads: a number, a slice, a range, or an array of ascending numbers.
Numbers = Any

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Parts of a step, as _core counts them, and the numbers of one operation.
_BEFORE, _COMPUTE, _DURING = range(3)
_COLUMNS = 7


class Block:
    """Rows and heads of one rank's home buffer, which a schedule sends and computes with as one; or several such blocks, joined.
    Made by `Schedule.q`, `Schedule.kv` and `Schedule.join`."""

    __slots__ = ("schedule", "number", "is_kv", "rank", "rows", "heads", "_name")

    def __init__(self, schedule: Schedule, number: int, is_kv: bool, rank: int, rows: int, heads: range, name: str):
        self.schedule = schedule
        self.number = number
        self.is_kv = is_kv  #: True for keys and values
        self.rank = rank    #: the owner of the rows; -1: several ranks
        self.rows = rows    #: the number of rows
        self.heads = heads  #: query heads, or KV heads
        self._name = name

    def __repr__(self) -> str:
        return f"<cpscope.Block: {self._name}>"


#: One block, or several: each query block meets each key block.
Blocks = Union[Block, Iterable[Block]]


class Step:
    """One step of a schedule: its ranks compute while blocks are sent for the next one."""

    def __init__(self, pass_: _Pass, number: int):
        self._pass = pass_
        self.number = number  #: counted from 1

    def send(self, block: Block, src: int, dst: int, *, before: bool = False) -> None:
        """Copies a block from rank `src`, which owns it, or holds it or a block around it, to rank `dst`.

        It runs while the step computes, and `dst` has the block from the next step on; before=True: it arrives before the
        step computes, which waits for it.
        """
        schedule = self._pass.schedule
        line = schedule._caller()
        one = schedule._known(block, "send", line, self.number)
        if one.rank < 0:
            raise schedule._error(line, self.number, f"{one._name} come from several ranks", "step.gather(block, rank) brings them")
        sender, receiver = schedule._rank(src, line, self.number), schedule._rank(dst, line, self.number)
        if sender == receiver:
            raise schedule._error(line, self.number, f"rank {sender} sends {one._name} to itself", "a rank keeps what it has")
        self._pass.add((self.number - 1, _BEFORE if before else _DURING, sender, receiver, one.number, 0, 0), line)

    def gather(self, block: Block, rank: int, *, before: bool = False) -> None:
        """Copies the parts of a joined block from their owners into one buffer of a rank; when, as `send`."""
        schedule = self._pass.schedule
        line = schedule._caller()
        one = schedule._known(block, "gather", line, self.number)
        if one.rank >= 0:
            raise schedule._error(line, self.number, f"{one._name} have one owner", "gather takes what s.join has joined; send takes this")
        receiver = schedule._rank(rank, line, self.number)
        self._pass.add((self.number - 1, _BEFORE if before else _DURING, -1, receiver, one.number, 0, 0), line)

    def compute(self, rank: int, q: Blocks, kv: Blocks, heads: Numbers = None) -> None:
        """Attention of query rows to keys on a rank, as far as the mask lets them see each other.

        q, kv: a block, or several, each of which meets each. heads: query heads; all that q has and whose KV heads kv has.
        """
        schedule = self._pass.schedule
        line = schedule._caller()
        where = schedule._rank(rank, line, self.number)
        chosen = range(0)
        if heads is not None:
            chosen = schedule._heads(heads, schedule.scenario.heads, "query", line, self.number)
        queries = [q] if isinstance(q, Block) else schedule._several(q, line, self.number)
        keys = [kv] if isinstance(kv, Block) else schedule._several(kv, line, self.number)
        for query in queries:
            for key in keys:
                schedule._known(query, "compute", line, self.number)
                schedule._known(key, "compute", line, self.number)
                if query.is_kv or not key.is_kv:
                    raise schedule._error(line, self.number, "compute takes queries, then keys: "
                                          f"{query._name}, {key._name}", "s.q(...), s.kv(...)")
                self._pass.add((self.number - 1, _COMPUTE, where, query.number, key.number, chosen.start, chosen.stop), line)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def __repr__(self) -> str:
        return f"<cpscope.Step {self.number}>"


class _Line(NamedTuple):
    """A line of the author's file."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.number}"


class _Pass:
    """The operations of one pass, seven numbers each, and their lines."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.steps = 0
        self.numbers = array("q")
        self.lines: list[_Line] = []

    def add(self, operation: tuple[int, ...], line: _Line) -> None:
        self.numbers.extend(operation)
        self.lines.append(line)
        self.schedule._plan = None

    def step(self) -> Step:
        self.steps += 1
        self.schedule._plan = None
        return Step(self, self.steps)

    def operations(self) -> Array:
        return np.array(self.numbers, np.int64)


class Schedule:
    """A context-parallel schedule, written step by step; cpscope adds buffers, merges, the ways of results and gradients to the
    owners of their rows, and the backward, and proves the whole.

        s = cpscope.Schedule(scenario)
        for i in s.ranks:
            with s.step() as step:
                for r in s.ranks:
                    kv = s.kv(r - i)
                    step.compute(r, s.q(r), kv)
                    if i + 1 < len(s.ranks):
                        step.send(kv, r, (r + 1) % len(s.ranks))
        s.prove()

    scenario: what is computed, and the layout; its cp_comm_type is replaced by "custom", unless the schedule makes exactly the
    plan of that type. returns: when results for queries of other ranks travel to them: "next_step", while the step after their last compute
    on a rank runs, or "end", after the last step. gradients: "to_owner": each rank sends its share of dk and dv to the owner of the keys;
    "with_keys": one sum goes from rank to rank as the keys do, one step later, and home from the last one. prunes: leave out sends of blocks with which nothing visible is computed.

    Ranks count from 0, and rank -1 is the last one where a block is named (`s.kv(r - i)`). A ScheduleError names the line of the
    caller's file.
    """

    def __init__(self, scenario: Scenario, *, returns: str = "next_step", gradients: str = "to_owner", prunes: bool = False):
        if not isinstance(scenario, Scenario):
            raise input_error(f"a schedule is written for a cpscope.Scenario, not for a {type(scenario).__name__}")
        if returns not in ("next_step", "end"):
            raise input_error(f"results return at another time: {returns!r}", 'returns="next_step" or returns="end"')
        if gradients not in ("to_owner", "with_keys"):
            raise input_error(f"gradients go another way: {gradients!r}", 'gradients="to_owner" or gradients="with_keys"')
        if prunes and gradients == "with_keys":
            raise input_error("gradients travel with keys that are all sent: prunes leaves some out", 'prunes=False or gradients="to_owner"')
        self.scenario = scenario
        self.layout: Layout = scenario.layout()  #: the owner of each token
        self.ranks = range(scenario.cp_size)     #: 0, 1, ...
        self._returns, self._gradients, self._prunes = returns, gradients, prunes
        self._blocks: list[tuple[bool, int, list[list[int]] | None, int, int, list[int]]] = []
        self._known_blocks: dict[Any, Block] = {}
        self._lines: dict[tuple[str, int], _Line] = {}
        self._forward = _Pass(self)
        self._backward: _Pass | None = None
        self._made_at = self._caller()
        self._plan: Plan | None = None

    # Blocks.

    def q(self, rank: int, rows: Numbers = None, *, tokens: Numbers = None, chunk: int | None = None, heads: Numbers = None) -> Block:
        """The queries of a rank: its whole home buffer, or a part of it.

        rows: rows of that buffer; tokens: packed padded ids, as layout.q_index[rank] has them; chunk: 0 or 1, the first or second
        of the rank's two chunks of every sequence (dual_chunk) or of the batch (dual_chunk_packed); heads: query heads.
        Rows and heads are a number, a slice, a range or an ascending array.
        """
        return self._block(False, rank, rows, tokens, chunk, heads)

    def kv(self, rank: int, rows: Numbers = None, *, tokens: Numbers = None, chunk: int | None = None, heads: Numbers = None) -> Block:
        """The keys and values of a rank, or a part of them, as `q`; heads: KV heads."""
        return self._block(True, rank, rows, tokens, chunk, heads)

    def join(self, blocks: Iterable[Block]) -> Block:
        """Blocks of keys, or of queries of other ranks, as one: `Step.gather` brings them to a rank in one buffer, in this order, and
        one compute meets them all. Their heads are the same."""
        line = self._caller()
        parts = [self._known(one, "join", line, None) for one in self._several(blocks, line, None)]
        if not parts:
            raise self._error(line, None, "nothing is joined", "give one block or more")
        first = parts[0]
        for one in parts:
            if one.rank < 0 or one.is_kv != first.is_kv or one.heads != first.heads:
                raise self._error(line, None, f"{first._name} and {one._name} are not joined",
                                  "all keys or all queries, of the same heads, each of one rank")
        numbers = [one.number for one in parts]
        key = ("join", *numbers)
        found = self._known_blocks.get(key)
        if found is None:
            name = f"the joined {'keys' if first.is_kv else 'queries'} of {len(parts)} blocks"
            found = Block(self, len(self._blocks), first.is_kv, -1, sum(one.rows for one in parts), first.heads, name)
            self._blocks.append((first.is_kv, -1, None, first.heads.start, first.heads.stop, numbers))
            self._known_blocks[key] = found
        return found

    def kv_heads(self, heads: Numbers) -> range:
        """The KV heads that some query heads read."""
        read = self._heads(heads, self.scenario.heads, "query", self._caller(), None)
        group = self.scenario.heads // self.scenario.kv_heads
        return range(read.start // group, (read.stop - 1) // group + 1)

    # Steps.

    def step(self) -> Step:
        """The next step of the forward. The backward repeats its steps, unless it has its own."""
        return self._forward.step()

    def backward_step(self) -> Step:
        """The next step of a backward of its own: it begins with nothing but home buffers on every rank."""
        if not self.scenario.backward:
            raise ScheduleError([Complaint("the scenario has no backward", str(self._caller()), "backward=True")])
        if self._backward is None:
            self._backward = _Pass(self)
        return self._backward.step()

    # What comes of it.

    def plan(self) -> Plan:
        """Every step, proved before it is returned. Later changes of the schedule make another plan."""
        if self._plan is None:
            backward = self._backward
            made, wrong = _core.compile_schedule(
                self.scenario._core, self._blocks, self._forward.operations(), self._forward.steps,
                backward.operations() if backward else None, backward.steps if backward else 0,
                self._returns == "end", self._gradients == "with_keys", self._prunes)
            if wrong is not None:
                raise self._explain(wrong)
            assert made is not None
            self._plan = Plan(made)
        return self._plan

    def prove(self) -> dict[str, str]:
        """What was proved, by the names of the checks: ownership, buffers, coverage, movement, partials, gradients, bytes.
        ScheduleError names what is wrong first."""
        return {check["name"]: check["detail"] for check in self.plan().summary["checks"]}

    def show(self, view: str = "mask", step: int | None = None, *, rank: int | None = None, cluster: str | os.PathLike[str] | None = None,
             theme: str = "auto") -> Picture:
        """A picture of the plan at one step; arguments as those of `Plan.picture`."""
        return self.plan().picture(view, step, rank=rank, cluster=cluster, theme=theme)

    def run(self, *, poison: bool = False, sample: int = 0, budgets: Mapping[str, float] | None = None, items: bool = False) -> Run:
        """Executes the plan on the CPU and compares the answer with the oracle; arguments as those of `Scenario.run`."""
        plan = self.plan()
        if not isinstance(sample, (int, np.integer)) or sample < 0:
            raise input_error(f"sample must be a whole number of rows: {sample!r}")
        return run(self.scenario._core, "cpu", poison, int(sample), _budget_pairs(budgets), items, plan._core)

    def timeline(self, cluster: str | os.PathLike[str], stack: str = "") -> Timeline:
        """Predicted times of every item on a cluster: a name of cpscope.clusters(), or a file."""
        return Timeline(*_core.timeline(self.scenario._core, *cluster_of(cluster), stack, self.plan()._core))

    def compare_with(self, other: str | Scenario | Schedule | Plan) -> ItemComparison:
        """This plan's items and another one's: that of a cp_comm_type for the same scenario, or of any scenario, schedule or plan."""
        name = other if isinstance(other, str) else f"the other {type(other).__name__}"
        if isinstance(other, str):
            core = self.scenario._core
            other = Scenario._of_core(core.with_comm_type(other), core.warnings)
        theirs = other if isinstance(other, Plan) else other.plan()
        return compare_items(self.plan(), theirs, name)

    def to_json(self) -> str:
        """The whole plan as a document: `cpscope check` proves it, and `cpscope run`, `verify`, `timeline` and `render` take it."""
        return self.plan()._core.whole()

    def _repr_html_(self) -> str:
        return self.plan()._repr_html_()

    def __repr__(self) -> str:
        return f"<cpscope.Schedule of {self._forward.steps} steps on {len(self.ranks)} ranks, {len(self._forward.lines)} sends and computes>"

    # The author's words and lines.

    def _caller(self) -> _Line:
        """The line outside this package that runs now."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        key = (frame.f_code.co_filename, frame.f_lineno)
        return self._lines.setdefault(key, _Line(*key))

    def _error(self, line: _Line, step: int | None, what: str, hint: str = "") -> ScheduleError:
        return ScheduleError([Complaint(what if step is None else f"step {step}: {what}", str(line), hint)])

    def _rank(self, rank: Any, line: _Line, step: int | None) -> int:
        number = _index(rank)
        if number is None or not 0 <= number < len(self.ranks):
            raise self._error(line, step, f"there is no rank {rank!r}", f"0 to {len(self.ranks) - 1}")
        return number

    def _known(self, block: Any, what: str, line: _Line, step: int | None) -> Block:
        if not isinstance(block, Block):
            raise self._error(line, step, f"{what} takes blocks, not a {type(block).__name__}", "s.q(rank) and s.kv(rank) are blocks")
        if block.schedule is not self:
            raise self._error(line, step, f"{block._name} is a block of another schedule")
        return block

    def _several(self, blocks: Any, line: _Line, step: int | None) -> Sequence[Block]:
        try:
            return list(blocks)
        except TypeError:
            self._known(blocks, "compute", line, step)
            raise

    def _heads(self, heads: Numbers, all_heads: int, kind: str, line: _Line, step: int | None) -> range:
        chosen = _numbers(heads, all_heads)
        if isinstance(chosen, str) or len(chosen) == 0 or chosen[-1] - chosen[0] + 1 != len(chosen):
            why = f": {chosen}" if isinstance(chosen, str) else ""
            raise self._error(line, step, f"{kind} heads must be consecutive numbers from 0 to {all_heads - 1}: {_short(heads)}{why}")
        return range(int(chosen[0]), int(chosen[-1]) + 1)

    def _block(self, is_kv: bool, rank: Any, rows: Numbers, tokens: Numbers, chunk: int | None, heads: Numbers) -> Block:
        number = _index(rank)
        owner = number + len(self.ranks) if number is not None and -len(self.ranks) <= number < 0 else number
        if rows is None and tokens is None and chunk is None and heads is None and (found := self._known_blocks.get((is_kv, owner))):
            return found
        line = self._caller()
        if owner is None or not 0 <= owner < len(self.ranks):
            raise self._error(line, None, f"there is no rank {rank!r}", f"0 to {len(self.ranks) - 1}, or -1 for the last one, -2, ...")
        side = "keys" if is_kv else "queries"
        if sum(one is not None for one in (rows, tokens, chunk)) > 1:
            raise self._error(line, None, f"rows, tokens and chunk each name rows of the {side} of rank {owner}", "give one of them")
        index = (self.layout.kv_index if is_kv else self.layout.q_index)[owner]
        all_heads = self.scenario.kv_heads if is_kv else self.scenario.heads
        chosen = range(all_heads) if heads is None else self._heads(heads, all_heads, "KV" if is_kv else "query", line, None)
        picked = self._rows(is_kv, owner, index, rows, tokens, chunk, line)
        if picked is not None and len(picked) == len(index):
            picked = None
        key = (is_kv, owner) if picked is None and heads is None else (is_kv, owner, chosen, None if picked is None else picked.tobytes())
        found = self._known_blocks.get(key)
        if found is None:
            name = f"the {side} of rank {owner}" if picked is None else f"{len(picked)} {side} of rank {owner}"
            if len(chosen) < all_heads:
                name += f", {'KV ' if is_kv else ''}{_name_heads(chosen.start, chosen.stop)}"
            found = Block(self, len(self._blocks), is_kv, owner, len(index) if picked is None else len(picked), chosen, name)
            self._blocks.append((is_kv, owner, None if picked is None else _runs(picked), chosen.start, chosen.stop, []))
            self._known_blocks[key] = found
        return found

    def _rows(self, is_kv: bool, rank: int, index: Array, rows: Numbers, tokens: Numbers, chunk: int | None, line: _Line) -> Array | None:
        """The chosen rows of a rank's buffer, ascending; None: all."""
        side = "keys" if is_kv else "queries"
        if chunk is not None:
            return self._rows_of_chunk(is_kv, rank, index, chunk, line)
        if rows is None and tokens is None:
            return None
        if rows is not None:
            picked = _numbers(rows, len(index))
            what = f"rows of the {side} of rank {rank}, of which there are {len(index)}, must ascend"
        else:
            picked = _numbers(tokens, self.layout.kv_tokens if is_kv else self.layout.tokens)
            what = f"tokens of the {side} of rank {rank} must ascend"
        if isinstance(picked, str):
            raise self._error(line, None, f"{what}: {_short(tokens if rows is None else rows)}: {picked}")
        if rows is None:
            order = np.argsort(index, kind="stable")
            places: Array = np.searchsorted(index, picked, sorter=order)
            missing = (places >= len(index)) | (index[order[np.minimum(places, len(index) - 1)]] != picked) if len(index) else picked >= 0
            if missing.any():
                raise self._error(line, None, f"rank {rank} does not own the {side} of token {picked[np.argmax(missing)]}")
            picked = np.sort(order[places])
        if len(picked) == 0:
            raise self._error(line, None, f"a block holds no {side}: {_short(tokens if rows is None else rows)}")
        chosen: Array = picked
        return chosen

    def _rows_of_chunk(self, is_kv: bool, rank: int, index: Array, chunk: Any, line: _Line) -> Array:
        layout = self.scenario.settings["layout"]
        if layout not in ("dual_chunk", "dual_chunk_packed") or chunk not in (0, 1):
            raise self._error(line, None, f"chunk={chunk!r} of layout {layout}", "chunk 0 or 1 of the layouts dual_chunk and dual_chunk_packed")
        place = rank if chunk == 0 else 2 * len(self.ranks) - 1 - rank
        if layout == "dual_chunk_packed":
            begins, slots = np.zeros(1, np.int64), np.array([self.layout.kv_tokens if is_kv else self.layout.tokens])
        else:
            slots = np.array([one.kv_slot if is_kv else one.q_slot for one in self.layout.sequences], np.int64)
            begins = np.array([one.kv_begin if is_kv else one.q_begin for one in self.layout.sequences], np.int64)
            begins, slots = begins[slots > 0], slots[slots > 0]
        at = np.searchsorted(begins, index, side="right") - 1
        picked = np.flatnonzero((index - begins[at]) * (2 * len(self.ranks)) // slots[at] == place)
        if len(picked) == 0:
            raise self._error(line, None, f"chunk {chunk} of rank {rank} has no rows")
        return picked

    def _explain(self, wrong: dict[str, Any]) -> ScheduleError:
        """The error in the author's words."""
        pass_ = self._backward if wrong["is_backward"] and self._backward else self._forward
        passed = "backward, " if wrong["is_backward"] else ""
        lines = [(pass_.lines[one], int(pass_.numbers[one * _COLUMNS]) + 1, int(pass_.numbers[one * _COLUMNS + 2])) for one in wrong["operations"]]
        if "queries" not in wrong:
            line, step, _ = lines[0] if lines else (self._made_at, 0, 0)
            return self._error(line, None, (f"{passed}step {step}: " if lines else passed) + wrong["what"], wrong["hint"])
        queries, keys = (_positions(wrong[one]) for one in ("queries", "keys"))
        first, end = wrong["heads"]
        heads = "" if end - first == self.scenario.heads else f" with {_name_heads(first, end)}"
        said = self.scenario.settings
        seen = f"which {said['attn_mask_type']}{' and its window' if tuple(said['window_size']) != (-1, -1) else ''} lets them see"
        tokens = f"tokens {queries} of sequence {wrong['sequence']} (of rank {wrong['queries']['rank']})"
        if not lines:
            return self._error(self._made_at, None, f"{passed}{tokens} never meet keys {keys} (of rank {wrong['keys']['rank']}){heads}, {seen}",
                               "compute them on a rank that holds both")
        (line, step, rank), (again, later, twice) = lines
        return self._error(again, None, f"{passed}step {later}: rank {twice} computes {tokens} with keys {keys} (of rank {wrong['keys']['rank']}){heads} "
                           "a second time", f"{line}: step {step}: rank {rank} computes them too")


def _index(value: Any) -> int | None:
    try:
        return None if isinstance(value, (bool, np.bool_)) else int(value.__index__())
    except (AttributeError, TypeError):
        return None


def _name_heads(first: int, end: int) -> str:
    return f"head {first}" if end == first + 1 else f"heads {first}..{end - 1}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _numbers(value: Numbers, count: int) -> Any:
    """Ascending numbers from 0 to count - 1 as an array, or what is wrong with them."""
    if isinstance(value, slice):
        try:
            return np.arange(count, dtype=np.int64)[value] if (value.step or 1) > 0 else "a slice that falls"
        except (TypeError, ValueError) as error:
            return str(error)
    if (one := _index(value)) is not None:
        value = [one]
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError) as error:
        return str(error)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iub"):
        return "whole numbers are required"
    if numbers.dtype.kind == "b":
        return np.flatnonzero(numbers) if len(numbers) == count else f"a mask of {len(numbers)} rows, {count} are there"
    numbers = numbers.astype(np.int64)
    if numbers.size and (numbers.min() < 0 or numbers.max() >= count):
        return f"there is no number {numbers[(numbers < 0) | (numbers >= count)][0]}"
    falls = np.flatnonzero(np.diff(numbers) <= 0)
    return numbers if falls.size == 0 else f"{numbers[falls[0] + 1]} comes after {numbers[falls[0]]}"


def _runs(rows: Array) -> list[list[int]]:
    """Ascending rows as [begin, end, stride], as few as possible: greedily, as arithmetic runs."""
    steps = np.diff(rows)
    cuts = np.flatnonzero(np.diff(steps)) + 1  # rows after which the stride changes
    runs: list[list[int]] = []
    begin = 0
    for cut in [*cuts.tolist(), len(rows) - 1]:
        if cut < begin:
            continue
        stride = int(rows[begin + 1] - rows[begin]) if cut > begin else 1
        if stride > 1 and cut == begin + 1 and cut + 1 < len(rows) and rows[cut + 1] - rows[cut] == 1:
            runs.append([int(rows[begin]), int(rows[begin]) + 1, 1])  # a row alone before a stretch
            begin = cut
            continue
        runs.append([int(rows[begin]), int(rows[cut]) + 1, stride])
        begin = cut + 1
    return runs


def _positions(of: dict[str, int]) -> str:
    begin, last, stride = of["begin"], of["end"] - 1, of["stride"]
    last = begin + (last - begin) // stride * stride
    return str(begin) if begin == last else f"{begin}..{last}" + (f" by {stride}" if stride > 1 else "")
