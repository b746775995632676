"""The digest of a text that passes by in pieces: the same for every way to cut it.

The detokenizer's witness makes one of the text that a request's ids stand for, the entry one of what it handed on; they must
be equal. It detects faults, not forgery: CRC-32 of the UTF-8 form.
"""

from __future__ import annotations

from zlib import crc32


def digest_of(text: str, before: int = 0) -> int:
    """The digest of a text with digest `before` (0: of the empty text), followed by `text`."""
    return crc32(text.encode(), before)
