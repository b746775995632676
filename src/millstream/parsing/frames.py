"""Frames: a text that consists of messages, each with a header that says what it is: reasoning, a call, or the answer.

Called by the reasoning stage. Headers and ends are markup; the header of a call goes on to the tool stage with its body, within
which nothing is markup: a string in JSON may speak of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from millstream.parsing.draft import Malformed
from millstream.parsing.literals import read_value
from millstream.parsing.reader import EndOfText, Markers, Reader, Reading, Sink

MAX_HEADER_CHARS = 384


@dataclass(frozen=True)
class Frames:
    """How messages are written: a header, from one of `begins` to `message`, and a body, up to one of `ends` or a header.

    A header that `thinks` is found in opens reasoning, one that `calls` is found in a call. `first` may begin one at the
    beginning of a text, where the prompt ends within the first header.
    """

    begins: tuple[str, ...]
    first: str
    message: str
    ends: tuple[str, ...]
    thinks: str
    calls: str

    @property
    def all_marks(self) -> tuple[str, ...]:
        """What a message ends before."""
        return (*self.begins, *self.ends)


def read_frames(
    frames: Frames, reader: Reader, found: str, answer: Sink, reasoning: Callable[[int], Reading[str]]
) -> Reading[None]:
    """Read messages to the end of the text. `found` is the mark before, if there was one.

    `reasoning` reads one, whose header begins at a character, and returns the mark behind it.

    Raises:
        EndOfText: always.
    """
    marks = Markers(frames.all_marks)
    if not found:
        found = yield from _first(frames, reader, answer)
    while True:
        if found in frames.ends or not found:
            found = yield from reader.until(marks, answer)
            continue
        begin = reader.num_read - len(found)
        header = yield from _header(frames, reader, found, answer)
        if header is None:
            found = ""
        elif re.search(frames.calls, header):
            answer(header)
            yield from _body(reader, answer)
            found = ""
        elif re.search(frames.thinks, header):
            found = yield from reasoning(begin)
        else:
            found = yield from reader.until(marks, answer)


def _first(frames: Frames, reader: Reader, answer: Sink) -> Reading[str]:
    """The beginning of a header that has no mark; nothing if the text begins otherwise."""
    held: list[str] = []
    try:
        yield from reader.space(held.append)
        if (yield from reader.choice(Markers([frames.first]), held.append)) is not None:
            return "".join(held)
    except EndOfText:
        answer("".join(held))
        raise
    answer("".join(held))
    return ""


def _header(frames: Frames, reader: Reader, begin: str, answer: Sink) -> Reading[str | None]:
    """All of the header that `begin` begins; None if it is none, and goes to `answer`."""
    message = Markers([frames.message])
    taken = [begin]
    try:
        for _ in range(MAX_HEADER_CHARS):
            if (yield from reader.choice(message, taken.append)) is not None:
                return "".join(taken)
            if (yield from reader.peek()) == "\n":
                break
            reader.take(taken.append)
    except EndOfText:
        answer("".join(taken))
        raise
    answer("".join(taken))
    return None


def _body(reader: Reader, answer: Sink) -> Reading[None]:
    """The arguments of a call, as they are written."""
    yield from reader.space(answer)
    try:
        if (yield from reader.peek()) == "{":
            yield from read_value(reader, lambda _, raw: answer(raw))
    except Malformed as error:
        answer(error.unread)
