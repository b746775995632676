"""ThoughtMeter: how many of an answer's tokens are thought. The scheduler ends a thought by it, the entry counts by it.

The tokens of tags are not thought; a token that holds the end of a thought and the tag behind it is. Where an answer has begun,
tags are text, unless the model's family has them everywhere.
"""

from __future__ import annotations

from millstream.messages.grammar import ThoughtMarks

_SPACE = b" \t\r\n"


class ThoughtMeter:
    """Takes an answer token by token. `count` is exact once a tag is complete or text goes on."""

    __slots__ = ("_anywhere", "_begin", "_end", "_text", "_tokens", "count", "is_inside", "is_over")

    def __init__(self, marks: ThoughtMarks) -> None:
        self._begin = marks.begin.strip().encode()
        self._end = marks.end.strip().encode()
        self._anywhere = marks.is_anywhere
        self._text = b""  # outside of a thought: what may become its beginning
        self._tokens: list[bytes] = []  # within: those that may become its end
        self.count = 0
        self.is_inside = marks.is_open
        self.is_over = False  # nothing that follows is thought

    def take(self, token: bytes) -> None:
        """Go on behind a token with these bytes."""
        if self.is_inside:
            self._think(token)
        elif not self.is_over:
            self._text += token
            self._wait()

    def _think(self, token: bytes) -> None:
        """One more token of a thought, which may end in it."""
        tokens = self._tokens
        tokens.append(token)
        self.count += 1
        text = b"".join(tokens)
        at = text.find(self._end)
        if at < 0:
            size = len(text)
            while (size := size - len(tokens[0])) >= len(self._end) - 1:
                del tokens[0]
            return
        start = len(text)
        for each in reversed(tokens):
            start -= len(each)
            if start < at:
                break
            self.count -= 1  # of the tag alone
        tokens.clear()
        self.is_inside = False
        self._text = text[at + len(self._end) :]
        self._wait()

    def _wait(self) -> None:
        """Look for the beginning of a thought."""
        text = self._text
        if self._anywhere:
            at = text.find(self._begin)
            if at < 0:
                self._text = text[-len(self._begin) :]
                return
            text = text[at:]
        else:
            text = text.lstrip(_SPACE)
            if not text.startswith(self._begin):
                self.is_over = not self._begin.startswith(text)
                return
        self.is_inside = True
        if rest := text[len(self._begin) :]:
            self._think(rest)
