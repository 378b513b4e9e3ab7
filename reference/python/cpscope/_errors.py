"""Errors as exceptions. Their text is the one that the program cpscope prints: one line per complaint."""
from __future__ import annotations

import re
from typing import NamedTuple


class Complaint(NamedTuple):
    """One error."""

    what: str   #: what is wrong, the value last
    where: str  #: "file:line:column", or empty
    hint: str   #: how to correct it, or empty

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.hint}" if self.hint else text


class Error(Exception):
    """Base of all errors of this package. `complaints` lists them one by one."""

    def __init__(self, complaints: list[Complaint]):
        super().__init__("\n".join(map(str, complaints)))
        self.complaints = complaints


class ScenarioError(Error, ValueError):
    """A scenario's text is wrong: each complaint names file, line and column."""


class RefusedError(ScenarioError):
    """A well-formed scenario that a rule forbids, or that needs a feature that cpscope does not support."""


class InputError(Error, ValueError):
    """Tensors, index lists or options that do not fit."""


class ScheduleError(Error, ValueError):
    """A schedule is wrong: each complaint names the line of the caller's file, the step (counted from 1) and the rank."""


class UnavailableError(Error, RuntimeError):
    """This machine cannot do it: not enough memory, too many pairs."""


for _kind in (Complaint, Error, ScenarioError, RefusedError, InputError, ScheduleError, UnavailableError):
    _kind.__module__ = "cpscope"  # the public module


def _in_words_of_python(text: str) -> str:
    """Replaces command line options by Python arguments: the texts are shared with the command line."""
    text = text.replace("--order-file", "with_order()")
    text = re.sub(r"--(order|format|lse-layout) ([a-z_]+)",
                  lambda m: f'{m[1].replace("-", "_")}="{m[2]}"', text)
    pair = r"--map ([a-z_]+)=([^\s,;:?]+)"
    text = re.sub(f"{pair}(?: {pair})*", lambda m: "names={%s}" % ", ".join(
        f'"{name}": "{theirs}"' for name, theirs in re.findall(pair, m[0])), text)
    text = text.replace("--map NAME=THEIRS", "names={NAME: THEIRS}")
    text = text.replace("order: the command line", "order: the caller").replace("see cpscope faults --list", "see cpscope.fault_list()")
    return re.sub(r"--([a-z]+)(?:-([a-z]+))?(?=[\s,;:.)]|$)", lambda m: f"{m[1]}_{m[2]}" if m[2] else m[1], text)


def in_words_of_keywords(text: str) -> str:
    """Replaces tables and values of TOML by keywords and values of Python, for a scenario that was made of keywords."""
    text = re.sub(r'unknown key in \[[a-z.]*\]: "([^"]*)"', r"a scenario has no key \1", text)
    text = re.sub(r"write its keys below a line \[[a-z.]*\]", "give a dict of its keys", text)
    text = re.sub(r"\b(?:attention|batch|parallel|numerics|fp8)\.(?=[a-z])", "", text)
    text = text.replace("must be a table", "must be a dict")
    text = text.replace("name the JSON file with the token order", "order=[token ids of rank 0, of rank 1, ...] in place of layout, or the name of a JSON file of them")
    return re.sub(r"\b(true|false)\b", lambda m: m[1].title(), text)


def make(kind: int, subject: str, complaints: list[tuple[str, str, str]]) -> Error:
    """The exception for an error that _core reports. kind: bad_input, refused, unavailable, failed."""
    told = [Complaint(_in_words_of_python(what), where, _in_words_of_python(hint)) for what, where, hint in complaints]
    if kind == 1:
        return RefusedError(told)
    if kind == 2:
        return UnavailableError(told)
    if kind == 3:
        return Error(told)
    return ScenarioError(told) if subject == "scenario" else InputError(told)


def input_error(what: str, hint: str = "") -> InputError:
    return InputError([Complaint(what, "", hint)])
