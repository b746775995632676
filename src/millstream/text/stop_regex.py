"""RegexMatcher: where a request's stop regexes first match in its text, whatever pieces the text comes in.

One per request that has stop regexes, fed by the scheduler with newly stable text. It decides; it never trims.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from millstream.text.regex import CACHE_SIZE, Pattern
from millstream.text.stop import StopMatch


class _Progress:
    """Where one pattern stands at the end of the text: the positions it may be at, by the start of the match they belong to.

    Earliest start first, and each position only for the earliest start that reaches it: later ones can match nothing that the
    earliest does not match too.
    """

    __slots__ = ("pattern", "threads")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.threads: list[tuple[int, int]] = []  # (start of the match in characters, positions)

    def advance(self, char: str, offset: int) -> int | None:
        """Take the character at `offset`; return the earliest start of a match that it completes, if there is one."""
        pattern = self.pattern
        free = pattern.taking(char)
        threads = []
        for start, positions in self.threads:
            reached = pattern.successors(positions) & free
            if reached:
                free ^= reached
                threads.append((start, reached))
        reached = (pattern.first if offset else pattern.first_at_start) & free
        if reached:
            threads.append((offset, reached))
        self.threads = threads
        accepting = pattern.accepting
        for start, positions in threads:
            if positions & accepting:
                return start
        return None


class RegexMatcher:
    """The first match to complete in a text that arrives in pieces.

    "First" is the smallest end, as if the text came one character at a time: the text stops at the first character at which any
    part of it that ends there is a match, and of the parts that end there the longest counts. So `a+` stops at the first `a`, a
    quantifier being greedy or lazy makes no difference, and every way to cut the text gives the same answer. `StopMatch.stop`
    is the text that matched.

    `held_back` counts the characters from the earliest place where a match may still be under way; `num_chars` counts all
    characters fed. After a match both stand still and every `feed` returns that match.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._progresses = [_Progress(pattern) for pattern in patterns]
        self._starting: dict[str, list[_Progress]] = {}  # character -> patterns that a match of may begin with it
        self._active: list[_Progress] = []
        self._tail: deque[str] = deque()  # the pieces of text that reach into what is held back
        self._tail_start = 0  # characters before them
        self._match: StopMatch | None = None
        self.held_back = 0  # characters
        self.num_chars = 0  # characters

    def feed(self, text: str, *, armed: bool = True) -> StopMatch | None:
        """Take the next piece of text; return the first match that ends in it.

        With `armed=False` (fewer than min_new_tokens so far) a match that ends here is passed over; what only starts here can
        still match later.
        """
        if self._match is not None or not text:
            return self._match
        self._tail.append(text)
        for offset, char in enumerate(text, self.num_chars):
            start = self._advance(char, offset)
            if start is not None and armed:
                matched = "".join(self._tail)[start - self._tail_start : offset + 1 - self._tail_start]
                self._match = StopMatch(stop=matched, start=start, end=offset + 1)
                break
        self.num_chars += len(text)
        self._hold_back()
        return self._match

    def _advance(self, char: str, offset: int) -> int | None:
        """Take one character; return the earliest start of the matches that it completes."""
        starting = self._starting.get(char)
        if starting is None:
            starting = self._find_starting(char)
        if not self._active and not starting:
            return None
        candidates = self._active
        if starting:
            candidates = candidates + [progress for progress in starting if not progress.threads]
        starts = [start for progress in candidates if (start := progress.advance(char, offset)) is not None]
        self._active = [progress for progress in candidates if progress.threads]
        return min(starts, default=None)

    def _find_starting(self, char: str) -> list[_Progress]:
        if len(self._starting) >= CACHE_SIZE:
            self._starting.clear()
        starting = [each for each in self._progresses if each.pattern.taking(char) & each.pattern.first_at_start]
        self._starting[char] = starting
        return starting

    def _hold_back(self) -> None:
        """Count what is held back, and forget the text before it."""
        if self._match is not None or not self._active:
            self.held_back = 0
            self._tail.clear()
            self._tail_start = self.num_chars
            return
        start = min(progress.threads[0][0] for progress in self._active)
        self.held_back = self.num_chars - start
        while self._tail_start + len(self._tail[0]) <= start:
            self._tail_start += len(self._tail.popleft())
