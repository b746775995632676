"""Events: what the pipeline finds in a text, in the order of the text; and `Parsed`, all of them joined."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class ReasoningDelta(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


class ContentDelta(NamedTuple):
    """More of the answer."""

    text: str


class CallBegin(NamedTuple):
    """A tool call begins: number `call` of this text, from 0. `id` is what the model called it; None: it gave it no id."""

    call: int
    name: str
    id: str | None


class ArgumentsDelta(NamedTuple):
    """More of the arguments of a call; all of them are the text of a JSON object, once the call is complete."""

    call: int
    text: str


class CallEnd(NamedTuple):
    """A call gets no more arguments. It is not complete where the text broke off, or went on in a form that is no call."""

    call: int
    is_complete: bool


Event = ReasoningDelta | ContentDelta | CallBegin | ArgumentsDelta | CallEnd


@dataclass
class ParsedCall:
    """A tool call. `arguments` is the text of a JSON object where the call is complete, else the beginning of one."""

    name: str
    id: str | None = None
    arguments: str = ""
    is_complete: bool = False


@dataclass
class Parsed:
    """All of a text."""

    reasoning: str = ""
    content: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    @property
    def ends_in_calls(self) -> bool:
        """Whether the text asks for tools, and everything it asks for is complete."""
        return bool(self.calls) and all(call.is_complete for call in self.calls)


def join(events: Iterable[Event]) -> Parsed:
    """What the events come to."""
    reasoning, content = [], []
    calls: list[ParsedCall] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning.append(text)
            case ContentDelta(text):
                content.append(text)
            case CallBegin(_, name, id_):
                calls.append(ParsedCall(name, id_))
                arguments.append([])
            case ArgumentsDelta(index, text):
                arguments[index].append(text)
            case CallEnd(index, is_complete):
                calls[index].is_complete = is_complete
    for call, texts in zip(calls, arguments, strict=True):
        call.arguments = "".join(texts)
    return Parsed("".join(reasoning), "".join(content), calls)
