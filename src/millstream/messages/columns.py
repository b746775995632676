"""Columns: how most rows of most steps travel, those of requests that simply go on: packed arrays, not an object each.

Both batches use them. A request is named by its slot, a number that its entry worker gives it once. Its first and its last row,
and every row that says more than "these tokens", are full rows with the rid. A batch has at most one row of a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from msgspec import Struct

SLOTS = 1 << 32  # slots are counted up and start over after so many requests


def pack_slots(slots: Iterable[int]) -> bytes:
    """Slots as uint32 in this machine's byte order."""
    return array("I", slots).tobytes()


def pack_ids(token_ids: Iterable[int]) -> bytes:
    """Token ids as int32 in this machine's byte order."""
    return array("i", token_ids).tobytes()


def unpack_slots(data: bytes) -> list[int]:
    """The slots of `pack_slots`.

    Raises:
        TypeError: the length is not a multiple of 4.
    """
    return memoryview(data).cast("I").tolist()


def unpack_ids(data: bytes, width: int) -> list[list[int]]:
    """The token ids of `pack_ids`, `width` to a row.

    Raises:
        TypeError: the length is not a multiple of 4.
        ValueError: `width` is less than 1.
    """
    token_ids = memoryview(data).cast("i").tolist()
    if width == 1:
        return [[token_id] for token_id in token_ids]
    if width < 1:
        raise ValueError(f"rows of {width} tokens")
    return [token_ids[start : start + width] for start in range(0, len(token_ids), width)]


class TokenColumns(Struct, array_like=True, gc=False):
    """Rows of `width` new tokens each, nothing held back, nothing ended: slots and their ids, in step."""

    slots: bytes
    token_ids: bytes
    width: int
    entry: int = 0  # the worker that has these requests

    def rows(self) -> Iterable[tuple[int, list[int]]]:
        """Slot and new token ids of each row.

        Raises:
            ValueError, TypeError: the columns do not fit together.
        """
        return zip(unpack_slots(self.slots), unpack_ids(self.token_ids, self.width), strict=True)


class TextColumns(Struct, array_like=True, gc=False):
    """The same rows with the text that each adds, which may be none."""

    slots: bytes
    token_ids: bytes
    width: int
    texts: list[str]

    def rows(self) -> Iterable[tuple[int, str, list[int]]]:
        """Slot, text and token ids of each row.

        Raises:
            ValueError, TypeError: the columns do not fit together.
        """
        return zip(unpack_slots(self.slots), self.texts, unpack_ids(self.token_ids, self.width), strict=True)
