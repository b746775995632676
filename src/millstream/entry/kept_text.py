"""KeptText: the beginning of what a call's requests say, for the log where it is asked for. One a generation."""

from __future__ import annotations

from millstream.messages import TextRow

MAX_CHARS = 2000  # of a prompt, and of an answer


class KeptText:
    """Texts by the requests' place in their call, cut to `MAX_CHARS`."""

    def __init__(self, num_requests: int) -> None:
        self._pieces: list[list[str]] = [[] for _ in range(num_requests)]
        self._room = [MAX_CHARS] * num_requests

    def take(self, index: int, row: TextRow) -> None:
        """A row goes to the client."""
        if row.text and self._room[index] > 0:
            self._pieces[index].append(row.text[: self._room[index]])
            self._room[index] -= len(row.text)

    def text(self, index: int) -> str:
        """What the request said."""
        return "".join(self._pieces[index])
