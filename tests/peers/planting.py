"""Mistakes in a peer's own code, made in the memory of this process."""
import inspect
import linecache
from types import ModuleType

import cpscope
from case import Answer, Prepare

Edits = dict[ModuleType, list[tuple[str, str]]]  # texts that are replaced, and by what


def edit(module: ModuleType, *edits: tuple[str, str]) -> None:
    """Runs the module's source once more, in the same module, with the first text of each edit replaced by the second.
    LookupError: the text does not stand in the source exactly once, because this version of the peer is another one."""
    source = inspect.getsource(module)
    for old, new in edits:
        if source.count(old) != 1:
            raise LookupError(f"{module.__name__} holds {source.count(old)} times, not once: {old}")
        source = source.replace(old, new)
    name = f"<{module.__name__}, with a mistake>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)  # TorchScript reads the source of what it compiles
    exec(compile(source, name, "exec"), module.__dict__)


def with_edits(edits: Edits, prepare: Prepare) -> Prepare:
    """prepare, with the modules edited before, in this order. A rank is a process of its own: other cases see the peer as it is."""
    def edited(rank: int) -> tuple[cpscope.Scenario, Answer]:
        for module, changes in edits.items():
            edit(module, *changes)
        return prepare(rank)
    return edited
