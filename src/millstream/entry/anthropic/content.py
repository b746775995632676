"""Content: what one answer says as Anthropic's blocks: thinking, text and calls of tools, in the order of its text.

A stream takes the events as they come, a whole answer puts them together as a client does, so both come to the same but for the
ids of calls, which are drawn.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from millstream.entry.anthropic.partial_json import closed
from millstream.entry.fields import Json
from millstream.entry.thought_count import ThoughtCount
from millstream.entry.turn import Answer
from millstream.parsing.events import ArgumentsDelta, CallBegin, CallEnd, ContentDelta, Event, ReasoningDelta
from millstream.parsing.pipeline import Pipeline, Reading
from millstream.text.token_bytes import TokenBytes

SIGNATURE = "unsigned"  # what clients keep with a thought and send back; nobody checks it here
_THINKING, _TEXT, _CALL = "thinking", "text", "tool_use"


class Content:
    """The blocks of one answer, read as `answer` says. Without `shows_thinking` its thinking blocks are empty."""

    def __init__(self, answer: Answer, tokens: TokenBytes, *, shows_thinking: bool) -> None:
        self.thought = ThoughtCount(answer.meter(), tokens)
        self._pipeline = Pipeline(answer.reading or Reading())
        self._shows_thinking = shows_thinking
        self._open: str | None = None  # the type of the last block while more may come to it
        self._index = -1  # of the last block
        self._num_calls = 0
        self._is_complete = True
        self._events: list[Json] = []

    @property
    def ends_in_calls(self) -> bool:
        """Whether there are calls, all of them complete."""
        return self._num_calls > 0 and self._is_complete

    def events(self, text: str, *, is_last: bool) -> list[Json]:
        """The events that more text makes; with `is_last` there is no more."""
        found = self._pipeline.feed(text) if text else []
        if is_last:
            found += self._pipeline.finish()
        for event in found:
            self._take(event)
        if is_last:
            if self._index < 0:
                self._begin(_TEXT, {"text": ""})
            self._close()
        events, self._events = self._events, []
        return events

    def blocks(self, text: str) -> list[Json]:
        """The blocks that a whole text is."""
        blocks: list[Json] = []
        texts: list[str] = []
        for event in self.events(text, is_last=True):
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"])
                texts = []
            elif event["type"] == "content_block_stop":
                _fill(blocks[-1], "".join(texts))
            elif event["delta"]["type"] == "signature_delta":
                blocks[-1]["signature"] = event["delta"]["signature"]
            else:
                texts.append(event["delta"].get("partial_json") or event["delta"].get(blocks[-1]["type"]))
        return blocks

    def _take(self, event: Event) -> None:
        match event:
            case ReasoningDelta(text):
                self._enter(_THINKING, {"thinking": "", "signature": ""})
                if self._shows_thinking:
                    self._delta("thinking_delta", thinking=text)
            case ContentDelta(text):
                self._enter(_TEXT, {"text": ""})
                self._delta("text_delta", text=text)
            case CallBegin(_, name, id_):
                self._num_calls += 1
                self._begin(_CALL, {"id": id_ or f"toolu_{secrets.token_hex(12)}", "name": name, "input": {}})
            case ArgumentsDelta(_, text):
                self._delta("input_json_delta", partial_json=text)
            case CallEnd(_, is_complete):
                self._is_complete &= is_complete
                self._close()

    def _enter(self, kind: str, members: Json) -> None:
        """More of this type comes: to the last block, or to a new one."""
        if self._open != kind:
            self._begin(kind, members)

    def _begin(self, kind: str, members: Json) -> None:
        self._close()
        self._open = kind
        self._index += 1
        self._events.append({"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **members}})

    def _delta(self, kind: str, **members: Any) -> None:
        self._events.append({"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **members}})

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open == _THINKING:
            self._delta("signature_delta", signature=SIGNATURE)
        self._open = None
        self._events.append({"type": "content_block_stop", "index": self._index})


def _fill(block: Json, text: str) -> None:
    """Put into a block what its deltas were."""
    if block["type"] == _CALL:
        block["input"] = msgspec.Raw(closed(text).encode())  # as the model wrote it
    else:
        block[block["type"]] = text
