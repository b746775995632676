"""ToolStage: text becomes content and tool calls. The second stage of the pipeline; it knows no format, only descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from millstream.grammar.writing import Writing
from millstream.parsing.draft import Draft, Malformed, Outlet, Tools
from millstream.parsing.events import Event
from millstream.parsing.forms import Calls, Form
from millstream.parsing.reader import EndOfText, Machine, Markers, Reader, Reading


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes tool calls.

    Calls stand behind one of the `opens` markers, several of them between the markers of a `section`, if there is one. With
    `bare`, calls in this form and without a marker are calls, too, where a text begins with one of `bare_starts`.
    `written` says how the models write calls that they are held to (the first whose `needs` the vocabulary has); without it
    calls cannot be enforced. `examples` show the format, and are tests of it. A chat template that has all of `template_marks`
    speaks it.
    """

    name: str
    form: Form
    opens: tuple[str, ...] = ()
    section: tuple[str, str] | None = None
    bare: Form | None = None
    bare_starts: str = ""
    template_marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    written: tuple[Writing, ...] = ()
    examples: tuple[Example, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Example:
    """A text in some format, and what it means: content, and of each call name and arguments."""

    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    ids: tuple[str, ...] = ()


class ToolStage:
    """The calls in one text. `emit` gets the events as they come."""

    def __init__(self, format_: ToolFormat, tools: Tools, emit: Callable[[Event], None]) -> None:
        self._format = format_
        self._outlet = Outlet(emit, tools)
        begin = format_.section[:1] if format_.section else ()
        self._starts = Markers([*begin, *format_.opens])
        self._opens = Markers(format_.opens)
        self._ends = Markers(format_.section[1:] if format_.section else ())
        self._machine = Machine(self._program)

    def feed(self, text: str) -> None:
        """Read on."""
        self._machine.feed(text)

    def finish(self) -> None:
        """There is no more text: what was held back is what it looks like now."""
        self._machine.finish()
        self._outlet.flush()

    def _program(self, reader: Reader) -> Reading[None]:
        try:
            if self._format.bare is not None:
                yield from reader.space(self._outlet.content)
                if (yield from reader.peek()) in self._format.bare_starts:
                    yield from self._calls(reader, self._format.bare, "")
            while True:
                found = yield from reader.until(self._starts, self._outlet.content)
                yield from self._calls(reader, self._format.form, found)
        except EndOfText:
            return

    def _calls(self, reader: Reader, form: Form, found: str) -> Reading[None]:
        """Read the calls that begin with the marker `found`."""
        calls = Calls(lambda: Draft(self._outlet))
        calls.draft.markup(found)
        try:
            if self._format.section and found == self._format.section[0]:
                yield from reader.space(calls.draft.markup)
                if (yield from reader.choice(self._opens, calls.draft.markup)) is None:
                    raise Malformed
            yield from form.read(reader, calls)
            yield from reader.space(calls.draft.markup)
            yield from reader.choice(self._ends, calls.draft.markup)
        except Malformed as error:
            calls.draft.abandon(error.unread)
        except EndOfText:
            calls.draft.abandon()
            raise
        else:
            calls.draft.abandon()
