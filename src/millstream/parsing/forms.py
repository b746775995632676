"""Forms: how a call is written. A format is a description made of one of these; `read` is what they have in common.

`read` reads one or more calls behind an opening marker, which stands in the draft already. It raises `Malformed` where the text
is none, and `EndOfText` where it breaks off; the stage knows what becomes of the draft then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from millstream.parsing.draft import Draft, Malformed
from millstream.parsing.literals import JSON, PYTHON, Dialect, read_string, read_value, whole_value
from millstream.parsing.reader import EndOfText, Markers, Reader, Reading
from millstream.parsing.values import ObjectWriter

MAX_NAME_CHARS = 256

_NAME = re.compile(r"[^\s<>\[\]{}()|`\"',;=｜]+")
_PYTHON_NAME = re.compile(r"[\w.\-]+")


class Calls:
    """The drafts of one reading, of which the last is under way."""

    def __init__(self, new: Callable[[], Draft]) -> None:
        self._new = new
        self.draft = new()

    def next(self) -> Draft:
        """Begin another call."""
        self.draft.abandon()  # what was quoted has ended
        self.draft = self._new()
        return self.draft


class Form(Protocol):
    """How a call is written."""

    def read(self, reader: Reader, calls: Calls) -> Reading[None]:
        """See the module."""
        ...


@dataclass(frozen=True)
class JsonObject:
    """An object that has the name and the arguments: `{"name": "f", "arguments": {}}`, keys in any order.

    Arguments may be missing or null, which is `{}`, or a string that has the object in it. `in_list`: a list of such objects;
    "may": one or a list. `separator` stands between objects outside of a list, `close` after the last. With `is_strict` an
    object that has other keys is no call: what has no opening marker may as well be an answer in JSON. `before` are parts that
    come first.
    """

    close: str = ""
    before: tuple[str | Maybe, ...] = ()
    separator: str = ""
    in_list: bool = False
    is_strict: bool = False
    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments", "parameters")
    ignored_keys: tuple[str, ...] = ("id", "type", "index")

    def read(self, reader: Reader, calls: Calls) -> Reading[None]:
        """See `Form`."""
        draft = calls.draft
        yield from _parts(reader, draft, (*self.before, SPACE))
        in_list = self.in_list and (yield from reader.peek()) == "["
        if in_list:
            reader.take(draft.markup)
            yield from reader.space(draft.markup)
        while True:
            yield from self._object(reader, calls.draft)
            yield from reader.space(calls.draft.markup)
            char = yield from reader.peek()
            if in_list and char == ",":
                draft = calls.next()
                reader.take(draft.markup)
                yield from reader.space(draft.markup)
            elif in_list:
                yield from _expect(reader, calls.draft, "]")
                break
            elif self.separator and char == self.separator:
                reader.take(calls.next().markup)
                yield from reader.space(calls.draft.markup)
            elif char == "{":
                calls.next()
            else:
                break
        yield from reader.space(calls.draft.markup)
        yield from _maybe(reader, calls.draft, self.close)

    def _object(self, reader: Reader, draft: Draft) -> Reading[None]:
        yield from _expect(reader, draft, "{")
        seen: set[str] = set()
        yield from reader.space(draft.markup)
        while (yield from reader.peek()) != "}":
            if seen:
                yield from _expect(reader, draft, ",")
                yield from reader.space(draft.markup)
            key = yield from _string(reader, draft)
            if key in seen and key in (self.name_key, *self.arguments_keys):
                raise Malformed
            seen.add("arguments" if key in self.arguments_keys else key)
            yield from reader.space(draft.markup)
            yield from _expect(reader, draft, ":")
            yield from reader.space(draft.markup)
            yield from self._member(reader, draft, key)
            yield from reader.space(draft.markup)
        reader.take(draft.markup)
        draft.complete()

    def _member(self, reader: Reader, draft: Draft, key: str) -> Reading[None]:
        if key == self.name_key:
            draft.named((yield from _string(reader, draft)))
        elif key in self.arguments_keys:
            yield from _arguments(reader, draft)
        elif self.is_strict and key not in self.ignored_keys:
            raise Malformed
        else:
            yield from read_value(reader, lambda _, raw: draft.markup(raw))


SPACE = " "  # any white space, or none
WORD = "*"  # a word, or none
ID = "#"  # a word that is the call's id


@dataclass(frozen=True)
class Maybe:
    """A part of a call that may be missing, and those behind it that then are, too."""

    text: str
    then: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedJson:
    """A name and then an object with the arguments, among fixed parts.

    `before` and `after` the name, and `end` behind the object, are fixed parts, `Maybe`s, `SPACE`, `WORD` and `ID`. The name
    must match `name`, which has the groups `name` and, where the model writes one, `id`.
    """

    after: tuple[str | Maybe, ...]
    before: tuple[str | Maybe, ...] = ()
    end: tuple[str | Maybe, ...] = ()
    name: str = r"(?P<name>.+)"

    def read(self, reader: Reader, calls: Calls) -> Reading[None]:
        """See `Form`."""
        draft = calls.draft
        yield from _parts(reader, draft, self.before)
        name, id_ = yield from _name(reader, draft, self.name)
        id_ = (yield from _parts(reader, draft, self.after)) or id_
        if (yield from reader.peek()) != "{":
            raise Malformed
        draft.named(name, id_)
        yield from read_value(reader, draft.arguments)
        draft.complete()
        yield from _parts(reader, draft, self.end)


@dataclass(frozen=True)
class Tagged:
    """A name, and a pair of tags around each argument, whose values are text that the tool's schema gives a type.

    `key` and `value` are what stands before and after each; `edge` is dropped once at both ends of a value. Of `kinds`, if the
    model writes one behind a key, the first says that a value is a string, and the second that it is JSON.
    """

    key: tuple[str, str]
    value: tuple[str, str]
    close: str
    before: tuple[str | Maybe, ...] = ()
    after: tuple[str | Maybe, ...] = ()
    end: tuple[str | Maybe, ...] = ()
    edge: str = ""
    kinds: tuple[str, str] | None = None
    _next: Markers = field(init=False, repr=False, compare=False)
    _kinds: Markers = field(init=False, repr=False, compare=False)
    _key: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_next", Markers([self.key[0], self.close]))
        object.__setattr__(self, "_kinds", Markers(self.kinds or ()))
        object.__setattr__(self, "_key", re.compile(rf"[^<>\n{re.escape(self.key[1][0])}]+"))

    def read(self, reader: Reader, calls: Calls) -> Reading[None]:
        """See `Form`."""
        draft = calls.draft
        yield from _parts(reader, draft, self.before)
        name, _ = yield from _name(reader, draft, r"(?P<name>.+)")
        yield from _parts(reader, draft, self.after)
        yield from reader.space(draft.markup)
        found = yield from reader.choice(self._next, draft.markup)
        if found is None:
            raise Malformed
        draft.named(name)
        writer = ObjectWriter(draft.schema, draft.arguments)
        while found != self.close:
            key = yield from _word(reader, draft, self._key)
            yield from _expect(reader, draft, self.key[1])
            kind = yield from reader.choice(self._kinds, draft.markup)
            yield from _parts(reader, draft, (SPACE, self.value[0]) if self.value[0] else ())
            is_json = self.kinds is not None and kind == self.kinds[1]
            yield from writer.read_member(key.strip(), reader, self.value[1], self.edge, is_json=is_json)
            yield from reader.space(draft.markup)
            found = yield from reader.choice(self._next, draft.markup)
            if found is None:
                raise Malformed
        writer.close()
        draft.complete()
        yield from _parts(reader, draft, self.end)


@dataclass(frozen=True)
class PythonCalls:
    """Calls as Python writes them, in a list: `[f(a=1), g(b="x")]`, and `close` behind it."""

    close: str = ""
    before: tuple[str | Maybe, ...] = ()

    def read(self, reader: Reader, calls: Calls) -> Reading[None]:
        """See `Form`."""
        yield from _parts(reader, calls.draft, (*self.before, SPACE, "["))
        while True:
            yield from self._call(reader, calls.draft)
            yield from reader.space(calls.draft.markup)
            if (yield from reader.peek()) != ",":
                break
            reader.take(calls.next().markup)
        yield from _parts(reader, calls.draft, ("]", SPACE))
        yield from _maybe(reader, calls.draft, self.close)

    def _call(self, reader: Reader, draft: Draft) -> Reading[None]:
        yield from reader.space(draft.markup)
        name = yield from _word(reader, draft, _PYTHON_NAME)
        yield from _expect(reader, draft, "(")
        draft.named(name)
        yield from reader.space(draft.markup)
        separator = "{"
        while (yield from reader.peek()) != ")":
            if separator == ", ":
                yield from _parts(reader, draft, (",", SPACE))
                if (yield from reader.peek()) == ")":
                    break
            key = yield from _word(reader, draft, _PYTHON_NAME)
            yield from reader.space(draft.markup)
            yield from _expect(reader, draft, "=")
            draft.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ", "")
            yield from reader.space(draft.markup)
            yield from read_value(reader, draft.arguments, PYTHON)
            yield from reader.space(draft.markup)
            separator = ", "
        reader.take(draft.markup)
        if separator == ", ":
            draft.arguments("}", "")
        draft.complete()


def _arguments(reader: Reader, draft: Draft) -> Reading[None]:
    """The arguments as a member of an object."""
    char = yield from reader.peek()
    if char == "{":
        yield from read_value(reader, draft.arguments)
    elif char == '"':
        raw: list[str] = []
        try:
            text = whole_value(json.loads((yield from _quoted(reader, raw))))
        except EndOfText:
            raise Malformed("".join(raw)) from None
        except Malformed as error:
            raise Malformed("".join(raw) + error.unread) from None
        if text is None or text[0] != "{":
            raise Malformed("".join(raw))
        draft.arguments(text, "".join(raw))
    else:
        yield from _expect(reader, draft, "null")


def _quoted(reader: Reader, raw: list[str]) -> Reading[str]:
    written: list[str] = []

    def put(text: str, was: str) -> None:
        written.append(text)
        raw.append(was)

    yield from read_string(reader, put)
    return "".join(written)


def _string(reader: Reader, draft: Draft, dialect: Dialect = JSON) -> Reading[str]:
    """A short JSON string, decoded."""
    if (yield from reader.peek()) != '"':
        raise Malformed
    written: list[str] = []

    def put(text: str, raw: str) -> None:
        draft.markup(raw)
        written.append(text)

    yield from read_string(reader, put, dialect)
    decoded: str = json.loads("".join(written))
    return decoded


def _word(reader: Reader, draft: Draft, letters: re.Pattern[str]) -> Reading[str]:
    taken: list[str] = []

    def sink(text: str) -> None:
        taken.append(text)
        draft.markup(text)

    length = yield from reader.run(letters, sink, limit=MAX_NAME_CHARS + 1)
    if not 0 < length <= MAX_NAME_CHARS:
        raise Malformed
    return "".join(taken)


def _name(reader: Reader, draft: Draft, pattern: str) -> Reading[tuple[str, str | None]]:
    match = re.fullmatch(pattern, (yield from _word(reader, draft, _NAME)))
    if match is None:
        raise Malformed
    return match["name"], match.groupdict().get("id")


def _parts(reader: Reader, draft: Draft, parts: tuple[str | Maybe, ...]) -> Reading[str | None]:
    """Read `parts`; the id, if one of them is."""
    id_ = None
    for part in parts:
        if part == SPACE:
            yield from reader.space(draft.markup)
        elif part == WORD:
            yield from reader.run(_NAME, draft.markup, limit=MAX_NAME_CHARS)
        elif part == ID:
            id_ = yield from _word(reader, draft, _NAME)
        elif isinstance(part, Maybe):
            if (yield from reader.choice(_marker(part.text), draft.markup)) is not None:
                id_ = (yield from _parts(reader, draft, part.then)) or id_
        else:
            yield from _expect(reader, draft, part)
    return id_


def _maybe(reader: Reader, draft: Draft, text: str) -> Reading[None]:
    if text:
        yield from reader.choice(_marker(text), draft.markup)


def _expect(reader: Reader, draft: Draft, text: str) -> Reading[None]:
    if (yield from reader.choice(_marker(text), draft.markup)) is None:
        raise Malformed


@cache
def _marker(text: str) -> Markers:
    return Markers([text])
