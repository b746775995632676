"""Witness: says what the whole visible text of one request must be, as a digest, without looking at the rows that were sent.

One for each live request, owned by its `DecodeStatus`. It decodes the ids a second time, with a decoder of its own and
in large groups (up to `GROUP` ids that is the one-shot decode), cuts by the evidence of the last row, and hashes the rest. The
entry compares that with what it handed on, so a fault anywhere between the ids and the client's text shows.
"""

from __future__ import annotations

from array import array

from millstream.messages import Abort, Stop, TokenRow
from millstream.text.digest import digest_of
from millstream.text.incremental import IncrementalDecoder

GROUP = 1024  # ids decoded at once: about 0.1 ms, which bounds what the end of a request costs its neighbours


class Witness:
    """The expected text of one request, as far as it is decided."""

    __slots__ = ("_decoder", "_digest", "_ids", "_no_stop_trim", "_undecided")

    def __init__(self, decoder: IncrementalDecoder, *, no_stop_trim: bool) -> None:
        self._decoder = decoder
        self._no_stop_trim = no_stop_trim
        self._ids = array("i")  # not yet decoded; packed, for there are many of them
        self._undecided = ""  # decoded text that may still be cut off
        self._digest = 0

    def push(self, token_ids: list[int]) -> None:
        """Take tokens that end nothing, with nothing held back."""
        ids = self._ids
        ids.extend(token_ids)
        if len(ids) >= GROUP:
            self._decide(self._undecided + self._decoder.push(ids), 0)
            del ids[:]

    def add(self, row: TokenRow) -> int | None:
        """Take the next row; returns the digest of all visible text with the final one."""
        ids, finish = self._ids, row.finish
        ids.extend(row.token_ids)
        if finish is None and len(ids) < GROUP:
            return None
        matched = finish.matched if isinstance(finish, Stop) else None
        if isinstance(matched, int) and not self._no_stop_trim:
            ids.pop()
        text = self._undecided + self._decoder.push(ids)
        del ids[:]
        if finish is not None and not isinstance(matched, str) and not isinstance(finish, Abort):
            text += self._decoder.flush()
        self._decide(text, row.held_back)
        return None if finish is None else self._digest

    def _decide(self, text: str, held_back: int) -> None:
        visible = len(text) - held_back
        self._digest = digest_of(text[:visible], self._digest)
        self._undecided = text[visible:]
