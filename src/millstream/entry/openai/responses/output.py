"""Output: what one response says as items: reasoning, messages and function calls, in the order of its text.

A stream takes the events as they come, a plain or background response only what they come to, so both are the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from millstream.entry.fields import Json
from millstream.entry.openai.responses.ids import output_id
from millstream.entry.openai.responses.items import Item
from millstream.entry.openai.responses.tokens import brief
from millstream.entry.thought_count import ThoughtCount
from millstream.entry.turn import Answer
from millstream.parsing.events import ArgumentsDelta, CallBegin, CallEnd, ContentDelta, Event, ReasoningDelta
from millstream.parsing.pipeline import Pipeline
from millstream.text.token_bytes import TokenBytes

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class Output:
    """The items of one response while they are made, and after that. Without a reading all of its text is one message."""

    def __init__(self, response_id: str, answer: Answer, tokens: TokenBytes) -> None:
        self.items: list[Item] = []
        self.thought = ThoughtCount(answer.meter(), tokens)
        self._response_id = response_id
        self._pipeline = None if answer.reading is None else Pipeline(answer.reading)
        self._is_open = False  # whether more may come to the last item
        self._is_closed = False  # nothing more comes at all
        self._texts: list[str] = []  # of the last item, while it is open, and the tokens that are listed with it
        self._logprobs: list[Json] = []
        self._call_ids: set[str] = set()
        self._events: list[Json] = []

    @property
    def is_plain(self) -> bool:
        """Whether all of the text is one message."""
        return self._pipeline is None

    def opening(self) -> list[Json]:
        """The events before any text: those of the one message, where there is but one."""
        if self._pipeline is None:
            self._enter("message")
        return self._taken()

    def take(self, text: str, logprobs: Sequence[Json] = (), *, is_last: bool = False) -> list[Json]:
        """The events that more text makes, and its tokens where those are listed; with `is_last` there is no more."""
        if self._pipeline is None:
            if text or logprobs:
                self._enter("message")
                self._delta(text, logprobs)
            return self._taken()
        found = self._pipeline.feed(text) if text else []
        if is_last:
            found += self._pipeline.finish()
        for event in found:
            self._read(event)
        return self._taken()

    def add(self, text: str, logprobs: Sequence[Json]) -> None:
        """More text of the one message of a plain output, of whose event somebody else takes care."""
        self._texts.append(text)
        self._logprobs += logprobs

    def close(self, *, is_complete: bool, is_cut: bool = False) -> list[Json]:
        """The last events: an open item ends, as incomplete unless told otherwise. Without effect the second time.

        With `is_cut` the response broke off: a message without text is none.
        """
        if self._is_closed:
            return []
        self._is_closed = True
        if not (self.items or is_cut):
            self._enter("message")
        self._close("completed" if is_complete else "incomplete")
        if is_cut:
            self.items = [item for item in self.items if item["type"] != "message" or item["content"][0]["text"]]
        return self._taken()

    def _read(self, event: Event) -> None:
        match event:
            case ReasoningDelta(text):
                self._enter("reasoning")
                self._delta(text)
            case ContentDelta(text):
                self._enter("message")
                self._delta(text)
            case CallBegin(_, name, id_):
                self._begin("function_call", call_id=self._call_id(id_), name=name, arguments="")
            case ArgumentsDelta(_, text):
                self._delta(text)
            case CallEnd(_, is_complete):
                self._close("completed" if is_complete else "incomplete")

    def _call_id(self, given: str | None) -> str:
        """What the model calls a call, unless it has done so before."""
        call_id = given if given and given not in self._call_ids else f"call_{secrets.token_hex(12)}"
        self._call_ids.add(call_id)
        return call_id

    def _enter(self, kind: str) -> None:
        """More of this type comes: to the last item, or to a new one."""
        if self._is_open and self.items[-1]["type"] == kind:
            return
        if kind == "message":
            self._begin(kind, role="assistant", content=[])
        else:
            self._begin(kind, summary=[], content=[])
        self._tell("response.content_part.added", **self.place, part=_part(kind, "", []))

    def _begin(self, kind: str, **members: Any) -> None:
        self._close("completed")
        index = len(self.items)
        item_id = output_id(_PREFIXES[kind], self._response_id, index)
        item = {"id": item_id, "type": kind, "status": "in_progress", **members}
        self.items.append(item)
        self._is_open = True
        self._tell("response.output_item.added", output_index=index, item=dict(item))

    def _delta(self, text: str, logprobs: Sequence[Json] = ()) -> None:
        self.add(text, logprobs)
        kind = self.items[-1]["type"]
        more = {"logprobs": brief(logprobs)} if kind == "message" else {}
        self._tell(f"{_DELTAS[kind]}.delta", **self.place, delta=text, **more)

    def _close(self, status: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        item, text = self.items[-1], "".join(self._texts)
        kind = item["type"]
        if kind == "function_call":
            item["arguments"] = text
            self._tell(f"{_DELTAS[kind]}.done", **self.place, arguments=text)
        else:
            part = _part(kind, text, self._logprobs)
            item["content"] = [part]
            more = {"logprobs": brief(self._logprobs)} if kind == "message" else {}
            self._tell(f"{_DELTAS[kind]}.done", **self.place, text=text, **more)
            self._tell("response.content_part.done", **self.place, part=part)
        item["status"] = status
        self._texts, self._logprobs = [], []
        self._tell("response.output_item.done", output_index=len(self.items) - 1, item=item)

    @property
    def place(self) -> Json:
        """Where more of the last item goes, as events have it."""
        item = self.items[-1]
        place = {"item_id": item["id"], "output_index": len(self.items) - 1}
        return place if item["type"] == "function_call" else {**place, "content_index": 0}

    def _tell(self, kind: str, **members: Any) -> None:
        self._events.append({"type": kind, **members})

    def _taken(self) -> list[Json]:
        events, self._events = self._events, []
        return events


def _part(kind: str, text: str, logprobs: Sequence[Json]) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
