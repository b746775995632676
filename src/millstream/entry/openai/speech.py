"""Speech: what one choice of a chat says, taken apart into reasoning, content and tool calls, as OpenAI's deltas or message.

A stream feeds it row by row, a whole answer at once; both come to the same, but for the ids of calls, which are drawn.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from millstream.entry.thought_count import ThoughtCount
from millstream.entry.turn import Answer
from millstream.parsing.events import ArgumentsDelta, CallBegin, CallEnd, ContentDelta, Event, ParsedCall, ReasoningDelta, join
from millstream.parsing.pipeline import Pipeline, Reading
from millstream.text.token_bytes import TokenBytes

Json = dict[str, Any]


class Speech:
    """One choice of an answer. With `shows_reasoning` what the model thinks is told, else only counted."""

    def __init__(self, answer: Answer, tokens: TokenBytes, *, shows_reasoning: bool = True) -> None:
        self._pipeline = Pipeline(answer.reading or Reading())
        self._thought = ThoughtCount(answer.meter(), tokens)
        self._shows_reasoning = shows_reasoning
        self._num_calls = 0
        self._is_complete = True

    @property
    def ends_in_calls(self) -> bool:
        """Whether there are calls, all of them complete."""
        return self._num_calls > 0 and self._is_complete

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens so far are reasoning."""
        return self._thought.tokens

    def count(self, token_ids: Iterable[int]) -> None:
        """These tokens were handed on."""
        self._thought.take(token_ids)

    def deltas(self, text: str, *, is_last: bool) -> list[Json]:
        """The deltas that more text makes; with `is_last` there is no more."""
        return [delta for event in self._read(text, is_last=is_last) if (delta := _delta(event)) is not None]

    def message(self, text: str) -> Json:
        """The members of the message that a whole text is."""
        parsed = join(self._read(text, is_last=True))
        message: Json = {"content": None if parsed.calls and not parsed.content else parsed.content}
        if parsed.reasoning:
            message |= _reasoning(parsed.reasoning)
        if parsed.calls:
            message["tool_calls"] = [_call(call) for call in parsed.calls]
        return message

    def _read(self, text: str, *, is_last: bool) -> list[Event]:
        events = self._pipeline.feed(text) if text else []
        if is_last:
            events += self._pipeline.finish()
        for event in events:
            if isinstance(event, CallBegin):
                self._num_calls += 1
            elif isinstance(event, CallEnd):
                self._is_complete &= event.is_complete
        return events if self._shows_reasoning else [event for event in events if not isinstance(event, ReasoningDelta)]


def _delta(event: Event) -> Json | None:
    match event:
        case ReasoningDelta(text):
            return _reasoning(text)
        case ContentDelta(text):
            return {"content": text}
        case CallBegin(index, name, id_):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id_ or _new_id(), "type": "function", "function": function}]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case CallEnd(index, False):
            return {"tool_calls": [{"index": index, "function": {"arguments": ""}, "incomplete": True}]}
    return None


def _call(call: ParsedCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    body = {"id": call.id or _new_id(), "type": "function", "function": function}
    return body if call.is_complete else {**body, "incomplete": True}


def _reasoning(text: str) -> Json:
    """Under the name that most clients read, and the one that the others do."""
    return {"reasoning_content": text, "reasoning": text}


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"
