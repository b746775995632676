"""Values of tagged arguments: text between tags becomes JSON, of the type that the tool's schema asks for.

A string goes on as it comes. Anything else waits for its end: what is JSON of an allowed type stays as the model wrote it, what
is a value as Python writes it becomes JSON, and what fits nothing is a string. So is the value of an argument that the schema
does not know. The marker that ends a value is text where it stands within a string of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from millstream.grammar.schema_types import STRING, TYPES, allowed_types
from millstream.parsing.literals import PYTHON, whole_value
from millstream.parsing.reader import EndOfText, Markers, Reader, Reading

_QUOTES = re.compile(r'\\.|"', re.DOTALL)
Put = Callable[[str, str], object]  # JSON, and what stands for it in the text


class ObjectWriter:
    """Writes the members of an arguments object, one after another."""

    def __init__(self, schema: object, put: Put) -> None:
        self._schema = schema
        self._put = put
        self._separator = "{"

    def read_member(self, key: str, reader: Reader, close: str, edge: str, *, is_json: bool = False) -> Reading[None]:
        """Read the value of `key` up to `close`; `edge` is not part of it where it stands at its ends.

        `is_json`: it is no string, if it can be something else and the schema does not say otherwise.

        Raises:
            EndOfText: there is no `close`.
        """
        self._put(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: ", "")
        self._separator = ", "
        allowed = allowed_types(self._schema, key, TYPES if is_json else STRING)
        value = _Text(self._put) if allowed == {"string"} else _Collected(self._put, allowed)
        cut = _Edges(edge, value.add, self._put)
        try:
            yield from reader.until(Markers([close]), cut.feed)
            while value.is_within_string():
                cut.feed(close)
                yield from reader.until(Markers([close]), cut.feed)
        except EndOfText:
            value.broken()
            raise
        cut.end()
        value.end(close)

    def close(self) -> None:
        """There are no more members."""
        self._put("{}" if self._separator == "{" else "}", "")


class _Edges:
    """Drops `edge` at both ends."""

    def __init__(self, edge: str, add: Callable[[str], None], put: Put) -> None:
        self._edge = edge
        self._add = add
        self._put = put
        self._is_begun = not edge
        self._held = ""  # an edge that may be the last

    def feed(self, text: str) -> None:
        if not self._is_begun:
            self._is_begun = True
            if text.startswith(self._edge):
                self._put("", self._edge)
                text = text[len(self._edge) :]
        text = self._held + text
        self._held = self._edge if self._edge and text.endswith(self._edge) else ""
        if kept := text.removesuffix(self._held) if self._held else text:
            self._add(kept)

    def end(self) -> None:
        self._put("", self._held)


class _Text:
    """A string, passed on as it comes."""

    def __init__(self, put: Put) -> None:
        self._put = put
        put('"', "")

    def add(self, text: str) -> None:
        self._put(json.dumps(text, ensure_ascii=False)[1:-1], text)

    def end(self, close: str) -> None:
        self._put('"', close)

    def is_within_string(self) -> bool:
        """Text has no quotes that could hold its end."""
        return False

    def broken(self) -> None:
        """It was passed on as far as it came."""


class _Collected:
    """A value that is understood when all of it is there."""

    def __init__(self, put: Put, allowed: frozenset[str]) -> None:
        self._put = put
        self._allowed = allowed
        self._texts: list[str] = []
        self._first = ""  # character that is no space
        self._num_scanned = 0  # of `_texts`
        self._is_quoted = False

    def add(self, text: str) -> None:
        self._put("", text)
        self._texts.append(text)
        self._first = self._first or text.lstrip()[:1]

    def end(self, close: str) -> None:
        self._put(typed("".join(self._texts), self._allowed), close)

    def is_within_string(self) -> bool:
        """Whether what there is ends within a string of an array or object: a marker there is text of the model's own.

        Not where the value may be a string itself: that would be one with an odd quote.
        """
        if "string" in self._allowed or self._first not in ("[", "{"):
            return False
        for found in _QUOTES.finditer("".join(self._texts[self._num_scanned :])):
            self._is_quoted ^= found[0] == '"'
        self._num_scanned = len(self._texts)
        return self._is_quoted

    def broken(self) -> None:
        """What there is of it."""
        self._put("".join(self._texts), "")


def typed(text: str, allowed: frozenset[str]) -> str:
    """`text` as JSON of one of the types `allowed`; a string where it is of none of them."""
    value = whole_value(text)
    if value is not None and value[0] == '"':
        return json.dumps(text, ensure_ascii=False) if "string" in allowed else value
    for found in (value, whole_value(text, PYTHON)):
        if found is not None and _types_of_json(found) & allowed - {"string"}:
            return found
    return json.dumps(text, ensure_ascii=False)


def _types_of_json(text: str) -> set[str]:
    """The JSON types of a value's text."""
    match text[0]:
        case "{":
            return {"object"}
        case "[":
            return {"array"}
        case '"':
            return {"string"}
        case "t" | "f":
            return {"boolean"}
        case "n":
            return {"null"}
    return {"integer", "number"} if float(text).is_integer() else {"number"}
