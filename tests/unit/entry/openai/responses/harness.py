"""Ask /v1/responses of an entry with a fake engine, and read its streams strictly."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from openai.types.responses import Response as OpenAIResponse

from tests.support.asgi import Call, Response, post
from tests.support.engine import Entry
from tests.support.openai_models import extras

PATH = "/v1/responses"


class Event(NamedTuple):
    """One event: its `event:` line and its data."""

    name: str
    data: dict[str, Any]


def events_of(body: bytes) -> list[Event]:
    """All events of a finished stream, whose numbers count from 0; comments are skipped."""
    assert body.endswith(b"\n\n"), body[-200:]
    events = []
    for block in body.split(b"\n\n")[:-1]:
        if block.startswith(b":"):
            continue
        name, data = block.split(b"\n")
        assert name.startswith(b"event: "), block
        assert data.startswith(b"data: "), block
        event = Event(name.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: ")))
        assert event.data["type"] == event.name
        events.append(event)
    assert [event.data["sequence_number"] for event in events] == list(range(len(events)))
    return events


def joined(events: list[Event]) -> str:
    return "".join(event.data["delta"] for event in events if event.name == "response.output_text.delta")


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def checked(body: dict[str, Any]) -> dict[str, Any]:
    """A response object, once OpenAI's own model has taken it and knows all of its members."""
    assert extras(OpenAIResponse, body) == set()
    return body


async def ask(entry: Entry, body: dict[str, Any], **more: Any) -> Response:
    return await post(entry.app, PATH, {"input": "hi", **body}, **more)


async def made(entry: Entry, body: dict[str, Any] | None = None, *pieces: str, **more: Any) -> dict[str, Any]:
    """A response that ended well."""
    if pieces:
        entry.engine.answer = entry.engine.say(*pieces)
    response = await ask(entry, body or {}, **more)
    assert response.status == 200, response.body
    return checked(response.body)


async def send(entry: Entry, method: str, path: str, *, query: bytes = b"", headers: Any = None) -> Response:
    """A request without a body, for what is behind a response's id."""
    return await Call(entry.app, f"{PATH}/{path}", b"", method=method, query=query, headers=headers or {}).response()


def prompt_of(entry: Entry) -> list[int]:
    """The token ids of the last request that the engine got."""
    return entry.engine.requests[-1].input_ids
