"""C++ source as tokens with matched brackets, for code that clang-format has laid out.

Spacing decides what a character means: binary operators have blanks on both sides, template brackets and
pointers none on their left. No preprocessor: its lines are skipped.
"""

import re
from dataclasses import dataclass

_PATTERN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      |(?P<directive>^[ \t]*\#(?:[^\n\\]|\\\n|\\.)*)
      |(?P<raw>(?:u8|[uUL])?R"(?P<fence>[^(\s]*)\(.*?\)(?P=fence)")
      |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      |(?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
      |(?P<number>\.?[0-9](?:[eEpP][+-]|'?[\w.])*)
      |(?P<word>[A-Za-z_]\w*)
      |(?P<mark><=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|(?<=\s)<<(?=\s)|(?<=\s)>>(?=\s)|.)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE)

_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
CONTROL = {"if", "for", "while", "switch", "catch"}
ASSIGNMENT = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
PRECEDENCE = {"*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<<": 8, ">>": 8, "<=>": 7.5, "<": 7, ">": 7, "<=": 7, ">=": 7,
              "==": 6, "!=": 6, "&": 5, "^": 4, "|": 3, "&&": 2, "||": 1}
_STOPS = {"return", "case", "else", "throw", "do", "co_return", "co_yield", "goto", "default", "delete", "new", "in"}


@dataclass
class Token:
    kind: str          # word, number, string, char or mark
    text: str
    begin: int         # offset in the file
    end: int
    parent: int = -1   # index of the bracket around it, -1 at the top
    partner: int = -1  # index of the other bracket of a pair
    is_spaced: bool = False     # blank on the left
    is_binary: bool = False     # an operator with two operands


def _scan(text):
    tokens = []
    for match in _PATTERN.finditer(text):
        kind = match.lastgroup if match.lastgroup != "fence" else "raw"
        if kind in ("comment", "directive") or match.group().isspace():
            continue
        kind = "string" if kind == "raw" else kind
        token = Token(kind, match.group(), match.start(), match.end())
        token.is_spaced = match.start() == 0 or text[match.start() - 1].isspace()
        is_followed = match.end() == len(text) or text[match.end()].isspace()
        token.is_binary = token.is_spaced and is_followed and token.text in PRECEDENCE
        tokens.append(token)
    return tokens


def _opens(tokens, i):
    """Is this a bracket that opens, a template's included?"""
    token = tokens[i]
    if token.text == "<" and i > 0:
        before = tokens[i - 1]
        if before.text == "template" or (before.text == "]" and not token.is_spaced):
            return True
        return not token.is_spaced and before.kind == "word" and before.text != "operator"
    return token.kind == "mark" and token.text in ("(", "[", "{")


def _match(tokens):
    stack = []
    for i, token in enumerate(tokens):
        token.parent = stack[-1] if stack else -1
        if _opens(tokens, i):
            token.is_binary = False
            stack.append(i)
        elif token.kind == "mark" and token.text in (")", "]", "}", ">"):
            # A template bracket never closes after a blank, and never outlives the brackets around it.
            if token.text == ">" and (token.is_spaced or not stack or tokens[stack[-1]].text != "<"):
                continue
            while stack and tokens[stack[-1]].text == "<" and token.text != ">":
                stack.pop()
            if not stack or _CLOSING[tokens[stack[-1]].text] != token.text:
                raise ValueError(f"bracket {token.text} at offset {token.begin} has no partner")
            opening = stack.pop()
            token.partner, tokens[opening].partner = opening, i
            token.parent = tokens[opening].parent


class Source:
    """One file: its text, its tokens, and questions about what stands where."""

    def __init__(self, path, text):
        self.path, self.text = path, text
        self.tokens = _scan(text)
        self._bodies = {}  # brace -> is it a body
        _match(self.tokens)

    def slice(self, first, last):
        """The text from token `first` to token `last`, both included."""
        return self.text[self.tokens[first].begin:self.tokens[last].end]

    def line_of(self, offset):
        return self.text.count("\n", 0, offset) + 1

    def line_text(self, offset):
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        return self.text[start:end if end >= 0 else len(self.text)].strip()

    # ---- expressions -----------------------------------------------------------------------------

    def _ends_operand(self, i):
        token = self.tokens[i]
        return (token.kind != "mark" and token.text not in _STOPS) or (token.partner >= 0 and token.partner < i)

    def _starts_operand(self, i):
        token = self.tokens[i]
        return token.kind != "mark" or (token.text in ("!", "~", "-", "*", "&", "++", "--", "+") and not token.is_binary)

    def left_operand(self, operator):
        """First token of what stands left of a binary operator; None if there is nothing."""
        rank, i = PRECEDENCE.get(self.tokens[operator].text, 0), operator - 1
        first = None
        while i >= 0:
            token = self.tokens[i]
            if first is not None and self._ends_operand(i) and self._starts_operand(first):
                break
            if token.partner >= 0 and token.partner < i:
                i = first = token.partner
                i -= 1
                continue
            if token.partner >= 0 or token.text in _STOPS or token.text in ASSIGNMENT or token.text in (",", ";", "?", ":"):
                break
            if token.is_binary and PRECEDENCE[token.text] < rank:
                break
            first = i
            i -= 1
        return first

    def right_operand(self, operator):
        """Last token of what stands right of a binary operator."""
        rank, i = PRECEDENCE.get(self.tokens[operator].text, 0), operator + 1
        last = None
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.partner > i:
                last = token.partner
                i = last + 1
                continue
            if token.partner >= 0 or token.text in ASSIGNMENT or token.text in (",", ";", "?", ":"):
                break
            if token.is_binary and PRECEDENCE[token.text] <= rank:
                break
            last = i
            i += 1
        return last

    # ---- places ----------------------------------------------------------------------------------

    def statement_start(self, i):
        """First token of the statement or declaration that token i stands in, on i's own level."""
        i -= 1
        while i >= 0:
            token = self.tokens[i]
            if token.text == ";" or token.partner > i or (token.text == "}" and self._is_block_end(i)):
                break
            i = token.partner - 1 if token.partner >= 0 else i - 1
        return i + 1

    def _is_block_end(self, closing):
        """Does this brace end a block, not a value or a lambda?"""
        follower = self.tokens[closing + 1] if closing + 1 < len(self.tokens) else None
        if follower is not None and (follower.is_binary or follower.text in (";", ",", ")", "(", ".", "->", "?", ":", "]")):
            return False
        return follower is None or follower.text == "}" or self._starts_operand(closing + 1) or \
            follower.text in ("{", "[", "(", "::")

    def is_body(self, brace):
        """Is this the brace of a function, a lambda or a block of statements?"""
        if brace not in self._bodies:
            self._bodies[brace] = self._find_body(brace)
        return self._bodies[brace]

    def _find_body(self, brace):
        if self.tokens[brace].text != "{" or brace == 0:
            return False
        before = self.tokens[brace - 1]
        if before.text in ("{", "}", ";"):
            return self.body_around(brace) >= 0
        words = [t.text for t in self.tokens[self.statement_start(brace):brace]]
        if words[:1] == ["template"] and ">" in words:
            words = words[words.index(">") + 1:]
        if words[:1] and words[0] in ("namespace", "struct", "class", "enum", "union", "extern"):
            return False
        if before.text in ("else", "do", "try", ")", "]", "noexcept", "override", "final", "mutable"):
            return True
        if before.text == "const":
            return ")" in words
        return "->" in words and self._returns_trailing(brace)

    def _returns_trailing(self, brace):
        i = brace - 1
        while i >= 0 and (self.tokens[i].kind == "word" or self.tokens[i].text in ("::", "&", "*", ">")):
            i = self.tokens[i].partner - 1 if self.tokens[i].partner >= 0 else i - 1
        return i > 0 and self.tokens[i].text == "->" and self.tokens[i - 1].text == ")"

    def body_around(self, i):
        """The innermost body brace around token i, -1 if there is none."""
        parent = self.tokens[i].parent
        while parent >= 0 and not self.is_body(parent):
            parent = self.tokens[parent].parent
        return parent
