"""StopMatcher: where a request's stop strings first appear in its text, whatever pieces the text comes in.

One per request that has stop strings, fed by the scheduler with newly stable text. It decides; it never trims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """`stop` was found at characters `start`..`end - 1` of all text fed."""

    stop: str
    start: int  # characters
    end: int  # characters


class _Progress:
    """How much of one stop string the text ends with: Knuth, Morris and Pratt, 'Fast pattern matching in strings' (1977).

    The failure table grows only as far as the text ever matched, so a stop string that never starts costs nothing.
    """

    __slots__ = ("_failure", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # characters of the stop matched at the end of the text
        self._failure = [0]  # [i]: longest proper prefix of stop[: i + 1] that also ends it

    def advance(self, char: str) -> bool:
        """Take one more character; True if the stop string now ends the text."""
        stop = self.stop
        length = self.length
        if length == len(stop):
            length = self._failure[length - 1]
        while length and stop[length] != char:
            length = self._failure[length - 1]
        if stop[length] == char:
            length += 1
            if length > len(self._failure):
                self._extend(length)
        self.length = length
        return length == len(stop)

    def pending(self) -> int:
        """Characters at the end of the text that are a proper prefix of the stop string."""
        return self._failure[-1] if self.length == len(self.stop) else self.length

    def _extend(self, length: int) -> None:
        border = self._failure[-1]
        char = self.stop[length - 1]
        while border and self.stop[border] != char:
            border = self._failure[border - 1]
        self._failure.append(border + 1 if self.stop[border] == char else 0)


class StopMatcher:
    """The first stop string to complete in a text that arrives in pieces.

    "First" is the smallest end, as if the text came one character at a time; of several stops with that end, the longest. So
    every way to cut the text gives the same answer. Cost: a dict look-up a character, plus a step for each stop string that
    is partly matched.

    `held_back` counts the characters at the end of the text that are a proper prefix of some stop string and may still grow
    into a match; `num_chars` counts all characters fed. After a match both stand still and every `feed` returns that match.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._by_first_char: dict[str, list[_Progress]] = {}
        for stop in dict.fromkeys(stops):
            self._by_first_char.setdefault(stop[0], []).append(_Progress(stop))
        self._active: list[_Progress] = []
        self._match: StopMatch | None = None
        self.held_back = 0  # characters
        self.num_chars = 0  # characters

    def feed(self, text: str, *, armed: bool = True) -> StopMatch | None:
        """Take the next piece of text; return the first match that ends in it.

        With `armed=False` (fewer than min_new_tokens so far) a stop string that ends here is passed over; one that only
        starts here can still match later.
        """
        if self._match is not None:
            return self._match
        if not self._active and self._by_first_char.keys().isdisjoint(text):  # most tokens: no stop string goes on or starts
            self.num_chars += len(text)
            return None
        for offset, char in enumerate(text, self.num_chars + 1):
            stop = self._advance(char)
            if stop is not None and armed:
                self._match = StopMatch(stop=stop, start=offset - len(stop), end=offset)
                break
        self.num_chars += len(text)
        self.held_back = 0 if self._match else max((progress.pending() for progress in self._active), default=0)
        return self._match

    def _advance(self, char: str) -> str | None:
        """Take one character; return the longest stop string that now ends the text."""
        starting = self._by_first_char.get(char)
        if not self._active and starting is None:
            return None
        candidates = self._active
        if starting is not None:
            candidates = candidates + [progress for progress in starting if not progress.length]
        complete = [progress.stop for progress in candidates if progress.advance(char)]
        self._active = [progress for progress in candidates if progress.length]
        return max(complete, key=len, default=None)
