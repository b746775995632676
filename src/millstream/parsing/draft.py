"""Outlet and Draft: where the text of the tool stage goes: content, or a tool call whose form is still to be seen.

A call is told as soon as its name is known. What looked like one before that and is none becomes content, as it was written;
so does a call of a tool that nobody offered. A call that breaks after its name was told ends there, incomplete, and what
follows is content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from millstream.parsing.events import ArgumentsDelta, CallBegin, CallEnd, ContentDelta, Event


class Malformed(Exception):
    """This is no call. `unread` was consumed and belongs to nothing."""

    def __init__(self, unread: str = "") -> None:
        self.unread = unread


class Outlet:
    """Takes the stage's content and calls, and hands on events.

    White space beside a call belongs to it, so that at the end of content waits for what comes next.
    """

    def __init__(self, emit: Callable[[Event], None], tools: Tools) -> None:
        self.emit = emit
        self.tools = tools
        self._space: list[str] = []  # held back, in pieces
        self._num_calls = 0

    def content(self, text: str) -> None:
        """Text outside of calls."""
        kept = text.rstrip()
        if kept:
            self.flush()
            self.emit(ContentDelta(kept))
        if len(kept) < len(text):
            self._space.append(text[len(kept) :])

    def flush(self) -> None:
        """The white space held back is content."""
        if self._space:
            self.emit(ContentDelta("".join(self._space)))
            self._space.clear()

    @property
    def takes_calls(self) -> bool:
        """Whether one more call may be told."""
        return self.tools.max_calls is None or self._num_calls < self.tools.max_calls

    def take_space(self) -> list[str]:
        """The white space held back, which is the caller's from now on."""
        space, self._space = self._space, []
        return space

    def begin(self, name: str, id_: str | None) -> int:
        """Tell of a call; its index."""
        index = self._num_calls
        self._num_calls += 1
        self.emit(CallBegin(index, name, id_))
        return index


class Tools:
    """The tools that a request offers, by name, with the JSON schema of their arguments. None: any name will do.

    Of more than `max_calls` calls the first are calls, and the rest content.
    """

    def __init__(self, schemas: dict[str, object] | None = None, max_calls: int | None = None) -> None:
        self._schemas = schemas
        self.max_calls = max_calls

    def has(self, name: str) -> bool:
        """Whether a call of `name` is a call."""
        return bool(name) and (self._schemas is None or name in self._schemas)

    def schema(self, name: str) -> object:
        """The schema of its arguments; None where there is none."""
        return None if self._schemas is None else self._schemas.get(name)


class Draft:
    """One call while it is read."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._raw = outlet.take_space()
        self._early: list[str] = []  # arguments that came before the name
        self._state: Literal["pending", "told", "quoted", "done"] = "pending"
        self._index = -1
        self._has_arguments = False
        self.schema: object = None  # of the arguments, once the call is told

    def markup(self, text: str) -> None:
        """Text around name and arguments."""
        if self._state == "pending":
            self._raw.append(text)
        elif self._state == "quoted":
            self._outlet.content(text)

    def arguments(self, text: str, raw: str | None = None) -> None:
        """Arguments: JSON, and what the model wrote for it, where that is not the same."""
        self._has_arguments = True
        if self._state == "told":
            if text:
                self._outlet.emit(ArgumentsDelta(self._index, text))
            return
        if self._state == "pending":
            self._early.append(text)
        self.markup(text if raw is None else raw)

    def named(self, name: str, id_: str | None = None) -> None:
        """The name is known: tell of the call, or quote it where there is no such tool.

        Raises:
            Malformed: it has one already.
        """
        if self._state != "pending":
            raise Malformed
        if not (self._outlet.tools.has(name) and self._outlet.takes_calls):
            self._state = "quoted"
            self._release()
            return
        self._state = "told"
        self._raw.clear()
        self._index = self._outlet.begin(name, id_)
        self.schema = self._outlet.tools.schema(name)
        if early := "".join(self._early):
            self._outlet.emit(ArgumentsDelta(self._index, early))

    def complete(self) -> None:
        """All arguments were there.

        Raises:
            Malformed: the call has no name.
        """
        if self._state == "pending":
            raise Malformed
        if self._state == "told":
            if not self._has_arguments:
                self._outlet.emit(ArgumentsDelta(self._index, "{}"))
            self._outlet.emit(CallEnd(self._index, is_complete=True))
            self._state = "done"

    def abandon(self, unread: str = "") -> None:
        """There is no more of it. Without effect on a complete call."""
        if self._state == "pending":
            self._release()
        elif self._state == "told":
            self._outlet.emit(CallEnd(self._index, is_complete=False))
        self._state = "done"
        if unread:
            self._outlet.content(unread)

    def _release(self) -> None:
        for text in self._raw:
            self._outlet.content(text)
        self._raw.clear()
