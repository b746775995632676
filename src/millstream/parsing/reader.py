"""Reader: text that arrives in pieces, read as if it were all there. What all stages of the pipeline read through.

Its methods are generators that yield where they need more text. None of them consumes more or less because of where the text
was cut, so what is made of them does not depend on the cuts either. What is consumed goes to a `Sink`; what is not yet is no
longer than the markers that are looked for, so all costs are linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]  # yields: more text is needed
Sink = Callable[[str], object]

_SPACE = re.compile(r"[ \t\r\n]+")


class EndOfText(Exception):
    """The text ended where more of it was needed. All of it has been consumed."""


class Markers:
    """Strings that are looked for together; none is the beginning of another, so that the first one found is the right one."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.markers = tuple(dict.fromkeys(markers))
        for marker in self.markers:
            if not marker or any(other != marker and other.startswith(marker) for other in self.markers):
                raise ValueError(f"the marker {marker!r} is empty, or the beginning of another")
        self.pattern = re.compile("|".join(map(re.escape, self.markers)) or r"(?!)")
        self._longest = max(map(len, self.markers), default=0)
        self._begun = re.compile(f"(?:{'|'.join(map(_beginnings, self.markers))})\\Z" if self.markers else "(?!)")

    def num_held(self, text: str, start: int) -> int:
        """How many characters at the end of `text[start:]` are a proper prefix of a marker, at most."""
        match = self._begun.search(text, max(start, len(text) - self._longest + 1))
        return 0 if match is None else len(text) - match.start()

    def may_begin(self, text: str, start: int) -> bool:
        """Whether all of `text[start:]` is the beginning of a marker."""
        return len(text) - start < self._longest and any(marker.startswith(text[start:]) for marker in self.markers)


def _beginnings(marker: str) -> str:
    """A pattern of the proper prefixes of a marker, the longest first."""
    pattern = ""
    for char in reversed(marker[1:-1]):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return f"{re.escape(marker[0])}{pattern}" if len(marker) > 1 else "(?!)"


class Reader:
    """See the module. `feed` gives it text, `close` says that there is no more."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._num_dropped = 0  # characters that were read and are no longer in `_text`
        self._is_closed = False

    @property
    def num_read(self) -> int:
        """How many characters have been consumed."""
        return self._num_dropped + self._at

    def feed(self, text: str) -> None:
        """Append text."""
        self._num_dropped += self._at
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self) -> None:
        """There is no more text."""
        self._is_closed = True

    def peek(self) -> Reading[str]:
        """The next character, which stays.

        Raises:
            EndOfText: there is none.
        """
        while self._at == len(self._text):
            if self._is_closed:
                raise EndOfText
            yield
        return self._text[self._at]

    def take(self, sink: Sink) -> str:
        """Consume the character that `peek` showed."""
        char = self._text[self._at]
        self._at += 1
        sink(char)
        return char

    def run(self, pattern: re.Pattern[str], sink: Sink, limit: int | None = None) -> Reading[int]:
        """Consume the longest run that `pattern`, one or more of a class of characters, matches; up to `limit` of them.

        Raises:
            EndOfText: the text ended before a character that is none of them.
        """
        count = 0
        while limit is None or count < limit:
            yield from self.peek()
            end = len(self._text) if limit is None else self._at + limit - count
            match = pattern.match(self._text, self._at, end)
            if match is None:
                break
            self._at = match.end()
            count += len(match[0])
            sink(match[0])
        return count

    def space(self, sink: Sink) -> Reading[int]:
        """Consume white space."""
        return (yield from self.run(_SPACE, sink))

    def choice(self, markers: Markers, sink: Sink) -> Reading[str | None]:
        """Consume the marker that comes next. None, and nothing consumed, if there is none.

        Raises:
            EndOfText: the text ended within what may have become one; that much was consumed.
        """
        while True:
            match = markers.pattern.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                sink(match[0])
                return match[0]
            if not markers.may_begin(self._text, self._at):
                return None
            if self._is_closed:
                self._consume(len(self._text), sink)
                raise EndOfText
            yield

    def until(self, markers: Markers, sink: Sink) -> Reading[str]:
        """Consume everything before the next marker, into `sink`, and the marker itself, which is returned.

        Raises:
            EndOfText: there is none; everything went into `sink`.
        """
        while True:
            match = markers.pattern.search(self._text, self._at)
            if match is not None:
                self._consume(match.start(), sink)
                self._at = match.end()
                return match[0]
            if self._is_closed:
                self._consume(len(self._text), sink)
                raise EndOfText
            self._consume(len(self._text) - markers.num_held(self._text, self._at), sink)
            yield

    def rest(self, sink: Sink) -> Reading[None]:
        """Consume everything, until there is no more."""
        while not self._is_closed:
            self._consume(len(self._text), sink)
            yield
        self._consume(len(self._text), sink)

    def _consume(self, end: int, sink: Sink) -> None:
        if end > self._at:
            text = self._text[self._at : end]
            self._at = end
            sink(text)


class Machine:
    """A reader and the program that reads from it: pushed text becomes read text."""

    def __init__(self, program: Callable[[Reader], Reading[None]]) -> None:
        self._reader = Reader()
        self._reading = program(self._reader)
        next(self._reading, None)

    def feed(self, text: str) -> None:
        """Read on in `text`."""
        self._reader.feed(text)
        next(self._reading, None)

    def finish(self) -> None:
        """Read to the end; nothing may be fed after it."""
        self._reader.close()
        next(self._reading, None)
