"""Reads a stop regex: Python's syntax, less what no machine can decide while the text still grows.

Called by `regex`, which makes the machine. `re` itself checks the syntax and tells what a single character may be; what is
found here is the structure around single characters. A construct outside the subset is refused by name.
"""

from __future__ import annotations

import re
import warnings
from typing import NamedTuple, NoReturn

from millstream.errors import RequestError

PARAM = "stop_regex"

_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|0[0-7]{0,2}|[1-3][0-7]{2}|[1-9][0-9]?|.)", re.DOTALL
)
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_QUANTIFIER = re.compile(r"(?:([*+?])|\{(?!\})(\d*)(,)?(\d*)\})([?+]?)")
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])))?")
_COMMENT = re.compile(r"\(\?#[^)]*\)")
_FLAGS = {"i": re.IGNORECASE, "s": re.DOTALL, "a": re.ASCII, "u": re.UNICODE}
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_REFUSED_GROUPS = {
    "(?=": "lookahead",
    "(?!": "lookahead",
    "(?<=": "lookbehind",
    "(?<!": "lookbehind",
    "(?>": "atomic groups",
    "(?(": "conditional groups",
    "(?P=": "backreferences",
}


class One(NamedTuple):
    """One character: any that this expression of `re` matches alone."""

    expression: str
    flags: int


class Start(NamedTuple):
    """The start of the text."""


class End(NamedTuple):
    """The end of the text read so far."""


class Sequence(NamedTuple):
    """All of them, in order; none is the empty text."""

    parts: list[Node]


class Choice(NamedTuple):
    """Any one of them."""

    options: list[Node]


class Repeat(NamedTuple):
    """`part`, from `low` to `high` times (None: any number)."""

    part: Node
    low: int
    high: int | None


Node = One | Start | End | Sequence | Choice | Repeat


def parse(pattern: str) -> Node:
    """Return the structure of `pattern`.

    Raises:
        RequestError: it is not valid, or it uses what cannot be decided in linear time as the text comes in.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets that may mean something else one day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError(f"stop_regex `{pattern}` is not valid: {error}.", param=PARAM) from None
    return _Parser(pattern).parse()


class _Parser:
    """Recursive descent over a pattern that `re` accepts."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def parse(self) -> Node:
        return self._choice(0)

    def _choice(self, flags: int) -> Node:
        options: list[Node] = []
        parts: list[Node] = []
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == ")":
                break
            if char == "|":
                self._at += 1
                options.append(Sequence(parts))
                parts = []
            elif char == "(":
                flags = self._group(parts, flags)
            else:
                parts.append(self._one(char, flags))
            self._quantify(parts)
        options.append(Sequence(parts))
        return options[0] if len(options) == 1 else Choice(options)

    def _group(self, parts: list[Node], flags: int) -> int:
        """Read a group into `parts`; returns the flags that hold behind it."""
        if comment := _COMMENT.match(self._pattern, self._at):
            self._at = comment.end()
            return flags
        match = _GROUP.match(self._pattern, self._at)
        assert match is not None  # a parenthesis alone matches
        for opening, name in _REFUSED_GROUPS.items():
            if self._pattern.startswith(opening, self._at):
                self._refuse(name)
        self._at = match.end()
        inner = self._flags(match[1] or "", flags) & ~self._flags(match[2] or "", 0)
        if match[3] == ")":  # flags for the whole pattern: `re` allows them at its start only
            return inner
        parts.append(self._choice(inner))
        self._at += 1  # the closing parenthesis
        return flags

    def _flags(self, letters: str, flags: int) -> int:
        for letter in letters:
            if letter not in _FLAGS:
                self._refuse(f"the flag `{letter}`")
            if letter in "au":  # each takes the place of the other
                flags &= ~(re.ASCII | re.UNICODE)
            flags |= _FLAGS[letter]
        return flags

    def _one(self, char: str, flags: int) -> Node:
        if char == "[":
            match = _SET.match(self._pattern, self._at)
        elif char == "\\":
            match = _ESCAPE.match(self._pattern, self._at)
        else:
            match = None
        expression = match[0] if match else char if char in ".^$" else re.escape(char)
        self._at += len(match[0]) if match else 1
        if expression in ("^", r"\A"):
            return Start()
        if expression in ("$", r"\Z", r"\z"):
            return End()
        if expression in (r"\b", r"\B"):
            self._refuse(f"the word boundary `{expression}`")
        if char == "\\" and expression[1] in "123456789" and len(expression) < 4:
            self._refuse("backreferences")
        return One(expression, flags)

    def _quantify(self, parts: list[Node]) -> None:
        match = _QUANTIFIER.match(self._pattern, self._at)
        if match is None or not parts:
            return
        self._at = match.end()
        if match[5] == "+":
            self._refuse("possessive quantifiers")
        if match[1]:
            low, high = _COUNTS[match[1]]
        else:
            low = int(match[2] or 0)
            high = low if match[3] is None else int(match[4]) if match[4] else None
        parts[-1] = Repeat(parts[-1], low, high)

    def _refuse(self, name: str) -> NoReturn:
        raise RequestError(f"stop_regex `{self._pattern}` uses {name}, which no stop can have.", param=PARAM)
