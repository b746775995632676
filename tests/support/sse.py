"""Read Server-Sent Events strictly: what is not a `data:` line, a comment or a blank line is an error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One event's data: a JSON object, or the string `[DONE]`."""

    data: Any


def parse_events(body: bytes) -> list[Event]:
    """All events of a finished stream; comments are skipped.

    Raises:
        AssertionError: the framing is wrong, or data is neither a JSON object nor `[DONE]`.
    """
    assert body.endswith(b"\n\n"), body[-200:]
    events = []
    for block in body.split(b"\n\n")[:-1]:
        if block.startswith(b":"):
            assert b"\n" not in block, block
            continue
        assert block.startswith(b"data: "), block
        assert b"\n" not in block, block
        payload = block.removeprefix(b"data: ")
        events.append(Event("[DONE]" if payload == b"[DONE]" else json.loads(payload)))
    for event in events:
        assert event.data == "[DONE]" or isinstance(event.data, dict), event
    return events


def joined_content(events: Iterable[Event], index: int = 0) -> str:
    """The content of one choice of a chat stream."""
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        if event.data != "[DONE]"
        for choice in event.data.get("choices", ())
        if choice["index"] == index
    )


def finish_reasons(events: Iterable[Event]) -> list[str]:
    """Every finish reason of a stream, in order."""
    return [
        choice["finish_reason"]
        for event in events
        if event.data != "[DONE]"
        for choice in event.data.get("choices", ())
        if choice["finish_reason"] is not None
    ]
