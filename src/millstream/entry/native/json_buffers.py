"""JsonList: a JSON array, and JsonText: a JSON string, that grow. What is in them was encoded once, when it came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_encode = msgspec.json.encode


class JsonList:
    """An array; `items` is what stands between its brackets."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = bytearray()

    def extend(self, values: Sequence[Any]) -> None:
        """Append values."""
        if values:
            if self.items:
                self.items += b","
            self.items += _encode(values)[1:-1]

    def json(self) -> bytes:
        """The whole array."""
        return b"".join((b"[", self.items, b"]"))

    def clear(self) -> None:
        """Have no items."""
        self.items.clear()


class JsonText:
    """A string; `content` is what stands between its quotes."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = bytearray()

    def append(self, text: str) -> None:
        """Append text. JSON escapes each character for itself, so parts can be joined."""
        self.content += _encode(text)[1:-1]

    def clear(self) -> None:
        """Be empty."""
        self.content.clear()
