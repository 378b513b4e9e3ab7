"""Where a C++ file can be broken in one small way, and the file with all those ways built in behind a switch.

A mutant replaces one expression or drops one statement. `render` writes every mutant into the same text, each as
`(CPSCOPE_MUTANT(k) ? (mutated) : (original))`, so that one compile holds them all and a number chooses one at run time.
"""

import hashlib
import re
from dataclasses import dataclass, field

from cpp_tokens import ASSIGNMENT, CONTROL, PRECEDENCE, Source

SWITCH = "CPSCOPE_MUTANT"
KINDS = ("arithmetic", "bounds", "comparison", "logical", "statement", "constant")

# What is said to people, what stops the program because of our own mistake, and what only saves time.
_WORDS_OF_MESSAGES = {"format", "print", "println", "format_to", "Error", "CPSCOPE_CHECK", "CPSCOPE_CUDA", "static_assert", "assert",
                      "sizeof", "alignas", "alignof", "decltype", "noexcept", "reserve", "shrink_to_fit", "runtime_error",
                      "invalid_argument", "logic_error"}
_DROPPED_CALLS_THAT_TELL_NOTHING = {"reserve", "shrink_to_fit", "static_assert", "assert", "print", "println", "fputs", "fflush"}
_BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "&": "|", "|": "&", "<<": ">>", ">>": "<<",
               "+=": "-=", "-=": "+=", "*=": "+=", "/=": "*=", "%=": "/=", "|=": "&=", "&=": "|="}
_LOGICAL = {"&&": "||", "||": "&&"}


@dataclass
class Mutant:
    path: str
    kind: str       # one of KINDS
    begin: int      # offsets of what is replaced
    end: int
    original: str   # as it stands
    mutated: str    # what the mutant makes of it; "" drops the statement
    line: str       # first line, stripped
    line_number: int
    place: str      # which of several equal ones in the file
    number: int = 0
    draw: str = field(default="", repr=False)

    def key(self):
        """What was changed into what; no line numbers."""
        return self.path, self.line, squeeze(self.original), squeeze(self.mutated)

    def listed_key(self):
        """What an entry of the list of equivalent mutants names."""
        return *self.key(), self.place


def squeeze(text):
    return re.sub(r"\s+", " ", text).strip()


class _Finder:
    def __init__(self, source):
        self.source, self.tokens, self.found = source, source.tokens, []
        self.drops = set()

    def add(self, kind, first, last, mutated):
        begin, end = self.tokens[first].begin, self.tokens[last].end
        original = self.source.text[begin:end]
        self.found.append(Mutant(self.source.path, kind, begin, end, original, mutated, self.source.line_text(begin),
                                 self.source.line_of(begin), ""))

    def find(self):
        for i, token in enumerate(self.tokens):
            if token.kind in ("string", "char") or not self.is_code(i):
                continue
            if token.is_binary and i + 1 < len(self.tokens):
                self.find_binary(i)
            elif token.text in _ARITHMETIC and token.text in ASSIGNMENT:
                self.find_assignment(i)
            elif token.text == "!" and i + 1 < len(self.tokens):
                self.find_negation(i)
            elif token.kind == "number":
                self.find_number(i)
            elif token.text in ("true", "false"):
                self.add("constant", i, i, "false" if token.text == "true" else "true")
            elif token.text in ("min", "max"):
                self.find_extreme(i)
            elif token.text == ";":
                self.find_statement(i)
        return self.found

    # ---- which places count ------------------------------------------------------------------------

    def is_code(self, i):
        """Inside a body, in no message and in nothing that only the compiler reads."""
        body = self.source.body_around(i)
        if body < 0 or self.is_constant(i):
            return False
        parent = self.tokens[i].parent
        while parent >= 0:
            token, before = self.tokens[parent], self.tokens[parent - 1] if parent else None
            if token.text == "<" or (before is not None and before.text in _WORDS_OF_MESSAGES):
                return False
            if token.text == "[" and before is not None and before.text == "[":
                return False
            parent = token.parent
        return True

    def is_constant(self, i):
        while True:
            start = self.source.statement_start(i)
            words = [t.text for t in self.tokens[start:i]]
            if words[:1] and words[0] in ("using", "typedef", "template", "static_assert", "enum"):
                return True
            if words[:1] == ["case"] and ":" not in words:
                return True
            if "constexpr" in words[:2] and ("=" in words or words[:2] == ["if", "constexpr"]):
                return True
            parent = self.tokens[i].parent
            if parent < 0 or self.source.is_body(parent):
                return False
            i = parent

    # ---- expressions -------------------------------------------------------------------------------

    def operands(self, i):
        first, last = self.source.left_operand(i), self.source.right_operand(i)
        if first is None or last is None:
            return None
        return first, last

    def find_binary(self, i):
        span = self.operands(i)
        if span is None:
            return
        first, last = span
        operator = self.tokens[i].text
        left, right = self.source.slice(first, i - 1), self.source.slice(i + 1, last)
        has_text = any(t.kind in ("string", "char") for t in self.tokens[first:last + 1])
        changes = [("bounds", _BOUNDS), ("comparison", _OPPOSITE), ("logical", _LOGICAL)]
        if not has_text and operator in PRECEDENCE:
            changes.append(("arithmetic", _ARITHMETIC))
        for kind, table in changes:
            if operator in table:
                self.add(kind, first, last, f"{left} {table[operator]} {right}")

    def find_assignment(self, i):
        span = self.operands(i)
        if span is None or any(t.kind in ("string", "char") for t in self.tokens[span[0]:span[1] + 1]):
            return
        left, right = self.source.slice(span[0], i - 1), self.source.slice(i + 1, span[1])
        self.add("arithmetic", span[0], span[1], f"{left} {_ARITHMETIC[self.tokens[i].text]} {right}")

    def find_negation(self, i):
        last = i
        while last + 1 < len(self.tokens):
            token = self.tokens[last + 1]
            if token.partner > last + 1:
                last = token.partner
            elif token.kind == "word" or token.text in (".", "->", "::", "!", "*") and not token.is_binary:
                last += 1
            else:
                break
        if last > i:
            self.add("logical", i, last, f"static_cast<bool>({self.source.slice(i + 1, last)})")

    def find_number(self, i):
        text = self.tokens[i].text
        if re.fullmatch(r"[0-9][0-9']*", text):
            self.add("constant", i, i, str(int(text.replace("'", "")) + 1))
        elif re.fullmatch(r"[0-9]+\.[0-9]*f?", text):
            value = float(text.rstrip("f"))
            self.add("constant", i, i, f"{value + 1}{'f' if text.endswith('f') else ''}")

    def find_extreme(self, i):
        if self.tokens[i - 1].text != "::" or self.tokens[i - 2].text != "std":
            return
        opening = i + 1
        if self.tokens[opening].text == "<" and self.tokens[opening].partner > 0:
            opening = self.tokens[opening].partner + 1
        if self.tokens[opening].text != "(":
            return
        last = self.tokens[opening].partner
        other = "max" if self.tokens[i].text == "min" else "min"
        self.add("bounds", i - 2, last, f"std::{other}{self.source.slice(i + 1, last)}")

    # ---- statements --------------------------------------------------------------------------------

    def find_statement(self, end):
        if self.tokens[end].parent < 0 or not self.source.is_body(self.tokens[end].parent):
            return
        start, owner = self.start_of_simple(end)
        if start >= end or self.tokens[start].text in _DROPPED_CALLS_THAT_TELL_NOTHING:
            return
        if self.may_drop(start, end, owner):
            self.add("statement", start, end, "")

    def start_of_simple(self, end):
        """First token of the statement that ends at a semicolon, and the word that governs it (if, else, for, ...)."""
        start = self.source.statement_start(end)
        owner = ""
        while start < end:
            text = self.tokens[start].text
            if text in CONTROL:
                opening = start + 1 + (self.tokens[start + 1].text == "constexpr")
                owner, start = text, self.tokens[opening].partner + 1
            elif text in ("else", "do"):
                owner, start = text, start + 1
            elif text in ("case", "default"):
                while self.tokens[start].text != ":":
                    start += 1
                owner, start = "case", start + 1
            else:
                break
        return start, owner

    def may_drop(self, start, end, owner):
        first = self.tokens[start].text
        if first in ("break", "continue"):
            return first == "continue" or self.tokens[end + 1].text != "}"  # the last break of a switch does nothing
        if first == "return":
            return self.may_drop_return(start, end, owner)
        if self.tokens[start].kind != "word" and first not in ("++", "--", "*", "("):
            return False
        i = start + (first in ("++", "--", "*"))
        last_name = ""
        while i < end:
            token = self.tokens[i]
            if token.text in ASSIGNMENT or token.text in ("++", "--"):
                return True
            if token.partner > i:
                i = token.partner + 1
                continue
            if token.kind == "word" and i > start and self.tokens[i - 1].text not in (".", "->", "::", "++", "--", "*", ")"):
                return False  # two names in a row declare something
            if token.kind != "word" and token.text not in (".", "->", "::"):
                return False
            if token.kind == "word":
                last_name = token.text
            i += 1
        if last_name.isupper() or last_name in _DROPPED_CALLS_THAT_TELL_NOTHING:
            return False
        return first in ("++", "--") or self.tokens[end - 1].text == ")"

    def may_drop_return(self, start, end, owner):
        if owner != "if" or self.tokens[end + 1].text == "else":
            return False
        if self.tokens[end + 1].text != "}":
            return True
        # Last in a loop's block something follows; last in a function nothing does.
        brace = self.tokens[end].parent
        return self.tokens[self.source.statement_start(brace)].text in ("for", "while")


def find_mutants(path, text):
    """Every mutant of a file, in order of place; equal ones are told apart by `place`."""
    mutants = _Finder(Source(path, text)).find()
    seen = {}
    for mutant in mutants:
        count = seen[mutant.key()] = seen.get(mutant.key(), 0) + 1
        mutant.place = str(count)
    return mutants


def draw_order(mutant, seed):
    """Sorts mutants as if at random; a change of one line of the sources moves none of the others."""
    words = "\0".join([str(seed), *mutant.key(), mutant.kind, mutant.place])
    return hashlib.sha256(words.encode()).hexdigest()


def draw(mutants, seed, count):
    """`count` of the mutants, the kinds taking turns, without two that are the same."""
    queues = {kind: [] for kind in KINDS}
    for mutant in mutants:
        mutant.draw = draw_order(mutant, seed)
        queues[mutant.kind].append(mutant)
    for queue in queues.values():
        queue.sort(key=lambda m: m.draw, reverse=True)
    chosen = []
    while len(chosen) < count and any(queues.values()):
        for kind in KINDS:
            if queues[kind] and len(chosen) < count:
                chosen.append(queues[kind].pop())
    return chosen


# ---- the text with all mutants in it ---------------------------------------------------------------


def _replace(mutant, inner):
    if mutant.kind == "statement":
        return f"{{ if (!{SWITCH}({mutant.number})) {{ {inner} }} }}"
    return f"({SWITCH}({mutant.number}) ? ({mutant.mutated}) : ({inner}))"


def render(text, mutants, include):
    """The file with its mutants behind switches. Raises ValueError where two of them overlap without nesting."""
    ordered = sorted(mutants, key=lambda m: (m.begin, -m.end, m.number))

    def write(begin, end, inside):
        pieces, at, i = [], begin, 0
        while i < len(inside):
            outer = inside[i]
            j = i + 1
            while j < len(inside) and inside[j].begin < outer.end:
                if inside[j].end > outer.end:
                    raise ValueError(f"{outer.path}: mutants {outer.number} and {inside[j].number} overlap")
                j += 1
            pieces += [text[at:outer.begin], _replace(outer, write(outer.begin, outer.end, inside[i + 1:j]))]
            at, i = outer.end, j
        return "".join(pieces) + text[at:end]

    return f'#include "{include}"\n' + write(0, len(text), ordered)


def diff(mutant):
    """The change of one mutant as people read it."""
    lines = [f"--- {mutant.path}:{mutant.line_number} ({mutant.kind})"]
    lines += [f"-  {line}" for line in mutant.original.splitlines()]
    lines += [f"+  {line}" for line in (mutant.mutated.splitlines() or ["(dropped)"])]
    return "\n".join(lines)
