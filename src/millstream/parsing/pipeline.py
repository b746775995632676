"""Pipeline: a model's text, as it comes, becomes events: reasoning, content and tool calls.

The stages in their order: stop strings (long before, where the text is made: what comes here is stable), reasoning, tools. What
a stage passes on goes to the next at once, and `finish` flushes them in the same order. Nothing in reasoning is a tool call.
A whole text is fed at once; how a text is cut changes where the deltas are, never what they come to.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.parsing.draft import Tools
from millstream.parsing.events import ArgumentsDelta, ContentDelta, Event, Parsed, ReasoningDelta, join
from millstream.parsing.reasoning import ReasoningFormat, ReasoningStage, Span
from millstream.parsing.stage import ToolFormat, ToolStage


@dataclass(frozen=True)
class Reading:
    """How a text is to be read. A stage without a format is not there.

    `is_open`: whether the text begins within reasoning; None: as the format has it. `tools`: those that may be called.
    """

    reasoning: ReasoningFormat | None = None
    tool_format: ToolFormat | None = None
    tools: Tools = Tools()
    is_open: bool | None = None

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the text must have the special tokens in it, which markers may be."""
        return self.tool_format is not None or (self.reasoning is not None and self.reasoning.is_special)


class Pipeline:
    """One text, read once. Not to be fed after `finish`."""

    def __init__(self, reading: Reading) -> None:
        self._events: list[Event] = []
        self._tools: ToolStage | None = None
        self._reasoning: ReasoningStage | None = None
        if reading.tool_format is not None:
            self._tools = ToolStage(reading.tool_format, reading.tools, self._events.append)
        if (format_ := reading.reasoning) is not None:
            is_open = format_.is_open if reading.is_open is None else reading.is_open
            self._reasoning = ReasoningStage(format_, self._think, self._answer, is_open=is_open)

    def feed(self, text: str) -> list[Event]:
        """The events that more text brings, in order, with neighbours of a kind joined."""
        if self._reasoning is not None:
            self._reasoning.feed(text)
        else:
            self._answer(text)
        return self._take()

    def finish(self) -> list[Event]:
        """The last events: what was held back can no longer become a marker."""
        if self._reasoning is not None:
            self._reasoning.finish()
        if self._tools is not None:
            self._tools.finish()
        return self._take()

    @property
    def reasoning_spans(self) -> list[Span]:
        """Where the reasoning was in the text fed so far; what counts its tokens needs to know."""
        return [] if self._reasoning is None else self._reasoning.spans

    def _think(self, text: str) -> None:
        if text:
            self._events.append(ReasoningDelta(text))

    def _answer(self, text: str) -> None:
        if not text:
            return
        if self._tools is not None:
            self._tools.feed(text)
        else:
            self._events.append(ContentDelta(text))

    def _take(self) -> list[Event]:
        merged = merge(self._events)
        self._events.clear()
        return merged


def merge(events: list[Event]) -> list[Event]:
    """The same events with neighbouring deltas of a kind in one."""
    merged: list[Event] = []
    texts: list[str] = []

    def close() -> None:
        if len(texts) > 1:
            merged[-1] = merged[-1]._replace(text="".join(texts))  # type: ignore[call-arg]

    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, ReasoningDelta | ContentDelta | ArgumentsDelta):
            if type(event) is type(last) and event[:-1] == last[:-1]:
                texts.append(event.text)
                continue
            close()
            texts = [event.text]
        else:
            close()
            texts = []
        merged.append(event)
    close()
    return merged


def parse(text: str, reading: Reading) -> Parsed:
    """All of a text."""
    pipeline = Pipeline(reading)
    return join([*pipeline.feed(text), *pipeline.finish()])
