"""TextDigest: a checksum of a text that passes by in pieces; the same for every way to cut it.

The detokenizer's witness makes one of the text that a request's ids stand for, the entry one of what it handed on; they must
be equal. It detects faults, not forgery: CRC-32 of the UTF-8 form.
"""

from __future__ import annotations

from zlib import crc32

PIECES = 64  # joined before they are hashed: most of the cost is in the call, not in the bytes


def digest_of(text: str, before: int = 0) -> int:
    """The digest of a text with digest `before`, followed by `text`."""
    return crc32(text.encode(), before)


class TextDigest:
    """The digest of all text added so far."""

    __slots__ = ("_length", "_pieces", "_value")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._value = 0
        self._length = 0

    def add(self, text: str) -> None:
        """Take the next piece."""
        self._pieces.append(text)
        if len(self._pieces) == PIECES:
            self._fold()

    @property
    def value(self) -> int:
        """The digest; 0 of the empty text."""
        self._fold()
        return self._value

    @property
    def length(self) -> int:
        """Characters added."""
        self._fold()
        return self._length

    def _fold(self) -> None:
        text = "".join(self._pieces)
        self._value = digest_of(text, self._value)
        self._length += len(text)
        self._pieces.clear()
