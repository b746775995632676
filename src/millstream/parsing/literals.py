"""Literals: JSON values, and Python's, read piece by piece into JSON. Whatever is read to its end parses as JSON.

Strings go on as they come. Raw control characters in JSON strings, which models write and JSON forbids, become escapes. The
nesting is bounded, and numbers are, by what every JSON parser takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from millstream.parsing.draft import Malformed
from millstream.parsing.reader import EndOfText, Reader, Reading

MAX_DEPTH = 100
MAX_NUMBER_CHARS = 256

Put = Callable[[str, str], object]  # JSON, and what stands for it in the text

_PLAIN = {"'": re.compile(r"[^'\\\x00-\x1f\"]+"), '"': re.compile(r"[^\"\\\x00-\x1f]+")}
_WORD = re.compile(r"[-+.\w]+")
_HEX = re.compile(r"[0-9a-fA-F]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SURROGATES = re.compile("[\ud800-\udfff]")
_SHORT_ESCAPES = '"\\/bfnrt'
_PYTHON_ESCAPES = {"'": "'", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000", "\n": ""}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}


@dataclass(frozen=True)
class Dialect:
    """How values are written."""

    quotes: str
    openers: str
    words: dict[str, str]
    is_python: bool = False


JSON = Dialect('"', "{[", {"true": "true", "false": "false", "null": "null"})
PYTHON = Dialect("'\"", "{[(", {**JSON.words, "True": "true", "False": "false", "None": "null"}, is_python=True)


def read_value(reader: Reader, put: Put, dialect: Dialect = JSON) -> Reading[None]:
    """Read one value.

    Raises:
        Malformed: it is none.
        EndOfText: the text ended within it; what there was of it went into `put`.
    """
    both = _both(put)
    stack: list[str] = []  # what closes the lists and objects that are open
    while True:
        yield from reader.space(both)
        char = yield from reader.peek()
        if char in dialect.openers:
            if len(stack) == MAX_DEPTH:
                raise Malformed
            stack.append(_CLOSERS[char])
            _bracket(reader, put)
            yield from reader.space(both)
            if (yield from reader.peek()) != stack[-1]:
                yield from _key(reader, put, dialect, stack[-1])
                continue
        elif char in dialect.quotes:
            yield from read_string(reader, put, dialect)
        else:
            yield from _word(reader, put, dialect)
        if not (yield from _next_place(reader, put, dialect, stack)):
            return


def _next_place(reader: Reader, put: Put, dialect: Dialect, stack: list[str]) -> Reading[bool]:
    """After a value: close what ends here. True if another value follows, whose place has been reached."""
    both = _both(put)
    while stack:
        yield from reader.space(both)
        char = yield from reader.peek()
        if char == stack[-1]:
            _bracket(reader, put)
            stack.pop()
        elif char == ",":
            if not (yield from _comma(reader, put, dialect, stack[-1])):
                continue
            yield from _key(reader, put, dialect, stack[-1])
            return True
        else:
            raise Malformed
    return False


def _comma(reader: Reader, put: Put, dialect: Dialect, closer: str) -> Reading[bool]:
    """Whether a comma is followed by a place; Python's lists may end in one, which JSON has no place for."""
    if not dialect.is_python:
        reader.take(_both(put))
        yield from reader.space(_both(put))
        return True
    taken: list[str] = []
    try:
        reader.take(taken.append)
        yield from reader.space(taken.append)
        is_last = (yield from reader.peek()) == closer
    except EndOfText:
        put("".join(taken), "".join(taken))
        raise
    put("" if is_last else "".join(taken), "".join(taken))
    return not is_last


def _bracket(reader: Reader, put: Put) -> None:
    reader.take(lambda char: put({"(": "[", ")": "]"}.get(char, char), char))


def _key(reader: Reader, put: Put, dialect: Dialect, closer: str) -> Reading[None]:
    if closer != "}":
        return
    both = _both(put)
    if (yield from reader.peek()) not in dialect.quotes:
        raise Malformed
    yield from read_string(reader, put, dialect)
    yield from reader.space(both)
    if (yield from reader.peek()) != ":":
        raise Malformed
    reader.take(both)


def read_string(reader: Reader, put: Put, dialect: Dialect = JSON) -> Reading[None]:
    """Read a string whose quote comes next. Raises as `read_value` does."""
    both = _both(put)
    quote = reader.take(lambda char: put('"', char))
    while True:
        yield from reader.run(_PLAIN[quote], both)
        char = yield from reader.peek()
        if char == quote:
            reader.take(lambda char: put('"', char))
            return
        if char == "\\":
            yield from _escape(reader, put, dialect)
        else:  # a control character, or the other quote
            reader.take(lambda char: put(json.dumps(char)[1:-1], char))


def _escape(reader: Reader, put: Put, dialect: Dialect) -> Reading[None]:
    taken: list[str] = []
    try:
        reader.take(taken.append)
        yield from reader.peek()
        char = reader.take(taken.append)
        digits = {"u": 4, "x": 2 * dialect.is_python, "U": 8 * dialect.is_python}.get(char, 0)
        if digits and (yield from reader.run(_HEX, taken.append, limit=digits)) != digits:
            raise Malformed("".join(taken))
    except EndOfText:
        put("".join(taken), "".join(taken))
        raise
    raw = "".join(taken)
    put(_unescaped(raw, char, dialect), raw)


def _unescaped(raw: str, char: str, dialect: Dialect) -> str:
    """An escape as JSON has it."""
    if char == "u" or (char in _SHORT_ESCAPES and not (dialect.is_python and char == "/")):
        return raw
    if not dialect.is_python:
        raise Malformed(raw)
    if char in "xU":
        code = int(raw[2:], 16)
        if code > 0x10FFFF:
            raise Malformed(raw)
        return json.dumps(chr(code))[1:-1]
    known = _PYTHON_ESCAPES.get(char)
    return known if known is not None else "\\\\" + json.dumps(char, ensure_ascii=False)[1:-1]


def _word(reader: Reader, put: Put, dialect: Dialect) -> Reading[None]:
    """A number, or a word such as true."""
    taken: list[str] = []
    try:
        yield from reader.run(_WORD, taken.append, limit=MAX_NUMBER_CHARS)
    except EndOfText:
        put("".join(taken), "".join(taken))
        raise
    raw = "".join(taken)
    text = dialect.words.get(raw, raw if _NUMBER.fullmatch(raw) else None)
    if text is None:
        raise Malformed(raw)
    put(text, raw)


def whole_value(text: str, dialect: Dialect = JSON) -> str | None:
    """All of `text`, without white space around it, as JSON; None if it is no value."""
    stripped = text.strip()
    reader = Reader()
    reader.feed(f"{stripped}\n")  # whatever ends there has ended
    reader.close()
    written: list[str] = []
    try:
        next(read_value(reader, lambda json_, _: written.append(json_), dialect), None)
    except (Malformed, EndOfText):
        return None
    if reader.num_read < len(stripped):
        return None
    return _SURROGATES.sub(lambda match: json.dumps(match[0])[1:-1], "".join(written))


def _both(put: Put) -> Callable[[str], object]:
    return lambda text: put(text, text)
