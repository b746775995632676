"""JsonList: a JSON array, and JsonText: a JSON string, that grow. What is in them was encoded once, when it came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_encode = msgspec.json.encode


class JsonList:
    """An array of values."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items = bytearray()

    def extend(self, values: Sequence[Any]) -> None:
        """Append values."""
        if values:
            if self._items:
                self._items += b","
            self._items += memoryview(_encode(values))[1:-1]

    def clear(self) -> None:
        """Have no items."""
        self._items.clear()

    def raw(self) -> msgspec.Raw:
        """The array, to be put into something that is encoded."""
        return msgspec.Raw(b"".join((b"[", self._items, b"]")))


class JsonText:
    """A string."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = bytearray()

    def append(self, text: str) -> None:
        """Append text. JSON escapes each character for itself, so parts can be joined."""
        self._text += memoryview(_encode(text))[1:-1]

    def clear(self) -> None:
        """Be empty."""
        self._text.clear()

    def raw(self) -> msgspec.Raw:
        """The string, to be put into something that is encoded."""
        return msgspec.Raw(b"".join((b'"', self._text, b'"')))
